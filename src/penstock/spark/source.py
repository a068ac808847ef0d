"""The data source `penstock`: what Spark builds when a query names the format.

    spark.read.format("penstock").option("kafka.bootstrap.servers", ...).option("subscribe", "views").load()

Rule: options are checked when the schema is asked for, which is at `load()`, so that a mistake is an error there and
not in a task. Spark plans a batch query once for each `load()`: "latest" is what it was then, however often the
DataFrame is used. Filters are not taken from Spark, which would share them among all queries of one `load()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.client.errors import ConfigError
from penstock.spark.clusters import settle
from penstock.spark.ddl import parse_schema
from penstock.spark.decoding import DecodeSpec, decode_batch, decoded_field, spec_of_options
from penstock.spark.fetching import read_range
from penstock.spark.offsets import RangePlan, plan_ranges
from penstock.spark.options import SourceOptions, parse_source
from penstock.spark.schema import ddl
from penstock.spark.surveying import Surveyor

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """One task: a range of offsets. Frozen and small, since Spark pickles it for the executors."""

    plan: RangePlan

    def __str__(self) -> str:
        return f"{self.plan.topic}-{self.plan.partition} {self.plan.start}..{self.plan.end}"


class RangeReader:
    """Reads ranges in executors, for batch and stream alike."""

    def __init__(self, options: SourceOptions, decode: DecodeSpec | None) -> None:
        self._options = options
        self._decode = decode

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        # Where nothing is planned Spark still runs one task, of a partition that is not ours.
        if not isinstance(partition, RangePartition):
            return
        plan, options = partition.plan, self._options
        batches = read_range(
            options.bootstrap,
            options.reader,
            plan.topic,
            plan.partition,
            plan.start,
            plan.end,
            isolation=options.isolation,
            topic_id=plan.topic_id,
        )
        if self._decode is None:
            yield from batches
        else:
            for batch in batches:
                yield decode_batch(batch, self._decode)
        settle()


class BatchReader(DataSourceReader):
    """Everything between two positions."""

    def __init__(self, options: SourceOptions, decode: DecodeSpec | None) -> None:
        self._options = options
        self._ranges = RangeReader(options, decode)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        surveyor = Surveyor(options)
        survey = surveyor.existing()
        begin = surveyor.resolve(options.starting, survey)
        end = surveyor.resolve(options.ending, survey)
        settle()
        return [RangePartition(plan) for plan in plan_ranges(begin, end, survey.ids, options.splitting)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return self._ranges.read(partition)


class PenstockDataSource(DataSource):
    """Topics as DataFrames and DataFrames as topics."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        # Whether the query is a stream is not known here; what only one of the two refuses is refused later.
        options = _checked(self.options)
        return source_schema(options, spec_of_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options, decode = self._reading(schema, streaming=False)
        return BatchReader(options, decode)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from penstock.spark.stream import StreamReader

        options, decode = self._reading(schema, streaming=True)
        return StreamReader(options, decode)

    def _reading(self, schema: StructType, *, streaming: bool) -> tuple[SourceOptions, DecodeSpec | None]:
        options = parse_source(self.options, streaming=streaming)
        decode = spec_of_options(self.options)
        if [(field.name, field.dataType) for field in schema] != [
            (field.name, field.dataType) for field in source_schema(options, decode)
        ]:
            raise ConfigError(
                "the source has a schema of its own, which cannot be set",
                hint="Leave .schema(...) out; penstock.decode turns values into columns",
            )
        return options, decode

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from penstock.spark.stream_sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def source_schema(options: SourceOptions, decode: DecodeSpec | None) -> StructType:
    """The columns of a query."""
    found = parse_schema(ddl(include_headers=options.reader.include_headers))
    return found if decode is None else StructType([*found.fields, decoded_field(decode)])


def _checked(given: Any) -> SourceOptions:
    """As a stream if that is possible, else as a batch: the reason of the latter is told."""
    try:
        return parse_source(given, streaming=True)
    except ConfigError:
        return parse_source(given, streaming=False)
