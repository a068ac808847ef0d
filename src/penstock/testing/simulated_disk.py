"""A simulated disk under a page cache: what is durable, what is only cached, and what a power loss leaves.

`FileNode` and `FolderNode` have a cached and a durable side. `Tree` has the folders under one root and the journal of
name changes that are not durable yet. `PowerLoss` chooses which changes survive. The model is ext4 and xfs at their
worst:

- Data reaches the disk by the sector, in any order. A sector written several times since the last sync shows one of
  its versions, never a mixture, independently of its neighbours.
- Sizes go through the journal, in order, and do not wait for data: a file may have its final length and hold zeros or
  garbage where data never arrived. If a truncation was lost, no data written behind its size arrived.
- A write in flight damages only the bytes that it covers.
- Names go through the journal in the order in which they were changed, folder by folder; a rename is one change. A
  name and the bytes behind it are durable independently: a file may be empty after a power loss, or its synced bytes
  may have no name.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.runtime.randomness import Random

PAGE_BYTES = 4096
SECTOR_BYTES = 512
_ZEROS = bytes(PAGE_BYTES)


class Pages:
    """The bytes of a file as immutable pages; an absent page is a hole, read as zeros."""

    __slots__ = ("pages", "size")

    def __init__(self, size: int = 0, pages: dict[int, bytes] | None = None) -> None:
        self.size = size
        self.pages = {} if pages is None else pages

    def copy(self) -> Pages:
        return Pages(self.size, self.pages.copy())

    def read(self, position: int, length: int) -> bytes:
        end = min(position + length, self.size)
        if end <= position:
            return b""
        first, start = divmod(position, PAGE_BYTES)
        last = (end - 1) // PAGE_BYTES
        pages = self.pages
        if first == last:
            return pages.get(first, _ZEROS)[start : start + end - position]
        whole = b"".join([pages.get(number, _ZEROS) for number in range(first, last + 1)])
        return whole[start : start + end - position]

    def write(self, position: int, data: bytes) -> None:
        end = position + len(data)
        pages = self.pages
        first, start = divmod(position, PAGE_BYTES)
        if start + len(data) < PAGE_BYTES:
            old = pages.get(first, _ZEROS)
            pages[first] = b"".join((old[:start], data, old[start + len(data) :]))
            self.size = max(self.size, end)
            return
        taken = 0
        while taken < len(data):
            number, start = divmod(position + taken, PAGE_BYTES)
            part = data[taken : taken + PAGE_BYTES - start]
            if len(part) < PAGE_BYTES:
                old = pages.get(number, _ZEROS)
                pages[number] = old[:start] + part + old[start + len(part) :]
            else:
                pages[number] = part
            taken += len(part)
        self.size = max(self.size, end)

    def truncate(self, size: int) -> None:
        if size < self.size:
            whole, rest = divmod(size, PAGE_BYTES)
            for number in [number for number in self.pages if number >= whole + (rest > 0)]:
                del self.pages[number]
            if rest and whole in self.pages:
                self.pages[whole] = self.pages[whole][:rest] + _ZEROS[rest:]
        self.size = size

    def missing_pages(self, position: int, length: int) -> list[int]:
        """The pages that a write there would have to allocate, in order."""
        numbers = range(position // PAGE_BYTES, (position + length - 1) // PAGE_BYTES + 1)
        return [number for number in numbers if number not in self.pages]


class Write(NamedTuple):
    position: int
    data: bytes

    def size_after(self, size: int) -> int:
        return max(size, self.position + len(self.data))

    def apply(self, content: Pages) -> None:
        content.write(self.position, self.data)


class Truncation(NamedTuple):
    size: int

    def size_after(self, size: int) -> int:
        return self.size

    def apply(self, content: Pages) -> None:
        content.truncate(self.size)


Change = Write | Truncation


# One rate per file: independent draws per sector would hardly ever leave a single hole in a long file.
_SURVIVAL_RATES = (0.0, 0.1, 0.5, 0.9, 1.0)


def tear(durable: Pages, changes: Sequence[Change], random: Random, garbage: float) -> Pages:
    """One of the states that the disk may have while `changes` are in flight."""
    content = durable.copy()
    sizes = [durable.size]
    for change in changes:
        sizes.append(change.size_after(sizes[-1]))
    # The full length in half of the cases: recovery must detect holes in a file of the right length.
    journaled = len(changes) if random.below(2) else random.below(len(sizes))
    sector_bytes = (SECTOR_BYTES, PAGE_BYTES)[random.below(2)]
    fates = _SectorFates(changes, sector_bytes, random)
    undone_from = max(sizes)
    for index, change in enumerate(changes):
        if isinstance(change, Truncation):
            if index < journaled:
                content.truncate(change.size)
            elif change.size < sizes[index]:
                undone_from = min(undone_from, change.size)
            continue
        for position, data in _by_sector(change, sector_bytes):
            data = data[: max(0, undone_from - position)]
            if not data:
                break
            if fates.next_write_survives(position // sector_bytes):
                content.write(position, data)
            elif garbage and random.uniform(0.0, 1.0) < garbage:
                content.write(position, random.random_bytes(len(data)))
    content.truncate(sizes[journaled])
    return content


class _SectorFates:
    """The number of writes to each sector that reach the disk: all of them, or only the first few."""

    def __init__(self, changes: Sequence[Change], sector_bytes: int, random: Random) -> None:
        self._random = random
        self._survival_rate = _SURVIVAL_RATES[random.below(len(_SURVIVAL_RATES))]
        self._writes: Counter[int] = Counter()
        self._left: dict[int, int] = {}
        for change in changes:
            if isinstance(change, Write):
                first, last = change.position, change.position + len(change.data) - 1
                self._writes.update(range(first // sector_bytes, last // sector_bytes + 1))

    def next_write_survives(self, sector: int) -> bool:
        left = self._left.get(sector)
        if left is None:
            writes = self._writes[sector]
            survives = self._random.uniform(0.0, 1.0) < self._survival_rate
            left = writes if survives else self._random.below(writes)
        self._left[sector] = left - 1
        return left > 0


def _by_sector(write: Write, sector_bytes: int) -> Iterable[tuple[int, bytes]]:
    position, data = write
    end = position + len(data)
    while position < end:
        next_position = min(end, position - position % sector_bytes + sector_bytes)
        yield position, data[position - write.position : next_position - write.position]
        position = next_position


_NAME_BYTES_MAX = 255


class FileNode:
    """A file without its name: what readers see, what the disk holds, and the changes in between.

    `rewrites` counts the changes of durable bytes other than growth. While it is unchanged, a reader of the durable
    bytes needs to read only what was added.
    """

    __slots__ = ("__weakref__", "cached", "durable", "links", "modified_ns", "opens", "rewrites", "unsynced")

    def __init__(self) -> None:
        self.cached = Pages()
        self.durable = Pages()
        self.unsynced: list[Change] = []
        self.rewrites = 0
        self.links = 0
        self.opens = 0
        self.modified_ns = 0

    def change(self, change: Change) -> None:
        change.apply(self.cached)
        self.unsynced.append(change)

    def sync(self) -> None:
        durable = self.durable
        for change in self.unsynced:
            if (change.size if isinstance(change, Truncation) else change.position) < durable.size:
                self.rewrites += 1
            change.apply(durable)
        self.unsynced.clear()

    def fail_sync(self, loss: PowerLoss, random: Random) -> None:
        """As in Linux, pages count as clean although they are not on disk; readers still see them."""
        self.durable = loss.content(self.durable, self.unsynced, random)
        self.rewrites += 1
        self.unsynced.clear()

    def corrupt(self, position: int, length: int, mask: int) -> None:
        self.rewrites += 1
        for content in (self.cached, self.durable):
            old = content.read(position, length)
            if old:
                content.write(position, _flipped(old, 0, length, mask))
        for index, change in enumerate(self.unsynced):
            if isinstance(change, Write):
                start = position - change.position
                self.unsynced[index] = Write(change.position, _flipped(change.data, start, start + length, mask))

    def lose_power(self, loss: PowerLoss, random: Random) -> None:
        if self.unsynced:
            self.durable = loss.content(self.durable, self.unsynced, random)
            self.rewrites += 1
            self.unsynced.clear()
        self.cached = self.durable.copy()


class FolderNode:
    """A folder without its name. `durable` follows `entries` when the changes in the journal reach the disk."""

    __slots__ = ("durable", "entries", "modified_ns")

    def __init__(self) -> None:
        self.entries: dict[str, FileNode | FolderNode] = {}
        self.durable: dict[str, FileNode | FolderNode] = {}
        self.modified_ns = 0


Node = FileNode | FolderNode


class NameEdit(NamedTuple):
    """A change: `name` in `folder` now refers to `node`, or to nothing."""

    folder: FolderNode
    name: str
    node: Node | None

    def apply(self, entries: dict[str, Node]) -> None:
        if self.node is None:
            entries.pop(self.name, None)
        else:
            entries[self.name] = self.node


# One entry of the journal: edits that become durable together. A rename has two, perhaps in two folders.
NameChange = tuple[NameEdit, ...]


class Tree:
    """Folders under one root, and the journal of changes to names that are not durable yet."""

    def __init__(self, root: FolderNode | None = None, journal: Iterable[NameChange] = ()) -> None:
        self.root = FolderNode() if root is None else root
        self._journal = list(journal)

    def copy(self) -> tuple[Tree, list[FileNode]]:
        """A deep copy of the tree, and the files in it."""
        copy = _TreeCopy()
        root = copy.folder(self.root)
        return Tree(root, copy.journal(self._journal)), copy.files

    def find(self, path: str) -> Node | None:
        node: Node | None = self.root
        for name in split(path):
            if isinstance(node, FileNode):
                raise os_error(errno.ENOTDIR, path)
            if node is None:
                return None
            node = node.entries.get(name)
        return node

    def get(self, path: str) -> Node:
        node = self.find(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        return node

    def file(self, path: str) -> FileNode:
        node = self.get(path)
        if isinstance(node, FolderNode):
            raise os_error(errno.EISDIR, path)
        return node

    def folder(self, path: str) -> FolderNode:
        node = self.get(path)
        if isinstance(node, FileNode):
            raise os_error(errno.ENOTDIR, path)
        return node

    def parent(self, path: str) -> tuple[FolderNode, str]:
        """The folder of a path, and its name there."""
        names = split(path)
        if not names:
            raise os_error(errno.EBUSY, path)
        return self.folder("/".join(names[:-1])), names[-1]

    def find_durable(self, path: str) -> FileNode | None:
        """The file that has this name after any power loss."""
        node: Node | None = self.root
        for name in split(path):
            if not isinstance(node, FolderNode):
                return None
            node = node.durable.get(name)
        return node if isinstance(node, FileNode) else None

    def edit(self, *edits: NameEdit) -> None:
        """Change names, all at once."""
        for edit in edits:
            previous = edit.folder.entries.get(edit.name)
            if isinstance(previous, FileNode):
                previous.links -= 1
            if isinstance(edit.node, FileNode):
                edit.node.links += 1
            edit.apply(edit.folder.entries)
        self._journal.append(edits)

    def sync(self, folder: FolderNode) -> None:
        """Make the names in `folder` durable.

        A rename between two folders also makes earlier changes in the other folder durable.
        """
        forced: list[NameChange] = []
        rest: list[NameChange] = []
        folders = {id(folder)}
        for change in reversed(self._journal):
            touched = {id(edit.folder) for edit in change}
            if touched & folders:
                folders |= touched
                forced.append(change)
            else:
                rest.append(change)
        _persist(reversed(forced))
        self._journal = rest[::-1]

    def lose_power(self, loss: PowerLoss, random: Random) -> None:
        _persist(loss.surviving_names(self._journal, random))
        self._journal.clear()
        folders = [self.root]
        for folder in folders:
            folder.entries = dict(folder.durable)
            for node in folder.entries.values():
                if isinstance(node, FileNode):
                    node.links = 1
                    node.lose_power(loss, random)
                else:
                    folders.append(node)


def split(path: str) -> list[str]:
    names = [name for name in path.split("/") if name not in ("", ".")]
    if len(path) * 4 > _NAME_BYTES_MAX and any(len(name.encode()) > _NAME_BYTES_MAX for name in names):
        raise os_error(errno.ENAMETOOLONG, path)
    return names


def os_error(number: int, path: str) -> OSError:
    """The error that the operating system would raise; Python picks the subclass by the number."""
    return OSError(number, os.strerror(number), path)


def _flipped(data: bytes, start: int, end: int, mask: int) -> bytes:
    start, end = max(0, start), max(0, end)
    return data[:start] + bytes(byte ^ mask for byte in data[start:end]) + data[end:]


def _persist(changes: Iterable[NameChange]) -> None:
    for change in changes:
        for edit in change:
            edit.apply(edit.folder.durable)


class _TreeCopy:
    """Copies nodes deeply, each once; immutable pages are shared."""

    def __init__(self) -> None:
        self.files: list[FileNode] = []
        self._copies: dict[int, Node] = {}

    def folder(self, folder: FolderNode) -> FolderNode:
        copy = self._copies.get(id(folder))
        if isinstance(copy, FolderNode):
            return copy
        copy = FolderNode()
        self._copies[id(folder)] = copy
        copy.modified_ns = folder.modified_ns
        copy.entries = {name: self.node(node) for name, node in folder.entries.items()}
        copy.durable = {name: self.node(node) for name, node in folder.durable.items()}
        return copy

    def node(self, node: Node) -> Node:
        if isinstance(node, FolderNode):
            return self.folder(node)
        copy = self._copies.get(id(node))
        if copy is None:
            copy = FileNode()
            self._copies[id(node)] = copy
            self.files.append(copy)
            copy.cached = node.cached.copy()
            copy.durable = node.durable.copy()
            copy.unsynced = node.unsynced.copy()
            copy.rewrites = node.rewrites
            copy.links = node.links
            copy.modified_ns = node.modified_ns
        return copy

    def journal(self, journal: Iterable[NameChange]) -> list[NameChange]:
        return [
            tuple(
                NameEdit(self.folder(edit.folder), edit.name, None if edit.node is None else self.node(edit.node))
                for edit in change
            )
            for change in journal
        ]


class Names(Enum):
    """What happens to unsynced names."""

    LOST = "lost"
    KEPT = "kept"
    RANDOM = "random"


class Data(Enum):
    """What happens to unsynced data."""

    LOST = "lost"
    KEPT = "kept"
    ZEROED = "zeroed"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class PowerLoss:
    """Chooses which unsynced changes survive.

    `Data.ZEROED` keeps the sizes and loses the bytes. `Data.RANDOM` draws for each file how many sectors survive, from
    none to all, whether sectors have 512 or 4096 bytes, and which size change is the last one; `garbage` is then the
    probability that a lost piece holds random bytes instead of the old ones.
    """

    names: Names
    data: Data
    garbage: float = 0.0

    def content(self, durable: Pages, changes: Sequence[Change], random: Random) -> Pages:
        if self.data is Data.RANDOM:
            return tear(durable, changes, random, self.garbage)
        content = durable.copy()
        if self.data is Data.KEPT:
            for change in changes:
                change.apply(content)
        elif self.data is Data.ZEROED:
            for change in changes:
                content.truncate(change.size_after(content.size))
        return content

    def surviving_names(self, journal: Sequence[NameChange], random: Random) -> list[NameChange]:
        if self.names is Names.LOST:
            return []
        if self.names is Names.KEPT:
            return list(journal)
        return _prefix_by_folder(journal, random)


LOSE_UNSYNCED = PowerLoss(Names.LOST, Data.LOST)
KEEP_UNSYNCED = PowerLoss(Names.KEPT, Data.KEPT)
KEEP_NAMES_ONLY = PowerLoss(Names.KEPT, Data.LOST)
KEEP_SIZES_ONLY = PowerLoss(Names.KEPT, Data.ZEROED)
RANDOM_LOSS = PowerLoss(Names.RANDOM, Data.RANDOM)
RANDOM_GARBAGE = PowerLoss(Names.RANDOM, Data.RANDOM, garbage=0.3)


def _prefix_by_folder(journal: Sequence[NameChange], random: Random) -> list[NameChange]:
    """An arbitrary number of the first changes of each folder; a change in two folders needs both."""
    totals: dict[int, int] = {}
    for change in journal:
        for folder in {id(edit.folder): None for edit in change}:
            totals[folder] = totals.get(folder, 0) + 1
    left = {folder: random.below(total + 1) for folder, total in totals.items()}
    surviving: list[NameChange] = []
    for change in journal:
        folders = {id(edit.folder) for edit in change}
        if all(left[folder] > 0 for folder in folders):
            surviving.append(change)
            for folder in folders:
                left[folder] -= 1
        else:
            for folder in folders:
                left[folder] = 0
    return surviving
