"""What the log needs of a file system, and nothing more.

Noun: a file that is read and written at positions, in folders that are listed, renamed and synced.

Rule: what was written is durable only after `File.sync` (its bytes and size) and, for a name that was made,
renamed or removed, after `Files.sync_folder` of its folder. Errors are the `OSError`s of the operating
system, so that a full disk is `errno.ENOSPC` on a real machine and in the simulator alike; a negative
position or length is `EINVAL`, a closed file `EBADF`. Paths are strings, joined by "/".
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

# A memoryview is one of bytes: `len` of it is what is written.
Buffer = bytes | bytearray | memoryview


class Space(NamedTuple):
    """Room on the disk that holds a path, in bytes."""

    total: int
    free: int


class File(Protocol):
    """An open file. Reads and writes name their position; there is no cursor."""

    @property
    def path(self) -> str:
        """The path it was opened with; a later rename does not change it."""

    @property
    def closed(self) -> bool: ...

    def size(self) -> int: ...

    def read_at(self, position: int, length: int) -> bytes:
        """`length` bytes from `position`; fewer only at the end of the file.

        A length beyond the file takes no memory for what is not there.
        """

    def write_at(self, position: int, data: Buffer) -> None:
        """Write all of `data`; beyond the end it extends. When it raises, a part may be in the file."""

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros (sparse)."""

    def sync(self) -> None:
        """Return when every byte written before the call would survive a power loss (fdatasync).

        When it raises, what was written since the last good sync may be lost although readers still see it
        and the next sync succeeds: trust only what is read back after a restart. It may run in another
        thread.
        """

    def fileno(self) -> int:
        """The descriptor, for sendfile. Raises OSError where there is none (the simulator)."""

    def close(self) -> None:
        """Release it; again is harmless. A reader's region keeps the file alive by holding this object."""


class Lock(Protocol):
    """An exclusive claim on a path, held until released or until the process ends."""

    def release(self) -> None: ...


class Files(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Open a file; FileNotFoundError unless it exists or `create`."""

    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def list_folder(self, path: str) -> list[str]:
        """The names in it, in no order."""

    def make_folder(self, path: str) -> None:
        """Make it and its parents; it may exist."""

    def rename(self, old: str, new: str) -> None:
        """Atomically give `old` the name `new`, replacing a file of that name."""

    def remove(self, path: str) -> None:
        """Remove a file; FileNotFoundError if there is none. Whoever has it open may read on."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder and all in it."""

    def sync_folder(self, path: str) -> None:
        """Return when every name made, renamed or removed in it would survive a power loss.

        A new folder needs its parent synced too: names are durable one level at a time.
        """

    def size_of(self, path: str) -> int: ...

    def modified_ns(self, path: str) -> int:
        """When the file's content, or the folder's set of names, last changed, in nanoseconds since 1970."""

    def space(self, path: str) -> Space: ...

    def lock(self, path: str) -> Lock:
        """Claim `path`, a file made for it.

        BlockingIOError at once if another holder has it, in this process or another; its text names the
        holder.
        """
