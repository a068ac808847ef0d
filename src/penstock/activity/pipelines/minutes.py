"""Windows of a minute, as Spark says them.

Rule: what is counted in a minute is counted by sums, sketches and masks of bits only: they give the same in whichever
order and in however many pieces events come, so a stream says what a batch says. None of them grows with the events
of a group.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE: Final = "minute"
LENGTH: Final = timedelta(minutes=1)
LATENESS: Final = timedelta(seconds=30)
"""How late an event may come and still count. A minute's groups are kept that much longer, and no more."""


def count_by_minute(frame: DataFrame, keys: tuple[str, ...], **columns: Column) -> DataFrame:
    """A row for each minute and value of the keys, with these aggregates."""
    from pyspark.sql import functions as fn

    window = fn.window("time", "1 minute").alias("_window")
    grouped = frame.groupBy(window, *keys).agg(*(column.alias(name) for name, column in columns.items()))
    return grouped.select(fn.col("_window.start").alias(MINUTE), *keys, *columns)


def times(condition: Column) -> Column:
    """How many rows of a group are so."""
    from pyspark.sql import functions as fn

    return fn.count(fn.when(condition, 1))


def seconds_mask(condition: Column) -> Column:
    """The seconds of the minute in which such a row was: bit n is second n."""
    from pyspark.sql import functions as fn

    second = fn.expr("shiftleft(1L, second(time))")
    return fn.coalesce(fn.bit_or(fn.when(condition, second)), fn.lit(0).cast("bigint"))
