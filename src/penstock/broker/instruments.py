"""Instruments that count and measure, and the text in which Prometheus reads them.

Nouns: an instrument (`Counter`, `Gauge`, `Histogram`) is one series; a `Family` is the series of one name, told apart
by labels; a `Reading` is a set of families whose values are kept elsewhere and asked for at each scrape; the
`Registry` holds them all and shows them, as Prometheus text format 0.0.4 or as a dict.

Rule: whoever counts keeps the instrument, so that counting is one method on one object; names, labels and text are
for whoever looks. A label takes a bounded number of values; beyond it, series are folded into one, `(others)`.
Instruments belong to the event loop's thread. A value that cannot be read is left out: absent, never wrong.
"""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHERS = "(others)"

#: 10 microseconds to 50 seconds, three to a decade.
DURATION_BOUNDS_S = tuple(float(f"{digit}e{power}") for power in range(-5, 2) for digit in (1, 2, 5))

_SERIES_MAX = 1000
_CHUNK_CHARS = 16 * 1024
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Kind = Literal["counter", "gauge", "histogram"]
Row = tuple[tuple[str | int, ...], Sequence[float | None]]


class MetricError(ValueError):
    """A metric that was declared or labelled wrongly: a mistake of the program, not of its input."""


class Counter:
    """A figure that only rises."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount

    def read(self) -> float | None:
        return self.value


class Gauge:
    """A figure that rises and falls: set by its owner, or read from where it is kept. Until then it has no sample."""

    __slots__ = ("_follow", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        self._follow: Callable[[], float | None] | None = None

    def set(self, value: float) -> None:
        self.value = value

    def add(self, amount: float) -> None:
        self.value = (self.value or 0) + amount

    def follow(self, read: Callable[[], float | None]) -> None:
        """Ask `read` at each scrape; what was set is set aside."""
        self._follow = read

    def read(self) -> float | None:
        return self.value if self._follow is None else self._follow()


class Histogram:
    """How often a value fell between fixed bounds. A value on a bound counts below it, as `le` says."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float] = DURATION_BOUNDS_S) -> None:
        self._bounds = list(bounds)
        if not bounds or not all(map(math.isfinite, bounds)) or self._bounds != sorted(set(bounds)):
            raise MetricError(f"bounds of a histogram are finite and rise, unlike {self._bounds}")
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[float, int]]:
        """(upper bound, how many values were not above it), the last bound being infinite."""
        upto = 0
        result = []
        for bound, count in zip([*self._bounds, math.inf], self._counts, strict=True):
            upto += count
            result.append((bound, upto))
        return result

    def quantile(self, q: float) -> float | None:
        """Below this value lies the share `q` of all, taking those of a bucket as evenly spread; None if there are
        none. With bounds 1, 2 and 4, and ten values between 2 and 4, `quantile(0.5)` is 3. What is above the last
        bound is taken to be on it."""
        buckets = self.buckets()
        rank = q * buckets[-1][1]
        below, lower = 0, 0.0
        for bound, upto in buckets:
            if upto >= rank and upto > below:
                return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (upto - below)
            below = upto
            lower = lower if math.isinf(bound) else bound
        return None


Instrument = Counter | Gauge | Histogram
S = TypeVar("S", Counter, Gauge, Histogram)


@dataclass(frozen=True, slots=True)
class Description:
    """What is said of a metric beside its values."""

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _METRIC_NAME.fullmatch(self.name):
            raise MetricError(f"{self.name!r} is not the name of a metric")
        for label in self.labels:
            if not _LABEL_NAME.fullmatch(label) or label == "le" or self.labels.count(label) > 1:
                raise MetricError(f"{label!r} cannot be a label of {self.name}")

    def sample_names(self) -> list[str]:
        if self.kind != "histogram":
            return [self.name]
        return [self.name, *(self.name + ending for ending in ("_bucket", "_sum", "_count"))]


Value = float | Histogram
Collected = tuple[Description, Iterable[tuple[tuple[str, ...], Value]]]


class Source(Protocol):
    """Whatever has series to show."""

    def collect(self) -> Iterator[Collected]:
        """Each family with what it holds now."""


class Family(Generic[S]):
    """The series of one metric. `labelled` is for the beginning; keep what it returns."""

    def __init__(self, description: Description, make: Callable[[], S], series_max: int = _SERIES_MAX) -> None:
        self.description = description
        self._make: Callable[[], S] = make
        self._series_max = series_max
        self._series: dict[tuple[str, ...], S] = {}
        self._others: dict[tuple[str, ...], S] = {}  # at most one series, which takes no other's place

    def labelled(self, **labels: str | int) -> S:
        """The series with these labels: made on first use, `(others)` when there are too many already."""
        values = self._values(labels)
        found = self._series.get(values)
        if found is None:
            kept, others = self._series, (OTHERS,) * len(values)
            if len(kept) >= self._series_max or (values and values == others):
                kept, values = self._others, others
            found = kept.get(values)
            if found is None:
                found = kept[values] = self._make()
        return found

    def drop(self, **labels: str | int) -> None:
        """Show this series no more; whoever still keeps it counts for nobody."""
        self._series.pop(self._values(labels), None)

    def collect(self) -> Iterator[Collected]:
        # A copy: between two pieces of the text the loop runs, and topics come and go.
        series = self._series | self._others
        yield self.description, _present(series, (_value(self.description, one) for one in series.values()))

    def _values(self, labels: dict[str, str | int]) -> tuple[str, ...]:
        if labels.keys() != set(self.description.labels):
            raise MetricError(f"{self.description.name} has the labels {self.description.labels}, not {tuple(labels)}")
        return tuple([str(labels[name]) for name in self.description.labels])


class Reading:
    """Families that share their labels and are read in one go: rows of (label values, a value for each family)."""

    def __init__(self, descriptions: Sequence[Description], read: Callable[[], Iterable[Row]]) -> None:
        self._descriptions = tuple(descriptions)
        self._read = read

    def collect(self) -> Iterator[Collected]:
        try:
            # Two samples with the same labels would make Prometheus refuse everything: the last one counts.
            rows = {tuple(map(str, labels)): values for labels, values in self._read()}
            columns = list(zip(*rows.values(), strict=True)) or [()] * len(self._descriptions)
            families = list(zip(self._descriptions, columns, strict=True))
            if any(len(labels) != len(description.labels) for description, _ in families for labels in rows):
                raise MetricError("as many values as labels are needed")
        except Exception:
            logger.exception("the figures of %s cannot be read", self._descriptions[0].name)
            return
        for description, column in families:
            yield description, _present(rows, column)


class Registry:
    """All metrics of a process, in the order in which they were declared."""

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._names: set[str] = set()

    def counter(self, name: str, help_text: str) -> Counter:
        return self.counters(name, help_text).labelled()

    def counters(self, name: str, help_text: str, *labels: str, series_max: int = _SERIES_MAX) -> Family[Counter]:
        return self._add(Family(Description("counter", name, help_text, labels), Counter, series_max))

    def gauge(self, name: str, help_text: str) -> Gauge:
        return self.gauges(name, help_text).labelled()

    def gauges(self, name: str, help_text: str, *labels: str, series_max: int = _SERIES_MAX) -> Family[Gauge]:
        return self._add(Family(Description("gauge", name, help_text, labels), Gauge, series_max))

    def histogram(self, name: str, help_text: str, bounds: Sequence[float] = DURATION_BOUNDS_S) -> Histogram:
        return self.histograms(name, help_text, bounds=bounds).labelled()

    def histograms(
        self,
        name: str,
        help_text: str,
        *labels: str,
        bounds: Sequence[float] = DURATION_BOUNDS_S,
        series_max: int = _SERIES_MAX,
    ) -> Family[Histogram]:
        description = Description("histogram", name, help_text, labels)
        return self._add(Family(description, lambda: Histogram(bounds), series_max))

    def readings(self, descriptions: Sequence[Description], read: Callable[[], Iterable[Row]]) -> None:
        for description in descriptions:
            self._claim(description)
        self._sources.append(Reading(descriptions, read))

    def render(self) -> Iterator[bytes]:
        """The text format, in pieces of some kilobytes; the loop may run between them."""
        parts: list[str] = []
        size = 0
        for source in self._sources:
            for description, rows in source.collect():
                for part in _family_text(description, rows):
                    parts.append(part)
                    size += len(part)
                    if size >= _CHUNK_CHARS:
                        yield "".join(parts).encode("utf-8", "replace")
                        parts.clear()
                        size = 0
        if parts:
            yield "".join(parts).encode("utf-8", "replace")

    def snapshot(self) -> dict[str, Any]:
        """The same for JSON: name to type, help and series. What JSON has no number for is None."""
        return {
            description.name: {
                "type": description.kind,
                "help": description.help,
                "series": [
                    {"labels": dict(zip(description.labels, labels, strict=True)), **_plain(value)}
                    for labels, value in rows
                ],
            }
            for source in self._sources
            for description, rows in source.collect()
        }

    def _add(self, family: Family[S]) -> Family[S]:
        self._claim(family.description)
        self._sources.append(family)
        return family

    def _claim(self, description: Description) -> None:
        names = description.sample_names()
        taken = self._names.intersection(names)
        if taken:
            raise MetricError(f"there is a metric {min(taken)} already")
        self._names.update(names)


def _present(
    labels: Iterable[tuple[str, ...]], values: Iterable[Value | None]
) -> Iterator[tuple[tuple[str, ...], Value]]:
    return ((key, value) for key, value in zip(labels, values, strict=True) if value is not None)


def _value(description: Description, series: Instrument) -> Value | None:
    if isinstance(series, Histogram):
        return series
    try:
        return series.read()
    except Exception:
        logger.exception("a value of %s cannot be read", description.name)
        return None


def _family_text(description: Description, rows: Iterable[tuple[tuple[str, ...], Value]]) -> Iterator[str]:
    name = description.name
    for place, (labels, value) in enumerate(rows):
        if place == 0:
            yield f"# HELP {name} {description.help.translate(_HELP_ESCAPES)}\n# TYPE {name} {description.kind}\n"
        inner = ",".join(
            f'{key}="{label.translate(_LABEL_ESCAPES)}"' for key, label in zip(description.labels, labels, strict=True)
        )
        outer = f"{{{inner}}}" if inner else ""
        if not isinstance(value, Histogram):
            yield f"{name}{outer} {_number(value)}\n"
            continue
        start = f"{name}_bucket{{{inner}," if inner else f"{name}_bucket{{"
        lines = [f'{start}le="{_number(bound)}"}} {count}\n' for bound, count in value.buckets()]
        lines.append(f"{name}_sum{outer} {_number(value.total)}\n{name}_count{outer} {value.count}\n")
        yield "".join(lines)


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _plain(value: Value) -> dict[str, Any]:
    if isinstance(value, Histogram):
        return {
            "count": value.count,
            "sum": _finite(value.total),
            "buckets": [[_finite(bound), count] for bound, count in value.buckets()],
            "p50": value.quantile(0.5),
            "p99": value.quantile(0.99),
        }
    return {"value": _finite(value)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
