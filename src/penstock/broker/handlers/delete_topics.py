"""DeleteTopics: deletes topics by name, from version 6 on by name or id.

A topic that is named twice is deleted and answered once. With delete.topic.enable=false all are rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.errors import ApiError, api_error_of
from penstock.broker.request import Answer, Request, Services
from penstock.cluster.controller.controller import TopicOutcome
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
_NAME_OR_ID: Final = ApiError(ErrorCode.INVALID_REQUEST, "a topic needs either a name or an id")


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: DeleteTopicsRequest = request.message
    unclear = []
    wanted: dict[str | bytes, None]
    if request.version < _FIRST_VERSION_WITH_IDS:
        wanted = dict.fromkeys(message.topic_names)
    else:
        unclear = [
            _rejected(topic.name, topic.topic_id, _NAME_OR_ID) for topic in message.topics if not _is_clear(topic)
        ]
        wanted = dict.fromkeys(_key(topic) for topic in message.topics if _is_clear(topic))

    def respond(result: Callable[[str | bytes], DeletableTopicResult]) -> None:
        answer(DeleteTopicsResponse(responses=[*unclear, *map(result, wanted)]))

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
        outcomes = dict(
            zip(wanted, await services.cluster.require_controller().delete_topics(list(wanted)), strict=True)
        )
        respond(lambda key: _result(key, outcomes[key]))

    services.spawn(delete(), lambda error: reject_all(api_error_of(error)))


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
