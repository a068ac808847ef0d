"""Long requests in parts: nothing is lost, added or put into another order, and the answers make one answer."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.api_table import API_TABLE
from penstock.broker.request import Parts, merge
from penstock.broker.request import split as split_by
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas import delete_groups, list_offsets, metadata, offset_commit, offset_fetch, produce
from penstock.wire.types import Message

LONG = 10**6


def split(api: ApiKey, version: int, message: Message, size: int) -> Parts | None:
    return split_by(API_TABLE[api].splits, version, message, size)


def commit_of(widths: list[int]) -> offset_commit.OffsetCommitRequest:
    return offset_commit.OffsetCommitRequest(
        group_id="g",
        topics=[
            offset_commit.OffsetCommitRequestTopic(
                name=f"t{number}",
                partitions=[
                    offset_commit.OffsetCommitRequestPartition(partition_index=index) for index in range(width)
                ],
            )
            for number, width in enumerate(widths)
        ],
    )


def answered(request: offset_commit.OffsetCommitRequest) -> offset_commit.OffsetCommitResponse:
    return offset_commit.OffsetCommitResponse(
        topics=[
            offset_commit.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    offset_commit.OffsetCommitResponsePartition(partition_index=each.partition_index)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@pytest.mark.parametrize(
    "widths",
    [[501], [500, 1], [1] * 501, [1200, 3, 499, 0, 7], [0, 0, 5000], [250, 251], [500, 500, 500], [499, 2, 499, 2]],
)
def test_parts_hold_what_the_request_holds_and_their_answers_make_its_answer(widths: list[int]) -> None:
    request = commit_of(widths)
    parts = split(ApiKey.OFFSET_COMMIT, 8, request, LONG)
    assert parts is not None
    requests: list[Any] = list(parts.requests)
    sizes = [sum(max(1, len(topic.partitions)) for topic in part.topics) for part in requests]
    assert len(sizes) > 1
    assert max(sizes) <= 500
    assert all(part.group_id == "g" for part in requests)
    assert merge([answered(part) for part in requests], parts.by.answered) == answered(request)


@pytest.mark.parametrize(
    ("api", "version", "message"),
    [
        (ApiKey.OFFSET_COMMIT, 8, commit_of([300, 200])),
        (ApiKey.METADATA, 9, metadata.MetadataRequest(topics=None)),
        (ApiKey.OFFSET_FETCH, 5, offset_fetch.OffsetFetchRequest(group_id="g", topics=None)),
        (ApiKey.LIST_OFFSETS, 5, list_offsets.ListOffsetsRequest()),
        (ApiKey.PRODUCE, 9, produce.ProduceRequest()),
        (ApiKey.API_VERSIONS, 3, metadata.MetadataRequest(topics=None)),
    ],
)
def test_short_requests_stay_whole(api: ApiKey, version: int, message: Message) -> None:
    assert split(api, version, message, LONG) is None


def test_a_small_request_is_not_split() -> None:
    assert split(ApiKey.OFFSET_COMMIT, 8, commit_of([501]), 100) is None


def test_offsets_of_many_groups_are_split_at_three_levels() -> None:
    groups = [
        offset_fetch.OffsetFetchRequestGroup(
            group_id=f"g{number}",
            topics=[
                offset_fetch.OffsetFetchRequestTopics(name="a", partition_indexes=list(range(350))),
                offset_fetch.OffsetFetchRequestTopics(name="b", partition_indexes=list(range(350))),
            ],
        )
        for number in range(3)
    ]
    whole = offset_fetch.OffsetFetchRequest(groups=groups, require_stable=True)
    parts = split(ApiKey.OFFSET_FETCH, 8, whole, LONG)
    assert parts is not None
    answers: list[Message] = []
    for part in parts.requests:
        assert isinstance(part, offset_fetch.OffsetFetchRequest)
        assert part.require_stable
        answers.append(
            offset_fetch.OffsetFetchResponse(
                groups=[
                    offset_fetch.OffsetFetchResponseGroup(
                        group_id=group.group_id,
                        topics=[
                            offset_fetch.OffsetFetchResponseTopics(
                                name=topic.name,
                                partitions=[
                                    offset_fetch.OffsetFetchResponsePartitions(partition_index=index)
                                    for index in topic.partition_indexes
                                ],
                            )
                            for topic in group.topics or ()
                        ],
                    )
                    for group in part.groups
                ]
            )
        )
    merged = merge(answers, parts.by.answered)
    assert isinstance(merged, offset_fetch.OffsetFetchResponse)
    found = [
        (group.group_id, topic.name, [each.partition_index for each in topic.partitions])
        for group in merged.groups
        for topic in group.topics
    ]
    assert found == [(f"g{number}", name, list(range(350))) for number in range(3) for name in "ab"]


def test_an_error_of_a_part_becomes_the_error_of_the_response() -> None:
    fine, bad = offset_fetch.OffsetFetchResponse(), offset_fetch.OffsetFetchResponse(error_code=16)
    assert merge([fine, bad, fine], ("topics", "partitions")).error_code == 16  # type: ignore[attr-defined]


def test_lists_of_names_are_split_too() -> None:
    names = [f"g{number}" for number in range(250)]
    parts = split(ApiKey.DELETE_GROUPS, 2, delete_groups.DeleteGroupsRequest(groups_names=names), LONG)
    assert parts is not None
    requests = list(parts.requests)
    assert [len(part.groups_names) for part in requests] == [100, 100, 50]  # type: ignore[attr-defined]
    answers: list[Message] = [
        delete_groups.DeleteGroupsResponse(
            results=[delete_groups.DeletableGroupResult(group_id=name) for name in part.groups_names]  # type: ignore[attr-defined]
        )
        for part in requests
    ]
    merged = merge(answers, parts.by.answered)
    assert [result.group_id for result in merged.results] == names  # type: ignore[attr-defined]
