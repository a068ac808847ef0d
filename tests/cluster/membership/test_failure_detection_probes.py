"""Failure detection by probes: a controller notices when it is itself cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.timeouts import PATIENCE_S, until_async

from penstock.cluster.broker_links import Links
from penstock.cluster.image import ClusterImage
from penstock.cluster.membership.failure_detection import ProbeFailureDetector, Verdict, verdict
from penstock.cluster.tree.layout import BrokerRegistration

_SESSION_MS = 30


@pytest.mark.parametrize(
    ("brokers", "answering", "silent", "found"),
    [
        (3, 2, 1, Verdict.DEAD),
        (3, 1, 2, Verdict.CUT_OFF),
        (3, 1, 1, Verdict.WAIT),
        (2, 1, 1, Verdict.WAIT),
        (4, 2, 2, Verdict.WAIT),
        (5, 3, 2, Verdict.DEAD),
        (5, 2, 3, Verdict.CUT_OFF),
    ],
)
def test_majority_decides(brokers: int, answering: int, silent: int, found: Verdict) -> None:
    assert verdict(brokers, answering, silent) is found


class _Members:
    broker_id = 1

    def __init__(self, controller: int = 1) -> None:
        self.controller = controller
        self.image = ClusterImage().with_controller(controller, 1)
        self.listeners: list[Callable[[ClusterImage, ClusterImage], None]] = []
        self.dead: list[tuple[int, int]] = []
        self.rests_s: list[float] = []
        self.happened = asyncio.Event()

    def listen(self, listener: Callable[[ClusterImage, ClusterImage], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def show(self, **epochs: int) -> None:
        old, self.image = self.image, ClusterImage().with_controller(self.controller, 1)
        for name, epoch in epochs.items():
            self.image = self.image.with_broker(BrokerRegistration(int(name[1:]), (), epoch=epoch))
        for listener in self.listeners:
            listener(old, self.image)

    async def declare_dead(self, broker_id: int, epoch: int) -> None:
        self.dead.append((broker_id, epoch))
        self.happened.set()

    async def step_down(self, rest_s: float) -> None:
        self.rests_s.append(rest_s)
        self.happened.set()


class _Link:
    def __init__(self, links: _Links, broker_id: int) -> None:
        self._links, self._id = links, broker_id

    async def ask(self, *_: Any) -> Any:
        self._links.asked.setdefault(self._id, asyncio.Event()).set()
        if self._id in self._links.silent:
            await asyncio.Event().wait()

    def close(self) -> None:
        pass


class _Links:
    """Brokers that answer, but for those that are silent."""

    def __init__(self, *silent: int) -> None:
        self.silent = set(silent)
        self.asked: dict[int, asyncio.Event] = {}

    def to(self, broker_id: int) -> _Link:
        return _Link(self, broker_id)


def _probe_detector(members: _Members, links: _Links) -> ProbeFailureDetector:
    made = ProbeFailureDetector(members, cast(Links, links), _SESSION_MS)
    made.start()
    return made


def test_one_silent_broker_of_three_is_declared_dead_once() -> None:
    async def story() -> None:
        members, links = _Members(), _Links(3)
        detector = _probe_detector(members, links)
        members.show(b1=5, b2=6, b3=7)
        async with asyncio.timeout(PATIENCE_S):
            await members.happened.wait()
            members.happened.clear()
            links.asked.clear()
            members.show(b1=5, b2=6, b3=8)  # it is alive and registers again
            for _ in range(4):
                await until_async(lambda: 3 in links.asked, "it is asked again")
                links.asked.clear()
        assert (members.dead, members.rests_s) == ([(3, 7)], [])
        await detector.close()

    asyncio.run(story())


def test_controller_without_answers_steps_down() -> None:
    async def story() -> None:
        members = _Members()
        detector = _probe_detector(members, _Links(2, 3))
        members.show(b1=5, b2=6, b3=7)
        async with asyncio.timeout(PATIENCE_S):
            await members.happened.wait()
            await asyncio.wait([task for _, task in detector._watches.values()])
        assert (members.dead, members.rests_s[0]) == ([], _SESSION_MS / 1000)
        assert set(detector._watches) == {2, 3}, "no broker is probed again until there is another controller epoch"
        await detector.close()

    asyncio.run(story())


def test_only_the_controller_probes() -> None:
    async def story() -> None:
        members, links = _Members(controller=2), _Links()
        detector = _probe_detector(members, links)
        members.show(b1=5, b2=6, b3=7)
        await asyncio.sleep(0)
        assert (detector._watches, links.asked) == ({}, {})
        await detector.close()

    asyncio.run(story())
