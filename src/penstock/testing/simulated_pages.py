"""The bytes of a simulated file, and what a power loss may make of them.

Nouns: `Pages`, the content; `Write` and `Truncation`, the changes to it that are not durable yet; `tear`,
which draws one of the states in which the disk may hold the file meanwhile.

Theory, as ext4 and xfs behave at their worst:

- Data goes to the disk by the sector, in any order. A sector that was written several times since the last
  sync shows one of its versions, never a mixture; its neighbours choose for themselves.
- Sizes go through the journal, in order, and do not wait for data: a file may be as long as its last write
  made it and hold zeros, or nonsense, where the data never came. Where a cut did not get there, nothing
  written behind it did.
- A write in flight spoils no bytes but those it covers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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


# Drawn for a whole file: a coin for each sector alone would hardly ever show one hole in a long file.
_SURVIVAL_RATES = (0.0, 0.1, 0.5, 0.9, 1.0)


def tear(durable: Pages, changes: Sequence[Change], random: Random, garbage: float) -> Pages:
    """One of the states in which the disk may hold the file, `changes` being under way."""
    content = durable.copy()
    sizes = [durable.size]
    for change in changes:
        sizes.append(change.size_after(sizes[-1]))
    # Half the time the whole length: holes in it are what recovery must not be fooled by.
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
    """How many of the writes to each sector reach the disk: all of them, or some that came first."""

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
