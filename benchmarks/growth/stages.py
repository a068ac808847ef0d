"""A broker through its life: topics are made, it is stopped and started again, asked, and stopped.

Brokers of the same scale are asked in turns, round by round, and their order turns too. Requests are measured after a
start, as a broker carries its partitions for longer than it creates them.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.growth import figures
from benchmarks.growth.figures import PARTS, Figures, Scale, Work
from benchmarks.growth.probes import Cost, Crowd, Fetches, Places, wait_until_readable
from benchmarks.peers.requests import ACKS_LEADER, RawProducer
from benchmarks.peers.servers import Server, ServerFailed

Starter = Callable[[Path], Server]

_MOST_IN_A_TOPIC = 1000
_FEW, _SETTLE_S = 1, 1.0
_JOIN_S = 60.0


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
                turn = number % len(servers)
                for server in [*servers[turn:], *servers[:turn]]:
                    self._ask(server, places, scale)
                    self._ask_in_a_crowd(server, places, partitions)
        for server in servers:
            self.figures.add(figures.STOPPED, server.name, scale, server.stop_s)

    def _make(self, scale: Scale, places: Places, starter: Starter, folder: Path) -> float:
        """Make the topics, and stop; how much memory the broker took without them."""
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
            self.figures.add(figures.MADE, server.name, scale, made_s)
            self.figures.add(figures.WAITED, server.name, scale, witness.longest_s * 1000)
            time.sleep(_SETTLE_S)
            a_partition_kb = (server.rss_mb() - empty_mb) / scale.partitions * 1000
            self._of_many(figures.PARTITION_NEW, server, scale, a_partition_kb)
        self.figures.add(figures.STOPPED_NEW, server.name, scale, server.stop_s)
        return empty_mb

    def _started(self, scale: Scale, server: Server, empty_mb: float) -> None:
        self.figures.add(figures.STARTED, server.name, scale, server.start_s)
        time.sleep(_SETTLE_S)
        alone_mb = server.rss_mb()
        self.figures.add(figures.MEMORY, server.name, scale, alone_mb)
        a_partition_kb = (alone_mb - empty_mb) / scale.partitions * 1000
        self._of_many(figures.PARTITION, server, scale, a_partition_kb)
        # Before anything else was asked: what earlier requests have freed would be taken first, and not show.
        with Crowd(server, self._load.connections):
            crowded_mb = server.rss_mb()
        if not server.has_reserved_heap:
            a_connection_kb = (crowded_mb - alone_mb) / self._load.connections * 1000
            self.figures.add(figures.CONNECTION, server.name, scale, a_connection_kb)

    def _of_many(self, what: Work, server: Server, scale: Scale, figure: float) -> None:
        """Memory of one partition is lost in what else moves, and that in a heap reserved at once is never seen."""
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
            self.figures.add(figures.request(work, part), server.name, scale, figure)


class Witness:
    """A producer on a connection of its own that asks again and again, and remembers its longest wait."""

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
    """Topics with as many partitions together."""
    whole, rest = divmod(partitions, _MOST_IN_A_TOPIC)
    counts = [_MOST_IN_A_TOPIC] * whole + ([rest] if rest else [])
    return [(f"growth-{number}", count) for number, count in enumerate(counts)]
