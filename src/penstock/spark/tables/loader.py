"""Loads: new records, a range again, dead letters again, or continuously.

The table is the only state. A step starts from what the table covers and ends with one commit that says which offsets
it added. A crash between two commits leaves files that no commit names. If another load committed meanwhile, this
commit fails as a whole; running the same command again is always safe.

The table's commit also decides about the dead letters: it names their new files and the offsets they replace, under a
sequence number, and the dead letters' own commit follows. If the driver dies in between, the next one finds the number
missing and applies it. So a record is never in both and never in neither.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.client.errors import PenstockError
from penstock.spark.errors import ConcurrentLoad, RangeError, ReadStalled, TableDamaged
from penstock.spark.options import ReaderOptions, parse_source
from penstock.spark.tables import load_plan, tasks
from penstock.spark.tables.delta import (
    BACKFILL,
    DEAD_APPLIED,
    DEAD_SEQUENCE,
    EVOLVE,
    LOAD,
    REPLAY,
    RUN_AGAIN,
    CommitNote,
    Counts,
    DataFile,
    Storage,
    Store,
    first_id,
    next_id,
)
from penstock.spark.tables.load_plan import (
    LogState,
    Span,
    TableState,
    difference,
    limited,
    log_state,
    offsets_at,
    split,
    stored_bytes,
    total,
    union,
)
from penstock.spark.tables.tasks import (
    LoadTask,
    RewriteTask,
    TaskResult,
    Written,
    merge_rows,
    plan_removal,
    run_rewrite,
    run_rewrite_pickled,
    staged_rows,
)
from penstock.spark.tables.warehouse import OpenTable, evolve, follow_subject, merged_columns

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.spark.tables.delta import LiveFile
    from penstock.spark.tables.runner import Runner


_log = logging.getLogger(__name__)
Progress = Callable[[CommitNote, int], None]
# Upserts pass through the driver's memory.
_MOST_UPSERTS: Final = 1_000_000
_GROWTHS: Final = 4
_RETRIES: Final = 2
# A continuous load keeps committing while a backfill tries to.
_COMMIT_TRIES: Final = 20
_SETTLE_TRIES: Final = 5
_LONGEST_WAIT_S: Final = 60.0
_TASK_ROWS: Final = 100_000
_AS_READ: Final = {
    "key": "_key", "value": "value", "topic": "_topic", "partition": "_partition", "offset": "_offset",
    "timestamp": "_timestamp", "headers": "_headers",
}  # fmt: skip

# ---------------------------------------------------------------------------------------------- loads


@dataclass(frozen=True)
class Limits:
    """The most records in a commit and in a task."""

    commit_records: int = 10_000_000
    task_records: int = 1_000_000


@dataclass
class LoadReport:
    """What a load did."""

    counts: Counts = field(default_factory=Counts)
    spans: list[Span] = field(default_factory=list)
    replaced: list[Span] = field(default_factory=list)
    lost: list[Span] = field(default_factory=list)
    added_columns: list[str] = field(default_factory=list)
    commits: int = 0
    version: int = 0

    def absorb(self, note: CommitNote, version: int) -> None:
        self.counts += note.counts
        into = self.spans if note.kind == LOAD else self.replaced
        into[:] = union([*into, *note.spans])
        self.commits += 1
        self.version = version


class Loader:
    """Loads one table from one cluster."""

    def __init__(
        self,
        opened: OpenTable,
        admin: Admin,
        bootstrap: str,
        runner: Runner,
        *,
        limits: Limits | None = None,
        options: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.opened = opened
        self._admin = admin
        self.bootstrap = bootstrap
        self._runner = runner
        self._limits = limits or Limits()
        self._progress = progress
        self.reader = reader_options(bootstrap, opened.table.topic, {**opened.table.options, **(options or {})})

    # ------------------------------------------------------------------------------------------ loads

    def state(self) -> LogState:
        """The state of the log. Raises UnknownTopic, TopicRecreated and other client errors."""
        table = self.opened.table
        state = log_state(self._admin, table.topic, table.isolation)
        load_plan.check_same_topic(state, self.opened.topic_id, table.name)
        return state

    def load_new(
        self,
        report: LoadReport | None = None,
        *,
        until: Mapping[int, int] | None = None,
        stop: threading.Event | None = None,
    ) -> LoadReport:
        """Loads everything up to the current end of the log, or up to `until`, in as many commits as needed.

        `stop` ends it after a commit.
        """
        report = report or LoadReport()
        self.settle()
        report.added_columns += follow_subject(self.opened)
        state = self.state()
        self._store_start(state, {})
        while True:
            spans, lost = self._new_spans(state, until)
            report.lost[:] = union([*report.lost, *lost])
            if not spans or (stop is not None and stop.is_set()):
                return report
            self._expect(spans, state)
            most = self._limits.commit_records
            if self.opened.table.mode == "upsert":
                most = min(most, _MOST_UPSERTS)
            self._step(limited(spans, most), LOAD, report)

    def load_range(self, asked: Sequence[Span], *, bounded: bool) -> LoadReport:
        """Replaces these offsets in one commit, then loads what is new; with `bounded`, not beyond them."""
        report = LoadReport()
        self.settle()
        report.added_columns += follow_subject(self.opened)
        state = self.state()
        self._store_start(state, load_plan.requested_starts(asked))
        coverage = self.opened.coverage(state.bounds)
        spans = load_plan.backfill_spans(state, coverage, asked)
        if spans and self.opened.table.mode == "upsert":
            short = [span for span in spans if span.end < coverage.covered[span.partition][1]]
            if short:
                raise RangeError(
                    f"an upsert table must be reloaded up to its end, and {short[0]} ends before",
                    hint="Remove the end: rows that were deleted since would reappear",
                )
            if total(spans) > _MOST_UPSERTS:
                # With several commits, a crash between two would leave rows that were deleted since.
                raise RangeError(
                    f"reloading {total(spans)} offsets into an upsert table needs one commit through the driver's "
                    f"memory; the limit is {_MOST_UPSERTS}",
                    hint="Start later, or drop the table and load it again",
                )
        if spans:
            self._expect(spans, state)
            self._step(spans, BACKFILL, report)
        return self.load_new(report, until=load_plan.requested_ends(asked) if bounded else None)

    def _expect(self, spans: Sequence[Span], state: LogState) -> None:
        self.expect(total(spans), lambda: stored_bytes(self._admin, state, spans))

    def expect(self, records: int, size: Callable[[], int]) -> None:
        """Announces to the runner how much will be read."""
        self._runner.expect(records, size)

    def since(self, time_ms: int, until_ms: int | None = None) -> list[Span]:
        """The offsets from a time on, up to another time or the end."""
        state = self.state()
        starts = offsets_at(self._admin, state, time_ms)
        ends = (
            {index: end for index, (_, end) in state.bounds.items()}
            if until_ms is None
            else offsets_at(self._admin, state, until_ms)
        )
        return [Span(index, start, max(start, ends[index])) for index, start in starts.items()]

    def settle(self) -> None:
        """Applies dead letters that a dead driver left unapplied."""
        for _ in range(_SETTLE_TRIES):
            self.opened.store.refresh()
            self.opened.dead.refresh()
            try:
                settle_dead_letters(self.opened.store, self.opened.dead)
            except ConcurrentLoad:
                continue
            return
        raise concurrent_load(self.opened.name)

    # ------------------------------------------------------------------------------------------ the first load

    def _store_start(self, state: LogState, asked: Mapping[int, int]) -> None:
        """Stores where an empty table starts, unless that is the start of the log: "latest" moves."""
        opened = self.opened
        coverage = opened.coverage(state.bounds)
        start = opened.table.start
        if coverage.covered or (start == "earliest" and not asked):
            return
        if start == "earliest":
            begins = {index: begin for index, (begin, _) in state.bounds.items()}
        elif start == "latest":
            begins = {index: end for index, (_, end) in state.bounds.items()}
        else:
            begins = offsets_at(self._admin, state, int(start))
        places = {index: (begin, begin) for index, begin in {**begins, **asked}.items()}
        opened.store.commit(
            CommitNote(LOAD),
            transactions=self._transactions(places),
            check=lambda: self._check_unchanged(coverage, state.bounds),
        )

    def _new_spans(self, state: LogState, until: Mapping[int, int] | None) -> tuple[list[Span], list[Span]]:
        coverage = self.opened.coverage(state.bounds)
        skip = self.opened.table.on_data_loss == "skip"
        spans, lost = load_plan.new_spans(state, coverage, skip_lost=skip)
        return (spans if until is None else load_plan.clipped(spans, until)), lost

    # ------------------------------------------------------------------------------------------ one commit

    def _step(self, spans: Sequence[Span], kind: str, report: LoadReport) -> None:
        opened = self.opened
        began = opened.store.version
        coverage = opened.coverage({span.partition for span in spans})
        per_task = max(1, min(self._limits.task_records, -(-total(spans) // self._runner.parallelism())))
        results = self.run(split(spans, per_task), report)
        load_plan.check_exact(spans, [one.span for one in results])
        written = Written.of(results)
        try:
            opened.store.storage.check_files_exist(written.files)
            opened.dead.storage.check_files_exist(written.dead_files)
            version, note = self._commit_with_retries(kind, spans, written, coverage, began)
        except PenstockError:
            self.discard(written)
            raise
        report.absorb(note, version)
        self.settle()
        self._publish(spans)
        if self._progress is not None:
            self._progress(note, version)

    def run(
        self, spans: Sequence[Span], report: LoadReport, rows: Mapping[Span, bytes] | None = None
    ) -> list[TaskResult]:
        """Runs tasks for these spans. The table grows first if records need more columns."""
        for growth in range(_GROWTHS + 1):
            results = self._run_tasks(spans, rows or {}, may_grow=growth < _GROWTHS)
            columns, added = merged_columns(self.opened.table, [one.columns for one in results if one.columns])
            if not added:
                return results
            for one in results:
                self.discard(Written.of([one]))
            evolve(self.opened, columns)
            report.added_columns += added
        return results

    def _run_tasks(self, spans: Sequence[Span], rows: Mapping[Span, bytes], *, may_grow: bool) -> list[TaskResult]:
        table = self.opened.table
        if not may_grow:
            table = replace(table, evolution="none")
        if rows:
            table = replace(table, on_error="dead")
        made = [
            LoadTask(
                table, self.opened.store.storage, self.opened.dead.storage, self.bootstrap, self.reader,
                self.opened.topic_id, span, rows.get(span, b""),
            )
            for span in spans
        ]  # fmt: skip
        results: dict[int, TaskResult] = {}
        todo = list(range(len(made)))
        for attempt in range(_RETRIES + 1):
            answers = self._runner.run(tasks.run_load_pickled, [pickle.dumps(made[number]) for number in todo])
            results |= dict(zip(todo, (pickle.loads(answer) for answer in answers), strict=True))
            failed = [number for number in todo if results[number].error is not None]
            errors = [error for number in failed if (error := results[number].error) is not None]
            lasting = next((error for error in errors if not error.retriable), None)
            if errors and (lasting is not None or attempt == _RETRIES):
                self.discard(Written.of(list(results.values())))
                raise lasting or errors[0]
            todo = failed
            if not todo:
                break
        return [results[number] for number in range(len(made))]

    # ------------------------------------------------------------------------------------------ commits

    def _commit_with_retries(
        self, kind: str, spans: Sequence[Span], written: Written, coverage: TableState, began: int
    ) -> tuple[int, CommitNote]:
        """Retries a backfill on top of concurrent loads, which do not touch what it replaces."""
        store = self.opened.store
        for _ in range(_COMMIT_TRIES if kind == BACKFILL and self.opened.table.mode == "append" else 1):
            try:
                return self._commit(kind, spans, written, coverage)
            except ConcurrentLoad:
                store.refresh()
                notes = (store.note(version) for version in range(began + 1, store.version + 1))
                if any(note is not None and note.kind == EVOLVE for note in notes):
                    raise
        raise concurrent_load(self.opened.name)

    def _commit(
        self, kind: str, spans: Sequence[Span], written: Written, coverage: TableState
    ) -> tuple[int, CommitNote]:
        store = self.opened.store
        moved = load_plan.table_state_after(coverage, spans)
        transactions = self._start_transactions(coverage, moved) if kind == BACKFILL else self._transactions(moved)
        replaces_dead = kind != LOAD
        number = 0
        if written.dead_files or replaces_dead:
            number = dead_letter_sequence(store) + 1
            transactions[DEAD_SEQUENCE] = number
        note = CommitNote(
            kind, self.opened.table.topic, self.opened.topic_id, tuple(spans), written.counts,
            dead_sequence=number, dead_files=written.dead_files, dead_replaces=tuple(spans) if replaces_dead else (),
        )  # fmt: skip

        is_in_place = kind == BACKFILL and self.opened.table.mode == "append"

        def check() -> None:
            self._check_unchanged(coverage, {span.partition for span in spans}, may_advance=is_in_place)
            if number and dead_letter_sequence(store) != number - 1:
                raise concurrent_load(self.opened.name)

        if self.opened.table.mode == "upsert":
            return self.merge(note, written, transactions, check), note
        removed, kept = self._replaced(spans) if kind == BACKFILL else ([], [])
        try:
            version = store.commit(
                note, add=[*written.files, *kept], remove=removed, transactions=transactions, check=check
            )
        except PenstockError:
            store.storage.remove_files([file.path for file in kept])
            raise
        return version, note

    def _replaced(self, spans: Sequence[Span]) -> tuple[list[LiveFile], list[DataFile]]:
        """Files to be removed, and new files with what is left of those that reach beyond the spans."""
        storage = self.opened.store.storage
        inside, across = plan_removal(self.opened.store.files(), spans)
        made = [pickle.dumps(RewriteTask(storage, (file,), tuple(spans))) for file in across]
        kept = [pickle.loads(answer) for answer in self._runner.run(run_rewrite_pickled, made)] if made else []
        return [*inside, *across], [file for file in kept if file is not None]

    def merge(
        self, note: CommitNote, written: Written, transactions: Mapping[str, int], check: Callable[[], None]
    ) -> int:
        table, store = self.opened.table, self.opened.store
        rows = staged_rows(table, store.storage, written.files)

        def attempt(delta: Any, properties: Any) -> None:
            merge_rows(table, rows, delta, properties)

        if rows.num_rows:
            version = store.attempt(note, attempt, transactions=transactions, check=check)
        else:
            version = store.commit(note, transactions=transactions, check=check)
        store.storage.remove_files([file.path for file in written.files])
        return version

    def _publish(self, spans: Sequence[Span]) -> None:
        """Publishes the progress of the table as committed offsets of a group; nothing depends on it."""
        coverage = self.opened.coverage({span.partition for span in spans})
        topic = self.opened.table.topic
        offsets = {(topic, partition): after for partition, (_, after) in coverage.covered.items()}
        try:
            self._admin.set_group_offsets(group_of(self.opened.name), offsets)
        except PenstockError as error:
            _log.warning("cannot publish table progress: table=%s error=%s", self.opened.name, error)

    def _transactions(self, places: Mapping[int, tuple[int, int]]) -> dict[str, int]:
        topic_id = self.opened.topic_id
        named: dict[str, int] = {}
        for partition, (first, after) in places.items():
            named[first_id(topic_id, partition)] = first
            named[next_id(topic_id, partition)] = after
        return named

    def _start_transactions(self, coverage: TableState, moved: Mapping[int, tuple[int, int]]) -> dict[str, int]:
        """A backfill writes no ends, since concurrent loads may move them."""
        return {
            first_id(self.opened.topic_id, partition): first
            for partition, (first, _) in moved.items()
            if first != coverage.covered[partition][0]
        }

    def _check_unchanged(self, coverage: TableState, partitions: Iterable[int], *, may_advance: bool = False) -> None:
        now = self.opened.coverage(partitions)
        if now != coverage and not (may_advance and load_plan.only_advanced(coverage, now)):
            raise concurrent_load(self.opened.name)

    def discard(self, written: Written) -> None:
        self.opened.store.storage.remove_files([file.path for file in written.files])
        self.opened.dead.storage.remove_files([file.path for file in written.dead_files])


def concurrent_load(name: str) -> ConcurrentLoad:
    return ConcurrentLoad(
        f"another load of {name} committed meanwhile; nothing of this load was committed", hint=RUN_AGAIN
    )


def group_of(name: str) -> str:
    """The group that shows the lag of a table."""
    return f"penstock-table-{name}"


def reader_options(bootstrap: str, topic: str, options: Mapping[str, str]) -> ReaderOptions:
    """The reader options of tasks, from the options of a declaration. Raises ConfigError."""
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true", **options}
    return parse_source(given, streaming=False).reader


# ---------------------------------------------------------------------------------------------- continuous loads


def follow(
    loader: Loader,
    stop: threading.Event,
    *,
    interval_s: float = 10.0,
    after_round: Callable[[LoadReport], None] | None = None,
    notify: Callable[[PenstockError, float], None] | None = None,
) -> None:
    """Loads until `stop` is set, which is checked between commits. `notify` gets each error and the wait after it."""
    failures = 0
    while not stop.is_set():
        try:
            report = loader.load_new(stop=stop)
            failures = 0
            if after_round is not None and report.commits:
                after_round(report)
            stop.wait(interval_s)
        except PenstockError as error:
            # A stalled task is not retried itself, but the next round may find the broker.
            if not error.retriable and not isinstance(error, ReadStalled):
                raise
            wait_s = min(_LONGEST_WAIT_S, 2.0**failures)
            failures += 1
            if notify is not None:
                notify(error, wait_s)
            stop.wait(wait_s)


# ---------------------------------------------------------------------------------------------- dead letters


def dead_letter_sequence(main: Store) -> int:
    return main.transaction(DEAD_SEQUENCE) or 0


def settle_dead_letters(main: Store, dead: Store) -> int:
    """Applies commits that the dead letters are missing. Returns their number."""
    wanted = dead_letter_sequence(main)
    done = dead.transaction(DEAD_APPLIED) or 0
    if done >= wanted:
        return 0
    for number, note in sorted(_missing_dead_letters(main, done, wanted).items()):
        _apply(dead, number, note)
    return wanted - done


def _missing_dead_letters(main: Store, done: int, wanted: int) -> dict[int, CommitNote]:
    found: dict[int, CommitNote] = {}
    for version in range(main.version, -1, -1):
        note = main.note(version)
        if note is not None and done < note.dead_sequence <= wanted:
            found[note.dead_sequence] = note
        if len(found) == wanted - done:
            return found
    raise TableDamaged(
        f"{main.storage.uri}: the dead letters miss {wanted - done - len(found)} commits that its log no longer has",
        hint="Load their range again (penstock load --since)",
    )


def _apply(dead: Store, number: int, note: CommitNote) -> None:
    inside, across = plan_removal(dead.files(), note.dead_replaces)
    kept = [run_rewrite(RewriteTask(dead.storage, (file,), tuple(note.dead_replaces))) for file in across]

    def not_yet() -> None:
        if (dead.transaction(DEAD_APPLIED) or 0) >= number:
            raise _AlreadyApplied

    try:
        dead.commit(
            CommitNote(note.kind, note.topic, note.topic_id, note.spans, note.counts),
            add=[*note.dead_files, *(file for file in kept if file is not None)],
            remove=[*inside, *across],
            transactions={DEAD_APPLIED: number},
            check=not_yet,
        )
    except _AlreadyApplied:
        # Another driver applied it first.
        dead.storage.remove_files([file.path for file in kept if file is not None])


class _AlreadyApplied(Exception):
    pass


# ---------------------------------------------------------------------------------------------- dead letters again


class Replayed(NamedTuple):
    """How many dead letters were retried, and how many are in the table now."""

    tried: int
    landed: int
    added_columns: tuple[str, ...] = ()


def replay_dead(loader: Loader) -> Replayed:
    """Retries all dead letters that still have their content."""
    loader.settle()
    opened = loader.opened
    dead = opened.dead.read()
    rows = dead.filter(pc.invert(dead.column("dropped"))).sort_by(
        [("_partition", "ascending"), ("_offset", "ascending")]
    )
    if not rows.num_rows:
        return Replayed(0, 0)
    payloads: dict[Span, bytes] = {}
    for partition in pc.unique(rows.column("_partition")).to_pylist():
        of_partition = rows.filter(pc.equal(rows.column("_partition"), partition))
        for start in range(0, of_partition.num_rows, _TASK_ROWS):
            piece = of_partition.slice(start, _TASK_ROWS)
            offsets = piece.column("_offset")
            payloads[Span(partition, offsets[0].as_py(), offsets[-1].as_py() + 1)] = _as_arrow_stream(piece)
    report = LoadReport()
    loader.expect(rows.num_rows, lambda: int(rows.nbytes))
    results = loader.run(list(payloads), report, payloads)
    stayed = _dead_spans(opened.dead.storage, [file for one in results for file in one.dead_files])
    gone = difference(_row_spans(rows), stayed)
    landed = sum(one.counts.landed + one.counts.deleted for one in results)
    if gone:
        _commit_replay(loader, gone, results)
    else:
        opened.dead.storage.remove_files([file.path for one in results for file in one.dead_files])
    return Replayed(rows.num_rows, landed, tuple(report.added_columns))


def _commit_replay(loader: Loader, gone: Sequence[Span], results: Sequence[TaskResult]) -> CommitNote:
    """Moves rows from the dead letters into the table."""
    store = loader.opened.store
    number = dead_letter_sequence(store) + 1
    written = Written.of(results)
    loader.opened.dead.storage.remove_files([file.path for file in written.dead_files])
    counts = Counts(records=written.counts.landed + written.counts.deleted,
                    landed=written.counts.landed, deleted=written.counts.deleted)  # fmt: skip
    note = CommitNote(
        REPLAY, loader.opened.table.topic, loader.opened.topic_id, tuple(gone), counts,
        dead_sequence=number, dead_replaces=tuple(gone),
    )  # fmt: skip

    def check() -> None:
        if dead_letter_sequence(store) != number - 1:
            raise concurrent_load(loader.opened.name)

    try:
        if loader.opened.table.mode == "upsert":
            loader.merge(note, written, {DEAD_SEQUENCE: number}, check)
        else:
            store.commit(note, add=written.files, transactions={DEAD_SEQUENCE: number}, check=check)
    except PenstockError:
        loader.discard(written)
        raise
    loader.settle()
    return note


def _as_arrow_stream(rows: pa.Table) -> bytes:
    """Encodes rows as if they had been fetched."""
    columns: dict[str, Any] = {name: rows.column(ours) for name, ours in _AS_READ.items()}
    columns["timestampType"] = pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows)
    table = pa.table(columns).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _dead_spans(storage: Storage, files: Iterable[DataFile]) -> list[Span]:
    filesystem, root = storage.filesystem()
    spans: list[Span] = []
    for file in files:
        spans += _row_spans(
            pq.read_table(f"{root}/{file.path}", filesystem=filesystem, columns=["_partition", "_offset"])
        )
    return union(spans)


def _row_spans(rows: pa.Table) -> list[Span]:
    pairs = zip(rows.column("_partition").to_pylist(), rows.column("_offset").to_pylist(), strict=True)
    return union(Span(partition, offset, offset + 1) for partition, offset in pairs)
