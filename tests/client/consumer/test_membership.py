"""A member's way through its group, as a table of events: what it has to do next, and what it has then."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.membership import (
    Assign,
    Fail,
    Heartbeat,
    Idle,
    Join,
    Leave,
    Membership,
    MemberState,
    Revoke,
    Sync,
)
from penstock.wire.protocol import ErrorCode

A, B, C = (frozenset({TopicPartition("t", n)}) for n in range(3))
NONE: frozenset[TopicPartition] = frozenset()


def new(*, cooperative: bool = False, **more: Any) -> Membership:
    membership = Membership(
        is_cooperative=cooperative, instance_id=None, heartbeat_interval_ms=100, max_poll_interval_ms=1000, **more
    )
    membership.wants({"t"}, 0)
    return membership


def get_in(m: Membership, share: frozenset[TopicPartition], now: float = 0, generation: int = 1) -> None:
    assert m.next_step(now) == Join()
    m.joined(0, now, member_id="me", generation=generation, leader="me")
    assert m.next_step(now) == Sync(is_leader=True)
    m.synced(0, now, share)


def settle(m: Membership, now: float = 0) -> None:
    step = m.next_step(now)
    assert isinstance(step, Assign)
    m.assigned(step, now)


def test_a_member_joins_syncs_is_assigned_and_beats() -> None:
    m = new()
    get_in(m, A | B)
    assert m.next_step(0) == Assign(A | B, A | B)
    assert m.owned == NONE
    settle(m)
    assert m.owned == A | B
    assert m.next_step(0) == Idle(100)
    assert m.next_step(100) == Heartbeat()
    m.heartbeat_answered(0, 100)
    assert m.next_step(100) == Idle(200)


def test_a_coordinator_that_wants_a_member_id_first_is_joined_again_with_it() -> None:
    m = new()
    m.joined(ErrorCode.MEMBER_ID_REQUIRED, 0, member_id="given")
    assert m.member_id == "given"
    assert m.next_step(0) == Join()


def test_an_eager_member_gives_back_everything_before_it_joins_again() -> None:
    m = new()
    get_in(m, A | B)
    settle(m)
    m.heartbeat_answered(ErrorCode.REBALANCE_IN_PROGRESS, 100)
    assert m.next_step(100) == Revoke(A | B, lost=False)
    m.revoked(Revoke(A | B, lost=False), 110)
    assert m.owned == NONE
    get_in(m, A, 110, 2)
    assert m.next_step(110) == Assign(A, A)


def test_a_cooperative_member_keeps_reading_and_gives_back_only_what_moves_then_joins_again() -> None:
    m = new(cooperative=True)
    get_in(m, A | B)
    settle(m)
    m.heartbeat_answered(ErrorCode.REBALANCE_IN_PROGRESS, 100)
    get_in(m, A, 100, 2)
    assert m.owned == A | B
    step = m.next_step(100)
    assert step == Revoke(B, lost=False)
    m.revoked(step, 100)
    assert m.next_step(100) == Assign(NONE, A)
    settle(m, 100)
    assert m.owned == A
    assert m.next_step(100) == Join()
    get_in(m, A, 100, 3)
    settle(m, 100)
    assert m.next_step(100) == Idle(200)


def test_a_cooperative_member_that_unsubscribes_gives_up_the_topic_before_it_joins() -> None:
    m = new(cooperative=True)
    get_in(m, A)
    settle(m)
    m.wants({"other"}, 10)
    assert m.next_step(10) == Revoke(A, lost=False)


def test_a_member_that_the_coordinator_does_not_know_loses_its_partitions_and_joins_again() -> None:
    m = new()
    get_in(m, A)
    settle(m)
    m.heartbeat_answered(ErrorCode.UNKNOWN_MEMBER_ID, 100)
    step = m.next_step(100)
    assert step == Revoke(A, lost=True)
    assert not m.is_in_group()
    m.revoked(step, 100)
    assert m.member_id == ""
    assert m.next_step(100) == Join()


def test_an_illegal_generation_loses_the_partitions_but_not_the_member_id() -> None:
    m = new()
    get_in(m, A)
    settle(m)
    m.heartbeat_answered(ErrorCode.ILLEGAL_GENERATION, 100)
    assert m.next_step(100) == Revoke(A, lost=True)
    assert m.member_id == "me"


def test_a_fenced_static_member_loses_its_partitions_and_does_not_come_back() -> None:
    m = new()
    get_in(m, A)
    settle(m)
    m.heartbeat_answered(ErrorCode.FENCED_INSTANCE_ID, 100)
    m.revoked(Revoke(A, lost=True), 100)
    assert m.next_step(100) == Fail(ErrorCode.FENCED_INSTANCE_ID)
    assert m.next_step(10_000) == Fail(ErrorCode.FENCED_INSTANCE_ID)


def test_a_member_that_does_not_poll_leaves_and_rejoins_with_the_next_poll() -> None:
    m = new()
    get_in(m, A)
    settle(m)
    m.polled(500)
    m.heartbeat_answered(0, 1400)
    assert m.next_step(1499) == Idle(1500)
    assert m.next_step(1501) == Leave()
    m.left(1501)
    assert m.next_step(5000) == Idle(float("inf"))
    m.polled(6000)
    assert m.next_step(6000) == Revoke(A, lost=True)
    m.revoked(Revoke(A, lost=True), 6000)
    assert m.next_step(6000) == Join()
    assert m.member_id == ""


def test_a_coordinator_that_cannot_be_reached_is_asked_again_after_a_pause_and_nothing_is_lost() -> None:
    m = new()
    get_in(m, A)
    settle(m)
    m.unreachable(100)
    assert m.next_step(100) == Idle(200)
    assert m.next_step(200) == Heartbeat()
    assert m.owned == A


def test_an_answer_lost_between_join_and_sync_means_joining_again() -> None:
    m = new()
    m.joined(0, 0, member_id="me", generation=1, leader="x")
    m.unreachable(0)
    assert m.next_step(0) == Idle(100)
    assert m.next_step(100) == Join()


def test_a_rebalance_that_begins_before_the_listener_was_called_drops_the_share() -> None:
    m = new()
    get_in(m, A)
    m.heartbeat_answered(ErrorCode.REBALANCE_IN_PROGRESS, 0)
    assert m.next_step(0) == Join()


def test_a_reason_to_meet_again_that_comes_while_the_shares_are_handed_out_is_not_forgotten() -> None:
    m = new()
    assert m.next_step(0) == Join()
    m.joined(0, 0, member_id="me", generation=1, leader="me")
    assert m.next_step(0) == Sync(is_leader=True)
    m.request_rejoin("a topic has more partitions", 1)  # the request is on its way, with shares of what there was
    m.synced(0, 2, A)
    assert m.next_step(2) == Join()
    m.joined(0, 3, member_id="me", generation=2, leader="me")
    m.synced(0, 4, A | B)
    assert m.next_step(4) == Assign(A | B, A | B)


def test_partitions_reported_to_the_listener_after_they_were_lost_are_revoked() -> None:
    m = new()
    get_in(m, A)
    step = m.next_step(0)
    assert isinstance(step, Assign)
    m.heartbeat_answered(ErrorCode.UNKNOWN_MEMBER_ID, 50)
    m.assigned(step, 60)
    assert m.next_step(60) == Revoke(A, lost=True)


def test_a_new_subscription_makes_a_member_join_again_and_the_same_one_does_not() -> None:
    m = new()
    get_in(m, A)
    settle(m)
    m.wants({"t"}, 10)
    assert m.state is MemberState.MEMBER
    m.wants({"t", "u"}, 10)
    assert m.next_step(10) == Revoke(A, lost=False)


codes = st.sampled_from(
    [
        0,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ]
)


@given(
    st.lists(st.tuples(codes, st.sampled_from([A, B, C, A | B, NONE]), st.integers(0, 400), st.booleans())),
    st.booleans(),
)
def test_whatever_the_coordinator_answers_partitions_come_and_go_in_pairs(
    script: list[tuple[int, frozenset[TopicPartition], int, bool]], cooperative: bool
) -> None:
    """No partition is assigned twice without being revoked in between, and none is revoked that is not assigned."""
    m = new(cooperative=cooperative)
    now, held, generation = 0.0, set[TopicPartition](), 0
    for code, share, passed, polls in script:
        now += passed
        if polls:
            m.polled(now)
        step = m.next_step(now)
        if isinstance(step, Join):
            assert cooperative or not held
            generation += 1
            m.joined(code, now, member_id="me", generation=generation, leader="me")
        elif isinstance(step, Sync):
            m.synced(code, now, share)
        elif isinstance(step, Heartbeat):
            m.heartbeat_answered(code, now)
        elif isinstance(step, Revoke):
            assert step.partitions <= held
            held -= step.partitions
            m.revoked(step, now)
        elif isinstance(step, Assign):
            assert not step.added & held
            held |= step.added
            assert held == step.everything
            m.assigned(step, now)
        elif isinstance(step, Leave):
            m.left(now)
        assert m.owned == held
