"""Who leads a partition after brokers came or went. Pure.

Rule: the leader is the first of a partition's replicas that is in sync and alive; else one that left the ISR when it
had all that was ever committed, which is still all, since too few are in sync to commit more (KIP-966); else nobody,
rather than one that may lack records, unless the topic asks for that. Whenever the leader may have lost what it had not
synced, because it went, or came back, the leader epoch rises: so the same offset never has two contents under one
epoch. Who is in sync is never nobody: the last ones are remembered, and one of them must come back.

    replicas 1 2 3, min.insync.replicas 2
    ISR 1 2 3, leader 1          1 dies:   ISR 2 3, leader 2
    ISR 2 3                      3 dies:   ISR 2, ELR 3          nothing is committed any more
    ISR 2, ELR 3                 2 dies:   ISR 2, ELR 3, leader none
                                 3 comes:  ISR 3, ELR 2, leader 3: it lacks nothing
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from penstock.cluster import paths
from penstock.cluster.decision import Decision
from penstock.cluster.image import NO_STATE, ClusterImage, PartitionImage, TopicImage
from penstock.cluster.layout import NO_LEADER, encode_partition_state
from penstock.cluster.partition_rules import PartitionRules
from penstock.cluster.topics import state_of
from penstock.cluster.tree import Create, Operation, Set

_NO_RULES = PartitionRules()


def elect(
    partition: PartitionImage,
    live: Collection[int],
    restarted: Collection[int],
    controller_epoch: int,
    rules: PartitionRules = _NO_RULES,
    forgetful: Collection[int] = (),
) -> PartitionImage | None:
    """The partition as it is with these brokers `live`, None if it stays as it is.

    `restarted` are live brokers whose memory of before is gone; `forgetful` those of them whose disk may lack what they
    had told to have, if it was not synced.
    """
    if partition.state_version == NO_STATE:
        return _first_leader(partition, live, controller_epoch)
    unsafe = () if rules.syncs_before_ack else forgetful
    isr = tuple(broker for broker in partition.isr if broker in live and broker not in unsafe)
    elr = _eligible(partition, isr, rules, unsafe)
    leader = partition.leader
    if leader not in isr or leader in restarted:
        leader = _first(partition.replicas, isr)
        if leader == NO_LEADER:
            leader = _first(partition.replicas, [broker for broker in elr if broker in live])
        if leader == NO_LEADER:
            leader = _last_resort(partition, live, rules)
        if leader not in isr:
            isr = partition.isr if leader == NO_LEADER else (leader,)
            elr = tuple(broker for broker in elr if broker not in isr)
    is_over = leader != partition.leader or (leader in restarted and leader != NO_LEADER)
    if not is_over and isr == partition.isr and elr == partition.elr:
        return None
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + is_over,
        isr=isr,
        elr=elr,
        controller_epoch=controller_epoch,
        state_version=partition.state_version + 1,
    )


def _first(replicas: Sequence[int], among: Iterable[int]) -> int:
    wanted = set(among)
    return next((broker for broker in replicas if broker in wanted), NO_LEADER)


def _eligible(
    partition: PartitionImage, isr: tuple[int, ...], rules: PartitionRules, unsafe: Collection[int]
) -> tuple[int, ...]:
    """Who has all that was committed without being in sync: those who left since too few are."""
    if len(isr) >= rules.enough_in_sync(partition):
        return ()
    return tuple(
        broker
        for broker in partition.replicas
        if broker not in isr and broker not in unsafe and (broker in partition.isr or broker in partition.elr)
    )


def _last_resort(partition: PartitionImage, live: Collection[int], rules: PartitionRules) -> int:
    if rules.unclean_election:
        return _first(partition.replicas, live)
    # It may have lost what was not synced, which its topic allows; and nobody has more.
    alone = len(partition.isr) == 1 and partition.isr[0] in live and not partition.elr
    return partition.isr[0] if alone else NO_LEADER


def eligible_after(partition: PartitionImage, isr: tuple[int, ...], rules: PartitionRules) -> tuple[int, ...]:
    """The ELR of a partition whose ISR becomes this."""
    return _eligible(partition, isr, rules, ())


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
                operations.append(stored(topic, index, partition, changed))
        if after != list(topic.partitions):
            topics.append(replace(topic, partitions=tuple(after)))
    return Decision(tuple(operations), image.with_topics(topics) if topics else image)


def stored(topic: TopicImage, index: int, before: PartitionImage, after: PartitionImage) -> Operation:
    """What writes a partition's new state, if it is still as it was."""
    path, data = paths.partition_state(topic.name, index), encode_partition_state(state_of(after))
    return Create(path, data) if before.state_version == NO_STATE else Set(path, data, before.state_version)
