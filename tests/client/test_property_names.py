"""Client properties of Kafka 0.7 and 0.8 by their current names."""

from __future__ import annotations

import pytest

from penstock.client.property_names import translated


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"zk.connect": "zk1:2181,zk2:2181/kafka"}, {"bootstrap.servers": "zookeeper://zk1:2181,zk2:2181/kafka"}),
        ({"broker.list": "0:a:9092,1:b:9093"}, {"bootstrap.servers": "a:9092,b:9093"}),
        ({"broker.list": "a:9092"}, {"bootstrap.servers": "a:9092"}),
        ({"metadata.broker.list": "a:9092"}, {"bootstrap.servers": "a:9092"}),
        ({"broker.list": "0:a:1", "zk.connect": "z:2181"}, {"bootstrap.servers": "a:1"}),
        ({"bootstrap.servers": "n:1", "broker.list": "0:a:1"}, {"bootstrap.servers": "n:1"}),
        ({"groupid": "feed"}, {"group.id": "feed"}),
        ({"groupid": "old", "group.id": "new"}, {"group.id": "new"}),
        ({"queue.time": "200"}, {"linger.ms": "200"}),
        ({"autooffset.reset": "smallest"}, {"auto.offset.reset": "earliest"}),
        ({"auto.offset.reset": "largest"}, {"auto.offset.reset": "latest"}),
        ({"compression.codec": "2"}, {"compression.type": "snappy"}),
        ({"compression.codec": "gzip"}, {"compression.type": "gzip"}),
        ({"autocommit.enable": "false"}, {"enable.auto.commit": "false"}),
        ({"batch.size": "200", "producer.type": "async"}, {"batch.num.messages": "200", "producer.type": "async"}),
        ({"batch.size": "16384"}, {"batch.size": "16384"}),
        ({"zk.sessiontimeout.ms": "6000", "buffer.size": "1"}, {}),
        ({"linger.ms": "5"}, {"linger.ms": "5"}),
    ],
)
def test_older_names_are_translated(old: dict[str, str], new: dict[str, str]) -> None:
    assert translated(old) == new
