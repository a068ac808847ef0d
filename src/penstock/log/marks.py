"""The marks of one log: which there are, when the next is due, which may go.

Noun: the offsets inside of segments at which a snapshot with a mark stands (see penstock.log.segment_mark).

Rule: a start after a crash walks from the newest mark that the recovery point covers, so that one stays until a newer
one is covered and durable, and beside it only the newest. How much is behind the last mark bounds that walk; where that
is little, opening the files costs more than walking them, and no mark is made.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.log.segment import Segment

LEAST_MARKED_BYTES: Final = 1024 * 1024


def is_worth_marking(size: int) -> bool:
    """Whether a segment of so many bytes should have a mark at its end."""
    return size >= LEAST_MARKED_BYTES


class _Mark(NamedTuple):
    offset: int
    folder_changes: int  # its name is durable once so many changes of the folder are


class Marks:
    """What a log knows of its marks."""

    def __init__(self) -> None:
        self._marks: list[_Mark] = []  # rising
        self._base_offset, self._position = -1, 0  # where the last one was tried
        self._unmarked_ms: int | None = None  # when the oldest of what is behind it was appended

    @property
    def offsets(self) -> list[int]:
        return [mark.offset for mark in self._marks]

    # --- when

    def appended(self, now_ms: int) -> None:
        if self._unmarked_ms is None:
            self._unmarked_ms = now_ms

    def unmarked_bytes(self, active: Segment) -> int:
        """So many are behind the last mark."""
        return active.size - (self._position if active.base_offset == self._base_offset else 0)

    def worth_it(self, active: Segment) -> bool:
        """Whether enough is behind the last mark for another one."""
        return is_worth_marking(self.unmarked_bytes(active))

    def wanted(self, active: Segment, now_ms: int, most_bytes: int, most_ms: int) -> bool:
        """Whether so much, or something so old that is not little, is behind the last mark."""
        if not self.worth_it(active):
            return False
        too_old = self._unmarked_ms is None or now_ms - self._unmarked_ms >= most_ms
        return too_old or self.unmarked_bytes(active) >= most_bytes

    def tried(self, base_offset: int, position: int, appended_ms: int) -> None:
        """A mark is being made; if that fails it is not tried again before there is as much anew."""
        self._base_offset, self._position = base_offset, position
        self._unmarked_ms = appended_ms

    # --- which

    def found(self, offset: int) -> None:
        """One that was there at the start."""
        self._marks = sorted({*self._marks, _Mark(offset, 0)})

    def added(self, offset: int, folder_changes: int) -> None:
        self._marks = [mark for mark in self._marks if mark.offset != offset]
        self._marks.append(_Mark(offset, folder_changes))

    def take_old(self, recovery_point: int, folder_changes_synced: int) -> list[int]:
        """Those that nobody needs any more; they are forgotten here."""
        if not self._marks:
            return []
        covered = [
            mark
            for mark in self._marks
            if mark.offset <= recovery_point and mark.folder_changes <= folder_changes_synced
        ]
        keep = (covered[-1] if covered else self._marks[0], self._marks[-1])
        old = [mark.offset for mark in self._marks if mark not in keep]
        self._marks = [mark for mark in self._marks if mark in keep]
        return old

    def take_all(self) -> list[int]:
        offsets, self._marks = self.offsets, []
        return offsets

    def forget(self, offset: int) -> None:
        """The snapshot at `offset` is a segment's from now on."""
        self._marks = [mark for mark in self._marks if mark.offset != offset]

    def cut(self, active: Segment) -> None:
        """The log ends earlier now."""
        self._marks = [mark for mark in self._marks if mark.offset <= active.next_offset]
        if self._base_offset > active.base_offset or self._position > active.size:
            self._base_offset, self._position = -1, 0
