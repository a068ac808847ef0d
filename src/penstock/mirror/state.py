"""The state topic of a mirror, in the target cluster: one partition per shard, compacted, JSON records by key.

A shard's records are written in its transactions only, so a process that was fenced cannot change them. Partition 0
also has what was decided about topics. A process that acquires a shard reads its partition from the start.

    topic/ALIAS/TOPIC              TopicState: its name in the target, and the topic ids on both sides
    partition/ALIAS/TOPIC/NUMBER   PartitionState: position and offsets, or the gap in a topic with the same offsets
    producer                       the producer id of the shard's batches in topics with the same offsets
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from penstock.client.admin import AsyncAdmin, TopicSpec
from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import PenstockError
from penstock.mirror.batches import Data, steps_of
from penstock.mirror.errors import StateUnreadable
from penstock.mirror.source import COMMITTED, EARLIEST, LATEST, fetch_once, offset_of
from penstock.records.batch import encode_batch, records_of
from penstock.records.kernel import scan

PRODUCER_KEY: Final = "producer"
TOPICS_SHARD: Final = 0
_READ_BYTES: Final = 4 * 1024 * 1024


class SourcePartition(NamedTuple):
    """A partition of a source, by the source's alias."""

    alias: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.alias}:{self.topic}-{self.partition}"

    @property
    def key(self) -> str:
        return f"partition/{self.alias}/{self.topic}/{self.partition}"

    def shard(self, shards: int) -> int:
        """The shard that mirrors it: the same for every process, forever."""
        return crc32(self.key.encode()) % shards


class TopicState(msgspec.Struct, frozen=True):
    """A topic of the target that this mirror writes."""

    alias: str
    topic: str
    target: str
    mode: str
    source_cluster: str
    source_id: str
    """Topic ids as hexadecimal text; empty where brokers have none."""
    target_id: str
    origins: tuple[str, ...] = ()
    """Ids of the clusters from which its records come."""
    configs: tuple[str, ...] = ()
    """Names of settings that the mirror has set."""
    partitions: int = 0
    """Of a shared topic, how many partitions it had at first: source partitions go to these, by their number modulo."""
    stopped: str = ""
    reason: str = ""

    @property
    def key(self) -> str:
        return f"topic/{self.alias}/{self.topic}"

    def target_partition(self, index: int) -> int:
        """Where a source partition goes. It never changes, so the order of its records is kept."""
        return index % self.partitions if self.partitions else index


class PartitionState(msgspec.Struct, frozen=True):
    """What is known about a source partition. Meant for one target topic and one source topic, by their ids."""

    source_id: str = ""
    target_id: str = ""
    position: int = -1
    """Next source offset, in modes mapped and shared."""
    epoch: int = -1
    """Leader epoch of the source's batch before the position."""
    runs: tuple[tuple[int, int, int], ...] = ()
    gap_offset: int = -1
    """The last gap that was filled, or was to be filled."""
    gap_count: int = 0
    before_gap: int = 0
    """Offsets of all gaps before it: by that much sequences are behind offsets."""
    padding: int = -1
    """Where the source began when its first record was mirrored."""
    stopped: str = ""
    reason: str = ""

    def missing_before(self, offset: int) -> int:
        """How many offsets before this one belong to gaps."""
        if self.gap_offset < 0:
            return 0
        return self.before_gap + max(0, min(offset - self.gap_offset, self.gap_count))


Values = dict[str, dict[str, Any]]


def encode_state(records: Mapping[str, Mapping[str, Any] | None], now_ms: int) -> bytearray:
    """A batch for the state topic; None removes a key."""
    return encode_batch(
        [
            (now_ms, key.encode(), None if value is None else json.dumps(value, sort_keys=True).encode(), ())
            for key, value in records.items()
        ]
    )


def as_value(state: msgspec.Struct) -> dict[str, Any]:
    """A state as what `encode_state` takes."""
    return dict(msgspec.to_builtins(state))


def partition_state(value: Mapping[str, Any] | None) -> PartitionState:
    return msgspec.convert(value or {}, PartitionState)


def topics_in(values: Values) -> dict[tuple[str, str], TopicState]:
    """The topics of partition 0, by the alias of their source and their name there."""
    states = [msgspec.convert(value, TopicState) for key, value in values.items() if key.startswith("topic/")]
    return {(state.alias, state.topic): state for state in states}


async def ensure_state_topic(admin: AsyncAdmin, topic: str, shards: int, replication: int) -> int:
    """Create the state topic if it is missing. Returns the number of shards, which never changes afterwards."""
    spec = TopicSpec(
        topic,
        partitions=shards,
        replication_factor=replication,
        config={"cleanup.policy": "compact"},
    )
    await admin.create_topic(spec, exist_ok=True)
    view = await admin.cluster.wait_for_topic(topic, timeout_ms=admin.cluster.request_timeout_ms, create=False)
    return len(view.partitions)


async def read_state(cluster: ClusterClient, topic: str, partitions: Iterable[int]) -> Values:
    """The committed records of these partitions, the newest of each key."""
    values: Values = {}
    for index in partitions:
        partition = TopicPartition(topic, index)
        position = await offset_of(cluster, partition, EARLIEST)
        end = await offset_of(cluster, partition, LATEST, isolation=COMMITTED)
        while position < end:
            data = await fetch_once(cluster, partition, position, max_bytes=_READ_BYTES)
            steps = steps_of(data.records, position, data.aborted).steps
            if not steps:
                raise PenstockError(f"{partition} has no records at {position}, although it ends at {end}")
            for step in steps:
                if isinstance(step, Data):
                    _apply(values, step, topic)
            position = steps[-1].next_offset
    return values


def _apply(values: Values, step: Data, topic: str) -> None:
    header = scan(step.batch, verify=False, most=1).headers[0]
    for record in records_of(step.batch, header):
        try:
            key = (record.key or b"").decode()
            if record.value is None:
                values.pop(key, None)
            else:
                values[key] = dict(json.loads(record.value))
        except (ValueError, TypeError):
            raise StateUnreadable(f"the record with key {record.key!r} in {topic} is not one of a mirror") from None
