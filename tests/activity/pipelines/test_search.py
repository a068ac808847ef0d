"""Searches by minute and group, and what rises among them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.activity.pipelines.frames import INSTANT, batch, cut, minute_ms, ordered, stream, two_minutes
from tests.activity.plain.minutes import keyword_minutes

from penstock.activity.pipelines import search

ROWS = search.PIPELINE.rows[0]
USUAL = [(number, "regular", f"word {word}", 20 + word % 3) for number in range(4) for word in range(50)]


def table(rows: Iterable[tuple[int, str, str, int]]) -> pa.Table:
    """Rows of (minute, group, keyword, searches), by as many users."""
    given = list(rows)
    minutes = pa.array([minute_ms(row[0]) * 1000 for row in given], pa.int64()).cast(INSTANT)
    groups, words, counts = (pa.array([row[place] for row in given], kind) for place, kind in
                             ((1, pa.string()), (2, pa.string()), (3, pa.int64())))  # fmt: skip
    names = ["minute", "user_group", "keyword", "searches", "users"]
    return pa.table([minutes, groups, words, counts, counts], names=names)


def named(rows: pa.Table) -> set[tuple[int, str, str]]:
    start = datetime.fromtimestamp(minute_ms(0) / 1000, UTC)
    found = search.rising(rows).to_pylist()
    return {((row["minute"] - start).seconds // 60, row["user_group"], row["keyword"]) for row in found}


def test_spark_counts_what_plain_python_counts(spark: SparkSession) -> None:
    _, events = two_minutes()
    rows = batch(spark, ROWS, events).to_pylist()
    plain = keyword_minutes(events)
    assert {(row["minute"], row["user_group"], row["keyword"]): row["searches"] for row in rows} == {
        key: searches for key, (searches, _) in plain.items()
    }
    for row in rows:
        users = plain[row["minute"], row["user_group"], row["keyword"]][1]
        assert abs(row["users"] - users) <= max(1, 0.15 * users)
        assert row["users"] <= row["searches"]


@pytest.mark.long
def test_a_stream_with_late_events_ends_with_what_a_batch_says(spark: SparkSession, tmp_path: Path) -> None:
    _, events = two_minutes()
    pieces = cut(events, [minute_ms(0, 40), minute_ms(1), minute_ms(1, 30), minute_ms(2, 5)])
    streamed = stream(spark, ROWS, pieces, tmp_path)
    assert ordered(streamed, *ROWS.key) == ordered(batch(spark, ROWS, events), *ROWS.key)


@pytest.mark.long
def test_the_planted_keyword_rises_for_everybody(spark: SparkSession) -> None:
    site, events = two_minutes()
    planted = next(one.subject["keyword"] for one in site.truth(minute_ms(2)) if one.kind == "trending")
    found = search.rising(batch(spark, ROWS, events)).to_pylist()
    assert {row["keyword"] for row in found if row["user_group"] == "all"} == {planted}


def test_steady_words_do_not_rise() -> None:
    assert named(table(USUAL)) == set()


def test_a_word_that_rises_is_named_in_its_group_and_overall() -> None:
    others = [(number, "new", "other", 75) for number in range(4)]
    rows = [*USUAL, *others, (2, "new", "word 7", 5), (3, "new", "word 7", 80)]
    assert named(table(rows)) == {(3, "new", "word 7"), (3, "all", "word 7")}


def test_a_minute_that_has_just_begun_is_judged_by_shares() -> None:
    begun = [(4, group, word, count // 5) for minute, group, word, count in USUAL if minute == 0]
    assert named(table([*USUAL, *begun, (4, "regular", "new word", 40)])) == {
        (4, "regular", "new word"),
        (4, "all", "new word"),
    }
    everything_doubles = [(4, group, word, count * 2) for minute, group, word, count in USUAL if minute == 0]
    assert named(table([*USUAL, *everything_doubles])) == set()


def test_what_some_seconds_have_not_shown_may_yet_be_usual() -> None:
    seconds = [(0, "regular", f"word {word}", 3) for word in range(20)]
    full = [(1, "regular", f"word {word}", 20) for word in range(50)]
    assert named(table([*seconds, *full])) == set()


def test_the_first_minute_is_normal_and_few_searches_are_nothing() -> None:
    assert named(table([(0, "new", "word", 500)])) == set()
    assert named(table([*USUAL, (3, "regular", "rare", 14)])) == set()
    assert search.rising(table([])).schema == search.rising(table(USUAL)).schema


def test_a_computation_over_a_part_says_the_same_of_the_newest_minute() -> None:
    rows = [(number, "regular", f"word {word}", 20) for number in range(45) for word in range(9)]
    rows += [(number, "regular", "word 3", 90) for number in (12, 44)]
    whole, part = table(rows), table(row for row in rows if row[0] >= 44 - 30)
    newest = datetime.fromtimestamp(minute_ms(44) / 1000, UTC)
    said = [[row for row in search.rising(given).to_pylist() if row["minute"] == newest] for given in (whole, part)]
    assert said[0] == said[1] != []
