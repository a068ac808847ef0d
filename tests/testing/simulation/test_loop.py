"""Virtual time, and processes that pause and die."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.testing.simulation.simulation_stories import Stage

from penstock.testing.simulation.loop import Unhandled
from penstock.testing.simulation.scheduler import Stuck


def test_an_hour_of_sleep_takes_no_time() -> None:
    stage = Stage()
    began_s = time.monotonic()
    stage.left.loop.run_until_complete(asyncio.sleep(3600))
    assert stage.scheduler.now_s == 3600
    assert time.monotonic() - began_s < 10


def test_after_a_crash_not_one_callback_runs_and_no_finally_either() -> None:
    stage = Stage()
    ran: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
            ran.append("task")
        finally:
            ran.append("finally")

    stage.left.spawn(work())
    stage.left.loop.call_later(1, ran.append, "timer")
    stage.pass_time(0.5)
    stage.left.loop.call_soon(ran.append, "ready")
    stage.left.kill()
    stage.left.boot()
    stage.left.loop.call_soon(ran.append, "new life")
    stage.pass_time(10)
    assert ran == ["new life"]


def test_a_paused_process_goes_on_where_it_was_in_order_while_others_run() -> None:
    stage = Stage()
    ran: list[str] = []
    stage.left.pause()
    for number in range(3):
        stage.left.loop.call_later(number, ran.append, f"left {number}")
    stage.right.loop.call_later(1, ran.append, "right")
    stage.pass_time(5)
    assert ran == ["right"]
    stage.left.resume()
    stage.pass_time(0)
    assert ran == ["right", "left 0", "left 1", "left 2"]


def test_a_process_that_blocks_does_nothing_else_meanwhile() -> None:
    stage = Stage()
    at_s: list[float] = []
    stage.left.loop.busy_for(0.25)
    stage.left.loop.busy_for(0.25)
    stage.left.loop.call_soon(lambda: at_s.append(stage.scheduler.now_s))
    stage.pass_time(1)
    assert at_s == [0.5]


def test_an_unhandled_exception_ends_the_run() -> None:
    stage = Stage()
    stage.left.loop.call_later(1, lambda: 1 // 0)
    with pytest.raises(Unhandled, match=r"left.*ZeroDivisionError"):
        stage.pass_time(2)


def test_calls_that_would_reach_the_machine_are_rejected() -> None:
    stage = Stage()
    with pytest.raises(NotImplementedError):
        stage.left.loop.run_in_executor(None, print)
    with pytest.raises(Stuck):
        stage.left.loop.run_until_complete(stage.left.loop.create_future(), limit_s=10)
