"""Positions, fetch plans, subscriptions: the consumer's decisions without a broker."""

from __future__ import annotations

import re

import pytest

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.core import assignment_request, subscription_request
from penstock.client.consumer.fetcher import _FetchedFrom
from penstock.client.fetch_state import (
    LATEST,
    Budget,
    FetchRotation,
    FetchSource,
    FetchState,
    PartitionState,
    Truncation,
    plan_fetches,
)
from penstock.wire.fetch_session import PartitionFetch

P = [TopicPartition("t", n) for n in range(4)]


def ready(partition: TopicPartition = P[0], offset: int = 0, epoch: int = -1) -> PartitionState:
    state = PartitionState(partition, 100)
    state.seek(offset, epoch)
    return state


def fetch_state(state: PartitionState) -> FetchState:
    return state.fetch_state


def test_what_was_fetched_before_a_seek_is_dropped() -> None:
    state = ready(offset=10)
    state.fetched(20, 0, 500)
    version = state.version
    state.seek(3)
    state.handed_out(version, 15, 0)
    assert (state.position, state.fetch_offset, state.buffered_bytes) == (3, 3, 0)


def test_positions_follow_what_is_handed_out_and_never_decrease() -> None:
    state = ready(offset=10)
    state.handed_out(state.version, 15, 4)
    state.handed_out(state.version, 12, 4)
    assert (state.position, state.epoch) == (15, 4)


def test_after_a_leader_change_the_position_is_validated() -> None:
    state = ready()
    state.led_by(1)
    state.fetched(20, 1, 0)
    state.handed_out(state.version, 20, 1)
    state.led_by(2)
    assert fetch_state(state) is FetchState.VALIDATE
    assert state.validated(state.version, 1, 20) is None
    assert fetch_state(state) is FetchState.READY


def test_only_a_truncation_below_what_was_handed_out_is_reported() -> None:
    state = ready()
    state.led_by(1)
    state.fetched(50, 1, 10)
    state.handed_out(state.version, 20, 1)
    state.led_by(2)
    assert state.validated(state.version, 1, 30) is None
    assert (state.position, state.fetch_offset, state.fetch_state) == (20, 20, FetchState.READY)
    state.fetched(50, 1, 10)
    state.led_by(3)
    assert state.validated(state.version, 1, 15) == Truncation(P[0], 20, 15)
    assert fetch_state(state) is FetchState.STUCK


def test_a_leader_that_does_not_know_the_epoch_confirms_the_position() -> None:
    state = ready(offset=7, epoch=1)
    state.led_by(4)
    assert fetch_state(state) is FetchState.VALIDATE
    assert state.validated(state.version, -1, -1) is None
    assert (state.position, state.fetch_state) == (7, FetchState.READY)


def test_a_response_of_the_previous_leader_is_ignored_once_the_new_one_is_asked() -> None:
    """The position was found to be right; what the former leader has beyond it, the new one may never have had."""
    state = ready()
    state.led_by(1)
    state.fetched(20, 1, 0)
    state.handed_out(state.version, 20, 1)
    asked = _FetchedFrom(state, state.version, state.fetch_offset, state.leader_epoch)
    assert asked.is_current
    state.led_by(2)
    assert state.validated(state.version, 1, 20) is None
    assert fetch_state(state) is FetchState.READY
    assert not asked.is_current


def test_lag_is_unknown_before_the_first_fetch() -> None:
    state = ready(offset=7)
    lags = [state.lag]
    state.high_watermark = 10
    lags.append(state.lag)
    state.seek_to(LATEST)
    lags.append(state.lag)
    assert lags == [None, 3, None]


LEADERS = {P[0]: FetchSource(1, 0), P[1]: FetchSource(1, 0), P[2]: FetchSource(2, 5)}


def test_a_plan_fetches_what_is_ready_and_not_full_from_each_leader() -> None:
    full, paused, leaderless, waiting = ready(P[0]), ready(P[1]), ready(P[3]), PartitionState(P[1], 100)
    full.buffered_bytes = 100
    paused.paused = True
    assert plan_fetches([full, paused, leaderless, waiting], LEADERS, 0) == {}
    plans = plan_fetches([full, ready(P[1], 5), ready(P[2], 9, 4)], LEADERS, 0)
    assert plans[1].wanted == {P[1]: PartitionFetch(5, 100, 0, -1)}
    assert plans[1].is_partial
    assert plans[2].wanted == {P[2]: PartitionFetch(9, 100, 5, 4)}
    assert not plans[2].is_partial


def test_a_delayed_partition_is_not_fetched_before_its_time() -> None:
    state = ready()
    state.retry_at(50)
    assert plan_fetches([state], LEADERS, 49) == {}
    assert plan_fetches([state], LEADERS, 50)[1].wanted.keys() == {P[0]}


def test_a_partition_that_got_records_goes_to_the_end() -> None:
    turns = FetchRotation()
    turns.set([ready(p) for p in P[:3]])
    turns.move_to_end(P[0])
    assert [state.partition for state in turns] == [P[1], P[2], P[0]]
    turns.set([ready(p) for p in (P[0], P[2], P[3])])
    assert [state.partition for state in turns] == [P[2], P[0], P[3]]


def test_memory_of_requests_in_flight_counts_as_used() -> None:
    budget = Budget(100)
    budget.expect(1, 60)
    assert budget.room == 40
    budget.arrived(1)
    budget.add(30)
    assert budget.room == 70
    budget.release(30)
    assert budget.room == 100


def test_topics_by_pattern_are_whole_names_without_internal_and_excluded_ones() -> None:
    existing = {"orders": False, "orders-eu": False, "my-orders": False, "__consumer_offsets": True}
    assert subscription_request(pattern="orders.*").match(existing) == {"orders", "orders-eu"}
    assert subscription_request(pattern=re.compile(".*orders.*"), exclude=".*-eu").match(existing) == {
        "orders",
        "my-orders",
    }
    assert subscription_request(exclude="orders.*").match(existing) == {"my-orders"}
    assert subscription_request(["later"]).match(existing) == {"later"}


def test_contradictory_subscriptions_are_rejected() -> None:
    with pytest.raises(ValueError, match="not both"):
        subscription_request(["a"], pattern="b")
    with pytest.raises(ValueError, match="regular expression"):
        subscription_request(pattern="(")
    with pytest.raises(ValueError, match="empty"):
        subscription_request([""])
    with pytest.raises(ValueError, match="-1"):
        assignment_request([("t", -1)])


def test_a_rewound_partition_looks_its_offset_up_and_drops_what_is_buffered() -> None:
    state = ready(offset=10)
    state.fetched(30, 0, 500)
    version = state.version
    state.handed_out(version, 20, 0)
    state.rewind()
    state.handed_out(version, 25, 0)
    assert (state.fetch_state, state.position, state.buffered_bytes) == (FetchState.UNKNOWN, 20, 0)
    assert not state.has_position


def test_where_reading_began_is_remembered() -> None:
    state = ready(offset=10)
    state.seek(20)
    assert state.start == 10
