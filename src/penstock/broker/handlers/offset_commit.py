"""OffsetCommit: stores the offsets of a group; answered when they are durable.

Offsets of partitions that do not exist are rejected before the coordinator sees the request.
"""

from __future__ import annotations

import msgspec

from penstock.broker.handlers.groups import ask
from penstock.broker.request import Answer, Request, Services
from penstock.cluster.image import ClusterImage
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.wire.types import Message


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: OffsetCommitRequest = request.message
    known, unknown = _sorted(message, services.cluster.image)

    def answer_with_unknown(response: Message | None) -> None:
        if isinstance(response, OffsetCommitResponse):
            response = OffsetCommitResponse(topics=_merged(unknown, response.topics))
        answer(response)

    if not unknown:
        ask(services, message.group_id, request, message, GroupCoordinatorShard.handle_offset_commit, answer)
    elif not known:
        answer(OffsetCommitResponse(topics=unknown))
    else:
        rest = msgspec.structs.replace(message, topics=known)
        ask(services, message.group_id, request, rest, GroupCoordinatorShard.handle_offset_commit, answer_with_unknown)


def _sorted(
    message: OffsetCommitRequest, image: ClusterImage
) -> tuple[list[OffsetCommitRequestTopic], list[OffsetCommitResponseTopic]]:
    """The offsets that can be committed, and the response for the others."""
    known: list[OffsetCommitRequestTopic] = []
    unknown: list[OffsetCommitResponseTopic] = []
    for topic in message.topics:
        found = image.topics.get(topic.name)
        count = 0 if found is None else len(found.partitions)
        missing = [each.partition_index for each in topic.partitions if not 0 <= each.partition_index < count]
        if not missing:
            known.append(topic)
            continue
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        errors = [OffsetCommitResponsePartition(partition_index=index, error_code=code) for index in missing]
        unknown.append(OffsetCommitResponseTopic(name=topic.name, partitions=errors))
        rest = [each for each in topic.partitions if 0 <= each.partition_index < count]
        if rest:
            known.append(OffsetCommitRequestTopic(name=topic.name, partitions=rest))
    return known, unknown


def _merged(
    some: list[OffsetCommitResponseTopic], others: list[OffsetCommitResponseTopic]
) -> list[OffsetCommitResponseTopic]:
    """Each topic once."""
    topics = {topic.name: topic for topic in some}
    for topic in others:
        if topic.name in topics:
            topics[topic.name].partitions.extend(topic.partitions)
        else:
            topics[topic.name] = topic
    return list(topics.values())
