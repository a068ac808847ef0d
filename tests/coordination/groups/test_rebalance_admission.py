"""Who may join: ids, protocols, limits."""

from __future__ import annotations

import msgspec
import pytest
from tests.coordination.group_stories import SESSION_MS, Story, protocols

from penstock.coordination.groups.group import GroupSettings
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.schemas.leave_group import LeaveGroupRequest


def test_new_member_is_given_an_id_to_come_back_with() -> None:
    story = Story()
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=SESSION_MS, protocol_type="consumer", protocols=protocols()
    )
    answer = story.ask(ApiKey.JOIN_GROUP, request, 4)
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id
    story.pass_ms(SESSION_MS)
    request.member_id = answer.member_id
    assert story.ask(ApiKey.JOIN_GROUP, request, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert story.state() == "Dead"
    assert story.log == []


def test_old_client_joins_without_the_detour() -> None:
    for version in range(4):
        story = Story()
        assert story.joined(story.join(version=version)).generation_id == 1


def test_rebalance_waits_for_members_that_only_have_an_id() -> None:
    story = Story()
    (one,) = story.stable()
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=SESSION_MS, protocol_type="consumer", protocols=protocols()
    )
    promised = story.ask(ApiKey.JOIN_GROUP, request).member_id
    again = story.join(one.member_id)
    assert again not in story.replies
    second = story.join(promised)
    assert len(story.joined(again).members) == 2
    assert story.joined(second).generation_id == 2


def test_pending_member_that_never_joins_delays_no_other() -> None:
    story = Story()
    (one,) = story.stable()
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=SESSION_MS, protocol_type="consumer", protocols=protocols()
    )
    story.ask(ApiKey.JOIN_GROUP, request)
    again = story.join(one.member_id)
    story.pass_ms(SESSION_MS)
    assert story.joined(again).generation_id == 2


def test_protocol_with_the_most_votes_of_those_all_know_wins() -> None:
    story = Story(GroupSettings(initial_rebalance_delay_ms=1_000))
    tokens = [
        story.join(offers=protocols("sticky", "range", "roundrobin")),
        story.join(offers=protocols("roundrobin", "range")),
        story.join(offers=protocols("private", "roundrobin", "range")),
    ]
    story.pass_ms(5_000)
    assert {story.joined(token).protocol_name for token in tokens} == {"roundrobin"}


@pytest.mark.parametrize(
    ("kind", "names"), [("connect", ("range",)), ("consumer", ("other",)), ("consumer", ("other", "another"))]
)
def test_member_without_a_common_protocol_is_rejected(kind: str, names: tuple[str, ...]) -> None:
    story = Story()
    story.stable()
    token = story.join(kind=kind, offers=protocols(*names))
    assert story.replies[token].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert story.state() == "Stable"


@pytest.mark.parametrize(("kind", "names"), [("", ("range",)), ("consumer", None)])
def test_first_member_must_offer_something(kind: str, names: tuple[str, ...] | None) -> None:
    story = Story()
    token = story.join(kind=kind, offers=[] if names is None else protocols(*names))
    assert story.replies[token].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert story.state() == "Dead"


@pytest.mark.parametrize("session_ms", [5_999, 30 * 60_000 + 1, -1])
def test_session_timeout_out_of_bounds_is_rejected(session_ms: int) -> None:
    story = Story()
    assert story.replies[story.join(session_ms=session_ms)].error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_group_needs_a_name() -> None:
    story = Story()
    nameless = JoinGroupResponse(member_id="x", generation_id=1, protocol_type="consumer", protocol_name="range")
    assert story.replies[story.join(group="")].error_code == ErrorCode.INVALID_GROUP_ID
    assert story.replies[story.sync(nameless, group="")].error_code == ErrorCode.INVALID_GROUP_ID
    assert story.heartbeat(nameless, group="") is ErrorCode.INVALID_GROUP_ID
    answer = story.ask(ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id="", members=[]))
    assert answer.error_code == ErrorCode.INVALID_GROUP_ID


def test_unknown_group_has_no_members() -> None:
    story = Story()
    outsider = JoinGroupResponse(member_id="x", generation_id=1, protocol_type="consumer", protocol_name="range")
    assert story.replies[story.join("x")].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert story.replies[story.sync(outsider)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert story.heartbeat(outsider) is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.leave(("x", None)) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_full_group_rejects_members() -> None:
    story = Story(GroupSettings(initial_rebalance_delay_ms=0, max_size=2))
    one, two = story.stable(2)
    assert story.replies[story.join()].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert story.heartbeat(one) is story.heartbeat(two) is ErrorCode.NONE


def test_limit_that_was_lowered_turns_the_last_to_come_away() -> None:
    story = Story()
    one, two, three = story.stable(3)
    story = story.restart(GroupSettings(initial_rebalance_delay_ms=0, max_size=2))
    assert story.state() == "PreparingRebalance"
    tokens = [story.join(member.member_id) for member in (one, two)]
    last = story.join(three.member_id)
    assert story.replies[last].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(story.joined(tokens[0]).members) == 2


# What members bring takes memory until they leave.


def heavy(size: int) -> list[JoinGroupRequestProtocol]:
    return [JoinGroupRequestProtocol(name="range", metadata=bytes(size))]


def test_member_that_brings_too_much_is_rejected() -> None:
    story = Story(GroupSettings(initial_rebalance_delay_ms=0, max_member_bytes=10_000))
    assert story.replies[story.join(offers=heavy(10_000))].error_code == ErrorCode.INVALID_REQUEST
    assert story.shard._groups._memory.held == 0
    assert story.joined(story.join(offers=heavy(5_000))).error_code == ErrorCode.NONE


def test_very_many_protocols_without_metadata_are_too_much_as_well() -> None:
    story = Story(GroupSettings(initial_rebalance_delay_ms=0, max_member_bytes=10_000))
    offers = [JoinGroupRequestProtocol(name=f"{number}", metadata=b"") for number in range(100)]
    assert story.replies[story.join(offers=offers)].error_code == ErrorCode.INVALID_REQUEST


def test_members_of_all_groups_share_one_bound_and_give_it_back_when_they_go() -> None:
    story = Story(GroupSettings(initial_rebalance_delay_ms=0, max_members_bytes=25_000))
    memory = story.shard._groups._memory
    members = [story.joined(story.join(group=f"g{number}", offers=heavy(10_000))) for number in range(2)]
    assert memory.held > 20_000
    late = story.join(group="g2", offers=heavy(10_000))
    assert story.replies[late].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    # Who is a member may come again with as much as it had.
    again = story.join(members[0].member_id, group="g0", offers=heavy(10_000))
    assert story.joined(again).error_code == ErrorCode.NONE
    assert story.leave((members[1].member_id, None), group="g1") == [ErrorCode.NONE]
    assert story.joined(story.join(group="g2", offers=heavy(10_000))).error_code == ErrorCode.NONE
    story.pass_ms(2 * SESSION_MS)
    assert memory.held == 0, "all sessions are over"


def test_memory_of_pending_members_is_bounded() -> None:
    story = Story(GroupSettings(initial_rebalance_delay_ms=0, max_members_bytes=25_000))
    request = JoinGroupRequest(
        session_timeout_ms=SESSION_MS, rebalance_timeout_ms=SESSION_MS, protocol_type="consumer", protocols=heavy(10)
    )
    codes = [
        story.ask(ApiKey.JOIN_GROUP, msgspec.structs.replace(request, group_id=f"g{number}")).error_code
        for number in range(100)
    ]
    assert codes[0] == ErrorCode.MEMBER_ID_REQUIRED
    assert codes[-1] == ErrorCode.GROUP_MAX_SIZE_REACHED
    story.pass_ms(2 * SESSION_MS)
    assert story.shard._groups._memory.held == 0
    assert story.ask(ApiKey.JOIN_GROUP, msgspec.structs.replace(request, group_id="g")).error_code == codes[0]


def test_coordinator_that_gives_up_gives_the_memory_of_its_members_back() -> None:
    story = Story()
    story.stable(3)
    request = JoinGroupRequest(
        group_id="h", session_timeout_ms=SESSION_MS, protocol_type="consumer", protocols=protocols()
    )
    assert story.ask(ApiKey.JOIN_GROUP, request).error_code == ErrorCode.MEMBER_ID_REQUIRED
    memory = story.shard._groups._memory
    assert memory.held > 0
    story.take(story.shard.unload())
    assert memory.held == 0
