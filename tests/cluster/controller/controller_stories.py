"""A small vocabulary for stories about controllers: a tree with several sessions, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tests.cluster.cluster_stories import broker

from penstock.cluster.controller.configs import ResourceKind
from penstock.cluster.controller.controller import Controller
from penstock.cluster.controller.election import IsrRequest
from penstock.cluster.controller.store import claim_controller, load_image
from penstock.cluster.controller.topics import NewTopic, TopicDefaults
from penstock.cluster.errors import ConnectionLost, SessionExpired
from penstock.cluster.image import ClusterImage, PartitionImage
from penstock.cluster.membership.registration import initialize_tree, register_broker
from penstock.cluster.tree.tree import (
    Cancel,
    Event,
    Node,
    Operation,
    SessionWatcher,
    Watcher,
    watch_each_once,
)
from penstock.runtime.clock import ManualClock
from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulation.loop import process_loop
from penstock.testing.simulation.network import SimulatedNetwork
from penstock.testing.simulation.scheduler import Scheduler
from penstock.testing.simulation.tree import SimulatedTree, TreeService, open_simulated_tree

T = TypeVar("T")
HOST = "10.0.0.1"


class AnyConfig:
    def problem(self, kind: ResourceKind, name: str, value: str) -> str | None:
        return None

    def list_default(self, kind: ResourceKind, name: str) -> str | None:
        return None


class TestedTree:
    """A session with injected faults."""

    def __init__(self, tree: SimulatedTree) -> None:
        self.tree = tree
        self.writes: list[tuple[Operation, ...]] = []
        self.is_deaf = False
        self.before_write: Callable[[int], Awaitable[None]] | None = None
        """Awaited with the number of the write, from 0 on, before it is made; what it raises, the write raises."""
        self.loses_answer_of: set[int] = set()
        self._missed: list[Callable[[], None]] = []

    @property
    def session_id(self) -> int:
        return self.tree.session_id

    async def multi(self, operations: Sequence[Operation]) -> None:
        number = len(self.writes)
        if len(operations) > 1:  # A lone check changes nothing.
            self.writes.append(tuple(operations))
            if self.before_write is not None:
                await self.before_write(number)
        await self.tree.multi(operations)
        if number in self.loses_answer_of and len(operations) > 1:
            raise ConnectionLost("the answer was lost")

    def watch(self, path: str, watcher: Watcher) -> Cancel:
        def notify(event: Event) -> None:
            if self.is_deaf:
                self._missed.append(lambda: watcher(event))
            else:
                watcher(event)

        return self.tree.watch(path, notify)

    def watch_once(self, paths: Sequence[str], watcher: Watcher) -> None:
        watch_each_once(self, paths, watcher)

    def hear(self) -> None:
        """All that was missed, now."""
        self.is_deaf = False
        while self._missed:
            self._missed.pop(0)()

    def watch_session(self, watcher: SessionWatcher) -> Cancel:
        return self.tree.watch_session(watcher)

    async def get(self, path: str) -> Node:
        return await self.tree.get(path)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self.tree.get_many(paths)

    async def exists(self, path: str) -> bool:
        return await self.tree.exists(path)

    async def children(self, path: str) -> list[str]:
        return await self.tree.children(path)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        await self.tree.create(path, data, ephemeral=ephemeral)

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        return await self.tree.set(path, data, version)

    async def delete(self, path: str, version: int = -1) -> None:
        await self.tree.delete(path, version)

    async def close(self) -> None:
        await self.tree.close()


class Member:
    """A registered broker: its session and its epoch."""

    def __init__(self, broker_id: int, tree: TestedTree, epoch: int) -> None:
        self.broker_id = broker_id
        self.tree = tree
        self.epoch = epoch


class Held:
    """A controller, the images it has reported, and how often it was reported lost."""

    controller: Controller

    def __init__(self) -> None:
        self.images: list[ClusterImage] = []
        self.lost = 0
        self.publish: Callable[[ClusterImage], None] = lambda _: None

    def shown(self, _: ClusterImage, image: ClusterImage) -> None:
        self.images.append(image)
        self.publish(image)

    def is_lost(self) -> None:
        self.lost += 1


class Stage:
    """A tree, and the time."""

    def __init__(self, seed: int = 0) -> None:
        self.scheduler = Scheduler(seed)
        self.network = SimulatedNetwork(self.scheduler, seed)
        self.clock = ManualClock(1_700_000_000_000)
        self.service = TreeService(self.network)
        self.loop = process_loop(
            self.scheduler, "here", host=HOST, network=self.network, clock=self.clock, random=SeededRandom(seed)
        )

    def run(self, story: Awaitable[T]) -> T:
        async def whole() -> T:
            result = await story
            await asyncio.sleep(0.001)  # tasks that were just created begin
            return result

        return self.loop.run_until_complete(whole(), limit_s=self.scheduler.now_s + 300)

    async def session(self) -> TestedTree:
        return TestedTree(await open_simulated_tree(self.service))

    async def member(self, broker_id: int, **registration: Any) -> Member:
        """Register a broker."""
        tree = await self.session()
        await initialize_tree(tree, SeededRandom(0))
        own = replace(broker(broker_id), **registration)
        epoch = await register_broker(tree, own, session_timeout_ms=6000)
        return Member(broker_id, tree, epoch)

    async def members(self, *broker_ids: int) -> list[Member]:
        return [await self.member(each) for each in broker_ids]

    def die(self, *members: Member) -> None:
        """Expire their sessions."""
        for each in members:
            self.service.expire(each.tree.session_id)

    async def claim(self, member: Member) -> Held:
        """A controller that has not started."""
        claim = await claim_controller(member.tree, member.broker_id, self.clock)
        assert claim is not None
        held = Held()
        held.controller = Controller(
            member.tree,
            claim,
            SeededRandom(7),
            AnyConfig(),
            broker_id=member.broker_id,
            defaults=TopicDefaults(1, 3),
            on_image=held.shown,
            on_lost=held.is_lost,
        )
        return held

    async def controller(self, member: Member) -> Held:
        held = await self.claim(member)
        await held.controller.start()
        return held

    async def in_step(self, held: Held) -> None:
        """The tree holds what the controller says, and has shown."""
        tree = await self.session()
        found = replace(await load_image(tree), shutting_down=held.controller.image.shutting_down)
        assert found == held.controller.image
        assert held.images[-1] is held.controller.image
        await tree.close()


async def until(condition: Callable[[], object]) -> None:
    """Virtual time passes; a condition that never comes true ends the run at its limit."""
    while not condition():
        await asyncio.sleep(0.01)


def given(name: str, *replicas: Sequence[int], **configs: str) -> NewTopic:
    """A topic with these replicas, a partition each."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    return NewTopic(name, assignments=dict(enumerate(replicas)), configs=named)


def only(held: Held) -> PartitionImage:
    """Partition 0 of topic t."""
    return held.controller.image.topics["t"].partitions[0]


def asks_isr(held: Held, isr: Sequence[int], topic: str = "t", index: int = 0) -> IsrRequest:
    """What the leader of a partition sends that knows everything."""
    image = held.controller.image
    partition = image.topics[topic].partitions[index]
    leader = partition.leader
    epochs = tuple(image.brokers[each].epoch if each in image.brokers else -1 for each in isr)
    return IsrRequest(
        topic, index, leader, image.brokers[leader].epoch, partition.leader_epoch, partition.state_version,
        tuple(isr), epochs,
    )  # fmt: skip


def ends_session(stage: Stage, tree: TestedTree, at: int) -> None:
    """The process ends before its write of this number."""

    async def before(number: int) -> None:
        if number >= at:
            stage.service.expire(tree.session_id)
            raise SessionExpired("the process has ended")

    tree.before_write = before
