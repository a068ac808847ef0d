"""Several log directories: placement of partitions, disk failures, and periodic work."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.directory_stories import NOW, SMALL, TOPIC_ID, numbered, open_manager, put, put_durably, values_in

from penstock.log.errors import (
    FolderInUse,
    LogFailed,
    NoDirectoryOnline,
    PartitionExists,
    PartitionInTwoFolders,
    PartitionMayBeOffline,
    UnknownPartition,
)
from penstock.log.log_dirs import log_manager
from penstock.log.log_dirs.identity import WrongOwner
from penstock.log.log_dirs.log_directory import Progress
from penstock.log.log_dirs.log_manager import LogManager
from penstock.log.log_loader import open_log
from penstock.log.partition_log import PartitionLog
from penstock.log.retention import PartitionRetention, enforce_retention, may_expire
from penstock.log.settings import LogSettings
from penstock.records import encode_batch
from penstock.runtime.files import PosixFiles, Space
from penstock.runtime.randomness import SeededRandom
from penstock.runtime.threads import InlineWorkers, ManualWorkers
from penstock.testing.simulated_disk import KEEP_SIZES_ONLY
from penstock.testing.simulated_faults import Operation
from penstock.testing.simulated_files import SimulatedFiles

ONE, TWO = "/one", "/two"


def create(manager: LogManager, topic: str, partition: int = 0, count: int = 10) -> PartitionLog:
    log = manager.create(topic, partition, TOPIC_ID, SMALL, NOW)
    put(log, *numbered(count))
    log.flush()
    log.advance_high_watermark(count)
    return log


def break_disk(files: SimulatedFiles, path: str) -> None:
    def hook(operation: Operation) -> None:
        if operation.path.startswith(path):
            raise OSError(errno.EIO, "Input/output error", operation.path)

    files.operations.hook = hook


def placed(manager: LogManager) -> dict[str, list[str]]:
    return {d.path: [f"{topic}-{partition}" for topic, partition in d.hosted] for d in manager.directories}


# --- open


def test_everything_is_found_again_where_it_was(tmp_path: Path) -> None:
    paths = [str(tmp_path / "one"), str(tmp_path / "two"), str(tmp_path / "three")]
    manager = open_manager(PosixFiles(), paths)
    for partition in range(7):
        create(manager, "page-views", partition)
    before = placed(manager)
    assert sorted(map(len, before.values())) == [2, 2, 3]
    assert manager.close()
    steps: list[Progress] = []
    manager = open_manager(PosixFiles(), paths, load=False)
    manager.load(lambda topic: SMALL, NOW, steps.append)
    assert placed(manager) == before
    assert len(steps) == 7
    assert {(step.done, step.total) for step in steps if step.path == paths[0]} >= {(1, len(before[paths[0]]))}
    for partition in range(7):
        found = manager.find("page-views", partition)
        assert found is not None
        assert found.topic_id == TOPIC_ID
        assert values_in(found.log) == numbered(10)
    assert manager.get("page-views", 7) is None
    assert manager.find("page-views", 7) is None
    with pytest.raises(UnknownPartition):
        manager.directory_of("page-views", 7)
    manager.close()


def test_two_managers_cannot_have_the_same_folder(tmp_path: Path) -> None:
    paths = [str(tmp_path / "one"), str(tmp_path / "two")]
    manager = open_manager(PosixFiles(), paths)
    with pytest.raises(FolderInUse):
        open_manager(PosixFiles(), paths[::-1])
    manager.close()
    open_manager(PosixFiles(), paths).close()


def test_a_folder_named_twice_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FolderInUse, match="this process"):
        open_manager(PosixFiles(), [str(tmp_path / "one"), str(tmp_path / "one")])
    open_manager(PosixFiles(), [str(tmp_path / "one")]).close()


def test_a_folder_that_cannot_be_opened_is_offline_and_the_others_serve(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    reported: list[tuple[str, LogFailed]] = []
    bad = str(tmp_path / "file" / "data")
    manager = open_manager(
        PosixFiles(), [bad, str(tmp_path / "good")], on_offline=lambda path, why: reported.append((path, why))
    )
    assert [path for path, _ in reported] == [bad]
    assert list(manager.offline) == [bad]
    create(manager, "t")
    described = {each.path: each for each in manager.describe()}
    assert described[bad].error is reported[0][1]
    assert described[bad].directory_id is None
    assert not manager.close()
    assert open_manager(PosixFiles(), [str(tmp_path / "good")]).directories[0].was_clean


def test_without_any_folder_there_is_nothing_to_manage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bad = [str(tmp_path / "file" / name) for name in ("one", "two")]
    with pytest.raises(NoDirectoryOnline, match=f"{bad[0]}.*{bad[1]}"):
        open_manager(PosixFiles(), bad)
    with pytest.raises(NoDirectoryOnline):
        open_manager(PosixFiles(), [])


def test_a_partition_in_two_folders_is_for_the_operator_to_decide() -> None:
    files = SimulatedFiles()
    create(open_manager(files, [ONE]), "t")
    create(open_manager(files, [TWO]), "t")
    files.kill()
    for path in (ONE, TWO):
        open_manager(files, [path]).close()
    with pytest.raises(PartitionInTwoFolders, match="/one/t-0 and in /two/t-0; move"):
        open_manager(files, [ONE, TWO])
    # And everything is as it was: unlocked, and clean.
    for path in (ONE, TWO):
        manager = open_manager(files, [path])
        assert manager.directories[0].was_clean
        manager.close()


def test_another_brokers_folder_keeps_the_broker_from_starting() -> None:
    files = SimulatedFiles()
    open_manager(files).close()
    with pytest.raises(WrongOwner):
        LogManager.open(
            files, [ONE, TWO], node_id=1, cluster_id="other", random=SeededRandom(0), workers=InlineWorkers()
        )
    assert [directory.was_clean for directory in open_manager(files).directories] == [True, True]


def test_disks_that_all_fail_while_logs_are_opened_leave_nothing() -> None:
    files = SimulatedFiles()
    manager = open_manager(files, [ONE])
    log = create(manager, "t")
    put(log, b"torn")
    files.crash(KEEP_SIZES_ONLY)
    manager = open_manager(files, [ONE], load=False)
    break_disk(files, ONE)
    with pytest.raises(NoDirectoryOnline, match="Input/output error"):
        manager.load(lambda topic: SMALL, NOW)


# --- placement


def test_new_partitions_go_to_the_folder_with_the_fewest() -> None:
    files = SimulatedFiles()
    manager = open_manager(files, [ONE])
    for partition in range(3):
        create(manager, "old", partition)
    manager.close()
    manager = open_manager(files)
    for partition in range(5):
        create(manager, "new", partition)
    assert {path: len(names) for path, names in placed(manager).items()} == {ONE: 4, TWO: 4}
    assert placed(manager)[TWO][:3] == ["new-0", "new-1", "new-2"]


def test_among_equals_the_one_with_the_most_room_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimulatedFiles()
    manager = open_manager(files, ["/a", "/b", "/c"])
    rooms = {"/a": 5, "/b": 50, "/c": 20}
    monkeypatch.setattr(files, "space", lambda path: Space(100, rooms[path]))
    for topic in ("x", "y", "z"):
        manager.create(topic, 0, TOPIC_ID, SMALL, NOW)
    assert placed(manager) == {"/a": ["z-0"], "/b": ["x-0"], "/c": ["y-0"]}


def test_a_disk_with_unknown_free_space_gets_no_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimulatedFiles()
    manager = open_manager(files)

    def space(path: str) -> Space:
        if path == ONE:
            raise OSError(errno.EIO, "Input/output error")
        return Space(100, 1)

    monkeypatch.setattr(files, "space", space)
    manager.create("t", 0, TOPIC_ID, SMALL, NOW)
    assert list(manager.offline) == [ONE]
    assert placed(manager)[TWO] == ["t-0"]


def test_a_partition_is_made_once_across_all_folders() -> None:
    manager = open_manager(SimulatedFiles())
    create(manager, "t")
    with pytest.raises(PartitionExists):
        create(manager, "t")
    manager.delete("t", 0, NOW)
    assert manager.get("t", 0) is None
    create(manager, "t")


def test_a_partition_that_may_be_on_a_lost_disk_is_not_recreated() -> None:
    files = SimulatedFiles()
    manager = open_manager(files)
    create(manager, "t")
    break_disk(files, ONE)
    manager.directories[0].fail(OSError(errno.EIO, "gone"))
    files.operations.hook = None
    with pytest.raises(PartitionMayBeOffline, match=ONE):
        manager.create("u", 0, TOPIC_ID, SMALL, NOW, is_new=False)
    manager.create("u", 0, TOPIC_ID, SMALL, NOW)


# --- one disk of two


@pytest.mark.parametrize(
    "notice",
    [
        lambda manager: manager.checkpoint_tick(),
        lambda manager: manager.retention_tick(NOW),
        lambda manager: manager.flush_tick(NOW),
        lambda manager: manager.report_failure("t", 0),
    ],
)
def test_a_failed_disk_takes_down_only_its_own_partitions(notice: Callable[[LogManager], object]) -> None:
    files, reported = SimulatedFiles(), list[str]()
    manager = open_manager(files, on_offline=lambda path, why: reported.append(path))
    logs = {partition: create(manager, "t", partition) for partition in range(6)}
    lost = {partition for _, partition in manager.directory_of("t", 0).hosted}
    path = manager.directory_of("t", 0).path
    break_disk(files, path)
    with pytest.raises(LogFailed):
        put_durably(logs[0], b"x")
    notice(manager)
    assert reported == [path]
    assert len(lost) == 3
    for partition, log in logs.items():
        if partition in lost:
            with pytest.raises(LogFailed):
                put(log, b"rejected")
        else:
            put(log, b"served")
            assert values_in(log) == [*numbered(10), b"served"]
    for partition in range(6, 9):
        create(manager, "t", partition)
        assert manager.directory_of("t", partition).path != path
    described = {each.path: each for each in manager.describe()}
    assert described[path].error is not None
    assert described[path].sizes == {}
    assert len(described[({ONE, TWO} - {path}).pop()].sizes) == 6
    assert not manager.close()
    files.operations.hook = None
    clean = {directory.path: directory.was_clean for directory in open_manager(files).directories}
    assert clean == {path: False, ({ONE, TWO} - {path}).pop(): True}


def test_partitions_deleted_while_their_disk_has_failed_are_forgotten() -> None:
    files = SimulatedFiles()
    manager = open_manager(files)
    create(manager, "a"), create(manager, "b")
    where = manager.directory_of("a", 0).path
    assert not manager.is_offline("a", 0)
    break_disk(files, where)
    manager.checkpoint_tick()
    assert manager.is_offline("a", 0)
    assert manager.is_offline("unknown", 0), "it may be there"
    assert not manager.is_offline("b", 0)
    manager.delete_all([("a", 0), ("b", 0)], NOW)
    assert not manager.holds("a", 0)
    again = manager.create("a", 0, bytes(16), SMALL, NOW)
    assert not again.folder.startswith(where)
    assert not manager.is_offline("a", 0)


@pytest.mark.parametrize("is_outdated", [True, False])
def test_partition_created_again_while_a_disk_had_failed_is_the_newer_one(is_outdated: bool) -> None:
    files = SimulatedFiles()
    manager = open_manager(files)
    create(manager, "a"), create(manager, "b")
    where = manager.directory_of("a", 0).path
    break_disk(files, where)
    manager.checkpoint_tick()
    manager.delete("a", 0, NOW)
    new_id = TOPIC_ID if is_outdated else bytes(16)
    put(manager.create("a", 0, new_id, SMALL, NOW), b"new")
    manager.close()
    files.operations.hook = None
    options: dict[str, Any] = {"outdated": [where]} if is_outdated else {"topic_ids": {"a": new_id}}
    manager = open_manager(files, **options)
    log = manager.get("a", 0)
    assert log is not None
    assert values_in(log) == [b"new"]
    assert any(name.endswith("-stray") for name in files.list_folder(where))


def test_describe_returns_sizes_and_free_space_of_each_directory() -> None:
    files = SimulatedFiles(capacity_bytes=1 << 20)
    manager = open_manager(files)
    log = create(manager, "t")
    described = manager.describe()
    assert [each.path for each in described] == [ONE, TWO]
    assert all(each.error is None and each.total_bytes == 1 << 20 for each in described)
    assert all(0 < each.free_bytes < 1 << 20 for each in described)
    assert [each.sizes for each in described if each.sizes] == [{("t", 0): log.size}]
    assert all(len(each.directory_id or b"") == 16 for each in described)
    assert described[0].directory_id != described[1].directory_id


# --- ticks


def test_expired_segments_go_at_once_and_their_bytes_after_the_delay() -> None:
    files, workers = SimulatedFiles(), ManualWorkers()
    manager = open_manager(files, workers=workers)
    log = create(manager, "t", count=40)
    folder = log.folder
    assert manager.retention_tick(NOW + 10_000) == 0
    assert manager.retention_tick(NOW + 10_001) > 0
    assert log.log_start_offset == log.log_end_offset == 40
    deleted = {name for name in files.list_folder(folder) if name.endswith(".deleted")}
    assert deleted
    assert manager.retention_tick(NOW + 11_000) == 0
    assert workers.waiting == 0
    manager.retention_tick(NOW + 11_001)
    assert workers.waiting == 1
    assert deleted <= set(files.list_folder(folder))
    workers.run_all()
    assert not [name for name in files.list_folder(folder) if name.endswith(".deleted")]


def test_deleted_partitions_are_removed_beside_the_loop() -> None:
    files, workers = SimulatedFiles(), ManualWorkers()
    manager = open_manager(files, [ONE], workers=workers)
    create(manager, "t")
    manager.delete("t", 0, NOW)
    manager.retention_tick(NOW + 1000)
    workers.run_all()
    assert not [name for name in files.list_folder(ONE) if name.endswith("-delete")]
    assert manager.directories[0].failure is None


def test_a_disk_that_fails_a_removal_is_offline() -> None:
    files = SimulatedFiles()
    manager = open_manager(files, [ONE, TWO])
    log = create(manager, "t", count=40)
    manager.retention_tick(NOW + 10_001)
    path = manager.directory_of("t", 0).path
    break_disk(files, path)
    manager.retention_tick(NOW + 11_001)
    assert list(manager.offline) == [path]
    assert log.failure is not None


def test_work_that_the_workers_reject_is_submitted_again() -> None:
    files = SimulatedFiles()
    workers = InlineWorkers()
    manager = open_manager(files, [ONE], workers=workers)
    create(manager, "t")
    manager.delete("t", 0, NOW)
    workers.close()
    manager.retention_tick(NOW + 1000)
    assert len(manager.directories[0].removals) == 1
    manager.close()
    assert not [name for name in files.list_folder(ONE) if name.endswith("-delete")]


def test_retention_by_size_and_by_start_offset() -> None:
    files = SimulatedFiles()
    manager = open_manager(files)
    log = create(manager, "t", count=40)
    size = log.size
    manager.update_settings("t", replace(SMALL, retention_bytes=size // 2))
    assert manager.retention_tick(NOW) > 0
    assert size // 2 <= log.size < size // 2 + SMALL.segment_bytes
    manager.update_settings("t", replace(SMALL, cleanup_policy=frozenset({"compact"})))
    assert manager.retention_tick(NOW + 10**9) == 0
    assert manager.advance_start("t", 0, 39)
    assert manager.retention_tick(NOW) > 0
    assert log.segment_count == 1


def test_retention_keeps_what_is_not_replicated() -> None:
    manager = open_manager(SimulatedFiles())
    log = manager.create("t", 0, TOPIC_ID, SMALL, NOW)
    put(log, *numbered(40))
    assert manager.retention_tick(NOW + 10**6) == 0
    assert values_in(log) == numbered(40)


def test_a_missing_file_of_one_partition_does_not_keep_the_others_from_retention() -> None:
    files = SimulatedFiles()
    manager = open_manager(files, [ONE])
    logs = [create(manager, "t", partition, count=40) for partition in range(2)]
    for name in files.list_folder(logs[0].folder):
        if name.endswith(".log"):
            files.remove(f"{logs[0].folder}/{name}")
    assert manager.retention_tick(NOW + 10_001) > 0
    assert logs[1].log_start_offset == 40
    assert manager.offline == {}


class CountedFiles(SimulatedFiles):
    """Counts every call, also those that change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in (
            "open",
            "exists",
            "is_folder",
            "list_folder",
            "rename",
            "remove",
            "size_of",
            "modified_ns",
            "space",
        ):
            self.calls[name] += 1
        return super().__getattribute__(name)


@given(
    stamps=st.lists(st.integers(NOW - 50, NOW + 50) | st.just(-1), max_size=12),
    retention_ms=st.sampled_from([-1, 0, 20, 60]),
    retention_bytes=st.sampled_from([-1, 0, 400, 700, 2000]),
    policy=st.sampled_from([("delete",), ("compact",), ("compact", "delete")]),
    start=st.integers(0, 12),
    now_ms=st.integers(NOW - 10, NOW + 150),
    is_reopened=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_skipped_log_has_nothing_to_expire(
    stamps: list[int],
    retention_ms: int,
    retention_bytes: int,
    policy: tuple[str, ...],
    start: int,
    now_ms: int,
    is_reopened: bool,
) -> None:
    files = SimulatedFiles()
    chosen = LogSettings(
        segment_bytes=400,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        cleanup_policy=frozenset(policy),
    )
    log = open_log(files, "/t-0", chosen, clean=False, now_ms=NOW).log
    for stamp in stamps:
        put(log, bytes(100), stamp=stamp)
    if is_reopened:
        log.flush()
        log.release()
        log = open_log(files, "/t-0", chosen, clean=False, recovery_point=log.log_end_offset, now_ms=NOW).log
    log.advance_high_watermark(log.log_end_offset)
    log.advance_start(min(start, log.log_end_offset))
    expected = may_expire(log, now_ms)
    assert expected or not enforce_retention(log, now_ms)


def test_logs_with_nothing_to_expire_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = open_manager(SimulatedFiles())
    for partition in range(3):
        create(manager, "t", partition, count=20)
    asked: list[PartitionLog] = []

    def note(log: PartitionLog, now_ms: int) -> list[str]:
        asked.append(log)
        return []

    monkeypatch.setattr(log_manager, "enforce_retention", note)
    manager.retention_tick(NOW + 10_000)
    assert asked == []
    manager.retention_tick(NOW + 10_001)
    assert len(asked) == 3


def test_ticks_with_nothing_to_do_make_no_system_call() -> None:
    files = CountedFiles()
    manager = open_manager(files)
    for partition in range(20):
        create(manager, "t", partition, count=20)
    manager.checkpoint_tick()
    files.calls.clear()
    before = files.operations.count
    for tick in range(5):
        assert manager.retention_tick(NOW + tick) == 0
        assert manager.flush_tick(NOW + tick) == 0
        assert manager.checkpoint_tick() == 0
        assert manager.producer_expiry_tick(NOW + tick) == 0
    assert files.operations.count == before
    assert files.calls == {}


def test_checkpoints_are_written_where_something_changed() -> None:
    files = SimulatedFiles()
    manager = open_manager(files)
    logs = [create(manager, "t", partition) for partition in range(2)]
    assert manager.checkpoint_tick() > 0
    assert manager.checkpoint_tick() == 0
    put(logs[0], b"x")
    assert manager.checkpoint_tick() == 0
    logs[0].flush()
    assert manager.checkpoint_tick() == 1


def test_a_full_disk_keeps_the_old_checkpoints_until_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFiles()
    manager = open_manager(files)
    log = create(manager, "t")
    files.operations.fail("write", errno.ENOSPC, path_ending=".tmp")
    assert manager.checkpoint_tick() == 0
    assert "retried later" in caplog.text
    assert manager.offline == {}
    assert manager.checkpoint_tick() > 0
    assert log.checkpointed_offset == 10


def test_flush_policies_of_topics_are_kept() -> None:
    files, workers = SimulatedFiles(), ManualWorkers()
    manager = open_manager(files, workers=workers)
    by_count = manager.create("count", 0, TOPIC_ID, replace(SMALL, flush_messages=3), NOW)
    by_time = manager.create("time", 0, TOPIC_ID, replace(SMALL, flush_ms=500), NOW)
    never = manager.create("never", 0, TOPIC_ID, SMALL, NOW)
    for log in (by_count, by_time, never):
        put(log, b"1", b"2")
    assert manager.flush_tick(NOW) == 0
    put(by_count, b"3")
    assert manager.flush_tick(NOW) == 1
    assert manager.flush_tick(NOW) == 0  # one is running
    workers.run_all()
    assert (by_count.flushed_offset, by_time.flushed_offset, never.flushed_offset) == (3, 0, 0)
    assert manager.flush_tick(NOW + 500) == 1
    workers.run_all()
    assert by_time.flushed_offset == 2
    assert manager.flush_tick(NOW + 10**6) == 0


def test_a_flush_that_fails_takes_its_disk_offline() -> None:
    files = SimulatedFiles()
    manager = open_manager(files)
    log = manager.create("t", 0, TOPIC_ID, replace(SMALL, flush_messages=1), NOW)
    other = create(manager, "u")
    put(log, b"x")
    break_disk(files, manager.directory_of("t", 0).path)
    assert manager.flush_tick(NOW) == 1
    assert list(manager.offline) == [manager.directory_of("t", 0).path]
    put(other, b"served")


def test_idle_producers_are_forgotten() -> None:
    manager = open_manager(SimulatedFiles())
    log = manager.create("t", 0, TOPIC_ID, replace(SMALL, producer_id_expiration_ms=1000), NOW)
    batch = encode_batch([(NOW, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0)
    log.append(batch, leader_epoch=0, now_ms=NOW)
    assert manager.producer_expiry_tick(NOW + 999) == 0
    assert manager.producer_expiry_tick(NOW + 1000) == 1
    assert log.producers.producer_count == 0


def test_settings_of_a_topic_reach_all_its_logs() -> None:
    manager = open_manager(SimulatedFiles())
    logs = [create(manager, "t", partition) for partition in range(3)]
    other = create(manager, "t2")
    changed = replace(SMALL, retention_ms=1)
    assert manager.update_settings("t", changed) == 3
    assert {log.settings for log in logs} == {changed}
    assert other.settings == SMALL


def test_truncation_goes_through_the_folder() -> None:
    manager = open_manager(SimulatedFiles())
    log = create(manager, "t")
    manager.checkpoint_tick()
    assert manager.truncate_to("t", 0, 4, NOW)
    assert log.log_end_offset == 4
    assert log.checkpointed_offset <= 4
    manager.truncate_fully("t", 0, 100, NOW)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    assert sum(1 for _ in manager.logs()) == 1


def test_what_was_deleted_is_gone_after_a_stop_and_nothing_waits_for_removal_forever() -> None:
    """A clean start believes its manifests and lists no folder: leftovers would stay."""
    files = SimulatedFiles()
    manager = open_manager(files, [ONE])
    log = create(manager, "t", count=40)
    manager.retention_tick(NOW + 10_001)
    create(manager, "u")
    manager.delete("u", 0, NOW)
    assert manager.close()
    assert not [name for name in files.list_folder(log.folder) if name.endswith(".deleted")]
    assert not [name for name in files.list_folder(ONE) if name.endswith("-delete")]
    assert open_manager(files, [ONE]).directories[0].was_clean


def test_policies_of_the_operator_are_asked_in_steps_of_a_few_logs() -> None:
    manager = open_manager(SimulatedFiles())
    for partition in range(120):
        put_durably(create(manager, "t", partition), b"x")
    asked: list[int] = []

    class Noting:
        def __init__(self, partition: PartitionRetention) -> None:
            self._partition = partition.partition

        def expired(self, segments: object, log: object, now_ms: int) -> int:
            asked.append(self._partition)
            return 0

    manager.make_policy = Noting
    steps = manager.retention_steps(NOW)
    next(steps)
    assert len(asked) == 50
    assert list(manager.retention_steps(NOW)) == [], "one run at a time"
    list(steps)
    assert sorted(asked) == list(range(120))
    assert len(list(manager.retention_steps(NOW))) == 4, "of 60 logs in each of two folders"
