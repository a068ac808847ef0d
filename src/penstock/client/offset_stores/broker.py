"""Offsets kept by the group's coordinator (OffsetFetch, OffsetCommit).

While a coordinator is moving or loading, the request is retried against the current one until the time-out. Other
errors are raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.client.errors import BrokerError, NotConnected, TimedOut, error_for
from penstock.client.offset_stores.base import NO_MEMBER, Membership, OffsetAndMetadata, P
from penstock.runtime.clock import Clock, SystemClock
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.schemas.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

if TYPE_CHECKING:
    from penstock.client.cluster_client import ClusterClient
    from penstock.client.connection import Connection

T = TypeVar("T")

# From version 10 on, topics are named by id.
_NEWEST: Final = 9
_GROUPS_FROM: Final = 8
_FIRST_PAUSE_MS: Final = 50
_LONGEST_PAUSE_MS: Final = 1_000
_MOVED: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class BrokerOffsetStore:
    """Offsets of groups in the cluster of a ClusterClient, which the caller starts and closes."""

    def __init__(
        self,
        cluster: ClusterClient,
        *,
        timeout_ms: int = 30_000,
        require_stable: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._require_stable = require_stable
        self._clock: Clock = clock or SystemClock()

    async def load(self, group: str, partitions: Iterable[P]) -> dict[P, OffsetAndMetadata]:
        wanted = list(partitions)
        by_topic: dict[str, list[int]] = {}
        for topic, partition in wanted:
            by_topic.setdefault(topic, []).append(partition)
        if not by_topic:
            return {}
        found = await self._with_coordinator(
            group, lambda connection, left_ms: self._fetch(connection, group, by_topic, left_ms)
        )
        return {each: found[each] for each in wanted if each in found}

    async def save(
        self, group: str, offsets: Mapping[P, OffsetAndMetadata], membership: Membership = NO_MEMBER
    ) -> None:
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for (topic, partition), stored in offsets.items():
            named = topics.setdefault(topic, OffsetCommitRequestTopic(name=topic, partitions=[]))
            named.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=stored.offset,
                    committed_leader_epoch=stored.leader_epoch,
                    committed_metadata=stored.metadata,
                )
            )
        if not topics:
            return
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=membership.generation,
            member_id=membership.member_id,
            group_instance_id=membership.group_instance_id,
            topics=list(topics.values()),
        )
        await self._with_coordinator(
            group, lambda connection, left_ms: self._commit(connection, group, request, left_ms)
        )

    async def close(self) -> None:
        """Does nothing: the caller closes the cluster client."""

    async def _with_coordinator(self, group: str, ask: Callable[[Connection, int], Awaitable[T]]) -> T:
        deadline_ms = self._clock.monotonic_ms() + self._timeout_ms
        pause_ms = _FIRST_PAUSE_MS
        while True:
            left_ms = max(1, int(deadline_ms - self._clock.monotonic_ms()))
            # One attempt does not get all of the time: the coordinator may hang, and another one may take over.
            answer_ms = min(left_ms, self._cluster.request_timeout_ms)
            try:
                async with asyncio.timeout(left_ms / 1000):
                    connection = await self._cluster.to_coordinator("group", group)
                    return await ask(connection, answer_ms)
            except (BrokerError, NotConnected, TimedOut) as error:
                if not error.retriable or self._clock.monotonic_ms() + pause_ms >= deadline_ms:
                    raise
                if not isinstance(error, BrokerError) or error.code in _MOVED:
                    self._cluster.forget_coordinator("group", group)
            except TimeoutError as error:
                raise TimedOut(
                    f"the coordinator of group {group} did not answer within {self._timeout_ms} ms",
                    hint="Check that the brokers are up, or raise timeout_ms",
                ) from error
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(_LONGEST_PAUSE_MS, pause_ms * 2)

    async def _fetch(
        self, connection: Connection, group: str, by_topic: dict[str, list[int]], timeout_ms: int
    ) -> dict[tuple[str, int], OffsetAndMetadata]:
        version = min(_NEWEST, connection.version_of(ApiKey.OFFSET_FETCH))
        if version >= _GROUPS_FROM:
            named = [OffsetFetchRequestTopics(name=name, partition_indexes=each) for name, each in by_topic.items()]
            request = OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=group, topics=named)], require_stable=self._require_stable
            )
        else:
            request = OffsetFetchRequest(
                group_id=group,
                topics=[OffsetFetchRequestTopic(name=name, partition_indexes=each) for name, each in by_topic.items()],
                require_stable=self._require_stable and version >= 7,
            )
        response: Any = await connection.request(ApiKey.OFFSET_FETCH, request, timeout_ms=timeout_ms, version=version)
        answer = response.groups[0] if version >= _GROUPS_FROM else response
        if answer.error_code:
            raise error_for(answer.error_code, where=f"offsets of group {group}")
        loaded: dict[tuple[str, int], OffsetAndMetadata] = {}
        for topic in answer.topics:
            for each in topic.partitions:
                if each.error_code:
                    raise error_for(each.error_code, where=f"{topic.name}-{each.partition_index} of group {group}")
                if each.committed_offset >= 0:
                    loaded[topic.name, each.partition_index] = OffsetAndMetadata(
                        each.committed_offset, each.committed_leader_epoch, each.metadata or ""
                    )
        return loaded

    async def _commit(self, connection: Connection, group: str, request: OffsetCommitRequest, timeout_ms: int) -> None:
        version = min(_NEWEST, connection.version_of(ApiKey.OFFSET_COMMIT))
        response: Any = await connection.request(ApiKey.OFFSET_COMMIT, request, timeout_ms=timeout_ms, version=version)
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code:
                    where = f"commit of {topic.name}-{each.partition_index} for group {group}"
                    raise error_for(each.error_code, where=where)
