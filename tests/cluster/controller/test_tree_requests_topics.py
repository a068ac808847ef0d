"""Topics that tools create, grow and delete by writing into the tree, as Kafka 0.9 and 3 write it."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from tests.cluster.controller.controller_stories import (
    Held,
    Stage,
    asks_isr,
    ends_session,
    given,
    only,
    until,
)

from penstock.cluster.controller.tree_requests import follow_document, is_stored, with_topic_ids
from penstock.cluster.image import NO_ID, ClusterImage, PartitionImage, TopicImage
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import PartitionAssignment, TopicAssignment, decode_topic, encode_topic
from penstock.cluster.tree.tree import Node, Set, Tree, find

OLD_ID, OTHER_ID = b"i" * 16, b"o" * 16


def old_document(*replicas: tuple[int, ...]) -> bytes:
    """As TopicCommand of Kafka 0.9 writes it."""
    return json.dumps({"version": 1, "partitions": {str(n): each for n, each in enumerate(replicas)}}).encode()


async def write_topic(tree: Tree, name: str, *replicas: tuple[int, ...], **settings: str) -> None:
    """Create a topic as Kafka 0.9 does: first its settings, then its document."""
    config = {"version": 1, "config": {key.replace("_", "."): value for key, value in settings.items()}}
    await tree.create(layout.topic_config_path(name), json.dumps(config).encode())
    await tree.create(layout.topic_path(name), old_document(*replicas))


async def until_gone(tree: Tree, path: str) -> None:
    while await find(tree, path) is not None:
        await asyncio.sleep(0.01)


async def settled(stage: Stage, held: Held) -> None:
    """No task of the controller is due, and the tree holds what it says."""
    await until(lambda: held.controller._tasks_runner is None)
    await stage.in_step(held)


# --- decisions


def topic(*partitions: PartitionImage, topic_id: bytes = OLD_ID) -> TopicImage:
    return TopicImage("t", topic_id, partitions)


LED = PartitionImage((1, 2), leader=1, isr=(1, 2), state_version=3)
NEW = PartitionImage((2, 3))


@pytest.mark.parametrize(
    ("found", "partitions"),
    [
        (None, (LED,)),
        (TopicAssignment(None, ()), (LED,)),
        (TopicAssignment(None, (PartitionAssignment((1, 2)),)), (LED,)),
        (TopicAssignment(None, (PartitionAssignment((3, 4)),)), (LED,)),
        (TopicAssignment(None, (PartitionAssignment((1, 2)), PartitionAssignment((2, 3)))), (LED, NEW)),
        (TopicAssignment(OLD_ID, (PartitionAssignment((9,)), PartitionAssignment((2, 3)))), (LED, NEW)),
    ],
)
def test_document_only_adds_partitions(found: TopicAssignment | None, partitions: tuple[PartitionImage, ...]) -> None:
    assert follow_document(topic(LED), found) == topic(*partitions)


def test_own_documents_are_recognized() -> None:
    moving = PartitionImage((2, 3, 1), leader=1, isr=(1,), adding=(2, 3), removing=(1,), state_version=0)
    known = topic(LED, moving)
    written = decode_topic("t", encode_topic(OLD_ID, [each.assignment for each in known.partitions]))
    assert is_stored(known, written)
    assert not is_stored(known, None)
    assert not is_stored(known, written._replace(topic_id=None))
    assert not is_stored(known, written._replace(topic_id=OTHER_ID))
    assert not is_stored(known, decode_topic("t", old_document((1, 2), (2, 3, 1))))
    assert is_stored(topic(LED, topic_id=NO_ID), decode_topic("t", old_document((1, 2))))


def test_only_topics_without_a_leader_get_an_id() -> None:
    image = ClusterImage().with_topics(
        [TopicImage("led", NO_ID, (LED,)), TopicImage("new", NO_ID, (NEW,)), TopicImage("known", OTHER_ID, (NEW,))]
    )
    nodes = {name: Node(old_document(each.partitions[0].replicas), 4, 0) for name, each in image.topics.items()}
    decision = with_topic_ids(image, nodes, lambda: OLD_ID)
    assert decision.operations == (Set(layout.topic_path("new"), encode_topic(OLD_ID, [NEW.assignment]), 4),)
    ids = {name: each.topic_id for name, each in decision.image.topics.items()}
    assert ids == {"led": NO_ID, "new": OLD_ID, "known": OTHER_ID}
    assert with_topic_ids(decision.image, nodes, lambda: OTHER_ID).operations == ()
    # A document that was changed meanwhile has to be read again.
    changed = {"new": Node(old_document((2, 3), (1,)), 5, 0)}
    assert with_topic_ids(image, changed, lambda: OLD_ID) == ((), image, ())


# --- stories


def test_topic_written_by_a_tool_gets_leaders_settings_and_an_id() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        tool = await stage.session()
        await write_topic(tool, "t", (2, 3), (3, 1), min_insync_replicas="2")
        await until(lambda: "t" in held.controller.image.topics)
        image = held.controller.image
        assert [(each.leader, each.isr) for each in image.topics["t"].partitions] == [(2, (2, 3)), (3, (3, 1))]
        assert image.topic_config("t") == {"min.insync.replicas": "2"}
        assert image.topics["t"].topic_id != NO_ID
        await settled(stage, held)
        assert decode_topic("t", (await tool.get(layout.topic_path("t"))).data).topic_id == image.topics["t"].topic_id
        # Its own answer to the watch changes nothing more.
        assert await held.controller.reassign({("t", 0): (2, 1)}) == {("t", 0): None}
        await settled(stage, held)

    stage.run(story())


def test_own_changes_are_not_treated_as_those_of_a_tool() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1, 2)), given("u", (2, 3))])
        await settled(stage, held)
        writes = len(one.tree.writes)
        await held.controller.reassign({("t", 0): (2, 1)})
        await settled(stage, held)
        await held.controller.delete_topics(["u"])
        await settled(stage, held)
        assert len(one.tree.writes) == writes + 2

    stage.run(story())


def test_replicas_on_missing_brokers_wait_for_them() -> None:
    stage = Stage()

    async def story() -> None:
        one, _ = await stage.members(1, 2)
        held = await stage.controller(one)
        tool = await stage.session()
        await write_topic(tool, "t", (7, 2), (7,))
        await until(lambda: "t" in held.controller.image.topics)
        first, second = held.controller.image.topics["t"].partitions
        assert (first.leader, first.isr, second.leader) == (2, (2,), layout.NO_LEADER)
        await stage.member(7)
        await until(lambda: held.controller.image.topics["t"].partitions[1].leader == 7)
        await settled(stage, held)

    stage.run(story())


@pytest.mark.parametrize("is_moving", [False, True])
def test_partitions_added_by_a_tool_are_led_and_the_document_is_completed(is_moving: bool) -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1, 2))])
        topic_id = held.controller.image.topics["t"].topic_id
        if is_moving:
            await held.controller.reassign({("t", 0): (3, 2)})
        before = only(held)
        await settled(stage, held)
        tool = await stage.session()
        await tool.set(layout.topic_path("t"), old_document((1, 2), (2, 3), (3, 1)))
        await until(lambda: len(held.controller.image.topics["t"].partitions) == 3)
        assert [each.leader for each in held.controller.image.topics["t"].partitions] == [1, 2, 3]
        assert only(held) == before
        await settled(stage, held)
        assert decode_topic("t", (await tool.get(layout.topic_path("t"))).data).topic_id == topic_id
        # The node is still watched.
        await tool.set(layout.topic_path("t"), old_document((1, 2), (2, 3), (3, 1), (1,)))
        await until(lambda: len(held.controller.image.topics["t"].partitions) == 4)
        await settled(stage, held)

    stage.run(story())


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{",
        b"\xff",
        old_document(),
        old_document((3, 2)),
        old_document((1, 1)),
        b'{"version":1,"partitions":{"1":[1]}}',
    ],
)
def test_document_that_cannot_be_followed_is_restored(document: bytes, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1, 2))])
        await settled(stage, held)
        tool = await stage.session()
        written = (await tool.get(layout.topic_path("t"))).data
        await tool.set(layout.topic_path("t"), document)
        while (await tool.get(layout.topic_path("t"))).data != written:
            await asyncio.sleep(0.01)
        assert "document of a topic was changed, restoring it: topic=t" in caplog.text
        await settled(stage, held)

    stage.run(story())


@pytest.mark.parametrize(
    ("name", "document"),
    [("t", b"{"), ("t", old_document((1, 1))), ("a b", old_document((1,))), ("x" * 300, old_document((1,)))],
)
def test_node_that_is_not_a_topic_is_ignored_also_by_the_next_controller(
    name: str, document: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()

    async def story() -> None:
        one, two = await stage.members(1, 2)
        held = await stage.controller(one)
        tool = await stage.session()
        await tool.create(layout.topic_path(name), document)
        await until(lambda: "node is not a topic" in caplog.text)
        await held.controller.create_topics([given("good", (1, 2))])
        await settled(stage, held)
        stage.die(one)
        later = await stage.controller(two)
        assert set(later.controller.image.topics) == {"good"}
        # It becomes a topic when it can be understood.
        if name == "t":
            await tool.set(layout.topic_path(name), old_document((2,)))
            await until(lambda: "t" in later.controller.image.topics)
        await settled(stage, later)

    stage.run(story())


def test_deletion_marked_by_a_tool_waits_for_the_replicas() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1, 2))])
        topic_id = held.controller.image.topics["t"].topic_id
        tool = await stage.session()
        await tool.create(layout.deletion_path("t"))
        await until(lambda: "t" in held.controller.image.deleting)
        # A document that is written meanwhile adds nothing.
        await tool.set(layout.topic_path("t"), old_document((1, 2), (2, 1)))
        await until(lambda: held.controller._tasks_runner is None)
        for broker_id in (1, 2):
            held.controller.report_removed(broker_id, "t", topic_id)
        await until(lambda: "t" not in held.controller.image.topics)
        await until_gone(tool, layout.deletion_path("t"))
        await settled(stage, held)

    stage.run(story())


def test_deletion_of_what_does_not_exist_is_discarded(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()

    async def story() -> None:
        (one,) = await stage.members(1)
        held = await stage.controller(one)
        tool = await stage.session()
        await tool.create(layout.deletion_path("nothing"))
        await until_gone(tool, layout.deletion_path("nothing"))
        assert "topic not deleted: topic=nothing reason=it does not exist" in caplog.text
        await settled(stage, held)

    stage.run(story())


def test_deletion_is_discarded_where_topics_cannot_be_deleted(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()

    async def story() -> None:
        (one,) = await stage.members(1)
        held = await stage.controller(one)
        held.controller._tasks.requests._deletes_topics = False
        await held.controller.create_topics([given("t", (1,))])
        tool = await stage.session()
        await tool.create(layout.deletion_path("t"))
        await until_gone(tool, layout.deletion_path("t"))
        assert "reason=delete.topic.enable=false" in caplog.text
        assert not held.controller.image.deleting
        await settled(stage, held)

    stage.run(story())


def test_topic_created_and_marked_for_deletion_at_once() -> None:
    stage = Stage()

    async def story() -> None:
        (one,) = await stage.members(1)
        held = await stage.controller(one)
        tool = await stage.session()
        one.tree.is_deaf = True
        await write_topic(tool, "t", (1,))
        await tool.create(layout.deletion_path("t"))
        one.tree._missed.reverse()  # the deletion is heard of first
        one.tree.hear()
        await until(lambda: "t" in held.controller.image.deleting)

    stage.run(story())


def test_topic_deleted_by_hand_disappears(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()

    async def story() -> None:
        (one,) = await stage.members(1)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1,))])
        await settled(stage, held)
        tool = await stage.session()
        for path in (
            layout.partition_state_path("t", 0),
            layout.partition_path("t", 0),
            layout.partitions_path("t"),
            layout.topic_path("t"),
        ):
            await tool.delete(path)
        await until(lambda: "t" not in held.controller.image.topics)
        assert "topic node deleted by hand" in caplog.text

    stage.run(story())


def test_id_survives_a_tool_that_drops_it_and_a_new_controller() -> None:
    """To brokers a topic with another id is another topic: they would delete its records."""
    stage = Stage()

    async def story() -> None:
        one, two, _ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("asked", (2, 3))])
        tool = await stage.session()
        await write_topic(tool, "written", (2, 3))
        await until(lambda: "written" in held.controller.image.topics)
        ids = {name: topic.topic_id for name, topic in held.controller.image.topics.items()}
        stage.die(one)
        for name in ids:
            await tool.set(layout.topic_path(name), old_document((2, 3), (3, 2)))
        later = await stage.controller(two)
        await settled(stage, later)
        for image in later.images:
            assert {name: topic.topic_id for name, topic in image.topics.items()} == ids
        for name, topic_id in ids.items():
            assert decode_topic(name, (await tool.get(layout.topic_path(name))).data).topic_id == topic_id

    stage.run(story())


def test_what_was_written_while_there_was_no_controller_is_found_by_the_next() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, _ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 3)), given("gone", (2,))])
        stage.die(one)
        tool = await stage.session()
        await tool.set(layout.topic_path("t"), old_document((2, 3), (3, 2)))
        await write_topic(tool, "new", (3, 2))
        await tool.create(layout.deletion_path("gone"))
        later = await stage.controller(two)
        image = later.controller.image
        assert [each.leader for each in image.topics["t"].partitions] == [2, 3]
        assert image.topics["new"].partitions[0].leader == 3
        assert image.topics["new"].topic_id != NO_ID
        assert image.deleting == {"gone"}
        await settled(stage, later)

    stage.run(story())


@pytest.mark.parametrize("write", range(4))
def test_next_controller_continues_where_the_first_ended(write: int) -> None:
    """The controller dies before its n-th write about two topics, one new and one grown."""
    stage = Stage()

    async def story() -> None:
        one, two, _ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 3))])
        await settled(stage, held)
        tool = await stage.session()
        ends_session(stage, one.tree, len(one.tree.writes) + write)
        await tool.set(layout.topic_path("t"), old_document((2, 3), (3, 2)))
        await write_topic(tool, "new", (3, 2))
        await tool.create(layout.PREFERRED_ELECTION, b'{"version":1,"partitions":[{"topic":"t","partition":0}]}')
        await until(lambda: held.lost or held.controller._tasks_runner is None)
        if not held.lost:
            stage.die(one)
        later = await stage.controller(two)
        await settled(stage, later)
        topics = later.controller.image.topics
        assert {name: [each.leader for each in found.partitions] for name, found in topics.items()} == {
            "t": [2, 3],
            "new": [3],
        }
        assert topics["new"].topic_id != NO_ID
        assert await find(tool, layout.PREFERRED_ELECTION) is None

    stage.run(story())


def test_topic_with_thousands_of_partitions_is_adopted_in_chunks() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        tool = await stage.session()
        await write_topic(tool, "t", *[(1 + n % 3, 1 + (n + 1) % 3) for n in range(1500)], min_insync_replicas="2")
        await until(lambda: "t" in held.controller.image.topics)
        await settled(stage, held)
        assert all(each.leader > 0 for each in held.controller.image.topics["t"].partitions)
        assert sum("t" in image.topics for image in held.images) > 1
        assert all(image.topic_config("t") for image in held.images if "t" in image.topics)
        await held.controller.alter_isrs([asks_isr(held, (1,))])

    stage.run(story())


# --- settings


@pytest.mark.parametrize(
    "notification",
    [
        b'{"version":1,"entity_type":"topics","entity_name":"t"}',
        b'{"version":2,"entity_path":"topics/t"}',
        b'"t"',
    ],
)
def test_settings_changed_by_a_tool_count_and_the_notification_is_deleted(notification: bytes) -> None:
    stage = Stage()

    async def story() -> None:
        one, two, _ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 3), min_insync_replicas="2")])
        stage.die(two)
        await until(lambda: only(held).leader == 3)
        assert only(held).elr == (2,)
        tool = await stage.session()
        await change_settings(tool, b'{"version":1,"config":{"retention.ms":"1000"}}', notification)
        await until(lambda: held.controller.image.topic_config("t") == {"retention.ms": "1000"})
        # With one in-sync replica enough, the other one may lack what is committed from now on.
        assert only(held).elr == ()
        await until_gone(tool, f"{layout.CONFIG_CHANGES}/config_change_0000000000")
        await settled(stage, held)

    stage.run(story())


async def change_settings(tree: Tree, settings: bytes, notification: bytes) -> None:
    """What ConfigCommand does."""
    await tree.set(layout.topic_config_path("t"), settings)
    await tree.create(f"{layout.CONFIG_CHANGES}/config_change_0000000000", notification)


@pytest.mark.parametrize("settings", [b"{", b'{"version":1}', b'{"version":1,"config":{"a":1}}'])
def test_settings_that_cannot_be_understood_stay_as_they_were(
    settings: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()

    async def story() -> None:
        (one,) = await stage.members(1)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1,), retention_ms="5")])
        tool = await stage.session()
        await change_settings(tool, settings, b'{"version":2,"entity_path":"topics/t"}')
        await until_gone(tool, f"{layout.CONFIG_CHANGES}/config_change_0000000000")
        assert "settings not understood" in caplog.text
        assert held.controller.image.topic_config("t") == {"retention.ms": "5"}

    stage.run(story())


@pytest.mark.parametrize("notification", [b"", b"{", b"[]", b'{"version":2}', b'{"version":2,"entity_path":"x/y"}'])
def test_strange_notifications_are_deleted(notification: bytes) -> None:
    stage = Stage()

    async def story() -> None:
        (one,) = await stage.members(1)
        held = await stage.controller(one)
        tool = await stage.session()
        await tool.create(f"{layout.CONFIG_CHANGES}/config_change_0000000007", notification)
        await until_gone(tool, f"{layout.CONFIG_CHANGES}/config_change_0000000007")
        await settled(stage, held)

    stage.run(story())


def test_settings_of_brokers_and_removed_settings_are_followed() -> None:
    stage = Stage()

    async def story() -> None:
        (one,) = await stage.members(1)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1,), retention_ms="5")])
        tool = await stage.session()
        await tool.create(layout.broker_config_path("1"), b'{"version":1,"config":{"log.cleaner.threads":"2"}}')
        await tool.create(f"{layout.CONFIG_CHANGES}/config_change_1", b'{"version":2,"entity_path":"brokers/1"}')
        await until(lambda: held.controller.image.broker_config("1") == {"log.cleaner.threads": "2"})
        await tool.delete(layout.topic_config_path("t"))
        await tool.create(f"{layout.CONFIG_CHANGES}/config_change_2", b'{"version":2,"entity_path":"topics/t"}')
        await until(lambda: held.controller.image.topic_config("t") == {})
        await settled(stage, held)

    stage.run(story())


# --- at the same time


def test_document_that_changes_again_while_it_is_followed() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1, 2))])
        await settled(stage, held)
        tool = await stage.session()
        path = layout.topic_path("t")
        once = iter([old_document((1, 2), (2, 3), (3, 1))])

        async def change_again(_: int) -> None:
            for document in once:
                await tool.set(path, document)

        one.tree.before_write = change_again
        await tool.set(path, old_document((1, 2), (2, 3)))
        await until(lambda: len(held.controller.image.topics["t"].partitions) == 3)
        await settled(stage, held)

    stage.run(story())


class Operator:
    """Tools and requests at random, with controllers that die."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.random = random.Random(seed)
        self.expected: dict[str, int] = {}  # partitions by topic
        self.deleted: set[str] = set()

    async def start(self) -> None:
        self.members = await self.stage.members(1, 2, 3)
        self.tool = await self.stage.session()
        self.held = await self.stage.controller(self.members[0])

    def replicas(self) -> tuple[int, ...]:
        return tuple(self.random.sample((1, 2, 3), self.random.randint(1, 3)))

    async def act(self) -> None:
        action = self.random.choice((self.create, self.create, self.grow, self.grow, self.delete, self.ask, self.die))
        await action()
        await asyncio.sleep(self.random.choice((0, 0, 0.001, 0.02)))

    async def create(self) -> None:
        name = f"t{len(self.expected) + len(self.deleted)}"
        partitions = [self.replicas() for _ in range(self.random.randint(1, 3))]
        self.expected[name] = len(partitions)
        await write_topic(self.tool, name, *partitions)

    async def grow(self) -> None:
        """As TopicCommand does: it reads the document, adds to it and writes it."""
        if not self.expected:
            return
        name = self.random.choice(sorted(self.expected))
        known = decode_topic(name, (await self.tool.get(layout.topic_path(name))).data)
        document = old_document(*[each.replicas for each in known.partitions], self.replicas())
        await self.tool.set(layout.topic_path(name), document)
        self.expected[name] = len(known.partitions) + 1

    async def delete(self) -> None:
        if len(self.expected) > 1:
            name = self.random.choice(sorted(self.expected))
            del self.expected[name]
            self.deleted.add(name)
            await self.tool.create(layout.deletion_path(name))

    async def ask(self) -> None:
        """A request of an administrator meanwhile."""
        name = f"asked{len(self.expected) + len(self.deleted)}-{self.random.random()}"
        [outcome] = await self.held.controller.create_topics([given(name, self.replicas())])
        assert outcome.error is None
        self.expected[name] = 1

    async def die(self) -> None:
        """The controller resigns, or is replaced without knowing; its successor takes over at once."""
        if self.random.random() < 0.5:
            await self.held.controller.resign(give_up=True)
        else:
            await self.tool.delete(layout.CONTROLLER)
        self.held = await self.stage.controller(self.random.choice(self.members))

    async def finish(self) -> None:
        """Replicas of deleted topics are reported as gone until no such topic is left."""
        controller = self.held.controller
        while self.deleted & controller.image.topics.keys() or controller._tasks_runner is not None:
            for name in controller.image.deleting:
                for broker_id in (1, 2, 3):
                    controller.report_removed(broker_id, name, controller.image.topics[name].topic_id)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_tools_write_is_done_by_one_controller_or_the_next(seed: int) -> None:
    stage = Stage(seed)

    async def story() -> None:
        operator = Operator(stage, seed)
        await operator.start()
        for _ in range(30):
            await operator.act()

        def counts() -> dict[str, int]:
            topics = operator.held.controller.image.topics
            return {name: len(each.partitions) for name, each in topics.items() if name not in operator.deleted}

        await until(lambda: counts() == operator.expected)
        await operator.finish()
        topics = operator.held.controller.image
        assert counts() == operator.expected
        assert all(each.leader > 0 for topic in topics.topics.values() for each in topic.partitions)
        assert all(topic.topic_id != NO_ID for topic in topics.topics.values())
        assert await operator.tool.children(layout.DELETE_TOPICS) == []
        await stage.in_step(operator.held)

    stage.run(story())
