"""A process with very many objects: no collection looks at all of them, and cycles are found nevertheless."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.runtime import garbage_collector
from penstock.runtime.garbage_collector import MOST_EXAMINED, SET_ASIDE_AT, BoundedCollector

MANY = 5 * MOST_EXAMINED
SOON_S, BUSY_S, IDLE_S = 10.0, 5.0, 0.1


class Cell:
    """Can be part of a cycle."""

    def __init__(self) -> None:
        self.other: object = None


@contextmanager
def examined() -> Iterator[list[int]]:
    """How many objects each full collection looks at."""
    counts: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            counts.append(len(gc.get_objects()))

    gc.callbacks.append(note)
    try:
        yield counts
    finally:
        gc.callbacks.remove(note)


@pytest.fixture
def collector() -> Iterator[BoundedCollector]:
    with BoundedCollector() as bounded:
        bounded.set_aside()
        yield bounded


def cycle() -> weakref.ref[Cell]:
    one, other = Cell(), Cell()
    one.other, other.other = other, one
    return weakref.ref(one)


def grow() -> list[Cell]:
    """Enough objects to be set aside."""
    cells = [Cell() for _ in range(SET_ASIDE_AT)]
    gc.collect()
    return cells


@pytest.mark.skipif(gc.get_threshold()[2] == 0, reason="this Python collects in increments")
def test_a_full_collection_looks_at_no_more_objects_however_many_there_are(collector: BoundedCollector) -> None:
    """A broker with 10,000 partitions has 550,000, and a full collection took 0.22 s."""
    with examined() as counts:
        cells = [Cell() for _ in range(MANY)]
    assert len(counts) >= MANY // MOST_EXAMINED
    assert max(counts) <= MOST_EXAMINED
    assert len(cells) == MANY


def test_cycles_are_collected_beside_what_was_set_aside(collector: BoundedCollector) -> None:
    cells = grow()
    assert gc.get_freeze_count() > len(cells)
    lost = cycle()
    gc.collect()
    assert lost() is None


def test_what_was_set_aside_is_freed_with_its_last_reference(collector: BoundedCollector) -> None:
    cells = grow()
    last = weakref.ref(cells.pop())
    assert last() is None


def test_a_few_objects_are_not_set_aside(collector: BoundedCollector) -> None:
    """Those of a request, of a connection: they may be a cycle when they are done."""
    before = gc.get_freeze_count()
    cells = [Cell() for _ in range(SET_ASIDE_AT // 10)]
    gc.collect()
    assert gc.get_freeze_count() <= before
    assert cells


def lost_among_others() -> tuple[weakref.ref[Cell], list[Cell]]:
    """A cycle that was set aside before it was lost, and so much more that a quarter of the process is new."""
    one = Cell()
    one.other = one
    cells = grow()
    lost = weakref.ref(one)
    del one
    gc.collect()
    assert lost() is not None
    return lost, cells


def test_a_cycle_that_was_set_aside_is_collected_once_the_process_has_grown_and_is_quiet(
    collector: BoundedCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, cells = lost_among_others()
    assert not collector.tick(0.0, 0.0), "the first time there is nothing to compare with"
    monkeypatch.setattr(garbage_collector, "_GROWTH_WHEN_QUIET", 1000)
    assert not collector.tick(SOON_S, IDLE_S), "it has not grown enough"
    monkeypatch.setattr(garbage_collector, "_GROWTH_WHEN_QUIET", 1)
    assert not collector.tick(2 * SOON_S, IDLE_S + BUSY_S), "it is busy"
    assert lost() is not None
    assert collector.tick(3 * SOON_S, IDLE_S + BUSY_S + IDLE_S)
    assert lost() is None
    assert not collector.tick(4 * SOON_S, IDLE_S + BUSY_S + 2 * IDLE_S), "nothing was set aside since"
    assert gc.get_freeze_count() > len(cells)


def test_a_process_that_is_never_quiet_is_collected_when_it_has_become_very_large(
    collector: BoundedCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, cells = lost_among_others()
    assert not collector.tick(0.0, 0.0)
    assert not collector.tick(SOON_S, BUSY_S)
    monkeypatch.setattr(garbage_collector, "_GROWTH", 1)
    monkeypatch.setattr(garbage_collector, "_GROWTH_BLOCKS", 0)
    assert collector.tick(2 * SOON_S, 2 * BUSY_S)
    assert lost() is None
    assert cells


@pytest.mark.skipif(gc.get_threshold()[2] == 0, reason="this Python collects in increments")
def test_collections_stay_bounded_after_everything_was_collected(collector: BoundedCollector) -> None:
    """Python waits with the next full collection until a quarter of what the last one found is new."""
    cells = [Cell() for _ in range(MANY)]
    collector.collect_all()
    with examined() as counts:
        cells += [Cell() for _ in range(MANY)]
    assert counts
    assert max(counts) <= MOST_EXAMINED


def test_it_is_as_before_afterwards() -> None:
    before = gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()
    with BoundedCollector() as bounded:
        bounded.set_aside()
        assert gc.get_freeze_count() > 0
    assert (gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()) == before
