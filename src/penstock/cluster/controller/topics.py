"""Creating, growing and deleting topics. Pure.

A change is decided on an image: it raises an ApiException that says why not, or returns all operations and the
resulting image. A new partition is led by its first replica with all replicas in sync: there is nothing yet that one
could lack.

    marked      /admin/delete_topics/<name>: from now on no leader, no ISR change, no new partitions, no reassignment
    awaited     every broker reports its replicas deleted, one that is away when it is back
    finished    the topic's nodes are deleted, the mark last: then the name is free

A topic exists until no replica is left, so a broker that missed the deletion cannot bring old records into a new topic
of the same name. Reports name the topic by id: late reports about an earlier topic are ignored (KIP-570). A new
controller awaits all reports again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.cluster.controller import transaction
from penstock.cluster.controller.configs import ConfigRules, ResourceKind, check_insync, check_settings
from penstock.cluster.controller.transaction import Decision
from penstock.cluster.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicName,
    ReassignmentInProgress,
    TopicExists,
    UnknownTopic,
)
from penstock.cluster.image import NO_ID, NO_STATE, ClusterImage, PartitionImage, Settings, TopicImage
from penstock.cluster.placement import Load, assign_replicas
from penstock.cluster.topic_names import check_topic_name
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import PartitionState, encode_config, encode_partition_state, encode_topic
from penstock.cluster.tree.tree import Create, Delete, Operation, Set
from penstock.runtime.randomness import Random

BY_DEFAULT: Final = -1
MAX_PARTITIONS: Final = 10_000  # of a topic; its assignment is one document, and its creation one change


class TopicDefaults(NamedTuple):
    partitions: int = 1
    replication_factor: int = 1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that somebody wants: by numbers, or by `assignments` (partition to replicas) and no numbers."""

    name: str
    partitions: int = BY_DEFAULT
    replication_factor: int = BY_DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


class Placement(NamedTuple):
    """What the placing of replicas takes besides the image: chance, and what all topics' partitions weigh."""

    random: Random
    load: Load | None = None


def create_topic(
    image: ClusterImage,
    wanted: NewTopic,
    topic_id: bytes,
    placement: Placement,
    rules: ConfigRules,
    defaults: TopicDefaults = TopicDefaults(),  # noqa: B008 - immutable
) -> Decision:
    """Refusal."""
    _check_name(image, wanted.name)
    settings = _settings(wanted.configs)
    check_settings(ResourceKind.TOPIC, settings, rules)
    if wanted.assignments:
        assignment = _given(image, wanted)
    else:
        assignment = _placed(image, wanted, defaults, placement)
    check_insync(settings, len(assignment[0]))
    partitions = tuple(_new_partition(replicas, image.controller_epoch) for replicas in assignment)
    topic = TopicImage(wanted.name, topic_id, partitions)
    config_path, config = layout.topic_config_path(topic.name), encode_config(settings)
    operations: list[Operation] = [
        # Settings may have been left, or written ahead, for a topic that is not there.
        Set(config_path, config) if topic.name in image.topic_configs else Create(config_path, config),
        Create(layout.topic_path(topic.name), encode_topic(topic_id, [item.assignment for item in partitions])),
        Create(layout.partitions_path(topic.name)),
        *_partition_nodes(topic, 0),
    ]
    return Decision(tuple(operations), image.with_topic(topic).with_topic_config(topic.name, settings))


def add_partitions(
    image: ClusterImage,
    name: str,
    total: int,
    placement: Placement,
    assignments: Sequence[Sequence[int]] | None = None,
) -> Decision:
    """Let the topic have `total` partitions; `assignments` are the replicas of the new ones. Refusal."""
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name[:300]!r}")
    if name in image.deleting:
        raise UnknownTopic(f"the topic {name} is being deleted")
    if any(partition.adding or partition.removing for partition in topic.partitions):
        raise ReassignmentInProgress(f"the partitions of {name} are being moved; add to them when that is done")
    before = len(topic.partitions)
    if total <= before:
        raise InvalidPartitions(f"{name} has {before} partitions, so {total} is no increase; they cannot become fewer")
    _check_count(total)
    if assignments is not None:
        if len(assignments) != total - before:
            raise InvalidReplicaAssignment(
                f"{total - before} new partitions, but replicas for {len(assignments)} of them"
            )
        added = [_checked(image, before + index, replicas) for index, replicas in enumerate(assignments)]
        _check_same_factor(added, topic.replication_factor)
    else:
        factor = topic.replication_factor
        _check_factor(image, factor)
        existing = [partition.replicas for partition in topic.partitions]
        added = assign_replicas(
            _racks(image), total - before, factor, placement.random, existing=existing, elsewhere=placement.load
        )
    grown = topic.with_partitions(_new_partition(replicas, image.controller_epoch) for replicas in added)
    document = encode_topic(_written_id(grown), [item.assignment for item in grown.partitions])
    return Decision((Set(layout.topic_path(name), document), *_partition_nodes(grown, before)), image.with_topic(grown))


def delete_topic(image: ClusterImage, name: str) -> Decision:
    """Refusal. What the brokers hold of the topic is theirs to remove once they see the new image."""
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name[:300]!r}")
    operations: list[Operation] = []
    for index, partition in enumerate(topic.partitions):
        if partition.state_version != NO_STATE:
            operations += (Delete(layout.partition_state_path(name, index)), Delete(layout.partition_path(name, index)))
    if operations:
        operations.append(Delete(layout.partitions_path(name)))
    operations.append(Delete(layout.topic_path(name)))
    if name in image.topic_configs:
        operations.append(Delete(layout.topic_config_path(name)))
    return Decision(tuple(operations), image.without_topic(name))


def state_of(partition: PartitionImage) -> PartitionState:
    return PartitionState(
        partition.leader, partition.leader_epoch, partition.isr, partition.controller_epoch, partition.recovering,
        partition.elr,
    )  # fmt: skip


# --- names and settings


def _check_name(image: ClusterImage, name: str) -> None:
    reason = check_topic_name(name)
    if reason is not None:
        raise InvalidTopicName(reason)
    if name in image.deleting:
        raise TopicExists(f"the topic {name!r} is being deleted: make it again when its last replica is gone")
    if name in image.topics:
        raise TopicExists(f"there is a topic {name!r} already")
    other = image.colliding_topic(name)
    if other is not None:
        raise InvalidTopicName(
            f"{name!r} differs from the topic {other!r} only in '.' and '_', and metrics write both '_'"
        )


def _settings(configs: Mapping[str, str | None]) -> Settings:
    settings: dict[str, str] = {}
    for name, value in configs.items():
        if value is None:
            raise InvalidConfig(f"{name} is set to nothing; leave it out to have its default")
        settings[name] = value
    return settings


# --- replicas


def _placed(
    image: ClusterImage, wanted: NewTopic, defaults: TopicDefaults, placement: Placement
) -> list[tuple[int, ...]]:
    count = defaults.partitions if wanted.partitions == BY_DEFAULT else wanted.partitions
    factor = defaults.replication_factor if wanted.replication_factor == BY_DEFAULT else wanted.replication_factor
    _check_count(count)
    _check_factor(image, factor)
    return assign_replicas(_racks(image), count, factor, placement.random, elsewhere=placement.load)


def _given(image: ClusterImage, wanted: NewTopic) -> list[tuple[int, ...]]:
    if wanted.partitions != BY_DEFAULT or wanted.replication_factor != BY_DEFAULT:
        raise InvalidRequest("give either replicas for each partition, or numbers of partitions and replicas, not both")
    count = len(wanted.assignments)
    _check_count(count)
    if set(wanted.assignments) != set(range(count)):
        raise InvalidReplicaAssignment(f"replicas are given for {count} partitions, which are not those from 0 on")
    found = [_checked(image, index, wanted.assignments[index]) for index in range(count)]
    _check_same_factor(found, len(found[0]))
    return found


def _checked(image: ClusterImage, index: int, replicas: Sequence[int]) -> tuple[int, ...]:
    if not replicas:
        raise InvalidReplicaAssignment(f"partition {index} is given no replica")
    if len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment(f"partition {index} is given the same broker twice")
    unknown = [broker for broker in replicas if broker not in image.brokers]
    if unknown:
        raise InvalidReplicaAssignment(f"partition {index} is given to broker {unknown[0]}, which is not there")
    return tuple(replicas)


def _check_same_factor(assignment: Sequence[tuple[int, ...]], factor: int) -> None:
    if any(len(replicas) != factor for replicas in assignment):
        raise InvalidReplicaAssignment(f"every partition of the topic must be given {factor} replicas, some have not")


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidPartitions(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {count}")


def _check_factor(image: ClusterImage, factor: int) -> None:
    if factor < 1:
        raise InvalidReplicationFactor(f"a partition has at least one replica, not {factor}")
    if factor > len(image.brokers):
        there = f"{len(image.brokers)} {'is' if len(image.brokers) == 1 else 'are'} available"
        raise InvalidReplicationFactor(f"replication factor {factor} needs {factor} brokers; {there}")


def _racks(image: ClusterImage) -> dict[int, str | None]:
    return {broker_id: broker.rack for broker_id, broker in image.brokers.items()}


# --- partitions


def _new_partition(replicas: tuple[int, ...], controller_epoch: int) -> PartitionImage:
    return PartitionImage(
        replicas, leader=replicas[0], isr=replicas, controller_epoch=controller_epoch, state_version=0
    )


def _partition_nodes(topic: TopicImage, start: int) -> Iterator[Operation]:
    for index in range(start, len(topic.partitions)):
        yield Create(layout.partition_path(topic.name, index))
        state = encode_partition_state(state_of(topic.partitions[index]))
        yield Create(layout.partition_state_path(topic.name, index), state)


def _written_id(topic: TopicImage) -> bytes | None:
    return None if topic.topic_id == NO_ID else topic.topic_id


Replica = tuple[int, int]
"""A partition's number and a broker's id."""


def mark_deleted(image: ClusterImage, name: str) -> Decision:
    """Refusal. A topic that is marked already needs nothing more."""
    if name not in image.topics:
        raise UnknownTopic(f"there is no topic {name[:300]!r}")
    if name in image.deleting:
        return Decision((), image)
    return Decision((Create(layout.deletion_path(name)),), image.with_deleting((name,)))


def delete_at_once(image: ClusterImage, name: str) -> Decision:
    """The end of a topic for which nobody is waited. Refusal. One that takes several parts is marked first: what is
    left of it in between must not be taken for a topic.
    """
    decision = delete_topic(image, name)
    if len(decision.operations) <= transaction.MAX_OPERATIONS - transaction.GROUPED_OPERATIONS:
        return decision
    mark = layout.deletion_path(name)
    return decision._replace(operations=(Create(mark), *decision.operations, Delete(mark)))


class Deletions:
    """Of the topics that are marked in the image that is followed."""

    def __init__(self, image: ClusterImage) -> None:
        self._awaited: dict[str, tuple[bytes, set[Replica]]] = {}
        self.follow(image)

    def follow(self, image: ClusterImage) -> None:
        """Await topics that are marked by now, and forget those that are gone."""
        self._awaited = {
            name: known if known is not None and known[0] == topic.topic_id else (topic.topic_id, _replicas(topic))
            for name in sorted(image.deleting)
            for topic in (image.topics[name],)
            for known in (self._awaited.get(name),)
        }

    def reported_gone(self, name: str, topic_id: bytes, partition: int, broker_id: int) -> None:
        """A broker has nothing of this partition, and will never make it again."""
        found = self._awaited.get(name)
        if found is not None and found[0] == topic_id:
            found[1].discard((partition, broker_id))

    def awaited(self, name: str) -> frozenset[Replica]:
        """Whose report is missing; nobody's for a topic that is not being deleted."""
        found = self._awaited.get(name)
        return frozenset() if found is None else frozenset(found[1])

    def awaited_of(self, broker_id: int) -> dict[str, list[int]]:
        """What a broker is asked to remove, now or when it is back: partitions by topic."""
        found = {
            name: sorted(partition for partition, broker in replicas if broker == broker_id)
            for name, (_, replicas) in self._awaited.items()
        }
        return {name: partitions for name, partitions in found.items() if partitions}

    def finished(self) -> list[str]:
        """The topics of which nothing is left."""
        return [name for name, (_, replicas) in self._awaited.items() if not replicas]

    def finish(self, image: ClusterImage, name: str) -> Decision | None:
        """The end of such a topic; None while something is left, or it is no topic that is being deleted."""
        topic = image.topics.get(name)
        found = self._awaited.get(name)
        if topic is None or found is None or found[0] != topic.topic_id or found[1]:
            return None
        decision = delete_topic(image, name)
        return Decision((*decision.operations, Delete(layout.deletion_path(name))), decision.image)


def _replicas(topic: TopicImage) -> set[Replica]:
    """Of a partition that is being moved, also those that are being added or removed."""
    return {
        (index, broker)
        for index, partition in enumerate(topic.partitions)
        for broker in (*partition.replicas, *partition.adding, *partition.removing)
    }
