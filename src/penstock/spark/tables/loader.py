"""Loads: new records, a range again, dead letters again, or everything as it comes.

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
    staged_rows,
)
from penstock.spark.tables.tasks import run_rewrite_pickled as rewrite_pickled
from penstock.spark.tables.warehouse import OpenTable, evolve, merged_columns

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.spark.tables.delta import LiveFile
    from penstock.spark.tables.runner import Runner


@dataclass(frozen=True)
class Limits:
    """How much at once."""

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


def dead_letter_sequence(main: Store) -> int:
    return main.transaction(DEAD_SEQUENCE) or 0


def settle_dead_letters(main: Store, dead: Store) -> int:
    """Carry out what the dead letters are behind with; how many commits that were."""
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
        # Another driver found it missing too, and was faster.
        dead.storage.remove_files([file.path for file in kept if file is not None])


class _AlreadyApplied(Exception):
    pass


_log = logging.getLogger(__name__)

# Upserts pass through the driver's memory.
_MOST_UPSERTS: Final = 1_000_000
_GROWTHS: Final = 4
_RETRIES: Final = 2
# A load that follows the log commits again and again while a backfill tries to.
_COMMIT_TRIES: Final = 20
_SETTLE_TRIES: Final = 5


Progress = Callable[[CommitNote, int], None]


class Loader:
    """One table, one cluster."""

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

    # ------------------------------------------------------------------------------------------ what is asked for

    def state(self) -> LogState:
        """Where the log stands; raises UnknownTopic, TopicRecreated..."""
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
        """Everything up to where the log ends now, or up to `until`, in as many commits as that takes.

        `stop` ends it after a commit.
        """
        report = report or LoadReport()
        self.settle()
        state = self.state()
        self._first_time(state, {})
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
        """Replace these offsets in one commit, then load what is new; with `bounded`, not beyond them."""
        report = LoadReport()
        self.settle()
        state = self.state()
        self._first_time(state, load_plan.requested_starts(asked))
        standing = self.opened.standing(state.bounds)
        spans = load_plan.backfill_spans(state, standing, asked)
        if spans and self.opened.table.mode == "upsert":
            short = [span for span in spans if span.end < standing.covered[span.partition][1]]
            if short:
                raise RangeError(
                    f"an upsert table is loaded again up to where it is, and {short[0]} ends before that",
                    hint="Leave the end out: a row of then would come back after it was deleted",
                )
            if total(spans) > _MOST_UPSERTS:
                # In several commits, a crash between two would leave rows that were deleted since.
                raise RangeError(
                    f"{total(spans)} offsets are to be loaded again into an upsert table in one commit, which passes "
                    f"through the driver's memory: {_MOST_UPSERTS} at most",
                    hint="Begin later; or drop the table and load it anew, which takes as many commits as it needs",
                )
        if spans:
            self._expect(spans, state)
            self._step(spans, BACKFILL, report)
        return self.load_new(report, until=load_plan.requested_ends(asked) if bounded else None)

    def _expect(self, spans: Sequence[Span], state: LogState) -> None:
        self.expect(total(spans), lambda: stored_bytes(self._admin, state, spans))

    def expect(self, records: int, size: Callable[[], int]) -> None:
        """Tells the runner how much it is about to read."""
        self._runner.expect(records, size)

    def since(self, time_ms: int, until_ms: int | None = None) -> list[Span]:
        """The offsets from a time on, up to another or to the end."""
        state = self.state()
        starts = offsets_at(self._admin, state, time_ms)
        ends = (
            {index: end for index, (_, end) in state.bounds.items()}
            if until_ms is None
            else offsets_at(self._admin, state, until_ms)
        )
        return [Span(index, start, max(start, ends[index])) for index, start in starts.items()]

    def settle(self) -> None:
        """Finish what a driver that died left of the dead letters."""
        for _ in range(_SETTLE_TRIES):
            self.opened.store.refresh()
            self.opened.dead.refresh()
            try:
                settle_dead_letters(self.opened.store, self.opened.dead)
            except ConcurrentLoad:
                continue
            return
        raise concurrent_load(self.opened.name)

    # ------------------------------------------------------------------------------------------ where it begins

    def _first_time(self, state: LogState, asked: Mapping[int, int]) -> None:
        """Keep where an empty table begins, if that is not the beginning of the log: "latest" moves."""
        opened = self.opened
        standing = opened.standing(state.bounds)
        start = opened.table.start
        if standing.covered or (start == "earliest" and not asked):
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
            check=lambda: self._check_standing(standing, state.bounds),
        )

    def _new_spans(self, state: LogState, until: Mapping[int, int] | None) -> tuple[list[Span], list[Span]]:
        standing = self.opened.standing(state.bounds)
        skip = self.opened.table.on_data_loss == "skip"
        spans, lost = load_plan.new_spans(state, standing, skip_lost=skip)
        return (spans if until is None else load_plan.clipped(spans, until)), lost

    # ------------------------------------------------------------------------------------------ one commit

    def _step(self, spans: Sequence[Span], kind: str, report: LoadReport) -> None:
        opened = self.opened
        began = opened.store.version
        standing = opened.standing({span.partition for span in spans})
        per_task = max(1, min(self._limits.task_records, -(-total(spans) // self._runner.parallelism())))
        results = self.run(split(spans, per_task), report)
        load_plan.check_exact(spans, [one.span for one in results])
        written = Written.of(results)
        try:
            opened.store.storage.check_there(written.files)
            opened.dead.storage.check_there(written.dead_files)
            version, note = self._commit_beside_others(kind, spans, written, standing, began)
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
        """The results of tasks for these spans; the table grows first if records ask for it."""
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

    # ------------------------------------------------------------------------------------------ committing

    def _commit_beside_others(
        self, kind: str, spans: Sequence[Span], written: Written, standing: TableState, began: int
    ) -> tuple[int, CommitNote]:
        """Loads that go on meanwhile do not touch what a backfill replaces: it is tried again on top of them."""
        store = self.opened.store
        for _ in range(_COMMIT_TRIES if kind == BACKFILL and self.opened.table.mode == "append" else 1):
            try:
                return self._commit(kind, spans, written, standing)
            except ConcurrentLoad:
                store.refresh()
                notes = (store.note(version) for version in range(began + 1, store.version + 1))
                if any(note is not None and note.kind == EVOLVE for note in notes):
                    raise
        raise concurrent_load(self.opened.name)

    def _commit(
        self, kind: str, spans: Sequence[Span], written: Written, standing: TableState
    ) -> tuple[int, CommitNote]:
        store = self.opened.store
        moved = load_plan.table_state_after(standing, spans)
        transactions = self._begins(standing, moved) if kind == BACKFILL else self._transactions(moved)
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
            self._check_standing(standing, {span.partition for span in spans}, may_go_on=is_in_place)
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
        """Files that go, and what is left of those that reach beyond."""
        storage = self.opened.store.storage
        inside, across = plan_removal(self.opened.store.files(), spans)
        made = [pickle.dumps(RewriteTask(storage, (file,), tuple(spans))) for file in across]
        kept = [pickle.loads(answer) for answer in self._runner.run(rewrite_pickled, made)] if made else []
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
        """Show how far the table is, as a group's committed offsets; nothing depends on it."""
        standing = self.opened.standing({span.partition for span in spans})
        topic = self.opened.table.topic
        offsets = {(topic, partition): after for partition, (_, after) in standing.covered.items()}
        try:
            self._admin.set_group_offsets(group_of(self.opened.name), offsets)
        except PenstockError as error:
            _log.warning("the progress of table %s could not be shown as a group's: %s", self.opened.name, error)

    def _transactions(self, places: Mapping[int, tuple[int, int]]) -> dict[str, int]:
        topic_id = self.opened.topic_id
        named: dict[str, int] = {}
        for partition, (first, after) in places.items():
            named[first_id(topic_id, partition)] = first
            named[next_id(topic_id, partition)] = after
        return named

    def _begins(self, standing: TableState, moved: Mapping[int, tuple[int, int]]) -> dict[str, int]:
        """A backfill moves no end; it says nothing of ends, since others may move them meanwhile."""
        return {
            first_id(self.opened.topic_id, partition): first
            for partition, (first, _) in moved.items()
            if first != standing.covered[partition][0]
        }

    def _check_standing(self, standing: TableState, partitions: Iterable[int], *, may_go_on: bool = False) -> None:
        now = self.opened.standing(partitions)
        if now != standing and not (may_go_on and load_plan.only_advanced(standing, now)):
            raise concurrent_load(self.opened.name)

    def discard(self, written: Written) -> None:
        self.opened.store.storage.remove_files([file.path for file in written.files])
        self.opened.dead.storage.remove_files([file.path for file in written.dead_files])


def concurrent_load(name: str) -> ConcurrentLoad:
    return ConcurrentLoad(
        f"another load of {name} has committed in the meantime; nothing of this one was", hint="Run the same again"
    )


def group_of(name: str) -> str:
    """The group whose lag is that of a table."""
    return f"penstock-table-{name}"


def reader_options(bootstrap: str, topic: str, options: Mapping[str, str]) -> ReaderOptions:
    """How tasks read, from the options of a declaration; raises ConfigError as the data source does."""
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true", **options}
    return parse_source(given, streaming=False).reader


_LONGEST_WAIT_S: Final = 60.0


def follow(
    loader: Loader,
    stop: threading.Event,
    *,
    interval_s: float = 10.0,
    after_round: Callable[[LoadReport], None] | None = None,
    told: Callable[[PenstockError, float], None] | None = None,
) -> None:
    """Load until `stop` is set; it is looked at between commits."""
    failures = 0
    while not stop.is_set():
        try:
            report = loader.load_new(stop=stop)
            failures = 0
            if after_round is not None and report.commits:
                after_round(report)
            stop.wait(interval_s)
        except PenstockError as error:
            # A task that waited for a broker in vain has waited enough, but the next round may find it there.
            if not error.retriable and not isinstance(error, ReadStalled):
                raise
            wait_s = min(_LONGEST_WAIT_S, 2.0**failures)
            failures += 1
            if told is not None:
                told(error, wait_s)
            stop.wait(wait_s)


_TASK_ROWS: Final = 100_000
_AS_READ: Final = {
    "key": "_key", "value": "value", "topic": "_topic", "partition": "_partition", "offset": "_offset",
    "timestamp": "_timestamp", "headers": "_headers",
}  # fmt: skip


class Replayed(NamedTuple):
    """How many there were, and how many are in the table now."""

    tried: int
    landed: int
    added_columns: tuple[str, ...] = ()


def replay_dead(loader: Loader) -> Replayed:
    """Try all dead letters that have their content."""
    loader.settle()
    opened = loader.opened
    dead = opened.dead.delta.to_pyarrow_table()
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
    """Rows that were dead letters into the table, and out of the dead letters."""
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
    """As if it had come from the log."""
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
