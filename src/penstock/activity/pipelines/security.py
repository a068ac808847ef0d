"""Security: the behaviour of members and programs by minute, and who is a crawler, a spammer or an abuser.

`behaviour` has a row for each minute and actor that does enough to be judged:

    minute timestamp, kind string (member | client), actor string,
    views bigint, led bigint, items bigint, seconds bigint, posts bigint, linked bigint, texts bigint,
    calls bigint, refused bigint, failed bigint

- `led`: views that a list or a search led to. `items`, `texts`: distinct ones, by sketches (9 % off); a text counts by
  its first words, without numbers. `refused`: calls rejected with 429; `failed`: other 4xx.
- `seconds`: the seconds of the minute with a view, as bits: pace and pauses can be computed from them in any order.

Watermark: 30 s. State: nine counts and two sketches of 104 bytes per actor of the open minutes, at most two.

`suspects` is the current list: actors with at least a third of their judged minutes of the last half hour against
them. A minute is scored from 0 to 1 by several signs, none of which suffices alone, and speaks against its actor from
`GUILTY` on.

    kind, actor, verdict, score double (0..1), evidence string, first_seen timestamp, last_seen timestamp

`over_limit`: minute, client string, calls, allowed bigint, excess bigint, refused bigint
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.activity.events import API_CALLS, API_CALLS_PER_MINUTE, POSTS, VIEWS
from penstock.activity.pipelines import arrays
from penstock.activity.pipelines.arrays import Flags, Floats, Groups, Integers
from penstock.activity.pipelines.definition import (
    LATENESS,
    MINUTE,
    MINUTE_LENGTH,
    Derived,
    Pipeline,
    Rows,
    count_by_minute,
    count_where,
    seconds_mask,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


GUILTY: Final = 0.75
HORIZON: Final = timedelta(minutes=30)
MIN_VIEWS: Final = 10
MIN_POSTS: Final = 2
MIN_CALLS: Final = 100
_SHARE_OF_MINUTES: Final = 1 / 3
_SECONDS: Final = 60
_SKETCH_DEVIATION: Final = 0.1
_FINGERPRINT_WORDS: Final = 6
_EVIDENCE: Final = ("views", "items", "led", "posts", "texts", "linked", "calls", "refused")
OVER_LIMIT: Final = "minute timestamp, client string, calls bigint, allowed bigint, excess bigint, refused bigint"
SUSPECTS_SCHEMA: Final = arrays.schema_of(
    "kind string, actor string, verdict string, score double, evidence string, "
    "first_seen timestamp, last_seen timestamp"
)

# ---------------------------------------------------------------------------------------------- behaviour, by Spark


def define(frames: Mapping[str, DataFrame]) -> DataFrame:
    from pyspark.sql import functions as fn

    act, number = fn.col("act"), fn.col("number")
    acts = _views(frames[VIEWS.topic]).unionAll(_posts(frames[POSTS.topic])).unionAll(_calls(frames[API_CALLS.topic]))
    counted = count_by_minute(
        acts,
        ("kind", "actor"),
        views=count_where(act == "view"),
        led=count_where((act == "view") & (number == 1)),
        items=fn.least(fn.approx_count_distinct("item", _SKETCH_DEVIATION), fn.count("item")),
        seconds=seconds_mask(act == "view"),
        posts=count_where(act == "post"),
        linked=count_where((act == "post") & (number > 0)),
        texts=fn.least(fn.approx_count_distinct("text", _SKETCH_DEVIATION), fn.count("text")),
        calls=count_where(act == "call"),
        refused=count_where((act == "call") & (number == 429)),
        failed=count_where((act == "call") & number.between(400, 499) & (number != 429)),
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
    """Events of any topic in one form: actor, act, and a number."""
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


# ---------------------------------------------------------------------------------------------- suspects


def suspects(rows: pa.Table) -> pa.Table:
    """The actors whose behaviour is suspicious, and why."""
    return judge_suspects(rows, HORIZON)


def judge_suspects(rows: pa.Table, horizon: timedelta) -> pa.Table:
    """A row for each actor that at least one case names: that of the highest score."""
    rows = arrays.within(rows, MINUTE, horizon)
    actors = arrays.grouped(arrays.codes(rows, "kind"), arrays.codes(rows, "actor"))
    minute_us = arrays.instants(rows, MINUTE)
    named: dict[int, dict[str, object]] = {}
    for case in (_crawlers(rows), _spammers(rows), _abusers(rows)):
        for actor, found in _named(case, rows, actors, minute_us).items():
            if actor not in named or float(str(found["score"])) > float(str(named[actor]["score"])):
                named[actor] = found
    found_rows = sorted(named.values(), key=lambda row: (str(row["kind"]), str(row["actor"])))
    return pa.Table.from_pylist(found_rows, schema=SUSPECTS_SCHEMA)


def _named(case: Case, rows: pa.Table, actors: Groups, minute_us: Integers) -> dict[int, dict[str, object]]:
    """The row of each actor that the case names."""
    guilty = case.judged & (case.score >= GUILTY)
    judged_minutes, guilty_minutes = actors.sums(case.judged), actors.sums(guilty)
    sums = {name: actors.sums(arrays.floats(rows, name) * guilty) for name in _EVIDENCE}
    score = actors.sums(case.score * guilty) / np.maximum(guilty_minutes, 1)
    first = actors.least(np.where(guilty, minute_us, np.iinfo(np.int64).max))
    last = actors.greatest(np.where(guilty, minute_us, np.iinfo(np.int64).min))
    chosen = np.flatnonzero((guilty_minutes > 0) & (guilty_minutes >= _SHARE_OF_MINUTES * judged_minutes))
    who = rows.select(["kind", "actor"]).take(pa.array(actors.first[chosen]))
    return {
        int(actor): {
            "kind": kind,
            "actor": name,
            "verdict": case.verdict,
            "score": round(float(score[actor]), 3),
            "evidence": case.evidence.format(
                minutes=int(guilty_minutes[actor]), **{sign: int(total[actor]) for sign, total in sums.items()}
            ),
            "first_seen": int(first[actor]),
            "last_seen": int(last[actor]),
        }
        for actor, kind, name in zip(
            chosen, who.column("kind").to_pylist(), who.column("actor").to_pylist(), strict=True
        )
    }


@dataclass(frozen=True)
class Case:
    """The scores of all rows for one verdict."""

    verdict: str
    judged: Flags
    score: Floats
    evidence: str
    """A format string for sums over the guilty rows."""


def _crawlers(rows: pa.Table) -> Case:
    """Fast, without pauses, never the same item twice, and not reached from lists. An actor that follows lists is a
    reader, however fast: the other three signs together are not enough."""
    views = arrays.floats(rows, "views")
    many = np.maximum(views, 1)
    judged = views >= 15
    breadth = 0.2 * _sign(arrays.floats(rows, "items") / many, 0.6, 0.85)
    aimless = 0.35 * _sign(arrays.floats(rows, "led") / many, 0.6, 0.2)
    # Pauses are computed only where pace and pauses can still decide.
    pauses = pauses_of(arrays.integers(rows.column("seconds")), judged & (breadth + aimless >= GUILTY - 0.45))
    pace = views * _SECONDS / np.maximum(pauses.span_s, 20)
    score = 0.25 * _sign(pace, 20, 40) + 0.2 * _sign(pauses.longest_s, 8, 4) + breadth + aimless
    return Case(
        "crawler", judged, score, "{views} views of {items} items in {minutes} min, {led} from clicks, no pauses"
    )


def _spammers(rows: pa.Table) -> Case:
    """Repeats the same text, with links."""
    posts = arrays.floats(rows, "posts")
    repeated = (posts - arrays.floats(rows, "texts")) / np.maximum(posts - 1, 1)
    linked = arrays.floats(rows, "linked") / np.maximum(posts, 1)
    score = 0.5 * _sign(repeated, 0.2, 0.6) + 0.5 * _sign(linked, 0.2, 0.6)
    return Case("spammer", posts >= 3, score, "{posts} posts of {texts} texts in {minutes} min, {linked} with links")


def _abusers(rows: pa.Table) -> Case:
    """Well over the rate limit, and continues despite 429s."""
    calls = arrays.floats(rows, "calls")
    refused = arrays.floats(rows, "refused") / np.maximum(calls, 1)
    score = 0.5 * _sign(calls / API_CALLS_PER_MINUTE, 1.0, 1.2) + 0.5 * _sign(refused, 0.0, 0.15)
    enough = calls >= API_CALLS_PER_MINUTE / 2
    limit = f"(limit {API_CALLS_PER_MINUTE}/min)"
    return Case("abuser", enough, score, "{calls} calls in {minutes} min, {refused} rejected " + limit)


def _sign(values: Floats, nothing: float, everything: float) -> Floats:
    return np.clip((values - nothing) / (everything - nothing), 0.0, 1.0)


@dataclass(frozen=True)
class Pauses:
    """Span and longest pause of the seconds with a view, for each row."""

    span_s: Floats
    """From the first to the last second, inclusive."""
    longest_s: Floats
    """Between two views; the whole minute if there is only one."""


def pauses_of(seconds: Integers, wanted: Flags) -> Pauses:
    """Spans and longest pauses of the wanted rows; the others have 60 s for both.

    Bits 3, 4 and 9: a span of 7 seconds, a longest pause of 5.
    """
    span_s, longest_s = (np.full(len(seconds), float(_SECONDS)) for _ in range(2))
    chosen = np.flatnonzero(wanted & (seconds != 0))
    bits = ((seconds[chosen] >> np.arange(_SECONDS)[:, None]) & 1).astype(bool)
    place = np.where(bits, np.arange(_SECONDS, dtype=np.int8)[:, None], np.int8(-1))
    latest = np.maximum.accumulate(place, axis=0)
    gaps = np.where(bits[1:] & (latest[:-1] >= 0), place[1:] - latest[:-1], np.int8(0))
    longest = gaps.max(axis=0, initial=0)
    span_s[chosen] = latest[-1] - bits.argmax(axis=0) + 1
    longest_s[chosen] = np.where(longest > 0, longest, _SECONDS)
    return Pauses(span_s, longest_s)


# ---------------------------------------------------------------------------------------------- clients over the limit


def over_limit(rows: pa.Table) -> pa.Table:
    """Clients above the rate limit, by minute."""
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


# ---------------------------------------------------------------------------------------------- the pipeline


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
            after=MINUTE_LENGTH,
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
