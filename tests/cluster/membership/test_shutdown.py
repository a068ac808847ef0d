"""Controlled shutdown: what it waits for, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from tests.replication.replica_stories import TOPIC, cluster
from tests.timeouts import NEVER_MS

from penstock.cluster.broker_links import LinkLost
from penstock.cluster.controller.controller import Controller
from penstock.cluster.image import ClusterImage
from penstock.cluster.membership.shutdown import controlled_shutdown
from penstock.runtime.clock import SystemClock
from penstock.wire.types import Message

Left = Sequence[tuple[str, int]]


class Stopping:
    """Broker 1, which leads; with `shut_down` it is the controller itself."""

    broker_id, broker_epoch = 1, 101

    def __init__(self, image: ClusterImage, shut_down: Callable[[], Awaitable[Left]] | None = None) -> None:
        self.image = image
        self.asked = 0
        self.silent: float | None = None
        self._shut_down = shut_down

    @property
    def controller(self) -> Controller | None:
        if self._shut_down is None:
            return None
        return cast(Controller, SimpleNamespace(shut_down=self._count))

    async def _count(self, broker_id: int, broker_epoch: int) -> Left:
        self.asked += 1
        assert self._shut_down is not None
        return await self._shut_down()

    async def ask_controller(self, api_key: int, version: int, message: Message, timeout_ms: float) -> Message:
        self.asked += 1
        raise LinkLost("no broker is the controller")

    def tree_unreachable_ms(self) -> float | None:
        return self.silent

    def note_tree_unreachable(self) -> None:
        self.silent = self.silent or 0.0


def leave(stopping_broker: Stopping) -> bool:
    """Whether no partition needs it any more; the time limit is longer than any test."""
    return asyncio.run(controlled_shutdown(stopping_broker, SystemClock(), NEVER_MS))


def test_shutdown_waits_for_a_follower_that_is_catching_up() -> None:
    answers: list[Left] = [[(TOPIC, 0)], [(TOPIC, 0)], []]

    async def shut_down() -> Left:
        return answers.pop(0)

    stopping_broker = Stopping(cluster(1, 5, isr=(1,)), shut_down)
    assert leave(stopping_broker)
    assert stopping_broker.asked == 3


def test_shutdown_does_not_wait_without_another_replica(caplog: pytest.LogCaptureFixture) -> None:
    async def shut_down() -> Left:
        return [(TOPIC, 0)]

    stopping_broker = Stopping(cluster(1, 5, isr=(1,), replicas=(1,)), shut_down)
    assert not leave(stopping_broker)
    assert stopping_broker.asked == 1
    assert "controlled shutdown incomplete, stopping anyway: broker=1 partitions=1" in caplog.text


def test_shutdown_does_not_wait_for_a_tree_that_was_unreachable_for_long(caplog: pytest.LogCaptureFixture) -> None:
    async def never() -> Left:
        await asyncio.Event().wait()
        return []

    for stopping_broker in (Stopping(cluster(1, 5), never), Stopping(cluster(1, 5))):
        stopping_broker.silent = 60_000
        assert not leave(stopping_broker)
        assert stopping_broker.asked == 1
    assert caplog.text.count("controlled shutdown failed") == 2
