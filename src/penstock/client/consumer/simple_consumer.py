"""The low-level consumer: stateless fetches from partition leaders.

Only connections and leaders are remembered between calls; offsets, groups, commits and resets are the caller's. A
leader that has moved is found within the time-out; an offset that does not exist raises OffsetOutOfRange.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Self, overload

from penstock.client.addresses import Addresses
from penstock.client.background import Background
from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.reader import Decoders, K, Slice, V, in_ms, records_of
from penstock.client.errors import ConfigError, PenstockError, RecordUnreadable, TimedOut, error_for
from penstock.client.fetch_state import EARLIEST, LATEST, PartitionState, chunk_of
from penstock.client.offset_lookup import OffsetLookup
from penstock.client.serializers.base import AnyDecoder, decoder_from
from penstock.records import RecordError
from penstock.records.kernel import ConsumerRecord
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from penstock.wire.schemas.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

_NEWEST_FETCH: Final = 12
_LANE: Final = "fetch"
_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST}


class Fetched(NamedTuple, Generic[K, V]):
    """What one fetch brought of one partition; `next_offset` is where to go on."""

    records: list[ConsumerRecord[K, V]]
    next_offset: int
    high_watermark: int


class FetchFrom(NamedTuple):
    """One partition of a multi-fetch."""

    topic: str
    partition: int
    offset: int
    max_bytes: int = 1024 * 1024


class SimpleConsumer(Generic[K, V]):
    """Fetches what it is told to, from wherever it is told."""

    @overload
    def __init__(
        self: SimpleConsumer[bytes, bytes],
        bootstrap_servers: Addresses,
        *,
        client_id: str = ...,
        request_timeout_ms: int = ...,
        isolation_level: str = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        bootstrap_servers: Addresses,
        *,
        client_id: str = ...,
        request_timeout_ms: int = ...,
        isolation_level: str = ...,
        key: AnyDecoder[K] | None = ...,
        value: AnyDecoder[V] | None = ...,
    ) -> None: ...

    def __init__(
        self,
        bootstrap_servers: Addresses,
        *,
        client_id: str = "penstock",
        request_timeout_ms: int = 30_000,
        isolation_level: str = "read_uncommitted",
        key: AnyDecoder[Any] | None = None,
        value: AnyDecoder[Any] | None = None,
    ) -> None:
        if isolation_level not in ("read_uncommitted", "read_committed"):
            raise ConfigError(f"isolation_level is {isolation_level!r}; it can be read_uncommitted, read_committed")
        self._decoders: Decoders[K, V] = Decoders(decoder_from(key, "key"), decoder_from(value, "value"))
        self._timeout_ms = request_timeout_ms
        self._isolation_level = int(isolation_level == "read_committed")
        self._closed = False
        self._background = Background.acquire()
        try:
            self._cluster = ClusterClient(bootstrap_servers, client_id=client_id, request_timeout_ms=request_timeout_ms)
            self._lookup = OffsetLookup(
                self._cluster, isolation_level=self._isolation_level, timeout_ms=request_timeout_ms
            )
            self._background.run(self._start())
        except BaseException:
            self._background.release()
            raise

    async def _start(self) -> None:
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = 1024 * 1024,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
    ) -> Fetched[K, V]:
        """Records from `offset` on; none if nothing arrived within `max_wait_ms`."""
        wanted = FetchFrom(topic, partition, offset, max_bytes)
        found = self.multi_fetch([wanted], max_wait_ms=max_wait_ms, min_bytes=min_bytes)
        one = found[TopicPartition(topic, partition)]
        if isinstance(one, PenstockError):
            raise one
        return one

    def multi_fetch(
        self, wanted: Iterable[FetchFrom], *, max_wait_ms: int = 500, min_bytes: int = 1
    ) -> dict[TopicPartition, Fetched[K, V] | PenstockError]:
        """Several partitions at once, one request a leader: for each what it brought, or its error."""
        asked = {TopicPartition(one.topic, one.partition): one for one in wanted}
        for one in asked.values():
            if one.offset < 0 or one.max_bytes < 1:
                raise ConfigError(f"{one.topic}-{one.partition}: offset {one.offset}, max_bytes {one.max_bytes}")
        raw = self._background.run(self._fetch_all(asked, max_wait_ms, min_bytes))
        return {
            partition: data if isinstance(data, PenstockError) else self._opened(asked[partition], data)
            for partition, data in raw.items()
        }

    def _opened(self, wanted: FetchFrom, data: PartitionData) -> Fetched[K, V] | PenstockError:
        """Decoded in the caller's thread."""
        partition = TopicPartition(wanted.topic, wanted.partition)
        state = PartitionState(partition, wanted.max_bytes)
        state.seek(wanted.offset)
        records = data.records
        if not isinstance(records, bytes | bytearray | memoryview) or not len(records):
            return Fetched([], wanted.offset, data.high_watermark)
        try:
            chunk = chunk_of(state, records, [(a.producer_id, a.first_offset) for a in data.aborted_transactions or ()])
            if chunk is None:
                raise RecordUnreadable(
                    partition, wanted.offset, f"a batch exceeds {wanted.max_bytes} bytes", "Raise max_bytes"
                )
            found: list[ConsumerRecord[K, V]] = []
            for header in chunk.headers:
                found += records_of(Slice(chunk, header, wanted.offset, header.next_offset), self._decoders)
        except RecordError as damage:
            return RecordUnreadable(partition, wanted.offset, str(damage), "The bytes are damaged")
        except PenstockError as error:
            return error
        return Fetched(found, max(chunk.next_offset, wanted.offset), data.high_watermark)

    async def _fetch_all(
        self, asked: Mapping[TopicPartition, FetchFrom], max_wait_ms: int, min_bytes: int
    ) -> dict[TopicPartition, PartitionData | PenstockError]:
        deadline = asyncio.get_running_loop().time() + (self._timeout_ms + max_wait_ms) / 1000
        done: dict[TopicPartition, PartitionData | PenstockError] = {}
        missing = dict(asked)
        backoff = self._cluster.new_backoff()
        while missing:
            await self._learn({one.topic for one in missing.values()})
            rounds = await asyncio.gather(
                *(self._fetch_from(node, group, max_wait_ms, min_bytes) for node, group in self._led(missing).items())
            )
            for found in rounds:
                done.update(found)
            missing = {p: asked[p] for p, one in done.items() if isinstance(one, PenstockError) and one.retriable}
            wait_s = backoff.failed(self._cluster.clock.monotonic_ms()) / 1000
            if missing and asyncio.get_running_loop().time() + wait_s >= deadline:
                break
            if missing:
                await asyncio.sleep(wait_s)
                await self._cluster.refresh([one.topic for one in missing.values()])
        return done

    async def _learn(self, topics: set[str]) -> None:
        unknown = [topic for topic in topics if self._cluster.view.topic(topic) is None]
        if unknown:
            self._cluster.follow(unknown)
            await self._cluster.refresh(unknown)

    def _led(self, wanted: Mapping[TopicPartition, FetchFrom]) -> dict[int, dict[TopicPartition, FetchFrom]]:
        """By leader; those of whom no leader is known under -1."""
        groups: dict[int, dict[TopicPartition, FetchFrom]] = {}
        for partition, one in wanted.items():
            leader = self._cluster.view.leader_of(*partition)
            groups.setdefault(-1 if leader is None else leader.leader, {})[partition] = one
        return groups

    async def _fetch_from(
        self, node_id: int, wanted: Mapping[TopicPartition, FetchFrom], max_wait_ms: int, min_bytes: int
    ) -> dict[TopicPartition, PartitionData | PenstockError]:
        if node_id < 0:
            return {p: error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, where=f"fetch of {p}") for p in wanted}
        topics: dict[str, FetchTopic] = {}
        for one in wanted.values():
            topics.setdefault(one.topic, FetchTopic(topic=one.topic, partitions=[])).partitions.append(
                FetchPartition(partition=one.partition, fetch_offset=one.offset, partition_max_bytes=one.max_bytes)
            )
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=sum(one.max_bytes for one in wanted.values()),
            isolation_level=self._isolation_level,
            topics=list(topics.values()),
        )
        try:
            connection = await self._cluster.to(node_id, lane=_LANE)
            response = await connection.request(
                ApiKey.FETCH,
                request,
                version=connection.version_of(ApiKey.FETCH, _NEWEST_FETCH),
                timeout_ms=self._timeout_ms + max_wait_ms,
                wait_ms=max_wait_ms,
            )
        except PenstockError as error:
            return dict.fromkeys(wanted, error)
        found: dict[TopicPartition, PartitionData | PenstockError] = {}
        for topic in response.responses:
            for data in topic.partitions:
                partition = TopicPartition(topic.topic, data.partition_index)
                where = f"fetch of {partition}"
                found[partition] = error_for(data.error_code, where=where) if data.error_code else data
        return found

    def offsets_before(
        self, topic: str, partition: int, when: datetime | float | str, max_offsets: int = 1
    ) -> list[int]:
        """Offsets from which to read what is before a time, newest first; "earliest" and "latest" are the ends.

        Old brokers know the offsets at which segments begin that were written before the time, up to `max_offsets`.
        Others answer by record: the first record at or after the time, or the end if there is none that young.
        """
        if isinstance(when, str) and when not in _ENDS:
            raise ConfigError(f"{when!r} is no time", hint='Give a datetime, ms since 1970, "earliest" or "latest"')
        time_ms = _ENDS[when] if isinstance(when, str) else in_ms(when)
        return self._background.run(self._offsets(TopicPartition(topic, partition), time_ms, max_offsets))

    async def _offsets(self, partition: TopicPartition, time_ms: int, max_offsets: int) -> list[int]:
        await self._learn({partition.topic})
        leader = self._cluster.view.leader_of(*partition)
        if leader is not None and leader.leader >= 0:
            connection = await self._cluster.to(leader.leader)
            if connection.supports(ApiKey.LIST_OFFSETS, 0) and time_ms >= 0:
                return await self._old_style(connection, partition, time_ms, max_offsets)
        found = await self._lookup.all_offsets({partition: time_ms}, self._timeout_ms)
        if found[partition].offset < 0:
            found = await self._lookup.all_offsets({partition: LATEST}, self._timeout_ms)
        return [found[partition].offset]

    async def _old_style(self, connection: Any, partition: TopicPartition, time_ms: int, max_offsets: int) -> list[int]:
        wanted = ListOffsetsPartition(
            partition_index=partition.partition, timestamp=time_ms, max_num_offsets=max_offsets
        )
        topics = [ListOffsetsTopic(name=partition.topic, partitions=[wanted])]
        response = await connection.request(
            ApiKey.LIST_OFFSETS,
            ListOffsetsRequest(replica_id=-1, topics=topics),
            version=0,
            timeout_ms=self._timeout_ms,
        )
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise error_for(answer.error_code, where=f"offsets of {partition}")
        return list(answer.old_style_offsets)

    def close(self, timeout: float = 10.0) -> None:
        """Release everything; again is harmless."""
        if self._closed:
            return
        self._closed = True
        try:
            self._background.run(self._cluster.close(), timeout)
        except TimedOut:
            pass
        finally:
            self._background.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
