"""How long committed offsets and groups last (KIP-211), and how they are deleted."""

from __future__ import annotations

import pytest
from tests.coordination.group_stories import HOUR_MS, SESSION_MS, Story, protocols

from penstock.coordination.inquiries import listed
from penstock.coordination.settings import GroupSettings
from penstock.wire.api_keys import ApiKey
from penstock.wire.error_codes import ErrorCode, error_code
from penstock.wire.schemas.delete_groups import DeleteGroupsRequest
from penstock.wire.schemas.join_group import JoinGroupResponse
from penstock.wire.schemas.list_groups import ListGroupsRequest
from penstock.wire.schemas.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from penstock.wire.schemas.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

SETTINGS = GroupSettings(
    initial_rebalance_delay_ms=0, offsets_retention_ms=HOUR_MS, offsets_retention_check_interval_ms=60_000
)
CLICKS = ("clicks", 0)
# Checks come once a minute, so that what is over is gone a minute later.
CHECK_MS = 60_000


def live(story: Story, member: JoinGroupResponse, ms: int) -> None:
    for _ in range(ms // 5_000):
        story.pass_ms(5_000)
        assert story.heartbeat(member) is ErrorCode.NONE


def delete_offset(story: Story, topic: str, partition: int = 0, group: str = "g") -> ErrorCode:
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=partition)])
        ],
    )
    answer = story.ask(ApiKey.OFFSET_DELETE, request)
    return error_code(answer.error_code or answer.topics[0].partitions[0].error_code)


def delete_group(story: Story, *groups: str) -> list[ErrorCode]:
    answer = story.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=list(groups)))
    return [error_code(result.error_code) for result in answer.results]


def test_offsets_expire_only_after_the_group_is_empty() -> None:
    story = Story(SETTINGS)
    (one,) = story.stable()
    story.commit({CLICKS: 42}, by=one)
    live(story, one, 3 * HOUR_MS)
    assert story.fetched() == 42
    story.leave((one.member_id, None))
    story.pass_ms(HOUR_MS - CHECK_MS)
    assert story.fetched() == 42
    story.pass_ms(2 * CHECK_MS)
    assert story.fetched() == -1
    assert story.state() == "Dead"
    assert story.restart().state() == "Dead"


def test_offsets_do_not_expire_during_a_rebalance() -> None:
    story = Story(SETTINGS)
    (one,) = story.stable(offers=protocols(topics=("views",)))
    story.commit({CLICKS: 42}, by=one)
    live(story, one, HOUR_MS - CHECK_MS)
    story.join(offers=protocols(topics=("views",)), rebalance_ms=2 * HOUR_MS, session_ms=SESSION_MS)
    for _ in range(4 * 12):
        story.pass_ms(5_000)
        assert story.heartbeat(one) is ErrorCode.REBALANCE_IN_PROGRESS
        assert story.fetched() == 42


def test_offsets_of_topics_that_members_no_longer_read_expire() -> None:
    story = Story(SETTINGS)
    (one,) = story.stable(offers=protocols(topics=("views",)))
    story.commit({CLICKS: 42, ("views", 0): 7}, by=one)
    live(story, one, HOUR_MS + 2 * CHECK_MS)
    assert story.fetched() == -1
    assert story.fetched("views") == 7
    assert story.state() == "Stable"


@pytest.mark.parametrize("kind", ["consumer", "connect"])
def test_where_it_cannot_be_told_what_members_read_nothing_expires(kind: str) -> None:
    story = Story(SETTINGS)
    offers = protocols()
    offers[0].metadata = b"\x00"
    (one,) = story.stable(offers=offers, kind=kind)
    story.commit({CLICKS: 42}, by=one)
    live(story, one, HOUR_MS + 2 * CHECK_MS)
    assert story.fetched() == 42


def test_offsets_of_a_consumer_that_assigns_itself_expire_each_after_its_commit() -> None:
    story = Story(SETTINGS)
    story.commit({CLICKS: 1})
    story.pass_ms(HOUR_MS // 2)
    story.commit({("views", 0): 2})
    story.pass_ms(HOUR_MS // 2 + CHECK_MS)
    assert story.fetched() == -1
    assert story.fetched("views") == 2
    story.pass_ms(HOUR_MS // 2)
    assert story.fetched("views") == -1
    assert story.state() == "Dead"


def test_an_offset_that_was_set_while_the_group_was_empty_lasts_as_long_as_any() -> None:
    story = Story(SETTINGS)
    (one,) = story.stable()
    story.commit({("views", 0): 1}, by=one)
    story.leave((one.member_id, None))
    story.pass_ms(HOUR_MS - CHECK_MS)
    assert story.commit({CLICKS: 42}) is ErrorCode.NONE
    story.pass_ms(HOUR_MS - CHECK_MS)
    assert story.fetched("views") == -1
    assert story.fetched() == 42
    story.pass_ms(2 * CHECK_MS)
    assert story.fetched() == -1


def test_a_retention_chosen_by_an_old_client_counts_instead() -> None:
    story = Story(SETTINGS)
    story.commit({CLICKS: 1}, version=4, retention_ms=5 * CHECK_MS)
    story = story.restart()
    story.pass_ms(4 * CHECK_MS)
    assert story.fetched() == 1
    story.pass_ms(2 * CHECK_MS)
    assert story.fetched() == -1


def test_many_offsets_expire_a_bounded_number_at_a_time() -> None:
    story = Story(
        GroupSettings(offsets_retention_ms=HOUR_MS, offsets_retention_check_interval_ms=60_000, expiry_batch_records=10)
    )
    for partition in range(25):
        story.commit({("clicks", partition): 1})
    story.commit({("clicks", 0): 1}, group="other")
    story.pass_ms(HOUR_MS - 1)
    written = len(story.log)
    story.hold_writes = True
    story.pass_ms(CHECK_MS)
    sizes = []
    while story.held:
        sizes.append(len(story.held[0].records))
        story.write_next()
        story.pass_ms(0)
    assert max(sizes) <= 10
    assert sum(sizes) == len(story.log) - written == 26
    assert story.state() == story.state("other") == "Dead"


def test_an_expiry_that_cannot_be_written_waits_for_the_next_check() -> None:
    story = Story(
        GroupSettings(offsets_retention_ms=HOUR_MS, offsets_retention_check_interval_ms=60_000, expiry_batch_records=1)
    )
    story.commit({CLICKS: 1, ("clicks", 1): 1})
    story.hold_writes = True
    story.pass_ms(HOUR_MS)
    story.fail_next(ErrorCode.NOT_ENOUGH_REPLICAS)
    story.pass_ms(CHECK_MS - 1)
    assert not story.held
    assert story.fetched() == 1
    story.hold_writes = False
    story.pass_ms(1)
    assert story.fetched() == story.fetched("clicks", 1) == -1


def test_a_commit_on_its_way_keeps_its_offset_from_expiring() -> None:
    story = Story(SETTINGS)
    story.commit({CLICKS: 1})
    story.pass_ms(HOUR_MS - 1)
    story.hold_writes = True
    story.send_commit({CLICKS: 2})
    story.pass_ms(CHECK_MS)
    story.write_next()
    assert not story.held
    assert story.fetched() == 2


def test_an_empty_group_is_deleted_with_its_offsets() -> None:
    story = Story()
    (one,) = story.stable()
    story.commit({CLICKS: 42}, by=one)
    assert delete_group(story, "g") == [ErrorCode.NON_EMPTY_GROUP]
    story.leave((one.member_id, None))
    assert delete_group(story, "g", "absent") == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    for each in (story, story.restart()):
        assert each.fetched() == -1
        assert each.state() == "Dead"
        assert each.shard.saved_groups == {}
    assert delete_group(story, "g") == [ErrorCode.GROUP_ID_NOT_FOUND]


def test_a_group_is_deleted_with_the_offsets_of_open_transactions() -> None:
    story = Story()
    request = TxnOffsetCommitRequest(
        group_id="g",
        producer_id=77,
        topics=[TxnOffsetCommitRequestTopic(name="clicks", partitions=[TxnOffsetCommitRequestPartition()])],
    )
    story.ask(ApiKey.TXN_OFFSET_COMMIT, request, 3)
    assert delete_group(story, "g") == [ErrorCode.NONE]
    for each in (story, story.restart()):
        each.shard.end_transaction(77, committed=True)
        assert each.fetched() == -1
        assert each.state() == "Dead"


def test_a_member_that_joins_while_its_group_is_being_deleted_stays() -> None:
    story = Story()
    story.commit({CLICKS: 42})
    story.hold_writes = True
    token = story.send(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=["g"]))
    one = story.joined(story.join())
    story.write_next()
    assert story.replies[token].results[0].error_code == ErrorCode.NONE
    assert story.fetched() == -1
    assert story.heartbeat(one) is ErrorCode.NONE


def test_offsets_of_topics_that_are_read_cannot_be_deleted() -> None:
    story = Story()
    (one,) = story.stable()
    story.commit({CLICKS: 42, ("views", 0): 7}, by=one)
    assert delete_offset(story, "clicks") is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete_offset(story, "views") is ErrorCode.NONE
    assert delete_offset(story, "absent") is ErrorCode.NONE
    assert (story.fetched(), story.fetched("views")) == (42, -1)
    assert delete_offset(story, "clicks", group="absent") is ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_an_unknown_kind_of_group_with_members_cannot_be_deleted() -> None:
    story = Story()
    (one,) = story.stable(kind="connect")
    story.commit({CLICKS: 42}, by=one)
    assert delete_offset(story, "clicks") is ErrorCode.NON_EMPTY_GROUP
    story.leave((one.member_id, None))
    assert delete_offset(story, "clicks") is ErrorCode.NONE


def test_offsets_of_deleted_topics_are_forgotten() -> None:
    story = Story()
    story.commit({CLICKS: 1, ("views", 0): 2})
    story.commit({CLICKS: 1}, group="other")
    story.take(story.shard.forget_topics(["clicks"], story.now_ms))
    assert (story.fetched(), story.fetched("views"), story.state("other")) == (-1, 2, "Dead")


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        ([], [], {"busy", "simple"}),
        (["stable"], [], {"busy"}),
        ([" Empty "], ["Classic"], {"simple"}),
        ([], ["consumer"], set()),
        (["Nonsense"], [], set()),
    ],
)
def test_groups_are_listed_by_state_and_type(states: list[str], types: list[str], expected: set[str]) -> None:
    story = Story()
    story.stable(group="busy")
    story.commit({CLICKS: 1}, group="simple")
    groups = listed(story.shard.groups, ListGroupsRequest(states_filter=states, types_filter=types))
    assert {group.group_id for group in groups} == expected
    assert {group.protocol_type for group in groups} <= {"consumer", ""}
