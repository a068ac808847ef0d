"""A partition's log: segments, appended at one end, read anywhere, deleted at the other end.

    log_start_offset <= high_watermark <= log_end_offset      flushed_offset: durable up to here

Batches are handled as a whole. A leader's append checks headers, patches offsets and epoch in place and is one write; a
read is a region of a file. State changes only after the write that carries it succeeded. Time is an argument. No cost
grows with the amount stored: the segment is found by binary search, the batch by a sparse index, and a lookup by
timestamp decompresses one batch.

`close` leaves what a fast start needs: indexes, a producer snapshot at the end, and last the manifest, which vouches
for the rest.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from penstock.log.checkpoints import atomic_write, note_failed_sync
from penstock.log.errors import (
    DamagedLog,
    DiskFull,
    InvalidBatch,
    LogFailed,
    NonMonotonicOffsets,
    OffsetOutOfRange,
    StaleEpoch,
    TooManyOpenFiles,
    is_disk_full,
    is_process_limit,
)
from penstock.log.file_records import Place
from penstock.log.group_commit import Durability, Flush, MarkWriter, is_worth_marking, remove_snapshot
from penstock.log.index import TRANSACTION_INDEX_SUFFIX, AbortedTransaction, entry_of
from penstock.log.leader_epochs import LeaderEpochs
from penstock.log.partition_folder import DELETED, segment_files
from penstock.log.producer_state import CompletedTransaction, ProducerStates, snapshot_name
from penstock.log.recovery import LogDamage, remove_damage_note, write_damage_note
from penstock.log.segment import (
    MAX_RELATIVE_OFFSET,
    UNKNOWN_TIMESTAMP,
    OpenSegments,
    Region,
    Row,
    Segment,
    SegmentTable,
)
from penstock.log.settings import LogSettings
from penstock.log.validation import Validated, check_sizes, recompressed, validate, writable
from penstock.records import (
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    CorruptBatch,
    Record,
    assign_offsets,
    decode_batch,
    scan,
    stamp_append_time,
)
from penstock.records.batch import decode_marker
from penstock.runtime.files import Files

logger = logging.getLogger(__name__)


NO_APPEND_TIME: Final = -1

_INDEX_ENTRY_BYTES: Final = 8


class Appended(NamedTuple):
    """Where an append went. For a duplicate, where the first attempt went."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    is_duplicate: bool = False


class PartitionLog:
    """One partition on disk. Opened by `log_loader.open_log`, which runs recovery if needed."""

    def __init__(
        self,
        files: Files,
        folder: str,
        settings: LogSettings,
        *,
        table: SegmentTable,
        active: Segment,
        epochs: LeaderEpochs,
        producers: ProducerStates,
        log_start_offset: int,
        flushed_offset: int,
        now_ms: int,
        unsynced: Sequence[Segment] = (),
    ) -> None:
        self.files = files
        self.folder = folder
        self.settings = settings
        self.table = table
        self.active = active
        self.epochs = epochs
        self.producers = producers
        self.log_start_offset = log_start_offset
        self.checkpointed_offset = 0  # the recovery point in the log directory's checkpoint
        self._cuts: list[int] = []  # the end offset after each truncation
        self.restored_offset: int | None = None  # of the producer snapshot that was loaded
        self.found_closed_at: int | None = None  # the end of a log that was opened after a clean `close`
        self.deletions_pending = False  # renamed files may be in the folder
        self._high_watermark = log_start_offset
        self._rolled_ms = now_ms
        self.durability = Durability(flushed_offset, now_ms, unsynced)
        self.marks = self.durability.marks
        self._failure: LogFailed | None = None
        self.damage: LogDamage | None = None  # the first known
        self._open = OpenSegments(files, folder)
        self._bound: tuple[int, int, int] = (-1, -1, -1)  # base, offset, position of the last upper bound
        self._aborted_bases: list[int] | None = None  # listed on first use

    # --- state

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.active.next_offset

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Consumers of committed records read below this: the first open transaction, or the high watermark.

        High watermark 20, a transaction open since 15: 15.
        """
        unstable = self.producers.first_unstable_offset
        if unstable is None:
            return self._high_watermark
        # A transaction may have started before the log start offset.
        return max(self.log_start_offset, min(unstable, self._high_watermark))

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return self.table.total_size + self.active.size

    @property
    def segment_count(self) -> int:
        return len(self.table) + 1

    @property
    def failure(self) -> LogFailed | None:
        return self._failure

    def fail(self, error: BaseException) -> LogFailed:
        """Take the log offline: after a disk error the contents of the disk are unknown."""
        if self._failure is None:
            self._failure = error if isinstance(error, LogFailed) else LogFailed(self.folder, str(error))
            note_failed_sync(self.files, self.folder)
        return self._failure

    def disk_error(self, error: OSError) -> DiskFull | TooManyOpenFiles | LogFailed:
        """A full disk and too many open files fail one operation; any other error takes the log offline."""
        if is_disk_full(error):
            return DiskFull(self.folder)
        return TooManyOpenFiles(self.folder) if is_process_limit(error) else self.fail(error)

    def require_online(self) -> None:
        if self._failure is not None:
            raise LogFailed(self._failure.path, self._failure.reason)

    # --- damage

    @property
    def is_cut_short(self) -> bool:
        """Whether the log ends at damaged durable bytes, not where it was last appended to."""
        return self.damage is not None and self.damage.ends_log

    def _require_end(self) -> None:
        self.require_online()
        if self.damage is not None and self.damage.ends_log:
            raise self.damage.error()

    def note_damage(self, error: DamagedLog) -> None:
        """Log damage that a reader found, once, and note it for the next start."""
        found, known = LogDamage.of(error), self.damage
        if found is None:
            return
        if known is not None:
            if (known.base_offset, known.position) <= (found.base_offset, found.position):
                return
            found.ends_log, found.is_reported = known.ends_log, known.is_reported
        self.damage = found
        logger.error("log damaged, to be repaired from another replica after the next start: error=%s", error)
        write_damage_note(self.files, self.folder, found)

    def forget_damage(self) -> None:
        """The damage is gone, or accepted."""
        self.damage = None
        remove_damage_note(self.files, self.folder)

    @contextlib.contextmanager
    def noting_damage(self) -> Iterator[None]:
        try:
            yield
        except DamagedLog as error:
            self.note_damage(error)
            raise

    # --- append

    def append(
        self, batches: Buffer | Validated, *, leader_epoch: int, now_ms: int, from_client: bool = True
    ) -> Appended:
        """A leader's append: check, assign offsets, write. `Validated` batches are not validated again.

        A log that ends at 100 and a batch of three records: they get 100 to 102, and the log ends at 103.
        """
        if self._failure is not None or self.damage is not None:
            self._require_end()
        if leader_epoch < self.epochs.latest_epoch:
            raise StaleEpoch(self.epochs.latest_epoch, leader_epoch)
        if not isinstance(batches, Validated):
            batches = validate(self.settings, batches, now_ms) if from_client else self._own(batches)
        data, found = batches.batches, batches.found
        headers = found.headers
        if headers[0].producer_id >= 0 and not headers[0].is_control:
            verdict = self.producers.check(headers[0], from_client=from_client)
            if verdict.is_duplicate:
                stamped = verdict.timestamp_ms if self.settings.message_timestamp_append_time else NO_APPEND_TIME
                return Appended(verdict.base_offset, verdict.last_offset, stamped, is_duplicate=True)
        elif headers[0].is_control:
            self._check_markers(data, headers)
        append_time_ms = NO_APPEND_TIME
        if self.settings.message_timestamp_append_time and from_client:
            append_time_ms = now_ms
            for header in headers:
                stamp_append_time(data, header, now_ms)
        base_offset = self.active.next_offset
        assign_offsets(data, headers, base_offset, leader_epoch)
        self._write(data, headers, found.end, now_ms)
        return Appended(base_offset, headers[-1].last_offset, append_time_ms)

    def _own(self, batches: Buffer) -> Validated:
        """Batches that this broker created."""
        found = scan(batches)
        if found.problem is not None or not found.headers:
            raise CorruptBatch(found.problem or "no batch found", found.end)
        check_sizes(self.settings, found.headers, found.end)
        if self.settings.compression_codec is not None:
            batches, found = recompressed(self.settings, batches, found)
        return Validated(writable(batches), found)

    def append_as_follower(self, batches: Buffer, *, now_ms: int) -> Appended | None:
        """Append batches with their offsets and epochs, as the leader has them; None if there is no whole batch.

        An incomplete batch at the end (a fetch's size limit) is ignored.
        """
        self._require_end()
        found = scan(batches)
        if found.problem not in (None, "incomplete"):
            raise CorruptBatch(found.problem or "", found.end)
        if not found.headers:
            return None
        expected, epoch = self.log_end_offset, self.epochs.latest_epoch
        for header in found.headers:
            if header.base_offset < expected:
                raise NonMonotonicOffsets(expected, header.base_offset)
            if header.leader_epoch < epoch:
                raise StaleEpoch(epoch, header.leader_epoch)
            if header.is_control:
                decode_marker(batches, header)  # rejects an invalid marker before it is written
            expected, epoch = header.next_offset, header.leader_epoch
        data = batches if found.end == len(batches) else memoryview(batches)[: found.end]
        self._write(data, found.headers, found.end, now_ms)
        return Appended(found.headers[0].base_offset, found.headers[-1].last_offset, NO_APPEND_TIME)

    def _check_markers(self, batches: Buffer, headers: Sequence[BatchHeader]) -> None:
        for header in headers:
            marker = decode_marker(batches, header)
            if marker is None:
                raise InvalidBatch("control batch does not end a transaction")
            self.producers.check_marker(header, marker)

    def _write(
        self, data: Buffer, headers: Sequence[BatchHeader], size: int, now_ms: int, part: Buffer | None = None
    ) -> None:
        """Write batches. `part`: the bytes to write, if not all of `data`, to which the headers' positions refer."""
        if len(headers) > 1 and headers[-1].last_offset - headers[0].base_offset > MAX_RELATIVE_OFFSET:
            for run in _runs(headers):
                part = memoryview(data)[run[0].position : run[-1].end]
                self._write(data, run, len(part), now_ms, part)
            return
        if must_roll(self.settings, self.active, headers, size, self._rolled_ms, now_ms):
            # Not at the batch's own offset: recovery takes a gap between segments for data loss.
            self.roll(max(self.log_end_offset, headers[-1].last_offset - MAX_RELATIVE_OFFSET), now_ms)
        try:
            self.active.append(data if part is None else part, headers)
        except LogFailed as error:
            self.fail(error)
            raise
        self.durability.appended(now_ms)
        for header in headers:
            if header.leader_epoch > self.epochs.latest_epoch:
                self.epochs.assign(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                marker = decode_marker(data, header) if header.is_control else None
                completed = self.producers.apply(header, header.base_offset, now_ms=now_ms, marker=marker)
                if completed is not None and completed.is_aborted:
                    self._note_aborted(completed)

    def _note_aborted(self, completed: CompletedTransaction) -> None:
        known = self._aborted_bases
        if known is not None and self.active.base_offset not in known[-1:]:
            known.append(self.active.base_offset)
        try:
            self.active.aborted.append(entry_of(completed))
        except OSError as error:
            # The marker is in the log, and readers must not miss it: recovery indexes it.
            raise self.fail(error) from error

    # --- roll

    def roll(self, base_offset: int, now_ms: int) -> None:
        """Seal the active segment and start one at `base_offset`. On an error the log stays as it was."""
        old = self.active
        if base_offset <= old.base_offset:
            return  # the active segment is empty and starts there
        new = Segment(self.files, self.folder, base_offset, index_interval_bytes=self.settings.index_interval_bytes)
        try:
            new.create_files()
            old.seal()
            self.write_producer_snapshot(base_offset)
        except OSError as error:
            try:
                new.remove()
            except OSError as second:
                raise self.fail(second) from error
            raise self.disk_error(error) from error
        self.table = self.table.with_row(Row(old.base_offset, old.size, old.max_timestamp))
        self._open.add(old)
        self.durability.rolled(old, base_offset)
        self.active = new
        self._rolled_ms = now_ms

    def write_producer_snapshot(self, offset: int, data: bytes | None = None) -> None:
        """Save the producer state at `offset`, so that a start need not read earlier batches."""
        if data is None:
            data = self.producers.encode_snapshot()
        atomic_write(self.files, f"{self.folder}/{snapshot_name(offset)}", data, sync=False)

    # --- segments

    def segment_at(self, index: int) -> Segment:
        """The sealed segment number `index`; the active one after the last."""
        if index >= len(self.table):
            return self.active
        return self._open.get(self.table[index], self.settings.index_interval_bytes)

    def forget_segment(self, base_offset: int) -> None:
        """Drop the cached state of a sealed segment whose files change or are removed."""
        self._open.forget(base_offset)
        self.durability.forget_segment(base_offset)

    def replace_segments(self, table: SegmentTable, active: Segment) -> None:
        """Continue with other segments, after their files were changed."""
        self.table = table
        self.active = active
        self.durability.folder_changes += 1
        self._bound = (-1, -1, -1)
        self._aborted_bases = None

    def relocate(self, folder: str, active: Segment) -> None:
        """Continue in another folder with the same contents, all durable. `active` is the last segment there.

        Regions that were handed out still refer to the old files.
        """
        self.active.release()
        self._open.release()
        self.folder = folder
        self._open = OpenSegments(self.files, folder)
        self.active = active
        self.durability.relocated(self)
        self._bound = (-1, -1, -1)
        self._aborted_bases = None
        self.found_closed_at = None

    def after_truncation(self, end_offset: int) -> None:
        """The log was cut at `end_offset`: drop what was known about later offsets."""
        self._cuts.append(end_offset)
        self.durability.cut(self, end_offset)
        self._bound = (-1, -1, -1)
        self._aborted_bases = None
        self.checkpointed_offset = min(self.checkpointed_offset, end_offset)
        self._high_watermark = max(self.log_start_offset, min(self._high_watermark, end_offset))

    @property
    def generation(self) -> int:
        """The number of truncations."""
        return len(self._cuts)

    def was_cut(self, offset: int, generation: int) -> bool:
        """Whether a truncation after `generation` removed anything below `offset`.

        Cut at 20, then appended to 30: was_cut(25, 0) is True, was_cut(20, 0) and was_cut(25, 1) are False.
        """
        return any(cut < offset for cut in self._cuts[generation:])

    def find_segment(self, offset: int) -> int:
        """The index, for `segment_at`, of the segment that contains `offset`."""
        if offset >= self.active.base_offset:
            return len(self.table)
        return max(0, self.table.find(offset))

    # --- read

    def read(self, offset: int, max_bytes: int, *, upper_offset: int | None = None) -> Region | None:
        """Batches from the one that contains `offset`, below `upper_offset`: at most `max_bytes`, at least one batch.

        None if there are none yet. Batches 0..9 and 10..19 with the high watermark at 10: read(3, ..., upper_offset=10)
        returns the first, read(10, ..., upper_offset=10) None.
        """
        self.require_online()
        end = self.log_end_offset
        if offset >= end and self.damage is not None and self.damage.ends_log:
            raise self.damage.error()
        if offset < self.log_start_offset or offset > end:
            raise OffsetOutOfRange(offset, self.log_start_offset, end)
        upper = end if upper_offset is None else min(upper_offset, end)
        if offset >= upper:
            return None
        try:
            return self._read(offset, max_bytes, upper)
        except DamagedLog as error:
            self.note_damage(error)
            raise
        except OSError as error:
            raise self.disk_error(error) from error

    def _read(self, offset: int, max_bytes: int, upper: int) -> Region | None:
        for index in range(self.find_segment(offset), self.segment_count):
            segment = self.segment_at(index)
            if segment.base_offset >= upper:
                return None
            region = segment.read(offset, max_bytes, self._position_of(segment, upper), self.epochs)
            if region is not None:
                return region
        return None

    def _position_of(self, segment: Segment, upper: int) -> int | None:
        if upper >= segment.next_offset:
            return None
        base, offset, position = self._bound
        if base == segment.base_offset and offset == upper:
            return position
        place = segment.locate(upper)
        position = segment.size if place is None else place.position
        self._bound = (segment.base_offset, upper, position)
        return position

    def aborted_between(self, offset: int, upper_offset: int, region: Region | None = None) -> list[AbortedTransaction]:
        """The aborted transactions in offsets [offset, upper_offset), by first offset, for read_committed.

        With the `region` that was read from `offset`, only those that may have records in it.
        """
        aborted: list[AbortedTransaction] = []
        bases = self._bases_with_aborted()
        number = self.find_segment(offset)
        first = self.active.base_offset if number == len(self.table) else self.table.bases[number]
        bases = bases[bisect_left(bases, first) :]
        if bases and region is not None:
            upper_offset = min(upper_offset, self._bound_of(region, offset, upper_offset))
        for base in bases:
            segment = self.segment_at(self.find_segment(base))
            aborted += segment.aborted.aborted_between(offset, upper_offset)
            if segment.aborted.covers(upper_offset):
                break
        aborted.sort(key=_first_offset)
        return aborted

    def _bound_of(self, region: Region, offset: int, upper_offset: int) -> int:
        """An offset above all records of a region: that of the first index entry at its end or later."""
        for number in range(self.find_segment(offset), self.segment_count):
            segment = self.segment_at(number)
            if segment.base_offset >= upper_offset:
                break
            if segment.file is region.file:
                return segment.offset_bound(region.position + region.size)
        return upper_offset

    def _bases_with_aborted(self) -> list[int]:
        """The segments that have a transaction index. Most have none, and are not opened to find out."""
        if self._aborted_bases is None:
            names = segment_files(self.files.list_folder(self.folder))
            self._aborted_bases = sorted(base for base, kinds in names.items() if TRANSACTION_INDEX_SUFFIX in kinds)
        return self._aborted_bases

    def stamped_table(self) -> SegmentTable:
        """The table with all timestamps. After an unclean start they are read on first use."""
        if not self.table.stamps_known:
            stamps = array("q", self.table.stamps)
            for index, stamp in enumerate(stamps):
                if stamp == UNKNOWN_TIMESTAMP:
                    stamps[index] = self.segment_at(index).max_timestamp
            self.table = self.table.with_stamps(stamps)
        return self.table

    # --- watermarks

    def advance_high_watermark(self, offset: int) -> bool:
        """Let consumers read below `offset`. It never moves back, nor beyond the end."""
        offset = min(offset, self.log_end_offset)
        if offset <= self._high_watermark:
            return False
        self._high_watermark = offset
        self.producers.on_high_watermark(offset)
        return True

    def set_high_watermark(self, offset: int) -> None:
        """Start from a checkpointed high watermark, clamped to what the log holds."""
        self._high_watermark = max(self.log_start_offset, min(offset, self.log_end_offset))
        self.producers.on_high_watermark(self._high_watermark)

    def advance_start(self, offset: int) -> bool:
        """Hide records below `offset`. Retention deletes whole segments of them later.

        The caller writes the new start to the checkpoint before it acknowledges the request.
        """
        if offset > self._high_watermark:
            raise OffsetOutOfRange(offset, self.log_start_offset, self._high_watermark)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True

    # --- flush

    @property
    def flushed_offset(self) -> int:
        """Everything below is durable."""
        return self.durability.flushed_offset

    @property
    def unflushed(self) -> int:
        return self.log_end_offset - self.durability.flushed_offset

    @property
    def unflushed_bytes(self) -> int:
        """Approximate: deletions count as flushes."""
        return self.durability.unflushed_bytes(self)

    @property
    def flush_count_reached(self) -> bool:
        """Whether flush.messages is reached."""
        return self.unflushed >= self.settings.flush_messages

    def flush_due(self, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms requires a flush."""
        if self.unflushed <= 0:
            return False
        return self.flush_count_reached or self.durability.is_older(now_ms, self.settings.flush_ms)

    def flush_wanted(self, now_ms: int, most_bytes: int, most_ms: int) -> bool:
        """Whether `most_bytes`, or records older than `most_ms`, are not durable or have no recovery mark."""
        if self.unflushed > 0 and (self.durability.is_older(now_ms, most_ms) or self.unflushed_bytes >= most_bytes):
            return True
        # Where every append is synced for its producer, only this asks for a mark.
        return self.marks.wanted(self.active, now_ms, most_bytes, most_ms)

    def prepare_flush(self, *, mark: bool = False) -> Flush | None:
        """The flush that makes everything appended so far durable; None if it is.

        With `mark`, the flush also writes a recovery mark if there is enough after the last one.
        """
        self.require_online()
        try:
            return self.durability.prepare(self, mark)
        except OSError as error:
            raise self.disk_error(error) from error

    def complete_flush(self, flush: Flush) -> None:
        """Note that a flush succeeded. A flush prepared before a truncation is ignored."""
        self.durability.complete(self, flush)

    def flush(self) -> None:
        """Make everything durable before returning."""
        flush = self.prepare_flush()
        if flush is None:
            return
        try:
            flush.run()
        except OSError as error:
            raise self.fail(error) from error
        self.complete_flush(flush)

    # --- close

    def is_as_found(self) -> bool:
        """Whether nothing changed since the last clean `close`, so that closing would write nothing new."""
        if self.found_closed_at != self.log_end_offset or self.generation or self._failure is not None:
            return False
        # The manifest shows most of these too, but by the folder's time, which may be milliseconds coarse.
        if self.durability.folder_changes > 1 or self.durability.unsynced or self.deletions_pending:
            return False
        if self.epochs.dirty or self.active.is_torn:
            return False
        try:
            return SegmentTable.load(self.files, self.folder) is not None
        except OSError:
            return False  # closing it meets and reports the same error

    def close(self) -> None:
        """Make everything durable and write what a fast start needs: indexes, a snapshot at the end, the manifest.

        A log that ends at damage stays as it was found: the next start must find the same.
        """
        if self.is_cut_short:
            self.release()
            return
        try:
            self.durability.cancel_mark()
            if self._failure is None:
                self.active.seal()
                self.flush()
                self._replace_marks()
                self._save_manifest()
        except OSError as error:
            raise self.disk_error(error) from error
        finally:
            self.release()

    def _replace_marks(self) -> None:
        """Write a snapshot for the end, with a mark if the segment is large, and remove the others inside segments."""
        end, active, data = self.log_end_offset, self.active, None
        if is_worth_marking(active.size):
            data = MarkWriter(self.files, active, self.producers.snapshot()).encode()
        self.write_producer_snapshot(end, data)
        for offset in self.marks.take_all():
            if offset != end:
                remove_snapshot(self, offset)

    def _save_manifest(self) -> None:
        if self.damage is not None:
            return  # the next start must look for its note
        if self.deletions_pending and any(name.endswith(DELETED) for name in self.files.list_folder(self.folder)):
            return  # the next start must list the folder to find them
        active = Row(self.active.base_offset, self.active.size, self.active.max_timestamp)
        self.stamped_table().with_row(active).save(self.files, self.folder)

    def release(self) -> None:
        """Close the files without writing anything."""
        with contextlib.suppress(OSError):
            self.active.release()
        self._open.release()


# ------------------------------------------------------------------------------------------------------------- rolling


def _first_offset(aborted: AbortedTransaction) -> int:
    return aborted.first_offset


def must_roll(
    settings: LogSettings, active: Segment, headers: Sequence[BatchHeader], size: int, rolled_ms: int, now_ms: int
) -> bool:
    """Whether these batches, `size` bytes, need a new segment: by size, index size or age.

    A segment that starts with timestamp 1000 and segment.ms=500 takes a batch stamped 1500, and not one stamped 1501.
    """
    if headers[-1].last_offset - active.base_offset > MAX_RELATIVE_OFFSET:
        return True
    if active.size == 0:
        return False
    if active.size + size > settings.segment_bytes:
        return True
    if (len(active.index) + 1) * _INDEX_ENTRY_BYTES > settings.segment_index_bytes:
        return True
    age_max_ms = settings.segment_ms
    # Only sealed segments are compacted.
    if settings.max_compaction_lag_ms < age_max_ms and settings.compacts:
        age_max_ms = settings.max_compaction_lag_ms
    if settings.segment_jitter_ms:
        age_max_ms = max(1, age_max_ms - roll_jitter_ms(settings, active.path))
    first = active.first_timestamp
    if first is None or first < 0 or headers[0].max_timestamp < 0:
        return now_ms - rolled_ms > age_max_ms
    return headers[0].max_timestamp - first > age_max_ms


def roll_jitter_ms(settings: LogSettings, path: str) -> int:
    """How much earlier than segment.ms the segment at `path` is rolled: at most segment.jitter.ms.

    It is a hash of the path, so that logs created together roll at different times, and the same after a restart.
    """
    return min(settings.segment_jitter_ms, settings.segment_ms) * crc32(path.encode()) >> 32


def _runs(headers: Sequence[BatchHeader]) -> Iterator[list[BatchHeader]]:
    """Split batches into runs that fit one segment: offsets within 2^31 of its base."""
    run = [headers[0]]
    for header in headers[1:]:
        if header.last_offset - run[0].base_offset > MAX_RELATIVE_OFFSET:
            yield run
            run = []
        run.append(header)
    yield run


# ------------------------------------------------------------------------------------------------- lookup by timestamp


class TimedOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def offset_for_time(log: PartitionLog, timestamp: int) -> TimedOffset | None:
    """The first record with a timestamp of at least `timestamp`; None if there is none.

    Records 0..2 with timestamps 10, 30, 20: time 15 gives offset 1, time 31 None.
    """
    log.require_online()
    with log.noting_damage():
        return _offset_for_time(log, timestamp)


def _offset_for_time(log: PartitionLog, timestamp: int) -> TimedOffset | None:
    first = log.find_segment(log.log_start_offset)
    for index in range(max(first, log.stamped_table().first_stamped_from(timestamp)), log.segment_count):
        segment = log.segment_at(index)
        place = segment.find_time(timestamp)
        while place is not None:
            for record in _records(segment, place):
                if record.timestamp >= timestamp and record.offset >= log.log_start_offset:
                    return TimedOffset(record.timestamp, record.offset, place.header.leader_epoch)
            # Its newest record was compacted, or is before the log start offset.
            place = _next_with(segment, place, timestamp)
    return None


def latest_timestamp(log: PartitionLog) -> TimedOffset | None:
    """The first record with the largest timestamp; None in a log without timestamps."""
    log.require_online()
    with log.noting_damage():
        return _latest_timestamp(log)


def _latest_timestamp(log: PartitionLog) -> TimedOffset | None:
    first = log.find_segment(log.log_start_offset)
    stamps = [*log.stamped_table().stamps[first:], log.active.max_timestamp]
    found = _first_with(log, max(stamps))
    if found is None:
        # It was before the log start offset, in the first segment: the rest of that segment may be older.
        found = _first_with(log, max([_newest_left(log, first), *stamps[1:]]))
    return found


def _first_with(log: PartitionLog, timestamp: int) -> TimedOffset | None:
    return None if timestamp <= NO_TIMESTAMP else _offset_for_time(log, timestamp)


def _newest_left(log: PartitionLog, index: int) -> int:
    """The largest timestamp in the segment from the log start offset on."""
    segment = log.segment_at(index)
    first = segment.locate(log.log_start_offset)
    if first is None:
        return NO_TIMESTAMP
    left = [record.timestamp for record in _records(segment, first) if record.offset >= log.log_start_offset]
    return max([NO_TIMESTAMP, *left, *(place.header.max_timestamp for place in segment.places(first.end))])


def _records(segment: Segment, place: Place) -> list[Record]:
    # Control records count, as in Kafka: a transaction marker is often the newest record.
    data = segment.file.read_at(place.position, place.header.size)
    try:
        return decode_batch(data)
    except CorruptBatch as error:
        raise DamagedLog(segment.path, place.position, error.reason) from error


def _next_with(segment: Segment, place: Place, timestamp: int) -> Place | None:
    for candidate in segment.places(place.end):
        if candidate.header.max_timestamp >= timestamp:
            return candidate
    return None
