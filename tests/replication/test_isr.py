"""Who is in sync, and the high watermark, by stories."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.replication.isr import UNKNOWN_END, Leadership

KNOWN = {1: 101, 2: 102, 3: 103}
LAG_MS = 1000


def leading(*, isr: tuple[int, ...] = (1, 2, 3), start: int = 0, minimum: int = 1, watermark: int = 0) -> Leadership:
    return Leadership(
        1, epoch=5, epoch_start=start, replicas=(1, 2, 3), isr=isr, state_version=7,
        high_watermark=watermark, min_insync_replicas=minimum, now_ms=0,
    )  # fmt: skip


def asks(leadership: Leadership, broker: int, offset: int, end: int, now_ms: float = 0) -> bool:
    return leadership.fetched(broker, KNOWN[broker], offset, end, KNOWN, now_ms)


def test_watermark_is_the_smallest_log_end_in_sync() -> None:
    partition = leading()
    asks(partition, 2, 8, 10)
    assert partition.advance(10) == 0, "3 has not said anything yet"
    asks(partition, 3, 10, 10)
    assert partition.advance(10) == 8


def test_leader_alone_in_sync_follows_its_own_log() -> None:
    assert leading(isr=(1,)).advance(10) == 10


def test_watermark_never_goes_back() -> None:
    partition = leading(watermark=9)
    asks(partition, 2, 3, 10)
    asks(partition, 3, 3, 10)
    assert partition.advance(10) == 9


def test_last_replica_standing_too_few_in_sync_commit_nothing() -> None:
    """KIP-966: records on fewer than min.insync.replicas are not visible, because they may be lost."""
    partition = leading(isr=(1,), minimum=2)
    assert partition.advance(10) == 0
    partition.settled((1, 2, 3), (1, 2), 8, 0)
    asks(partition, 2, 10, 10)
    assert partition.advance(10) == 10


def test_partition_with_fewer_replicas_than_demanded_goes_by_those_it_has() -> None:
    partition = leading(isr=(1,), minimum=2)
    partition.settled((1,), (1,), 8, 0)
    assert partition.advance(10) == 10


def test_follower_behind_leaves_after_the_lag_and_counts_until_the_answer_comes() -> None:
    partition = leading()
    asks(partition, 2, 10, 10)
    asks(partition, 3, 4, 10)
    assert partition.propose(10, KNOWN, LAG_MS, LAG_MS) is None
    asks(partition, 2, 10, 10, LAG_MS)
    proposal = partition.propose(10, KNOWN, LAG_MS, LAG_MS + 1)
    assert proposal is not None
    assert proposal.isr == (1, 2)
    assert proposal.broker_epochs == (101, 102)
    assert (proposal.leader_epoch, proposal.state_version) == (5, 7)
    assert partition.advance(10) == 4
    assert partition.propose(10, KNOWN, LAG_MS, LAG_MS + 2) is None, "one at a time"
    partition.settled((1, 2, 3), (1, 2), 8, LAG_MS + 3)
    assert partition.advance(10) == 10


def test_follower_one_round_trip_behind_a_busy_leader_is_in_time() -> None:
    """It never reaches the end, which moves on, but always has what there was when it asked before."""
    partition = leading(isr=(1, 2))
    end = 0
    for turn in range(50):
        asks(partition, 2, end, end + 10, turn * 100)
        end += 10
    assert partition.propose(end, KNOWN, LAG_MS, 5000) is None


def test_follower_that_stopped_asking_leaves_unless_there_is_nothing_to_ask_for() -> None:
    partition = leading(isr=(1, 2))
    asks(partition, 2, 10, 10)
    assert partition.propose(10, KNOWN, LAG_MS, 10 * LAG_MS) is None
    assert partition.propose(11, KNOWN, LAG_MS, 11 * LAG_MS) is None, "it had everything a moment ago, asking or not"
    proposal = partition.propose(11, KNOWN, LAG_MS, 11 * LAG_MS + 1)
    assert proposal is not None
    assert proposal.isr == (1,)


def test_kip_497_a_replica_that_is_about_to_join_holds_the_watermark() -> None:
    partition = leading(isr=(1, 2), watermark=5)
    asks(partition, 2, 10, 10)
    asks(partition, 3, 6, 10)
    proposal = partition.propose(10, KNOWN, LAG_MS, 1)
    assert proposal is not None
    assert proposal.isr == (1, 2, 3)
    assert partition.advance(10) == 6
    assert partition.insync_replicas == 2, "it does not count for acks=all before it is in"


def test_replica_joins_only_at_the_watermark_and_the_start_of_the_epoch() -> None:
    """hachikuji/kafka-specification: below the epoch's start it may hold what was never committed."""
    partition = leading(isr=(1, 2), start=8, watermark=5)
    asks(partition, 2, 10, 10)
    asks(partition, 3, 7, 10)
    assert partition.propose(10, KNOWN, LAG_MS, 1) is None
    asks(partition, 3, 8, 10)
    assert partition.propose(10, KNOWN, LAG_MS, 2) is not None


def test_kip_903_restarted_follower_must_fetch_again_to_count() -> None:
    partition = leading(isr=(1, 2, 3))
    asks(partition, 2, 10, 10)
    asks(partition, 3, 10, 10)
    again = {**KNOWN, 3: 203}
    partition.brokers_known(again, 1)
    assert partition.log_end_of(3) == UNKNOWN_END
    assert partition.advance(12) == 0
    assert not partition.fetched(3, 103, 10, 12, again, 2), "the words of its former life"
    assert partition.fetched(3, 203, 9, 12, again, 2)
    assert partition.advance(12) == 9


def test_kip_841_a_broker_that_the_cluster_does_not_know_joins_nothing() -> None:
    partition = leading(isr=(1, 2))
    asks(partition, 3, 10, 10)
    gone = {1: 101, 2: 102}
    partition.brokers_known(gone, 1)
    asks(partition, 2, 10, 10)
    assert partition.propose(10, gone, LAG_MS, 1) is None


def test_broker_that_is_not_a_replica_does_not_count() -> None:
    assert not leading().fetched(9, 109, 10, 10, {**KNOWN, 9: 109}, 0)


def test_definite_rejection_ends_the_pending_change() -> None:
    partition = leading(isr=(1, 2), watermark=5)
    asks(partition, 2, 10, 10)
    asks(partition, 3, 6, 10)
    partition.propose(10, KNOWN, LAG_MS, 1)
    partition.rejected(is_definite=True)
    assert partition.advance(10) == 10
    asks(partition, 3, 10, 10)
    assert partition.propose(10, KNOWN, LAG_MS, 2) is not None


def test_lost_answer_leaves_the_change_counting_until_the_state_comes() -> None:
    partition = leading(isr=(1, 2), watermark=5)
    asks(partition, 2, 10, 10)
    asks(partition, 3, 6, 10)
    proposal = partition.propose(10, KNOWN, LAG_MS, 1)
    partition.rejected(is_definite=False)
    assert partition.advance(10) == 6, "it may have been made"
    assert partition.propose(10, KNOWN, LAG_MS, 2) is proposal, "asked again as it was, for it may not have been heard"
    assert partition.propose(10, KNOWN, LAG_MS, 3) is None
    partition.rejected(is_definite=False)
    assert partition.settled((1, 2, 3), (1, 2), 7, 3)
    assert partition.advance(10) == 6, "the same state again proves nothing: the question may still arrive"
    assert partition.settled((1, 2, 3), (1, 2), 8, 4), "it was not made, and cannot be any more"
    assert partition.advance(10) == 10


def test_older_state_changes_nothing() -> None:
    partition = leading(isr=(1, 2))
    assert not partition.settled((1, 2, 3), (1,), 6, 0)
    assert partition.isr == (1, 2)


def test_removed_replica_does_not_hold_back_the_high_watermark() -> None:
    partition = leading(isr=(1, 2, 3))
    asks(partition, 2, 10, 10)
    partition.settled((1, 2), (1, 2), 8, 0)
    assert partition.advance(10) == 10
    assert not asks(partition, 3, 0, 10)


KINDS = st.sampled_from(["ask", "append", "propose", "settle", "reject", "lose"])
MOVES = st.lists(st.tuples(KINDS, st.integers(2, 3), st.integers(0, 30)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(MOVES, st.integers(1, 3))
def test_every_eligible_leader_has_everything_below_the_high_watermark(
    moves: list[tuple[str, int, int]], least: int
) -> None:
    partition = leading(minimum=least)
    end, now_ms, before = 0, 0.0, 0
    reported = {2: UNKNOWN_END, 3: UNKNOWN_END}
    for move, broker, amount in moves:
        now_ms += 300
        if move == "append":
            end += amount
        elif move == "ask":
            reported[broker] = max(reported[broker], min(amount, end))
            asks(partition, broker, reported[broker], end, now_ms)
        elif move == "propose":
            partition.propose(end, KNOWN, LAG_MS, now_ms)
        elif move == "settle" and partition.pending is not None:
            partition.settled((1, 2, 3), partition.pending.isr, partition.state_version + 1, now_ms)
        elif move in ("reject", "lose") and partition.pending is not None:
            partition.rejected(is_definite=move == "reject")
        watermark = partition.advance(end)
        assert watermark >= before
        if watermark > before:
            assert len(partition.isr) >= least
            for member in partition.widest_isr - {1}:
                assert reported[member] >= watermark
        before = watermark
