"""A broker through its life: topics are created, it is stopped, restarted, measured and stopped; and the rows of that.

Brokers of the same scale take turns, round by round, and their order changes. Requests are measured after a restart,
since a broker carries its partitions for longer than it creates them.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.growth.probes import Cost, Crowd, Fetches, Places, wait_until_readable
from benchmarks.peers.servers import Server, ServerFailed
from benchmarks.peers.workloads import ACKS_LEADER, RawProducer
from benchmarks.results import Better, Figure, Row, in_turn

REQUESTS: Final = (
    "produce one record, acks=1",
    "fetch one ready batch",
    "session over all, nothing new",
    "session over all, one record ready",
    "session over all, woken by a record",
)
PARTS: Final = ("p50", "p99", "CPU")
"""Figures of each request in microseconds; the CPU time is that of the broker per request."""
_MOST_IN_A_TOPIC = 1000
_FEW, _SETTLE_S = 1, 1.0
_JOIN_S = 60.0

# ---------------------------------------------------------------------------------------------- the life of a broker


Starter = Callable[[Path], Server]


@dataclass(frozen=True)
class Load:
    partitions: tuple[int, ...]
    most_beside: int  # partitions up to which the peer takes part
    connections: int
    rounds: int
    trips: int
    sessions: int
    woken: int
    warm_up: int


FULL = Load((1, 1000, 5000), 1000, 500, rounds=3, trips=2000, sessions=400, woken=30, warm_up=20_000)
QUICK = Load((1, 200), 200, 50, rounds=1, trips=300, sessions=50, woken=5, warm_up=2000)


class Run:
    def __init__(
        self, load: Load, ours: Starter, beside: Starter | None, folder: Path, say: Callable[[str], None]
    ) -> None:
        self.figures = Figures()
        self._load = load
        self._ours = ours
        self._beside = beside
        self._folder = folder
        self._say = say

    def run(self) -> None:
        for partitions in self._load.partitions:
            starters = [self._ours]
            if self._beside is not None and partitions <= self._load.most_beside:
                starters.append(self._beside)
            with tempfile.TemporaryDirectory(prefix="growth-", dir=self._folder) as scratch:
                self._carry(partitions, [(starter, Path(scratch, str(n))) for n, starter in enumerate(starters)])

    def _carry(self, partitions: int, starters: Sequence[tuple[Starter, Path]]) -> None:
        places = places_of(partitions)
        scale = Scale(partitions, _FEW)
        with ExitStack() as stack:
            servers = []
            for starter, folder in starters:
                empty_mb = self._make(scale, places, starter, folder)
                servers.append(stack.enter_context(starter(folder)))
                self._started(scale, servers[-1], empty_mb)
                wait_until_readable(servers[-1], places)
            for server in servers:
                self._warm_up(server, places)
            for number in range(self._load.rounds):
                self._say(f"{partitions:,} partitions: round {number + 1} of {self._load.rounds}")
                for server in in_turn(servers, number):
                    self._ask(server, places, scale)
                    self._ask_in_a_crowd(server, places, partitions)
        for server in servers:
            self.figures.add(STOPPED, server.name, scale, server.stop_s)

    def _make(self, scale: Scale, places: Places, starter: Starter, folder: Path) -> float:
        """Creates the topics and stops. Returns the broker's memory without them."""
        with starter(folder) as server:
            self._say(f"{scale.partitions:,} partitions: making topics in {server.name}")
            server.topics.make("witness")
            time.sleep(_SETTLE_S)
            empty_mb = server.rss_mb()
            with Witness(server) as witness:
                began = time.perf_counter()
                for name, count in places:
                    server.topics.make(name, partitions=count)
                wait_until_readable(server, places)
                made_s = time.perf_counter() - began
            self.figures.add(MADE, server.name, scale, made_s)
            self.figures.add(WAITED, server.name, scale, witness.longest_s * 1000)
            time.sleep(_SETTLE_S)
            per_partition_kb = (server.rss_mb() - empty_mb) / scale.partitions * 1000
            self._of_many(PARTITION_NEW, server, scale, per_partition_kb)
        self.figures.add(STOPPED_NEW, server.name, scale, server.stop_s)
        return empty_mb

    def _started(self, scale: Scale, server: Server, empty_mb: float) -> None:
        self.figures.add(STARTED, server.name, scale, server.start_s)
        time.sleep(_SETTLE_S)
        alone_mb = server.rss_mb()
        self.figures.add(MEMORY, server.name, scale, alone_mb)
        per_partition_kb = (alone_mb - empty_mb) / scale.partitions * 1000
        self._of_many(PARTITION, server, scale, per_partition_kb)
        # Before other requests, whose freed memory would be reused and hide the cost.
        with Crowd(server, self._load.connections):
            crowded_mb = server.rss_mb()
        if not server.has_reserved_heap:
            per_connection_kb = (crowded_mb - alone_mb) / self._load.connections * 1000
            self.figures.add(CONNECTION, server.name, scale, per_connection_kb)

    def _of_many(self, what: Work, server: Server, scale: Scale, figure: float) -> None:
        """Adds a figure unless one partition is too little to measure, or the heap is reserved at the start."""
        if scale.partitions > 1 and not server.has_reserved_heap:
            self.figures.add(what, server.name, scale, figure)

    def _warm_up(self, server: Server, places: Places) -> None:
        with RawProducer(server, places[0][0], ACKS_LEADER) as producer:
            producer.pipelined(self._load.warm_up)
            producer.round_trips(self._load.warm_up // 4)
        with Fetches(server, places) as fetches:
            fetches.ready(self._load.trips)
            fetches.active(self._load.sessions)

    def _ask(self, server: Server, places: Places, scale: Scale) -> None:
        with RawProducer(server, places[0][0], ACKS_LEADER) as producer:
            trips = producer.round_trips(self._load.trips)
        self._note("produce one record, acks=1", server, scale, Cost(trips.p50_us, trips.p99_us, trips.cpu_us))
        with Fetches(server, places) as fetches:
            self._note("fetch one ready batch", server, scale, fetches.ready(self._load.trips))
            self._note("session over all, nothing new", server, scale, fetches.idle(self._load.sessions))
            self._note("session over all, one record ready", server, scale, fetches.active(self._load.sessions))
            self._note("session over all, woken by a record", server, scale, fetches.woken(self._load.woken))

    def _ask_in_a_crowd(self, server: Server, places: Places, partitions: int) -> None:
        with Crowd(server, self._load.connections):
            self._ask(server, places, Scale(partitions, self._load.connections))

    def _note(self, work: str, server: Server, scale: Scale, cost: Cost) -> None:
        for part, figure in zip(PARTS, cost, strict=True):
            self.figures.add(request(work, part), server.name, scale, figure)


class Witness:
    """A producer on its own connection that records its longest wait."""

    def __init__(self, server: Server) -> None:
        self.longest_s = 0.0
        self._producer = RawProducer(server, "witness", ACKS_LEADER)
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        try:
            while not self._ended.wait(0.001):
                trip = self._producer.round_trips(1)
                self.longest_s = max(self.longest_s, trip.p50_us / 1e6)
        except (OSError, ServerFailed) as error:
            self._failure = error

    def __enter__(self) -> Witness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_JOIN_S)
        self._producer.close()
        if self._failure is not None:
            raise ServerFailed(f"the producer beside failed: {self._failure}")


def places_of(partitions: int) -> Places:
    """Topics with this many partitions in total."""
    whole, rest = divmod(partitions, _MOST_IN_A_TOPIC)
    counts = [_MOST_IN_A_TOPIC] * whole + ([rest] if rest else [])
    return [(f"growth-{number}", count) for number, count in enumerate(counts)]


# ---------------------------------------------------------------------------------------------- rows of the result


class Scale(NamedTuple):
    """Partitions and connections of the broker."""

    partitions: int
    connections: int

    def __str__(self) -> str:
        return f"{self.partitions:,} / {self.connections:,}"


class Work(NamedTuple):
    name: str
    unit: str


MADE: Final = Work("create the topics until all can be read", "s")
WAITED: Final = Work("longest answer to another producer meanwhile", "ms")
STOPPED_NEW: Final = Work("stop after that", "s")
STARTED: Final = Work("start with them", "s")
MEMORY: Final = Work("memory then", "MB")
PARTITION_NEW: Final = Work("memory per partition when created", "KB")
PARTITION: Final = Work("memory per partition after a start", "KB")
CONNECTION: Final = Work("memory per connection", "KB")
STOPPED: Final = Work("stop after serving", "s")
LIFE: Final = (MADE, WAITED, STOPPED_NEW, STARTED, MEMORY, PARTITION_NEW, PARTITION, CONNECTION, STOPPED)


def request(name: str, part: str) -> Work:
    return Work(f"{name}, {part}", "µs")


WORKS: Final = (*(request(name, part) for name in REQUESTS for part in PARTS), *LIFE)


class Figures:
    def __init__(self) -> None:
        self._rounds: dict[tuple[Work, str, Scale], list[float]] = defaultdict(list)

    def add(self, work: Work, server: str, scale: Scale, figure: float) -> None:
        self._rounds[work, server, scale].append(figure)

    @property
    def scales(self) -> list[Scale]:
        return sorted({scale for _, _, scale in self._rounds}, key=lambda scale: (scale.connections, scale.partitions))

    def figure(self, work: Work, server: str, scale: Scale) -> Figure | None:
        rounds = self._rounds.get((work, server, scale))
        return Figure.of(rounds) if rounds else None


def rows(figures: Figures, servers: Sequence[str]) -> list[Row]:
    ours, *others = servers
    return [
        *(row for server in servers for row in by_scale(figures, server)),
        *(row for theirs in others for row in beside(figures, ours, theirs)),
    ]


def table_of(server: str) -> str:
    return f"{server}, by partitions / connections"


def by_scale(figures: Figures, server: str) -> list[Row]:
    """A row per work, a column per scale."""
    rows = []
    for work in WORKS:
        found = {str(scale): figures.figure(work, server, scale) for scale in figures.scales}
        known = {name: figure for name, figure in found.items() if figure is not None}
        if known:
            rows.append(Row(work.name, work.unit, Better.LOWER, known, list(known)[-1], table=table_of(server)))
    return rows


def beside(figures: Figures, ours: str, theirs: str) -> list[Row]:
    """A row per work and scale that both have."""
    rows = []
    for work in WORKS:
        for scale in figures.scales:
            mine, other = (figures.figure(work, server, scale) for server in (ours, theirs))
            if mine is not None and other is not None:
                rows.append(
                    Row(
                        f"{work.name}, {scale}",
                        work.unit,
                        Better.LOWER,
                        {ours: mine, theirs: other},
                        ours,
                        theirs,
                        table=f"{ours} beside {theirs}, by partitions / connections",
                    )
                )
    return rows
