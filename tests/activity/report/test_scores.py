"""Verdicts, alerts and rankings against what was planted: tables of records in, scores out."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.activity.report.document import Document, Latency, latencies, quantile
from penstock.activity.report.measurements import TableCount, grouped, pairs
from penstock.activity.report.scores import (
    Detection,
    Planted,
    PublishedRecord,
    Score,
    false_alarms,
    incident_detections,
    planted_of,
    published_record,
    trend_detections,
    verdict_scores,
)

T0 = 1_790_000_000_000
INCIDENT = Planted("incident", "server-3", T0 + 60_000, T0 + 105_000)


def truth(key: str, at_ms: int = T0, **value: Any) -> PublishedRecord:
    return PublishedRecord(key, {"start_ms": at_ms, "end_ms": None, **value}, at_ms)


def alert(server: str, window_ms: int, told_ms: int, state: str = "opened", kind: str = "latency") -> PublishedRecord:
    value = {"server": server, "start": window_ms, "state": state, "kind": kind, "message": "slow"}
    return PublishedRecord(f"{window_ms}:{server}:{kind}", value, told_ms)


# ---------------------------------------------------------------------------------------------- what is planted


def test_only_the_site_that_opened_last_counts() -> None:
    records = [
        truth("crawler:1", T0 - 900_000, kind="crawler", id=1),
        truth("incident:server-1:5", T0 - 800_000, kind="incident", server="server-1", end_ms=T0 - 700_000),
        truth("crawler:1", T0, kind="crawler", id=1),
        truth("abuser:client-7", T0, kind="abuser", id="client-7"),
        truth("trending:17:9", T0 + 15_000, kind="trending", item=17, keyword="lamp", end_ms=T0 + 90_000),
        truth("incident:server-3:9", T0 + 600_000, kind="incident", server="server-3", end_ms=T0 + 645_000),
        PublishedRecord("crawler:2", None, T0),
        published_record(b"odd", b"\xff{", T0),
    ]
    expected = [
        Planted("crawler", "1", T0),
        Planted("abuser", "client-7", T0),
        Planted("trending", "17", T0 + 15_000, T0 + 90_000, "lamp"),
    ]
    assert planted_of(records, None, T0 + 120_000) == expected
    assert planted_of(records, T0, T0 + 120_000) == expected
    assert planted_of(records, T0, T0 + 700_000)[-1].subject == "server-3"


def test_precision_and_recall_are_of_each_verdict() -> None:
    planted = [Planted("crawler", str(number), T0) for number in range(10)] + [Planted("abuser", "client-1", T0)]
    named = [("crawler", str(number)) for number in range(8)] + [("crawler", "77"), ("crawler", "78")]
    crawlers, spammers, abusers = verdict_scores(planted, named)
    assert (crawlers.precision, crawlers.recall) == (0.8, 0.8)
    assert (crawlers.missed, crawlers.wrong) == (("8", "9"), ("77", "78"))
    assert (spammers.precision, spammers.recall) == (1.0, 1.0)
    assert (abusers.precision, abusers.recall) == (0.0, 0.0)


def test_the_right_actor_with_the_wrong_verdict_is_wrong() -> None:
    crawlers, spammers, _ = verdict_scores([Planted("crawler", "5", T0)], [("spammer", "5")])
    assert (crawlers.recall, spammers.precision) == (0.0, 0.0)


# ---------------------------------------------------------------------------------------------- happenings


def test_an_incident_is_timed_from_its_start_to_the_first_publication_about_its_server() -> None:
    alerts = [
        alert("server-3", T0 + 20_000, T0 + 25_000),  # before there was anything
        alert("server-2", T0 + 60_000, T0 + 62_000),  # another server
        alert("server-3", T0 + 60_000, T0 + 71_500, "continued"),
        alert("server-3", T0 + 55_001, T0 + 68_250),
        alert("server-3", T0 + 60_000, T0 + 63_000, "closed"),
        PublishedRecord("tombstone", None, T0 + 61_000),
    ]
    (found,) = incident_detections([INCIDENT], alerts, T0 + 120_000)
    assert (found.after_ms, found.is_judged, found.detail) == (8_250, True, "slow")
    assert false_alarms([INCIDENT], alerts, T0) == ["server-3: latency", "server-2: latency"]


def test_an_incident_at_the_very_end_is_not_judged() -> None:
    assert [one.is_judged for one in incident_detections([INCIDENT], [], T0 + 75_000)] == [True]
    assert [one.is_judged for one in incident_detections([INCIDENT], [], T0 + 74_999)] == [False]


def test_a_trend_is_found_when_its_item_is_first_published_as_rising() -> None:
    def ranked(rank: int, item: int, told_ms: int, *, rising: bool = True) -> PublishedRecord:
        return PublishedRecord(str(rank), {"rank": rank, "item": item, "rising": rising}, told_ms)

    ranking = [
        ranked(40, 17, T0 + 20_000, rising=False), ranked(9, 17, T0 + 35_000), ranked(2, 17, T0 + 50_000),
        ranked(1, 18, T0 + 21_000), ranked(1, 17, T0 - 1),
    ]  # fmt: skip
    (found,) = trend_detections([Planted("trending", "17", T0 + 15_000, T0 + 90_000, "lamp")], ranking, T0 + 120_000)
    assert (found.after_ms, found.rank, found.detail) == (20_000, 2, "lamp")
    (nothing,) = trend_detections([Planted("trending", "99", T0 + 15_000, T0 + 90_000)], ranking, T0 + 120_000)
    assert (nothing.after_ms, nothing.is_judged) == (None, True)


# ---------------------------------------------------------------------------------------------- goals


def count(**changes: Any) -> TableCount:
    values: dict[str, Any] = {
        "table": "views", "logged": 100, "landed": 97, "dead": 3, "waiting": 0, "missing": 0, "surplus": 0,
        "complete_until_ms": T0, "run_logged": 100, "run_dead": 3, "acknowledged": 100, "malformed": 3,
    }  # fmt: skip
    return TableCount(**{**values, **changes})


def document(**changes: Any) -> Document:
    values: dict[str, Any] = {
        "since_ms": T0, "until_ms": T0 + 120_000, "made_ms": T0 + 130_000, "facts": {},
        "ran": ("security", "operations"),
        "scores": (Score("crawler", 10, 10, 9),), "incidents": (Detection("server-3", T0, 14_900, True),),
        "false_alarms": (), "trends": (), "tables": (count(),), "counts": (), "absent": (), "latencies": (),
        "landings": (), "visits": (), "funnel": (),
    }  # fmt: skip
    return Document(**{**values, **changes})


def test_a_good_run_has_nothing_to_complain_of() -> None:
    good = document()
    assert good.failures == ()
    assert good.complete_until_ms == T0
    assert json.loads(json.dumps(good.to_json()))["is_good"] is True


@pytest.mark.parametrize(
    ("changes", "failure_text"),
    [
        ({"tables": (count(missing=1),)}, "1 missing"),
        ({"tables": (count(surplus=2),)}, "2 duplicate"),
        ({"tables": (count(waiting=4),)}, "4 waiting"),
        ({"tables": (count(run_logged=99),)}, "100 acknowledged but 99 in the log"),
        ({"tables": (count(run_dead=2),)}, "3 malformed but 2 dead letters"),
        ({"absent": ("feed",)}, "feed missing"),
        ({"scores": (Score("crawler", 10, 10, 8),)}, "precision 0.80"),
        ({"scores": (Score("crawler", 12, 9, 9),)}, "recall 0.75"),
        ({"incidents": (Detection("server-3", T0, 15_001, True),)}, "15.0 s after its start"),
        ({"incidents": (Detection("server-3", T0, None, True),)}, "no alert"),
    ],
)
def test_each_goal_that_is_missed_is_reported(changes: dict[str, Any], failure_text: str) -> None:
    (failure,) = document(**changes).failures
    assert failure_text in failure


def test_what_was_not_run_is_not_judged() -> None:
    idle = document(ran=(), tables=(), incidents=(Detection("server-3", T0, None, True),))
    assert idle.failures == ()
    assert {goal.is_met for goal in idle.goals} == {None}
    assert document(incidents=(Detection("server-3", T0, None, False),)).failures == ()


def test_waiting_time_is_what_waits_by_what_comes() -> None:
    samples = [
        {"time_ms": T0 + second * 1000, "rates": {"views": 100.0, "votes": 900.0}, "lag": {"a": 50 * second},
         "batch_ms": {"a": 200 + second}}
        for second in range(1, 5)
    ]  # fmt: skip
    silent = [{"time_ms": T0 - 1, "rates": {}, "lag": {"a": 10**6}, "batch_ms": {"a": 10**6}}]
    assert latencies([*silent, *samples], {"a": ["views"]}, T0, T0 + 60_000) == [
        Latency("a", 202, 204, 1000.0, 2000.0, 200)
    ]
    assert latencies(samples, {}, T0, T0 + 60_000) == [Latency("a", 202, 204, None, None, None)]
    assert quantile([], 0.5) is None


# ---------------------------------------------------------------------------------------------- counts by another way


def events(**columns: list[Any]) -> pa.Table:
    times = pa.array([time * 1000 for time in columns.pop("time")], pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.table({"time": times, **columns})


def test_pairs_of_an_act_and_the_follows_before_it() -> None:
    follows = events(time=[T0, T0 + 10, T0 + 20, T0], followed=[5, 5, 5, 9])
    acts = events(time=[T0 + 10, T0 + 30, T0 - 1, T0, T0], member=[5, 5, 5, 9, 7])
    assert pairs(follows, acts) == 2 + 3 + 0 + 1 + 0
    assert pairs(follows.slice(0, 0), acts) == 0


def test_acts_by_minute_and_actor() -> None:
    minute = T0 // 60_000 * 60_000
    views = events(time=[minute, minute + 59_999, minute + 60_000], member=[1, 1, 1])
    posts = events(time=[minute + 5], member=[1])
    found = grouped({"views": views, "posts": posts})
    assert sorted((one["views"], one["posts"]) for one in found) == [(1, 0), (2, 1)]
