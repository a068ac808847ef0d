"""ElectLeaders: elects preferred leaders, or out-of-sync leaders for partitions that have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.broker.errors import ApiError, api_error_of
from penstock.broker.request import Answer, Request, Services
from penstock.cluster.controller.election import ElectionKind
from penstock.cluster.controller.transaction import TopicPartition
from penstock.cluster.errors import ApiException
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
    named = message.topic_partitions
    wanted = None if named is None else [(topic.topic, index) for topic in named for index in topic.partitions]

    def reject(reason: ApiError) -> None:
        results = _results(dict.fromkeys(wanted or (), reason))
        code = reason.code if request.version >= _FIRST_VERSION_WITH_ERROR else ErrorCode.NONE
        answer(ElectLeadersResponse(error_code=code, replica_election_results=results))

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
        reasons = {key: ApiError(ErrorCode.ELECTION_NOT_NEEDED, _ALONE) for key in wanted or ()}
        answer(ElectLeadersResponse(replica_election_results=_results(reasons)))
        return
    controller = membership.controller
    if controller is None:
        reject(ApiError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller"))
        return

    async def elect() -> None:
        outcomes = await controller.elect_leaders(ElectionKind(message.election_type), wanted)
        answer(ElectLeadersResponse(replica_election_results=_results(_explained(outcomes))))

    services.spawn(elect(), lambda error: reject(api_error_of(error)))


def _explained(outcomes: Mapping[TopicPartition, ApiException | None]) -> dict[TopicPartition, ApiError]:
    return {key: api_error_of(error) for key, error in outcomes.items()}


def _results(reasons: Mapping[TopicPartition, ApiError]) -> list[ReplicaElectionResult]:
    topics: dict[str, ReplicaElectionResult] = {}
    for (topic, index), (code, text) in reasons.items():
        result = topics.setdefault(topic, ReplicaElectionResult(topic=topic, partition_result=[]))
        result.partition_result.append(PartitionResult(partition_id=index, error_code=code, error_message=text))
    return list(topics.values())
