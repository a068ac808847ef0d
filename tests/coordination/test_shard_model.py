"""Random histories of groups: durable state is exactly what the log says."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.coordination.group_stories import Story, protocols

from penstock.coordination.groups.group import GroupSettings
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.delete_groups import DeleteGroupsRequest
from penstock.wire.schemas.join_group import JoinGroupResponse
from penstock.wire.schemas.leave_group import LeaveGroupRequest, MemberIdentity

SETTINGS = GroupSettings(
    initial_rebalance_delay_ms=1_000,
    max_size=4,
    offsets_retention_ms=100_000,
    offsets_retention_check_interval_ms=20_000,
    new_member_join_timeout_ms=30_000,
)
STEPS = (
    *("join", "join", "rejoin", "gather", "sync", "share", "share", "heartbeat", "leave"),
    *("commit", "admin", "delete", "time", "time", "write", "write", "fail"),
)

step = st.tuples(
    st.sampled_from(STEPS), st.sampled_from(["g", "h"]), st.integers(0, 5), st.sampled_from([0, 1, 900, 7_000, 30_000])
)


class Life:
    """A random story. Members are remembered by their last response, also after they are gone."""

    def __init__(self) -> None:
        self.story = Story(SETTINGS)
        self.story.hold_writes = True
        self.joins: dict[str, list[int]] = {"g": [], "h": []}

    def members(self, group: str) -> list[JoinGroupResponse]:
        answers = [self.story.replies.get(token) for token in self.joins[group]]
        return [answer for answer in answers if answer is not None and answer.error_code == ErrorCode.NONE]

    def take(self, kind: str, group: str, pick: int, ms: int) -> None:
        story = self.story
        members = self.members(group)
        if kind == "join":
            instance = f"i-{pick}" if pick < 2 else None
            offers = protocols(*(("range", "sticky") if pick % 2 else ("sticky", "range")))
            version = 3 if pick == 5 else 9
            if version == 3:
                instance = None
            self.joins[group].append(story.join(group=group, instance=instance, offers=offers, version=version))
        elif kind == "admin":
            story.send_commit({("clicks", pick): ms}, group=group)
        elif kind == "delete":
            story.send(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=[group]))
        elif kind == "time":
            story.pass_ms(ms)
        elif kind == "write":
            self.settle(pick)
        elif kind == "fail" and story.held:
            story.fail_next(ErrorCode.NOT_ENOUGH_REPLICAS)
        elif kind in ("gather", "share"):
            for member in members[-4:]:
                self.act("rejoin" if kind == "gather" else "sync", group, member, ms)
        elif members:
            self.act(kind, group, members[pick % len(members)], ms)

    def act(self, kind: str, group: str, member: JoinGroupResponse, ms: int) -> None:
        story = self.story
        if kind == "rejoin":
            self.joins[group].append(story.join(member.member_id, group=group))
        elif kind == "sync":
            shares = {each.member_id: b"share" for each in member.members}
            story.sync(member, shares, group=group)
        elif kind == "heartbeat":
            story.heartbeat(member, group=group)
        elif kind == "leave":
            request = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member.member_id)])
            story.send(ApiKey.LEAVE_GROUP, request)
        elif kind == "commit":
            story.send_commit({("clicks", 0): ms}, by=member, group=group)

    def settle(self, count: int = 1_000) -> None:
        while self.story.held and count >= 0:
            self.story.write_next()
            count -= 1


def survives(story: Story) -> tuple[object, object]:
    return story.shard.saved_groups, dict(story.shard.offsets.each())


@settings(max_examples=150, deadline=None)
@given(st.lists(step, max_size=60))
def test_replaying_the_log_gives_the_same_state(steps: list[tuple[str, str, int, int]]) -> None:
    life = Life()
    for each in steps:
        life.take(*each)
    assert survives(life.story.restart()) == survives(life.story)
    life.settle()
    assert survives(life.story.restart()) == survives(life.story)


@settings(max_examples=100, deadline=None)
@given(st.lists(step, max_size=60))
def test_every_request_is_answered_once_and_every_group_comes_to_rest(
    steps: list[tuple[str, str, int, int]],
) -> None:
    life = Life()
    for each in steps:
        life.take(*each)
    life.story.hold_writes = False
    life.settle()
    # All members are silent: sessions end, waits end, offsets expire.
    life.story.pass_ms(400_000)
    assert not life.story.unanswered
    assert survives(life.story) == ({}, {})
    assert (life.story.state("g"), life.story.state("h")) == ("Dead", "Dead")


@settings(max_examples=100, deadline=None)
@given(st.lists(step, max_size=60))
def test_unloaded_coordinator_answers_every_waiting_request(steps: list[tuple[str, str, int, int]]) -> None:
    life = Life()
    for each in steps:
        life.take(*each)
    life.story.take(life.story.shard.unload())
    assert not life.story.unanswered
