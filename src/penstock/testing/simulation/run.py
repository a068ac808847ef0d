"""One run, from a seed to a report.

Brokers start and clients work while faults happen. Then the faults end, and the cluster must recover within a limit:
brokers serve, every replica is in sync, writes are acknowledged, readers have caught up. Then all records are read
back and compared with the responses to clients, and the replicas with each other. Only the seed and the `Plan`
determine a run.

A broker gets its clock and randomness by injection. The public clients create their own, under the names in
`REPLACED_NAMES`, which a run replaces by those of the simulated process. A name that no longer exists is an error.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, cast
from unittest import mock

from penstock.cluster.tree.tree import Operation
from penstock.log.log_dirs import replica_moves
from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random, SeededRandom
from penstock.testing.simulation import cleanup
from penstock.testing.simulation.cleanup import Cleanup
from penstock.testing.simulation.cluster import SimulatedCluster
from penstock.testing.simulation.cluster_checks import TreeAudit, Unhealed, differences, doubles, moving, unhealed
from penstock.testing.simulation.fault_injector import LONGEST_WAIT_S, FaultInjector
from penstock.testing.simulation.faults import Fault, format_schedule, random_schedule
from penstock.testing.simulation.history import History, commit_findings, final_commits, findings, unseen_records
from penstock.testing.simulation.loop import SimulatedLoop, unreported_finalizers
from penstock.testing.simulation.observer import Observer, observed
from penstock.testing.simulation.scheduler import Scheduler, SimulationFailed, Trace
from penstock.testing.simulation.transactions import faults as transaction_faults
from penstock.testing.simulation.transactions import workload as transactions
from penstock.testing.simulation.transactions.workload import Transactions
from penstock.testing.simulation.workload import (
    JOURNAL,
    PARTITIONS,
    SESSION_TIMEOUT_MS,
    Operator,
    Reader,
    Writer,
    partitions_of,
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
    ("penstock.client.producer.producer", "time", _Time),
)


@contextmanager
def simulated_client_environment() -> Iterator[None]:
    """Give the public clients the clock and randomness of their simulated process."""
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
    # Often enough that a recovery point covers records, which a disk can then lose or damage.
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
_MOVED_BYTES: Final = (("PIECE_BYTES", 16 * 1024), ("REST_BYTES", 4 * 1024))
"""Logs are small in a run: a move between data folders still takes several pieces, between which much may happen."""
_CHECK_EVERY_S: Final = 0.01
TIME_COMPRESSION: Final = 2.0
"""Drawn faults are compressed in time by this factor, as are the timeouts above: idle time costs as much as any other
and shows nothing."""
TOPICS: Final = {JOURNAL: {}, QUICK: {"flush.messages": "1000000"}, ARCHIVE: {}}
"""`quick` does not sync before it acknowledges; `archive` is mostly idle."""


class Durability(Enum):
    """How much of a run's records the brokers may lose, drawn from the seed.

    If a topic does not sync before it acknowledges, records that all in-sync replicas lose at once are lost, and
    excused. To keep excused records few, such a topic takes part in only five of eight runs. In four of those at most
    one broker ends uncleanly: as long as it is not the only one in sync, nothing may be lost.
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
    def is_single(self) -> bool:
        return self.brokers == 1

    @property
    def readers(self) -> int:
        return 1 if self.is_single else 2

    def topics(self, durability: Durability) -> dict[str, dict[str, str]]:
        """The topics and their settings. With a given schedule all take part: its author decides what may be lost."""
        if self.is_single:
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
    """Acknowledged records that are excused because too many brokers lost them: see `History.lost`."""
    given_up: int = 0
    read: int = 0
    commits: int = 0
    """Committed offsets that were acknowledged."""
    excused_commits: int = 0
    excused_reads: int = 0
    starts: int = 0
    """Members that began to read an assigned partition."""
    excused_starts: int = 0
    final_commits: int = 0
    """Committed offsets that were compared with the logs in the end."""
    excused_final_commits: int = 0
    checks: int = 0
    """Number of checks of invariants."""
    stories: Counter[str] = field(default_factory=Counter)
    """Rare events worth counting."""
    last_lines: list[str] = field(default_factory=list)


def compressed_in_time(fault: Fault) -> Fault:
    """A drawn fault, compressed in time by `TIME_COMPRESSION`."""
    return replace(fault, at_s=round(fault.at_s / TIME_COMPRESSION, 3), for_s=round(fault.for_s / TIME_COMPRESSION, 3))


class Violation(SimulationFailed):
    """Clients got wrong responses, or the replicas differ."""


def simulate(seed: int, plan: Plan | None = None, *, lines: int = 60) -> Report:
    """Run a seed to its end. The report has the problem and the last `lines` of the trace."""
    chosen = plan or Plan()
    report = Report(seed)
    trace = Trace()
    with deterministic(trace) as collect:
        run = _Run(seed, chosen, trace)
        try:
            with observed(run.observer), ExitStack() as run.patches:
                run.execute()
            collect()
            if run.scheduler.failure is not None:
                raise run.scheduler.failure
        except Exception as failure:  # noqa: BLE001 - any failure is reported with its seed
            report.problem = _problem_text(failure)
        finally:
            run.fill(report)
            report.trace_hash = trace.hash
            run.cluster.kill_all()
            del run
    if report.problem:
        report.last_lines = trace.last_lines(lines)
    return report


class _Run:
    def __init__(self, seed: int, plan: Plan, trace: Trace) -> None:
        self.plan = plan
        self.seed = seed
        self.patches = ExitStack()
        durability = Durability.of(seed)
        self.topics = plan.topics(durability)
        self.scheduler = Scheduler(seed, trace)
        self.has_cleanup = cleanup.is_drawn(seed)
        self.has_transactions = transactions.is_drawn(seed)
        clients = plan.writers + plan.readers + 1 + (not plan.is_single) + self.has_cleanup
        first_transactional = clients - 1
        clients += transactions.HOSTS if self.has_transactions else 0
        self.cluster = SimulatedCluster(
            self.scheduler,
            seed,
            brokers=plan.brokers,
            spares=0 if plan.is_single else 1,
            clients=clients,
            settings={
                **(SETTINGS if plan.is_single else REPLICATED),
                **(cleanup.SETTINGS if self.has_cleanup else {}),
                **(transactions.settings_of(seed, is_single=plan.is_single) if self.has_transactions else {}),
            },
        )
        self.history = History()
        self.faults = FaultInjector(self.cluster, seed)
        self.observer = Observer(self.cluster, self.history)
        self.operator: Operator | None = None
        self.cleanup: Cleanup | None = None
        self.transactions: Transactions | None = None
        disturbed = self.cluster.clients[: plan.writers + plan.readers]
        if self.has_transactions:
            disturbed += self.cluster.clients[first_transactional : first_transactional + transactions.PRODUCERS]
        self.audit = TreeAudit(self.cluster.tree.state, self.observer.report)
        if not plan.is_single:
            self.cluster.tree.audit = self._tree_changes
        self.schedule = plan.schedule if plan.schedule is not None else tuple(
            compressed_in_time(fault) for fault in random_schedule(
                SeededRandom(f"{seed}/schedule"),
                [node.name for node in self.cluster.nodes],
                [host.name for host in disturbed],
                start_s=0.0,
                end_s=plan.faults_s * TIME_COMPRESSION,
                mean_gap_s=plan.mean_gap_s * TIME_COMPRESSION,
                spares=[node.name for node in self.cluster.spares],
                may_lose_unsynced=plan.is_single or durability is not Durability.ONE_FORGETS,
                folders=len(self.cluster.nodes[0].data_folders),
            )
        )  # fmt: skip

    def _tree_changes(self, operations: Sequence[Operation], session: int) -> None:
        self.audit(operations, session)
        self.observer.tree_changes(operations)

    def execute(self) -> None:
        cluster, plan, history = self.cluster, self.plan, self.history
        hosts = iter(cluster.clients)
        cluster.start()
        self.faults.schedule(self.schedule)
        self.observer.tick()
        topics = tuple(self.topics)
        writers = [
            Writer(next(hosts), cluster.bootstrap, history, topics, quiet=(ARCHIVE,)) for _ in range(plan.writers)
        ]
        readers = [Reader(next(hosts), cluster.bootstrap, history, topics) for _ in range(plan.readers)]
        if not plan.is_single:
            for name, size in _MOVED_BYTES:
                self.patches.enter_context(mock.patch.object(replica_moves, name, size))
            self.operator = Operator(
                next(hosts), cluster.bootstrap, history, self.topics, self._broker_ids, 3, cluster.nodes[0].data_folders
            )
        if self.has_cleanup:
            replicas = 1 if plan.is_single else 3
            self.cleanup = Cleanup(next(hosts), cluster, self.observer.report, replicas=replicas)
            self.patches.enter_context(cleanup.watched(self.cleanup))
        if self.has_transactions:
            own = [next(hosts) for _ in range(transactions.HOSTS)]
            self.transactions = Transactions(
                own,
                cluster,
                self.faults.schedule,
                replicas=1 if plan.is_single else 3,
                seed=self.seed,
                faults_s=plan.faults_s if plan.schedule is None else 0.0,
            )
            self.patches.enter_context(transaction_faults.watched(self.transactions.faults))
        last_s = max((fault.at_s + fault.for_s for fault in self.schedule), default=plan.faults_s)
        self.scheduler.run_until(
            lambda: self.scheduler.now_s >= last_s and self.faults.is_over,
            limit_s=last_s + LONGEST_WAIT_S + 0.1,
            check_every_s=_CHECK_EVERY_S,
        )
        self._heal(writers, readers)
        self._check_logs()

    def _check_logs(self) -> None:
        """Compare the logs with the responses to clients, and the replicas with each other."""
        cluster, history = self.cluster, self.history
        self._await("moves between folders end", lambda: not moving(cluster))
        partitions, auditor = partitions_of(self.topics), cluster.clients[-1]
        reading = auditor.spawn(read_everything(cluster.bootstrap, "auditor", partitions))
        self._await("everything is read", reading.done)
        asking = auditor.spawn(read_commits(cluster.bootstrap, "auditor", partitions))
        self._await("committed offsets are available", asking.done)
        found = findings(history, reading.result())
        found += commit_findings(history, reading.result(), asking.result())
        if not self.plan.is_single:
            self._await("all replicas have the same end", lambda: not differences(cluster, only_lengths=True))
            found += [*differences(cluster), *doubles(cluster)]
        if self.cleanup is not None:
            self._await("deleted records are gone everywhere", lambda: self.cleanup is None or self.cleanup.is_settled)
            found += self.cleanup.findings()
        found += [
            problem for model, replica in self.observer.leaders() if (problem := model.sequences(replica)) is not None
        ]
        self._raise(found)

    def _broker_ids(self) -> list[int]:
        return [node.broker_id for node in self.cluster.nodes]

    def _heal(self, writers: list[Writer], readers: list[Reader]) -> None:
        cluster, plan = self.cluster, self.plan
        self._limit_s = self.scheduler.now_s + plan.heal_s
        began_s = self.scheduler.now_s
        self.faults.replace_corrupted_disks()
        for writer in writers:
            writer.is_calm = True
        if self.transactions is not None:
            self.transactions.calm_down()
        self._await("brokers serve", cluster.all_serving)
        operator = self.operator
        if operator is not None:
            operator.is_ending = True
            # In a partition without acknowledged records, a broker may have lost its disk before it created the log.
            empty = [
                partition for partition in partitions_of(self.topics) if not self.history.acknowledged.get(partition)
            ]
            operator.lost = list(dict.fromkeys([*self.history.losses, *empty]))
            self._await("every replica is in sync", lambda: not unhealed(cluster))
            partitions = [(writer, partition) for writer in writers for partition in partitions_of(self.topics)]
            self._await(
                "every partition acknowledges writes",
                lambda: all(writer.checked().last.get(partition, 0.0) > began_s for writer, partition in partitions),
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
        if self.transactions is not None:
            self._end_transactions(self.transactions)
        self._await("readers have caught up", self._is_caught_up)
        for reader in readers:
            reader.is_ending = True
        self._await("the readers end", lambda: all(reader.task.done() for reader in readers))
        for reader in readers:
            reader.task.result()

    def _end_transactions(self, running: Transactions) -> None:
        """Every transaction ends, every input is processed, and the logs are read back and compared."""
        bootstrap, auditor = self.cluster.bootstrap, self.cluster.clients[-1]
        self._await("transactional clients end", lambda: running.end(running.transactors))
        limit_s = self.scheduler.now_s + transactions.LONGEST_OPEN_S
        if not self.scheduler.run_until(running.is_stable, limit_s=limit_s, check_every_s=_CHECK_EVERY_S):
            raise Unhealed(
                f"every transaction ends: not within {transactions.LONGEST_OPEN_S:g} s: {running.unstable()}"
            )
        reading = auditor.spawn(transactions.read_committed(bootstrap, "auditor", running.partitions))
        self._await("committed records are read", reading.done)
        inputs = reading.result()
        # If one is not, `findings` has more to say than a timeout.
        limit_s = min(self._limit_s, self.scheduler.now_s + transactions.LONGEST_PROCESSING_S)
        self.scheduler.run_until(
            lambda: not running.history.unprocessed(inputs), limit_s=limit_s, check_every_s=_CHECK_EVERY_S
        )
        self._await("transactional clients end", lambda: running.end(running.processors))
        self._await("every transaction ends", running.is_stable)
        asking = auditor.spawn(transactions.read_stable_commits(bootstrap, "auditor", running.partitions))
        self._await("offsets of transactions are stable", asking.done)
        reading = auditor.spawn(transactions.read_committed(bootstrap, "auditor", running.partitions))
        self._await("committed records are read", reading.done)
        log = reading.result()
        self._await("readers of committed records have caught up", lambda: running.has_read(log))
        self._await("transactional clients end", lambda: running.end([running.reader]))
        found = [*running.history.findings(log, asking.result()), *running.differences(log)]
        self._raise(found)
        limit_s = self.scheduler.now_s + transactions.LONGEST_KNOWN_S
        if running.has_expiry and not self.scheduler.run_until(
            lambda: not running.known_ids(), limit_s=limit_s, check_every_s=_CHECK_EVERY_S
        ):
            known = ", ".join(sorted(set(running.known_ids())))
            raise Unhealed(f"unused ids are forgotten: not within {transactions.LONGEST_KNOWN_S:g} s: {known}")

    def _raise(self, found: Sequence[str]) -> None:
        if found:
            more = f" (and {len(found) - 5} more)" if len(found) > 5 else ""
            raise Violation("; ".join(found[:5]) + more)

    def _is_caught_up(self) -> bool:
        """Whether everything was read and committed. What a reader read before it was killed or expelled is read again
        by the next owner; without these commits the run would end before that.
        """
        history = self.history
        return next(unseen_records(history), None) is None and all(
            history.committed.get(partition, -1) >= end for partition, end in final_commits(history).items()
        )

    def _await(self, what: str, done: Callable[[], object]) -> None:
        if not self.scheduler.run_until(done, limit_s=self._limit_s, check_every_s=_CHECK_EVERY_S):
            state = "" if self.plan.is_single else f" ({self.cluster.broker_states()}; {unhealed(self.cluster)})"
            raise Unhealed(f"{what}: not within {self.plan.heal_s:g} s after the last fault{state}")

    def fill(self, report: Report) -> None:
        history = self.history
        report.virtual_s, report.callbacks = self.scheduler.now_s, self.scheduler.callbacks
        report.schedule = format_schedule(self.schedule)
        report.faults = Counter(self.faults.done)
        report.changes = Counter() if self.operator is None else Counter(self.operator.done)
        report.changes += Counter() if self.cleanup is None else self.cleanup.done
        report.changes += self.faults.outlived
        if self.transactions is not None:
            report.changes += self.transactions.done + self.transactions.faults.done + self.transactions.history.fates()
        report.sent, report.acknowledged = len(history.sent), history.acknowledgements
        report.given_up, report.read, report.commits = len(history.given_up), history.reads, history.commits
        report.excused, report.excused_commits = history.excused_records, history.excused_commits
        report.starts, report.final_commits = history.starts, history.final_commits
        report.excused_reads, report.excused_starts = history.excused_reads, history.excused_starts
        report.excused_final_commits = history.excused_final_commits
        report.stories = Counter(self.scheduler.trace.counts)
        report.checks = self.observer.checks + self.audit.states


def _problem_text(failure: BaseException) -> str:
    text = f"{type(failure).__name__}: {failure}"
    if isinstance(failure, SimulationFailed) and failure.__cause__ is None:
        return text
    cause = failure.__cause__ or failure
    frames = []
    trace = cause.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_filename.rpartition('penstock/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{text} [{' < '.join(reversed(frames[-6:]))}]"


class _Listener(logging.Handler):
    """Copies log lines of the code under test into the trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.WARNING)
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._trace.log(record.name.removeprefix("penstock."), record.getMessage() + (f": {error!r}" if error else ""))


@contextmanager
def deterministic(trace: Trace) -> Iterator[Callable[[], Any]]:
    """Disable automatic garbage collection, which would run finalizers at random moments, and log output.

    Yields a function that collects.
    """
    logger = logging.getLogger("penstock")
    listener, propagates, level = _Listener(trace), logger.propagate, logger.level
    logger.addHandler(listener)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    was_enabled = gc.isenabled()
    gc.disable()
    # Objects from before the run are not scanned: they may be many, and garbage among them is not of this run.
    gc.freeze()
    try:
        with simulated_client_environment():
            yield gc.collect
        with unreported_finalizers():
            # Twice, because finalizers of the first collection may resurrect objects.
            for _ in range(2):
                gc.collect()
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
        logger.removeHandler(listener)
        logger.propagate = propagates
        logger.setLevel(level)
