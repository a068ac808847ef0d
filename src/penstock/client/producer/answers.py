"""What a Produce response says of a partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.wire.error_codes import ErrorCode, error_code
from penstock.wire.schemas.produce import PartitionProduceResponse, ProduceResponse


class Answer(NamedTuple):
    """The default is what acks=0 amounts to: no news is good news."""

    code: ErrorCode = ErrorCode.NONE
    base_offset: int = -1
    append_time_ms: int = -1
    message: str | None = None
    leader: int = -1
    leader_epoch: int = -1
    record_errors: Mapping[int, str] | None = None
    """What is wrong with which records of the batch, if the broker says so."""

    @staticmethod
    def missing() -> Answer:
        """A broker that says nothing of a partition it was sent records for."""
        return Answer(ErrorCode.UNKNOWN_SERVER_ERROR, message="the broker's answer leaves the partition out")


def answers_of(response: ProduceResponse) -> dict[tuple[str, int], Answer]:
    """By topic and partition."""
    return {
        (topic.name, each.index): _answer(each) for topic in response.responses for each in topic.partition_responses
    }


def _answer(each: PartitionProduceResponse) -> Answer:
    message = each.error_message
    record_errors = None
    if each.record_errors:
        record_errors = {
            record.batch_index: record.batch_index_error_message or message or "rejected"
            for record in each.record_errors
        }
    leader = each.current_leader
    return Answer(
        error_code(each.error_code),
        each.base_offset,
        each.log_append_time_ms,
        message,
        leader.leader_id,
        leader.leader_epoch,
        record_errors,
    )
