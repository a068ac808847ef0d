"""Controllers that crash in the middle of a change, and writes with an unknown outcome."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from tests.cluster.controller.controller_stories import Held, Member, Stage, asks_isr, ends_session, given, only, until

from penstock.cluster.controller.configs import ConfigEdit, EditKind, ResourceKind
from penstock.cluster.controller.controller import ConfigChange, NewPartitions
from penstock.cluster.controller.topics import NewTopic
from penstock.cluster.errors import ConnectionLost, LayoutError, MetadataUnavailable, NotController
from penstock.cluster.image import NO_STATE, ClusterImage
from penstock.cluster.tree import layout

PARTITIONS = 5


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cluster.controller.transaction.MAX_OPERATIONS", 3)


async def make(held: Held) -> None:
    await held.controller.create_topics([given("new", *[(2, 3, 1)] * PARTITIONS)])


async def grow(held: Held) -> None:
    await held.controller.create_partitions([NewPartitions("t", 2 * PARTITIONS, [(3, 2, 1)] * PARTITIONS)])


async def delete(held: Held) -> None:
    await held.controller.delete_topics(["t"])
    topic = held.controller.image.topics["t"]
    for broker_id in (1, 2, 3):
        held.controller.report_removed(broker_id, "t", topic.topic_id)
    await until(lambda: "t" not in held.controller.image.topics or held.lost)


async def move(held: Held) -> None:
    await held.controller.reassign({("t", index): (3, 1) for index in range(PARTITIONS)})
    requests = [asks_isr(held, (3, 1, 2), "t", index) for index in range(PARTITIONS)]
    await held.controller.alter_isrs(requests)
    await until(lambda: not held.controller.reassignments() or held.lost)


async def stop_three(held: Held) -> None:
    await held.controller.shut_down(3, held.controller.image.brokers[3].epoch, force=True)


async def lower(held: Held) -> None:
    await stop_three(held)
    edit = ConfigEdit("min.insync.replicas", EditKind.SET, "1")
    [outcome] = await held.controller.alter_configs([ConfigChange(ResourceKind.TOPIC, "t", [edit])])
    # The setting is written last: with a minimum below three no replica that left is eligible.
    image = held.images[-1]
    if image.topic_config("t")["min.insync.replicas"] == "1":
        assert all(each.elr == () for each in image.topics["t"].partitions)
    elif outcome.error is None:
        raise AssertionError("the setting was not stored")


SCENARIOS = [make, grow, delete, move, stop_three, lower]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
@pytest.mark.usefixtures("small_parts")
def test_whatever_a_controller_left_undone_the_next_one_finishes(scenario: Callable[[Held], Awaitable[None]]) -> None:
    for crash_at in range(40):
        if not _crash(scenario, crash_at):
            assert crash_at >= 2
            return
    raise AssertionError("the scenario did not end")


def _crash(scenario: Callable[[Held], Awaitable[None]], crash_at: int) -> bool:
    """Let the controller crash before its write of this number; returns whether it did."""
    stage = Stage(crash_at)

    async def story() -> bool:
        one, two, _ = await stage.members(1, 2, 3)
        first = await stage.controller(one)
        await first.controller.create_topics([given("t", *[(3, 2, 1)] * PARTITIONS, min_insync_replicas="3")])
        before = first.controller.image
        ends_session(stage, one.tree, len(one.tree.writes) + crash_at)
        with contextlib.suppress(NotController):
            await scenario(first)
        if not first.lost:
            return False
        # Nothing that was shown is taken back by the next one.
        second = await stage.controller(two)
        _holds_together(second.controller.image)
        _never_goes_back(first.images[-1], second.controller.image)
        _never_goes_back(before, second.controller.image)
        await stage.in_step(second)
        if "t" in second.controller.image.deleting:
            for broker_id in (1, 2, 3):
                second.controller.report_removed(broker_id, "t", before.topics["t"].topic_id)
            await until(lambda: "t" not in second.controller.image.topics)
            await stage.in_step(second)
        return True

    return stage.run(story())


def _holds_together(image: ClusterImage) -> None:
    for topic in image.topics.values():
        for partition in topic.partitions:
            if topic.name not in image.deleting:
                assert partition.state_version != NO_STATE
                assert partition.leader in partition.isr
                assert set(partition.isr) <= set(partition.replicas)


def _never_goes_back(earlier: ClusterImage, later: ClusterImage) -> None:
    for name, topic in earlier.topics.items():
        if name in later.topics and name not in later.deleting:
            for before, after in zip(topic.partitions, later.topics[name].partitions, strict=False):
                assert after.leader_epoch >= before.leader_epoch
                assert after.state_version >= before.state_version


@pytest.mark.usefixtures("small_parts")
def test_failover_that_was_cut_off_between_parts_is_finished_by_the_next_controller() -> None:
    for crash_at in range(3):
        stage = Stage(crash_at)

        async def story(stage: Stage = stage, crash_at: int = crash_at) -> None:
            one, two, three = await stage.members(1, 2, 3)
            first = await stage.controller(one)
            await first.controller.create_topics([given("t", *[(3, 2, 1)] * 8)])
            writes = len(one.tree.writes)
            ends_session(stage, one.tree, writes + crash_at)
            stage.die(three)
            await until(lambda: first.lost)
            assert len(one.tree.writes) == writes + crash_at + 1
            moved = [each.leader for each in first.images[-1].topics["t"].partitions]
            assert moved == [2] * 3 * crash_at + [3] * (8 - 3 * crash_at)
            # The broker that left is gone with the first chunk.
            assert (3 in first.images[-1].brokers) == (crash_at == 0)
            second = await stage.controller(two)
            partitions = second.controller.image.topics["t"].partitions
            states = {(each.leader, each.leader_epoch, each.isr) for each in partitions}
            assert states == {(2, 1, (2,))}

        stage.run(story())


@pytest.mark.usefixtures("small_parts")
def test_failover_of_which_a_part_failed_is_finished_by_the_same_controller() -> None:
    stage = Stage()

    async def story() -> None:
        one, _, three = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", *[(3, 2, 1)] * 8)])
        failing = range(len(one.tree.writes) + 1, len(one.tree.writes) + 6)

        async def before(number: int) -> None:
            if number in failing:
                raise ConnectionLost("before it was sent")

        one.tree.before_write = before
        stage.die(three)
        await until(lambda: all(each.leader == 2 for each in held.controller.image.topics["t"].partitions))
        assert all(each.isr == (2, 1) for each in held.controller.image.topics["t"].partitions)
        await stage.in_step(held)

    stage.run(story())


# --- writes with an unknown outcome


def test_change_whose_answer_was_lost_is_found_to_be_made() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        for change in (
            lambda: held.controller.create_topics([given("t", (1, 2, 3))]),
            lambda: held.controller.alter_isrs([asks_isr(held, (1, 2))]),
            lambda: held.controller.delete_topics(["t"]),
        ):
            one.tree.loses_answer_of = {len(one.tree.writes)}
            writes = len(one.tree.writes)
            [outcome] = await change()
            assert getattr(outcome, "error", None) is None
            assert len(one.tree.writes) == writes + 1
            await stage.in_step(held)
        assert held.controller.image.deleting == {"t"}

    stage.run(story())


def test_lost_write_is_repeated_or_fails_and_can_be_requested_again() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)

        async def before(number: int) -> None:
            if number in failing:
                raise ConnectionLost("before it was sent")

        first = len(one.tree.writes)
        failing = {first, first + 1}
        one.tree.before_write = before
        [made] = await held.controller.create_topics([given("s", (1, 2, 3))])
        assert made.error is None
        failing = set(range(first + 3, first + 6))
        [failed] = await held.controller.create_topics([given("t", (1, 2, 3))])
        assert isinstance(failed.error, MetadataUnavailable)
        await stage.in_step(held)
        [made] = await held.controller.create_topics([given("t", (1, 2, 3))])
        assert made.error is None
        await stage.in_step(held)

    stage.run(story())


def test_everything_is_read_again_after_a_change_by_another_session() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, _ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1, 2, 3))])
        await held.controller.shut_down(3, held.controller.image.brokers[3].epoch)
        state = await two.tree.get(layout.partition_state_path("t", 0))
        await two.tree.set(layout.partition_state_path("t", 0), state.data.replace(b'"isr":[1,2]', b'"isr":[1]'))
        await two.tree.create(layout.topic_path("old"), b'{"version":1,"partitions":{"0":[2],"1":[9]}}')
        with pytest.raises(MetadataUnavailable):
            await held.controller.alter_isrs([asks_isr(held, (1,))])
        await until(lambda: only(held).isr == (1,))
        # The same read finds a topic, elects leaders where possible, and keeps the brokers that shut down.
        await until(lambda: held.controller.image.topics["old"].partitions[0].leader == 2)
        assert held.controller.image.topics["old"].partitions[1].state_version == NO_STATE
        assert held.controller.image.shutting_down == {3}
        await stage.in_step(held)

    stage.run(story())


def test_changes_fail_until_an_unreadable_tree_can_be_read_again() -> None:
    stage = Stage()

    async def story() -> None:
        one, two = await stage.members(1, 2)
        held = await stage.controller(one)
        await two.tree.create(layout.topic_config_path("t"), b"{}")
        await two.tree.create(layout.topic_path("bad"), b"{")
        for _ in range(2):
            [failed] = await held.controller.create_topics([given("t", (1, 2))])
            assert isinstance(failed.error, MetadataUnavailable)
        await two.tree.delete(layout.topic_path("bad"))
        await two.tree.delete(layout.topic_config_path("t"))
        [made] = await held.controller.create_topics([given("t", (1, 2))])
        assert made.error is None
        await stage.in_step(held)

    stage.run(story())


def test_start_outlasts_a_connection_that_comes_and_goes_but_not_damage_nor_another_controller() -> None:
    stage = Stage()

    async def starting(member: Member) -> Held:
        held = await stage.claim(member)

        async def before(number: int) -> None:
            if number < 5:
                raise ConnectionLost("before it was sent")

        member.tree.writes.clear()
        member.tree.before_write = before
        return held

    async def story() -> None:
        one, two = await stage.members(1, 2)
        first = await starting(one)
        await first.controller.start()
        await stage.in_step(first)
        one.tree.is_deaf = True
        await two.tree.delete(layout.CONTROLLER)
        second = await starting(two)
        await one.tree.delete(layout.CONTROLLER)
        two.tree.is_deaf = True
        await stage.controller(await stage.member(3))
        with pytest.raises(NotController):
            await second.controller.start()
        assert second.images == []
        four = await stage.member(4)
        await four.tree.create(layout.topic_path("bad"), b"{")
        await four.tree.create(layout.partitions_path("bad"))  # brokers may have replicas
        await four.tree.delete(layout.CONTROLLER)
        third = await stage.claim(four)
        with pytest.raises(LayoutError):
            await third.controller.start()
        await third.controller.resign(give_up=True)
        assert not await four.tree.exists(layout.CONTROLLER)

    stage.run(story())


def test_topic_of_many_partitions_is_made_grown_and_deleted_in_parts_that_the_tree_takes() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        [made] = await held.controller.create_topics([NewTopic("t", 1200, 3)])
        assert made.topic is not None
        assert len(made.topic.partitions) == 1200
        assert all(len(write) <= 1000 + 2 for write in one.tree.writes)
        assert len(one.tree.writes) >= 3
        await stage.in_step(held)
        await held.controller.delete_topics(["t"])
        for broker_id in (1, 2, 3):
            held.controller.report_removed(broker_id, "t", made.topic.topic_id)
        await until(lambda: not held.controller.image.topics)
        assert all(len(write) <= 1000 + 2 for write in one.tree.writes)
        await stage.in_step(held)

    stage.run(story())


def test_two_runs_of_the_same_seed_write_the_same() -> None:
    def written() -> list[object]:
        stage = Stage(5)

        async def story() -> list[object]:
            one, two, three = await stage.members(1, 2, 3)
            held = await stage.controller(one)
            topics = [NewTopic(f"t{number}", 4, 3) for number in range(6)]
            asked = [asyncio.create_task(held.controller.create_topics([topic])) for topic in topics]
            await asyncio.gather(*asked)
            stage.die(two, three)
            await until(lambda: set(held.controller.image.brokers) == {1})
            await stage.member(2)
            await until(lambda: set(held.controller.image.brokers) == {1, 2})
            await held.controller.balance_leaders()
            return list(one.tree.writes)

        return stage.run(story())

    assert written() == written()
