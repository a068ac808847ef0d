"""Many partitions at once: created, deleted, and flushed so that the next start is fast."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.faulty_files import FaultyFiles
from tests.log.directory_stories import NOW, SMALL, TOPIC_ID, numbered, open_manager, put, values_in

from penstock.log import group_commit
from penstock.log.log_dirs import log_manager
from penstock.log.log_dirs.log_directory import NewLog, Progress
from penstock.log.log_dirs.log_manager import UNFLUSHED_BYTES, UNFLUSHED_MS, LogManager
from penstock.log.partition_log import PartitionLog
from penstock.records import encode_batch
from penstock.runtime.files import PosixFiles
from penstock.runtime.threads import ManualWorkers
from penstock.testing.simulated_files import SimulatedFiles


def create(manager: LogManager, topic: str, partition: int) -> PartitionLog:
    log = manager.create(topic, partition, TOPIC_ID, SMALL, NOW)
    put(log, *numbered(10))
    return log


def placed(manager: LogManager) -> dict[str, int]:
    return {directory.path: len(directory.hosted) for directory in manager.directories}


# --- many at once


def news(topic: str, count: int) -> list[NewLog]:
    return [NewLog((topic, partition), TOPIC_ID, SMALL) for partition in range(count)]


def test_many_partitions_are_made_beside_the_loop_and_spread_over_the_folders() -> None:
    files, workers = SimulatedFiles(), ManualWorkers()
    done: list[bool] = []
    manager = open_manager(files, ("/one", "/two", "/three"), workers=workers)
    manager.create_all(news("t", 100), NOW, lambda: done.append(True))
    assert manager.get("t", 0) is None, "nothing happens here and now"
    assert workers.waiting == 1, "one thread creates them, the others are for syncs"
    workers.run_all()
    assert done == [True]
    assert sorted(placed(manager).values()) == [33, 33, 34]
    for partition in range(100):
        log = manager.get("t", partition)
        assert log is not None
        put(log, b"value")
    manager.close()
    again = open_manager(files, ("/one", "/two", "/three"))
    assert all(found.topic_id == TOPIC_ID and values_in(found.log) == [b"value"] for found in again.logs())
    assert len(list(again.logs())) == 100


def test_partitions_that_are_there_are_left_as_they_are() -> None:
    manager = open_manager(SimulatedFiles())
    log = create(manager, "t", 1)
    done: list[bool] = []
    manager.create_all(news("t", 3), NOW, lambda: done.append(True))
    assert done == [True]
    assert manager.get("t", 1) is log
    assert values_in(log) == numbered(10)
    assert all(manager.holds("t", partition) for partition in range(3))


def test_created_partitions_survive_a_power_loss_once_reported() -> None:
    files = SimulatedFiles()
    manager = open_manager(files, ("/one",))
    manager.create_all(news("t", 40), NOW, lambda: None)
    files.crash()
    again = open_manager(files, ("/one",))
    assert len(list(again.logs())) == 40
    assert all(found.topic_id == TOPIC_ID for found in again.logs())


def test_one_that_finds_no_room_is_left_out_and_the_others_are_made(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = open_manager(files, [str(tmp_path)])
    files.full = {"t-1"}
    done: list[bool] = []
    manager.create_all(news("t", 3), NOW, lambda: done.append(True))
    assert done == [True]
    assert [manager.holds("t", partition) for partition in range(3)] == [True, False, True]
    assert not (tmp_path / "t-1").exists()
    assert not manager.offline
    files.full = set()
    manager.create_all(news("t", 3), NOW, lambda: done.append(True))
    assert manager.holds("t", 1)
    manager.close()


def test_partitions_that_are_not_new_are_not_made_while_a_folder_is_offline(tmp_path: Path) -> None:
    (tmp_path / "two").write_text("no folder")
    manager = open_manager(PosixFiles(), [str(tmp_path / "one"), str(tmp_path / "two")])
    done: list[bool] = []
    manager.create_all(news("t", 3), NOW, lambda: done.append(True), is_new=False)
    assert done == [True]
    assert not manager.holds("t", 0)
    manager.create_all(news("t", 3), NOW, lambda: done.append(True))
    assert manager.holds("t", 0)
    manager.close()


def test_a_topic_is_deleted_with_one_sync_a_folder() -> None:
    files = SimulatedFiles()
    manager = open_manager(files)
    manager.create_all(news("t", 30), NOW, lambda: None)
    manager.create_all(news("u", 1), NOW, lambda: None)
    manager.delete_all([("t", partition) for partition in range(30)], NOW)
    assert not any(manager.holds("t", partition) for partition in range(30))
    files.crash()
    assert [(found.topic, found.partition) for found in open_manager(files).logs()] == [("u", 0)]


# --- flushes that keep recovery short


def test_what_is_old_or_much_is_made_durable_whatever_the_policy() -> None:
    workers = ManualWorkers()
    manager = open_manager(SimulatedFiles(), ("/one",), workers=workers)
    settings = replace(SMALL, segment_bytes=1 << 30, max_message_bytes=1 << 30)
    old, much, little = (manager.create(topic, 0, TOPIC_ID, settings, NOW) for topic in ("old", "much", "little"))
    put(old, b"old")
    old.append(encode_batch([(NOW, None, b"also", ())]), leader_epoch=0, now_ms=NOW)
    much.append(encode_batch([(NOW, None, bytes(UNFLUSHED_BYTES), ())]), leader_epoch=0, now_ms=NOW + UNFLUSHED_MS)
    little.append(encode_batch([(NOW, None, b"little", ())]), leader_epoch=0, now_ms=NOW + UNFLUSHED_MS)
    assert manager.background_flush_tick(NOW + UNFLUSHED_MS) == 1
    assert manager.background_flush_tick(NOW + UNFLUSHED_MS) == 0, "one after the other, beside the loop"
    assert workers.waiting == 1
    workers.run_all()
    assert (old.flushed_offset, much.flushed_offset, little.flushed_offset) == (2, 1, 0)
    assert manager.background_flush_tick(NOW + UNFLUSHED_MS) == 0
    manager.close()


def test_of_very_many_logs_some_are_looked_at_by_each_tick_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that has finished continues there, too: from the first log, 10,000 flushes took minutes to find."""
    monkeypatch.setattr(log_manager, "_SEARCHED_AT_ONCE", 3)
    workers = ManualWorkers()
    manager = open_manager(SimulatedFiles(), ("/one",), workers=workers)
    logs = [manager.create("t", partition, TOPIC_ID, SMALL, NOW) for partition in range(8)]
    for partition in (1, 2, 7):
        put(logs[partition], b"old")
    now_ms = NOW + UNFLUSHED_MS
    assert manager.background_flush_tick(now_ms) == 1
    manager.delete("t", 3, NOW)
    workers.run_all()
    assert [log.flushed_offset for log in logs] == [0, 1, 1, 0, 0, 0, 0, 0]
    put(logs[0], b"old")
    assert manager.background_flush_tick(now_ms) == 1, "of 6 and 7, and 0 is in the next round"
    workers.run_all()
    assert [log.flushed_offset for log in logs] == [0, 1, 1, 0, 0, 0, 0, 1]
    assert manager.background_flush_tick(now_ms) == 1
    workers.run_all()
    assert logs[0].flushed_offset == 1
    assert [manager.background_flush_tick(now_ms) for _ in range(3)] == [0, 0, 0]


def test_what_goes_through_all_logs_has_steps_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_manager, "_LOGS_AT_ONCE", 3)
    manager = open_manager(SimulatedFiles(), ("/one",))
    settings = replace(SMALL, flush_messages=1)
    logs = [manager.create("t", partition, TOPIC_ID, settings, NOW) for partition in range(8)]
    for partition in (1, 4, 7):
        put(logs[partition], b"value")
    steps = manager.flush_steps(NOW)
    assert next(steps) == 1
    manager.delete("t", 4, NOW)
    assert list(steps) == [0, 1]
    assert [log.flushed_offset for log in logs] == [0, 1, 0, 0, 0, 0, 0, 1]
    assert [len(list(work(NOW))) for work in (manager.retention_steps, manager.producer_expiry_steps)] == [3, 3]


def test_checkpoints_are_written_in_turn_each_with_what_the_logs_are_then() -> None:
    manager = open_manager(SimulatedFiles(), ("/one",))
    log = create(manager, "t", 0)
    put(log, *numbered(5))
    log.flush()
    checkpoints = manager.directories[0].checkpoints
    steps = manager.checkpoint_steps()
    assert next(steps) == 1
    assert checkpoints.recovery_point(("t", 0)) == log.checkpointed_offset == 15
    assert manager.truncate_to("t", 0, 6, NOW)
    end = log.log_end_offset
    assert end <= 6
    new = create(manager, "u", 0)
    put(new, b"value")
    new.flush()
    new.advance_high_watermark(1)
    assert sum(steps) == 1, "that of the high watermarks; no log start has changed, and nothing was compacted"
    assert checkpoints.recovery.rows["t", 0] <= end
    assert checkpoints.high_watermark.rows == {("t", 0): log.high_watermark, ("u", 0): 1}
    assert checkpoints.recovery_point(("u", 0)) == 0, "until the next time"


def test_what_recovery_found_is_durable_soon_so_that_a_second_crash_costs_nothing() -> None:
    files = SimulatedFiles()
    manager = open_manager(files, ("/one",))
    put(create(manager, "t", 0), *numbered(5))
    files.kill()
    manager = open_manager(files, ("/one",))
    log = manager.get("t", 0)
    assert log is not None
    assert log.unflushed == 15
    assert manager.background_flush_tick(NOW) == 1
    assert log.unflushed == 0
    manager.checkpoint_tick()
    assert manager.directories[0].checkpoints.recovery_point(("t", 0)) == 15


def test_a_flush_in_the_background_leaves_a_mark_and_soon_a_recovery_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "LEAST_MARKED_BYTES", 1)
    monkeypatch.setattr(log_manager, "UNCHECKPOINTED_BYTES", 1000)
    files = SimulatedFiles()
    manager = open_manager(files, ("/one",))
    log = manager.create("t", 0, TOPIC_ID, replace(SMALL, segment_bytes=1 << 20), NOW)
    put(log, b"little")
    assert manager.background_flush_tick(NOW + UNFLUSHED_MS) == 1
    checkpoints = manager.directories[0].checkpoints
    assert checkpoints.recovery_point(("t", 0)) == 0, (
        "a checkpoint for every little flush would cost more than it saves"
    )
    put(log, bytes(2000))
    manager.background_flush_tick(NOW + UNFLUSHED_MS)
    assert checkpoints.recovery_point(("t", 0)) == 2
    put(log, b"more")
    files.kill()
    manager = open_manager(files, ("/one",), load=False)
    steps: list[Progress] = []
    manager.load(lambda topic: SMALL, NOW, steps.append)
    opened = steps[0].opened
    assert opened is not None
    assert opened.walked_bytes < 200
    assert opened.log.log_end_offset == 3


def test_a_flush_in_the_background_that_fails_takes_its_folder_offline(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = open_manager(files, [str(tmp_path)])
    put(create(manager, "t", 0), b"value")
    files.broken = {"t-0"}
    manager.background_flush_tick(NOW + UNFLUSHED_MS)
    assert list(manager.offline) == [str(tmp_path)]
