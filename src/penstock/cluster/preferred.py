"""Elections that somebody asks for: back to the preferred leader, or of one that may lack records. Pure.

Rule: the preferred leader is a partition's first replica. It takes over when it is alive, in sync and not about to
stop; nothing is lost by that. An unclean election is only for a partition that nobody leads: whoever has all that was
committed comes first even then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

from penstock.cluster.decision import Decision, TopicPartition
from penstock.cluster.elections import elect, is_lost
from penstock.cluster.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
    Refusal,
    UnknownTopic,
)
from penstock.cluster.hosting import Hosting
from penstock.cluster.image import ClusterImage, PartitionImage
from penstock.cluster.layout import NO_LEADER
from penstock.cluster.partition_changes import Changes
from penstock.cluster.partition_rules import RulesOf


class ElectionKind(IntEnum):
    """By its number in the protocol."""

    PREFERRED = 0
    UNCLEAN = 1


class Elections(NamedTuple):
    """What is decided, and why some partitions stay as they are."""

    decision: Decision
    refusals: dict[TopicPartition, Refusal]


class Preference(NamedTuple):
    """What a broker is the preferred leader of, and which of that somebody else leads though it could."""

    total: int
    elsewhere: list[TopicPartition]

    @property
    def imbalance_percent(self) -> float:
        return 100 * len(self.elsewhere) / self.total if self.total else 0.0


def elect_leaders(
    image: ClusterImage, wanted: Iterable[TopicPartition], kind: ElectionKind, rules_of: RulesOf
) -> Elections:
    changes = Changes(image)
    refusals: dict[TopicPartition, Refusal] = {}
    for topic, index in wanted:
        try:
            partition = changes.partition(topic, index)
            if partition is None:
                raise UnknownTopic(f"there is no partition {index} of a topic {topic[:300]!r}")
            if kind is ElectionKind.PREFERRED:
                after = _preferred(image, partition)
            else:
                after = _unclean(image, topic, partition, rules_of)
            changes.put(topic, index, after)
        except Refusal as refusal:
            refusals[topic, index] = refusal
    return Elections(changes.decision(), refusals)


def preference(hosting: Hosting, broker_id: int) -> Preference:
    """Of one broker, so that a cluster is looked through in pieces."""
    image = hosting.image
    total = 0
    elsewhere: list[TopicPartition] = []
    for topic, indexes in hosting.of((broker_id,)):
        for index in indexes:
            partition = topic.partitions[index]
            if partition.replicas[0] != broker_id or topic.name in image.deleting:
                continue
            total += 1
            if partition.leader not in (broker_id, NO_LEADER) and can_lead(image, partition, broker_id):
                elsewhere.append((topic.name, index))
    return Preference(total, elsewhere)


def can_lead(image: ClusterImage, partition: PartitionImage, broker_id: int) -> bool:
    """Whether leadership may be given to this broker without need."""
    is_there = broker_id in image.brokers and broker_id not in image.leaving
    return is_there and broker_id in partition.isr and not is_lost(partition)


def led_by(partition: PartitionImage, leader: int) -> PartitionImage:
    """The partition in its next epoch."""
    return replace(partition, leader=leader, leader_epoch=partition.leader_epoch + 1)


def _preferred(image: ClusterImage, partition: PartitionImage) -> PartitionImage:
    broker_id = partition.replicas[0]
    if partition.leader == broker_id:
        raise ElectionNotNeeded(f"broker {broker_id} leads the partition already")
    if not can_lead(image, partition, broker_id):
        raise PreferredLeaderNotAvailable(f"broker {broker_id} is not alive, not in sync, or about to stop")
    return led_by(partition, broker_id)


def _unclean(image: ClusterImage, topic: str, partition: PartitionImage, rules_of: RulesOf) -> PartitionImage:
    if image.live_leader(partition) != NO_LEADER:
        raise ElectionNotNeeded(f"broker {partition.leader} leads the partition")
    rules = rules_of(topic)._replace(unclean_election=True)
    after = elect(partition, image.brokers.keys(), (), image.controller_epoch, rules)
    if after is None or after.leader == NO_LEADER:
        raise EligibleLeadersNotAvailable(f"none of the brokers {partition.replicas} is alive")
    return after
