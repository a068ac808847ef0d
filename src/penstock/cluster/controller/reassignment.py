"""Moving partitions to other brokers (KIP-455), and the documents that old tools write. Pure.

A partition that moves has the replicas of both assignments, the target first, and lists which are added and removed.
When all added replicas and enough of the target are in sync, the others are dropped, together with a new leader if the
old one is among them. A move can be redirected or cancelled at any time, but never so that no in-sync replica is left.

    replicas 1 2 3                           wanted 2 3 4
    replicas 2 3 4 1, adding 4, removing 1   4 copies everything and joins the ISR
    replicas 2 3 4                           1 deletes its log
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import msgspec

from penstock.cluster.controller.election import Changes, PartitionRules, RulesOf, can_lead, eligible_after
from penstock.cluster.controller.transaction import Decision, TopicPartition
from penstock.cluster.errors import (
    ApiException,
    InvalidReplicaAssignment,
    LayoutError,
    NoReassignmentInProgress,
    UnknownTopic,
)
from penstock.cluster.image import NO_STATE, ClusterImage, PartitionImage
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import NO_LEADER
from penstock.cluster.tree.tree import Delete, Operation, Set

Document = TypeVar("Document", bound=msgspec.Struct)


class _Move(msgspec.Struct):
    topic: str
    partition: int
    replicas: list[int]


class _Moves(msgspec.Struct):
    version: int
    partitions: list[_Move]


class _Choice(msgspec.Struct):
    topic: str
    partition: int


class _Choices(msgspec.Struct):
    version: int
    partitions: list[_Choice]


def encode_reassignment(wanted: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    moves = [_Move(topic, index, list(replicas)) for (topic, index), replicas in wanted.items()]
    return msgspec.json.encode(_Moves(1, moves))


def decode_reassignment(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """What /admin/reassign_partitions asks for. LayoutError."""
    path = layout.REASSIGN_PARTITIONS
    document = _decode(path, data, _Moves)
    found = {(move.topic, move.partition): tuple(move.replicas) for move in document.partitions}
    if len(found) < len(document.partitions):
        raise LayoutError(path, "a partition is listed twice")
    return found


def encode_preferred_election(wanted: Iterable[TopicPartition]) -> bytes:
    return msgspec.json.encode(_Choices(1, [_Choice(topic, index) for topic, index in wanted]))


def decode_preferred_election(data: bytes) -> list[TopicPartition]:
    """What /admin/preferred_replica_election asks for. LayoutError."""
    path = layout.PREFERRED_ELECTION
    document = _decode(path, data, _Choices)
    found = [(choice.topic, choice.partition) for choice in document.partitions]
    if len(set(found)) < len(found):
        raise LayoutError(path, "a partition is listed twice")
    return found


def _decode(path: str, data: bytes, kind: type[Document]) -> Document:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LayoutError(path, str(error)) from error


WantedReplicas = Mapping[TopicPartition, Sequence[int] | None]
"""The replicas that partitions shall have; None takes a move back."""


class Reassignment(NamedTuple):
    """What is decided, and why some partitions stay as they are."""

    decision: Decision
    refusals: dict[TopicPartition, ApiException]


class MoveProgress(NamedTuple):
    """A move that is under way; `behind` are those that are added and not in sync yet."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    behind: tuple[int, ...]


def alter_reassignments(image: ClusterImage, wanted: WantedReplicas, rules_of: RulesOf) -> Reassignment:
    """Begin, turn or take back moves; those for which there is nothing to copy are finished in the same step."""
    changes = Changes(image)
    refusals: dict[TopicPartition, ApiException] = {}
    for (topic, index), replicas in wanted.items():
        try:
            partition = changes.partition(topic, index)
            if partition is None:
                raise UnknownTopic(f"there is no partition {index} of a topic {topic[:300]!r}")
            target = _original(partition) if replicas is None else _checked(image, partition, replicas)
            rules = rules_of(topic)
            changes.put(topic, index, _aimed(image, partition, target, rules))
            _complete(changes, topic, index, rules)
        except ApiException as refusal:
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
        return Delete(layout.REASSIGN_PARTITIONS)
    return None if len(left) == len(requested) else Set(layout.REASSIGN_PARTITIONS, encode_reassignment(left))


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
