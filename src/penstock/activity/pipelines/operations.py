"""Operations: each server in windows of five seconds, and alerts.

`requests` and `servers` are united before they are counted, so one aggregation needs no join. Watermark: 5 s, five
times the lateness of the site's events; it only decides when state is dropped. Rows are given as they change (mode
update), so an incident is seen in the window in which it begins. State: at most three open windows per server.
`percentile_approx` is exact up to 5,000 requests per window and server.

A window is anomalous in latency, errors or load if it is far above the same server's last five minutes, by robust
quantiles with floors, and has risen more than the other servers; what is very far need not differ from them. Latency
is judged by its logarithm. An incident is a run of such windows with gaps of at most one: opened, continued, closed.
An alert follows from the windows of `HORIZON` before it alone, so the same windows always give the same alerts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.activity.events import REQUESTS, SERVERS
from penstock.activity.pipelines.definition import Derived, Pipeline, Rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


WINDOW: Final = timedelta(seconds=5)
TRAILING: Final = 60
"""Windows before one that define what is usual: five minutes."""
_LONGEST_RUN: Final = 120
_LEAST_TRAILING: Final = 3
HORIZON: Final = WINDOW * (TRAILING + _LONGEST_RUN + 4)
_WINDOW_US: Final = WINDOW // timedelta(microseconds=1)
_LATE: Final = timedelta(seconds=5)
_ACCURACY: Final = 10_000
_PERCENTILES: Final = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
_FIRST_SERVER_ERROR: Final = 500
_LOWER: Final = (0.1, 0.4)
_LOWER_SIGMAS: Final = 1.028
"""The distance of these two quantiles of a normal distribution, in standard deviations."""
_LEAST_REQUESTS: Final = 10
_FAR: Final = 5.0
# Column, minimum requests, distance in deviations, minimum factor. High percentiles are less certain.
_JUDGED_PERCENTILES: Final = (("p50_ms", _LEAST_REQUESTS, _FAR, 2.5), ("p95_ms", 2 * _LEAST_REQUESTS, 7.0, 3.5))
_TIMES_OTHERS: Final = 2.0
_VERY_FAR: Final = 2.0
_LEAST_ERROR_RATE: Final = 0.03
_FAR_ERRORS: Final = 4.5
_LEAST_LOAD: Final = 0.7
_CRITICAL: Final = {"latency": 5.0, "errors": 0.10, "cpu": 0.95}
ALERTS_SCHEMA: Final = pa.schema(
    [
        ("start", pa.timestamp("us", "UTC")),
        ("server", pa.string()),
        ("kind", pa.string()),
        ("state", pa.string()),
        ("severity", pa.string()),
        ("value", pa.float64()),
        ("usual", pa.float64()),
        ("opened", pa.timestamp("us", "UTC")),
        ("message", pa.string()),
    ]
)
_Matrix = Any  # a numpy array: a row per server, a column per window

# ---------------------------------------------------------------------------------------------- windows, by Spark


def define(frames: Mapping[str, DataFrame]) -> DataFrame:
    """A row for each server and window."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

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
    """A share as an integer of millionths, so that sums do not depend on the order of events."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    return F.round(F.col(name) * 1e6).cast("bigint")


def _mean(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    return F.when(F.col("measures") > 0, F.col(name) / F.col("measures") / 1e6).alias(name)


# ---------------------------------------------------------------------------------------------- alerts


def alerts(rows: pa.Table) -> pa.Table:
    """Alerts from rows of `server_windows`."""
    if not rows.num_rows:
        return ALERTS_SCHEMA.empty_table()
    grid = _Grid(rows)
    found: list[dict[str, Any]] = []
    for kind, judge in _KINDS.items():
        found += _alert_rows(kind, judge(grid), grid)
    found.sort(key=lambda one: (one["start"], one["server"], one["kind"]))
    return pa.Table.from_pylist(found, ALERTS_SCHEMA)


class _Grid:
    """The rows as matrices. Windows without rows are NaN."""

    def __init__(self, rows: pa.Table) -> None:
        servers = rows.column("server").combine_chunks().dictionary_encode()
        times_us = rows.column("start").cast(pa.int64()).to_numpy()
        self.servers: list[str] = servers.dictionary.to_pylist()
        self._first_us = int(times_us.min())
        self._place = servers.indices.to_numpy(), (times_us - self._first_us) // _WINDOW_US
        self.shape = len(self.servers), int(self._place[1].max()) + 1
        self._rows = rows

    def column(self, name: str) -> _Matrix:
        matrix = np.full(self.shape, np.nan)
        matrix[self._place] = pc.fill_null(self._rows.column(name).cast(pa.float64()), np.nan).to_numpy()
        return matrix

    def start_us(self, window: int) -> int:
        return self._first_us + window * _WINDOW_US


@dataclass(frozen=True)
class _Judged:
    """A kind of anomaly: which windows have it, its measure, and the usual value of that."""

    flags: _Matrix
    value: _Matrix
    usual: _Matrix


# ---------------------------------------------------------------------------------------------- usual values


def _trailing(matrix: _Matrix) -> _Matrix:
    """The windows before each window, along a third axis."""
    padded = np.concatenate([np.full((matrix.shape[0], TRAILING), np.nan), matrix], axis=1)
    return np.lib.stride_tricks.sliding_window_view(padded, TRAILING, axis=1)[:, :-1]


def _median(matrix: _Matrix, axis: int) -> _Matrix:
    """The median without NaN; NaN if there are no values. (numpy's nanmedian warns about those.)"""
    count = np.sum(~np.isnan(matrix), axis=axis)
    ordered = np.sort(matrix, axis=axis)  # NaN is sorted to the end
    low = np.expand_dims(np.maximum(count - 1, 0) // 2, axis)
    high = np.expand_dims(count // 2, axis)
    high = np.minimum(high, np.expand_dims(np.maximum(count - 1, 0), axis))
    both = np.take_along_axis(ordered, low, axis) + np.take_along_axis(ordered, high, axis)
    return np.where(count > 0, np.squeeze(both, axis) / 2, np.nan)


def _others(matrix: _Matrix) -> _Matrix:
    """The median of the other servers in the same window."""
    count = matrix.shape[0]
    if count < 2:
        return np.full(matrix.shape, np.nan)
    return np.stack([_median(np.delete(matrix, one, axis=0), 0) for one in range(count)])


def _usual(matrix: _Matrix, others: _Matrix) -> tuple[_Matrix, _Matrix, _Matrix]:
    """A server's usual value, its usual deviation, and the number of windows behind them.

    Both come from the lower half of the windows before, which a long incident does not reach. A server without a past
    is compared with the others.
    """
    before = _trailing(matrix)
    known = np.sum(~np.isnan(before), axis=2)
    ordered = np.sort(before, axis=2)
    low, middle = (_at(ordered, known, share) for share in _LOWER)
    has_past = known >= _LEAST_TRAILING
    return np.where(has_past, middle, others), np.where(has_past, (middle - low) / _LOWER_SIGMAS, np.nan), known


def _at(ordered: _Matrix, known: _Matrix, share: float) -> _Matrix:
    """A quantile of the known values along the last axis, interpolated."""
    place = share * np.maximum(known - 1, 0)
    below = np.floor(place).astype(int)
    above = np.minimum(below + 1, np.maximum(known - 1, 0))
    values = [np.take_along_axis(ordered, each[:, :, None], 2)[:, :, 0] for each in (below, above)]
    return values[0] + (place - below) * (values[1] - values[0])


def _risen(others: _Matrix) -> _Matrix:
    """How far the others are above their usual value at the same time; 0 if unknown."""
    return np.nan_to_num(others - _median(_trailing(others), 2), nan=0.0)


# ---------------------------------------------------------------------------------------------- kinds of anomalies


def _latency(grid: _Grid) -> _Judged:
    count = grid.column("requests")
    flags = np.zeros(grid.shape, dtype=bool)
    for name, least, far, times_usual in _JUDGED_PERCENTILES:
        times = np.where(count >= least, grid.column(name), np.nan)
        flags |= _far_by_factor(times, count, far, np.log(times_usual))
    slow = grid.column("p95_ms")
    return _Judged(flags, slow, _usual(slow, _others(slow))[0])


def _far_by_factor(times: _Matrix, count: _Matrix, far: float, least_above: float) -> _Matrix:
    logs = np.log(np.maximum(times, 1e-3))
    others = _others(logs)
    middle, spread, known = _usual(logs, others)
    # Percentiles of a window that has just begun, and medians of few windows, are less certain.
    fewer = np.sqrt(np.maximum(1.0, _median(_trailing(count), 2) / np.maximum(count, 1)))
    spread = np.maximum(np.nan_to_num(spread, nan=0.3), 0.1) * np.nan_to_num(fewer, nan=1.0)
    with np.errstate(invalid="ignore"):
        above = logs - middle
        limit = np.maximum(least_above, far * (1 + 3 / np.maximum(known, 1)) * spread)
        apart = (above - _risen(others) > np.log(_TIMES_OTHERS)) | (above > _VERY_FAR * limit)
        found: _Matrix = (above > limit) & apart
    return found


def _errors(grid: _Grid) -> _Judged:
    count, wrong = grid.column("requests"), grid.column("errors")
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = np.where(count > 0, wrong / count, np.nan)
        usual = _usual_rate(count, wrong, rate)
        expected = count * usual
        far = wrong - expected > _FAR_ERRORS * np.sqrt(expected + 1)
        others = _others(rate)
        apart = ~(rate < _TIMES_OTHERS * others) | (rate > 5 * _LEAST_ERROR_RATE)
        flags = far & (rate >= np.maximum(_LEAST_ERROR_RATE, 3 * usual)) & apart & (count >= _LEAST_REQUESTS)
    return _Judged(flags, rate, usual)


def _usual_rate(count: _Matrix, wrong: _Matrix, rate: _Matrix) -> _Matrix:
    """Errors per request in the windows before, without the worst fifth: an incident is not usual."""
    rates, counts, wrongs = _trailing(rate), np.nan_to_num(_trailing(count)), np.nan_to_num(_trailing(wrong))
    known = np.sum(~np.isnan(rates), axis=2, keepdims=True)
    rank = np.argsort(np.argsort(rates, axis=2, kind="stable"), axis=2, kind="stable")
    kept = rank < np.ceil(known * 0.8)
    return (np.sum(wrongs * kept, axis=2) + 0.3) / (np.sum(counts * kept, axis=2) + 100)


def _cpu(grid: _Grid) -> _Judged:
    load = grid.column("cpu")
    others = _others(load)
    middle, spread, known = _usual(load, others)
    spread = np.maximum(np.nan_to_num(spread, nan=0.05), 0.03)
    with np.errstate(invalid="ignore"):
        above = load - middle
        limit = _FAR * (1 + 3 / np.maximum(known, 1)) * spread
        # Load cannot exceed 1, so from a high usual load the limit could not be reached.
        limit = np.minimum(limit, 0.9 * (1 - middle))
        apart = above - _risen(others) > limit / 2
        flags = (above > limit) & apart & (load >= _LEAST_LOAD)
    return _Judged(flags, load, middle)


_KINDS: Final[dict[str, Callable[[_Grid], _Judged]]] = {"latency": _latency, "errors": _errors, "cpu": _cpu}

# ---------------------------------------------------------------------------------------------- incidents


def _alert_rows(kind: str, judged: _Judged, grid: _Grid) -> list[dict[str, Any]]:
    """Alerts of one kind, a row per window of an incident."""
    found: list[dict[str, Any]] = []
    for number, server in enumerate(grid.servers):
        flags = judged.flags[number]
        for window in np.flatnonzero(_near(flags)).tolist():
            if flags[window]:
                begin = _begin(flags, window)
                state = "opened" if begin == window else "continued"
            elif window >= 2 and flags[window - 2] and not flags[window - 1]:
                begin, state = _begin(flags, window - 2), "closed"
            else:
                continue
            value, usual = float(judged.value[number, window]), float(judged.usual[number, window])
            found.append(
                {
                    "start": grid.start_us(window),
                    "server": server,
                    "kind": kind,
                    "state": state,
                    "severity": "none" if state == "closed" else _severity(kind, value, usual),
                    "value": _or_none(value),
                    "usual": _or_none(usual),
                    "opened": grid.start_us(begin),
                    "message": _message(kind, value, usual),
                }
            )
    return found


def _near(flags: _Matrix) -> _Matrix:
    """Windows that are anomalous, or two after an anomalous one."""
    near = flags.copy()
    near[2:] |= flags[:-2]
    return near


def _begin(flags: _Matrix, window: int) -> int:
    """The first window of the incident that `window` is in, at most `_LONGEST_RUN` back."""
    begin = seen = int(window)
    while seen > 0 and window - seen < _LONGEST_RUN and begin - seen < 2:
        seen -= 1
        if flags[seen]:
            begin = seen
    return begin


def _severity(kind: str, value: float, usual: float) -> str:
    measure = value / usual if kind == "latency" and usual > 0 else value
    return "critical" if measure >= _CRITICAL[kind] else "warning"


def _message(kind: str, value: float, usual: float) -> str:
    if kind == "latency":
        return f"p95 latency {_text(value, 1, ' ms')}, usually {_text(usual, 1, ' ms')}"
    what = "error rate" if kind == "errors" else "CPU load"
    return f"{what} {_text(value, 100, ' %')}, usually {_text(usual, 100, ' %')}"


def _text(value: float, factor: float, unit: str) -> str:
    return "unknown" if np.isnan(value) else f"{value * factor:.3g}{unit}"


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value


# ---------------------------------------------------------------------------------------------- the pipeline


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
