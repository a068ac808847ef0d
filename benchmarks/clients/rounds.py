"""How a contender is measured: a process of its own, one clock for all, rounds that take turns.

Every round measures each contender once, one after the other, and begins with another one than the round before. A
process measures itself between `Meter.begin` and `Meter.end` and hands its outcome to the benchmark, which keeps all of
them; the figures are medians.

At least `CLOCKED_S` seconds lie between the two, so that what happens once (a connection's first request, a buffer that
grows) does not decide.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.servers import Server
from benchmarks.results import Figure

PARTITIONS: Final = 6
CLOCKED_S: Final = 5.0
PATIENCE_S: Final = 120.0
CHUNK: Final = 10_000
PENSTOCK, CONFLUENT, AIOKAFKA, KAFKA_PYTHON = "Penstock", "confluent-kafka", "aiokafka", "kafka-python"

# Metadata, offsets and acknowledgements of a few records are a few kilobytes; a fetch of records is a megabyte.
_MOST_RECEIVED_BEFORE: Final = 64 * 1024
_BYTES_RECEIVED_PLACE: Final = 128  # of tcpi_bytes_received in struct tcp_info
_TCP_INFO_BYTES: Final = 256

Outcome = dict[str, float]


class Meter:
    """Time, CPU and memory of this process from `begin` to `end`.

    CPU is in µs per record: on a machine that others use it says more than the rate. Memory is the most that the
    process held beyond what it held at the beginning.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter, received: Callable[[], int] | None = None) -> None:
        self._now = now
        self._received = received_bytes if received is None else received
        self._before_kb = 0
        self._received_before = 0
        self._cpu_s = self._began = 0.0

    def begin(self) -> None:
        """Start the clock. RuntimeError if the contender has read records already."""
        self._received_before = self._received()
        if self._received_before > _MOST_RECEIVED_BEFORE:
            raise RuntimeError(f"{self._received_before:,} bytes were received before the clock started")
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        self._before_kb = status_kb("VmRSS")
        self._cpu_s, self._began = time.process_time(), self._now()

    def elapsed_s(self) -> float:
        return self._now() - self._began

    def end(self, records: int) -> Outcome:
        took_s, cpu_s = self._now() - self._began, time.process_time() - self._cpu_s
        return {
            "records": records,
            "seconds": took_s,
            "rate": records / took_s,
            "cpu_us": cpu_s / records * 1e6,
            "memory_mb": (status_kb("VmHWM") - self._before_kb) / 1024,
            "received_before": self._received_before,
        }


def received_bytes() -> int:
    """What the open TCP connections of this process have received, whichever library they belong to."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not os.readlink(entry).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as found:
                if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                    known = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                    total += struct.unpack_from("=Q", known, _BYTES_RECEIVED_PLACE)[0]
        except OSError:
            continue  # closed since
    return total


def status_kb(field: str) -> int:
    """Of this process: VmRSS is what it holds, VmHWM the most that it held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def in_a_process(module: str, name: str, **arguments: Any) -> Outcome:
    """What a contender of a module measured of itself."""
    done = subprocess.run(
        [sys.executable, "-m", module, name, json.dumps(arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 2,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
    outcome: Outcome = json.loads(done.stdout.splitlines()[-1])
    return outcome


def new_topic(server: Server) -> str:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    # What was deleted gives its memory back at once: it lies in memory.
    server.topics.make(name, {"file.delete.delay.ms": "0"}, partitions=PARTITIONS)
    return name


def require_all_arrived(server: Server, topic: str, name: str, sent: int) -> None:
    """RuntimeError unless the topic has exactly the records that were sent to it."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "bench", "log_level": 0})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, number), PATIENCE_S)[1] for number in range(PARTITIONS)
    ]
    consumer.close()
    if sum(ends) != sent:
        raise RuntimeError(f"{name} sent {sent:,} records, and the broker has {sum(ends):,}")


class Outcomes:
    """The outcomes of all rounds, by contender."""

    def __init__(self) -> None:
        self.by_contender: dict[str, list[Outcome]] = {}

    def add(self, name: str, outcome: Outcome) -> None:
        self.by_contender.setdefault(name, []).append(outcome)

    def figure(self, name: str, field: str, factor: float = 1.0) -> Figure:
        return Figure.of([each[field] * factor for each in self.by_contender[name]])

    def figures(self, names: Mapping[str, str], field: str, factor: float = 1.0) -> dict[str, Figure]:
        """By the column of the table that each contender stands in; those that were not measured are left out."""
        return {column: self.figure(name, field, factor) for column, name in names.items() if name in self.by_contender}
