"""Compaction and transactions: aborted records go, markers outlive what they end, and no transaction stays open."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.log.compaction_stories import (
    FOLDER,
    NOW,
    RETENTION_MS,
    SMALL,
    WIDE,
    batches_in,
    clean,
    committed_in,
    end_transaction,
    leftovers,
    new_log,
    pairs_in,
    put,
    reopened,
    seal,
    settle,
    without_snapshots,
)

from penstock.log.compaction.job import Compaction, plan_for
from penstock.log.index import TransactionIndexError
from penstock.log.partition_log import PartitionLog
from penstock.log.truncation import truncate_to
from penstock.testing.simulated_files import SimulatedFiles


@pytest.fixture
def log() -> PartitionLog:
    return new_log(SimulatedFiles(), WIDE)


def markers_in(log: PartitionLog) -> list[tuple[int, bool]]:
    """(offset, has a horizon) of the markers that still say something."""
    return [
        (header.base_offset, header.has_delete_horizon)
        for header, _ in batches_in(log)
        if header.is_control and header.record_count
    ]


def test_aborted_records_go_and_do_not_replace_older_ones(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", b"aborted"), (b"c", b"aborted"), producer=5, sequence=0, transactional=True)
    put(log, (b"b", b"2"))
    end_transaction(log, 5, commit=False)
    seal(log)
    result = clean(log)
    assert pairs_in(log) == [(b"a", b"1"), (b"b", b"2")]
    assert (result.stats.records_before, result.stats.records_after) == (5, 2)
    assert pairs_in(without_snapshots(log)) == [(b"a", b"1"), (b"b", b"2")]


def test_the_same_producer_aborts_commits_and_aborts(log: PartitionLog) -> None:
    sequence = 0
    for number, commit in enumerate([False, True, False, True]):
        for part in range(2):
            key = b"%d-%d" % (number, part)
            put(log, (key, b"x"), producer=5, sequence=sequence, transactional=True)
            put(log, (b"plain-" + key, b"x"), producer=6, sequence=sequence)
            sequence += 1
        end_transaction(log, 5, commit=commit)
    seal(log)
    clean(log)
    keys = [key for key, _ in pairs_in(log) if key is not None]
    assert [key for key in keys if not key.startswith(b"plain")] == [b"1-0", b"1-1", b"3-0", b"3-1"]
    assert len(keys) == 12


def test_overlapping_transactions_of_two_producers_are_distinguished(log: PartitionLog) -> None:
    put(log, (b"a", b"5"), producer=5, sequence=0, transactional=True)
    put(log, (b"b", b"6"), producer=6, sequence=0, transactional=True)
    put(log, (b"c", b"5"), producer=5, sequence=1, transactional=True)
    end_transaction(log, 5, commit=True)
    put(log, (b"d", b"6"), producer=6, sequence=1, transactional=True)
    put(log, (b"e", b"5"), producer=5, sequence=2, transactional=True)
    end_transaction(log, 6, commit=False)
    end_transaction(log, 5, commit=True)
    seal(log)
    clean(log)
    assert pairs_in(log) == [(b"a", b"5"), (b"c", b"5"), (b"e", b"5")]


def test_a_commit_marker_stays_while_a_record_does_and_then_goes_like_a_tombstone(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), producer=5, sequence=0, transactional=True)
    marker = end_transaction(log, 5, commit=True)
    # The producer's own last batch is elsewhere, so nothing of this one need stay for its sake.
    put(log, (b"z", b"1"), producer=5, sequence=2)
    seal(log)
    first_dirty = clean(log).first_dirty_offset
    assert markers_in(log) == [(marker, False)]
    put(log, (b"a", b"2"))
    seal(log)
    first_dirty = clean(log, first_dirty, NOW + 10 * RETENTION_MS).first_dirty_offset
    assert markers_in(log) == [(marker, False)]
    put(log, (b"b", b"2"))
    seal(log)
    now_ms = NOW + 20 * RETENTION_MS
    first_dirty = clean(log, first_dirty, now_ms).first_dirty_offset
    assert markers_in(log) == [(marker, True)]
    clean(log, first_dirty, now_ms + RETENTION_MS)
    assert markers_in(log) == [(marker, True)]
    result = clean(log, first_dirty, now_ms + RETENTION_MS + 1)
    assert markers_in(log) == []
    assert result.stats.markers_removed == 1
    assert without_snapshots(log).last_stable_offset == log.log_end_offset


def test_the_marker_of_an_aborted_transaction_waits_for_the_retention_too(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), producer=5, sequence=0, transactional=True)
    marker = end_transaction(log, 5, commit=False)
    put(log, (b"z", b"1"), producer=5, sequence=1)
    seal(log)
    first_dirty = clean(log).first_dirty_offset
    assert markers_in(log) == [(marker, True)]
    clean(log, first_dirty, NOW + RETENTION_MS + 1)
    assert markers_in(log) == []


def test_a_marker_is_not_kept_for_the_sake_of_an_earlier_transaction(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), producer=5, sequence=0, transactional=True)
    first = end_transaction(log, 5, commit=True)
    put(log, (b"b", b"1"), producer=5, sequence=1, transactional=True)
    second = end_transaction(log, 5, commit=False)
    put(log, (b"z", b"1"), producer=5, sequence=2)
    seal(log)
    first_dirty = clean(log).first_dirty_offset
    assert markers_in(log) == [(first, False), (second, True)]
    clean(log, first_dirty, NOW + RETENTION_MS + 1)
    assert markers_in(log) == [(first, False)]


def test_records_are_dropped_though_their_abort_marker_lies_behind_the_part_that_is_cleaned(log: PartitionLog) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", b"aborted"), producer=5, sequence=0, transactional=True)
    log.roll(log.log_end_offset, NOW)
    put(log, (b"b", b"1"))
    log.roll(log.log_end_offset, NOW)
    marker = end_transaction(log, 5, commit=False)
    settle(log)
    clean(log)
    assert pairs_in(log) == [(b"a", b"1"), (b"b", b"1")]
    assert markers_in(log) == [(marker, False)]
    # The same with the marker in a sealed segment that is too young.
    log = new_log(SimulatedFiles(), replace(WIDE, min_compaction_lag_ms=1000))
    put(log, (b"a", b"1"))
    put(log, (b"a", b"aborted"), producer=5, sequence=0, transactional=True)
    log.roll(log.log_end_offset, NOW)
    marker = end_transaction(log, 5, commit=False, at_ms=NOW + 5000)
    seal(log)
    clean(log, now_ms=NOW + 5000)
    assert pairs_in(log) == [(b"a", b"1")]
    assert markers_in(log) == [(marker, False)]
    assert committed_in(log)[0].value == b"1"


def test_an_open_transaction_holds_compaction_up(log: PartitionLog) -> None:
    for number in range(3):
        put(log, (b"a", b"%d" % number))
        log.roll(log.log_end_offset, NOW)
    put(log, (b"a", b"open"), producer=5, sequence=0, transactional=True)
    log.roll(log.log_end_offset, NOW)
    put(log, (b"a", b"behind"))
    seal(log)
    assert plan_for(log, 0, NOW).end_offset == 3
    clean(log)
    assert pairs_in(log) == [(b"a", b"2"), (b"a", b"open"), (b"a", b"behind")]


@pytest.mark.parametrize("commit", [True, False])
def test_the_empty_batch_that_a_producer_is_known_by_does_not_open_a_transaction_forever(
    log: PartitionLog, commit: bool
) -> None:
    put(log, (b"a", b"1"), producer=5, sequence=0, transactional=True)
    end_transaction(log, 5, commit=commit)
    put(log, (b"a", b"2"))
    seal(log)
    first_dirty = None
    for number in range(4):
        first_dirty = clean(log, first_dirty, NOW + number * 2 * RETENTION_MS).first_dirty_offset
        log = without_snapshots(log)
        assert log.last_stable_offset == log.log_end_offset
        entry = log.producers.get(5)
        assert entry is not None
        assert (entry.batches[-1].last_sequence, entry.in_transaction) == (0, False)
        assert pairs_in(log) == [(b"a", b"2")]
        assert len(markers_in(log)) == 1


def test_a_producer_known_only_by_its_marker_stays_fenced(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), producer=5, sequence=0, epoch=0, transactional=True)
    end_transaction(log, 5, commit=False, epoch=1)  # a coordinator fences a producer with the next epoch
    put(log, (b"a", b"2"))
    seal(log)
    for number in range(3):
        clean(log, None, NOW + number * 2 * RETENTION_MS)
        log = without_snapshots(log)
        entry = log.producers.get(5)
        assert entry is not None
        assert (entry.epoch, entry.in_transaction) == (1, False)
    log.producers.remove_expired(NOW + 10**9, 1)
    for number in range(3, 5):
        clean(log, None, NOW + number * 2 * RETENTION_MS)
    assert markers_in(log) == []


def test_no_remaining_snapshot_has_a_transaction_whose_marker_is_gone() -> None:
    """A snapshot of the time when a transaction was open, with the batches after it that end it compacted away."""
    log = new_log(SimulatedFiles(), SMALL)
    put(log, (b"a", b"1"), producer=5, sequence=0, transactional=True)
    log.roll(log.log_end_offset, NOW)
    end_transaction(log, 5, commit=False)
    put(log, (b"b", b"1"), producer=5, sequence=1)
    seal(log)
    first_dirty = clean(log).first_dirty_offset
    clean(log, first_dirty, NOW + 2 * RETENTION_MS)
    assert markers_in(log) == []
    settle(log)
    names = sorted(name for name in log.files.list_folder(FOLDER) if name.endswith(".snapshot"))
    for name in reversed(names):  # the newest are found damaged, one after the other
        file = log.files.open(f"{FOLDER}/{name}")
        file.truncate(3)
        log = reopened(log, clean=False)
        assert log.last_stable_offset == log.log_end_offset


def test_what_was_decided_and_replicated_stays_so_when_the_log_is_cut_behind_it(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), producer=5, sequence=0, transactional=True)
    end_transaction(log, 5, commit=False)
    seal(log)
    put(log, (b"a", b"never replicated"))
    truncate_to(log, 2, NOW)
    assert (log.high_watermark, log.last_stable_offset) == (2, 2)


def test_a_damaged_transaction_index_stops_the_round_and_changes_nothing(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), producer=5, sequence=0, transactional=True)
    end_transaction(log, 5, commit=False)
    put(log, (b"a", b"2"), producer=5, sequence=1, transactional=True)
    end_transaction(log, 5, commit=False)
    seal(log)
    file = log.files.open(f"{FOLDER}/{0:020d}.txnindex")
    file.write_at(0, b"\x00\x07")
    before = pairs_in(log)
    with pytest.raises(TransactionIndexError):
        clean(log)
    assert pairs_in(log) == before
    assert leftovers(log) == []


def test_a_compacted_segment_has_no_transaction_index(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), producer=5, sequence=0, transactional=True)
    end_transaction(log, 5, commit=False)
    seal(log)
    assert log.files.exists(f"{FOLDER}/{0:020d}.txnindex")
    clean(log)
    assert not log.files.exists(f"{FOLDER}/{0:020d}.txnindex")
    assert log.aborted_between(0, log.log_end_offset) == []
    assert committed_in(log) == []


def test_a_transaction_that_ends_while_a_round_is_prepared_is_decided_by_what_was_known_at_its_beginning(
    log: PartitionLog,
) -> None:
    put(log, (b"a", b"1"))
    log.roll(log.log_end_offset, NOW)
    put(log, (b"a", b"2"), producer=5, sequence=0, transactional=True)
    settle(log)
    round_ = Compaction.begin(log, plan_for(log, 0, NOW), NOW)
    end_transaction(log, 5, commit=False)
    log.roll(log.log_end_offset, NOW)
    settle(log)
    group = round_.prepare()
    assert group is not None
    round_.install(log, group)
    assert round_.prepare() is None
    assert [record.value for record in committed_in(log)] == [b"1"]
    clean(log)
    assert pairs_in(log) == [(b"a", b"1")]
