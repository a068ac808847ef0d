"""What the stories about consumers share: topics with known records, and short ways to read them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from tests.broker.wire_client import BEGIN_MS, WireClient, make_topic
from tests.timeouts import PATIENCE_MS, until

from penstock.client.consumer.consumer import Consumer
from penstock.records import encode_batch
from penstock.testing.embedded_broker import EmbeddedBroker


def new_group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


def fill(
    broker: EmbeddedBroker, topic: str, values: Iterable[int], *, partition: int = 0, a_batch: int = 10, **more: Any
) -> None:
    """Write numbers, `a_batch` a batch, with a millisecond between one and the next."""
    numbers = list(values)
    with WireClient(broker.port) as client:
        for start in range(0, len(numbers), a_batch):
            records = [(BEGIN_MS + n, b"k%d" % (n % 3), b"%d" % n, ()) for n in numbers[start : start + a_batch]]
            answer = client.produce(topic, encode_batch(records, **more), partition=partition)
            if answer.error_code:
                raise ValueError(f"produce: error {answer.error_code}")


def filled_topic(broker: EmbeddedBroker, count: int = 100, *, partitions: int = 1, **more: Any) -> str:
    """A topic whose partitions hold the numbers from 0 on, in turn."""
    topic = make_topic(broker.broker, partitions=partitions)
    for partition in range(partitions):
        fill(broker, topic, range(partition, count, partitions), partition=partition, **more)
    return topic


def reader(address: str, *topics: str, **options: Any) -> Consumer[bytes, bytes]:
    """From the beginning; it ends without records only where records are missing."""
    chosen = {
        "auto_offset_reset": "earliest",
        "consumer_timeout_ms": PATIENCE_MS,
        "heartbeat_interval_ms": 50,
        **options,
    }
    return Consumer(*topics, bootstrap_servers=address, **chosen)


def numbers(records: Iterable[Any]) -> list[int]:
    return [int(record.value) for record in records]


def read_in_turns(consumer: Iterable[Any], count: int) -> list[int]:
    """That many records from a reader with a short time-out: where it ends too early, it is iterated again."""
    found: list[int] = []

    def is_enough() -> bool:
        found.extend(numbers(consumer))
        return len(found) >= count

    until(is_enough, f"{count} records are read")
    return found


def read(consumer: Consumer[Any, Any], count: int) -> list[int]:
    """That many records, or fewer if no more come."""
    found: list[int] = []
    if count:
        for record in consumer:
            found.append(int(record.value))
            if len(found) == count:
                break
    return found
