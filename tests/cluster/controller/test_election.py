"""Elections, the ISR and the ELR, by stories; each trap of replication by its name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.controller.decision_stories import (
    alter_isr,
    brokers_changed,
    min_isr,
    only,
    registered,
    topic_id,
    with_settings,
)
from tests.cluster.controller.decision_stories import cluster as cluster_of
from tests.cluster.controller.decision_stories import state as partition

from penstock.cluster.controller import election
from penstock.cluster.controller.election import (
    Changes,
    ElectionKind,
    IsrRequest,
    PartitionRules,
    PartitionsByBroker,
    elect,
    elect_leaders,
    is_lost,
    partition_rules,
    with_elections,
)
from penstock.cluster.controller.failover import had_unclean_shutdown
from penstock.cluster.controller.transaction import Decision
from penstock.cluster.errors import PreferredLeaderNotAvailable
from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage
from penstock.cluster.tree.layout import DEFAULT_BROKER, NO_LEADER, BrokerRegistration, TopicReplicas
from penstock.cluster.tree.tree import Set
from penstock.wire.protocol import ErrorCode

TWO = PartitionRules(min_insync_replicas=2)
EPOCHS = {1: 101, 2: 102, 3: 103}


def cluster(state: PartitionImage, live: tuple[int, ...] = (1, 2, 3), least: int = 2) -> ClusterImage:
    return min_isr(cluster_of(live, t=[state]), least)


def asked(state: PartitionImage, members: tuple[int, ...], **changes: object) -> IsrRequest:
    epochs = tuple(EPOCHS[broker] for broker in members)
    request = IsrRequest(
        "t", 0, state.leader, EPOCHS[state.leader], state.leader_epoch, state.state_version, members, epochs
    )
    return replace(request, **changes)  # type: ignore[arg-type]


# --- rules


def test_rules_come_from_the_topic_then_from_all_brokers_then_from_defaults() -> None:
    image = ClusterImage()
    assert partition_rules(image, "t") == PartitionRules(1, unclean_election=False, syncs_before_ack=True)
    image = image.with_broker_config(DEFAULT_BROKER, {"min.insync.replicas": "2"})
    assert partition_rules(image, "t").min_insync_replicas == 2
    image = image.with_topic_config("t", {"min.insync.replicas": "3", "flush.messages": "1000"})
    assert partition_rules(image, "t") == PartitionRules(3, unclean_election=False, syncs_before_ack=False)
    assert partition_rules(image, "other") == PartitionRules(2, unclean_election=False, syncs_before_ack=True)


def test_rules_of_one_broker_do_not_count() -> None:
    image = ClusterImage().with_broker_config("1", {"min.insync.replicas": "3", "log.flush.interval.ms": "5"})
    assert partition_rules(image, "t") == PartitionRules()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min.insync.replicas", "many"),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", "9" * 10_000),
        ("min.insync.replicas", "\u0663"),
        ("unclean.leader.election.enable", "perhaps"),
        ("flush.ms", "soon"),
    ],
)
def test_stored_settings_that_cannot_be_read_are_ignored(name: str, value: str) -> None:
    assert partition_rules(ClusterImage().with_topic_config("t", {name: value}), "t") == PartitionRules()
    image = ClusterImage().with_broker_config(DEFAULT_BROKER, {name: value})
    assert partition_rules(image, "t") == PartitionRules()


def test_settings_are_read_as_kafka_reads_them() -> None:
    own = {"min.insync.replicas": " +2 ", "unclean.leader.election.enable": " TRUE "}
    image = ClusterImage().with_topic_config("t", own)
    image = image.with_broker_config(DEFAULT_BROKER, {"log.flush.interval.ms": "1000"})
    assert partition_rules(image, "t") == PartitionRules(2, unclean_election=True, syncs_before_ack=False)
    assert not partition_rules(image.with_topic_config("t", {"unclean.leader.election.enable": "false"}), "t")[1]


# --- elections


def test_follower_that_dies_leaves_the_isr_without_a_new_epoch() -> None:
    after = elect(partition(), {1, 2}, (), 9)
    assert after == partition(isr=(1, 2), controller_epoch=9, state_version=8)


def test_last_replica_standing_is_elected_from_the_elr() -> None:
    """KIP-966."""
    state = partition(leader=2, isr=(2, 3))
    state = elect(state, {2}, (), 9, TWO) or state
    assert (state.leader, state.isr, state.elr) == (2, (2,), (3,))
    state = elect(state, set(), (), 9, TWO) or state
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (2,), (3,))
    state = elect(state, {3}, {3}, 9, TWO) or state
    assert (state.leader, state.isr, state.elr) == (3, (3,), (2,))


def test_replica_that_left_while_enough_were_in_sync_is_not_eligible() -> None:
    state = elect(partition(), {1, 2}, (), 9, TWO)
    assert state is not None
    assert state.elr == ()


def test_isr_is_never_empty_and_its_last_member_must_return() -> None:
    state = partition(isr=(1,))
    state = elect(state, {2, 3}, (), 9) or state
    assert (state.leader, state.leader_epoch, state.isr) == (NO_LEADER, 6, (1,))
    assert elect(state, {2, 3}, {3}, 9) is None
    state = elect(state, {1, 2, 3}, {1}, 9) or state
    assert (state.leader, state.leader_epoch, state.isr) == (1, 7, (1,))


def test_unclean_election_needs_the_topic_setting() -> None:
    unclean = PartitionRules(unclean_election=True)
    state = elect(partition(isr=(1,)), {2, 3}, (), 9, unclean)
    assert state is not None
    assert (state.leader, state.leader_epoch, state.isr) == (2, 6, (2,))


def test_kip_903_broker_that_lost_its_page_cache_leaves_the_isr_of_unsynced_topics() -> None:
    unsynced = PartitionRules(min_insync_replicas=2, syncs_before_ack=False)
    state = elect(partition(), {1, 2, 3}, {2}, 9, unsynced, uncleanly_stopped={2})
    assert state is not None
    assert (state.leader, state.isr) == (1, (1, 3))
    state = elect(partition(isr=(1,), elr=(2,)), {2}, {2}, 9, unsynced, uncleanly_stopped={2})
    assert state is not None
    assert (state.leader, state.elr) == (NO_LEADER, ())


def test_broker_that_lost_its_page_cache_stays_in_the_isr_of_synced_topics() -> None:
    assert elect(partition(), {1, 2, 3}, {2}, 9, TWO, uncleanly_stopped={2}) is None


def test_unsynced_topic_is_led_by_its_last_leader_if_no_replica_has_more() -> None:
    unsynced = PartitionRules(syncs_before_ack=False)
    state = elect(partition(leader=NO_LEADER, isr=(1,)), {1, 2}, {1}, 9, unsynced, uncleanly_stopped={1})
    assert state is not None
    assert (state.leader, state.isr) == (1, (1,))


def test_restarted_leader_leads_in_a_new_epoch() -> None:
    state = elect(partition(isr=(1,)), {1, 2, 3}, {1}, 9)
    assert state is not None
    assert (state.leader, state.leader_epoch) == (1, 6)


def test_kip_903_broker_with_an_empty_disk_is_neither_in_sync_nor_eligible() -> None:
    state = elect(partition(), {1, 2, 3}, {2}, 9, TWO, uncleanly_stopped={2}, emptied={2})
    assert state is not None
    assert (state.leader, state.isr, state.elr) == (1, (1, 3), ())
    state = elect(partition(leader=NO_LEADER, isr=(1,), elr=(2,)), {2}, {2}, 9, TWO, emptied={2})
    assert state is not None
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (1,), ())


def test_empty_disk_still_counts_when_its_broker_is_seen_again() -> None:
    state = elect(partition(leader=NO_LEADER, isr=(1,), elr=(2,)), {1, 3}, {1}, 9, TWO, emptied={1})
    assert state is not None
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (2,), ())
    assert elect(state, {1, 3}, {1}, 9, TWO) is None
    state = elect(state, {1, 2, 3}, {2}, 9, TWO) or state
    assert (state.leader, state.isr) == (2, (2,))


def test_partition_whose_last_disk_is_emptied_waits_for_an_administrator() -> None:
    state = elect(partition(isr=(1,)), {1, 2, 3}, {1}, 9, emptied={1})
    assert state is not None
    assert (state.leader, state.leader_epoch, state.isr, is_lost(state)) == (NO_LEADER, 6, (1,), True)
    assert elect(state, {1, 2, 3}, {1}, 9) is None
    assert elect(state, {1, 2, 3}, (), 9, PartitionRules(syncs_before_ack=False), uncleanly_stopped={1}) is None
    state = elect(state, {1, 2, 3}, (), 9, PartitionRules(unclean_election=True), emptied={1}) or state
    assert (state.leader, state.leader_epoch, state.isr, state.recovering) == (2, 7, (2,), False)


def test_unsynced_topic_waits_for_the_replica_that_may_have_more() -> None:
    unsynced = PartitionRules(syncs_before_ack=False)
    state = elect(partition(leader=NO_LEADER, isr=(1, 2)), {1}, {1}, 9, unsynced, uncleanly_stopped={1})
    assert state is not None
    assert (state.leader, state.isr) == (NO_LEADER, (2,))
    state = elect(state, {1, 2}, {2}, 9, unsynced, uncleanly_stopped={2}) or state
    assert (state.leader, state.isr) == (2, (2,))


def test_unsynced_topic_is_led_again_after_all_brokers_lose_power() -> None:
    unsynced = PartitionRules(syncs_before_ack=False)
    state = elect(partition(leader=NO_LEADER), {1, 2, 3}, {1, 2, 3}, 9, unsynced, uncleanly_stopped={1, 2, 3})
    assert state is not None
    assert (state.leader, state.isr) == (1, (1,))


# --- data folders that fail, and that come back empty


def with_offline(image: ClusterImage, broker: int, *partitions: int) -> ClusterImage:
    offline = {"t": TopicReplicas(topic_id("t"), frozenset(partitions))} if partitions else {}
    return image.with_broker(replace(image.brokers[broker], offline=offline))


def folders_changed(image: ClusterImage) -> ClusterImage:
    """After the elections that follow."""
    return brokers_changed(PartitionsByBroker(image), image, left=image.brokers).image


def test_replica_in_a_failed_folder_leaves_the_isr_and_another_leads() -> None:
    image = with_offline(min_isr(cluster_of((1, 2, 3), t=[partition(), partition()]), 2), 1, 0)
    failed, sound = folders_changed(image).topics["t"].partitions
    assert (failed.leader, failed.leader_epoch, failed.isr, failed.elr) == (2, 6, (2, 3), ())
    assert sound == partition()


def test_last_replica_in_sync_is_awaited_while_its_folder_has_failed() -> None:
    image = folders_changed(with_offline(cluster(partition(isr=(1,), elr=(2,))), 1, 0))
    assert (only(image).leader, only(image).isr) == (2, (2,)), "the other one lacks nothing"
    image = folders_changed(with_offline(cluster(partition(isr=(1,))), 1, 0))
    assert (only(image).leader, only(image).isr, is_lost(only(image))) == (NO_LEADER, (1,), False)
    for kind, error in (
        (ElectionKind.PREFERRED, PreferredLeaderNotAvailable),
        (ElectionKind.UNCLEAN, None),
    ):
        elected = elect_leaders(image, [("t", 0)], kind)
        if error is not None:
            assert isinstance(elected.errors["t", 0], error)
        else:
            assert only(elected.decision.image).leader == 2, "the administrator accepts the loss"
    image = folders_changed(with_offline(image, 1))
    assert (only(image).leader, only(image).leader_epoch) == (1, 7)


def test_replica_in_a_failed_folder_does_not_join_the_isr() -> None:
    state = partition(isr=(1, 2))
    image = with_offline(cluster(state), 3, 0)
    assert alter_isr(image, asked(state, (1, 2, 3))) is ErrorCode.INELIGIBLE_REPLICA
    assert isinstance(alter_isr(with_offline(image, 3), asked(state, (1, 2, 3))), Decision)


def test_another_topic_of_the_name_is_not_in_the_failed_folder() -> None:
    image = with_offline(cluster(partition()), 1, 0)
    again = image.with_topic(TopicImage("t", topic_id("other"), (partition(),)))
    assert only(folders_changed(again)) == partition()


def test_new_disk_costs_only_what_was_in_its_folder() -> None:
    kept = {"t": TopicReplicas(topic_id("t"), frozenset({1}))}
    image = cluster_of((1, 2, 3), t=[partition(isr=(1,)), partition(isr=(1,))])
    image = image.with_broker(registered(1, epoch=201, is_emptied=True, kept=kept))
    partitions = PartitionsByBroker(image)
    lost, sound = brokers_changed(partitions, image, joined=[1], emptied=[1]).image.topics["t"].partitions
    assert (lost.leader, is_lost(lost)) == (NO_LEADER, True)
    assert (sound.leader, sound.isr) == (1, (1,))


def test_unclean_stop_is_counted_when_the_failed_folder_is_back() -> None:
    image = with_settings(cluster(partition(leader=NO_LEADER, isr=(1,))), **{"log.flush.interval.messages": "100"})
    failed = with_offline(image, 1, 0)
    failed = brokers_changed(PartitionsByBroker(failed), failed, joined=[1], uncleanly_stopped=[1]).image
    assert (only(failed).isr, is_lost(only(failed))) == ((1,), False)
    back = with_offline(failed, 1)
    back = brokers_changed(PartitionsByBroker(back), back, joined=[1], uncleanly_stopped=[1]).image
    assert (only(back).leader, only(back).isr) == (1, (1,))


# --- what the leader asks for


def test_isr_shrinks_and_grows() -> None:
    image = cluster(partition())
    less = alter_isr(image, asked(partition(), (1, 2)))
    assert not isinstance(less, ErrorCode)
    state = only(less.image)
    assert (state.isr, state.state_version, state.leader_epoch, state.elr) == ((1, 2), 8, 5, ())
    more = alter_isr(less.image, asked(state, (1, 2, 3)))
    assert not isinstance(more, ErrorCode)
    assert only(more.image).isr == (1, 2, 3)


def test_replica_that_leaves_the_isr_below_the_minimum_is_eligible_until_enough_are_in_sync() -> None:
    state = partition(isr=(1, 2))
    less = alter_isr(cluster(state), asked(state, (1,)))
    assert not isinstance(less, ErrorCode)
    state = only(less.image)
    assert (state.isr, state.elr) == ((1,), (2,))
    more = alter_isr(less.image, asked(state, (1, 3)))
    assert not isinstance(more, ErrorCode)
    assert only(more.image).elr == ()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"leader_epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 6}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"state_version": 6}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"broker": 2, "broker_epoch": 102}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"broker_epoch": 100}, ErrorCode.STALE_BROKER_EPOCH),
        ({"isr": (2, 3), "isr_epochs": (102, 103)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (), "isr_epochs": ()}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 9), "isr_epochs": (101, 109)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 1), "isr_epochs": (101, 101)}, ErrorCode.INVALID_REQUEST),
        ({"topic": "other"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_stale_and_invalid_isr_requests_are_rejected(changes: dict[str, object], error: ErrorCode) -> None:
    assert alter_isr(cluster(partition()), asked(partition(), (1, 2), **changes)) is error


def test_kip_841_dead_broker_does_not_join_the_isr() -> None:
    state = partition(isr=(1, 2))
    assert alter_isr(cluster(state, (1, 2)), asked(state, (1, 2, 3))) is ErrorCode.INELIGIBLE_REPLICA


def test_kip_903_restarted_broker_does_not_join_the_isr() -> None:
    state = partition(isr=(1, 2))
    again = cluster(state).with_broker(registered(3, epoch=203))
    assert alter_isr(again, asked(state, (1, 2, 3))) is ErrorCode.INELIGIBLE_REPLICA


# --- brokers


def test_only_partitions_of_the_broker_that_left_change() -> None:
    image = cluster(partition(), (1, 2, 3, 4))
    other = TopicImage("other", bytes(15) + b"2", (PartitionImage((2, 3, 4), 2, 0, (2, 3, 4), state_version=0),))
    partitions_by_broker = PartitionsByBroker(image.with_topic(other))
    decision = brokers_changed(partitions_by_broker, partitions_by_broker.image.without_broker(1), left=(1,))
    assert [operation.path for operation in decision.operations] == ["/brokers/topics/t/partitions/0/state"]
    assert only(decision.image).leader == 2
    assert decision.image.topics["other"] is other


def test_unclean_leader_is_reported() -> None:
    image = cluster(partition(isr=(1,)))
    partitions_by_broker = PartitionsByBroker(image)
    left = image.without_broker(1)
    assert brokers_changed(partitions_by_broker, left, left=(1,)).unclean == ()
    allowed = with_settings(left, **{"unclean.leader.election.enable": "true"})
    assert brokers_changed(partitions_by_broker, allowed, left=(1,)).unclean == (("t", 0),)


def test_same_event_twice_changes_nothing_the_second_time() -> None:
    partitions_by_broker = PartitionsByBroker(cluster(partition()))
    first = brokers_changed(partitions_by_broker, partitions_by_broker.image.without_broker(1), left=(1,))
    partitions_by_broker.follow(first.image)
    assert brokers_changed(partitions_by_broker, first.image, left=(1,)) == ((), first.image, ())


def test_elr_is_emptied_together_with_a_lower_minimum() -> None:
    image = cluster(partition(isr=(1,), elr=(2,)))
    setting = Set("/config/topics/t", b"min.insync.replicas=1")
    decided = Decision((setting,), image.with_topic_config("t", {"min.insync.replicas": "1"}))
    after = with_elections(decided, ["t", "other"])
    assert [operation.path for operation in after.operations] == [
        "/brokers/topics/t/partitions/0/state",
        "/config/topics/t",
    ]
    state = only(after.image)
    assert (state.elr, state.leader, state.leader_epoch) == ((), 1, 5)
    assert after.image.topic_config("t") == {"min.insync.replicas": "1"}


def test_higher_minimum_makes_no_replica_eligible() -> None:
    decided = Decision((), cluster(partition(isr=(1, 2)), least=3))
    assert with_elections(decided, ["t"]) == decided


def test_topic_that_allows_unclean_leaders_gets_one_at_once() -> None:
    image = cluster(partition(leader=NO_LEADER, isr=(1,)), (2, 3))
    allowed = with_settings(image, **{"unclean.leader.election.enable": "true"})
    after = with_elections(Decision((), allowed), ["t"])
    assert only(after.image).leader == 2
    assert after.unclean == (("t", 0),)


@pytest.mark.parametrize(
    ("clean_epoch", "known_epoch", "expected"),
    [(-1, -1, True), (-1, 7, True), (7, 7, False), (7, -1, False), (6, 7, True)],
)
def test_clean_shutdown_counts_if_it_ended_the_last_known_epoch(
    clean_epoch: int, known_epoch: int, expected: bool
) -> None:
    registration = BrokerRegistration(1, (), epoch=9, clean_epoch=clean_epoch)
    assert had_unclean_shutdown(registration, known_epoch) is expected


@pytest.mark.parametrize(("known_epoch", "expected"), [(4, True), (5, False), (7, False), (8, True), (-1, False)])
def test_controllers_may_miss_epochs_of_a_process_that_lost_nothing(known_epoch: int, expected: bool) -> None:
    """Its sessions ended one after the other, and it registered each time."""
    registration = BrokerRegistration(1, (), epoch=9, clean_epoch=7, clean_since=5)
    assert had_unclean_shutdown(registration, known_epoch) is expected


def test_one_rejected_isr_request_does_not_affect_the_others() -> None:
    topic = TopicImage("t", topic_id("t"), (partition(), partition(leader_epoch=6), partition()))
    changes = Changes(cluster(partition()).with_topic(topic))
    requests = [asked(partition(), (1, 2), partition=index) for index in range(3)]
    errors = [election.alter_isr(changes, request) for request in requests]
    assert errors == [None, ErrorCode.FENCED_LEADER_EPOCH, None]
    decision = changes.decision()
    assert [each.isr for each in decision.image.topics["t"].partitions] == [(1, 2), (1, 2, 3), (1, 2)]
    assert len(decision.operations) == 2


def test_broker_failure_costs_what_the_broker_held_not_the_size_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = cluster(partition(), (1, 2, 3, 4, 5, 6))
    others = [
        TopicImage(f"other-{number}", number.to_bytes(16, "big"), (partition(replicas=(4, 5, 6), leader=4),) * 10)
        for number in range(2, 300)
    ]
    partitions_by_broker = PartitionsByBroker(image.with_topics(others))
    looked_at: list[str] = []

    def rules(_: ClusterImage, topic: str) -> PartitionRules:
        looked_at.append(topic)
        return TWO

    monkeypatch.setattr(election, "partition_rules", rules)
    decision = brokers_changed(partitions_by_broker, partitions_by_broker.image.without_broker(1), left=(1,))
    assert looked_at == ["t"]
    assert decision.image.names_by_id is partitions_by_broker.image.names_by_id
    assert decision.image.topics["other-2"] is partitions_by_broker.image.topics["other-2"]


def test_partitions_by_broker_follow_the_image() -> None:
    partitions_by_broker = PartitionsByBroker(cluster(partition()))
    moved = TopicImage("t", topic_id("t"), (partition(replicas=(2, 3)),))
    partitions_by_broker.follow(partitions_by_broker.image.with_topic(moved))
    assert list(partitions_by_broker.of([1])) == []
    assert [(topic.name, indexes) for topic, indexes in partitions_by_broker.of([2, 3])] == [("t", [0])]
    partitions_by_broker.follow(partitions_by_broker.image.without_topic("t"))
    assert list(partitions_by_broker.of([2])) == []


MOVES = st.lists(
    st.tuples(st.sampled_from(["die", "come", "shrink", "grow"]), st.integers(1, 3), st.booleans()), max_size=40
)


@settings(max_examples=300, deadline=None)
@given(MOVES, st.integers(1, 3))
def test_leader_has_everything_that_was_committed(moves: list[tuple[str, int, bool]], least: int) -> None:
    """A model of records: committed when all in sync have them and enough are; each death may lose what is not synced,
    and what is in sync is synced. The leader always has everything that was committed.
    """
    rules = PartitionRules(min_insync_replicas=least)
    image = cluster(partition(), least=least)
    live, ends, committed, epoch = {1, 2, 3}, {1: 0, 2: 0, 3: 0}, 0, 5
    for move, broker, writes in moves:
        state = only(image)
        if move in ("die", "come"):
            if (broker in live) != (move == "die"):
                continue
            live ^= {broker}
            after = elect(state, live, {broker} & live, 9, rules)
            image = image if after is None else image.with_topic(replace(image.topics["t"], partitions=(after,)))
        elif state.leader in live:
            isr = tuple(member for member in state.isr if move == "grow" or member != broker or member == state.leader)
            if move == "grow" and broker in live and broker not in isr and ends[broker] >= committed:
                isr = (*isr, broker)
            decision = alter_isr(image, asked(state, isr))
            image = image if isinstance(decision, ErrorCode) else decision.image
        state = only(image)
        assert state.isr, "the ISR is never empty"
        assert not set(state.isr) & set(state.elr)
        assert state.leader_epoch >= epoch
        epoch = state.leader_epoch
        if state.leader == NO_LEADER:
            continue
        assert state.leader in state.isr
        assert ends[state.leader] >= committed
        for member in live & set(state.replicas):  # followers become prefixes of the leader
            ends[member] = min(ends[member], ends[state.leader])
        if writes:
            ends[state.leader] += 1
            for member in state.isr:
                if member in live:
                    ends[member] = ends[state.leader]
            if len(state.isr) >= least and set(state.isr) <= live:
                committed = ends[state.leader]
