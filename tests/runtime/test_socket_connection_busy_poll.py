"""When the loop polls instead of sleeping, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from penstock.runtime.socket_connection import IN_A_ROW, BusyPoll

WINDOW_US = 100


class Scene:
    """A loop whose turns are counted, and a manual clock."""

    def __init__(self, window_us: int = WINDOW_US) -> None:
        self.now_s = 0.0
        self.ready: list[Callable[[], Any]] = []
        self.poll = BusyPoll(cast("asyncio.AbstractEventLoop", self), window_us, lambda: self.now_s)

    def call_soon(self, callback: Callable[[], Any]) -> None:
        self.ready.append(callback)

    def pass_us(self, microseconds: float) -> None:
        self.now_s += microseconds / 1e6

    def turn(self) -> None:
        ready, self.ready = self.ready, []
        for callback in ready:
            callback()

    def is_awake(self) -> bool:
        return bool(self.ready)

    def small_ones(self, count: int, apart_us: float = 50) -> None:
        for _ in range(count):
            self.pass_us(apart_us)
            self.poll.asked()
            self.pass_us(WINDOW_US * 5)  # however long the answer takes
            self.poll.answered()


def test_a_row_of_small_questions_keeps_the_loop_awake() -> None:
    scene = Scene()
    scene.small_ones(IN_A_ROW)
    assert not scene.is_awake()  # the first one followed nothing
    scene.small_ones(1)
    assert scene.is_awake()
    scene.pass_us(WINDOW_US / 2)
    scene.turn()
    assert scene.is_awake()


def test_a_question_that_does_not_come_in_time_lets_it_sleep_until_earned_again() -> None:
    scene = Scene()
    scene.small_ones(IN_A_ROW + 1)
    scene.pass_us(WINDOW_US * 2)
    scene.turn()
    assert not scene.is_awake()
    scene.small_ones(IN_A_ROW - 1)
    assert not scene.is_awake()
    scene.small_ones(2)
    assert scene.is_awake()


def test_only_one_look_is_under_way_however_many_questions_come() -> None:
    scene = Scene()
    scene.small_ones(IN_A_ROW * 3)
    assert len(scene.ready) == 1


def test_a_large_transfer_ends_it() -> None:
    scene = Scene()
    scene.small_ones(IN_A_ROW + 1)
    scene.poll.large()
    scene.turn()
    assert not scene.is_awake()


def test_questions_far_apart_never_earn_it() -> None:
    scene = Scene()
    scene.small_ones(IN_A_ROW * 4, apart_us=WINDOW_US * 2)
    assert not scene.is_awake()


def test_a_window_of_zero_is_never() -> None:
    scene = Scene(window_us=0)
    scene.small_ones(IN_A_ROW * 4, apart_us=0)
    assert not scene.is_awake()
