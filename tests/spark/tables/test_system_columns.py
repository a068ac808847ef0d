"""Days, hours, and what came late."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from penstock.spark.tables.declaration import TIMESTAMP, Table, from_mapping
from penstock.spark.tables.system_columns import by_partition, event_times, impossible, late, partition_arrays


def table(**settings: Any) -> Table:
    return from_mapping({"name": "t", "topic": "t", "schema": "at timestamp", "event_time": "at", **settings})


def rows(*pairs: tuple[str | None, str]) -> pa.Table:
    """Event time and time in the log."""
    return pa.table(
        {
            "at": pa.array([one and datetime.fromisoformat(one) for one, _ in pairs], TIMESTAMP),
            "_timestamp": pa.array([datetime.fromisoformat(other) for _, other in pairs], TIMESTAMP),
            "_offset": pa.array(range(len(pairs)), pa.int64()),
        }
    )


def test_rows_go_to_the_day_of_their_event() -> None:
    sample = rows(
        ("2026-11-15T23:59:59.999999Z", "2026-11-16T00:00:00Z"),
        ("2026-11-16T00:00:00Z", "2026-11-16T00:00:00Z"),
        (None, "2026-11-15T01:00:00Z"),
        ("1969-12-31T23:00:00Z", "2026-11-16T00:00:00Z"),
    )
    declared = table()
    found = {
        values["event_day"]: part.column("_offset").to_pylist()
        for values, part in by_partition(declared, sample, event_times(declared, sample))
    }
    assert found == {"2026-11-15": [0, 2], "2026-11-16": [1], "1969-12-31": [3]}


def test_hours_are_those_of_utc() -> None:
    sample = rows(
        ("2026-11-15T07:30:00+02:00", "2026-11-15T06:00:00Z"), ("1969-12-31T23:30:00Z", "2026-11-15T06:00:00Z")
    )
    declared = table(partition_by="hour")
    times = event_times(declared, sample)
    assert [values for values, _ in by_partition(declared, sample, times)] == [
        {"event_day": "1969-12-31", "event_hour": "23"},
        {"event_day": "2026-11-15", "event_hour": "5"},
    ]
    arrays = partition_arrays(declared, times)
    assert [str(day) for day in arrays["event_day"].to_pylist()] == ["2026-11-15", "1969-12-31"]
    assert arrays["event_hour"].to_pylist() == [5, 23]


def test_late_is_what_reached_the_log_too_long_after_its_event() -> None:
    sample = rows(
        ("2026-11-15T00:00:00Z", "2026-11-15T01:00:00Z"),
        ("2026-11-15T00:00:00Z", "2026-11-15T01:00:00.001Z"),
        ("2026-11-16T00:00:00Z", "2026-11-15T00:00:00Z"),
        (None, "2026-11-15T00:00:00Z"),
    )
    declared = table(late="dead", allowed_lateness="1h")
    assert late(declared, sample, event_times(declared, sample)).to_pylist() == [False, True, False, False]


def test_a_time_that_no_calendar_has_is_found() -> None:
    edge = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1_000_000
    times = pa.array([0, edge, 2**62, -(2**62)], pa.int64())
    assert impossible(times).to_pylist() == [False, False, True, True]
