"""Every call of `Admin`, and of `AsyncAdmin` behind it, against any broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.client.contract.contract import (
    BEGIN_MS,
    Capabilities,
    MakeTopic,
    Worker,
    fill,
    fill_all,
    new_group,
    new_name,
    partitions_of,
    reader,
    take,
    texts,
)
from tests.timeouts import until

from penstock import Admin, AsyncAdmin, ConfigResource, OffsetAndMetadata, TopicSpec, errors
from penstock.client.admin.results import OffsetResult

FIXTURES = ("caretaker",)


@pytest.fixture
def caretaker(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as admin:
        yield admin


def test_a_topic_is_made_described_grown_and_deleted(caretaker: Admin, capabilities: Capabilities) -> None:
    capabilities.need("administers")
    name = new_name("made")
    spec = TopicSpec(name, partitions=3, replication_factor=1, config={"retention.ms": 123_456})
    caretaker.create_topic(spec, validate_only=True)
    assert name not in caretaker.list_topics()
    made = caretaker.create_topic(spec)
    assert (made.name, made.partitions, made.replication_factor, made.existed) == (name, 3, 1, False)
    assert caretaker.create_topic(spec, exist_ok=True).existed
    with pytest.raises(errors.TopicExists):
        caretaker.create_topic(spec)
    until(lambda: name in caretaker.list_topics(), "it is listed")
    described = caretaker.describe_topic(name)
    assert described.topic_id == made.topic_id
    assert described.replication_factor == 1
    assert [part.index for part in described.partitions] == [0, 1, 2]
    assert all(part.leader is not None and part.isr == part.replicas for part in described.partitions)
    caretaker.create_partitions(name, 5)
    until(lambda: len(caretaker.describe_topic(name).partitions) == 5, "it has grown")
    with pytest.raises(errors.PenstockError):
        caretaker.create_partitions(name, 2)
    caretaker.delete_topic(name)
    until(lambda: name not in caretaker.list_topics(), "it is gone")
    caretaker.delete_topic(name, missing_ok=True)
    with pytest.raises(errors.UnknownTopic):
        caretaker.delete_topic(name)
    with pytest.raises(errors.UnknownTopic):
        caretaker.describe_topic(name)


def test_of_many_topics_each_has_its_own_answer(caretaker: Admin, capabilities: Capabilities) -> None:
    capabilities.need("administers")
    good, default = new_name("good"), new_name("default")
    found = caretaker.create_topics([TopicSpec(good, 2), default, TopicSpec("no good/name")])
    assert isinstance(found["no good/name"], errors.InvalidTopic)
    assert not isinstance(found[good], errors.PenstockError)
    assert not isinstance(found[default], errors.PenstockError)
    rejected = caretaker.create_topics([TopicSpec(new_name("t"), 1, config={"no.such.setting": "1"})])
    assert all(isinstance(error, errors.InvalidSetting) for error in rejected.values())
    until(lambda: {good, default} <= {*caretaker.list_topics()}, "they are listed")
    described = caretaker.describe_topics([good, "missing-topic"])
    assert not isinstance(described[good], errors.PenstockError)
    assert isinstance(described["missing-topic"], errors.UnknownTopic)
    gone = caretaker.delete_topics([good, "missing-topic"])
    assert gone[good] is None
    assert isinstance(gone["missing-topic"], errors.UnknownTopic)


def test_topics_are_listed_by_any_broker(caretaker: Admin, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    assert topic in caretaker.list_topics()
    assert "__consumer_offsets" not in caretaker.list_topics()
    assert [part.index for part in caretaker.describe_topic(topic).partitions] == [0, 1, 2]
    everything = caretaker.describe_topics()
    assert topic in everything
    with pytest.raises(errors.UnknownTopic):
        caretaker.describe_topic(new_name("missing"))


def test_settings_of_a_topic_are_changed_and_given_back(
    caretaker: Admin, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    capabilities.need("administers")
    topic = ConfigResource.topic(make_topic(config={"retention.ms": "5000000"}))
    before = caretaker.describe_config(topic)
    assert (before["retention.ms"].value, before["retention.ms"].source) == ("5000000", "topic")
    assert before["cleanup.policy"].is_default
    caretaker.alter_config(topic, {"cleanup.policy": "compact", "retention.ms": None}, validate_only=True)
    assert caretaker.describe_config(topic) == before
    caretaker.alter_config(topic, {"cleanup.policy": "compact", "retention.ms": None})
    until(lambda: caretaker.describe_config(topic)["cleanup.policy"].value == "compact", "it is changed")
    assert caretaker.describe_config(topic)["retention.ms"].is_default
    with pytest.raises(errors.InvalidSetting):
        caretaker.alter_config(topic, {"cleanup.policy": "nonsense"})
    missing = ConfigResource.topic("missing-topic")
    many = caretaker.describe_configs([topic, missing])
    assert not isinstance(many[topic], errors.PenstockError)
    assert isinstance(many[missing], errors.UnknownTopic)
    altered = caretaker.alter_configs({topic: {"retention.ms": 77}, missing: {"retention.ms": 77}})
    assert altered[topic] is None
    assert isinstance(altered[missing], errors.PenstockError)


def test_settings_of_a_broker_are_shown_and_changed(caretaker: Admin, capabilities: Capabilities) -> None:
    capabilities.need("administers")
    (node,) = caretaker.describe_cluster().nodes
    broker = ConfigResource.broker(node.id)
    found = caretaker.describe_config(broker)
    assert found["log.dirs"].is_read_only
    caretaker.alter_config(broker, {"log.cleaner.backoff.ms": 12_345})
    until(lambda: caretaker.describe_config(broker)["log.cleaner.backoff.ms"].value == "12345", "it is changed")
    assert caretaker.describe_config(broker)["log.cleaner.backoff.ms"].source == "dynamic broker"
    caretaker.alter_config(broker, {"log.cleaner.backoff.ms": None})
    until(lambda: caretaker.describe_config(broker)["log.cleaner.backoff.ms"].value != "12345", "it is given back")


def test_the_cluster_describes_itself(caretaker: Admin, bootstrap: str, capabilities: Capabilities) -> None:
    found = caretaker.describe_cluster()
    (node,) = found.nodes
    assert f"{node.host}:{node.port}" == bootstrap
    if capabilities.administers:
        assert found.cluster_id
        assert found.controller == node


def test_folders_report_what_they_hold(
    caretaker: Admin, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    capabilities.need("administers")
    topic = make_topic()
    fill(bootstrap, topic, [b"x" * 10_000])
    (folders,) = caretaker.describe_log_dirs().values()
    assert not isinstance(folders, errors.PenstockError)
    (folder,) = folders
    assert folder.error is None
    assert folder.total_bytes > folder.usable_bytes > 0
    assert folder.sizes[partitions_of(topic, 1)[0]] > 10_000


def test_offsets_are_listed_at_the_ends_and_by_time(
    caretaker: Admin, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    fill(bootstrap, topic, texts(10))

    def offset(spec: Any, **options: Any) -> int:
        found = caretaker.list_offsets({(topic, 0): spec}, **options)[partitions_of(topic, 1)[0]]
        assert isinstance(found, OffsetResult)
        return found.offset

    assert (offset("earliest"), offset("latest")) == (0, 10)
    missing = caretaker.list_offsets({(topic, 1): "latest", (topic, 9): "latest"}, timeout_ms=2_000)
    assert [isinstance(found, errors.PenstockError) for found in missing.values()] == [False, True]
    if capabilities.batches:
        assert offset(BEGIN_MS + 4) == 4
        assert offset(datetime.fromtimestamp((BEGIN_MS + 5) / 1000, UTC)) == 5
        assert offset(BEGIN_MS + 100) == -1
        assert offset("max_timestamp") == 9
        assert offset("latest", isolation_level="read_committed") == 10
    else:
        rejected = caretaker.list_offsets({(topic, 0): BEGIN_MS})[partitions_of(topic, 1)[0]]
        assert isinstance(rejected, errors.UnsupportedVersion), "the start of a segment is not the answer"


def test_records_are_deleted_up_to_an_offset(
    caretaker: Admin, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    capabilities.need("administers")
    topic = make_topic(2)
    fill_all(bootstrap, topic, 2, 10)
    assert caretaker.delete_records({(topic, 0): 4, (topic, 1): -1}) == {(topic, 0): 4, (topic, 1): 10}
    with reader(bootstrap, topic) as consumer:
        assert [record.offset for record in take(consumer, 6)] == list(range(4, 10))


def test_a_group_is_seen_moved_and_forgotten(
    caretaker: Admin, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    topic, group = make_topic(2), new_group()
    fill_all(bootstrap, topic, 2, 10)
    zero, one = partitions_of(topic, 2)
    with Worker(bootstrap, topic, group, client_id="watched", group_instance_id=None) as member:
        until(lambda: len(member.seen) == 20, "everything is read")
        member.consumer.commit({zero: OffsetAndMetadata(10), one: OffsetAndMetadata(7)})
        described = caretaker.describe_group(group)
        assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
        (seen,) = described.members
        assert (seen.client_id, seen.topics, set(seen.assignment)) == ("watched", (topic,), {zero, one})
        assert {lag.partition: lag.lag_records for lag in described.partitions} == {zero: 0, one: 3}
        assert group in [listed.group_id for listed in caretaker.list_groups()]
        if capabilities.administers:
            assert group in [listed.group_id for listed in caretaker.list_groups(states=["Stable"])]
            assert group not in [listed.group_id for listed in caretaker.list_groups(states=["Empty"])]
            with pytest.raises(errors.GroupNotEmpty):
                caretaker.delete_group(group)
        rejected = caretaker.set_group_offsets(group, {zero: 1})
        assert isinstance(rejected[zero], errors.PenstockError)
    assert caretaker.set_group_offsets(group, {zero: 2, one: OffsetAndMetadata(3, metadata="m")}) == {
        zero: None,
        one: None,
    }
    offsets = caretaker.group_offsets(group)
    assert {each: found.offset for each, found in offsets.items()} == {zero: 2, one: 3}
    assert caretaker.group_offsets(group, [one])[one].metadata == "m"
    empty = caretaker.describe_group(group)
    assert (empty.members, empty.lag_records) == ((), 15)
    if capabilities.batches:
        assert empty.lag_seconds is not None
    if capabilities.administers:
        assert caretaker.delete_group_offsets(group, [one]) == {one: None}
        assert set(caretaker.group_offsets(group)) == {zero}
        assert caretaker.delete_groups([group, "missing-group"])[group] is None
        with pytest.raises(errors.UnknownGroup):
            caretaker.describe_group(group)
        with pytest.raises(errors.UnknownGroup):
            caretaker.delete_group(group)


def test_a_group_that_never_was_is_unknown(caretaker: Admin) -> None:
    group = new_group()
    with pytest.raises(errors.UnknownGroup):
        caretaker.describe_group(group)
    assert caretaker.group_offsets(group) == {}
    many = caretaker.describe_groups([group])
    assert isinstance(many[group], errors.UnknownGroup)


_ONLY_NEWER: dict[str, Callable[[Admin], object]] = {
    "create_topic": lambda admin: admin.create_topic("t"),
    "delete_topic": lambda admin: admin.delete_topic("t"),
    "create_partitions": lambda admin: admin.create_partitions("t", 3),
    "describe_config": lambda admin: admin.describe_config(ConfigResource.topic("t")),
    "alter_config": lambda admin: admin.alter_config(ConfigResource.topic("t"), {"retention.ms": 1}),
    "delete_group": lambda admin: admin.delete_group("g"),
}


@pytest.mark.parametrize("call", _ONLY_NEWER)
def test_what_a_broker_is_too_old_for_is_reported_at_once(
    caretaker: Admin, capabilities: Capabilities, call: str
) -> None:
    if capabilities.administers:
        pytest.skip(f"{capabilities.name} is not")
    with pytest.raises(errors.UnsupportedVersion, match="cannot be used with"):
        _ONLY_NEWER[call](caretaker)


def test_the_async_twin_says_the_same(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(2)

    async def story() -> tuple[bool, int]:
        async with AsyncAdmin(bootstrap) as admin:
            listed, described = await asyncio.gather(admin.list_topics(), admin.describe_topic(topic))
            return topic in listed, len(described.partitions)

    assert asyncio.run(story()) == (True, 2)
