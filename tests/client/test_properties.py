"""Producers and consumers from properties files, of this and of older Kafkas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.contract.contract import new_name
from tests.client.producer.reading import stored_values
from tests.timeouts import PATIENCE_S

from penstock import Producer, QueuedProducer, consumer_from_properties, producer_from_properties
from penstock.client.errors import ConfigError
from penstock.testing.embedded_broker import EmbeddedBroker

OURS = """
from penstock import EventHandler, ProducerInterceptor

SENT = []

class KeywordEncoder:
    def encode(self, topic, value):
        return f"{value['user']}-{value['keyword']}".encode()

def by_length(topic, key, partition_count):
    return len(key) % partition_count

class Noting(ProducerInterceptor):
    def acknowledged(self, batch, base_offset):
        SENT.append((batch.partition, batch.record_count))

class Doubling(EventHandler):
    def handle(self, events, producer):
        super().handle([*events, *events], producer)

class Demanding:
    def __init__(self, something):
        pass
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as embedded:
        yield embedded


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = new_name("module").replace("-", "_")
    (tmp_path / f"{name}.py").write_text(OURS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(text)
    return path


# --- errors


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, r"bootstrap\.servers is missing"),
        ({"broker.list": "0:x:1", "lingerr.ms": "5"}, r"'lingerr\.ms'.*Did you mean linger\.ms"),
        ({"broker.list": "0:x:1", "queue.time": "soon"}, r"linger\.ms is 'soon'.*Use a number"),
        ({"broker.list": "0:x:1", "producer.type": "both"}, r"producer\.type is 'both'.*sync or async"),
        ({"broker.list": "0:x:1", "event.handler": "a:B"}, r"event\.handler needs producer\.type=async"),
        (
            {"broker.list": "0:x:1", "serializer.class": "org.gfg.KeywordMessage"},
            "not a class of Penstock.*module:name",
        ),
        ({"broker.list": "0:x:1", "partitioner.class": "nowhere_to_be:found"}, "partitioner.class: .*no module named"),
        ({"broker.list": "0:x:1", "partitioner.class": "{ours}:Demanding"}, "cannot be created.*without arguments"),
        ({"broker.list": "0:x:1", "callback.handler": "{ours}:Doubling"}, "is not a ProducerInterceptor"),
        ({"broker.list": "0:x:1", "enable.idempotence": "yes"}, "enable.idempotence is 'yes'.*true or false"),
        ({"broker.list": "0:x:1", "security.protocol": "TELNET"}, "TELNET"),
    ],
)
def test_what_cannot_be_used_is_named(ours: str, properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        producer_from_properties({name: text.format(ours=ours) for name, text in properties.items()})


def test_a_missing_file_and_a_broken_line_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.properties"):
        producer_from_properties(tmp_path / "nowhere.properties")
    with pytest.raises(ConfigError, match=r"client\.properties:2"):
        consumer_from_properties(written(tmp_path, "group.id=a\nclient.id=\\u12\n"))


# --- clients


def test_a_file_of_kafka_0_7_gives_a_producer_with_its_own_encoder_and_partitioner(
    broker: EmbeddedBroker, ours: str, tmp_path: Path
) -> None:
    topic = new_name("t")
    broker.create_topic(topic, 3)
    text = f"""
broker.list=0:{broker.address}
producer.type=sync
serializer.class={ours}:KeywordEncoder
partitioner.class={ours}:by_length
callback.handler={ours}:Noting
compression.codec=1
zk.connectiontimeout.ms=6000
"""
    with producer_from_properties(written(tmp_path, text)) as producer:
        assert isinstance(producer, Producer)
        producer.send(topic, {"user": "Chenhui", "keyword": "china"}, key="developer").result(PATIENCE_S)
    assert stored_values(broker.port, topic, len("developer") % 3) == [b"Chenhui-china"]
    assert __import__(ours).SENT == [(0, 1)]


def test_an_event_handler_gives_a_queue_of_events(broker: EmbeddedBroker, ours: str) -> None:
    topic = new_name("t")
    broker.create_topic(topic, 1)
    properties = {
        "metadata.broker.list": broker.address,
        "producer.type": "async",
        "event.handler": f"{ours}:Doubling",
        "serializer.class": "kafka.serializer.StringEncoder",
        "queue.time": "3",
        "batch.size": "1",
        "queue.size": "10",
        "queue.enqueueTimeout.ms": "-1",
    }
    with producer_from_properties(properties) as producer:
        assert isinstance(producer, QueuedProducer)
        producer.send(topic, "twice")
    assert stored_values(broker.port, topic) == [b"twice", b"twice"]


def test_one_file_serves_a_producer_and_a_consumer_and_options_override_it(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    topic = new_name("t")
    broker.create_topic(topic, 1)
    text = f"bootstrap.servers=nowhere:1\nlinger.ms=1\ngroupid={new_name('group')}\nautooffset.reset=smallest\n"
    path = written(tmp_path, text)
    with producer_from_properties(path, bootstrap_servers=broker.address) as producer:
        producer.send(topic, b"x")
    options: dict[str, Any] = {"bootstrap_servers": broker.address, "consumer_timeout_ms": PATIENCE_S * 1000}
    with consumer_from_properties(path, topic, **options) as consumer:
        assert next(iter(consumer)).value == b"x"
