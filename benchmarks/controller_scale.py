"""Does a decision cost more because the cluster is larger? 100,000 partitions on 100 brokers, and one broker's end.

Rule: the cluster is made of images, as a controller holds them, with three replicas a partition; what is measured is
what a controller does between the news that a broker is gone and the bytes that every other broker is sent: who leads
now, the operations for the tree, the delta. It is done for a small cluster in which a broker leads as many partitions,
too: that the times are alike is the point. Then the same by a real controller and a publisher, with a tree in memory
and brokers that take whatever they are sent: from the end of a broker's node until all have the last image. One
process, no network, no disk; times are of the CPU, so that it matters little what else the machine does.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any, NamedTuple, TypeVar

from benchmarks.controller_memory_tree import MemoryTree
from penstock.cluster import paths
from penstock.cluster.broker_changes import brokers_changed
from penstock.cluster.configs import ResourceKind
from penstock.cluster.controller import Controller
from penstock.cluster.controller_claim import claim_controller
from penstock.cluster.hosting import Hosting
from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage
from penstock.cluster.image_delta import apply_delta, decode_delta, encode_delta, make_delta
from penstock.cluster.image_updates import AckError, ImageAck, ImageUpdate
from penstock.cluster.isr_changes import IsrRequest, put_isr
from penstock.cluster.layout import (
    BrokerRegistration,
    Endpoint,
    encode_broker,
    encode_broker_epochs,
    encode_cluster_id,
    encode_partition_state,
    encode_topic,
)
from penstock.cluster.partition_changes import Changes
from penstock.cluster.partition_rules import PartitionRules
from penstock.cluster.publishing import Publisher
from penstock.cluster.rebalance import plan_rebalance
from penstock.cluster.shutdowns import shut_down
from penstock.cluster.topics import state_of
from penstock.cluster.tree import Set
from penstock.cluster.tree_state import StoredNode
from penstock.runtime.clock import ManualClock
from penstock.runtime.randomness import SeededRandom

REPLICAS = 3
ROUNDS = 7
RULES = PartitionRules(min_insync_replicas=2)
T = TypeVar("T")


class Shape(NamedTuple):
    """`partitions` in all; on average a broker leads `partitions` / `brokers`."""

    brokers: int
    topics: int
    partitions: int


SHAPES = (
    Shape(6, 60, 6_000),
    Shape(100, 1_000, 100_000),
    Shape(100, 10, 100_000),
    Shape(100, 100_000, 100_000),
)


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
    return ClusterImage("c", 0, 7, brokers).with_topics(topics)


def _partition(number: int, brokers: int) -> PartitionImage:
    leader, distance = number % brokers, 1 + number // brokers % (brokers // REPLICAS)
    replicas = tuple((leader + distance * step) % brokers for step in range(REPLICAS))
    return PartitionImage(replicas, leader, 12, replicas, controller_epoch=7, state_version=40)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """The median in ms of CPU, and what came of it."""
    took = []
    for _ in range(ROUNDS):
        gc.collect()
        started = process_time()
        result = work()
        took.append((process_time() - started) * 1000)
    return median(took), result


def failover(shape: Shape) -> dict[str, Any]:
    """Broker 1 is gone."""
    image = build(shape)
    hosting = Hosting(image)
    led = sum(each.leader == 1 for topic in image.topics.values() for each in topic.partitions)
    decide_ms, decision = timed(
        lambda: brokers_changed(hosting, image.without_broker(1), (), (1,), (1,), lambda _: RULES)
    )
    delta_ms, data = timed(lambda: encode_delta(make_delta(image, decision.image)))
    apply_ms, after = timed(lambda: apply_delta(image, decode_delta(data)))
    if after != decision.image:
        raise AssertionError("the image that a broker makes of the delta is not the controller's")
    moved = Hosting(image)
    started = process_time()
    moved.follow(decision.image)
    follow_ms = (process_time() - started) * 1000
    written = sum(len(operation.data) for operation in decision.operations if isinstance(operation, Set))
    return {
        **_named(shape),
        "led": led,
        "operations": len(decision.operations),
        "state KB": round(written / 1000),
        "decide ms": round(decide_ms, 1),
        "index ms": round(follow_ms, 1),
        "delta ms": round(delta_ms, 1),
        "delta KB a broker": round(len(data) / 1000, 1),
        "apply ms": round(apply_ms, 1),
    }


def other_decisions(shape: Shape) -> dict[str, Any]:
    """What happens every day: an ISR, a thousand ISRs of a follower that lags, a broker that stops in good order."""
    image = build(shape)
    hosting = Hosting(image)
    keys = [(topic.name, index) for topic, indexes in hosting.of((1,)) for index in indexes]
    led = [key for key in keys if (found := image.partition(*key)) is not None and found.leader == 1]
    epochs = {broker: each.epoch for broker, each in image.brokers.items()}

    def shrink(count: int) -> int:
        changes = Changes(image)
        for name, index in led[:count]:
            partition = image.topics[name].partitions[index]
            isr = partition.isr[:-1]
            members = tuple(epochs[broker] for broker in isr)
            put_isr(changes, IsrRequest(name, index, 1, epochs[1], 12, 40, isr, members), epochs, RULES)
        return len(changes.decision().operations)

    one_ms, _ = timed(lambda: shrink(1))
    all_ms, operations = timed(lambda: shrink(1000))
    stop_ms, stopped = timed(lambda: shut_down(hosting, 1, epochs[1], lambda _: RULES))
    return {
        **_named(shape),
        "one ISR ms": round(one_ms, 2),
        f"{operations:,} ISRs ms": round(all_ms, 1),
        "shutdown ms": round(stop_ms, 1),
        "shutdown operations": len(stopped.decision.operations),
    }


def whole_image(shape: Shape) -> dict[str, Any]:
    gc.collect()
    tracemalloc.start()
    image = build(shape)
    image_bytes = tracemalloc.get_traced_memory()[0]
    hosting = Hosting(image)
    index_bytes = tracemalloc.get_traced_memory()[0] - image_bytes
    tracemalloc.stop()
    empty = ClusterImage()
    index_ms, _ = timed(lambda: Hosting(image))
    encode_ms, data = timed(lambda: encode_delta(make_delta(empty, image)))
    decode_ms, read = timed(lambda: apply_delta(empty, decode_delta(data)))
    if read != hosting.image:
        raise AssertionError("the image that was read is not the one that was written")
    return {
        **_named(shape),
        "image MB": round(image_bytes / 1e6, 1),
        "index MB": round(index_bytes / 1e6, 1),
        "index ms": round(index_ms),
        "whole image MB sent": round(len(data) / 1e6, 2),
        "bytes a partition": round(len(data) / shape.partitions, 1),
        "encode ms": round(encode_ms),
        "decode ms": round(decode_ms),
    }


def growth(shape: Shape) -> dict[str, Any]:
    """A plan for one more broker, racks apart: where a cluster heeds none, to heed them would be most of the plan."""
    image = build(shape)
    assignments = {
        (topic.name, index): each.replicas
        for topic in image.topics.values()
        for index, each in enumerate(topic.partitions)
    }
    racks: dict[int, str | None] = dict.fromkeys(range(shape.brokers + 1))
    started = process_time()
    plan = plan_rebalance(assignments, racks)
    return {
        **_named(shape),
        "plan s": round(process_time() - started, 2),
        "replicas copied": plan.copies,
        "a fair share": round(shape.partitions * REPLICAS / len(racks)),
        "partitions touched": len(plan.assignments),
    }


def tree_of(image: ClusterImage) -> MemoryTree:
    """The tree that tells this image."""
    nodes: dict[str, StoredNode] = {}

    def put(path: str, data: bytes = b"", version: int = 0, created: int = 1) -> None:
        for end in (index for index, letter in enumerate(path) if letter == "/" and index):
            nodes.setdefault(path[:end], StoredNode(b"", 0, None, 1))
        nodes[path] = StoredNode(data, version, None, created)

    for path in (*paths.PERSISTENT, paths.BROKER_EPOCHS):
        put(path)
    put(paths.CLUSTER_ID, encode_cluster_id(image.cluster_id))
    put(paths.BROKER_EPOCHS, encode_broker_epochs({broker: each.epoch for broker, each in image.brokers.items()}))
    for broker, registration in image.brokers.items():
        put(paths.broker(broker), encode_broker(registration), created=registration.epoch)
    for topic in image.topics.values():
        replicas = [each.assignment for each in topic.partitions]
        put(paths.topic(topic.name), encode_topic(topic.topic_id, replicas))
        for index, each in enumerate(topic.partitions):
            put(paths.partition_state(topic.name, index), encode_partition_state(state_of(each)), each.state_version)
    return MemoryTree(nodes.items())


class _NoConfig:
    def problem(self, kind: ResourceKind, name: str, value: str) -> str | None:
        return f"{name} is not needed here"

    def list_default(self, kind: ResourceKind, name: str) -> str | None:
        return None


async def _in_action(shape: Shape) -> dict[str, Any]:
    tree = tree_of(build(shape))
    sent: list[int] = []

    async def send(_: int, update: ImageUpdate) -> ImageAck:
        sent.append(len(update.delta))
        return ImageAck(AckError.OK, update.number)

    publisher = Publisher(send)

    async def everybody_has_it() -> None:
        while controller.image.brokers.keys() & {1} or publisher.behind():
            await asyncio.sleep(0)

    claim = await claim_controller(tree, 0, ManualClock())
    if claim is None:
        raise AssertionError("somebody else is the controller of a tree that nobody else has")
    controller = Controller(
        tree,
        claim,
        SeededRandom(0),
        _NoConfig(),
        broker_id=0,
        rules_of=lambda _, __: RULES,
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
    await tree.delete(paths.broker(1))
    await everybody_has_it()
    failover_ms = (process_time() - started) * 1000
    writes = tree.writes - 1
    await publisher.close()
    await controller.resign()
    return {
        **_named(shape),
        "start s": round(start_s, 2),
        "failover ms": round(failover_ms),
        "writes": writes,
        "KB sent a broker": round(sum(sent) / (shape.brokers - 1) / 1000, 1),
    }


def in_action(shape: Shape) -> dict[str, Any]:
    return asyncio.run(_in_action(shape))


def _named(shape: Shape) -> dict[str, Any]:
    return {"partitions": shape.partitions, "brokers": shape.brokers, "topics": shape.topics}


def main() -> None:
    from benchmarks.report import table

    table("A broker that leads 1,000 partitions is gone (medians)", [failover(shape) for shape in SHAPES])
    table("The same by a controller, from the end of the broker's node to the last answer", [*map(in_action, SHAPES)])
    table("Every day (medians)", [other_decisions(shape) for shape in SHAPES])
    table("The whole image (medians)", [whole_image(shape) for shape in SHAPES[1:]])
    table("A plan for one more broker", [growth(shape) for shape in SHAPES[:2]])


if __name__ == "__main__":
    main()
