"""A run: a cluster, the clients on it, faults one after the other, and then the judgement.

The judgement uses what clients wrote down and what the cluster has in the end, never what the harness believes to have
done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.faults import reading_back
from benchmarks.faults.checking import Verdict, check_client, check_contents
from benchmarks.faults.clients import SENDERS, SETTINGS, group_of
from benchmarks.faults.clusters import Cluster
from benchmarks.faults.gaps import Gap, gaps
from benchmarks.faults.injecting import Happened, Injector, Say
from benchmarks.faults.journal import Acked, Event
from benchmarks.faults.schedule import Pair, deck, schedule
from benchmarks.faults.workers import Load, loaded

_WARM_UP_S: Final = 60.0
_READ_S: Final = 120.0
_BETWEEN_RESTARTS_S: Final = 2.0
# What a topic needs so that one replica may be away: as Kafka's documentation says for three of them.
CONFIGS: Final = {"min.insync.replicas": "2"}


@dataclass(frozen=True)
class Plan:
    """`only` are the faults to choose from, all by default. With `outlasts`, each lasts until writes have resumed."""

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
    """`settings` are those that differ from what is shipped, by kind of server, topic and client."""

    plan: Plan
    kind: str
    happened: Sequence[Happened]
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
        """No finding of any judge; in a rolling restart, no send that failed and no error told to a reader either."""
        all_good = self.contents.is_good and not self.replica_findings
        all_good = all_good and all(each.is_good for each in self.clients.values())
        if self.plan.rolling_rounds:
            all_good = all_good and not any(each.failed or each.told for each in self.clients.values())
        return all_good


def run(cluster: Cluster, plan: Plan, folder: Path, say: Say) -> Outcome:
    """NotInTime if the cluster does not recover; ServerFailed if a server or client ends by itself."""
    say(f"topic with {plan.partitions} partitions; {', '.join(plan.clients)}: {plan.rate:.0f} records/s each")
    cluster.make_topic(plan.topic, plan.partitions, CONFIGS)
    with loaded(plan.clients, folder, cluster.bootstrap, plan.topic, plan.partitions, plan.rate) as load:
        injector = Injector(cluster, plan.topic, load, say, is_rough=plan.is_rough, outlasts=plan.outlasts)
        load.wait_for_progress(_WARM_UP_S)
        injector.wait_until_whole()
        began_s = time.monotonic()
        happened = _roll(cluster, plan, injector) if plan.rolling_rounds else _hit(cluster, plan, injector)
        injector.wait_until_whole()
        ended_s = time.monotonic()
        say("faults are over: waiting for the last acknowledgements, and for the groups to read all")
        load.flush()
        _end(cluster, plan, load, say)
        events = {worker.client: worker.events for worker in load.workers}
    return _judged(cluster, plan, happened, events, began_s, ended_s, say)


def _hit(cluster: Cluster, plan: Plan, injector: Injector) -> list[Happened]:
    pairs = plan.only or deck(
        can_cut=cluster.network.can_cut, has_keepers=bool(cluster.keepers), is_rough=plan.is_rough
    )
    return [injector.carry_out(fault) for fault in schedule(plan.seed, plan.faults, pairs)]


def _roll(cluster: Cluster, plan: Plan, injector: Injector) -> list[Happened]:
    happened: list[Happened] = []
    for _ in range(plan.rolling_rounds):
        for node in cluster.nodes.values():
            time.sleep(_BETWEEN_RESTARTS_S)
            happened.append(injector.restart(len(happened) + 1, node))
    return happened


def _end(cluster: Cluster, plan: Plan, load: Load, say: Say) -> None:
    late = load.wait_until_read(reading_back.ends(cluster.bootstrap, plan.topic, plan.partitions), _READ_S)
    if late:
        say(f"the groups of {', '.join(late)} have not read all after {_READ_S:.0f} s")
    load.end()


def _judged(cluster: Cluster, plan: Plan, happened: Sequence[Happened], events: dict[str, list[Event]],
            began_s: float, ended_s: float, say: Callable[[str], None]) -> Outcome:  # fmt: skip
    say("reading all back")
    contents = reading_back.contents(cluster.bootstrap, plan.topic, plan.partitions)
    ends = {partition: len(records) for partition, records in contents.items()}
    committed = {
        client: reading_back.committed(cluster.bootstrap, group_of(client), plan.topic, plan.partitions)
        for client in events
    }
    return Outcome(
        plan=plan,
        kind=cluster.kind,
        happened=happened,
        contents=check_contents(contents),
        clients={client: check_client(each, contents, committed[client]) for client, each in events.items()},
        gaps=gaps(happened, events),
        replica_findings=reading_back.replica_findings(cluster, plan.topic, ends),
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
