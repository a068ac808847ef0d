"""Feeds of a hundred thousand entries: what a batch has to compute, compare, write and publish every ten seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.activity.pipelines import feed
from penstock.activity.pipelines.engine import micro_batch, results
from penstock.activity.pipelines.engine.results import TimeSpan

ENTRIES, MEMBERS = 100_000, 20_000
NOW_US = 1_790_000_000_000_000


def entries(count: int) -> pa.Table:
    """In the order of time: each post or vote is seen by some eight members, some of whom have left meanwhile."""
    chance = np.random.default_rng(1)
    event = np.sort(chance.integers(0, count // 8, count))
    time_us = NOW_US - 600_000_000 + event * (600_000_000 // (count // 8))
    is_post = event % 5 == 0

    def instants(values: Any) -> Any:
        return pa.array(values).cast(pa.timestamp("us", "UTC"))

    return pa.table(
        {
            "time": instants(time_us),
            "member": pa.array((chance.zipf(1.3, count) % MEMBERS).astype(np.int64)),
            "author": pa.array(event % 3_000),
            "kind": pa.array(np.where(is_post, "post", "vote")),
            "id": pa.array(event),
            "item": pa.array(event % 997),
            "text": pa.array(np.where(is_post, "some words about an item", "")),
            "follow_id": pa.array(chance.integers(0, 9_000, count)),
            "follow_time": instants(time_us - chance.integers(1, 10**9, count)),
            "action": pa.array(np.where(chance.random(count) < 0.95, "follow", "unfollow")),
        }
    )


def test_batch_of_a_hundred_thousand_entries_sends_only_changed_feeds(tmp_path: Path) -> None:
    rows = entries(ENTRIES + 2_000)
    shape = results.plain_schema(feed.feed(rows.slice(0, 0)).schema)
    kept = results.open_result_table(str(tmp_path), "feed", ("member",), "newest", shape)
    sent: list[bytes] = []
    kept.replace(feed.feed(rows.slice(0, ENTRIES)).cast(shape), TimeSpan())
    before = {row["member"]: row["entries"] for row in kept.rows().to_pylist()}

    made = feed.feed(rows.slice(2_000)).cast(shape)
    change = kept.replace(made, TimeSpan(), notify=lambda change: sent.extend(micro_batch.values_of(change.changed)))

    after = {row["member"]: row["entries"] for row in kept.rows().to_pylist()}
    assert after == {row["member"]: row["entries"] for row in made.to_pylist()}
    differs = {member for member, found in after.items() if before.get(member) != found}
    assert len(after) > 5_000
    assert set(change.changed.column("member").to_pylist()) == differs
    assert len(sent) == len(differs) < len(after), "only changed feeds are sent"
