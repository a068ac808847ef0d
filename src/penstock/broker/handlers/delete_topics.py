"""DeleteTopics: deletes topics by name, from version 6 on by name or id.

A topic that is named twice is deleted and answered once. With delete.topic.enable=false all are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from penstock.broker.broker_only import INTERNAL_TOPIC, is_protected
from penstock.broker.errors import ApiError, api_error_of
from penstock.broker.request import Answer, Request, Services, each_once
from penstock.broker.throttling import MUTATIONS_EXCEEDED
from penstock.cluster.controller.controller import TopicOutcome
from penstock.cluster.image import ClusterImage
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.wire.types import NO_UUID

_FIRST_VERSION_WITH_IDS: Final = 6
_FIRST_VERSION_WITH_DISABLED: Final = 3
_FIRST_STRICT_VERSION: Final = 5
_NAME_OR_ID: Final = ApiError(ErrorCode.INVALID_REQUEST, "a topic needs either a name or an id")


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: DeleteTopicsRequest = request.message
    long_requests = services.long_requests
    rejected: dict[str | bytes, ApiError] = {}
    outcomes: dict[str | bytes, TopicOutcome] = {}

    def unclear() -> Iterator[DeletableTopicResult]:
        for topic in message.topics:
            if not _is_clear(topic):
                yield _rejected(topic.name, topic.topic_id, _NAME_OR_ID)

    def result(key: str | bytes) -> DeletableTopicResult:
        reason = rejected.get(key)
        return _result(key, outcomes[key]) if reason is None else _rejected(*_name_and_id(key), reason)

    def respond(to_result: Callable[[str | bytes], DeletableTopicResult], throttle_ms: int = 0) -> None:
        rows = chain(unclear(), map(to_result, _wanted(message, request.version)))
        long_requests.answer_rows(
            request.channel,
            rows,
            lambda made: answer(DeleteTopicsResponse(throttle_time_ms=throttle_ms, responses=made)),
        )

    def reject_all(reason: ApiError) -> None:
        respond(lambda key: _rejected(*_name_and_id(key), reason))

    if not services.settings.delete_topic_enable:
        code = (
            ErrorCode.INVALID_REQUEST
            if request.version < _FIRST_VERSION_WITH_DISABLED
            else ErrorCode.TOPIC_DELETION_DISABLED
        )
        reject_all(ApiError(code, "topic deletion is disabled: delete.topic.enable=false"))
        return

    async def delete() -> None:
        controller = services.cluster.require_controller()
        image, throttle_ms = controller.image, 0
        allowed: list[str | bytes] = []
        async for key in long_requests.each(_wanted(message, request.version)):
            name = key if isinstance(key, str) else image.names_by_id.get(key, "")
            if is_protected(services, request.session, name):
                rejected[key] = INTERNAL_TOPIC
                continue
            permits = {key: _partition_count(image, key)}
            over, throttle_ms = services.throttling.over_quota(request, permits, _FIRST_STRICT_VERSION)
            if over:
                rejected[key] = MUTATIONS_EXCEEDED
            else:
                allowed.append(key)
        deleted = await controller.delete_topics(allowed)
        outcomes.update(zip(allowed, deleted, strict=True))
        respond(result, throttle_ms)

    services.spawn(delete(), lambda error: reject_all(api_error_of(error)))


def _wanted(message: DeleteTopicsRequest, version: int) -> Iterator[str | bytes]:
    """The topics by name or id, each once."""
    if version < _FIRST_VERSION_WITH_IDS:
        return each_once(message.topic_names)
    return each_once(_key(topic) for topic in message.topics if _is_clear(topic))


def _partition_count(image: ClusterImage, key: str | bytes) -> int:
    topic = image.topic(key) if isinstance(key, str) else image.topic_by_id(key)
    return 1 if topic is None else max(1, len(topic.partitions))


def _is_clear(topic: DeleteTopicState) -> bool:
    return (topic.name is None) != (topic.topic_id == NO_UUID)


def _key(topic: DeleteTopicState) -> str | bytes:
    return topic.topic_id if topic.name is None else topic.name


def _name_and_id(key: str | bytes) -> tuple[str | None, bytes]:
    return (key, NO_UUID) if isinstance(key, str) else (None, key)


def _rejected(name: str | None, topic_id: bytes, reason: ApiError) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=reason.code, error_message=reason.text)


def _result(key: str | bytes, outcome: TopicOutcome) -> DeletableTopicResult:
    if outcome.topic is None:
        return _rejected(*_name_and_id(key), api_error_of(outcome.error))
    return DeletableTopicResult(name=outcome.topic.name, topic_id=outcome.topic.topic_id)
