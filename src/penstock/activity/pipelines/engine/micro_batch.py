"""A micro-batch: its rows into their table, derived rows into theirs, both to their topics.

Each table takes a batch in one commit with the query id and the batch number, so when Spark repeats a batch after a
crash the steps that are done are skipped. Derived rows are computed from the first changed row on, with the horizon
before it, so that they equal a full computation.

Rows go to their topic as JSON under their key, deleted rows as tombstones, times in milliseconds. They are
acknowledged before the table is committed: a crash in between sends them again and never omits them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.activity.cluster import Cluster, cluster_of
from penstock.activity.pipelines.definition import Derived, Pipeline, Report, Rows
from penstock.activity.pipelines.engine import results
from penstock.activity.pipelines.engine.results import Change, ChangeCallback, ResultTable, TimeSpan
from penstock.activity.pipelines.errors import PipelineError
from penstock.client.admin import Admin
from penstock.client.admin.results import TopicSpec
from penstock.client.errors import PenstockError, TopicExists
from penstock.spark.errors import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.client.producer.producer import Producer


_DELIVERY_TIMEOUT_MS: Final = 30_000.0
_COMPACTED: Final = {"cleanup.policy": "compact"}
_SEPARATOR: Final = ":"
_QUERY_ID: Final = "sql.streaming.queryId"

# ---------------------------------------------------------------------------------------------- batches


@dataclass(frozen=True)
class Follower:
    """A derived table."""

    derived: Derived
    table: ResultTable


class BatchWork:
    """What a query runs for each micro-batch."""

    def __init__(self, rows: Rows, table: ResultTable, followers: Sequence[Follower], outputs: Outputs) -> None:
        self.rows = rows
        self.table = table
        self.followers = tuple(followers)
        self._outputs = outputs
        self.failure: PenstockError | None = None
        """The error that ended the query; Spark keeps only its text."""
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
        """Applies the rows of a batch; a batch that was already applied changes nothing."""
        if not found.num_rows:
            return
        transaction = (app_id, batch_id)
        if self.table.transaction(app_id) < batch_id:
            self._note(self.table.merge(found, transaction=transaction, notify=self._outputs.sender(self.rows)))
        first, _ = results.time_bounds(found, self.rows.time)
        for follower in self.followers:
            if follower.table.transaction(app_id) < batch_id:
                sender = self._outputs.sender(follower.derived)
                self._note(update_follower(follower, self.table, TimeSpan(first), transaction, sender))

    def _note(self, change: Change) -> None:
        if not change.is_empty:
            self.last_commit_ms = time.time_ns() // 1_000_000
            self.rows_changed += change.changed.num_rows + change.deleted.num_rows


def open_batch_work(
    pipeline: Pipeline, rows: Rows, schema: pa.Schema, warehouse_uri: str, outputs: Outputs, *, may_create: bool
) -> BatchWork:
    """Opens or creates the tables of `rows` and of everything derived from it."""
    table = results.open_result_table(warehouse_uri, rows.name, rows.key, rows.time, schema, may_create=may_create)
    followers: list[Follower] = []
    for derived in pipeline.derived_from(rows):
        shape = compute_derived(derived, table.schema.empty_table()).schema
        kept = results.open_result_table(
            warehouse_uri, derived.name, derived.key, derived.time, shape, may_create=may_create
        )
        followers.append(Follower(derived, kept))
    return BatchWork(rows, table, followers, outputs)


def update_follower(
    follower: Follower,
    of: ResultTable,
    span: TimeSpan,
    transaction: tuple[str, int] | None,
    notify: ChangeCallback | None,
) -> Change:
    """Computes and stores the derived rows for rows that changed in `span`."""
    derived = follower.derived
    # A table that is replaced as a whole depends on the newest rows, not on those of this batch.
    start = of.newest if derived.replaces else span.start
    computed = compute_derived(derived, of.rows(TimeSpan(None if start is None else start - derived.horizon)))
    whole = TimeSpan() if derived.replaces else TimeSpan(span.start)
    if not derived.replaces:
        computed = computed.filter(whole.holds(computed.column(derived.time).combine_chunks()))
    return follower.table.replace(computed, whole, transaction=transaction, notify=notify)


def compute_derived(derived: Derived, rows: pa.Table) -> pa.Table:
    """Computes derived rows. Raises PipelineError of one line."""
    try:
        found = derived.compute(rows)
    except (ArithmeticError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
        said = one_line(f"{type(error).__name__}: {error}")
        raise PipelineError(f"computing {derived.name} from {derived.of} failed: {said}"[:400]) from error
    return found.cast(results.plain_schema(found.schema))


# ---------------------------------------------------------------------------------------------- topics


class Outputs:
    """Sends changed rows to topics. Shared by the queries of a process."""

    def __init__(self, where: Cluster | str) -> None:
        self._cluster = cluster_of(where)
        self._lock = threading.Lock()
        self._producer: Producer[bytes, bytes] | None = None

    def send(self, topic: str, change: Change, key: Sequence[str]) -> None:
        """Returns when all rows are acknowledged. Raises the producer's errors."""
        keys = [*keys_of(change.changed, key), *keys_of(change.deleted, key)]
        values: list[bytes | None] = [*values_of(change.changed), *[None] * change.deleted.num_rows]
        if not keys:
            return
        producer = self._open()
        producer.send_many(topic, values, keys=keys).result()

    def sender(self, table: Rows | Derived | Report) -> ChangeCallback | None:
        """Sends the changes of a table to its topic; None if it has none."""
        topic = table.topic
        return None if topic is None else lambda change: self.send(topic, change, table.key)

    def _open(self) -> Producer[bytes, bytes]:
        from penstock.client.producer.producer import Producer

        with self._lock:
            if self._producer is None:
                self._producer = Producer(
                    self._cluster.bootstrap, client_id="penstock-pipelines", ssl=self._cluster.ssl(),
                    delivery_timeout_ms=_DELIVERY_TIMEOUT_MS, max_block_ms=_DELIVERY_TIMEOUT_MS,
                    request_timeout_ms=10_000,
                )  # fmt: skip
            return self._producer

    def close(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout=2.0)


def values_of(rows: pa.Table) -> list[bytes]:
    """Each row as a JSON object."""
    encode = msgspec.json.Encoder().encode
    names = rows.column_names
    columns = [_plain(rows.column(name)).to_pylist() for name in names]
    return [encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def keys_of(rows: pa.Table, key: Sequence[str]) -> list[bytes]:
    """The values of the key columns, joined by colons."""
    columns = [_plain(rows.column(name)).to_pylist() for name in key]
    return [_SEPARATOR.join(map(str, row)).encode() for row in zip(*columns, strict=True)]


def _plain(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        return pc.divide(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()), 1000)
    if pa.types.is_date(column.type):
        return column.cast(pa.string())
    return column


def ensure_topics(admin: Admin, events: Iterable[str], outputs: Iterable[str], partitions: int) -> None:
    """Creates missing topics. Raises the first error other than TopicExists."""
    specs = [TopicSpec(name, partitions) for name in dict.fromkeys(events)]
    specs += [TopicSpec(name, 1, config=_COMPACTED) for name in dict.fromkeys(outputs)]
    answers = admin.create_topics(specs, exist_ok=True)
    for answer in answers.values():
        if isinstance(answer, PenstockError) and not isinstance(answer, TopicExists):
            raise answer
