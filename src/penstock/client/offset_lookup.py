"""ListOffsets and OffsetForLeaderEpoch requests, each sent to the leaders of the partitions concerned.

A look-up asks each leader once and returns a result or an error for each partition; the caller decides whether to
retry. `all_offsets` retries until a deadline and raises the first error that lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import OffsetAndTimestamp, TopicPartition
from penstock.client.errors import PenstockError, TimedOut, error_for
from penstock.client.fetch_state import EARLIEST, NO_EPOCH
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.wire.schemas.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

_NEWEST_LIST: Final = 7
_EPOCH_LOOKUPS: Final = (2, 3, 4)
_CONSUMER: Final = -1

Found = dict[TopicPartition, OffsetAndTimestamp | PenstockError]


class EpochEnd(NamedTuple):
    """Where an epoch ended in the leader's log; both -1 if the leader does not know it."""

    epoch: int
    end_offset: int


class OffsetLookup:
    def __init__(self, cluster: ClusterClient, *, isolation_level: int, timeout_ms: int) -> None:
        self._cluster = cluster
        self._isolation_level = isolation_level
        self._timeout_ms = timeout_ms

    async def offsets(self, times: Mapping[TopicPartition, int]) -> Found:
        """The first offset at or after each time, or of an end; offset -1 where no record is that young."""
        by_leader, found = self._by_leader(times)
        answers = await asyncio.gather(
            *(self._list(node_id, {p: times[p] for p in group}) for node_id, group in by_leader.items())
        )
        for answer in answers:
            found.update(answer)
        return found

    async def all_offsets(
        self, times: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Every one of them, asked again while that may help; raises the first error that lasts."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        done: dict[TopicPartition, OffsetAndTimestamp] = {}
        backoff = self._cluster.new_backoff()
        missing = dict(times)
        while missing:
            try:
                async with asyncio.timeout_at(deadline):
                    found = await self.offsets(missing)
            except TimeoutError as error:
                if isinstance(error, PenstockError):
                    raise
                raise TimedOut(f"offsets of {', '.join(map(str, missing))} were not found in {timeout_ms} ms") from None
            failures = {p: one for p, one in found.items() if isinstance(one, PenstockError)}
            done.update({p: one for p, one in found.items() if not isinstance(one, PenstockError)})
            missing = {p: times[p] for p in failures}
            if not missing:
                break
            wait_s = backoff.failed(loop.time() * 1000) / 1000
            worst = next((one for one in failures.values() if not one.retriable), None)
            if worst is not None or loop.time() + wait_s >= deadline:
                raise worst or next(iter(failures.values()))
            self._cluster.refresh_soon()
            await asyncio.sleep(wait_s)
        return done

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd | PenstockError]:
        """Where each epoch ended. Brokers that are too old to say know of no end: the question is answered so."""
        by_leader, refused = self._by_leader(epochs)
        found: dict[TopicPartition, EpochEnd | PenstockError] = {
            p: error for p, error in refused.items() if isinstance(error, PenstockError)
        }
        for node_id, group in by_leader.items():
            found.update(await self._epochs(node_id, {p: epochs[p] for p in group}))
        return found

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> tuple[dict[int, list[TopicPartition]], Found]:
        groups: dict[int, list[TopicPartition]] = {}
        refused: Found = {}
        for partition in partitions:
            leader = self._cluster.view.leader_of(*partition)
            if leader is None:
                refused[partition] = error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, where=str(partition))
            elif leader.leader < 0:
                refused[partition] = error_for(ErrorCode.LEADER_NOT_AVAILABLE, where=str(partition))
            else:
                groups.setdefault(leader.leader, []).append(partition)
        return groups, refused

    def _epoch_of(self, partition: TopicPartition) -> int:
        leader = self._cluster.view.leader_of(*partition)
        return NO_EPOCH if leader is None else leader.leader_epoch

    async def _list(self, node_id: int, times: Mapping[TopicPartition, int]) -> Found:
        topics: dict[str, ListOffsetsTopic] = {}
        for partition, time_ms in times.items():
            topic = topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic, partitions=[]))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=partition.partition,
                    current_leader_epoch=self._epoch_of(partition),
                    timestamp=time_ms,
                )
            )
        request = ListOffsetsRequest(replica_id=_CONSUMER, topics=list(topics.values()))
        try:
            connection = await self._cluster.to(node_id)
            version = connection.version_of(ApiKey.LIST_OFFSETS, _NEWEST_LIST)
            if version >= 2:
                request.isolation_level = self._isolation_level
            response = await connection.request(
                ApiKey.LIST_OFFSETS, request, version=version, timeout_ms=self._timeout_ms
            )
        except PenstockError as error:
            return dict.fromkeys(times, error)
        found: Found = dict.fromkeys(times, error_for(ErrorCode.UNKNOWN_SERVER_ERROR, where="offsets: no answer"))
        for topic in response.topics:
            for one in topic.partitions:
                found[TopicPartition(topic.name, one.partition_index)] = _offset_of(topic.name, one, version)
        if version == 0:
            # The oldest brokers know when segments were written. If none was before the time, all are after it.
            later = [p for p, one in found.items() if isinstance(one, OffsetAndTimestamp) and one.offset < 0]
            if any(times[p] >= 0 for p in later):
                found.update(await self._list(node_id, dict.fromkeys(later, EARLIEST)))
        return found

    async def _epochs(
        self, node_id: int, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochEnd | PenstockError]:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for partition, epoch in epochs.items():
            topic = topics.setdefault(partition.topic, OffsetForLeaderTopic(topic=partition.topic, partitions=[]))
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=partition.partition,
                    current_leader_epoch=self._epoch_of(partition),
                    leader_epoch=epoch,
                )
            )
        try:
            connection = await self._cluster.to(node_id)
            if not any(connection.supports(ApiKey.OFFSET_FOR_LEADER_EPOCH, v) for v in _EPOCH_LOOKUPS):
                return dict.fromkeys(epochs, EpochEnd(-1, -1))
            response = await connection.request(
                ApiKey.OFFSET_FOR_LEADER_EPOCH,
                OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=list(topics.values())),
                timeout_ms=self._timeout_ms,
            )
        except PenstockError as error:
            return dict.fromkeys(epochs, error)
        found: dict[TopicPartition, EpochEnd | PenstockError] = {}
        for topic in response.topics:
            for one in topic.partitions:
                partition = TopicPartition(topic.topic, one.partition)
                if one.error_code:
                    found[partition] = error_for(one.error_code, where=str(partition))
                else:
                    found[partition] = EpochEnd(one.leader_epoch, one.end_offset)
        return found


def _offset_of(topic: str, one: Any, version: int) -> OffsetAndTimestamp | PenstockError:
    if one.error_code:
        return error_for(one.error_code, where=f"offsets of {topic}-{one.partition_index}")
    if version == 0:
        return OffsetAndTimestamp(one.old_style_offsets[0] if one.old_style_offsets else -1, -1)
    return OffsetAndTimestamp(one.offset, one.timestamp, one.leader_epoch)
