"""Files: the protocol that the log needs of a file system, POSIX files, and the bound on open files.

Written bytes are durable only after `File.sync`; a created, renamed or removed name only after `Files.sync_folder`.
Errors are the operating system's: ENOSPC for a full disk, EINVAL for a negative position or length, EBADF for a closed
file. An append is one system call; `PosixFile` only completes short reads and writes and adds the path to errors.

A broker may have more partitions than it may open files. An object that keeps a file open registers as its owner in
`OPEN_FILES`, which allows half of the process's limit. Beyond it, the owner that opened its file longest ago drops it,
skipping once owners that have grown or are unsynced: Linux reports a failed write-back only to descriptors that were
open. A region being sent or a running sync keeps the file until it is done.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import stat
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeAlias

# Memoryviews have format "B": their length is the number of bytes.
Buffer: TypeAlias = bytes | bytearray | memoryview

_FILE_MODE: Final = 0o644
_PRIVATE_MODE: Final = 0o600
_TRUSTED_READ_BYTES: Final = 64 * 1024
_PID_DIGITS_MAX: Final = 20
_MIN_OPEN: Final = 16
_MAX_OPEN: Final = 1_000_000
_SKIPPED_MAX: Final = 64


class Space(NamedTuple):
    """Space on the disk that holds a path, in bytes."""

    total: int
    free: int


class File(Protocol):
    """An open file. Reads and writes take a position; there is no cursor."""

    @property
    def path(self) -> str:
        """The path that it was opened with, even after a rename."""

    @property
    def closed(self) -> bool: ...

    def size(self) -> int: ...

    def read_at(self, position: int, length: int) -> bytes:
        """`length` bytes from `position`; fewer only at the end of the file.

        A length beyond the end of the file allocates no memory for it.
        """

    def write_at(self, position: int, data: Buffer) -> None:
        """Write all of `data`, extending the file if needed. On an error a part may be in the file."""

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros (sparse)."""

    def sync(self) -> None:
        """Make every byte written before the call durable (fdatasync). It may run on another thread.

        On an error, bytes written since the last successful sync may be lost although readers still see them and the
        next sync succeeds: trust only what is read back after a restart.
        """

    def fileno(self) -> int:
        """The descriptor, for sendfile. Raises OSError where there is none (the simulator)."""

    def close(self) -> None:
        """Close it. Calling it again is harmless. A region being sent keeps the file open by holding this object."""


class Lock(Protocol):
    """An exclusive lock on a path, held until released or until the process ends."""

    def release(self) -> None: ...


class Files(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Open a file; FileNotFoundError unless it exists or `create`."""

    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def list_folder(self, path: str) -> list[str]:
        """The names in a folder, unordered."""

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents; it may exist."""

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing a file of the new name."""

    def remove(self, path: str) -> None:
        """Remove a file; FileNotFoundError if there is none. Open files stay readable."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder and everything in it."""

    def sync_folder(self, path: str) -> None:
        """Make every created, renamed or removed name in the folder durable.

        A new folder needs its parent synced too: names are durable one level at a time.
        """

    def size_of(self, path: str) -> int: ...

    def modified_ns(self, path: str) -> int:
        """When the file's content or the folder's names last changed, in nanoseconds since 1970."""

    def space(self, path: str) -> Space: ...

    def lock(self, path: str) -> Lock:
        """Lock `path`, a file that is created if needed.

        BlockingIOError, which names the holder, if it is locked, in this process or another.
        """


_pread = os.pread
_pwrite = os.pwrite

if sys.platform == "darwin":

    def _sync_data(descriptor: int) -> None:
        # On macOS fsync does not flush the drive's cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)

    _sync_names = _sync_data
else:
    _sync_data = os.fdatasync
    _sync_names = os.fsync

relief: Callable[[], None] | None = None
"""Called when the limit of open files is reached, to close some; then opening is retried."""

# Held only briefly, at the start and end of a sync and in close: one lock for all files is enough.
_sync_guard = threading.Lock()


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags, _FILE_MODE)
    except OSError as error:
        if relief is None or error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        relief()
        return os.open(path, flags, _FILE_MODE)


class PosixFile:
    """An open descriptor.

    `sync` may run on another thread while this one reads, writes and even closes the file: the descriptor is then
    closed when the last sync returns, so that another file cannot reuse its number meanwhile.
    """

    __slots__ = ("__weakref__", "_closing", "_descriptor", "_path", "_syncs_running")

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._syncs_running = 0
        self._closing = -1

    @property
    def path(self) -> str:
        return self._path

    @property
    def closed(self) -> bool:
        return self._descriptor < 0

    def size(self) -> int:
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            error.filename = self._path
            raise

    def read_at(self, position: int, length: int) -> bytes:
        try:
            if length > _TRUSTED_READ_BYTES:
                # pread allocates first; a length from a damaged header must not decide how much.
                length = max(0, min(length, os.fstat(self._descriptor).st_size - position))
            data = _pread(self._descriptor, length, position)
            if len(data) == length or not data:
                return data
            return self._read_rest(position, length, data)
        except OSError as error:
            error.filename = self._path
            raise

    def _read_rest(self, position: int, length: int, first: bytes) -> bytes:
        parts = [first]
        count = len(first)
        while count < length:
            part = _pread(self._descriptor, length - count, position + count)
            if not part:
                break
            parts.append(part)
            count += len(part)
        return b"".join(parts)

    def write_at(self, position: int, data: Buffer) -> None:
        try:
            written = _pwrite(self._descriptor, data, position)
            if written != len(data):
                self._write_rest(position, memoryview(data).cast("B"), written)
        except OSError as error:
            error.filename = self._path
            raise

    def _write_rest(self, position: int, data: memoryview, written: int) -> None:
        while written < len(data):
            count = _pwrite(self._descriptor, data[written:], position + written)
            if count == 0:
                raise OSError(errno.EIO, "the file accepts no further bytes, without an error")
            written += count

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            error.filename = self._path
            raise

    def sync(self) -> None:
        with _sync_guard:
            descriptor = self.fileno()
            self._syncs_running += 1
        try:
            _sync_data(descriptor)
        except OSError as error:
            error.filename = self._path
            raise
        finally:
            with _sync_guard:
                self._syncs_running -= 1
                closing = -1 if self._syncs_running else self._closing
                if closing >= 0:
                    self._closing = -1
            if closing >= 0:
                os.close(closing)

    def fileno(self) -> int:
        if self._descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        return self._descriptor

    def close(self) -> None:
        with _sync_guard:
            descriptor, self._descriptor = self._descriptor, -1
            if self._syncs_running and descriptor >= 0:
                self._closing = descriptor
                return
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        # No guard: a running sync holds the object, and the collector may call this with the guard taken.
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with suppress(OSError):
                _close(descriptor)

    def __repr__(self) -> str:
        return f"<PosixFile {self._path!r}{' closed' if self.closed else ''}>"


class PosixLock:
    """A flock. It is released only by `release` or when the process ends."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        try:
            # The file stays: if it were removed, two holders could lock two files of one name.
            os.ftruncate(descriptor, 0)
            # A forked child shares the descriptor: closing only ours would leave the lock with the child.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)


def make_private(file: File) -> None:
    """Let only the owner of a file on a disk read and write it. OSError."""
    if isinstance(file, PosixFile):
        os.fchmod(file.fileno(), _PRIVATE_MODE)


class PosixFiles:
    """The machine's file system."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> PosixFile:
        flags = os.O_RDWR if writable else os.O_RDONLY
        if create:
            flags |= os.O_CREAT
        file = PosixFile(path, _open(path, flags))
        if not writable and stat.S_ISDIR(os.fstat(file.fileno()).st_mode):
            file.close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return file

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def list_folder(self, path: str) -> list[str]:
        return os.listdir(path)

    def make_folder(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_folder(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_folder(self, path: str) -> None:
        descriptor = _open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _sync_names(descriptor)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(descriptor)

    def size_of(self, path: str) -> int:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return status.st_size

    def modified_ns(self, path: str) -> int:
        return os.stat(path).st_mtime_ns

    def space(self, path: str) -> Space:
        status = os.statvfs(path)
        return Space(total=status.f_blocks * status.f_frsize, free=status.f_bavail * status.f_frsize)

    def lock(self, path: str) -> PosixLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise BlockingIOError(errno.EWOULDBLOCK, f"locked by {holder}", path) from None
        except OSError as error:
            os.close(descriptor)
            error.filename = path
            raise
        # The number is only for the error above; on a full disk a broker must still start, to free space.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return PosixLock(path, descriptor)


def _holder(descriptor: int) -> str:
    """The process in a lock file. Between locking and writing there is none."""
    text = os.pread(descriptor, _PID_DIGITS_MAX, 0).strip()
    if not text.isdigit():
        return "another process"
    pid = int(text)
    return f"this process ({pid})" if pid == os.getpid() else f"process {pid}"


# ------------------------------------------------------------------------------------------- open files of the process


class FileOwner(Protocol):
    """An object that keeps a file open."""

    def drop_file(self) -> None:
        """Drop the reference to the file, without closing it for others. Called on any thread."""

    @property
    def growth(self) -> int:
        """A number that changes while the file is in use."""

    @property
    def is_unsynced(self) -> bool: ...


class OpenFiles:
    """The owners of open files, in the order in which they opened them, and the limit on them."""

    def __init__(self, most: int | None = None) -> None:
        self._given = most
        self._most = 0
        self._owners: OrderedDict[int, tuple[weakref.ref[FileOwner], int]] = OrderedDict()
        self._guard = threading.Lock()
        self.measure()

    def measure(self) -> None:
        """Set the limit to half of what the process may open now."""
        if self._given is not None:
            self._most = self._given
            return
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = _MAX_OPEN if soft == resource.RLIM_INFINITY else max(_MIN_OPEN, min(soft // 2, _MAX_OPEN))

    @property
    def most(self) -> int:
        return self._most

    def __len__(self) -> int:
        return len(self._owners)

    def open(self, owner: FileOwner, files: Files, path: str, *, create: bool = False) -> File:
        """Open a file that `owner` keeps."""
        file = files.open(path, create=create)
        if isinstance(file, PosixFile):  # simulated files have no descriptor
            if len(self._owners) >= self._most:
                self._drop(len(self._owners) - self._most + 1)
            with self._guard:  # last: it must have the file before its turn can come
                self._owners[id(owner)] = weakref.ref(owner), owner.growth
                self._owners.move_to_end(id(owner))  # an owner that is gone may have had the same id
        return file

    def relieve(self) -> None:
        """Make a quarter of the owners drop their files: descriptors are needed for files or connections."""
        self._drop(len(self._owners) // 4 + 1)

    def forget(self, owner: FileOwner) -> None:
        """The owner dropped its file by itself."""
        with self._guard:
            self._owners.pop(id(owner), None)

    def _drop(self, count: int) -> None:
        with self._guard:
            for _ in range(count):
                owner = self._next()
                if owner is not None:
                    owner.drop_file()

    def _next(self) -> FileOwner | None:
        """Remove and return the next owner; None if there is none."""
        skipped = 0
        while self._owners:
            key, (reference, growth) = self._owners.popitem(last=False)
            owner = reference()
            if owner is None:
                return None
            is_busy = owner.growth != growth or owner.is_unsynced
            if not is_busy or skipped >= min(_SKIPPED_MAX, len(self._owners)):
                return owner
            skipped += 1
            self._owners[key] = reference, owner.growth
        return None


OPEN_FILES: Final = OpenFiles()
"""The open files of this process."""
relief = OPEN_FILES.relieve
