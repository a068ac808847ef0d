"""Committed offsets over the wire, for stories in which a consumer group is only that: a name and its offsets."""

from __future__ import annotations

from tests.broker.wire_client import WireClient
from tests.timeouts import until

from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest
from penstock.wire.schemas.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.schemas.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic

COMMIT_VERSION = 7
NO_OFFSET = -1


def find_coordinator(client: WireClient, group: str) -> None:
    """Look for the coordinator until there is one."""

    def found() -> bool:
        answer = client.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key=group), 2)
        return bool(answer.error_code == ErrorCode.NONE)

    until(found, f"{group} has a coordinator")


def commit_request(group: str, topic: str, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])])


def commit(client: WireClient, group: str, topic: str, offset: int) -> int:
    """The error code."""
    answer = client.ask(ApiKey.OFFSET_COMMIT, commit_request(group, topic, offset), COMMIT_VERSION)
    code: int = answer.topics[0].partitions[0].error_code
    return code


def committed(client: WireClient, group: str, topic: str) -> int:
    """The offset, NO_OFFSET if there is none."""
    wanted = OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    answer = client.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(group_id=group, topics=[wanted]), 5)
    if answer.error_code != ErrorCode.NONE:
        raise ValueError(f"offsets of {group}: error {answer.error_code}")
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset
