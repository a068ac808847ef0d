"""A controller and its brokers: joining, leaving, replaced controllers, requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.cluster.controller.controller_stories import HOST, Held, Stage, asks_isr, given, only, until

from penstock.cluster.controller.configs import ConfigEdit, EditKind, ResourceKind
from penstock.cluster.controller.controller import ConfigChange, Controller, NewPartitions
from penstock.cluster.controller.election import ElectionKind
from penstock.cluster.controller.entity_configs import EntityChange
from penstock.cluster.controller.topics import NewTopic
from penstock.cluster.controller.transaction import GROUPED_OPERATIONS
from penstock.cluster.entity_configs import Entity
from penstock.cluster.errors import (
    ConnectionLost,
    ElectionNotNeeded,
    MetadataUnavailable,
    NotController,
    PreferredLeaderNotAvailable,
    ResourceNotFound,
    SessionExpired,
    StaleBrokerEpoch,
    TreeBusy,
)
from penstock.cluster.image import PartitionImage
from penstock.cluster.membership.registration import update_registration
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import TopicReplicas, decode_broker_epochs, encode_broker
from penstock.wire.protocol import ErrorCode


def test_old_controller_that_missed_its_replacement_changes_nothing() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, three = await stage.members(1, 2, 3)
        old = await stage.controller(one)
        await old.controller.create_topics([given("t", (1, 2, 3))])
        one.tree.is_deaf = True
        await two.tree.delete(layout.CONTROLLER)
        new = await stage.controller(two)
        shown = len(old.images)
        request = asks_isr(old, (1, 2))
        [made] = await old.controller.create_topics([given("u", (1, 2, 3))])
        assert isinstance(made.error, NotController)
        with pytest.raises(NotController):
            await old.controller.alter_isrs([request])
        with pytest.raises(NotController):
            await old.controller.shut_down(3, three.epoch)
        with pytest.raises(NotController):
            await old.controller.balance_leaders()
        assert (old.lost, len(old.images), old.controller.is_active) == (1, shown, False)
        await stage.in_step(new)
        assert set(new.controller.image.topics) == {"t"}
        assert new.controller.epoch == old.controller.epoch + 1
        await old.controller.resign(give_up=True)
        assert await two.tree.exists(layout.CONTROLLER)

    stage.run(story())


def test_controller_whose_claim_is_taken_away_notices_by_itself() -> None:
    stage = Stage()

    async def story() -> None:
        one, two = await stage.members(1, 2)
        held = await stage.controller(one)
        await two.tree.delete(layout.CONTROLLER)
        await until(lambda: held.lost)
        [made] = await held.controller.create_topics([given("t", (1, 2))])
        assert isinstance(made.error, NotController)

    stage.run(story())


def test_controller_whose_claim_was_ended_writes_nothing_before_it_hears_of_that() -> None:
    stage = Stage()

    async def story() -> None:
        one, two = await stage.members(1, 2)
        held = await stage.controller(one)
        one.tree.is_deaf = True
        await two.tree.delete(layout.CONTROLLER)
        [made] = await held.controller.create_topics([given("t", (1, 2))])
        assert isinstance(made.error, NotController)
        assert held.lost
        assert not await two.tree.exists(layout.topic_path("t"))

    stage.run(story())


def test_controller_whose_session_ends_is_none_any_more_and_one_that_resigns_makes_room() -> None:
    stage = Stage()

    async def story() -> None:
        one, two = await stage.members(1, 2)
        first = await stage.controller(one)
        stage.die(one)
        await until(lambda: first.lost)
        second = await stage.controller(two)
        await second.controller.resign(give_up=True)
        assert second.lost == 0
        assert not await two.tree.exists(layout.CONTROLLER)
        [made] = await second.controller.create_topics([given("t", (2,))])
        assert isinstance(made.error, NotController)

    stage.run(story())


def test_controller_that_has_not_started_decides_nothing() -> None:
    stage = Stage()

    async def story() -> None:
        [one] = await stage.members(1)
        held = await stage.claim(one)
        with pytest.raises(NotController):
            await held.controller.create_topics([given("t", (1,))])
        with pytest.raises(NotController):
            await held.controller.alter_isrs([])

    stage.run(story())


def test_leader_dies_and_another_leads_and_it_comes_back_as_a_follower() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, _ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 3, 1))])
        assert only(held).leader == 2
        stage.die(two)
        await until(lambda: only(held).leader == 3)
        assert (only(held).leader_epoch, only(held).isr) == (1, (3, 1))
        assert set(held.controller.image.brokers) == {1, 3}
        await stage.member(2)
        await until(lambda: 2 in held.controller.image.brokers)
        assert (only(held).leader, only(held).leader_epoch, only(held).isr) == (3, 1, (3, 1))
        [grown] = await held.controller.alter_isrs([asks_isr(held, (2, 3, 1))])
        assert isinstance(grown, PartitionImage)
        assert only(held).isr == (2, 3, 1)
        await stage.in_step(held)

    stage.run(story())


def test_broker_restarted_between_two_reads_left_and_joined() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, _ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 3, 1)), given("lone", (2,))])
        one.tree.is_deaf = True
        late = asks_isr(held, (2, 3))
        stage.die(two)
        again = await stage.member(2)
        assert held.controller.image.brokers[2].epoch == two.epoch
        one.tree.hear()
        await until(lambda: held.controller.image.brokers[2].epoch == again.epoch)
        assert (only(held).leader, only(held).leader_epoch) == (2, 1)
        lone = held.controller.image.topics["lone"].partitions[0]
        assert (lone.leader, lone.leader_epoch) == (2, 1)
        assert await held.controller.alter_isrs([late]) == [ErrorCode.STALE_BROKER_EPOCH]
        epochs = decode_broker_epochs((await one.tree.get(layout.BROKER_EPOCHS)).data)
        assert epochs[2] == again.epoch
        await stage.in_step(held)

    stage.run(story())


def test_brokers_that_die_together_are_one_decision() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, three, _ = await stage.members(1, 2, 3, 4)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 3, 4), (3, 2, 4), (1, 2, 3))])
        one.tree.is_deaf = True
        writes = len(one.tree.writes)
        stage.die(two, three)
        one.tree.hear()
        await until(lambda: set(held.controller.image.brokers) == {1, 4})
        assert len(one.tree.writes) == writes + 1
        leaders = [partition.leader for partition in held.controller.image.topics["t"].partitions]
        assert leaders == [4, 4, 1]

    stage.run(story())


def test_broker_failure_is_handled_before_earlier_requests() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, _ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        gate = asyncio.Event()

        async def wait(_: int) -> None:
            await gate.wait()

        one.tree.before_write = wait
        changes = [asyncio.create_task(held.controller.create_topics([NewTopic(name, 1, 2)])) for name in "abcd"]
        await until(lambda: len(one.tree.writes) > 1)
        stage.die(two)
        await asyncio.sleep(1)
        gate.set()
        for [outcome] in await asyncio.gather(*changes):
            assert outcome.error is None
        topics = held.controller.image.topics
        assert all(2 not in topics[name].partitions[0].replicas for name in "bcd")
        await stage.in_step(held)

    stage.run(story())


def test_connection_that_was_lost_meanwhile_hides_no_death() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, _ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 3, 1))])
        stage.network.cut([HOST], [stage.service.address])
        await asyncio.sleep(4.5)
        stage.die(two)
        stage.network.heal_all()
        await until(lambda: only(held).leader == 3)
        assert held.lost == 0

    stage.run(story())


# --- broker epochs, and what the next controller knows about them


def test_next_controller_handles_only_brokers_that_were_not_handled() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, three = await stage.members(1, 2, 3)
        first = await stage.controller(one)
        await first.controller.create_topics([given("t", (2, 3, 1)), given("u", (3, 2, 1))])
        stage.die(one, three)
        again = await stage.member(3)
        second = await stage.controller(two)
        topics = second.controller.image.topics
        assert (topics["t"].partitions[0].leader, topics["t"].partitions[0].leader_epoch) == (2, 0)
        # No controller has seen that 3 was away.
        assert topics["u"].partitions[0].leader_epoch == 1
        epochs = decode_broker_epochs((await two.tree.get(layout.BROKER_EPOCHS)).data)
        assert (epochs[2], epochs[3]) == (two.epoch, again.epoch)
        await stage.in_step(second)

    stage.run(story())


@pytest.mark.parametrize("ends_well", [True, False])
def test_clean_shutdown_is_checked_against_the_epoch_of_the_previous_controller(ends_well: bool) -> None:
    stage = Stage()

    async def story() -> None:
        one, two, three = await stage.members(1, 2, 3)
        first = await stage.controller(one)
        await first.controller.create_topics([given("t", (1, 2, 3), flush_messages="1")])
        stage.die(one, three)
        await stage.member(3, clean_epoch=three.epoch if ends_well else three.epoch - 1)
        second = await stage.controller(two)
        # 3 may have lost unsynced records, unless its last known epoch ended cleanly.
        assert only(second).isr == ((2, 3) if ends_well else (2,))

    stage.run(story())


def test_broker_with_a_new_disk_appears_only_when_it_has_left_every_isr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.cluster.controller.transaction.MAX_OPERATIONS", 2)
    stage = Stage()

    async def story() -> None:
        one, _, three = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", *[(1, 2, 3)] * 5)])
        one.tree.is_deaf = True
        stage.die(three)
        await stage.member(3, is_emptied=True)
        one.tree.hear()
        await until(lambda: 3 in held.controller.image.brokers and held.controller.image.brokers[3].is_emptied)
        for image in held.images:
            if 3 in image.brokers and image.brokers[3].is_emptied:
                assert all(3 not in each.isr for each in image.topics["t"].partitions)

    stage.run(story())


def test_replicas_in_a_failed_folder_move_when_their_broker_reports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cluster.controller.transaction.MAX_OPERATIONS", 2)
    stage = Stage()

    async def story() -> None:
        one, two, three = await stage.members(1, 2, 3)
        held = await stage.controller(two)
        await held.controller.create_topics([given("t", *[(1, 2, 3)] * 5)])
        offline = {"t": TopicReplicas(held.controller.image.topics["t"].topic_id, frozenset({0, 1, 2, 3}))}
        registered = held.controller.image.brokers[1]
        assert await update_registration(one.tree, replace(registered, offline=offline))
        assert not await update_registration(three.tree, registered), "it belongs to another session"
        await until(lambda: held.controller.image.brokers[1].offline == offline)
        partitions = held.controller.image.topics["t"].partitions
        assert [each.leader for each in partitions] == [2, 2, 2, 2, 1]
        assert [1 in each.isr for each in partitions] == [False] * 4 + [True]
        assert held.controller.image.brokers[1].epoch == registered.epoch
        await stage.in_step(held)
        assert await one.tree.children(layout.LOG_DIR_EVENTS) == []
        for image in held.images:
            if image.brokers[1].offline:
                assert all(1 not in each.isr for each in image.topics["t"].partitions[:4])
        stage.die(two)
        held = await stage.controller(three)
        assert [each.leader for each in held.controller.image.topics["t"].partitions] == [3, 3, 3, 3, 1]

    stage.run(story())


def test_unreadable_registration_does_not_affect_other_brokers() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, _ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 3, 1))])
        await one.tree.create(layout.broker_path(9), b"{", ephemeral=True)
        stage.die(two)
        await until(lambda: only(held).leader == 3)
        assert set(held.controller.image.brokers) == {1, 3}

    stage.run(story())


def test_broker_with_another_address_keeps_its_epoch_and_its_leaderships() -> None:
    stage = Stage()

    async def story() -> None:
        one, two = await stage.members(1, 2)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 1))])
        await held.controller.shut_down(2, two.epoch)
        known = held.controller.image.brokers[2]
        await two.tree.set(layout.broker_path(2), encode_broker(replace(known, rack="r")))
        # The event is of a broker that is gone when the controller reads.
        one.tree.is_deaf = True
        stage.die(await stage.member(3))
        one.tree.hear()
        await until(lambda: held.controller.image.brokers[2].rack == "r")
        assert held.controller.image.shutting_down == {2}
        assert only(held).leader == 1

    stage.run(story())


# --- requests of brokers and administrators


def test_concurrent_isr_requests_are_stored_together() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1, 2, 3), (2, 1, 3), (3, 1, 2))])
        writes = len(one.tree.writes)
        gate = asyncio.Event()

        async def wait(_: int) -> None:
            await gate.wait()

        one.tree.before_write = wait
        first = asyncio.create_task(held.controller.create_topics([given("u", (1, 2, 3))]))
        await until(lambda: len(one.tree.writes) > writes)
        wanted = [asks_isr(held, isr, "t", index) for index, isr in enumerate([(1, 2), (2, 1), (3, 1)])]
        stale = replace(wanted[0], leader_epoch=-1)
        asked = [asyncio.create_task(held.controller.alter_isrs([each, stale])) for each in wanted]
        gone = asyncio.create_task(held.controller.alter_isrs([wanted[0]]))
        await asyncio.sleep(0.1)
        gone.cancel()
        gate.set()
        await first
        answers = await asyncio.gather(*asked)
        assert len(one.tree.writes) == writes + 2
        for index, [answer, failed] in enumerate(answers):
            assert answer == held.controller.image.topics["t"].partitions[index]
            assert failed is ErrorCode.FENCED_LEADER_EPOCH
        isrs = [set(partition.isr) for partition in held.controller.image.topics["t"].partitions]
        assert isrs == [{1, 2}, {2, 1}, {3, 1}]
        await stage.in_step(held)

    stage.run(story())


def test_isr_requests_that_could_not_be_stored_all_fail() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1, 2, 3))])

        async def gone(_: int) -> None:
            raise ConnectionLost("before it was sent")

        one.tree.before_write = gone
        request = asks_isr(held, (1, 2))
        answers = await asyncio.gather(
            *(held.controller.alter_isrs([request]) for _ in range(2)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [MetadataUnavailable, MetadataUnavailable]
        one.tree.before_write = None
        assert await held.controller.alter_isrs([request]) == [only(held)]

    stage.run(story())


def test_move_is_done_when_the_new_replica_is_in_sync_and_can_be_taken_back_before() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3, 4)
        held = await stage.controller(one)
        controller = held.controller
        await controller.create_topics([given("t", (1, 2, 3), (1, 2, 3))])
        outcomes = await controller.reassign({("t", 0): (2, 3, 4), ("t", 1): (4, 2, 3), ("no", 0): (1,)})
        assert [outcome is None for outcome in outcomes.values()] == [True, True, False]
        assert [(move.partition, move.behind) for move in controller.reassignments()] == [(0, (4,)), (1, (4,))]
        assert [move.partition for move in controller.reassignments([("t", 1)])] == [1]
        assert await controller.reassign({("t", 1): None}) == {("t", 1): None}
        assert set(controller.image.topics["t"].partitions[1].replicas) == {1, 2, 3}
        [answer] = await controller.alter_isrs([asks_isr(held, (2, 3, 4, 1))])
        assert isinstance(answer, PartitionImage)
        await until(lambda: not controller.reassignments())
        assert (only(held).replicas, only(held).leader, set(only(held).isr)) == ((2, 3, 4), 2, {2, 3, 4})
        await stage.in_step(held)

    stage.run(story())


def test_move_that_another_controller_began_is_ended_by_the_next() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, *_ = await stage.members(1, 2, 3, 4)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 3))])
        await held.controller.reassign({("t", 0): (2, 4)})
        writes = len(one.tree.writes)

        async def dies(number: int) -> None:
            if number > writes:
                stage.die(one)
                raise SessionExpired("the process has ended")

        one.tree.before_write = dies
        await held.controller.alter_isrs([asks_isr(held, (2, 3, 4))])
        await until(lambda: held.lost)
        second = await stage.controller(two)
        assert (only(second).replicas, only(second).adding, only(second).isr) == ((2, 4), (), (2, 4))
        await stage.in_step(second)

    stage.run(story())


def test_controlled_shutdown_moves_leaders_and_returns_what_remains() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, three = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics(
            [given("t", (3, 2, 1)), given("tight", (3, 2), min_insync_replicas="2"), given("lone", (3,))]
        )
        assert await held.controller.shut_down(3, three.epoch) == (("tight", 0),)
        assert (only(held).leader, only(held).isr) == (2, (2, 1))
        assert held.images[-1].shutting_down == {3}
        assert await held.controller.alter_isrs([asks_isr(held, (3, 2, 1))]) == [ErrorCode.INELIGIBLE_REPLICA]
        assert await held.controller.shut_down(3, three.epoch, force=True) == ()
        with pytest.raises(StaleBrokerEpoch):
            await held.controller.shut_down(2, two.epoch - 1)
        stage.die(three)
        await until(lambda: 3 not in held.controller.image.brokers)
        assert held.controller.image.shutting_down == frozenset()
        await stage.in_step(held)

    stage.run(story())


def test_preferred_leaders_are_elected_on_request_or_by_balancing() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, _ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 3), (2, 3), (1, 3))])
        stage.die(two)
        await until(lambda: only(held).leader == 3)
        outcomes = await held.controller.elect_leaders(ElectionKind.PREFERRED)
        assert {key: type(each) for key, each in outcomes.items()} == {
            ("t", 0): PreferredLeaderNotAvailable,
            ("t", 1): PreferredLeaderNotAvailable,
        }
        await stage.member(2)
        await until(lambda: 2 in held.controller.image.brokers)
        assert await held.controller.balance_leaders() == 0
        await held.controller.alter_isrs([asks_isr(held, (2, 3), "t", index) for index in (0, 1)])
        assert await held.controller.elect_leaders(ElectionKind.PREFERRED, [("t", 1)]) == {("t", 1): None}
        outcomes = await held.controller.elect_leaders(ElectionKind.PREFERRED, [("t", 1)])
        assert isinstance(outcomes["t", 1], ElectionNotNeeded)
        assert await held.controller.balance_leaders(imbalance_percent=50) == 0
        assert await held.controller.balance_leaders() == 1
        assert [each.leader for each in held.controller.image.topics["t"].partitions] == [2, 2, 1]
        assert await held.controller.elect_leaders(ElectionKind.UNCLEAN) == {}
        await stage.in_step(held)

    stage.run(story())


def test_lower_minimum_empties_the_elr_in_the_same_write() -> None:
    stage = Stage()

    async def story() -> None:
        one, _, three = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1, 2, 3), min_insync_replicas="3")])
        stage.die(three)
        await until(lambda: only(held).isr == (1, 2))
        assert only(held).elr == (3,)
        writes = len(one.tree.writes)
        edit = ConfigEdit("min.insync.replicas", EditKind.SET, "2")
        [outcome] = await held.controller.alter_configs([ConfigChange(ResourceKind.TOPIC, "t", [edit])])
        assert outcome.error is None
        assert only(held).elr == ()
        assert len(one.tree.writes) == writes + 1
        # The setting for all brokers counts for a topic without its own.
        await held.controller.alter_configs([ConfigChange(ResourceKind.BROKER, "", [edit])])
        await held.controller.alter_configs([ConfigChange(ResourceKind.TOPIC, "t", replacement={})])
        [failed] = await held.controller.alter_configs([ConfigChange(ResourceKind.TOPIC, "no", [edit])])
        assert failed.error is not None
        await stage.in_step(held)

    stage.run(story())


def test_unclean_leader_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()

    async def story() -> None:
        one, two, three = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 3))])
        stage.die(three)
        await until(lambda: only(held).isr == (2,))
        stage.die(two)
        await until(lambda: only(held).leader == -1)
        await stage.member(3)
        await until(lambda: 3 in held.controller.image.brokers)
        assert only(held).leader == -1
        assert await held.controller.elect_leaders(ElectionKind.UNCLEAN) == {("t", 0): None}
        assert (only(held).leader, only(held).isr) == (3, (3,))
        assert "unclean leader election: partition=t-0 leader=" in caplog.text

    stage.run(story())


# --- the end of topics


def test_topic_ends_when_the_last_of_its_brokers_has_removed_it_through_a_change_of_controllers() -> None:
    stage = Stage()

    def report(held: Held, broker_id: int, topic_id: bytes) -> None:
        held.controller.report_removed(broker_id, "t", topic_id)

    async def story() -> None:
        one, two, three = await stage.members(1, 2, 3)
        first = await stage.controller(one)
        [made] = await first.controller.create_topics([given("t", (2, 3), (3, 2))])
        assert made.topic is not None
        topic_id = made.topic.topic_id
        stage.die(three)
        [gone] = await first.controller.delete_topics([topic_id])
        assert gone.topic is not None
        assert first.images[-1].deleting == {"t"}
        [again] = await first.controller.create_topics([given("t", (1,))])
        assert again.error is not None
        report(first, 2, topic_id)
        stage.die(one)
        second = await stage.controller(two)
        assert second.images[-1].deleting == {"t"}
        await stage.member(3)
        await until(lambda: 3 in second.controller.image.brokers)
        report(second, 3, topic_id)
        await asyncio.sleep(1)
        assert set(second.controller.image.topics) == {"t"}
        report(second, 2, bytes(16))
        report(second, 2, topic_id)
        await until(lambda: not second.controller.image.topics)
        assert await two.tree.children(layout.DELETE_TOPICS) == []
        assert await two.tree.children(layout.TOPICS) == []
        [again] = await second.controller.create_topics([given("t", (2,))])
        assert again.error is None
        await stage.in_step(second)

    stage.run(story())


def test_new_partitions_go_to_the_least_loaded_brokers() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", *[(1,)] * 4)])
        [grown] = await held.controller.create_partitions([NewPartitions("t", 12)])
        assert grown.topic is not None
        load = [sum(each.replicas[0] == broker for each in grown.topic.partitions) for broker in (1, 2, 3)]
        assert load == [4, 4, 4]
        [supposed] = await held.controller.create_partitions([NewPartitions("t", 13)], validate_only=True)
        assert supposed.error is None
        await stage.in_step(held)

    stage.run(story())


MANY = 50_000


@pytest.mark.parametrize(
    "ask",
    [
        lambda controller: controller.elect_leaders(ElectionKind.PREFERRED, [("no", index) for index in range(MANY)]),
        lambda controller: controller.reassign({("no", index): (1,) for index in range(MANY)}),
        lambda controller: controller.delete_topics([f"no-{number}" for number in range(MANY)]),
        lambda controller: controller.create_partitions([NewPartitions(f"no-{number}", 2) for number in range(MANY)]),
        lambda controller: controller.create_topics([NewTopic(f"/{number}") for number in range(MANY)]),
        lambda controller: controller.alter_configs(
            [ConfigChange(ResourceKind.TOPIC, f"no-{number}", replacement={}) for number in range(MANY)]
        ),
    ],
    ids=["elect", "reassign", "delete", "grow", "create", "settings"],
)
def test_a_request_for_very_much_that_cannot_be_changed_lets_others_run(ask: Callable[[Controller], Any]) -> None:
    stage = Stage()

    async def story() -> None:
        one, _ = await stage.members(1, 2)
        held = await stage.controller(one)
        before = stage.scheduler.callbacks
        assert len(await ask(held.controller)) == MANY
        # It takes a few dozen by itself.
        assert stage.scheduler.callbacks - before >= MANY // 500

    stage.run(story())


def test_moves_and_elections_of_more_partitions_than_one_decision_takes_are_all_made() -> None:
    stage = Stage()
    wanted = [("t", index) for index in range(600)]

    async def story() -> None:
        one, two = await stage.members(1, 2)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", *[(1,)] * len(wanted))])
        assert set((await held.controller.reassign(dict.fromkeys(wanted, (2, 1)))).values()) == {None}
        assert len(held.controller.reassignments()) == len(wanted)
        joined = [asks_isr(held, (1, 2), "t", index) for _, index in wanted]
        await held.controller.alter_isrs(joined)
        await until(lambda: not held.controller.reassignments())
        assert await held.controller.elect_leaders(ElectionKind.PREFERRED) == dict.fromkeys(wanted)
        assert {each.leader for each in held.controller.image.topics["t"].partitions} == {2}
        await stage.in_step(held)
        await two.tree.close()

    stage.run(story())


def test_users_beyond_one_transaction_are_changed_in_groups_and_each_error_is_its_own() -> None:
    stage = Stage()
    count = 2 * GROUPED_OPERATIONS + 1
    missing = ResourceNotFound("it has none")
    changes = [
        EntityChange(Entity(user=f"user-{number}"), {"producer_byte_rate": "1"})
        if number % 100
        else EntityChange(Entity(user=f"user-{number}"), {"a": None}, frozenset({"a"}), missing)
        for number in range(count)
    ]

    async def story() -> None:
        one, _ = await stage.members(1, 2)
        held = await stage.controller(one)
        errors = await held.controller.alter_entities(changes)
        assert [number for number, error in enumerate(errors) if error is missing] == list(range(0, count, 100))
        assert sum(error is None for error in errors) == len(held.controller.image.users)
        stored = len(one.tree.writes)
        changed = [change for change in changes if change.error is None]
        one.tree.before_write = lambda number: _fail(number == stored + 1)
        errors = await held.controller.alter_entities(changed)
        assert [error is None for error in errors] == [True] * GROUPED_OPERATIONS + [False] * (
            len(changed) - GROUPED_OPERATIONS
        )

    stage.run(story())


async def _fail(is_due: bool) -> None:
    if is_due:
        raise TreeBusy(1)
