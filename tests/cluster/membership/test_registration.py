"""A broker's registration and the claim to be the controller, on every kind of tree."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster.cluster_stories import broker, run
from tests.cluster.tree.tree_stories import Heard, Proxy, Trees, ZooKeeperTrees, live

from penstock.cluster.controller.store import ControllerClaim, claim_controller
from penstock.cluster.errors import BrokerIdInUse
from penstock.cluster.membership.registration import register_broker, store_initial_users
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import (
    BrokerRegistration,
    Endpoint,
    decode_broker,
    decode_config,
    decode_controller,
    decode_controller_epoch,
    encode_config,
    encode_controller_epoch,
)
from penstock.cluster.tree.tree import Tree
from penstock.cluster.tree.zookeeper.tree import open_zookeeper_tree
from penstock.runtime.clock import ManualClock
from penstock.testing.zookeeper import ZooKeeperServer

CLOCK = ManualClock(1_700_000_000_000)


async def registered(tree: Tree, broker_id: int = 0) -> int:
    return await register_broker(tree, broker(broker_id), session_timeout_ms=1000)


def test_registered_broker_is_found_and_every_registration_has_a_greater_epoch(trees: Trees) -> None:
    epochs: list[int] = []

    async def life(tree: Tree) -> None:
        epochs.append(await registered(tree))
        node = await tree.get(layout.broker_path(0))
        assert decode_broker(0, node.data) == broker(0)
        assert (node.created, node.owner) == (epochs[-1], tree.session_id)

    live(trees, life)
    live(trees, life)
    assert 0 < epochs[0] < epochs[1]


def test_initial_users_are_stored_once(trees: Trees) -> None:
    path = "/config/users/ad%20min"

    async def first(tree: Tree) -> None:
        await store_initial_users(tree, {"ad min": {"SCRAM-SHA-512": "a"}})
        node = await tree.get(path)
        assert decode_config(path, node.data) == {"SCRAM-SHA-512": "a"}
        await tree.set(path, encode_config({}), node.version)  # as a removed user leaves it

    async def second(tree: Tree) -> None:
        await store_initial_users(tree, {"ad min": {"SCRAM-SHA-512": "b"}, "other": {"SCRAM-SHA-256": "c"}})
        assert decode_config(path, (await tree.get(path)).data) == {}
        assert await tree.children("/config/users") == ["ad%20min", "other"]

    live(trees, first)
    live(trees, second)


def test_registering_again_in_the_same_session_changes_nothing(trees: Trees) -> None:
    async def story(tree: Tree) -> None:
        assert await registered(tree) == await registered(tree)

    live(trees, story)


def test_id_of_another_broker_is_rejected_with_its_address_and_start_time(zookeeper: ZooKeeperServer) -> None:
    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        first, second = await trees.open(), await trees.open()
        await registered(first)
        other = BrokerRegistration(0, (Endpoint("PLAINTEXT", "PLAINTEXT", "elsewhere", 9092),))
        with pytest.raises(BrokerIdInUse) as caught:
            await register_broker(second, other, session_timeout_ms=60_000)
        assert str(caught.value) == (
            "broker.id=0 is in use by another broker (PLAINTEXT://host0:9092, since 2023-11-14T22:13:20Z); "
            "give this one another id"
        )
        await first.close()
        await second.close()

    run(story())


def test_registration_waits_for_the_session_of_an_earlier_process(zookeeper: ZooKeeperServer) -> None:
    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        async with Proxy(zookeeper.port) as proxy:
            through = trees.connect.replace(zookeeper.connect, proxy.connect)
            before = await open_zookeeper_tree(through, session_timeout_ms=1000)
            old_epoch = await registered(before)
            proxy.cut()
            now = await trees.open()
            epoch = await registered(now)
            assert epoch > old_epoch
            assert (await now.get(layout.broker_path(0))).owner == now.session_id
            await now.close()
            await before.close()

    run(story())


def test_earlier_process_that_does_not_end_is_in_use(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cluster.membership.registration._GRACE_MS", 100)

    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        first, second = await trees.open(), await trees.open()
        await registered(first)
        with pytest.raises(BrokerIdInUse, match="host0:9092"):
            await register_broker(second, broker(0), session_timeout_ms=100)
        await first.close()
        await second.close()

    run(story())


def test_registration_whose_answer_was_lost_is_known_as_ones_own(zookeeper: ZooKeeperServer) -> None:
    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        async with Proxy(zookeeper.port) as proxy:
            near = await trees.open()
            far = await open_zookeeper_tree(trees.connect.replace(zookeeper.connect, proxy.connect))
            await near.create("/brokers")
            await near.create(layout.BROKER_IDS)
            heard = Heard()
            near.watch(layout.broker_path(0), heard)
            await near.exists("/")
            assert await far.exists(layout.BROKER_IDS)
            proxy.swallow_answers_from(b"listener_security_protocol_map")
            registering = asyncio.ensure_future(registered(far))
            await heard.next()
            proxy.cut()
            proxy.heal()
            epoch = await registering
            node = await near.get(layout.broker_path(0))
            assert (node.created, node.owner) == (epoch, far.session_id)
            await near.close()
            await far.close()

    run(story())


# --- the controller


def test_first_controller_has_epoch_one_and_each_later_one_a_greater(trees: Trees) -> None:
    claims: list[ControllerClaim | None] = []

    async def life(tree: Tree) -> None:
        claims.append(await claim_controller(tree, 7, CLOCK))
        assert decode_controller((await tree.get(layout.CONTROLLER)).data) == 7
        epoch = await tree.get(layout.CONTROLLER_EPOCH)
        assert claims[-1] == (decode_controller_epoch(epoch.data), epoch.version)
        # The session that has the claim gets the same one again.
        assert await claim_controller(tree, 7, CLOCK) == claims[-1]

    live(trees, life)
    live(trees, life)
    assert claims == [ControllerClaim(1, 0), ControllerClaim(2, 1)]


def test_of_many_that_claim_at_once_one_is_the_controller(zookeeper: ZooKeeperServer) -> None:
    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        sessions = [await trees.open() for _ in range(5)]
        for epoch in (1, 2):
            claims = await asyncio.gather(*(claim_controller(tree, at, CLOCK) for at, tree in enumerate(sessions)))
            (winner,) = [at for at, claim in enumerate(claims) if claim is not None]
            assert claims[winner] == ControllerClaim(epoch, epoch - 1)
            assert decode_controller((await sessions[0].get(layout.CONTROLLER)).data) == winner
            await sessions.pop(winner).close()
        for tree in sessions:
            await tree.close()

    run(story())


def test_epoch_that_is_raised_meanwhile_is_read_again(trees: Trees) -> None:
    class Overtaken:
        """A tree in which another controller comes and goes between the reading and the claim."""

        def __init__(self, tree: Tree) -> None:
            self._tree = tree
            self._is_done = False

        def __getattr__(self, name: str) -> object:
            return getattr(self._tree, name)

        async def multi(self, operations: object) -> None:
            if not self._is_done:
                self._is_done = True
                await self._tree.set(layout.CONTROLLER_EPOCH, encode_controller_epoch(8))
            await self._tree.multi(operations)  # type: ignore[arg-type]

    async def story(tree: Tree) -> None:
        await tree.create(layout.CONTROLLER_EPOCH, encode_controller_epoch(7))
        overtaken: Tree = Overtaken(tree)  # type: ignore[assignment]
        assert await claim_controller(overtaken, 0, CLOCK) == ControllerClaim(9, 2)

    live(trees, story)


def test_claim_whose_answer_was_lost_is_known_as_ones_own(zookeeper: ZooKeeperServer) -> None:
    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        async with Proxy(zookeeper.port) as proxy:
            near = await trees.open()
            far = await open_zookeeper_tree(trees.connect.replace(zookeeper.connect, proxy.connect))
            heard = Heard()
            near.watch(layout.CONTROLLER, heard)
            await near.exists("/")
            await far.exists("/")
            proxy.swallow_answers_from(b"kraftControllerEpoch")
            claiming = asyncio.ensure_future(claim_controller(far, 3, CLOCK))
            await heard.next()
            proxy.cut()
            proxy.heal()
            assert await claiming == ControllerClaim(1, 0)
            assert (await near.get(layout.CONTROLLER)).owner == far.session_id
            await near.close()
            await far.close()

    run(story())
