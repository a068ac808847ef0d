"""A run: a cluster, clients, faults one after the other, the verdict, and the gaps in acknowledgements.

The verdict uses the clients' journals and what the cluster holds in the end, never what the harness believes to have
done. A gap is the longest time between two acknowledgements in one partition that overlaps a fault, until the cluster
was whole again. Of the partitions that the victim led the worst counts; of all, where it led none.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.faults import checks
from benchmarks.faults.checks import Verdict, check_client, check_contents
from benchmarks.faults.clients import SENDERS, SETTINGS, group_of
from benchmarks.faults.cluster import Cluster
from benchmarks.faults.injector import InjectedFault, Injector, Load, Pair, Say, deck, loaded, schedule
from benchmarks.faults.load import Acked, Event

# Kafka's recommendation for three replicas, of which one may be down.
CONFIGS: Final = {"min.insync.replicas": "2"}
TAKE_BACK: Final = frozenset({"confluent-kafka"})
"""librdkafka repeats a commit that was not answered in time, after it has committed more."""
_WARM_UP_S: Final = 60.0
_READ_S: Final = 120.0
_BETWEEN_RESTARTS_S: Final = 2.0

# ---------------------------------------------------------------------------------------------- the run


@dataclass(frozen=True)
class Plan:
    """The options of a run. `only` are the faults to choose from, all by default.

    With `outlasts`, each fault lasts until writes have resumed.
    """

    faults: int = 50
    seed: int = 1
    partitions: int = 6
    rate: float = 150.0
    clients: tuple[str, ...] = tuple(SENDERS)
    is_rough: bool = False
    rolling_rounds: int = 0
    topic: str = "faults"
    only: tuple[Pair, ...] = ()
    outlasts: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run. `settings` differ from the defaults, by kind of server, topic and client."""

    plan: Plan
    kind: str
    happened: Sequence[InjectedFault]
    contents: Verdict
    clients: dict[str, Verdict]
    gaps: Sequence[Gap]
    replica_findings: Sequence[str]
    acked_s: dict[str, list[float]]
    began_s: float
    ended_s: float
    records: int
    settings: Mapping[str, Mapping[str, Any]]

    @property
    def is_good(self) -> bool:
        """No findings; in a rolling restart, also no failed sends and no errors of readers."""
        all_good = self.contents.is_good and not self.replica_findings
        all_good = all_good and all(each.is_good for each in self.clients.values())
        if self.plan.rolling_rounds:
            all_good = all_good and not any(each.failed or each.errors for each in self.clients.values())
        return all_good


def run(cluster: Cluster, plan: Plan, folder: Path, say: Say) -> Outcome:
    """Runs a plan. Raises WaitTimedOut if the cluster does not recover, ServerFailed if a process ends."""
    say(f"topic with {plan.partitions} partitions; {', '.join(plan.clients)}: {plan.rate:.0f} records/s each")
    cluster.make_topic(plan.topic, plan.partitions, CONFIGS)
    clients = {client: cluster.admit(client, plan.topic, group_of(client)) for client in plan.clients}
    with loaded(clients, folder, cluster.bootstrap, plan.topic, plan.partitions, plan.rate) as load:
        injector = Injector(cluster, plan.topic, load, say, is_rough=plan.is_rough, outlasts=plan.outlasts)
        load.wait_for_progress(_WARM_UP_S)
        injector.wait_until_whole()
        began_s = time.monotonic()
        happened = _roll(cluster, plan, injector) if plan.rolling_rounds else _hit(cluster, plan, injector)
        injector.wait_until_whole()
        ended_s = time.monotonic()
        say("all faults done; waiting for the last acknowledgements and for the groups to read everything")
        load.flush()
        _end(cluster, plan, load, say)
        events = {worker.client: worker.events for worker in load.workers}
    return _judged(cluster, plan, happened, events, began_s, ended_s, say)


def _hit(cluster: Cluster, plan: Plan, injector: Injector) -> list[InjectedFault]:
    pairs = plan.only or deck(
        can_cut=cluster.network.can_cut, has_keepers=bool(cluster.keepers), is_rough=plan.is_rough
    )
    return [injector.carry_out(fault) for fault in schedule(plan.seed, plan.faults, pairs)]


def _roll(cluster: Cluster, plan: Plan, injector: Injector) -> list[InjectedFault]:
    happened: list[InjectedFault] = []
    for _ in range(plan.rolling_rounds):
        for node in cluster.nodes.values():
            time.sleep(_BETWEEN_RESTARTS_S)
            happened.append(injector.restart(len(happened) + 1, node))
    return happened


def _end(cluster: Cluster, plan: Plan, load: Load, say: Say) -> None:
    late = load.wait_until_read(checks.ends(cluster.client, plan.topic, plan.partitions), _READ_S)
    if late:
        say(f"the groups of {', '.join(late)} have not read everything after {_READ_S:.0f} s")
    load.end()


def _judged(cluster: Cluster, plan: Plan, happened: Sequence[InjectedFault], events: dict[str, list[Event]],
            began_s: float, ended_s: float, say: Callable[[str], None]) -> Outcome:  # fmt: skip
    say("reading the log back")
    contents = checks.contents(cluster.client, plan.topic, plan.partitions)
    ends = {partition: len(records) for partition, records in contents.items()}
    committed = {
        client: checks.committed(cluster.client, group_of(client), plan.topic, plan.partitions) for client in events
    }
    return Outcome(
        plan=plan,
        kind=cluster.kind,
        happened=happened,
        contents=check_contents(contents),
        clients={
            client: check_client(each, contents, committed[client], takes_back=client in TAKE_BACK)
            for client, each in events.items()
        },
        gaps=gaps(happened, events),
        replica_findings=checks.replica_findings(cluster, plan.topic, ends),
        acked_s={
            client: [event.acked_s for event in each if isinstance(event, Acked)] for client, each in events.items()
        },
        began_s=began_s,
        ended_s=ended_s,
        records=sum(ends.values()),
        settings={
            **cluster.settings(),
            "topic": CONFIGS,
            **{f"{client} {role}": each for client in plan.clients for role, each in SETTINGS[client].items()},
        },
    )


# ---------------------------------------------------------------------------------------------- gaps


@dataclass(frozen=True)
class Gap:
    happened: InjectedFault
    client: str
    gap_s: float


@dataclass(frozen=True)
class Summary:
    count: int
    p50_s: float
    p99_s: float
    max_s: float


def moments(events: Iterable[Event]) -> dict[int, list[float]]:
    """The times of acknowledgements by partition, in order."""
    found: dict[int, list[float]] = defaultdict(list)
    for event in events:
        if isinstance(event, Acked):
            found[event.partition].append(event.acked_s)
    for each in found.values():
        each.sort()
    return found


def longest(acked_s: Sequence[float], began_s: float, until_s: float) -> float:
    """The longest time between two consecutive acknowledgements that overlaps the interval."""
    worst, before = 0.0, None
    for moment in acked_s:
        if moment > began_s:
            worst = max(worst, min(moment, until_s) - (began_s if before is None else before))
        if moment > until_s:
            return worst
        before = moment
    # No acknowledgement until the end of the interval.
    return max(worst, until_s - (began_s if before is None else before))


def gaps(happened: Sequence[InjectedFault], clients: Mapping[str, Sequence[Event]]) -> list[Gap]:
    by_client = {client: moments(events) for client, events in clients.items()}
    return [
        Gap(
            each, client,
            max((longest(found, each.began_s, each.whole_s) for partition, found in acked.items()
                 if not each.led or partition in each.led), default=0.0),
        )
        for each in happened
        for client, acked in by_client.items()
    ]  # fmt: skip


def summary(values_s: Iterable[float]) -> Summary:
    """Percentiles by nearest rank: the 99th of few is the greatest."""
    ordered = sorted(values_s)
    if not ordered:
        return Summary(0, math.nan, math.nan, math.nan)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Summary(len(ordered), rank(0.5), rank(0.99), ordered[-1])
