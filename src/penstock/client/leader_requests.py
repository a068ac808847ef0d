"""Requests to partition leaders outside of the fetch loop: Fetch, ListOffsets, OffsetForLeaderEpoch.

`ask_leaders_once` sends one request to each leader and returns a result or an error for each partition; the caller
decides whether to retry. `ask_leaders` retries what may pass until the time-out, against the leaders of the moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import OffsetAndTimestamp, TopicPartition
from penstock.client.connection import Connection
from penstock.client.errors import PenstockError, TimedOut, error_for
from penstock.client.fetch_state import EARLIEST
from penstock.wire.fetch_session import (
    LAST_VERSION_WITH_NAMES,
    NO_EPOCH,
    PartitionFetch,
    fetch_request,
    without_session,
)
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.fetch import FetchResponse, PartitionData
from penstock.wire.schemas.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.wire.schemas.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

R = TypeVar("R")

Ask = Callable[[Connection, list[TopicPartition], int], Awaitable[dict[TopicPartition, R | PenstockError]]]
"""One request: connection to the leader, partitions that it leads, time left in milliseconds."""
Retry = Callable[[object, int], bool]
"""Whether a result after this many failed rounds is worth another one."""
Found = dict[TopicPartition, OffsetAndTimestamp | PenstockError]

FETCH_LANE: Final = "fetch"
"""Fetches wait at the broker for records; nothing else should wait behind them."""
_CONSUMER: Final = -1
_EPOCH_LOOKUPS: Final = (2, 3, 4)


# --------------------------------------------------------------------------------------------------- asking leaders


async def ask_leaders_once(
    cluster: ClusterClient, partitions: Iterable[TopicPartition], ask: Ask[R], *, timeout_ms: int, lane: str = ""
) -> dict[TopicPartition, R | PenstockError]:
    """Send one request to each leader, all at once; a result or an error for each partition."""
    found: dict[TopicPartition, R | PenstockError] = {}
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        view = cluster.view.leader_of(*partition)
        if view is None:
            found[partition] = error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, where=str(partition))
        elif view.leader < 0:
            found[partition] = error_for(ErrorCode.LEADER_NOT_AVAILABLE, where=str(partition))
        else:
            by_leader.setdefault(view.leader, []).append(partition)

    async def one(node_id: int, led: list[TopicPartition]) -> dict[TopicPartition, R | PenstockError]:
        try:
            answered = await ask(await cluster.to(node_id, lane=lane), led, timeout_ms)
        except PenstockError as error:
            return dict.fromkeys(led, error)
        missing = "the broker's response leaves the partition out"
        return {
            partition: answered[partition]
            if partition in answered
            else error_for(ErrorCode.UNKNOWN_SERVER_ERROR, where=str(partition), detail=missing)
            for partition in led
        }

    for answered in await asyncio.gather(*(one(node_id, led) for node_id, led in by_leader.items())):
        found.update(answered)
    return found


def is_retriable(result: object, failures: int) -> bool:
    return isinstance(result, PenstockError) and result.retriable


async def ask_leaders(
    cluster: ClusterClient,
    what: str,
    partitions: Iterable[TopicPartition],
    ask: Ask[R],
    *,
    timeout_ms: float,
    lane: str = "",
    retry: Retry = is_retriable,
) -> dict[TopicPartition, R | PenstockError]:
    """`ask_leaders_once`, repeated for partitions whose error may pass, within the time-out."""
    wanted = list(dict.fromkeys(partitions))
    found: dict[TopicPartition, R | PenstockError] = {}
    open_ = wanted
    deadline_ms = cluster.clock.monotonic_ms() + timeout_ms
    backoff = cluster.new_backoff()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await cluster.start()
            if any(cluster.view.leader_of(*partition) is None for partition in wanted):
                await cluster.refresh({partition.topic for partition in wanted})
            while open_:
                left_ms = max(1, int(deadline_ms - cluster.clock.monotonic_ms()))
                found.update(await ask_leaders_once(cluster, open_, ask, timeout_ms=left_ms, lane=lane))
                open_ = [partition for partition in open_ if retry(found[partition], backoff.failures)]
                if open_:
                    await asyncio.sleep(backoff.failed(cluster.clock.monotonic_ms()) / 1000)
                    with contextlib.suppress(PenstockError):  # then the next round reports it for each partition
                        await cluster.refresh({partition.topic for partition in open_})
    except TimeoutError as error:
        if isinstance(error, PenstockError) and not found:
            raise
        late = TimedOut(f"{what} did not finish within {timeout_ms:.0f} ms", hint="Check that the brokers are up")
        for partition in wanted:
            found.setdefault(partition, late)
    return {partition: found[partition] for partition in wanted}


# --------------------------------------------------------------------------------------------------- requests


async def fetch_partitions(
    connection: Connection,
    wanted: Mapping[TopicPartition, PartitionFetch],
    *,
    timeout_ms: float,
    max_bytes: int,
    max_wait_ms: int = 0,
    min_bytes: int = 0,
    isolation_level: int = 0,
    rack_id: str = "",
) -> tuple[dict[TopicPartition, PartitionData], int]:
    """One Fetch without a session: what it brought of each partition, and for how long the broker throttles."""
    version = connection.version_of(ApiKey.FETCH, LAST_VERSION_WITH_NAMES)
    request = fetch_request(
        without_session(wanted),
        version=version,
        max_bytes=max_bytes,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        isolation_level=isolation_level,
        rack_id=rack_id,
    )
    response: FetchResponse = await connection.request(
        ApiKey.FETCH, request, version=version, timeout_ms=timeout_ms, wait_ms=max_wait_ms
    )
    if response.error_code:
        raise error_for(response.error_code, where=f"fetch from {connection.node}")
    return {
        TopicPartition(topic.topic, data.partition_index): data
        for topic in response.responses
        for data in topic.partitions
    }, response.throttle_time_ms


async def list_offsets(
    connection: Connection,
    times: Mapping[TopicPartition, int],
    *,
    isolation_level: int,
    timeout_ms: int,
    leader_epochs: Mapping[TopicPartition, int] | None = None,
) -> Found:
    """The first offset at or after each time, or of an end; offset -1 if no record is that young."""
    version = connection.version_of(ApiKey.LIST_OFFSETS)
    topics: dict[str, ListOffsetsTopic] = {}
    for partition, time_ms in times.items():
        topic = topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic, partitions=[]))
        topic.partitions.append(
            ListOffsetsPartition(
                partition_index=partition.partition,
                current_leader_epoch=(leader_epochs or {}).get(partition, NO_EPOCH),
                timestamp=time_ms,
            )
        )
    request = ListOffsetsRequest(replica_id=_CONSUMER, topics=list(topics.values()))
    if version >= 2:
        request.isolation_level = isolation_level
    if version >= 10:
        request.timeout_ms = timeout_ms
    response = await connection.request(ApiKey.LIST_OFFSETS, request, version=version, timeout_ms=timeout_ms)
    return {
        TopicPartition(topic.name, one.partition_index): _offset_of(topic.name, one, version)
        for topic in response.topics
        for one in topic.partitions
    }


def _offset_of(topic: str, one: Any, version: int) -> OffsetAndTimestamp | PenstockError:
    if one.error_code:
        return error_for(one.error_code, where=f"offsets of {topic}-{one.partition_index}")
    if version == 0:
        return OffsetAndTimestamp(one.old_style_offsets[0] if one.old_style_offsets else -1, -1)
    return OffsetAndTimestamp(one.offset, one.timestamp, one.leader_epoch)


# --------------------------------------------------------------------------------------------------- offsets


class EpochEnd(NamedTuple):
    """Where an epoch ended in the leader's log; both -1 if the leader does not know it."""

    epoch: int
    end_offset: int


class OffsetLookup:
    """Looks up offsets by time and by leader epoch, for consumers."""

    def __init__(self, cluster: ClusterClient, *, isolation_level: int, timeout_ms: int) -> None:
        self._cluster = cluster
        self._isolation_level = isolation_level
        self._timeout_ms = timeout_ms

    async def offsets(self, times: Mapping[TopicPartition, int]) -> Found:
        """The first offset at or after each time, or of an end, asked for once; -1 if no record is that young."""
        return await ask_leaders_once(self._cluster, times, self._asking(times), timeout_ms=self._timeout_ms)

    async def all_offsets(
        self, times: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Every one of them, retried until the time-out; raises the first error that remains."""
        found = await ask_leaders(
            self._cluster, "looking up offsets", times, self._asking(times), timeout_ms=timeout_ms
        )
        done: dict[TopicPartition, OffsetAndTimestamp] = {}
        for partition, one in found.items():
            if isinstance(one, PenstockError):
                raise one
            done[partition] = one
        return done

    def _asking(self, times: Mapping[TopicPartition, int]) -> Ask[OffsetAndTimestamp]:
        async def ask(connection: Connection, led: list[TopicPartition], left_ms: int) -> Found:
            wanted = {partition: times[partition] for partition in led}
            found = await self._list(connection, wanted, left_ms)
            if connection.version_of(ApiKey.LIST_OFFSETS) == 0:
                # The oldest brokers know when segments were written. If none was before the time, all are after it.
                later = [p for p, one in found.items() if isinstance(one, OffsetAndTimestamp) and one.offset < 0]
                if any(wanted[p] >= 0 for p in later):
                    found.update(await self._list(connection, dict.fromkeys(later, EARLIEST), left_ms))
            return found

        return ask

    async def _list(self, connection: Connection, times: Mapping[TopicPartition, int], left_ms: int) -> Found:
        return await list_offsets(
            connection,
            times,
            isolation_level=self._isolation_level,
            timeout_ms=min(left_ms, self._timeout_ms),
            leader_epochs={partition: self._epoch_of(partition) for partition in times},
        )

    def _epoch_of(self, partition: TopicPartition) -> int:
        leader = self._cluster.view.leader_of(*partition)
        return NO_EPOCH if leader is None else leader.leader_epoch

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd | PenstockError]:
        """Where each epoch ended. Of brokers that are too old for the question, no end is known."""

        async def ask(
            connection: Connection, led: list[TopicPartition], left_ms: int
        ) -> dict[TopicPartition, EpochEnd | PenstockError]:
            if not any(connection.supports(ApiKey.OFFSET_FOR_LEADER_EPOCH, v) for v in _EPOCH_LOOKUPS):
                return dict.fromkeys(led, EpochEnd(-1, -1))
            topics: dict[str, OffsetForLeaderTopic] = {}
            for name, index in led:
                topic = topics.setdefault(name, OffsetForLeaderTopic(topic=name, partitions=[]))
                partition = TopicPartition(name, index)
                topic.partitions.append(
                    OffsetForLeaderPartition(
                        partition=index,
                        current_leader_epoch=self._epoch_of(partition),
                        leader_epoch=epochs[partition],
                    )
                )
            response = await connection.request(
                ApiKey.OFFSET_FOR_LEADER_EPOCH,
                OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=list(topics.values())),
                timeout_ms=left_ms,
            )
            return {
                TopicPartition(topic.topic, one.partition): error_for(
                    one.error_code, where=f"{topic.topic}-{one.partition}"
                )
                if one.error_code
                else EpochEnd(one.leader_epoch, one.end_offset)
                for topic in response.topics
                for one in topic.partitions
            }

        return await ask_leaders_once(self._cluster, epochs, ask, timeout_ms=self._timeout_ms)
