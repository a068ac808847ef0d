"""AlterPartition: leaders ask the controller for other ISRs, many at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.broker.errors import api_error_of
from penstock.broker.request import Answer, Request, Services
from penstock.cluster.controller.election import ANY_EPOCH, AlterPartitionError, IsrRequest
from penstock.cluster.image import ClusterImage, PartitionImage
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResult,
    TopicData,
    TopicDataResult,
)

VERSION: Final = 3

CODES: Final = {
    AlterPartitionError.UNKNOWN_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    AlterPartitionError.NOT_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    AlterPartitionError.FENCED_LEADER_EPOCH: ErrorCode.FENCED_LEADER_EPOCH,
    AlterPartitionError.NEW_LEADER_EPOCH: ErrorCode.UNKNOWN_LEADER_EPOCH,
    AlterPartitionError.INVALID_UPDATE_VERSION: ErrorCode.INVALID_UPDATE_VERSION,
    AlterPartitionError.INELIGIBLE_REPLICA: ErrorCode.INELIGIBLE_REPLICA,
    AlterPartitionError.INVALID_REQUEST: ErrorCode.INVALID_REQUEST,
    AlterPartitionError.STALE_BROKER_EPOCH: ErrorCode.STALE_BROKER_EPOCH,
}
REFUSALS: Final = {int(code): refusal for refusal, code in CODES.items()}


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
    """By topic id and partition; an id that is not known names a topic that nobody has."""
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


def _result(
    topic: TopicData, outcomes: dict[tuple[bytes, int], AlterPartitionError | PartitionImage]
) -> TopicDataResult:
    return TopicDataResult(
        topic_id=topic.topic_id,
        partitions=[
            _partition(item.partition_index, outcomes[topic.topic_id, item.partition_index])
            for item in topic.partitions
        ],
    )


def _partition(index: int, outcome: AlterPartitionError | PartitionImage) -> PartitionDataResult:
    if isinstance(outcome, AlterPartitionError):
        return PartitionDataResult(partition_index=index, error_code=CODES[outcome])
    return PartitionDataResult(
        partition_index=index,
        leader_id=outcome.leader,
        leader_epoch=outcome.leader_epoch,
        isr=list(outcome.isr),
        leader_recovery_state=int(outcome.recovering),
        partition_epoch=outcome.state_version,
    )


def message_of(
    broker_id: int, broker_epoch: int, requests: list[IsrRequest], image: ClusterImage
) -> AlterPartitionRequest:
    """What a leader sends; the topics of all `requests` are in the image."""
    topics: dict[bytes, TopicData] = {}
    for request in requests:
        topic_id = image.topics[request.topic].topic_id
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = TopicData(topic_id=topic_id, partitions=[])
        topic.partitions.append(
            PartitionData(
                partition_index=request.partition,
                leader_epoch=request.leader_epoch,
                new_isr_with_epochs=[
                    BrokerState(broker_id=member, broker_epoch=ANY_EPOCH if epoch < 0 else epoch)
                    for member, epoch in zip(request.isr, request.isr_epochs, strict=True)
                ],
                partition_epoch=request.state_version,
            )
        )
    return AlterPartitionRequest(broker_id=broker_id, broker_epoch=broker_epoch, topics=list(topics.values()))


def outcomes_of(
    requests: list[IsrRequest], answer: AlterPartitionResponse, image: ClusterImage
) -> list[AlterPartitionError | PartitionImage]:
    """What the controller answered to each; a partition that it does not name, or refuses oddly, is not known."""
    found = {
        (image.names_by_id.get(topic.topic_id, ""), item.partition_index): item
        for topic in answer.topics
        for item in topic.partitions
    }
    return [_outcome(request, found.get((request.topic, request.partition)), image) for request in requests]


def _outcome(
    request: IsrRequest, item: PartitionDataResult | None, image: ClusterImage
) -> AlterPartitionError | PartitionImage:
    known = image.partition(request.topic, request.partition)
    if item is None or known is None:
        return AlterPartitionError.UNKNOWN_PARTITION
    if item.error_code:
        return REFUSALS.get(item.error_code, AlterPartitionError.UNKNOWN_PARTITION)
    return replace(
        known,
        leader=item.leader_id,
        leader_epoch=item.leader_epoch,
        isr=tuple(item.isr),
        state_version=item.partition_epoch,
        recovering=bool(item.leader_recovery_state),
    )
