"""Consuming beside confluent-kafka, aiokafka and kafka-python: records a second, CPU, memory.

Rule: each contender runs in a process of its own, one after the other, in rounds whose order turns, against one broker
in another process; medians count. All read the same topic from its beginning in a group of their own, look at every
value, and have the settings that their documentation gives for throughput. The clock runs from the first record to the
last; joining is not measured. CPU is the client's, in seconds for a million records: on a machine that is shared it
says more than the rate. Memory is the most that the process held beyond what it held before the first record.

    python -m benchmarks.clients.consuming [--kafka] [--rounds N] [--records N] [--bytes 100 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.clients.rounds import (
    PARTITIONS,
    PATIENCE_S,
    Outcome,
    in_a_process,
    medians,
    new_topic,
    status_kb,
    turned,
)
from benchmarks.peers.servers import Server
from benchmarks.report import table

_MODULE: Final = "benchmarks.clients.consuming"
_AT_ONCE: Final = 10_000
_REFERENCE: Final = "confluent consume"
GOALS: Final = {"penstock iterate": 1.5, "penstock to_arrow": 5.0}

Work = Callable[[str, str, int], Outcome]


class Meter:
    """From the first record to the last."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen = 0
        self._before_kb = 0
        self._cpu_s = self._began = 0.0

    def begin(self) -> None:
        """The first records are there; they are not counted."""
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        self._before_kb = status_kb("VmRSS")
        self._cpu_s, self._began = time.process_time(), time.perf_counter()

    def end(self, counted: int) -> Outcome:
        took_s, cpu_s = time.perf_counter() - self._began, time.process_time() - self._cpu_s
        memory_mb = (status_kb("VmHWM") - self._before_kb) / 1024
        return {"rate": counted / took_s, "cpu_s": cpu_s / counted * 1e6, "memory_mb": memory_mb}


def _group() -> str:
    return f"bench-{uuid.uuid4().hex[:8]}"


# --- what each contender does, in its own process


def _penstock(way: str) -> Work:
    def work(address: str, topic: str, count: int) -> Outcome:
        from penstock.client.consumer.consumer import Consumer

        with Consumer(topic, bootstrap_servers=address, group_id=_group(), auto_offset_reset="earliest") as consumer:
            return {"iterate": _iterated, "poll": _polled, "to_arrow": _columns}[way](consumer, Meter(count))

    return work


def _iterated(consumer: Any, meter: Meter) -> Outcome:
    next(consumer)
    meter.begin()
    left = meter.count - 1
    for record in consumer:
        record.value  # noqa: B018 - looking at it is the work
        left -= 1
        if not left:
            break
    return meter.end(meter.count - 1)


def _polled(consumer: Any, meter: Meter) -> Outcome:
    next(consumer)
    meter.begin()
    seen = 1
    while seen < meter.count:
        for records in consumer.poll(1_000, _AT_ONCE).values():
            for record in records:
                record.value  # noqa: B018
            seen += len(records)
    return meter.end(meter.count - 1)


def _columns(consumer: Any, meter: Meter) -> Outcome:
    import pyarrow  # noqa: F401 - its memory is not the reading's

    batches = consumer.batches()
    seen = first = next(batches).to_arrow().num_rows
    meter.begin()
    while seen < meter.count:
        seen += next(batches).to_arrow().num_rows
    return meter.end(seen - first)


def _confluent(address: str, topic: str, count: int) -> Outcome:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": _group(),
            "auto.offset.reset": "earliest",
            "fetch.min.bytes": 1,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 65_536,
        }
    )
    consumer.subscribe([topic])
    meter = Meter(count)
    first = 0
    while not first:
        first = len(consumer.consume(1, 1.0))
    meter.begin()
    seen = first
    while seen < count:
        messages = consumer.consume(_AT_ONCE, 1.0)
        for message in messages:
            message.value()
        seen += len(messages)
    outcome = meter.end(seen - first)
    consumer.close()
    return outcome


def _aiokafka(address: str, topic: str, count: int) -> Outcome:
    from aiokafka import AIOKafkaConsumer

    async def run() -> Outcome:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=address, group_id=_group(), auto_offset_reset="earliest", max_poll_records=_AT_ONCE
        )
        await consumer.start()
        try:
            meter = Meter(count)
            await consumer.getone()
            meter.begin()
            seen = 1
            while seen < count:
                for records in (await consumer.getmany(timeout_ms=1_000, max_records=_AT_ONCE)).values():
                    for record in records:
                        record.value  # noqa: B018
                    seen += len(records)
            return meter.end(seen - 1)
        finally:
            await consumer.stop()

    return asyncio.run(run())


def _penstock_async(address: str, topic: str, count: int) -> Outcome:
    from penstock.client.consumer.async_consumer import AsyncConsumer

    async def run() -> Outcome:
        async with AsyncConsumer(
            topic, bootstrap_servers=address, group_id=_group(), auto_offset_reset="earliest"
        ) as consumer:
            meter = Meter(count)
            left = count
            async for record in consumer:
                record.value  # noqa: B018
                if left == count:
                    meter.begin()
                left -= 1
                if not left:
                    break
            return meter.end(count - 1)

    return asyncio.run(run())


def _kafka_python(address: str, topic: str, count: int) -> Outcome:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(bootstrap_servers=address, group_id=_group(), auto_offset_reset="earliest")
    consumer.topics()
    consumer.subscribe([topic])
    meter = Meter(count)
    next(consumer)
    meter.begin()
    seen = 1
    while seen < count:
        for records in consumer.poll(1_000, _AT_ONCE).values():
            for record in records:
                record.value  # noqa: B018
            seen += len(records)
    outcome = meter.end(seen - 1)
    consumer.close()
    return outcome


CONTENDERS: Final[dict[str, tuple[Work, float]]] = {
    # and the part of the records that it reads, so that the slow ones do not take all the time
    "confluent consume": (_confluent, 1.0),
    "penstock iterate": (_penstock("iterate"), 1.0),
    "penstock poll": (_penstock("poll"), 1.0),
    "penstock to_arrow": (_penstock("to_arrow"), 1.0),
    "penstock async for": (_penstock_async, 1.0),
    "aiokafka": (_aiokafka, 0.3),
    "kafka-python": (_kafka_python, 0.1),
}


# --- the rounds


def _filled_topic(server: Server, size: int, records: int) -> str:
    """Batches as a busy producer makes them."""
    from confluent_kafka import Producer

    name = new_topic(server)
    producer = Producer(
        {"bootstrap.servers": server.address, "linger.ms": 20, "batch.size": 200_000, "acks": 1,
         "queue.buffering.max.messages": 2_000_000}
    )  # fmt: skip
    value = os.urandom(size // 2).hex().encode()
    for number in range(records):
        producer.produce(name, value, partition=number * PARTITIONS // records)
        if not number & 8191:
            producer.poll(0)
    producer.flush(PATIENCE_S)
    return name


def measure(server: Server, size: int, records: int, rounds: int) -> dict[str, Outcome]:
    """The medians, by contender."""
    topic = _filled_topic(server, size, records)
    names = list(CONTENDERS)
    outcomes: dict[str, list[Outcome]] = {name: [] for name in names}
    for number in range(rounds):
        for name in turned(names, number):
            count = int(records * CONTENDERS[name][1])
            outcomes[name].append(in_a_process(_MODULE, name, server.address, topic, count))
    return medians(outcomes)


def show(server: str, size: int, outcomes: dict[str, Outcome]) -> None:
    reference = outcomes[_REFERENCE]
    rows = [
        {
            "": name,
            "M records/s": f"{found['rate'] / 1e6:.2f}",
            "ratio": f"{found['rate'] / reference['rate']:.2f}",
            "goal": f"{GOALS[name]:.1f}" if name in GOALS else "",
            "CPU s a million": f"{found['cpu_s']:.2f}",
            "CPU ratio": f"{reference['cpu_s'] / found['cpu_s']:.2f}",
            "memory MB": f"{found['memory_mb']:.0f}",
        }
        for name, found in outcomes.items()
    ]
    table(f"{server}: reading records of {size} B, {PARTITIONS} partitions; ratios to {_REFERENCE}", rows)


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.clients.consuming")
    parser.add_argument("--kafka", action="store_true", help="against Apache Kafka 4.3 too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=2_000_000, help="of 100 B; fewer if they are larger")
    parser.add_argument("--bytes", type=int, nargs="*", default=[100, 1000], help="the sizes of values")
    parser.add_argument("--work", nargs=4, metavar=("NAME", "ADDRESS", "TOPIC", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        name, address, topic, count = options.work
        print(json.dumps(CONTENDERS[name][0](address, topic, int(count))))
        return
    from benchmarks.peers import kafka, ours

    starters = [ours.start] + ([kafka.Kafka().start] if options.kafka else [])
    for start in starters:
        with tempfile.TemporaryDirectory() as folder, start(Path(folder)) as server:
            for size in options.bytes:
                records = max(options.records * 100 // max(size, 100), _AT_ONCE)
                show(server.name, size, measure(server, size, records, options.rounds))


if __name__ == "__main__":
    main(sys.argv[1:])
