"""The stream reader: one for a query, alive in a process of the driver as long as the query.

Rule: every decision is `offsets`'; here are the questions to the brokers and what must be remembered between calls.
Spark asks for the initial offset twice, and again after a crash before the first commit, so it is found out once, and
the end of the first batch carries it. The first batch is planned even if there is nothing to read: with it the start is
in the checkpoint, and a restart cannot begin later than this. Nothing is done in `stop`, which never comes, nor in
`commit`, which misses the last batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.client.consumer.types import TopicPartition
from penstock.spark.decode_spec import DecodeSpec
from penstock.spark.offsets import Gate, LagTarget, StreamOffset, Survey, begin_after, plan_ranges, pro_rata
from penstock.spark.options import SourceOptions
from penstock.spark.source import RangePartition, RangeReader
from penstock.spark.surveying import Surveyor

if TYPE_CHECKING:
    import pyarrow

_log = logging.getLogger("penstock.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, decode: DecodeSpec | None) -> None:
        self._options = options
        self._ranges = RangeReader(options, decode)
        self._surveyor: Surveyor | None = None
        self._initial: StreamOffset | None = None
        self._last_survey: Survey | None = None
        self._target: dict[TopicPartition, int] | None = None
        limits = options.limits
        self._gate = None if limits.min_offsets is None else Gate(limits.min_offsets, limits.max_delay_ms)

    def __getstate__(self) -> dict[str, Any]:
        # A copy goes to every task, which needs what to read and none of what was found out here.
        return {"_options": self._options, "_ranges": self._ranges}

    @property
    def _asks(self) -> Surveyor:
        if self._surveyor is None:
            self._surveyor = Surveyor(self._options)
        return self._surveyor

    def _lag(self) -> LagTarget | None:
        options = self._options
        return LagTarget(options.group_id_prefix, options.bootstrap) if options.visible_lag else None

    # ------------------------------------------------------------------------------------------ Spark's calls

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        if self._initial is None:
            survey = self._asks.existing()
            offsets = self._asks.resolve(self._options.starting, survey)
            self._initial = StreamOffset(offsets, survey.ids, is_initial=True, lag=self._lag())
        return self._initial.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        survey = self._asks.survey()
        self._target = {partition: bounds.latest for partition, bounds in survey.bounds.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Only one kind can be named; that there is one tells `latestOffset` that limits count at all."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        before = StreamOffset.from_json(start)
        survey = self._last_survey = self._asks.survey()
        begin = begin_after(
            before, survey, self._options.topics, fail_on_data_loss=self._options.reader.fail_on_data_loss
        )
        for loss in begin.losses:
            _log.warning("%s; going on, since failOnDataLoss is false", loss)
        latest = {partition: bounds.latest for partition, bounds in survey.bounds.items()}
        if self._target is not None:
            latest = _no_further(latest, begin.offsets, self._target)
        ends = self._limited(begin.offsets, latest, limit)
        moved = {partition: offset for partition, offset in begin.moved.items() if partition in ends}
        if ends == before.offsets and not moved:
            return start
        ids = {topic: topic_id for topic, topic_id in survey.ids.items() if any(one.topic == topic for one in ends)}
        return StreamOffset(ends, ids, moved, lag=self._lag()).to_json()

    def _limited(
        self, begin: dict[TopicPartition, int], latest: dict[TopicPartition, int], limit: ReadLimit
    ) -> dict[TopicPartition, int]:
        if isinstance(limit, ReadAllAvailable):
            return latest
        waiting = sum(end - begin[partition] for partition, end in latest.items())
        # What is there now has to be read to its end, so a minimum would wait for what never comes.
        if self._gate is not None and self._target is None and not self._gate.opens(waiting, time.monotonic() * 1000):
            return {partition: begin[partition] for partition in latest}
        return pro_rata(begin, latest, limit.max_rows) if isinstance(limit, ReadMaxRows) else latest

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The ends as they were seen last: for progress reports, which are not worth a question of their own."""
        if self._last_survey is None:
            return None
        latest = {partition: bounds.latest for partition, bounds in self._last_survey.bounds.items()}
        return StreamOffset(latest).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        until = StreamOffset.from_json(end)
        begin = {**StreamOffset.from_json(start).offsets, **until.starts}
        unknown = until.offsets.keys() - begin.keys()
        if unknown:
            # A checkpoint of the stock connector does not say where new partitions begin: at their beginning.
            bounds = self._asks.survey().bounds
            begin.update({one: bounds[one].earliest for one in unknown if one in bounds})
        return [RangePartition(plan) for plan in plan_ranges(begin, until.offsets, until.ids, self._options.splitting)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return self._ranges.read(partition)


def _no_further(
    latest: dict[TopicPartition, int], begin: dict[TopicPartition, int], target: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Ends as far as there was something when the query started; partitions that are newer than that come next time."""
    return {
        partition: max(begin[partition], min(end, target[partition]))
        for partition, end in latest.items()
        if partition in target
    }
