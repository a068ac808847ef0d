"""Feeds from entries: which entries a member sees, how relevant each is, and the best of them.

Noun: `Entries`, those that are seen, as columns.

Rule: an entry is seen if the last follow or unfollow before it is a follow. Relevance is a function of what is seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.activity.pipelines import arrays
from penstock.activity.pipelines.arrays import Floats, Integers

_ENTRY: Final = pa.struct(
    list(
        arrays.schema_of(
            "time_ms bigint, author bigint, kind string, id bigint, item bigint, text string, relevance double"
        )
    )
)
SCHEMA: Final = pa.schema([("member", pa.int64()), ("newest", arrays.INSTANT), ("entries", pa.list_(_ENTRY))])
_POST_WEIGHT: Final = 2.0


@dataclass(frozen=True)
class Entries:
    """Entries of all members, one a row."""

    row: Integers
    """Where it was."""
    member: Integers
    author: Integers
    item: Integers
    event: Integers
    """A number for each post or vote."""
    is_post: arrays.Flags
    time_us: Integers


def feed(rows: pa.Table, *, horizon: timedelta, half_life: timedelta, most: int) -> pa.Table:
    """A row for each member that has an entry within the horizon of the newest."""
    rows = arrays.within(rows, "time", horizon)
    entries = seen(rows)
    relevance = relevances(entries)
    # Ages before the newest, not since the epoch: a double then keeps apart what is a microsecond apart.
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
    return pa.Table.from_arrays([pa.array(member[starts]), arrays.instant_column(newest), column], schema=SCHEMA)


def seen(rows: pa.Table) -> Entries:
    """What members follow at the time: of the rows of an entry, the last one decides."""
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
    decides[groups.of[in_order]] = in_order  # of those assigned to one place, the last stays
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
    """At least 1 each."""
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
