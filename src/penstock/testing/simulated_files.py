"""Files in memory that can lose power, fill up, fail and rot: a simulated disk behind the `Files` interface.

Every mutating operation has a number. `files.operations` can make it fail, happen in part, or lose power at it. Without
power every call raises `PowerLost` until the test calls `crash`, which chooses what the disk holds after the restart,
or `kill`, as if only the process had died. The same seed and the same calls give the same disk.

Paths are absolute whether or not they begin with "/". Not thread-safe.
"""

from __future__ import annotations

import errno
from weakref import WeakSet

from penstock.runtime.files import Buffer, Space
from penstock.runtime.randomness import Random, SeededRandom
from penstock.testing.simulated_disk import (
    LOSE_UNSYNCED,
    PAGE_BYTES,
    Change,
    FileNode,
    FolderNode,
    NameEdit,
    PowerLoss,
    Tree,
    Truncation,
    Write,
    os_error,
    split,
)
from penstock.testing.simulated_faults import LOOK, READ, Fault, OperationLog, PowerLost

_UNLIMITED_BYTES = 1 << 40
_FILE_BYTES_MAX = 1 << 44
_TICK_NS = 1_000_000


class SimulatedFile:
    """An open file. It is unusable once power was lost or the process was killed."""

    __slots__ = ("__weakref__", "_closed", "_files", "_node", "_path", "_session", "_writable")

    def __init__(self, files: SimulatedFiles, path: str, node: FileNode, writable: bool) -> None:
        self._files = files
        self._path = path
        self._node = node
        self._session = files._session
        self._writable = writable
        self._closed = False
        node.opens += 1

    @property
    def path(self) -> str:
        return self._path

    @property
    def closed(self) -> bool:
        return self._closed

    def _require_usable(self) -> None:
        if self._closed:
            raise os_error(errno.EBADF, self._path)
        if self._session != self._files._session or not self._files.powered:
            raise PowerLost(self._path)

    def size(self) -> int:
        self._require_usable()
        return self._node.cached.size

    def read_at(self, position: int, length: int) -> bytes:
        self._require_usable()
        if position < 0 or length < 0:
            raise os_error(errno.EINVAL, self._path)
        self._files.operations.look(READ, self._path)
        return self._node.cached.read(position, length)

    def write_at(self, position: int, data: Buffer) -> None:
        self._require_usable()
        if not self._writable:
            raise os_error(errno.EBADF, self._path)
        if position < 0:
            raise os_error(errno.EINVAL, self._path)
        if data:
            self._files._write(self._path, self._node, Write(position, bytes(data)))

    def truncate(self, size: int) -> None:
        self._require_usable()
        if size < 0 or not self._writable:
            raise os_error(errno.EINVAL, self._path)
        self._files._truncate(self._path, self._node, size)

    def sync(self) -> None:
        self._require_usable()
        self._files._sync(self._path, self._node)

    def fileno(self) -> int:
        raise os_error(errno.EBADF, self._path)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._session == self._files._session:
                self._node.opens -= 1

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SimulatedFile {self._path!r}{' closed' if self._closed else ''}>"


class SimulatedLock:
    """A lock that is held until its release, the end of the process, or a power loss."""

    __slots__ = ("_holders", "_node")

    def __init__(self, holders: dict[FileNode, SimulatedLock], node: FileNode) -> None:
        self._holders = holders
        self._node = node
        holders[node] = self

    def release(self) -> None:
        if self._holders.get(self._node) is self:
            del self._holders[self._node]


class SimulatedFiles:
    """A file system in memory with the faults of a real one.

    `capacity_bytes` counts in whole pages of 4 KiB: a write stores what fits, then fails with ENOSPC.
    """

    def __init__(self, random: Random | None = None, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.powered = True
        self._random = SeededRandom(0) if random is None else random
        self.operations = OperationLog()
        self._disk = Tree()
        self._nodes: WeakSet[FileNode] = WeakSet()
        self._locks: dict[FileNode, SimulatedLock] = {}
        self._session = 0
        self._ticks = 0

    # The Files interface.

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        self.operations.look(LOOK, path)
        node = self._tree.find(path)
        if node is None and create:
            node = self._create(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if isinstance(node, FolderNode):
            raise os_error(errno.EISDIR, path)
        return SimulatedFile(self, path, node, writable)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_folder(self, path: str) -> bool:
        return isinstance(self._find(path), FolderNode)

    def _find(self, path: str) -> FileNode | FolderNode | None:
        """The node, or None. Like `os.path.exists`, it reports an error as a missing file."""
        tree = self._tree
        try:
            self.operations.look(LOOK, path)
            return tree.find(path)
        except OSError:
            return None

    def list_folder(self, path: str) -> list[str]:
        self.operations.look(LOOK, path)
        names = list(self._tree.folder(path).entries)
        self._random.shuffle(names)
        return names

    def make_folder(self, path: str) -> None:
        folder = self._tree.root
        names = split(path)
        made = ""
        for name in names:
            made += "/" + name
            node = folder.entries.get(name)
            if node is None:
                self._begin("make_folder", made)
                node = FolderNode()
                self._edit(NameEdit(folder, name, node))
            elif isinstance(node, FileNode):
                raise os_error(errno.EEXIST if made == "/" + "/".join(names) else errno.ENOTDIR, made)
            folder = node

    def rename(self, old: str, new: str) -> None:
        node = self._tree.get(old)
        old_folder, old_name = self._tree.parent(old)
        new_folder, new_name = self._tree.parent(new)
        replaced = new_folder.entries.get(new_name)
        if replaced is node:
            return
        if isinstance(node, FolderNode):
            if split(new)[: len(split(old))] == split(old):
                raise os_error(errno.EINVAL, new)
            if isinstance(replaced, FileNode):
                raise os_error(errno.ENOTDIR, new)
            if replaced is not None and replaced.entries:
                raise os_error(errno.ENOTEMPTY, new)
        elif isinstance(replaced, FolderNode):
            raise os_error(errno.EISDIR, new)
        self._begin("rename", old)
        self._edit(NameEdit(old_folder, old_name, None), NameEdit(new_folder, new_name, node))

    def remove(self, path: str) -> None:
        if isinstance(self._tree.get(path), FolderNode):
            raise os_error(errno.EISDIR, path)
        self._begin("remove", path)
        self._edit(NameEdit(*self._tree.parent(path), None))

    def remove_folder(self, path: str) -> None:
        folder = self._tree.folder(path)
        parent, name = self._tree.parent(path)
        for inner, node in list(folder.entries.items()):
            if isinstance(node, FolderNode):
                self.remove_folder(f"{path}/{inner}")
            else:
                self.remove(f"{path}/{inner}")
        self._begin("remove_folder", path)
        self._edit(NameEdit(parent, name, None))

    def sync_folder(self, path: str) -> None:
        folder = self._tree.folder(path)
        self._begin("sync_folder", path)
        self._disk.sync(folder)

    def size_of(self, path: str) -> int:
        self.operations.look(LOOK, path)
        return self._tree.file(path).cached.size

    def modified_ns(self, path: str) -> int:
        self.operations.look(LOOK, path)
        return self._tree.get(path).modified_ns

    def space(self, path: str) -> Space:
        self.operations.look(LOOK, path)
        self._tree.get(path)
        total = _UNLIMITED_BYTES if self.capacity_bytes is None else self.capacity_bytes
        return Space(total, max(0, total - self._used_bytes()))

    def lock(self, path: str) -> SimulatedLock:
        self.operations.look(LOOK, path)
        node = self._tree.find(path)
        if node is None:
            node = self._create(path)
        if isinstance(node, FolderNode):
            raise os_error(errno.EISDIR, path)
        if node in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked by another holder", path)
        return SimulatedLock(self._locks, node)

    # For tests.

    def crash(self, loss: PowerLoss = LOSE_UNSYNCED) -> None:
        """Lose and restore power. Open files are unusable, locks are released; `loss` chooses what is left."""
        for node in self._nodes:
            node.links = 0
        self._disk.lose_power(loss, self._random)
        self.kill()

    def kill(self) -> None:
        """Kill the process, not the machine. Open files are unusable, locks are released, nothing written is lost."""
        self._session += 1
        self._locks.clear()
        self.powered = True
        for node in self._nodes:
            node.opens = 0

    def fork(self, random: Random) -> SimulatedFiles:
        """A copy of the disk and its cache, without open files, locks and planned faults."""
        fork = SimulatedFiles(random, capacity_bytes=self.capacity_bytes)
        fork._disk, nodes = self._disk.copy()
        fork._nodes.update(nodes)
        fork._ticks = self._ticks
        return fork

    def corrupt(self, path: str, position: int, *, length: int = 1, mask: int = 0xFF) -> None:
        """Flip the bits of `mask` in each of these bytes, on the disk and in the cache, without an error."""
        node = self._tree.file(path)
        if position < 0 or length < 1 or position + length > node.cached.size or not 0 < mask < 256:
            raise ValueError(f"{path}: no {length} bytes at {position} to corrupt with mask {mask}")
        node.corrupt(position, length, mask)

    def wipe(self, path: str) -> None:
        """Replace the disk of the folder `path` by an empty one, right after a `crash`."""
        folder, name = self._tree.parent(path)
        folder.entries.pop(name, None)
        folder.durable.pop(name, None)

    def durable_content(self, path: str) -> bytes:
        """The durable bytes of a file, if its name is durable."""
        durable = self._tree.file(path).durable
        return durable.read(0, durable.size)

    def watched_file(self, path: str) -> FileNode | None:
        """The file with this name, for inspection: the call cannot fail and is not counted."""
        try:
            node = self._disk.find(path)
        except NotADirectoryError:
            return None
        return node if isinstance(node, FileNode) else None

    def durable_file(self, path: str) -> FileNode | None:
        """The file that has this name after any power loss, with its durable bytes in `FileNode.durable`; None if there
        is none. Also works when the power is off.
        """
        return self._disk.find_durable(path)

    # Shared by both.

    @property
    def _tree(self) -> Tree:
        if not self.powered:
            raise PowerLost("/")
        return self._disk

    def _create(self, path: str) -> FileNode:
        folder, name = self._tree.parent(path)
        self._begin("create", path)
        node = FileNode()
        node.modified_ns = self._now_ns()
        self._nodes.add(node)
        self._edit(NameEdit(folder, name, node))
        return node

    def _edit(self, *edits: NameEdit) -> None:
        self._disk.edit(*edits)
        for edit in edits:
            edit.folder.modified_ns = self._now_ns()

    def _now_ns(self) -> int:
        self._ticks += 1
        return self._ticks * _TICK_NS

    def _used_bytes(self) -> int:
        live = [node for node in self._nodes if node.links or node.opens]
        return PAGE_BYTES * sum(len(node.cached.pages) for node in live)

    def _begin(self, kind: str, path: str) -> None:
        fault = self.operations.begin(kind, path)
        if fault is not None:
            raise self._failed(fault)

    def _failed(self, fault: Fault) -> OSError:
        if isinstance(fault.error, PowerLost):
            self.powered = False
        return fault.error

    def _change(self, node: FileNode, change: Change) -> None:
        node.change(change)
        node.modified_ns = self._now_ns()

    def _write(self, path: str, node: FileNode, write: Write) -> None:
        length = len(write.data)
        if write.position + length > _FILE_BYTES_MAX:
            raise os_error(errno.EFBIG, path)
        fault = self.operations.begin("write", path, write.position, length)
        fitting = length if fault is None else min(length, fault.applied_bytes)
        if self.capacity_bytes is not None:
            fitting = min(fitting, self._fitting_bytes(node, write))
        if fitting:
            self._change(node, write if fitting == length else Write(write.position, write.data[:fitting]))
        if fault is not None:
            raise self._failed(fault)
        if fitting < length:
            raise os_error(errno.ENOSPC, path)

    def _fitting_bytes(self, node: FileNode, write: Write) -> int:
        capacity_bytes = self.capacity_bytes or 0
        free_pages = max(0, capacity_bytes - self._used_bytes()) // PAGE_BYTES
        missing = node.cached.missing_pages(write.position, len(write.data))
        if len(missing) <= free_pages:
            return len(write.data)
        return max(0, missing[free_pages] * PAGE_BYTES - write.position)

    def _truncate(self, path: str, node: FileNode, size: int) -> None:
        if size > _FILE_BYTES_MAX:
            raise os_error(errno.EFBIG, path)
        fault = self.operations.begin("truncate", path, size)
        if fault is not None:
            raise self._failed(fault)
        self._change(node, Truncation(size))

    def _sync(self, path: str, node: FileNode) -> None:
        fault = self.operations.begin("sync", path)
        if fault is None:
            node.sync()
            return
        error = self._failed(fault)
        if self.powered:
            node.fail_sync(fault.loss, self._random)
        raise error
