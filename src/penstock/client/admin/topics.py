"""Admin calls about topics and partitions: create, delete, describe, grow, delete records, elect, reassign.

The controller decides for each partition separately, so each has a result of its own: None, or the error. A
reassignment continues after the call; `list_partition_reassignments` shows its progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.client.admin.core import AdminCore, only, topic_partitions
from penstock.client.admin.results import (
    CreatedTopic,
    ElectionType,
    PartitionDescription,
    PartitionReassignment,
    TopicDescription,
    TopicSpec,
)
from penstock.client.cluster_metadata import Node, TopicPartition
from penstock.client.connection import Connection
from penstock.client.errors import ConfigError, PenstockError, UnsupportedVersion, error_for
from penstock.client.metadata_updater import ask_metadata
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.schemas.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from penstock.wire.schemas.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from penstock.wire.schemas.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from penstock.wire.schemas.delete_topics import DeleteTopicsRequest, DeleteTopicState
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
from penstock.wire.schemas.metadata import MetadataResponse, MetadataResponseTopic
from penstock.wire.types import NO_UUID

Outcomes = dict[TopicPartition, PenstockError | None]

_ELECTIONS: Final[dict[ElectionType, int]] = {"preferred": 0, "unclean": 1}
_UNCLEAN_SINCE: Final = 1
_DEFAULTS_SINCE = 4  # before, a broker could not choose the numbers of partitions and replicas
_BY_STATE_SINCE = 6


# --------------------------------------------------------------------------------------------------- topics


class TopicCalls(AdminCore):
    async def create_topic(
        self,
        topic: TopicSpec | str,
        *,
        exist_ok: bool = False,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> CreatedTopic:
        """Create a topic; raises TopicExists, InvalidTopic, InvalidSetting..."""
        return only(
            await self.create_topics([topic], exist_ok=exist_ok, validate_only=validate_only, timeout_ms=timeout_ms)
        )

    async def create_topics(
        self,
        topics: Iterable[TopicSpec | str],
        *,
        exist_ok: bool = False,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, CreatedTopic | PenstockError]:
        """Create several topics; each has a result or an error."""
        specs = [TopicSpec(topic) if isinstance(topic, str) else topic for topic in topics]
        if not specs:
            return {}
        by_name = {spec.name: spec for spec in specs}
        if len(by_name) < len(specs):
            raise ConfigError("a topic is given twice")

        async def ask(left_ms: int) -> dict[str, CreatedTopic | PenstockError]:
            connection = await self.cluster.to_controller()
            version = connection.version_of(ApiKey.CREATE_TOPICS)
            request = CreateTopicsRequest(
                topics=[_creatable(spec, version) for spec in specs], timeout_ms=left_ms, validate_only=validate_only
            )
            answer = await connection.request(ApiKey.CREATE_TOPICS, request, version=version, timeout_ms=left_ms)
            _whole_answer_moved(item.error_code for item in answer.topics)
            return {item.name: _created(item, by_name[item.name], exist_ok) for item in answer.topics}

        return await self._retried("creating topics", timeout_ms, ask)

    async def delete_topic(self, name: str, *, missing_ok: bool = False, timeout_ms: int | None = None) -> None:
        """Delete a topic and its records; raises UnknownTopic..."""
        error = (await self.delete_topics([name], timeout_ms=timeout_ms))[name]
        if error is not None and not (missing_ok and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise error

    async def delete_topics(
        self, names: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, PenstockError | None]:
        """Delete several topics; each has a result or an error."""
        wanted = list(dict.fromkeys(names))
        if not wanted:
            return {}

        async def ask(left_ms: int) -> dict[str, PenstockError | None]:
            connection = await self.cluster.to_controller()
            version = connection.version_of(ApiKey.DELETE_TOPICS)
            request = DeleteTopicsRequest(timeout_ms=left_ms)
            if version >= _BY_STATE_SINCE:
                request.topics = [DeleteTopicState(name=name) for name in wanted]
            else:
                request.topic_names = wanted
            answer = await connection.request(ApiKey.DELETE_TOPICS, request, version=version, timeout_ms=left_ms)
            _whole_answer_moved(item.error_code for item in answer.responses)
            return {
                item.name: error_for(item.error_code, where=f"topic {item.name}", detail=item.error_message)
                if item.error_code
                else None
                for item in answer.responses
            }

        return await self._retried("deleting topics", timeout_ms, ask)

    async def list_topics(self, *, include_internal: bool = False, timeout_ms: int | None = None) -> list[str]:
        """The names of all topics, sorted."""
        answer = await self._metadata(None, timeout_ms)
        return sorted(
            topic.name for topic in answer.topics if topic.name and (include_internal or not topic.is_internal)
        )

    async def describe_topic(self, name: str, *, timeout_ms: int | None = None) -> TopicDescription:
        """The partitions of a topic, their leaders and replicas; raises UnknownTopic."""
        return only(await self.describe_topics([name], timeout_ms=timeout_ms))

    async def describe_topics(
        self, names: Iterable[str] | None = None, *, include_eligible: bool = False, timeout_ms: int | None = None
    ) -> dict[str, TopicDescription | PenstockError]:
        """These topics, or all: partitions, leaders, replicas, ISR.

        With `include_eligible`, also the eligible leader replicas (KIP-966), if the broker knows them.
        """
        wanted = None if names is None else list(dict.fromkeys(names))
        if wanted is not None and not wanted:
            return {}
        answer = await self._metadata(wanted, timeout_ms)
        eligible: Mapping[TopicPartition, DescribeTopicPartitionsResponsePartition] = {}
        if include_eligible:

            async def ask(left_ms: int) -> dict[TopicPartition, DescribeTopicPartitionsResponsePartition]:
                return await ask_topic_partitions(await self.cluster.to_any(), wanted, left_ms)

            eligible = await self._retried("asking for eligible leaders", timeout_ms, ask)
        nodes = {item.node_id: Node(item.node_id, item.host, item.port, item.rack) for item in answer.brokers}
        return {
            topic.name: _described(nodes, topic, topic.name, eligible)
            for topic in answer.topics
            if topic.name is not None
        }

    async def create_partitions(
        self,
        topic: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Raise the partition count of a topic to `total`; `assignments` has the replicas of each new partition."""

        async def ask(left_ms: int) -> None:
            connection = await self.cluster.to_controller()
            placed = (
                None
                if assignments is None
                else [CreatePartitionsAssignment(broker_ids=list(item)) for item in assignments]
            )
            request = CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=topic, count=total, assignments=placed)],
                timeout_ms=left_ms,
                validate_only=validate_only,
            )
            answer = await connection.request(ApiKey.CREATE_PARTITIONS, request, timeout_ms=left_ms)
            for item in answer.results:
                if item.error_code:
                    raise error_for(item.error_code, where=f"topic {item.name}", detail=item.error_message)

        await self._retried("creating partitions", timeout_ms, ask)

    async def delete_records(
        self, before: Mapping[tuple[str, int], int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int | PenstockError]:
        """Delete the records before an offset of each partition, -1 for all; returns where each starts now."""
        wanted = dict(zip(topic_partitions(before), before.values(), strict=True))

        async def ask(
            connection: Connection, led: list[TopicPartition], left_ms: int
        ) -> dict[TopicPartition, int | PenstockError]:
            topics: dict[str, DeleteRecordsTopic] = {}
            for item in led:
                named = topics.setdefault(item.topic, DeleteRecordsTopic(name=item.topic, partitions=[]))
                named.partitions.append(DeleteRecordsPartition(partition_index=item.partition, offset=wanted[item]))
            request = DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=left_ms)
            answer = await connection.request(ApiKey.DELETE_RECORDS, request, timeout_ms=left_ms)
            found: dict[TopicPartition, int | PenstockError] = {}
            for topic in answer.topics:
                for part in topic.partitions:
                    key = TopicPartition(topic.name, part.partition_index)
                    found[key] = error_for(part.error_code, where=str(key)) if part.error_code else part.low_watermark
            return found

        return await self._by_leader("deleting records", wanted, timeout_ms, ask)

    async def _metadata(self, topics: list[str] | None, timeout_ms: int | None) -> MetadataResponse:
        async def ask(left_ms: int) -> MetadataResponse:
            return await ask_metadata(await self.cluster.to_any(), topics, timeout_ms=left_ms)

        return await self._retried("asking for topics", timeout_ms, ask)


def _whole_answer_moved(codes: Iterable[int]) -> None:
    if ErrorCode.NOT_CONTROLLER in codes:
        raise error_for(ErrorCode.NOT_CONTROLLER, where="the cluster").as_retriable()


def _creatable(spec: TopicSpec, version: int) -> CreatableTopic:
    partitions, replicas = spec.partitions, spec.replication_factor
    if spec.assignments:
        partitions = replicas = -1
    elif version < _DEFAULTS_SINCE:
        partitions = 1 if partitions < 0 else partitions
        replicas = 1 if replicas < 0 else replicas
    return CreatableTopic(
        name=spec.name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(nodes))
            for index, nodes in spec.assignments.items()
        ],
        configs=[CreatableTopicConfig(name=name, value=config_text(value)) for name, value in spec.config.items()],
    )


def config_text(value: object) -> str | None:
    """The value of a setting as brokers parse it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _created(item: CreatableTopicResult, spec: TopicSpec, exist_ok: bool) -> CreatedTopic | PenstockError:
    if item.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and exist_ok:
        return CreatedTopic(item.name, existed=True)
    if item.error_code:
        return error_for(item.error_code, where=f"topic {item.name}", detail=item.error_message)
    topic_id = item.topic_id if item.topic_id != NO_UUID else None
    partitions = item.num_partitions if item.num_partitions >= 0 else spec.partitions
    replicas = item.replication_factor if item.replication_factor >= 0 else spec.replication_factor
    return CreatedTopic(item.name, partitions, replicas, topic_id)


def _described(
    nodes: Mapping[int, Node],
    topic: MetadataResponseTopic,
    name: str,
    eligible: Mapping[TopicPartition, DescribeTopicPartitionsResponsePartition],
) -> TopicDescription | PenstockError:
    if topic.error_code and topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
        return error_for(topic.error_code, where=f"topic {name}")
    return TopicDescription(
        name,
        topic.topic_id if topic.topic_id != NO_UUID else None,
        topic.is_internal,
        tuple(
            PartitionDescription(
                part.partition_index,
                nodes.get(part.leader_id),
                part.leader_epoch,
                tuple(part.replica_nodes),
                tuple(part.isr_nodes),
                tuple(part.offline_replicas),
                *_eligible(part.isr_nodes, eligible.get(TopicPartition(name, part.partition_index))),
            )
            for part in sorted(topic.partitions, key=lambda part: part.partition_index)
        ),
    )


def _eligible(
    isr: Sequence[int], described: DescribeTopicPartitionsResponsePartition | None
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The eligible leader replicas, current and last known; None if the broker does not send them."""
    if described is None or described.eligible_leader_replicas is None:
        return None, None
    # The two responses are of different moments: a replica that is in sync by now is no longer eligible.
    found = tuple(broker for broker in described.eligible_leader_replicas if broker not in isr)
    return found, tuple(described.last_known_elr or ())


# --------------------------------------------------------------------------------------------------- partitions


class PartitionCalls(AdminCore):
    async def elect_leaders(
        self,
        kind: ElectionType,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> Outcomes:
        """Elect leaders: "preferred" elects the first replicas, "unclean" any live replica, losing the records that it
        does not have.

        Without `partitions`, all that need it; the others are left out of the result. A given partition that already
        has the right leader has an error with the code ELECTION_NOT_NEEDED.
        """
        if kind not in _ELECTIONS:
            raise ConfigError(f"{kind!r} is not an election type", hint=f"Use one of {', '.join(_ELECTIONS)}")
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

        return await self._retried("electing leaders", timeout_ms, ask)

    async def alter_partition_reassignments(
        self, wanted: Mapping[tuple[str, int], Sequence[int] | None], *, timeout_ms: int | None = None
    ) -> Outcomes:
        """Move partitions to these brokers, the preferred leader first; None cancels a reassignment."""
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

        return await self._retried("moving partitions", timeout_ms, ask)

    async def list_partition_reassignments(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The ongoing reassignments of these partitions, or of all; partitions without one are left out."""
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

        return await self._retried("listing moves of partitions", timeout_ms, ask)


async def ask_topic_partitions(
    connection: Connection, names: Sequence[str] | None, left_ms: int
) -> dict[TopicPartition, DescribeTopicPartitionsResponsePartition]:
    """The result of DescribeTopicPartitions, page by page; empty if a broker does not have it."""
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
        # A cursor that does not advance would loop forever.
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
    """`found` has error codes and messages; wanted partitions that it lacks get an error."""
    if any(part.error_code == ErrorCode.NOT_CONTROLLER for _, part in found):
        _check(ErrorCode.NOT_CONTROLLER, None)
    outcomes: Outcomes = {
        key: error_for(part.error_code, where=str(key), detail=part.error_message) if part.error_code else None
        for key, part in found
    }
    if wanted is None:
        return outcomes
    silent = PenstockError(f"the response of {connection.node} does not contain the partition")
    return {key: outcomes.get(key, silent) for key in wanted}
