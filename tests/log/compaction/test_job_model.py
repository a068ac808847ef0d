"""Any history of keyed writes, deletions and transactions, compacted repeatedly, compared with a plain list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.compaction_stories import (
    NOW,
    RETENTION_MS,
    batches_in,
    committed_in,
    end_transaction,
    leftovers,
    new_log,
    put,
    reopened,
    settle,
    without_snapshots,
)

from penstock.log.compaction.job import compact
from penstock.log.compaction.record_filter import KEY_OVERHEAD_BYTES
from penstock.log.partition_log import PartitionLog
from penstock.log.truncation import truncate_to
from penstock.records import Codec, Record
from penstock.testing.simulated_files import SimulatedFiles

KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"d" * 40, b"e"])
PAIRS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=60)), min_size=1, max_size=5)


class Write(NamedTuple):
    pairs: list[tuple[bytes, bytes | None]]
    codec: Codec
    producer: int  # -1: none; 1 and 2 only write numbers; 3 and 4 are transactional


class End(NamedTuple):
    producer: int
    commit: bool


class Clean(NamedTuple):
    passed_ms: int
    map_bytes: int


class Other(NamedTuple):
    what: str  # roll, settle, stop, crash, forget


WRITES = st.builds(Write, PAIRS, st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4, Codec.GZIP]), st.integers(-1, 4))
STEPS = st.one_of(
    WRITES,
    WRITES,
    WRITES,
    st.builds(End, st.integers(3, 4), st.booleans()),
    st.builds(Other, st.sampled_from(["roll", "roll", "settle", "stop", "crash", "forget", "cut"])),
    st.builds(
        Clean,
        st.sampled_from([0, RETENTION_MS // 2, RETENTION_MS + 1]),
        st.sampled_from([1 << 27, 1 << 27, 3 * KEY_OVERHEAD_BYTES, 1]),
    ),
)
Step = Write | End | Clean | Other


@dataclass
class Story:
    """A log, and what was done to it."""

    log: PartitionLog
    now_ms: int = NOW
    first_dirty: int = 0
    written: dict[int, Record] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)  # aborted
    open: dict[int, list[int]] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    last_marker: int = -1

    def write(self, step: Write) -> None:
        sequence = self.sequences.get(step.producer, 0)
        base = put(
            self.log,
            *step.pairs,
            at_ms=self.now_ms,
            codec=step.codec,
            producer=step.producer,
            sequence=sequence if step.producer >= 0 else -1,
            transactional=step.producer >= 3,
        )
        self.sequences[step.producer] = sequence + len(step.pairs)
        offsets = range(base, base + len(step.pairs))
        if step.producer >= 3:
            self.open.setdefault(step.producer, []).extend(offsets)
        for number, (key, value) in enumerate(step.pairs):
            expected = Record(base + number, self.now_ms + number, key, value, (("n", b"%d" % number),))
            self.written[base + number] = expected

    def end(self, step: End) -> None:
        offsets = self.open.pop(step.producer, None)
        if offsets is None:
            return
        self.last_marker = end_transaction(self.log, step.producer, commit=step.commit, at_ms=self.now_ms)
        if not step.commit:
            self.gone.update(offsets)

    def clean(self, step: Clean) -> None:
        self.now_ms += step.passed_ms
        settle(self.log)
        result = compact(self.log, self.first_dirty, self.now_ms, map_bytes=step.map_bytes, only_if_due=False)
        assert result is not None
        assert result.first_dirty_offset >= self.first_dirty
        self.first_dirty = result.first_dirty_offset

    def other(self, step: Other) -> None:
        log = self.log
        if step.what == "roll" and log.active.size:
            log.roll(log.log_end_offset, self.now_ms)
        elif step.what == "cut":
            self.cut(log.high_watermark)
        elif step.what == "settle":
            settle(log)
        elif step.what in ("stop", "crash", "forget"):
            known = producers_of(log)
            if step.what == "forget":
                self.log = without_snapshots(log)
            else:
                self.log = reopened(log, clean=step.what == "stop", now_ms=self.now_ms)
            assert producers_of(self.log) == known

    def cut(self, offset: int) -> None:
        """A new leader truncates what was not replicated: whole batches, and their producers' state."""
        if self.open or self.last_marker >= offset:
            return  # what would be open again is another story
        truncate_to(self.log, offset, self.now_ms)
        assert self.log.log_end_offset == offset
        self.first_dirty = min(self.first_dirty, offset)
        self.written = {o: record for o, record in self.written.items() if o < offset}
        for producer in self.sequences:
            entry = self.log.producers.get(producer)
            last = entry.batches[-1].last_sequence if entry is not None and entry.batches else -1
            self.sequences[producer] = last + 1

    def check(self) -> None:
        log = self.log
        stable = log.last_stable_offset
        starts = [offsets[0] for offsets in self.open.values()]
        assert stable == min([log.high_watermark, *starts]), "a transaction is open that should not be, or not open"
        found = committed_in(log)
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        for record in found:
            assert record == self.written[record.offset], "a record that was left is not as it was"
            assert record.offset not in self.gone, "an aborted record was served"
        expected = [r for o, r in self.written.items() if o < stable and o not in self.gone]
        assert latest(found) == latest(expected)
        # What was not cleaned yet is all there.
        dirty = [r.offset for r in expected if r.offset >= self.first_dirty]
        assert [r.offset for r in found if r.offset >= self.first_dirty] == dirty
        assert leftovers(log) == []
        batches_in(log)


def latest(records: list[Record]) -> dict[bytes, bytes]:
    view: dict[bytes, bytes] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            view.pop(record.key, None)
        else:
            view[record.key] = record.value
    return view


def producers_of(log: PartitionLog) -> dict[int, tuple[int, int, int, int]]:
    """What the next batch of a producer is judged by."""
    return {
        entry.producer_id: (
            entry.epoch,
            entry.batches[-1].last_sequence,
            entry.batches[-1].last_offset,
            entry.transaction_first_offset,
        )
        for entry in log.producers.entries()
    }


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, min_size=20, max_size=80))
def test_whatever_was_written_the_newest_of_every_key_survives_every_round(steps: list[Step]) -> None:
    story = Story(new_log(SimulatedFiles()))
    for step in [*steps, Clean(0, 1 << 27), Clean(RETENTION_MS + 1, 1 << 27), Other("forget")]:
        if isinstance(step, Write):
            story.write(step)
        elif isinstance(step, End):
            story.end(step)
        elif isinstance(step, Clean):
            story.clean(step)
            story.check()
        else:
            story.other(step)
    story.check()


@settings(max_examples=60, deadline=None)
@given(st.lists(WRITES, min_size=1, max_size=40))
def test_two_rounds_with_time_between_them_leave_one_record_a_key_and_no_tombstone(writes: list[Write]) -> None:
    story = Story(new_log(SimulatedFiles()))
    for write in writes:
        story.write(write._replace(producer=-1))
    story.other(Other("roll"))
    story.clean(Clean(0, 1 << 27))
    first = committed_in(story.log)
    assert len({record.key for record in first}) == len(first)
    story.clean(Clean(RETENTION_MS + 1, 1 << 27))
    second = committed_in(story.log)
    assert second == [record for record in first if record.value is not None]
    story.check()
