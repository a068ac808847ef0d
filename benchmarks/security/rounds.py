"""Rounds: the order and length of the loads, and the rows of the result.

Within a round both brokers do the same work one right after the other, and each round begins with the other one. All
is warmed up before the first round, since the JVM compiles what it runs often. A figure is the median of the rounds.

ACL checks have rounds of their own, each with new processes: two processes that run the same code differ by some
percent, which is as much as a check costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from benchmarks.clients.rounds import Outcome, Outcomes
from benchmarks.peers import kafka, ours
from benchmarks.results import Better, Figure, Row, in_turn
from benchmarks.security import workloads
from benchmarks.security.brokers import ACLS, PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL, SecureBroker
from benchmarks.security.workloads import Connector

BULK: Final = "TLS and plaintext: big batches with confluent-kafka, 1 KB"
CONNECTIONS: Final = f"New connections, {workloads.THREADS} clients in a closed loop"
CHECKS: Final = "ACL checks: requests with one record, 64 in flight"
OPENED: Final = {
    SSL: "TLS handshake",
    SASL_PLAINTEXT: "SCRAM-SHA-512 login",
    SASL_SSL: "TLS handshake and SCRAM-SHA-512 login",
}
FIELDS: Final = ("produce", "consume")
CHECKED: Final = {"Produce": workloads.produce_one, "Fetch": workloads.fetch_one}
MOST_CPU, MOST_OF_A_REQUEST = 0.7, 3.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Load:
    """The number of rounds, and how long each contender is clocked with each work in a round.

    ACL checks have more and shorter rounds: what differs is the process, not the moment.
    """

    rounds: int
    check_rounds: int
    seconds: float
    check_seconds: float
    portion_mb: int
    slice_requests: int
    warm_up_s: float


FULL: Final = Load(
    rounds=3, check_rounds=9, seconds=5.0, check_seconds=2.5, portion_mb=800, slice_requests=2_500, warm_up_s=4.0
)
QUICK: Final = Load(
    rounds=1, check_rounds=1, seconds=0.3, check_seconds=0.3, portion_mb=40, slice_requests=500, warm_up_s=0.2
)


@dataclass(frozen=True)
class Contender:
    """A running broker without an authorizer, and what starts a new one without or with ACLs."""

    broker: SecureBroker
    start: Callable[[bool], AbstractContextManager[SecureBroker]]

    @property
    def name(self) -> str:
        return self.broker.name


class Run:
    def __init__(self, load: Load, contenders: Sequence[Contender], say: Say) -> None:
        self.outcomes: dict[str, Outcomes] = {}
        self.suites: dict[str, str] = {}
        self._load = load
        self._contenders = contenders
        self._say = say

    def run(self) -> None:
        load = self._load
        for contender in self._contenders:
            self._say(f"warming up {contender.name}")
            for work in (self._bulk, self._connections):
                work(contender, load.warm_up_s)
        self.outcomes = {}
        for number in range(load.rounds):
            for work in (self._bulk, self._connections):
                for contender in in_turn(self._contenders, number):
                    self._say(f"round {number + 1} of {load.rounds}, {work.__name__.strip('_')}, {contender.name}")
                    work(contender, load.seconds)
        for number in range(load.check_rounds):
            for contender in in_turn(self._contenders, number):
                self._say(f"ACL checks, round {number + 1} of {load.check_rounds}, {contender.name}")
                self._checks(contender, load.check_seconds)

    def _add(self, work: str, contender: Contender, outcome: Outcome) -> None:
        self.outcomes.setdefault(work, Outcomes()).add(contender.name, outcome)

    def _bulk(self, contender: Contender, seconds: float) -> None:
        for protocol in (SSL, PLAINTEXT):
            produced, consumed = workloads.bulk(contender.broker.listener(protocol), seconds, self._load.portion_mb)
            outcome = {
                "produce": produced.mb_per_s,
                "produce_cpu": produced.cpu_s_per_gb,
                "consume": consumed.mb_per_s,
                "consume_cpu": consumed.cpu_s_per_gb,
            }
            self._add(protocol, contender, outcome)

    def _connections(self, contender: Contender, seconds: float) -> None:
        for protocol, work in OPENED.items():
            connector = Connector(contender.broker, protocol)
            done = workloads.opened(contender.broker.listener(protocol), connector, seconds)
            self._add(work, contender, {"per_s": done.per_s, "cpu_us": done.cpu_us})
            if connector.suite:
                self.suites[contender.name] = connector.suite

    def _checks(self, contender: Contender, seconds: float) -> None:
        load = self._load
        with contender.start(False) as without_acls, contender.start(True) as with_acls:
            pair = (without_acls, with_acls)
            for make in CHECKED.values():
                workloads.cpu_of_requests(pair, make, load.warm_up_s, load.slice_requests)
            for api, make in CHECKED.items():
                without, checked = workloads.cpu_of_requests(pair, make, seconds, load.slice_requests)
                outcome = {"without": without, "with": checked, "share": (checked - without) / checked * 100}
                self._add(api, contender, outcome)

    # --- the result

    def rows(self) -> list[Row]:
        return [*self._bulk_rows(), *self._connection_rows(), *self._check_rows()]

    def _bulk_rows(self) -> list[Row]:
        found: list[Row] = []
        for protocol, says, rate_goal, cpu_goal in ((SSL, "TLS", 1.0, MOST_CPU), (PLAINTEXT, "plaintext", None, None)):
            for field in FIELDS:
                found += [
                    self._row(f"{field}, {says}", "MB/s", Better.HIGHER, protocol, field, rate_goal, BULK),
                    self._row(
                        f"broker CPU per GB {field}d, {says}",
                        "s",
                        Better.LOWER,
                        protocol,
                        f"{field}_cpu",
                        cpu_goal,
                        BULK,
                    ),
                ]
        for field in FIELDS:
            rates, cpu = self._quotients(field), self._quotients(f"{field}_cpu")
            found += [
                self._own(f"{field}: rate with TLS to the rate without", "", Better.HIGHER, rates, BULK),
                self._own(f"{field}: broker CPU with TLS to CPU without", "", Better.LOWER, cpu, BULK),
            ]
        return found

    def _connection_rows(self) -> list[Row]:
        found: list[Row] = []
        for work in OPENED.values():
            found.append(self._row(f"{work}s", "1/s", Better.HIGHER, work, "per_s", None, CONNECTIONS))
            found.append(self._row(f"broker CPU per {work}", "µs", Better.LOWER, work, "cpu_us", None, CONNECTIONS))
        return found

    def _check_rows(self) -> list[Row]:
        found: list[Row] = []
        for api in CHECKED:
            for field, says in (("without", "no authorizer"), ("with", f"{ACLS} ACLs")):
                work = f"broker CPU per {api} request, {says}"
                found.append(self._row(work, "µs", Better.LOWER, api, field, None, CHECKS))
            shares = {name: self.outcomes[api].figure(name, "share") for name in self._names}
            found.append(
                self._own(
                    f"share of ACL checks in a {api} request", "%", Better.LOWER, shares, CHECKS, MOST_OF_A_REQUEST
                )
            )
        return found

    @property
    def _names(self) -> list[str]:
        return [contender.name for contender in self._contenders]

    def _row(self, work: str, unit: str, better: Better, key: str, field: str, goal: float | None, table: str) -> Row:
        figures = self.outcomes[key].figures({name: name for name in self._names}, field)
        return Row(work, unit, better, figures, ours.NAME, kafka.NAME, goal, table)

    def _own(
        self, work: str, unit: str, better: Better, figures: Mapping[str, Figure], table: str, goal: float | None = None
    ) -> Row:
        """A figure of each broker by itself."""
        return Row(work, unit, better, figures, ours.NAME, None, goal, table)

    def _quotients(self, field: str) -> dict[str, Figure]:
        """With TLS to without, round by round."""
        return {
            name: Figure.of(
                [
                    tls[field] / plain[field]
                    for tls, plain in zip(
                        self.outcomes[SSL].by_contender[name], self.outcomes[PLAINTEXT].by_contender[name], strict=True
                    )
                ]
            )
            for name in self._names
        }
