"""AlterPartition: a leader requests other ISRs from the controller, many at once."""

from __future__ import annotations

from penstock.broker.errors import api_error_of
from penstock.broker.request import Answer, Request, Services
from penstock.cluster.controller.election import IsrAnswer, IsrRequest
from penstock.cluster.image import ClusterImage
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionDataResult,
    TopicData,
    TopicDataResult,
)


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: AlterPartitionRequest = request.message
    controller = services.membership.controller
    if controller is None:
        answer(AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER))
        return
    wanted = _wanted(message, services.cluster.image)

    async def alter() -> None:
        outcomes = dict(zip(wanted, await controller.alter_isrs(list(wanted.values())), strict=True))
        answer(AlterPartitionResponse(topics=[_result(topic, outcomes) for topic in message.topics]))

    services.spawn(alter(), lambda error: answer(AlterPartitionResponse(error_code=api_error_of(error).code)))


def _wanted(message: AlterPartitionRequest, image: ClusterImage) -> dict[tuple[bytes, int], IsrRequest]:
    """By topic id and partition; a topic of an unknown id has the name ""."""
    return {
        (topic.topic_id, item.partition_index): IsrRequest(
            image.names_by_id.get(topic.topic_id, ""),
            item.partition_index,
            message.broker_id,
            message.broker_epoch,
            item.leader_epoch,
            item.partition_epoch,
            tuple(state.broker_id for state in item.new_isr_with_epochs),
            tuple(state.broker_epoch for state in item.new_isr_with_epochs),
        )
        for topic in message.topics
        for item in topic.partitions
    }


def _result(topic: TopicData, outcomes: dict[tuple[bytes, int], IsrAnswer]) -> TopicDataResult:
    return TopicDataResult(
        topic_id=topic.topic_id,
        partitions=[
            _partition(item.partition_index, outcomes[topic.topic_id, item.partition_index])
            for item in topic.partitions
        ],
    )


def _partition(index: int, outcome: IsrAnswer) -> PartitionDataResult:
    if isinstance(outcome, ErrorCode):
        return PartitionDataResult(partition_index=index, error_code=outcome)
    return PartitionDataResult(
        partition_index=index,
        leader_id=outcome.leader,
        leader_epoch=outcome.leader_epoch,
        isr=list(outcome.isr),
        leader_recovery_state=int(outcome.recovering),
        partition_epoch=outcome.state_version,
    )
