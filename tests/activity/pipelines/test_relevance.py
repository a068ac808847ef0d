"""Counts of items by minute, and the ranking of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.activity.pipelines.frames import INSTANT, batch, cut, minute_ms, ordered, stream, two_minutes
from tests.activity.plain.minutes import item_minutes

from penstock.activity.pipelines import arrays, relevance

ROWS = relevance.PIPELINE.rows[0]
COUNTS = ("impressions", "clicks", "views", "votes_up", "votes_down")
ORDINARY = {"impressions": 400, "clicks": 40, "views": 100, "votes_up": 8, "votes_down": 2}


def table(rows: list[tuple[int, int, Mapping[str, int]]]) -> pa.Table:
    """Rows of (minute, item, counts)."""
    columns: dict[str, Any] = {"minute": pa.array([minute_ms(row[0]) * 1000 for row in rows], pa.int64()).cast(INSTANT)}
    columns["item"] = pa.array([row[1] for row in rows], pa.int64())
    columns |= {name: pa.array([row[2].get(name, 0) for row in rows], pa.int64()) for name in COUNTS}
    return pa.table(columns)


def ranked(rows: list[tuple[int, int, Mapping[str, int]]]) -> dict[int, dict[str, Any]]:
    """What is said of each item."""
    return {row["item"]: row for row in relevance.ranking(table(rows)).to_pylist()}


def crowd(minutes: int) -> list[tuple[int, int, Mapping[str, int]]]:
    """Ten ordinary items, from 100 on."""
    return [(minute, item, ORDINARY) for minute in range(minutes) for item in range(100, 110)]


def test_spark_counts_what_plain_python_counts(spark: SparkSession) -> None:
    _, events = two_minutes()
    rows = batch(spark, ROWS, events).to_pylist()
    assert {(row["minute"], row["item"]): {name: row[name] for name in COUNTS} for row in rows} == item_minutes(events)


@pytest.mark.long
def test_a_stream_with_late_events_ends_with_what_a_batch_says(spark: SparkSession, tmp_path: Path) -> None:
    _, events = two_minutes()
    pieces = cut(events, [minute_ms(0, 40), minute_ms(1, 10), minute_ms(2, 5)])
    streamed = stream(spark, ROWS, pieces, tmp_path)
    at_once = batch(spark, ROWS, events)
    assert ordered(streamed, *ROWS.key) == ordered(at_once, *ROWS.key)
    assert relevance.ranking(streamed).equals(relevance.ranking(at_once))


@pytest.mark.long
def test_the_planted_item_is_ranked_and_rises(spark: SparkSession) -> None:
    site, events = two_minutes()
    planted = next(one.subject["item"] for one in site.truth(minute_ms(2)) if one.kind == "trending")
    found = relevance.ranking(batch(spark, ROWS, events)).to_pylist()
    assert [row["rank"] for row in found] == list(range(1, relevance.RANKED + 1))
    assert {row["item"] for row in found if row["rising"]} == {planted}


def test_better_click_through_and_better_votes_rank_higher() -> None:
    found = ranked(
        [*crowd(3), (2, 1, {**ORDINARY, "clicks": 80}), (2, 2, {**ORDINARY, "votes_up": 2, "votes_down": 8})]
    )
    assert found[1]["click_through"] > found[100]["click_through"]
    assert found[2]["votes"] < found[100]["votes"]
    alone = {item: row["rank"] for item, row in found.items()}
    assert alone[1] < alone[2]


def test_two_clicks_of_two_are_less_than_many_of_many() -> None:
    few, many = {"impressions": 2, "clicks": 2, "views": 100}, {"impressions": 400, "clicks": 150, "views": 100}
    found = ranked([*crowd(1), (0, 1, few), (0, 2, many)])
    assert found[1]["click_through"] < found[2]["click_through"]
    assert found[1]["rank"] > found[2]["rank"]


def test_counts_of_one_half_life_ago_count_half() -> None:
    found = ranked([(0, 1, {"views": 100}), (5, 2, {"views": 100})])
    assert (found[1]["views"], found[2]["views"]) == (50.0, 100.0)
    assert 1 not in ranked([(0, 1, {"views": 100}), (30, 2, {"views": 100})])


def test_an_item_rises_by_its_share_and_not_because_everything_does() -> None:
    more = [(3, item, {**ORDINARY, "views": 300}) for item in range(100, 110)]
    assert not any(row["rising"] for row in ranked([*crowd(3), *more]).values())
    begun = [(3, item, {"views": 20}) for item in range(100, 109)]
    found = ranked([*crowd(3), *begun, (3, 109, {"views": 200})])
    assert {item for item, row in found.items() if row["rising"]} == {109}
    assert found[109]["trend"] > 1.5 > found[100]["trend"]


def test_five_views_after_none_are_not_a_trend() -> None:
    assert not any(row["rising"] for row in ranked([*crowd(3), (2, 1, {"views": 15})]).values())


def test_nothing_at_all_has_a_ranking_of_nothing() -> None:
    assert relevance.ranking(table([])).num_rows == 0
    assert relevance.ranking(table([])).schema == relevance.ranking(table(crowd(1))).schema


def test_a_lower_bound_grows_with_the_trials_and_stays_a_share() -> None:
    successes, trials = np.array([0.0, 1.0, 10.0, 100.0, 5.0]), np.array([0.0, 1.0, 10.0, 100.0, 10.0])
    bound = arrays.wilson_lower(successes, trials)
    assert bound[0] == 0
    assert bound[1] < bound[2] < bound[3] < 1
    assert 0.2 < bound[4] < 0.5
