"""CreatePartitions: adds partitions to topics, placed by the cluster or explicitly."""

from __future__ import annotations

from typing import Final

from penstock.broker.broker_only import INTERNAL_TOPIC
from penstock.broker.errors import ApiError, api_error_of
from penstock.broker.handlers.create_topics import TOO_MANY_PARTITIONS, beyond_limit
from penstock.broker.request import Answer, Request, Services, each_once
from penstock.broker.throttling import MUTATIONS_EXCEEDED
from penstock.cluster.controller.controller import NewPartitions
from penstock.wire.protocol import INTERNAL_TOPICS
from penstock.wire.schemas.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

_FIRST_STRICT_VERSION: Final = 3


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: CreatePartitionsRequest = request.message
    long_requests = services.long_requests
    reasons: dict[str, ApiError] = {}

    def respond(throttle_ms: int = 0, failure: ApiError | None = None) -> None:
        # A name that occurs twice is rejected each time, and answered once.
        rows = (
            CreatePartitionsTopicResult(name=name, error_code=reason.code, error_message=reason.text)
            for name in each_once(topic.name for topic in message.topics)
            for reason in (failure or reasons[name],)
        )
        long_requests.answer_rows(
            request.channel,
            rows,
            lambda made: answer(CreatePartitionsResponse(throttle_time_ms=throttle_ms, results=made)),
        )

    async def create() -> None:
        internal = INTERNAL_TOPICS if not request.session.is_broker else frozenset[str]()
        topics = services.cluster.image.topics
        permits: dict[str, int] = {}
        async for topic in long_requests.each(message.topics):
            if topic.name in topics:
                permits[topic.name] = max(1, topic.count - len(topics[topic.name].partitions))
        beyond = beyond_limit(services, permits)
        over, throttle_ms = frozenset[str](), 0
        if not message.validate_only:
            over, throttle_ms = services.throttling.over_quota(request, permits, _FIRST_STRICT_VERSION)
        reasons.update(dict.fromkeys(over, MUTATIONS_EXCEEDED))
        reasons.update(dict.fromkeys(beyond, TOO_MANY_PARTITIONS))
        reasons.update(dict.fromkeys(internal, INTERNAL_TOPIC))
        topics_left = long_requests.each(message.topics)
        wanted = [_new_partitions(topic) async for topic in topics_left if topic.name not in reasons]
        outcomes = await services.cluster.require_controller().create_partitions(
            wanted, validate_only=message.validate_only
        )
        async for outcome in long_requests.each(outcomes):
            reasons[outcome.name] = api_error_of(outcome.error)
        respond(throttle_ms)

    services.spawn(create(), lambda error: respond(failure=api_error_of(error)))


def _new_partitions(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = None if topic.assignments is None else [item.broker_ids for item in topic.assignments]
    return NewPartitions(topic.name, topic.count, assignments)
