"""One run, from a seed to a report.

Brokers start, clients work while faults happen, then the faults end and the cluster must recover within a bound:
brokers serve, every replica is in sync, writes are acknowledged, readers have caught up. Then everything is read back
and compared with what clients were told, and replicas with each other. Only the seed and the `Plan` determine a run.

A broker is given its clock and randomness; the public clients create their own, by the names in `REPLACED_NAMES`,
which stand for those of the simulated process during a run. A name that no longer exists is an error.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, cast
from unittest import mock

from penstock.cluster.tree.tree import Operation
from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random, SeededRandom
from penstock.testing.simulation import cleanup
from penstock.testing.simulation.cleanup import Cleanup
from penstock.testing.simulation.cluster import SimulatedCluster
from penstock.testing.simulation.cluster_checks import TreeAudit, Unhealed, differences, unhealed
from penstock.testing.simulation.fault_injector import LONGEST_WAIT_S, FaultInjector
from penstock.testing.simulation.faults import Fault, format_schedule, random_schedule
from penstock.testing.simulation.history import History, commit_findings, findings, unseen_records
from penstock.testing.simulation.loop import SimulatedLoop
from penstock.testing.simulation.observer import Observer, observed
from penstock.testing.simulation.scheduler import Scheduler, SimulationFailed, Trace
from penstock.testing.simulation.workload import (
    JOURNAL,
    PARTITIONS,
    SESSION_TIMEOUT_MS,
    Operator,
    Reader,
    Writer,
    places_of,
    read_commits,
    read_everything,
)


class _Time:
    """The parts of the module `time` that clients use."""

    @staticmethod
    def monotonic() -> float:
        return _clock().monotonic_ms() / 1000

    @staticmethod
    def time_ns() -> int:
        return _clock().now_ms() * 1_000_000


def _clock() -> Clock:
    return cast(Clock, _process().clock)


def _random() -> Random:
    return cast(Random, _process().random)


def _process() -> SimulatedLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimulatedLoop) or loop.clock is None or loop.random is None:
        raise RuntimeError(f"a client in the simulator runs outside of a simulated process, on {loop!r}")
    return loop


REPLACED_NAMES: tuple[tuple[str, str, Any], ...] = (
    ("penstock.client.cluster_client", "SystemClock", _clock),
    ("penstock.client.cluster_client", "SystemRandom", _random),
    ("penstock.client.consumer.core", "SystemClock", _clock),
    ("penstock.client.offset_stores.broker", "SystemClock", _clock),
    ("penstock.client.producer.async_producer", "time", _Time),
    ("penstock.client.producer.async_producer", "_time_ns", _Time.time_ns),
)


@contextmanager
def simulated_client_environment() -> Iterator[None]:
    """Installed during a run."""
    with ExitStack() as stack:
        for module, name, replacement in REPLACED_NAMES:
            stack.enter_context(mock.patch.object(importlib.import_module(module), name, replacement))
        yield


QUICK: Final = "quick"
ARCHIVE: Final = "archive"
SETTINGS: Final = {
    "num.partitions": str(PARTITIONS),
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "log.segment.bytes": "262144",
    "log.index.interval.bytes": "4096",
    # Often enough that disks have something to forget, and to be damaged, that was known to be durable.
    "replica.high.watermark.checkpoint.interval.ms": "2000",
}
REPLICATED: Final = {
    **SETTINGS,
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "auto.create.topics.enable": "false",
    "zookeeper.session.timeout.ms": "1500",
    "replica.lag.time.max.ms": "1000",
    "replica.fetch.wait.max.ms": "500",
    "replica.fetch.backoff.ms": "100",
}
_LOOK_EVERY_S: Final = 0.01
HASTE: Final = 2.0
"""Drawn faults are compressed in time by this factor, as are the time-outs above: idle time costs as much as any other
and shows nothing."""
TOPICS: Final = {JOURNAL: {}, QUICK: {"flush.messages": "1000000"}, ARCHIVE: {}}
"""The second one does not sync before it acknowledges, the third is mostly idle."""


class Durability(Enum):
    """How much of a run's records the brokers may lose, drawn from the seed.

    Where a topic does not sync before it acknowledges, what all who are in sync lose at once is lost, and excused. So
    that few acknowledgements are, such a topic takes part in five of eight runs. In four of those one broker at most
    ends other than in good order: as long as it is not the only one in sync, nothing may be lost.
    """

    ALL_SYNCED = "every topic syncs before it acknowledges"
    ONE_FORGETS = "at most one broker loses unsynced data"
    ANY_FORGET = "any broker may lose unsynced data"

    @classmethod
    def of(cls, seed: int) -> Durability:
        return _DRAWN[SeededRandom(f"{seed}/durability").below(len(_DRAWN))]


_DRAWN: Final = (*[Durability.ALL_SYNCED] * 3, *[Durability.ONE_FORGETS] * 4, Durability.ANY_FORGET)


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a run; times are virtual seconds."""

    brokers: int = 1
    writers: int = 2
    faults_s: float = 6.0
    mean_gap_s: float = 0.6
    heal_s: float = 60.0
    schedule: tuple[Fault, ...] | None = None
    """Used instead of a drawn schedule."""

    @property
    def is_alone(self) -> bool:
        return self.brokers == 1

    @property
    def readers(self) -> int:
        return 1 if self.is_alone else 2

    def topics(self, durability: Durability) -> dict[str, dict[str, str]]:
        """By their settings. With a written schedule, its author decides what may be lost."""
        if self.is_alone:
            return {JOURNAL: {}}
        is_synced = durability is Durability.ALL_SYNCED and self.schedule is None
        return {name: settings for name, settings in TOPICS.items() if not (is_synced and name == QUICK)}


@dataclass(slots=True)
class Report:
    """The outcome of a run. `problem` is empty on success."""

    seed: int
    problem: str = ""
    trace_hash: str = ""
    virtual_s: float = 0.0
    callbacks: int = 0
    schedule: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    """Actions of the operator, and their outcomes."""
    sent: int = 0
    acknowledged: int = 0
    excused: int = 0
    """Acknowledged records that are excused, because too many brokers had lost them: see `History.lost`."""
    given_up: int = 0
    read: int = 0
    commits: int = 0
    """Committed offsets that were acknowledged."""
    excused_commits: int = 0
    checks: int = 0
    """Number of checks of invariants."""
    stories: Counter[str] = field(default_factory=Counter)
    """Rare events worth counting."""
    last_lines: list[str] = field(default_factory=list)


def compressed_in_time(fault: Fault) -> Fault:
    """A drawn fault, compressed in time."""
    return replace(fault, at_s=round(fault.at_s / HASTE, 3), for_s=round(fault.for_s / HASTE, 3))


class Violation(SimulationFailed):
    """Clients got wrong responses, or the replicas differ."""


def simulate(seed: int, plan: Plan | None = None, *, lines: int = 60) -> Report:
    """Run a seed to its end. The report has the problem and the last `lines` of the trace."""
    chosen = plan or Plan()
    report = Report(seed)
    trace = Trace()
    with determined(trace) as collect:
        run = _Run(seed, chosen, trace)
        try:
            with observed(run.observer), ExitStack() as run.watching:
                run.live()
            collect()
            if run.scheduler.failure is not None:
                raise run.scheduler.failure
        except Exception as failure:  # noqa: BLE001 - whatever it is, the seed that brings it about is worth knowing
            report.problem = _problem_text(failure)
        finally:
            run.fill(report)
            run.cluster.kill_all()
            del run
    report.trace_hash = trace.hash
    if report.problem:
        report.last_lines = trace.last_lines(lines)
    return report


class _Run:
    def __init__(self, seed: int, plan: Plan, trace: Trace) -> None:
        self.plan = plan
        self.watching = ExitStack()
        durability = Durability.of(seed)
        self.topics = plan.topics(durability)
        self.scheduler = Scheduler(seed, trace)
        self.has_cleanup = cleanup.is_drawn(seed)
        clients = plan.writers + plan.readers + 1 + (not plan.is_alone) + self.has_cleanup
        self.cluster = SimulatedCluster(
            self.scheduler,
            seed,
            brokers=plan.brokers,
            spares=0 if plan.is_alone else 1,
            clients=clients,
            settings={
                **(SETTINGS if plan.is_alone else REPLICATED),
                **(cleanup.SETTINGS if self.has_cleanup else {}),
            },
        )
        self.history = History()
        self.hand = FaultInjector(self.cluster, seed)
        self.observer = Observer(self.cluster, self.history)
        self.operator: Operator | None = None
        self.cleanup: Cleanup | None = None
        self.audit = TreeAudit(self.cluster.tree.state, self.observer.complain)
        if not plan.is_alone:
            self.cluster.tree.audit = self._tree_changes
        self.schedule = plan.schedule if plan.schedule is not None else tuple(
            compressed_in_time(fault) for fault in random_schedule(
                SeededRandom(f"{seed}/schedule"),
                [node.name for node in self.cluster.nodes],
                [host.name for host in self.cluster.clients[: plan.writers + plan.readers]],
                start_s=0.0,
                end_s=plan.faults_s * HASTE,
                mean_gap_s=plan.mean_gap_s * HASTE,
                spares=[node.name for node in self.cluster.spares],
                may_forget=plan.is_alone or durability is not Durability.ONE_FORGETS,
            )
        )  # fmt: skip

    def _tree_changes(self, operations: Sequence[Operation], session: int) -> None:
        self.audit(operations, session)
        self.observer.tree_changes(operations)

    def live(self) -> None:
        cluster, plan, history = self.cluster, self.plan, self.history
        hosts = iter(cluster.clients)
        cluster.start()
        self.hand.schedule(self.schedule)
        self.observer.tick()
        topics = tuple(self.topics)
        writers = [
            Writer(next(hosts), cluster.bootstrap, history, topics, still=(ARCHIVE,)) for _ in range(plan.writers)
        ]
        readers = [Reader(next(hosts), cluster.bootstrap, history, topics) for _ in range(plan.readers)]
        if not plan.is_alone:
            self.operator = Operator(next(hosts), cluster.bootstrap, history, self.topics, self._broker_ids, replicas=3)
        if self.has_cleanup:
            replicas = 1 if plan.is_alone else 3
            self.cleanup = Cleanup(next(hosts), cluster, self.observer.complain, replicas=replicas)
            self.watching.enter_context(cleanup.watched(self.cleanup))
        last_s = max((fault.at_s + fault.for_s for fault in self.schedule), default=plan.faults_s)
        self.scheduler.run_until(
            lambda: self.scheduler.now_s >= last_s and self.hand.is_over,
            limit_s=last_s + LONGEST_WAIT_S + 0.1,
            look_every_s=_LOOK_EVERY_S,
        )
        self._heal(writers, readers)
        self._judge()

    def _judge(self) -> None:
        """Compare the logs with the responses to clients, and the replicas with each other."""
        cluster, history = self.cluster, self.history
        places, auditor = places_of(self.topics), cluster.clients[-1]
        reading = auditor.spawn(read_everything(cluster.bootstrap, "auditor", places))
        self._await("everything is read", reading.done)
        asking = auditor.spawn(read_commits(cluster.bootstrap, "auditor", places))
        self._await("committed offsets are available", asking.done)
        found = findings(history, reading.result())
        found += commit_findings(history, reading.result(), asking.result())
        if not self.plan.is_alone:
            self._await("all replicas have the same end", lambda: not differences(cluster, only_lengths=True))
            found += differences(cluster)
        if self.cleanup is not None:
            self._await("deleted records are gone everywhere", lambda: self.cleanup is None or self.cleanup.is_settled)
            found += self.cleanup.findings()
        found += [told for each in self.observer.leaders() if (told := each[0].sequences(each[1])) is not None]
        if found:
            more = f" (and {len(found) - 5} more)" if len(found) > 5 else ""
            raise Violation("; ".join(found[:5]) + more)

    def _broker_ids(self) -> list[int]:
        return [node.broker_id for node in self.cluster.nodes]

    def _heal(self, writers: list[Writer], readers: list[Reader]) -> None:
        cluster, plan = self.cluster, self.plan
        self._limit_s = self.scheduler.now_s + plan.heal_s
        began_s = self.scheduler.now_s
        self.hand.replace_rotten()
        for writer in writers:
            writer.is_calm = True
        self._await("brokers serve", cluster.all_serving)
        operator = self.operator
        if operator is not None:
            operator.is_ending = True
            # Where nothing was acknowledged, a broker may have lost its disk before it had a log of the partition.
            empty = [place for place in places_of(self.topics) if not self.history.acknowledged.get(place)]
            operator.lost = list(dict.fromkeys([*self.history.losses, *empty]))
            self._await("every replica is in sync", lambda: not unhealed(cluster))
            places = [(writer, place) for writer in writers for place in places_of(self.topics)]
            self._await(
                "every partition acknowledges writes",
                lambda: all(writer.at_work().last.get(place, 0.0) > began_s for writer, place in places),
            )
            operator.is_released = True
            self._await("the operator is done", operator.task.done)
            operator.task.result()
        ending: list[Writer | Cleanup] = [*writers]
        ending += [] if self.cleanup is None else [self.cleanup]
        for each in ending:
            each.is_ending = True
        self._await("all sends are settled", lambda: all(each.task.done() for each in ending))
        for each in ending:
            each.task.result()
        self._await("readers have caught up", self._is_caught_up)
        for reader in readers:
            reader.is_ending = True
        self._await("the readers end", lambda: all(reader.task.done() for reader in readers))
        for reader in readers:
            reader.task.result()

    def _is_caught_up(self) -> bool:
        return next(unseen_records(self.history), None) is None

    def _await(self, what: str, done: Callable[[], object]) -> None:
        if not self.scheduler.run_until(done, limit_s=self._limit_s, look_every_s=_LOOK_EVERY_S):
            state = "" if self.plan.is_alone else f" ({self.cluster.broker_states()}; {unhealed(self.cluster)})"
            raise Unhealed(f"{what}: not within {self.plan.heal_s:g} s after the last fault{state}")

    def fill(self, report: Report) -> None:
        history = self.history
        report.virtual_s, report.callbacks = self.scheduler.now_s, self.scheduler.callbacks
        report.schedule = format_schedule(self.schedule)
        report.faults = Counter(self.hand.done)
        report.changes = Counter() if self.operator is None else Counter(self.operator.done)
        report.changes += Counter() if self.cleanup is None else self.cleanup.done
        report.sent, report.acknowledged = len(history.sent), history.acknowledgements
        report.given_up, report.read, report.commits = len(history.given_up), history.reads, history.commits
        report.excused, report.excused_commits = history.excused_records, history.excused_commits
        report.stories = Counter(self.scheduler.trace.counts)
        report.checks = self.observer.checks + self.audit.states


def _problem_text(failure: BaseException) -> str:
    told = f"{type(failure).__name__}: {failure}"
    if isinstance(failure, SimulationFailed) and failure.__cause__ is None:
        return told
    cause = failure.__cause__ or failure
    frames = []
    trace = cause.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_filename.rpartition('penstock/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{told} [{' < '.join(reversed(frames[-6:]))}]"


class _Listener(logging.Handler):
    """Log lines of the code under test go into the trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.WARNING)
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._trace.tell(record.name.removeprefix("penstock."), record.getMessage() + (f": {error!r}" if error else ""))


@contextmanager
def determined(trace: Trace) -> Iterator[Callable[[], Any]]:
    """Disable automatic garbage collection and output. Yields a function that collects."""
    logger = logging.getLogger("penstock")
    listener, propagates, level = _Listener(trace), logger.propagate, logger.level
    logger.addHandler(listener)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    was_enabled = gc.isenabled()
    gc.disable()
    # What was there before is not looked at: it may be much, and whatever of it is garbage is none of this run's.
    gc.freeze()
    try:
        with simulated_client_environment():
            yield gc.collect
        before, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Again, for what the finalizers of the first time brought back to life: nobody else ever looks at it.
                for _ in range(2):
                    gc.collect()
        finally:
            sys.unraisablehook = before
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
        logger.removeHandler(listener)
        logger.propagate = propagates
        logger.setLevel(level)
