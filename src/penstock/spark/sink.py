"""`df.write.format("penstock")`: a batch DataFrame into topics.

Rule: options and columns are checked in the driver, before a task runs. At least once: each task's producer is
idempotent, so its own retries make no duplicate, but a task that Spark runs again writes again. A log cannot be
overwritten, so only mode("append") is possible.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock.client.errors import ConfigError
from penstock.spark.receipts import joined, left_behind
from penstock.spark.sink_options import SinkOptions, sink_options
from penstock.spark.writing import TaskWriter, check_schema

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

_log = logging.getLogger("penstock.spark")


def checked(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Options of a writer for rows of this schema; raises ConfigError."""
    found = sink_options(options)
    check_schema(schema, found.topic)
    return found


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """What `DataSource.writer` returns."""
    if overwrite:
        raise ConfigError("a topic cannot be overwritten", hint='Use .mode("append")')
    return BatchWriter(checked(options, schema))


class BatchWriter(DataSourceArrowWriter):
    """Pickled to every task, and for commit or abort to a process of the driver."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return TaskWriter(self._options).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        receipt = joined(messages, None)
        _log.info("%d records stored: %s", receipt.records, ", ".join(map(str, receipt.stored)) or "nothing")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        tell_abort("the write", messages)


def tell_abort(what: str, messages: list[WriterCommitMessage | None]) -> None:
    """A log keeps what it has: an abort can only say what is there."""
    left = left_behind(messages)
    if left:
        _log.warning("%s was aborted; of it stay in the log: %s", what, ", ".join(map(str, left)))
