"""Moving partitions to other brokers (KIP-455). Pure.

Theory: a partition that is moved has the replicas of both worlds, the wanted ones first, and says which of them are
being added and which removed. When all that are added are in sync, and enough of the wanted ones are, the others go, in
one step with a new leader if the old one is among them.

    replicas 1 2 3                           wanted 2 3 4
    replicas 2 3 4 1, adding 4, removing 1   4 copies everything, and joins the ISR
    replicas 2 3 4                           1 removes what it has

Rule: a move may be turned to another aim, or taken back, at any time; but never so that nobody in sync is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.cluster import paths
from penstock.cluster.decision import Decision, TopicPartition
from penstock.cluster.elections import eligible_after
from penstock.cluster.errors import InvalidReplicaAssignment, NoReassignmentInProgress, Refusal, UnknownTopic
from penstock.cluster.image import NO_STATE, ClusterImage, PartitionImage
from penstock.cluster.layout import NO_LEADER
from penstock.cluster.partition_changes import Changes
from penstock.cluster.partition_rules import PartitionRules, RulesOf
from penstock.cluster.preferred import can_lead
from penstock.cluster.reassignment_documents import encode_reassignment
from penstock.cluster.tree import Delete, Operation, Set

Wanted = Mapping[TopicPartition, Sequence[int] | None]
"""The replicas that partitions shall have; None takes a move back."""


class Reassignment(NamedTuple):
    """What is decided, and why some partitions stay as they are."""

    decision: Decision
    refusals: dict[TopicPartition, Refusal]


class MoveProgress(NamedTuple):
    """A move that is under way; `behind` are those that are added and not in sync yet."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    behind: tuple[int, ...]


def alter_reassignments(image: ClusterImage, wanted: Wanted, rules_of: RulesOf) -> Reassignment:
    """Begin, turn or take back moves; those for which there is nothing to copy are finished in the same step."""
    changes = Changes(image)
    refusals: dict[TopicPartition, Refusal] = {}
    for (topic, index), replicas in wanted.items():
        try:
            partition = changes.partition(topic, index)
            if partition is None:
                raise UnknownTopic(f"there is no partition {index} of a topic {topic[:300]!r}")
            target = _original(partition) if replicas is None else _checked(image, partition, replicas)
            rules = rules_of(topic)
            changes.put(topic, index, _aimed(image, partition, target, rules))
            _complete(changes, topic, index, rules)
        except Refusal as refusal:
            refusals[topic, index] = refusal
    return Reassignment(changes.decision(), refusals)


def complete_reassignments(image: ClusterImage, moving: Iterable[TopicPartition], rules_of: RulesOf) -> Decision:
    """Finish what can be finished of these: after an ISR grew, or brokers came."""
    changes = Changes(image)
    for topic, index in moving:
        _complete(changes, topic, index, rules_of(topic))
    return changes.decision()


def progress(image: ClusterImage, moving: Iterable[TopicPartition]) -> list[MoveProgress]:
    """Of those of the partitions that are being moved."""
    found: list[MoveProgress] = []
    for topic, index in moving:
        partition = image.partition(topic, index)
        if partition is not None and _is_moving(partition):
            behind = tuple(broker for broker in partition.adding if broker not in partition.isr)
            found.append(MoveProgress(topic, index, partition.replicas, partition.adding, partition.removing, behind))
    return found


def remaining_request(image: ClusterImage, requested: Mapping[TopicPartition, Sequence[int]]) -> Operation | None:
    """What becomes of the document by which old tools ask for moves: it lists those that are under way, and goes with
    the last of them. None if it stays as it is.
    """
    left = {
        key: replicas
        for key, replicas in requested.items()
        if (partition := image.partition(*key)) is not None and _is_moving(partition)
    }
    if not left:
        return Delete(paths.REASSIGN_PARTITIONS)
    return None if len(left) == len(requested) else Set(paths.REASSIGN_PARTITIONS, encode_reassignment(left))


def _is_moving(partition: PartitionImage) -> bool:
    return bool(partition.adding or partition.removing)


def _original(partition: PartitionImage) -> tuple[int, ...]:
    if not _is_moving(partition):
        raise NoReassignmentInProgress("the partition is not being moved")
    return _less(partition.replicas, partition.adding)


def _checked(image: ClusterImage, partition: PartitionImage, replicas: Sequence[int]) -> tuple[int, ...]:
    if not replicas:
        raise InvalidReplicaAssignment("a partition has at least one replica")
    if len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment("the same broker is given twice")
    unknown = [broker for broker in replicas if broker not in partition.replicas and broker not in image.brokers]
    if unknown:
        raise InvalidReplicaAssignment(f"broker {unknown[0]} is to hold the partition, and is not there")
    return tuple(replicas)


def _aimed(
    image: ClusterImage, partition: PartitionImage, target: tuple[int, ...], rules: PartitionRules
) -> PartitionImage:
    """The partition on its way to `target`, whatever way it was on before."""
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
    # Nobody to lead it now though somebody does: better later than that.
    if after.leader != NO_LEADER or partition.leader == NO_LEADER:
        changes.put(topic, index, after)


def _kept_by(
    image: ClusterImage, partition: PartitionImage, replicas: Collection[int], rules: PartitionRules
) -> PartitionImage:
    """The partition with nobody but these in its state."""
    isr = tuple(broker for broker in partition.isr if broker in replicas)
    if not isr:
        raise InvalidReplicaAssignment(
            f"of those in sync, {partition.isr}, none would be left, and what they have would be lost"
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
