"""The ratios to Kafka as a picture, and requests per second by their number in flight as another."""

from __future__ import annotations

import math
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.ratio_chart import ratios
from benchmarks.replication.figures import DEPTH, DEPTHS
from benchmarks.results import Result

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _FLOOR = 640, 340, 70, 130, 44, 300
_COLOURS: Final = ("#2a7f62", "#b5483a")
_INK, _GREY = "#222", "#999"


def pictures(result: Result) -> dict[str, str]:
    drawn = ratios(result)
    by_depth = depths(result)
    return drawn if by_depth is None else {**drawn, f"{result.name}-depth.svg": by_depth}


def depths(result: Result) -> str | None:
    """A line for each cluster; the axis of depth is logarithmic. None if the run has no figures by depth."""
    works = {DEPTH[depth].name: depth for depth in DEPTHS}
    series: dict[str, dict[int, float]] = {}
    for row in result.rows:
        if row.work in works and row.table == DEPTH[1].table:
            for name, figure in row.figures.items():
                series.setdefault(name, {})[works[row.work]] = figure.value
    if not series:
        return None
    most = max(figure for line in series.values() for figure in line.values())

    def place(depth: int, figure: float) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log2(depth) / math.log2(DEPTHS[-1])
        return round(x, 1), round(_FLOOR - (_FLOOR - _TOP) * figure / most, 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        '<text x="10" y="20" font-size="14">requests per second on one connection, by how many are in flight</text>',
        f'<text x="{_LEFT - 8}" y="{_TOP + 4}" text-anchor="end" fill="{_GREY}">{most:,.0f}</text>',
        f'<text x="{_LEFT - 8}" y="{_FLOOR}" text-anchor="end" fill="{_GREY}">0</text>',
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{_FLOOR}" y2="{_FLOOR}" stroke="{_GREY}"/>',
    ]
    lines += [
        f'<text x="{place(depth, 0)[0]}" y="{_FLOOR + 16}" text-anchor="middle" fill="{_GREY}">{depth}</text>'
        for depth in DEPTHS
    ]
    for colour, (name, line) in zip(_COLOURS, series.items(), strict=False):
        points = [place(depth, figure) for depth, figure in sorted(line.items())]
        path = " ".join(f"{x},{y}" for x, y in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = points[-1]
        lines.append(f'<text x="{x + 8}" y="{y + 4}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])
