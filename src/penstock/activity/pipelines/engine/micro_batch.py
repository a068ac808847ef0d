"""A micro-batch: its rows into their table, derived rows into theirs, both to their topics.

Each table takes a batch in one commit with the query id and the batch number, so when Spark repeats a batch after a
crash the steps that are done are skipped. Derived rows are computed from the first changed row on, with the horizon
before it, so that they equal a full computation.

Rows go to their topic as JSON under their key, deleted rows as tombstones, times in milliseconds. They are
acknowledged before the table is committed. If the cluster has transactions, the rows of a batch and a record of it in
the ledger of exactly-once writes are one transaction, so a batch that is repeated after a crash is not sent again.
Otherwise it is sent again, and never omitted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.activity.cluster import Cluster, cluster_of
from penstock.activity.pipelines.definition import Derived, Pipeline, Report, Rows
from penstock.activity.pipelines.engine import results
from penstock.activity.pipelines.engine.results import Change, ChangeCallback, ResultTable, TimeSpan, Transaction
from penstock.activity.pipelines.errors import PipelineError
from penstock.client.admin import Admin
from penstock.client.admin.results import TopicSpec
from penstock.client.errors import PenstockError, TopicExists
from penstock.spark.errors import one_line
from penstock.spark.ledger_topic import BatchProducer, ClusterBrokers, LedgerOptions
from penstock.spark.options import security_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.client.producer.producer import Producer


_DELIVERY_TIMEOUT_MS: Final = 30_000.0
_SETTINGS: Final[Mapping[str, Any]] = {
    "client_id": "penstock-pipelines", "delivery_timeout_ms": _DELIVERY_TIMEOUT_MS,
    "max_block_ms": _DELIVERY_TIMEOUT_MS, "request_timeout_ms": 10_000,
}  # fmt: skip
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
            sender = self._outputs.sender(self.rows, transaction)
            self._note(self.table.merge(found, transaction=transaction, notify=sender))
        first, _ = results.time_bounds(found, self.rows.time)
        for follower in self.followers:
            if follower.table.transaction(app_id) < batch_id:
                sender = self._outputs.sender(follower.derived, transaction)
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
        reason = one_line(f"{type(error).__name__}: {error}")
        raise PipelineError(f"computing {derived.name} from {derived.of} failed: {reason}"[:400]) from error
    return found.cast(results.plain_schema(found.schema))


# ---------------------------------------------------------------------------------------------- topics


class Outputs:
    """Sends changed rows to topics. Shared by the queries of a process."""

    def __init__(self, where: Cluster | str) -> None:
        self._cluster = cluster_of(where)
        self._lock = threading.Lock()
        self._producer: Producer[bytes, bytes] | None = None
        self._brokers: ClusterBrokers | None = None
        self._has_transactions: bool | None = None
        self._of_queries: dict[str, BatchProducer] = {}

    def send(
        self, topic: str, change: Change, key: Sequence[str], batch: Transaction | None = None, *, again: bool = False
    ) -> None:
        """Returns when all rows are acknowledged. Raises the producer's errors.

        The rows of a `batch` that were sent before are not sent again, unless `again`, if the cluster has transactions.
        """
        keys = [*keys_of(change.changed, key), *keys_of(change.deleted, key)]
        values: list[bytes | None] = [*values_of(change.changed), *[None] * change.deleted.num_rows]
        if not keys:
            return
        query = None if batch is None else self._of_query(batch[0])
        if query is None or batch is None:
            self._open().send_many(topic, values, keys=keys).result()
        else:
            query.write(topic, batch[1], keys, values, again=again)

    def sender(self, table: Rows | Derived | Report, batch: Transaction | None = None) -> ChangeCallback | None:
        """Sends the changes of a table to its topic; None if it has none."""
        topic, calls = table.topic, count()
        if topic is None:
            return None
        # A change that is planned again, because another writer has changed the table, is another change.
        return lambda change: self.send(topic, change, table.key, batch, again=next(calls) > 0)

    def _of_query(self, app_id: str) -> BatchProducer | None:
        """The producer of a query; None if the cluster has no transactions."""
        with self._lock:
            options = LedgerOptions(
                self._cluster.bootstrap,
                timeout_ms=int(_DELIVERY_TIMEOUT_MS),
                security=security_of(self._cluster.options),
            )
            if self._brokers is None:
                self._brokers = ClusterBrokers(options)
            if self._has_transactions is None:
                self._has_transactions = self._brokers.capabilities().version > 0
            if not self._has_transactions:
                return None
            if app_id not in self._of_queries:
                self._of_queries[app_id] = BatchProducer(self._brokers, options, app_id, **_SETTINGS)
            return self._of_queries[app_id]

    def _open(self) -> Producer[bytes, bytes]:
        from penstock.client.producer.producer import Producer

        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._cluster.bootstrap, **self._cluster.security(), **_SETTINGS)
            return self._producer

    def close(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
            brokers, self._brokers = self._brokers, None
            of_queries, self._of_queries = self._of_queries, {}
        for each in of_queries.values():
            each.close(2.0)
        if producer is not None:
            producer.close(timeout=2.0)
        if brokers is not None:
            brokers.close()


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
