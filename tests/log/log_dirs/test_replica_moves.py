"""Moving replicas between log directories while they are in use, and through crashes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest
from tests.log.directory_stories import NOW, SMALL, TOPIC_ID, numbered, open_manager, put, put_durably, values_in

from penstock.log.errors import LogFailed, UnknownDirectory, UnknownPartition
from penstock.log.log_dirs import replica_moves
from penstock.log.log_dirs.log_manager import LogManager
from penstock.log.partition_log import PartitionLog
from penstock.runtime.threads import InlineWorkers, Outcome
from penstock.testing.crash_points import crash_everywhere
from penstock.testing.simulated_files import SimulatedFiles

KEY = ("views", 0)
BUSY_MS = 1000
T = TypeVar("T")


class StepWorkers:
    """Work that is done one piece at a time, when the test says so."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        self._waiting.append(lambda: InlineWorkers().run(work, done))

    def release(self) -> None:
        """Do one piece, if any waits."""
        if self._waiting:
            self._waiting.popleft()()

    def close(self) -> None:
        self._waiting.clear()


def manager_with(files: SimulatedFiles, values: list[bytes], **more: object) -> tuple[LogManager, PartitionLog]:
    """A partition in /one, with these values."""
    manager = open_manager(files, **more)  # type: ignore[arg-type]
    log = manager.create(*KEY, TOPIC_ID, SMALL, NOW)
    put_durably(log, *values)
    log.advance_high_watermark(len(values))
    return manager, log


def path_of(manager: LogManager) -> str:
    return manager.directory_of(*KEY).path


def other_of(manager: LogManager) -> str:
    return "/two" if path_of(manager) == "/one" else "/one"


def go(manager: LogManager) -> None:
    """Until nothing moves any more."""
    for turn in range(100):
        if not manager.moves:
            return
        manager.moves.tick(NOW + turn * BUSY_MS)
    raise AssertionError("the move does not end")


def test_a_replica_moves_with_all_that_belongs_to_it_and_is_served_by_the_same_log() -> None:
    files = SimulatedFiles()
    manager, log = manager_with(files, numbered(60))
    manager.advance_start(*KEY, 7)
    before, target = path_of(manager), other_of(manager)
    assert log.segment_count > 3
    manager.move(*KEY, target, NOW)
    go(manager)
    assert path_of(manager) == target
    assert manager.get(*KEY) is log
    assert values_in(log) == numbered(60)[7:]
    put_durably(log, b"after")
    assert values_in(log) == [*numbered(60)[7:], b"after"]
    assert not files.exists(f"{before}/views-0")
    assert [hosted.topic_id for hosted in manager.logs()] == [TOPIC_ID]
    manager.retention_tick(NOW + 2 * SMALL.file_delete_delay_ms)
    assert not [name for name in files.list_folder(before) if name.startswith("views")]
    assert manager.close()
    again = open_manager(files)
    assert path_of(again) == target
    found = again.get(*KEY)
    assert found is not None
    assert (found.log_start_offset, values_in(found)) == (7, [*numbered(60)[7:], b"after"])
    assert found.epochs.entries == log.epochs.entries


def test_what_is_appended_rolled_and_deleted_while_it_moves_is_in_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_moves, "REST_BYTES", 300)
    monkeypatch.setattr(replica_moves, "PIECE_BYTES", 500)
    files = SimulatedFiles()
    workers = StepWorkers()
    manager, log = manager_with(files, numbered(60), workers=workers)
    manager.move(*KEY, other_of(manager), NOW)
    written = 60
    steps = 0
    while manager.moves:
        manager.moves.tick(NOW + steps * BUSY_MS)
        if steps < 40:
            put(log, numbered(200)[written])
            written += 1
        if steps == 10:
            log.flush()
            log.advance_high_watermark(written)
            manager.advance_start(*KEY, 20)
            log.settings = replace(SMALL, retention_ms=-1)
            manager.retention_tick(NOW)  # whole segments below the start go
        workers.release()
        steps += 1
        assert steps < 300
    assert steps > 10
    assert values_in(log) == numbered(200)[20:written]
    assert log.flushed_offset == log.log_end_offset
    segments = len([name for name in files.list_folder(log.folder) if name.endswith(".log")])
    assert segments == log.segment_count


def test_a_log_that_is_cut_while_it_moves_has_nothing_of_what_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_moves, "REST_BYTES", 300)
    files = SimulatedFiles()
    workers = StepWorkers()
    manager, log = manager_with(files, numbered(60), workers=workers)
    manager.move(*KEY, other_of(manager), NOW)
    for step in range(4):
        manager.moves.tick(NOW + step)
        workers.release()
    manager.moves.tick(NOW + 5)
    manager.truncate_to(*KEY, 25, NOW)
    put_durably(log, *[b"other" + bytes(95)] * 40)
    workers.release()
    while manager.moves:
        manager.moves.tick(NOW + BUSY_MS)
        workers.release()
    assert values_in(log) == [*numbered(25), *[b"other" + bytes(95)] * 40]


def test_waiters_for_a_sync_are_answered_through_the_swap() -> None:
    files = SimulatedFiles()
    workers = StepWorkers()
    manager, log = manager_with(files, numbered(3), workers=workers)
    commits = manager.moves._commits
    answers: list[object] = []
    put(log, b"waited for")
    commits.when_durable(log, 4, answers.append)
    manager.move(*KEY, other_of(manager), NOW)
    manager.moves.tick(NOW)
    assert len(manager.moves) == 1  # a sync of the old files is running
    put(log, b"waited for, too")
    commits.when_durable(log, 5, answers.append)
    workers.release()
    assert not manager.moves
    workers.release()
    assert answers == [None, None]
    assert log.flushed_offset == 5


def test_a_move_is_described_and_can_be_taken_back() -> None:
    files = SimulatedFiles()
    workers = StepWorkers()
    manager, log = manager_with(files, numbered(60), workers=workers)
    here, there = path_of(manager), other_of(manager)

    def futures() -> dict[str, list[tuple[tuple[str, int], int]]]:
        return {each.path: [(row.key, row.offset_lag) for row in each.futures] for each in manager.describe()}

    assert futures() == {here: [], there: []}
    manager.move(*KEY, there, NOW)
    assert futures() == {here: [], there: [(KEY, 60)]}
    manager.moves.tick(NOW)
    workers.release()
    ((_, lag),) = futures()[there]
    assert 0 < lag < 60
    manager.move(*KEY, here, NOW)
    workers.release()
    assert futures() == {here: [], there: []}
    assert path_of(manager) == here
    assert values_in(log) == numbered(60)
    assert f"{there}/views-0.future" not in [f"{there}/{name}" for name in files.list_folder(there)]
    # And begun again, it ends well.
    manager.move(*KEY, there, NOW)
    while manager.moves:
        manager.moves.tick(NOW + BUSY_MS)
        workers.release()
    assert (path_of(manager), values_in(log)) == (there, numbered(60))


def test_a_partition_that_is_deleted_takes_its_copy_along() -> None:
    files = SimulatedFiles()
    manager, _ = manager_with(files, numbered(60), workers=StepWorkers())
    there = other_of(manager)
    manager.move(*KEY, there, NOW)
    manager.delete(*KEY, NOW)
    assert not manager.moves
    assert not [name for name in files.list_folder(there) if name.endswith(".future")]


def test_what_cannot_move_is_rejected_and_what_is_not_here_is_made_there() -> None:
    files = SimulatedFiles()
    manager, _ = manager_with(files, [])
    with pytest.raises(UnknownDirectory):
        manager.move(*KEY, "/three", NOW)
    there = path_of(manager)  # the fuller one, which would not be chosen
    with pytest.raises(UnknownPartition):
        manager.move("clicks", 0, there, NOW)
    manager.create("clicks", 0, TOPIC_ID, SMALL, NOW)
    assert manager.directory_of("clicks", 0).path == there


def test_a_full_disk_makes_a_move_wait_and_no_other_trouble() -> None:
    files = SimulatedFiles()
    manager, log = manager_with(files, numbered(60))
    manager.move(*KEY, other_of(manager), NOW)
    files.operations.fail("write", 28)
    manager.moves.tick(NOW)
    manager.moves.tick(NOW + 1)
    assert len(manager.moves) == 1
    put_durably(log, b"meanwhile")
    go(manager)
    assert values_in(log) == [*numbered(60), b"meanwhile"]
    assert manager.offline == {}


def test_a_disk_that_fails_ends_the_move_and_leaves_the_replica() -> None:
    files = SimulatedFiles()
    manager, log = manager_with(files, numbered(60))
    here, there = path_of(manager), other_of(manager)
    manager.move(*KEY, there, NOW)
    files.operations.fail("write", 5)
    manager.moves.tick(NOW)
    assert not manager.moves
    assert list(manager.offline) == [there]
    assert (path_of(manager), values_in(log)) == (here, numbered(60))
    with pytest.raises(LogFailed):
        manager.move(*KEY, there, NOW)


# --- crashes


@dataclass
class Promised:
    durable: int = 0
    moved: bool = field(default=False)


def prepared() -> SimulatedFiles:
    files = SimulatedFiles()
    manager, _ = manager_with(files, numbered(40))
    manager.advance_start(*KEY, 3)
    manager.checkpoint_tick()
    files.kill()
    return files


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.long)])
def test_the_power_goes_at_any_moment_of_a_move_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    monkeypatch.setattr(replica_moves, "REST_BYTES", 200)
    promised = Promised()

    def scenario(files: SimulatedFiles) -> None:
        promised.durable, promised.moved = 40, False
        manager = open_manager(files)
        log = manager.get(*KEY)
        assert log is not None
        manager.move(*KEY, other_of(manager), NOW)
        go(manager)
        promised.moved = True
        put_durably(log, *numbered(45)[40:])
        promised.durable = 45

    visited = 0
    for point in crash_everywhere(scenario, start=prepared(), stride=stride):
        visited += 1
        manager = open_manager(point.files)
        log = manager.get(*KEY)
        assert log is not None, str(point)
        assert promised.durable <= log.log_end_offset <= 45, str(point)
        assert log.log_start_offset == 3, str(point)
        assert values_in(log) == numbered(45)[3 : log.log_end_offset], str(point)
        # The move that was begun continues, and the log stays.
        go(manager)
        put_durably(log, b"still alive")
        assert values_in(log) == [*numbered(45)[3 : log.log_end_offset - 1], b"still alive"], str(point)
        names = [f"{path}/{name}" for path in ("/one", "/two") for name in point.files.list_folder(path)]
        assert not [name for name in names if name.endswith((".future", ".ready"))], str(point)
        assert len([name for name in names if name.endswith("views-0")]) == 1, str(point)
    assert visited > 30
