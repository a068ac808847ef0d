"""A disk that fails takes its whole log directory offline, once; a full disk does not."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from tests.log.directory_stories import (
    CLUSTER,
    NOW,
    SMALL,
    TOPIC_ID,
    numbered,
    open_directory,
    put,
    put_durably,
    values_in,
)
from tests.log.log_stories import overwrite
from tests.replication.replica_stories import HeldWorkers

from penstock.log.errors import DirectoryOffline, DiskFull, LogFailed
from penstock.log.log_dirs.log_directory import LogDirectory
from penstock.runtime.randomness import SeededRandom
from penstock.runtime.threads import InlineWorkers
from penstock.testing.simulated_disk import KEEP_SIZES_ONLY
from penstock.testing.simulated_faults import Fault, Operation
from penstock.testing.simulated_files import SimulatedFiles

T0, T1, T2 = ("t", 0), ("t", 1), ("t", 2)
MARKER = "/data/.kafka_cleanshutdown"


def two_partitions(files: SimulatedFiles, reported: list[LogDirectory] | None = None) -> LogDirectory:
    reported = [] if reported is None else reported
    directory = LogDirectory.open(
        files, "/data", node_id=1, cluster_id=CLUSTER, random=SeededRandom(0), on_failure=reported.append
    )
    directory.load(lambda topic: SMALL, NOW)
    for key in (T0, T1):
        log = directory.create(key, TOPIC_ID, SMALL, NOW)
        put(log, *numbered(10))
        log.flush()
        log.advance_high_watermark(10)
    directory.checkpoint()
    return directory


def break_disk(files: SimulatedFiles) -> None:
    def hook(operation: Operation) -> None:
        raise OSError(errno.EIO, "Input/output error", operation.path)

    files.operations.hook = hook


def newest_segment(files: SimulatedFiles, key: tuple[str, int]) -> str:
    folder = f"/data/{key[0]}-{key[1]}"
    return f"{folder}/{max(name for name in files.list_folder(folder) if name.endswith('.log'))}"


def assert_offline(directory: LogDirectory, reported: list[LogDirectory]) -> None:
    assert directory.failure is not None
    assert reported == [directory]
    for hosted in directory.hosted.values():
        with pytest.raises(LogFailed, match="offline"):
            put(hosted.log, b"rejected")
        with pytest.raises(LogFailed):
            hosted.log.read(0, 100)
    with pytest.raises(DirectoryOffline, match="/data is offline"):
        directory.create(T2, TOPIC_ID, SMALL, NOW)
    assert directory.checkpoint() == 0


@pytest.mark.parametrize(
    "touch",
    [
        lambda directory: directory.create(T2, TOPIC_ID, SMALL, NOW),
        lambda directory: directory.delete(T0, NOW),
        lambda directory: directory.advance_start(T0, 3),
        lambda directory: directory.truncate_to(T0, 3, NOW),
        lambda directory: directory.truncate_fully(T0, 3, NOW),
        lambda directory: directory.set_cleaner_offset(T0, 3),
        lambda directory: (directory.get(T0).log.set_high_watermark(3), directory.checkpoint()),
    ],
)
def test_an_io_error_takes_all_of_the_folder_offline(touch: Callable[[LogDirectory], object]) -> None:
    files, reported = SimulatedFiles(), list[LogDirectory]()
    directory = two_partitions(files, reported)
    break_disk(files)
    with pytest.raises(DirectoryOffline, match="Input/output error"):
        touch(directory)
    assert_offline(directory, reported)


@pytest.mark.parametrize(("kind", "ending"), [("write", ".log"), ("sync", ".log")])
def test_a_log_that_fails_speaks_for_its_disk(kind: str, ending: str) -> None:
    files, reported = SimulatedFiles(), list[LogDirectory]()
    directory = two_partitions(files, reported)
    files.operations.fail(kind, errno.EIO, path_ending=ending)
    log = directory.get(T0).log
    with pytest.raises(LogFailed):
        put_durably(log, b"x")
    assert reported == []
    assert not directory.check_logs()
    assert not directory.check_logs()
    assert_offline(directory, reported)


def test_a_failed_folder_leaves_no_clean_marker_and_recovers_when_opened_again() -> None:
    files = SimulatedFiles()
    directory = two_partitions(files)
    put(directory.get(T1).log, b"in the page cache")
    files.operations.fail("write", errno.EIO, path_ending=newest_segment(files, T0))
    with pytest.raises(LogFailed):
        put(directory.get(T0).log, b"rejected")
    assert not directory.close()
    assert not files.exists(MARKER)
    directory = open_directory(files)
    assert not directory.was_clean
    assert values_in(directory.get(T0).log) == numbered(10)
    assert values_in(directory.get(T1).log) == [*numbered(10), b"in the page cache"]


@pytest.mark.parametrize("ending", [".log", "recovery-point-offset-checkpoint.tmp"])
def test_a_disk_that_fails_at_the_end_leaves_no_clean_marker(ending: str) -> None:
    files = SimulatedFiles()
    directory = two_partitions(files)
    put(directory.get(T0).log, b"last words")
    files.operations.fail("sync", errno.EIO, path_ending=ending)
    assert not directory.close()
    assert directory.failure is not None
    assert not files.exists(MARKER)
    assert values_in(open_directory(files).get(T1).log) == numbered(10)


def test_a_disk_that_fails_while_its_logs_are_opened_is_offline() -> None:
    files, reported = SimulatedFiles(), list[LogDirectory]()
    put(two_partitions(files).get(T0).log, b"torn")
    files.crash(KEEP_SIZES_ONLY)
    directory = LogDirectory.open(
        files, "/data", node_id=1, cluster_id=CLUSTER, random=SeededRandom(0), on_failure=reported.append
    )
    break_disk(files)
    steps = list(directory.loading(lambda topic: SMALL, NOW))
    assert [(step.done, step.total, step.opened) for step in steps] == [(1, 2, None)]
    assert_offline(directory, reported)
    assert not directory.close()


def test_a_disk_that_fails_while_it_is_claimed_is_offline_and_not_locked() -> None:
    files = SimulatedFiles()
    two_partitions(files).close()
    files.operations.fail("remove", errno.EIO)
    with pytest.raises(DirectoryOffline, match="Input/output"):
        open_directory(files)
    assert open_directory(files).was_clean


# --- full


def test_a_full_disk_rejects_a_new_partition_and_keeps_no_half_of_it() -> None:
    for number in range(40):
        files = SimulatedFiles()
        directory = two_partitions(files)
        files.operations.fail("write", errno.ENOSPC, skip=number)
        try:
            directory.create(T2, TOPIC_ID, SMALL, NOW)
            break
        except DiskFull:
            assert directory.failure is None
            assert not files.exists("/data/t-2")
            put(directory.create(T2, TOPIC_ID, SMALL, NOW), b"there is room again")
    assert number > 0


def test_a_full_disk_at_the_end_costs_the_clean_marker_and_no_record() -> None:
    files = SimulatedFiles()
    directory = two_partitions(files)
    log = directory.get(T0).log
    put(log, *numbered(5))
    files.capacity_bytes = 0
    assert not directory.close()
    assert directory.failure is None
    files.capacity_bytes = None
    files.crash()
    directory = open_directory(files)
    assert not directory.was_clean
    assert values_in(directory.get(T0).log) == numbered(10) + numbered(5)


def test_a_full_disk_at_the_start_does_not_keep_the_folder_offline() -> None:
    files = SimulatedFiles()
    directory = two_partitions(files)
    put(directory.get(T0).log, b"more")
    files.kill()
    files.capacity_bytes = 0
    directory = open_directory(files)
    assert directory.failure is None
    assert values_in(directory.get(T0).log) == [*numbered(10), b"more"]


def test_a_log_that_lost_its_end_is_not_used_while_a_full_disk_keeps_the_old_recovery_point() -> None:
    files = SimulatedFiles()
    directory = two_partitions(files)
    directory.close()
    files.remove(MARKER)
    overwrite(files, newest_segment(files, T0), b"")
    files.operations.fail("write", errno.ENOSPC, path_ending="recovery-point-offset-checkpoint.tmp")
    directory = open_directory(files)
    assert list(directory.hosted) == [T1]
    with pytest.raises(DiskFull):
        directory.get(T0)
    directory.reopen(T0, SMALL, NOW, InlineWorkers())
    with pytest.raises(LogFailed, match="restart the broker to repair it"):
        directory.get(T0)


def without_room_for_one(files: SimulatedFiles) -> LogDirectory:
    """A directory without room, until the hook is removed, for an index that has to be built to open partition 0."""
    two_partitions(files)
    files.kill()
    files.remove(newest_segment(files, T0).replace(".log", ".timeindex"))
    files.operations.hook = lambda operation: (
        Fault(OSError(errno.ENOSPC, "full")) if operation.kind == "create" and "/t-0/" in operation.path else None
    )
    return open_directory(files)


def test_a_partition_without_room_at_the_start_is_opened_when_there_is(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFiles()
    directory = without_room_for_one(files)
    assert list(directory.hosted) == [T1]
    for _ in range(2):
        directory.reopen(T0, SMALL, NOW, InlineWorkers())
        with pytest.raises(DiskFull):
            directory.get(T0)
    assert caplog.text.count("partition offline") == 1
    files.operations.hook = None
    directory.reopen(T1, SMALL, NOW, InlineWorkers())
    directory.reopen(T0, SMALL, NOW, InlineWorkers())
    log = directory.get(T0).log
    assert values_in(log) == numbered(10)
    put(log, b"more")
    assert directory.close()
    assert values_in(open_directory(files).get(T0).log) == [*numbered(10), b"more"]


def test_a_partition_that_is_deleted_while_it_is_opened_comes_back_empty() -> None:
    files, workers = SimulatedFiles(), HeldWorkers()
    directory = without_room_for_one(files)
    files.operations.hook = None
    workers.is_held = True
    directory.reopen(T0, SMALL, NOW, workers)
    directory.reopen(T0, SMALL, NOW, workers)
    directory.delete(T0, NOW)
    with pytest.raises(DiskFull):
        directory.create(T0, TOPIC_ID, SMALL, NOW)
    workers.release()
    assert values_in(directory.create(T0, TOPIC_ID, SMALL, NOW)) == []
