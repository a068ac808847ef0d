"""Members come, share, fail and go."""

from __future__ import annotations

import pytest
from tests.coordination.group_stories import REBALANCE_MS, SESSION_MS, Story, protocols, subscription

from penstock.coordination.groups.group import GroupSettings
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.describe_groups import DescribeGroupsRequest
from penstock.wire.schemas.join_group import JoinGroupResponse
from penstock.wire.schemas.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.schemas.sync_group import SyncGroupRequest


def test_two_consumers_join_and_share() -> None:
    story = Story(GroupSettings(initial_rebalance_delay_ms=3_000))
    tokens = [story.join(client="one"), story.join(client="two")]
    assert story.state() == "PreparingRebalance"
    story.pass_ms(6_000)
    one, two = (story.joined(token) for token in tokens)
    assert (one.generation_id, two.generation_id) == (1, 1)
    assert one.member_id.startswith("one-")
    assert one.leader == two.leader == one.member_id
    assert [member.member_id for member in one.members] == [one.member_id, two.member_id]
    assert one.members[1].metadata == subscription("clicks")
    assert two.members == []
    assert (one.protocol_type, one.protocol_name) == ("consumer", "range")
    assert story.state() == "CompletingRebalance"

    follower = story.sync(two)
    assert follower not in story.replies
    leader = story.sync(one, {one.member_id: b"0,1", two.member_id: b"2,3"})
    assert story.replies[leader].assignment == b"0,1"
    assert story.replies[follower].assignment == b"2,3"
    assert story.state() == "Stable"
    assert story.heartbeat(one) is story.heartbeat(two) is ErrorCode.NONE


def test_assignment_counts_only_once_it_is_in_the_log() -> None:
    story = Story()
    one = story.joined(story.join())
    story.hold_writes = True
    leader = story.sync(one, {one.member_id: b"all"})
    assert leader not in story.replies
    assert story.state() == "CompletingRebalance"
    assert story.shard.saved_groups == {}
    story.write_next()
    assert story.replies[leader].assignment == b"all"
    assert story.shard.saved_groups["g"].members[0].assignment == b"all"


def test_assignment_that_cannot_be_written_means_another_round() -> None:
    story = Story()
    one = story.joined(story.join())
    story.hold_writes = True
    leader = story.sync(one, {one.member_id: b"all"})
    story.fail_next(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert story.replies[leader].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert story.state() == "PreparingRebalance"
    assert story.heartbeat(one) is ErrorCode.REBALANCE_IN_PROGRESS


def test_member_that_joins_meanwhile_overtakes_the_assignment() -> None:
    story = Story()
    one = story.joined(story.join())
    story.hold_writes = True
    leader = story.sync(one, {one.member_id: b"all"})
    second = story.join()
    assert story.replies[leader].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    story.write_next()
    assert story.state() == "PreparingRebalance"
    again = story.join(one.member_id)
    assert story.joined(again).generation_id == story.joined(second).generation_id == 2


def test_leader_dies_and_another_takes_over() -> None:
    story = Story()
    one, two = story.stable(2)
    story.pass_ms(SESSION_MS - 1)
    assert story.heartbeat(two) is ErrorCode.NONE
    story.pass_ms(1)
    assert story.heartbeat(two) is ErrorCode.REBALANCE_IN_PROGRESS
    again = story.joined(story.join(two.member_id))
    assert again.generation_id == one.generation_id + 1
    assert again.leader == two.member_id
    assert [member.member_id for member in again.members] == [two.member_id]
    assert story.heartbeat(one) is ErrorCode.UNKNOWN_MEMBER_ID


def test_last_member_dies_and_the_group_is_empty() -> None:
    story = Story()
    (one,) = story.stable()
    story.pass_ms(SESSION_MS)
    assert story.state() == "Empty"
    saved = story.shard.saved_groups["g"]
    assert (saved.generation, saved.members, saved.leader, saved.protocol) == (one.generation_id + 1, (), None, None)
    assert saved.since_ms == story.now_ms


def test_heartbeats_keep_a_member_alive() -> None:
    story = Story()
    (one,) = story.stable()
    for _ in range(20):
        story.pass_ms(SESSION_MS - 1)
        assert story.heartbeat(one) is ErrorCode.NONE


def test_rebalance_drops_members_that_do_not_join_in_time() -> None:
    story = Story()
    one, two = story.stable(2)
    third = story.join()
    for _ in range(REBALANCE_MS // 5_000 - 1):
        story.pass_ms(5_000)
        assert story.heartbeat(one) is story.heartbeat(two) is ErrorCode.REBALANCE_IN_PROGRESS
    first = story.join(one.member_id)
    assert not {first, third} & set(story.replies)
    story.pass_ms(5_000)
    generation = story.joined(first).generation_id
    assert {member.member_id for member in story.joined(first).members} == {
        one.member_id,
        story.joined(third).member_id,
    }
    assert generation == one.generation_id + 1
    assert story.heartbeat(two) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_sync_is_removed() -> None:
    story = Story()
    first = story.join()
    second = story.join()
    one = story.joined(story.join(story.joined(first).member_id))
    two = story.joined(second)
    story.sync(one, {})
    assert story.state() == "Stable"
    for _ in range(REBALANCE_MS // 5_000):
        story.pass_ms(5_000)
        story.heartbeat(one)
        story.heartbeat(two)
    assert story.heartbeat(one) is ErrorCode.REBALANCE_IN_PROGRESS
    assert story.heartbeat(two) is ErrorCode.UNKNOWN_MEMBER_ID


def test_first_rebalance_waits_for_more_members_up_to_the_rebalance_timeout() -> None:
    story = Story(GroupSettings(initial_rebalance_delay_ms=3_000))
    tokens = [story.join(rebalance_ms=8_000)]
    for _ in range(3):
        story.pass_ms(2_000)
        tokens.append(story.join(rebalance_ms=8_000))
        assert not set(tokens) & set(story.replies)
    story.pass_ms(1_999)
    assert not set(tokens) & set(story.replies)
    story.pass_ms(1)
    assert {story.joined(token).generation_id for token in tokens} == {1}
    assert len(story.joined(tokens[0]).members) == 4


def test_initial_rebalance_ends_when_members_stop_joining() -> None:
    story = Story(GroupSettings(initial_rebalance_delay_ms=3_000))
    token = story.join()
    story.pass_ms(2_999)
    assert token not in story.replies
    story.pass_ms(1)
    assert story.joined(token).generation_id == 1


def test_lost_answer_is_given_again() -> None:
    story = Story()
    one, two = story.stable(2)
    again = story.joined(story.join(two.member_id))
    assert (again.generation_id, again.members) == (two.generation_id, [])
    assert story.state() == "Stable"
    assert story.replies[story.sync(two)].assignment == b"share of " + two.member_id.encode()
    assert one.generation_id == again.generation_id


@pytest.mark.parametrize("who", [0, 1])
def test_leader_that_joins_or_a_follower_that_changes_its_mind_means_a_rebalance(who: int) -> None:
    story = Story()
    members = story.stable(2)
    story.join(members[who].member_id, offers=protocols(topics=("clicks", "views")) if who else None)
    assert story.state() == "PreparingRebalance"


def test_join_that_is_sent_twice_is_answered_twice() -> None:
    story = Story()
    one, two = story.stable(2)
    first = story.join(one.member_id)
    second = story.join(one.member_id)
    assert story.replies[first].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    story.join(two.member_id)
    assert story.joined(second).generation_id == one.generation_id + 1
    assert not story.unanswered


def test_sync_that_is_sent_twice_is_answered_twice() -> None:
    story = Story()
    token = story.join()
    second = story.join()
    one = story.joined(story.join(story.joined(token).member_id))
    two = story.joined(second)
    waiting = [story.sync(two), story.sync(two)]
    assert story.replies[waiting[0]].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    story.sync(one, {two.member_id: b"mine"})
    assert story.replies[waiting[1]].assignment == b"mine"


def test_sync_of_another_generation_or_protocol_is_rejected() -> None:
    story = Story()
    (one,) = story.stable()
    old = JoinGroupResponse(
        member_id=one.member_id, generation_id=one.generation_id - 1, protocol_type="consumer", protocol_name="range"
    )
    assert story.replies[story.sync(old)].error_code == ErrorCode.ILLEGAL_GENERATION
    assert story.heartbeat(old) is ErrorCode.ILLEGAL_GENERATION
    old.generation_id, old.protocol_name = one.generation_id, "sticky"
    assert story.replies[story.sync(old)].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    unnamed = SyncGroupRequest(group_id="g", generation_id=one.generation_id, member_id=one.member_id)
    assert story.ask(ApiKey.SYNC_GROUP, unnamed, 5).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert story.ask(ApiKey.SYNC_GROUP, unnamed, 4).error_code == ErrorCode.NONE


def test_member_leaves_and_the_others_rebalance_at_once() -> None:
    story = Story()
    one, two = story.stable(2)
    assert story.leave((two.member_id, None)) == [ErrorCode.NONE]
    assert story.heartbeat(one) is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(story.joined(story.join(one.member_id)).members) == 1


def test_last_member_leaves_and_is_answered_when_that_is_written() -> None:
    for version in range(6):
        story = Story()
        (one,) = story.stable()
        story.hold_writes = True
        request = LeaveGroupRequest(group_id="g")
        if version < 3:
            request.member_id = one.member_id
        else:
            request.members = [MemberIdentity(member_id=one.member_id)]
        token = story.send(ApiKey.LEAVE_GROUP, request, version)
        assert token not in story.replies
        story.write_next()
        assert story.replies[token].error_code == ErrorCode.NONE
        assert story.state() == "Empty"


def test_old_client_that_is_not_a_member_gets_an_error_when_it_leaves() -> None:
    story = Story()
    story.stable()
    answer = story.ask(ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id="g", member_id="ghost"), 2)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_several_leave_in_one_request() -> None:
    story = Story()
    one, two, three = story.stable(3)
    codes = story.leave((two.member_id, None), ("ghost", None), (two.member_id, None), (three.member_id, None))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert codes == [ErrorCode.NONE, unknown, unknown, ErrorCode.NONE]
    assert len(story.joined(story.join(one.member_id)).members) == 1


def test_who_waits_in_a_rebalance_is_not_expected_to_send_heartbeats() -> None:
    story = Story()
    one, two = story.stable(2)
    again = story.join(one.member_id)
    for _ in range(3):
        story.pass_ms(SESSION_MS - 1)
        story.heartbeat(two)
    assert again not in story.replies
    story.join(two.member_id)
    assert story.joined(again).leader == one.member_id


def test_new_member_does_not_wait_forever() -> None:
    story = Story(GroupSettings(initial_rebalance_delay_ms=0, new_member_join_timeout_ms=20_000))
    (one,) = story.stable()
    second = story.join()
    for _ in range(2):
        story.pass_ms(9_999)
        story.heartbeat(one)
    assert second not in story.replies
    story.pass_ms(2)
    assert story.replies[second].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert story.joined(story.join(one.member_id)).generation_id == one.generation_id + 1


def test_new_coordinator_takes_up_the_generation() -> None:
    story = Story()
    one, two = story.stable(2)
    later = story.restart()
    assert later.state() == "Stable"
    assert later.heartbeat(one) is later.heartbeat(two) is ErrorCode.NONE
    assert later.replies[later.sync(two)].assignment == b"share of " + two.member_id.encode()
    later.pass_ms(SESSION_MS)
    assert later.state() == "Empty"


def test_unloaded_coordinator_answers_waiting_members() -> None:
    story = Story()
    one, _ = story.stable(2)
    waiting = [story.join(one.member_id)]
    story.stable(group="other")
    story.hold_writes = True
    waiting.append(story.send_commit({("clicks", 0): 5}, group="third"))
    alone = story.joined(story.join(group="fourth"))
    waiting.append(story.sync(alone, {}, group="fourth"))
    assert story.unanswered == set(waiting)
    story.take(story.shard.unload())
    assert story.replies[waiting[0]].error_code == ErrorCode.NOT_COORDINATOR
    assert story.replies[waiting[1]].topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert story.replies[waiting[2]].error_code == ErrorCode.NOT_COORDINATOR
    # What was on its way may still be reported, and changes nothing.
    for outcome in story.held:
        assert outcome.write_id is not None
        assert story.shard.appended(outcome.write_id, story.now_ms).replies == []


def test_client_id_of_any_length_gives_an_id_that_fits() -> None:
    story = Story()
    answer = story.joined(story.join(client="ü" * 16_000))
    assert len(answer.member_id.encode()) < 1_000
    assert story.replies[story.sync(answer, {})].error_code == ErrorCode.NONE


def test_timeouts_of_zero_do_not_keep_the_coordinator_busy() -> None:
    story = Story()
    away = story.joined(story.join(instance="away", rebalance_ms=0))
    story.sync(away, {}, instance="away")
    # Another joins and goes: a rebalance has begun that only the static member's session can end.
    second = story.join(rebalance_ms=0, version=3)
    story.leave((_dynamic_member(story), None))
    assert story.replies[second].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    ticks = 0
    while story.shard.next_deadline_ms < story.now_ms + SESSION_MS and story.state() != "Empty":
        story.now_ms = max(story.now_ms, story.shard.next_deadline_ms)
        story.take(story.shard.tick(story.now_ms))
        ticks += 1
        assert ticks < 100
    assert story.state() == "Empty"


def test_group_that_empties_for_the_first_time_is_not_forgotten_before_that_is_written() -> None:
    story = Story()
    one = story.joined(story.join())
    story.hold_writes = True
    story.send(ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=one.member_id)]))
    story.write_next()
    assert story.shard.saved_groups["g"].generation == 2
    assert story.joined(story.join()).generation_id == 3


def _dynamic_member(story: Story) -> str:
    described = story.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=["g"])).groups[0]
    (member_id,) = [member.member_id for member in described.members if member.group_instance_id is None]
    assert isinstance(member_id, str)
    return member_id
