"""One run, from a seed to a verdict.

Noun: a `Report`: what was done, what was found, and the hash of the trace.

Rule: brokers start, clients work while faults happen, then the faults are over and everything must come right within a
bound: brokers serve, what was sent is settled, who follows has caught up. Then all is read once more and compared with
what clients were told. Nothing but the seed and the `Plan` decides what happens: two runs of one seed are the same.
"""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulation.checks import findings
from penstock.testing.simulation.cluster import LONGEST_WAIT_S, SimulatedCluster
from penstock.testing.simulation.faults import Fault, format_schedule, random_schedule
from penstock.testing.simulation.outside import simulated_outside
from penstock.testing.simulation.scheduler import Scheduler, SimulationFailed
from penstock.testing.simulation.trace import Trace
from penstock.testing.simulation.workload import PARTITIONS, History, Reader, Writer, read_everything

SETTINGS = {
    "num.partitions": str(PARTITIONS),
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "log.segment.bytes": "262144",
    "log.index.interval.bytes": "4096",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How a run goes; times are virtual seconds."""

    brokers: int = 1
    writers: int = 2
    faults_s: float = 12.0
    mean_gap_s: float = 1.2
    heal_s: float = 120.0
    schedule: tuple[Fault, ...] | None = None
    """Instead of one that is drawn."""


@dataclass(slots=True)
class Report:
    """What came of a run. `problem` is empty if all is well."""

    seed: int
    problem: str = ""
    trace_hash: str = ""
    virtual_s: float = 0.0
    callbacks: int = 0
    schedule: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    acknowledged: int = 0
    given_up: int = 0
    reread: int = 0
    last_lines: list[str] = field(default_factory=list)


class Unhealed(SimulationFailed):
    """The faults were over, and something did not come right in time."""


class Violation(SimulationFailed):
    """Clients were told something that is not so."""


def simulate(seed: int, plan: Plan | None = None, *, lines: int = 60) -> Report:
    """Run a seed to its end; what is wrong is in the report, with the last `lines` of the trace."""
    chosen = plan or Plan()
    report = Report(seed)
    trace = Trace()
    with _determined(trace) as collect:
        run = _Run(seed, chosen, trace)
        try:
            run.live()
            collect()
            if run.scheduler.failure is not None:
                raise run.scheduler.failure
        except Exception as failure:  # noqa: BLE001 - whatever it is, the seed that brings it about is worth knowing
            report.problem = _told(failure)
        finally:
            run.fill(report)
            run.bury()
            del run
    report.trace_hash = trace.hash
    if report.problem:
        report.last_lines = trace.last_lines(lines)
    return report


class _Run:
    def __init__(self, seed: int, plan: Plan, trace: Trace) -> None:
        self.plan = plan
        self.scheduler = Scheduler(seed, trace)
        self.cluster = SimulatedCluster(
            self.scheduler, seed, brokers=plan.brokers, clients=plan.writers + 2, settings=SETTINGS
        )
        self.history = History()
        writers = [host.name for host in self.cluster.clients[: plan.writers]]
        self.schedule = plan.schedule if plan.schedule is not None else tuple(
            random_schedule(
                SeededRandom(f"{seed}/schedule"),
                [node.name for node in self.cluster.nodes],
                writers,
                start_s=0.0,
                end_s=plan.faults_s,
                mean_gap_s=plan.mean_gap_s,
            )
        )  # fmt: skip

    def live(self) -> None:
        cluster, plan, history = self.cluster, self.plan, self.history
        cluster.start()
        cluster.schedule(self.schedule)
        writers = [Writer(host, cluster.bootstrap, history) for host in cluster.clients[: plan.writers]]
        reader = Reader(cluster.clients[plan.writers], cluster.bootstrap, history)
        last_s = max((fault.at_s + fault.for_s for fault in self.schedule), default=0.0)
        self.scheduler.run_until(limit_s=max(plan.faults_s, last_s) + LONGEST_WAIT_S + 0.1)
        limit_s = self.scheduler.now_s + plan.heal_s
        self._await("brokers serve", cluster.is_whole_or_fails, limit_s)
        for writer in writers:
            writer.is_ending = True
        self._await("what was sent is settled", lambda: all(writer.task.done() for writer in writers), limit_s)
        for writer in writers:
            writer.task.result()
        self._await("who follows has caught up", self._is_caught_up, limit_s)
        reader.is_ending = True
        self._await("the reader ends", reader.task.done, limit_s)
        reader.task.result()
        reading = cluster.clients[-1].spawn(read_everything(cluster.bootstrap, "auditor"))
        self._await("all is read", reading.done, limit_s)
        found = findings(history, reading.result())
        if found:
            more = f" (and {len(found) - 5} more)" if len(found) > 5 else ""
            raise Violation("; ".join(found[:5]) + more)

    def _is_caught_up(self) -> bool:
        read = self.history.read
        return all(place in read for place in self.history.acknowledged)

    def _await(self, what: str, done: Callable[[], object], limit_s: float) -> None:
        if not self.scheduler.run_until(done, limit_s=limit_s):
            raise Unhealed(f"{what}: not within {self.plan.heal_s:g} s after the last fault")

    def fill(self, report: Report) -> None:
        history = self.history
        report.virtual_s, report.callbacks = self.scheduler.now_s, self.scheduler.callbacks
        report.schedule = format_schedule(self.schedule)
        report.faults = Counter(self.cluster.done)
        report.sent, report.acknowledged = len(history.sent), len(history.acknowledged)
        report.given_up, report.reread = len(history.given_up), history.reread

    def bury(self) -> None:
        """Nothing of it may do anything any more, not even while it is forgotten."""
        for host in self.cluster.hosts.values():
            host.loop.kill()
        self.cluster.network.kernel.kill()


def _told(failure: BaseException) -> str:
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
def _determined(trace: Trace) -> Iterator[Callable[[], Any]]:
    """Nothing happens by the whim of the collector, nothing is printed; yields what collects now."""
    logger = logging.getLogger("penstock")
    listener, propagates, level = _Listener(trace), logger.propagate, logger.level
    logger.addHandler(listener)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with simulated_outside():
            yield gc.collect
        before, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                gc.collect()
        finally:
            sys.unraisablehook = before
    finally:
        if was_enabled:
            gc.enable()
        logger.removeHandler(listener)
        logger.propagate = propagates
        logger.setLevel(level)
