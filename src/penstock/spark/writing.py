"""A task's writer: Arrow batches of Spark into the producer's batches, column-wise.

Rule: a row's columns are value (required), key, headers, topic and partition, as the stock connector has them; others
are ignored. The option `topic` overrides the column. Rows go to the kernel by the batch, never one by one, and the task
ends when every one of them is acknowledged, or at the first that is refused.

A worker process lives across batches, so its producer does too: a micro-batch pays neither for connections nor for a
producer id. A producer that has failed a task is thrown away.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.client.errors import ConfigError, PenstockError
from penstock.spark.receipts import BatchKey, StoredRange, TaskReceipt, merged
from penstock.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from penstock.client.producer.delivery import BulkDelivery
    from penstock.client.producer.producer import Producer

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
        return TaskReceipt(key, task, attempt, records, merged(stored))


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
    from penstock.spark.clusters import ssl_context

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
