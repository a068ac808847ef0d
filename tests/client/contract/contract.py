"""What the stories of the contract share: which broker they run against, and what it can do.

The contract is what users of the client and of the command may rely on, with any broker. Its stories take the fixtures
`bootstrap` (an address), `capabilities` and `make_topic`; to run them elsewhere, define these three and import the
stories with `stories_of`. Stories use public names only, and check results with another client library where possible.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

import pytest
from tests.timeouts import PATIENCE_S

from penstock import Admin, Consumer, PenstockError, Producer, TopicPartition

BEGIN_MS = 1_700_000_000_000
KEPT = {"retention.ms": "-1"}


class MakeTopic(Protocol):
    """Makes a topic that has a leader when this returns; its name.

    Its settings begin with KEPT: the stories' records are older than any broker keeps them by itself."""

    def __call__(self, partitions: int = 1, config: Mapping[str, str] | None = None, *, prefix: str = "t") -> str: ...


@dataclass(frozen=True)
class Capabilities:
    """What a broker can do. As it is made here, it is one of today that lacks nothing."""

    name: str
    administers: bool = True
    """Topics, settings, folders, records and groups can be looked after by requests."""
    batches: bool = True
    """Records have timestamps and headers, and producers numbers."""
    transactions: bool = True
    static_members: bool = True
    codecs: frozenset[str] = frozenset({"none", "gzip", "snappy", "lz4", "zstd"})
    librdkafka: Mapping[str, Any] = field(default_factory=dict)
    """Settings for confluent-kafka."""
    kafka_python: Mapping[str, Any] = field(default_factory=dict)
    """Settings for kafka-python."""

    def need(self, what: str) -> None:
        """Skips the story if the broker lacks this."""
        if not getattr(self, what):
            pytest.skip(f"{self.name} lacks {what}")

    def need_codec(self, codec: str) -> None:
        if codec not in self.codecs:
            pytest.skip(f"{self.name} knows no {codec}")


def stories_of(*modules: ModuleType) -> dict[str, object]:
    """All stories of some modules, by name, and the fixtures of their own: those that a module names in FIXTURES."""
    stories: dict[str, object] = {}
    for module in modules:
        fixtures = getattr(module, "FIXTURES", ())
        for name, story in vars(module).items():
            if name.startswith("test_") or name in fixtures:
                if name in stories:
                    raise ValueError(f"two stories are called {name}")
                stories[name] = story
    return stories


def new_name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def new_group() -> str:
    return new_name("group")


def is_led(admin: Admin, topic: str, partitions: int) -> bool:
    """Whether a topic that was made a moment ago can be used."""
    if topic not in admin.list_topics():
        return False
    described = admin.describe_topic(topic).partitions
    if len(described) != partitions or any(each.leader is None for each in described):
        return False
    # Kafka names a leader before the broker itself has heard that it is one.
    ends = admin.list_offsets({(topic, index): "latest" for index in range(partitions)})
    return not any(isinstance(each, PenstockError) for each in ends.values())


def texts(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def fill(bootstrap: str, topic: str, values: Iterable[bytes], *, partition: int = 0, **options: Any) -> None:
    """Writes the values into a partition, with a millisecond between their timestamps."""
    with Producer(bootstrap, **options) as producer:
        sent = [
            producer.send(topic, value, key=value, partition=partition, timestamp_ms=BEGIN_MS + number)
            for number, value in enumerate(values)
        ]
        for delivery in sent:
            delivery.result(PATIENCE_S)


def fill_all(bootstrap: str, topic: str, partitions: int, count: int, first: int = 0) -> None:
    """Writes `count` values into each partition."""
    with Producer(bootstrap) as producer:
        for partition in range(partitions):
            producer.send_many(topic, texts(count, first), partition=partition)
        producer.flush(PATIENCE_S)


def reader(bootstrap: str, *topics: str, **options: Any) -> Consumer[bytes, bytes]:
    """From the beginning, ending after a while without records."""
    chosen = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 5_000, "heartbeat_interval_ms": 100, **options}
    return Consumer(*topics, bootstrap_servers=bootstrap, **chosen)


def take(consumer: Consumer[Any, Any], count: int) -> list[Any]:
    """That many records, or fewer if no more come."""
    found: list[Any] = []
    while len(found) < count:
        try:
            found.append(next(consumer))
        except StopIteration:
            break
    return found


def values(records: Iterable[Any]) -> list[Any]:
    return [record.value for record in records]


def read_all(bootstrap: str, topic: str, count: int, *, partition: int = 0, **options: Any) -> list[Any]:
    """The records of a partition, by our consumer."""
    with reader(bootstrap, **options) as consumer:
        consumer.assign([(topic, partition)])
        return take(consumer, count)


@contextmanager
def librdkafka_reader(bootstrap: str, capabilities: Capabilities, **options: Any) -> Iterator[Any]:
    confluent = pytest.importorskip("confluent_kafka")
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
            **capabilities.librdkafka,
            **{name.replace("_", "."): value for name, value in options.items()},
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def read_by_librdkafka(
    bootstrap: str, capabilities: Capabilities, topic: str, count: int, *, partition: int = 0
) -> list[Any]:
    """The records of a partition, read by another consumer library."""
    confluent = pytest.importorskip("confluent_kafka")
    with librdkafka_reader(bootstrap, capabilities) as consumer:
        consumer.assign([confluent.TopicPartition(topic, partition, 0)])
        found: list[Any] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(found), 0.2):
                if message.error() is not None:
                    raise AssertionError(message.error())
                found.append(message)
        return found


class Worker(threading.Thread):
    """A member of a group that reads until it is stopped, and records what it read."""

    def __init__(self, bootstrap: str, topic: str, group: str, **options: Any) -> None:
        super().__init__(daemon=True)
        self.consumer = reader(bootstrap, topic, group_id=group, **{"consumer_timeout_ms": None, **options})
        self.seen: list[tuple[int, int]] = []
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            for record in self.consumer:
                self.seen.append((record.partition, record.offset))
        except BaseException as error:  # noqa: BLE001 - shown by `stop`
            self.failure = error

    @property
    def partitions(self) -> set[int]:
        return {p.partition for p in self.consumer.assignment()}

    def stop(self) -> None:
        self.consumer.close()
        self.join(PATIENCE_S)
        assert self.failure is None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_MEMBER = """
import sys
from penstock import Consumer
bootstrap, topic, group = sys.argv[1:]
with Consumer(topic, bootstrap_servers=bootstrap, group_id=group, session_timeout_ms=1_000,
              heartbeat_interval_ms=100, auto_offset_reset="earliest") as consumer:
    while True:
        consumer.poll(100)
        print(len(consumer.assignment()), flush=True)
"""


@contextmanager
def member_process(bootstrap: str, topic: str, group: str) -> Iterator[subprocess.Popen[str]]:
    """A member in a process of its own, which can be killed; it says how many partitions it has, again and again."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MEMBER, bootstrap, topic, group], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(count)]
