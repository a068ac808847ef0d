"""ElectLeaders: elects preferred leaders, or out-of-sync leaders for partitions that have none."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final

from penstock.broker.errors import ApiError, api_error_of
from penstock.broker.request import PART_ELEMENTS, Answer, Request, Services, each_once
from penstock.cluster.controller.election import ElectionKind
from penstock.cluster.controller.transaction import TopicPartition
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_FIRST_VERSION_WITH_ERROR: Final = 1
_ALONE: Final = "this broker stands alone and leads all partitions"


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: ElectLeadersRequest = request.message

    def respond(
        partitions: Iterable[TopicPartition],
        reason_of: Callable[[TopicPartition], ApiError],
        code: ErrorCode = ErrorCode.NONE,
    ) -> None:
        def done(results: list[ReplicaElectionResult]) -> None:
            answer(ElectLeadersResponse(error_code=code, replica_election_results=results))

        services.long_requests.finish(request.channel, _results(partitions, reason_of, done))

    def reject(reason: ApiError) -> None:
        code = reason.code if request.version >= _FIRST_VERSION_WITH_ERROR else ErrorCode.NONE
        respond(_named(message), lambda _: reason, code)

    if message.election_type not in tuple(ElectionKind):
        reject(
            ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{message.election_type} is not an election type: expected 0 (preferred) or 1 (unclean)",
            )
        )
        return
    membership = services.membership_or_none
    if membership is None:
        respond(_named(message), lambda _: ApiError(ErrorCode.ELECTION_NOT_NEEDED, _ALONE))
        return
    controller = membership.controller
    if controller is None:
        reject(ApiError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller"))
        return

    async def elect() -> None:
        wanted = None if message.topic_partitions is None else _named(message)
        outcomes = await controller.elect_leaders(ElectionKind(message.election_type), wanted)
        respond(outcomes, lambda key: api_error_of(outcomes[key]))

    services.spawn(elect(), lambda error: reject(api_error_of(error)))


def _named(message: ElectLeadersRequest) -> Iterator[TopicPartition]:
    """The partitions of the request, each once."""
    return each_once((topic.topic, index) for topic in message.topic_partitions or () for index in topic.partitions)


def _results(
    partitions: Iterable[TopicPartition],
    reason_of: Callable[[TopicPartition], ApiError],
    done: Callable[[list[ReplicaElectionResult]], None],
) -> Generator[None, None, None]:
    topics: dict[str, ReplicaElectionResult] = {}
    for number, key in enumerate(partitions, 1):
        topic, index = key
        code, text = reason_of(key)
        result = topics.get(topic)
        if result is None:
            result = topics[topic] = ReplicaElectionResult(topic=topic, partition_result=[])
        result.partition_result.append(PartitionResult(partition_id=index, error_code=code, error_message=text))
        if not number % PART_ELEMENTS:
            yield
    done(list(topics.values()))
