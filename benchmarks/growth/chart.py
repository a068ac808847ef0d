"""Growth as a picture: how many times the cost with the least partitions and connections, a bar for each other scale.

The axis is logarithmic and begins at 1: a bar too short to be seen is a cost that does not grow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.growth.figures import REQUESTS, request, table_of
from benchmarks.peers import ours
from benchmarks.ratio_chart import ratios
from benchmarks.results import Result, Row

_WIDTH, _LABELS, _LINE, _GAP, _TOP = 860, 330, 15, 8, 56
_DECADE: Final = 150
_COLOURS: Final = ("#b8cfe0", "#88afcd", "#5b8fb9", "#35719f", "#1b5582", "#0b3a5e")
_INK, _GREY = "#222", "#999"
_DRAWN: Final = {request(name, "p50").name for name in REQUESTS}


def pictures(result: Result) -> dict[str, str]:
    rows = [row for row in result.rows if row.table == table_of(ours.NAME) and row.work in _DRAWN]
    return {f"{result.name}-scale.svg": svg(rows, ours.NAME), **ratios(result)} if rows else ratios(result)


def svg(rows: Sequence[Row], server: str) -> str:
    """Of rows whose columns are scales, the least one first."""
    least = next(iter(rows[0].figures))
    lines: list[str] = []
    y = _TOP
    for row in rows:
        lines.append(f'<text x="10" y="{y + 12}">{escape(row.work)}</text>')
        first = row.figures.get(least)
        for number, (scale, figure) in enumerate(row.figures.items()):
            if first is None or scale == least:
                continue
            times = figure.value / first.value
            end = _place(max(1.0, times))
            colour = _COLOURS[(number - 1) % len(_COLOURS)]
            lines.append(f'<text x="{_LABELS - 8}" y="{y + 12}" text-anchor="end" fill="{_GREY}">{scale}</text>')
            lines.append(f'<rect x="{_LABELS}" y="{y + 2}" width="{end - _LABELS:.1f}" height="11" fill="{colour}"/>')
            lines.append(f'<text x="{end + 5:.1f}" y="{y + 12}">{times:.2f}</text>')
            y += _LINE
        y += _GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" '
            f'font-family="sans-serif" font-size="12" fill="{_INK}">',
            f'<rect width="{_WIDTH}" height="{y}" fill="#fff"/>',
            f'<text x="10" y="20" font-size="14">{escape(server)}: median time, in multiples of that with '
            f"{least} (partitions / connections)</text>",
            *_axis(y),
            *lines,
            "</svg>",
            "",
        ]
    )


def _axis(height: int) -> list[str]:
    lines = []
    for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        x = _place(factor)
        lines.append(f'<text x="{x:.1f}" y="44" text-anchor="middle" fill="{_GREY}">{factor}</text>')
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="50" y2="{height - 4}" stroke="#e4e4e4"/>')
    return lines


def _place(factor: float) -> float:
    return _LABELS + _DECADE * math.log10(min(factor, 1500))
