"""Rounds: the order and size of the loads, and the rows of the result.

Within a round every broker does the same work right after the others, and the order changes from round to round, so
that other load on the machine affects all alike. Each is warmed up before the first round, since the JVM compiles what
it runs often. A row is the ratio of our median to Kafka's, and a goal bounds that ratio.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from benchmarks.peers import workloads
from benchmarks.peers.servers import Server, ServerFailed
from benchmarks.peers.workloads import ACKS_ALL, ACKS_LEADER, Pipelined, RawProducer, RoundTrips
from benchmarks.results import Better, Figure, Row, in_turn

AT_LEAST, AT_MOST = "≥", "≤"
SIZES: Final = {"100 B": 100, "1 KB": 1000, "10 KB": 10_000}
CODECS: Final = ("lz4", "zstd", "gzip")
COMPRESSED_SIZE: Final = "1 KB"
_BULK: Final = "Big batches with confluent-kafka"
_COMPRESSED: Final = "Compressed batches with confluent-kafka: both brokers decompress and validate them"
_REQUESTS: Final = "Requests with one record"
_PROCESS: Final = "Memory and start"
_SETTLE_S = 2.0
_BARE_BYTES, _BARE_SYNCS = 171, 51
_PLAIN, _SYNCED, _UNSYNCED = "single", "single-synced", "single-unsynced"

# ---------------------------------------------------------------------------------------------- rows of the result


@dataclass(frozen=True)
class Work:
    """A row of the result. `bound` is None if it only describes the run; `goal` bounds the ratio."""

    name: str
    unit: str
    bound: str | None = AT_LEAST
    goal: float | None = None
    table: str = ""

    @property
    def better(self) -> Better | None:
        return None if self.bound is None else Better.HIGHER if self.bound == AT_LEAST else Better.LOWER


PRODUCE: Final = {size: Work(f"produce {size}", "MB/s", AT_LEAST, 1.0, _BULK) for size in SIZES}
PRODUCE_CPU: Final = {size: Work(f"broker CPU per GB produced, {size}", "s", AT_MOST, 0.5, _BULK) for size in SIZES}
CONSUME: Final = {size: Work(f"consume {size}", "MB/s", AT_LEAST, None, _BULK) for size in SIZES}
CONSUME_CPU: Final = {size: Work(f"broker CPU per GB consumed, {size}", "s", AT_MOST, 0.8, _BULK) for size in SIZES}
COMPRESSED: Final = {
    codec: Work(f"produce {COMPRESSED_SIZE}, {codec}", "MB/s", AT_LEAST, None, _COMPRESSED) for codec in CODECS
}
COMPRESSED_CPU: Final = {
    codec: Work(f"broker CPU per GB produced, {COMPRESSED_SIZE}, {codec}", "s", AT_MOST, None, _COMPRESSED)
    for codec in CODECS
}
TRIP_P50: Final = Work("acks=1, round trip p50", "µs", AT_MOST, 0.6, _REQUESTS)
TRIP_P99: Final = Work("acks=1, round trip p99", "µs", AT_MOST, 0.6, _REQUESTS)
TRIP_CPU: Final = Work("acks=1, broker CPU per request", "µs", AT_MOST, None, _REQUESTS)
PIPELINED: Final = Work("acks=1, 64 in flight", "1/s", AT_LEAST, 2.0, _REQUESTS)
PIPELINED_CPU: Final = Work("acks=1, broker CPU per request, 64 in flight", "µs", AT_MOST, None, _REQUESTS)
SYNCED_P50: Final = Work("acks=all, both synced before the answer: p50", "µs", AT_MOST, 0.7, _REQUESTS)
SYNCED_P99: Final = Work("acks=all, both synced before the answer: p99", "µs", AT_MOST, None, _REQUESTS)
SYNCED_PIPELINED: Final = Work("acks=all, both synced before the answer: 64 in flight", "1/s", AT_LEAST, 4.0, _REQUESTS)
DISK: Final = Work("the disk just before that: a bare write and sync, p50", "µs", None, None, _REQUESTS)
SHIPPED_P50: Final = Work("acks=all as shipped (ours synced, Kafka not): p50", "µs", AT_MOST, None, _REQUESTS)
SHIPPED_P99: Final = Work("acks=all as shipped (ours synced, Kafka not): p99", "µs", AT_MOST, None, _REQUESTS)
SHIPPED_PIPELINED: Final = Work(
    "acks=all as shipped (ours synced, Kafka not): 64 in flight", "1/s", AT_LEAST, None, _REQUESTS
)
UNSYNCED_P50: Final = Work("acks=all, neither synced: p50", "µs", AT_MOST, None, _REQUESTS)
UNSYNCED_P99: Final = Work("acks=all, neither synced: p99", "µs", AT_MOST, None, _REQUESTS)
UNSYNCED_PIPELINED: Final = Work("acks=all, neither synced: 64 in flight", "1/s", AT_LEAST, None, _REQUESTS)
RSS_IDLE: Final = Work("memory, idle", "MB", AT_MOST, 0.25, _PROCESS)
RSS_LOADED: Final = Work("memory, highest under load", "MB", AT_MOST, 0.2, _PROCESS)
START: Final = Work("start to first answer", "s", AT_MOST, 0.25, _PROCESS)
ROWS: Final = (
    *PRODUCE.values(),
    *PRODUCE_CPU.values(),
    *CONSUME.values(),
    *CONSUME_CPU.values(),
    *COMPRESSED.values(),
    *COMPRESSED_CPU.values(),
    TRIP_P50,
    TRIP_P99,
    TRIP_CPU,
    PIPELINED,
    PIPELINED_CPU,
    SYNCED_P50,
    SYNCED_P99,
    SYNCED_PIPELINED,
    DISK,
    SHIPPED_P50,
    SHIPPED_P99,
    SHIPPED_PIPELINED,
    UNSYNCED_P50,
    UNSYNCED_P99,
    UNSYNCED_PIPELINED,
    RSS_IDLE,
    RSS_LOADED,
    START,
)


class Figures:
    """All figures by row and broker, one per round."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[Work, str], list[float]] = defaultdict(list)

    def add(self, work: Work, server: str, figure: float) -> None:
        self._rounds[work, server].append(figure)

    def median(self, work: Work, server: str) -> float | None:
        rounds = self._rounds.get((work, server))
        return statistics.median(rounds) if rounds else None

    def ratio(self, work: Work, ours: str, theirs: str) -> float | None:
        mine, other = self.median(work, ours), self.median(work, theirs)
        return mine / other if mine is not None and other else None

    def rows(self, works: Sequence[Work], contenders: Sequence[str], subject: str, peer: str) -> list[Row]:
        """A row for each work with at least one figure."""
        found = [(work, self._figures(work, contenders)) for work in works]
        return [
            Row(work.name.strip(), work.unit, work.better, figures, subject, peer, work.goal, work.table)
            for work, figures in found
            if figures
        ]

    def _figures(self, work: Work, contenders: Sequence[str]) -> dict[str, Figure]:
        return {name: Figure.of(rounds) for name in contenders if (rounds := self._rounds.get((work, name)))}


# ---------------------------------------------------------------------------------------------- rounds


Starter = Callable[[Path], Server]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Load:
    """The number of rounds, and the amount of each work per round.

    Rounds of requests are short and many, since a shared disk is slow at times.
    """

    starts: int
    bulk_rounds: int
    request_rounds: int
    bulk_mb: dict[str, int]
    trips: int
    pipelined: int
    synced_trips: int
    synced_pipelined: int
    warm_up_requests: int


FULL = Load(
    starts=3,
    bulk_rounds=4,
    request_rounds=10,
    bulk_mb={"100 B": 120, "1 KB": 400, "10 KB": 600},
    trips=3000,
    pipelined=15_000,
    synced_trips=400,
    synced_pipelined=2000,
    warm_up_requests=40_000,
)
QUICK = Load(
    starts=1,
    bulk_rounds=1,
    request_rounds=3,
    bulk_mb={"100 B": 40, "1 KB": 120, "10 KB": 200},
    trips=1000,
    pipelined=5000,
    synced_trips=100,
    synced_pipelined=500,
    warm_up_requests=10_000,
)


class Run:
    """One run of all works."""

    def __init__(self, load: Load, starters: Sequence[Starter], folder: Path, say: Say) -> None:
        self.figures = Figures()
        self.notes: list[str] = []
        self._load = load
        self._starters = starters
        self._folder = folder
        self._say = say
        self._without_bulk: set[str] = set()

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=self._folder) as scratch, ExitStack() as stack:
            for number in range(1, self._load.starts):
                self._say(f"start {number} of {self._load.starts}")
                for place, starter in enumerate(self._starters):
                    with starter(Path(scratch, f"start-{number}-{place}")) as server:
                        self.figures.add(START, server.name, server.start_s)
            self._say(f"start {self._load.starts} of {self._load.starts}, idle, warming up")
            servers = []
            for place, starter in enumerate(self._starters):
                servers.append(stack.enter_context(starter(Path(scratch, f"server-{place}"))))
                self.figures.add(START, servers[-1].name, servers[-1].start_s)
            time.sleep(_SETTLE_S)
            for server in servers:
                self.figures.add(RSS_IDLE, server.name, server.rss_mb())
            for server in servers:
                self._warm_up(server)
            self._rounds(servers)
            for server in servers:
                self.figures.add(RSS_LOADED, server.name, server.peak_rss_mb())

    def _warm_up(self, server: Server) -> None:
        server.topics.make(_PLAIN)
        server.topics.make(_SYNCED, server.flushing.synced_topic)
        server.topics.make(_UNSYNCED, server.flushing.unsynced_topic)
        with RawProducer(server, _PLAIN, ACKS_LEADER) as producer:
            producer.pipelined(self._load.warm_up_requests)
            producer.round_trips(self._load.warm_up_requests // 4)
        with RawProducer(server, _SYNCED, ACKS_ALL) as producer:
            producer.pipelined(self._load.synced_pipelined)
        for size, value_bytes in SIZES.items():
            self._bulk(server, f"bulk-warm-{value_bytes}", size, measured=False)
        for codec in CODECS:
            self._compressed(server, f"bulk-warm-{codec}", codec, measured=False)

    def _rounds(self, servers: Sequence[Server]) -> None:
        for number in range(self._load.request_rounds):
            self._say(f"requests, round {number + 1} of {self._load.request_rounds}")
            for work in (self._single, self._single_synced):
                for server in in_turn(servers, number):
                    work(server)
        for number in range(self._load.bulk_rounds):
            for size, value_bytes in SIZES.items():
                self._say(f"bulk, {size}, round {number + 1} of {self._load.bulk_rounds}")
                for server in in_turn(servers, number):
                    self._bulk(server, f"bulk-round-{number}-{value_bytes}", size)
            for codec in CODECS:
                self._say(f"bulk, {COMPRESSED_SIZE}, {codec}, round {number + 1} of {self._load.bulk_rounds}")
                for server in in_turn(servers, number):
                    self._compressed(server, f"bulk-round-{number}-{codec}", codec)

    def _single(self, server: Server) -> None:
        with RawProducer(server, _PLAIN, ACKS_LEADER) as producer:
            trips = producer.round_trips(self._load.trips)
            pipelined = producer.pipelined(self._load.pipelined)
        self.figures.add(TRIP_P50, server.name, trips.p50_us)
        self.figures.add(TRIP_P99, server.name, trips.p99_us)
        self.figures.add(TRIP_CPU, server.name, trips.cpu_us)
        self.figures.add(PIPELINED, server.name, pipelined.per_s)
        self.figures.add(PIPELINED_CPU, server.name, pipelined.cpu_us)

    def _single_synced(self, server: Server) -> None:
        self.figures.add(DISK, server.name, bare_sync_us(self._folder))
        with RawProducer(server, _SYNCED, ACKS_ALL) as producer:
            trips = producer.round_trips(self._load.synced_trips)
            pipelined = producer.pipelined(self._load.synced_pipelined)
        self.figures.add(SYNCED_P50, server.name, trips.p50_us)
        self.figures.add(SYNCED_P99, server.name, trips.p99_us)
        self.figures.add(SYNCED_PIPELINED, server.name, pipelined.per_s)
        if server.flushing.synced_topic:
            trips, pipelined = self._few(server, _PLAIN)
        self.figures.add(SHIPPED_P50, server.name, trips.p50_us)
        self.figures.add(SHIPPED_P99, server.name, trips.p99_us)
        self.figures.add(SHIPPED_PIPELINED, server.name, pipelined.per_s)
        if server.flushing.unsynced_topic:
            trips, pipelined = self._few(server, _UNSYNCED)
        self.figures.add(UNSYNCED_P50, server.name, trips.p50_us)
        self.figures.add(UNSYNCED_P99, server.name, trips.p99_us)
        self.figures.add(UNSYNCED_PIPELINED, server.name, pipelined.per_s)

    def _few(self, server: Server, topic: str) -> tuple[RoundTrips, Pipelined]:
        """As many requests as the synced ones, to a topic that does not sync."""
        with RawProducer(server, topic, ACKS_ALL) as producer:
            return producer.round_trips(self._load.synced_trips), producer.pipelined(self._load.synced_pipelined)

    def _bulk(self, server: Server, topic: str, size: str, measured: bool = True) -> None:
        if server.name in self._without_bulk:
            return
        try:
            self._bulk_of(server, topic, size, measured)
        except (ServerFailed, KafkaException) as error:
            if not server.is_optional:
                raise
            # A current client may not support this broker: noted once, and not tried again.
            self._without_bulk.add(server.name)
            self.notes.append(f"{server.name}, big batches: n/a, since {error}")

    def _bulk_of(self, server: Server, topic: str, size: str, measured: bool) -> None:
        value_bytes = SIZES[size]
        topics = server.topics
        count = self._load.bulk_mb[size] * 1_000_000 // value_bytes
        if not measured:
            count //= 4
        topics.make(topic)
        produced = workloads.produce(server, topic, value_bytes, count)
        consumed = workloads.consume(server, topic, value_bytes, count)
        # Deleted at once, so that unused data is not written back to disk.
        topics.delete(topic)
        if measured:
            self.figures.add(PRODUCE[size], server.name, produced.mb_per_s)
            self.figures.add(PRODUCE_CPU[size], server.name, produced.cpu_s_per_gb)
            self.figures.add(CONSUME[size], server.name, consumed.mb_per_s)
            self.figures.add(CONSUME_CPU[size], server.name, consumed.cpu_s_per_gb)

    def _compressed(self, server: Server, topic: str, codec: str, measured: bool = True) -> None:
        if server.is_optional:
            return  # what is old may not know the codec
        value_bytes = SIZES[COMPRESSED_SIZE]
        count = self._load.bulk_mb[COMPRESSED_SIZE] * 1_000_000 // value_bytes
        server.topics.make(topic)
        produced = workloads.produce(server, topic, value_bytes, count if measured else count // 4, codec=codec)
        server.topics.delete(topic)
        if measured:
            self.figures.add(COMPRESSED[codec], server.name, produced.mb_per_s)
            self.figures.add(COMPRESSED_CPU[codec], server.name, produced.cpu_s_per_gb)


def bare_sync_us(folder: Path) -> float:
    """The median time of a small append and its sync, without a broker."""
    record = os.urandom(_BARE_BYTES)
    times_s = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(_BARE_SYNCS):
            began = time.perf_counter()
            file.write(record)
            os.fdatasync(file.fileno())
            times_s.append(time.perf_counter() - began)
    return statistics.median(times_s) * 1e6
