"""A small vocabulary for stories about what a controller decides: clusters of brokers 1 to n, topics of states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.cluster.controller.election import PartitionRules, RulesOf
from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage
from penstock.cluster.tree.layout import BrokerRegistration

ONE: RulesOf = lambda _: PartitionRules()  # noqa: E731
TWO: RulesOf = lambda _: PartitionRules(min_insync_replicas=2)  # noqa: E731


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


def only(image: ClusterImage) -> PartitionImage:
    """Partition 0 of topic t."""
    return image.topics["t"].partitions[0]
