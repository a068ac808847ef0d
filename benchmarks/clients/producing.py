"""Producing beside confluent-kafka, aiokafka and kafka-python: records a second, latency of one, memory.

Rule: each contender runs in a process of its own, one after the other, in rounds whose order turns, against one broker
in another process; medians count. All wait for the same acks of every record, and each has the settings that its
documentation gives for throughput; with acks=all they are idempotent where they can be. Our broker syncs before it
answers acks=all, so there fast clients wait for the disk: with acks=1 it is the clients that are compared.

The clock runs from the first record to the last acknowledgement; connecting is not measured. CPU is the client's, in
seconds for a million records: on a machine that is shared it says more than the rate. Memory is the most that the
process held beyond what it held before the first record.

    python -m benchmarks.clients.producing [--kafka] [--acks 1 all] [--rounds N] [--records N] [--bytes 100 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

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

TRIPS: Final = 1_000
_CHUNK: Final = 10_000
_MODULE: Final = "benchmarks.clients.producing"
_REFERENCE: Final = "confluent produce"
GOALS: Final = {"penstock send": 1.0, "penstock send_many": 3.0, "penstock send_arrow": 3.0}

# Contenders run in processes of their own, and are told by their environment.
ACKS: Final[Literal["all", "1"]] = "1" if os.environ.get("BENCH_ACKS") == "1" else "all"

Work = Callable[[str, str, int, int], Outcome]


# --- what each contender does, in its own process


def _measured(send_all: Callable[[], None], count: int) -> Outcome:
    before_kb = status_kb("VmRSS")
    cpu_s, began = time.process_time(), time.perf_counter()
    send_all()
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    peak_kb = status_kb("VmHWM")
    return {"rate": count / took_s, "cpu_s": cpu_s / count * 1e6, "memory_mb": (peak_kb - before_kb) / 1024}


def _penstock(method: str) -> Work:
    def work(address: str, topic: str, size: int, count: int) -> Outcome:
        from penstock.client.producer import Producer

        value = b"v" * size
        with Producer(address, acks=ACKS) as producer:
            producer.send(topic, value).result(PATIENCE_S)

            def one_by_one() -> None:
                send = producer.send
                for _ in range(count):
                    send(topic, value)
                producer.flush(PATIENCE_S)

            def lists() -> None:
                values = [value] * _CHUNK
                for _ in range(count // _CHUNK):
                    producer.send_many(topic, values)
                producer.flush(PATIENCE_S)

            def columns() -> None:
                for _ in range(count // _CHUNK):
                    producer.send_arrow(topic, rows)
                producer.flush(PATIENCE_S)

            if method == "send_arrow":
                # Here, since making columns is not sending them, and pyarrow imports pandas when it first makes one.
                import pyarrow

                rows = pyarrow.table({"value": pyarrow.array([value] * _CHUNK, pyarrow.binary())})
            return _measured({"send": one_by_one, "send_many": lists, "send_arrow": columns}[method], count)

    return work


_CONFLUENT: Final[dict[str, Any]] = {
    "acks": ACKS,
    "enable.idempotence": ACKS == "all",
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_000_000,
}


def _confluent(method: str) -> Work:
    def work(address: str, topic: str, size: int, count: int) -> Outcome:
        from confluent_kafka import Producer

        value = b"v" * size
        producer = Producer({**_CONFLUENT, "bootstrap.servers": address})
        producer.produce(topic, value)
        producer.flush(PATIENCE_S)

        def one_by_one() -> None:
            produce, poll = producer.produce, producer.poll
            for number in range(count):
                while True:
                    try:
                        produce(topic, value)
                        break
                    except BufferError:
                        poll(0.01)
                if not number & 1023:
                    poll(0)
            producer.flush(PATIENCE_S)

        def lists() -> None:
            messages = [{"value": value}] * _CHUNK
            for _ in range(count // _CHUNK):
                left = _CHUNK
                while left:
                    left -= producer.produce_batch(topic, messages[:left])
                    producer.poll(0.01 if left else 0)
            producer.flush(PATIENCE_S)

        return _measured(one_by_one if method == "produce" else lists, count)

    return work


def _aiokafka(address: str, topic: str, size: int, count: int) -> Outcome:
    from aiokafka import AIOKafkaProducer

    value = b"v" * size

    async def run() -> Outcome:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            acks=ACKS if ACKS == "all" else 1,
            enable_idempotence=ACKS == "all",
            linger_ms=5,
            max_batch_size=262_144,
        )
        await producer.start()
        try:
            await producer.send_and_wait(topic, value)
            before_kb = status_kb("VmRSS")
            cpu_s, began = time.process_time(), time.perf_counter()
            for _ in range(count):
                await producer.send(topic, value)
            await producer.flush()
            took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
            peak_kb = status_kb("VmHWM")
            return {"rate": count / took_s, "cpu_s": cpu_s / count * 1e6, "memory_mb": (peak_kb - before_kb) / 1024}
        finally:
            await producer.stop()

    return asyncio.run(run())


def _kafka_python(address: str, topic: str, size: int, count: int) -> Outcome:
    from kafka import KafkaProducer

    value = b"v" * size
    producer = KafkaProducer(
        bootstrap_servers=address,
        acks=ACKS if ACKS == "all" else 1,
        enable_idempotence=ACKS == "all",
        linger_ms=5,
        batch_size=262_144,
    )
    producer.send(topic, value).get(PATIENCE_S)

    def one_by_one() -> None:
        for _ in range(count):
            producer.send(topic, value)
        producer.flush(PATIENCE_S)

    outcome = _measured(one_by_one, count)
    producer.close()
    return outcome


def _latencies(trip: Callable[[], object], count: int) -> Outcome:
    for _ in range(50):
        trip()
    taken: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        trip()
        taken.append((time.perf_counter() - began) * 1e6)
    taken.sort()
    return {"p50_us": taken[len(taken) // 2], "p99_us": taken[len(taken) * 99 // 100]}


def _penstock_trip(address: str, topic: str, size: int, count: int) -> Outcome:
    from penstock.client.producer import Producer

    value = b"v" * size
    with Producer(address, acks=ACKS) as producer:
        return _latencies(lambda: producer.send(topic, value).result(PATIENCE_S), count)


def _confluent_trip(address: str, topic: str, size: int, count: int) -> Outcome:
    from confluent_kafka import Producer

    value = b"v" * size
    producer = Producer({**_CONFLUENT, "bootstrap.servers": address, "linger.ms": 0, "socket.nagle.disable": True})

    def trip() -> None:
        producer.produce(topic, value)
        producer.flush(PATIENCE_S)

    return _latencies(trip, count)


FLOODS: Final[dict[str, tuple[Work, float]]] = {
    # and the part of the records that it is given, so that the slow ones do not take all the time
    "confluent produce": (_confluent("produce"), 1.0),
    "confluent produce_batch": (_confluent("produce_batch"), 1.0),
    "penstock send": (_penstock("send"), 1.0),
    "penstock send_many": (_penstock("send_many"), 1.0),
    "penstock send_arrow": (_penstock("send_arrow"), 1.0),
    "aiokafka": (_aiokafka, 0.1),
    "kafka-python": (_kafka_python, 0.1),
}
TRIPPERS: Final[dict[str, Work]] = {"confluent, one": _confluent_trip, "penstock, one": _penstock_trip}


# --- the rounds


def _run(name: str, server: Server, size: int, count: int, acks: str) -> Outcome:
    return in_a_process(_MODULE, name, server.address, new_topic(server), size, count, environment={"BENCH_ACKS": acks})


def measure(
    server: Server, size: int, records: int, rounds: int, acks: str
) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """The medians of floods and of single records, by contender."""
    names = list(FLOODS)
    floods: dict[str, list[Outcome]] = {name: [] for name in names}
    trips: dict[str, list[Outcome]] = {name: [] for name in TRIPPERS}
    for number in range(rounds):
        for name in turned(names, number):
            count = max(int(records * FLOODS[name][1]) // _CHUNK, 1) * _CHUNK
            floods[name].append(_run(name, server, size, count, acks))
        for name in sorted(TRIPPERS, reverse=bool(number % 2)):
            trips[name].append(_run(name, server, size, TRIPS, acks))
    return medians(floods), medians(trips)


def show(server: str, size: int, acks: str, floods: dict[str, Outcome], trips: dict[str, Outcome]) -> None:
    reference = floods[_REFERENCE]
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
        for name, found in floods.items()
    ]
    table(f"{server}: records of {size} B, {PARTITIONS} partitions, acks={acks}; ratios to {_REFERENCE}", rows)
    ours, theirs = trips["penstock, one"], trips["confluent, one"]
    lines = [
        {"": name, "p50 µs": f"{found['p50_us']:.0f}", "p99 µs": f"{found['p99_us']:.0f}"}
        for name, found in trips.items()
    ]
    lines.append({"": "ratio (goal: at most 1.0)", "p50 µs": f"{ours['p50_us'] / theirs['p50_us']:.2f}",
                  "p99 µs": f"{ours['p99_us'] / theirs['p99_us']:.2f}"})  # fmt: skip
    table(f"{server}: one record of {size} B, acks={acks}, one after the other", lines)


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.clients.producing")
    parser.add_argument("--kafka", action="store_true", help="against Apache Kafka 4.3 too")
    parser.add_argument("--acks", nargs="*", choices=["all", "1"], default=["1", "all"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 B; fewer if they are larger")
    parser.add_argument("--bytes", type=int, nargs="*", default=[100, 1000], help="the sizes of values")
    parser.add_argument(
        "--work", nargs=5, metavar=("NAME", "ADDRESS", "TOPIC", "BYTES", "COUNT"), help=argparse.SUPPRESS
    )
    options = parser.parse_args(arguments)
    if options.work:
        name, address, topic, size, count = options.work
        work = FLOODS[name][0] if name in FLOODS else TRIPPERS[name]
        print(json.dumps(work(address, topic, int(size), int(count))))
        return
    from benchmarks.peers import kafka, ours

    starters = [ours.start] + ([kafka.Kafka().start] if options.kafka else [])
    for start in starters:
        with tempfile.TemporaryDirectory() as folder, start(Path(folder)) as server:
            for size in options.bytes:
                records = max(options.records * 100 // max(size, 100), _CHUNK)
                for acks in options.acks:
                    show(server.name, size, acks, *measure(server, size, records, options.rounds, acks))


if __name__ == "__main__":
    main(sys.argv[1:])
