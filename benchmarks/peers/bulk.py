"""Big batches through confluent-kafka: values of one size into a topic with one partition, and out again.

Rule: every record is accounted for; a delivery that fails or a record that does not come back ends the run. The
consumer's clock starts with the first records it has, as connecting is not what is measured.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from benchmarks.peers.servers import Loaded, ServerFailed

_CHUNK_BYTES = 1_000_000
_IN_FLIGHT_BYTES = 64_000_000
_PATIENCE_S = 60.0
_POLL_S = 0.001
_MOST_AT_ONCE = 10_000
_PRODUCER: dict[str, Any] = {
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 2_000_000,
    "queue.buffering.max.kbytes": 1_000_000,
    "delivery.report.only.error": True,
}
_CONSUMER: dict[str, Any] = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 65_536,
    "fetch.message.max.bytes": 8_388_608,
}


class Transfer(NamedTuple):
    mb_per_s: float
    cpu_s_per_gb: float


def _client(server: Loaded) -> dict[str, Any]:
    return {"bootstrap.servers": server.address, "log_level": 0, **server.dialect.client}


def produce(server: Loaded, topic: str, value_bytes: int, count: int, acks: int = 1) -> Transfer:
    failures: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({**_client(server), **_PRODUCER, "acks": acks, "on_delivery": on_delivery})
    producer.list_topics(topic, _PATIENCE_S)
    chunk = max(1, _CHUNK_BYTES // value_bytes)
    most = _IN_FLIGHT_BYTES // value_bytes
    messages = [{"value": os.urandom(value_bytes)} for _ in range(chunk)]
    cpu_s, began = server.cpu_s(), time.perf_counter()
    left = count
    while left:
        if len(producer) + chunk > most:
            producer.poll(_POLL_S)
            continue
        queued = producer.produce_batch(topic, messages if left >= chunk else messages[:left], partition=0)
        left -= queued
        if not queued:
            producer.poll(_POLL_S)
    unsent = producer.flush(_PATIENCE_S)
    took_s, cpu_s = time.perf_counter() - began, server.cpu_s() - cpu_s
    if unsent or failures:
        raise ServerFailed(f"{server.name}: {unsent or len(failures)} records not delivered {failures[:1]}")
    volume = count * value_bytes
    return Transfer(volume / took_s / 1e6, cpu_s / volume * 1e9)


def consume(server: Loaded, topic: str, value_bytes: int, count: int) -> Transfer:
    consumer = Consumer({**_client(server), **_CONSUMER})
    # consume() waits until it has as many as asked for: always fewer than the client's queue can hold.
    most = min(_MOST_AT_ONCE, _CHUNK_BYTES * 4 // value_bytes)
    try:
        cpu_s = server.cpu_s()
        consumer.assign([TopicPartition(topic, 0, 0)])
        first = _next(server, consumer, 1)
        began = time.perf_counter()
        left = count - first
        while left > 0:
            left -= _next(server, consumer, min(most, left))
        took_s, cpu_s = time.perf_counter() - began, server.cpu_s() - cpu_s
    finally:
        consumer.close()
    return Transfer((count - first) * value_bytes / took_s / 1e6, cpu_s / (count * value_bytes) * 1e9)


def _next(server: Loaded, consumer: Consumer, most: int) -> int:
    deadline = time.perf_counter() + _PATIENCE_S
    while time.perf_counter() < deadline:
        messages = consumer.consume(most, 0.1)
        for message in messages[:1]:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
        if messages:
            return len(messages)
    raise ServerFailed(f"{server.name}: records are missing")
