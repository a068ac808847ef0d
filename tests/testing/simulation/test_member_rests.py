"""A member that rests until a moment is not there before it, however near that moment is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.testing.simulation.simulation_stories import Stage

from penstock.client.consumer.coordinator import ConsumerCoordinator
from penstock.client.consumer.membership import Idle


class Sleepy:
    """A membership that has nothing to do until a moment, and counts how often it is asked."""

    def __init__(self, until_ms: float) -> None:
        self.until_ms = until_ms
        self.asked = 0

    def polled(self, now_ms: float) -> None:
        """Of no interest."""

    def wants(self, topics: Any, now_ms: float) -> None:
        """Of no interest."""

    def next_step(self, now_ms: float) -> Idle:
        self.asked += 1
        return Idle(self.until_ms if now_ms < self.until_ms else now_ms + 10_000)


def test_a_pause_below_the_resolution_of_a_timer_does_not_loop() -> None:
    stage = Stage()
    stage.pass_time(1_000_000.0)  # where the next number that there is lies further away
    clock = stage.left.clock
    sleepy = Sleepy(clock.monotonic_ms() + 1e-7)
    assert sleepy.until_ms > clock.monotonic_ms()

    async def work() -> None:
        cluster = SimpleNamespace(on_change=lambda listener: lambda: None)
        await ConsumerCoordinator(
            "g",
            cast(Any, cluster),
            cast(Any, sleepy),
            cast(Any, None),
            clock,
            topics=lambda: (),
            visits=lambda: None,
            run_callback=cast(Any, None),
            on_failure=lambda error: None,
            on_loss=lambda: None,
        ).run()

    stage.left.spawn(work())
    stage.pass_time(1.0)
    assert sleepy.asked == 2
