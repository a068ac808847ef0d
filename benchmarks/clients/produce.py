"""Producing beside confluent-kafka, aiokafka and kafka-python: records per second, latency of one record, CPU, memory.

All contenders wait for the same acks of every record, without compression, and are idempotent with acks=all. Ours has
its defaults; the others have the settings that their documentation gives for throughput. The broker is asked afterwards
whether it has as many records as a contender sent.

Every clock starts at the same point: the client is connected and one record has been acknowledged. A contender sends
for `CLOCKED_S` seconds and then flushes; the clock stops when everything is acknowledged.

`send` takes one record, and so does `produce`. `send_many` and `send_arrow` take 10,000 at once; they stand beside
`produce`, as most users of confluent-kafka write it, and beside `produce_batch`, which takes a list as they do. Its
fastest form names the partition, since librdkafka then takes the queue's lock once per list and not once per record.

Ordinary ways of calling the two (`WAYS`): with a key, a partition, headers, text, a callback. Reports of deliveries are
on in confluent-kafka where a callback is called; its application thread calls it in `poll`, ours a thread of its own.

Our broker syncs before it answers acks=all, so fast clients wait for the disk there. With acks=1 (`--acks 1`) it is the
clients alone that are compared.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final, Protocol

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

_MODULE: Final = "benchmarks.clients.produce"
_WARM_TRIPS: Final = 50
# Each of our ways to send, its counterpart, and the goal of their ratio.
PAIRS: Final = (
    ("send", "produce", 1.0),
    ("send_many", "produce", 3.0),
    ("send_many", "produce_batch", None),
    ("send_arrow", "produce", 3.0),
    ("send_arrow", "produce_batch", None),
)


_HEADERS: Final = [("source", b"web"), ("trace", b"4bf92f3577b34da6")]


def _ignore_report(error: object, what: object) -> None:
    """An on_delivery callback of either client."""


def _ignore_delivery(delivery: object) -> None:
    """A callback of add_done_callback."""


# Further arguments of `send` and `produce`; "text" makes the value text, "done" uses add_done_callback of our delivery.
WAYS: Final[dict[str, dict[str, Any]]] = {
    "key": {"key": b"customer"},
    "partition": {"partition": 2},
    "headers": {"headers": _HEADERS},
    "timestamp_ms": {"timestamp_ms": 1_700_000_000_000},
    "text": {"key": "customer", "text": True},
    "on_delivery": {"on_delivery": _ignore_report},
    "add_done_callback": {"done": True},
    "all of it": {"key": "customer", "text": True, "headers": _HEADERS, "on_delivery": _ignore_report},
}


class Sender(Protocol):
    """A producer that is connected and has had a record acknowledged."""

    def send(self, count: int) -> None:
        """Send `count` records, a multiple of `CHUNK`."""

    def flush(self) -> None:
        """Wait until all of them are acknowledged."""

    def close(self) -> None: ...


def send_for(seconds: float, sender: Sender, meter: Meter) -> Outcome:
    """Send for so long, then wait for the last acknowledgement."""
    meter.begin()
    sent = 0
    while meter.elapsed_s() < seconds:
        sender.send(CHUNK)
        sent += CHUNK
    sender.flush()
    return meter.end(sent)


# --- what each contender does, in its own process


class _Penstock:
    """Subclasses say how they send."""

    def __init__(self, address: str, topic: str, size: int, acks: str) -> None:
        from penstock import Producer

        self._topic = topic
        self._value = b"v" * size
        self._producer = Producer(address, acks="all" if acks == "all" else 1)
        self._producer.send(topic, self._value).result(PATIENCE_S)

    def flush(self) -> None:
        self._producer.flush(PATIENCE_S)

    def close(self) -> None:
        self._producer.close()


class _Send(_Penstock):
    def send(self, count: int) -> None:
        send, topic, value = self._producer.send, self._topic, self._value
        for _ in range(count):
            send(topic, value)

    def trip(self) -> None:
        self._producer.send(self._topic, self._value).result(PATIENCE_S)


class _SendWay(_Penstock):
    """One of `WAYS`."""

    def __init__(self, address: str, topic: str, size: int, acks: str, way: str) -> None:
        super().__init__(address, topic, size, acks)
        self._arguments = dict(WAYS[way])
        self._content: bytes | str = "v" * size if self._arguments.pop("text", False) else self._value
        self._adds_callbacks = self._arguments.pop("done", False)

    def send(self, count: int) -> None:
        send, topic, content, arguments = self._producer.send, self._topic, self._content, self._arguments
        if self._adds_callbacks:
            for _ in range(count):
                send(topic, content, **arguments).add_done_callback(_ignore_delivery)
        else:
            for _ in range(count):
                send(topic, content, **arguments)


class _SendMany(_Penstock):
    def __init__(self, address: str, topic: str, size: int, acks: str) -> None:
        super().__init__(address, topic, size, acks)
        self._values = [self._value] * CHUNK

    def send(self, count: int) -> None:
        for _ in range(count // CHUNK):
            self._producer.send_many(self._topic, self._values)


class _SendArrow(_Penstock):
    def __init__(self, address: str, topic: str, size: int, acks: str) -> None:
        import pyarrow

        super().__init__(address, topic, size, acks)
        self._rows = pyarrow.table({"value": pyarrow.array([self._value] * CHUNK, pyarrow.binary())})

    def send(self, count: int) -> None:
        for _ in range(count // CHUNK):
            self._producer.send_arrow(self._topic, self._rows)


class _Confluent:
    """Subclasses say how they send."""

    # No report per record is requested: without them its application thread has less to do.
    settings: ClassVar[dict[str, Any]] = {
        "linger.ms": 5,
        "batch.size": 1_000_000,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 1_000_000,
        "delivery.report.only.error": True,
        "compression.type": "none",
        "log_level": 0,
    }

    def __init__(self, address: str, topic: str, size: int, acks: str) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._value = b"v" * size
        promises = {"acks": acks, "enable.idempotence": acks == "all"}
        self._producer = Producer({"bootstrap.servers": address, **promises, **self.settings})
        self._producer.produce(topic, self._value)
        self.flush()

    def flush(self) -> None:
        if self._producer.flush(PATIENCE_S):
            raise RuntimeError(f"not everything was acknowledged within {PATIENCE_S:.0f} s")

    def close(self) -> None: ...


class _Produce(_Confluent):
    def send(self, count: int) -> None:
        produce, poll, topic, value = self._producer.produce, self._producer.poll, self._topic, self._value
        for number in range(count):
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:
                    poll(0.01)
            if not number & 1023:
                poll(0)


class _ProduceWay(_Confluent):
    """One of `WAYS`. A callback is added to our delivery, or passed to `produce`."""

    def __init__(self, address: str, topic: str, size: int, acks: str, way: str) -> None:
        self._arguments = dict(WAYS[way])
        is_text = self._arguments.pop("text", False)
        if self._arguments.pop("done", False):
            self._arguments["on_delivery"] = _ignore_report
        if "timestamp_ms" in self._arguments:
            self._arguments["timestamp"] = self._arguments.pop("timestamp_ms")
        self.settings = {**self.settings, "delivery.report.only.error": "on_delivery" not in self._arguments}  # type: ignore[misc]
        super().__init__(address, topic, size, acks)
        self._content: bytes | str = "v" * size if is_text else self._value

    def send(self, count: int) -> None:
        produce, poll, topic = self._producer.produce, self._producer.poll, self._topic
        content, arguments = self._content, self._arguments
        for number in range(count):
            while True:
                try:
                    produce(topic, content, **arguments)
                    break
                except BufferError:
                    poll(0.01)
            if not number & 1023:
                poll(0)


class _ProduceBatch(_Confluent):
    def __init__(self, address: str, topic: str, size: int, acks: str) -> None:
        super().__init__(address, topic, size, acks)
        self._messages = [{"value": self._value}] * CHUNK
        self._number = 0

    def send(self, count: int) -> None:
        for _ in range(count // CHUNK):
            self._number = (self._number + 1) % PARTITIONS
            left = CHUNK
            while left:
                # It says how many it took; the others found the queue full.
                left -= self._producer.produce_batch(self._topic, self._messages[:left], self._number)
                self._producer.poll(0.01 if left else 0)


class _ProduceOne(_Confluent):
    """With its reports: `flush` wakes up by them, and looks again every 10 ms without."""

    settings: ClassVar = {
        **_Confluent.settings,
        "linger.ms": 0,
        "socket.nagle.disable": True,
        "delivery.report.only.error": False,
    }

    def trip(self) -> None:
        self._producer.produce(self._topic, self._value)
        self.flush()


class _Aiokafka:
    def __init__(self, address: str, topic: str, size: int, acks: str) -> None:
        self._topic = topic
        self._value = b"v" * size
        self._runner = asyncio.Runner()
        self._producer: Any = None
        self._runner.run(self._connect(address, acks))

    async def _connect(self, address: str, acks: str) -> None:
        from aiokafka import AIOKafkaProducer

        self._producer = AIOKafkaProducer(
            bootstrap_servers=address,
            acks="all" if acks == "all" else 1,
            enable_idempotence=acks == "all",
            linger_ms=5,
            max_batch_size=262_144,
        )
        await self._producer.start()
        await self._producer.send_and_wait(self._topic, self._value)

    def send(self, count: int) -> None:
        self._runner.run(self._send(count))

    async def _send(self, count: int) -> None:
        send, topic, value = self._producer.send, self._topic, self._value
        for _ in range(count):
            await send(topic, value)

    def flush(self) -> None:
        self._runner.run(self._producer.flush())

    def close(self) -> None:
        self._runner.run(self._producer.stop())
        self._runner.close()


class _KafkaPython:
    def __init__(self, address: str, topic: str, size: int, acks: str) -> None:
        from kafka import KafkaProducer

        self._topic = topic
        self._value = b"v" * size
        self._producer = KafkaProducer(
            bootstrap_servers=address,
            acks="all" if acks == "all" else 1,
            enable_idempotence=acks == "all",
            linger_ms=5,
            batch_size=262_144,
        )
        self._producer.send(topic, self._value).get(PATIENCE_S)

    def send(self, count: int) -> None:
        send, topic, value = self._producer.send, self._topic, self._value
        for _ in range(count):
            send(topic, value)

    def flush(self) -> None:
        self._producer.flush(PATIENCE_S)

    def close(self) -> None:
        self._producer.close()


def latencies(trip: Callable[[], object], seconds: float, now: Callable[[], float] = time.perf_counter) -> Outcome:
    """One record after the other, each acknowledged before the next; the first ones are not counted."""
    for _ in range(_WARM_TRIPS):
        trip()
    taken: list[float] = []
    end = now() + seconds
    began = now()
    while began < end:
        trip()
        ended = now()
        taken.append((ended - began) * 1e6)
        began = ended
    taken.sort()
    return {
        "trips": len(taken),
        "seconds": seconds,
        "p50_us": taken[len(taken) // 2],
        "p99_us": taken[len(taken) * 99 // 100],
    }


FLOODS: Final[dict[str, Callable[[str, str, int, str], Sender]]] = {
    "confluent produce": _Produce,
    "confluent produce_batch": _ProduceBatch,
    "penstock send": _Send,
    "penstock send_many": _SendMany,
    "penstock send_arrow": _SendArrow,
    "aiokafka send": _Aiokafka,
    "kafka-python send": _KafkaPython,
}
WAY_FLOODS: Final[dict[str, Callable[[str, str, int, str], Sender]]] = {
    **{f"confluent produce, {way}": partial(_ProduceWay, way=way) for way in WAYS},
    **{f"penstock send, {way}": partial(_SendWay, way=way) for way in WAYS},
}
WAYS_ON_KAFKA: Final = ("partition", "text")
"""Those that are measured on both brokers."""
TRIPS: Final[dict[str, Callable[[str, str, int, str], Any]]] = {
    "confluent one": _ProduceOne,
    "penstock one": _Send,
}


# --- the rounds


def measure(
    server: Server,
    size: int,
    acks: str,
    rounds: int,
    seconds: float = CLOCKED_S,
    names: list[str] | None = None,
    say: Callable[[str], None] = print,
) -> Outcomes:
    """All rounds with records of one size."""
    names = [*FLOODS, *TRIPS] if names is None else names
    outcomes = Outcomes()
    for number in range(rounds):
        say(f"{server.name}: sending records of {size} B, acks={acks}, round {number + 1} of {rounds}")
        for name in in_turn(names, number):
            topic = new_topic(server)
            outcome = in_a_process(
                _MODULE, name, address=server.address, topic=topic, size=size, acks=acks, seconds=seconds
            )
            if name not in TRIPS:
                require_all_arrived(server, topic, name, int(outcome["records"]) + 1)
            # Deleted at once, so that unused data is not written back to disk.
            server.topics.delete(topic)
            outcomes.add(name, outcome)
    return outcomes


def rows(title: str, size: int, outcomes: Outcomes) -> list[Row]:
    """Our ways to send beside confluent-kafka's, and the latency of one record."""
    found = []
    for way, other, goal in PAIRS:
        contenders = {PENSTOCK: f"penstock {way}", CONFLUENT: f"confluent {other}"}
        if way == "send":
            contenders |= {AIOKAFKA: "aiokafka send", KAFKA_PYTHON: "kafka-python send"}
        for unit, better, field, factor, aim in (
            ("M records/s", Better.HIGHER, "rate", 1e-6, goal),
            ("client CPU, µs/record", Better.LOWER, "cpu_us", 1.0, None),
            ("client memory, MB", Better.LOWER, "memory_mb", 1.0, None if goal is None else 1.0),
        ):
            figures = outcomes.figures(contenders, field, factor)
            found.append(Row(f"{way} beside {other}, {size} B", unit, better, figures, PENSTOCK, CONFLUENT, aim, title))
    for way in WAYS:
        contenders = {PENSTOCK: f"penstock send, {way}", CONFLUENT: f"confluent produce, {way}"}
        if contenders.keys() != outcomes.figures(contenders, "rate").keys():
            continue
        for unit, better, field, factor, aim in (
            ("M records/s", Better.HIGHER, "rate", 1e-6, 1.0),
            ("client CPU, µs/record", Better.LOWER, "cpu_us", 1.0, None),
        ):
            figures = outcomes.figures(contenders, field, factor)
            work = f"send beside produce, {way}, {size} B"
            found.append(Row(work, unit, better, figures, PENSTOCK, CONFLUENT, aim, title))
    for field, aim in (("p50_us", None), ("p99_us", 1.0)):
        figures = outcomes.figures({PENSTOCK: "penstock one", CONFLUENT: "confluent one"}, field)
        work = f"one acknowledged send, {size} B, {field.removesuffix('_us')}"
        found.append(Row(work, "µs", Better.LOWER, figures, PENSTOCK, CONFLUENT, aim, title))
    return found


def main(name: str, arguments: str) -> None:
    """One contender in this process."""
    given = json.loads(arguments)
    contenders = FLOODS | WAY_FLOODS | TRIPS
    contender = contenders[name](given["address"], given["topic"], given["size"], given["acks"])
    if name not in TRIPS:
        outcome = send_for(given["seconds"], contender, Meter())
    else:
        outcome = latencies(contender.trip, given["seconds"])
    contender.close()
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
