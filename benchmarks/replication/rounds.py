"""Rounds: which cluster is loaded when, and with how much.

Within a round both clusters do the same work right after each other, and which one begins turns from round to round.
Before the first round of requests and bulk each is warmed up: the JVM compiles what it runs often, and that is not what
is compared. A topic of bulk is deleted at once, so that the machine does not write back to disk what nobody reads.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from benchmarks.peers import bulk
from benchmarks.peers.figures import Figures
from benchmarks.peers.requests import ACKS_ALL, RawProducer
from benchmarks.replication import failover, figures
from benchmarks.replication.contenders import Contender, Leading, Setup
from benchmarks.replication.failover import Fault
from benchmarks.replication.figures import DEEPEST, DEPTHS, SIZES

T = TypeVar("T")
Say = Callable[[str], None]
_SHIPPED, _UNSYNCED = "single", "single-unsynced"
_IDLE_S: Final = 5.0
REQUESTS, BULK, FAILOVER = "requests", "bulk", "failover"
PARTS: Final = (REQUESTS, BULK, FAILOVER)


@dataclass(frozen=True)
class Load:
    """How many rounds there are, and how much of each work a round has."""

    rounds: int
    bulk_rounds: int
    bulk_mb: dict[str, int]
    trips: int
    pipelined: int
    warm_up: int
    failovers: int


FULL = Load(rounds=6, bulk_rounds=4, bulk_mb={"100 B": 60, "1 KB": 200}, trips=1000, pipelined=2000, warm_up=15_000,
            failovers=2)  # fmt: skip
QUICK = Load(rounds=2, bulk_rounds=1, bulk_mb={"100 B": 20, "1 KB": 60}, trips=300, pipelined=600, warm_up=2000,
             failovers=1)  # fmt: skip


class Run:
    """Requests and bulk, on clusters that run already; the figures grow as it goes."""

    def __init__(
        self, figures: Figures, load: Load, contenders: Sequence[Contender], say: Say, parts: Collection[str] = PARTS
    ) -> None:
        self.figures = figures
        self._load = load
        self._contenders = contenders
        self._parts = parts
        self._say = say
        self._numbers = itertools.count()

    def run(self) -> None:
        for contender in self._contenders:
            self._say(f"{contender.name}: idle, warming up")
            self._idle(contender)
            self._warm_up(contender)
        if REQUESTS in self._parts:
            self._request_rounds()
        if BULK in self._parts:
            self._bulk_rounds()

    def _request_rounds(self) -> None:
        for number in range(self._load.rounds):
            self._say(f"requests, round {number + 1} of {self._load.rounds}")
            for contender in turned(self._contenders, number):
                self._requests(contender)

    def _bulk_rounds(self) -> None:
        for number in range(self._load.bulk_rounds):
            self._say(f"bulk, round {number + 1} of {self._load.bulk_rounds}")
            for size in SIZES:
                for contender in turned(self._contenders, number):
                    self._bulk(contender, size)

    def _idle(self, contender: Contender) -> None:
        cpu_s = contender.cluster.cpu_s()
        time.sleep(_IDLE_S)
        self.figures.add(figures.IDLE, contender.name, (contender.cluster.cpu_s() - cpu_s) / _IDLE_S * 100)

    def _warm_up(self, contender: Contender) -> None:
        if REQUESTS in self._parts:
            self._warm_up_requests(contender)
        if BULK in self._parts:
            for size in SIZES:
                self._bulk_of(contender, size, self._load.bulk_mb[size] // 2, {})

    def _warm_up_requests(self, contender: Contender) -> None:
        contender.cluster.make_topic(_SHIPPED, 1, {})
        contender.cluster.make_topic(_UNSYNCED, 1, contender.unsynced)
        for topic in (_SHIPPED, _UNSYNCED):
            with RawProducer(Leading(contender, topic), topic, ACKS_ALL) as producer:
                producer.pipelined(self._load.warm_up)
                producer.round_trips(self._load.warm_up // 4)

    def _requests(self, contender: Contender) -> None:
        add, name, load = self.figures.add, contender.name, self._load
        with RawProducer(Leading(contender, _SHIPPED), _SHIPPED, ACKS_ALL) as producer:
            trips = producer.round_trips(load.trips)
            add(figures.TRIP_P50, name, trips.p50_us)
            add(figures.TRIP_P99, name, trips.p99_us)
            add(figures.TRIP_CPU, name, trips.cpu_us)
            for depth in DEPTHS:
                pipelined = producer.pipelined(load.pipelined, depth)
                add(figures.DEPTH[depth], name, pipelined.per_s)
                if depth == DEEPEST:
                    add(figures.DEPTH_CPU, name, pipelined.cpu_us)
        with RawProducer(Leading(contender, _UNSYNCED), _UNSYNCED, ACKS_ALL) as producer:
            trips = producer.round_trips(load.trips)
            add(figures.UNSYNCED_P50, name, trips.p50_us)
            add(figures.UNSYNCED_P99, name, trips.p99_us)
            add(figures.UNSYNCED_DEEP, name, producer.pipelined(load.pipelined, DEEPEST).per_s)

    def _bulk(self, contender: Contender, size: str) -> None:
        mb = self._load.bulk_mb[size]
        shipped = self._bulk_of(contender, size, mb, {})
        self.figures.add(figures.PRODUCE[size], contender.name, shipped.mb_per_s)
        self.figures.add(figures.PRODUCE_CPU[size], contender.name, shipped.cpu_s_per_gb)
        unsynced = self._bulk_of(contender, size, mb, dict(contender.unsynced)) if contender.unsynced else shipped
        self.figures.add(figures.UNSYNCED_PRODUCE[size], contender.name, unsynced.mb_per_s)

    def _bulk_of(self, contender: Contender, size: str, mb: int, configs: dict[str, str]) -> bulk.Transfer:
        topic = f"bulk-{next(self._numbers)}"
        contender.cluster.make_topic(topic, 1, configs)
        count = mb * 1_000_000 // SIZES[size]
        try:
            return bulk.produce(Leading(contender, topic), topic, SIZES[size], count, ACKS_ALL)
        finally:
            contender.cluster.delete_topic(topic)


def fail_over(
    measured: Figures, contenders: Sequence[Contender], setup: Setup, faults: Sequence[Fault], times: int, say: Say
) -> None:
    """Every fault so many times on each cluster in its turn."""
    for number in range(times):
        for fault in faults:
            for contender in turned(contenders, number):
                topic = f"failover-{number}-{fault.name.lower()}"
                found = failover.measure(contender.cluster, topic, fault, setup.producers, number)
                seen = {**found.gaps_s, figures.ELECTION: found.elected_s}
                for who, seconds in seen.items():
                    measured.add(figures.FAILOVER[setup.name, fault, who], contender.name, seconds)
                say(f"{setup.name}: {contender.name}, {fault.value}: "
                    + ", ".join(f"{who} {seconds:.2f} s" for who, seconds in seen.items()))  # fmt: skip


def turned(contenders: Sequence[T], number: int) -> list[T]:
    """The same, beginning with another one in each round."""
    turn = number % len(contenders)
    return [*contenders[turn:], *contenders[:turn]]
