"""News feed: posts and up-votes of the members that a member follows, newest and most relevant first.

`feed_entries` has a row for each post or up-vote and each earlier follow or unfollow of its author:

    time timestamp, member bigint (who may see it), author bigint, kind string (post | vote), id bigint (of the event),
    item bigint, text string, follow_id bigint, follow_time timestamp, action string (follow | unfollow)

The row with the greatest (follow_time, follow_id) decides whether the member sees the entry. The join gives all of
them, since a join has no "last"; so a late unfollow retracts nothing, and the rows do not depend on the order of
events.

Watermark: 30 s on all three topics. State: about half a minute of posts and votes, and the follows of a year
(`FOLLOW_LASTS`). A match is given as soon as both sides are there.

`feed` has a row per member with the best twenty entries of the last ten minutes:

    member bigint, newest timestamp, entries list of (time_ms, author, kind, id, item, text, relevance)

Relevance is the kind (a post counts as two votes), times how many followed members acted on the item (`circle`), times
how often the author does what the circle does (`affinity`), times the logarithm of how often the item is in all feeds
(`popularity`). It halves every five minutes, as log2(relevance) + time / half-life, which is constant over time: a row
changes only when an entry comes or expires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.activity.events import FOLLOWS, POSTS, VOTES
from penstock.activity.pipelines import arrays
from penstock.activity.pipelines.arrays import Floats, Integers
from penstock.activity.pipelines.definition import LATENESS, Derived, Pipeline, Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


FOLLOW_LASTS: Final = timedelta(days=365)
HORIZON: Final = timedelta(minutes=10)
HALF_LIFE: Final = timedelta(minutes=5)
ENTRIES: Final = 20
_ENTRY: Final = pa.struct(
    list(
        arrays.schema_of(
            "time_ms bigint, author bigint, kind string, id bigint, item bigint, text string, relevance double"
        )
    )
)
FEED_SCHEMA: Final = pa.schema([("member", pa.int64()), ("newest", arrays.INSTANT), ("entries", pa.list_(_ENTRY))])
_POST_WEIGHT: Final = 2.0

# ---------------------------------------------------------------------------------------------- entries, by Spark


def define(frames: Mapping[str, DataFrame]) -> DataFrame:
    from pyspark.sql import functions as fn

    def activity(frame: DataFrame, kind: str, text: str) -> DataFrame:
        return frame.select(
            "time", fn.col("member").alias("author"), fn.lit(kind).alias("kind"), "id", "item", fn.expr(text)
        )

    posts = activity(frames[POSTS.topic], "post", "text")
    votes = activity(frames[VOTES.topic].where("vote > 0"), "vote", "'' AS text")
    follows = frames[FOLLOWS.topic].select(
        "member", "followed", "action", fn.col("id").alias("follow_id"), fn.col("time").alias("follow_time")
    )
    before = fn.expr(f"follow_time <= time AND follow_time >= time - INTERVAL {FOLLOW_LASTS.days} DAYS")
    shown = posts.unionAll(votes).join(follows, (fn.col("author") == fn.col("followed")) & before)
    return shown.select(
        "time", "member", "author", "kind", "id", "item", "text", "follow_id", "follow_time", "action"
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- feeds


def feed(rows: pa.Table) -> pa.Table:
    """The best entries of each member."""
    return ranked_feeds(rows, horizon=HORIZON, half_life=HALF_LIFE, most=ENTRIES)


def ranked_feeds(rows: pa.Table, *, horizon: timedelta, half_life: timedelta, most: int) -> pa.Table:
    """A row for each member with an entry within the horizon of the newest."""
    rows = arrays.within(rows, "time", horizon)
    entries = visible_entries(rows)
    relevance = relevances(entries)
    # Ages relative to the newest, not to the epoch, so that a double has microsecond precision.
    newest_us = int(entries.time_us.max(initial=0))
    score = np.log2(relevance) - (newest_us - entries.time_us) / arrays.microseconds(half_life)
    order = np.lexsort((entries.event, -score, entries.member))
    member = entries.member[order]
    starts = np.flatnonzero(np.diff(member, prepend=-1) != 0) if len(member) else np.zeros(0, np.int64)
    place = np.arange(len(member)) - np.repeat(starts, np.diff(starts, append=len(member)))
    best = order[place < most]
    sizes = np.minimum(np.diff(starts, append=len(member)), most)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    newest = np.maximum.reduceat(entries.time_us[best], offsets[:-1]) if len(best) else np.zeros(0, np.int64)
    column = pa.ListArray.from_arrays(pa.array(offsets), _structs(rows, entries, best, relevance))
    return pa.Table.from_arrays([pa.array(member[starts]), arrays.instant_column(newest), column], schema=FEED_SCHEMA)


@dataclass(frozen=True)
class Entries:
    """The visible entries of all members, one per row."""

    row: Integers
    """The row of the input table."""
    member: Integers
    author: Integers
    item: Integers
    event: Integers
    """A code for each post or vote."""
    is_post: arrays.Flags
    time_us: Integers


def visible_entries(rows: pa.Table) -> Entries:
    """The entries that members see: of the rows of an entry, the last follow or unfollow decides."""
    is_post = np.asarray(pc.equal(rows.column("kind"), "post").to_numpy(), dtype=bool)
    event = arrays.integers(rows.column("id")) * 2 + is_post
    member = arrays.integers(rows.column("member"))
    is_follow = np.asarray(pc.equal(rows.column("action"), "follow").to_numpy(), dtype=bool)
    groups = arrays.grouped(member, event)
    decides = np.array(groups.first)
    several = np.flatnonzero(groups.sizes()[groups.of] > 1)
    follow_id = arrays.integers(rows.column("follow_id"))[several]
    followed_us = arrays.instants(rows, "follow_time")[several]
    in_order = several[np.lexsort((follow_id, followed_us))]
    decides[groups.of[in_order]] = in_order  # the last of several assignments stays
    chosen = decides[is_follow[decides]]
    return Entries(
        row=chosen,
        member=member[chosen],
        author=arrays.integers(rows.column("author"))[chosen],
        item=arrays.integers(rows.column("item"))[chosen],
        event=event[chosen],
        is_post=is_post[chosen],
        time_us=arrays.instants(rows, "time")[chosen],
    )


def relevances(entries: Entries) -> Floats:
    """The relevance of each entry, at least 1."""
    topics = arrays.grouped(entries.member, entries.item)
    authors = arrays.grouped(topics.of, entries.author)
    circle = np.bincount(topics.of[authors.first], minlength=topics.count)[topics.of].astype(np.float64)
    pairs = arrays.grouped(entries.member, entries.author)
    affinity = (pairs.sums(circle > 1) / np.maximum(pairs.sizes(), 1))[pairs.of]
    items = arrays.grouped(entries.item)
    events = arrays.grouped(entries.event)
    popularity = np.bincount(items.of[events.first], minlength=items.count)[items.of]
    kind = np.where(entries.is_post, _POST_WEIGHT, 1.0)
    return np.asarray(kind * circle * (1 + affinity) * (1 + np.log2(np.maximum(popularity, 1))))


def _structs(rows: pa.Table, entries: Entries, best: Integers, relevance: Floats) -> pa.StructArray:
    taken = pa.array(entries.row[best])
    columns = {
        "time_ms": pa.array(entries.time_us[best] // 1000),
        "relevance": pa.array(np.round(relevance[best], 3)),
        **{name: rows.column(name).take(taken).combine_chunks() for name in ("author", "kind", "id", "item", "text")},
    }
    return pa.StructArray.from_arrays([columns[field.name].cast(field.type) for field in _ENTRY], fields=list(_ENTRY))


# ---------------------------------------------------------------------------------------------- the pipeline


PIPELINE: Final = Pipeline(
    name="feed",
    summary="posts and up-votes of followed members, newest and most relevant first",
    trigger=timedelta(seconds=10),
    rows=(
        Rows(
            name="feed_entries",
            key=("time", "member", "kind", "id", "follow_id"),
            time="time",
            reads=(POSTS, VOTES, FOLLOWS),
            watermark={kind.topic: LATENESS for kind in (POSTS, VOTES, FOLLOWS)},
            mode="append",
            define=define,
            before=FOLLOW_LASTS,
            after=timedelta(0),
        ),
    ),
    derived=(
        Derived(
            name="feed",
            of="feed_entries",
            key=("member",),
            time="newest",
            horizon=HORIZON,
            compute=feed,
            topic="feed",
            replaces=True,
        ),
    ),
)
