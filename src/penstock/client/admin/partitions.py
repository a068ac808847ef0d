"""Partitions: who leads them, where their replicas are, and moves of them to other brokers.

Rule: the controller decides for each partition by itself, so each has an answer of its own: None where it was done, or
the error. A move is begun by this and goes on without it: `list_partition_reassignments` shows how far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.client.admin.core import AdminCore, topic_partitions
from penstock.client.admin.results import ElectionType, PartitionReassignment
from penstock.client.connection import Connection
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import ConfigError, PenstockError, UnsupportedVersion, error_for
from penstock.wire.api_keys import ApiKey
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.schemas.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponsePartition,
    TopicRequest,
)
from penstock.wire.schemas.elect_leaders import ElectLeadersRequest, TopicPartitions
from penstock.wire.schemas.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)

_ELECTIONS: Final[dict[ElectionType, int]] = {"preferred": 0, "unclean": 1}
_UNCLEAN_SINCE: Final = 1

Outcomes = dict[TopicPartition, PenstockError | None]


class PartitionCalls(AdminCore):
    async def elect_leaders(
        self,
        kind: ElectionType,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> Outcomes:
        """Give leadership back to the preferred leaders (the first replicas), or, "unclean", to whoever is alive, at
        the price of records that it does not have.

        Without partitions, of all that need it; those that do not are left out of the answer. A partition that has
        the leader it should have is answered with an error of the code ELECTION_NOT_NEEDED.
        """
        if kind not in _ELECTIONS:
            raise ConfigError(f"there is no election {kind!r}", hint=f"Choose of {', '.join(_ELECTIONS)}")
        wanted = None if partitions is None else list(dict.fromkeys(topic_partitions(partitions)))
        if wanted is not None and not wanted:
            return {}

        async def ask(left_ms: int) -> Outcomes:
            connection = await self.cluster.to_controller()
            version = connection.version_of(ApiKey.ELECT_LEADERS)
            if kind == "unclean" and version < _UNCLEAN_SINCE:
                raise UnsupportedVersion(connection.node, "ElectLeaders, unclean", (_UNCLEAN_SINCE, 2), (0, version))
            chosen = None if wanted is None else [
                TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in _by_topic(wanted).items()
            ]  # fmt: skip
            request = ElectLeadersRequest(topic_partitions=chosen, timeout_ms=left_ms)
            if version >= _UNCLEAN_SINCE:
                request.election_type = _ELECTIONS[kind]
            answer = await connection.request(ApiKey.ELECT_LEADERS, request, version=version, timeout_ms=left_ms)
            _check(answer.error_code if version >= _UNCLEAN_SINCE else 0, None)
            found = [
                (TopicPartition(topic.topic, part.partition_id), part)
                for topic in answer.replica_election_results
                for part in topic.partition_result
            ]
            return _outcomes(connection, found, wanted)

        return await self._tried("electing leaders", timeout_ms, ask)

    async def alter_partition_reassignments(
        self, wanted: Mapping[tuple[str, int], Sequence[int] | None], *, timeout_ms: int | None = None
    ) -> Outcomes:
        """Move partitions to these brokers, the preferred leader first; None takes a move back that is under way."""
        targets = {TopicPartition(*key): replicas for key, replicas in wanted.items()}
        if not targets:
            return {}

        async def ask(left_ms: int) -> Outcomes:
            connection = await self.cluster.to_controller()
            topics: dict[str, ReassignableTopic] = {}
            for (topic, index), replicas in targets.items():
                named = topics.setdefault(topic, ReassignableTopic(name=topic, partitions=[]))
                aim = None if replicas is None else list(replicas)
                named.partitions.append(ReassignablePartition(partition_index=index, replicas=aim))
            request = AlterPartitionReassignmentsRequest(topics=list(topics.values()), timeout_ms=left_ms)
            answer = await connection.request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, timeout_ms=left_ms)
            _check(answer.error_code, answer.error_message)
            found = [
                (TopicPartition(topic.name, part.partition_index), part)
                for topic in answer.responses
                for part in topic.partitions
            ]
            return _outcomes(connection, found, list(targets))

        return await self._tried("moving partitions", timeout_ms, ask)

    async def list_partition_reassignments(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The moves that are under way, of these partitions or of all; those that are not being moved are left out."""
        wanted = None if partitions is None else list(dict.fromkeys(topic_partitions(partitions)))
        if wanted is not None and not wanted:
            return {}

        async def ask(left_ms: int) -> dict[TopicPartition, PartitionReassignment]:
            connection = await self.cluster.to_controller()
            topics = None if wanted is None else [
                ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
                for topic, indexes in _by_topic(wanted).items()
            ]  # fmt: skip
            request = ListPartitionReassignmentsRequest(topics=topics, timeout_ms=left_ms)
            answer = await connection.request(ApiKey.LIST_PARTITION_REASSIGNMENTS, request, timeout_ms=left_ms)
            _check(answer.error_code, answer.error_message)
            return {
                TopicPartition(topic.name, part.partition_index): PartitionReassignment(
                    tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
                )
                for topic in answer.topics
                for part in topic.partitions
            }

        return await self._tried("listing moves of partitions", timeout_ms, ask)


async def ask_topic_partitions(
    connection: Connection, names: Sequence[str] | None, left_ms: int
) -> dict[TopicPartition, DescribeTopicPartitionsResponsePartition]:
    """What DescribeTopicPartitions says, page by page; nothing where a broker does not have it."""
    found: dict[TopicPartition, DescribeTopicPartitionsResponsePartition] = {}
    if not connection.supports(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0):
        return found
    topics = [TopicRequest(name=name) for name in names or ()]
    cursor: Cursor | None = None
    while True:
        request = DescribeTopicPartitionsRequest(topics=topics, cursor=cursor)
        answer = await connection.request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request, timeout_ms=left_ms)
        for topic in answer.topics:
            for part in topic.partitions:
                found[TopicPartition(topic.name or "", part.partition_index)] = part
        following = answer.next_cursor
        # A cursor that does not move would be asked for ever.
        if following is None or (cursor is not None and _place(following) == _place(cursor)):
            return found
        cursor = following


def _place(cursor: Cursor) -> tuple[str, int]:
    return cursor.topic_name, cursor.partition_index


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics


def _check(code: int, detail: str | None) -> None:
    if code:
        raise error_for(code, where="the cluster", detail=detail)


def _outcomes(
    connection: Connection, found: Sequence[tuple[TopicPartition, Any]], wanted: Sequence[TopicPartition] | None
) -> Outcomes:
    """`found` has error codes and messages; what was wanted and is not in it was not answered."""
    if any(part.error_code == ErrorCode.NOT_CONTROLLER for _, part in found):
        _check(ErrorCode.NOT_CONTROLLER, None)
    outcomes: Outcomes = {
        key: error_for(part.error_code, where=str(key), detail=part.error_message) if part.error_code else None
        for key, part in found
    }
    if wanted is None:
        return outcomes
    silent = PenstockError(f"{connection.node} said nothing about it")
    return {key: outcomes.get(key, silent) for key in wanted}
