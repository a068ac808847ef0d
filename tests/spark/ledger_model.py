"""A model of a cluster and of Spark, to run the protocol of the ledger against every crash that can be drawn.

Actors (drivers, late task attempts) are threads of which one runs at a time. Each call to the cluster is a place where
another one may continue, where the actor may be killed before or after its effect, and where the cluster may act by
itself: deliver a delayed write, time a transaction out. Everything is drawn from a seed.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.client.errors import (
    PenstockError,
    TimedOut,
    TransactionAborted,
    TransactionError,
    TransactionOutcomeUnknown,
)
from penstock.client.transactions import PreparedTransaction
from penstock.spark.errors import RowsLost
from penstock.spark.ledger import (
    Batch,
    Claim,
    Ledger,
    LedgerFenced,
    LedgerInDoubt,
    LedgerRecord,
    Slots,
    StoredRange,
    Winner,
)

QUERY = "q"
PARTITIONS = 3


class Killed(BaseException):
    """SIGKILL."""


# ---------------------------------------------------------------------------------------------- actors


class Actor:
    def __init__(self, world: World, work: Callable[[Actor], None], name: str) -> None:
        self.name = name
        self.is_doomed = False
        self.is_done = False
        self.sleeps = 0
        """Steps of others before it continues: a long pause makes it a zombie."""
        self._world = world
        self._turn = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Actor], None]) -> None:
        self._turn.acquire()
        try:
            if not self.is_doomed:
                work(self)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - reported to the test
            self._world.bugs.append(error)
        finally:
            self.is_done = True
            self._world.back.release()

    def goes_on(self) -> None:
        """One step, until the next call to the cluster."""
        self._turn.release()
        self._world.back.acquire()

    def switch(self) -> None:
        """Called by the actor: others may continue first; it may be killed meanwhile."""
        self._world.back.release()
        self._turn.acquire()
        if self.is_doomed:
            raise Killed


# ---------------------------------------------------------------------------------------------- the cluster


@dataclass
class IdState:
    """A transactional id at its coordinator."""

    producer_id: int
    epoch: int = 0
    is_open: bool = False
    was_committed: bool | None = None
    timeout: bool = True


@dataclass
class World:
    """The cluster, the checkpoint, and who is at work."""

    seed: int
    two_phase: bool = True
    chaos: float = 0.05
    timeouts: float = 0.0
    pauses: float = 0.02
    random: random.Random = field(init=False)
    ids: dict[str, IdState] = field(default_factory=dict)
    rows: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    outcome: dict[tuple[int, int], bool] = field(default_factory=dict)
    record: LedgerRecord | None = None
    ledger_epoch: int = 0
    delayed: list[tuple[int, LedgerRecord]] = field(default_factory=list)
    committed_batches: set[int] = field(default_factory=set)
    bugs: list[BaseException] = field(default_factory=list)
    lost: list[RowsLost] = field(default_factory=list)
    errors: list[PenstockError] = field(default_factory=list)
    back: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    actors: list[Actor] = field(default_factory=list)
    session: Driver | None = None
    runs: int = 0
    processes: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def start(self, work: Callable[[Actor], None], name: str) -> None:
        self.actors.append(Actor(self, work, name))

    def happens(self) -> bool:
        return self.random.random() < self.chaos

    def moves_by_itself(self) -> None:
        if self.delayed and self.random.random() < 0.2:
            epoch, record = self.delayed.pop(self.random.randrange(len(self.delayed)))
            if epoch == self.ledger_epoch:
                self.record = record
        if not self.two_phase and self.random.random() < self.timeouts:
            still_open = [name for name, state in self.ids.items() if state.is_open]
            if still_open:
                self.end(self.ids[self.random.choice(still_open)], commit=False)

    def end(self, state: IdState, *, commit: bool) -> None:
        self.outcome[state.producer_id, state.epoch] = commit
        state.is_open, state.was_committed = False, commit
        state.epoch += 1

    def visible(self) -> Counter[str]:
        return Counter(row for key, rows in self.rows.items() if self.outcome.get(key) for row in rows)

    # --- the schedule

    def plays(self, batches: int, drivers: int) -> None:
        """Drivers come, sometimes before the one before is gone; then one works undisturbed to the end."""
        self.start(lambda actor: Driver(self, actor, batches).works(), "driver")
        while any(not actor.is_done for actor in self.actors):
            alive = [actor for actor in self.actors if not actor.is_done]
            if self.runs < drivers and self.random.random() < 0.01:
                self.start(lambda actor: Driver(self, actor, batches).works(), "driver")
            self.moves_by_itself()
            for actor in alive:
                actor.sleeps = max(0, actor.sleeps - 1)
            awake = [actor for actor in alive if not actor.sleeps] or alive
            chosen = self.random.choice(awake)
            if self.random.random() < self.pauses:
                chosen.sleeps = self.random.randrange(200)
            chosen.goes_on()
            if not any(not actor.is_done for actor in self.actors) and self.runs < drivers:
                self.start(lambda actor: Driver(self, actor, batches).works(), "driver")
        self.continues(batches)

    def continues(self, batches: int) -> None:
        """Undisturbed, until all batches are committed."""
        self.chaos = self.timeouts = 0.0
        for _ in range(2 * batches + 4):  # each failure of an undisturbed driver is repaired by the next
            if len(self.committed_batches) == batches:
                break
            self.start(lambda actor: Driver(self, actor, batches).works(), "last driver")
            while any(not actor.is_done for actor in self.actors):
                self.random.choice([actor for actor in self.actors if not actor.is_done]).goes_on()


class FakeBrokers:
    """The cluster as one process sees it."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world = world
        self._actor = actor
        self._epoch = -1

    def _reach(self) -> None:
        """Before the effect of a call."""
        self._actor.switch()
        if self._world.happens():
            raise Killed

    def _answer(self) -> None:
        """After the effect of a call."""
        if self._world.happens():
            raise Killed
        self._actor.switch()

    # --- the ledger

    def read(self, query_id: str, *, settled: bool = True) -> LedgerRecord | None:
        self._reach()
        found = self._world.record
        self._answer()
        return None if found is None else LedgerRecord.decode(found.encode())

    def take_over(self, query_id: str) -> None:
        self._reach()
        self._world.ledger_epoch += 1
        self._epoch = self._world.ledger_epoch
        self._answer()

    def write(self, record: LedgerRecord) -> None:
        self._reach()
        world = self._world
        if self._epoch != world.ledger_epoch:
            raise LedgerFenced("fenced")
        if world.happens():
            # The response is lost; the request arrived, or will, or never does.
            fate = world.random.random()
            if fate < 0.4:
                world.record = record
            elif fate < 0.8:
                world.delayed.append((self._epoch, record))
            raise LedgerInDoubt("no response")
        world.record = record
        self._answer()

    # --- transactions

    def init(self, name: str) -> PreparedTransaction:
        """InitProducerId: aborts what the id has open."""
        self._reach()
        world = self._world
        state = world.ids.setdefault(name, IdState(len(world.ids)))
        if state.is_open:
            world.end(state, commit=False)
        state.epoch += 1
        found = PreparedTransaction(name, state.producer_id, state.epoch)
        self._answer()
        return found

    def send(self, transaction: PreparedTransaction, row: str) -> None:
        self._reach()
        state = self._world.ids[transaction.transactional_id]
        if state.epoch != transaction.epoch:
            raise TransactionAborted("fenced")
        state.is_open = True
        self._world.rows.setdefault((state.producer_id, state.epoch), []).append(row)
        self._answer()

    def closed(self, transactions: Sequence[PreparedTransaction]) -> list[PreparedTransaction]:
        self._reach()
        found = []
        for each in transactions:
            state = self._world.ids[each.transactional_id]
            if not state.is_open or state.epoch != each.epoch:
                found.append(each)
        self._answer()
        return found

    def end(self, transactions: Sequence[PreparedTransaction], *, commit: bool) -> list[PenstockError | None]:
        ends: list[PenstockError | None] = []
        for each in transactions:
            self._reach()
            is_silent = self._world.happens()
            if is_silent and self._world.happens():
                ends.append(TimedOut("it was not reached"))
                continue
            end = self._ended(each, commit=commit)
            ends.append(TimedOut("it did not answer") if is_silent else end)
            self._answer()
        return ends

    def _ended(self, each: PreparedTransaction, *, commit: bool) -> PenstockError | None:
        state = self._world.ids[each.transactional_id]
        if state.epoch == each.epoch and state.is_open:
            self._world.end(state, commit=commit)
            return None
        if state.epoch == each.epoch + 1 and not state.is_open and state.was_committed is not None:
            if state.was_committed == commit:
                return None
            return TransactionAborted("was aborted") if commit else TransactionError("was committed")
        return TransactionOutcomeUnknown("used again", retriable=False)

    def was_committed(self, winner: Winner) -> bool:
        self._reach()
        found = self._world.outcome[winner.transaction.producer_id, winner.transaction.epoch]
        self._answer()
        return found

    def open_transactions(self, prefix: str) -> list[PreparedTransaction]:
        self._reach()
        found = [
            PreparedTransaction(name, state.producer_id, state.epoch)
            for name, state in self._world.ids.items()
            if state.is_open and name.startswith(prefix)
        ]
        self._answer()
        return found

    def pause(self, attempt: int) -> None:
        self._actor.switch()


# ---------------------------------------------------------------------------------------------- Spark


class Process:
    """A Python worker: its claim of the run, and its transactional ids."""

    def __init__(self, world: World, run_id: str) -> None:
        world.processes += 1
        self._token = f"{world.processes:x}"
        self._run_id = run_id
        self._claim: Claim | None = None
        self._slots: Slots | None = None

    def runs(self, brokers: FakeBrokers, batch_id: int, rows: Sequence[str]) -> Winner | None:
        """A task: its winner, or None if the batch was decided."""
        if self._claim is None:
            self._claim = Ledger(brokers, QUERY).claim(self._run_id)
        if batch_id <= self._claim.decided_batch:
            return None
        if self._slots is None:
            self._slots = Slots(QUERY, self._claim.generation, self._token)
        transaction = brokers.init(self._slots.take(batch_id))
        for row in rows:
            brokers.send(transaction, row)
        return Winner(transaction, len(rows), (StoredRange("t", 0, 0, len(rows)),))


class Driver:
    """A run of the query: micro-batches until all are committed, or until it dies."""

    def __init__(self, world: World, actor: Actor, batches: int) -> None:
        world.runs += 1
        self._world = world
        self._actor = actor
        self._run_id = f"run-{world.runs}"
        self._batches = batches
        self._brokers = FakeBrokers(world, actor)
        self._ledger = Ledger(self._brokers, QUERY)
        if world.session is not None and world.session._actor.is_done and world.random.random() < 0.5:
            # The query is started again in the same session, whose process remembers the ledger.
            self._brokers, self._ledger = world.session._brokers, world.session._ledger
            self._brokers._actor = actor
        world.session = self
        self._workers = [Process(world, self._run_id) for _ in range(2)]

    def works(self) -> None:
        batch_id = len(self._world.committed_batches)
        while batch_id < self._batches:
            try:
                winners, has_skipped = self._tasks(batch_id)
            except PenstockError as error:
                self._world.errors.append(error)
                return
            try:
                batch = Batch(self._run_id, batch_id, tuple(winners), has_skipped)
                record = self._ledger.commit(batch, accept_lost=bool(self._world.lost))
                self._ledger.sweep(record)
            except PenstockError as error:
                self._world.errors.append(error)
                if isinstance(error, RowsLost):
                    self._world.lost.append(error)
                Ledger(self._brokers, QUERY).abort(self._run_id, batch_id, [each.transaction for each in winners])
                return
            self._actor.switch()
            if self._world.happens() or batch_id in self._world.committed_batches:
                return  # Spark notices that another driver has written its commit log
            self._world.committed_batches.add(batch_id)
            batch_id += 1

    def _tasks(self, batch_id: int) -> tuple[list[Winner], bool]:
        winners, has_skipped = [], False
        for partition in range(PARTITIONS):
            if self._world.happens():
                self._starts_late_attempt(batch_id, partition)
            found = self._attempts(batch_id, partition)
            has_skipped = has_skipped or found is None
            winners += [found] if found is not None and found.records else []
        return winners, has_skipped

    def _attempts(self, batch_id: int, partition: int) -> Winner | None:
        for attempt in range(4):
            worker = self._world.random.randrange(2)
            try:
                return self._workers[worker].runs(self._brokers, batch_id, rows_of(batch_id, partition))
            except Killed:
                if self._actor.is_doomed or attempt == 3 or self._world.happens():
                    raise
                # Only the worker died: its transaction stays as it is, and Spark starts another.
                self._workers[worker] = Process(self._world, self._run_id)
        raise AssertionError

    def _starts_late_attempt(self, batch_id: int, partition: int) -> None:
        """A speculative attempt that is not awaited."""
        process = Process(self._world, self._run_id)

        def work(actor: Actor) -> None:
            try:
                process.runs(FakeBrokers(self._world, actor), batch_id, rows_of(batch_id, partition))
            except PenstockError as error:
                self._world.errors.append(error)

        self._world.start(work, "late attempt")


def rows_of(batch_id: int, partition: int) -> list[str]:
    """The same on every replay; one partition of every third batch is empty."""
    count = 0 if (batch_id + partition) % 3 == 0 else 2
    return [f"{batch_id}-{partition}-{number}" for number in range(count)]


def all_rows(batches: int) -> list[str]:
    return [row for batch in range(batches) for partition in range(PARTITIONS) for row in rows_of(batch, partition)]
