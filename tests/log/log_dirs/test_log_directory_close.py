"""Closing unchanged logs: nothing is written again, and nothing else is left out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.log.directory_stories import NOW, SMALL, TOPIC_ID, numbered, open_directory, put, values_in

from penstock.log.log_dirs.log_directory import LogDirectory, Progress
from penstock.log.segment import MANIFEST_NAME
from penstock.runtime.files import PosixFiles

KEY = ("page-views", 0)


def look(folder: Path) -> dict[str, tuple[int, int, int]]:
    """What of each file a write, even of the same bytes, would change."""
    found = {name: os.stat(folder / name) for name in os.listdir(folder)}
    return {name: (status.st_ino, status.st_mtime_ns, status.st_size) for name, status in found.items()}


def reopened(path: Path) -> tuple[LogDirectory, Progress]:
    directory = open_directory(PosixFiles(), str(path), load=False)
    steps: list[Progress] = []
    directory.load(lambda topic: SMALL, NOW, steps.append)
    return directory, steps[0]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    directory = open_directory(PosixFiles(), str(tmp_path))
    put(directory.create(KEY, TOPIC_ID, SMALL, NOW), *numbered(30))
    assert directory.close()
    return tmp_path


def test_a_log_that_nothing_happened_to_is_left_as_it_is(filled: Path) -> None:
    before = look(filled / "page-views-0")
    for _ in range(3):
        directory, step = reopened(filled)
        assert step.opened is not None
        assert step.opened.was_clean
        assert step.opened.walked_bytes == 0
        assert values_in(directory.get(KEY).log) == numbered(30)
        assert directory.close()
        assert look(filled / "page-views-0") == before


def test_an_empty_log_is_left_as_it_is_too(tmp_path: Path) -> None:
    directory = open_directory(PosixFiles(), str(tmp_path))
    directory.create(KEY, TOPIC_ID, SMALL, NOW)
    assert directory.close()
    before = look(tmp_path / "page-views-0")
    directory, _ = reopened(tmp_path)
    assert directory.close()
    assert look(tmp_path / "page-views-0") == before


def _append(directory: LogDirectory) -> None:
    put(directory.get(KEY).log, b"one more")


def _truncate(directory: LogDirectory) -> None:
    directory.truncate_to(KEY, 29, NOW)


def _truncate_and_append_as_much(directory: LogDirectory) -> None:
    directory.truncate_to(KEY, 29, NOW)
    put(directory.get(KEY).log, bytes(100))


def _roll(directory: LogDirectory) -> None:
    log = directory.get(KEY).log
    log.roll(log.log_end_offset, NOW)


def _delete_records(directory: LogDirectory) -> None:
    directory.get(KEY).log.advance_high_watermark(30)
    directory.advance_start(KEY, 20)


def _lose_the_manifest(directory: LogDirectory) -> None:
    os.unlink(f"{directory.path}/page-views-0/{MANIFEST_NAME}")


@pytest.mark.parametrize(
    "happen", [_append, _truncate, _truncate_and_append_as_much, _roll, _delete_records, _lose_the_manifest]
)
def test_a_log_that_something_happened_to_is_closed_with_all_that_belongs_to_it(
    filled: Path, happen: Callable[[LogDirectory], None]
) -> None:
    directory, _ = reopened(filled)
    happen(directory)
    expected = values_in(directory.get(KEY).log)
    assert directory.close()
    before = look(filled / "page-views-0")
    directory, step = reopened(filled)
    assert step.opened is not None
    assert step.opened.was_clean
    assert not step.opened.damages
    assert step.opened.walked_bytes == 0
    log = directory.get(KEY).log
    assert values_in(log) == expected
    assert log.found_closed_at == log.log_end_offset, "the stop left all that the next start can do with"
    assert directory.close()
    assert look(filled / "page-views-0") == before


def test_a_log_that_was_recovered_is_closed_as_one_that_was_written(filled: Path) -> None:
    directory, _ = reopened(filled)
    put(directory.get(KEY).log, b"one more")
    for hosted in directory.hosted.values():
        hosted.log.release()
    directory._lock.release()  # as a killed process does
    directory, step = reopened(filled)
    assert step.opened is not None
    assert not step.opened.was_clean
    assert directory.close()
    _, step = reopened(filled)
    assert step.opened is not None
    assert step.opened.was_clean
    assert values_in(step.opened.log) == [*numbered(30), b"one more"]


@pytest.mark.parametrize("threads", [1, 3])
def test_many_logs_are_closed_and_found_again_by_any_number_of_threads(tmp_path: Path, threads: int) -> None:
    directory = open_directory(PosixFiles(), str(tmp_path))
    for partition in range(20):
        put(directory.create(("t", partition), TOPIC_ID, SMALL, NOW), *numbered(partition))
    assert directory.close(threads)
    directory = open_directory(PosixFiles(), str(tmp_path), load=False)
    steps: list[Progress] = []
    directory.load(lambda topic: SMALL, NOW, steps.append, threads)
    assert [(step.done, step.total) for step in steps] == [(number, 20) for number in range(1, 21)]
    assert all(step.opened is not None and step.opened.was_clean for step in steps)
    for partition in range(20):
        assert values_in(directory.get(("t", partition)).log) == numbered(partition)
    assert directory.close(threads)
