"""A file system that can only be looked at.

Rule: whatever would change a byte or a name is refused here (EROFS), so tools built on it cannot do harm, not even by
a mistake of theirs. Files are opened for reading only, so a folder of which one may read no more than that will do.
"""

from __future__ import annotations

import errno
from typing import NoReturn

from penstock.runtime.files import File, Files, Lock, Space


class ReadOnlyFiles:
    """Another file system's names and bytes, and nothing else of it."""

    __slots__ = ("_files",)

    def __init__(self, files: Files) -> None:
        self._files = files

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Opens for reading whatever `writable` says: who asks for more fails when it writes, not before."""
        if create and not self._files.exists(path):
            _refuse(path)
        return self._files.open(path, writable=False)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def is_folder(self, path: str) -> bool:
        return self._files.is_folder(path)

    def list_folder(self, path: str) -> list[str]:
        return self._files.list_folder(path)

    def size_of(self, path: str) -> int:
        return self._files.size_of(path)

    def modified_ns(self, path: str) -> int:
        return self._files.modified_ns(path)

    def space(self, path: str) -> Space:
        return self._files.space(path)

    def make_folder(self, path: str) -> None:
        _refuse(path)

    def rename(self, old: str, new: str) -> None:
        _refuse(old)

    def remove(self, path: str) -> None:
        _refuse(path)

    def remove_folder(self, path: str) -> None:
        _refuse(path)

    def sync_folder(self, path: str) -> None:
        _refuse(path)

    def lock(self, path: str) -> Lock:
        _refuse(path)


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, "opened for inspection only", path)
