"""The files that are kept open between uses, under a bound for the whole process.

A broker may have more partitions than a process may have open files. So an object that keeps a file open for its next
use opens it here, as its owner, and can open it again at any time. The bound is half of what the process may open.
Beyond it, the owner that opened its file longest ago lets go of it; when the process can open no more, several do. An
owner only drops its reference: a region that is being sent, or a sync on another thread, keeps the file until it is
done.

Nothing is noted when a file is used, since appends are too frequent for that. Instead an owner that has grown since
its file was opened is passed over once, as is one with bytes that were not synced: Linux tells of a failed write-back
those who had the file open then, and others only while it still knows.
"""

from __future__ import annotations

import resource
import threading
import weakref
from collections import OrderedDict
from typing import Final, Protocol

from penstock.runtime import posix_files
from penstock.runtime.files import File, Files
from penstock.runtime.posix_files import PosixFile

_LEAST: Final = 16
_MOST: Final = 1_000_000
_PASSED_OVER_MAX: Final = 64


class FileOwner(Protocol):
    """Who keeps a file open."""

    def let_go(self) -> None:
        """Drop the file, without closing it for others; called on any thread."""

    @property
    def growth(self) -> int:
        """A number that changes while the file is in use."""

    @property
    def is_unsynced(self) -> bool: ...


class OpenFiles:
    """The owners of open files, in the order in which they opened them."""

    def __init__(self, most: int | None = None) -> None:
        self._given = most
        self._most = 0
        self._owners: OrderedDict[int, tuple[weakref.ref[FileOwner], int]] = OrderedDict()
        self._guard = threading.Lock()
        self.measure()

    def measure(self) -> None:
        """Take the bound from what the process may open now."""
        if self._given is not None:
            self._most = self._given
            return
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = _MOST if soft == resource.RLIM_INFINITY else max(_LEAST, min(soft // 2, _MOST))

    @property
    def most(self) -> int:
        return self._most

    def __len__(self) -> int:
        return len(self._owners)

    def open(self, owner: FileOwner, files: Files, path: str, *, create: bool = False) -> File:
        """Open a file that `owner` keeps."""
        file = files.open(path, create=create)
        if isinstance(file, PosixFile):  # others have no descriptors
            if len(self._owners) >= self._most:
                self._let_go(len(self._owners) - self._most + 1)
            with self._guard:  # last: it must not be its own turn before it has the file
                self._owners[id(owner)] = weakref.ref(owner), owner.growth
        return file

    def relieve(self) -> None:
        """Have a quarter of the owners let go: somebody needs descriptors, for files or connections."""
        self._let_go(len(self._owners) // 4 + 1)

    def forget(self, owner: FileOwner) -> None:
        """The owner has let go of its file by itself."""
        with self._guard:
            self._owners.pop(id(owner), None)

    def _let_go(self, count: int) -> None:
        with self._guard:
            for _ in range(count):
                owner = self._next()
                if owner is not None:
                    owner.let_go()

    def _next(self) -> FileOwner | None:
        """The owner whose turn it is, taken out; None if there is nobody any more."""
        passed_over = 0
        while self._owners:
            key, (reference, growth) = self._owners.popitem(last=False)
            owner = reference()
            if owner is None:
                return None
            is_busy = owner.growth != growth or owner.is_unsynced
            if not is_busy or passed_over >= min(_PASSED_OVER_MAX, len(self._owners)):
                return owner
            passed_over += 1
            self._owners[key] = reference, owner.growth
        return None


OPEN_FILES: Final = OpenFiles()
"""Those of this process."""
posix_files.relief = OPEN_FILES.relieve
