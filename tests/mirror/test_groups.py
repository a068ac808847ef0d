"""Committed offsets of groups in the target: the same, translated, and never back or beyond."""

from __future__ import annotations

from tests.mirror.mirrors import RunningMirror, create_topic, produce, settings_of, stored
from tests.timeouts import until

from penstock.client.admin import Admin
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer import Consumer
from penstock.mirror.groups import translate
from penstock.mirror.mapped import Route
from penstock.mirror.state import SourcePartition
from penstock.testing.embedded_broker import EmbeddedBroker


def committed(address: str, group: str, topic: str) -> int | None:
    with Admin(address) as admin:
        found = admin.group_offsets(group, [(topic, 0)]).get(TopicPartition(topic, 0))
        return None if found is None else found.offset


def commit(address: str, group: str, topic: str, offset: int) -> None:
    with Admin(address) as admin:
        admin.set_group_offsets(group, {(topic, 0): offset})


def test_a_group_continues_in_the_target(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 30)
    commit(live.address, f"{name}-readers", name, 12)
    commit(live.address, f"{name}-private", name, 12)
    settings = settings_of(
        {"live": live.address}, offline.address, topics=name, name=name, groups=f"{name}-.*", exclude_groups=".*private"
    )
    with RunningMirror(settings) as mirror:
        mirror.caught_up(1)
        until(lambda: committed(offline.address, f"{name}-readers", name) == 12, "the offset arrives")
        commit(live.address, f"{name}-readers", name, 20)
        until(lambda: committed(offline.address, f"{name}-readers", name) == 20, "the next one, too")
        commit(offline.address, f"{name}-readers", name, 25)  # it was read in the target meanwhile
        commit(live.address, f"{name}-readers", name, 22)
        produce(live.address, name, 1)
        mirror.caught_up(1)
    assert committed(offline.address, f"{name}-readers", name) == 25
    assert committed(offline.address, f"{name}-private", name) is None
    with Consumer(
        name, bootstrap_servers=offline.address, group_id=f"{name}-readers", consumer_timeout_ms=5000
    ) as consumer:
        assert next(iter(consumer)).offset == 25


def test_offsets_of_a_mapped_topic_are_translated(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name)
    settings = settings_of({"live": live.address}, offline.address, topics=name, name=name, mode="mapped")
    with RunningMirror(settings) as mirror:
        for number in range(4):  # a transaction of the mirror for each, with a marker of its own
            produce(live.address, name, 5, start=number * 5)
            mirror.caught_up(1)
        for offset in (3, 7, 13, 20):
            commit(live.address, f"{name}-{offset}", name, offset)
        for offset in (3, 7, 13, 20):
            until(lambda o=offset: committed(offline.address, f"{name}-{o}", name) is not None, "it arrives")  # type: ignore[misc]
    records = stored(offline.address, name).records
    assert records[-1].offset > 19  # markers are between them
    for offset in (3, 7, 13):
        at = committed(offline.address, f"{name}-{offset}", name)
        assert next(each for each in records if each.offset >= (at or 0)).key == str(offset).encode()
    assert (committed(offline.address, f"{name}-20", name) or 0) == records[-1].offset + 1


def test_an_offset_beyond_what_is_mirrored_waits_at_the_end() -> None:
    route = Route(SourcePartition("a", "t", 0), TopicPartition("t", 0), "same", "s", "t", "S", "T")
    assert translate(route, 50, {}, 40) == 40
    assert translate(route, 30, {}, 40) == 30
    mapped = route._replace(mode="mapped")
    assert translate(mapped, 30, {}, 40) is None
    state = {"source_id": "s", "target_id": "t", "runs": [[0, 5, 10]]}
    assert translate(mapped, 4, {route.key.key: state}, 40) == 9
    assert translate(mapped, 4, {route.key.key: {**state, "target_id": "another"}}, 40) is None
