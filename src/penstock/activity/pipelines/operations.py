"""Operations: how each server is, in windows of five seconds, and what is out of the ordinary.

Events: `requests`, a server's log of its requests, and `servers`, what a server measures of itself once a second. They
are united before they are counted, so that one aggregation does without a join.

Watermark: 5 s, five times what the site's events are late. It only decides when a window is forgotten: rows are given
as they change (mode update), so that an incident is seen in the window in which it begins, before that has ended.

State: the open windows, at most three for each server; of each, the times of its requests as `percentile_approx` keeps
them. Up to 5,000 requests a window and server that is all of them, so percentiles are exact, and the same as a stream
and over all there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.activity.events import REQUESTS, SERVERS
from penstock.activity.pipelines.anomalies import HORIZON, WINDOW, alerts
from penstock.activity.pipelines.pipeline import Derived, Pipeline, Rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LATE: Final = timedelta(seconds=5)
_ACCURACY: Final = 10_000
_PERCENTILES: Final = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
_FIRST_SERVER_ERROR: Final = 500


def define(frames: Mapping[str, DataFrame]) -> DataFrame:
    """A row for each server and window."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

    none = F.lit(None)
    requests = frames[REQUESTS.topic].select(
        "time", "server", "duration_ms", (F.col("status") >= _FIRST_SERVER_ERROR).cast("bigint").alias("error"),
        none.cast("bigint").alias("cpu"), none.cast("bigint").alias("io"),
    )  # fmt: skip
    measures = frames[SERVERS.topic].select(
        "time", "server", none.cast("double").alias("duration_ms"), none.cast("bigint").alias("error"),
        _micro("cpu").alias("cpu"), _micro("io_wait").alias("io"),
    )  # fmt: skip
    length = f"{int(WINDOW.total_seconds())} seconds"
    counted = requests.unionAll(measures).groupBy(F.window("time", length).alias("window"), "server")
    found = counted.agg(
        F.count("error").alias("requests"),
        F.coalesce(F.sum("error"), F.lit(0)).alias("errors"),
        F.percentile_approx("duration_ms", list(_PERCENTILES.values()), _ACCURACY).alias("times"),
        F.count("cpu").alias("measures"),
        F.sum("cpu").alias("cpu"),
        F.sum("io").alias("io"),
    )
    percentiles = [F.col("times")[number].alias(name) for number, name in enumerate(_PERCENTILES)]
    return found.select(
        F.col("window.start").alias("start"), "server", "requests", "errors",
        F.when(F.col("requests") > 0, F.col("errors") / F.col("requests")).alias("error_rate"),
        *percentiles, "measures", _mean("cpu"), _mean("io").alias("io_wait"),
    )  # fmt: skip


def _micro(name: str) -> Column:
    """A share as a whole number: sums of those do not depend on the order of events."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

    return F.round(F.col(name) * 1e6).cast("bigint")


def _mean(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

    return F.when(F.col("measures") > 0, F.col(name) / F.col("measures") / 1e6).alias(name)


PIPELINE: Final = Pipeline(
    name="operations",
    summary="latency percentiles, error rates and load of each server; alerts",
    trigger=timedelta(seconds=2),
    rows=(
        Rows(
            name="server_windows",
            key=("start", "server"),
            time="start",
            reads=(REQUESTS, SERVERS),
            watermark={REQUESTS.topic: _LATE, SERVERS.topic: _LATE},
            mode="update",
            define=define,
            topic="server_windows",
            before=timedelta(0),
            after=WINDOW,
        ),
    ),
    derived=(
        Derived(
            name="alerts",
            of="server_windows",
            key=("start", "server", "kind"),
            time="start",
            horizon=HORIZON,
            compute=alerts,
            topic="alerts",
        ),
    ),
)
