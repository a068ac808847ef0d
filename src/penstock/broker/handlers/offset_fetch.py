"""OffsetFetch: how far groups have read. From version 8 on for many groups at once.

A request for all offsets of a group that has very many becomes one that names their partitions, which is then served in
parts like any other of that length.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.handlers.groups import ask, ask_each
from penstock.broker.request import LONG_BYTES, PART_ELEMENTS, Answer, Request, serve_parts, split
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.wire.schemas.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: OffsetFetchRequest = request.message
    named = _named(broker, message, request.version)
    if named is not message:
        parts = split(request.api_key, request.version, named, LONG_BYTES)
        if parts is not None:
            work = partial(serve_parts, broker, request, parts, handle, answer)
            broker.long_requests.start(request.channel, request.size, work)
            return
    if request.version < 8:
        ask(broker, message.group_id, request, message, GroupCoordinatorShard.handle_offset_fetch, answer)
        return
    asked = [
        (group.group_id, OffsetFetchRequest(groups=[group], require_stable=message.require_stable))
        for group in message.groups
    ]

    def done(parts: list[OffsetFetchResponse]) -> None:
        answer(OffsetFetchResponse(groups=[group for part in parts for group in part.groups]))

    ask_each(broker, request, asked, GroupCoordinatorShard.handle_offset_fetch, done)


def _named(broker: Broker, message: OffsetFetchRequest, version: int) -> OffsetFetchRequest:
    """The request with the partitions named of those groups of which it wants all, where that is many."""
    if version < 8:
        if message.topics is not None:
            return message
        named = _partitions_of(broker, message.group_id)
        if named is None:
            return message
        topics = [OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in named]
        return msgspec.structs.replace(message, topics=topics)
    found = {
        group.group_id: named
        for group in message.groups
        if group.topics is None and (named := _partitions_of(broker, group.group_id)) is not None
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


def _partitions_of(broker: Broker, group_id: str) -> list[tuple[str, list[int]]] | None:
    offsets = broker.groups.offsets_of(group_id)
    if offsets is None or offsets.count(group_id) <= PART_ELEMENTS:
        return None
    return [(name, [index for index, _ in offsets.partitions(group_id, name)]) for name in offsets.topics(group_id)]
