"""Faults of operations on a simulated disk, and the log of operations that they refer to.

An `Operation` is about to happen. A `Fault` is how it fails. A `Trouble` makes a part of the disk fail for a while. The
`OperationLog` numbers operations from 0 and keeps them for assertions. Planned faults, then troubles, then the hook
decide whether an operation fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.testing.simulated_disk import KEEP_SIZES_ONLY, LOSE_UNSYNCED, PowerLoss

_OPERATIONS_KEPT = 65_536

READ: Final = "read"
"""Reads of an open file. They are not operations, because they change nothing, but they may fail too."""
LOOK: Final = "look"
"""Reads of names, sizes and folders, and opening a file."""
GROWING: Final = frozenset({"create", "write", "make_folder"})
"""Operations that need free space."""
ALL_KINDS: Final = frozenset(
    {*GROWING, READ, LOOK, "truncate", "sync", "rename", "remove", "remove_folder", "sync_folder"}
)


class PowerLost(OSError):
    """The power is off, or was lost since this file was opened."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EIO, "the power was lost", path)


class Operation(NamedTuple):
    """A mutating operation, about to happen.

    `kind` is create, write, truncate, sync, rename, remove, make_folder, remove_folder or sync_folder.
    Removing a folder is one operation per entry and one for the folder itself; making a folder is one per missing
    parent and one for itself. A write has a position and a length; a truncation has its new size as the position.
    """

    number: int
    kind: str
    path: str
    position: int = 0
    length: int = 0


class Fault(NamedTuple):
    """An operation fails with `error`, after the first `applied_bytes` of it if it is a write.

    If it is a sync, `loss` chooses which changes of the file reached the disk anyway. The rest is dropped silently, as
    Linux does: readers still see it, and the next sync succeeds without it.
    """

    error: OSError
    applied_bytes: int = 0
    loss: PowerLoss = KEEP_SIZES_ONLY


# A hook may also raise an OSError: the operation then fails with it and has no effect.
Hook = Callable[[Operation], Fault | None]


@dataclass(slots=True)
class _Plan:
    """A planned fault. It happens once."""

    error_number: int
    applied_bytes: int
    loss: PowerLoss
    number: int | None = None
    kind: str = ""
    path_ending: str = ""
    skip: int = 0

    def is_due(self, operation: Operation) -> bool:
        if self.number is not None:
            return operation.number == self.number
        if operation.kind != self.kind or not operation.path.endswith(self.path_ending):
            return False
        self.skip -= 1
        return self.skip < 0

    def fault(self, path: str) -> Fault:
        error = (
            OSError(self.error_number, os.strerror(self.error_number), path) if self.error_number else PowerLost(path)
        )
        return Fault(error, self.applied_bytes, self.loss)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Operations of these `kinds` in `folder`, on paths that end with `path_ending`, fail until it is removed."""

    error_number: int
    folder: str
    kinds: frozenset[str]
    path_ending: str = ""

    def hits(self, kind: str, path: str) -> bool:
        return (
            kind in self.kinds
            and (path == self.folder or path.startswith(f"{self.folder}/"))
            and path.endswith(self.path_ending)
        )

    def error(self, path: str) -> OSError:
        return OSError(self.error_number, os.strerror(self.error_number), path)

    def fault(self, operation: Operation) -> Fault:
        """A full disk accepts part of a write, a failing one nothing."""
        is_full = self.error_number == errno.ENOSPC
        applied_bytes = operation.number * 7919 % (operation.length + 1) if is_full else 0
        return Fault(self.error(operation.path), applied_bytes, LOSE_UNSYNCED)


class OperationLog:
    """Numbers the operations and decides whether they fail.

    `count` is the number of the next operation, `counts` is by kind, `recent` has the latest 65,536, oldest first.
    `hook` is called before each operation that no plan and no trouble fails.
    """

    def __init__(self) -> None:
        self.count = 0
        self.counts: Counter[str] = Counter()
        self.recent: deque[Operation] = deque(maxlen=_OPERATIONS_KEPT)
        self.hook: Hook | None = None
        self.troubles: list[Trouble] = []
        self._plans: list[_Plan] = []

    def fail(
        self,
        kind: str,
        error_number: int,
        *,
        path_ending: str = "",
        skip: int = 0,
        applied_bytes: int = 0,
        loss: PowerLoss = KEEP_SIZES_ONLY,
    ) -> None:
        """Fail the next operation of that kind, once, after `skip` successful ones. See `Fault` for the rest."""
        plan = _Plan(error_number, applied_bytes, loss, kind=kind, path_ending=path_ending, skip=skip)
        self._plans.append(plan)

    def lose_power_at(self, number: int, *, applied_bytes: int = 0) -> None:
        """Cut the power when operation `number` begins; in a write, after `applied_bytes` of it."""
        self._plans.append(_Plan(0, applied_bytes, KEEP_SIZES_ONLY, number=number))

    def begin(self, kind: str, path: str, position: int = 0, length: int = 0) -> Fault | None:
        """Register an operation. Returns its fault, if any."""
        operation = Operation(self.count, kind, path, position, length)
        self.count += 1
        self.counts[kind] += 1
        self.recent.append(operation)
        for plan in self._plans:
            if plan.is_due(operation):
                self._plans.remove(plan)
                return plan.fault(path)
        for trouble in self.troubles:
            if trouble.hits(kind, path):
                return trouble.fault(operation)
        if self.hook is None:
            return None
        try:
            return self.hook(operation)
        except OSError as error:
            return Fault(error)

    def look(self, kind: str, path: str) -> None:
        """Check a read. Raises OSError if a trouble applies."""
        for trouble in self.troubles:
            if trouble.hits(kind, path):
                raise trouble.error(path)

    @contextlib.contextmanager
    def without_trouble(self) -> Iterator[None]:
        """Suspend troubles, to inspect the disk from outside the simulated machine."""
        kept, self.troubles = self.troubles, []
        try:
            yield
        finally:
            self.troubles = kept
