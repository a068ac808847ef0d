"""`df.write` and `df.writeStream` with format("penstock"): rows become records.

Columns are value (required), key, headers, topic and partition, as in the stock connector; others are ignored. Options
and columns are checked in the driver before a task runs. `kafka.*` sets the producer where it has such a setting. Only
mode("append") is possible: a topic cannot be overwritten.

Delivery is at least once: each task's producer is idempotent, but a task that Spark runs again writes again. A task
returns a receipt when all its records are acknowledged; the driver's commit checks that no receipt is missing and that
all are of one query and batch. Spark builds a new writer for every commit, so nothing is kept between batches. Worker
processes keep their producer, at most four, so a micro-batch pays for no connection; a producer that failed a task is
discarded.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.client.errors import ConfigError, PenstockError
from penstock.spark.options import TlsOptions, bootstrap_of, check_sink_names, tls_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from penstock.client.producer.delivery import BulkDelivery
    from penstock.client.producer.producer import Producer


_KAFKA: Final = "kafka."
# A task is a burst: a lone record need not wait for others, but batches should be worth their request.
_DEFAULTS: Final = {"linger_ms": 5.0, "client_id": "penstock-spark-sink"}
_REJECTED: Final = {
    "kafka.key.serializer": "Keys are bytes or text, as the column has them",
    "kafka.value.serializer": "Values are bytes or text, as the column has them",
    "kafka.interceptor.classes": "There is no Java producer whose records could be seen",
    "kafka.partitioner.class": "Choose partitions with a column partition",
    "kafka.transactional.id": "The sink is at least once; transactions are not the query's to name",
}
_NOT_OPTIONS: Final = frozenset({"self", "bootstrap_servers", "key", "value", "partitioner", "interceptors", "ssl"})
_OTHER_NAMES: Final = {"kafka.socket.connection.setup.timeout.ms": "connect_timeout_ms"}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Checked, and small enough to travel with every task."""

    bootstrap: str
    topic: str | None
    producer: tuple[tuple[str, Any], ...]
    tls: TlsOptions | None = None

    @property
    def delivery_timeout_s(self) -> float:
        return float(dict(self.producer).get("delivery_timeout_ms", 120_000)) / 1000


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a writer; raises ConfigError, in one line."""
    check_sink_names(given)
    named = {name.lower(): value for name, value in given.items()}
    bootstrap = bootstrap_of(given)
    topic = named.get("topic")
    if topic is not None and not topic.strip():
        raise ConfigError("option topic is empty", hint="Name a topic, or leave it out and have a column topic")
    for name, hint in _REJECTED.items():
        if name in named:
            raise ConfigError(f"option {name} is not supported", hint=hint)
    return SinkOptions(bootstrap, topic, tuple(_producer(named).items()), tls_of(given))


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
    """The producer's own judgement, here rather than in every task."""
    from penstock.client.producer.producer import Producer
    from penstock.client.producer.settings import checked_settings

    parameters = inspect.signature(Producer.__init__).parameters
    judged = inspect.signature(checked_settings).parameters
    checked_settings(**{name: chosen.get(name, parameters[name].default) for name in judged})


def _settings() -> dict[str, Callable[[str], Any]]:
    """The producer's keywords, and how text becomes a value of each."""
    from penstock.client.producer.producer import Producer

    parameters = inspect.signature(Producer.__init__).parameters.values()
    return {each.name: _converter(str(each.annotation)) for each in parameters if each.name not in _NOT_OPTIONS}


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
        wanted = {_truth: "true or false", int: "a whole number", float: "a number"}.get(convert, "text")
        raise ConfigError(f"option {name} is {value!r}", hint=f"It must be {wanted}") from None


class BatchKey(NamedTuple):
    """A query's batch; of a batch write, which has neither, both are None."""

    query_id: str | None
    batch_id: int | None

    def __str__(self) -> str:
        return "the write" if self.query_id is None else f"batch {self.batch_id} of query {self.query_id}"


class StoredRange(NamedTuple):
    """Offsets `start` to `end` (exclusive) of a partition hold records of this write, perhaps among others'."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True)
class TaskReceipt(WriterCommitMessage):
    """One task's share: all of its records are acknowledged."""

    key: BatchKey
    task: int
    attempt: int
    records: int
    stored: tuple[StoredRange, ...]


@dataclass(frozen=True)
class BatchReceipt:
    """A whole batch."""

    key: BatchKey
    records: int
    stored: tuple[StoredRange, ...]


class IncompleteWrite(PenstockError):
    """The driver was asked to commit what not all tasks have written."""


def batch_receipt(messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> BatchReceipt:
    """The receipt of a batch. Raises IncompleteWrite when one is missing or is of another batch."""
    receipts = [message for message in messages if isinstance(message, TaskReceipt)]
    missing = len(messages) - len(receipts)
    keys = {receipt.key for receipt in receipts}
    key = next(iter(keys)) if keys else BatchKey(None, batch_id)
    if missing:
        raise IncompleteWrite(f"{missing} of {len(messages)} tasks have not said that their records are stored")
    if len(keys) > 1:
        raise IncompleteWrite(f"tasks have written for different batches: {', '.join(sorted(map(str, keys)))}")
    if batch_id is not None and key.batch_id not in (None, batch_id):
        raise IncompleteWrite(f"batch {batch_id} is to be committed, but tasks have written {key}")
    ranges = merged_ranges(stored for receipt in receipts for stored in receipt.stored)
    return BatchReceipt(key, sum(receipt.records for receipt in receipts), ranges)


def ranges_left_in_log(messages: Sequence[WriterCommitMessage | None]) -> tuple[StoredRange, ...]:
    """What an aborted batch has left in the log, as far as tasks could still tell."""
    receipts = [message for message in messages if isinstance(message, TaskReceipt)]
    return merged_ranges(stored for receipt in receipts for stored in receipt.stored)


def merged_ranges(ranges: Iterable[StoredRange]) -> tuple[StoredRange, ...]:
    """One range a partition: from the first offset to past the last."""
    found: dict[tuple[str, int], StoredRange] = {}
    for each in ranges:
        place = (each.topic, each.partition)
        known = found.get(place, each)
        found[place] = StoredRange(*place, min(known.start, each.start), max(known.end, each.end))
    return tuple(found[place] for place in sorted(found))


_COLUMNS: Final = ("value", "key", "headers", "partition")
_MAX_PRODUCERS: Final = 4
_QUICK_CLOSE_S: Final = 1.0
_ANY_PARTITION: Final = "Correct the column partition; where it is null the key decides"
_NO_TOPIC: Final = 'Give every row a topic, or one for all with .option("topic", ...)'


class WriteFailed(PenstockError):
    """A task's records could not be stored; the text says which and why, in one line."""


def check_schema(schema: StructType, topic: str | None) -> None:
    """Whether rows of this schema can be records; raises ConfigError, before anything is written."""
    from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

    kinds = {field.name: field.dataType for field in schema.fields}
    twice = sorted({name for name in kinds if schema.names.count(name) > 1})
    if twice:
        raise ConfigError(f"there are several columns {twice[0]}", hint="Rename or drop all but one")
    if "value" not in kinds:
        have = ", ".join(schema.names) or "none"
        raise ConfigError(f"there is no column value; there are {have}", hint="Select what to write AS value")
    for name in ("value", "key"):
        if name in kinds and not isinstance(kinds[name], (StringType, BinaryType)):
            raise _wrong(name, "string or binary", kinds[name])
    if topic is None:
        if "topic" not in kinds:
            raise ConfigError("there is neither an option topic nor a column topic", hint=_NO_TOPIC)
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
    return ConfigError(f"column {name} must be {wanted}, not {found.simpleString()}", hint=f"CAST it to {wanted}")


class TaskWriter:
    """Writes one task's rows."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, batches: Iterable[pyarrow.RecordBatch]) -> TaskReceipt:
        """Stores all rows and returns the receipt. Raises WriteFailed."""
        try:
            return self._written(batches)
        except PenstockError as error:
            discard(self._options)
            raise WriteFailed(one_line(error), code=error.code, retriable=error.retriable) from None
        except (TypeError, ValueError) as error:
            # The kernel's refusal of a row, such as a header without a key.
            discard(self._options)
            raise WriteFailed(one_line(error)) from None

    def _written(self, batches: Iterable[pyarrow.RecordBatch]) -> TaskReceipt:
        waiting: deque[BulkDelivery] = deque()
        stored: list[StoredRange] = []
        records = 0
        timeout_s = self._options.delivery_timeout_s
        producer: Producer[Any, Any] | None = None
        for batch in batches:
            for topic, rows in by_topic(batch, self._options.topic):
                if producer is None:
                    producer = producer_for(self._options)
                check_partitions(rows, topic, len(producer.partitions_for(topic)))
                waiting.append(producer.send_arrow(topic, rows))
                records += rows.num_rows
            while waiting and waiting[0].done():
                stored += _ranges(waiting.popleft(), timeout_s)
        if producer is not None:
            producer.flush(timeout_s)
        for delivery in waiting:
            stored += _ranges(delivery, timeout_s)
        key, task, attempt = _where()
        return TaskReceipt(key, task, attempt, records, merged_ranges(stored))


def by_topic(batch: pyarrow.RecordBatch, topic: str | None) -> Iterator[tuple[str, pyarrow.RecordBatch]]:
    """A batch's rows by their topic, only with columns that make a record; in the order of their topics' first rows."""
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
        raise ConfigError("a row has no topic: its column topic is null", hint=_NO_TOPIC)
    distinct = pc.unique(topics).to_pylist()
    if len(distinct) == 1:
        yield distinct[0], rows
        return
    for name in distinct:
        yield name, rows.filter(pc.equal(topics, name))


def check_partitions(rows: pyarrow.RecordBatch, topic: str, count: int) -> None:
    """Whether the topic has the partitions that rows ask for; raises ConfigError."""
    if "partition" not in rows.schema.names:
        return
    import pyarrow.compute as pc

    ends = pc.min_max(rows.column("partition"))
    for wanted in (ends["min"].as_py(), ends["max"].as_py()):
        if wanted is not None and not 0 <= wanted < count:
            has = "partition 0 only" if count == 1 else f"partitions 0 to {count - 1}"
            raise ConfigError(f"a row asks for partition {wanted}, but {topic} has {has}", hint=_ANY_PARTITION)


def _ranges(delivery: BulkDelivery, timeout_s: float) -> list[StoredRange]:
    metadata = delivery.result(timeout_s)
    return [
        StoredRange(metadata.topic, each.partition, each.base_offset, each.base_offset + each.count)
        for each in metadata.stored
        if each.base_offset >= 0
    ]


def _where() -> tuple[BatchKey, int, int]:
    """The batch that this task works for, its number, and which attempt it is."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return BatchKey(None, None), 0, 0
    batch = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    key = BatchKey(query, int(batch)) if batch is not None and query is not None else BatchKey(None, None)
    return key, context.partitionId(), context.attemptNumber()


def one_line(error: BaseException) -> str:
    return " ".join(part.strip() for part in str(error).splitlines() if part.strip()) or type(error).__name__


# ------------------------------------------------------------------------------------- producers of this process

_producers: dict[SinkOptions, Producer[Any, Any]] = {}


def producer_for(options: SinkOptions) -> Producer[Any, Any]:
    """This process's idempotent producer for these options."""
    from penstock.client.producer.producer import Producer
    from penstock.spark.connections import ssl_context

    producer = _producers.pop(options, None)
    if producer is None:
        while len(_producers) >= _MAX_PRODUCERS:
            _producers.pop(next(iter(_producers))).close(_QUICK_CLOSE_S)
        context = None if options.tls is None else ssl_context(options.tls)
        producer = Producer(options.bootstrap, ssl=context, **dict(options.producer))
    _producers[options] = producer
    return producer


def discard(options: SinkOptions) -> None:
    """Lets go of a producer that has failed, and of what it still holds."""
    producer = _producers.pop(options, None)
    if producer is not None:
        producer.close(0)


def _close_all() -> None:
    while _producers:
        _producers.popitem()[1].close(_QUICK_CLOSE_S)


# A child has neither the threads nor, rightly, the connections of its parent.
os.register_at_fork(after_in_child=_producers.clear)
# Registered after the producer's own handler would be, had it been imported first: it runs before it, and quietly.
atexit.register(_close_all)


_log = logging.getLogger("penstock.spark")


def checked_options(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Options of a writer for rows of this schema; raises ConfigError."""
    found = sink_options(options)
    check_schema(schema, found.topic)
    return found


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """What `DataSource.writer` returns."""
    if overwrite:
        raise ConfigError("a topic cannot be overwritten", hint='Use .mode("append")')
    return BatchWriter(checked_options(options, schema))


class BatchWriter(DataSourceArrowWriter):
    """Pickled to every task, and for commit or abort to a process of the driver."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return TaskWriter(self._options).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        receipt = batch_receipt(messages, None)
        _log.info("%d records stored: %s", receipt.records, ", ".join(map(str, receipt.stored)) or "nothing")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log_abort("the write", messages)


def log_abort(what: str, messages: list[WriterCommitMessage | None]) -> None:
    """A log keeps what it has: an abort can only say what is there."""
    left = ranges_left_in_log(messages)
    if left:
        _log.warning("%s was aborted; of it stay in the log: %s", what, ", ".join(map(str, left)))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """What `DataSource.streamWriter` returns. In complete mode (`overwrite`) each batch is appended whole, as the stock
    connector does: a log forgets nothing."""
    return StreamWriter(checked_options(options, schema))


class StreamWriter(DataSourceStreamArrowWriter):
    """Pickled to every task; built anew in the driver for each commit or abort."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return TaskWriter(self._options).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        receipt = batch_receipt(messages, batchId)
        _log.info("%s: %d records stored", receipt.key, receipt.records)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        log_abort(f"batch {batchId}", messages)
