"""Who leads a partition after brokers came or went. Pure.

Rule: the leader is the first of a partition's replicas that is in sync and alive; else one that left the ISR when it
had all that was ever committed, which is still all, since too few are in sync to commit more (KIP-966); else nobody,
rather than one that may lack records, unless the topic asks for that. Whenever the leader may have lost what it had not
synced, because it went, or came back, the leader epoch rises: so the same offset never has two contents under one
epoch. Who is in sync is never nobody: the last ones are remembered, and one of them must come back; one that comes back
with another disk is not remembered, and when it was the last, the partition waits for somebody to decide.

    replicas 1 2 3, min.insync.replicas 2
    ISR 1 2 3, leader 1          1 dies:   ISR 2 3, leader 2
    ISR 2 3                      3 dies:   ISR 2, ELR 3          nothing is committed any more
    ISR 2, ELR 3                 2 dies:   ISR 2, ELR 3, leader none
                                 3 comes:  ISR 3, ELR 2, leader 3: it lacks nothing
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from penstock.cluster.decision import Decision
from penstock.cluster.image import NO_STATE, ClusterImage, PartitionImage
from penstock.cluster.layout import NO_LEADER
from penstock.cluster.partition_changes import Changes
from penstock.cluster.partition_rules import PartitionRules, RulesOf

_NO_RULES = PartitionRules()


def elect(
    partition: PartitionImage,
    live: Collection[int],
    restarted: Collection[int],
    controller_epoch: int,
    rules: PartitionRules = _NO_RULES,
    forgetful: Collection[int] = (),
    emptied: Collection[int] = (),
) -> PartitionImage | None:
    """The partition as it is with these brokers `live`, None if it stays as it is.

    `restarted` are live brokers whose memory of before is gone; `forgetful` those of them whose disk may lack what they
    had told to have, if it was not synced; `emptied` those whose disk may lack everything, as it is another one.
    """
    if partition.state_version == NO_STATE:
        return _first_leader(partition, live, controller_epoch)
    unsafe = emptied if rules.syncs_before_ack else {*forgetful, *emptied}
    if is_lost(partition):
        unsafe = {*unsafe, *partition.isr}
    isr = tuple(broker for broker in partition.isr if broker in live and broker not in unsafe)
    elr = _eligible(partition, isr, rules, unsafe)
    leader, recovering = partition.leader, partition.recovering
    if leader not in isr or leader in restarted:
        leader = _first(partition.replicas, isr)
        if leader == NO_LEADER:
            leader = _first(partition.replicas, [broker for broker in elr if broker in live])
        if leader == NO_LEADER:
            leader = _last_resort(partition, live, emptied, rules)
        if leader == NO_LEADER:
            isr, elr, recovering = _remembered(partition, elr, unsafe)
        elif leader not in isr:
            isr, elr = (leader,), _less(elr, (leader,))
        if leader != NO_LEADER:
            recovering = False
    is_over = leader != partition.leader or (leader in restarted and leader != NO_LEADER)
    if not is_over and (isr, elr, recovering) == (partition.isr, partition.elr, partition.recovering):
        return None
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + is_over,
        isr=isr,
        elr=elr,
        recovering=recovering,
        controller_epoch=controller_epoch,
        state_version=partition.state_version + 1,
    )


def is_lost(partition: PartitionImage) -> bool:
    """Whether nobody is left who is known to have all that was committed: only an unclean election helps. What the ISR
    has then is who had it last.
    """
    return partition.leader == NO_LEADER and partition.recovering


def _remembered(
    partition: PartitionImage, elr: tuple[int, ...], unsafe: Collection[int]
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """ISR, ELR and whether all is lost, of a partition without a leader: whose return is waited for.

    Who lost its disk must not be taken for one that is in sync when it is seen the next time.
    """
    waited_for = tuple(broker for broker in partition.isr if broker not in unsafe)
    if waited_for:
        return waited_for, _less(elr, waited_for), False
    return (elr, (), False) if elr else (partition.isr, (), True)


def _less(brokers: tuple[int, ...], without: Collection[int]) -> tuple[int, ...]:
    return tuple(broker for broker in brokers if broker not in without)


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


def _last_resort(
    partition: PartitionImage, live: Collection[int], emptied: Collection[int], rules: PartitionRules
) -> int:
    if rules.unclean_election:
        filled = _first(partition.replicas, [broker for broker in live if broker not in emptied])
        return _first(partition.replicas, live) if filled == NO_LEADER else filled
    if is_lost(partition) or partition.elr or any(each in emptied or each not in live for each in partition.isr):
        return NO_LEADER
    # They may have lost what was not synced, which their topic allows; and nobody has more.
    return _first(partition.replicas, partition.isr)


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


def elect_all(
    image: ClusterImage,
    restarted: Collection[int],
    rules_of: RulesOf = lambda _: _NO_RULES,
    forgetful: Collection[int] = (),
    emptied: Collection[int] = (),
) -> Decision:
    """Leaders for all partitions. The operations are independent of one another: they may be done in parts.

    For a partition without a state, the node above the state must be there.
    """
    changes = Changes(image)
    live = image.brokers.keys()
    for topic in image.topics.values():
        if topic.name in image.deleting:
            continue
        rules = rules_of(topic.name)
        for index, partition in enumerate(topic.partitions):
            after = elect(partition, live, restarted, image.controller_epoch, rules, forgetful, emptied)
            if after is not None:
                changes.put(topic.name, index, after)
    return changes.decision()
