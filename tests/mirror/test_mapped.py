"""Topics whose offsets differ: compacted ones, and one topic for several sources, with positions in transactions."""

from __future__ import annotations

from tests.mirror.mirrors import RunningMirror, create_topic, produce, settings_of, stored
from tests.timeouts import until

from penstock.client.admin import Admin
from penstock.client.producer import Producer
from penstock.mirror.errors import LOST
from penstock.testing.embedded_broker import EmbeddedBroker


def contents(address: str, topic: str, partition: int = 0) -> list[tuple[object, ...]]:
    """The records without their offsets."""
    return [each[1:] for each in stored(address, topic, partition).records]


def test_a_compacted_topic_is_mapped_and_keeps_its_batches(
    live: EmbeddedBroker, offline: EmbeddedBroker, name: str
) -> None:
    create_topic(live.address, name, 2, cleanup_policy="compact")
    produce(live.address, name, 200, compression_type="lz4")
    settings = settings_of({"live": live.address}, offline.address, topics=name, name=name)
    with RunningMirror(settings) as mirror:
        status = mirror.caught_up(2)
        assert {each.mode for each in status.partitions} == {"mapped"}
        produce(live.address, name, 100, start=200)
        mirror.caught_up(2)
    with RunningMirror(settings) as mirror:  # another process continues where the first one committed
        produce(live.address, name, 100, start=300)
        mirror.caught_up(2)
    for index in range(2):
        theirs, ours = stored(live.address, name, index), stored(offline.address, name, index)
        assert [payload for _, payload in ours.batches] == [payload for _, payload in theirs.batches]
        assert contents(offline.address, name, index) == contents(live.address, name, index)


def test_deleted_records_stop_a_mapped_partition(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 10)
    settings = settings_of({"live": live.address}, offline.address, topics=name, name=name, mode="mapped")
    with RunningMirror(settings) as mirror:
        mirror.caught_up(1)
    produce(live.address, name, 10)
    with Admin(live.address) as admin:
        admin.delete_records({(name, 0): 15})
    with RunningMirror(settings) as mirror:
        [found] = mirror.stopped().stopped
        assert (found.reason, found.position) == (LOST, 10)
        with Admin(offline.address) as admin:
            admin.delete_topic(name)  # the operator decides to begin again
        mirror.caught_up(1)
        until(lambda: not mirror.stopped(0).stopped, "it goes on")
    assert contents(offline.address, name) == contents(live.address, name)


def test_sources_share_a_topic_in_the_order_of_each_with_origins(
    live: EmbeddedBroker, offline: EmbeddedBroker, name: str
) -> None:
    with EmbeddedBroker() as other, EmbeddedBroker() as third:
        sources = {"live": live.address, "other": other.address, "third": third.address}
        for address in sources.values():
            create_topic(address, name, 2)
            produce(address, name, 100)
        settings = settings_of(sources, offline.address, topics=name, name=name, mode="shared", rename=f"{name}-all")
        with RunningMirror(settings) as mirror:
            mirror.caught_up(6)
            for address in sources.values():
                produce(address, name, 50, start=100)
            mirror.caught_up(6)
        found: dict[tuple[str, int], list[tuple[int, object]]] = {}
        for index in range(2):
            for record in stored(offline.address, f"{name}-all", index).records:
                key, value = record.headers[-1]
                assert key == "mirror.origin"
                cluster, topic, partition, offset = (value or b"").decode().split("/")
                assert (topic, int(partition)) == (name, index)
                found.setdefault((cluster, index), []).append((int(offset), record.value))
        assert len({cluster for cluster, _ in found}) == 3
        expected = [
            [(record.offset, record.value) for record in stored(address, name, index).records]
            for address in sources.values()
            for index in range(2)
        ]
        assert sorted(map(repr, found.values())) == sorted(map(repr, expected))


def test_records_do_not_come_back_between_two_clusters(
    live: EmbeddedBroker, offline: EmbeddedBroker, name: str
) -> None:
    """Both clusters have a topic of this name with producers of their own, and mirror it into each other."""
    for address in (live.address, offline.address):
        create_topic(address, name)
    produce(live.address, name, 20)
    produce(offline.address, name, 30)
    there = settings_of({"live": live.address}, offline.address, topics=name, name=f"{name}-a", mode="shared")
    back = settings_of({"offline": offline.address}, live.address, topics=name, name=f"{name}-b", mode="shared")
    with RunningMirror(there) as one, RunningMirror(back) as another:
        one.caught_up(1)
        another.caught_up(1)
        with Producer(live.address) as producer:
            producer.send(name, b"last").result()
        until(lambda: stored(offline.address, name).records[-1].value == b"last", "the last record arrives")
        another.caught_up(1)
        one.caught_up(1)
    for address in (live.address, offline.address):
        assert len(stored(address, name).records) == 51
