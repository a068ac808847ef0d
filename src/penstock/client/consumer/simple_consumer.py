"""The low-level consumer: stateless fetches from partition leaders.

Only connections and leaders are remembered between calls; offsets, groups, commits and resets are the caller's. A
leader that has moved is found within the time-out; an offset that does not exist raises OffsetOutOfRange.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Self, Unpack, overload

from penstock.client.addresses import Addresses
from penstock.client.background import Background
from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.connection import Connection
from penstock.client.consumer.reader import Decoders, K, Slice, V, in_ms, records_of
from penstock.client.consumer.settings import IsolationLevel
from penstock.client.errors import ConfigError, PenstockError, RecordUnreadable, TimedOut, error_for
from penstock.client.fetch_state import EARLIEST, LATEST, PartitionState, chunk_in
from penstock.client.leader_requests import FETCH_LANE, OffsetLookup, ask_leaders, fetch_partitions
from penstock.client.serializers.base import AnyDecoder, decoder_from
from penstock.client.settings import ClientOptions
from penstock.records import RecordError
from penstock.records.kernel import ConsumerRecord
from penstock.wire.fetch_session import PartitionFetch, records_in
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.fetch import PartitionData
from penstock.wire.schemas.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST}


class Fetched(NamedTuple, Generic[K, V]):
    """The result of one fetch of one partition; `next_offset` is where to continue."""

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
    """Fetches records from given partitions and offsets."""

    @overload
    def __init__(
        self: SimpleConsumer[bytes, bytes],
        bootstrap_servers: Addresses,
        *,
        isolation_level: IsolationLevel = ...,
        **options: Unpack[ClientOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        bootstrap_servers: Addresses,
        *,
        isolation_level: IsolationLevel = ...,
        key: AnyDecoder[K] | None = ...,
        value: AnyDecoder[V] | None = ...,
        **options: Unpack[ClientOptions],
    ) -> None: ...

    def __init__(
        self,
        bootstrap_servers: Addresses,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        key: AnyDecoder[Any] | None = None,
        value: AnyDecoder[Any] | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """Connect; raises BootstrapError if no broker can be reached, ConfigError for an invalid option."""
        if isolation_level not in ("read_uncommitted", "read_committed"):
            raise ConfigError(f"isolation_level is {isolation_level!r}; it can be read_uncommitted, read_committed")
        self._decoders: Decoders[K, V] = Decoders(decoder_from(key, "key"), decoder_from(value, "value"))
        self._isolation_level = int(isolation_level == "read_committed")
        self._closed = False
        self._background = Background.acquire()
        try:
            self._cluster = ClusterClient(bootstrap_servers, **options)
            self._timeout_ms = self._cluster.request_timeout_ms
            self._lookup = OffsetLookup(
                self._cluster, isolation_level=self._isolation_level, timeout_ms=self._timeout_ms
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
        """Records from `offset` on; an empty list if none arrives within `max_wait_ms`."""
        wanted = FetchFrom(topic, partition, offset, max_bytes)
        found = self.multi_fetch([wanted], max_wait_ms=max_wait_ms, min_bytes=min_bytes)
        one = found[TopicPartition(topic, partition)]
        if isinstance(one, PenstockError):
            raise one
        return one

    def multi_fetch(
        self, wanted: Iterable[FetchFrom], *, max_wait_ms: int = 500, min_bytes: int = 1
    ) -> dict[TopicPartition, Fetched[K, V] | PenstockError]:
        """Fetch several partitions, one request per leader; each has a result or an error."""
        asked = {TopicPartition(one.topic, one.partition): one for one in wanted}
        for one in asked.values():
            if one.offset < 0 or one.max_bytes < 1:
                raise ConfigError(
                    f"cannot fetch {one.topic}-{one.partition}: offset {one.offset}, max_bytes {one.max_bytes}",
                    hint="The offset must be 0 or more, max_bytes 1 or more",
                )
        raw = self._background.run(self._fetch(asked, max_wait_ms, min_bytes))
        return {
            partition: data if isinstance(data, PenstockError) else self._decoded(asked[partition], data)
            for partition, data in raw.items()
        }

    async def _fetch(
        self, wanted: Mapping[TopicPartition, FetchFrom], max_wait_ms: int, min_bytes: int
    ) -> dict[TopicPartition, PartitionData | PenstockError]:
        async def ask(
            connection: Connection, led: list[TopicPartition], left_ms: int
        ) -> dict[TopicPartition, PartitionData | PenstockError]:
            fetches = {key: PartitionFetch(wanted[key].offset, wanted[key].max_bytes) for key in led}
            found, _ = await fetch_partitions(
                connection,
                fetches,
                timeout_ms=self._timeout_ms + max_wait_ms,
                max_bytes=sum(fetch.max_bytes for fetch in fetches.values()),
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
                isolation_level=self._isolation_level,
            )
            return {
                key: error_for(data.error_code, where=f"fetch of {key}") if data.error_code else data
                for key, data in found.items()
            }

        self._cluster.follow({one.topic for one in wanted.values()})
        timeout_ms = self._timeout_ms + max_wait_ms
        return await ask_leaders(self._cluster, "fetching", wanted, ask, timeout_ms=timeout_ms, lane=FETCH_LANE)

    def _decoded(self, wanted: FetchFrom, data: PartitionData) -> Fetched[K, V] | PenstockError:
        """Runs in the caller's thread."""
        partition = TopicPartition(wanted.topic, wanted.partition)
        if records_in(data) is None:
            return Fetched([], wanted.offset, data.high_watermark)
        state = PartitionState(partition, wanted.max_bytes)
        state.seek(wanted.offset)
        try:
            chunk = chunk_in(state, data)
            if chunk is None:
                return RecordUnreadable(
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

    def offsets_before(
        self, topic: str, partition: int, when: datetime | float | str, max_offsets: int = 1
    ) -> list[int]:
        """Offsets from which to read everything before a time, newest first; "earliest" and "latest" are the ends.

        Old brokers return the start offsets of up to `max_offsets` segments that were written before the time. Others
        return one offset: that of the first record at or after the time, or the end if there is none.
        """
        if isinstance(when, str) and when not in _ENDS:
            raise ConfigError(
                f"{when!r} is not a time", hint='Give a datetime, milliseconds since 1970, "earliest" or "latest"'
            )
        time_ms = _ENDS[when] if isinstance(when, str) else in_ms(when)
        return self._background.run(self._offsets(TopicPartition(topic, partition), time_ms, max_offsets))

    async def _offsets(self, partition: TopicPartition, time_ms: int, max_offsets: int) -> list[int]:
        if self._cluster.view.topic(partition.topic) is None:
            self._cluster.follow([partition.topic])
            await self._cluster.refresh([partition.topic])
        leader = self._cluster.view.leader_of(*partition)
        if leader is not None and leader.leader >= 0:
            connection = await self._cluster.to(leader.leader)
            if connection.supports(ApiKey.LIST_OFFSETS, 0) and time_ms >= 0:
                return await self._old_style(connection, partition, time_ms, max_offsets)
        found = await self._lookup.all_offsets({partition: time_ms}, self._timeout_ms)
        if found[partition].offset < 0:
            found = await self._lookup.all_offsets({partition: LATEST}, self._timeout_ms)
        return [found[partition].offset]

    async def _old_style(
        self, connection: Connection, partition: TopicPartition, time_ms: int, max_offsets: int
    ) -> list[int]:
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
        """Close all connections. Calling it twice is allowed."""
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
