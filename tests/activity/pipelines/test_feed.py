"""What members see of those they follow, and the best of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.activity.pipelines.frames import batch, cut, minute_ms, numbered, ordered, stream, two_minutes
from tests.activity.plain import feeds as plain

from penstock.activity.events import FOLLOWS, POSTS, VOTES, Kind
from penstock.activity.pipelines import feed

ROWS = feed.PIPELINE.rows[0]
ANN, BOB, CLEO, DAN = 1, 2, 3, 4


def world(
    follows: Sequence[tuple[float, int, str, int]],
    posts: Sequence[tuple[float, int, int]],
    votes: Sequence[tuple[float, int, int, int]] = (),
) -> dict[str, list[dict[str, Any]]]:
    """Follows are (second, who, action, whom), posts (second, who, item), votes (second, who, item, vote)."""

    def rows(kind: Kind, names: str, given: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
        named = (dict(zip(names.split(), row[1:], strict=True)) for row in given)
        times = (minute_ms(0, row[0]) for row in given)
        return numbered(kind, ({"time": time, **row} for time, row in zip(times, named, strict=True)))

    return {
        "follows": rows(FOLLOWS, "member action followed", follows),
        "posts": rows(POSTS, "member item", posts),
        "votes": rows(VOTES, "member item vote", votes),
    }


def seen(rows: pa.Table) -> set[plain.Seen]:
    entries = feed.visible_entries(rows)
    chosen = rows.take(pa.array(entries.row)).to_pylist()
    return {
        plain.Seen(round(row["time"].timestamp() * 1000), *(row[name] for name in plain.Seen._fields[1:]))
        for row in chosen
    }


def shown(rows: pa.Table, member: int) -> list[Mapping[str, Any]]:
    found = {row["member"]: row["entries"] for row in feed.feed(rows).to_pylist()}
    entries: list[Mapping[str, Any]] = found.get(member, [])
    return entries


def test_members_see_what_plain_python_says_they_see(spark: SparkSession) -> None:
    _, events = two_minutes()
    rows = batch(spark, ROWS, events)
    entries = plain.seen(events)
    assert seen(rows) == entries
    assert len({(row["member"], row["kind"], row["id"]) for row in rows.to_pylist()}) >= len(entries)
    made = feed.feed(rows).to_pylist()
    assert {row["member"] for row in made} == {entry.member for entry in entries}
    for row in made[::97]:
        best = plain.best(entries, row["member"], half_life_ms=300_000, horizon_ms=600_000, most=feed.ENTRIES)
        assert [(entry["kind"], entry["id"]) for entry in row["entries"]] == best


@pytest.mark.long
def test_a_stream_with_late_events_ends_with_what_a_batch_says(spark: SparkSession, tmp_path: Path) -> None:
    _, events = two_minutes()
    pieces = cut(events, [minute_ms(0, 30), minute_ms(1, 10), minute_ms(2)])
    streamed = stream(spark, ROWS, pieces, tmp_path)
    at_once = batch(spark, ROWS, events)
    assert ordered(streamed, *ROWS.key) == ordered(at_once, *ROWS.key)
    assert ordered(feed.feed(streamed), "member") == ordered(feed.feed(at_once), "member")


@pytest.mark.long
def test_an_unfollow_counts_from_its_time_on_and_a_new_follow_again(spark: SparkSession) -> None:
    follows = [(10, ANN, "follow", BOB), (20, ANN, "unfollow", BOB), (30, ANN, "follow", BOB)]
    events = world(follows, [(5, BOB, 50), (15, BOB, 51), (25, BOB, 52), (35, BOB, 53)])
    rows = batch(spark, ROWS, events)
    assert {entry["item"] for entry in shown(rows, ANN)} == {51, 53}
    assert seen(rows) == plain.seen(events)


@pytest.mark.long
def test_a_follow_that_arrives_after_the_post_but_happened_before_counts(spark: SparkSession, tmp_path: Path) -> None:
    events = world([(10, ANN, "follow", BOB), (12, ANN, "unfollow", CLEO)], [(11, BOB, 50), (11, CLEO, 51)])
    posts_first = [{**events, "follows": []}, {"follows": events["follows"]}]
    rows = stream(spark, ROWS, posts_first, tmp_path)
    assert [entry["item"] for entry in shown(rows, ANN)] == [50]


@pytest.mark.long
def test_up_votes_are_shown_and_down_votes_are_not(spark: SparkSession) -> None:
    events = world([(1, ANN, "follow", BOB)], [], [(2, BOB, 50, 1), (3, BOB, 51, -1)])
    assert [(entry["kind"], entry["item"]) for entry in shown(batch(spark, ROWS, events), ANN)] == [("vote", 50)]


@pytest.mark.long
def test_what_several_of_ones_circle_act_on_comes_before_what_is_a_little_newer(spark: SparkSession) -> None:
    follows = [(1, ANN, "follow", whom) for whom in (BOB, CLEO, DAN)] + [(1, BOB, "follow", DAN)]
    events = world(follows, [(20, BOB, 50), (21, CLEO, 50), (25, DAN, 51)])
    rows = batch(spark, ROWS, events)
    assert [entry["item"] for entry in shown(rows, ANN)] == [50, 50, 51]
    assert [entry["item"] for entry in shown(rows, BOB)] == [51]


@pytest.mark.long
def test_a_newer_entry_of_the_same_relevance_comes_first_and_a_feed_has_its_length(spark: SparkSession) -> None:
    events = world([(1, ANN, "follow", BOB)], [(2 + number, BOB, 100 + number) for number in range(30)])
    entries = shown(batch(spark, ROWS, events), ANN)
    assert [entry["item"] for entry in entries] == list(range(129, 129 - feed.ENTRIES, -1))


@pytest.mark.long
def test_entries_beyond_the_horizon_are_gone_and_nothing_is_a_feed_of_nothing(spark: SparkSession) -> None:
    events = world([(1, ANN, "follow", BOB), (1, CLEO, "follow", BOB)], [(2, BOB, 50), (700, BOB, 51)])
    rows = batch(spark, ROWS, events)
    assert [entry["item"] for entry in shown(rows, CLEO)] == [51]
    nothing = feed.feed(rows.slice(0, 0))
    assert nothing.num_rows == 0
    assert nothing.schema == feed.feed(rows).schema
