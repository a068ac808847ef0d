"""Power loss at every operation of a compaction.

Whatever the disk then holds, the log opens, the newest of every key is there, no deleted key and no aborted record
comes back, no transaction is open that was ended, producers are known, and no damaged byte is served.
"""

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
    committed_in,
    end_transaction,
    leftovers,
    new_log,
    put,
    seal,
    settle,
)

from penstock.log.compaction.job import Compaction, compact, plan_for
from penstock.log.log_loader import open_log
from penstock.log.partition_log import PartitionLog
from penstock.log.settings import LogSettings
from penstock.records import Codec
from penstock.testing.crash_points import CrashPoint, crash_everywhere
from penstock.testing.simulated_disk import KEEP_UNSYNCED, LOSE_UNSYNCED, RANDOM_LOSS
from penstock.testing.simulated_files import SimulatedFiles

LATER = NOW + 10 * RETENTION_MS


def durable_folder() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    files.sync_folder("/data")
    files.sync_folder("/")
    return files


def history(files: SimulatedFiles) -> tuple[int, int]:
    """A log with everything in it, cleaned once long ago; (its end, the first dirty offset)."""
    log = new_log(files)
    put(log, (b"kept", b"1"), (b"deleted", b"1"), (b"changed", b"1"), codec=Codec.LZ4)
    put(log, (b"aborted", b"before"), producer=1, sequence=0)
    put(log, (b"deleted", None), (b"comes back", None))
    put(log, (b"aborted", b"x"), producer=3, sequence=0, transactional=True)
    put(log, (b"committed", b"x"), producer=4, sequence=0, transactional=True)
    seal(log)
    end_transaction(log, 3, commit=False)
    end_transaction(log, 4, commit=True)
    seal(log)
    result = compact(log, None, NOW, only_if_due=False)
    assert result is not None
    first_dirty = result.first_dirty_offset
    put(log, (b"changed", b"2"), (b"comes back", b"2"), codec=Codec.GZIP)
    put(log, (b"late", b"1"), (b"late too", b"1"))
    put(log, (b"aborted", b"y"), producer=3, sequence=1, transactional=True)
    seal(log)
    put(log, (b"late", None), (b"committed", b"y"))
    end_transaction(log, 3, commit=False)
    put(log, (b"changed", b"3"), producer=1, sequence=1)
    put(log, (b"changed", b"4"))
    seal(log)
    put(log, (b"active", b"1"), (b"changed", b"5"))
    settle(log)
    end = log.log_end_offset
    log.close()
    files.sync_folder(FOLDER)
    return end, first_dirty


EXPECTED = {
    b"kept": b"1",
    b"aborted": b"before",
    b"changed": b"5",
    b"comes back": b"2",
    b"late too": b"1",
    b"committed": b"y",
    b"active": b"1",
}


def opened(files: SimulatedFiles, settings: LogSettings, end: int, *, clean: bool) -> PartitionLog:
    log = open_log(files, FOLDER, settings, clean=clean, recovery_point=end, now_ms=LATER).log
    log.checkpointed_offset = end
    log.set_high_watermark(log.log_end_offset)
    return log


def check(log: PartitionLog, appended: dict[bytes, bytes]) -> None:
    view: dict[bytes, bytes | None] = {}
    for record in committed_in(log):
        assert record.key is not None
        view[record.key] = record.value
    seen = {key: value for key, value in view.items() if value is not None}
    written = EXPECTED | {key: appended[key] for key in seen.keys() & appended.keys()}
    assert seen == written
    assert log.last_stable_offset == log.high_watermark
    entries = {entry.producer_id: entry.batches[-1].last_sequence for entry in log.producers.entries()}
    assert entries == {1: 1, 3: 1, 4: 0}
    assert leftovers(log) == []
    batches_in(log)


def check_point(point: CrashPoint, settings: LogSettings, end: int, appended: dict[bytes, bytes]) -> None:
    log = opened(point.files, settings, end, clean=False)
    assert log.log_end_offset >= end
    check(log, appended)
    # Whatever was left half done, the next round ends it; once with the horizons ahead, once with them behind.
    for now_ms in (LATER, LATER + 2 * RETENTION_MS):
        compact(log, None, now_ms, only_if_due=False)
        check(log, appended)
    log.close()
    again = opened(point.files, settings, end, clean=True)
    check(again, appended)
    again.release()


@pytest.mark.parametrize(
    "settings",
    [pytest.param(WIDE, id="one group"), pytest.param(replace(SMALL, segment_bytes=700), id="several groups")],
)
def test_power_loss_at_every_operation_of_a_compaction(settings: LogSettings) -> None:
    start = durable_folder()
    end, first_dirty = history(start)

    def scenario(files: SimulatedFiles) -> None:
        log = opened(files, settings, end, clean=True)
        result = compact(log, first_dirty, LATER, only_if_due=False)
        assert result is not None
        assert result.segments_before > result.segments_after
        log.release()

    points = 0
    for point in crash_everywhere(scenario, start=start):
        try:
            check_point(point, settings, end, {})
        except BaseException as error:
            error.add_note(str(point))
            raise
        points += 1
    assert points > 50


@pytest.mark.long
def test_power_loss_while_the_log_grows_during_a_compaction() -> None:
    start = durable_folder()
    end, first_dirty = history(start)
    settings = replace(SMALL, segment_bytes=700)
    appended: dict[bytes, bytes] = {}

    def scenario(files: SimulatedFiles) -> None:
        appended.clear()
        log = opened(files, settings, end, clean=True)
        round_ = Compaction.begin(log, plan_for(log, first_dirty, LATER), LATER)
        while (group := round_.prepare()) is not None:
            key = b"new %d" % len(appended)
            appended[key] = b"x" * 300
            put(log, (key, appended[key]), at_ms=LATER)
            round_.install(log, group)
            log.flush()
        log.release()

    for point in crash_everywhere(scenario, start=start):
        try:
            check_point(point, settings, end, appended)
        except BaseException as error:
            error.add_note(str(point))
            raise


@pytest.mark.long
def test_power_loss_at_every_operation_of_a_recovery_that_finishes_a_compaction() -> None:
    start = durable_folder()
    end, first_dirty = history(start)

    def scenario(files: SimulatedFiles) -> None:
        log = opened(files, WIDE, end, clean=True)
        compact(log, first_dirty, LATER, only_if_due=False)
        log.release()

    def recovery(files: SimulatedFiles) -> None:
        opened(files, WIDE, end, clean=False).release()

    half_done = 0
    for point in crash_everywhere(scenario, start=start, losses=[KEEP_UNSYNCED, RANDOM_LOSS]):
        if not any(name.endswith(".swap") for name in point.files.list_folder(FOLDER)):
            continue
        half_done += 1
        for second in crash_everywhere(recovery, start=point.files, losses=[LOSE_UNSYNCED, RANDOM_LOSS]):
            try:
                check_point(second, WIDE, end, {})
            except BaseException as error:
                error.add_note(f"{point}, then {second}")
                raise
    assert half_done > 5
