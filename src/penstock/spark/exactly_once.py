"""Exactly-once writes: what the driver and each worker process keep for the protocol of the ledger.

In the driver a `Plan` is made for every batch before its tasks start; it checks once per process that the cluster has
transactions. It is pickled into the tasks, which write through a `TaskTransaction`, and their receipts bring it back to
the driver's commit. Times in it are of the driver's clock only, so clocks of executors do not matter.

A worker process claims a query once per run, and then has transactional ids of its own, which it uses again from batch
to batch. Brokers that have two-phase commit keep prepared transactions until the driver ends them, for
writes that can be repeated: a stream, or a batch write that has a name.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.client.errors import ConfigError, PenstockError
from penstock.spark.errors import one_line
from penstock.spark.ledger import (
    NO_BATCH,
    Batch,
    Claim,
    Ledger,
    LedgerRecord,
    Slots,
    StoredRange,
    Winner,
    check_margin,
)
from penstock.spark.ledger_topic import Capabilities, ClusterBrokers, LedgerOptions

if TYPE_CHECKING:
    from penstock.client.producer.producer import Producer

_log = logging.getLogger("penstock.spark")

DEFAULT_TIMEOUT_MS: Final = 15 * 60 * 1000
"""The longest that brokers allow by default (transaction.max.timeout.ms)."""
LEAST_TIMEOUT_MS: Final = 10_000
_MARGIN_PART: Final = 5
"""The last fifth of a transaction's time is the margin for its commit."""
_MOST: Final = 8
_MOST_PRODUCERS: Final = 4
_QUICK_CLOSE_S: Final = 1.0
_ABORTS_AFTER_S: Final = (0.0, 1.5, 1.5)

# ---------------------------------------------------------------------------------------------- plans


@dataclass(frozen=True, slots=True)
class ExactlyOnceOptions:
    """Options of exactly-once delivery, checked."""

    ledger: LedgerOptions
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    write_id: str | None = None
    accept_lost: bool = False


class WriteKey(NamedTuple):
    """A write of a run: a micro-batch of a query, or a batch write as batch 0 of a query of its own."""

    query_id: str
    run_id: str
    batch_id: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How the tasks of one batch write."""

    options: ExactlyOnceOptions
    two_phase_commit: bool
    planned_s: float
    """When it was made, by the driver's clock: no transaction of the batch is older."""
    key: WriteKey | None = None
    """Of a batch write. Tasks of a stream learn theirs from Spark."""
    has_ledger: bool = True

    def check_age(self) -> None:
        """Raises MarginCrossed if it is too late to decide."""
        if not self.two_phase_commit:
            timeout_ms = self.options.timeout_ms
            check_margin((uptime_s() - self.planned_s) * 1000, timeout_ms, timeout_ms // _MARGIN_PART)


def stream_plan(options: ExactlyOnceOptions) -> Plan:
    """The plan of a micro-batch. Raises ConfigError if the cluster has no transactions."""
    found = _cluster(options.ledger)
    return Plan(options, found.checked(options).two_phase_commit, uptime_s())


def batch_plan(options: ExactlyOnceOptions) -> Plan:
    """The plan of a batch write. Raises ConfigError if the cluster has no transactions."""
    run_id = uuid.uuid4().hex
    if options.write_id is not None:
        made = stream_plan(options)
        return Plan(options, made.two_phase_commit, made.planned_s, WriteKey(f"write:{options.write_id}", run_id, 0))
    _cluster(options.ledger).checked(options, needs_ledger=False)
    return Plan(options, False, uptime_s(), WriteKey(f"write-{run_id}", run_id, 0), has_ledger=False)


def uptime_s() -> float:
    """Seconds since the machine was started: the same in all its processes, and also while it sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


# ---------------------------------------------------------------------------------------------- the driver


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a task sends to the driver, besides where its rows are."""

    plan: Plan
    key: WriteKey
    winner: Winner | None
    """None if there is nothing to commit: no rows, or none that had to be written."""
    has_skipped: bool = False


def commit(prepared: Sequence[Prepared], name: str = "") -> None:
    """Decides a batch and carries it out. Raises what `Ledger.commit` does. `name` is remembered for `abort`."""
    if not prepared:
        return
    plan, key = prepared[0].plan, prepared[0].key
    cluster = _cluster(plan.options.ledger)
    cluster.keys[name] = key
    ledger = cluster.ledger(key.query_id)
    winners = tuple(each.winner for each in prepared if each.winner is not None)
    has_skipped = any(each.has_skipped for each in prepared)
    oldest = min((each.plan for each in prepared), key=lambda each: each.planned_s)
    batch = Batch(key.run_id, key.batch_id, winners, has_skipped, oldest.check_age)
    if not winners and not has_skipped:
        if plan.has_ledger and cluster.is_first(key):
            ledger.finish(key.batch_id, accept_lost=plan.options.accept_lost)
        return
    if not plan.has_ledger:
        record = ledger.commit_unrecorded(batch)
    else:
        record = ledger.commit(batch, accept_lost=plan.options.accept_lost)
    cluster.sweep(ledger, record)


def abort(plan: Plan, prepared: Sequence[Prepared], batch_id: int, name: str = "") -> bool:
    """Aborts the transactions of a failed batch; False if the batch was decided all the same.

    If no task of a stream has prepared anything, `name` tells the query, as in the last `commit` of this process. Tasks
    that Spark is still killing leave transactions, too: it takes two seconds for that.
    """
    cluster = _cluster(plan.options.ledger)
    key = prepared[0].key if prepared else plan.key or cluster.keys.get(name)
    if key is None:
        return True
    ledger = cluster.ledger(key.query_id)
    transactions = [each.winner.transaction for each in prepared if each.winner is not None]
    for pause_s in _ABORTS_AFTER_S:
        time.sleep(pause_s)
        if not plan.has_ledger:
            # The commit may have ended some of them; those cannot be aborted any more.
            cluster.brokers.end(transactions, commit=False)
            ledger.sweep(LedgerRecord(key.query_id, key.run_id, 0))
        elif not ledger.abort(key.run_id, batch_id, transactions):
            return False
    return True


class _Cluster:
    """What a process keeps for one cluster."""

    def __init__(self, options: LedgerOptions) -> None:
        self.brokers = ClusterBrokers(options)
        self._options = options
        self._capabilities: Capabilities | None = None
        self._has_topic = False
        self._ledgers: dict[str, Ledger] = {}
        self._runs: dict[str, str] = {}
        self.keys: dict[str, WriteKey] = {}
        self.claims: dict[tuple[str, str], tuple[Claim, Slots]] = {}

    def checked(self, options: ExactlyOnceOptions, *, needs_ledger: bool = True) -> Capabilities:
        """Asks the cluster once what it can do, and creates the ledger topic."""
        if self._capabilities is None:
            found = self.brokers.capabilities()
            if not found.version:
                raise ConfigError(
                    f"the brokers at {self._options.bootstrap} have no transactions, which exactly-once delivery needs",
                    hint="Use penstock.delivery=at-least-once, or brokers with transactions (Kafka 0.11 or newer)",
                )
            self._capabilities = found
        if needs_ledger and not self._has_topic:
            self.brokers.ensure_topic()
            self._has_topic = True
        return self._capabilities

    def ledger(self, query_id: str) -> Ledger:
        found = self._ledgers.pop(query_id, None) or Ledger(self.brokers, query_id)
        self._ledgers[query_id] = found
        while len(self._ledgers) > _MOST:
            self.brokers.forget(oldest := next(iter(self._ledgers)))
            del self._ledgers[oldest]
        return found

    def is_first(self, key: WriteKey) -> bool:
        """Whether this is the first batch of a run that this process has to do with."""
        return self._runs.get(key.query_id) != key.run_id

    def sweep(self, ledger: Ledger, record: LedgerRecord) -> None:
        """Aborts what dead tasks left, after every batch: open ones block readers, and the next batch may come late."""
        self._runs[ledger.query_id] = record.run_id
        try:
            ledger.sweep(record)
        except PenstockError as error:
            # The batch is committed; the next one sweeps again.
            _log.warning("leftover transactions not aborted: query=%s error=%r", ledger.query_id, one_line(error))

    def claim(self, key: WriteKey, *, has_ledger: bool) -> tuple[Claim, Slots]:
        """The claim of a run, made by the first task of it in this process, and the ids of this process."""
        which = (key.query_id, key.run_id)
        found = self.claims.get(which)
        if found is None:
            claim = Ledger(self.brokers, key.query_id).claim(key.run_id) if has_ledger else Claim(0, NO_BATCH)
            self.brokers.forget(key.query_id)
            found = claim, Slots(key.query_id, claim.generation, uuid.uuid4().hex)
            while len(self.claims) >= _MOST:
                del self.claims[next(iter(self.claims))]
            self.claims[which] = found
        return found


# ---------------------------------------------------------------------------------------------- tasks


class TaskTransaction:
    """The transaction of one task attempt. It begins with the first row."""

    def __init__(self, plan: Plan, key: WriteKey, bootstrap: str, settings: Mapping[str, Any]) -> None:
        self._plan = plan
        self._key = key
        self._bootstrap = bootstrap
        self._settings = settings
        self._producer: Producer[Any, Any] | None = None
        self._name = ""
        self.has_skipped = False

    def begin(self) -> Producer[Any, Any] | None:
        """The producer to send with; None if the batch was decided before, so that there is nothing to write."""
        claim, slots = _cluster(self._plan.options.ledger).claim(self._key, has_ledger=self._plan.has_ledger)
        if self._key.batch_id <= claim.decided_batch:
            self.has_skipped = True
            return None
        self._name = slots.take(self._key.batch_id)
        self._producer = _producer(self._name, self._open)
        self._producer.begin_transaction()
        return self._producer

    def _open(self) -> Producer[Any, Any]:
        from penstock.client.producer.producer import Producer

        plan = self._plan
        return Producer(
            self._bootstrap, **plan.options.ledger.client_options(), transactional_id=self._name,
            transaction_timeout_ms=plan.options.timeout_ms, transaction_two_phase_commit=plan.two_phase_commit,
            **self._settings,
        )  # fmt: skip

    def prepare(self, timeout_s: float) -> Callable[[int, tuple[StoredRange, ...]], Prepared]:
        """Waits until all rows are stored; what is returned makes the message to the driver."""
        transaction = None if self._producer is None else self._producer.prepare_transaction(timeout_s)

        def made(records: int, stored: tuple[StoredRange, ...]) -> Prepared:
            is_empty = transaction is None or transaction.is_empty
            winner = None if transaction is None or is_empty else Winner(transaction, records, stored)
            return Prepared(self._plan, self._key, winner, self.has_skipped)

        return made

    def abandon(self) -> None:
        """Aborts what was written."""
        producer = _producers.pop(self._name, None)
        if producer is not None:
            producer.close(_QUICK_CLOSE_S)


def transactional_settings(chosen: Mapping[str, Any], timeout_ms: int) -> None:
    """Checks that a producer with these settings can be transactional. Raises ConfigError."""
    from penstock.client.producer.settings import ProducerSettings

    try:
        ProducerSettings(**{**chosen, "transactional_id": "check", "transaction_timeout_ms": timeout_ms})
    except ConfigError as error:
        raise ConfigError(f"exactly-once delivery: {error.message}", hint=error.hint) from None


# ---------------------------------------------------------------------------------------------- of this process

_clusters: dict[LedgerOptions, _Cluster] = {}
_producers: dict[str, Producer[Any, Any]] = {}


def _cluster(options: LedgerOptions) -> _Cluster:
    found = _clusters.pop(options, None) or _Cluster(options)
    _clusters[options] = found
    if len(_clusters) > _MOST:
        _clusters.pop(next(iter(_clusters))).brokers.close()
    return found


def _producer(name: str, make: Callable[[], Producer[Any, Any]]) -> Producer[Any, Any]:
    """A producer with a new epoch of this transactional id; a kept one saves its connections."""
    producer = _producers.pop(name, None)
    if producer is None:
        while len(_producers) >= _MOST_PRODUCERS:
            _producers.pop(next(iter(_producers))).close(_QUICK_CLOSE_S)
        producer = make()
    _producers[name] = producer
    producer.init_transactions()
    return producer


def close_all() -> None:
    """Closes everything that this process keeps. Prepared transactions stay as they are."""
    while _producers:
        _producers.popitem()[1].close(_QUICK_CLOSE_S)
    while _clusters:
        _clusters.popitem()[1].brokers.close()


def _after_fork() -> None:
    """A forked child has neither the threads nor the connections of its parent, nor may it use its ids."""
    _producers.clear()
    _clusters.clear()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_all)
