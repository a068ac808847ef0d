"""The data source `penstock`, which Spark builds for `spark.read` and `spark.readStream`.

    spark.read.format("penstock").option("kafka.bootstrap.servers", ...).option("subscribe", "views").load()

Options are checked when Spark asks for the schema, which is at `load()`, so that a mistake fails there and not in a
task. A batch query is planned once per `load()`: "latest" is the end of that moment. Filters are not pushed down,
since Spark would share them among all queries of one `load()`.

A stream reader lives in a process of the driver as long as its query. `OffsetReader` asks for metadata and both ends
of every partition at once; `offsets` decides. The initial offset is looked up once, and the first batch is planned
even if it is empty, so that the checkpoint holds the start. Spark never calls `stop`, and calls `commit` one batch
late.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.client.cluster_metadata import ClusterView, OffsetAndTimestamp, TopicPartition
from penstock.client.errors import ConfigError, PenstockError, UnknownTopic, error_for
from penstock.client.leader_requests import Found, OffsetLookup
from penstock.client.metadata_updater import ask_metadata
from penstock.spark.connections import freeze_after_first_task, shared_cluster
from penstock.spark.errors import in_one_line
from penstock.spark.fetch import read_range, source_ddl
from penstock.spark.formats.ddl import parse_schema
from penstock.spark.formats.decoder import decode_batch, decoded_field, schema_id_of
from penstock.spark.formats.spec import DecodeSpec, spec_of_options
from penstock.spark.offsets import (
    AvailableOffsets,
    Gate,
    LagTarget,
    OffsetRange,
    StreamOffset,
    batch_start,
    plan_ranges,
    pro_rata,
)
from penstock.spark.options import (
    EARLIEST,
    LATEST,
    Bounds,
    Position,
    SourceOptions,
    parse_source,
    resolve_position,
    timestamps_to_look_up,
)
from penstock.wire.protocol import ErrorCode

if TYPE_CHECKING:
    import pyarrow


_log = logging.getLogger("penstock.spark")

# ---------------------------------------------------------------------------------------------- the data source


class PenstockDataSource(DataSource):
    """Topics as DataFrames and DataFrames as topics."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        # It is not known yet whether the query is a stream; options that only one kind rejects are rejected later.
        options = _checked(self.options)
        return source_schema(options, spec_of_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options, decode = self._reading(schema, streaming=False)
        return BatchReader(options, decode)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options, decode = self._reading(schema, streaming=True)
        return StreamReader(options, decode)

    def _reading(self, schema: StructType, *, streaming: bool) -> tuple[SourceOptions, DecodeSpec | None]:
        options = parse_source(self.options, streaming=streaming)
        # A schema of the registry stays as it was when the query was made, whatever is registered meanwhile.
        decode = spec_of_options(self.options, schema_id_of(schema))
        if [(field.name, field.dataType) for field in schema] != [
            (field.name, field.dataType) for field in source_schema(options, decode)
        ]:
            raise ConfigError(
                "the schema of this source is fixed",
                hint="Remove .schema(...); use penstock.decode to decode values",
            )
        return options, decode

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from penstock.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def source_schema(options: SourceOptions, decode: DecodeSpec | None) -> StructType:
    """The columns of a query."""
    found = parse_schema(source_ddl(include_headers=options.reader.include_headers))
    return found if decode is None else StructType([*found.fields, decoded_field(decode)])


def _checked(given: Any) -> SourceOptions:
    """Parses as a stream if possible, else as a batch, and raises the error of the batch."""
    try:
        return parse_source(given, streaming=True)
    except ConfigError:
        return parse_source(given, streaming=False)


# ---------------------------------------------------------------------------------------------- reading ranges


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """One task: a range of offsets. Spark pickles it for the executors."""

    plan: OffsetRange

    def __str__(self) -> str:
        return f"{self.plan.topic}-{self.plan.partition} {self.plan.start}..{self.plan.end}"


class RangeReader:
    """Reads ranges in executors, for batches and streams."""

    def __init__(self, options: SourceOptions, decode: DecodeSpec | None) -> None:
        self._options = options
        self._decode = decode

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        # Spark runs one task even for an empty plan, with a partition that is not ours.
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
        freeze_after_first_task()


class BatchReader(DataSourceReader):
    """Reads everything between two positions."""

    def __init__(self, options: SourceOptions, decode: DecodeSpec | None) -> None:
        self._options = options
        self._ranges = RangeReader(options, decode)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        offset_reader = OffsetReader(options)
        available = offset_reader.existing()
        begin = offset_reader.resolve(options.starting, available)
        end = offset_reader.resolve(options.ending, available)
        freeze_after_first_task()
        return [RangePartition(plan) for plan in plan_ranges(begin, end, available.ids, options.splitting)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return self._ranges.read(partition)


# ---------------------------------------------------------------------------------------------- streams


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of a stream and reads their ranges."""

    def __init__(self, options: SourceOptions, decode: DecodeSpec | None) -> None:
        self._options = options
        self._ranges = RangeReader(options, decode)
        self._opened_offset_reader: OffsetReader | None = None
        self._initial: StreamOffset | None = None
        self._last_available: AvailableOffsets | None = None
        self._target: dict[TopicPartition, int] | None = None
        limits = options.limits
        self._gate = None if limits.min_offsets is None else Gate(limits.min_offsets, limits.max_delay_ms)

    def __getstate__(self) -> dict[str, Any]:
        # A copy goes to every task, which needs only what to read.
        return {"_options": self._options, "_ranges": self._ranges}

    @property
    def _offset_reader(self) -> OffsetReader:
        if self._opened_offset_reader is None:
            self._opened_offset_reader = OffsetReader(self._options)
        return self._opened_offset_reader

    def _lag(self) -> LagTarget | None:
        options = self._options
        return LagTarget(options.group_id_prefix, options.bootstrap) if options.visible_lag else None

    # ------------------------------------------------------------------------------------------ Spark's calls

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        if self._initial is None:
            available = self._offset_reader.existing()
            offsets = self._offset_reader.resolve(self._options.starting, available)
            self._initial = StreamOffset(offsets, available.ids, is_initial=True, lag=self._lag())
        return self._initial.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        available = self._offset_reader.available()
        self._target = {partition: bounds.latest for partition, bounds in available.bounds.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Spark accepts one limit; returning any makes it call `latestOffset` with limits."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        before = StreamOffset.from_json(start)
        available = self._last_available = self._offset_reader.available()
        begin = batch_start(
            before, available, self._options.topics, fail_on_data_loss=self._options.reader.fail_on_data_loss
        )
        for loss in begin.losses:
            _log.warning("data loss accepted: failOnDataLoss=false reason=%s", loss)
        latest = {partition: bounds.latest for partition, bounds in available.bounds.items()}
        if self._target is not None:
            latest = _capped(latest, begin.offsets, self._target)
        ends = self._limited(begin.offsets, latest, limit)
        moved = {partition: offset for partition, offset in begin.moved.items() if partition in ends}
        if ends == before.offsets and not moved:
            return start
        ids = {topic: topic_id for topic, topic_id in available.ids.items() if any(one.topic == topic for one in ends)}
        return StreamOffset(ends, ids, moved, lag=self._lag()).to_json()

    def _limited(
        self, begin: dict[TopicPartition, int], latest: dict[TopicPartition, int], limit: ReadLimit
    ) -> dict[TopicPartition, int]:
        if isinstance(limit, ReadAllAvailable):
            return latest
        waiting = sum(end - begin[partition] for partition, end in latest.items())
        # Trigger.AvailableNow reads to its end; a minimum would wait for records that never come.
        if self._gate is not None and self._target is None and not self._gate.opens(waiting, time.monotonic() * 1000):
            return {partition: begin[partition] for partition in latest}
        return pro_rata(begin, latest, limit.max_rows) if isinstance(limit, ReadMaxRows) else latest

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The last known end offsets, for progress reports; the brokers are not asked again."""
        if self._last_available is None:
            return None
        latest = {partition: bounds.latest for partition, bounds in self._last_available.bounds.items()}
        return StreamOffset(latest).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        until = StreamOffset.from_json(end)
        begin = {**StreamOffset.from_json(start).offsets, **until.starts}
        unknown = until.offsets.keys() - begin.keys()
        if unknown:
            # A checkpoint of the stock connector has no start for new partitions: they start at their beginning.
            bounds = self._offset_reader.available().bounds
            begin.update({one: bounds[one].earliest for one in unknown if one in bounds})
        return [RangePartition(plan) for plan in plan_ranges(begin, until.offsets, until.ids, self._options.splitting)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return self._ranges.read(partition)


def _capped(
    latest: dict[TopicPartition, int], begin: dict[TopicPartition, int], target: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """End offsets capped at the start of the query (Trigger.AvailableNow); newer partitions are read next time."""
    return {
        partition: max(begin[partition], min(end, target[partition]))
        for partition, end in latest.items()
        if partition in target
    }


# ---------------------------------------------------------------------------------------------- offsets of the cluster


class OffsetReader:
    """Asks the cluster for the partitions and offsets of one query. Blocking."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._topics = options.topics
        self._cluster = shared_cluster(options.bootstrap, options.reader)
        self._client = self._cluster.client
        self._timeout_ms = options.reader.request_timeout_ms
        self._lookup = OffsetLookup(
            self._client, isolation_level=int(options.isolation == "read_committed"), timeout_ms=self._timeout_ms
        )
        self._known: list[TopicPartition] = []
        self._ids: dict[str, str] = {}

    def available(self) -> AvailableOffsets:
        """All partitions of the query with their earliest and latest offsets."""
        try:
            return self._cluster.run(self._available())
        except PenstockError as error:
            raise in_one_line(error) from None

    def existing(self) -> AvailableOffsets:
        """The same for a new query: a missing topic is an error."""
        available = self.available()
        if available.missing:
            try:
                raise self._cluster.run(self._explained(available.missing))
            except PenstockError as error:
                raise in_one_line(error) from None
        return available

    def resolve(self, position: Position, available: AvailableOffsets) -> dict[TopicPartition, int]:
        """The offsets of a position."""
        times_ms = timestamps_to_look_up(position, available.bounds)
        try:
            found = self._cluster.run(self._lookup.all_offsets(times_ms, self._timeout_ms)) if times_ms else {}
        except PenstockError as error:
            raise in_one_line(error) from None
        return resolve_position(
            position,
            available.bounds,
            {partition: one.offset for partition, one in found.items()},
            fail_on_data_loss=self._options.reader.fail_on_data_loss,
        )

    # ------------------------------------------------------------------------------------------ on the loop

    async def _available(self) -> AvailableOffsets:
        known = list(self._known)
        view, first, last = await asyncio.gather(
            self._refreshed(), self._ends(known, EARLIEST), self._ends(known, LATEST)
        )
        partitions = self._chosen(view)
        ids = {
            topic: found.topic_id.hex()
            for topic in {one.topic for one in partitions}
            if (found := view.topic(topic)) is not None and found.topic_id is not None
        }
        if ids != {topic: self._ids[topic] for topic in ids if topic in self._ids}:
            first, last = {}, {}  # The offsets may be those of the previous topic of this name.
        earliest, latest = await asyncio.gather(
            self._completed(partitions, first, EARLIEST), self._completed(partitions, last, LATEST)
        )
        self._known, self._ids = partitions, ids
        missing = frozenset(name for name in self._topics.wanted if view.topic(name) is None)
        return AvailableOffsets(
            {one: Bounds(earliest[one], max(earliest[one], latest[one])) for one in partitions}, ids, missing
        )

    async def _refreshed(self) -> ClusterView:
        if self._topics.pattern is not None:
            self._client.follow_all()
            return await self._client.refresh()
        self._client.follow(self._topics.wanted)
        return await self._client.refresh(self._topics.wanted)

    async def _ends(self, partitions: Iterable[TopicPartition], end: int) -> Found:
        wanted = dict.fromkeys(partitions, end)
        return await self._lookup.offsets(wanted) if wanted else {}

    async def _completed(self, partitions: list[TopicPartition], found: Found, end: int) -> dict[TopicPartition, int]:
        """The offset of each partition; those without an answer are asked again."""
        good = {one: answer.offset for one, answer in found.items() if isinstance(answer, OffsetAndTimestamp)}
        again = {one: end for one in partitions if one not in good}
        if again:
            asked: Mapping[TopicPartition, OffsetAndTimestamp] = await self._lookup.all_offsets(again, self._timeout_ms)
            good.update({one: answer.offset for one, answer in asked.items()})
        return good

    def _chosen(self, view: ClusterView) -> list[TopicPartition]:
        topics = self._topics
        if topics.partitions:
            self._check_assigned(view)
            return sorted(one for one in topics.partitions if view.leader_of(*one) is not None)
        names = topics.names
        if topics.pattern is not None:
            names = tuple(n for n, found in view.topics.items() if not found.is_internal and topics.takes(n))
        found = [view.topic(name) for name in names]
        return sorted(TopicPartition(one.name, part.index) for one in found if one for part in one.partitions)

    def _check_assigned(self, view: ClusterView) -> None:
        for one in sorted(self._topics.partitions):
            topic = view.topic(one.topic)
            if topic is not None and view.leader_of(*one) is None and one not in self._known:
                count = len(topic.partitions)
                raise error_for(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    where=f"assign: {one}",
                    detail=f"the topic has {count} partition{'' if count == 1 else 's'}",
                    hint="",
                )

    async def _explained(self, missing: frozenset[str]) -> UnknownTopic:
        """The error for missing topics, with the name that was probably meant."""
        name = min(missing)
        hint = "Create the topic, or check its name"
        response = await ask_metadata(await self._client.to_any(), None, timeout_ms=self._timeout_ms)
        near = get_close_matches(name, [one.name for one in response.topics if one.name and one.partitions], n=1)
        if near:
            hint = f"Did you mean {near[0]}?"
        return UnknownTopic(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            where=f"topic {name}",
            detail=f"it does not exist on {self._options.bootstrap}",
            hint=hint,
        )
