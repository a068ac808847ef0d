"""Recovery replays the headers that it kept: the result is as if they were read again, and the disk is read once."""

from __future__ import annotations

import pytest
from tests.log.log_stories import NOW_MS, ROOMY, TINY, batch_of, content_of, open_new, overwrite, path_of, put, reopen

from penstock.log import recovery
from penstock.log.partition_log import PartitionLog
from penstock.testing.simulated_files import SimulatedFile, SimulatedFiles


def written(batches: int = 30) -> SimulatedFiles:
    """A log that was not closed, with three producers in turn."""
    files = SimulatedFiles()
    log = open_new(files, ROOMY)
    for number in range(batches):
        batch = batch_of(number, producer=number % 3, sequence=number // 3 * 2)
        log.append(batch, leader_epoch=number // 10, now_ms=NOW_MS)
    log.release()
    return files


def state_of(log: PartitionLog) -> tuple[object, object, int]:
    return log.producers.snapshot(), log.epochs.entries, log.log_end_offset


def test_a_batch_that_was_cut_off_is_not_replayed() -> None:
    files = written(2)
    # Whole and undamaged, but it cannot follow: no checksum covers its offset.
    stray = batch_of(producer=7, base_offset=1, leader_epoch=5)
    overwrite(files, path_of(0), content_of(files, path_of(0)) + bytes(stray))
    opened = reopen(files, ROOMY, clean=False)
    assert opened.log.log_end_offset == 4
    assert [damage.size for damage in opened.damages] == [len(stray)]
    assert opened.log.producers.get(7) is None
    assert opened.log.epochs.latest_epoch == 0


@pytest.mark.parametrize("recovery_point", [0, 7, 30, 60])
def test_it_makes_no_difference_whether_headers_are_remembered(
    recovery_point: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered = reopen(written(), ROOMY, clean=False, recovery_point=recovery_point).log
    monkeypatch.setattr(recovery, "_WALKED_RUNS_MAX", 0)
    read_again = reopen(written(), ROOMY, clean=False, recovery_point=recovery_point).log
    assert state_of(remembered) == state_of(read_again)
    assert remembered.producers.producer_count == 3
    assert remembered.log_end_offset == 60


def test_the_bytes_of_a_segment_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    files = written()
    size = len(content_of(files, path_of(0)))
    count = 0
    read_at = SimulatedFile.read_at

    def counting(file: SimulatedFile, position: int, length: int) -> bytes:
        nonlocal count
        data = read_at(file, position, length)
        count += len(data) if file.path.endswith(".log") else 0
        return data

    monkeypatch.setattr(SimulatedFile, "read_at", counting)
    reopen(files, ROOMY, clean=False)
    assert size <= count < size * 1.5


def test_nothing_is_remembered_once_the_log_is_open() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    put(log, *range(7))
    log.release()
    log = reopen(files, TINY, clean=False).log
    assert log.segment_count > 2
    assert all(log.segment_at(index).walked is None for index in range(log.segment_count))
    assert all(segment.walked is None for segment in log.durability.unsynced)
