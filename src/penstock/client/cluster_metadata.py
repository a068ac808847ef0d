"""What a client knows about a cluster: nodes, topics, partitions and their leaders. Pure.

`ClusterView` is immutable; a Metadata response makes a new one. Brokers learn of changes one after the other, so a
response may be older than the view: a partition never returns to a smaller leader epoch unless its topic has a new
id, that is, was deleted and created again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from penstock.wire.protocol import ErrorCode, error_code
from penstock.wire.schemas.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from penstock.wire.types import NO_UUID


class TopicPartition(NamedTuple):
    """One partition of one topic; equal to the plain pair of the two."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class Node(NamedTuple):
    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"broker {self.id} ({self.host}:{self.port})"


class PartitionView(NamedTuple):
    index: int  # type: ignore[assignment]
    leader: int
    """Node id; -1 if there is none at the moment."""
    leader_epoch: int
    """-1 from brokers that are too old to send it."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: ErrorCode


class TopicView(NamedTuple):
    name: str
    topic_id: bytes | None
    partitions: tuple[PartitionView, ...]
    """By index."""
    is_internal: bool
    error: ErrorCode


_NOTHING: Mapping[int, Node] = MappingProxyType({})
_NO_TOPICS: Mapping[str, TopicView] = MappingProxyType({})


class ClusterView(NamedTuple):
    nodes: Mapping[int, Node] = _NOTHING
    controller_id: int = -1
    cluster_id: str | None = None
    topics: Mapping[str, TopicView] = _NO_TOPICS

    def topic(self, name: str) -> TopicView | None:
        """The topic, if it is known to exist."""
        found = self.topics.get(name)
        return found if found is not None and found.partitions else None

    def leader_of(self, topic: str, partition: int) -> PartitionView | None:
        """The partition, with its leader; None if it is not known."""
        found = self.topics.get(topic)
        if found is None:
            return None
        partitions = found.partitions
        if 0 <= partition < len(partitions) and partitions[partition].index == partition:
            return partitions[partition]
        return next((view for view in partitions if view.index == partition), None)

    def topic_by_id(self, topic_id: bytes) -> TopicView | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def merge(
        self, response: MetadataResponse, *, complete: bool = False, keep: Callable[[str], bool] | None = None
    ) -> ClusterView:
        """The view after a response.

        `complete`: all topics were requested, so what is not in the response no longer exists. Otherwise other topics
        stay if `keep` returns True for them.
        """
        nodes = {item.node_id: Node(item.node_id, item.host, item.port, item.rack) for item in response.brokers}
        topics: dict[str, TopicView] = {}
        if not complete:
            topics = {name: view for name, view in self.topics.items() if keep is None or keep(name)}
        for item in response.topics:
            if item.name is not None:
                topics[item.name] = _merged(self.topics.get(item.name), item)
        return ClusterView(
            MappingProxyType(nodes or dict(self.nodes)),
            response.controller_id,
            response.cluster_id if response.cluster_id is not None else self.cluster_id,
            MappingProxyType(topics),
        )

    def with_leader(self, topic: str, partition: int, leader: int, leader_epoch: int) -> ClusterView:
        """The view with a newer leader of a partition; unchanged if it is not newer."""
        view = self.topics.get(topic)
        known = self.leader_of(topic, partition)
        if view is None or known is None or leader < 0 or leader_epoch <= known.leader_epoch:
            return self
        newer = known._replace(leader=leader, leader_epoch=leader_epoch, error=ErrorCode.NONE)
        partitions = tuple(newer if item.index == partition else item for item in view.partitions)
        return self._replace(topics=MappingProxyType({**self.topics, topic: view._replace(partitions=partitions)}))

    def without_nodes(self) -> ClusterView:
        return self._replace(nodes=_NOTHING, controller_id=-1)


def _merged(old: TopicView | None, item: MetadataResponseTopic) -> TopicView:
    topic_id = item.topic_id if item.topic_id != NO_UUID else None
    error = error_code(item.error_code)
    same = old is not None and (topic_id is None or old.topic_id is None or old.topic_id == topic_id)
    before = {view.index: view for view in old.partitions} if old is not None and same else {}
    if old is not None and same and not item.partitions and error is ErrorCode.LEADER_NOT_AVAILABLE:
        return old._replace(error=error)
    partitions = tuple(
        sorted(_newer(before.get(partition.partition_index), partition) for partition in item.partitions)
    )
    if old is not None and same and topic_id is None:
        topic_id = old.topic_id
    return TopicView(item.name or "", topic_id, partitions, item.is_internal, error)


def _newer(old: PartitionView | None, item: MetadataResponsePartition) -> PartitionView:
    if old is not None and 0 <= item.leader_epoch < old.leader_epoch:
        return old
    return PartitionView(
        item.partition_index,
        item.leader_id,
        item.leader_epoch,
        tuple(item.replica_nodes),
        tuple(item.isr_nodes),
        error_code(item.error_code),
    )
