"""The log cleaner's compactions: their results, changes meanwhile, and failures."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest
from tests.log.cleaner_stories import ONE, TWO, LateAnswers, broker_of, newest, slow_broker, write
from tests.log.compaction_stories import NOW, SMALL, leftovers, put, records_in, view_of
from tests.log.directory_stories import open_manager

from penstock.log.compaction.log_cleaner import LogCleaner, Throttle
from penstock.log.compaction.record_filter import KEY_OVERHEAD_BYTES
from penstock.log.errors import LogFailed
from penstock.log.partition_log import PartitionLog
from penstock.log.retention import enforce_retention
from penstock.log.settings import COMPACT, DELETE
from penstock.log.truncation import truncate_to
from penstock.runtime.clock import ManualClock, SystemClock
from penstock.runtime.files import Files, PosixFiles
from penstock.runtime.threads import InlineWorkers, ManualWorkers, ThreadWorkers
from penstock.testing.crash_points import crash_everywhere
from penstock.testing.simulated_faults import Operation
from penstock.testing.simulated_files import SimulatedFiles

KEY = ("views", 0)
BOTH = replace(SMALL, cleanup_policy=frozenset({COMPACT, DELETE}), retention_ms=-1)


def failing(files: SimulatedFiles, error_number: int, ending: str = ".cleaned") -> None:
    """From now on, whatever changes files of this name fails."""

    def hook(operation: Operation) -> None:
        if operation.path.endswith(ending) and operation.kind != "remove":
            raise OSError(error_number, "injected", operation.path)

    files.operations.hook = hook


def first_log_file(log: PartitionLog) -> str:
    return f"{log.folder}/{log.table.bases[0]:020d}.log"


# --- a round


@pytest.mark.parametrize("kind", ["simulated", "posix"])
def test_all_that_is_due_is_compacted_and_the_checkpoint_remembers_how_far(tmp_path: Path, kind: str) -> None:
    files: Files = SimulatedFiles() if kind == "simulated" else PosixFiles()
    paths = (ONE, TWO) if kind == "simulated" else (str(tmp_path / "one"), str(tmp_path / "two"))
    broker = broker_of(files, paths=paths)
    logs = [broker.filled(topic) for topic in ("views", "clicks", "orders")]
    before = sum(log.size for log in logs)
    assert not broker.tick()
    for log, topic in zip(logs, ("views", "clicks", "orders"), strict=True):
        assert view_of(log) == newest(6)
        assert len(records_in(log)) == 4
        assert leftovers(log) == []
        assert broker.cleaned_to(topic) == log.active.base_offset == 24
    metrics = broker.cleaner.metrics
    assert (metrics.rounds, metrics.cancelled, metrics.failed) == (3, 0, 0)
    assert (metrics.bytes_before, metrics.bytes_after) == (before, sum(log.size for log in logs))
    assert (metrics.records_before, metrics.records_after) == (72, 12)
    assert 0 < metrics.last_map_share < 0.001
    assert metrics.max_dirty_ratio == 0.0
    assert metrics.last_run_ms == NOW
    assert broker.manager.close()
    again = open_manager(files, paths, settings=SMALL)
    assert again.directory_of(*KEY).cleaner_offset(KEY) == 24
    reopened = again.get(*KEY)
    assert reopened is not None
    assert view_of(reopened) == newest(6)
    again.close()


def test_a_log_with_more_groups_than_the_stack_has_frames() -> None:
    broker = broker_of()
    log = broker.create("views")
    for number in range(400):
        put(log, (b"key-%d" % number, b"x" * 500))
    broker.settle(log)
    assert len(log.table) == 400
    broker.tick()
    assert broker.cleaner.metrics.rounds == 1
    assert len(records_in(log)) == 400


def test_where_the_map_is_too_small_for_all_keys_rounds_follow_one_another_until_all_is_clean() -> None:
    broker = broker_of(map_bytes=3 * KEY_OVERHEAD_BYTES)
    log = broker.filled("views")
    broker.tick()
    assert broker.cleaner.metrics.rounds > 1
    assert broker.cleaned_to("views") == 24
    assert view_of(log) == newest(6)
    assert len(records_in(log)) == 4


def test_the_next_tick_has_nothing_to_do_until_more_is_written() -> None:
    broker = broker_of()
    log = broker.filled("views")
    broker.tick()
    broker.tick(60_000)
    assert broker.cleaner.metrics.rounds == 1
    write(log, 3, first=6)
    broker.settle(log)
    broker.tick(60_000)
    assert broker.cleaner.metrics.rounds == 2
    assert view_of(log) == newest(9)
    assert len(records_in(log)) == 4


def test_a_round_takes_as_long_as_the_clock_says() -> None:
    broker, workers = slow_broker()
    broker.filled("views")
    assert broker.tick()
    broker.clock.advance(1234)
    workers.run_all()
    assert broker.cleaner.metrics.last_duration_ms == 1234
    assert broker.cleaner.metrics.max_duration_ms == 1234


def test_a_map_without_room_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        broker_of(map_bytes=0)


# --- one at a time, beside the loop


def test_nothing_is_read_on_the_loop_and_at_most_one_round_is_under_way() -> None:
    broker, workers = slow_broker()
    logs = [broker.filled("views"), broker.filled("clicks")]
    sizes = [log.size for log in logs]
    for _ in range(5):
        assert broker.tick(1000)
        assert workers.waiting == 1
    assert [log.size for log in logs] == sizes
    first = broker.cleaner.cleaning
    assert first is not None
    assert [broker.cleaner.is_cleaning(log) for log in logs] == [first == KEY, first != KEY]
    workers.run_all()
    assert broker.cleaner.metrics.rounds == 2
    assert broker.cleaner.cleaning is None
    assert [view_of(log) for log in logs] == [newest(6)] * 2


def test_what_is_appended_and_rolled_meanwhile_stays_for_the_next_round() -> None:
    broker, workers = slow_broker()
    log = broker.filled("views")
    broker.tick()
    number = 6
    while workers.waiting:
        write(log, 1, first=number)
        broker.settle(log)
        number += 1
        if number == 9:
            workers.run_all()
        else:
            workers.run_next()
    assert view_of(log) == newest(number)
    assert broker.cleaned_to("views") == log.active.base_offset
    assert leftovers(log) == []
    assert len(records_in(log)) == 4


def test_workers_that_take_nothing_more_end_the_round_and_the_log_is_not_to_blame() -> None:
    workers = InlineWorkers()
    workers.close()
    broker = broker_of(workers=workers)
    log = broker.filled("views")
    for _ in range(10):
        assert not broker.tick(60_000)
    assert broker.cleaner.uncleanable == {}
    assert broker.cleaner.metrics.cancelled == 10
    assert leftovers(log) == []


def test_threads_compact_while_the_loop_appends(tmp_path: Path) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        workers = ThreadWorkers(loop, 1)
        broker = broker_of(PosixFiles(), paths=(str(tmp_path),))
        cleaner = LogCleaner(broker.manager, workers, SystemClock())
        log = broker.filled("views", rounds=20)
        rounds = 20
        cleaner.tick(NOW)
        while cleaner.metrics.rounds < 3:
            write(log, 1, first=rounds)
            broker.settle(log)
            rounds += 1
            cleaner.tick(NOW)
            await asyncio.sleep(0)
        cleaner.close()
        workers.close()
        assert view_of(log) == newest(rounds)
        assert leftovers(log) == []
        assert cleaner.metrics.failed == 0
        assert broker.manager.close()

    asyncio.run(story())


# --- what comes in between


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_log_truncated_during_compaction_keeps_its_records_and_the_checkpoint_ends_with_them(steps: int) -> None:
    broker, workers = slow_broker()
    log = broker.filled("views", replace(SMALL, segment_bytes=300))
    broker.tick()
    for _ in range(steps):
        workers.run_next()
    broker.manager.truncate_to("views", 0, 9, NOW)
    left = view_of(log)
    workers.run_all()
    assert view_of(log) == left
    assert leftovers(log) == []
    assert (broker.cleaned_to("views") or 0) <= log.log_end_offset <= 9
    assert broker.cleaner.metrics.cancelled == 1
    assert broker.cleaner.uncleanable == {}
    write(log, 6, first=20)
    broker.settle(log)
    broker.tick(1000)
    workers.run_all()
    assert view_of(log) == newest(26)
    assert len(records_in(log)) == 4


def test_a_log_truncated_after_the_last_group_was_installed_is_not_marked_clean() -> None:
    broker, workers = slow_broker()
    log = broker.filled("views", replace(SMALL, segment_bytes=100_000))
    broker.tick()
    workers.run_next()
    truncate_to(log, 20, NOW)  # behind the folder's back, which would have lowered the checkpoint
    workers.run_all()
    assert broker.cleaned_to("views") is None
    assert broker.cleaner.metrics.cancelled == 1


def test_damage_that_a_cut_made_is_not_held_against_the_log() -> None:
    broker, workers = slow_broker()
    files = broker.files
    assert isinstance(files, SimulatedFiles)
    log = broker.filled("views")
    seen: list[bool] = []

    def hook(operation: Operation) -> None:
        # The worker has begun to write: what it reads next was cut in half by the loop.
        if operation.path.endswith(".log.cleaned") and operation.kind == "create" and not seen:
            seen.append(True)
            file = files.open(first_log_file(log))
            file.truncate(100)
            file.close()
            log.after_truncation(log.log_end_offset)

    files.operations.hook = hook
    broker.tick()
    workers.run_next()
    assert seen
    assert broker.cleaner.uncleanable == {}
    assert (broker.cleaner.metrics.cancelled, broker.cleaner.metrics.failed) == (1, 0)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_partition_deleted_meanwhile_ends_the_round_and_its_successor_is_not_touched(steps: int) -> None:
    broker, workers = slow_broker()
    broker.filled("views", replace(SMALL, segment_bytes=300))
    broker.tick()
    for _ in range(steps):
        workers.run_next()
    broker.manager.delete("views", 0, NOW)
    again = broker.create("views")
    put(again, (b"a", b"1"), (b"a", b"2"))
    broker.settle(again)
    workers.run_all()
    assert [(record.key, record.value) for record in records_in(again)] == [(b"a", b"1"), (b"a", b"2")]
    assert leftovers(again) == []
    assert broker.cleaned_to("views") is None
    assert broker.cleaner.uncleanable == {}
    assert broker.manager.offline == {}
    broker.tick(1000)
    workers.run_all()
    assert view_of(again) == {b"a": b"2"}
    assert broker.cleaned_to("views") == 2


def test_retention_leaves_a_log_alone_while_it_is_compacted() -> None:
    broker, workers = slow_broker()
    log = broker.filled("views", BOTH)
    other = broker.filled("clicks", BOTH)
    broker.manager.advance_start("views", 0, 20)
    broker.manager.advance_start("clicks", 0, 20)
    broker.tick()
    busy, free = (log, other) if broker.cleaner.is_cleaning(log) else (other, log)
    counts = len(busy.table), len(free.table)
    assert broker.manager.retention_tick(NOW, broker.cleaner.is_cleaning) > 0
    assert len(busy.table) == counts[0]
    assert len(free.table) < counts[1]
    workers.run_all()
    assert (broker.cleaner.metrics.rounds, broker.cleaner.metrics.cancelled) == (2, 0)
    assert view_of(busy) == view_of(free) == newest(6)
    broker.manager.retention_tick(NOW, broker.cleaner.is_cleaning)
    assert busy.table.bases[0] == busy.log_start_offset == 20


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_retention_during_a_round_makes_it_start_over_without_counting_as_failure(steps: int) -> None:
    broker, workers = slow_broker()
    log = broker.filled("views", replace(BOTH, segment_bytes=300))
    broker.tick()
    for _ in range(steps):
        workers.run_next()
    broker.manager.advance_start("views", 0, 20)
    for path in enforce_retention(log, NOW):
        broker.files.remove(path)
    workers.run_all()
    assert broker.cleaner.uncleanable == {}
    assert broker.cleaner.metrics.failed == 0
    assert view_of(log) == newest(6)
    assert leftovers(log) == []
    broker.tick(1000)
    workers.run_all()
    assert view_of(log) == newest(6)
    assert broker.cleaned_to("views") == 24


def test_a_log_that_is_not_to_be_compacted_any_more_is_left_in_the_midst_of_it() -> None:
    broker, workers = slow_broker()
    log = broker.filled("views")
    broker.tick()
    workers.run_next()
    count = len(records_in(log))
    broker.manager.update_settings("views", replace(SMALL, cleanup_policy=frozenset({DELETE})))
    workers.run_all()
    assert len(records_in(log)) == count
    assert broker.cleaned_to("views") is None
    assert not broker.tick(60_000)
    assert broker.cleaner.metrics.cancelled == 1


def test_a_cancelled_round_leaves_nothing_and_is_begun_again_with_a_later_tick() -> None:
    broker, workers = slow_broker()
    log, other = broker.filled("views"), broker.filled("clicks")
    assert not broker.cleaner.cancel(log)
    broker.tick()
    cleaning, idle = (log, other) if broker.cleaner.is_cleaning(log) else (other, log)
    assert not broker.cleaner.cancel(idle)
    assert broker.cleaner.cancel(cleaning)
    assert broker.cleaner.is_cleaning(cleaning)  # until the worker has heard of it
    workers.run_all()
    assert not broker.cleaner.is_cleaning(cleaning)
    assert broker.cleaner.metrics.rounds == 0
    assert leftovers(cleaning) == []
    broker.tick(1)
    workers.run_all()
    assert broker.cleaner.metrics.rounds == 2
    assert broker.cleaner.metrics.cancelled == 1


@pytest.mark.parametrize("what", ["cancel", "close", "settings", "cut", "retention", "delete", "failure"])
def test_what_was_prepared_is_not_installed_if_the_log_is_another_when_the_answer_comes(what: str) -> None:
    workers = LateAnswers()
    broker = broker_of(workers=workers)
    log = broker.filled("views", BOTH)
    broker.tick()
    assert leftovers(log)  # prepared, but not installed
    if what == "cancel":
        broker.cleaner.cancel(log)
    elif what == "close":
        broker.cleaner.close()
    elif what == "settings":
        log.settings = replace(SMALL, cleanup_policy=frozenset({DELETE}))
    elif what == "cut":
        broker.manager.truncate_to("views", 0, 5, NOW)
    elif what == "retention":
        broker.manager.advance_start("views", 0, 20)
        broker.manager.retention_tick(NOW)
        broker.manager.retention_tick(NOW + 60_000)
    elif what == "delete":
        broker.manager.delete("views", 0, NOW)
    else:
        broker.manager.directory_of("views", 0).fail(OSError(errno.EIO, "gone"))
    table = log.table
    workers.close()
    assert log.table is table
    assert what == "delete" or leftovers(log) == []
    assert broker.cleaner.cleaning is None
    assert (broker.cleaner.metrics.cancelled, broker.cleaner.metrics.failed) == (1, 0)
    assert broker.cleaner.uncleanable == {}


# --- the end


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_after_close_nothing_is_installed_any_more_and_nothing_is_left(steps: int) -> None:
    broker, workers = slow_broker()
    log = broker.filled("views", replace(SMALL, segment_bytes=300))
    broker.tick()
    for _ in range(steps):
        workers.run_next()
    broker.cleaner.close()
    table = log.table
    workers.close()
    assert log.table is table
    assert leftovers(log) == []
    assert not broker.tick(60_000)
    assert broker.cleaner.cleaning is None
    assert broker.manager.close()


def test_what_a_hard_stop_left_half_done_is_swept_at_the_next_start() -> None:
    files = SimulatedFiles()
    broker, workers = slow_broker(files)
    log = broker.filled("views")
    broker.tick()
    stopped: list[int] = []

    def hook(operation: Operation) -> None:
        if operation.path.endswith(".log.cleaned") and operation.kind == "sync":
            stopped.append(len(leftovers(log)))
            files.kill()

    files.operations.hook = hook
    workers.run_all()
    assert stopped == [3]
    files.operations.hook = None
    files.crash()
    again = broker_of(files)
    reopened = again.manager.get(*KEY)
    assert reopened is not None
    assert leftovers(reopened) == []
    again.tick()
    assert view_of(reopened) == newest(6)
    assert again.cleaned_to("views") == 24


@pytest.mark.long
def test_whenever_the_power_goes_the_log_is_whole_and_the_checkpoint_true() -> None:
    start = SimulatedFiles()
    broker_of(start).filled("views")
    start.crash()
    found: set[int | None] = set()
    for point in crash_everywhere(lambda files: broker_of(files).tick(), start=start):
        broker = broker_of(point.files)
        log = broker.manager.get(*KEY)
        assert log is not None, str(point)
        assert view_of(log) == newest(6), str(point)
        found.add(broker.cleaned_to("views"))
        if broker.cleaned_to("views") is not None:
            assert len(records_in(log)) == 4, str(point)
        log.advance_high_watermark(log.log_end_offset)
        broker.tick()
        assert view_of(log) == newest(6), str(point)
        assert len(records_in(log)) == 4, str(point)
    assert found == {None, 24}


# --- what goes wrong


def test_a_damaged_log_is_skipped_and_the_others_are_compacted() -> None:
    files = SimulatedFiles()
    broker = broker_of(files)
    damaged, other = broker.filled("views", rounds=9), broker.filled("clicks")
    files.corrupt(first_log_file(damaged), 80)
    size = damaged.size
    broker.tick()
    assert list(broker.cleaner.uncleanable) == [KEY]
    assert "damaged" in broker.cleaner.uncleanable[KEY]
    assert first_log_file(damaged) in broker.cleaner.uncleanable[KEY]
    assert broker.cleaner.uncleanable_bytes == damaged.size == size
    assert leftovers(damaged) == []
    assert len(records_in(other)) == 4
    for _ in range(10):
        broker.tick(60_000)
    assert (broker.cleaner.metrics.failed, broker.cleaner.metrics.rounds) == (1, 1)
    assert broker.cleaner.metrics.max_dirty_ratio == 1.0


def test_a_damaged_log_that_was_emptied_is_compacted_again() -> None:
    files = SimulatedFiles()
    broker = broker_of(files)
    log = broker.filled("views")
    files.corrupt(first_log_file(log), 80)
    broker.tick()
    broker.manager.truncate_fully("views", 0, 0, NOW)
    write(log, 4)
    broker.settle(log)
    broker.tick(1)
    assert broker.cleaner.uncleanable == {}
    assert view_of(log) == newest(4)
    assert len(records_in(log)) == 4


def test_a_disk_that_fails_the_copy_again_and_again_makes_the_log_uncleanable() -> None:
    files = SimulatedFiles()
    broker = broker_of(files)
    log = broker.filled("views")
    failing(files, errno.EIO)
    tried: list[int] = []
    for second in range(20):
        before = broker.cleaner.metrics.failed
        broker.tick(0 if second == 0 else 1000)
        tried += [second] * (broker.cleaner.metrics.failed - before)
        assert (broker.cleaner.uncleanable == {}) == (len(tried) < 3)
    assert tried == [0, 1, 3]  # longer each time
    assert "injected" in broker.cleaner.uncleanable[KEY]
    assert log.failure is None
    assert view_of(log) == newest(6)
    assert leftovers(log) == []


def test_errors_that_a_success_follows_do_not_add_up() -> None:
    files = SimulatedFiles()
    broker = broker_of(files)
    log = broker.filled("views")
    for number in range(4):
        for _ in range(2):
            failing(files, errno.EIO)
            broker.tick(10_000)
        files.operations.hook = None
        broker.tick(10_000)
        assert broker.cleaner.metrics.rounds == number + 1
        write(log, 3, first=6 + 3 * number)
        broker.settle(log)
    assert broker.cleaner.metrics.failed == 8
    assert broker.cleaner.uncleanable == {}


def test_a_removed_segment_is_a_failure_and_not_retried_forever() -> None:
    broker = broker_of()
    log = broker.filled("views")
    broker.files.remove(first_log_file(log))
    for _ in range(10):
        broker.tick(10_000)
    assert broker.cleaner.metrics.failed == 3
    assert "gone" in broker.cleaner.uncleanable[KEY]
    assert log.failure is None
    assert broker.manager.offline == {}


def test_a_bug_in_a_round_does_not_end_the_cleaner(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    broker = broker_of()
    log = broker.filled("views")
    with monkeypatch.context() as patched:
        patched.setattr("penstock.log.compaction.record_filter.BatchCleaner.clean_all", bug)
        broker.tick()
    assert broker.cleaner.metrics.failed == 1
    assert leftovers(log) == []
    broker.tick(10_000)
    assert len(records_in(log)) == 4


def test_a_full_disk_is_tried_again_for_as_long_as_it_takes() -> None:
    files = SimulatedFiles()
    broker = broker_of(files)
    log, other = broker.filled("views"), broker.filled("clicks")
    failing(files, errno.ENOSPC)
    broker.tick()
    assert broker.cleaner.metrics.failed == 2  # the other may be smaller, and make room
    broker.tick(500)
    assert broker.cleaner.metrics.failed == 2
    for _ in range(20):
        broker.tick(4000)
    assert broker.cleaner.metrics.failed == 42
    assert broker.cleaner.uncleanable == {}
    files.operations.hook = None
    broker.tick(4000)
    assert len(records_in(log)) == len(records_in(other)) == 4
    assert leftovers(log) == []


def test_a_full_disk_that_takes_no_checkpoint_costs_another_round() -> None:
    files = SimulatedFiles()
    broker = broker_of(files)
    log = broker.filled("views")
    failing(files, errno.ENOSPC, "cleaner-offset-checkpoint.tmp")
    broker.tick()
    assert broker.cleaner.metrics.failed == 1
    assert broker.cleaned_to("views") is None
    assert view_of(log) == newest(6)
    files.operations.hook = None
    broker.tick(1000)
    assert broker.cleaner.metrics.rounds == 1
    assert broker.cleaned_to("views") == 24
    assert view_of(log) == newest(6)


def test_too_many_open_files_say_nothing_of_the_log() -> None:
    files = SimulatedFiles()
    broker = broker_of(files)
    log = broker.filled("views")
    failing(files, errno.EMFILE)
    for _ in range(10):
        broker.tick(10_000)
    assert broker.cleaner.uncleanable == {}
    assert broker.manager.offline == {}
    files.operations.hook = None
    broker.tick(10_000)
    assert len(records_in(log)) == 4


def test_a_disk_that_fails_an_install_takes_its_folder_offline_and_the_others_are_compacted() -> None:
    files = SimulatedFiles()
    broker, workers = slow_broker(files, paths=(ONE, TWO))
    logs = [broker.filled("views"), broker.filled("clicks")]
    assert {log.folder.rpartition("/")[0] for log in logs} == {ONE, TWO}
    broker.tick()
    cleaning = logs[0] if broker.cleaner.is_cleaning(logs[0]) else logs[1]
    folder = cleaning.folder.rpartition("/")[0]
    files.operations.fail("rename", errno.EIO, path_ending=".cleaned")
    workers.run_all()
    assert list(broker.manager.offline) == [folder]
    assert isinstance(cleaning.failure, LogFailed)
    assert broker.cleaner.uncleanable == {}
    broker.tick(1000)
    workers.run_all()
    for log in logs:
        assert (log is cleaning) or len(records_in(log)) == 4
    files.operations.hook = None
    files.kill()
    again = broker_of(files, paths=(ONE, TWO))
    for hosted in again.manager.logs():
        assert view_of(hosted.log) == newest(6)


def test_a_folder_that_fails_meanwhile_ends_the_round() -> None:
    broker, workers = slow_broker(paths=(ONE, TWO))
    logs = [broker.filled("views"), broker.filled("clicks")]
    broker.tick()
    cleaning = logs[0] if broker.cleaner.is_cleaning(logs[0]) else logs[1]
    broker.manager.directory_of("views" if cleaning is logs[0] else "clicks", 0).fail(OSError(errno.EIO, "gone"))
    workers.run_all()
    assert broker.cleaner.metrics.cancelled == 1
    broker.tick(1000)
    workers.run_all()
    assert broker.cleaner.metrics.rounds == 1
    assert broker.cleaner.uncleanable == {}


# --- throttled


def test_a_throttled_round_sleeps_in_the_worker_and_keeps_to_the_limit() -> None:
    workers = ManualWorkers()
    broker = broker_of(workers=workers, bytes_per_second=1000.0)
    log = broker.create("views")
    for number in range(30):
        put(log, (b"key-%d" % number, b"x" * 500))
    broker.settle(log)
    moved = 3 * log.size  # read for the keys, read to be copied, and written: nothing can go
    broker.tick()
    assert broker.clock.monotonic_ms() == 0
    workers.run_all()
    assert broker.cleaner.metrics.bytes_after == log.size
    assert 0.95 * moved <= broker.clock.monotonic_ms() <= 1.05 * moved


def test_a_round_that_sleeps_hears_of_its_end() -> None:
    broker, workers = slow_broker()
    naps: list[float] = []
    clock = ManualClock(NOW)

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        clock.advance(round(seconds * 1000))
        if len(naps) == 3:
            cleaner.close()

    cleaner = LogCleaner(broker.manager, workers, clock, throttle=Throttle(1.0, clock, sleep))
    log = broker.filled("views")
    cleaner.tick(NOW)
    workers.run_all()
    assert naps == [0.1, 0.1, 0.1]
    assert cleaner.metrics.cancelled == 1
    assert leftovers(log) == []
