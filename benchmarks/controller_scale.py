"""Does a decision of the controller cost more in a larger cluster? 100,000 partitions on 100 brokers; one broker dies.

The cluster is made of images, as a controller holds them, with three replicas per partition. The benchmark measures
what a controller does between the death of a broker and the bytes that it sends to the others: new leaders, operations
on the tree, the delta. It does the same for a small cluster in which a broker leads as many partitions: the times
should be equal. Then a real controller and publisher do it with a tree in memory (`MemoryTree`) and brokers that
accept everything. One process, no network, no disk; times are CPU times.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from time import process_time
from typing import NamedTuple, TypeVar

from benchmarks import results
from benchmarks.results import Better, Figure, Row
from penstock.cluster.controller.configs import ResourceKind
from penstock.cluster.controller.controller import Controller
from penstock.cluster.controller.election import Changes, IsrRequest, PartitionsByBroker, alter_isr, elect_partitions
from penstock.cluster.controller.failover import shut_down
from penstock.cluster.controller.store import claim_controller
from penstock.cluster.errors import NoNode
from penstock.cluster.image import (
    ClusterImage,
    PartitionImage,
    TopicImage,
    apply_delta,
    decode_delta,
    encode_delta,
    make_delta,
)
from penstock.cluster.image_propagation import AckError, ImageAck, ImageUpdate, Publisher
from penstock.cluster.placement import plan_rebalance
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import (
    DEFAULT_BROKER,
    BrokerRegistration,
    Endpoint,
    encode_broker,
    encode_broker_epochs,
    encode_cluster_id,
    encode_config,
    encode_partition_state,
    encode_topic,
)
from penstock.cluster.tree.tree import (
    ANY_VERSION,
    Cancel,
    Create,
    Delete,
    Node,
    Operation,
    SessionWatcher,
    Set,
    StoredNode,
    TreeState,
    Watcher,
    watch_each_once,
)
from penstock.runtime.clock import ManualClock
from penstock.runtime.randomness import SeededRandom

REPLICAS = 3
ROUNDS = 7
SETTINGS = {"min.insync.replicas": "2"}
_SESSION = 1
T = TypeVar("T")


class Shape(NamedTuple):
    """The size of a cluster; on average a broker leads `partitions` / `brokers`."""

    brokers: int
    topics: int
    partitions: int

    def __str__(self) -> str:
        return f"{self.partitions:,} partitions, {self.brokers} brokers, {self.topics:,} topics"


SHAPES = (
    Shape(6, 60, 6_000),
    Shape(100, 1_000, 100_000),
    Shape(100, 10, 100_000),
    Shape(100, 100_000, 100_000),
)

# ---------------------------------------------------------------------------------------------- the benchmark


def main(arguments: Sequence[str] = ()) -> None:
    recording = results.begin_plain(
        "controller_scale", "The controller's decisions, by the size of a cluster.", arguments
    )
    rows = [
        *rows_of("A broker that leads about 1,000 partitions is gone", failover, SHAPES),
        *rows_of("The same by a controller, from the end of the broker's node to the last answer", in_action, SHAPES),
        *rows_of("Everyday decisions", other_decisions, SHAPES),
        *rows_of("The whole image", whole_image, SHAPES[1:]),
        *rows_of("A plan for one more broker", growth, SHAPES[:2]),
    ]
    recording.keep(rows, notes=["times are of the CPU, medians"], settings={"rounds": ROUNDS, "replicas": REPLICAS})


def rows_of(table: str, measure: Callable[[Shape], list[Measured]], shapes: Sequence[Shape]) -> list[Row]:
    """A column for each cluster."""
    found = {str(shape): measure(shape) for shape in shapes}
    first = next(iter(found.values()))
    return [
        Row(
            each.work,
            each.unit,
            each.better,
            {name: measured[number].figure for name, measured in found.items()},
            str(shapes[-1]),
            table=table,
        )
        for number, each in enumerate(first)
    ]


class Measured(NamedTuple):
    """A figure of a cluster; `better` is None if it only describes the work."""

    work: str
    unit: str
    better: Better | None
    figure: Figure


def timed(work: Callable[[], T]) -> tuple[Figure, T]:
    """The median in ms of CPU, and the result."""
    took = []
    for _ in range(ROUNDS):
        gc.collect()
        started = process_time()
        result = work()
        took.append((process_time() - started) * 1000)
    return Figure.of(took), result


def _time(work: str, took_ms: Figure) -> Measured:
    return Measured(work, "ms", Better.LOWER, took_ms)


def _size(work: str, unit: str, amount: float, better: Better | None = Better.LOWER) -> Measured:
    return Measured(work, unit, better, Figure(amount))


# ---------------------------------------------------------------------------------------------- decisions


def failover(shape: Shape) -> list[Measured]:
    """The failover of broker 1."""
    image = build(shape)
    partitions_by_broker = PartitionsByBroker(image)
    led = sum(each.leader == 1 for topic in image.topics.values() for each in topic.partitions)
    decide_ms, decision = timed(lambda: elect_partitions(image.without_broker(1), partitions_by_broker.of((1,))))
    delta_ms, data = timed(lambda: encode_delta(make_delta(image, decision.image)))
    apply_ms, after = timed(lambda: apply_delta(image, decode_delta(data)))
    if after != decision.image:
        raise AssertionError("applying the delta does not give the controller's image")
    moved = PartitionsByBroker(image)
    started = process_time()
    moved.follow(decision.image)
    follow_ms = (process_time() - started) * 1000
    written = sum(len(operation.data) for operation in decision.operations if isinstance(operation, Set))
    return [
        _size("partitions that it led", "", led, None),
        _size("operations", "", len(decision.operations), None),
        _size("state written", "KB", written / 1000),
        _time("decide", decide_ms),
        _time("update the index", Figure(follow_ms)),
        _time("make and encode the delta", delta_ms),
        _size("delta sent to each broker", "KB", len(data) / 1000),
        _time("apply the delta", apply_ms),
    ]


def other_decisions(shape: Shape) -> list[Measured]:
    """Everyday decisions: one ISR, a thousand ISRs of a lagging follower, a controlled shutdown."""
    image = build(shape)
    partitions_by_broker = PartitionsByBroker(image)
    keys = [(topic.name, index) for topic, indexes in partitions_by_broker.of((1,)) for index in indexes]
    led = [key for key in keys if (found := image.partition(*key)) is not None and found.leader == 1]
    epochs = {broker: each.epoch for broker, each in image.brokers.items()}

    def shrink(count: int) -> int:
        changes = Changes(image)
        for name, index in led[:count]:
            partition = image.topics[name].partitions[index]
            isr = partition.isr[:-1]
            members = tuple(epochs[broker] for broker in isr)
            alter_isr(changes, IsrRequest(name, index, 1, epochs[1], 12, 40, isr, members))
        return len(changes.decision().operations)

    one_ms, _ = timed(lambda: shrink(1))
    all_ms, operations = timed(lambda: shrink(1000))
    stop_ms, stopped = timed(lambda: shut_down(partitions_by_broker, 1, epochs[1]))
    return [
        _time("change one ISR", one_ms),
        _time("change up to 1,000 ISRs", all_ms),
        _size("operations of these", "", operations, None),
        _time("controlled shutdown", stop_ms),
        _size("operations of the shutdown", "", len(stopped.decision.operations), None),
    ]


def whole_image(shape: Shape) -> list[Measured]:
    gc.collect()
    tracemalloc.start()
    image = build(shape)
    image_bytes = tracemalloc.get_traced_memory()[0]
    partitions_by_broker = PartitionsByBroker(image)
    index_bytes = tracemalloc.get_traced_memory()[0] - image_bytes
    tracemalloc.stop()
    empty = ClusterImage()
    index_ms, _ = timed(lambda: PartitionsByBroker(image))
    encode_ms, data = timed(lambda: encode_delta(make_delta(empty, image)))
    decode_ms, read = timed(lambda: apply_delta(empty, decode_delta(data)))
    if read != partitions_by_broker.image:
        raise AssertionError("the decoded image differs from the encoded one")
    return [
        _size("image in memory", "MB", image_bytes / 1e6),
        _size("index in memory", "MB", index_bytes / 1e6),
        _time("build the index", index_ms),
        _size("whole image sent", "MB", len(data) / 1e6),
        _size("sent per partition", "bytes", len(data) / shape.partitions),
        _time("encode", encode_ms),
        _time("decode", decode_ms),
    ]


def growth(shape: Shape) -> list[Measured]:
    """A plan for one more broker, without racks, which would dominate the plan."""
    image = build(shape)
    assignments = {
        (topic.name, index): each.replicas
        for topic in image.topics.values()
        for index, each in enumerate(topic.partitions)
    }
    racks: dict[int, str | None] = dict.fromkeys(range(shape.brokers + 1))
    started = process_time()
    plan = plan_rebalance(assignments, racks)
    planned_s = process_time() - started
    return [
        _size("plan", "s", planned_s),
        _size("replicas copied", "", plan.copies),
        _size("a fair share of them", "", shape.partitions * REPLICAS / len(racks), None),
        _size("partitions changed", "", len(plan.assignments), None),
    ]


# ---------------------------------------------------------------------------------------------- a controller in action


def in_action(shape: Shape) -> list[Measured]:
    return asyncio.run(_in_action(shape))


async def _in_action(shape: Shape) -> list[Measured]:
    tree = tree_of(build(shape))
    sent: list[int] = []

    async def send(_: int, update: ImageUpdate) -> ImageAck:
        sent.append(len(update.delta))
        return ImageAck(AckError.OK, update.number)

    publisher = Publisher(send)

    async def all_brokers_have_it() -> None:
        while controller.image.brokers.keys() & {1} or publisher.behind():
            await asyncio.sleep(0)

    claim = await claim_controller(tree, 0, ManualClock())
    if claim is None:
        raise AssertionError("another controller owns a private tree")
    controller = Controller(
        tree,
        claim,
        SeededRandom(0),
        _NoConfig(),
        broker_id=0,
        on_image=lambda _, image: publisher.publish(image),
    )
    started = process_time()
    await controller.start()
    while publisher.behind():
        await asyncio.sleep(0)
    start_s = process_time() - started
    sent.clear()
    tree.writes = 0
    gc.collect()
    started = process_time()
    await tree.delete(layout.broker_path(1))
    await all_brokers_have_it()
    failover_ms = (process_time() - started) * 1000
    writes = tree.writes - 1
    await publisher.close()
    await controller.resign()
    return [
        _size("start of the controller", "s", start_s),
        _size("failover", "ms", failover_ms),
        _size("writes to the tree", "", writes, None),
        _size("sent to each broker", "KB", sum(sent) / (shape.brokers - 1) / 1000),
    ]


class _NoConfig:
    def problem(self, kind: ResourceKind, name: str, value: str) -> str | None:
        return f"{name} is not needed here"

    def list_default(self, kind: ResourceKind, name: str) -> str | None:
        return None


# ---------------------------------------------------------------------------------------------- clusters


def build(shape: Shape) -> ClusterImage:
    brokers = {
        broker: BrokerRegistration(
            broker,
            (Endpoint("PLAINTEXT", "PLAINTEXT", f"broker-{broker}.example", 9092),),
            f"rack-{broker % 3}",
            1_700_000_000_000,
            epoch=1000 + broker,
        )
        for broker in range(shape.brokers)
    }
    of_topic = shape.partitions // shape.topics
    topics = []
    for number in range(shape.topics):
        first = number * of_topic
        partitions = tuple(_partition(first + index, shape.brokers) for index in range(of_topic))
        topics.append(TopicImage(f"topic-{number:06}", (number + 1).to_bytes(16, "big"), partitions))
    return ClusterImage("c", 0, 7, brokers).with_topics(topics).with_broker_config(DEFAULT_BROKER, SETTINGS)


def _partition(number: int, brokers: int) -> PartitionImage:
    leader, distance = number % brokers, 1 + number // brokers % (brokers // REPLICAS)
    replicas = tuple((leader + distance * step) % brokers for step in range(REPLICAS))
    return PartitionImage(replicas, leader, 12, replicas, controller_epoch=7, state_version=40)


def tree_of(image: ClusterImage) -> MemoryTree:
    """The tree of an image."""
    nodes: dict[str, StoredNode] = {}

    def put(path: str, data: bytes = b"", version: int = 0, created: int = 1) -> None:
        for end in (index for index, letter in enumerate(path) if letter == "/" and index):
            nodes.setdefault(path[:end], StoredNode(b"", 0, None, 1))
        nodes[path] = StoredNode(data, version, None, created)

    for path in (*layout.PERSISTENT_PATHS, layout.BROKER_EPOCHS):
        put(path)
    put(layout.CLUSTER_ID, encode_cluster_id(image.cluster_id))
    put(layout.BROKER_EPOCHS, encode_broker_epochs({broker: each.epoch for broker, each in image.brokers.items()}))
    for broker, registration in image.brokers.items():
        put(layout.broker_path(broker), encode_broker(registration), created=registration.epoch)
    for name, settings in image.broker_configs.items():
        put(layout.broker_config_path(name), encode_config(settings))
    for topic in image.topics.values():
        replicas = [each.assignment for each in topic.partitions]
        put(layout.topic_path(topic.name), encode_topic(topic.topic_id, replicas))
        for index, each in enumerate(topic.partitions):
            put(
                layout.partition_state_path(topic.name, index),
                encode_partition_state(each.state),
                each.state_version,
            )
    return MemoryTree(nodes.items())


class MemoryTree:
    """A `penstock.cluster.tree.tree.Tree` in memory."""

    session_id = _SESSION

    def __init__(self, nodes: Iterable[tuple[str, StoredNode]]) -> None:
        self._state = TreeState.of(nodes)
        self._watchers: dict[str, list[Watcher]] = {}
        self.writes = 0

    async def get(self, path: str) -> Node:
        node = self._state.node(path)
        if node is None:
            raise NoNode(path)
        return node.seen()

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        found = map(self._state.node, paths)
        return [None if node is None else node.seen() for node in found]

    async def exists(self, path: str) -> bool:
        return self._state.node(path) is not None

    async def children(self, path: str) -> list[str]:
        return self._state.children(path)

    async def multi(self, operations: Sequence[Operation]) -> None:
        change = self._state.prepare(operations, _SESSION)
        self._state.commit(change)
        self.writes += 1
        for event in change.events:
            for watcher in list(self._watchers.get(event.path, ())):
                watcher(event)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        await self.multi((Create(path, data, ephemeral),))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        await self.multi((Set(path, data, version),))
        return (await self.get(path)).version

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi((Delete(path, version),))

    def watch(self, path: str, watcher: Watcher) -> Cancel:
        watchers = self._watchers.setdefault(path, [])
        watchers.append(watcher)
        return lambda: watchers.remove(watcher)

    def watch_once(self, paths: Sequence[str], watcher: Watcher) -> None:
        watch_each_once(self, paths, watcher)

    def watch_session(self, watcher: SessionWatcher) -> Cancel:
        return lambda: None

    async def close(self) -> None:
        self._watchers.clear()


if __name__ == "__main__":
    main(sys.argv[1:])
