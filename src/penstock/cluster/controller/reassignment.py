"""Moving partitions to other brokers (KIP-455). Pure.

A partition that moves has the replicas of both assignments, the target first, and lists which are added and removed.
When all added replicas and enough of the target are in sync, the others are dropped, together with a new leader if the
old one is among them. A move can be redirected or cancelled at any time, but never so that no in-sync replica is left.

    replicas 1 2 3                           wanted 2 3 4
    replicas 2 3 4 1, adding 4, removing 1   4 copies everything and joins the ISR
    replicas 2 3 4                           1 deletes its log

Old tools request moves by a document at /admin/reassign_partitions. It lists the moves that are under way and
disappears with the last of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.cluster.controller.election import Changes, PartitionRules, can_lead, eligible_after, partition_rules
from penstock.cluster.controller.transaction import Decision, TopicPartition
from penstock.cluster.errors import (
    ApiException,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    UnknownTopic,
)
from penstock.cluster.image import NO_STATE, ClusterImage, PartitionImage
from penstock.cluster.tree.layout import NO_LEADER, REASSIGN_PARTITIONS, encode_reassignment
from penstock.cluster.tree.tree import Delete, Operation, Set

WantedReplicas = Mapping[TopicPartition, Sequence[int] | None]
"""The replicas that partitions are to have; None cancels a move."""


class Reassignment(NamedTuple):
    """`errors` says why some partitions stay as they are."""

    decision: Decision
    errors: dict[TopicPartition, ApiException]


class MoveProgress(NamedTuple):
    """A move that is under way; `behind` are the added replicas that are not in sync yet."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    behind: tuple[int, ...]


def alter_reassignments(image: ClusterImage, wanted: WantedReplicas) -> Reassignment:
    """Start, redirect or cancel moves; those that have nothing to copy are completed in the same step."""
    changes = Changes(image)
    errors: dict[TopicPartition, ApiException] = {}
    for (topic, index), replicas in wanted.items():
        try:
            partition = changes.partition(topic, index)
            if partition is None:
                raise UnknownTopic(f"topic {topic[:300]!r} has no partition {index}")
            target = _original(partition) if replicas is None else _checked(image, partition, replicas)
            rules = partition_rules(image, topic)
            changes.put(topic, index, _aimed(image, partition, target, rules))
            _complete(changes, topic, index, rules)
        except ApiException as error:
            errors[topic, index] = error.with_traceback(None)
    return Reassignment(changes.decision(), errors)


def complete_reassignments(image: ClusterImage, moving: Iterable[TopicPartition]) -> Decision:
    """Complete those that can be completed: after an ISR grew, or brokers joined."""
    changes = Changes(image)
    for topic, index in moving:
        _complete(changes, topic, index, partition_rules(image, topic))
    return changes.decision()


def progress(image: ClusterImage, moving: Iterable[TopicPartition]) -> list[MoveProgress]:
    """Of those partitions that are being moved."""
    found: list[MoveProgress] = []
    for topic, index in moving:
        partition = image.partition(topic, index)
        if partition is not None and _is_moving(partition):
            behind = tuple(broker for broker in partition.adding if broker not in partition.isr)
            found.append(MoveProgress(topic, index, partition.replicas, partition.adding, partition.removing, behind))
    return found


def remaining_moves(
    image: ClusterImage, requested: Mapping[TopicPartition, tuple[int, ...]]
) -> dict[TopicPartition, tuple[int, ...]]:
    """The requested moves that are under way, to the replicas that were requested."""
    return {
        key: replicas
        for key, replicas in requested.items()
        if (partition := image.partition(*key)) is not None
        and _is_moving(partition)
        and _less(partition.replicas, partition.removing) == replicas
    }


def store_requested_moves(remaining: Mapping[TopicPartition, tuple[int, ...]]) -> Operation:
    """Update the document of old tools, or delete it with its last move."""
    path = REASSIGN_PARTITIONS
    return Set(path, encode_reassignment(remaining)) if remaining else Delete(path)


def _is_moving(partition: PartitionImage) -> bool:
    return bool(partition.adding or partition.removing)


def _original(partition: PartitionImage) -> tuple[int, ...]:
    if not _is_moving(partition):
        raise NoReassignmentInProgress("the partition is not being moved")
    return _less(partition.replicas, partition.adding)


def _checked(image: ClusterImage, partition: PartitionImage, replicas: Sequence[int]) -> tuple[int, ...]:
    if not replicas:
        raise InvalidReplicaAssignment("a partition needs at least one replica")
    if len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment(f"replicas {list(replicas)} name a broker twice")
    unknown = [broker for broker in replicas if broker not in partition.replicas and broker not in image.brokers]
    if unknown:
        raise InvalidReplicaAssignment(f"broker {unknown[0]} is not available")
    return tuple(replicas)


def _aimed(
    image: ClusterImage, partition: PartitionImage, target: tuple[int, ...], rules: PartitionRules
) -> PartitionImage:
    """The partition on its way to `target`; a move under way is redirected."""
    original = _less(partition.replicas, partition.adding)
    removing = _less(original, target)
    aimed = replace(partition, replicas=(*target, *removing), adding=_less(target, original), removing=removing)
    if partition.state_version == NO_STATE:
        return replace(aimed, replicas=target, adding=(), removing=())
    return _kept_by(image, aimed, aimed.replicas, rules)


def _complete(changes: Changes, topic: str, index: int, rules: PartitionRules) -> None:
    partition = changes.partition(topic, index)
    if partition is None or not _is_moving(partition):
        return
    target = _less(partition.replicas, partition.removing)
    kept = [broker for broker in partition.isr if broker in target]
    if not set(partition.adding) <= set(kept) or len(kept) < min(rules.min_insync_replicas, len(target)):
        return
    done = replace(partition, replicas=target, adding=(), removing=())
    try:
        after = _kept_by(changes.image, done, target, rules)
    except InvalidReplicaAssignment:
        return
    # A partition that has a leader must not lose it to the completion of its move.
    if after.leader != NO_LEADER or partition.leader == NO_LEADER:
        changes.put(topic, index, after)


def _kept_by(
    image: ClusterImage, partition: PartitionImage, replicas: Collection[int], rules: PartitionRules
) -> PartitionImage:
    """The partition with only these replicas in its state."""
    isr = tuple(broker for broker in partition.isr if broker in replicas)
    if not isr:
        raise InvalidReplicaAssignment(
            f"none of the in-sync replicas {partition.isr} would be left, so committed records would be lost"
        )
    leader = partition.leader
    if leader != NO_LEADER and leader not in replicas:
        alive = [broker for broker in replicas if broker in isr and broker in image.brokers]
        staying = [broker for broker in alive if can_lead(image, partition, broker)]
        leader = next(iter(staying or alive), NO_LEADER)
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        isr=isr,
        elr=eligible_after(partition, isr, rules),
    )


def _less(brokers: Iterable[int], without: Collection[int]) -> tuple[int, ...]:
    return tuple(broker for broker in brokers if broker not in without)
