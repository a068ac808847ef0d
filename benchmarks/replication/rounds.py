"""Rounds: the two clusters, the order and size of the loads, and the rows of the result.

Within a round both clusters do the same work right after each other, and which one begins changes from round to round.
Each is warmed up before the first round. CPU is that of all three brokers, and of the ZooKeepers that ours needs. A
bulk topic is deleted at once, so that unused data is not written back to disk. `UNSYNCED_*` rows have ours
with flush settings by which it does not sync either, beside Kafka as shipped.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.faults.access import CONFLUENT
from benchmarks.faults.access import OURS as OUR_CLIENT
from benchmarks.faults.cluster import Cluster, NoAnswer
from benchmarks.faults.kafka_cluster import KafkaCluster
from benchmarks.faults.namespaces import Network
from benchmarks.faults.penstock_cluster import PenstockCluster
from benchmarks.peers import kafka, ours, workloads
from benchmarks.peers.rounds import AT_LEAST, AT_MOST, Figures, Work
from benchmarks.peers.servers import Dialect
from benchmarks.peers.workloads import ACKS_ALL, RawProducer
from benchmarks.replication import failover
from benchmarks.replication.failover import SENDERS, Fault
from benchmarks.results import in_turn

OURS: Final = ours.NAME
THEIRS: Final = kafka.NAME
_NEVER: Final = str(2**63 - 1)


@dataclass(frozen=True)
class Setup:
    """Settings on top of what is shipped: of the brokers by cluster, of the producers by client."""

    name: str
    brokers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    producers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


LOADED: Final = Setup("requests and bulk")
_QUIET: Final = {"log_level": 0}
SHIPPED: Final = Setup("as shipped", producers={CONFLUENT: _QUIET})
# Six seconds is what ours ships. Clients that wait half a minute for an answer would hide what the brokers do.
EQUAL: Final = Setup(
    "broker sessions of 6 s, clients that wait 2 s",
    brokers={
        OURS: {"zookeeper.session.timeout.ms": "6000"},
        THEIRS: {"broker.session.timeout.ms": "6000"},
    },
    producers={
        CONFLUENT: {"request.timeout.ms": 2000, "socket.timeout.ms": 2000, **_QUIET},
        OUR_CLIENT: {"request_timeout_ms": 2000},
    },
)


@dataclass
class Contender:
    """`unsynced` are the settings of a topic by which acks=all does not wait for the disk."""

    name: str
    cluster: Cluster
    unsynced: Mapping[str, str]


def penstock(network: Network, folder: Path, setup: Setup) -> Contender:
    cluster = PenstockCluster(network, folder, setup.brokers.get(OURS, {}), tick_ms=None)
    return Contender(OURS, cluster, {"flush.messages": _NEVER})


def apache_kafka(network: Network, folder: Path, setup: Setup) -> Contender:
    """NotAvailable."""
    return Contender(THEIRS, KafkaCluster(network, folder, setup.brokers.get(THEIRS, {}), jvm=()), {})


Maker = Callable[[Network, Path, Setup], Contender]
MAKERS: Final[dict[str, Maker]] = {"penstock": penstock, "kafka": apache_kafka}


class Leading:
    """A cluster, seen from the broker that leads partition 0 of a topic."""

    def __init__(self, contender: Contender, topic: str) -> None:
        self.name = contender.name
        self.dialect = Dialect()
        self._cluster = contender.cluster
        view = self._cluster.agreed([topic])
        if view is None:
            raise NoAnswer(f"the brokers of {contender.name} do not agree on the leader of {topic}")
        node = self._cluster.nodes[view.partitions[topic, 0].leader]
        self.port = node.port
        self.address = node.address

    def cpu_s(self) -> float:
        return self._cluster.cpu_s()


SIZES: Final = {"100 B": 100, "1 KB": 1000}
DEPTHS: Final = (1, 2, 4, 8, 16, 32, 64)
DEEPEST: Final = DEPTHS[-1]
_BULK: Final = "Big batches with confluent-kafka, acks=all, three replicas"
_REQUESTS: Final = "Requests with one record on one connection, acks=all, three replicas"

PRODUCE: Final = {size: Work(f"produce {size}", "MB/s", AT_LEAST, 1.0, _BULK) for size in SIZES}
PRODUCE_CPU: Final = {size: Work(f"CPU of the cluster per GB, {size}", "s", AT_MOST, None, _BULK) for size in SIZES}
UNSYNCED_PRODUCE: Final = {
    size: Work(f"neither synced: produce {size}", "MB/s", AT_LEAST, None, _BULK) for size in SIZES
}
TRIP_P50: Final = Work("round trip p50", "µs", AT_MOST, 1.0, _REQUESTS)
TRIP_P99: Final = Work("round trip p99", "µs", AT_MOST, 1.0, _REQUESTS)
TRIP_CPU: Final = Work("CPU of the cluster per request, one at a time", "µs", AT_MOST, 0.5, _REQUESTS)
DEPTH: Final = {
    depth: Work(f"{depth} in flight", "1/s", AT_LEAST, 3.0 if depth == DEEPEST else None, _REQUESTS) for depth in DEPTHS
}
DEPTH_CPU: Final = Work(f"CPU of the cluster per request, {DEEPEST} in flight", "µs", AT_MOST, 0.5, _REQUESTS)
UNSYNCED_P50: Final = Work("neither synced: round trip p50", "µs", AT_MOST, 0.6, _REQUESTS)
UNSYNCED_P99: Final = Work("neither synced: round trip p99", "µs", AT_MOST, 0.6, _REQUESTS)
UNSYNCED_DEEP: Final = Work(f"neither synced: {DEEPEST} in flight", "1/s", AT_LEAST, None, _REQUESTS)
IDLE: Final = Work("CPU of the cluster, idle, of one core", "%", AT_MOST, None, _REQUESTS)

ELECTION: Final = "until another broker leads"
_GOALS: Final = {(SHIPPED.name, Fault.KILLED, CONFLUENT): 0.2}


def _failover(setup: Setup, fault: Fault, seen_by: str) -> Work:
    what = seen_by if seen_by == ELECTION else f"longest gap of {'our client' if seen_by == OUR_CLIENT else seen_by}"
    return Work(
        f"{fault.value}: {what}", "s", AT_MOST, _GOALS.get((setup.name, fault, seen_by)), f"Failover, {setup.name}"
    )


SETUPS: Final = (SHIPPED, EQUAL)
FAILOVER_ROWS: Final = {
    (setup.name, fault, seen_by): _failover(setup, fault, seen_by)
    for setup in SETUPS
    for fault in Fault
    for seen_by in (*SENDERS, ELECTION)
}

ROWS: Final = (
    *(row for size in SIZES for row in (PRODUCE[size], PRODUCE_CPU[size])),
    *UNSYNCED_PRODUCE.values(),
    TRIP_P50,
    TRIP_P99,
    TRIP_CPU,
    *DEPTH.values(),
    DEPTH_CPU,
    UNSYNCED_P50,
    UNSYNCED_P99,
    UNSYNCED_DEEP,
    IDLE,
    *FAILOVER_ROWS.values(),
)


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
            for contender in in_turn(self._contenders, number):
                self._requests(contender)

    def _bulk_rounds(self) -> None:
        for number in range(self._load.bulk_rounds):
            self._say(f"bulk, round {number + 1} of {self._load.bulk_rounds}")
            for size in SIZES:
                for contender in in_turn(self._contenders, number):
                    self._bulk(contender, size)

    def _idle(self, contender: Contender) -> None:
        cpu_s = contender.cluster.cpu_s()
        time.sleep(_IDLE_S)
        self.figures.add(IDLE, contender.name, (contender.cluster.cpu_s() - cpu_s) / _IDLE_S * 100)

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
            add(TRIP_P50, name, trips.p50_us)
            add(TRIP_P99, name, trips.p99_us)
            add(TRIP_CPU, name, trips.cpu_us)
            for depth in DEPTHS:
                pipelined = producer.pipelined(load.pipelined, depth)
                add(DEPTH[depth], name, pipelined.per_s)
                if depth == DEEPEST:
                    add(DEPTH_CPU, name, pipelined.cpu_us)
        with RawProducer(Leading(contender, _UNSYNCED), _UNSYNCED, ACKS_ALL) as producer:
            trips = producer.round_trips(load.trips)
            add(UNSYNCED_P50, name, trips.p50_us)
            add(UNSYNCED_P99, name, trips.p99_us)
            add(UNSYNCED_DEEP, name, producer.pipelined(load.pipelined, DEEPEST).per_s)

    def _bulk(self, contender: Contender, size: str) -> None:
        mb = self._load.bulk_mb[size]
        shipped = self._bulk_of(contender, size, mb, {})
        self.figures.add(PRODUCE[size], contender.name, shipped.mb_per_s)
        self.figures.add(PRODUCE_CPU[size], contender.name, shipped.cpu_s_per_gb)
        unsynced = self._bulk_of(contender, size, mb, dict(contender.unsynced)) if contender.unsynced else shipped
        self.figures.add(UNSYNCED_PRODUCE[size], contender.name, unsynced.mb_per_s)

    def _bulk_of(self, contender: Contender, size: str, mb: int, configs: dict[str, str]) -> workloads.Transfer:
        topic = f"bulk-{next(self._numbers)}"
        contender.cluster.make_topic(topic, 1, configs)
        count = mb * 1_000_000 // SIZES[size]
        try:
            return workloads.produce(Leading(contender, topic), topic, SIZES[size], count, ACKS_ALL)
        finally:
            contender.cluster.delete_topic(topic)


def fail_over(
    measured: Figures, contenders: Sequence[Contender], setup: Setup, faults: Sequence[Fault], times: int, say: Say
) -> None:
    """Each fault `times` times on each cluster in turn."""
    for number in range(times):
        for fault in faults:
            for contender in in_turn(contenders, number):
                topic = f"failover-{number}-{fault.name.lower()}"
                found = failover.measure(contender.cluster, topic, fault, setup.producers, number)
                seen = {**found.gaps_s, ELECTION: found.elected_s}
                for who, seconds in seen.items():
                    measured.add(FAILOVER_ROWS[setup.name, fault, who], contender.name, seconds)
                say(f"{setup.name}: {contender.name}, {fault.value}: "
                    + ", ".join(f"{who} {seconds:.2f} s" for who, seconds in seen.items()))  # fmt: skip
