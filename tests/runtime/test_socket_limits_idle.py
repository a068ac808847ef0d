"""Which members of the timing wheel are idle, and when."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.runtime.clock import ManualClock
from penstock.runtime.socket_limits import IdleTimingWheel


class Sleeper:
    def __init__(self) -> None:
        self.active_tick = 0
        self.wheel_slot = -1
        self.busy = False


def test_a_member_is_due_after_its_time_and_only_once() -> None:
    clock = ManualClock()
    wheel: IdleTimingWheel[Sleeper] = IdleTimingWheel(clock, 1600)
    sleeper = Sleeper()
    wheel.add(sleeper)
    for _ in range(16):
        clock.advance(100)
        assert wheel.turn() == []
        assert wheel.turn() == []
    clock.advance(100)
    assert wheel.turn() == [sleeper]
    clock.advance(100)
    assert (wheel.turn(), len(wheel)) == ([], 0)


def test_after_a_pause_of_the_process_no_member_is_due_that_had_no_chance() -> None:
    clock = ManualClock()
    wheel: IdleTimingWheel[Sleeper] = IdleTimingWheel(clock, 1600)
    sleeper = Sleeper()
    wheel.add(sleeper)
    clock.advance(1_000_000)
    for _ in range(100):
        assert wheel.turn() == []
    for _ in range(15):
        clock.advance(100)
        assert wheel.turn() == []
    clock.advance(100)
    assert wheel.turn() == [sleeper]


def test_a_member_that_left_is_not_kept() -> None:
    wheel: IdleTimingWheel[Sleeper] = IdleTimingWheel(ManualClock(), 1600)
    sleeper = Sleeper()
    wheel.add(sleeper)
    wheel.remove(sleeper)
    wheel.remove(sleeper)
    assert len(wheel) == 0


def test_a_busy_member_is_not_due() -> None:
    clock = ManualClock()
    wheel: IdleTimingWheel[Sleeper] = IdleTimingWheel(clock, 1600)
    sleeper = Sleeper()
    sleeper.busy = True
    wheel.add(sleeper)
    for _ in range(100):
        clock.advance(100)
        assert wheel.turn() == []
    sleeper.busy = False
    turns = 0
    while not wheel.turn():
        clock.advance(100)
        turns += 1
    assert turns <= 18


def test_without_an_idle_time_no_member_is_due() -> None:
    clock = ManualClock()
    wheel: IdleTimingWheel[Sleeper] = IdleTimingWheel(clock, 0)
    sleeper = Sleeper()
    wheel.add(sleeper)
    clock.advance(10**9)
    assert (wheel.turn(), len(wheel)) == ([], 0)
    wheel.remove(sleeper)


@settings(max_examples=100, deadline=None)
@given(
    idle_ms=st.integers(1, 5000),
    steps=st.lists(st.tuples(st.integers(0, 900), st.booleans()), max_size=60),
)
def test_no_member_is_due_early(idle_ms: int, steps: list[tuple[int, bool]]) -> None:
    clock = ManualClock()
    wheel: IdleTimingWheel[Sleeper] = IdleTimingWheel(clock, idle_ms)
    sleeper = Sleeper()
    wheel.add(sleeper)
    active_ms = 0.0
    for step_ms, active in steps * 5:
        clock.advance(step_ms)
        now_ms = clock.monotonic_ms()
        if active:
            sleeper.active_tick = wheel.tick
            active_ms = now_ms
        if wheel.turn():
            assert now_ms - active_ms >= idle_ms
            return


@settings(max_examples=100, deadline=None)
@given(idle_ms=st.integers(16, 5000), active=st.lists(st.integers(0, 40), max_size=10))
def test_a_member_is_due_at_most_two_ticks_late(idle_ms: int, active: list[int]) -> None:
    clock = ManualClock()
    wheel: IdleTimingWheel[Sleeper] = IdleTimingWheel(clock, idle_ms)
    sleeper = Sleeper()
    wheel.add(sleeper)
    # The manual clock goes by whole milliseconds.
    tick_ms = -(-idle_ms // 16)
    active_ms = 0.0
    for number in range(80):
        clock.advance(tick_ms)
        if number in active:
            sleeper.active_tick = wheel.tick
            active_ms = clock.monotonic_ms()
        if wheel.turn():
            assert clock.monotonic_ms() - active_ms <= 18 * tick_ms
            return
    raise AssertionError("no member was ever due")
