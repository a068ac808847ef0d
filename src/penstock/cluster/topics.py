"""Making, growing and deleting topics. Pure.

Rule: a decision is made on an image, and is either a Refusal that says why, or all operations that the change takes
and the image after it. New partitions are led by their first replica, with all replicas in sync: there is nothing yet
that one of them could lack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.cluster import paths
from penstock.cluster.assignment import Load, assign_replicas
from penstock.cluster.configs import ConfigRules, ResourceKind, check_insync, check_settings
from penstock.cluster.decision import Decision
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
from penstock.cluster.layout import PartitionState, encode_config, encode_partition_state, encode_topic
from penstock.cluster.topic_names import check_topic_name
from penstock.cluster.tree import Create, Delete, Operation, Set
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
    config_path, config = paths.topic_config(topic.name), encode_config(settings)
    operations: list[Operation] = [
        # Settings may have been left, or written ahead, for a topic that is not there.
        Set(config_path, config) if topic.name in image.topic_configs else Create(config_path, config),
        Create(paths.topic(topic.name), encode_topic(topic_id, [item.assignment for item in partitions])),
        Create(paths.partitions(topic.name)),
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
    return Decision((Set(paths.topic(name), document), *_partition_nodes(grown, before)), image.with_topic(grown))


def delete_topic(image: ClusterImage, name: str) -> Decision:
    """Refusal. What the brokers hold of the topic is theirs to remove once they see the new image."""
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name[:300]!r}")
    operations: list[Operation] = []
    for index, partition in enumerate(topic.partitions):
        if partition.state_version != NO_STATE:
            operations += (Delete(paths.partition_state(name, index)), Delete(paths.partition(name, index)))
    if operations:
        operations.append(Delete(paths.partitions(name)))
    operations.append(Delete(paths.topic(name)))
    if name in image.topic_configs:
        operations.append(Delete(paths.topic_config(name)))
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
        yield Create(paths.partition(topic.name, index))
        state = encode_partition_state(state_of(topic.partitions[index]))
        yield Create(paths.partition_state(topic.name, index), state)


def _written_id(topic: TopicImage) -> bytes | None:
    return None if topic.topic_id == NO_ID else topic.topic_id
