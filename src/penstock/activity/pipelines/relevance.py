"""Relevance: what is done with each item, by minute, and the ranking that follows from it.

`item_minutes`, a row for each minute and item that was shown, chosen, looked at or voted on:

    minute timestamp, item bigint, impressions bigint, clicks bigint, views bigint, votes_up bigint, votes_down bigint

Watermark: 30 s. State: five counts for each item of the minutes that are still open, at most two: a union of three
topics in one aggregation, so that no join has to remember events.

`ranking`, the hundred best of the last half hour as of the newest minute; each computation is the whole table:

    rank, item bigint, minute timestamp, score double, views double, click_through double, votes double, trend double,
    rising boolean

- Counts decay: what was counted five minutes ago counts half.
- `click_through` and `votes` (the share that is up) are lower bounds (Wilson), after twenty trials as the site's usual:
  two clicks of two impressions are less than 150 of 400, and none of none are not the end.
- `score` is the logarithm of the decayed views, times how much better than the site's the item's click-through is,
  times how the votes are, times the root of the trend. A product, so that an item that is weak in one thing needs much
  of the others.
- `trend` is the item's share of the newest views (a minute earlier counts half) to its share of those of the half hour
  before (of which the last few minutes count little); shares, since the newest minute is never full. `rising` is a
  trend that chance does not explain.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.activity.events import IMPRESSIONS, VIEWS, VOTES
from penstock.activity.pipelines.definition import (
    LATENESS,
    MINUTE,
    MINUTE_LENGTH,
    Derived,
    Pipeline,
    Rows,
    count_by_minute,
    count_where,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from penstock.activity.pipelines.arrays import Flags, Floats, Groups, Integers

HORIZON: Final = timedelta(minutes=30)
HALF_LIFE: Final = timedelta(minutes=5)
NEWEST: Final = timedelta(minutes=1)
RANKED: Final = 100
RISING_TREND: Final = 1.5
RISING_DEVIATIONS: Final = 5.0
RISING_VIEWS: Final = 20
RANKING: Final = (
    "rank bigint, item bigint, minute timestamp, score double, views double, click_through double, votes double, "
    "trend double, rising boolean"
)
_ADDED_VIEWS: Final = 5.0
_ADDED_TRIALS: Final = 20.0
_COUNTS: Final = ("impressions", "clicks", "views", "votes_up", "votes_down")


def define(frames: Mapping[str, DataFrame]) -> DataFrame:
    from pyspark.sql import functions as fn

    views = frames[VIEWS.topic].select("time", "item", fn.lit("view").alias("action"))
    lists = frames[IMPRESSIONS.topic].select("time", "item", "action")
    up = fn.when(fn.col("vote") > 0, "up").otherwise("down")
    votes = frames[VOTES.topic].select("time", "item", up.alias("action"))
    action = fn.col("action")
    return count_by_minute(
        views.unionAll(lists).unionAll(votes),
        ("item",),
        impressions=count_where(action == "impression"),
        clicks=count_where(action == "click"),
        views=count_where(action == "view"),
        votes_up=count_where(action == "up"),
        votes_down=count_where(action == "down"),
    )


def ranking(rows: pa.Table) -> pa.Table:
    """The best items as of the newest minute."""
    import numpy as np

    from penstock.activity.pipelines import arrays

    rows = arrays.within(rows, MINUTE, HORIZON)
    minute_us = arrays.instants(rows, MINUTE)
    newest_us = int(minute_us.max(initial=0))
    items = arrays.grouped(arrays.integers(rows.column("item")))
    weight = arrays.decay(newest_us - minute_us, HALF_LIFE)
    impressions, clicks, views, up, down = (items.sums(arrays.floats(rows, name) * weight) for name in _COUNTS)
    usual = float(clicks.sum()) / max(float(impressions.sum()), 1.0)
    click_through = _confident(clicks, impressions)
    votes = _confident(up, up + down)
    lift = np.minimum(click_through / max(usual, 1e-9), 3.0)
    trend, rises = _trend(items, arrays.floats(rows, "views"), newest_us - minute_us)
    score = np.log2(1 + views) * (0.5 + lift) * (0.5 + votes) * np.sqrt(np.clip(trend, 0.5, 4.0))
    item = arrays.integers(rows.column("item"))[items.first]
    best = np.lexsort((item, -score))[:RANKED]
    return arrays.table_of(
        arrays.schema_of(RANKING),
        rank=np.arange(1, len(best) + 1),
        item=item[best],
        minute=np.full(len(best), newest_us),
        score=np.round(score[best], 4),
        views=np.round(views[best], 2),
        click_through=np.round(click_through[best], 4),
        votes=np.round(votes[best], 4),
        trend=np.round(trend[best], 3),
        rising=rises[best],
    )


def _confident(successes: Floats, trials: Floats) -> Floats:
    """The lower bound of each share, as if some trials of the site's own share had been there before."""
    from penstock.activity.pipelines import arrays

    usual = float(successes.sum()) / max(float(trials.sum()), 1.0)
    return arrays.wilson_lower(successes + usual * _ADDED_TRIALS, trials + _ADDED_TRIALS)


def _trend(items: Groups, views: Floats, age_us: Integers) -> tuple[Floats, Flags]:
    """Each item's share of the newest views to that of those before, and whether that is more than chance."""
    import numpy as np

    from penstock.activity.pipelines import arrays

    now = items.sums(views * arrays.decay(age_us, NEWEST))
    before = items.sums(views * (1 - arrays.decay(age_us, 2 * NEWEST)) ** 2)
    share = float(now.sum()) / max(float(before.sum()), 1e-9)
    expected = before * share if before.any() else now
    trend = (now + _ADDED_VIEWS) / (expected + _ADDED_VIEWS)
    deviation = np.sqrt(expected * (1 + share) + 1)
    rises = (trend >= RISING_TREND) & (now >= RISING_VIEWS) & (now - expected >= RISING_DEVIATIONS * deviation)
    return trend, np.asarray(rises)


PIPELINE: Final = Pipeline(
    name="relevance",
    summary="what is done with each item, and the ranking by decayed views, click-through and votes",
    trigger=timedelta(seconds=5),
    rows=(
        Rows(
            name="item_minutes",
            key=(MINUTE, "item"),
            time=MINUTE,
            reads=(VIEWS, IMPRESSIONS, VOTES),
            watermark={kind.topic: LATENESS for kind in (VIEWS, IMPRESSIONS, VOTES)},
            mode="update",
            define=define,
            before=timedelta(0),
            after=MINUTE_LENGTH,
        ),
    ),
    derived=(
        Derived(
            name="ranking",
            of="item_minutes",
            key=("rank",),
            time=MINUTE,
            horizon=HORIZON,
            compute=ranking,
            topic="ranking",
            replaces=True,
        ),
    ),
)
