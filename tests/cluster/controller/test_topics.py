"""Decisions about topics, settings and leaders."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.cluster.cluster_stories import Rules, broker, image_with

from penstock.cluster.controller.configs import (
    MAX_SETTINGS,
    ConfigEdit,
    EditKind,
    ResourceKind,
    edit_config,
    replace_config,
)
from penstock.cluster.controller.election import all_partitions, elect, elect_partitions
from penstock.cluster.controller.topics import (
    MAX_PARTITIONS,
    NewTopic,
    Placement,
    TopicDefaults,
    add_partitions,
    create_topic,
    delete_topic,
)
from penstock.cluster.errors import (
    ApiException,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicName,
    ReassignmentInProgress,
    TopicExists,
    UnknownTopic,
)
from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage
from penstock.cluster.tree.layout import NO_LEADER
from penstock.cluster.tree.tree import Create, Delete, Operation, Set, TreeState
from penstock.runtime.randomness import SeededRandom
from penstock.wire.protocol import ErrorCode

ID = bytes(range(16))


def create(image: ClusterImage, wanted: NewTopic, defaults: TopicDefaults = TopicDefaults()) -> ClusterImage:  # noqa: B008
    return create_topic(image, wanted, ID, Placement(SeededRandom(0)), Rules(), defaults).image


def grow(
    image: ClusterImage, name: str, total: int, assignments: Sequence[Sequence[int]] | None = None
) -> ClusterImage:
    return add_partitions(image, name, total, Placement(SeededRandom(0)), assignments).image


THREE = image_with(broker(0), broker(1), broker(2))
WITH_TOPIC = create(THREE, NewTopic("t.t", 2, 2))


@pytest.mark.parametrize(
    ("wanted", "error", "code"),
    [
        (NewTopic(""), InvalidTopicName, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a/b"), InvalidTopicName, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("t_t"), InvalidTopicName, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("t.t"), TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
        (NewTopic("n", 0, 1), InvalidPartitions, ErrorCode.INVALID_PARTITIONS),
        (NewTopic("n", -2, 1), InvalidPartitions, ErrorCode.INVALID_PARTITIONS),
        (NewTopic("n", MAX_PARTITIONS + 1, 1), InvalidPartitions, ErrorCode.INVALID_PARTITIONS),
        (NewTopic("n", 1, 0), InvalidReplicationFactor, ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("n", 1, 4), InvalidReplicationFactor, ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("n", 1, -1, {0: [0]}), InvalidRequest, ErrorCode.INVALID_REQUEST),
        (NewTopic("n", assignments={1: [0]}), InvalidReplicaAssignment, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("n", assignments={0: []}), InvalidReplicaAssignment, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("n", assignments={0: [1, 1]}), InvalidReplicaAssignment, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("n", assignments={0: [7]}), InvalidReplicaAssignment, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (
            NewTopic("n", assignments={0: [1], 1: [1, 2]}),
            InvalidReplicaAssignment,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (NewTopic("n", configs={"retention.ms": "x"}), InvalidConfig, ErrorCode.INVALID_CONFIG),
        (NewTopic("n", configs={"no.such": "x"}), InvalidConfig, ErrorCode.INVALID_CONFIG),
        (NewTopic("n", configs={"retention.ms": None}), InvalidConfig, ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_topic_is_rejected_with_code_and_reason(
    wanted: NewTopic, error: type[ApiException], code: ErrorCode
) -> None:
    with pytest.raises(error) as caught:
        create(WITH_TOPIC, wanted)
    assert caught.value.code is code
    assert len(str(caught.value)) > 10


def test_new_topic_is_led_by_its_first_replicas_with_all_in_sync() -> None:
    image = create(THREE, NewTopic("n", 6, 2, configs={"retention.ms": "5"}))
    topic = image.topics["n"]
    assert topic.topic_id == ID
    assert image.topic_config("n") == {"retention.ms": "5"}
    for partition in topic.partitions:
        assert len(partition.replicas) == 2
        assert (partition.leader, partition.isr) == (partition.replicas[0], partition.replicas)
        assert (partition.leader_epoch, partition.controller_epoch, partition.state_version) == (0, 1, 0)
    assert sorted(partition.leader for partition in topic.partitions) == [0, 0, 1, 1, 2, 2]


def test_topic_may_be_wanted_with_the_brokers_own_numbers_or_with_given_replicas() -> None:
    topic = create(THREE, NewTopic("n"), TopicDefaults(4, 3)).topics["n"]
    assert (len(topic.partitions), topic.replication_factor) == (4, 3)
    topic = create(THREE, NewTopic("n", assignments={1: [2, 0], 0: [1, 2]})).topics["n"]
    assert [partition.replicas for partition in topic.partitions] == [(1, 2), (2, 0)]


def test_operations_of_a_creation_and_a_deletion_cancel_out() -> None:
    roots = ("/brokers", "/brokers/topics", "/config", "/config/topics")
    state = TreeState()
    state.commit(state.prepare([Create(path) for path in roots], 1))
    creation = create_topic(THREE, NewTopic("n", 2, 1), ID, Placement(SeededRandom(0)), Rules())
    state.commit(state.prepare(creation.operations, 1))
    assert state.children("/brokers/topics/n/partitions") == ["0", "1"]
    node = state.node("/brokers/topics/n")
    assert node is not None
    assert json.loads(node.data)["version"] == 3
    growth = add_partitions(creation.image, "n", 3, Placement(SeededRandom(0)))
    state.commit(state.prepare(growth.operations, 1))
    node = state.node("/brokers/topics/n")
    assert node is not None
    assert sorted(json.loads(node.data)["partitions"]) == ["0", "1", "2"]
    deletion = delete_topic(growth.image, "n")
    state.commit(state.prepare(deletion.operations, 1))
    assert len(state) == 1 + len(roots)
    assert deletion.image.topics == {}


def test_settings_written_ahead_of_a_topic_are_replaced() -> None:
    image = THREE.with_topic_config("n", {"retention.ms": "1"})
    decision = create_topic(image, NewTopic("n"), ID, Placement(SeededRandom(0)), Rules())
    assert isinstance(decision.operations[0], Set)
    assert decision.image.topic_config("n") == {}


@pytest.mark.parametrize(
    ("name", "total", "assignments", "error"),
    [
        ("missing", 3, None, UnknownTopic),
        ("t.t", 2, None, InvalidPartitions),
        ("t.t", 1, None, InvalidPartitions),
        ("t.t", MAX_PARTITIONS + 1, None, InvalidPartitions),
        ("t.t", 3, [], InvalidReplicaAssignment),
        ("t.t", 3, [[0, 1], [1, 2]], InvalidReplicaAssignment),
        ("t.t", 3, [[0]], InvalidReplicaAssignment),
        ("t.t", 3, [[0, 9]], InvalidReplicaAssignment),
        ("t.t", 3, [[0, 0]], InvalidReplicaAssignment),
    ],
)
def test_invalid_partitions_are_rejected(
    name: str, total: int, assignments: list[list[int]] | None, error: type[ApiException]
) -> None:
    with pytest.raises(error):
        grow(WITH_TOPIC, name, total, assignments)


def test_partitions_are_not_added_while_others_move_nor_without_the_brokers_for_them() -> None:
    topic = WITH_TOPIC.topics["t.t"]
    moving = replace(topic, partitions=(replace(topic.partitions[0], adding=(2,)), *topic.partitions[1:]))
    with pytest.raises(ReassignmentInProgress):
        grow(WITH_TOPIC.with_topic(moving), "t.t", 3)
    with pytest.raises(InvalidReplicationFactor):
        grow(WITH_TOPIC.without_broker(0).without_broker(1), "t.t", 3)


def test_partitions_are_added_evenly_or_as_given_and_the_old_ones_stay() -> None:
    grown = grow(WITH_TOPIC, "t.t", 6).topics["t.t"]
    assert grown.partitions[:2] == WITH_TOPIC.topics["t.t"].partitions
    assert sorted(partition.leader for partition in grown.partitions) == [0, 0, 1, 1, 2, 2]
    given = grow(WITH_TOPIC, "t.t", 3, [[2, 1]]).topics["t.t"]
    assert given.partitions[2].replicas == (2, 1)


def test_broker_that_is_shutting_down_gets_new_replicas_only_if_the_others_are_too_few() -> None:
    image = THREE.with_shutting_down(1)
    made = create(image, NewTopic("n", 6, 2))
    assert {broker for partition in made.topics["n"].partitions for broker in partition.replicas} == {0, 2}
    grown = grow(made, "n", 9)
    assert {broker for partition in grown.topics["n"].partitions for broker in partition.replicas} == {0, 2}
    wide = create(image, NewTopic("n", 1, 3))
    assert set(wide.topics["n"].partitions[0].replicas) == {0, 1, 2}


def test_topic_that_is_not_there_cannot_be_deleted() -> None:
    with pytest.raises(UnknownTopic):
        delete_topic(THREE, "missing")


def test_partition_without_a_state_is_deleted_without_one() -> None:
    image = THREE.with_topic(TopicImage("old", bytes(16), (PartitionImage((0,)),)))
    assert delete_topic(image, "old").operations == (Delete("/brokers/topics/old"),)


# --- settings

TOPIC, BROKER = ResourceKind.TOPIC, ResourceKind.BROKER


class AnyName(Rules):
    """Brokers take settings that they do not know."""

    def problem(self, kind: ResourceKind, name: str, value: str) -> str | None:
        return None


def edited(image: ClusterImage, *edits: ConfigEdit, kind: ResourceKind = TOPIC, name: str = "t.t") -> ClusterImage:
    return edit_config(image, kind, name, edits, AnyName() if kind is BROKER else Rules()).image


def test_some_settings_are_changed_and_the_others_left() -> None:
    image = edited(WITH_TOPIC, ConfigEdit("retention.ms", EditKind.SET, "7"))
    image = edited(image, ConfigEdit("cleanup.policy", EditKind.APPEND, "compact, delete"))
    assert image.topic_config("t.t") == {"retention.ms": "7", "cleanup.policy": "delete,compact"}
    image = edited(image, ConfigEdit("cleanup.policy", EditKind.SUBTRACT, "delete"))
    assert image.topic_config("t.t")["cleanup.policy"] == "compact"
    image = edited(image, ConfigEdit("retention.ms", EditKind.DELETE), ConfigEdit("unset", EditKind.DELETE))
    assert image.topic_config("t.t") == {"cleanup.policy": "compact"}


@pytest.mark.parametrize("kind", [EditKind.APPEND, EditKind.SUBTRACT])
def test_long_lists_are_edited_in_the_time_it_takes_to_read_them(kind: EditKind) -> None:
    many = [f"{number}:1" for number in range(40_000)]
    image = edited(WITH_TOPIC, ConfigEdit("cleanup.policy", EditKind.SET, ",".join(many)))
    begin_s = time.process_time()
    image = edited(image, ConfigEdit("cleanup.policy", kind, ",".join([*reversed(many), "last"])))
    # Each with each would be 1.6 billion comparisons.
    assert time.process_time() - begin_s < 3
    expected = [*many, "last"] if kind is EditKind.APPEND else []
    assert image.topic_config("t.t")["cleanup.policy"] == ",".join(expected)


def test_all_settings_are_replaced() -> None:
    image = edited(WITH_TOPIC, ConfigEdit("retention.ms", EditKind.SET, "7"))
    image = replace_config(image, TOPIC, "t.t", {"cleanup.policy": "compact"}, Rules()).image
    assert image.topic_config("t.t") == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("edits", "error"),
    [
        ([ConfigEdit("retention.ms", EditKind.SET, "x")], InvalidConfig),
        ([ConfigEdit("no.such", EditKind.SET, "x")], InvalidConfig),
        ([ConfigEdit("retention.ms", EditKind.APPEND, "1")], InvalidConfig),
        ([ConfigEdit("retention.ms", EditKind.SET, None)], InvalidRequest),
        ([ConfigEdit("retention.ms", EditKind.SET, "1"), ConfigEdit("retention.ms", EditKind.DELETE)], InvalidRequest),
    ],
)
def test_invalid_settings_are_rejected(edits: list[ConfigEdit], error: type[ApiException]) -> None:
    with pytest.raises(error):
        edited(WITH_TOPIC, *edits)


def test_replacement_is_checked_too() -> None:
    with pytest.raises(InvalidConfig):
        replace_config(WITH_TOPIC, TOPIC, "t.t", {"retention.ms": "x"}, Rules())
    with pytest.raises(InvalidRequest):
        replace_config(WITH_TOPIC, TOPIC, "t.t", {"retention.ms": None}, Rules())
    with pytest.raises(UnknownTopic):
        replace_config(WITH_TOPIC, TOPIC, "missing", {}, Rules())


def test_settings_of_one_broker_and_of_all() -> None:
    setting = ConfigEdit("retention.ms", EditKind.SET, "1")
    one = edit_config(THREE, BROKER, "2", [setting], Rules())
    assert one.operations[0] == Create("/config/brokers/2", b'{"version":1,"config":{"retention.ms":"1"}}')
    assert isinstance(edit_config(one.image, BROKER, "2", [setting], Rules()).operations[0], Set)
    every = edited(THREE, setting, kind=BROKER, name="")
    assert every.broker_config("<default>") == {"retention.ms": "1"}
    with pytest.raises(InvalidRequest):
        edited(THREE, setting, kind=BROKER, name="../0")


# --- leaders


def test_leader_that_stays_stays() -> None:
    assert elect(PartitionImage((0, 1), 0, 5, (0, 1), state_version=3), {0, 1}, (), 2) is None


@pytest.mark.parametrize(
    ("partition", "live", "restarted", "expected"),
    [
        pytest.param(
            PartitionImage((0, 1, 2), 0, 5, (0, 1, 2), state_version=3), {1, 2}, (), (1, 6, (1, 2)), id="died"
        ),
        pytest.param(PartitionImage((0, 1, 2), 0, 5, (0, 2), state_version=3), {1, 2}, (), (2, 6, (2,)), id="in-sync"),
        pytest.param(PartitionImage((0,), 0, 5, (0,), state_version=3), {0}, {0}, (0, 6, (0,)), id="restarted"),
        pytest.param(PartitionImage((0, 1), 0, 5, (0,), state_version=3), {1}, (), (NO_LEADER, 6, (0,)), id="none"),
        pytest.param(PartitionImage((0, 1), -1, 6, (0,), state_version=4), {0, 1}, {0}, (0, 7, (0,)), id="returned"),
        pytest.param(PartitionImage((0, 1)), {1}, (), (1, 0, (1,)), id="first"),
    ],
)
def test_leaders_after_brokers_joined_or_left(
    partition: PartitionImage, live: set[int], restarted: set[int], expected: tuple[int, int, tuple[int, ...]]
) -> None:
    found = elect(partition, live, restarted, 9)
    assert found is not None
    assert (found.leader, found.leader_epoch, found.isr) == expected
    assert (found.controller_epoch, found.state_version) == (9, partition.state_version + 1)


@pytest.mark.parametrize("partition", [PartitionImage((0,)), PartitionImage((0,), -1, 3, (0,), state_version=1)])
def test_partition_without_a_live_replica_is_not_written(partition: PartitionImage) -> None:
    assert elect(partition, {1}, {1}, 9) is None


def test_elections_are_conditional_on_the_versions_of_the_states() -> None:
    decision = elect_partitions(WITH_TOPIC, all_partitions(WITH_TOPIC), {0, 1, 2})
    paths = [f"/brokers/topics/t.t/partitions/{index}/state" for index in (0, 1)]
    found: list[Operation] = list(decision.operations)
    assert [(type(item), item.path, getattr(item, "version", None)) for item in found] == [
        (Set, path, 0) for path in paths
    ]
    assert [partition.leader_epoch for partition in decision.image.topics["t.t"].partitions] == [1, 1]
    assert elect_partitions(decision.image, all_partitions(decision.image)).operations == ()


def test_a_resource_has_no_more_settings_than_the_limit_but_may_lose_what_it_has() -> None:
    full = {f"unknown.{number}": "1" for number in range(MAX_SETTINGS)}
    image = THREE.with_broker_config("2", full)
    more = ConfigEdit("one.more", EditKind.SET, "1")
    with pytest.raises(InvalidRequest, match=f"{MAX_SETTINGS + 1} settings of one resource are too many"):
        edited(image, more, kind=BROKER, name="2")
    with pytest.raises(InvalidRequest, match="too many"):
        replace_config(image, BROKER, "2", {**full, "one.more": "1"}, AnyName())
    # An earlier version may have stored more.
    beyond = THREE.with_broker_config("2", {**full, "one": "1", "two": "1"})
    fewer = edited(beyond, ConfigEdit("one", EditKind.DELETE), kind=BROKER, name="2")
    assert len(fewer.broker_config("2")) == MAX_SETTINGS + 1
    assert len(edited(beyond, ConfigEdit("one", EditKind.DELETE), more, kind=BROKER, name="2").broker_config("2")) == (
        MAX_SETTINGS + 2
    )
