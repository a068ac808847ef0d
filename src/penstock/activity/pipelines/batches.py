"""What becomes of a micro-batch: its rows into their table, what follows from them into theirs, both to their topics.

Noun: `BatchWork`, for one `Rows` and what is derived of it.

Rule: each table takes a batch in one commit with the query's id and the batch's number in it; whichever of the steps a
crash came before, Spark gives the same batch again, and the steps that are done are passed over. What is derived is
computed from the first changed row on, with the horizon before it, so that it is what it would be if all were computed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.activity.pipelines import changes, results
from penstock.activity.pipelines.changes import Change, Span
from penstock.activity.pipelines.errors import PipelineError
from penstock.activity.pipelines.pipeline import Derived, Pipeline, Rows
from penstock.activity.pipelines.results import ResultTable, Tell
from penstock.client.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.activity.pipelines.outputs import Outputs

_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(frozen=True)
class Follower:
    """Something derived, with its table."""

    derived: Derived
    table: ResultTable


class BatchWork:
    """What a query calls for each micro-batch."""

    def __init__(self, rows: Rows, table: ResultTable, followers: Sequence[Follower], outputs: Outputs) -> None:
        self.rows = rows
        self.table = table
        self.followers = tuple(followers)
        self._outputs = outputs
        self.failure: PenstockError | None = None
        """What ended the query here: Spark has only its text."""
        self.last_commit_ms = 0
        self.rows_changed = 0
        self.busy = threading.Lock()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        query_id = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID) or self.rows.name
        try:
            found = frame.toArrow()
            with self.busy:
                self.take(found, f"penstock:pipeline:{query_id}", batch_id)
        except PenstockError as error:
            self.failure = error
            raise

    def take(self, found: pa.Table, app_id: str, batch_id: int) -> None:
        """The rows of a batch; those of one that was taken before change nothing."""
        if not found.num_rows:
            return
        transaction = (app_id, batch_id)
        if self.table.transaction(app_id) < batch_id:
            self._note(self.table.merge(found, transaction=transaction, told=self._sender(self.rows)))
        first, _ = changes.bounds(found, self.rows.time)
        for follower in self.followers:
            if follower.table.transaction(app_id) < batch_id:
                self._note(follow(follower, self.table, Span(first), transaction, self._sender(follower.derived)))

    def _sender(self, kept: Rows | Derived) -> Tell | None:
        if kept.topic is None:
            return None
        topic = kept.topic
        return lambda change: self._outputs.send(topic, change, kept.key)

    def _note(self, change: Change) -> None:
        if not change.is_empty:
            self.last_commit_ms = time.time_ns() // 1_000_000
            self.rows_changed += change.changed.num_rows + change.deleted.num_rows


def follow(
    follower: Follower, of: ResultTable, span: Span, transaction: tuple[str, int] | None, told: Tell | None
) -> Change:
    """Compute what follows from rows that changed in `span`, and keep it."""
    derived = follower.derived
    # What replaces all of its table is about the newest rows, not about those that happened to come together.
    start = of.newest if derived.replaces else span.start
    computed = compute(derived, of.rows(Span(None if start is None else start - derived.horizon)))
    whole = Span() if derived.replaces else Span(span.start)
    if not derived.replaces:
        computed = computed.filter(whole.holds(computed.column(derived.time).combine_chunks()))
    return follower.table.replace(computed, whole, transaction=transaction, told=told)


def compute(derived: Derived, rows: pa.Table) -> pa.Table:
    """What follows from rows; a mistake in it is one line."""
    try:
        found = derived.compute(rows)
    except (ArithmeticError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise PipelineError(f"{derived.name} could not be computed from {derived.of}: {said}"[:400]) from error
    return found.cast(results.plain_schema(found.schema))


def open_work(
    pipeline: Pipeline, rows: Rows, schema: pa.Schema, warehouse_uri: str, outputs: Outputs, *, may_create: bool
) -> BatchWork:
    """The tables of `rows` and of all that is derived of it, opened or made."""
    table = results.opened(warehouse_uri, rows.name, rows.key, rows.time, schema, may_create=may_create)
    followers: list[Follower] = []
    for derived in pipeline.derived_from(rows):
        shape = compute(derived, table.schema.empty_table()).schema
        kept = results.opened(warehouse_uri, derived.name, derived.key, derived.time, shape, may_create=may_create)
        followers.append(Follower(derived, kept))
    return BatchWork(rows, table, followers, outputs)
