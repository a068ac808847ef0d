"""The ratios to Kafka as a picture, and requests a second by their number in flight as another.

Rule: a ratio that should be small is drawn as its inverse, so that to the right is better in every row.
"""

from __future__ import annotations

import math
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.peers.figures import AT_MOST, Figures, Work
from benchmarks.ratio_chart import Bar, picture
from benchmarks.replication.figures import DEPTH, DEPTHS, ROWS

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _FLOOR = 640, 340, 70, 130, 44, 300
_COLOURS: Final = ("#2a7f62", "#b5483a")
_INK, _GREY = "#222", "#999"


def ratios(figures: Figures, ours: str, theirs: str) -> str:
    bars = [
        Bar(work.name.strip(), _better(work, ratio), None if work.goal is None else _better(work, work.goal))
        for work in ROWS
        if (ratio := figures.ratio(work, ours, theirs))
    ]
    return picture(f"{ours} beside {theirs}, acks=all, three replicas: how many times better", bars)


def depths(figures: Figures, names: tuple[str, ...]) -> str:
    """A line a cluster; the axis of depth is logarithmic."""
    series = {name: [figures.median(DEPTH[depth], name) for depth in DEPTHS] for name in names}
    most = max((figure for line in series.values() for figure in line if figure), default=1.0)

    def place(depth: int, figure: float) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log2(depth) / math.log2(DEPTHS[-1])
        return round(x, 1), round(_FLOOR - (_FLOOR - _TOP) * figure / most, 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        '<text x="10" y="20" font-size="14">requests a second on one connection, by how many are in flight</text>',
        f'<text x="{_LEFT - 8}" y="{_TOP + 4}" text-anchor="end" fill="{_GREY}">{most:,.0f}</text>',
        f'<text x="{_LEFT - 8}" y="{_FLOOR}" text-anchor="end" fill="{_GREY}">0</text>',
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{_FLOOR}" y2="{_FLOOR}" stroke="{_GREY}"/>',
    ]
    lines += [
        f'<text x="{place(depth, 0)[0]}" y="{_FLOOR + 16}" text-anchor="middle" fill="{_GREY}">{depth}</text>'
        for depth in DEPTHS
    ]
    for colour, (name, line) in zip(_COLOURS, series.items(), strict=False):
        points = [place(depth, figure) for depth, figure in zip(DEPTHS, line, strict=True) if figure is not None]
        if points:
            path = " ".join(f"{x},{y}" for x, y in points)
            lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            x, y = points[-1]
            lines.append(f'<text x="{x + 8}" y="{y + 4}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _better(work: Work, ratio: float) -> float:
    return 1 / ratio if work.bound == AT_MOST else ratio
