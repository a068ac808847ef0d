"""What a pipeline is: the events it reads, the rows it keeps, and what follows from them.

Nouns: `Rows`, a table that Spark keeps from events; `Derived`, a table that follows from one of those alone; `Report`,
a table that follows from the warehouse's tables of events; `Pipeline`, some of each under one name.

Rule: a definition does not know whether it runs as a stream or over all there is. `Rows.define` takes frames of events
and gives one frame; as a stream it is run in the mode it names, and every row it gives replaces the row of the same
key, so that what is in the table is what the same definition says of all the events at once. `Derived.compute` is a
function of rows alone: no clock, no state, so that it too gives the same whenever it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from penstock.activity.events import Kind

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Mode = Literal["update", "append"]
Define = Callable[[Mapping[str, "DataFrame"]], "DataFrame"]
"""From frames by topic, each with the columns of its kind, `time` a timestamp with the watermark of `Rows`."""


@dataclass(frozen=True)
class Rows:
    """A table kept by Spark, a row for each value of its key."""

    name: str
    key: tuple[str, ...]
    time: str
    """The timestamp column by which the table is partitioned in days and pruned: the start of a window, mostly."""
    reads: tuple[Kind, ...]
    watermark: Mapping[str, timedelta]
    """By topic: how late an event may come and still count."""
    mode: Mode
    define: Define
    topic: str | None = None
    """Where changed rows go as JSON, keyed by the key's columns; compacted."""
    before: timedelta | None = None
    """How far before a row's time events matter to it, for those who compute a part again; None is as far as the log
    goes."""
    after: timedelta = timedelta(minutes=1)
    """How far beyond: the length of its window."""


@dataclass(frozen=True)
class Derived:
    """A table that follows from `Rows`: rankings, verdicts, alerts."""

    name: str
    of: str
    key: tuple[str, ...]
    time: str
    horizon: timedelta
    """How far back before a changed row its computation looks."""
    compute: Callable[[pa.Table], pa.Table]
    """From the rows of the horizon to what follows from them; whoever asks drops what is older than the change."""
    topic: str | None = None
    replaces: bool = False
    """The rows of each computation are all there are (a ranking as of now), not more of them."""


@dataclass(frozen=True)
class Report:
    """A table that follows from tables of events, computed over the days that changed and `lookback` before them."""

    name: str
    key: tuple[str, ...]
    time: str
    reads: tuple[Kind, ...]
    lookback: timedelta
    define: Define
    topic: str | None = None


@dataclass(frozen=True)
class Pipeline:
    """Named by what it is for."""

    name: str
    summary: str
    trigger: timedelta
    """How long from the start of a micro-batch (or a load) to that of the next."""
    rows: tuple[Rows, ...] = ()
    derived: tuple[Derived, ...] = ()
    loads: tuple[Kind, ...] = ()
    """Kinds that are loaded into the warehouse as they are, by `penstock load`, into tables of their topics' names."""
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
