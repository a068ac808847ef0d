"""Controllers on a real ZooKeeper: brokers that end, a controller that ends, an answer that never comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.cluster.cluster_stories import broker, run
from tests.cluster.controller.controller_stories import AnyConfig, Held, asks_isr, given, only
from tests.cluster.tree.tree_stories import Heard, Proxy, ZooKeeperTrees
from tests.timeouts import PATIENCE_S

from penstock.cluster.controller.controller import Controller
from penstock.cluster.controller.store import claim_controller, load_image
from penstock.cluster.controller.topics import NewTopic
from penstock.cluster.errors import NotController
from penstock.cluster.image import ClusterImage, PartitionImage
from penstock.cluster.membership.registration import initialize_tree, register_broker
from penstock.cluster.tree import layout
from penstock.cluster.tree.tree import Tree
from penstock.runtime.clock import SystemClock
from penstock.runtime.randomness import SeededRandom
from penstock.testing.zookeeper import ZooKeeperServer


class Waited(Held):
    """One whose images can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()
        self.publish = lambda _: self._news.set()

    async def until(self, condition: Callable[[ClusterImage], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self.controller.image):
                self._news.clear()
                await self._news.wait()


async def joined(trees: ZooKeeperTrees, broker_id: int) -> Tree:
    tree = await trees.open()
    await initialize_tree(tree, SeededRandom(0))
    await register_broker(tree, broker(broker_id), session_timeout_ms=4000)
    return tree


async def governing(tree: Tree, broker_id: int) -> Waited:
    claim = await claim_controller(tree, broker_id, SystemClock())
    assert claim is not None
    held = Waited()
    held.controller = Controller(
        tree,
        claim,
        SeededRandom(1),
        AnyConfig(),
        broker_id=broker_id,
        on_image=held.shown,
        on_lost=held.is_lost,
    )
    await held.controller.start()
    return held


def test_leaders_move_topics_end_and_the_second_controller_continues_where_the_first_was_replaced(
    zookeeper: ZooKeeperServer,
) -> None:
    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        one, two, three = [await joined(trees, each) for each in (1, 2, 3)]
        first = await governing(one, 1)
        [small, large] = await first.controller.create_topics([given("t", (3, 2, 1)), NewTopic("large", 600, 3)])
        assert (small.error, large.error) == (None, None)
        await three.close()
        await first.until(lambda image: 3 not in image.brokers)
        assert (only(first).leader, only(first).isr) == (2, (2, 1))
        assert await load_image(two) == first.controller.image
        three = await joined(trees, 3)
        await first.until(lambda image: 3 in image.brokers)
        [grown] = await first.controller.alter_isrs([asks_isr(first, (3, 2, 1))])
        assert isinstance(grown, PartitionImage)
        await two.delete(layout.CONTROLLER)
        second = await governing(two, 2)
        [failed] = await first.controller.create_topics([NewTopic("u", 1, 1)])
        assert isinstance(failed.error, NotController)
        assert only(second) == grown
        await second.controller.delete_topics(["large"])
        for broker_id in (1, 2, 3):
            assert large.topic is not None
            second.controller.report_removed(broker_id, "large", large.topic.topic_id)
        await second.until(lambda image: "large" not in image.topics)
        assert await load_image(one) == second.controller.image
        assert await one.children(layout.TOPICS) == ["t"]
        await second.controller.resign()
        for tree in (one, two, three):
            await tree.close()

    run(story())


@pytest.mark.parametrize("is_made", [True, False])
def test_topic_whose_making_was_not_answered_is_looked_for(zookeeper: ZooKeeperServer, is_made: bool) -> None:
    async def story() -> None:
        async with Proxy(zookeeper.port) as proxy:
            trees = ZooKeeperTrees(zookeeper.connect)
            tree = await joined(trees, 1)
            behind = ZooKeeperTrees(proxy.connect)
            behind.connect = trees.connect.replace(zookeeper.connect, proxy.connect)
            control = await behind.open()
            held = await governing(control, 1)
            heard = Heard()
            tree.watch(layout.partition_state_path("t", 0), heard)
            await tree.exists("/")
            if is_made:
                proxy.swallow_answers_from(b"/config/topics/t")
            else:
                proxy.cut()
            making = asyncio.create_task(held.controller.create_topics([given("t", (1,))]))
            if is_made:
                await heard.next()
                proxy.cut()
            proxy.heal()
            [made] = await making
            assert made.error is None
            assert only(held).leader == 1
            assert await load_image(tree) == held.controller.image
            await held.controller.resign()
            await control.close()
            await tree.close()

    run(story())


def test_tools_create_grow_configure_and_delete_topics_in_the_tree(zookeeper: ZooKeeperServer) -> None:
    """While the connection to ZooKeeper breaks: what is written meanwhile is noticed afterwards."""

    async def story() -> None:
        async with Proxy(zookeeper.port) as proxy:
            trees = ZooKeeperTrees(zookeeper.connect)
            tool = await joined(trees, 1)
            other = await joined(trees, 2)
            behind = ZooKeeperTrees(proxy.connect)
            behind.connect = trees.connect.replace(zookeeper.connect, proxy.connect)
            control = await behind.open()
            held = await governing(control, 1)
            document = b'{"version":1,"partitions":{"0":[2,1]}}'
            await tool.create(layout.topic_config_path("t"), b'{"version":1,"config":{"retention.ms":"7"}}')
            await tool.create(layout.topic_path("t"), document)
            await held.until(lambda image: "t" in image.topics)
            assert (only(held).leader, held.controller.image.topic_config("t")) == (2, {"retention.ms": "7"})
            await tool.set(layout.topic_path("t"), b'{"version":1,"partitions":{"0":[2,1],"1":[1,2]}}')
            await held.until(lambda image: len(image.topics["t"].partitions) == 2)
            proxy.cut()
            await tool.set(layout.topic_path("t"), b'{"version":1,"partitions":{"0":[2,1],"1":[1,2],"2":[1]}}')
            await tool.create(layout.topic_path("u"), document)
            proxy.heal()
            await held.until(lambda image: len(image.topics["t"].partitions) == 3 and "u" in image.topics)
            await tool.set(layout.topic_config_path("t"), b'{"version":1,"config":{}}')
            await tool.create(
                f"{layout.CONFIG_CHANGES}/config_change_0", b'{"version":1,"entity_type":"topics","entity_name":"t"}'
            )
            await held.until(lambda image: image.topic_config("t") == {})
            await tool.create(layout.deletion_path("u"))
            await held.until(lambda image: "u" in image.deleting)
            for broker_id in (1, 2):
                held.controller.report_removed(broker_id, "u", held.controller.image.topics["u"].topic_id)
            await held.until(lambda image: "u" not in image.topics)
            await held.controller.resign()
            assert await load_image(tool) == held.controller.image
            for tree in (control, tool, other):
                await tree.close()

    run(story())
