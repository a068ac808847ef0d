"""Large decisions in chunks: wherever the writing ends, tree and image agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.cluster.cluster_stories import Rules, run, with_tree
from tests.cluster.controller.decision_stories import brokers_changed, cluster, min_isr, registered, state

from penstock.cluster.controller import transaction
from penstock.cluster.controller.configs import ConfigEdit, EditKind, ResourceKind, edit_config
from penstock.cluster.controller.election import PartitionsByBroker, with_elections
from penstock.cluster.controller.failover import decide_membership_changes, find_membership_changes, shut_down
from penstock.cluster.controller.reassignment import alter_reassignments
from penstock.cluster.controller.store import load_image_without_brokers
from penstock.cluster.controller.topics import (
    NewTopic,
    Placement,
    add_partitions,
    create_topic,
    delete_topic,
    mark_deleted,
)
from penstock.cluster.controller.transaction import Decision, chunked
from penstock.cluster.image import NO_STATE, ClusterImage, PartitionImage
from penstock.cluster.tree import layout
from penstock.cluster.tree.embedded import EmbeddedTree
from penstock.cluster.tree.layout import encode_config, encode_partition_state, encode_topic
from penstock.cluster.tree.tree import Create, Delete, Operation, ensure_path
from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulated_files import SimulatedFiles

IMAGE = cluster((1, 2, 3, 4), t=[state((1, 2, 3))] * 4, u=[state((3, 2, 1), elr=(4,))] * 2).with_topic_config("t", {})
TWO = min_isr(IMAGE, 2)
PLACEMENT = Placement(SeededRandom(0))


def deletion() -> tuple[ClusterImage, Decision]:
    marked = mark_deleted(IMAGE, "t").image
    gone = delete_topic(marked, "t")
    return marked, gone._replace(operations=(*gone.operations, Delete(layout.deletion_path("t"))))


def lowered() -> Decision:
    edit = ConfigEdit("retention.ms", EditKind.SET, "1")
    return with_elections(edit_config(IMAGE, ResourceKind.TOPIC, "u", [edit], Rules()), ["u"])


def decisions() -> Iterator[tuple[str, ClusterImage, Decision]]:
    yield "creation", IMAGE, create_topic(IMAGE, NewTopic("new", 5, 3), bytes(range(16)), PLACEMENT, Rules())
    yield "growth", IMAGE, add_partitions(IMAGE, "t", 7, PLACEMENT)
    yield ("deletion", *deletion())
    yield "death", TWO, brokers_changed(PartitionsByBroker(TWO), TWO.without_broker(1), left=(1,))
    yield "stop", IMAGE, shut_down(PartitionsByBroker(IMAGE), 3, 103).decision
    moves = {("t", index): (2, 3) for index in range(4)} | {("u", 0): (4, 3, 2)}
    yield "moves", IMAGE, alter_reassignments(IMAGE, moves).decision
    yield "setting", IMAGE, lowered()
    found = {**IMAGE.brokers, 1: registered(1, epoch=999, is_emptied=True), 4: registered(4, rack="r")}
    del found[2]
    changes = find_membership_changes(TWO, found, {1: 101})
    partitions = PartitionsByBroker(TWO).of({*changes.joined, *changes.left})
    yield "brokers", TWO, decide_membership_changes(changes, partitions, {1: 101})


CASES = [pytest.param(image, decision, id=name) for name, image, decision in decisions()]


@pytest.mark.parametrize("at_once", [1, 2, 3, 7])
@pytest.mark.parametrize(("image", "decision"), CASES)
def test_each_chunk_leaves_a_tree_that_matches_its_image(
    monkeypatch: pytest.MonkeyPatch, image: ClusterImage, decision: Decision, at_once: int
) -> None:
    monkeypatch.setattr("penstock.cluster.controller.transaction.MAX_OPERATIONS", at_once)

    async def story(tree: EmbeddedTree) -> None:
        await write(tree, image)
        done: list[Operation] = []
        for part in chunked(image, decision):
            assert 0 < len(part.operations) <= at_once
            await tree.multi(part.operations)
            done += part.operations
            assert without_brokers(part.image) == without_brokers(await load_image_without_brokers(tree))
            assert part.image.names_by_id == {
                topic.topic_id: topic.name for topic in part.image.topics.values() if topic.topic_id != bytes(16)
            }
        assert tuple(done) == decision.operations
        assert part.image == decision.image

    run(with_tree(SimulatedFiles(), story))


def without_brokers(image: ClusterImage) -> ClusterImage:
    return replace(image, cluster_id="", controller_id=0, controller_epoch=0, brokers={}, shutting_down=frozenset())


async def write(tree: EmbeddedTree, image: ClusterImage) -> None:
    """The tree that tells this image."""
    for path in (*layout.PERSISTENT_PATHS, layout.BROKER_EPOCHS):
        await ensure_path(tree, path)
    for name in image.deleting:
        await tree.create(layout.deletion_path(name))
    for name, settings in image.topic_configs.items():
        await tree.create(layout.topic_config_path(name), encode_config(settings))
    for name, settings in image.broker_configs.items():
        await tree.create(layout.broker_config_path(name), encode_config(settings))
    for topic in image.topics.values():
        replicas = [partition.assignment for partition in topic.partitions]
        await tree.create(layout.topic_path(topic.name), encode_topic(topic.topic_id, replicas))
        await tree.create(layout.partitions_path(topic.name))
        for index, partition in enumerate(topic.partitions):
            await write_state(tree, topic.name, index, partition)


async def write_state(tree: EmbeddedTree, topic: str, index: int, partition: PartitionImage) -> None:
    path, data = layout.partition_state_path(topic, index), encode_partition_state(partition.state)
    await tree.create(layout.partition_path(topic, index))
    await tree.create(path, data)
    for _ in range(partition.state_version):
        await tree.set(path, data)


def test_brokers_leave_with_the_first_chunk_and_join_with_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.cluster.controller.transaction.MAX_OPERATIONS", 1)
    before = TWO.with_shutting_down(3)
    changes = find_membership_changes(before, {1: registered(1, epoch=999), 3: TWO.brokers[3]}, {})
    partitions = PartitionsByBroker(TWO).of({*changes.joined, *changes.left})
    *first, last = chunked(before, decide_membership_changes(changes, partitions, {}))
    assert len(first) > 3
    assert {tuple(part.image.brokers) for part in first} == {(3,)}
    assert tuple(last.image.brokers) == (1, 3)
    assert {part.image.shutting_down for part in (*first, last)} == {frozenset({3})}
    # The last operation says that the broker was handled.
    assert last.operations[-1].path == layout.BROKER_EPOCHS


def test_chunks_are_limited_by_size_and_what_fits_is_one_chunk() -> None:
    operations = tuple(Create(f"/config/topics/t{number}", bytes(100_000)) for number in range(12))
    image = replace(IMAGE, topic_configs={f"t{number}": {} for number in range(12)})
    found = list(chunked(IMAGE, Decision(operations, image, (("t", 0),))))
    assert [len(part.operations) for part in found] == [5, 5, 2]
    assert [part.unclean for part in found] == [(), (), (("t", 0),)]
    small = Decision(operations[:5], image)
    assert list(chunked(IMAGE, small)) == [small]
    nothing = Decision((), IMAGE)
    assert list(chunked(IMAGE, nothing)) == [nothing]
    assert transaction.MAX_OPERATIONS == 1000


def test_partitions_of_a_topic_created_in_part_have_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cluster.controller.transaction.MAX_OPERATIONS", 5)
    decision = create_topic(IMAGE, NewTopic("new", 3, 2), bytes(range(16)), PLACEMENT, Rules())
    first, *_ = chunked(IMAGE, decision)
    versions = [partition.state_version for partition in first.image.topics["new"].partitions]
    assert versions == [0, NO_STATE, NO_STATE]
