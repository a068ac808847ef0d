"""Power loss at every operation of flushes that write recovery marks, and around them.

Whatever the disk then holds, a recovery that may use a mark arrives at the very same log as one that walks everything:
records, indexes, times, epochs, producers and aborted transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.log.log_stories import FOLDER, NOW_MS, base_offsets, batch_of, marker_of

from penstock.log import group_commit
from penstock.log.log_loader import Opened, open_log
from penstock.log.partition_folder import segment_files
from penstock.log.partition_log import PartitionLog
from penstock.log.producer_state import snapshot_offset
from penstock.log.retention import enforce_retention
from penstock.log.settings import LogSettings
from penstock.log.truncation import truncate_to
from penstock.runtime.randomness import SeededRandom
from penstock.testing.crash_points import CrashPoint, crash_everywhere
from penstock.testing.simulated_files import SimulatedFiles

ONE_SEGMENT = LogSettings(index_interval_bytes=200)
SMALL = LogSettings(segment_bytes=1700, index_interval_bytes=200, retention_ms=1000)


@pytest.fixture(autouse=True)
def _small_logs_have_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "LEAST_MARKED_BYTES", 1)


class Run:
    """One run of a scenario: the log, and the recovery point that a checkpoint holds."""

    def __init__(self, settings: LogSettings) -> None:
        self.settings = settings
        self.recovery_point = 0
        self.promised = 0
        self.number = 0

    def open(self, files: SimulatedFiles, *, clean: bool = False) -> PartitionLog:
        return open_log(
            files, FOLDER, self.settings, clean=clean, recovery_point=self.recovery_point, now_ms=NOW_MS
        ).log

    def put(self, log: PartitionLog, count: int = 1, *, epoch: int = 0) -> None:
        for _ in range(count):
            producer = 1 + self.number % 3
            log.append(
                batch_of(self.number, producer=producer, sequence=2 * (self.number // 3)),
                leader_epoch=epoch,
                now_ms=NOW_MS,
            )
            self.number += 1

    def abort(self, log: PartitionLog) -> None:
        producer = 100 + self.number
        self.number += 1
        log.append(
            batch_of(self.number, producer=producer, sequence=0, transactional=True), leader_epoch=0, now_ms=NOW_MS
        )
        log.append(marker_of(producer, commit=False), leader_epoch=0, now_ms=NOW_MS, from_client=False)

    def flush(self, log: PartitionLog, *, mark: bool) -> None:
        flush = log.prepare_flush(mark=mark)
        if flush is not None:
            flush.run()
            log.complete_flush(flush)
        self.promised = log.flushed_offset

    def checkpoint(self, log: PartitionLog) -> None:
        # Atomic, and durable when it returns: as far as the log is concerned, a number.
        self.recovery_point = log.checkpointed_offset = log.flushed_offset

    def truncate(self, log: PartitionLog, offset: int) -> None:
        self.recovery_point = min(self.recovery_point, log.active.base_offset, offset)
        self.promised = min(self.promised, offset // 2 * 2)
        truncate_to(log, offset, NOW_MS)


def state(opened: Opened) -> dict[str, Any]:
    log = opened.log
    active = log.active
    return {
        "offsets": base_offsets(log),
        "range": (log.log_start_offset, log.log_end_offset, log.flushed_offset),
        "active": (active.base_offset, active.size, active.next_offset, active.first_timestamp),
        "times": (active.max_timestamp, active.max_timestamp_offset),
        "index": active.index.entries(),
        "tail": (active.tail_position, active.tail_header and active.tail_header.base_offset, active.since_index),
        "epochs": log.epochs.entries,
        "producers": {entry.producer_id: entry._replace(last_active_ms=0) for entry in sorted(log.producers.entries())},
        "undecided": log.producers.first_undecided_offset,
        "aborted": log.aborted_between(log.log_start_offset, log.log_end_offset),
    }


def without_marks(files: SimulatedFiles) -> None:
    bases = segment_files(files.list_folder(FOLDER))
    for name in files.list_folder(FOLDER):
        offset = snapshot_offset(name)
        if offset is not None and offset not in bases:
            files.remove(f"{FOLDER}/{name}")


def durable_folder() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    files.sync_folder("/data")
    files.sync_folder("/")
    return files


def recover(files: SimulatedFiles, run: Run) -> Opened:
    return open_log(files, FOLDER, run.settings, clean=False, recovery_point=run.recovery_point, now_ms=NOW_MS)


def require_same(point: CrashPoint, run: Run) -> bool:
    """Whether a mark was used."""
    copy = point.files.fork(SeededRandom(1))
    without_marks(copy)
    opened, whole = recover(point.files, run), recover(copy, run)
    assert opened.log.log_end_offset >= run.promised, str(point)
    assert opened.damages == whole.damages, str(point)
    expected = state(whole)
    assert state(opened) == expected, str(point)
    # A stop adds an entry for the newest time.
    assert {*whole.log.active.time_index.entries()} <= {*opened.log.active.time_index.entries()}, str(point)
    assert whole.walked_bytes >= opened.walked_bytes
    # It continues alike, and is found alike by the next start.
    for log in (opened.log, whole.log):
        log.append(batch_of(900), leader_epoch=9, now_ms=NOW_MS)
        log.flush()
    assert base_offsets(opened.log) == base_offsets(whole.log)
    return whole.walked_bytes > opened.walked_bytes


Scenario = Callable[[Run, SimulatedFiles], None]


def marks_and_flushes(run: Run, files: SimulatedFiles) -> None:
    log = run.open(files)
    for step in range(4):
        run.put(log, 2)
        run.flush(log, mark=False)
        run.put(log)
        run.flush(log, mark=True)
        if step % 2 == 0:
            run.checkpoint(log)
        run.put(log)
    run.checkpoint(log)


def producers_sync_everything(run: Run, files: SimulatedFiles) -> None:
    log = run.open(files)
    for step in range(5):
        run.put(log)
        run.flush(log, mark=False)
        run.checkpoint(log)
        if step % 2:
            run.flush(log, mark=True)


def aborts(run: Run, files: SimulatedFiles) -> None:
    log = run.open(files)
    for _ in range(3):
        run.put(log)
        run.abort(log)
        run.flush(log, mark=True)
        run.checkpoint(log)
        run.abort(log)
    run.flush(log, mark=False)
    run.checkpoint(log)


def rolls(run: Run, files: SimulatedFiles) -> None:
    log = run.open(files)
    for step in range(7):
        run.put(log, 2, epoch=step // 3)
        run.flush(log, mark=step % 3 != 2)
        if step % 2:
            run.checkpoint(log)
    enforce_retention(log, NOW_MS)


def truncations(run: Run, files: SimulatedFiles) -> None:
    log = run.open(files)
    run.put(log, 4)
    run.flush(log, mark=True)
    run.checkpoint(log)
    run.put(log, 2)
    run.flush(log, mark=True)
    run.checkpoint(log)
    run.put(log, 2)
    begun = log.prepare_flush(mark=True)
    assert begun is not None
    run.truncate(log, 6)
    begun.run()
    run.number = 40
    for number in range(40, 46):
        log.append(batch_of(number), leader_epoch=1, now_ms=NOW_MS)
    log.complete_flush(begun)
    run.flush(log, mark=False)
    run.checkpoint(log)
    run.flush(log, mark=True)
    log.append(batch_of(50), leader_epoch=1, now_ms=NOW_MS)
    run.checkpoint(log)


def a_stop_and_a_start(run: Run, files: SimulatedFiles) -> None:
    log = run.open(files)
    run.put(log, 5)
    run.flush(log, mark=True)
    run.checkpoint(log)
    run.put(log, 2)
    log.close()
    run.promised = log.flushed_offset
    run.checkpoint(log)
    log = run.open(files, clean=True)
    run.put(log, 2)
    run.flush(log, mark=True)
    run.checkpoint(log)
    run.put(log)


SCENARIOS: list[tuple[Scenario, LogSettings]] = [
    (marks_and_flushes, ONE_SEGMENT),
    (producers_sync_everything, ONE_SEGMENT),
    (truncations, ONE_SEGMENT),
    (a_stop_and_a_start, ONE_SEGMENT),
]
LONG_SCENARIOS: list[tuple[Scenario, LogSettings]] = [
    (marks_and_flushes, SMALL),
    (aborts, ONE_SEGMENT),
    (aborts, SMALL),
    (rolls, SMALL),
    (truncations, SMALL),
]


@pytest.mark.parametrize(
    ("scenario", "settings"), [*SCENARIOS, *(pytest.param(*each, marks=pytest.mark.long) for each in LONG_SCENARIOS)]
)
def test_a_recovery_from_a_mark_finds_what_a_walk_from_the_start_finds(
    scenario: Scenario, settings: LogSettings
) -> None:
    run = Run(settings)

    def fresh(files: SimulatedFiles) -> None:
        nonlocal run
        run = Run(settings)
        scenario(run, files)

    points = used = 0
    for point in crash_everywhere(fresh, start=durable_folder()):
        points += 1
        used += require_same(point, run)
    assert points > 100
    assert used > points // 20, "the marks are of use"


@pytest.mark.long
def test_power_loss_during_a_recovery_from_a_mark() -> None:
    run = Run(ONE_SEGMENT)

    def fresh(files: SimulatedFiles) -> None:
        nonlocal run
        run = Run(ONE_SEGMENT)
        marks_and_flushes(run, files)

    used = 0
    for point in crash_everywhere(fresh, start=durable_folder(), stride=11):
        known = run

        def again(files: SimulatedFiles, run: Run = known) -> None:
            log = recover(files, run).log
            log.append(batch_of(700), leader_epoch=5, now_ms=NOW_MS)

        for second in crash_everywhere(again, start=point.files, stride=2):
            used += require_same(second, known)
    assert used > 50
