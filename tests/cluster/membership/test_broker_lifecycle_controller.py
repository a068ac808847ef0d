"""The active controller ends completely, even if its close is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tests.timeouts import PATIENCE_S

from penstock.cluster.controller.store import ControllerClaim
from penstock.cluster.controller.topics import TopicDefaults
from penstock.cluster.image import ClusterImage
from penstock.cluster.image_propagation import ImageAck, ImageUpdate
from penstock.cluster.membership.broker_lifecycle import ActiveController, ControllerDependencies
from penstock.cluster.tree.layout import BrokerRegistration
from penstock.cluster.tree.tree import Tree
from penstock.runtime.randomness import SystemRandom


class _Link:
    """A broker that never answers."""

    def __init__(self) -> None:
        self.is_closed = False

    async def ask(self, *_: Any) -> Any:
        await asyncio.Event().wait()

    def close(self) -> None:
        self.is_closed = True


class _Links:
    def __init__(self) -> None:
        self.made: list[_Link] = []

    def to(self, _: int) -> _Link:
        self.made.append(_Link())
        return self.made[-1]


async def _take(_: ImageUpdate) -> ImageAck:
    raise AssertionError("the image has no broker 1")


def test_controller_whose_close_is_cancelled_publishes_nothing_more() -> None:
    """As when the session ends: the controller and its membership both notice."""

    async def story() -> None:
        links = _Links()
        dependencies = ControllerDependencies(SystemRandom(), cast(Any, None), TopicDefaults(), {}, cast(Any, links))
        active_controller = ActiveController(1, cast(Tree, None), ControllerClaim(3, 3), dependencies, _take)
        image = ClusterImage().with_controller(1, 3).with_broker(BrokerRegistration(2, (), epoch=7))
        active_controller.publisher.publish(image)
        resigning = asyncio.Event()

        async def resign(*, give_up: bool) -> None:
            resigning.set()
            await asyncio.Event().wait()  # a tree that does not answer

        active_controller.controller.resign = resign  # type: ignore[assignment,method-assign]
        closing = asyncio.create_task(active_controller.close(give_up=True))
        await resigning.wait()
        closing.cancel()
        await asyncio.wait([closing])
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=PATIENCE_S)
        assert [task for task in others if not task.done()] == []
        assert [link.is_closed for link in links.made] == [True] * len(links.made)

    asyncio.run(story())
