"""The truth file lists exactly what was planted, and look-alikes are not in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from penstock.activity.events import API_CALLS_PER_MINUTE
from penstock.activity.site import Site, rows_between

ORIGIN_MS = 1_790_000_000_000
SITE = Site(seed=3, rate=2000, origin_ms=ORIGIN_MS, rhythm="flat")
PLANTED = SITE.population.planted


@pytest.fixture(scope="module")
def rows() -> dict[str, list[dict[str, Any]]]:
    """The first two minutes."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for kind, row in rows_between(SITE, ORIGIN_MS, ORIGIN_MS + 120_000):
        found[kind.topic].append(row)
    return found


def told(kind: str) -> list[dict[str, Any]]:
    return [each.value for each in SITE.truth(ORIGIN_MS + 120_000) if each.kind == kind]


def by_actor(rows: list[dict[str, Any]], name: str, actors: list[Any]) -> dict[Any, list[dict[str, Any]]]:
    wanted = set(actors)
    found: dict[Any, list[dict[str, Any]]] = {actor: [] for actor in actors}
    for row in rows:
        if row[name] in wanted:
            found[row[name]].append(row)
    return found


def test_truth_names_each_planted_actor_once() -> None:
    truth = SITE.truth(ORIGIN_MS + 120_000)
    assert Counter(each.kind for each in truth) == {
        "crawler": 12, "spammer": 10, "abuser": 10, "trending": 1, "incident": 1
    }  # fmt: skip
    assert len({each.key for each in truth}) == len(truth)
    assert [each["id"] for each in told("crawler")] == PLANTED.crawlers.tolist()
    assert all(each["start_ms"] == ORIGIN_MS and each["end_ms"] is None for each in told("abuser"))
    planted = np.concatenate([PLANTED.crawlers, PLANTED.readers, PLANTED.spammers, PLANTED.posters])
    assert len(np.unique(planted)) == len(planted)


def test_crawlers_walk_in_quick_regular_steps_and_do_little_else(rows: dict[str, list[dict[str, Any]]]) -> None:
    crawlers = [each["id"] for each in told("crawler")]
    first_minute = [row for row in rows["views"] if row["time"] < ORIGIN_MS + 60_000]
    views = by_actor(first_minute, "member", crawlers)
    rates = []
    for walked in views.values():
        gaps = np.diff([row["time"] for row in walked])
        assert gaps.std() / gaps.mean() < 0.15
        assert len({row["item"] for row in walked}) == len(walked)
        assert {row["referrer"] for row in walked} == {"direct"}
        rates.append(len(walked) / 60)
    assert min(rates) == pytest.approx(0.7, abs=0.05)
    assert max(rates) == pytest.approx(4.0, abs=0.1)
    assert not any(by_actor(rows["votes"], "member", crawlers).values())


def test_heavy_readers_are_irregular_and_read_again(rows: dict[str, list[dict[str, Any]]]) -> None:
    for read in by_actor(rows["views"], "member", PLANTED.readers.tolist()).values():
        gaps = np.diff([row["time"] for row in read])
        assert 15 < len(read) < 80
        assert gaps.std() / gaps.mean() > 0.6
        assert len({row["item"] for row in read}) < 0.9 * len(read)


def test_spammers_repeat_themselves_and_frequent_posters_do_not(rows: dict[str, list[dict[str, Any]]]) -> None:
    spam = by_actor(rows["posts"], "member", [each["id"] for each in told("spammer")])
    for posts in spam.values():
        first_minute = [row for row in posts if row["time"] < ORIGIN_MS + 60_000]
        assert 4 <= len(first_minute) <= 13
        assert len({row["text"].partition("?ref=")[0] for row in posts}) == 1
        assert all(row["links"] == 1 and "https://" in row["text"] for row in posts)
    for posts in by_actor(rows["posts"], "member", PLANTED.posters.tolist()).values():
        assert len(posts) >= 3
        assert len({row["text"][:40] for row in posts}) == len(posts)
    for row in rows["posts"]:
        assert row["links"] == row["text"].count("https://")


def test_abusers_exceed_the_limit_and_ignore_429(rows: dict[str, list[dict[str, Any]]]) -> None:
    abusers = [each["id"] for each in told("abuser")]
    first_minute = [row for row in rows["api_calls"] if row["time"] < ORIGIN_MS + 60_000]
    for calls in by_actor(first_minute, "client", abusers).values():
        refused = sum(row["status"] == 429 for row in calls)
        assert len(calls) > 1.3 * API_CALLS_PER_MINUTE
        assert refused / len(calls) == pytest.approx(1 - API_CALLS_PER_MINUTE / len(calls), abs=0.08)
    others = [row["status"] for row in first_minute if row["client"] not in abusers]
    assert others.count(429) / len(others) < 0.005


def test_the_trending_item_is_looked_at_and_searched_for_twenty_times_as_often() -> None:
    (trend,) = told("trending")
    start_ms = trend["start_ms"]
    assert start_ms == ORIGIN_MS + 15_000
    views, searches = Counter[str](), Counter[str]()
    for kind, row in rows_between(SITE, start_ms, start_ms + 90_000):
        minute = "plateau" if row["time"] >= start_ms + 60_000 else "begin" if row["time"] < start_ms + 5_000 else ""
        if kind.topic == "views":
            views[minute] += row["item"] == trend["item"]
        elif kind.topic == "searches":
            searches[minute] += row["keyword"] == trend["keyword"]
    before_per_s = SITE.schedule.trend(0).views_before
    assert views["plateau"] / 30 == pytest.approx(20 * before_per_s, rel=0.25)
    assert views["begin"] / 5 < 5 * before_per_s
    assert searches["plateau"] > 60 > 10 > searches["begin"]


def test_an_incident_hits_one_server_and_no_other() -> None:
    (incident,) = told("incident")
    start_ms, end_ms = incident["start_ms"], incident["end_ms"]
    assert (start_ms, end_ms) == (ORIGIN_MS + 60_000, ORIGIN_MS + 105_000)
    took: dict[tuple[bool, bool], list[float]] = defaultdict(list)
    failed: Counter[tuple[bool, bool]] = Counter()
    cpu: dict[tuple[bool, bool], list[float]] = defaultdict(list)
    for kind, row in rows_between(SITE, start_ms - 20_000, end_ms + 20_000):
        if kind.topic in ("requests", "servers"):
            where = (row["server"] == incident["server"], start_ms <= row["time"] < end_ms)
            if kind.topic == "servers":
                cpu[where].append(row["cpu"])
            else:
                took[where].append(row["duration_ms"])
                failed[where] += row["status"] >= 500
                assert (row["level"] == "ERROR") == (row["status"] >= 500)
    hit = (True, True)
    quiet = [where for where in took if where != hit]
    assert len(quiet) == 3
    for where in quiet:
        assert np.median(took[hit]) == pytest.approx(8 * np.median(took[where]), rel=0.2)
        assert failed[where] / len(took[where]) < 0.01
        assert max(cpu[where]) < 0.6
    assert failed[hit] / len(took[hit]) == pytest.approx(0.15, abs=0.03)
    assert min(cpu[hit]) > 0.8


def test_incidents_and_trends_come_again_elsewhere_every_ten_minutes() -> None:
    hour = SITE.truth(ORIGIN_MS + 3_600_000)
    incidents = [each for each in hour if each.kind == "incident"]
    trends = [each for each in hour if each.kind == "trending"]
    assert len(incidents) == len(trends) == 6
    assert {late.start_ms - early.start_ms for early, late in pairwise(incidents)} == {600_000}
    assert len({each.subject["server"] for each in incidents}) == 6
    assert len({each.subject["item"] for each in trends}) == 6


def test_the_planted_are_there_in_most_minutes_but_not_in_all() -> None:
    abusers = {each["id"] for each in told("abuser")}
    there = []
    for minute in range(1, 9):
        begin_ms = ORIGIN_MS + minute * 60_000
        calls = {
            row["client"] for kind, row in rows_between(SITE, begin_ms, begin_ms + 1000) if kind.topic == "api_calls"
        }
        there.append(len(abusers & calls))
    assert 0.75 < sum(there) / len(there) / len(abusers) < 1.0
