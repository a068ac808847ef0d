"""Who may commit, and what is read back."""

from __future__ import annotations

import pytest
from tests.coordination.group_stories import SESSION_MS, Story, protocols

from penstock.coordination.errors import ShardActive, ShardNotActive, WriteOutOfOrder
from penstock.coordination.groups.group import GroupSettings
from penstock.coordination.responses import RequestContext
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.runtime.randomness import SeededRandom
from penstock.wire.protocol import ApiKey, ErrorCode, error_code
from penstock.wire.schemas.describe_groups import DescribeGroupsRequest
from penstock.wire.schemas.heartbeat import HeartbeatRequest
from penstock.wire.schemas.join_group import JoinGroupResponse
from penstock.wire.schemas.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic
from penstock.wire.schemas.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

CLICKS = ("clicks", 0)


def txn_commit(story: Story, offset: int, producer_id: int, by: JoinGroupResponse | None = None) -> int:
    request = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id="g",
        producer_id=producer_id,
        generation_id=-1 if by is None else by.generation_id,
        member_id="" if by is None else by.member_id,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="clicks", partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
            )
        ],
    )
    return story.send(ApiKey.TXN_OFFSET_COMMIT, request, 3)


def txn_code(story: Story, token: int) -> ErrorCode:
    return error_code(story.replies[token].topics[0].partitions[0].error_code)


@pytest.mark.parametrize("version", range(10))
def test_committed_offsets_are_fetched(version: int) -> None:
    story = Story()
    assert story.commit({CLICKS: 42}, version=version) is ErrorCode.NONE
    assert story.fetched() == 42
    assert story.restart().fetched() == 42
    assert story.fetched("clicks", 1) == story.fetched("views") == story.fetched(group="other") == -1


@pytest.mark.parametrize("version", range(10))
def test_offsets_are_fetched_in_every_version(version: int) -> None:
    story = Story()
    story.commit({CLICKS: 42}, metadata="note")
    if version >= 8:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
        (topic,) = story.ask(ApiKey.OFFSET_FETCH, request, version).groups[0].topics
    else:
        request = OffsetFetchRequest(
            group_id="g", topics=[OffsetFetchRequestTopic(name="clicks", partition_indexes=[0])]
        )
        (topic,) = story.ask(ApiKey.OFFSET_FETCH, request, version).topics
    (partition,) = topic.partitions
    assert (topic.name, partition.committed_offset, partition.metadata) == ("clicks", 42, "note")


@pytest.mark.parametrize("version", [2, 7])
def test_no_topics_means_all_of_them(version: int) -> None:
    story = Story()
    story.commit({CLICKS: 1, ("views", 3): 2})
    topics = story.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(group_id="g", topics=None), version).topics
    assert {(topic.name, topic.partitions[0].committed_offset) for topic in topics} == {("clicks", 1), ("views", 2)}


def test_commit_is_answered_when_it_is_in_the_log_and_not_before() -> None:
    story = Story()
    story.hold_writes = True
    token = story.send_commit({CLICKS: 42})
    assert token not in story.replies
    assert story.fetched() == -1
    assert story.fetched(require_stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    story.write_next()
    assert story.replies[token].topics[0].partitions[0].error_code == ErrorCode.NONE
    assert story.fetched(require_stable=True) == 42


@pytest.mark.parametrize(
    ("failure", "answer"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_commit_that_cannot_be_written_changes_nothing(failure: ErrorCode, answer: ErrorCode) -> None:
    story = Story()
    story.hold_writes = True
    token = story.send_commit({CLICKS: 42})
    story.fail_next(failure)
    assert story.replies[token].topics[0].partitions[0].error_code == answer
    assert story.fetched(require_stable=True) == -1
    assert story.state() == "Dead"


def test_commit_of_an_old_generation_is_rejected() -> None:
    story = Story()
    (one,) = story.stable()
    again = story.joined(story.join(one.member_id))
    story.sync(again, {})
    assert story.commit({CLICKS: 42}, by=one) is ErrorCode.ILLEGAL_GENERATION
    assert story.commit({CLICKS: 43}, by=again) is ErrorCode.NONE
    assert story.fetched() == 43


def test_member_that_was_removed_cannot_commit() -> None:
    story = Story()
    one, two = story.stable(2)
    story.leave((two.member_id, None))
    assert story.commit({CLICKS: 42}, by=two) is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.commit({CLICKS: 42}, by=one) is ErrorCode.NONE


def test_commit_during_a_rebalance_counts_until_the_new_generation_is_formed() -> None:
    story = Story()
    (one,) = story.stable()
    second = story.join()
    assert story.state() == "PreparingRebalance"
    assert story.commit({CLICKS: 42}, by=one) is ErrorCode.NONE
    again = story.joined(story.join(one.member_id))
    story.joined(second)
    assert story.state() == "CompletingRebalance"
    assert story.commit({CLICKS: 43}, by=again) is ErrorCode.REBALANCE_IN_PROGRESS
    assert story.fetched() == 42


def test_group_with_members_takes_no_commits_from_outside() -> None:
    story = Story()
    story.stable()
    assert story.commit({CLICKS: 42}) is ErrorCode.UNKNOWN_MEMBER_ID
    story.pass_ms(SESSION_MS)
    assert story.state() == "Empty"
    assert story.commit({CLICKS: 42}) is ErrorCode.NONE


def test_commit_to_an_unknown_group_is_rejected() -> None:
    story = Story()
    outsider = JoinGroupResponse(member_id="x", generation_id=3)
    assert story.commit({CLICKS: 1}, by=outsider, version=8) is ErrorCode.ILLEGAL_GENERATION
    assert story.commit({CLICKS: 1}, by=outsider, version=9) is ErrorCode.GROUP_ID_NOT_FOUND
    assert story.log == []


def test_commit_renews_the_session() -> None:
    story = Story()
    (one,) = story.stable()
    story.pass_ms(SESSION_MS - 1)
    story.commit({CLICKS: 1}, by=one)
    story.pass_ms(SESSION_MS - 1)
    assert story.heartbeat(one) is ErrorCode.NONE


def test_long_metadata_is_rejected_and_the_rest_is_committed() -> None:
    story = Story(GroupSettings(offset_metadata_max_bytes=10))
    assert story.commit({CLICKS: 1}, metadata="x" * 11) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert story.log == []
    assert story.commit({CLICKS: 1}, metadata="x" * 10) is ErrorCode.NONE
    assert story.commit({CLICKS: 2}, metadata=None) is ErrorCode.NONE
    assert story.fetched() == 2


def test_longest_note_that_can_be_sent_can_be_kept() -> None:
    story = Story(GroupSettings(offset_metadata_max_bytes=100_000))
    for note in ("x" * 32_767, "ü" * 16_383):
        assert story.commit({CLICKS: 1}, metadata=note) is ErrorCode.NONE
    assert story.restart().fetched() == 1


def test_retention_beyond_all_time_can_be_written() -> None:
    story = Story()
    assert story.commit({CLICKS: 1}, version=3, retention_ms=2**63 - 1) is ErrorCode.NONE
    assert story.restart().fetched() == 1


def test_writes_are_reported_in_order() -> None:
    story = Story()
    story.hold_writes = True
    for offset in (1, 2):
        story.send_commit({CLICKS: offset})
    last = story.held[1].write_id
    assert last is not None
    with pytest.raises(WriteOutOfOrder):
        story.shard.appended(last, story.now_ms)
    story.write_next()
    assert story.fetched(require_stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    story.write_next()
    assert story.fetched(require_stable=True) == 2


def test_failed_write_ends_while_earlier_ones_are_in_flight() -> None:
    """Too few replicas are in sync for new records, and those that were appended before wait for them."""
    story = Story()
    story.hold_writes = True
    for offset in (1, 2):
        story.send_commit({CLICKS: offset})
    failed = story.held.pop().write_id
    assert failed is not None
    story.shard.append_failed(failed, ErrorCode.NOT_ENOUGH_REPLICAS, story.now_ms)
    with pytest.raises(WriteOutOfOrder):
        story.shard.append_failed(failed, ErrorCode.NOT_ENOUGH_REPLICAS, story.now_ms)
    story.write_next()
    assert story.fetched(require_stable=True) == 1
    story.hold_writes = False
    assert story.commit({CLICKS: 3}) is ErrorCode.NONE
    assert story.fetched() == 3


def test_shard_serves_only_between_loading_and_unloading() -> None:
    shard = GroupCoordinatorShard(GroupSettings(), SeededRandom(1))
    request, context = HeartbeatRequest(group_id="g"), RequestContext(1, 4)
    with pytest.raises(ShardNotActive):
        shard.handle_heartbeat(request, context, 0)
    shard.loaded(0)
    with pytest.raises(ShardActive):
        shard.replay(b"", None)
    with pytest.raises(ShardActive):
        shard.loaded(0)
    shard.unload()
    with pytest.raises(ShardNotActive):
        shard.handle_heartbeat(request, context, 0)


def test_offsets_of_a_transaction_count_when_it_commits() -> None:
    story = Story()
    story.commit({CLICKS: 1})
    assert txn_code(story, txn_commit(story, 2, producer_id=77)) is ErrorCode.NONE
    assert story.fetched() == 1
    assert story.fetched(require_stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    later = story.restart()
    assert later.fetched(require_stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    for each in (story, later):
        each.shard.end_transaction(77, committed=True)
        assert each.fetched(require_stable=True) == 2


def test_offsets_of_a_transaction_vanish_when_it_aborts() -> None:
    story = Story()
    txn_commit(story, 2, producer_id=77)
    assert story.state() == "Empty"
    story.shard.end_transaction(77, committed=False)
    assert story.fetched(require_stable=True) == -1
    assert story.state() == "Dead"


def test_of_two_commits_the_later_in_the_log_wins_whichever_ends_first() -> None:
    story = Story()
    txn_commit(story, 1, producer_id=1)
    txn_commit(story, 2, producer_id=2)
    story.shard.end_transaction(2, committed=True)
    story.shard.end_transaction(1, committed=True)
    assert story.fetched() == 2
    txn_commit(story, 3, producer_id=3)
    story.commit({CLICKS: 4})
    story.shard.end_transaction(3, committed=True)
    assert story.fetched() == 4


def test_transaction_is_bound_to_the_generation_that_it_names() -> None:
    story = Story()
    (one,) = story.stable()
    assert txn_code(story, txn_commit(story, 1, 77, by=one)) is ErrorCode.NONE
    one.generation_id -= 1
    assert txn_code(story, txn_commit(story, 1, 77, by=one)) is ErrorCode.ILLEGAL_GENERATION
    # Older clients name none, and are accepted whatever the group does.
    assert txn_code(story, txn_commit(story, 1, 77)) is ErrorCode.NONE


def test_group_described_before_it_is_complete_shows_no_assignments() -> None:
    story = Story()
    one = story.joined(story.join(offers=protocols("range")))
    request = DescribeGroupsRequest(groups=["g", "absent", ""])
    group, absent, nameless = story.ask(ApiKey.DESCRIBE_GROUPS, request, 6).groups
    assert (group.group_state, group.protocol_data) == ("CompletingRebalance", "")
    assert group.members[0].member_metadata == b""
    assert (absent.group_state, absent.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert nameless.error_code == ErrorCode.INVALID_GROUP_ID
    story.share_out([one])
    (group,) = story.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=["g"]), 0).groups
    (member,) = group.members
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    assert (member.client_id, member.client_host) == ("app", "/10.0.0.7")
    assert member.member_assignment == b"share of " + one.member_id.encode()
