"""Power loss at every operation on a log directory: it opens again, and everything acknowledged is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from tests.log.directory_stories import NOW, SMALL, TOPIC_ID, numbered, open_directory, put, values_in

from penstock.log.checkpoints import TopicPartition
from penstock.log.log_dirs.log_directory import LogDirectory, remove_all
from penstock.log.log_loader import open_log
from penstock.runtime.randomness import SeededRandom
from penstock.testing.crash_points import crash_everywhere
from penstock.testing.simulated_files import SimulatedFiles

T0, T1 = ("page-views", 0), ("page-views", 1)


@dataclass
class Promises:
    """What was acknowledged to the scenario before the crash."""

    flushed: dict[TopicPartition, int] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    created: set[TopicPartition] = field(default_factory=set)
    deleted: set[TopicPartition] = field(default_factory=set)
    being_deleted: set[TopicPartition] = field(default_factory=set)
    closed: bool = False


Scenario = Callable[[SimulatedFiles, Promises], None]


def fill(directory: LogDirectory, promises: Promises, key: TopicPartition, count: int) -> None:
    log = directory.get(key).log
    put(log, *numbered(count)[log.log_end_offset :])
    log.flush()
    log.advance_high_watermark(count)
    promises.flushed[key] = count


def create(files: SimulatedFiles, promises: Promises) -> None:
    directory = open_directory(files)
    for key in (T0, T1):
        directory.create(key, TOPIC_ID, SMALL, NOW)
        promises.created.add(key)
    fill(directory, promises, T0, 5)
    directory.checkpoint()


def delete(files: SimulatedFiles, promises: Promises) -> None:
    directory = open_directory(files)
    fill(directory, promises, T1, 12)
    promises.being_deleted.add(T0)
    directory.delete(T0, NOW)
    promises.deleted.add(T0)
    remove_all(files, directory.removals.take_all())


def delete_and_create(files: SimulatedFiles, promises: Promises) -> None:
    delete(files, promises)
    files.kill()
    directory = open_directory(files)
    promises.deleted.discard(T0)
    promises.flushed[T0] = 0
    log = directory.create(T0, b"another-topic-id", SMALL, NOW)
    promises.being_deleted.discard(T0)
    put(log, *numbered(3))
    directory.checkpoint()
    log.flush()
    promises.flushed[T0] = 3
    directory.checkpoint()


def checkpoint(files: SimulatedFiles, promises: Promises) -> None:
    directory = open_directory(files)
    for count in (11, 14):
        fill(directory, promises, T0, count)
        put(directory.get(T1).log, b"never flushed")
        directory.checkpoint()
        directory.advance_start(T0, count - 3)
        promises.starts[T0] = count - 3


def truncate(files: SimulatedFiles, promises: Promises) -> None:
    directory = open_directory(files)
    promises.flushed[T0] = 4
    directory.truncate_to(T0, 4, NOW)
    put(directory.get(T0).log, *numbered(9)[4:])
    fill(directory, promises, T0, 9)
    directory.checkpoint()


def stop(files: SimulatedFiles, promises: Promises) -> None:
    directory = open_directory(files)
    fill(directory, promises, T0, 13)
    put(directory.get(T1).log, *numbered(20)[directory.get(T1).log.log_end_offset :])
    assert directory.close()
    promises.flushed[T1] = 20
    promises.closed = True


def start_again(files: SimulatedFiles, promises: Promises) -> None:
    stop(files, promises)
    promises.closed = False
    directory = open_directory(files)
    fill(directory, promises, T0, 15)
    assert directory.close()
    promises.closed = True


def set_aside(files: SimulatedFiles, promises: Promises) -> None:
    """A stray's records are never lost, and never those of a later partition of its name."""
    promises.being_deleted.add(T0)
    directory = open_directory(files, load=False)
    directory.set_aside({T0: "unknown partition"})
    promises.deleted.add(T0)
    directory.load(lambda topic: SMALL, NOW)
    promises.deleted.discard(T0)
    promises.flushed[T0] = 0
    directory.create(T0, b"another-topic-id", SMALL, NOW)
    promises.being_deleted.discard(T0)
    fill(directory, promises, T0, 3)
    directory.checkpoint()


def before() -> tuple[SimulatedFiles, Promises]:
    """A folder with two partitions of ten records, all durable, checkpointed, stopped by a crash."""
    files, promises = SimulatedFiles(), Promises()
    directory = open_directory(files)
    for key in (T0, T1):
        directory.create(key, TOPIC_ID, SMALL, NOW)
        promises.created.add(key)
        fill(directory, promises, key, 10)
    directory.checkpoint()
    files.crash()
    return files, promises


def check(files: SimulatedFiles, promises: Promises) -> None:
    directory = open_directory(files)
    assert directory.failure is None
    assert directory.damaged == {}
    assert directory.listing.foreign == []
    if promises.closed:
        assert directory.was_clean
    assert promises.created - promises.being_deleted <= directory.hosted.keys()
    assert not promises.deleted & directory.hosted.keys()
    strays = [name for name in files.list_folder("/data") if name.endswith("-stray")]
    for name in strays:
        stray = open_log(files, f"/data/{name}", SMALL, clean=False, now_ms=NOW).log
        assert values_in(stray) == numbered(10)
        stray.release()
    for key, hosted in directory.hosted.items():
        log = hosted.log
        start = log.log_start_offset
        assert log.log_end_offset < 100
        found = values_in(log)
        assert start >= promises.starts.get(key, 0)
        assert found == numbered(log.log_end_offset)[start:] or b"never flushed" in found
        assert log.log_end_offset >= promises.flushed.get(key, 0)
        assert log.checkpointed_offset <= log.log_end_offset
        put(log, b"and it goes on")
        log.flush()
    assert directory.close()
    assert open_directory(files).was_clean


@pytest.mark.parametrize(
    ("scenario", "is_first"),
    [
        (create, True),
        (delete, False),
        (delete_and_create, False),
        (checkpoint, False),
        (truncate, False),
        (stop, False),
        pytest.param(start_again, False, marks=pytest.mark.long),
        (set_aside, False),
    ],
)
def test_the_power_goes_at_every_operation(scenario: Scenario, is_first: bool) -> None:
    start, known = (SimulatedFiles(), Promises()) if is_first else before()
    promises = Promises()

    def run(files: SimulatedFiles) -> None:
        nonlocal promises
        promises = Promises(dict(known.flushed), dict(known.starts), set(known.created))
        scenario(files, promises)

    points = 0
    for point in crash_everywhere(run, start=start):
        points += 1
        try:
            check(point.files, promises)
        except Exception as error:
            raise AssertionError(f"{point}: {error}") from error
    assert points > 50


def test_a_folder_that_was_stopped_cleanly_survives_a_power_loss_at_any_moment_of_its_next_start() -> None:
    files, promises = before()
    stop(files, promises)

    def run(files: SimulatedFiles) -> None:
        open_directory(files).close()

    for point in crash_everywhere(run, start=files.fork(SeededRandom(1))):
        directory = open_directory(point.files)
        for key, end in promises.flushed.items():
            assert values_in(directory.get(key).log) == numbered(end), str(point)
