"""A broker that stops in good order. Pure.

Rule: what it leads goes to another in-sync replica and it leaves every ISR, before it stops: then nobody waits for its
death to be noticed. Where too few would be in sync without it, it stays and the partition is named: the broker asks
again, as somebody may be catching up right now (the broker that was restarted before it); with `at_any_price` it leaves
there too. A partition that nobody else can lead is named as well; one without a second replica is not, as waiting would
not help.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from penstock.cluster.decision import Decision, TopicPartition
from penstock.cluster.elections import eligible_after
from penstock.cluster.errors import StaleBrokerEpoch
from penstock.cluster.hosting import Hosting
from penstock.cluster.image import ClusterImage, PartitionImage
from penstock.cluster.layout import NO_LEADER
from penstock.cluster.partition_changes import Changes
from penstock.cluster.partition_rules import PartitionRules, RulesOf
from penstock.cluster.preferred import can_lead


class Shutdown(NamedTuple):
    """What is decided, and which partitions still need the broker."""

    decision: Decision
    remaining: tuple[TopicPartition, ...]


def shut_down(
    hosting: Hosting, broker_id: int, broker_epoch: int, rules_of: RulesOf, *, at_any_price: bool = False
) -> Shutdown:
    """On the image of `hosting`. StaleBrokerEpoch if the broker that asks is not the one that is registered."""
    registered = hosting.image.brokers.get(broker_id)
    if registered is None or registered.epoch != broker_epoch:
        raise StaleBrokerEpoch(f"broker {broker_id} is not registered under the epoch {broker_epoch}")
    image = hosting.image.with_leaving(broker_id)
    changes = Changes(image)
    remaining: list[TopicPartition] = []
    for topic, indexes in hosting.of((broker_id,)):
        if topic.name in image.deleting:
            continue
        rules = rules_of(topic.name)
        for index in indexes:
            partition = topic.partitions[index]
            if broker_id not in partition.isr or len(partition.replicas) == 1:
                continue
            after = _without(image, partition, broker_id, rules, at_any_price)
            if after is None:
                remaining.append((topic.name, index))
            else:
                changes.put(topic.name, index, after)
    return Shutdown(changes.decision(), tuple(remaining))


def _without(
    image: ClusterImage, partition: PartitionImage, broker_id: int, rules: PartitionRules, at_any_price: bool
) -> PartitionImage | None:
    isr = tuple(broker for broker in partition.isr if broker != broker_id)
    enough = rules.enough_in_sync(partition)
    if not isr or (len(isr) < enough <= len(partition.isr) and not at_any_price):
        return None
    leader = partition.leader
    if leader == broker_id:
        leader = next(
            (broker for broker in partition.replicas if broker in isr and can_lead(image, partition, broker)), NO_LEADER
        )
        if leader == NO_LEADER:
            return None
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        isr=isr,
        elr=eligible_after(partition, isr, rules),
    )
