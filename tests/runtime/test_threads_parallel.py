"""The same work for many items: where it runs, its outcomes, and stopping early."""

from __future__ import annotations

import threading

import pytest
from tests.timeouts import PATIENCE_S

from penstock.runtime.threads import in_parallel


def test_with_one_thread_work_happens_here_in_order_and_when_it_is_asked_for() -> None:
    done: list[tuple[int, str]] = []
    outcomes = in_parallel(lambda item: done.append((item, threading.current_thread().name)), range(3), 1)
    assert done == []
    next(outcomes)
    assert done == [(0, threading.current_thread().name)]
    list(outcomes)
    assert [item for item, _ in done] == [0, 1, 2]


def test_with_two_threads_two_are_done_at_once() -> None:
    meeting = threading.Barrier(2)
    outcomes = dict(in_parallel(lambda _: meeting.wait(PATIENCE_S), ["one", "two"], 2))
    assert sorted(outcome.result() for outcome in outcomes.values()) == [0, 1]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_is_the_outcome_of_its_item_and_the_others_finish(threads: int) -> None:
    outcomes = dict(in_parallel(lambda item: 10 // item, [0, 1, 2, 5], threads))
    assert isinstance(outcomes[0].error, ZeroDivisionError)
    assert {item: outcomes[item].result() for item in (1, 2, 5)} == {1: 10, 2: 5, 5: 2}


@pytest.mark.parametrize("threads", [1, 3])
def test_closing_the_generator_stops_the_work(threads: int) -> None:
    begun: list[int] = []
    goes_on = threading.Event()

    def work(item: int) -> None:
        begun.append(item)
        if item:
            goes_on.wait(PATIENCE_S)

    before = threading.active_count()
    outcomes = in_parallel(work, range(1000), threads)
    next(outcomes)
    goes_on.set()
    outcomes.close()
    assert threading.active_count() == before
    seen = len(begun)
    assert seen < 1000
    assert len(begun) == seen


def test_nothing_to_do_is_done_at_once() -> None:
    assert list(in_parallel(lambda item: item, [], 4)) == []
