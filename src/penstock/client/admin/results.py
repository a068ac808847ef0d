"""Arguments and results of admin calls: immutable values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from penstock.client.cluster_metadata import Node, TopicPartition

Kind = Literal["topic", "broker"]
ElectionType = Literal["preferred", "unclean"]
ConfigValue = str | int | float | bool | None
OffsetSpec = Literal["earliest", "latest", "max_timestamp"] | int | datetime
"""An end of a partition, or the first record at or after a time (milliseconds since 1970, or a datetime)."""


class TopicSpec(msgspec.Struct, frozen=True):
    """A topic to create. -1 means the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, ConfigValue] = {}
    assignments: Mapping[int, Sequence[int]] = {}
    """Replicas by partition, instead of `partitions` and `replication_factor`."""


class CreatedTopic(msgspec.Struct, frozen=True):
    """A topic that was created, or with `existed` was there before. -1 from old brokers that do not send a number."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    topic_id: bytes | None = None
    existed: bool = False


class PartitionDescription(msgspec.Struct, frozen=True):
    index: int
    leader: Node | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()
    """Replicas whose broker or disk is unavailable."""
    eligible: tuple[int, ...] | None = None
    """Replicas that are not in sync but have all committed records (KIP-966); None if not requested or unknown."""
    last_known_eligible: tuple[int, ...] | None = None


class TopicDescription(msgspec.Struct, frozen=True):
    name: str
    topic_id: bytes | None
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)


class PartitionReassignment(msgspec.Struct, frozen=True):
    """An ongoing reassignment: all current replicas, those that are added, and those that are removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas when it is done."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas if it is cancelled."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)


class ConfigResource(msgspec.Struct, frozen=True):
    """A topic or a broker that has settings; broker "" stands for the default of all brokers."""

    kind: Kind
    name: str

    @classmethod
    def topic(cls, name: str) -> ConfigResource:
        """A topic, by its name."""
        return cls("topic", name)

    @classmethod
    def broker(cls, broker_id: int | None = None) -> ConfigResource:
        """A broker, by its id."""
        return cls("broker", "" if broker_id is None else str(broker_id))

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else f"all {self.kind}s"


class ConfigSynonym(msgspec.Struct, frozen=True):
    """The value of a setting in one layer; `name` is its name there."""

    name: str
    value: str | None
    source: str


class ConfigEntry(msgspec.Struct, frozen=True):
    """A setting and where its value comes from."""

    name: str
    value: str | None
    source: str
    """topic, dynamic broker, dynamic default, static, default, or unknown."""
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None = None
    synonyms: tuple[ConfigSynonym, ...] = ()
    """The values of all layers, the effective one first; empty unless requested."""


class ClusterDescription(msgspec.Struct, frozen=True):
    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]


class LogDirectory(msgspec.Struct, frozen=True):
    """A log directory of a broker; bytes are -1 from old brokers.

    `moving` are the replicas that move to it from another folder of the broker, and how many offsets they are behind.
    """

    path: str
    total_bytes: int
    usable_bytes: int
    sizes: Mapping[TopicPartition, int]
    error: Exception | None = None
    moving: Mapping[TopicPartition, int] = msgspec.field(default_factory=dict)


class OffsetResult(msgspec.Struct, frozen=True):
    """`offset` -1: no record is that young. `timestamp` -1: none."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1


class GroupListing(msgspec.Struct, frozen=True):
    """`state` and `type` are empty from old brokers."""

    group_id: str
    protocol_type: str
    state: str
    type: str
    coordinator: Node


class GroupMember(msgspec.Struct, frozen=True):
    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]


class PartitionLag(msgspec.Struct, frozen=True):
    """The lag of a group in one partition. None: nothing is committed, or it is unknown."""

    partition: TopicPartition
    committed: int | None
    end: int | None
    lag_records: int | None
    lag_seconds: float | None
    """Age of the first unread record in seconds; 0 if there is none."""
    member_id: str | None = None


class GroupDescription(msgspec.Struct, frozen=True):
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    """The assignment strategy."""
    coordinator: Node | None
    members: tuple[GroupMember, ...]
    partitions: tuple[PartitionLag, ...] = ()

    @property
    def lag_records(self) -> int:
        return sum(partition.lag_records or 0 for partition in self.partitions)

    @property
    def lag_seconds(self) -> float | None:
        """The largest lag of its partitions."""
        return max((item.lag_seconds for item in self.partitions if item.lag_seconds is not None), default=None)


class TransactionListing(msgspec.Struct, frozen=True):
    """`state` is Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, PrepareEpochFence or
    Dead."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: Node


class TransactionDescription(msgspec.Struct, frozen=True):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None
    """When the current transaction began, or the last one; None if there was none."""
    partitions: tuple[TopicPartition, ...]
    """Partitions of the current transaction that have no marker yet."""
    coordinator: Node | None


class ProducerState(msgspec.Struct, frozen=True):
    """What a partition knows of a producer that has written to it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    """Of its last record, in milliseconds since 1970; -1 without records."""
    coordinator_epoch: int | None
    """Of the last marker; None if there is none yet."""
    transaction_start_offset: int | None
    """Where its open transaction begins; None if none is open."""


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction that is open in a partition: committed readers do not get past its first record."""

    partition: TopicPartition
    producer: ProducerState
    start_offset: int
    transactional_id: str | None
    """None if no coordinator knows the producer."""
    state: str | None
    """The state that its coordinator has for the transactional id."""
    start_time_ms: int | None
    """When it began, by its coordinator; None if the coordinator does not have it as open."""
    is_hanging: bool
    """Whether no coordinator is going to complete it in this partition: it stays open until an operator aborts it."""


class FencedProducer(msgspec.Struct, frozen=True):
    """The id and epoch of a transactional id after fencing; producers with a lower epoch are rejected."""

    producer_id: int
    producer_epoch: int
