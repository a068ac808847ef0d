"""The sealed segments of a log that are open just now.

Noun: a few segments by their base offset, the least recently used first.

Rule: a segment is opened when somebody reads from it and let go of when others are wanted; a region that was handed
out keeps its file readable by itself. Whoever changes a segment's files says so with `forget`.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict

from penstock.log.segment import Segment
from penstock.log.segment_table import UNKNOWN_TIMESTAMP, Row
from penstock.runtime.files import Files

_MOST = 8


class OpenSegments:
    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._open: OrderedDict[int, Segment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, row: Row, index_interval_bytes: int) -> Segment:
        """The segment of that row, its indexes repaired if need be."""
        segment = self._open.get(row.base_offset)
        if segment is not None:
            self._open.move_to_end(row.base_offset)
            return segment
        segment = Segment(self._files, self._folder, row.base_offset, index_interval_bytes=index_interval_bytes)
        trouble = segment.load(size=row.size)
        # A time index that lost its end says nothing wrong, and would still let records be deleted too early.
        if trouble is not None or row.max_timestamp not in (UNKNOWN_TIMESTAMP, segment.max_timestamp):
            segment.rebuild_indexes()
            with contextlib.suppress(OSError):  # a full disk is no reason not to read
                segment.seal()
        self.add(segment)
        return segment

    def add(self, segment: Segment) -> None:
        self._open[segment.base_offset] = segment
        while len(self._open) > _MOST:
            self._open.popitem(last=False)[1].release()

    def forget(self, base_offset: int) -> None:
        segment = self._open.pop(base_offset, None)
        if segment is not None:
            segment.release()

    def release(self) -> None:
        while self._open:
            self._open.popitem()[1].release()
