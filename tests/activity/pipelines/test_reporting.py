"""Reports against plain Python over the same events; day by day as all at once; again from the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.activity.pipelines.engine_stories import KEPT, send
from tests.activity.pipelines.frames import Events, arrow, numbered, two_minutes
from tests.activity.plain import reports as plain

from penstock.activity.cluster import Cluster
from penstock.activity.events import BY_TOPIC, IMPRESSIONS, KINDS, POSTS, VIEWS, VOTES
from penstock.activity.pipelines.definition import Report
from penstock.activity.pipelines.engine import results
from penstock.activity.pipelines.engine.backfill import backfill
from penstock.activity.pipelines.engine.loads import LoadsAndReports
from penstock.activity.pipelines.reporting import FOLLOWED, NEW_AFTER, PIPELINE
from penstock.client.admin import Admin
from penstock.spark.tables import Loader, Warehouse
from penstock.spark.tables.runner import LocalRunner
from penstock.testing import Broker

SESSIONS, VISITS, FUNNEL, RETENTION = PIPELINE.reports
MIDNIGHT_MS = 1_790_035_200_000
REPORTS = tuple(report.name for report in PIPELINE.reports)


def stretched(factor: int) -> Events:
    """Two minutes of the site, stretched by this factor."""
    _, events = two_minutes()
    first_ms = min(row["time"] for rows in events.values() for row in rows)
    return {
        topic: [{**row, "time": first_ms + (row["time"] - first_ms) * factor} for row in rows]
        for topic, rows in events.items()
    }


def computed(spark: SparkSession, report: Report, events: Events) -> list[dict[str, Any]]:
    frames = {kind.topic: spark.createDataFrame(arrow(kind, events.get(kind.topic, ()))) for kind in report.reads}
    found: list[dict[str, Any]] = report.define(frames).toArrow().to_pylist()
    return found


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


@pytest.mark.long
def test_sessions_of_two_days_are_those_of_plain_python_and_end_at_midnight(spark: SparkSession) -> None:
    events = stretched(1500)
    found = {
        (ms(row["start"]), row["member"], row["session"]): {
            "end": ms(row["end"]), **{name: row[name] for name in ("impressions", "clicks", "views", "bounced")},
        }
        for row in computed(spark, SESSIONS, events)
    }  # fmt: skip
    assert found == plain.sessions(events)
    assert all(key[0] // plain.DAY_MS == one["end"] // plain.DAY_MS for key, one in found.items())
    assert len({key[1:] for key in found}) < len(found), "none of them was cut"
    assert {one["bounced"] for one in found.values()} == {True, False}


def test_visits_by_hour_and_day_count_a_member_once(spark: SparkSession) -> None:
    events = stretched(1500)
    rows = computed(spark, VISITS, events)
    found = {
        (ms(row["start"]), row["period"]): tuple(
            row[name] for name in ("visits", "members", "views", "bounced", "duration_ms")
        )
        for row in rows
    }
    assert found == plain.visits(events)
    days, hours = ([row for row in rows if row["period"] == period] for period in ("day", "hour"))
    assert sum(row["visits"] for row in days) == sum(row["visits"] for row in hours)
    assert sum(row["members"] for row in days) < sum(row["members"] for row in hours)


@pytest.mark.long
def test_a_funnel_goes_in_order_and_by_the_hour(spark: SparkSession) -> None:
    def at(kind: Any, *rows: tuple[int, int, str]) -> list[dict[str, Any]]:
        return numbered(kind, [{"time": time, "member": member, "action": action} for time, member, action in rows])

    start = MIDNIGHT_MS
    hand_made = {
        IMPRESSIONS.topic: at(
            IMPRESSIONS,
            (start, 1, "impression"), (start + 1, 1, "click"),  # and looks, and votes
            (start + 5, 2, "click"), (start + 6, 2, "impression"),  # the click was of something before
            (start + plain.HOUR_MS - 1, 3, "impression"), (start + plain.HOUR_MS, 3, "click"),  # in another hour
        ),
        VIEWS.topic: at(VIEWS, (start + 1, 1, ""), (start + 7, 2, ""), (start, 4, "")),
        VOTES.topic: at(VOTES, (start, 1, ""), (start + 2, 1, "")),
        POSTS.topic: at(POSTS, (start + 9, 4, "")),
    }  # fmt: skip
    for events in (hand_made, stretched(1500)):
        found: dict[int, list[int]] = {}
        for row in sorted(computed(spark, FUNNEL, events), key=lambda one: (one["hour"], one["step"])):
            found.setdefault(ms(row["hour"]), []).append(row["members"])
            assert row["share"] == round(row["members"] / found[ms(row["hour"])][0], 6)
        assert {hour: tuple(members) for hour, members in found.items()} == plain.funnel(events)
    assert plain.funnel(hand_made) == {start: (3, 1, 1, 1)}


@pytest.mark.long
@pytest.mark.parametrize(
    ("factor", "period", "length_ms"), [(1500, "hour", plain.HOUR_MS), (12_000, "day", plain.DAY_MS)]
)
def test_retention_follows_those_who_are_new(spark: SparkSession, factor: int, period: str, length_ms: int) -> None:
    events = stretched(factor)
    found = {
        (ms(row["start"]), ms(row["cohort"])): (row["members"], row["new_members"])
        for row in computed(spark, RETENTION, events)
        if row["period"] == period
    }
    assert found == plain.retention(events, length_ms, NEW_AFTER[period], FOLLOWED[period])
    assert max(start - cohort for start, cohort in found) == FOLLOWED[period] * length_ms


@pytest.mark.long
def test_a_report_of_nothing_has_its_columns(spark: SparkSession) -> None:
    for report in PIPELINE.reports:
        assert computed(spark, report, {}) == []


# ---------------------------------------------------------------------------------------------- in a warehouse


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(str(tmp_path / "data"), settings=KEPT) as running:
        for kind in KINDS:
            running.create_topic(kind.topic, 1)
        yield running


def tables(warehouse: str) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: sorted(zip(*results.read_result_table(warehouse, name).to_pydict().values(), strict=True))
        for name in REPORTS
    }


def of_few(events: Events) -> Events:
    """The events of one member in twenty, which are enough for a table."""
    return {
        topic: [row for row in events.get(topic, ()) if row["member"] % 20 == 0]
        for topic in ("views", "impressions", "votes", "posts")
    }


def sent(broker: Broker, events: Events, since_ms: int, until_ms: int) -> None:
    rows = [
        (row["time"], topic, row) for topic, of in events.items() for row in of if since_ms <= row["time"] < until_ms
    ]
    send(broker.address, [(BY_TOPIC[topic], row) for _, topic, row in sorted(rows, key=lambda one: one[:2])])


@pytest.mark.long
def test_day_by_day_as_at_once_and_again_from_the_log(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    cluster, by_days, at_once = Cluster(broker.address), str(tmp_path / "days"), str(tmp_path / "once")
    events = of_few(stretched(1500))
    cut_ms = MIDNIGHT_MS + plain.HOUR_MS
    sent(broker, events, 0, cut_ms)
    send(broker.address, [(VIEWS, b'{"id": 1, "ti')])
    first = backfill(spark, PIPELINE, cluster, by_days)
    assert all(first.changed[name] for name in REPORTS)
    sent(broker, events, cut_ms, 1 << 60)
    backfill(spark, PIPELINE, cluster, by_days)
    backfill(spark, PIPELINE, cluster, at_once)
    expected = tables(at_once)
    assert tables(by_days) == expected
    assert len(expected["sessions"]) == len(plain.sessions(events))

    # Somebody loses the second day of a table; the log still has it.
    opened = Warehouse(by_days).open("views")
    opened.store.delta.delete(f"time >= '{datetime.fromtimestamp(cut_ms / 1000, UTC).isoformat()}'")
    lost = backfill(spark, PIPELINE, cluster, by_days)
    assert lost.deleted["sessions"]
    assert tables(by_days) != expected
    with Admin(broker.address) as admin:
        loader = Loader(Warehouse(by_days).open("views"), admin, broker.address, LocalRunner(1))
        loader.load_range(loader.since(cut_ms), bounded=False)
    again = backfill(spark, PIPELINE, cluster, by_days, since_ms=cut_ms)
    assert again.changed["sessions"] >= lost.deleted["sessions"]
    assert tables(by_days) == expected
    dead = Warehouse(by_days).open("views").dead.delta.to_pyarrow_table()
    assert dead.num_rows == 1


# ---------------------------------------------------------------------------------------------- how often


class Slow(LoadsAndReports):
    """Loads the given days, and computes for two seconds of a simulated clock."""

    waiting = 0
    computed = 0
    now_s = 100.0

    def _load(self, admin: Admin) -> tuple[int, int]:
        return 500, self.waiting

    def _report(self, report: Report, since_day: str | None = None) -> None:
        self.computed += 1
        self.now_s += 2.0

    def monotonic(self) -> float:
        self.now_s += 0.001
        return self.now_s


def test_reports_rest_while_events_wait_and_are_computed_with_the_last_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = replace(PIPELINE, reports=(SESSIONS,))
    anything: Any = None
    slow = Slow(anything, pipeline, Cluster("localhost:1"), str(tmp_path), anything, lambda line: None)
    clock = SimpleNamespace(monotonic=slow.monotonic, time_ns=time.time_ns)
    monkeypatch.setattr("penstock.activity.pipelines.engine.loads.time", clock)

    def round_of(waiting: int, wait_s: float) -> int:
        slow.now_s += wait_s
        slow.waiting = waiting
        slow.round(anything)
        return slow.computed

    assert round_of(30, 0) == 1
    assert round_of(30, 4) == 1
    assert round_of(30, 3) == 2
    assert round_of(30, 1) == 2
    assert round_of(0, 0.5) == 3  # the round that loads the last events has reports that know of them
