"""Who leads a partition after brokers came or went. Pure.

Rule: the leader is the first of a partition's replicas that is in sync and alive; none, rather than one that may lack
records. Whenever the leader may have lost what it had not synced, because it went, or came back, the leader epoch
rises: so the same offset never has two contents under one epoch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from penstock.cluster import paths
from penstock.cluster.decision import Decision
from penstock.cluster.image import NO_STATE, ClusterImage, PartitionImage, TopicImage
from penstock.cluster.layout import NO_LEADER, encode_partition_state
from penstock.cluster.topics import state_of
from penstock.cluster.tree import Create, Operation, Set


def elect(
    partition: PartitionImage, live: Collection[int], restarted: Collection[int], controller_epoch: int
) -> PartitionImage | None:
    """The partition with a leader among the `live` brokers, None if it stays as it is.

    `restarted` are live brokers whose memory of before is gone.
    """
    if partition.state_version == NO_STATE:
        return _first_leader(partition, live, controller_epoch)
    if partition.leader in live and partition.leader not in restarted:
        return None
    isr = tuple(broker for broker in partition.isr if broker in live)
    leader = next((broker for broker in partition.replicas if broker in isr), NO_LEADER)
    if leader == partition.leader == NO_LEADER:
        return None
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        # Without a leader, the last ones in sync are remembered: one of them must come back.
        isr=partition.isr if leader == NO_LEADER else isr,
        controller_epoch=controller_epoch,
        state_version=partition.state_version + 1,
    )


def _first_leader(partition: PartitionImage, live: Collection[int], controller_epoch: int) -> PartitionImage | None:
    isr = tuple(broker for broker in partition.replicas if broker in live)
    if not isr:
        return None
    return replace(
        partition, leader=isr[0], leader_epoch=0, isr=isr, controller_epoch=controller_epoch, state_version=0
    )


def elect_all(image: ClusterImage, restarted: Collection[int]) -> Decision:
    """Leaders for all partitions. The operations are independent of one another: they may be done in parts.

    For a partition without a state, the node above the state must be there.
    """
    operations: list[Operation] = []
    topics: list[TopicImage] = []
    for topic in image.topics.values():
        after = list(topic.partitions)
        for index, partition in enumerate(topic.partitions):
            changed = elect(partition, image.brokers.keys(), restarted, image.controller_epoch)
            if changed is not None:
                after[index] = changed
                operations.append(_store(topic, index, partition, changed))
        if after != list(topic.partitions):
            topics.append(replace(topic, partitions=tuple(after)))
    return Decision(tuple(operations), image.with_topics(topics) if topics else image)


def _store(topic: TopicImage, index: int, before: PartitionImage, after: PartitionImage) -> Operation:
    path, data = paths.partition_state(topic.name, index), encode_partition_state(state_of(after))
    return Create(path, data) if before.state_version == NO_STATE else Set(path, data, before.state_version)
