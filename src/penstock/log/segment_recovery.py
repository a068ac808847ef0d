"""Recovering a segment after an unclean stop.

Rule: walk the batches from the first one, build the indexes anew on the way, and cut the file at the first batch that
is torn, damaged or cannot follow the one before it. Batches that were durable are believed by their headers; all others
must match their checksum. What is before a mark is not looked at: its indexes are as they were when the mark was made,
to the last bit, and readers check the batches. If anything contradicts the mark, the segment is walked from its start.
"""

from __future__ import annotations

import logging
from itertools import takewhile
from typing import Final, NamedTuple

from penstock.log.segment import MAX_RELATIVE_OFFSET, Segment
from penstock.log.segment_mark import SegmentMark, crc_of
from penstock.log.sync_failures import note_failed_sync
from penstock.log.walk import Run, walk, walk_headers, walk_runs
from penstock.records import NO_TIMESTAMP, BatchHeader

logger = logging.getLogger(__name__)

_WALKED_RUNS_MAX: Final = 4096
_WALKED_RUN_MAX: Final = 256


class Damage(NamedTuple):
    """What recovery cut off: `size` bytes from `position` on, and whether they had been synced once."""

    path: str
    position: int
    size: int
    reason: str
    was_synced: bool


class Marked(NamedTuple):
    """A mark and the offset that it is of."""

    offset: int
    mark: SegmentMark


def recover(segment: Segment, synced_offset: int, next_offset: int, marked: Marked | None = None) -> Damage | None:
    """Cut the log at the first bad byte and build its indexes anew; what was wrong, or None.

    All below `synced_offset` is known to have reached the disk. Offsets go on from `next_offset`, epochs never fall.
    With a mark that is right, all this from there on.
    """
    segment.size = segment.file.size()
    if marked is None or not _begin_at(segment, marked, synced_offset):
        _begin_anew(segment, next_offset)
    position, reason = _walk(segment, synced_offset)
    if segment.recovered_from and segment.next_offset < synced_offset:
        logger.warning(
            "%s ends at offset %d, where %d had been durable: its mark is not believed, it is walked from its start",
            segment.path, segment.next_offset, synced_offset,
        )  # fmt: skip
        _begin_anew(segment, next_offset)
        position, reason = _walk(segment, synced_offset)
    damage = None
    if position < segment.size:
        was_synced = segment.next_offset < synced_offset
        damage = Damage(segment.path, position, segment.size - position, reason or "", was_synced)
        segment.file.truncate(position)
        try:
            segment.file.sync()
        except OSError:
            note_failed_sync(segment.files, segment.folder)
            raise
        segment.size = position
    segment.verified.cut(position)
    segment.flush_indexes()
    return damage


def _begin_anew(segment: Segment, next_offset: int) -> None:
    segment.reset()
    segment.walked = []
    segment.index.create()
    segment.time_index.create()
    segment.next_offset = next_offset
    segment.recovered_from, segment.trusted_offset = 0, segment.base_offset


def _begin_at(segment: Segment, marked: Marked, synced_offset: int) -> bool:
    """Make the segment what it was at the mark; whether it could be."""
    trouble = _contradiction(segment, marked, synced_offset) or _load(segment, marked)
    if trouble is not None:
        logger.warning("%s: %s: it is walked from its start", segment.path, trouble)
        return False
    segment.walked = []
    segment.recovered_from, segment.trusted_offset = marked.mark.position, marked.offset
    return True


def _contradiction(segment: Segment, marked: Marked, synced_offset: int) -> str | None:
    """Why the mark cannot be believed, as the sizes and checksums of the files tell."""
    offset, mark = marked
    if mark.base_offset != segment.base_offset or not segment.base_offset < offset <= synced_offset:
        return f"the mark at offset {offset} is of another segment, or not known to be durable"
    if not 0 < mark.position <= segment.size:
        return f"the mark names position {mark.position} of a log of {segment.size} bytes"
    for index in (segment.index, segment.time_index):
        size = (mark.offset_index if index is segment.index else mark.time_index).size
        if size % index.entry_bytes:
            return f"the mark names half an entry of {index.path}"
    for path, extent in (
        (segment.index.path, mark.offset_index),
        (segment.time_index.path, mark.time_index),
        (segment.aborted.path, mark.aborted),
    ):
        if crc_of(segment.files, path, extent.size) != extent.crc:
            return f"{path} is not as the mark at offset {offset} tells"
    return None


def _load(segment: Segment, marked: Marked) -> str | None:
    """Take over the indexes, then the batches from the last entry to the mark; why that cannot be, or None."""
    offset, mark = marked
    segment.reset()
    segment.index.resume(mark.offset_index.size // segment.index.entry_bytes)
    segment.time_index.resume(mark.time_index.size // segment.time_index.entry_bytes)
    segment.max_timestamp, segment.max_timestamp_offset = mark.max_timestamp, mark.max_timestamp_offset
    last = segment.index.last
    position = start = 0 if last is None else last.value
    for place in walk_headers(segment.file, start, mark.position):
        if isinstance(place, str):
            return f"before the mark at offset {offset}: {place}"
        if position == start and last is not None:
            named = segment.base_offset + last.key
            if not place.header.base_offset <= named <= place.header.last_offset:
                return f"its index names offset {named} for the batch at {start}"
        segment.take(place.header, place.position)
        position = place.end
    if position != mark.position or segment.next_offset != offset or segment.max_timestamp != mark.max_timestamp:
        return f"the mark at offset {offset} is not where the batches lead, {segment.next_offset}"
    segment.first_timestamp = segment.read_first_timestamp()
    return None


def _walk(segment: Segment, synced_offset: int) -> tuple[int, str | None]:
    """Where the sound batches end, and why there, if it is not the end of the file."""
    position, reason = _synced_part(segment, synced_offset)
    return (position, reason) if reason is not None else _rest(segment, position)


def _synced_part(segment: Segment, synced_offset: int) -> tuple[int, str | None]:
    """Where the durable batches end, and why before `synced_offset`, if they do."""
    position = segment.recovered_from
    if synced_offset <= segment.base_offset:
        return 0, None
    for run in walk_runs(segment.file, position, segment.size):
        if isinstance(run, str):
            # What follows the synced part may well be damaged: the walk that checks everything judges it.
            return position, run if segment.next_offset < synced_offset else None
        headers = run.headers
        reaches_end = headers[-1].base_offset >= synced_offset
        if reaches_end:
            headers = [*takewhile(lambda header: header.base_offset < synced_offset, headers)]
        position, reason = _take_run(segment, run.position, headers, position)
        if reason is not None or reaches_end:
            return position, reason
    return position, None


def _rest(segment: Segment, start: int) -> tuple[int, str | None]:
    position = start
    for piece in walk(segment.file, start, segment.size):
        position, reason = _take_run(segment, piece.position, piece.headers, position)
        segment.verified.add(piece.position, position)
        if reason is not None or piece.problem is not None:
            return position, reason or piece.problem
    return position, None


def _take_run(segment: Segment, origin: int, headers: list[BatchHeader], position: int) -> tuple[int, str | None]:
    """`Segment.note` for batches in a row, up to one that cannot follow: where the last taken ends, why no further.

    Offsets and epochs are not under the checksum: a sector that was lost may have held the first bytes of a batch and
    none of the others. Written out, because a segment may hold millions of small batches.
    """
    expected, tail = segment.next_offset, segment.tail_header
    epoch = -1 if tail is None else tail.leader_epoch
    base, interval, since = segment.base_offset, segment.interval, segment.since_index
    last_possible = base + MAX_RELATIVE_OFFSET
    stamp, stamp_offset, reason = segment.max_timestamp, segment.max_timestamp_offset, None
    last: BatchHeader | None = None
    for header in headers:
        base_offset = header.base_offset
        last_offset = base_offset + header.last_offset_delta
        if base_offset < expected or last_offset > last_possible or header.leader_epoch < epoch:
            reason = f"offset {base_offset} of epoch {header.leader_epoch} follows {expected} of epoch {epoch}"
            break
        if since > interval:
            segment.index.append(last_offset - base, origin + header.position)
            if stamp > NO_TIMESTAMP:
                segment.time_index.append(stamp, stamp_offset - base)
            since = 0
        since += header.size
        if header.max_timestamp > stamp:
            stamp, stamp_offset = header.max_timestamp, last_offset
        expected, epoch, last = last_offset + 1, header.leader_epoch, header
    if last is None:
        return position, reason
    _keep(segment, Run(origin, [*takewhile(lambda header: header is not last, headers), last] if reason else headers))
    if segment.first_timestamp is None:
        segment.first_timestamp = headers[0].max_timestamp
    segment.next_offset, segment.max_timestamp, segment.max_timestamp_offset = expected, stamp, stamp_offset
    segment.since_index, segment.tail_position, segment.tail_header = since, origin + last.position, last
    return origin + last.position + last.size, reason


def _keep(segment: Segment, run: Run) -> None:
    """For the replay that follows, which then need not read again; not where batches are small, and therefore many."""
    if segment.walked is not None:
        if len(segment.walked) < _WALKED_RUNS_MAX and len(run.headers) <= _WALKED_RUN_MAX:
            segment.walked.append(run)
        else:
            segment.walked = None
