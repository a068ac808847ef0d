"""`df.write` and `df.writeStream` with format("penstock"): rows become records.

Columns are value (required), key, headers, topic and partition, as in the stock connector; others are ignored. Options
and columns are checked in the driver before a task runs. `kafka.*` sets the producer where it has such a setting. Only
mode("append") is possible: a topic cannot be overwritten.

Delivery is at least once by default: each task's producer is idempotent, but a task that Spark runs again writes
again. A task returns a receipt when all its records are acknowledged; the driver's commit checks that no receipt is
missing and that all are of one query and batch. Spark builds a new writer for every commit, so nothing is kept between
batches. Worker processes keep their producer, at most four, so a micro-batch pays for no connection; a producer that
failed a task is discarded.

With penstock.delivery=exactly-once a task writes in a transaction and leaves it prepared, and the driver's commit
decides (`exactly_once`, `ledger`).
"""

from __future__ import annotations

import atexit
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.client.errors import ConfigError, PenstockError
from penstock.spark import exactly_once
from penstock.spark.errors import one_line
from penstock.spark.exactly_once import ExactlyOnceOptions, Plan, Prepared, TaskTransaction, WriteKey
from penstock.spark.ledger import StoredRange
from penstock.spark.ledger_topic import DEFAULT_TOPIC, LedgerOptions
from penstock.spark.options import SecurityOptions, bootstrap_of, check_sink_names, security_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from penstock.client.producer.delivery import BulkDelivery
    from penstock.client.producer.producer import Producer


_log = logging.getLogger("penstock.spark")
_KAFKA: Final = "kafka."
# A task sends in a burst: linger briefly so that requests carry full batches.
_DEFAULTS: Final = {"linger_ms": 5.0, "client_id": "penstock-spark-sink"}
_REJECTED: Final = {
    "kafka.key.serializer": "Keys are written as the column has them: binary or string",
    "kafka.value.serializer": "Values are written as the column has them: binary or string",
    "kafka.interceptor.classes": "Interceptors need the Java producer, which is not used",
    "kafka.partitioner.class": "Add a column named partition to choose partitions",
    "kafka.transactional.id": "Set penstock.delivery to exactly-once: the sink names its transactions itself",
    "kafka.transaction.timeout.ms": "Set penstock.transaction.timeout.ms",
    "kafka.transaction.two.phase.commit.enable": "The sink uses two-phase commit where the brokers have it",
}
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
_SECURITY: Final = ("ssl", "sasl", "security")
_NOT_OPTIONS: Final = frozenset({"self", "bootstrap_servers", "key", "value", "partitioner", "interceptors", "ssl"}) | {
    "transactional_id", "transaction_timeout_ms", "transaction_two_phase_commit",
}  # fmt: skip
_OTHER_NAMES: Final = {"kafka.socket.connection.setup.timeout.ms": "connect_timeout_ms"}
_COLUMNS: Final = ("value", "key", "headers", "partition")
_MAX_PRODUCERS: Final = 4
_QUICK_CLOSE_S: Final = 1.0
_ANY_PARTITION: Final = "Correct the column partition; null lets the key decide"
_NO_TOPIC: Final = 'Give every row a topic, or one for all with .option("topic", ...)'

# ---------------------------------------------------------------------------------------------- writers


class IncompleteWrite(PenstockError):
    """A commit was requested although a task has not reported its write."""


class WriteFailed(PenstockError):
    """The records of a task could not be stored."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer for `DataSource.writer`."""
    if overwrite:
        raise ConfigError("a topic cannot be overwritten", hint='Use .mode("append")')
    found = checked_options(options, schema)
    return BatchWriter(found, None if found.exactly_once is None else exactly_once.batch_plan(found.exactly_once))


class BatchWriter(DataSourceArrowWriter):
    """Pickled to every task, and to a process of the driver for commit or abort."""

    def __init__(self, options: SinkOptions, plan: Plan | None = None) -> None:
        self._options = options
        self._plan = plan

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return TaskWriter(self._options, self._plan).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        receipt = batch_receipt(messages, None)
        exactly_once.commit(receipt.prepared)
        _log.info(
            "write committed: records=%d ranges=%s", receipt.records, ", ".join(map(str, receipt.stored)) or "none"
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._plan is None:
            log_abort("the write", messages)
        else:
            abort_transactions(self._plan, "the write", messages, 0)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer for `DataSource.streamWriter`.

    In complete mode (`overwrite`) each batch is appended as a whole, as in the stock connector.
    """
    found = checked_options(options, schema)
    if found.exactly_once is not None and found.exactly_once.write_id is not None:
        raise ConfigError("option penstock.write.id is for batch writes", hint="A stream has its checkpoint. Remove it")
    plan = None if found.exactly_once is None else exactly_once.stream_plan(found.exactly_once)
    return StreamWriter(found, plan, options.get("checkpointLocation") or "")


class StreamWriter(DataSourceStreamArrowWriter):
    """Pickled to every task; built again in the driver for each commit or abort."""

    def __init__(self, options: SinkOptions, plan: Plan | None = None, name: str = "") -> None:
        self._options = options
        self._plan = plan
        self._name = name

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return TaskWriter(self._options, self._plan).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        receipt = batch_receipt(messages, batchId)
        exactly_once.commit(receipt.prepared, self._name)
        _log.info("batch committed: batch=%r records=%d", str(receipt.key), receipt.records)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        if self._plan is None:
            log_abort(f"batch {batchId}", messages)
        else:
            abort_transactions(self._plan, f"batch {batchId}", messages, batchId, self._name)


def log_abort(what: str, messages: list[WriterCommitMessage | None]) -> None:
    """Logs what an aborted write left: records in a log cannot be removed."""
    left = ranges_left_in_log(messages)
    if left:
        _log.warning("write aborted: what=%r records_left_in_log=%s", what, ", ".join(map(str, left)))


def abort_transactions(
    plan: Plan, what: str, messages: list[WriterCommitMessage | None], batch_id: int, name: str = ""
) -> None:
    """Aborts what tasks wrote. A failure is logged only: it must not hide why the write was aborted."""
    prepared = [each.prepared for each in messages if isinstance(each, TaskReceipt) and each.prepared is not None]
    try:
        if not exactly_once.abort(plan, prepared, batch_id, name):
            _log.warning("aborted after its decision, the next start of the query carries it out: what=%r", what)
    except PenstockError as error:
        # The next run aborts them, or their time-out does.
        _log.warning("transactions not aborted: what=%r error=%r", what, one_line(error))


# ---------------------------------------------------------------------------------------------- options and columns


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Checked options, pickled into every task."""

    bootstrap: str
    topic: str | None
    producer: tuple[tuple[str, Any], ...]
    security: SecurityOptions | None = None
    exactly_once: ExactlyOnceOptions | None = None
    """None for at-least-once delivery."""

    @property
    def delivery_timeout_s(self) -> float:
        return float(dict(self.producer).get("delivery_timeout_ms", 120_000)) / 1000


def checked_options(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    """The options of a writer for rows of this schema. Raises ConfigError."""
    found = sink_options(options)
    check_schema(schema, found.topic)
    return found


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parses the options of a writer. Raises ConfigError."""
    check_sink_names(given)
    named = {name.lower(): value for name, value in given.items()}
    bootstrap = bootstrap_of(given)
    topic = named.get("topic")
    if topic is not None and not topic.strip():
        raise ConfigError("option topic is empty", hint="Set a topic, or remove the option and add a column topic")
    for name, hint in _REJECTED.items():
        if name in named:
            raise ConfigError(f"option {name} is not supported", hint=hint)
    chosen, security = _producer(named), security_of(given)
    return SinkOptions(bootstrap, topic, tuple(chosen.items()), security, _delivery(named, chosen, bootstrap, security))


_ONLY_EXACTLY_ONCE: Final = (
    "penstock.transaction.timeout.ms", "penstock.ledger.topic", "penstock.write.id", "penstock.lost.rows",
)  # fmt: skip


def _delivery(
    named: Mapping[str, str], chosen: Mapping[str, Any], bootstrap: str, security: SecurityOptions | None
) -> ExactlyOnceOptions | None:
    """The options of exactly-once delivery; None if it is not wanted. Raises ConfigError."""
    delivery = named.get("penstock.delivery", AT_LEAST_ONCE).strip().lower()
    if delivery not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise ConfigError(
            f"option penstock.delivery is {named['penstock.delivery']!r}", hint=f"Use {AT_LEAST_ONCE} or {EXACTLY_ONCE}"
        )
    if delivery == AT_LEAST_ONCE:
        for name in _ONLY_EXACTLY_ONCE:
            if name in named:
                raise ConfigError(
                    f"option {name} has no effect with {AT_LEAST_ONCE} delivery",
                    hint=f"Set penstock.delivery to {EXACTLY_ONCE}, or remove it",
                )
        return None
    name = "penstock.transaction.timeout.ms"
    timeout_ms = _converted(name, named.get(name, str(exactly_once.DEFAULT_TIMEOUT_MS)), int)
    if timeout_ms < exactly_once.LEAST_TIMEOUT_MS:
        raise ConfigError(f"option {name} is {timeout_ms}", hint=f"At least {exactly_once.LEAST_TIMEOUT_MS} are needed")
    exactly_once.transactional_settings(chosen, timeout_ms)
    lost = named.get("penstock.lost.rows", "fail").strip().lower()
    if lost not in ("fail", "accept"):
        raise ConfigError(f"option penstock.lost.rows is {lost!r}", hint="Use fail or accept")
    topic, write_id = (_text(named, name) for name in ("penstock.ledger.topic", "penstock.write.id"))
    ledger = LedgerOptions(bootstrap, topic or DEFAULT_TOPIC, int(chosen.get("delivery_timeout_ms", 120_000)), security)
    return ExactlyOnceOptions(ledger, timeout_ms, write_id, lost == "accept")


def _text(named: Mapping[str, str], name: str) -> str | None:
    found = named.get(name)
    if found is not None and not found.strip():
        raise ConfigError(f"option {name} is empty", hint="Set it, or remove it")
    return None if found is None else found.strip()


def _producer(named: Mapping[str, str]) -> dict[str, Any]:
    settings = _settings()
    chosen: dict[str, Any] = dict(_DEFAULTS)
    for name, value in named.items():
        keyword = _OTHER_NAMES.get(name, name.removeprefix(_KAFKA).replace(".", "_"))
        if name.startswith(_KAFKA) and keyword in settings:
            chosen[keyword] = _converted(name, value, settings[keyword])
    codec = str(chosen.get("compression_type", "")).lower()
    if codec:
        chosen["compression_type"] = codec
    level = f"kafka.compression.{codec}.level"
    if level in named:
        chosen["compression_level"] = _converted(level, named[level], int)
    _check(chosen)
    return chosen


def _check(chosen: Mapping[str, Any]) -> None:
    """Runs the producer's own checks once, in the driver."""
    from penstock.client.producer.settings import ProducerSettings

    ProducerSettings(**chosen)


def _settings() -> dict[str, Callable[[str], Any]]:
    """The producer's options, with the conversion of each from text. Those of TLS and SASL are `SecurityOptions`."""
    from penstock.client.producer.settings import ProducerSettings

    options = [
        each
        for each in fields(ProducerSettings)
        if each.init and each.name not in _NOT_OPTIONS and each.name.partition("_")[0] not in _SECURITY
    ]
    return {each.name: _converter(str(each.type)) for each in options}


def _converter(annotation: str) -> Callable[[str], Any]:
    kinds: dict[str, Callable[[str], Any]] = {"bool": _truth, "int": int, "float": float}
    return kinds.get(annotation.partition(" ")[0], str.strip)


def _truth(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(text)
    return text.strip().lower() == "true"


def _converted(name: str, value: str, convert: Callable[[str], Any]) -> Any:
    try:
        return convert(value)
    except ValueError:
        wanted = {_truth: "true or false", int: "an integer", float: "a number"}.get(convert, "text")
        raise ConfigError(f"option {name} is {value!r}", hint=f"It must be {wanted}") from None


def check_schema(schema: StructType, topic: str | None) -> None:
    """Checks that rows of this schema can be records, before anything is written. Raises ConfigError."""
    from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

    kinds = {field.name: field.dataType for field in schema.fields}
    twice = sorted({name for name in kinds if schema.names.count(name) > 1})
    if twice:
        raise ConfigError(f"column {twice[0]} appears more than once", hint="Rename or drop all but one")
    if "value" not in kinds:
        have = ", ".join(schema.names) or "none"
        raise ConfigError(f"column value is missing; columns are {have}", hint="Alias the column to write AS value")
    for name in ("value", "key"):
        if name in kinds and not isinstance(kinds[name], (StringType, BinaryType)):
            raise _wrong(name, "string or binary", kinds[name])
    if topic is None:
        if "topic" not in kinds:
            raise ConfigError("no topic: set the option topic or add a column topic", hint=_NO_TOPIC)
        if not isinstance(kinds["topic"], StringType):
            raise _wrong("topic", "string", kinds["topic"])
    if "partition" in kinds and not isinstance(kinds["partition"], IntegerType):
        raise _wrong("partition", "int", kinds["partition"])
    headers = kinds.get("headers")
    if headers is None:
        return
    pair = headers.elementType if isinstance(headers, ArrayType) else None
    if not isinstance(pair, StructType) or [(f.name, type(f.dataType)) for f in pair.fields] != [
        ("key", StringType),
        ("value", BinaryType),
    ]:
        raise _wrong("headers", "array<struct<key:string,value:binary>>", headers)


def _wrong(name: str, wanted: str, found: Any) -> ConfigError:
    return ConfigError(f"column {name} must be {wanted}, not {found.simpleString()}", hint=f"Cast it to {wanted}")


# ---------------------------------------------------------------------------------------------- tasks


class TaskWriter:
    """Writes the rows of one task: in a transaction if there is a plan for one."""

    def __init__(self, options: SinkOptions, plan: Plan | None = None) -> None:
        self._options = options
        self._place = _where()
        self._transaction = None if plan is None else self._planned(plan)

    def _planned(self, plan: Plan) -> TaskTransaction:
        key = plan.key or self._place.write_key()
        return TaskTransaction(plan, key, self._options.bootstrap, dict(self._options.producer))

    def write(self, batches: Iterable[pyarrow.RecordBatch]) -> TaskReceipt:
        """Stores all rows and returns the receipt. Raises WriteFailed."""
        try:
            return self._written(batches)
        except PenstockError as error:
            self._discard()
            raise WriteFailed(one_line(error), code=error.code, retriable=error.retriable) from None
        except (TypeError, ValueError) as error:
            # The kernel rejected a row, for example a header without a key.
            self._discard()
            raise WriteFailed(one_line(error)) from None
        except BaseException:
            # The source of the rows failed, or Spark interrupts the task.
            if self._transaction is not None:
                self._transaction.abandon()
            raise

    def _written(self, batches: Iterable[pyarrow.RecordBatch]) -> TaskReceipt:
        waiting: deque[BulkDelivery] = deque()
        stored: list[StoredRange] = []
        records = 0
        timeout_s = self._options.delivery_timeout_s
        producer: Producer[Any, Any] | None = None
        for batch in batches:
            for topic, rows in by_topic(batch, self._options.topic):
                if producer is None:
                    producer = self._producer()
                if producer is None:
                    break  # The rows are read to their end all the same: Spark would end the worker.
                check_partitions(rows, topic, len(producer.partitions_for(topic)))
                waiting.append(producer.send_arrow(topic, rows))
                records += rows.num_rows
            while waiting and waiting[0].done():
                stored += _ranges(waiting.popleft(), timeout_s)
        made = None if self._transaction is None else self._transaction.prepare(timeout_s)
        if producer is not None and made is None:
            producer.flush(timeout_s)
        for delivery in waiting:
            stored += _ranges(delivery, timeout_s)
        ranges = merged_ranges(stored)
        prepared = None if made is None else made(records, ranges)
        return TaskReceipt(self._place.key, self._place.task, self._place.attempt, records, ranges, prepared)

    def _producer(self) -> Producer[Any, Any] | None:
        """The producer for the first row; None if the rows were written before."""
        if self._transaction is None:
            return producer_for(self._options)
        return None if self._transaction.has_skipped else self._transaction.begin()

    def _discard(self) -> None:
        if self._transaction is None:
            discard(self._options)
        else:
            self._transaction.abandon()


def by_topic(batch: pyarrow.RecordBatch, topic: str | None) -> Iterator[tuple[str, pyarrow.RecordBatch]]:
    """The rows of a batch by topic, in order of first appearance, with only the columns of a record."""
    names = [name for name in _COLUMNS if name in batch.schema.names]
    if not batch.num_rows:
        return
    rows = batch.select(names)
    if topic is not None:
        yield topic, rows
        return
    import pyarrow.compute as pc

    topics = batch.column("topic")
    if topics.null_count:
        raise ConfigError("column topic is null in a row", hint=_NO_TOPIC)
    distinct = pc.unique(topics).to_pylist()
    if len(distinct) == 1:
        yield distinct[0], rows
        return
    for name in distinct:
        yield name, rows.filter(pc.equal(topics, name))


def check_partitions(rows: pyarrow.RecordBatch, topic: str, count: int) -> None:
    """Checks that the topic has the partitions of the rows. Raises ConfigError."""
    if "partition" not in rows.schema.names:
        return
    import pyarrow.compute as pc

    ends = pc.min_max(rows.column("partition"))
    for wanted in (ends["min"].as_py(), ends["max"].as_py()):
        if wanted is not None and not 0 <= wanted < count:
            has = "partition 0 only" if count == 1 else f"partitions 0 to {count - 1}"
            raise ConfigError(f"a row has partition {wanted}, but {topic} has {has}", hint=_ANY_PARTITION)


def _ranges(delivery: BulkDelivery, timeout_s: float) -> list[StoredRange]:
    metadata = delivery.result(timeout_s)
    return [
        StoredRange(metadata.topic, each.partition, each.base_offset, each.base_offset + each.count)
        for each in metadata.stored
        if each.base_offset >= 0
    ]


class TaskPlace(NamedTuple):
    """Which attempt of which task of which batch this is."""

    key: BatchKey
    run_id: str | None
    task: int
    attempt: int

    def write_key(self) -> WriteKey:
        """Raises WriteFailed outside of a stream."""
        if self.key.query_id is None or self.key.batch_id is None or self.run_id is None:
            raise WriteFailed(
                "Spark does not say which batch of which query this task belongs to",
                hint="Exactly-once delivery of a stream needs Spark 4.0 or newer",
            )
        return WriteKey(self.key.query_id, self.run_id, self.key.batch_id)


def _where() -> TaskPlace:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return TaskPlace(BatchKey(None, None), None, 0, 0)
    batch = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    key = BatchKey(query, int(batch)) if batch is not None and query is not None else BatchKey(None, None)
    # Spark runs the jobs of a streaming query in a group that is named after the run of the query.
    run_id = context.getLocalProperty("spark.jobGroup.id")
    return TaskPlace(key, run_id, context.partitionId(), context.attemptNumber())


# ---------------------------------------------------------------------------------------------- receipts


class BatchKey(NamedTuple):
    """Identifies a micro-batch. Both are None for a batch write."""

    query_id: str | None
    batch_id: int | None

    def __str__(self) -> str:
        return "the write" if self.query_id is None else f"batch {self.batch_id} of query {self.query_id}"


@dataclass(frozen=True)
class TaskReceipt(WriterCommitMessage):
    """What one task stored; all its records are acknowledged."""

    key: BatchKey
    task: int
    attempt: int
    records: int
    stored: tuple[StoredRange, ...]
    prepared: Prepared | None = None
    """The transaction that the records are in; None with at-least-once delivery."""


@dataclass(frozen=True)
class BatchReceipt:
    """What all tasks of a batch stored."""

    key: BatchKey
    records: int
    stored: tuple[StoredRange, ...]
    prepared: tuple[Prepared, ...] = ()


def batch_receipt(messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> BatchReceipt:
    """Merges the receipts of all tasks. Raises IncompleteWrite if one is missing or is of another batch."""
    receipts = [message for message in messages if isinstance(message, TaskReceipt)]
    missing = len(messages) - len(receipts)
    keys = {receipt.key for receipt in receipts}
    key = next(iter(keys)) if keys else BatchKey(None, batch_id)
    if missing:
        raise IncompleteWrite(f"{missing} of {len(messages)} tasks did not confirm that their records are stored")
    if len(keys) > 1:
        raise IncompleteWrite(f"tasks wrote for different batches: {', '.join(sorted(map(str, keys)))}")
    if batch_id is not None and key.batch_id not in (None, batch_id):
        raise IncompleteWrite(f"cannot commit batch {batch_id}: tasks have written {key}")
    ranges = merged_ranges(stored for receipt in receipts for stored in receipt.stored)
    prepared = tuple(receipt.prepared for receipt in receipts if receipt.prepared is not None)
    if len({each.key for each in prepared}) > 1:
        raise IncompleteWrite(f"tasks wrote for different runs of {key}")
    return BatchReceipt(key, sum(receipt.records for receipt in receipts), ranges, prepared)


def ranges_left_in_log(messages: Sequence[WriterCommitMessage | None]) -> tuple[StoredRange, ...]:
    """Offset ranges that an aborted batch left in the log, as far as its tasks reported them."""
    receipts = [message for message in messages if isinstance(message, TaskReceipt)]
    return merged_ranges(stored for receipt in receipts for stored in receipt.stored)


def merged_ranges(ranges: Iterable[StoredRange]) -> tuple[StoredRange, ...]:
    """One range per partition, from the first offset to the last."""
    found: dict[tuple[str, int], StoredRange] = {}
    for each in ranges:
        place = (each.topic, each.partition)
        known = found.get(place, each)
        found[place] = StoredRange(*place, min(known.start, each.start), max(known.end, each.end))
    return tuple(found[place] for place in sorted(found))


# -------------------------------------------------------------------------------------------- producers of this process


_producers: dict[SinkOptions, Producer[Any, Any]] = {}


def producer_for(options: SinkOptions) -> Producer[Any, Any]:
    """The idempotent producer of this process for these options."""
    from penstock.client.producer.producer import Producer
    from penstock.spark.connections import client_security

    producer = _producers.pop(options, None)
    if producer is None:
        while len(_producers) >= _MAX_PRODUCERS:
            _producers.pop(next(iter(_producers))).close(_QUICK_CLOSE_S)
        producer = Producer(options.bootstrap, **client_security(options.security), **dict(options.producer))
    _producers[options] = producer
    return producer


def discard(options: SinkOptions) -> None:
    """Closes a failed producer and drops its unsent records."""
    producer = _producers.pop(options, None)
    if producer is not None:
        producer.close(0)


def _close_all() -> None:
    while _producers:
        _producers.popitem()[1].close(_QUICK_CLOSE_S)


# A forked child has neither the threads nor the connections of its parent.
os.register_at_fork(after_in_child=_producers.clear)
# Handlers run in reverse order: this one closes the producers before their own handler warns about them.
atexit.register(_close_all)
