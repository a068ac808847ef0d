"""The report model: sections of tables and charts. Pure.

`Document.sections()` says what a report shows and `Snapshot.sections()` what a running pipeline shows. Plain text,
HTML, the terminal and the page lay out the same sections and add nothing of their own. The rows of a table are the
structs that JSON has under the table's name; a column reads one value of a row and says what kind of value it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

Kind = Literal[
    "text", "strong", "quiet", "number", "short", "share", "bar", "clock", "elapsed", "mark", "chip", "state", "trend"
]
Look = Literal["", "good", "warn", "bad", "quiet"]

_NUMBERS: Final = frozenset({"number", "short", "share", "bar", "elapsed"})
_MARKS: Final = {True: "ok", False: "MISSED", None: "-"}
_LOOKS: Final[Mapping[object, Look]] = {
    "starting": "quiet", "waiting": "warn", "failed": "bad", "gone": "bad",
    "critical": "bad", "warning": "warn", "closed": "quiet", "rising": "good",
    True: "good", False: "bad", None: "quiet",
}  # fmt: skip


# ---------------------------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Column:
    """A column of a table. Its cells are `value(row)`, or the row's field `name`."""

    name: str
    title: str
    kind: Kind = "text"
    digits: int = 0
    unit: str = ""
    detail: int = 0
    """0 is shown everywhere, 1 not on a terminal, 2 only on a wide page."""
    value: Callable[[Any], object] | None = None
    warn_above: float | None = None

    @property
    def is_number(self) -> bool:
        return self.kind in _NUMBERS

    def cell(self, row: Any) -> object:
        if self.value is not None:
            return self.value(row)
        return row[self.name] if isinstance(row, Mapping) else getattr(row, self.name)

    def text(self, value: object) -> str:
        """The cell as plain text."""
        if self.kind == "mark":
            return _MARKS[bool(value) if value is not None else None]
        if value is None:
            return "-"
        if not isinstance(value, int | float):
            return str(value)
        unit = f" {self.unit}" if self.unit else ""
        match self.kind:
            case "clock":
                return utc_clock(int(value))
            case "elapsed":
                return elapsed_text(int(value))
            case "share":
                return f"{value * 100:,.{self.digits}f} %"
            case "short":
                return short_number(value) + unit
        return f"{value:,.{self.digits}f}{unit}"

    def look(self, value: object) -> Look:
        """How a cell stands out."""
        if self.kind in ("mark", "chip", "state"):
            return _LOOKS.get(value, "")
        is_high = self.warn_above is not None and isinstance(value, int | float) and value > self.warn_above
        return "warn" if is_high else ""


@dataclass(frozen=True)
class Table:
    """Rows under columns. `empty` is the text in place of a table without rows."""

    name: str
    columns: tuple[Column, ...]
    rows: Sequence[Any]
    empty: str = ""

    def cells(self) -> list[list[object]]:
        return [[column.cell(row) for column in self.columns] for row in self.rows]

    def without_details(self) -> Table:
        """The columns for which a terminal has room."""
        return replace(self, columns=tuple(column for column in self.columns if not column.detail))


# ---------------------------------------------------------------------------------------------- charts


class Line(NamedTuple):
    """A line of a chart: points are times in milliseconds and values. `colour` is an index, by default the next."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int | None = None


class Mark(NamedTuple):
    """A moment, drawn as a vertical line."""

    time_ms: float
    name: str


class Part(NamedTuple):
    """A part of a bar, with the CSS class of its colour."""

    value: float
    kind: str
    name: str


class Bar(NamedTuple):
    """Parts in a row, with a text behind them."""

    name: str
    parts: Sequence[Part]
    detail: str


@dataclass(frozen=True)
class Chart:
    """Lines over time, or bars. The page draws the field `name` of its samples, multiplied by `factor`."""

    name: str
    title: str
    unit: str = ""
    digits: int = 0
    factor: float = 1.0
    least: float = 1.0
    """The least value at the top of the axis."""
    empty: str = ""
    note: str = ""
    lines: Sequence[Line] = ()
    marks: Sequence[Mark] = ()
    bars: Sequence[Bar] = ()
    is_scaled: bool = False
    """Bars have one scale; otherwise each is as long as the others."""

    def of_samples(self, samples: Iterable[Mapping[str, Any]]) -> Chart:
        """A line for each key of the field; negative values mean "unknown" and are left out."""
        points: dict[str, list[tuple[float, float]]] = {}
        for sample in samples:
            for key, value in (sample.get(self.name) or {}).items():
                if value is not None and value >= 0:
                    points.setdefault(key, []).append((sample["time_ms"], value * self.factor))
        return replace(self, lines=[Line(key, values) for key, values in points.items()])


EVENT_RATES: Final = Chart("rates", "Events per second by topic")
LAG: Final = Chart("lag", "Lag by pipeline, in records", least=100, empty="Lag is known after the first batch.")
BATCH_DURATION: Final = Chart(
    "batch_ms", "Batch duration by pipeline", unit="s", digits=1, factor=1 / 1000,
    empty="The first batch takes longest: Spark compiles it.",
)  # fmt: skip
MEMORY: Final = Chart("memory_bytes", "Memory by process", unit="MB", factor=1 / 1_000_000)


# ---------------------------------------------------------------------------------------------- sections


class Figure(NamedTuple):
    """One number at a glance."""

    title: str
    value: str
    note: str = ""
    look: Look = ""


@dataclass(frozen=True)
class Section:
    """A title with a note, charts, a table, and lines of text; each may be missing."""

    name: str
    title: str
    note: str = ""
    charts: tuple[Chart, ...] = ()
    table: Table | None = None
    lines: tuple[str, ...] = ()


def section_json(section: Section) -> dict[str, Any]:
    """A section for the page. The points of charts are not in it: the page has the samples."""
    document: dict[str, Any] = {"name": section.name, "title": section.title, "note": section.note}
    if section.table is not None:
        document["table"] = {
            "empty": section.table.empty,
            "columns": [
                {
                    "title": column.title, "kind": column.kind, "digits": column.digits, "unit": column.unit,
                    "detail": column.detail, "warn_above": column.warn_above, "is_number": column.is_number,
                }
                for column in section.table.columns
            ],
            "rows": section.table.cells(),
        }  # fmt: skip
    document["charts"] = [
        {
            "field": chart.name, "title": chart.title, "unit": chart.unit, "digits": chart.digits,
            "factor": chart.factor, "least": chart.least, "empty": chart.empty,
        }
        for chart in section.charts
    ]  # fmt: skip
    return document


# ---------------------------------------------------------------------------------------------- texts of values


def utc_clock(time_ms: int | None) -> str:
    return "-" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%H:%M:%SZ")


def elapsed_text(milliseconds: int) -> str:
    """ "02:05", "1:02:05"."""
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def short_number(count: float) -> str:
    """ "8,120", "12.3k", "4.57M"."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if count >= size:
            divisor = 1e3 if unit == "k" else size
            return f"{count / divisor:.{1 if unit == 'k' else 2}f}{unit}"
    return f"{count:,.0f}"
