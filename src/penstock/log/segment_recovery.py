"""Recovering a segment after an unclean stop.

Rule: walk the batches from the first one, build the indexes anew on the way, and end the log at the first batch that is
torn, damaged or cannot follow the one before it. All that is walked must match its checksum. What was not known to be
durable is cut off there; what was is left in the file, for it is no torn end but damage. What is before a mark is not
looked at: its indexes are as they were when the mark was made, to the last bit, and readers check the batches. If
anything contradicts the mark, the segment is walked from its start.
"""

from __future__ import annotations

import logging
from itertools import takewhile
from typing import Final, NamedTuple

from penstock.log.leader_epochs import LeaderEpochs
from penstock.log.segment import MAX_RELATIVE_OFFSET, Segment
from penstock.log.segment_mark import SegmentMark, crc_of
from penstock.log.sync_failures import note_failed_sync
from penstock.log.walk import Run, walk, walk_headers
from penstock.records import NO_TIMESTAMP, BatchHeader

logger = logging.getLogger(__name__)

_WALKED_RUNS_MAX: Final = 4096
_WALKED_RUN_MAX: Final = 256


class Damage(NamedTuple):
    """Where recovery ended a log: `size` bytes from `position` on are no part of it; whether they were synced once."""

    path: str
    position: int
    size: int
    reason: str
    was_synced: bool


class Marked(NamedTuple):
    """A mark and the offset that it is of."""

    offset: int
    mark: SegmentMark


def recover(
    segment: Segment,
    synced_offset: int,
    next_offset: int,
    marked: Marked | None = None,
    *,
    durable_bytes: int = 0,
    epochs: LeaderEpochs | None = None,
    is_as_written: bool = False,
) -> Damage | None:
    """End the log at the first bad byte and build its indexes anew; what was wrong, or None.

    All below `synced_offset`, and the first `durable_bytes`, are known to have reached the disk: where they are damaged
    the segment ends, its file stays as it is. Anything else that is bad is cut off. Offsets go on from `next_offset`,
    epochs never fall, and are those of `epochs` as far as all was durable; `is_as_written`: nothing here was compacted.
    With a mark that is right, all this from there on.
    """
    segment.size = segment.file.size()
    rules = _Rules(synced_offset, epochs, is_as_written)
    if marked is None or not _begin_at(segment, marked, synced_offset):
        _begin_anew(segment, next_offset)
    found = _walk(segment, rules, segment.size)
    if segment.recovered_from and segment.next_offset < synced_offset:
        logger.warning(
            "%s ends at offset %d, where %d had been durable: its mark is not believed, it is walked from its start",
            segment.path, segment.next_offset, synced_offset,
        )  # fmt: skip
        _begin_anew(segment, next_offset)
        found = _walk(segment, rules, segment.size)
    if found.blamed is not None:
        _begin_anew(segment, next_offset)
        found = _walk(segment, rules, found.blamed)._replace(reason=found.reason)
    damage = None
    if found.position < segment.size:
        was_synced = segment.next_offset < synced_offset or found.position < durable_bytes
        left = segment.size - found.position
        damage = Damage(segment.path, found.position, left, found.reason or "", was_synced)
        if not was_synced:
            _cut(segment, found.position)
        segment.size = found.position
    segment.verified.cut(found.position)
    segment.flush_indexes()
    return damage


def _cut(segment: Segment, position: int) -> None:
    segment.file.truncate(position)
    try:
        segment.file.sync()
    except OSError:
        note_failed_sync(segment.files, segment.folder)
        raise


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


class _Rules(NamedTuple):
    """What is known of the log beside its batches."""

    synced_offset: int
    epochs: LeaderEpochs | None
    is_as_written: bool

    def sound(self, headers: list[BatchHeader]) -> tuple[list[BatchHeader], str | None]:
        """The batches up to the first that names an epoch that did not write it; what is wrong with that one."""
        if self.epochs is None or not headers or headers[0].base_offset >= self.synced_offset:
            return headers, None
        foreign = self.epochs.first_foreign(headers)
        if foreign == len(headers) or headers[foreign].base_offset >= self.synced_offset:
            return headers, None
        odd = headers[foreign]
        return headers[:foreign], f"offset {odd.base_offset} was not written in epoch {odd.leader_epoch}"


class _End(NamedTuple):
    """Where the sound batches end, and why there, if it is not the end of the file.

    `blamed`: an earlier position, of the batch that is more likely to be the wrong one of two that contradict.
    """

    position: int
    reason: str | None = None
    blamed: int | None = None


class _Doubtful(NamedTuple):
    """A batch behind a gap: where it is, and what offset was expected there."""

    position: int
    expected: int


_NOBODY: Final = _Doubtful(-1, 2**63)


def _walk(segment: Segment, rules: _Rules, end: int) -> _End:
    """Take the batches from where the walk begins. All are checked, those that were durable as well: they are few."""
    found, doubtful = _End(segment.recovered_from), _NOBODY
    for piece in walk(segment.file, segment.recovered_from, end):
        headers, foreign = rules.sound(piece.headers)
        found, doubtful = _take_run(segment, piece.position, headers, found.position, rules, doubtful)
        segment.verified.add(piece.position, found.position)
        reason = found.reason or foreign or piece.problem
        if reason is not None:
            return found._replace(reason=reason)
    return found


def _take_run(
    segment: Segment, origin: int, headers: list[BatchHeader], position: int, rules: _Rules, doubtful: _Doubtful
) -> tuple[_End, _Doubtful]:
    """`Segment.note` for batches in a row, up to one that cannot follow; with the last one, if it is doubtful.

    Offsets and epochs are not under the checksum: a sector that was lost may have held the first bytes of a batch and
    none of the others. A batch that leaves a gap before it is doubtful: if the next one cannot follow it, but could
    stand in its place, it is the one to blame. A flush ended at `synced_offset`, so no gap reaches over that. Written
    out, because a segment may hold millions of small batches.
    """
    expected, tail = segment.next_offset, segment.tail_header
    epoch = -1 if tail is None else tail.leader_epoch
    base, interval, since = segment.base_offset, segment.interval, segment.since_index
    last_possible, synced, is_as_written = base + MAX_RELATIVE_OFFSET, rules.synced_offset, rules.is_as_written
    stamp, stamp_offset, reason, blamed = segment.max_timestamp, segment.max_timestamp_offset, None, None
    last: BatchHeader | None = None
    for header in headers:
        base_offset = header.base_offset
        last_offset = base_offset + header.last_offset_delta
        if base_offset < expected or last_offset > last_possible or header.leader_epoch < epoch:
            reason = f"offset {base_offset} of epoch {header.leader_epoch} follows {expected} of epoch {epoch}"
            if base_offset >= doubtful.expected:
                blamed = doubtful.position
            break
        doubtful = _NOBODY
        if base_offset > expected:
            if is_as_written and expected < synced <= last_offset:
                reason = f"offset {base_offset} follows {expected}, where a flush had ended at {synced}"
                break
            doubtful = _Doubtful(origin + header.position, expected)
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
        return _End(position, reason, blamed), doubtful
    _keep(segment, Run(origin, [*takewhile(lambda header: header is not last, headers), last] if reason else headers))
    if segment.first_timestamp is None:
        segment.first_timestamp = headers[0].max_timestamp
    segment.next_offset, segment.max_timestamp, segment.max_timestamp_offset = expected, stamp, stamp_offset
    segment.since_index, segment.tail_position, segment.tail_header = since, origin + last.position, last
    return _End(origin + last.position + last.size, reason, blamed), doubtful


def _keep(segment: Segment, run: Run) -> None:
    """For the replay that follows, which then need not read again; not where batches are small, and therefore many."""
    if segment.walked is not None:
        if len(segment.walked) < _WALKED_RUNS_MAX and len(run.headers) <= _WALKED_RUN_MAX:
            segment.walked.append(run)
        else:
            segment.walked = None
