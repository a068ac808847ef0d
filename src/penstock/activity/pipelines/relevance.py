"""Relevance: activity per item and minute, and the ranking computed from it.

`item_minutes` has a row for each minute and item that was shown, clicked, viewed or voted on:

    minute timestamp, item bigint, impressions bigint, clicks bigint, views bigint, votes_up bigint, votes_down bigint

Watermark: 30 s. State: five counts per item of the open minutes, at most two. Three topics are united in one
aggregation, so that no join has to keep events.

`ranking` has the hundred best items of the last half hour; each computation replaces the whole table:

    rank, item bigint, minute timestamp, score double, views double, click_through double, votes double, trend double,
    rising boolean

- Counts decay with a half-life of five minutes.
- `click_through` and `votes` (the share of up-votes) are lower bounds (Wilson), with twenty added trials at the site's
  own share: two clicks of two impressions rank below 150 of 400, and an item without trials is not last.
- `score` is the logarithm of the decayed views, times the item's click-through relative to the site's, times the
  votes, times the root of the trend. It is a product, so that an item that is weak in one factor needs much of the
  others.
- `trend` is the item's share of the newest views (half-life of a minute) relative to its share of the half hour before
  (where the last few minutes count little). Shares are used because the newest minute is never complete. `rising` is a
  trend beyond chance.
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
    """The current ranking."""
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
    """The lower bound of each share, with some added trials at the site's own share."""
    from penstock.activity.pipelines import arrays

    usual = float(successes.sum()) / max(float(trials.sum()), 1.0)
    return arrays.wilson_lower(successes + usual * _ADDED_TRIALS, trials + _ADDED_TRIALS)


def _trend(items: Groups, views: Floats, age_us: Integers) -> tuple[Floats, Flags]:
    """Each item's share of the newest views relative to before, and whether it is beyond chance."""
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
    summary="activity per item, and the ranking by decayed views, click-through and votes",
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
