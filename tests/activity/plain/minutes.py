"""The tables of counts by minute, computed event by event in plain Python: no Spark, no Arrow, no numpy."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Events = Mapping[str, Sequence[Mapping[str, Any]]]


def minute_of(row: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(row["time"] // 60_000 * 60, UTC)


def keyword_minutes(events: Events) -> dict[tuple[datetime, str, str], tuple[int, int]]:
    """By minute, group and keyword: searches and users."""
    users: dict[tuple[datetime, str, str], list[int]] = defaultdict(list)
    for row in events["searches"]:
        users[minute_of(row), row["user_group"], row["keyword"]].append(row["user"])
    return {key: (len(found), len(set(found))) for key, found in users.items()}


def item_minutes(events: Events) -> dict[tuple[datetime, int], dict[str, int]]:
    """By minute and item: how often it was shown, clicked, viewed, voted up and down."""
    counts: dict[tuple[datetime, int], Counter[str]] = defaultdict(Counter)
    for row in events["views"]:
        counts[minute_of(row), row["item"]]["views"] += 1
    for row in events["impressions"]:
        name = {"impression": "impressions", "click": "clicks"}[row["action"]]
        counts[minute_of(row), row["item"]][name] += 1
    for row in events["votes"]:
        counts[minute_of(row), row["item"]]["votes_up" if row["vote"] > 0 else "votes_down"] += 1
    names = ("impressions", "clicks", "views", "votes_up", "votes_down")
    return {key: {name: counted[name] for name in names} for key, counted in counts.items()}


def behaviour(events: Events) -> dict[tuple[datetime, str, str], dict[str, int]]:
    """By minute, kind and actor, those who do enough; items and texts exactly, which the table has by sketches."""
    found: dict[tuple[datetime, str, str], dict[str, Any]] = defaultdict(
        lambda: {**dict.fromkeys(("views", "led", "seconds", "posts", "linked", "calls", "refused", "failed"), 0),
                 "items": set(), "texts": set()}
    )  # fmt: skip
    for row in events["views"]:
        one = found[minute_of(row), "member", str(row["member"])]
        one["views"] += 1
        one["led"] += row["referrer"] in ("list", "search")
        one["items"].add(row["item"])
        one["seconds"] |= 1 << (row["time"] // 1000 % 60)
    for row in events["posts"]:
        one = found[minute_of(row), "member", str(row["member"])]
        one["posts"] += 1
        one["linked"] += row["links"] > 0
        one["texts"].add(" ".join(re.sub("[^a-z ]+", "", row["text"].lower()).split(" ")[:6]))
    for row in events["api_calls"]:
        one = found[minute_of(row), "client", row["client"]]
        one["calls"] += 1
        one["refused"] += row["status"] == 429
        one["failed"] += 400 <= row["status"] < 500 and row["status"] != 429
    return {
        key: {**one, "items": len(one["items"]), "texts": len(one["texts"])}
        for key, one in found.items()
        if one["views"] >= 10 or one["posts"] >= 2 or one["calls"] >= 100
    }
