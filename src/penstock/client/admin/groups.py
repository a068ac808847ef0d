"""Admin calls about consumer groups: members, committed offsets, lag in records and in time.

No index knows the timestamp of an offset, so for lag in time the first unread record is fetched: one batch per
partition. A broker sends at least one whole batch per request and cuts the others; partitions that got none are asked
again, first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from penstock.client.admin.cluster import ClusterCalls
from penstock.client.admin.core import only, topic_partitions
from penstock.client.admin.results import GroupDescription, GroupListing, GroupMember, OffsetResult, PartitionLag
from penstock.client.cluster_metadata import Node, TopicPartition
from penstock.client.connection import Connection
from penstock.client.errors import BrokerError, ConfigError, PenstockError, error_for
from penstock.client.leader_requests import fetch_partitions
from penstock.client.metadata_updater import ask_metadata
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.records import RecordError, records_of, scan
from penstock.records.batch import NO_TIMESTAMP
from penstock.wire.fetch_session import PartitionFetch, records_in
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.wire.schemas.delete_groups import DeleteGroupsRequest
from penstock.wire.schemas.describe_groups import DescribedGroupMember, DescribeGroupsRequest
from penstock.wire.schemas.list_groups import ListGroupsRequest
from penstock.wire.schemas.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.schemas.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from penstock.wire.schemas.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

T = TypeVar("T")
Answers = dict[TopicPartition, int | PenstockError]

_STATES_SINCE: Final = 4
_BY_NAME: Final = 9  # from version 10 on, topics are named by id
_MANY_GROUPS_SINCE: Final = 8
_ALL_TOPICS_SINCE: Final = 2
_GROUPS_AT_ONCE: Final = 200
_FIRST_WITH_BATCHES: Final = 4
_PARTITION_BYTES: Final = 64 * 1024
_TOTAL_BYTES: Final = 16 * 1024 * 1024
_DEAD: Final = "Dead"
_COORDINATOR_MOVED: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class GroupCalls(ClusterCalls):
    async def list_groups(self, *, states: Iterable[str] = (), timeout_ms: int | None = None) -> list[GroupListing]:
        """All groups of the cluster, sorted by id; with `states`, only those in one of them ("Stable", "Empty"...)."""
        wanted = {state.lower() for state in states}
        nodes = (await self.describe_cluster(timeout_ms=timeout_ms)).nodes
        found = await asyncio.gather(*(self._list_of(node, sorted(states), timeout_ms) for node in nodes))
        listings = [item for part in found for item in part if not wanted or item.state.lower() in wanted]
        return sorted(listings, key=lambda item: item.group_id)

    async def _list_of(self, node: Node, states: list[str], timeout_ms: int | None) -> list[GroupListing]:
        async def ask(left_ms: int) -> list[GroupListing]:
            connection = await self.cluster.to(node.id)
            version = connection.version_of(ApiKey.LIST_GROUPS)
            request = ListGroupsRequest(states_filter=states if version >= _STATES_SINCE else [])
            answer = await connection.request(ApiKey.LIST_GROUPS, request, version=version, timeout_ms=left_ms)
            if answer.error_code:
                raise error_for(answer.error_code, where=str(node))
            return [
                GroupListing(item.group_id, item.protocol_type, item.group_state, item.group_type, node)
                for item in answer.groups
            ]

        return await self._retried(f"listing the groups of {node}", timeout_ms, ask)

    # ------------------------------------------------------------------------------------------ describe

    async def describe_group(
        self, group_id: str, *, with_lag: bool = True, timeout_ms: int | None = None
    ) -> GroupDescription:
        """A group, its members and their partitions, and its lag; raises UnknownGroup."""
        return only(await self.describe_groups([group_id], with_lag=with_lag, timeout_ms=timeout_ms))

    async def describe_groups(
        self, group_ids: Iterable[str], *, with_lag: bool = True, timeout_ms: int | None = None
    ) -> dict[str, GroupDescription | PenstockError]:
        """Several groups; each has a description or an error."""
        wanted = list(dict.fromkeys(group_ids))

        async def one(group_id: str) -> GroupDescription | PenstockError:
            try:
                described = await self._described(group_id, timeout_ms)
                if described.state == _DEAD or (with_lag and described.protocol_type in ("consumer", "")):
                    described = await self._with_lag(described, timeout_ms)
                if described.state == _DEAD and not described.partitions:
                    raise error_for(ErrorCode.GROUP_ID_NOT_FOUND, where=f"group {group_id}")
                return described
            except PenstockError as error:
                return error

        return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))

    async def _described(self, group_id: str, timeout_ms: int | None) -> GroupDescription:
        async def ask(connection: Connection, left_ms: int) -> GroupDescription:
            node = self._node_of(connection)
            if connection.supports(ApiKey.CONSUMER_GROUP_DESCRIBE, 0):
                newer = await connection.request(
                    ApiKey.CONSUMER_GROUP_DESCRIBE,
                    ConsumerGroupDescribeRequest(group_ids=[group_id]),
                    timeout_ms=left_ms,
                )
                found = newer.groups[0]
                if not found.error_code:
                    return _of_newer(found, node)
                if found.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
                    raise error_for(found.error_code, where=f"group {group_id}", detail=found.error_message)
            request = DescribeGroupsRequest(groups=[group_id])
            answer = await connection.request(ApiKey.DESCRIBE_GROUPS, request, timeout_ms=left_ms)
            group = answer.groups[0]
            if group.error_code:
                raise error_for(group.error_code, where=f"group {group_id}", detail=group.error_message)
            # For Kafka 0.9 a group without members is dead, even if it has offsets.
            if group.group_state == _DEAD and connection.legacy_release is None:
                raise error_for(ErrorCode.GROUP_ID_NOT_FOUND, where=f"group {group_id}")
            return GroupDescription(
                group_id,
                group.group_state,
                group.protocol_type,
                group.protocol_data,
                node,
                tuple(_member(member, group.protocol_type) for member in group.members),
            )

        return await self._of_group(f"describing group {group_id}", group_id, timeout_ms, ask)

    async def _with_lag(self, group: GroupDescription, timeout_ms: int | None) -> GroupDescription:
        committed = await self.group_offsets(group.group_id, timeout_ms=timeout_ms)
        owners = {item: member.member_id for member in group.members for item in member.assignment}
        partitions = sorted({*committed, *owners})
        ends = await self.list_offsets(dict.fromkeys(partitions, "latest"), timeout_ms=timeout_ms)
        behind = {
            item: committed[item].offset
            for item in partitions
            if item in committed and isinstance(end := ends[item], OffsetResult) and end.offset > committed[item].offset
        }
        times = await self._by_leader(
            "reading the first unread records",
            behind,
            timeout_ms,
            lambda connection, led, left_ms: record_times(connection, {item: behind[item] for item in led}, left_ms),
        )
        now_ms = self.cluster.clock.now_ms()
        lags = (_lag(item, committed.get(item), ends[item], times.get(item), now_ms) for item in partitions)
        return replace(group, partitions=tuple(replace(lag, member_id=owners.get(lag.partition)) for lag in lags))

    # ------------------------------------------------------------------------------------------ delete

    async def delete_group(self, group_id: str, *, timeout_ms: int | None = None) -> None:
        """Delete a group without members, and its offsets; raises GroupNotEmpty, UnknownGroup."""
        error = (await self.delete_groups([group_id], timeout_ms=timeout_ms))[group_id]
        if error is not None:
            raise error

    async def delete_groups(
        self, group_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, PenstockError | None]:
        """Delete several groups; each has a result or an error."""
        wanted = list(dict.fromkeys(group_ids))

        async def one(group_id: str) -> PenstockError | None:
            async def ask(connection: Connection, left_ms: int) -> None:
                request = DeleteGroupsRequest(groups_names=[group_id])
                answer = await connection.request(ApiKey.DELETE_GROUPS, request, timeout_ms=left_ms)
                for item in answer.results:
                    if item.error_code:
                        raise error_for(item.error_code, where=f"group {group_id}")

            try:
                await self._of_group(f"deleting group {group_id}", group_id, timeout_ms, ask)
            except PenstockError as error:
                return error
            return None

        return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))

    # ------------------------------------------------------------------------------------------ offsets

    async def group_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]] | None = None, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group, for these partitions or all; those without one are left out."""
        wanted = None if partitions is None else topic_partitions(partitions)
        if wanted is not None and not wanted:
            return {}

        async def ask(connection: Connection, left_ms: int) -> dict[TopicPartition, OffsetAndMetadata]:
            version = connection.version_of(ApiKey.OFFSET_FETCH, at_most=_BY_NAME)
            asked = wanted
            if asked is None and version < _ALL_TOPICS_SINCE:
                asked = await self._all_partitions(left_ms)
            request = _offset_fetch(group_id, asked, version)
            answer = await connection.request(ApiKey.OFFSET_FETCH, request, version=version, timeout_ms=left_ms)
            found = answer.groups[0] if version >= _MANY_GROUPS_SINCE and answer.groups else answer
            if found.error_code:
                raise error_for(found.error_code, where=f"group {group_id}")
            return _committed(found.topics, group_id)

        return await self._of_group(f"reading the offsets of group {group_id}", group_id, timeout_ms, ask)

    async def offsets_of_groups(
        self, groups: Iterable[GroupListing], *, timeout_ms: int | None = None
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | PenstockError]:
        """The committed offsets of many listed groups, a few hundred with each request to their coordinators.

        One try: a group whose coordinator has moved since it was listed has an error. Brokers that take one group per
        request are asked for each.
        """
        limit_ms = timeout_ms if timeout_ms is not None else self.cluster.request_timeout_ms
        by_node: dict[int, list[str]] = {}
        for listing in groups:
            by_node.setdefault(listing.coordinator.id, []).append(listing.group_id)
        found: dict[str, dict[TopicPartition, OffsetAndMetadata] | PenstockError] = {}

        async def of_node(node_id: int, ids: list[str]) -> None:
            try:
                connection = await self.cluster.to(node_id)
                version = connection.version_of(ApiKey.OFFSET_FETCH, at_most=_BY_NAME)
                at_once = _GROUPS_AT_ONCE if version >= _MANY_GROUPS_SINCE else 1
                for start in range(0, len(ids), at_once):
                    part = ids[start : start + at_once]
                    request = _offsets_fetch(part, version)
                    answer = await connection.request(
                        ApiKey.OFFSET_FETCH, request, version=version, timeout_ms=limit_ms
                    )
                    found.update(_offsets_by_group(part, answer, version))
            except PenstockError as error:
                found.update((each, error) for each in ids if each not in found)

        await asyncio.gather(*(of_node(node_id, ids) for node_id, ids in by_node.items()))
        return found

    async def _all_partitions(self, left_ms: int) -> list[TopicPartition]:
        answer = await ask_metadata(await self.cluster.to_any(), None, timeout_ms=left_ms)
        return [
            TopicPartition(topic.name or "", item.partition_index)
            for topic in answer.topics
            for item in topic.partitions
        ]

    async def set_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata],
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, PenstockError | None]:
        """Commit offsets for a group without members: where it continues to read."""
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for (topic, partition), given in offsets.items():
            stored = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
            if stored.offset < 0:
                raise ConfigError(
                    f"{stored.offset} is not an offset of {topic}-{partition}", hint="Give a number, 0 or more"
                )
            named = topics.setdefault(topic, OffsetCommitRequestTopic(name=topic, partitions=[]))
            named.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=stored.offset,
                    committed_leader_epoch=stored.leader_epoch,
                    committed_metadata=stored.metadata,
                )
            )

        async def ask(connection: Connection, left_ms: int) -> dict[TopicPartition, PenstockError | None]:
            version = connection.version_of(ApiKey.OFFSET_COMMIT, at_most=_BY_NAME)
            request = OffsetCommitRequest(group_id=group_id, topics=list(topics.values()))
            answer = await connection.request(ApiKey.OFFSET_COMMIT, request, version=version, timeout_ms=left_ms)
            return _each(answer.topics, group_id)

        if not topics:
            return {}
        return await self._of_group(f"setting the offsets of group {group_id}", group_id, timeout_ms, ask)

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PenstockError | None]:
        """Delete the committed offsets of partitions that no member of the group reads."""
        topics: dict[str, OffsetDeleteRequestTopic] = {}
        for topic, partition in topic_partitions(partitions):
            named = topics.setdefault(topic, OffsetDeleteRequestTopic(name=topic, partitions=[]))
            named.partitions.append(OffsetDeleteRequestPartition(partition_index=partition))

        async def ask(connection: Connection, left_ms: int) -> dict[TopicPartition, PenstockError | None]:
            request = OffsetDeleteRequest(group_id=group_id, topics=list(topics.values()))
            answer = await connection.request(ApiKey.OFFSET_DELETE, request, timeout_ms=left_ms)
            if answer.error_code:
                raise error_for(answer.error_code, where=f"group {group_id}")
            return _each(answer.topics, group_id)

        if not topics:
            return {}
        return await self._of_group(f"deleting offsets of group {group_id}", group_id, timeout_ms, ask)

    async def _of_group(
        self, what: str, group_id: str, timeout_ms: int | None, ask: Callable[[Connection, int], Awaitable[T]]
    ) -> T:
        return await self._of_coordinator("group", group_id, what, timeout_ms, ask)


def _of_newer(group: Any, node: Node | None) -> GroupDescription:
    return GroupDescription(
        group.group_id,
        group.group_state,
        "consumer",
        group.assignor_name,
        node,
        tuple(
            GroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                tuple(member.subscribed_topic_names),
                tuple(
                    TopicPartition(item.topic_name, index)
                    for item in member.assignment.topic_partitions
                    for index in item.partitions
                ),
            )
            for member in group.members
        ),
    )


def _member(member: DescribedGroupMember, protocol_type: str) -> GroupMember:
    topics: tuple[str, ...] = ()
    assigned: tuple[TopicPartition, ...] = ()
    if protocol_type == "consumer":
        from penstock.client.consumer.assignors import ProtocolError, decode_assignment, decode_subscription

        try:
            topics = decode_subscription(member.member_metadata).topics if member.member_metadata else ()
            assigned = decode_assignment(member.member_assignment).partitions
        except ProtocolError:
            # A member with a protocol of its own: describe it without topics.
            pass
    return GroupMember(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, topics, assigned
    )


def _offset_fetch(group_id: str, partitions: list[TopicPartition] | None, version: int) -> OffsetFetchRequest:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions or ():
        by_topic.setdefault(topic, []).append(partition)
    if version >= _MANY_GROUPS_SINCE:
        named = [OffsetFetchRequestTopics(name=name, partition_indexes=each) for name, each in by_topic.items()]
        group = OffsetFetchRequestGroup(group_id=group_id, topics=None if partitions is None else named)
        return OffsetFetchRequest(groups=[group])
    older = [OffsetFetchRequestTopic(name=name, partition_indexes=each) for name, each in by_topic.items()]
    return OffsetFetchRequest(group_id=group_id, topics=None if partitions is None else older)


def _offsets_fetch(group_ids: list[str], version: int) -> OffsetFetchRequest:
    """All offsets of several groups; of one, before version 8."""
    if version < _MANY_GROUPS_SINCE:
        if version < _ALL_TOPICS_SINCE:
            raise ConfigError("the broker does not list the offsets of groups")
        return OffsetFetchRequest(group_id=group_ids[0], topics=None)
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=each, topics=None) for each in group_ids])


def _offsets_by_group(
    group_ids: list[str], answer: Any, version: int
) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | PenstockError]:
    answers = {each.group_id: each for each in answer.groups} if version >= _MANY_GROUPS_SINCE else {}
    found: dict[str, dict[TopicPartition, OffsetAndMetadata] | PenstockError] = {}
    for group_id in group_ids:
        group = answers.get(group_id, answer)
        try:
            if group.error_code:
                raise error_for(group.error_code, where=f"group {group_id}")
            found[group_id] = _committed(group.topics, group_id)
        except PenstockError as error:
            found[group_id] = error
    return found


def _committed(topics: Iterable[Any], group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in topics:
        for part in topic.partitions:
            key = TopicPartition(topic.name, part.partition_index)
            # 0.9 says of a partition without a commit that it does not know it.
            if part.error_code and part.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise error_for(part.error_code, where=f"group {group_id}, {key}")
            if part.committed_offset >= 0:
                found[key] = OffsetAndMetadata(part.committed_offset, part.committed_leader_epoch, part.metadata or "")
    return found


def _each(topics: Iterable[Any], group_id: str) -> dict[TopicPartition, PenstockError | None]:
    found: dict[TopicPartition, PenstockError | None] = {}
    for topic in topics:
        for part in topic.partitions:
            key = TopicPartition(topic.name, part.partition_index)
            error: BrokerError | None = None
            if part.error_code:
                error = error_for(part.error_code, where=f"group {group_id}, {key}")
                if error.code in _COORDINATOR_MOVED:
                    raise error
            found[key] = error
    return found


# --------------------------------------------------------------------------------------------------- lag


def _lag(
    partition: TopicPartition,
    committed: OffsetAndMetadata | None,
    end: OffsetResult | PenstockError,
    time_ms: int | PenstockError | None,
    now_ms: int,
) -> PartitionLag:
    end_offset = end.offset if isinstance(end, OffsetResult) else None
    if committed is None or end_offset is None:
        return PartitionLag(partition, committed.offset if committed else None, end_offset, None, None)
    records = max(0, end_offset - committed.offset)
    seconds: float | None = 0.0
    if records:
        known = isinstance(time_ms, int) and time_ms != NO_TIMESTAMP
        seconds = max(0, now_ms - time_ms) / 1000 if known and isinstance(time_ms, int) else None
    return PartitionLag(partition, committed.offset, end_offset, records, seconds)


async def record_times(connection: Connection, offsets: Mapping[TopicPartition, int], left_ms: int) -> Answers:
    """The timestamp of the first record at or after an offset of each partition; -1 if it is unknown."""
    if not connection.supports(ApiKey.FETCH, _FIRST_WITH_BATCHES):
        return dict.fromkeys(offsets, NO_TIMESTAMP)
    answers: Answers = {}
    open_ = dict(offsets)
    while open_:
        found = await _fetch_times(connection, open_, left_ms)
        if not found:
            answers.update(dict.fromkeys(open_, NO_TIMESTAMP))
            break
        answers.update(found)
        open_ = {key: offset for key, offset in open_.items() if key not in found}
    return answers


async def _fetch_times(connection: Connection, offsets: Mapping[TopicPartition, int], left_ms: int) -> Answers:
    wanted = {partition: PartitionFetch(offset, _PARTITION_BYTES) for partition, offset in offsets.items()}
    fetched, _ = await fetch_partitions(connection, wanted, timeout_ms=left_ms, max_bytes=_TOTAL_BYTES)
    found: Answers = {}
    for partition, data in fetched.items():
        if data.error_code:
            found[partition] = error_for(data.error_code, where=str(partition))
        elif data.high_watermark <= offsets[partition]:
            found[partition] = NO_TIMESTAMP
        elif (records := records_in(data)) is not None:
            time_ms = _first_time(records, offsets[partition])
            if time_ms is not None:
                found[partition] = time_ms
    return found


def _first_time(data: bytes | bytearray | memoryview, offset: int) -> int | None:
    """The timestamp of the first record; None without a whole batch."""
    headers = scan(data, verify=False, most=1).headers
    if not headers:
        return None
    header = headers[0]
    try:
        times = [record.timestamp for record in records_of(data, header) if record.offset >= offset]
    except RecordError:
        times = []
    # Compaction may have removed all records from here to the end of the batch.
    return times[0] if times else header.max_timestamp
