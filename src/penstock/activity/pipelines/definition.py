"""What a pipeline is: the events it reads, the rows it keeps, what is derived from them; and the six by name.

`Rows` is a table that Spark keeps from events, `Derived` follows from one `Rows` alone, `Report` follows from the
tables of events in the warehouse. A definition does not know whether it runs as a stream: every row it gives replaces
the row of the same key, so the table equals the same definition over all events. `Derived.compute` has no clock and no
state.

Counts by minute use only sums, sketches and bit masks, which do not depend on the order of events and do not grow with
them. A pipeline is a module of this package with a `PIPELINE`; it is imported when it is needed, so that the
command line starts without Spark, numpy or Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal

from penstock.activity.events import Kind
from penstock.activity.pipelines.errors import UnknownPipeline

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


Mode = Literal["update", "append"]
Define = Callable[[Mapping[str, "DataFrame"]], "DataFrame"]
"""Makes rows from frames by topic. `time` is a timestamp with the watermark of `Rows`."""
MINUTE: Final = "minute"
MINUTE_LENGTH: Final = timedelta(minutes=1)
LATENESS: Final = timedelta(seconds=30)
"""How late an event may come and still count; groups of a minute are kept for this long."""
_PACKAGE: Final = "penstock.activity.pipelines"
_MODULES: Final = ("feed", "relevance", "security", "operations", "search", "reporting")

# ---------------------------------------------------------------------------------------------- what a pipeline is


@dataclass(frozen=True)
class Rows:
    """A table that Spark keeps, with one row per key."""

    name: str
    key: tuple[str, ...]
    time: str
    """The timestamp column by which the table is partitioned into days: usually the start of a window."""
    reads: tuple[Kind, ...]
    watermark: Mapping[str, timedelta]
    """The lateness of events by topic."""
    mode: Mode
    define: Define
    topic: str | None = None
    """The compacted topic for changed rows, as JSON under their key."""
    before: timedelta | None = None
    """How far before a row's time its events may be, for backfills; None is the start of the log."""
    after: timedelta = timedelta(minutes=1)
    """How far after it: the length of the window."""


@dataclass(frozen=True)
class Derived:
    """A table that is computed from `Rows`: rankings, verdicts, alerts."""

    name: str
    of: str
    key: tuple[str, ...]
    time: str
    horizon: timedelta
    """How far before a changed row the computation looks back."""
    compute: Callable[[pa.Table], pa.Table]
    """Computes derived rows from the rows of the horizon; the caller drops rows older than the change."""
    topic: str | None = None
    replaces: bool = False
    """Each computation replaces the whole table (a current ranking)."""


@dataclass(frozen=True)
class Report:
    """A table computed from tables of events, over the changed days and `lookback` before them."""

    name: str
    key: tuple[str, ...]
    time: str
    reads: tuple[Kind, ...]
    lookback: timedelta
    define: Define
    topic: str | None = None


@dataclass(frozen=True)
class Pipeline:
    """A pipeline: its rows, derived tables, loads and reports."""

    name: str
    summary: str
    trigger: timedelta
    """The time from the start of a micro-batch (or load) to the start of the next."""
    rows: tuple[Rows, ...] = ()
    derived: tuple[Derived, ...] = ()
    loads: tuple[Kind, ...] = ()
    """Kinds that are loaded unchanged into tables named after their topics, as by `penstock load`."""
    reports: tuple[Report, ...] = ()

    @property
    def reads(self) -> tuple[Kind, ...]:
        return tuple(dict.fromkeys([*(kind for rows in self.rows for kind in rows.reads), *self.loads]))

    @property
    def tables(self) -> tuple[Rows | Derived | Report, ...]:
        return (*self.rows, *self.derived, *self.reports)

    @property
    def output_topics(self) -> tuple[str, ...]:
        return tuple(table.topic for table in self.tables if table.topic is not None)

    def derived_from(self, rows: Rows) -> tuple[Derived, ...]:
        return tuple(one for one in self.derived if one.of == rows.name)


# ---------------------------------------------------------------------------------------------- the pipelines by name


def pipeline_names() -> tuple[str, ...]:
    """All pipelines, in display order."""
    return tuple(name for name in _MODULES if find_spec(f"{_PACKAGE}.{name}") is not None)


def find_pipeline(name: str) -> Pipeline:
    """A pipeline by name. Raises UnknownPipeline with the closest name."""
    known = pipeline_names()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Pipelines: {', '.join(known)}"
        raise UnknownPipeline(f"unknown pipeline {name}", hint=hint)
    pipeline = import_module(f"{_PACKAGE}.{name}").PIPELINE
    if not isinstance(pipeline, Pipeline):
        raise TypeError(f"{_PACKAGE}.{name}.PIPELINE is not a Pipeline")
    return pipeline


def selected_pipelines(wanted: tuple[str, ...]) -> list[Pipeline]:
    """These pipelines, each once; all if none is named."""
    return [find_pipeline(name) for name in dict.fromkeys(wanted or pipeline_names())]


# ---------------------------------------------------------------------------------------------- counts by minute


def count_by_minute(frame: DataFrame, keys: tuple[str, ...], **columns: Column) -> DataFrame:
    """A row for each minute and value of the keys, with these aggregates."""
    from pyspark.sql import functions as fn

    window = fn.window("time", "1 minute").alias("_window")
    grouped = frame.groupBy(window, *keys).agg(*(column.alias(name) for name, column in columns.items()))
    return grouped.select(fn.col("_window.start").alias(MINUTE), *keys, *columns)


def count_where(condition: Column) -> Column:
    """The number of rows of a group that meet a condition."""
    from pyspark.sql import functions as fn

    return fn.count(fn.when(condition, 1))


def seconds_mask(condition: Column) -> Column:
    """The seconds of the minute with such a row: bit n is second n."""
    from pyspark.sql import functions as fn

    second = fn.expr("shiftleft(1L, second(time))")
    return fn.coalesce(fn.bit_or(fn.when(condition, second)), fn.lit(0).cast("bigint"))
