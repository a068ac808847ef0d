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
from penstock.cluster.tree.layout import encode_config, encode_partition_state, encode_topic, encode_topic_id
from penstock.cluster.tree.tree import Create, Delete, Operation, Set
from penstock.runtime.randomness import Random

BY_DEFAULT: Final = -1
MAX_PARTITIONS: Final = 10_000  # of a topic; its assignment is one document, and its creation one decision

Replica = tuple[int, int]
"""A partition's index and a broker's id."""


class TopicDefaults(NamedTuple):
    """Counts of topics that are created without, and whether tools may delete topics through the tree."""

    partitions: int = 1
    replication_factor: int = 1
    deletion_enabled: bool = True


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create: by counts, or by `assignments` (partition to replicas) and no counts."""

    name: str
    partitions: int = BY_DEFAULT
    replication_factor: int = BY_DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


class Placement(NamedTuple):
    """What replica placement needs besides the image: randomness, and the load of all partitions."""

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
    """ApiException."""
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
        # Settings may be stored for a topic that does not exist.
        Set(config_path, config) if topic.name in image.topic_configs else Create(config_path, config),
        Create(layout.topic_path(topic.name), encode_topic(topic_id, [item.assignment for item in partitions])),
        Create(layout.partitions_path(topic.name), encode_topic_id(topic_id)),
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
    """Grow the topic to `total` partitions; `assignments` are the replicas of the new ones. ApiException."""
    topic = _find(image, name)
    if name in image.deleting:
        raise UnknownTopic(f"topic {name} is being deleted")
    if any(partition.adding or partition.removing for partition in topic.partitions):
        raise ReassignmentInProgress(f"partitions of {name} are being reassigned; try again when that is complete")
    before = len(topic.partitions)
    if total <= before:
        raise InvalidPartitions(f"the partition count of {name} is {before}; it can only grow, not become {total}")
    _check_count(total)
    if assignments is not None:
        if len(assignments) != total - before:
            raise InvalidReplicaAssignment(
                f"{total - before} new partitions need as many replica lists, not {len(assignments)}"
            )
        added = [_checked(image, before + index, replicas) for index, replicas in enumerate(assignments)]
        _check_same_factor(added, topic.replication_factor)
    else:
        factor = topic.replication_factor
        _check_factor(image, factor)
        existing = [partition.replicas for partition in topic.partitions]
        added = assign_replicas(
            _racks(image, factor), total - before, factor, placement.random, existing=existing, elsewhere=placement.load
        )
    grown = topic.with_partitions(_new_partition(replicas, image.controller_epoch) for replicas in added)
    document = encode_topic(_written_id(grown), [item.assignment for item in grown.partitions])
    return Decision((Set(layout.topic_path(name), document), *_partition_nodes(grown, before)), image.with_topic(grown))


def delete_topic(image: ClusterImage, name: str) -> Decision:
    """Delete the nodes of a topic; brokers delete their replicas when they see the new image. ApiException."""
    topic = _find(image, name)
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


# --- names and settings


def _find(image: ClusterImage, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopic(f"topic {name[:300]!r} does not exist")
    return topic


def _check_name(image: ClusterImage, name: str) -> None:
    reason = check_topic_name(name)
    if reason is not None:
        raise InvalidTopicName(reason)
    if name in image.deleting:
        raise TopicExists(f"topic {name!r} is being deleted; create it again when its last replica is deleted")
    if name in image.topics:
        raise TopicExists(f"topic {name!r} already exists")
    other = image.colliding_topic(name)
    if other is not None:
        raise InvalidTopicName(
            f"{name!r} differs from topic {other!r} only in '.' and '_', which metrics cannot tell apart"
        )


def _settings(configs: Mapping[str, str | None]) -> Settings:
    settings: dict[str, str] = {}
    for name, value in configs.items():
        if value is None:
            raise InvalidConfig(f"{name} has no value; leave it out to use the default")
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
    return assign_replicas(_racks(image, factor), count, factor, placement.random, elsewhere=placement.load)


def _given(image: ClusterImage, wanted: NewTopic) -> list[tuple[int, ...]]:
    if wanted.partitions != BY_DEFAULT or wanted.replication_factor != BY_DEFAULT:
        raise InvalidRequest("give replicas for each partition, or counts of partitions and replicas, not both")
    count = len(wanted.assignments)
    _check_count(count)
    if set(wanted.assignments) != set(range(count)):
        raise InvalidReplicaAssignment(f"replica lists must be for the partitions 0 to {count - 1}")
    found = [_checked(image, index, wanted.assignments[index]) for index in range(count)]
    _check_same_factor(found, len(found[0]))
    return found


def _checked(image: ClusterImage, index: int, replicas: Sequence[int]) -> tuple[int, ...]:
    if not replicas:
        raise InvalidReplicaAssignment(f"partition {index} has no replicas")
    if len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment(f"replicas {list(replicas)} of partition {index} name a broker twice")
    unknown = [broker for broker in replicas if broker not in image.brokers]
    if unknown:
        raise InvalidReplicaAssignment(f"broker {unknown[0]} of partition {index} is not available")
    return tuple(replicas)


def _check_same_factor(assignment: Sequence[tuple[int, ...]], factor: int) -> None:
    if any(len(replicas) != factor for replicas in assignment):
        raise InvalidReplicaAssignment(f"every partition must have {factor} replicas")


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidPartitions(f"a topic can have 1 to {MAX_PARTITIONS} partitions, not {count}")


def _check_factor(image: ClusterImage, factor: int) -> None:
    if factor < 1:
        raise InvalidReplicationFactor(f"the replication factor must be at least 1, not {factor}")
    if factor > len(image.brokers):
        available = f"{len(image.brokers)} {'is' if len(image.brokers) == 1 else 'are'} available"
        raise InvalidReplicationFactor(f"replication factor {factor} needs {factor} brokers; {available}")


def _racks(image: ClusterImage, factor: int) -> dict[int, str | None]:
    """The brokers to choose from. One that is shutting down may not return: it is left out if the others are enough."""
    staying = image.brokers.keys() - image.shutting_down
    brokers = staying if len(staying) >= factor else image.brokers.keys()
    return {broker_id: broker.rack for broker_id, broker in image.brokers.items() if broker_id in brokers}


# --- partitions


def _new_partition(replicas: tuple[int, ...], controller_epoch: int) -> PartitionImage:
    return PartitionImage(
        replicas, leader=replicas[0], isr=replicas, controller_epoch=controller_epoch, state_version=0
    )


def _partition_nodes(topic: TopicImage, start: int) -> Iterator[Operation]:
    for index in range(start, len(topic.partitions)):
        yield Create(layout.partition_path(topic.name, index))
        state = encode_partition_state(topic.partitions[index].state)
        yield Create(layout.partition_state_path(topic.name, index), state)


def nodes_above_state(topic: TopicImage, *indexes: int) -> dict[str, bytes]:
    """The paths of the nodes above the states of these partitions, in the order of their creation, with their data."""
    above = {layout.partitions_path(topic.name): encode_topic_id(_written_id(topic))}
    return above | {layout.partition_path(topic.name, index): b"" for index in indexes}


def _written_id(topic: TopicImage) -> bytes | None:
    return None if topic.topic_id == NO_ID else topic.topic_id


# --- deletion


def mark_deleted(image: ClusterImage, name: str) -> Decision:
    """ApiException. A topic that is already marked stays marked."""
    _find(image, name)
    if name in image.deleting:
        return Decision((), image)
    return Decision((Create(layout.deletion_path(name)),), image.with_deleting((name,)))


def delete_at_once(image: ClusterImage, name: str) -> Decision:
    """Delete a topic without waiting for reports. ApiException. One that takes several chunks is marked first, so that
    what is left of it in between does not pass for a topic.
    """
    decision = delete_topic(image, name)
    if len(decision.operations) <= transaction.MAX_OPERATIONS - transaction.GROUPED_OPERATIONS:
        return decision
    mark = layout.deletion_path(name)
    return decision._replace(operations=(Create(mark), *decision.operations, Delete(mark)))


class Deletions:
    """The reports awaited for the topics that are marked in the image that is followed."""

    def __init__(self, image: ClusterImage) -> None:
        self.awaiting: dict[str, tuple[bytes, set[Replica]]] = {}
        """By topic: its id, and the replicas that are not reported deleted yet."""
        self.follow(image)

    def follow(self, image: ClusterImage) -> None:
        """Await reports for newly marked topics, and forget topics that are gone."""
        self.awaiting = {
            name: known if known is not None and known[0] == topic.topic_id else (topic.topic_id, _replicas(topic))
            for name in sorted(image.deleting)
            for topic in (image.topics[name],)
            for known in (self.awaiting.get(name),)
        }

    def reported_gone(self, name: str, topic_id: bytes, partition: int, broker_id: int) -> None:
        """A broker has deleted its replica and will not create it again."""
        found = self.awaiting.get(name)
        if found is not None and found[0] == topic_id:
            found[1].discard((partition, broker_id))

    def awaited(self, name: str) -> frozenset[Replica]:
        """The replicas whose report is missing; empty for a topic that is not being deleted."""
        found = self.awaiting.get(name)
        return frozenset() if found is None else frozenset(found[1])

    def finished(self) -> list[str]:
        """The topics of which no replica is left."""
        return [name for name, (_, replicas) in self.awaiting.items() if not replicas]

    def finish(self, image: ClusterImage, name: str) -> Decision | None:
        """Delete the nodes of such a topic; None while a replica is left or the topic is not being deleted."""
        topic = image.topics.get(name)
        found = self.awaiting.get(name)
        if topic is None or found is None or found[0] != topic.topic_id or found[1]:
            return None
        decision = delete_topic(image, name)
        return Decision((*decision.operations, Delete(layout.deletion_path(name))), decision.image)


def _replicas(topic: TopicImage) -> set[Replica]:
    """Including those that a reassignment adds or removes."""
    return {
        (index, broker)
        for index, partition in enumerate(topic.partitions)
        for broker in (*partition.replicas, *partition.adding, *partition.removing)
    }
