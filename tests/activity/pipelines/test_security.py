"""How actors behave by minute, and who is named for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.activity.pipelines.frames import INSTANT, batch, cut, minute_ms, ordered, stream, two_minutes
from tests.activity.plain.minutes import behaviour

from penstock.activity.events import API_CALLS_PER_MINUTE
from penstock.activity.pipelines import security

ROWS = security.PIPELINE.rows[0]
EXACT = ("views", "led", "seconds", "posts", "linked", "calls", "refused", "failed")
NOTHING = dict.fromkeys((*EXACT, "items", "texts"), 0)
EVERY_SECOND = (1 << 60) - 1
NOW_AND_THEN = sum(1 << second for second in (0, 1, 2, 3, 14, 15, 29, 30, 31, 44, 45, 57, 58, 59))
CRAWLER = {"views": 60, "items": 58, "seconds": EVERY_SECOND}
READER = {"views": 32, "items": 20, "led": 24, "seconds": NOW_AND_THEN}
SPAMMER = {"posts": 6, "texts": 1, "linked": 6}
ABUSER = {"calls": 450, "refused": 150}


def table(rows: list[tuple[int, str, str, dict[str, int]]]) -> pa.Table:
    """Rows of (minute, kind, actor, counts)."""
    columns: dict[str, Any] = {"minute": pa.array([minute_ms(row[0]) * 1000 for row in rows], pa.int64()).cast(INSTANT)}
    columns |= {
        name: pa.array([row[place] for row in rows], pa.string()) for place, name in ((1, "kind"), (2, "actor"))
    }
    columns |= {name: pa.array([{**NOTHING, **row[3]}[name] for row in rows], pa.int64()) for name in NOTHING}
    return pa.table(columns)


def named(rows: list[tuple[int, str, str, dict[str, int]]]) -> dict[str, str]:
    return {row["actor"]: row["verdict"] for row in security.suspects(table(rows)).to_pylist()}


def test_spark_counts_what_plain_python_counts(spark: SparkSession) -> None:
    _, events = two_minutes()
    rows = batch(spark, ROWS, events).to_pylist()
    plain = behaviour(events)
    assert {(row["minute"], row["kind"], row["actor"]): {name: row[name] for name in EXACT} for row in rows} == {
        key: {name: found[name] for name in EXACT} for key, found in plain.items()
    }
    for row in rows:
        exact = plain[row["minute"], row["kind"], row["actor"]]
        assert abs(row["items"] - exact["items"]) <= max(2, 0.35 * exact["items"])
        assert abs(row["texts"] - exact["texts"]) <= 2


@pytest.mark.long
def test_a_stream_with_late_events_ends_with_what_a_batch_says(spark: SparkSession, tmp_path: Path) -> None:
    _, events = two_minutes()
    pieces = cut(events, [minute_ms(0, 40), minute_ms(1, 10), minute_ms(2, 5)])
    streamed = stream(spark, ROWS, pieces, tmp_path)
    assert ordered(streamed, *ROWS.key) == ordered(batch(spark, ROWS, events), *ROWS.key)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_planted_actors_are_found_and_no_others(spark: SparkSession, seed: int) -> None:
    site, events = two_minutes(seed)
    found = {(row["verdict"], row["actor"]) for row in security.suspects(batch(spark, ROWS, events)).to_pylist()}
    kinds = ("crawler", "spammer", "abuser")
    planted = {(one.kind, str(one.subject["id"])) for one in site.truth(minute_ms(2)) if one.kind in kinds}
    right = len(found & planted)
    assert right >= 0.9 * len(found), f"named without reason: {found - planted}"
    assert right >= 0.9 * len(planted), f"not named: {planted - found}"


def test_each_kind_of_suspect_is_named_with_its_reasons() -> None:
    rows = [
        (0, "member", "7", CRAWLER),
        (1, "member", "7", CRAWLER),
        (1, "member", "8", SPAMMER),
        (1, "client", "c", ABUSER),
    ]
    found = {row["actor"]: row for row in security.suspects(table(rows)).to_pylist()}
    assert {actor: row["verdict"] for actor, row in found.items()} == {"7": "crawler", "8": "spammer", "c": "abuser"}
    assert found["7"]["evidence"] == "120 views of 116 items in 2 min, 0 from clicks, no pauses"
    assert found["8"]["evidence"] == "6 posts of 1 texts in 1 min, 6 with links"
    assert found["c"]["evidence"] == f"450 calls in 1 min, 150 rejected (limit {API_CALLS_PER_MINUTE}/min)"
    assert (found["7"]["last_seen"] - found["7"]["first_seen"]).seconds == 60
    assert all(0.75 <= row["score"] <= 1 for row in found.values())


@pytest.mark.parametrize(
    ("kind", "honest"),
    [
        ("member", READER),
        ("member", {**READER, "views": 60, "items": 55, "led": 50}),  # fast, but by the site's lists
        ("member", {**CRAWLER, "items": 12, "led": 30}),  # a page that reloads itself
        ("member", {"posts": 8, "texts": 8, "linked": 8}),  # links, but something new each time
        ("member", {"posts": 8, "texts": 2}),  # the same again, without a link
        ("client", {"calls": 299}),
        ("client", {"calls": 330, "refused": 30}),  # a little over, once
    ],
)
def test_who_only_resembles_a_suspect_is_not_named(kind: str, honest: dict[str, int]) -> None:
    assert named([(0, kind, "x", honest)]) == {}


def test_one_bad_minute_of_many_is_forgiven_and_a_third_is_not() -> None:
    calm = {"calls": 250}
    assert named([(0, "client", "c", ABUSER), *((minute, "client", "c", calm) for minute in range(1, 5))]) == {}
    assert named([(0, "client", "c", ABUSER), *((minute, "client", "c", calm) for minute in range(1, 3))]) == {
        "c": "abuser"
    }


def test_a_slow_crawler_is_named_before_its_minute_is_over() -> None:
    every_third_half = sum(1 << int(step / 0.7) for step in range(18))
    assert named([(0, "member", "7", {"views": 18, "items": 18, "seconds": every_third_half})]) == {"7": "crawler"}


def test_suspects_of_more_than_half_an_hour_ago_are_forgotten() -> None:
    assert named([(0, "member", "7", CRAWLER), (31, "member", "9", READER)]) == {}


def test_clients_over_the_limit_have_their_excess() -> None:
    rows = table(
        [
            (0, "client", "a", {"calls": 310, "refused": 10}),
            (0, "client", "b", {"calls": 300}),
            (0, "member", "7", CRAWLER),
        ]
    )
    (over,) = security.over_limit(rows).to_pylist()
    assert (over["client"], over["calls"], over["allowed"], over["excess"], over["refused"]) == ("a", 310, 300, 10, 10)


def test_without_events_there_are_no_suspects() -> None:
    for compute in (security.suspects, security.over_limit):
        assert compute(table([])).num_rows == 0
        assert compute(table([])).schema == compute(table([(0, "client", "c", ABUSER)])).schema


def test_spans_and_pauses_are_read_off_the_bits() -> None:
    seconds = np.array([1 << 3 | 1 << 4 | 1 << 9, 1 << 59 | 1, 1 << 7, EVERY_SECOND, 1 << 3 | 1 << 4])
    pauses = security.pauses_of(seconds, np.array([True, True, True, True, False]))
    assert pauses.span_s.tolist() == [7, 60, 1, 60, 60]
    assert pauses.longest_s.tolist() == [5, 59, 60, 1, 60]
