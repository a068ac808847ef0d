from __future__ import annotations

import pytest
from tests.log.log_stories import (
    FOLDER,
    NOW_MS,
    ROOMY,
    bases,
    batch_of,
    content_of,
    marker_of,
    open_new,
    overwrite,
    path_of,
    put,
    reopen,
)

from penstock.log.errors import DamagedLog, OutOfOrderSequence
from penstock.log.leader_epochs import LeaderEpochs
from penstock.log.partition_log import PartitionLog
from penstock.log.producer_state import ProducerStates, snapshot_name, snapshot_offset
from penstock.log.recovery import load_newest_snapshot, remove_snapshots, replay
from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulated_disk import KEEP_UNSYNCED, LOSE_UNSYNCED
from penstock.testing.simulated_files import SimulatedFiles


def snapshots(files: SimulatedFiles) -> list[int]:
    return sorted(o for o in map(snapshot_offset, files.list_folder(FOLDER)) if o is not None)


def snapshot_path(offset: int) -> str:
    return f"{FOLDER}/{snapshot_name(offset)}"


def produce(log: PartitionLog, *numbers: int, producer: int = 9) -> None:
    for number in numbers:
        log.append(batch_of(number, producer=producer), leader_epoch=0, now_ms=NOW_MS)


def transact(log: PartitionLog, number: int, producer: int) -> None:
    log.append(batch_of(number, producer=producer, transactional=True), leader_epoch=0, now_ms=NOW_MS)


def end(log: PartitionLog, producer: int, *, commit: bool = False) -> None:
    log.append(marker_of(producer, commit=commit), leader_epoch=0, now_ms=NOW_MS, from_client=False)


def aborted(log: PartitionLog) -> list[tuple[int, int, int]]:
    found = log.aborted_between(0, log.log_end_offset)
    return [(each.producer_id, each.first_offset, each.last_offset) for each in found]


def require_last_five_known(log: PartitionLog, last: int, *, producer: int = 9) -> None:
    for number in range(last - 4, last + 1):
        retry = log.append(batch_of(number, producer=producer), leader_epoch=0, now_ms=NOW_MS)
        assert retry.is_duplicate
        assert retry.base_offset == number * 2
    with pytest.raises(OutOfOrderSequence):
        produce(log, last + 2, producer=producer)


# --- snapshots


def test_a_roll_and_a_stop_leave_snapshots() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    produce(log, *range(7))
    assert snapshots(files) == [4, 8, 12]
    log.close()
    assert snapshots(files) == [4, 8, 12, 14]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("recovery_point", [0, 6, 14])
def test_the_last_five_batches_are_recognised_after_a_restart(clean: bool, recovery_point: int) -> None:
    files = SimulatedFiles()
    log = open_new(files)
    produce(log, *range(7))
    if clean:
        log.close()
    else:
        files.kill()
    again = reopen(files, clean=clean, recovery_point=recovery_point).log
    require_last_five_known(again, 6)
    assert not again.append(batch_of(7, producer=9), leader_epoch=0, now_ms=NOW_MS).is_duplicate


@pytest.mark.parametrize("damaged", [[14], [14, 12], [14, 12, 8], [14, 12, 8, 4]])
@pytest.mark.parametrize("how", ["remove", "empty", "flip", "zeros"])
def test_without_a_sound_snapshot_an_older_one_or_the_log_itself_serves(damaged: list[int], how: str) -> None:
    files = SimulatedFiles()
    log = open_new(files)
    produce(log, *range(7))
    log.close()
    for offset in damaged:
        data = content_of(files, snapshot_path(offset))
        if how == "remove":
            files.remove(snapshot_path(offset))
        elif how == "flip":
            files.corrupt(snapshot_path(offset), len(data) // 2)
        else:
            overwrite(files, snapshot_path(offset), b"" if how == "empty" else bytes(len(data)))
    again = reopen(files, clean=True).log
    assert again.restored_offset == max(({4, 8, 12} - set(damaged)), default=None)
    require_last_five_known(again, 6)


def test_snapshots_beyond_the_end_are_of_batches_that_are_gone() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    produce(log, *range(7))
    log.close()
    producers = ProducerStates()
    assert load_newest_snapshot(files, FOLDER, 10, producers) == 8
    assert snapshots(files) == [4, 8]
    entry = producers.get(9)
    assert entry is not None
    assert entry.last_offset == 7
    assert load_newest_snapshot(files, FOLDER, 3, producers) is None
    assert producers.producer_count == 0


def test_snapshots_are_removed_but_for_those_to_keep() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    produce(log, *range(7))
    overwrite(files, f"{FOLDER}/other.snapshot", b"")
    remove_snapshots(files, FOLDER, keep=[8])
    assert snapshots(files) == [8]
    assert files.exists(f"{FOLDER}/other.snapshot")


def test_a_stop_takes_away_the_snapshot_that_the_last_stop_left() -> None:
    files = SimulatedFiles()
    log = open_new(files, ROOMY)
    for number in range(5):
        produce(log, number)
        log.close()
        assert snapshots(files) == [number * 2 + 2]
        log = reopen(files, ROOMY, clean=True).log


def test_a_snapshot_that_a_segment_begins_with_stays() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    produce(log, 0, 1)
    log.roll(4, NOW_MS)
    log.close()
    log = reopen(files, clean=True).log
    assert log.restored_offset == 4
    produce(log, 2)
    log.close()
    assert snapshots(files) == [4, 6]


def test_after_a_crash_snapshots_that_belong_to_no_segment_go() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    produce(log, *range(3))
    log.close()
    log = reopen(files, clean=True).log
    produce(log, *range(3, 7))
    files.kill()
    reopen(files, clean=False, recovery_point=14)
    assert snapshots(files) == [4, 8, 12]


# --- replay


def test_replay_returns_what_the_batches_hold() -> None:
    log = open_new(SimulatedFiles(), ROOMY)
    put(log, 0, leader_epoch=0)
    produce(log, *range(3), producer=5)
    log.append(batch_of(9), leader_epoch=2, now_ms=NOW_MS)
    transact(log2 := open_new(SimulatedFiles(), ROOMY), 0, 5)
    end(log2, 5)
    producers, epochs = ProducerStates(), LeaderEpochs()
    replay(log.active, 0, producers, epochs, NOW_MS)
    entry = producers.get(5)
    assert entry is not None
    assert [batch.last_offset for batch in entry.batches] == [3, 5, 7]
    assert [tuple(each) for each in epochs.entries] == [(0, 0), (2, 8)]
    replay(log2.active, 0, producers, epochs, NOW_MS)
    assert aborted(log2) == [(5, 0, 2)]


def test_replay_goes_from_the_offset_that_it_is_given() -> None:
    log = open_new(SimulatedFiles(), ROOMY)
    produce(log, *range(4))
    producers = ProducerStates()
    replay(log.active, 4, producers, LeaderEpochs(), NOW_MS)
    entry = producers.get(9)
    assert entry is not None
    assert [batch.last_offset for batch in entry.batches] == [5, 7]
    replay(log.active, 8, empty := ProducerStates(), LeaderEpochs(), NOW_MS)
    assert empty.producer_count == 0


def test_replay_of_a_damaged_segment_says_where() -> None:
    files = SimulatedFiles()
    log = open_new(files, ROOMY)
    transact(log, 0, 5)
    end(log, 5)
    position = len(batch_of(0, producer=5))
    files.corrupt(path_of(0), position + 65)
    with pytest.raises(DamagedLog) as caught:
        replay(log.active, 0, ProducerStates(), LeaderEpochs(), NOW_MS)
    assert caught.value.position == position


def test_an_index_of_aborts_that_is_right_already_is_not_touched() -> None:
    files = SimulatedFiles()
    log = open_new(files, ROOMY)
    for number in range(3):
        transact(log, number, 5)
        end(log, 5)
    log.close()
    files.remove(snapshot_path(9))
    before = files.operations.counts.copy()
    again = reopen(files, ROOMY, clean=True).log
    assert aborted(again) == [(5, 0, 2), (5, 3, 5), (5, 6, 8)]
    assert files.operations.counts == before


# --- transactions across restarts


def mixed_transactions(log: PartitionLog) -> None:
    """Aborts in several segments, one transaction left open at the end."""
    transact(log, 0, 1)  # 0-1
    transact(log, 0, 2)  # 2-3
    end(log, 1)  # 4
    transact(log, 1, 2)  # 5-6
    transact(log, 0, 3)  # 7-8
    end(log, 3, commit=True)  # 9
    end(log, 2)  # 10
    transact(log, 1, 1)  # 11-12


@pytest.mark.parametrize("clean", [True, False])
def test_open_and_aborted_transactions_survive_a_restart(clean: bool) -> None:
    files = SimulatedFiles()
    log = open_new(files)
    mixed_transactions(log)
    assert len(bases(log)) > 2
    if clean:
        log.close()
    else:
        files.kill()
    log = reopen(files, clean=clean, recovery_point=0).log
    log.advance_high_watermark(13)
    assert log.last_stable_offset == 11
    assert aborted(log) == [(1, 0, 4), (2, 2, 10)]
    end(log, 1)
    log.advance_high_watermark(14)
    assert log.last_stable_offset == 14
    assert aborted(log) == [(1, 0, 4), (2, 2, 10), (1, 11, 13)]


@pytest.mark.parametrize("damage", ["remove", "empty", "torn", "zeros", "nonsense"])
def test_aborts_whose_index_did_not_survive_are_indexed_again(damage: str) -> None:
    files = SimulatedFiles()
    log = open_new(files)
    mixed_transactions(log)
    files.kill()
    for base in bases(log):
        path = path_of(base, ".txnindex")
        if not files.exists(path):
            continue
        data = content_of(files, path)
        changed = {"empty": b"", "torn": data[:-5], "zeros": bytes(len(data)), "nonsense": b"\x11" * len(data)}
        if damage == "remove":
            files.remove(path)
        else:
            overwrite(files, path, changed[damage])
    # All snapshots survived; none of them knows of aborts.
    log = reopen(files, clean=False, recovery_point=0).log
    assert aborted(log) == [(1, 0, 4), (2, 2, 10)]


def test_aborts_indexed_again_are_durable_before_a_recovery_point_passes_them() -> None:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    files.sync_folder("/data")
    files.sync_folder("/")
    log = open_new(files)
    for number in range(14):
        transact(log, number, 1)
        end(log, 1)
    expected = aborted(log)
    assert log.segment_count > 8, "more than are kept open"
    files.crash(KEEP_UNSYNCED)
    for base in bases(log):
        if files.exists(path_of(base, ".txnindex")):
            overwrite(files, path_of(base, ".txnindex"), b"")
            files.open(path_of(base, ".txnindex")).sync()
    log = reopen(files, clean=False, recovery_point=0).log
    log.flush()
    for base in bases(log):
        if files.exists(path_of(base, ".txnindex")):
            path = path_of(base, ".txnindex")
            assert files.durable_content(path) == content_of(files, path) != b""
    files.crash(LOSE_UNSYNCED)
    again = reopen(files.fork(SeededRandom(1)), clean=False, recovery_point=log.flushed_offset).log
    assert again.log_end_offset == log.flushed_offset
    assert aborted(again) == expected
