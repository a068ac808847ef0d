"""Consuming beside confluent-kafka, aiokafka and kafka-python: records per second, CPU, memory.

All contenders read the same topic without a group, look at every value, and have the settings that their documentation
gives for throughput. No client commits offsets.

Every clock starts at the same point: the client is connected and has asked for the end offsets, and no partition is
assigned yet. librdkafka fetches from the moment of the assignment, so the assignment belongs into the clock, for
everybody. `Meter.begin` checks that no records have been received before.

Every clock ends at the same point: with the last record of the topic. A contender reads the last `count` records, as
many as it can read in `CLOCKED_S` seconds by its own earlier runs. It ends where the topic ends, so nothing is fetched
that is not counted. It is not asked for more records than are left, since `consume(10_000, 1.0)` waits for 10,000
records or the time-out, and that second would count. Reading a small topic several times would be the alternative, but
a client that seeks at the end of a topic has a fetch waiting there, for up to half a second in every pass.

The topic grows until the fastest contender is busy for long enough: about 5 GB of records of 100 B, 10 GB of 1 KB. They
are written to disk before the next clock starts and are read from the page cache.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, Protocol

from benchmarks.clients.rounds import (
    AIOKAFKA,
    CHUNK,
    CLOCKED_S,
    CONFLUENT,
    KAFKA_PYTHON,
    PARTITIONS,
    PATIENCE_S,
    PENSTOCK,
    Meter,
    Outcome,
    Outcomes,
    in_a_process,
    new_topic,
    require_all_arrived,
)
from benchmarks.peers.servers import Server
from benchmarks.results import Better, Row, in_turn

_MODULE: Final = "benchmarks.clients.consume"
_POLL_S: Final = 1.0
_MARGIN: Final = 1.15
GOALS: Final = {"iterate": 1.5, "to_arrow": 5.0}


class Reader(Protocol):
    """A consumer that is connected, knows the topic's end offsets, and has no partition assigned."""

    def assign(self, starts: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on."""

    def read(self, most: int) -> int:
        """Read the values of one to `most` records; returns how many."""

    def close(self) -> None: ...


def read_to_the_end(reader: Reader, starts: Mapping[int, int], count: int, meter: Meter) -> Outcome:
    """Read the `count` records between `starts` and the end of the topic."""
    meter.begin()
    reader.assign(starts)
    left = count
    while left > 0:
        left -= reader.read(min(CHUNK, left))
    outcome = meter.end(count)
    if left < 0:
        raise RuntimeError(f"{count - left} records were read where {count} are")
    return outcome


# --- what each contender does, in its own process


class _Penstock:
    """Subclasses say how they read."""

    def __init__(self, address: str, topic: str) -> None:
        from penstock import Consumer

        self._topic = topic
        self._consumer = Consumer(bootstrap_servers=address)
        self._consumer.end_offsets([(topic, number) for number in range(PARTITIONS)])

    def assign(self, starts: Mapping[int, int]) -> None:
        self._consumer.assign([(self._topic, number) for number in starts])
        for number, offset in starts.items():
            self._consumer.seek((self._topic, number), offset)

    def close(self) -> None:
        self._consumer.close()


class _Iterate(_Penstock):
    def assign(self, starts: Mapping[int, int]) -> None:
        super().assign(starts)
        self._records = iter(self._consumer)

    def read(self, most: int) -> int:
        for record in islice(self._records, most):
            record.value  # noqa: B018 - looking at it is the work
        return most


class _Poll(_Penstock):
    def read(self, most: int) -> int:
        return _looked_at(self._consumer.poll(_POLL_S * 1000, most))


class _ToArrow(_Penstock):
    def __init__(self, address: str, topic: str) -> None:
        import pyarrow  # noqa: F401 - importing it is not reading

        super().__init__(address, topic)

    def assign(self, starts: Mapping[int, int]) -> None:
        super().assign(starts)
        self._batches = self._consumer.batches()

    def read(self, most: int) -> int:
        rows: int = next(self._batches).to_arrow().num_rows
        return rows


class _AsyncFor:
    def __init__(self, address: str, topic: str) -> None:
        from penstock import AsyncConsumer

        self._topic = topic
        self._runner = asyncio.Runner()
        self._consumer = AsyncConsumer(bootstrap_servers=address)
        self._runner.run(self._connect())

    async def _connect(self) -> None:
        await self._consumer.start()
        await self._consumer.end_offsets([(self._topic, number) for number in range(PARTITIONS)])

    def assign(self, starts: Mapping[int, int]) -> None:
        self._runner.run(self._assign(starts))

    async def _assign(self, starts: Mapping[int, int]) -> None:
        await self._consumer.assign([(self._topic, number) for number in starts])
        for number, offset in starts.items():
            await self._consumer.seek((self._topic, number), offset)
        self._records = aiter(self._consumer)

    def read(self, most: int) -> int:
        return self._runner.run(self._read(most))

    async def _read(self, most: int) -> int:
        left = most
        async for record in self._records:
            record.value  # noqa: B018
            left -= 1
            if not left:
                break
        return most

    def close(self) -> None:
        self._runner.run(self._consumer.close())
        self._runner.close()


class _Confluent:
    """Without offset stores and commits, and with the prefetch queue that its documentation gives for throughput."""

    def __init__(self, address: str, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "bench",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "fetch.min.bytes": 1,
                "queued.min.messages": 1_000_000,
                "queued.max.messages.kbytes": 65_536,
                # By default a client whose queue is full asks again after a second, and a fast broker does fill it.
                "fetch.queue.backoff.ms": 10,
            }
        )
        for number in range(PARTITIONS):
            self._consumer.get_watermark_offsets(TopicPartition(topic, number), PATIENCE_S)

    def assign(self, starts: Mapping[int, int]) -> None:
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(self._topic, number, offset) for number, offset in starts.items()])

    def read(self, most: int) -> int:
        messages = self._consumer.consume(most, _POLL_S)
        for message in messages:
            message.value()
        return len(messages)

    def close(self) -> None:
        self._consumer.close()


class _Aiokafka:
    def __init__(self, address: str, topic: str) -> None:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        self._partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self._runner = asyncio.Runner()
        self._consumer: Any = None
        self._runner.run(self._connect(AIOKafkaConsumer, address))

    async def _connect(self, consumer: Any, address: str) -> None:
        self._consumer = consumer(bootstrap_servers=address, max_poll_records=CHUNK, enable_auto_commit=False)
        await self._consumer.start()
        await self._consumer.end_offsets(self._partitions)

    def assign(self, starts: Mapping[int, int]) -> None:
        self._runner.run(self._assign(starts))

    async def _assign(self, starts: Mapping[int, int]) -> None:
        self._consumer.assign(self._partitions)
        for partition in self._partitions:
            self._consumer.seek(partition, starts[partition.partition])

    def read(self, most: int) -> int:
        return _looked_at(self._runner.run(self._consumer.getmany(timeout_ms=int(_POLL_S * 1000), max_records=most)))

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()


class _KafkaPython:
    def __init__(self, address: str, topic: str) -> None:
        from kafka import KafkaConsumer, TopicPartition

        self._partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self._consumer = KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
        self._consumer.end_offsets(self._partitions)

    def assign(self, starts: Mapping[int, int]) -> None:
        self._consumer.assign(self._partitions)
        for partition in self._partitions:
            self._consumer.seek(partition, starts[partition.partition])

    def read(self, most: int) -> int:
        return _looked_at(self._consumer.poll(int(_POLL_S * 1000), most))

    def close(self) -> None:
        self._consumer.close()


def _looked_at(by_partition: Mapping[Any, list[Any]]) -> int:
    seen = 0
    for records in by_partition.values():
        for record in records:
            record.value  # noqa: B018
        seen += len(records)
    return seen


# And about how many records of 100 B it reads in a second, which its first run goes by.
CONTENDERS: Final[dict[str, tuple[Callable[[str, str], Reader], int]]] = {
    "confluent consume": (_Confluent, 1_000_000),
    "penstock iterate": (_Iterate, 3_000_000),
    "penstock poll": (_Poll, 3_000_000),
    "penstock to_arrow": (_ToArrow, 6_000_000),
    "penstock async for": (_AsyncFor, 3_000_000),
    "aiokafka getmany": (_Aiokafka, 300_000),
    "kafka-python poll": (_KafkaPython, 100_000),
}
PEERS_BEST: Final = {
    CONFLUENT: "confluent consume",
    AIOKAFKA: "aiokafka getmany",
    KAFKA_PYTHON: "kafka-python poll",
}


# --- the rounds


class FilledTopic:
    """A topic that grows by batches as a busy producer makes them, the same number of records in every partition."""

    def __init__(self, server: Server, size: int) -> None:
        self._server = server
        self._size = size
        self._in_each = 0
        self.name = new_topic(server)

    def starts(self, count: int) -> dict[int, int]:
        """Where the last `count` records begin."""
        return dict.fromkeys(range(PARTITIONS), self._in_each - count // PARTITIONS)

    def grow(self, count: int) -> None:
        """To at least `count` records, all of them on disk: it must not be written back while others are measured."""
        from confluent_kafka import Producer

        missing = -(-count // PARTITIONS) - self._in_each
        if missing <= 0:
            return
        producer = Producer(
            {
                "bootstrap.servers": self._server.address,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 20,
                "batch.size": 200_000,
                "queue.buffering.max.messages": 1_000_000,
                "delivery.report.only.error": True,
                "log_level": 0,
            }
        )
        messages = [{"value": os.urandom(self._size // 2).hex().encode()}] * CHUNK
        for begun in range(0, missing, CHUNK):
            for number in range(PARTITIONS):
                left = min(CHUNK, missing - begun)
                while left:
                    left -= producer.produce_batch(self.name, messages[:left], number)
                    producer.poll(0.01 if left else 0)
        producer.flush(PATIENCE_S)
        self._in_each += missing
        require_all_arrived(self._server, self.name, "the filling producer", self._in_each * PARTITIONS)
        os.sync()

    def delete(self) -> None:
        self._server.topics.delete(self.name)


def clocked_long_enough(run: Callable[[int], Outcome], count: int, seconds: float) -> Outcome:
    """The outcome of a run of at least `seconds`; shorter runs show how many records that takes."""
    while True:
        outcome = run(count)
        if outcome["seconds"] >= seconds:
            return outcome
        count = round(count * min(10.0, _MARGIN * seconds / outcome["seconds"]))


def measure(
    server: Server,
    size: int,
    rounds: int,
    seconds: float = CLOCKED_S,
    names: list[str] | None = None,
    say: Callable[[str], None] = print,
) -> Outcomes:
    """All rounds with records of one size."""
    names = list(CONTENDERS) if names is None else names
    counts = {name: CONTENDERS[name][1] * min(1.0, seconds) / (1 if size <= 100 else 4) for name in names}
    outcomes = Outcomes()
    topic = FilledTopic(server, size)

    def run(name: str, count: int) -> Outcome:
        count = -(-count // PARTITIONS) * PARTITIONS
        topic.grow(count)
        return in_a_process(
            _MODULE, name, address=server.address, topic=topic.name, starts=topic.starts(count), count=count
        )

    for number in range(rounds):
        say(f"{server.name}: reading records of {size} B, round {number + 1} of {rounds}")
        for name in in_turn(names, number):
            outcome = clocked_long_enough(lambda count, name=name: run(name, count), round(counts[name]), seconds)  # type: ignore[misc]
            # A run that lasts just long enough would be too short when the machine is a little faster.
            counts[name] = _MARGIN * seconds * outcome["rate"]
            outcomes.add(name, outcome)
    topic.delete()
    return outcomes


def rows(title: str, size: int, outcomes: Outcomes) -> list[Row]:
    """Each of our ways to read beside each peer's fastest."""
    found = []
    for way in ("iterate", "poll", "to_arrow", "async for"):
        contenders = {PENSTOCK: f"penstock {way}", **PEERS_BEST}
        for unit, better, field, factor, goal in (
            ("M records/s", Better.HIGHER, "rate", 1e-6, GOALS.get(way)),
            ("client CPU, µs/record", Better.LOWER, "cpu_us", 1.0, None),
            ("client memory, MB", Better.LOWER, "memory_mb", 1.0, 1.0),
        ):
            if f"penstock {way}" in outcomes.by_contender:
                figures = outcomes.figures(contenders, field, factor)
                found.append(Row(f"{way}, {size} B", unit, better, figures, PENSTOCK, CONFLUENT, goal, title))
    return found


def main(name: str, arguments: str) -> None:
    """One contender in this process."""
    given = json.loads(arguments)
    reader = CONTENDERS[name][0](given["address"], given["topic"])
    starts = {int(number): offset for number, offset in given["starts"].items()}
    outcome = read_to_the_end(reader, starts, given["count"], Meter())
    reader.close()
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
