"""A real file system on which chosen partitions meet a broken disk.

Everything passes through to the machine, except that writes in folders named `full` find no room, and syncs in folders
named `broken` fail. Both can be changed while a broker runs.
"""

from __future__ import annotations

import errno
import os

from penstock.runtime.files import Buffer, File, Files, Lock, PosixFiles, Space


class FaultyFile:
    """An open file that asks its file system before it writes or syncs."""

    def __init__(self, file: File, files: FaultyFiles) -> None:
        self._file = file
        self._files = files

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def closed(self) -> bool:
        return self._file.closed

    def size(self) -> int:
        return self._file.size()

    def read_at(self, position: int, length: int) -> bytes:
        return self._file.read_at(position, length)

    def write_at(self, position: int, data: Buffer) -> None:
        self._files.check(self._files.full, self.path, errno.ENOSPC)
        self._file.write_at(position, data)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        self._files.check(self._files.broken, self.path, errno.EIO)
        self._file.sync()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


class FaultyFiles:
    def __init__(self) -> None:
        self.full: set[str] = set()
        self.broken: set[str] = set()
        self._files: Files = PosixFiles()

    def check(self, folders: set[str], path: str, error: int) -> None:
        if os.path.basename(os.path.dirname(path)) in folders:
            raise OSError(error, os.strerror(error), path)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        return FaultyFile(self._files.open(path, create=create, writable=writable), self)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def is_folder(self, path: str) -> bool:
        return self._files.is_folder(path)

    def list_folder(self, path: str) -> list[str]:
        return self._files.list_folder(path)

    def make_folder(self, path: str) -> None:
        self._files.make_folder(path)

    def rename(self, old: str, new: str) -> None:
        self._files.rename(old, new)

    def remove(self, path: str) -> None:
        self._files.remove(path)

    def remove_folder(self, path: str) -> None:
        self._files.remove_folder(path)

    def sync_folder(self, path: str) -> None:
        self._files.sync_folder(path)

    def size_of(self, path: str) -> int:
        return self._files.size_of(path)

    def modified_ns(self, path: str) -> int:
        return self._files.modified_ns(path)

    def space(self, path: str) -> Space:
        return self._files.space(path)

    def lock(self, path: str) -> Lock:
        return self._files.lock(path)
