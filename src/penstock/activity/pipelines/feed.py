"""News feed: what those whom a member follows write and vote for, newest and most relevant first.

`feed_entries`, a row for each post or up-vote and each follow or unfollow of its author that came before it:

    time timestamp, member bigint (who may see it), author bigint, kind string (post | vote), id bigint (of the event),
    item bigint, text string, follow_id bigint, follow_time timestamp, action string (follow | unfollow)

Whether a member follows an author at the time of a post is what the last of these rows says: `action` of the greatest
(follow_time, follow_id). The join gives all of them and `feed` decides, because a join knows no "last"; an unfollow
that comes late then needs nothing taken back, and the table is the same rows in whichever order events come.

Watermark: 30 s on all three topics. State: posts and votes stay until a follow from before them can no longer come, so
about half a minute of them; follows stay for `FOLLOW_LASTS`, a year, since that is how long one counts: the state is as
large as the follows of a year, like the site's own table of them, and does not grow with posts or votes. A match is
given as soon as both sides are there; nothing waits for the watermark.

`feed`, a row for each member with the best twenty entries of the last ten minutes; each computation is the whole table:

    member bigint, newest timestamp, entries list of (time_ms, author, kind, id, item, text, relevance)

- `relevance` is what the entry is (a post counts twice a vote), times how many of those one follows acted on the same
  item (`circle`), times how much the author's taste is that of one's circle (`affinity`), times how much the item is in
  all feeds (`popularity`, by its logarithm).
- The order is by relevance halved for each five minutes of age. That is log2(relevance) + time / half-life, which does
  not change while time goes by: a member's row changes only when there is something new in it, or something too old.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.activity.events import FOLLOWS, POSTS, VOTES
from penstock.activity.pipelines.minutes import LATENESS
from penstock.activity.pipelines.pipeline import Derived, Pipeline, Rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

FOLLOW_LASTS: Final = timedelta(days=365)
HORIZON: Final = timedelta(minutes=10)
HALF_LIFE: Final = timedelta(minutes=5)
ENTRIES: Final = 20


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


def feed(rows: pa.Table) -> pa.Table:
    """The best entries of each member."""
    from penstock.activity.pipelines import feeds

    return feeds.feed(rows, horizon=HORIZON, half_life=HALF_LIFE, most=ENTRIES)


PIPELINE: Final = Pipeline(
    name="feed",
    summary="posts and up-votes of those a member follows, newest and most relevant first",
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
