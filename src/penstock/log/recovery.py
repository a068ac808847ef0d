"""Recovery after an unclean stop: segments, producer state and leader epochs, and damage to durable bytes.

A segment is walked from its newest valid recovery mark, or from its start, and its indexes are rebuilt. The log ends at
the first batch that is torn, damaged or out of order. What was never durable is cut off there. Durable bytes are never
removed automatically: the log ends at the damage (`LogDamage`), earlier records are served, later ones stay in their
files, and nothing is appended over them. A replica that the cluster knows to have lost data cuts the damage once its
leader has answered, and copies the rest; without another replica, a file `accept-loss` lets the next start cut.

Producer state comes from the newest readable snapshot plus the batches after it. The batches are the truth; a damaged
snapshot only costs reading more headers.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec

from penstock.log.checkpoints import atomic_write, note_failed_sync, read_file
from penstock.log.errors import DamagedLog
from penstock.log.file_records import Place, Run, walk, walk_headers
from penstock.log.group_commit import TEMPORARY_SUFFIX, RecoveryMark, crc_of, decode_mark
from penstock.log.index import AbortedTransaction, TransactionIndex, TransactionIndexError, entry_of
from penstock.log.leader_epochs import LeaderEpochs
from penstock.log.producer_state import ProducerStates, SnapshotError, decode_snapshot, snapshot_name, snapshot_offset
from penstock.log.segment import LOG_SUFFIX, MAX_RELATIVE_OFFSET, Segment
from penstock.records import NO_TIMESTAMP, BatchHeader, scan
from penstock.records.batch import EndMarker, decode_marker
from penstock.runtime.files import Files

logger = logging.getLogger(__name__)

DAMAGE_NOTE_FILE: Final = ".damaged"
ACCEPT_LOSS_FILE: Final = "accept-loss"
_BASE_DIGITS: Final = 20
_NOTE_BYTES_MAX: Final = 4096
_WALKED_RUNS_MAX: Final = 4096
_WALKED_RUN_MAX: Final = 256


# --------------------------------------------------------------------------------------------- damage to durable bytes


@dataclass(slots=True)
class LogDamage:
    """Damage to durable bytes of a log.

    `ends_log`: the log ends here although its files continue. Otherwise only reads of this place fail, or the damage
    was the end of the log. `is_reported`: the cluster knows that this replica lost data and counts on the others.
    """

    base_offset: int
    position: int
    path: str
    reason: str
    ends_log: bool = False
    is_reported: bool = False

    def error(self) -> DamagedLog:
        return DamagedLog(self.path, self.position, self.reason)

    @classmethod
    def of(cls, error: DamagedLog) -> LogDamage | None:
        """None if the error is not about a segment's log file."""
        name = error.path.rpartition("/")[2]
        base = name.removesuffix(LOG_SUFFIX)
        if base == name or len(base) != _BASE_DIGITS or not base.isdigit():
            return None
        return cls(int(base), error.position, error.path, error.reason)


class _Note(msgspec.Struct):
    file: str
    position: int
    reason: str


def write_damage_note(files: Files, folder: str, damage: LogDamage) -> None:
    """Note damage for the next start. If that fails, the next reader finds the damage again."""
    note = _Note(damage.path.rpartition("/")[2], damage.position, damage.reason[:1000])
    with contextlib.suppress(OSError):
        atomic_write(files, f"{folder}/{DAMAGE_NOTE_FILE}", msgspec.json.encode(note))


def read_damage_note(files: Files, folder: str) -> LogDamage | None:
    """Damage found by an earlier process; None if there is no note, or the damaged bytes are gone."""
    path = f"{folder}/{DAMAGE_NOTE_FILE}"
    data = read_file(files, path, _NOTE_BYTES_MAX)
    if data is None:
        return None
    try:
        note = msgspec.json.decode(data, type=_Note)
    except msgspec.MsgspecError as error:
        logger.warning("damage note ignored, readers find the damage again: path=%s error=%s", path, error)
        return None
    damage = LogDamage.of(DamagedLog(f"{folder}/{note.file}", note.position, note.reason))
    if damage is None or not files.exists(damage.path) or files.size_of(damage.path) < damage.position:
        remove_damage_note(files, folder)
        return None
    return damage


def remove_damage_note(files: Files, folder: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.remove(f"{folder}/{DAMAGE_NOTE_FILE}")


def is_loss_accepted(files: Files, folder: str) -> bool:
    """Whether the operator chose to continue without the damaged data and everything after it."""
    return files.exists(f"{folder}/{ACCEPT_LOSS_FILE}")


def remove_loss_acceptance(files: Files, folder: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.remove(f"{folder}/{ACCEPT_LOSS_FILE}")


# ------------------------------------------------------------------------------------------------------------ segments


class Damage(NamedTuple):
    """Where recovery ended a log: `size` bytes from `position` on are not part of it. They may have been durable."""

    path: str
    position: int
    size: int
    reason: str
    was_synced: bool


class Marked(NamedTuple):
    """A recovery mark and its offset."""

    offset: int
    mark: RecoveryMark


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
    """End the segment at the first bad byte and rebuild its indexes; what was wrong, or None.

    Everything below `synced_offset`, and the first `durable_bytes`, reached the disk: damage there ends the segment but
    leaves its file alone. Other bad bytes are cut off. Offsets continue from `next_offset`, epochs never fall, and
    durable batches have the epochs of `epochs`. `is_as_written`: no batch here was compacted. A valid mark is where
    the walk starts.
    """
    segment.size = segment.file.size()
    rules = _Rules(synced_offset, epochs, is_as_written)
    if marked is None or not _start_from_mark(segment, marked, synced_offset):
        _start_from_zero(segment, next_offset)
    found = _walk(segment, rules, segment.size)
    if segment.recovered_from and segment.next_offset < synced_offset:
        logger.warning(
            "recovery mark ignored, walking from the start: path=%s end_offset=%d synced_offset=%d",
            segment.path, segment.next_offset, synced_offset,
        )  # fmt: skip
        _start_from_zero(segment, next_offset)
        found = _walk(segment, rules, segment.size)
    if found.blamed is not None:
        _start_from_zero(segment, next_offset)
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


def _start_from_zero(segment: Segment, next_offset: int) -> None:
    segment.reset()
    segment.walked = []
    segment.index.create()
    segment.time_index.create()
    segment.next_offset = next_offset
    segment.recovered_from, segment.trusted_offset = 0, segment.base_offset


def _start_from_mark(segment: Segment, marked: Marked, synced_offset: int) -> bool:
    """Restore the segment as it was at the mark; False if the mark does not match the files."""
    trouble = _contradiction(segment, marked, synced_offset) or _load_from_mark(segment, marked)
    if trouble is not None:
        logger.warning("recovery mark ignored, walking from the start: path=%s reason=%s", segment.path, trouble)
        return False
    segment.walked = []
    segment.recovered_from, segment.trusted_offset = marked.mark.position, marked.offset
    return True


def _contradiction(segment: Segment, marked: Marked, synced_offset: int) -> str | None:
    """Why the mark does not match the sizes and checksums of the files, or None."""
    offset, mark = marked
    if mark.base_offset != segment.base_offset or not segment.base_offset < offset <= synced_offset:
        return f"the mark at offset {offset} belongs to another segment or is not known to be durable"
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
            return f"{path} does not match the mark at offset {offset}"
    return None


def _load_from_mark(segment: Segment, marked: Marked) -> str | None:
    """Load the indexes, then the batches from the last entry to the mark; why that failed, or None."""
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
                return f"the index names offset {named} for the batch at {start}"
        segment.take(place.header, place.position)
        position = place.end
    if position != mark.position or segment.next_offset != offset or segment.max_timestamp != mark.max_timestamp:
        return f"the batches end at offset {segment.next_offset}, the mark is at offset {offset}"
    segment.first_timestamp = segment.read_first_timestamp()
    return None


class _Rules(NamedTuple):
    """What is known about the log besides its batches."""

    synced_offset: int
    epochs: LeaderEpochs | None
    is_as_written: bool

    def sound(self, headers: list[BatchHeader]) -> tuple[list[BatchHeader], str | None]:
        """The batches before the first with a wrong leader epoch, and what is wrong with that one."""
        if self.epochs is None or not headers or headers[0].base_offset >= self.synced_offset:
            return headers, None
        foreign = self.epochs.first_foreign(headers)
        if foreign == len(headers) or headers[foreign].base_offset >= self.synced_offset:
            return headers, None
        odd = headers[foreign]
        return headers[:foreign], f"offset {odd.base_offset} was not written in epoch {odd.leader_epoch}"


class _End(NamedTuple):
    """Where the sound batches end, and why, unless it is the end of the file.

    `blamed`: the position of an earlier batch that contradicts the next one and is more likely to be wrong.
    """

    position: int
    reason: str | None = None
    blamed: int | None = None


class _Doubtful(NamedTuple):
    """A batch after a gap: its position, and the offset expected there."""

    position: int
    expected: int


_NO_DOUBT: Final = _Doubtful(-1, 2**63)


def _walk(segment: Segment, rules: _Rules, end: int) -> _End:
    """Take the batches from where the walk starts. Durable batches are checked as well: there are few of them."""
    found, doubtful = _End(segment.recovered_from), _NO_DOUBT
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
    """`Segment.take` for consecutive batches, up to one that cannot follow; and the last one, if it is doubtful.

    The checksum does not cover offsets and epochs: a lost sector may have held only the first bytes of a batch. A batch
    with a gap before it is doubtful: if the next batch cannot follow it but could take its place, the doubtful one is
    blamed. A flush ended at `synced_offset`, so no gap spans it. Written as one loop, because a segment may hold
    millions of small batches.
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
        doubtful = _NO_DOUBT
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
    """Keep the headers for the replay that follows, unless the batches are small and therefore many."""
    if segment.walked is not None:
        if len(segment.walked) < _WALKED_RUNS_MAX and len(run.headers) <= _WALKED_RUN_MAX:
            segment.walked.append(run)
        else:
            segment.walked = None


# ------------------------------------------------------------------------------------ producer state and leader epochs


def load_newest_snapshot(files: Files, folder: str, end_offset: int, producers: ProducerStates) -> int | None:
    """Fill `producers` from the newest readable snapshot at or before `end_offset`; its offset, or None.

    Snapshots beyond the end belong to batches that are gone: they are removed.
    """
    if _load_snapshot(files, f"{folder}/{snapshot_name(end_offset)}", producers):
        return end_offset
    offsets = sorted((o for o in map(snapshot_offset, files.list_folder(folder)) if o is not None), reverse=True)
    for offset in offsets:
        path = f"{folder}/{snapshot_name(offset)}"
        if offset > end_offset:
            with contextlib.suppress(FileNotFoundError):
                files.remove(path)
        elif _load_snapshot(files, path, producers):
            return offset
    producers.clear()
    return None


def newest_mark(files: Files, folder: str, base_offset: int, end_offset: int) -> Marked | None:
    """The newest readable mark of the segment at `base_offset`, up to `end_offset`."""
    offsets = (offset for offset in map(snapshot_offset, files.list_folder(folder)) if offset is not None)
    for offset in sorted((o for o in offsets if base_offset < o <= end_offset), reverse=True):
        mark = mark_at(files, folder, offset)
        if mark is not None and mark.base_offset == base_offset:
            return Marked(offset, mark)
    return None


def mark_at(files: Files, folder: str, offset: int) -> RecoveryMark | None:
    """The mark in the snapshot at that offset; None if there is none or it is damaged."""
    data = read_file(files, f"{folder}/{snapshot_name(offset)}")
    try:
        return None if data is None else decode_mark(decode_snapshot(data).mark)
    except SnapshotError:
        return None


def remove_snapshots(files: Files, folder: str, *, keep: Collection[int] = ()) -> None:
    """Remove unfinished snapshots, and all others except those at the offsets in `keep`."""
    for name in files.list_folder(folder):
        offset = snapshot_offset(name.removesuffix(TEMPORARY_SUFFIX))
        if offset is not None and (offset not in keep or name.endswith(TEMPORARY_SUFFIX)):
            files.remove(f"{folder}/{name}")


def _load_snapshot(files: Files, path: str, producers: ProducerStates) -> bool:
    data = read_file(files, path)
    try:
        if data is not None:
            producers.load_snapshot(data)
    except SnapshotError:
        return False
    return data is not None


def replay(segment: Segment, from_offset: int, producers: ProducerStates, epochs: LeaderEpochs, now_ms: int) -> None:
    """Apply the segment's batches from `from_offset` on, and rebuild its index of aborted transactions."""
    first = segment.locate(from_offset)
    aborted: list[AbortedTransaction] = []
    latest_epoch = epochs.latest_epoch
    for run in () if first is None else _runs(segment, first.position):
        for header in run.headers:
            if header.leader_epoch > latest_epoch:
                epochs.assign(header.leader_epoch, header.base_offset)
                latest_epoch = header.leader_epoch
            if header.producer_id < 0:
                continue
            marker = None
            if header.is_control:
                marker = _marker(segment, Place(run.position + header.position, header))
            completed = producers.apply(header, header.base_offset, now_ms=now_ms, marker=marker)
            if completed is not None and completed.is_aborted:
                aborted.append(entry_of(completed))
    _index_aborted(segment.aborted, from_offset, aborted)


def _runs(segment: Segment, start: int) -> Iterable[Run]:
    """The batches from position `start` on: as recovery kept them, or read from the file."""
    walked, segment.walked = segment.walked, None
    if not walked or walked[0].position > start:
        return segment.runs(start)
    found: list[Run] = []
    for run in walked:
        if run.position >= start:
            found.append(run)
        elif run.position + run.headers[-1].position >= start:
            found.append(Run(run.position, [each for each in run.headers if run.position + each.position >= start]))
    return found


def _index_aborted(index: TransactionIndex, from_offset: int, aborted: list[AbortedTransaction]) -> None:
    """Make the index hold `aborted` from `from_offset` on. An index that already does is not rewritten."""
    try:
        if [entry for entry in index.entries() if entry.last_offset >= from_offset] == aborted:
            return
    except TransactionIndexError:
        index.cut_damaged_tail()
    index.truncate_to(from_offset)
    for entry in aborted:
        index.append(entry)
    index.flush()


def _marker(segment: Segment, place: Place) -> EndMarker | None:
    data = segment.file.read_at(place.position, place.header.size)
    found = scan(data, most=1)
    if not found.headers:
        raise DamagedLog(segment.path, place.position, found.problem or "incomplete control batch")
    return decode_marker(data, found.headers[0])
