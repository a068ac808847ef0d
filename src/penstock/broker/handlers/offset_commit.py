"""OffsetCommit: stores the offsets of a group; answered when they are durable.

Offsets of partitions that do not exist are rejected before the coordinator sees the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from penstock.broker.handlers.groups import Method, ask
from penstock.broker.request import Answer, Request, Services
from penstock.cluster.image import ClusterImage
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas import offset_commit as wire
from penstock.wire.schemas import txn_offset_commit as txn_wire
from penstock.wire.types import Message


def handle(services: Services, request: Request, answer: Answer) -> None:
    commit_known(services, request, GroupCoordinatorShard.handle_offset_commit, answer)


def commit_known(services: Services, request: Request, method: Method, answer: Answer) -> None:
    """Commit the offsets of partitions that exist, of either kind of request; the others get an error."""
    message: Any = request.message
    shapes = _TRANSACTIONAL if isinstance(message, txn_wire.TxnOffsetCommitRequest) else _PLAIN
    known, unknown = _sorted(message, services.cluster.image, shapes)

    def answer_with_unknown(response: Message | None) -> None:
        topics = getattr(response, "topics", None)
        answer(response if topics is None else shapes.response(topics=_merged(unknown, topics)))

    if not unknown:
        ask(services, message.group_id, request, message, method, answer)
    elif not known:
        answer(shapes.response(topics=unknown))
    else:
        rest = msgspec.structs.replace(message, topics=known)
        ask(services, message.group_id, request, rest, method, answer_with_unknown)


class _Shapes(NamedTuple):
    """The parts of a response."""

    response: Callable[..., Any]
    topic: Callable[..., Any]
    partition: Callable[..., Any]


_PLAIN: Final = _Shapes(wire.OffsetCommitResponse, wire.OffsetCommitResponseTopic, wire.OffsetCommitResponsePartition)
_TRANSACTIONAL: Final = _Shapes(
    txn_wire.TxnOffsetCommitResponse, txn_wire.TxnOffsetCommitResponseTopic, txn_wire.TxnOffsetCommitResponsePartition
)


def _sorted(message: Any, image: ClusterImage, shapes: _Shapes) -> tuple[list[Any], list[Any]]:
    """The offsets that can be committed, and the response for the others."""
    known: list[Any] = []
    unknown: list[Any] = []
    for topic in message.topics:
        found = image.topics.get(topic.name)
        count = 0 if found is None else len(found.partitions)
        missing = [each.partition_index for each in topic.partitions if not 0 <= each.partition_index < count]
        if not missing:
            known.append(topic)
            continue
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        errors = [shapes.partition(partition_index=index, error_code=code) for index in missing]
        unknown.append(shapes.topic(name=topic.name, partitions=errors))
        rest = [each for each in topic.partitions if 0 <= each.partition_index < count]
        if rest:
            known.append(msgspec.structs.replace(topic, partitions=rest))
    return known, unknown


def _merged(some: list[Any], others: list[Any]) -> list[Any]:
    """Each topic once."""
    topics = {topic.name: topic for topic in some}
    for topic in others:
        if topic.name in topics:
            topics[topic.name].partitions.extend(topic.partitions)
        else:
            topics[topic.name] = topic
    return list(topics.values())
