"""Groups, their offsets, and coordinators."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

import msgspec

from penstock.broker.authorization_rules.rule import (
    CODES,
    SLICE,
    Access,
    ByElement,
    Prepared,
    Rule,
    by_topic_partition,
    needs_group,
    on_name,
    on_topic,
    visible_of,
)
from penstock.security.acls import CLUSTER_NAME, Operation, ResourceType
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas import (
    delete_groups,
    describe_groups,
    find_coordinator,
    offset_commit,
    offset_delete,
    offset_fetch,
)
from penstock.wire.types import Message

_O, _R = Operation, ResourceType


def _find_coordinator(access: Access, message: find_coordinator.FindCoordinatorRequest, version: int) -> ErrorCode:
    return ErrorCode.NONE if version >= 4 else _coordinator(access, message.key_type, message.key)


def _coordinator(access: Access, key_type: int, key: str) -> ErrorCode:
    kind = {0: _R.GROUP, 1: _R.TRANSACTIONAL_ID}.get(key_type)  # others are rejected by the handler
    return ErrorCode.NONE if kind is None or access.may(_O.DESCRIBE, kind, key) else CODES[kind]


def _coordinators(
    access: Access, message: find_coordinator.FindCoordinatorRequest, version: int
) -> Generator[None, None, Prepared]:
    if version < 4:
        return Prepared(message)
    prepare = ByElement(
        "coordinator_keys",
        "coordinators",
        lambda sender, key: _coordinator(sender, message.key_type, key),
        lambda key, code: find_coordinator.Coordinator(
            key=key, node_id=-1, port=-1, error_code=code, error_message=code.meaning
        ),
    )
    return (yield from prepare(access, message, version))


def _denied_offsets(topic: Any, code: ErrorCode, shape: tuple[Callable[..., Any], Callable[..., Any]]) -> Any:
    topic_row, partition_row = shape
    return topic_row(
        name=topic.name,
        partitions=[
            partition_row(partition_index=index, committed_offset=-1, error_code=code)
            for index in topic.partition_indexes
        ],
    )


_OLD: Final = (offset_fetch.OffsetFetchResponseTopic, offset_fetch.OffsetFetchResponsePartition)
_NEW: Final = (offset_fetch.OffsetFetchResponseTopics, offset_fetch.OffsetFetchResponsePartitions)
_OFFSETS_BY_TOPIC: Final = ByElement(
    "topics", "topics", on_topic(_O.DESCRIBE), lambda topic, code: _denied_offsets(topic, code, _OLD)
)
_GROUP_OFFSETS_BY_TOPIC: Final = ByElement(
    "topics", "topics", on_topic(_O.DESCRIBE), lambda topic, code: _denied_offsets(topic, code, _NEW)
)


def _offset_fetch_group(access: Access, message: offset_fetch.OffsetFetchRequest, version: int) -> ErrorCode:
    if version >= 8 or access.may(_O.DESCRIBE, _R.GROUP, message.group_id):
        return ErrorCode.NONE
    return ErrorCode.GROUP_AUTHORIZATION_FAILED


def _offset_fetch(
    access: Access, message: offset_fetch.OffsetFetchRequest, version: int
) -> Generator[None, None, Prepared]:
    """Groups, and the topics of each, are permitted one by one. Denied topics are added to what their group gets."""
    if version < 8:
        return (yield from _OFFSETS_BY_TOPIC(access, message, version))
    kept: list[Any] = []
    ready: list[Any] = []
    for group in message.groups:
        if not access.may(_O.DESCRIBE, _R.GROUP, group.group_id):
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            ready.append(offset_fetch.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code))
            continue
        prepared = yield from _GROUP_OFFSETS_BY_TOPIC(access, group, version)
        if prepared.message is not None:
            kept.append(prepared.message)
        if prepared.ready:
            denied = offset_fetch.OffsetFetchResponseGroup(group_id=group.group_id, topics=list(prepared.ready))
            ready.append(denied)
        yield
    if not ready:
        return Prepared(message)
    return Prepared(msgspec.structs.replace(message, groups=kept) if kept else None, "groups", ready)


def _offsets_fetched(
    access: Access, message: offset_fetch.OffsetFetchRequest, response: Any, version: int
) -> Generator[None, None, None]:
    """All offsets of a group are those of topics that the sender may describe. Each group is answered once."""
    if version < 8:
        if message.topics is None:
            response.topics = yield from visible_of(access, response.topics, _O.DESCRIBE, _R.TOPIC, "name")
        return
    whole = {group.group_id for group in message.groups if group.topics is None}
    merged: dict[str, Any] = {}
    for group in response.groups:
        known = merged.setdefault(group.group_id, group)
        if known is not group and not known.error_code:
            known.topics = [*known.topics, *group.topics]
    for group in merged.values():
        if group.group_id in whole:
            group.topics = yield from visible_of(access, group.topics, _O.DESCRIBE, _R.TOPIC, "name")
    response.groups = list(merged.values())


def _groups_listed(access: Access, message: Any, response: Any, _: int) -> Generator[None, None, None]:
    if not access.sees(_O.DESCRIBE, _R.CLUSTER, CLUSTER_NAME):
        response.groups = yield from visible_of(access, response.groups, _O.DESCRIBE, _R.GROUP, "group_id")


def _groups_described(access: Access, message: Any, response: Any, version: int) -> Generator[None, None, None]:
    if version >= 3 and message.include_authorized_operations:
        for number, group in enumerate(response.groups, 1):
            if not group.error_code:
                group.authorized_operations = access.operations(_R.GROUP, group.group_id)
            if not number % SLICE:
                yield


def _no_coordinator(_: Any, code: ErrorCode, __: int) -> Message:
    return find_coordinator.FindCoordinatorResponse(error_code=code, error_message=code.meaning, node_id=-1, port=-1)


GROUPS: Final[dict[int, Rule]] = {
    ApiKey.FIND_COORDINATOR: Rule(needs=_find_coordinator, reject=_no_coordinator, prepare=_coordinators),
    ApiKey.JOIN_GROUP: Rule(needs=needs_group(_O.READ)),
    ApiKey.SYNC_GROUP: Rule(needs=needs_group(_O.READ)),
    ApiKey.HEARTBEAT: Rule(needs=needs_group(_O.READ)),
    ApiKey.LEAVE_GROUP: Rule(needs=needs_group(_O.READ)),
    ApiKey.OFFSET_COMMIT: Rule(
        needs=needs_group(_O.READ),
        prepare=by_topic_partition(
            _O.READ, offset_commit.OffsetCommitResponseTopic, offset_commit.OffsetCommitResponsePartition
        ),
    ),
    ApiKey.OFFSET_FETCH: Rule(needs=_offset_fetch_group, prepare=_offset_fetch, complete=_offsets_fetched),
    ApiKey.OFFSET_DELETE: Rule(
        needs=needs_group(_O.DELETE),
        prepare=by_topic_partition(
            _O.READ, offset_delete.OffsetDeleteResponseTopic, offset_delete.OffsetDeleteResponsePartition
        ),
    ),
    ApiKey.DESCRIBE_GROUPS: Rule(
        prepare=ByElement(
            "groups",
            "groups",
            on_name(_O.DESCRIBE, _R.GROUP),
            lambda name, code: describe_groups.DescribedGroup(group_id=name, error_code=code),
        ),
        complete=_groups_described,
    ),
    ApiKey.LIST_GROUPS: Rule(complete=_groups_listed),
    ApiKey.DELETE_GROUPS: Rule(
        prepare=ByElement(
            "groups_names",
            "results",
            on_name(_O.DELETE, _R.GROUP),
            lambda name, code: delete_groups.DeletableGroupResult(group_id=name, error_code=code),
        )
    ),
}
