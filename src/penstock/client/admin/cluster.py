"""Admin calls about the cluster: its brokers, their log directories, and partition offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from penstock.client.admin.core import AdminCore, topic_partitions
from penstock.client.admin.results import ClusterDescription, LogDirectory, OffsetResult, OffsetSpec
from penstock.client.cluster_metadata import Node, TopicPartition
from penstock.client.connection import Connection
from penstock.client.errors import ConfigError, PenstockError, UnsupportedVersion, error_for
from penstock.client.leader_requests import list_offsets
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from penstock.wire.schemas.describe_cluster import DescribeClusterRequest
from penstock.wire.schemas.describe_log_dirs import DescribeLogDirsRequest

_ENDS: Final = {"latest": -1, "earliest": -2, "max_timestamp": -3}
_MAX_TIMESTAMP_SINCE: Final = 7
_BY_TIME_SINCE: Final = 1
_ISOLATION: Final = {"read_uncommitted": 0, "read_committed": 1}


class ClusterCalls(AdminCore):
    async def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """The brokers, the controller and the id of the cluster."""

        async def ask(left_ms: int) -> ClusterDescription:
            connection = await self.cluster.to_any()
            if not connection.supports(ApiKey.DESCRIBE_CLUSTER, 0):
                view = await self.cluster.refresh()
                nodes = tuple(sorted(view.nodes.values()))
                return ClusterDescription(view.cluster_id, view.nodes.get(view.controller_id), nodes)
            answer = await connection.request(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), timeout_ms=left_ms)
            if answer.error_code:
                raise error_for(answer.error_code, where="the cluster", detail=answer.error_message)
            known = {item.broker_id: Node(item.broker_id, item.host, item.port, item.rack) for item in answer.brokers}
            return ClusterDescription(
                answer.cluster_id, known.get(answer.controller_id), tuple(known[key] for key in sorted(known))
            )

        return await self._retried("describing the cluster", timeout_ms, ask)

    async def describe_log_dirs(
        self, broker_ids: Iterable[int] | None = None, *, timeout_ms: int | None = None
    ) -> dict[int, tuple[LogDirectory, ...] | PenstockError]:
        """The log directories of these brokers, or of all, and the sizes of their partitions."""
        if broker_ids is None:
            wanted = [node.id for node in (await self.describe_cluster(timeout_ms=timeout_ms)).nodes]
        else:
            wanted = list(dict.fromkeys(broker_ids))

        async def one(broker_id: int) -> tuple[LogDirectory, ...] | PenstockError:
            try:
                return await self._retried(
                    f"describing the log directories of broker {broker_id}",
                    timeout_ms,
                    lambda left_ms: self._log_dirs(broker_id, left_ms),
                )
            except PenstockError as error:
                return error

        return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))

    async def _log_dirs(self, broker_id: int, left_ms: int) -> tuple[LogDirectory, ...]:
        connection = await self.cluster.to(broker_id)
        answer = await connection.request(
            ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None), timeout_ms=left_ms
        )
        if answer.error_code:
            raise error_for(answer.error_code, where=f"broker {broker_id}")
        return tuple(
            LogDirectory(
                item.log_dir,
                item.total_bytes,
                item.usable_bytes,
                {
                    TopicPartition(topic.name, part.partition_index): part.partition_size
                    for topic in item.topics
                    for part in topic.partitions
                    if not part.is_future_key
                },
                error_for(item.error_code, where=f"broker {broker_id} {item.log_dir}") if item.error_code else None,
                {
                    TopicPartition(topic.name, part.partition_index): part.offset_lag
                    for topic in item.topics
                    for part in topic.partitions
                    if part.is_future_key
                },
            )
            for item in answer.results
        )

    async def alter_replica_log_dirs(
        self, broker_id: int, paths: Mapping[tuple[str, int], str], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PenstockError | None]:
        """Move replicas to other log directories of a broker, while they are in use; `describe_log_dirs` shows the
        progress. Each partition has None once its move has started, or an error.
        """
        moves = {TopicPartition(*key): path for key, path in paths.items()}
        return await self._retried(
            f"moving replicas on broker {broker_id}",
            timeout_ms,
            lambda left_ms: self._alter_log_dirs(broker_id, moves, left_ms),
        )

    async def _alter_log_dirs(
        self, broker_id: int, moves: Mapping[TopicPartition, str], left_ms: int
    ) -> dict[TopicPartition, PenstockError | None]:
        dirs: dict[str, dict[str, list[int]]] = {}
        for key, path in moves.items():
            dirs.setdefault(path, {}).setdefault(key.topic, []).append(key.partition)
        request = AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=path,
                    topics=[AlterReplicaLogDirTopic(name=name, partitions=found) for name, found in topics.items()],
                )
                for path, topics in dirs.items()
            ]
        )
        connection = await self.cluster.to(broker_id)
        answer = await connection.request(ApiKey.ALTER_REPLICA_LOG_DIRS, request, timeout_ms=left_ms)
        return {
            TopicPartition(topic.topic_name, part.partition_index): error_for(
                part.error_code, where=f"{topic.topic_name}-{part.partition_index} at broker {broker_id}"
            )
            if part.error_code
            else None
            for topic in answer.results
            for part in topic.partitions
        }

    async def list_offsets(
        self,
        wanted: Mapping[tuple[str, int], OffsetSpec],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetResult | PenstockError]:
        """Where partitions start ("earliest") and end ("latest"), or their first record at or after a time."""
        if isolation_level not in _ISOLATION:
            raise ConfigError(f"isolation_level is {isolation_level!r}", hint=f"Use one of {', '.join(_ISOLATION)}")
        times = {TopicPartition(*key): _timestamp(spec) for key, spec in wanted.items()}
        isolation = _ISOLATION[isolation_level]

        async def ask(
            connection: Connection, led: list[TopicPartition], left_ms: int
        ) -> dict[TopicPartition, OffsetResult | PenstockError]:
            return await _list_offsets(connection, {item: times[item] for item in led}, isolation, left_ms)

        return await self._by_leader("listing offsets", topic_partitions(wanted), timeout_ms, ask)


def _timestamp(spec: OffsetSpec) -> int:
    if isinstance(spec, datetime):
        return int(spec.timestamp() * 1000)
    if isinstance(spec, str):
        if spec not in _ENDS:
            raise ConfigError(f"{spec!r} is not an offset", hint=f"Use one of {', '.join(_ENDS)}, or a time")
        return _ENDS[spec]
    if isinstance(spec, bool) or spec < 0:
        raise ConfigError(f"{spec!r} is not a time", hint="Give milliseconds since 1970, or a datetime")
    return spec


async def _list_offsets(
    connection: Connection, times: Mapping[TopicPartition, int], isolation_level: int, left_ms: int
) -> dict[TopicPartition, OffsetResult | PenstockError]:
    version = connection.version_of(ApiKey.LIST_OFFSETS)
    if version < _MAX_TIMESTAMP_SINCE and _ENDS["max_timestamp"] in times.values():
        raise UnsupportedVersion(
            connection.node, "ListOffsets of max_timestamp", (_MAX_TIMESTAMP_SINCE, 11), (0, version)
        )
    if version < _BY_TIME_SINCE and max(times.values(), default=-1) >= 0:
        # Version 0 returns the start of a segment, which may be far from the time.
        raise UnsupportedVersion(connection.node, "ListOffsets by time", (_BY_TIME_SINCE, 11), (0, version))
    found = await list_offsets(connection, times, isolation_level=isolation_level, timeout_ms=left_ms)
    return {key: one if isinstance(one, PenstockError) else OffsetResult(*one) for key, one in found.items()}
