"""Search: searches by minute and user group, and keywords that rise.

`keyword_minutes` has a row for each minute, user group and keyword:

    minute timestamp, user_group string, keyword string, searches bigint, users bigint (a sketch, mostly within 5 %)

Watermark: 30 s. State: a count and a sketch of 416 bytes per keyword and group of the open minutes, at most two. It
grows with the number of different keywords in a minute, not with the number of searches.

`rising` has the rows that stand out against the half hour before them, for each group and for all users (group `all`):

    minute, user_group, keyword, searches, expected double, ratio double, score double

`expected` is the keyword's share of the trailing searches times the searches of this minute. Shares are used because
an incomplete minute, or a quiet hour, has fewer searches of everything. `ratio` is searches / expected, with a constant
added to both so that small numbers do not stand out. `score` is their distance in standard deviations, with one added
trailing search. At least fifteen searches are needed, and a minute without a past is normal.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.activity.events import SEARCHES
from penstock.activity.pipelines.definition import (
    LATENESS,
    MINUTE,
    MINUTE_LENGTH,
    Derived,
    Pipeline,
    Rows,
    count_by_minute,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

EVERYBODY: Final = "all"
HORIZON: Final = timedelta(minutes=30)
MIN_SEARCHES: Final = 15
MIN_USERS: Final = 5
ADDED: Final = 3.0
RISING_RATIO: Final = 2.0
RISING_SCORE: Final = 5.0
RISING: Final = (
    "minute timestamp, user_group string, keyword string, searches bigint, expected double, ratio double, score double"
)


def define(frames: Mapping[str, DataFrame]) -> DataFrame:
    from pyspark.sql import functions as fn

    return count_by_minute(
        frames[SEARCHES.topic],
        ("user_group", "keyword"),
        searches=fn.count(fn.lit(1)),
        users=fn.least(fn.approx_count_distinct("user"), fn.count("user")),
    )


def rising(rows: pa.Table) -> pa.Table:
    """Compares each keyword and group of each minute with its trailing share."""
    import numpy as np
    import pyarrow as pa

    from penstock.activity.pipelines import arrays

    judged = _with_everybody(rows)
    minute_us = arrays.instants(judged, MINUTE)
    searches = arrays.floats(judged, "searches")
    group, keyword = arrays.codes(judged, "user_group"), arrays.codes(judged, "keyword")
    trailing = arrays.trailing_sums(arrays.grouped(group, keyword).of, minute_us, searches, HORIZON)
    minutes = arrays.grouped(group, minute_us)
    total = minutes.sums(searches)
    total_before = arrays.trailing_sums(group[minutes.first], minute_us[minutes.first], total, HORIZON)[minutes.of]
    share = total[minutes.of] / np.maximum(total_before, 1)
    expected = np.where(total_before > 0, trailing * share, searches)
    at_most = (trailing + 1) * share
    score = np.where(total_before > 0, (searches - at_most) / np.sqrt(at_most * (1 + share) + 1), 0.0)
    ratio = (searches + ADDED) / (expected + ADDED)
    many = (searches >= MIN_SEARCHES) & (arrays.floats(judged, "users") >= MIN_USERS)
    rises = np.flatnonzero(many & (ratio >= RISING_RATIO) & (score >= RISING_SCORE))
    chosen = judged.take(pa.array(rises))
    return arrays.table_of(
        arrays.schema_of(RISING),
        minute=minute_us[rises],
        user_group=chosen.column("user_group"),
        keyword=chosen.column("keyword"),
        searches=chosen.column("searches"),
        expected=np.round(expected[rises], 3),
        ratio=np.round(ratio[rises], 3),
        score=np.round(score[rises], 3),
    )


def _with_everybody(rows: pa.Table) -> pa.Table:
    """The rows, and a row over all groups for each minute and keyword. A user is in one group."""
    import pyarrow as pa

    columns = [MINUTE, "user_group", "keyword", "searches", "users"]
    rows = rows.select(columns)
    sums = rows.group_by([MINUTE, "keyword"]).aggregate([("searches", "sum"), ("users", "sum")])
    everybody = pa.table(
        {
            MINUTE: sums.column(MINUTE),
            "user_group": pa.array([EVERYBODY] * sums.num_rows, pa.string()),
            "keyword": sums.column("keyword"),
            "searches": sums.column("searches_sum"),
            "users": sums.column("users_sum"),
        }
    )
    return pa.concat_tables([rows, everybody.cast(rows.schema)])


PIPELINE: Final = Pipeline(
    name="search",
    summary="keywords by minute and user group, and rising keywords",
    trigger=timedelta(seconds=5),
    rows=(
        Rows(
            name="keyword_minutes",
            key=(MINUTE, "user_group", "keyword"),
            time=MINUTE,
            reads=(SEARCHES,),
            watermark={SEARCHES.topic: LATENESS},
            mode="update",
            define=define,
            before=timedelta(0),
            after=MINUTE_LENGTH,
        ),
    ),
    derived=(
        Derived(
            name="rising",
            of="keyword_minutes",
            key=(MINUTE, "user_group", "keyword"),
            time=MINUTE,
            horizon=HORIZON,
            compute=rising,
            topic="rising",
        ),
    ),
)
