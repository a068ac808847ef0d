"""What the tables of pipelines must add up to, computed from the warehouse's tables of events by another way.

Noun: `RowsCount`, the events that a table has counted against those there are.

Rule: no pipeline's code is used here, no Spark and no stream: events are counted where `penstock load` has put them. A
table of counts must have counted each event once; one that keeps only some groups (`behaviour`) or pairs
(`feed_entries`) is compared with those, for the time of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.activity.events import API_CALLS, FOLLOWS, IMPRESSIONS, POSTS, REQUESTS, SEARCHES, SERVERS, VIEWS, VOTES
from penstock.activity.pipelines.security import MIN_CALLS, MIN_POSTS, MIN_VIEWS

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.activity.live.report_reading import Tables

_MINUTE_MS: Final = 60_000
_SUMS: Final = {
    "item_minutes": (
        ("impressions", "clicks", "views", "votes_up", "votes_down"),
        (VIEWS.topic, IMPRESSIONS.topic, VOTES.topic),
    ),
    "keyword_minutes": (("searches",), (SEARCHES.topic,)),
    "server_windows": (("requests", "measures"), (REQUESTS.topic, SERVERS.topic)),
    "sessions": (("impressions", "clicks", "views"), (VIEWS.topic, IMPRESSIONS.topic)),
}
"""Columns whose sums are the events of topics."""


@dataclass(frozen=True)
class RowsCount:
    """A table's; `what` says what was counted."""

    table: str
    what: str
    counted: int
    events: int

    @property
    def is_complete(self) -> bool:
        return self.counted == self.events


def rows_counts(tables: Tables, since_ms: int) -> list[RowsCount]:
    """Of those tables that are there, with the tables of the events that they are about."""
    found: list[RowsCount] = []
    for name, (columns, topics) in _SUMS.items():
        if tables.has(name, *topics):
            rows = tables.read(name, columns)
            counted = sum(_sum(rows, column) for column in columns)
            found.append(RowsCount(name, f"events of {_and(topics)}", counted, sum(map(tables.rows, topics))))
    minute_ms = since_ms // _MINUTE_MS * _MINUTE_MS
    if tables.has("behaviour", VIEWS.topic, POSTS.topic, API_CALLS.topic):
        found.append(_behaviour(tables, minute_ms))
    if tables.has("feed_entries", POSTS.topic, VOTES.topic, FOLLOWS.topic):
        found.append(_feed(tables, since_ms))
    return found


def _behaviour(tables: Tables, since_ms: int) -> RowsCount:
    rows = tables.read("behaviour", ("views", "posts", "calls"), ("minute", since_ms))
    counted = sum(_sum(rows, column) for column in ("views", "posts", "calls"))
    members = grouped(
        {
            "views": tables.read(VIEWS.topic, ("time", "member"), ("time", since_ms)),
            "posts": tables.read(POSTS.topic, ("time", "member"), ("time", since_ms)),
        }
    )
    calls = grouped({"calls": tables.read(API_CALLS.topic, ("time", "client"), ("time", since_ms))})
    events = sum(
        one["views"] + one["posts"] for one in members if one["views"] >= MIN_VIEWS or one["posts"] >= MIN_POSTS
    )
    events += sum(one["calls"] for one in calls if one["calls"] >= MIN_CALLS)
    return RowsCount("behaviour", "acts of those who do enough in a minute", counted, events)


def grouped(events: Mapping[str, pa.Table]) -> list[dict[str, int]]:
    """How many of each there are, by minute and actor: the first column is the time, the second the actor."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts: list[pa.Table] = []
    for name, rows in events.items():
        time, actor = rows.columns
        minute = pc.divide(time.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()), _MINUTE_MS)
        counts = {
            each: pa.array([int(each == name)] * rows.num_rows, pa.int64()) for each in events
        }  # fmt: skip
        parts.append(pa.table({"minute": minute, "actor": actor.cast(pa.string()), **counts}))
    sums = pa.concat_tables(parts).group_by(["minute", "actor"]).aggregate([(name, "sum") for name in events])
    columns = [sums.column(f"{name}_sum").to_pylist() for name in events]
    return [dict(zip(events, counts, strict=True)) for counts in zip(*columns, strict=True)]


def _feed(tables: Tables, since_ms: int) -> RowsCount:
    entries = tables.read("feed_entries", ("time",), ("time", since_ms)).num_rows
    follows = tables.read(FOLLOWS.topic, ("time", "followed"))
    posts = tables.read(POSTS.topic, ("time", "member"), ("time", since_ms))
    votes = tables.read(VOTES.topic, ("time", "member", "vote"), ("time", since_ms))
    import pyarrow.compute as pc

    up = votes.filter(pc.greater(votes.column("vote"), 0))
    events = pairs(follows, posts) + pairs(follows, up.select(["time", "member"]))
    return RowsCount("feed_entries", "posts and up-votes, by follows of their authors before them", entries, events)


def pairs(follows: pa.Table, acts: pa.Table) -> int:
    """How many pairs there are of an act and a follow or unfollow of its author from before it."""
    import numpy as np

    if not follows.num_rows or not acts.num_rows:
        return 0
    follow_ms, act_ms = _ms(follows.column("time")), _ms(acts.column("time"))
    first_ms = min(follow_ms.min(), act_ms.min())
    span = max(follow_ms.max(), act_ms.max()) - first_ms + 1
    followed, codes = np.unique(follows.column("followed").to_numpy(), return_inverse=True)
    authors = acts.column("member").to_numpy()
    places = np.minimum(np.searchsorted(followed, authors), len(followed) - 1)
    known = followed[places] == authors
    line = np.sort(codes * span + (follow_ms - first_ms))
    start = places[known] * span
    until = np.searchsorted(line, start + (act_ms[known] - first_ms), side="right")
    return int((until - np.searchsorted(line, start, side="left")).sum())


def _ms(column: Any) -> Any:
    import pyarrow as pa

    return column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_numpy()


def _sum(rows: pa.Table, column: str) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(rows.column(column)).as_py() or 0)


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)
