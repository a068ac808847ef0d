"""SVG charts for an HTML page: lines over time, and stacked bars.

Colours are CSS classes (`c0` to `c9`, `good`, `bad`, ...) that the page defines for light and dark. Nothing is
fetched. A chart is 520 units wide with 13-unit letters, so that it is readable on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from penstock.activity.report.sections import Bar, Chart, Line, Mark

WIDTH: Final = 520
_HEIGHT: Final = 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 26, 24
_INNER_WIDTH: Final = WIDTH - _LEFT - _RIGHT
_ROW: Final = 26
_LABELS: Final = 118
_COLOURS: Final = 10
_MOST_POINTS: Final = 400

STYLE: Final = """
svg{width:100%;height:auto;display:block;font:13px system-ui,sans-serif}
svg text{fill:var(--ink)}svg .dim{fill:var(--dim)}svg .grid{stroke:var(--grid)}
svg .line{fill:none;stroke-width:1.8;stroke-linejoin:round}
svg .mark{stroke:var(--mark);stroke-dasharray:4 3}
"""
PALETTE_LIGHT: Final = (
    "#1f77b4", "#d1681b", "#2a8f4f", "#b83a3a", "#7a5cc0", "#8a6242", "#c4579e", "#5b6b7a", "#8c8a12", "#1295a5"
)  # fmt: skip
PALETTE_DARK: Final = (
    "#6bb1ea", "#f2a065", "#6fcf8f", "#f08080", "#b59cf0", "#cfa583", "#ec93cd", "#aab7c4", "#d6d45c", "#5fd0de"
)  # fmt: skip


def svg(chart: Chart) -> str:
    """A chart as SVG; nothing for a chart without points."""
    if chart.bars:
        return bars(chart.title, chart.bars, is_scaled=chart.is_scaled)
    return over_time(chart.title, chart.lines, chart.marks, unit=chart.unit)


def palette(colours: Sequence[str]) -> str:
    """The CSS rules of a colour scheme."""
    rules = [f"svg .line.c{number}{{stroke:{colour}}}" for number, colour in enumerate(colours)]
    return "".join([*rules, *(f"svg .area.c{number}{{fill:{colour}}}" for number, colour in enumerate(colours))])


# ---------------------------------------------------------------------------------------------- over time


def over_time(title: str, lines: Sequence[Line], marks: Sequence[Mark] = (), *, unit: str = "") -> str:
    """Lines on one scale from 0, with a legend below; nothing for lines without points."""
    lines = [line._replace(points=thinned(line.points)) for line in lines if line.points]
    if not lines:
        return ""
    times = [time for line in lines for time, _ in line.points]
    first, last = min(times), max(times)
    top = nice_top(max(value for line in lines for _, value in line.points))
    plot = _Plot(first, max(last, first + 1), top)
    legend = _legend(lines)
    height = _HEIGHT + 18 * len(legend) + 8
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="14" class="dim">{escape(unit)}</text>',
        *plot.grid(),
    ]
    for number, line in enumerate(lines):
        path = " ".join(f"{plot.x(time)},{plot.y(value)}" for time, value in line.points)
        parts.append(f'<polyline class="line c{_colour(line, number)}" points="{path}"/>')
    for mark in marks:
        if first <= mark.time_ms <= last:
            x = plot.x(mark.time_ms)
            anchor = "end" if x > WIDTH * 0.7 else "start"
            place = x - 4 if anchor == "end" else x + 4
            parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{_TOP - 4}" y2="{_HEIGHT - _BOTTOM}"/>')
            parts.append(f'<text x="{place}" y="{_TOP + 6}" text-anchor="{anchor}">{escape(mark.name)}</text>')
    for row, entries in enumerate(legend):
        y = _HEIGHT + 18 * row + 16
        for x, colour, name in entries:
            parts.append(f'<rect class="area c{colour}" x="{x}" y="{y - 9}" width="10" height="10"/>')
            parts.append(f'<text x="{x + 14}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"])


class _Plot:
    """The scales: times and values to coordinates."""

    def __init__(self, first: float, last: float, top: float) -> None:
        self._first, self._last, self._top = first, last, top

    def x(self, time_ms: float) -> float:
        return round(_LEFT + _INNER_WIDTH * (time_ms - self._first) / (self._last - self._first), 1)

    def y(self, value: float) -> float:
        inner = _HEIGHT - _TOP - _BOTTOM
        return round(_TOP + inner * (1 - value / self._top), 1)

    def grid(self) -> list[str]:
        parts: list[str] = []
        for number in range(5):
            value = self._top * number / 4
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text class="dim" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{short(value)}</text>')
        for number, anchor in ((0, "start"), (1, "middle"), (2, "end")):
            time_ms = self._first + (self._last - self._first) * number / 2
            words = datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%H:%M:%S")
            parts.append(
                f'<text class="dim" x="{self.x(time_ms)}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{words}</text>'
            )
        return parts


def _legend(lines: Sequence[Line]) -> list[list[tuple[int, int, str]]]:
    """Rows of (x, colour, name)."""
    rows: list[list[tuple[int, int, str]]] = [[]]
    x = _LEFT
    for number, line in enumerate(lines):
        width = 28 + 7 * len(line.name)
        if x + width > WIDTH and rows[-1]:
            rows.append([])
            x = _LEFT
        rows[-1].append((x, _colour(line, number), line.name))
        x += width
    return rows


def _colour(line: Line, number: int) -> int:
    return (number if line.colour is None else line.colour) % _COLOURS


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points, thinned to at most `_MOST_POINTS`: the greatest of each stretch stays, so that peaks do."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    step = math.ceil(len(points) / _MOST_POINTS)
    return [max(points[start : start + step], key=lambda one: one[1]) for start in range(0, len(points), step)]


def nice_top(value: float) -> float:
    """1, 2, 4 or 8 times a power of ten, not below the value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 8, 10) if factor * power >= value)


def short(value: float) -> str:
    """1200 -> "1.2k"."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


# ---------------------------------------------------------------------------------------------- bars


def bars(title: str, rows: Sequence[Bar], *, is_scaled: bool = False) -> str:
    """One row per bar. Bars are equally long, or with `is_scaled` on one scale."""
    if not rows:
        return ""
    height = _ROW * len(rows) + 6
    most = max(sum(part.value for part in bar.parts) for bar in rows) or 1.0
    room = WIDTH - _LABELS - 150
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    for number, bar in enumerate(rows):
        y = number * _ROW + 4
        whole = most if is_scaled else sum(part.value for part in bar.parts) or 1.0
        parts.append(f'<text x="{_LABELS - 8}" y="{y + 14}" text-anchor="end">{escape(bar.name)}</text>')
        x = float(_LABELS)
        for part in bar.parts:
            if part.value > 0:
                # One of a million must still be visible.
                width = max(2.0, room * part.value / whole)
                parts.append(
                    f'<rect class="{part.kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="18">'
                    f"<title>{escape(part.name)}: {part.value:,.0f}</title></rect>"
                )
                x += width
        parts.append(f'<text x="{WIDTH - 140}" y="{y + 14}">{escape(bar.detail)}</text>')
    return "\n".join([*parts, "</svg>"])
