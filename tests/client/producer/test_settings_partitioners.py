"""Round robin and random, in a producer and by themselves."""

from __future__ import annotations

import random
from collections import Counter

from tests.client.contract.contract import new_name
from tests.client.producer.reading import stored_values

from penstock import Producer, RandomPartitioner, RoundRobinPartitioner
from penstock.testing.embedded_broker import EmbeddedBroker


def test_round_robin_takes_every_partition_of_each_topic_in_turn() -> None:
    choose = RoundRobinPartitioner()
    assert [choose("a", b"the same key", 3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [choose("b", None, 2) for _ in range(3)] == [0, 1, 0]
    assert choose("a", None, 3) == 1


def test_round_robin_follows_a_topic_that_grows() -> None:
    choose = RoundRobinPartitioner()
    assert [choose("a", None, 2) for _ in range(4)] == [0, 1, 0, 1]
    assert [choose("a", None, 4) for _ in range(5)] == [2, 3, 0, 1, 2]


def test_random_takes_all_partitions_about_equally_often_and_ignores_keys() -> None:
    choose = RandomPartitioner(random.Random(7).randrange)
    counts = Counter(choose("a", b"the same key", 4) for _ in range(4_000))
    assert set(counts) == {0, 1, 2, 3}
    assert all(850 < count < 1_150 for count in counts.values())


def test_a_producer_spreads_records_one_by_one(broker: EmbeddedBroker) -> None:
    topic = new_name("t")
    broker.create_topic(topic, 3)
    with Producer(broker.address, partitioner=RoundRobinPartitioner()) as producer:
        for number in range(6):
            producer.send(topic, str(number), key="k")
        producer.send_many(topic, [str(number) for number in range(6, 9)])
    values = [stored_values(broker.port, topic, partition) for partition in range(3)]
    assert values == [[b"0", b"3", b"6"], [b"1", b"4", b"7"], [b"2", b"5", b"8"]]
