"""CreatePartitions: adds partitions to topics, placed by the cluster or explicitly."""

from __future__ import annotations

from penstock.broker.errors import ApiError, api_error_of
from penstock.broker.request import Answer, Request, Services
from penstock.cluster.controller.controller import NewPartitions
from penstock.wire.schemas.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: CreatePartitionsRequest = request.message

    def respond(reasons: dict[str, ApiError]) -> None:
        answer(
            CreatePartitionsResponse(
                results=[
                    CreatePartitionsTopicResult(name=name, error_code=reason.code, error_message=reason.text)
                    for name, reason in reasons.items()
                ]
            )
        )

    async def create() -> None:
        wanted = [_new_partitions(topic) for topic in message.topics]
        outcomes = await services.cluster.require_controller().create_partitions(
            wanted, validate_only=message.validate_only
        )
        # A name that occurs twice is rejected each time, and answered once.
        respond({outcome.name: api_error_of(outcome.error) for outcome in outcomes})

    services.spawn(
        create(), lambda error: respond(dict.fromkeys((topic.name for topic in message.topics), api_error_of(error)))
    )


def _new_partitions(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = None if topic.assignments is None else [item.broker_ids for item in topic.assignments]
    return NewPartitions(topic.name, topic.count, assignments)
