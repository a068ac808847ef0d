"""Leaders, who is in sync and who may lead, by stories; each trap of replication by its name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.controller.election import (
    AlterPartitionError,
    Changes,
    IsrRequest,
    PartitionRules,
    PartitionsByBroker,
    alter_isr,
    elect,
    is_lost,
    put_isr,
)
from penstock.cluster.controller.failover import brokers_changed, had_unclean_shutdown, rules_changed
from penstock.cluster.controller.transaction import Decision
from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage
from penstock.cluster.tree.layout import NO_LEADER, BrokerRegistration
from penstock.cluster.tree.tree import Set

TWO = PartitionRules(min_insync_replicas=2)
EPOCHS = {1: 101, 2: 102, 3: 103}


def partition(**changes: object) -> PartitionImage:
    return replace(PartitionImage((1, 2, 3), 1, 5, (1, 2, 3), state_version=7), **changes)  # type: ignore[arg-type]


def cluster(state: PartitionImage, live: tuple[int, ...] = (1, 2, 3)) -> ClusterImage:
    brokers = {broker: BrokerRegistration(broker, ()) for broker in live}
    return ClusterImage(controller_epoch=9, brokers=brokers).with_topic(TopicImage("t", bytes(15) + b"1", (state,)))


def asked(state: PartitionImage, members: tuple[int, ...], **changes: object) -> IsrRequest:
    epochs = tuple(EPOCHS[broker] for broker in members)
    request = IsrRequest(
        "t", 0, state.leader, EPOCHS[state.leader], state.leader_epoch, state.state_version, members, epochs
    )
    return replace(request, **changes)  # type: ignore[arg-type]


# --- elections


def test_a_follower_that_dies_leaves_the_isr_without_a_new_epoch() -> None:
    after = elect(partition(), {1, 2}, (), 9)
    assert after == partition(isr=(1, 2), controller_epoch=9, state_version=8)


def test_last_replica_standing_the_one_that_left_before_may_lead_since_nothing_was_committed_since() -> None:
    """KIP-966."""
    state = partition(leader=2, isr=(2, 3))
    state = elect(state, {2}, (), 9, TWO) or state
    assert (state.leader, state.isr, state.elr) == (2, (2,), (3,))
    state = elect(state, set(), (), 9, TWO) or state
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (2,), (3,))
    state = elect(state, {3}, {3}, 9, TWO) or state
    assert (state.leader, state.isr, state.elr) == (3, (3,), (2,))


def test_who_left_while_enough_were_in_sync_is_not_eligible() -> None:
    state = elect(partition(), {1, 2}, (), 9, TWO)
    assert state is not None
    assert state.elr == ()


def test_the_isr_is_never_empty_and_the_last_in_sync_must_come_back() -> None:
    state = partition(isr=(1,))
    state = elect(state, {2, 3}, (), 9) or state
    assert (state.leader, state.leader_epoch, state.isr) == (NO_LEADER, 6, (1,))
    assert elect(state, {2, 3}, {3}, 9) is None
    state = elect(state, {1, 2, 3}, {1}, 9) or state
    assert (state.leader, state.leader_epoch, state.isr) == (1, 7, (1,))


def test_an_unclean_election_only_where_the_topic_asks_for_it() -> None:
    unclean = PartitionRules(unclean_election=True)
    state = elect(partition(isr=(1,)), {2, 3}, (), 9, unclean)
    assert state is not None
    assert (state.leader, state.leader_epoch, state.isr) == (2, 6, (2,))


def test_kip_903_a_broker_that_lost_its_page_cache_is_not_in_sync_where_nothing_was_synced() -> None:
    careless = PartitionRules(min_insync_replicas=2, syncs_before_ack=False)
    state = elect(partition(), {1, 2, 3}, {2}, 9, careless, uncleanly_stopped={2})
    assert state is not None
    assert (state.leader, state.isr) == (1, (1, 3))
    state = elect(partition(isr=(1,), elr=(2,)), {2}, {2}, 9, careless, uncleanly_stopped={2})
    assert state is not None
    assert (state.leader, state.elr) == (NO_LEADER, ())


def test_a_broker_that_lost_its_page_cache_keeps_what_was_synced() -> None:
    assert elect(partition(), {1, 2, 3}, {2}, 9, TWO, uncleanly_stopped={2}) is None


def test_a_careless_topic_is_led_by_the_last_that_led_it_when_nobody_has_more() -> None:
    careless = PartitionRules(syncs_before_ack=False)
    state = elect(partition(leader=NO_LEADER, isr=(1,)), {1, 2}, {1}, 9, careless, uncleanly_stopped={1})
    assert state is not None
    assert (state.leader, state.isr) == (1, (1,))


def test_a_leader_that_came_back_leads_in_a_new_epoch() -> None:
    state = elect(partition(isr=(1,)), {1, 2, 3}, {1}, 9)
    assert state is not None
    assert (state.leader, state.leader_epoch) == (1, 6)


def test_kip_903_a_broker_with_an_empty_disk_is_neither_in_sync_nor_eligible_however_carefully_its_topic_syncs() -> (
    None
):
    state = elect(partition(), {1, 2, 3}, {2}, 9, TWO, uncleanly_stopped={2}, emptied={2})
    assert state is not None
    assert (state.leader, state.isr, state.elr) == (1, (1, 3), ())
    state = elect(partition(leader=NO_LEADER, isr=(1,), elr=(2,)), {2}, {2}, 9, TWO, emptied={2})
    assert state is not None
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (1,), ())


def test_an_empty_disk_is_not_forgotten_when_its_broker_is_seen_the_next_time() -> None:
    state = elect(partition(leader=NO_LEADER, isr=(1,), elr=(2,)), {1, 3}, {1}, 9, TWO, emptied={1})
    assert state is not None
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (2,), ())
    assert elect(state, {1, 3}, {1}, 9, TWO) is None
    state = elect(state, {1, 2, 3}, {2}, 9, TWO) or state
    assert (state.leader, state.isr) == (2, (2,))


def test_when_the_last_disk_is_emptied_nobody_leads_until_somebody_decides() -> None:
    state = elect(partition(isr=(1,)), {1, 2, 3}, {1}, 9, emptied={1})
    assert state is not None
    assert (state.leader, state.leader_epoch, state.isr, is_lost(state)) == (NO_LEADER, 6, (1,), True)
    assert elect(state, {1, 2, 3}, {1}, 9) is None
    assert elect(state, {1, 2, 3}, (), 9, PartitionRules(syncs_before_ack=False), uncleanly_stopped={1}) is None
    state = elect(state, {1, 2, 3}, (), 9, PartitionRules(unclean_election=True), emptied={1}) or state
    assert (state.leader, state.leader_epoch, state.isr, state.recovering) == (2, 7, (2,), False)


def test_a_careless_topic_waits_for_the_one_that_may_have_more() -> None:
    careless = PartitionRules(syncs_before_ack=False)
    state = elect(partition(leader=NO_LEADER, isr=(1, 2)), {1}, {1}, 9, careless, uncleanly_stopped={1})
    assert state is not None
    assert (state.leader, state.isr) == (NO_LEADER, (2,))
    state = elect(state, {1, 2}, {2}, 9, careless, uncleanly_stopped={2}) or state
    assert (state.leader, state.isr) == (2, (2,))


def test_a_careless_topic_survives_that_all_lose_power_at_once() -> None:
    careless = PartitionRules(syncs_before_ack=False)
    state = elect(partition(leader=NO_LEADER), {1, 2, 3}, {1, 2, 3}, 9, careless, uncleanly_stopped={1, 2, 3})
    assert state is not None
    assert (state.leader, state.isr) == (1, (1,))


# --- what the leader asks for


def test_an_isr_shrinks_and_grows() -> None:
    image = cluster(partition())
    less = alter_isr(image, asked(partition(), (1, 2)), EPOCHS, TWO)
    assert not isinstance(less, AlterPartitionError)
    state = less.image.topics["t"].partitions[0]
    assert (state.isr, state.state_version, state.leader_epoch, state.elr) == ((1, 2), 8, 5, ())
    more = alter_isr(less.image, asked(state, (1, 2, 3)), EPOCHS, TWO)
    assert not isinstance(more, AlterPartitionError)
    assert more.image.topics["t"].partitions[0].isr == (1, 2, 3)


def test_who_leaves_the_isr_below_the_minimum_stays_eligible_until_it_is_full_again() -> None:
    state = partition(isr=(1, 2))
    less = alter_isr(cluster(state), asked(state, (1,)), EPOCHS, TWO)
    assert not isinstance(less, AlterPartitionError)
    state = less.image.topics["t"].partitions[0]
    assert (state.isr, state.elr) == ((1,), (2,))
    more = alter_isr(less.image, asked(state, (1, 3)), EPOCHS, TWO)
    assert not isinstance(more, AlterPartitionError)
    assert more.image.topics["t"].partitions[0].elr == ()


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"leader_epoch": 4}, AlterPartitionError.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 6}, AlterPartitionError.NEW_LEADER_EPOCH),
        ({"state_version": 6}, AlterPartitionError.INVALID_UPDATE_VERSION),
        ({"broker": 2, "broker_epoch": 102}, AlterPartitionError.NOT_LEADER),
        ({"broker_epoch": 100}, AlterPartitionError.STALE_BROKER_EPOCH),
        ({"isr": (2, 3), "isr_epochs": (102, 103)}, AlterPartitionError.INVALID_REQUEST),
        ({"isr": (), "isr_epochs": ()}, AlterPartitionError.INVALID_REQUEST),
        ({"isr": (1, 9), "isr_epochs": (101, 109)}, AlterPartitionError.INVALID_REQUEST),
        ({"isr": (1, 1), "isr_epochs": (101, 101)}, AlterPartitionError.INVALID_REQUEST),
        ({"topic": "other"}, AlterPartitionError.UNKNOWN_PARTITION),
        ({"partition": 1}, AlterPartitionError.UNKNOWN_PARTITION),
    ],
)
def test_who_was_overtaken_or_asks_for_nonsense_is_refused(
    changes: dict[str, object], refusal: AlterPartitionError
) -> None:
    assert alter_isr(cluster(partition()), asked(partition(), (1, 2), **changes), EPOCHS, TWO) is refusal


def test_kip_841_a_dead_broker_does_not_join() -> None:
    state = partition(isr=(1, 2))
    alive = {1: 101, 2: 102}
    assert (
        alter_isr(cluster(state, (1, 2)), asked(state, (1, 2, 3)), alive, TWO) is AlterPartitionError.INELIGIBLE_REPLICA
    )


def test_kip_903_a_broker_that_came_back_since_does_not_join() -> None:
    state = partition(isr=(1, 2))
    again = {**EPOCHS, 3: 203}
    assert alter_isr(cluster(state), asked(state, (1, 2, 3)), again, TWO) is AlterPartitionError.INELIGIBLE_REPLICA


# --- brokers


def test_only_the_partitions_of_the_broker_that_went_change() -> None:
    image = cluster(partition(), (1, 2, 3, 4))
    other = TopicImage("other", bytes(15) + b"2", (PartitionImage((2, 3, 4), 2, 0, (2, 3, 4), state_version=0),))
    partitions_by_broker = PartitionsByBroker(image.with_topic(other))
    decision = brokers_changed(
        partitions_by_broker, partitions_by_broker.image.without_broker(1), (), (1,), (), lambda _: TWO
    )
    assert [operation.path for operation in decision.operations] == ["/brokers/topics/t/partitions/0/state"]
    assert decision.image.topics["t"].partitions[0].leader == 2
    assert decision.image.topics["other"] is other


def test_a_leader_that_may_lack_records_is_told() -> None:
    image = cluster(partition(isr=(1,)))
    partitions_by_broker = PartitionsByBroker(image)
    unclean = PartitionRules(unclean_election=True)
    decision = brokers_changed(partitions_by_broker, image.without_broker(1), (), (1,), (), lambda _: unclean)
    assert decision.unclean == (("t", 0),)
    assert brokers_changed(partitions_by_broker, image.without_broker(1), (), (1,), (), lambda _: TWO).unclean == ()


def test_the_same_event_twice_changes_nothing_the_second_time() -> None:
    partitions_by_broker = PartitionsByBroker(cluster(partition()))
    first = brokers_changed(
        partitions_by_broker, partitions_by_broker.image.without_broker(1), (), (1,), (), lambda _: TWO
    )
    partitions_by_broker.follow(first.image)
    assert brokers_changed(partitions_by_broker, first.image, (), (1,), (), lambda _: TWO) == ((), first.image, ())


def test_who_was_eligible_is_not_when_fewer_may_commit_from_the_same_moment_on() -> None:
    image = cluster(partition(isr=(1,), elr=(2,)))
    setting = Set("/config/topics/t", b"min.insync.replicas=1")
    decided = Decision((setting,), image.with_topic_config("t", {"min.insync.replicas": "1"}))
    after = rules_changed(decided, ["t", "other"], lambda _: PartitionRules(1))
    assert [operation.path for operation in after.operations] == [
        "/config/topics/t",
        "/brokers/topics/t/partitions/0/state",
    ]
    state = after.image.topics["t"].partitions[0]
    assert (state.elr, state.leader, state.leader_epoch) == ((), 1, 5)
    assert after.image.topic_config("t") == {"min.insync.replicas": "1"}


def test_more_that_must_commit_make_nobody_eligible_who_was_not() -> None:
    decided = Decision((), cluster(partition(isr=(1, 2))))
    assert rules_changed(decided, ["t"], lambda _: PartitionRules(3)) == decided


def test_a_topic_that_is_allowed_an_unclean_leader_gets_one_at_once() -> None:
    image = cluster(partition(leader=NO_LEADER, isr=(1,)), (2, 3))
    after = rules_changed(Decision((), image), ["t"], lambda _: PartitionRules(unclean_election=True))
    assert after.image.topics["t"].partitions[0].leader == 2
    assert after.unclean == (("t", 0),)


@pytest.mark.parametrize(
    ("clean_epoch", "known_epoch", "expected"),
    [(-1, -1, True), (-1, 7, True), (7, 7, False), (7, -1, False), (6, 7, True)],
)
def test_a_clean_stop_counts_if_it_ended_the_life_that_was_last(
    clean_epoch: int, known_epoch: int, expected: bool
) -> None:
    registration = BrokerRegistration(1, (), epoch=9, clean_epoch=clean_epoch)
    assert had_unclean_shutdown(registration, known_epoch) is expected


def test_a_leader_asks_for_many_isrs_at_once_and_one_refusal_does_not_hinder_the_others() -> None:
    topic = TopicImage("t", bytes(15) + b"1", (partition(), partition(leader_epoch=6), partition()))
    changes = Changes(cluster(partition()).with_topic(topic))
    requests = [asked(partition(), (1, 2), partition=index) for index in range(3)]
    refusals = [put_isr(changes, request, EPOCHS, TWO) for request in requests]
    assert refusals == [None, AlterPartitionError.FENCED_LEADER_EPOCH, None]
    decision = changes.decision()
    assert [each.isr for each in decision.image.topics["t"].partitions] == [(1, 2), (1, 2, 3), (1, 2)]
    assert len(decision.operations) == 2


def test_what_a_brokers_end_costs_depends_on_what_it_held_and_not_on_the_cluster() -> None:
    image = cluster(partition(), (1, 2, 3, 4, 5, 6))
    others = [
        TopicImage(f"other-{number}", number.to_bytes(16, "big"), (partition(replicas=(4, 5, 6), leader=4),) * 10)
        for number in range(2, 300)
    ]
    partitions_by_broker = PartitionsByBroker(image.with_topics(others))
    looked_at: list[str] = []

    def rules_of(topic: str) -> PartitionRules:
        looked_at.append(topic)
        return TWO

    decision = brokers_changed(
        partitions_by_broker, partitions_by_broker.image.without_broker(1), (), (1,), (), rules_of
    )
    assert looked_at == ["t"]
    assert decision.image.names_by_id is partitions_by_broker.image.names_by_id
    assert decision.image.topics["other-2"] is partitions_by_broker.image.topics["other-2"]


def test_hosting_follows_the_image() -> None:
    partitions_by_broker = PartitionsByBroker(cluster(partition()))
    moved = TopicImage("t", bytes(15) + b"1", (partition(replicas=(2, 3)),))
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
def test_whoever_leads_has_all_that_was_committed(moves: list[tuple[str, int, bool]], least: int) -> None:
    """A model of records: committed when all in sync have them and enough are; each death may lose what is not synced,
    and what is in sync is synced. The leader always has everything that was committed.
    """
    rules = PartitionRules(min_insync_replicas=least)
    image = cluster(partition())
    live, ends, committed, epoch = {1, 2, 3}, {1: 0, 2: 0, 3: 0}, 0, 5
    for move, broker, writes in moves:
        state = image.topics["t"].partitions[0]
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
            decision = alter_isr(image, asked(state, isr), EPOCHS, rules)
            image = image if isinstance(decision, AlterPartitionError) else decision.image
        state = image.topics["t"].partitions[0]
        assert state.isr, "somebody is always remembered"
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
