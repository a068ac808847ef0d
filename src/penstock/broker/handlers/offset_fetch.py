"""OffsetFetch: committed offsets of groups, from version 8 on of many groups at once.

A request for all offsets of a group that has very many becomes one that names their partitions. It is then served in
parts like any other of that length.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from penstock.broker.handlers.groups import ask, ask_each
from penstock.broker.request import LONG_BYTES, PART_ELEMENTS, Answer, Request, Services, Split, serve_parts, split
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.wire.schemas.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

_FIRST_VERSION_WITH_GROUPS: Final = 8

SPLITS: Final = (
    Split(("topics", "partition_indexes"), ("topics", "partitions")),
    Split(
        ("groups", "topics", "partition_indexes"),
        ("groups", "topics", "partitions"),
        since=_FIRST_VERSION_WITH_GROUPS,
    ),
)


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: OffsetFetchRequest = request.message
    named = _named(services, message, request.version)
    if named is not message:
        parts = split(SPLITS, request.version, named, LONG_BYTES)
        if parts is not None:
            work = partial(serve_parts, services, request, parts, handle, answer)
            services.long_requests.start(request.channel, request.size, work)
            return
    if request.version < _FIRST_VERSION_WITH_GROUPS:
        ask(services, message.group_id, request, message, GroupCoordinatorShard.handle_offset_fetch, answer)
        return
    asked = [
        (group.group_id, OffsetFetchRequest(groups=[group], require_stable=message.require_stable))
        for group in message.groups
    ]

    def done(parts: list[OffsetFetchResponse]) -> None:
        answer(OffsetFetchResponse(groups=[group for part in parts for group in part.groups]))

    ask_each(services, request, asked, GroupCoordinatorShard.handle_offset_fetch, done)


def _named(services: Services, message: OffsetFetchRequest, version: int) -> OffsetFetchRequest:
    """The request, with all partitions named of groups of which it wants all offsets and that have many."""
    if version < _FIRST_VERSION_WITH_GROUPS:
        if message.topics is not None:
            return message
        named = _partitions_of(services, message.group_id)
        if named is None:
            return message
        topics = [OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in named]
        return msgspec.structs.replace(message, topics=topics)
    found = {
        group.group_id: named
        for group in message.groups
        if group.topics is None and (named := _partitions_of(services, group.group_id)) is not None
    }
    if not found:
        return message
    groups: list[OffsetFetchRequestGroup] = []
    for group in message.groups:
        wanted = found.get(group.group_id) if group.topics is None else None
        if wanted is None:
            groups.append(group)
            continue
        rows = [OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in wanted]
        groups.append(msgspec.structs.replace(group, topics=rows))
    return msgspec.structs.replace(message, groups=groups)


def _partitions_of(services: Services, group_id: str) -> list[tuple[str, list[int]]] | None:
    offsets = services.groups.offsets_of(group_id)
    if offsets is None or offsets.count(group_id) <= PART_ELEMENTS:
        return None
    return [(name, [index for index, _ in offsets.partitions(group_id, name)]) for name in offsets.topics(group_id)]
