"""Security: how members and programs behave in each minute, and who is a crawler, a spammer or an abuser.

`behaviour`, a row for each minute and actor that does enough in it to be judged:

    minute timestamp, kind string (member | client), actor string,
    views bigint, led bigint, items bigint, seconds bigint, posts bigint, linked bigint, texts bigint,
    calls bigint, refused bigint, failed bigint

- `led`: views that a list or a search led to; whoever reads the site clicks, whoever walks it does not.
- `items`, `texts`: how many different ones, by sketches (9 % off). Of a text its first words count, without numbers.
- `seconds`: the seconds of the minute with a view, as bits. Gaps between views, their longest and how even they are can
  be read off it, and 60 bits need no order of events.
- `refused`: calls answered 429; `failed`: other 4xx.

Watermark: 30 s. State: nine counts and two sketches of 104 bytes for each actor of the minutes that are still open, at
most two. Rows of the many who do little never leave Spark, so the table has hundreds of rows a minute, not all members.

`suspects`, as of now: who, in the last half hour, was judged a crawler, spammer or abuser in at least a third of the
minutes in which there was something to judge; each computation is the whole table:

    kind, actor, verdict, score double (0..1), evidence string, first_seen timestamp, last_seen timestamp

`over_limit`: which client was over the site's limit in which minute, and by how much:

    minute, client string, calls, allowed bigint, excess bigint, refused bigint
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.activity.events import API_CALLS, API_CALLS_PER_MINUTE, POSTS, VIEWS
from penstock.activity.pipelines.minutes import LATENESS, LENGTH, MINUTE, count_by_minute, seconds_mask, times
from penstock.activity.pipelines.pipeline import Derived, Pipeline, Rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

HORIZON: Final = timedelta(minutes=30)
MIN_VIEWS: Final = 10
MIN_POSTS: Final = 2
MIN_CALLS: Final = 100
OVER_LIMIT: Final = "minute timestamp, client string, calls bigint, allowed bigint, excess bigint, refused bigint"
_SKETCH_DEVIATION: Final = 0.1
_FINGERPRINT_WORDS: Final = 6


def define(frames: Mapping[str, DataFrame]) -> DataFrame:
    from pyspark.sql import functions as fn

    act, number = fn.col("act"), fn.col("number")
    acts = _views(frames[VIEWS.topic]).unionAll(_posts(frames[POSTS.topic])).unionAll(_calls(frames[API_CALLS.topic]))
    counted = count_by_minute(
        acts,
        ("kind", "actor"),
        views=times(act == "view"),
        led=times((act == "view") & (number == 1)),
        items=fn.least(fn.approx_count_distinct("item", _SKETCH_DEVIATION), fn.count("item")),
        seconds=seconds_mask(act == "view"),
        posts=times(act == "post"),
        linked=times((act == "post") & (number > 0)),
        texts=fn.least(fn.approx_count_distinct("text", _SKETCH_DEVIATION), fn.count("text")),
        calls=times(act == "call"),
        refused=times((act == "call") & (number == 429)),
        failed=times((act == "call") & number.between(400, 499) & (number != 429)),
    )
    enough = (fn.col("views") >= MIN_VIEWS) | (fn.col("posts") >= MIN_POSTS) | (fn.col("calls") >= MIN_CALLS)
    return counted.where(enough)


def _views(views: DataFrame) -> DataFrame:
    from pyspark.sql import functions as fn

    led = fn.col("referrer").isin("list", "search").cast("int")
    return _acts(views, "member", "view", fn.col("member"), item=fn.col("item"), number=led)


def _posts(posts: DataFrame) -> DataFrame:
    from pyspark.sql import functions as fn

    plain = fn.regexp_replace(fn.lower("text"), "[^a-z ]+", "")
    fingerprint = fn.substring_index(plain, " ", _FINGERPRINT_WORDS)
    return _acts(posts, "member", "post", fn.col("member"), text=fingerprint, number=fn.col("links"))


def _calls(calls: DataFrame) -> DataFrame:
    from pyspark.sql import functions as fn

    return _acts(calls, "client", "call", fn.col("client"), number=fn.col("status"))


def _acts(
    frame: DataFrame, kind: str, act: str, actor: Column, *,
    number: Column, item: Column | None = None, text: Column | None = None,
) -> DataFrame:  # fmt: skip
    """Events of any topic in one form: who did what, with one number that says more."""
    from pyspark.sql import functions as fn

    nothing = fn.lit(None)
    return frame.select(
        "time",
        fn.lit(kind).alias("kind"),
        actor.cast("string").alias("actor"),
        fn.lit(act).alias("act"),
        (nothing if item is None else item).cast("bigint").alias("item"),
        (nothing if text is None else text).cast("string").alias("text"),
        number.cast("int").alias("number"),
    )


def suspects(rows: pa.Table) -> pa.Table:
    """Who is named by his behaviour, and why."""
    from penstock.activity.pipelines import verdicts

    return verdicts.suspects(rows, HORIZON)


def over_limit(rows: pa.Table) -> pa.Table:
    """Clients that called more often than allowed, by minute."""
    import numpy as np
    import pyarrow as pa

    from penstock.activity.pipelines import arrays

    calls = arrays.floats(rows, "calls")
    over = np.flatnonzero(calls > API_CALLS_PER_MINUTE)
    chosen = rows.take(pa.array(over))
    return arrays.table_of(
        arrays.schema_of(OVER_LIMIT),
        minute=chosen.column(MINUTE),
        client=chosen.column("actor"),
        calls=chosen.column("calls"),
        allowed=np.full(len(over), API_CALLS_PER_MINUTE),
        excess=calls[over] - API_CALLS_PER_MINUTE,
        refused=chosen.column("refused"),
    )


PIPELINE: Final = Pipeline(
    name="security",
    summary="who behaves like a crawler, a spammer or an abuser, and which clients are over the limit",
    trigger=timedelta(seconds=5),
    rows=(
        Rows(
            name="behaviour",
            key=(MINUTE, "kind", "actor"),
            time=MINUTE,
            reads=(VIEWS, POSTS, API_CALLS),
            watermark={kind.topic: LATENESS for kind in (VIEWS, POSTS, API_CALLS)},
            mode="update",
            define=define,
            before=timedelta(0),
            after=LENGTH,
        ),
    ),
    derived=(
        Derived(
            name="suspects",
            of="behaviour",
            key=("kind", "actor"),
            time="last_seen",
            horizon=HORIZON,
            compute=suspects,
            topic="suspects",
            replaces=True,
        ),
        Derived(
            name="over_limit",
            of="behaviour",
            key=(MINUTE, "client"),
            time=MINUTE,
            horizon=timedelta(0),
            compute=over_limit,
        ),
    ),
)
