"""The columns that every table has: origin of the record, partition by event time, and those of dead letters.

The event time is a column of the record, or its timestamp where that column is null or none is declared. A record is
late if it reached the log more than `allowed_lateness` after its event. Both depend on the record alone, not on the
loader's clock, so a load that is repeated puts every record in the same place.

A record is in the table or among its dead letters, never in both. A record that is dropped by policy leaves a dead
letter without content, so that audits add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.tables.declaration import DAY, HOUR, TIMESTAMP, Table

_DAY_US: Final = 86_400_000_000
_HOUR_US: Final = 3_600_000_000
# 0001-01-01 and 9999-12-31: the range of dates.
_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999


def event_times(table: Table, rows: pa.Table) -> Any:
    """The event time of every row in microseconds since 1970 (int64)."""
    stamped = rows.column("_timestamp").cast(pa.int64())
    if not table.event_time or table.event_time == "_timestamp":
        return stamped
    column = rows.column(table.event_time)
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("us"))
    return pc.coalesce(column.cast(pa.int64()), stamped)


def impossible(times_us: Any) -> Any:
    """Which times are outside of years 1 to 9999."""
    return pc.or_(pc.less(times_us, _FIRST_US), pc.greater(times_us, _LAST_US))


def late(table: Table, rows: pa.Table, times_us: Any) -> Any:
    """Which rows reached the log after `allowed_lateness`."""
    stamped = rows.column("_timestamp").cast(pa.int64())
    return pc.less(times_us, pc.subtract(stamped, table.allowed_lateness_ms * 1000))


def by_partition(table: Table, rows: pa.Table, times_us: Any) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """The rows of each day or hour, in order, with the values of the partition columns."""
    if table.partition_by == "none":
        yield {}, rows
        return
    unit_us = _DAY_US if table.partition_by == "day" else _HOUR_US
    numbers = _floor(times_us, unit_us)
    found = sorted(pc.unique(numbers).to_pylist())
    for number in found:
        chosen = rows if len(found) == 1 else rows.filter(pc.equal(numbers, number))
        yield _values(table, number * unit_us), chosen


def _floor(times_us: Any, unit_us: int) -> Any:
    """Division that rounds down, also before 1970; Arrow rounds towards zero."""
    shifted = pc.subtract(times_us, _FIRST_US)
    return pc.add(pc.divide(shifted, unit_us), _FIRST_US // unit_us)


def _values(table: Table, time_us: int) -> dict[str, str | None]:
    day = date.fromordinal(date(1970, 1, 1).toordinal() + time_us // _DAY_US)
    values: dict[str, str | None] = {DAY: day.isoformat()}
    if table.partition_by == "hour":
        values[HOUR] = str(time_us % _DAY_US // _HOUR_US)
    return values


def partition_arrays(table: Table, times_us: Any) -> dict[str, Any]:
    """The partition columns of rows as arrays."""
    if table.partition_by == "none":
        return {}
    days = _floor(times_us, _DAY_US)
    arrays = {DAY: days.cast(pa.int32()).cast(pa.date32())}
    if table.partition_by == "hour":
        hours = pc.subtract(_floor(times_us, _HOUR_US), pc.multiply(days, 24))
        arrays[HOUR] = hours.cast(pa.int32())
    return arrays


def partition_fields(table: Table) -> list[pa.Field]:
    kinds = {DAY: pa.date32(), HOUR: pa.int32()}
    return [pa.field(name, kinds[name]) for name in table.partition_columns]


def metadata_fields() -> list[pa.Field]:
    """The columns of the record's origin. They come first: Delta keeps statistics of the first 32 columns only."""
    pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return [
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", TIMESTAMP),
        pa.field("_key", pa.binary()),
        pa.field("_headers", pa.list_(pa.field("element", pair))),
    ]


def dead_schema() -> pa.Schema:
    return pa.schema(
        [
            *metadata_fields(),
            pa.field("value", pa.binary()),
            pa.field("reason", pa.string()),
            pa.field("dropped", pa.bool_()),
            pa.field("loaded_at", TIMESTAMP),
        ]
    )


def dead_rows(origin: pa.Table, values: Any, reasons: Sequence[str], dropped: bool, now_us: int) -> pa.Table:
    """Rows of the dead letters. `origin` has the metadata columns."""
    count = origin.num_rows
    schema = dead_schema()
    columns = {name: origin.column(name) for name in origin.column_names}
    columns |= {
        "value": values,
        "reason": pa.array(reasons, pa.string()),
        "dropped": pa.repeat(pa.scalar(dropped), count),
        "loaded_at": pa.repeat(pa.scalar(now_us, pa.int64()), count).cast(TIMESTAMP),
    }
    if dropped:
        columns |= {name: pa.nulls(count, schema.field(name).type) for name in ("_key", "_headers", "value")}
    return pa.table([columns[name] for name in schema.names], schema=schema)
