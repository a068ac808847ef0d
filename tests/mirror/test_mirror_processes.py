"""Several processes of one mirror: each shard has one owner, and the others take over."""

from __future__ import annotations

from tests.mirror.mirrors import RunningMirror, create_topic, produce, same, settings_of
from tests.timeouts import until

from penstock.testing.embedded_broker import EmbeddedBroker


def shards(*mirrors: RunningMirror) -> list[list[int]]:
    return [[] if each.mirror is None else each.mirror.shards for each in mirrors]


def is_shared(found: list[list[int]], count: int) -> bool:
    return all(found) and sorted(index for each in found for index in each) == list(range(count))


def test_processes_share_the_shards_and_take_over(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name, 6)
    produce(live.address, name, 300)
    settings = settings_of({"live": live.address}, offline.address, topics=name, name=name)
    with RunningMirror(settings) as one:
        until(lambda: is_shared(shards(one), 3), "the first has all")
        with RunningMirror(settings) as another:
            until(lambda: is_shared(shards(one, another), 3), "they share")
            produce(live.address, name, 300, start=300)
            one.caught_up(6)
        until(lambda: is_shared(shards(one), 3), "the first has all again")
        produce(live.address, name, 300, start=600)
        assert one.caught_up(6).processes == 1
    same(live.address, offline.address, name, 6)
