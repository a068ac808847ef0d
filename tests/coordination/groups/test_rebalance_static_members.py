"""Static members: the instance stays the same, whichever process is it (KIP-345, KIP-814)."""

from __future__ import annotations

import pytest
from tests.coordination.group_stories import REBALANCE_MS, SESSION_MS, Story, protocols

from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.describe_groups import DescribeGroupsRequest
from penstock.wire.schemas.join_group import JoinGroupResponse


def stable_pair(story: Story) -> tuple[JoinGroupResponse, JoinGroupResponse]:
    """A static leader and a static follower."""
    first = story.joined(story.join(instance="i-1"))
    second = story.join(instance="i-2")
    one = story.joined(story.join(first.member_id, instance="i-1"))
    two = story.joined(second)
    story.share_out([one, two])
    return one, two


def test_static_follower_restarts_without_a_rebalance() -> None:
    story = Story()
    one, two = stable_pair(story)
    again = story.joined(story.join(instance="i-2"))
    assert again.generation_id == two.generation_id
    assert again.member_id != two.member_id
    assert story.heartbeat(one) is ErrorCode.NONE
    share = story.replies[story.sync(again, instance="i-2")].assignment
    assert share == b"share of " + two.member_id.encode()
    assert {member.member_id for member in story.shard.saved_groups["g"].members} == {one.member_id, again.member_id}


def test_new_id_is_used_only_once_it_is_written() -> None:
    story = Story()
    stable_pair(story)
    story.hold_writes = True
    token = story.join(instance="i-2")
    assert token not in story.replies
    story.write_next()
    assert story.joined(token).generation_id == 2


def test_restart_that_cannot_be_written_is_tried_again() -> None:
    story = Story()
    _, two = stable_pair(story)
    story.hold_writes = True
    token = story.join(instance="i-2")
    story.fail_next(ErrorCode.KAFKA_STORAGE_ERROR)
    assert story.replies[token].error_code == ErrorCode.NOT_COORDINATOR
    story.hold_writes = False
    assert story.joined(story.join(instance="i-2")).generation_id == two.generation_id
    assert story.state() == "Stable"


def test_rebalance_that_begins_meanwhile_includes_the_restarted_member() -> None:
    story = Story()
    one, _ = stable_pair(story)
    story.hold_writes = True
    token = story.join(instance="i-2")
    story.join()
    story.write_next()
    assert token not in story.replies
    leader = story.joined(story.join(one.member_id, instance="i-1"))
    assert story.joined(token).generation_id == leader.generation_id == one.generation_id + 1
    assert len(leader.members) == 3


def test_previous_process_is_fenced() -> None:
    story = Story()
    _, zombie = stable_pair(story)
    story.joined(story.join(instance="i-2"))
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert story.heartbeat(zombie, instance="i-2") is fenced
    assert story.replies[story.sync(zombie, instance="i-2")].error_code == fenced
    assert story.replies[story.join(zombie.member_id, instance="i-2")].error_code == fenced
    assert story.commit({("clicks", 0): 7}, by=zombie, instance="i-2") is fenced
    assert story.leave((zombie.member_id, "i-2")) == [fenced]
    assert story.commit({("clicks", 0): 7}, by=zombie) is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.fetched() == -1


def test_previous_process_is_fenced_while_it_waits() -> None:
    story = Story()
    _, zombie = stable_pair(story)
    waiting = story.join(zombie.member_id, instance="i-2", offers=protocols(topics=("views",)))
    again = story.join(instance="i-2")
    assert story.replies[waiting].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert again not in story.replies
    assert story.state() == "PreparingRebalance"


@pytest.mark.parametrize("version", [5, 8])
def test_restarted_static_leader_with_an_old_client_does_not_learn_that_it_leads(version: int) -> None:
    story = Story()
    one, _ = stable_pair(story)
    again = story.joined(story.join(instance="i-1", version=version))
    assert again.leader == one.member_id != again.member_id
    assert again.members == []
    assert not again.skip_assignment


def test_static_leader_that_restarts_leads_and_skips_the_assignment() -> None:
    story = Story()
    one, two = stable_pair(story)
    again = story.joined(story.join(instance="i-1", version=9))
    assert again.leader == again.member_id != one.member_id
    assert again.skip_assignment
    assert {member.member_id for member in again.members} == {again.member_id, two.member_id}
    assert story.replies[story.sync(again, instance="i-1")].assignment == b"share of " + one.member_id.encode()


def test_restart_that_changes_the_protocol_means_a_rebalance() -> None:
    story = Story()
    first = story.joined(story.join(instance="i-1", offers=protocols("sticky", "range")))
    story.sync(first, {}, instance="i-1")
    again = story.joined(story.join(instance="i-1", offers=protocols("range", "sticky")))
    assert (again.generation_id, again.protocol_name) == (first.generation_id + 1, "range")


def test_restart_during_the_assignment_means_a_rebalance() -> None:
    story = Story()
    first = story.joined(story.join(instance="i-1"))
    second = story.join(instance="i-2")
    one = story.joined(story.join(first.member_id, instance="i-1"))
    story.joined(second)
    story.join(instance="i-2")
    assert story.replies[story.sync(one, {}, instance="i-1")].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_static_member_that_is_away_stays_until_its_session_ends() -> None:
    story = Story()
    one = story.joined(story.join(instance="i-1", session_ms=4 * REBALANCE_MS))
    story.sync(one, {}, instance="i-1")
    second = story.join(session_ms=2 * REBALANCE_MS)
    story.pass_ms(REBALANCE_MS)
    two = story.joined(second)
    assert two.leader == two.member_id
    assert {member.group_instance_id for member in two.members} == {"i-1", None}
    assert story.heartbeat(one, instance="i-1") is ErrorCode.ILLEGAL_GENERATION


def test_group_of_absent_static_members_waits_for_their_sessions() -> None:
    story = Story()
    one = story.joined(story.join(instance="i-1", session_ms=3 * REBALANCE_MS))
    story.sync(one, {}, instance="i-1")
    second = story.join()
    story.leave((_only_dynamic(story), None))
    assert story.replies[second].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    story.pass_ms(3 * REBALANCE_MS - 1)
    assert story.state() == "PreparingRebalance"
    story.pass_ms(1)
    assert story.state() == "Empty"


def _only_dynamic(story: Story) -> str:
    described = story.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=["g"])).groups[0]
    (member_id,) = [member.member_id for member in described.members if member.group_instance_id is None]
    assert isinstance(member_id, str)
    return member_id


def test_administrator_removes_static_members_by_instance() -> None:
    story = Story()
    one, two = stable_pair(story)
    assert story.leave(("", "i-2"), ("", "i-9"), (one.member_id, "i-9")) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert story.heartbeat(one, instance="i-1") is ErrorCode.REBALANCE_IN_PROGRESS
    assert story.heartbeat(two, instance="i-2") is ErrorCode.UNKNOWN_MEMBER_ID


def test_static_members_are_known_to_the_next_coordinator() -> None:
    story = Story()
    one, two = stable_pair(story)
    later = story.restart()
    again = later.joined(later.join(instance="i-2"))
    assert again.generation_id == two.generation_id
    assert later.heartbeat(two, instance="i-2") is ErrorCode.FENCED_INSTANCE_ID
    assert later.heartbeat(one, instance="i-1") is ErrorCode.NONE


@pytest.mark.parametrize("instance", ["", "i" * 250])
def test_instance_id_has_a_length(instance: str) -> None:
    story = Story()
    assert story.replies[story.join(instance=instance)].error_code == ErrorCode.INVALID_REQUEST


def test_session_that_ends_frees_the_instance() -> None:
    story = Story()
    stable_pair(story)
    story.pass_ms(SESSION_MS)
    assert story.state() == "Empty"
    assert story.joined(story.join(instance="i-1")).leader
