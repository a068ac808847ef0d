"""Reporting: all events in the warehouse, and reports by hour and day.

All nine kinds are loaded unchanged and exactly once, as by `penstock load`, into a table per topic; values that do not
match the schema go to `<table>__dead`. Batch queries over these tables compute the reports:

    sessions   start, end timestamp, member, session bigint, impressions, clicks, views bigint, bounced boolean
    visits     start timestamp, period string (hour | day), visits, members, impressions, clicks, views, bounced,
               duration_ms bigint, bounce_rate double
    funnel     hour timestamp, step int, name string, members bigint, share double
    retention  start timestamp, period string (hour | day), cohort timestamp, after, members, new_members bigint,
               share double

- A session is cut at midnight (UTC), so that a day depends only on its own events. It has bounced if it had at most
  one view and no click. A visit is a session, counted where it starts.
- A member reaches a step of the funnel in an hour by doing it after the previous step: impression, click, view, vote
  or post. `share` is relative to the first step.
- A member is new in an hour without views in the 24 hours before, or on a day without views in the 7 days before. Of
  the `new_members` of a `cohort`, `members` returned `after` hours or days later, in the period that begins at
  `start`; `after` 0 is the cohort itself. Cohorts are followed for 24 hours and for 6 days.

A row depends on the events of its own day and a bounded time before it, so that reports of some days can be computed
again, from the tables or after `penstock load TABLE --since`, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.activity.events import IMPRESSIONS, KINDS, POSTS, VIEWS, VOTES
from penstock.activity.pipelines.definition import Pipeline, Report

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
PERIODS: Final = {"hour": HOUR, "day": DAY}
STEPS: Final = ("impression", "click", "view", "vote or post")
NEW_AFTER: Final = {"hour": 24, "day": 7}
"""Hours or days without a view after which a member is new."""
FOLLOWED: Final = {"hour": 24, "day": 6}
"""Hours or days for which new members are followed."""


def sessions(frames: Mapping[str, DataFrame]) -> DataFrame:
    from pyspark.sql import functions as fn

    views = frames[VIEWS.topic].select("time", "member", "session", fn.lit("view").alias("act"))
    shown = frames[IMPRESSIONS.topic].select("time", "member", "session", fn.col("action").alias("act"))
    grouped = views.unionAll(shown).groupBy(_start_of("time", DAY).alias("_day"), "member", "session")
    counted = grouped.agg(
        fn.min("time").alias("start"),
        fn.max("time").alias("end"),
        _count_where("act = 'impression'").alias("impressions"),
        _count_where("act = 'click'").alias("clicks"),
        _count_where("act = 'view'").alias("views"),
    )
    return counted.select(
        "start", "end", "member", "session", "impressions", "clicks", "views",
        fn.expr("views <= 1 AND clicks = 0").alias("bounced"),
    )  # fmt: skip


def visits(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Visits by hour and day; a member counts once per day."""
    from pyspark.sql import functions as fn

    made = sessions(frames)
    begun = [
        made.withColumn("period", fn.lit(name)).withColumn("_begin", _start_of("start", length))
        for name, length in PERIODS.items()
    ]
    grouped = begun[0].unionAll(begun[1]).groupBy("_begin", "period")
    counted = grouped.agg(
        fn.count(fn.lit(1)).alias("visits"),
        fn.countDistinct("member").alias("members"),
        *(fn.sum(name).alias(name) for name in ("impressions", "clicks", "views")),
        _count_where("bounced").alias("bounced"),
        fn.sum(fn.unix_millis("end") - fn.unix_millis("start")).alias("duration_ms"),
    )
    return counted.select(
        fn.col("_begin").alias("start"), "period", "visits", "members", "impressions", "clicks", "views", "bounced",
        "duration_ms", fn.round(fn.col("bounced") / fn.col("visits"), 6).alias("bounce_rate"),
    )  # fmt: skip


def funnel(frames: Mapping[str, DataFrame]) -> DataFrame:
    """The funnel by hour: the acts of each member in order, a step whenever the next one comes."""
    from pyspark.sql import functions as fn

    shown = frames[IMPRESSIONS.topic].selectExpr("time", "member", "IF(action = 'impression', 1, 2) AS step")
    views = frames[VIEWS.topic].selectExpr("time", "member", "3 AS step")
    acts = [frames[kind.topic].selectExpr("time", "member", "4 AS step") for kind in (VOTES, POSTS)]
    steps = shown.unionAll(views).unionAll(acts[0]).unionAll(acts[1])
    grouped = steps.groupBy(_start_of("time", HOUR).alias("hour"), "member")
    ordered = grouped.agg(fn.sort_array(fn.collect_list(fn.struct("time", "step"))).alias("acts"))
    taken = "aggregate(acts, 0, (reached, act) -> IF(act.step = reached + 1, reached + 1, reached))"
    reached = ordered.select("hour", fn.expr(taken).alias("reached"))
    counts = [_count_where(f"reached >= {step}").alias(f"_{step}") for step in range(1, len(STEPS) + 1)]
    rows = [
        fn.struct(
            fn.lit(step).alias("step"), fn.lit(name).alias("name"), fn.col(f"_{step}").alias("members"),
            fn.round(fn.col(f"_{step}") / fn.col("_1"), 6).alias("share"),
        )
        for step, name in enumerate(STEPS, start=1)
    ]  # fmt: skip
    counted = reached.groupBy("hour").agg(*counts)
    return counted.where("_1 > 0").select("hour", fn.inline(fn.array(*rows)))


def retention(frames: Mapping[str, DataFrame]) -> DataFrame:
    views = frames[VIEWS.topic].select("time", "member")
    hours, days = (_returns(views, name) for name in PERIODS)
    return hours.unionAll(days)


def _returns(views: DataFrame, period: str) -> DataFrame:
    """Returning members by cohort."""
    from pyspark.sql import Window
    from pyspark.sql import functions as fn

    length_ms = PERIODS[period] // timedelta(milliseconds=1)
    number = fn.floor(fn.unix_millis("time") / fn.lit(length_ms))
    seen = views.select("member", number.alias("number")).distinct()
    of_member = Window.partitionBy("member").orderBy("number")
    before = fn.lag("number").over(of_member)
    is_new = before.isNull() | (fn.col("number") - before > NEW_AFTER[period])
    marked = seen.withColumn("new", fn.when(is_new, fn.col("number")))
    placed = marked.select("number", fn.last("new", ignorenulls=True).over(of_member).alias("cohort"))
    counted = placed.groupBy("number", "cohort").agg(fn.count(fn.lit(1)).alias("members"))
    followed = counted.where(fn.col("number") - fn.col("cohort") <= FOLLOWED[period])
    themselves = fn.max(fn.when(fn.col("number") == fn.col("cohort"), fn.col("members")))
    sized = followed.withColumn("new_members", themselves.over(Window.partitionBy("cohort")))
    return sized.select(
        _time_of("number", length_ms).alias("start"), fn.lit(period).alias("period"),
        _time_of("cohort", length_ms).alias("cohort"), (fn.col("number") - fn.col("cohort")).alias("after"), "members",
        "new_members", fn.round(fn.col("members") / fn.col("new_members"), 6).alias("share"),
    )  # fmt: skip


def _start_of(name: str, length: timedelta) -> Column:
    """The start of the hour or day in UTC, whatever the session's time zone."""
    from pyspark.sql import functions as fn

    length_ms = length // timedelta(milliseconds=1)
    return fn.timestamp_millis(fn.floor(fn.unix_millis(name) / fn.lit(length_ms)) * length_ms)


def _time_of(name: str, length_ms: int) -> Column:
    from pyspark.sql import functions as fn

    return fn.timestamp_millis(fn.col(name) * length_ms)


def _count_where(condition: str) -> Column:
    """The number of rows of a group that meet a condition."""
    from pyspark.sql import functions as fn

    return fn.count(fn.when(fn.expr(condition), 1))


PIPELINE: Final = Pipeline(
    name="reporting",
    summary="all events in the warehouse; sessions, visits, funnel and retention by hour and day",
    trigger=timedelta(seconds=15),
    loads=KINDS,
    reports=(
        Report("sessions", ("start", "member", "session"), "start", (VIEWS, IMPRESSIONS), timedelta(0), sessions),
        Report("visits", ("start", "period"), "start", (VIEWS, IMPRESSIONS), timedelta(0), visits, topic="reports"),
        Report("funnel", ("hour", "step"), "hour", (VIEWS, IMPRESSIONS, VOTES, POSTS), timedelta(0), funnel),
        Report(
            "retention", ("start", "period", "cohort"), "start", (VIEWS,),
            max((NEW_AFTER[name] + FOLLOWED[name]) * length for name, length in PERIODS.items()), retention,
        ),
    ),
)  # fmt: skip
