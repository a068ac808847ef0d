"""A small vocabulary for stories about what a controller decides: clusters of brokers 1 to n, topics of states."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from penstock.cluster.controller import election
from penstock.cluster.controller.election import Changes, IsrRequest, PartitionsByBroker, elect_partitions
from penstock.cluster.controller.transaction import Decision
from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage
from penstock.cluster.tree.layout import DEFAULT_BROKER, BrokerRegistration
from penstock.wire.protocol import ErrorCode


def registered(broker: int, **changes: Any) -> BrokerRegistration:
    return replace(BrokerRegistration(broker, (), epoch=100 + broker), **changes)


def state(replicas: Sequence[int] = (1, 2, 3), **changes: Any) -> PartitionImage:
    """Led by the first, all in sync, in epoch 5 and version 7."""
    return replace(PartitionImage(tuple(replicas), replicas[0], 5, tuple(replicas), state_version=7), **changes)


def topic_id(name: str) -> bytes:
    return name.encode().rjust(16, b"\x01")[-16:]


def cluster(live: Sequence[int], **topics: Sequence[PartitionImage]) -> ClusterImage:
    image = ClusterImage("c", 1, 9, {broker: registered(broker) for broker in live})
    return image.with_topics(TopicImage(name, topic_id(name), tuple(each)) for name, each in topics.items())


def min_isr(image: ClusterImage, least: int) -> ClusterImage:
    """The image with min.insync.replicas for all topics."""
    return with_settings(image, **{"min.insync.replicas": str(least)})


def with_settings(image: ClusterImage, **settings: str) -> ClusterImage:
    """The image with these settings for all topics."""
    return image.with_broker_config(DEFAULT_BROKER, settings)


def only(image: ClusterImage) -> PartitionImage:
    """Partition 0 of topic t."""
    return image.topics["t"].partitions[0]


def brokers_changed(
    partitions: PartitionsByBroker,
    image: ClusterImage,
    *,
    joined: Collection[int] = (),
    left: Collection[int] = (),
    uncleanly_stopped: Collection[int] = (),
    emptied: Collection[int] = (),
) -> Decision:
    """The elections when brokers join and leave; `image` has those that are live now."""
    return elect_partitions(image, partitions.of({*joined, *left}), joined, uncleanly_stopped, emptied)


def alter_isr(image: ClusterImage, request: IsrRequest) -> Decision | ErrorCode:
    """One request of a leader."""
    changes = Changes(image)
    error = election.alter_isr(changes, request)
    return changes.decision() if error is None else error
