"""Virtual time: the order of callbacks, and the trace."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.testing.simulation.simulation_stories import Stage

from penstock.testing.simulation.scheduler import Stuck, Trace


def test_what_is_ready_runs_in_order_and_timers_of_one_instant_in_an_order_of_the_seed() -> None:
    def order(seed: int) -> tuple[list[int], list[int]]:
        stage, ready, due = Stage(seed), list[int](), list[int]()
        for number in range(20):
            stage.left.loop.call_soon(ready.append, number)
            stage.left.loop.call_at(1.0, due.append, number)
        stage.pass_time(2)
        return ready, due

    ready, due = order(1)
    assert ready == list(range(20))
    assert sorted(due) == list(range(20))
    assert order(1) == (ready, due)
    assert order(2)[1] != due


def test_what_was_cancelled_does_not_run_and_is_not_kept() -> None:
    stage, ran = Stage(), list[str]()
    soon = stage.left.loop.call_soon(ran.append, "soon")
    later = stage.left.loop.call_later(2.5, ran.append, "later")
    assert (later.when(), later.cancelled()) == (2.5, False)
    soon.cancel()
    later.cancel()
    stage.left.loop.call_later(1, ran.append, "other")
    stage.pass_time(10)
    assert ran == ["other"]
    assert soon.cancelled()
    assert later.cancelled()


def test_what_is_much_to_look_at_is_looked_at_now_and_then_and_once_more_at_the_end() -> None:
    stage, looked_s = Stage(), list[float]()
    for number in range(100):
        stage.left.loop.call_at(number / 10, lambda: None)

    def look() -> bool:
        looked_s.append(stage.scheduler.now_s)
        return stage.scheduler.now_s >= 9.95

    assert stage.scheduler.run_until(look, limit_s=10, check_every_s=2)
    assert looked_s[0] == 0
    assert all(after - before >= 2 for before, after in pairwise(looked_s[:-1]))
    assert looked_s[-1] == 10


def test_the_trace_of_one_run_has_one_hash_however_often_it_is_asked_for() -> None:
    first, again, other = Trace(), Trace(), Trace()
    for trace in (first, again):
        trace.note("10.0.0.1", "from 10.0.0.2:9092:", 75, "bytes")
    other.note("10.0.0.1", "from 10.0.0.2:9092:", 76, "bytes")
    first.log("10.0.0.1", "for readers only")
    assert first.hash == first.hash == again.hash != other.hash
    assert first.last_lines(2)[0].split() == ["0.000000", "10.0.0.1", "from", "10.0.0.2:9092:", "75", "bytes"]


def test_callbacks_that_chase_each_other_within_an_instant_are_found() -> None:
    stage = Stage()

    def again() -> None:
        stage.left.loop.call_soon(again)

    again()
    with pytest.raises(Stuck, match="endless loop"):
        stage.pass_time(1)
