"""Who is in sync, as its leader asks for it. Pure.

Rule: a leader asks for exactly the state that it knows, by leader epoch and state version; whoever was overtaken is
refused, and learns the new state by itself. Nobody joins who is not alive under the broker epoch that the leader heard
it under: a broker that came back meanwhile may have lost what made it join (KIP-841, KIP-903).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from penstock.cluster.decision import Decision
from penstock.cluster.elections import eligible_after
from penstock.cluster.image import ClusterImage, PartitionImage
from penstock.cluster.partition_changes import Changes
from penstock.cluster.partition_rules import PartitionRules

ANY_EPOCH = -1


class IsrRefusal(Enum):
    """Why an ISR is not what was asked for."""

    UNKNOWN_PARTITION = "there is no such partition"
    NOT_LEADER = "another broker leads the partition"
    FENCED_LEADER_EPOCH = "the partition has been led in a later epoch"
    NEW_LEADER_EPOCH = "the partition has not been led in that epoch"
    INVALID_UPDATE_VERSION = "the partition's state has changed since"
    INELIGIBLE_REPLICA = "somebody in the ISR is not alive, not under that epoch, or about to stop"
    INVALID_REQUEST = "the ISR is empty, is without the leader, or names who is no replica"
    STALE_BROKER_EPOCH = "the one who asks is registered anew since"


@dataclass(frozen=True, slots=True)
class IsrRequest:
    """What the leader `broker` of `broker_epoch` asks for. Members of `isr` have their broker epochs, or ANY_EPOCH."""

    topic: str
    partition: int
    broker: int
    broker_epoch: int
    leader_epoch: int
    state_version: int
    isr: tuple[int, ...]
    isr_epochs: tuple[int, ...]


def alter_isr(
    image: ClusterImage, request: IsrRequest, epochs: Mapping[int, int], rules: PartitionRules
) -> Decision | IsrRefusal:
    """`epochs` are the live brokers' by id."""
    changes = Changes(image)
    refusal = put_isr(changes, request, epochs, rules)
    return changes.decision() if refusal is None else refusal


def put_isr(
    changes: Changes, request: IsrRequest, epochs: Mapping[int, int], rules: PartitionRules
) -> IsrRefusal | None:
    """One of several: a leader that loses a follower asks for thousands of ISRs at once."""
    partition = changes.partition(request.topic, request.partition)
    if partition is None:
        return IsrRefusal.UNKNOWN_PARTITION
    if epochs.get(request.broker) != request.broker_epoch:
        return IsrRefusal.STALE_BROKER_EPOCH
    refusal = _refusal(partition, request, epochs, changes.image.leaving)
    if refusal is not None:
        return refusal
    isr = tuple(broker for broker in partition.replicas if broker in request.isr)
    if set(isr) != set(partition.isr):
        elr = eligible_after(partition, isr, rules)
        changes.put(request.topic, request.partition, replace(partition, isr=isr, elr=elr, recovering=False))
    return None


def _refusal(
    partition: PartitionImage, request: IsrRequest, epochs: Mapping[int, int], leaving: Collection[int]
) -> IsrRefusal | None:
    if request.leader_epoch < partition.leader_epoch:
        return IsrRefusal.FENCED_LEADER_EPOCH
    if request.leader_epoch > partition.leader_epoch:
        return IsrRefusal.NEW_LEADER_EPOCH
    if partition.leader != request.broker:
        return IsrRefusal.NOT_LEADER
    if request.state_version != partition.state_version:
        return IsrRefusal.INVALID_UPDATE_VERSION
    members = set(request.isr)
    if request.broker not in members or not members <= set(partition.replicas) or len(members) != len(request.isr):
        return IsrRefusal.INVALID_REQUEST
    if len(request.isr_epochs) != len(request.isr):
        return IsrRefusal.INVALID_REQUEST
    for broker, epoch in zip(request.isr, request.isr_epochs, strict=True):
        # Who is in sync already may have gone just now: the controller hears of that by itself.
        joins = broker not in partition.isr
        if joins and (broker not in epochs or broker in leaving or epoch not in (ANY_EPOCH, epochs[broker])):
            return IsrRefusal.INELIGIBLE_REPLICA
        if not joins and broker in epochs and epoch not in (ANY_EPOCH, epochs[broker]):
            return IsrRefusal.INELIGIBLE_REPLICA
    return None
