"""AlterPartitionReassignments: moves partitions to other brokers; without replicas, cancels a move.

A broker that stands alone answers like a cluster of one: its partitions cannot be assigned to another broker.
"""

from __future__ import annotations

from penstock.broker.errors import ApiError, api_error_of
from penstock.broker.request import Answer, Request, Services
from penstock.cluster.controller.transaction import TopicPartition
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: AlterPartitionReassignmentsRequest = request.message

    def reject(reason: ApiError) -> None:
        answer(AlterPartitionReassignmentsResponse(error_code=reason.code, error_message=reason.text))

    controller = services.cluster.controller
    if controller is None:
        reject(ApiError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller"))
        return
    wanted = {
        (topic.name, item.partition_index): None if item.replicas is None else tuple(item.replicas)
        for topic in message.topics
        for item in topic.partitions
    }
    changed = [] if message.allow_replication_factor_change else _resized(services, wanted)
    if changed:
        reason = "the replication factor would change, which the request does not allow"
        answer(_response(message, dict.fromkeys(changed, ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, reason))))
        return

    async def move() -> None:
        outcomes = await controller.reassign(wanted)
        answer(_response(message, {key: api_error_of(error) for key, error in outcomes.items()}))

    services.spawn(move(), lambda error: reject(api_error_of(error)))


def _resized(services: Services, wanted: dict[TopicPartition, tuple[int, ...] | None]) -> list[TopicPartition]:
    found = []
    for (topic, index), replicas in wanted.items():
        partition = services.cluster.image.partition(topic, index)
        if partition is not None and replicas is not None:
            before = len([each for each in partition.replicas if each not in partition.adding])
            if len(replicas) != before:
                found.append((topic, index))
    return found


def _response(
    message: AlterPartitionReassignmentsRequest, reasons: dict[TopicPartition, ApiError]
) -> AlterPartitionReassignmentsResponse:
    fine = ApiError(ErrorCode.NONE)
    return AlterPartitionReassignmentsResponse(
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=item.partition_index, error_code=code, error_message=text
                    )
                    for item in topic.partitions
                    for code, text in (reasons.get((topic.name, item.partition_index), fine),)
                ],
            )
            for topic in message.topics
        ],
    )
