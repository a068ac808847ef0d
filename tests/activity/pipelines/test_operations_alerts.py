"""Alerts from tables of numbers: none on a quiet night, one at once when a server is in trouble."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.activity.pipelines.operations import ALERTS_SCHEMA, HORIZON, TRAILING, WINDOW, alerts

START = datetime(2026, 11, 15, 2, tzinfo=UTC)
COLUMNS = pa.schema(
    [
        ("start", pa.timestamp("us", "UTC")), ("server", pa.string()), ("requests", pa.int64()), ("errors", pa.int64()),
        ("p50_ms", pa.float64()), ("p95_ms", pa.float64()), ("cpu", pa.float64()),
    ]
)  # fmt: skip
Trouble = Callable[[int, int], bool]


def night(
    windows: int, *, seed: int = 1, servers: int = 6, requests: float = 120.0, trouble: Trouble = lambda s, w: False,
    share: float = 1.0,
) -> pa.Table:  # fmt: skip
    """Windows of servers whose requests take a lognormal time; in trouble 8 times it, with 15 % errors and high load.

    `share` is how much of a window in trouble had it.
    """
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for window in range(windows):
        for server in range(servers):
            count = int(rng.poisson(requests))
            took_ms = (20 + 10 * (server % 3)) * rng.lognormal(0, 0.7, count)
            bad = int(count * share) if trouble(server, window) else 0
            took_ms[:bad] *= 8
            errors = int(np.sum(rng.random(count) < np.where(np.arange(count) < bad, 0.15, 0.003)))
            ordered = np.sort(took_ms)
            load = rng.normal(0.32, 0.03, 5)
            load[: round(5 * share) if bad else 0] = rng.normal(0.93, 0.02)
            rows.append(
                {
                    "start": START + window * WINDOW, "server": f"server-{server}", "requests": count, "errors": errors,
                    "p50_ms": float(ordered[-(-count // 2) - 1]) if count else None,
                    "p95_ms": float(ordered[int(np.ceil(count * 0.95)) - 1]) if count else None,
                    "cpu": float(load.mean()),
                }
            )  # fmt: skip
    return pa.Table.from_pylist(rows, COLUMNS)


def told(found: pa.Table) -> list[tuple[int, str, str, str]]:
    return [
        (int((row["start"] - START) / WINDOW), row["server"], row["kind"], row["state"]) for row in found.to_pylist()
    ]


def in_trouble(server: int, first: int, after: int) -> Trouble:
    return lambda one, window: one == server and first <= window < after


@pytest.mark.parametrize("requests", [15.0, 60.0, 300.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_an_hour_of_a_quiet_night_has_no_alert(requests: float, seed: int) -> None:
    assert told(alerts(night(720, seed=seed, requests=requests))) == []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("first", [12, 100])
def test_an_incident_is_opened_in_its_first_window_continued_and_closed(seed: int, first: int) -> None:
    found = told(alerts(night(first + 20, seed=seed, trouble=in_trouble(2, first, first + 9))))
    assert {server for _, server, _, _ in found} == {"server-2"}
    for kind in ("latency", "cpu"):
        mine = [(window, state) for window, _, one, state in found if one == kind]
        assert mine[0] == (first, "opened")
        assert [state for _, state in mine[1:9]] == ["continued"] * 8
        assert mine[9:] == [(first + 10, "closed")]
    assert min(window for window, _, kind, _ in found if kind == "errors") <= first + 1


@pytest.mark.parametrize("seed", range(6))
def test_an_incident_that_begins_late_in_a_window_is_seen_there_or_in_the_next(seed: int) -> None:
    late = night(41, seed=seed, trouble=in_trouble(1, 40, 41), share=0.2).slice(40 * 6)
    before = night(40, seed=seed)
    whole = night(43, seed=seed + 100, trouble=in_trouble(1, 41, 43)).slice(41 * 6)
    found = told(alerts(pa.concat_tables([before, late, whole])))
    assert {server for _, server, _, _ in found} == {"server-1"}
    assert min(window for window, *_ in found) in (40, 41)


def test_severity_and_message_say_how_bad_it_is() -> None:
    found = alerts(night(60, trouble=in_trouble(0, 50, 55))).to_pylist()
    first = next(row for row in found if row["kind"] == "latency")
    assert first["severity"] == "critical"
    assert first["value"] > 5 * first["usual"]
    assert first["message"].startswith("p95 latency ")
    assert first["opened"] == first["start"] == START + 50 * WINDOW
    closed = next(row for row in found if row["state"] == "closed")
    assert closed["severity"] == "none"
    assert closed["opened"] < closed["start"]


def test_more_work_for_all_servers_is_not_an_alert_but_the_same_trouble_for_all_is() -> None:
    def slower(factor: float) -> pa.Table:
        rows = night(80).to_pylist()
        for row in rows:
            if row["start"] >= START + 70 * WINDOW:
                row["p50_ms"] *= factor
                row["p95_ms"] *= factor
        return pa.Table.from_pylist(rows, COLUMNS)

    assert told(alerts(slower(3.0))) == []
    assert {server for _, server, _, _ in told(alerts(slower(12.0)))} == {f"server-{number}" for number in range(6)}


def test_a_window_says_the_same_wherever_the_computation_begins() -> None:
    """Which is what makes a stream and a computation over everything agree."""
    rows = night(2 * TRAILING + 260, trouble=in_trouble(3, 300, 320))
    whole = alerts(rows)
    first = START + 305 * WINDOW
    part = rows.filter(pa.compute.greater_equal(rows.column("start"), pa.scalar(first - HORIZON)))

    def since(table: pa.Table) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [row for row in table.to_pylist() if row["start"] >= first]
        return found

    assert since(alerts(part)) == since(whole) != []


def test_servers_that_come_and_go_and_windows_without_figures_do_not_matter() -> None:
    rows = night(40).to_pylist()
    kept = [row for row in rows if not (row["server"] == "server-1" and row["start"] < START + 35 * WINDOW)]
    for row in kept[::7]:
        row.update(requests=0, errors=0, p50_ms=None, p95_ms=None)
    for row in kept[::11]:
        row["cpu"] = None
    assert told(alerts(pa.Table.from_pylist(kept, COLUMNS))) == []


def test_no_rows_give_no_alerts_with_all_columns() -> None:
    assert alerts(COLUMNS.empty_table()).schema == ALERTS_SCHEMA
