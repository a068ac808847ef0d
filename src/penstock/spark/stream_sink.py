"""`df.writeStream.format("penstock")`: a stream into topics.

Rule: as for batches (sink.py), and each micro-batch has a key, its query and its number, which tasks put into their
receipts and the driver's commit checks. Spark builds a fresh writer in the driver for every commit, by keyword, so
nothing is remembered here between batches; what must be known stands in the receipts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.spark.receipts import joined
from penstock.spark.sink import checked, tell_abort
from penstock.spark.sink_options import SinkOptions
from penstock.spark.writing import TaskWriter

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

_log = logging.getLogger("penstock.spark")


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """What `DataSource.streamWriter` returns. In complete mode (`overwrite`) each batch is appended whole, as the stock
    connector does: a log forgets nothing."""
    return StreamWriter(checked(options, schema))


class StreamWriter(DataSourceStreamArrowWriter):
    """Pickled to every task; built anew in the driver for each commit or abort."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return TaskWriter(self._options).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        receipt = joined(messages, batchId)
        _log.info("%s: %d records stored", receipt.key, receipt.records)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        tell_abort(f"batch {batchId}", messages)
