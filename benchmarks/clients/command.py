"""`python -m benchmarks.clients`: producing and consuming on our broker and on Apache Kafka 4.3.

On our broker every contender is measured, the ways of calling `send` with the smallest records. On Apache Kafka the
ones that goals are about are measured: `send`, `send_many`, `send_arrow`, `iterate` and `to_arrow` beside
confluent-kafka, to see that a ratio is not our broker's.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.peers.installing import NotAvailable

from benchmarks import results
from benchmarks.clients import consume, produce
from benchmarks.clients.rounds import CLOCKED_S
from benchmarks.peers import kafka, ours
from benchmarks.peers.servers import Server
from benchmarks.results import Row

_ON_KAFKA: Final = [name for name in produce.FLOODS if name.startswith(("confluent", "penstock"))]
_WAYS_ON_KAFKA: Final = [name for name in produce.WAY_FLOODS if name.rpartition(", ")[2] in produce.WAYS_ON_KAFKA]
_READ_ON_KAFKA: Final = ["confluent consume", "penstock iterate", "penstock to_arrow"]
_BROKERS: Final = {ours.NAME: "our broker", kafka.NAME: "Apache Kafka 4.3"}
_MEMORY: Final = Path("/dev/shm")
_MEMORY_BYTES: Final = 12 * 1024**3
_NOTES: Final = (
    "One broker on the same machine, 6 partitions. Every contender runs in a process of its own.",
    "While producers are measured, both brokers keep their data in memory (tmpfs): clients are compared, not disks.",
    "Sending: the clock starts after one acknowledged record and stops when all are acknowledged. With acks=all "
    "everybody is idempotent.",
    "Reading: the clock starts before the assignment, with nothing fetched, and stops with the topic's last record. "
    "aiokafka reads by getmany, kafka-python by poll, confluent-kafka by consume, at most 10,000 records at a time, "
    "and with fetch.queue.backoff.ms=10: by default it pauses for a second when its queue is full.",
    "Ways of calling: a value of the smallest size with a key of 8 bytes; a partition; two headers; value and key as "
    "text; on_delivery; add_done_callback beside their on_delivery; text, headers and on_delivery at once.",
    "confluent-kafka's produce_batch names the partition of every list, which is its fastest form.",
)


class Run:
    """What has been measured so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rows: list[Row] = []
        self.rounds: list[dict[str, Any]] = []
        self._options = options

    def measure_producing(self, server: Server) -> None:
        options = self._options
        broker, is_ours = _BROKERS[server.name], server.name == ours.NAME
        for size in options.bytes:
            for acks in options.acks:
                ways = [*produce.WAY_FLOODS] if is_ours else _WAYS_ON_KAFKA
                sent = [*(produce.FLOODS if is_ours else _ON_KAFKA), *produce.TRIPS]
                sent += ways if size == min(options.bytes) else []
                outcomes = produce.measure(server, size, acks, options.rounds, options.seconds, sent, _say)
                self.rows += produce.rows(f"Producing, {broker}, acks={acks}", size, outcomes)
                self._keep(outcomes.by_contender, broker=broker, size=size, acks=acks)

    def measure_consuming(self, server: Server) -> None:
        options = self._options
        broker = _BROKERS[server.name]
        for size in options.bytes:
            names = None if server.name == ours.NAME else _READ_ON_KAFKA
            outcomes = consume.measure(server, size, options.rounds, options.seconds, names, _say)
            self.rows += consume.rows(f"Consuming, {broker}", size, outcomes)
            self._keep(outcomes.by_contender, broker=broker, size=size)

    def _keep(self, outcomes: dict[str, list[dict[str, float]]], **what: Any) -> None:
        self.rounds += [{**what, "contender": name, "rounds": rounds} for name, rounds in outcomes.items()]


def _say(what: str) -> None:
    print(f"{what} ...", flush=True)


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("clients", "Our clients beside confluent-kafka, aiokafka and kafka-python.")
    parser.add_argument("--ours-only", action="store_true", help="against our broker alone")
    parser.add_argument("--acks", nargs="+", choices=["all", "1"], default=["all"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=CLOCKED_S, help="the least that a contender is clocked for")
    parser.add_argument("--bytes", type=int, nargs="+", default=[100, 1000], help="the sizes of values")
    options = parser.parse_args(arguments)
    recording = results.begin("clients", parser, options, arguments)
    starters: list[Callable[[Path], Server]] = [ours.start]
    if not options.ours_only:
        try:
            starters.append(kafka.Kafka().start)
        except NotAvailable as error:
            recording.lacks(f"Apache Kafka 4.3 is not installed: {error}")
    memory = _MEMORY if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES else None
    if memory is None:
        recording.lacks(f"{_MEMORY} does not have {_MEMORY_BYTES >> 30} GiB: the brokers' data lies on a disk")
    run = Run(options)
    for start in starters:
        with tempfile.TemporaryDirectory(dir=memory) as folder, start(Path(folder, "server")) as server:
            run.measure_producing(server)
        with tempfile.TemporaryDirectory() as folder, start(Path(folder, "server")) as server:
            run.measure_consuming(server)
    recording.keep(run.rows, notes=_NOTES, details={"runs": run.rounds})
