"""The ceiling of the transport: a data source that has nothing to do.

It yields the same Arrow batch over and over, of the columns and the sizes of a topic's. Whatever reads a topic
through Spark's Python data source API can be no faster than this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from penstock.spark.fetch import arrow_schema, source_ddl

if TYPE_CHECKING:
    import pyarrow

BATCH_ROWS = 20_000


class CeilingSource(DataSource):
    """Options: rows, size, partitions."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return source_ddl(include_headers=False)

    def reader(self, schema: Any) -> DataSourceReader:
        options = self.options
        return CeilingReader(int(options["rows"]), int(options["size"]), int(options["partitions"]))


class CeilingReader(DataSourceReader):
    def __init__(self, rows: int, size: int, partitions: int) -> None:
        self._batches = rows // partitions // BATCH_ROWS
        self._size = size
        self._partitions = partitions

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        schema = arrow_schema(include_headers=False)
        columns = [
            pa.nulls(BATCH_ROWS, pa.binary()),
            pa.repeat(pa.scalar(bytes(self._size), pa.binary()), BATCH_ROWS),
            pa.repeat("views", BATCH_ROWS),
            pa.repeat(pa.scalar(partition.value, pa.int32()), BATCH_ROWS),
            pa.array(range(BATCH_ROWS), pa.int64()),
            pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), BATCH_ROWS),
            pa.repeat(pa.scalar(0, pa.int32()), BATCH_ROWS),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        for _ in range(self._batches):
            yield batch
