"""Topics of the target: created, kept up to date, rejected, and recreated on either side."""

from __future__ import annotations

import pytest
from tests.mirror.mirrors import RunningMirror, create_topic, produce, same, settings_of, stored, wait_for
from tests.timeouts import until

from penstock.client.admin import Admin, ConfigResource, TopicSpec
from penstock.mirror.errors import FOREIGN, LOOP, MISSING, RECREATED
from penstock.testing.embedded_broker import EmbeddedBroker


def settings_in(address: str, topic: str) -> dict[str, str | None]:
    with Admin(address) as admin:
        return {key: entry.value for key, entry in admin.describe_config(ConfigResource.topic(topic)).items()}


def partitions_of(address: str, topic: str) -> int:
    with Admin(address) as admin:
        return len(admin.describe_topic(topic).partitions)


def test_new_topics_partitions_and_settings_are_followed(
    live: EmbeddedBroker, offline: EmbeddedBroker, name: str
) -> None:
    create_topic(live.address, f"{name}-a", 2, retention_ms="99999999", min_insync_replicas="1")
    create_topic(live.address, f"{name}-not")
    settings = settings_of(
        {"live": live.address}, offline.address, topics=f"{name}-.*", exclude_topics=".*-not", name=name
    )
    with RunningMirror(settings) as mirror, Admin(live.address) as admin:
        mirror.caught_up(2)
        assert settings_in(offline.address, f"{name}-a")["retention.ms"] == "99999999"
        assert settings_in(offline.address, f"{name}-a")["message.timestamp.type"] == "CreateTime"
        create_topic(live.address, f"{name}-b")
        admin.create_partitions(f"{name}-a", 3)
        admin.alter_config(ConfigResource.topic(f"{name}-a"), {"retention.ms": None, "segment.bytes": 1048576})
        produce(live.address, f"{name}-a", 60)
        produce(live.address, f"{name}-b", 20)
        mirror.caught_up(4)
        until(lambda: settings_in(offline.address, f"{name}-a")["segment.bytes"] == "1048576", "the setting arrives")
        until(lambda: settings_in(offline.address, f"{name}-a")["retention.ms"] == "604800000", "it is reset")
    same(live.address, offline.address, f"{name}-a", 3)
    same(live.address, offline.address, f"{name}-b", 1)
    with Admin(offline.address) as admin:
        assert f"{name}-not" not in admin.list_topics()


def test_the_validation_of_schema_ids_stays_in_the_source(offline: EmbeddedBroker, name: str) -> None:
    with EmbeddedBroker(settings={"confluent.schema.registry.url": "http://127.0.0.1:1"}) as source:
        given = {"confluent.value.schema.validation": "true", "retention.ms": "99999999"}
        with Admin(source.address) as admin:
            admin.create_topic(TopicSpec(name, config=given))
        settings = settings_of({"live": source.address}, offline.address, topics=name, name=name)
        with RunningMirror(settings) as mirror:
            mirror.caught_up(1)
    found = settings_in(offline.address, name)
    assert (found["retention.ms"], found["confluent.value.schema.validation"]) == ("99999999", "false")


@pytest.mark.long
def test_a_topic_with_records_of_others_is_rejected(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name)
    create_topic(offline.address, name)
    produce(live.address, name, 5)
    produce(offline.address, name, 1)
    settings = settings_of({"live": live.address}, offline.address, topics=name, name=name)
    with RunningMirror(settings) as mirror:
        [found] = mirror.stopped().stopped
        assert found.reason == FOREIGN
        assert "did not create it" in found.detail
        assert len(stored(offline.address, name).records) == 1
        with Admin(offline.address) as admin:
            admin.delete_topic(name)
        mirror.caught_up(1)
        wait_for(settings, lambda status: not status.stopped)
    same(live.address, offline.address, name, 1)


def test_an_empty_topic_is_taken_over(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name, 3)
    create_topic(offline.address, name, 1)
    produce(live.address, name, 30)
    with RunningMirror(settings_of({"live": live.address}, offline.address, topics=name, name=name)) as mirror:
        mirror.caught_up(3)
    assert partitions_of(offline.address, name) == 3
    same(live.address, offline.address, name, 3)


def test_a_topic_that_was_recreated_stops_until_its_copy_is_deleted(
    live: EmbeddedBroker, offline: EmbeddedBroker, name: str
) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 10)
    settings = settings_of({"live": live.address}, offline.address, topics=name, name=name)
    with RunningMirror(settings) as mirror:
        mirror.caught_up(1)
        with Admin(live.address) as admin:
            admin.delete_topic(name)
        wait_for(settings, lambda status: [each.reason for each in status.stopped] == [MISSING])
        create_topic(live.address, name)
        produce(live.address, name, 20, start=100)
        wait_for(settings, lambda status: [each.reason for each in status.stopped] == [RECREATED])
        assert stored(offline.address, name).end == 10
        with Admin(offline.address) as admin:
            admin.delete_topic(name)
        wait_for(settings, lambda status: not status.stopped and status.partitions[0].position == 20)
    same(live.address, offline.address, name, 1)


def test_two_sources_do_not_share_a_topic_by_accident(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 5)
    sources = {"one": live.address, "two": live.address}
    with RunningMirror(settings_of(sources, offline.address, topics=name, name=name)) as mirror:
        [found] = mirror.stopped().stopped
        assert (found.source, found.reason) == ("two", FOREIGN)
    with RunningMirror(
        settings_of(sources, offline.address, topics=name, name=f"{name}-x", rename="{source}.{topic}")
    ) as mirror:
        mirror.caught_up(2)
    same(live.address, offline.address, name, 1, f"two.{name}")


def test_a_mirror_of_the_target_is_not_mirrored_back(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 5)
    there = settings_of({"live": live.address}, offline.address, topics=name, name=name)
    back = settings_of(
        {"offline": offline.address}, live.address, topics=name, name=f"{name}-back", rename="copy-of-{topic}"
    )
    with RunningMirror(there) as mirror:
        mirror.caught_up(1)
        with RunningMirror(back) as other:
            [found] = other.stopped().stopped
            assert found.reason == LOOP
    itself = settings_of({"live": live.address}, live.address, topics=name, name=f"{name}-self")
    with RunningMirror(itself) as mirror:
        [found] = mirror.stopped().stopped
        assert found.reason == LOOP
