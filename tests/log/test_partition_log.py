from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.log.log_stories import (
    NOW_MS,
    ROOMY,
    TINY,
    base_offsets,
    bases,
    batch_of,
    contents,
    marker_of,
    open_new,
    put,
    reopen,
)

from penstock.log.errors import DiskFull, LogFailed, NonMonotonicOffsets, OffsetOutOfRange
from penstock.log.partition_log import PartitionLog, offset_for_time, roll_jitter_ms
from penstock.log.retention import enforce_retention
from penstock.log.segment import MANIFEST_NAME
from penstock.log.settings import COMPACT, DELETE, LogSettings
from penstock.log.truncation import truncate_fully, truncate_to
from penstock.records import Codec, scan
from penstock.runtime.files import PosixFiles
from penstock.testing.simulated_files import SimulatedFiles

BATCH = len(batch_of())


# --- settings


def test_the_defaults_are_kafkas() -> None:
    defaults = LogSettings()
    assert (defaults.segment_bytes, defaults.index_interval_bytes) == (1 << 30, 4096)
    assert (defaults.segment_ms, defaults.retention_ms) == (168 * 3_600_000, 168 * 3_600_000)
    assert (defaults.max_message_bytes, defaults.message_timestamp_after_max_ms) == (1_048_588, 3_600_000)
    assert (defaults.deletes, defaults.compacts) == (True, False)
    both = replace(defaults, cleanup_policy=frozenset({COMPACT, DELETE}))
    assert (both.deletes, both.compacts) == (True, True)


# --- rolls


def test_a_segment_is_rolled_when_the_next_append_would_not_fit() -> None:
    log = open_new(SimulatedFiles(), replace(TINY, segment_bytes=2 * BATCH))
    put(log, 0, 1)
    assert bases(log) == [0]
    put(log, 2)
    assert bases(log) == [0, 4]
    log.append(batch_of(3, size=10), leader_epoch=0, now_ms=NOW_MS)
    assert bases(log) == [0, 4]


def test_a_segment_is_rolled_by_the_age_of_its_records() -> None:
    log = open_new(SimulatedFiles(), replace(ROOMY, segment_ms=100, message_timestamp_after_max_ms=10**9))

    def append(stamp: int, now_ms: int = NOW_MS) -> None:
        log.append(batch_of(0, stamps=[stamp, stamp]), leader_epoch=0, now_ms=now_ms)

    append(NOW_MS)
    append(NOW_MS + 100, NOW_MS + 10**6)
    assert bases(log) == [0], "the clock does not matter where records tell the time"
    append(NOW_MS + 101)
    append(NOW_MS + 50)
    append(NOW_MS + 201)
    assert bases(log) == [0, 4]
    append(NOW_MS + 202)
    assert bases(log) == [0, 4, 10]


def ages_at_roll(log: PartitionLog, rolls: int) -> list[int]:
    """How old each segment was when it was rolled, in steps of ten."""
    ages: list[int] = []
    begin = stamp = NOW_MS
    while len(ages) < rolls:
        count = log.segment_count
        log.append(batch_of(0, stamps=[stamp, stamp]), leader_epoch=0, now_ms=NOW_MS)
        if log.segment_count > count:
            ages.append(stamp - begin)
            begin = stamp
        stamp += 10
    return ages


def test_jitter_rolls_each_segment_somewhat_earlier_and_not_all_at_once() -> None:
    settings = replace(ROOMY, segment_ms=1000, segment_jitter_ms=400, message_timestamp_after_max_ms=10**9)
    ages = []
    for number in range(12):
        log = open_new(SimulatedFiles(), settings, folder=f"/data/t-{number}")
        ages += ages_at_roll(log, 3)
    assert all(600 <= age <= 1010 for age in ages)
    assert len(set(ages)) > 12
    assert min(ages) < 700
    assert max(ages) > 900


def test_jitter_beyond_the_age_itself_still_leaves_segments_some_life() -> None:
    settings = replace(ROOMY, segment_ms=10, segment_jitter_ms=2**63 - 1)
    for number in range(200):
        assert 0 <= roll_jitter_ms(settings, f"/data/t-{number}/0.log") < 10
    log = open_new(SimulatedFiles(), settings)
    put(log, 0, 0, 0)
    assert log.segment_count == 1


def test_the_age_of_a_segments_first_record_is_known_after_a_restart() -> None:
    files = SimulatedFiles()
    aged = replace(ROOMY, segment_ms=100)
    for clean in (True, False):
        log = open_new(files, aged, folder=f"/data/{clean}")
        for _ in range(20):
            put(log, 0)
        if clean:
            log.close()
        log = reopen(files, aged, clean=clean, folder=f"/data/{clean}").log
        put(log, 100)
        assert log.segment_count == 1
        put(log, 101)
        assert log.segment_count == 2


def test_a_segment_without_timestamps_is_rolled_by_the_clock() -> None:
    log = open_new(SimulatedFiles(), replace(ROOMY, segment_ms=100))
    for now_ms in (NOW_MS, NOW_MS + 100, NOW_MS + 101, NOW_MS + 201, NOW_MS + 202):
        log.append(batch_of(0, stamps=[-1, -1]), leader_epoch=0, now_ms=now_ms)
    assert bases(log) == [0, 4, 8]


def test_a_segment_is_rolled_when_its_index_is_full() -> None:
    log = open_new(SimulatedFiles(), replace(ROOMY, index_interval_bytes=1, segment_index_bytes=24))
    put(log, *range(10))
    assert bases(log) == [0, 8, 16]
    assert [len(log.segment_at(index).index) for index in range(3)] == [3, 3, 1]


def test_an_empty_segment_is_not_rolled() -> None:
    files = SimulatedFiles()
    log = open_new(files, replace(ROOMY, segment_ms=1))
    log.roll(0, NOW_MS)
    put(log, 0)
    log.roll(2, NOW_MS)
    log.roll(2, NOW_MS)
    assert bases(log) == [0, 2]
    put(log, 1)
    assert base_offsets(log) == [0, 2]


def test_settings_may_change_under_a_log() -> None:
    log = open_new(SimulatedFiles(), ROOMY)
    put(log, *range(4))
    log.settings = replace(ROOMY, segment_bytes=BATCH)
    put(log, 4, 5)
    assert bases(log) == [0, 8, 10]


def test_a_failed_roll_that_cannot_be_undone_takes_the_log_offline() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    put(log, 0, 1)
    files.operations.fail("create", errno.ENOSPC, path_ending=".timeindex")
    files.operations.fail("remove", errno.EIO, path_ending=".log")
    with pytest.raises(LogFailed):
        put(log, 2)
    assert log.failure is not None


# --- watermarks


def test_the_high_watermark_rises_within_the_log() -> None:
    log = open_new(SimulatedFiles())
    put(log, *range(5))
    assert log.high_watermark == 0
    assert log.advance_high_watermark(6)
    assert not log.advance_high_watermark(6)
    assert not log.advance_high_watermark(3)
    assert log.high_watermark == 6
    assert log.advance_high_watermark(100)
    assert log.high_watermark == 10


@pytest.mark.parametrize(("checkpointed", "taken"), [(-5, 3), (0, 3), (7, 7), (99, 10)])
def test_a_checkpointed_high_watermark_is_clamped_to_the_log(checkpointed: int, taken: int) -> None:
    log = open_new(SimulatedFiles())
    put(log, *range(5))
    log.advance_high_watermark(10)
    log.advance_start(3)
    log.set_high_watermark(checkpointed)
    assert log.high_watermark == taken


def test_records_are_deleted_up_to_the_high_watermark_only() -> None:
    log = open_new(SimulatedFiles())
    put(log, *range(5))
    log.advance_high_watermark(6)
    with pytest.raises(OffsetOutOfRange):
        log.advance_start(7)
    assert log.advance_start(6)
    assert not log.advance_start(5)
    assert (log.log_start_offset, base_offsets(log)) == (6, [6, 8])


def transact(log: PartitionLog, number: int, producer: int) -> None:
    log.append(batch_of(number, producer=producer, transactional=True), leader_epoch=0, now_ms=NOW_MS)


def end(log: PartitionLog, producer: int, *, commit: bool) -> None:
    log.append(marker_of(producer, commit=commit), leader_epoch=0, now_ms=NOW_MS, from_client=False)


@pytest.mark.parametrize("commit", [True, False])
def test_readers_of_committed_records_wait_for_open_transactions(commit: bool) -> None:
    log = open_new(SimulatedFiles())
    put(log, 0)  # 0-1
    transact(log, 0, 1)  # 2-3
    transact(log, 0, 2)  # 4-5
    log.advance_high_watermark(6)
    assert log.last_stable_offset == 2
    end(log, 1, commit=commit)  # 6
    assert log.last_stable_offset == 2, "the marker may still be lost"
    log.advance_high_watermark(7)
    assert log.last_stable_offset == 4
    end(log, 2, commit=commit)  # 7
    log.advance_high_watermark(8)
    assert log.last_stable_offset == 8


def test_the_last_stable_offset_is_never_before_the_logs_start() -> None:
    log = open_new(SimulatedFiles())
    transact(log, 0, 1)
    put(log, 1, 2)
    log.advance_high_watermark(6)
    log.advance_start(5)
    assert log.last_stable_offset == 5


# --- the end


def test_a_closed_log_leaves_what_a_quick_start_needs(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = open_new(PosixFiles(), folder=str(folder))
    put(log, *range(3))
    log.close()
    names = {entry.name for entry in folder.iterdir()}
    assert {MANIFEST_NAME, f"{6:020d}.snapshot", "leader-epoch-checkpoint"} <= names


def test_a_failed_log_writes_nothing_when_it_is_closed() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    put(log, 0)
    log.fail(OSError(errno.EIO, "gone"))
    assert log.fail(OSError("later")) is log.failure, "the first reason counts"
    before = files.operations.count
    log.close()
    assert files.operations.count == before


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("write", ".index"),
        ("write", ".timeindex"),
        ("write", "leader-epoch-checkpoint.tmp"),
        ("write", ".snapshot.tmp"),
        ("create", MANIFEST_NAME),
        ("write", MANIFEST_NAME),
    ],
)
def test_a_full_disk_at_close_is_reported_and_loses_no_record(kind: str, ending: str) -> None:
    files = SimulatedFiles()
    log = open_new(files, replace(ROOMY, index_interval_bytes=1))
    put(log, *range(5))
    files.operations.fail(kind, errno.ENOSPC, path_ending=ending, applied_bytes=5)
    with pytest.raises(DiskFull):
        log.close()
    again = reopen(files, ROOMY, clean=False, recovery_point=log.flushed_offset).log
    assert base_offsets(again) == [0, 2, 4, 6, 8]


def test_a_disk_error_at_close_is_reported() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    put(log, 0)
    files.operations.fail("write", errno.EIO, path_ending=".snapshot.tmp")
    with pytest.raises(LogFailed):
        log.close()
    assert log.failure is not None


def test_a_closed_log_holds_no_files_open(tmp_path: Path) -> None:
    files = PosixFiles()
    log = open_new(files, folder=str(tmp_path / "t-0"))
    put(log, *range(9))
    assert base_offsets(log) == list(range(0, 18, 2))
    held = [log.segment_at(index).file for index in range(log.segment_count)]
    numbers = {file.fileno() for file in held}
    del held
    log.close()
    open_now = (
        {int(entry.name) for entry in Path("/proc/self/fd").iterdir()} if Path("/proc/self/fd").exists() else set()
    )
    still = {
        number
        for number in numbers & open_now
        if Path(f"/proc/self/fd/{number}").exists() and str(tmp_path) in str(Path(f"/proc/self/fd/{number}").readlink())
    }
    assert still == set()


# --- all of it together


@dataclass(frozen=True)
class Batch:
    """What the model knows of a batch."""

    base_offset: int
    keys: tuple[bytes, ...]
    stamp: int
    epoch: int
    producer: int = -1
    is_marker: bool = False
    is_abort: bool = False
    is_transactional: bool = False

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.keys)


class LogMachine(RuleBasedStateMachine):
    """A log beside a plain list of batches: whatever is done to both, a reader sees the same."""

    def __init__(self) -> None:
        super().__init__()
        self.files = SimulatedFiles()
        self.settings = replace(
            TINY, segment_bytes=900, index_interval_bytes=150, retention_bytes=1500, retention_ms=-1
        )
        self.log = open_new(self.files, self.settings)
        self.batches: list[Batch] = []
        self.end = 0
        self.epoch = 0
        self.number = 0
        self.shortened = False  # something was deleted from the front: the model no longer knows of all transactions

    # --- the model

    @property
    def start(self) -> int:
        return self.log.log_start_offset

    def add(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.end = batch.next_offset

    def next_sequence(self, producer: int) -> int:
        return sum(len(batch.keys) for batch in self.batches if batch.producer == producer and not batch.is_marker)

    def open_transactions(self) -> dict[int, int]:
        ongoing: dict[int, int] = {}
        for batch in self.batches:
            if batch.is_marker:
                ongoing.pop(batch.producer, None)
            elif batch.is_transactional:
                ongoing.setdefault(batch.producer, batch.base_offset)
        return ongoing

    def aborted(self) -> list[tuple[int, int, int]]:
        ongoing: dict[int, int] = {}
        found: list[tuple[int, int, int]] = []
        for batch in self.batches:
            if batch.is_marker:
                first = ongoing.pop(batch.producer, None)
                if batch.is_abort and first is not None:
                    found.append((batch.producer, first, batch.base_offset))
            elif batch.is_transactional:
                ongoing.setdefault(batch.producer, batch.base_offset)
        return found

    # --- what may happen

    @rule(
        records=st.integers(1, 3),
        stamp=st.integers(0, 50),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]),
        size=st.sampled_from([10, 100, 180]),
    )
    def append(self, records: int, stamp: int, codec: int, size: int) -> None:
        self.number = (self.number + 1) % 1000
        stamps = [NOW_MS + stamp] * records
        batch = batch_of(self.number, records=records, stamps=stamps, codec=codec, size=size)
        done = self.log.append(batch, leader_epoch=self.epoch, now_ms=NOW_MS)
        assert done.base_offset == self.end
        keys = tuple(b"%03d-%d" % (self.number, i) for i in range(records))
        self.add(Batch(self.end, keys, NOW_MS + stamp, self.epoch))

    @precondition(lambda self: not self.shortened)
    @rule(producer=st.integers(1, 2), transactional=st.booleans())
    def append_as_producer(self, producer: int, transactional: bool) -> None:
        transactional = transactional or producer in self.open_transactions()
        self.number = (self.number + 1) % 1000
        sequence = self.next_sequence(producer)
        batch = batch_of(self.number, producer=producer, sequence=sequence, transactional=transactional)
        for attempt in range(2):
            done = self.log.append(bytes(batch), leader_epoch=self.epoch, now_ms=NOW_MS)
            assert (done.base_offset, done.is_duplicate) == (self.end, attempt == 1)
        keys = (b"%03d-0" % self.number, b"%03d-1" % self.number)
        stamp = NOW_MS + self.number
        self.add(Batch(self.end, keys, stamp, self.epoch, producer, is_transactional=transactional))

    @precondition(lambda self: not self.shortened)
    @rule(producer=st.integers(1, 2), commit=st.booleans())
    def end_transaction(self, producer: int, commit: bool) -> None:
        marker = marker_of(producer, commit=commit)
        self.log.append(marker, leader_epoch=self.epoch, now_ms=NOW_MS, from_client=False)
        key = b"\0\0\0" + (b"\1" if commit else b"\0")
        self.add(Batch(self.end, (key,), NOW_MS, self.epoch, producer, is_marker=True, is_abort=not commit))

    @rule(gap=st.integers(-2, 4), records=st.integers(1, 3))
    def append_as_follower(self, gap: int, records: int) -> None:
        self.number = (self.number + 1) % 1000
        base = max(0, self.end + gap)
        batch = batch_of(self.number, records=records, base_offset=base, leader_epoch=self.epoch)
        if base < self.end:
            with pytest.raises(NonMonotonicOffsets):
                self.log.append_as_follower(batch, now_ms=NOW_MS)
            return
        assert self.log.append_as_follower(batch, now_ms=NOW_MS) is not None
        keys = tuple(b"%03d-%d" % (self.number, i) for i in range(records))
        self.add(Batch(base, keys, NOW_MS + self.number, self.epoch))

    @rule()
    def elect_another_leader(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll(self.end, NOW_MS)

    @rule(share=st.floats(0, 1.1))
    def truncate(self, share: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        cut = truncate_to(self.log, offset, NOW_MS)
        assert cut == (offset < self.end)
        if not cut:
            return
        self.batches = [batch for batch in self.batches if batch.next_offset <= offset]
        # In a gap the log ends before it, unless a segment begins there.
        last = max([self.start, *(batch.next_offset for batch in self.batches)])
        assert last <= self.log.log_end_offset <= max(offset, last)
        self.end = self.log.log_end_offset

    @rule(offset=st.integers(0, 60))
    def truncate_fully(self, offset: int) -> None:
        truncate_fully(self.log, offset, NOW_MS)
        self.batches, self.end, self.shortened = [], offset, False

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.flushed_offset == self.end

    @rule(share=st.floats(0, 1))
    def replicate(self, share: float) -> None:
        self.log.advance_high_watermark(self.start + int((self.end - self.start) * share))

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = self.start + int((self.log.high_watermark - self.start) * share)
        self.shortened |= self.log.advance_start(offset)

    @rule()
    def retain(self) -> None:
        start = self.start
        for path in enforce_retention(self.log, NOW_MS):
            self.files.remove(path)
        assert start <= self.start <= self.log.high_watermark
        self.shortened |= self.start > start

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        start, watermark, flushed = self.start, self.log.high_watermark, self.log.flushed_offset
        if clean:
            self.log.close()
        else:
            self.log.release()
            self.files.kill()
        opened = reopen(self.files, self.settings, clean=clean, recovery_point=flushed, log_start_offset=start)
        # A kill loses nothing, but a gap that was not durable: it looks like a lost segment.
        assert opened.damages == []
        self.log = opened.log
        assert self.log.log_start_offset == start
        self.log.set_high_watermark(watermark)

    @rule(share=st.floats(0, 1), limit=st.integers(0, 1200), bound=st.floats(0, 1.2))
    def read(self, share: float, limit: int, bound: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        upper = self.start + int((self.end - self.start) * bound)
        region = self.log.read(offset, limit, upper_offset=upper)
        expected = next((batch for batch in self.batches if batch.next_offset > offset), None)
        if region is None:
            assert expected is None or expected.next_offset > upper
            return
        assert expected is not None
        data = region.read()
        found = scan(data)
        assert found.problem is None
        assert found.headers[0].base_offset == expected.base_offset
        assert found.headers[-1].next_offset <= upper
        assert len(found.headers) == 1 or len(data) <= limit

    @rule(stamp=st.integers(0, 60))
    def look_up(self, stamp: int) -> None:
        found = offset_for_time(self.log, NOW_MS + stamp)
        late = [batch for batch in self.batches if batch.next_offset > self.start and batch.stamp >= NOW_MS + stamp]
        expected = max(self.start, late[0].base_offset) if late else None
        assert (None if found is None else found.offset) == expected

    # --- what must hold

    @invariant()
    def readers_see_what_was_written(self) -> None:
        expected = [(batch.base_offset, batch.keys) for batch in self.batches if batch.next_offset > self.start]
        assert [tuple(batch) for batch in contents(self.log, max_bytes=400)] == expected
        assert self.log.log_end_offset == self.end

    @invariant()
    def offsets_are_in_order(self) -> None:
        log = self.log
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        assert log.flushed_offset <= log.log_end_offset
        starts = bases(log)
        assert starts == sorted(set(starts))

    @invariant()
    def epochs_follow_the_batches(self) -> None:
        changes: list[tuple[int, int]] = []
        for batch in self.batches:
            if batch.next_offset > self.start and (not changes or batch.epoch > changes[-1][0]):
                changes.append((batch.epoch, batch.base_offset))
        first, *later = [tuple(entry) for entry in self.log.epochs.entries] or [(-1, -1)]
        assert later == [change for change in changes if change[0] > first[0]]

    @invariant()
    def transactions_follow_the_batches(self) -> None:
        if self.shortened:
            return
        found = self.log.aborted_between(0, 10**9)
        by_first_offset = sorted(self.aborted(), key=lambda each: each[1])
        assert [(each.producer_id, each.first_offset, each.last_offset) for each in found] == by_first_offset
        undecided = self.log.producers.first_undecided_offset
        assert undecided == min(self.open_transactions().values(), default=None)


LogMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_a_log_behaves_as_a_list_of_batches_does = LogMachine.TestCase
