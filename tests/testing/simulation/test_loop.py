"""Virtual time, and processes that pause and die."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest
from tests.testing.simulation.simulation_stories import Stage

from penstock.testing.simulation.loop import Unhandled
from penstock.testing.simulation.scheduler import Stuck


def test_an_hour_of_sleep_takes_no_time() -> None:
    """A test that takes as long is ended."""
    stage = Stage()
    stage.left.loop.run_until_complete(asyncio.sleep(3600))
    assert stage.scheduler.now_s == 3600


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


def _discard_a_process_that_works() -> None:
    stage = Stage()
    loop = stage.left.loop

    async def work() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            async with asyncio.timeout(1):
                await asyncio.sleep(1)

    async def stubborn() -> None:
        for _ in range(3):
            try:
                await asyncio.sleep(1)
            finally:
                await loop.create_future()

    for each in (work, stubborn):
        stage.left.spawn(each())
    stage.pass_time(0.5)
    stage.left.kill()
    loop.discard()


def test_a_discarded_process_leaves_nothing_to_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    _discard_a_process_that_works()
    gc.collect()
    assert reported == []


def test_a_paused_process_resumes_in_order_while_others_run() -> None:
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
