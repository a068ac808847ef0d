"""AlterPartitionReassignments: moves partitions to other brokers; without replicas, cancels a move.

A broker that stands alone answers like a cluster of one: its partitions cannot be assigned to another broker.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

from penstock.broker.errors import NO_ERROR, ApiError, api_error_of
from penstock.broker.request import PART_ELEMENTS, Answer, Request, Services
from penstock.cluster.controller.transaction import TopicPartition
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
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

    def respond(reason_of: Callable[[TopicPartition], ApiError]) -> None:
        services.long_requests.finish(request.channel, _responses(message, reason_of, answer))

    async def move() -> None:
        wanted: dict[TopicPartition, tuple[int, ...] | None] = {}
        resized: set[TopicPartition] = set()
        async for name, item in services.long_requests.each(_named(message)):
            key = name, item.partition_index
            wanted[key] = None if item.replicas is None else tuple(item.replicas)
            if not message.allow_replication_factor_change and _is_resized(services, key, item.replicas):
                resized.add(key)
        if resized:
            reason = "the replication factor would change, which the request does not allow"
            error = ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
            respond(lambda key: error if key in resized else NO_ERROR)
            return
        outcomes = await controller.reassign(wanted)
        respond(lambda key: api_error_of(outcomes[key]))

    services.spawn(move(), lambda error: reject(api_error_of(error)))


def _named(message: AlterPartitionReassignmentsRequest) -> Iterator[tuple[str, ReassignablePartition]]:
    return ((topic.name, item) for topic in message.topics for item in topic.partitions)


def _is_resized(services: Services, key: TopicPartition, replicas: Sequence[int] | None) -> bool:
    partition = services.cluster.image.partition(*key)
    if partition is None or replicas is None:
        return False
    return len(replicas) != len([each for each in partition.replicas if each not in partition.adding])


def _responses(
    message: AlterPartitionReassignmentsRequest, reason_of: Callable[[TopicPartition], ApiError], answer: Answer
) -> Generator[None, None, None]:
    topics: list[ReassignableTopicResponse] = []
    number = 0
    for topic in message.topics:
        response = ReassignableTopicResponse(name=topic.name)
        topics.append(response)
        for item in topic.partitions:
            code, text = reason_of((topic.name, item.partition_index))
            response.partitions.append(
                ReassignablePartitionResponse(partition_index=item.partition_index, error_code=code, error_message=text)
            )
            number += 1
            if not number % PART_ELEMENTS:
                yield
    answer(AlterPartitionReassignmentsResponse(error_message=None, responses=topics))
