"""A controller's decision as tree operations, and a large one as a chunked transaction. Pure.

A `Decision` is operations that belong together and the image that results. One tree transaction has at most 1000
operations and 512 KiB. `chunked` splits a larger decision in the order in which it was decided; every chunk leaves a
consistent cluster with an image of its own, so another controller can continue from there. Brokers that left disappear
with the first chunk; brokers that joined appear with the last, because a broker that sees itself in an image concludes
that everything about it was decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from penstock.cluster.entity_configs import Entity, entity_at
from penstock.cluster.image import ClusterImage, PartitionImage, Settings, TopicImage
from penstock.cluster.tree import layout
from penstock.cluster.tree.tree import Check, Create, Delete, Operation, Set
from penstock.security.acls import Entries, ResourcePattern

TopicPartition = tuple[str, int]

MAX_OPERATIONS: Final = 1000
MAX_BYTES: Final = 512 * 1024
GROUPED_OPERATIONS: Final = 250
"""Small decisions are stored together up to this many operations, or half of MAX_BYTES."""

_OPERATION_BYTES: Final = 64


class Decision(NamedTuple):
    """Operations that belong together, all or none, and the image that results."""

    operations: tuple[Operation, ...]
    image: ClusterImage
    unclean: tuple[TopicPartition, ...] = ()
    """Partitions whose new leader may lack committed records: the store logs them."""


def chunked(before: ClusterImage, decision: Decision) -> Iterator[Decision]:
    """The decision, made on `before`, as one or several that are stored one after another."""
    chunks = list(_chunks(decision.operations, MAX_OPERATIONS, MAX_BYTES))
    if len(chunks) <= 1:
        yield decision
        return
    partial = _PartialImage(before, decision.image)
    for chunk in chunks[:-1]:
        for operation in chunk:
            partial.apply(operation)
        yield Decision(chunk, partial.image())
    yield decision._replace(operations=chunks[-1])


class TransactionSize(NamedTuple):
    """The size of the operations of one decision, or of several."""

    operations: int = 0
    bytes: int = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be stored together with it."""
        return self.operations >= GROUPED_OPERATIONS or self.bytes >= MAX_BYTES // 2

    @property
    def is_large(self) -> bool:
        """Whether a decision is stored by itself: together with others it might take several chunks."""
        return self.operations > MAX_OPERATIONS - GROUPED_OPERATIONS or self.bytes > MAX_BYTES // 2

    def plus(self, decision: Decision) -> TransactionSize:
        more = sum(map(_size_of, decision.operations))
        return TransactionSize(self.operations + len(decision.operations), self.bytes + more)


def _size_of(operation: Operation) -> int:
    data = operation.data if isinstance(operation, Create | Set) else b""
    return len(operation.path) + len(data) + _OPERATION_BYTES


def _chunks(operations: Sequence[Operation], max_operations: int, max_bytes: int) -> Iterator[tuple[Operation, ...]]:
    chunk: list[Operation] = []
    size = 0
    for operation in operations:
        more = _size_of(operation)
        if chunk and (len(chunk) >= max_operations or size + more > max_bytes):
            yield tuple(chunk)
            chunk, size = [], 0
        chunk.append(operation)
        size += more
    if chunk:
        yield tuple(chunk)


class _PartialImage:
    """The image after only some of the operations that lead from one image to another."""

    def __init__(self, before: ClusterImage, after: ClusterImage) -> None:
        self._after = after
        brokers = {
            broker_id: registration
            for broker_id, registration in before.brokers.items()
            if (found := after.brokers.get(broker_id)) is not None and found.epoch == registration.epoch
        }
        self._base = replace(
            after,
            brokers=brokers,
            shutting_down=after.shutting_down.intersection(brokers),
            topics=before.topics,
            names_by_id=before.names_by_id,
            names_by_metric=before.names_by_metric,
            deleting=before.deleting,
            acls=before.acls,
            entities=before.entities,
        )
        self._topics: dict[str, list[PartitionImage]] = {}
        self._deleted: dict[str, None] = {}
        self._topic_configs = dict(before.topic_configs)
        self._broker_configs = dict(before.broker_configs)
        self._marked = set(before.deleting)
        self._acls: dict[ResourcePattern, Entries] = {}
        self._entities: dict[Entity, Settings | None] = {}

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, Check):
            return
        folder, _, name = operation.path.rpartition("/")
        if folder == layout.TOPICS:
            self._apply_topic(name, operation)
        elif name == "state" and folder.startswith(f"{layout.TOPICS}/"):
            topic, _, index = folder.removeprefix(f"{layout.TOPICS}/").split("/")
            self._apply_state(topic, int(index), operation)
        elif folder == layout.TOPIC_CONFIGS:
            _apply_config(self._topic_configs, self._after.topic_configs, name, operation)
        elif folder == layout.BROKER_CONFIGS:
            _apply_config(self._broker_configs, self._after.broker_configs, name, operation)
        elif (pattern := layout.pattern_at(operation.path)) is not None:
            self._acls[pattern] = self._after.acls.entries(pattern)
        elif (entity := entity_at(operation.path)) is not None:
            self._entities[entity] = None if isinstance(operation, Delete) else self._after.entities.of(entity)
        elif folder == layout.DELETE_TOPICS:
            (self._marked.discard if isinstance(operation, Delete) else self._marked.add)(name)

    def image(self) -> ClusterImage:
        self._base = self._base.without_topics(list(self._deleted))
        changed = [
            TopicImage(name, known.topic_id, tuple(found))
            for name, found in self._topics.items()
            for known in (self._after.topics.get(name) or self._base.topics[name],)
        ]
        if changed:
            self._base = self._base.with_topics(changed)
        self._topics.clear()
        self._deleted.clear()
        self._base = replace(
            self._base,
            topic_configs=dict(self._topic_configs),
            broker_configs=dict(self._broker_configs),
            deleting=frozenset(name for name in self._marked if name in self._base.topics),
        )
        if self._acls:
            self._base = self._base.with_acls(self._base.acls.with_entries(self._acls, self._after.acls.problem))
            self._acls.clear()
        if self._entities:
            self._base = self._base.with_entities(self._base.entities.with_changes(self._entities))
            self._entities.clear()
        return self._base

    def _apply_topic(self, name: str, operation: Operation) -> None:
        if isinstance(operation, Delete):
            self._topics.pop(name, None)
            self._deleted[name] = None
            return
        # A tool may have created the node.
        is_new = isinstance(operation, Create) or (name not in self._topics and name not in self._base.topics)
        partitions = [] if is_new else self._partitions(name)
        after = self._after.topics[name].partitions
        for index, partition in enumerate(after):
            replicas, adding, removing = partition.assignment
            if index < len(partitions):
                partitions[index] = replace(partitions[index], replicas=replicas, adding=adding, removing=removing)
            else:
                partitions.append(PartitionImage(replicas, adding=adding, removing=removing))
        self._topics[name] = partitions

    def _apply_state(self, topic: str, index: int, operation: Operation) -> None:
        partitions = self._partitions(topic)
        replicas, adding, removing = partitions[index].assignment
        if isinstance(operation, Delete):
            partitions[index] = PartitionImage(replicas, adding=adding, removing=removing)
        else:
            after = self._after.topics[topic].partitions[index]
            partitions[index] = replace(after, replicas=replicas, adding=adding, removing=removing)

    def _partitions(self, topic: str) -> list[PartitionImage]:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = list(self._base.topics[topic].partitions)
        return found


def _apply_config(known: dict[str, Settings], after: Mapping[str, Settings], name: str, operation: Operation) -> None:
    if isinstance(operation, Delete):
        known.pop(name, None)
    else:
        known[name] = after[name]
