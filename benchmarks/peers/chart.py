"""The ratios as a picture: a bar a row on a logarithmic axis, to the right of the middle where ours is better.

Rule: "better" is one direction for every row, so a ratio that should be small is drawn as its inverse. The mark on a
bar's line is its goal; a bar is red that misses it or, where there is none, shows ours behind. A ring shows the same
for an older server, if one ran.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.peers.figures import AT_MOST, DISK, ROWS, Figures, Work

_WIDTH, _LABELS, _LINE, _TOP = 900, 440, 20, 56
_MIDDLE: Final = _LABELS + 150
_DECADE: Final = 150
_BETTER, _WORSE, _INK, _GREY = "#2a7f62", "#b5483a", "#222", "#999"


def svg(figures: Figures, ours: str, theirs: str, older: str | None = None) -> str:
    drawn = [(work, ratio) for work in ROWS if work is not DISK and (ratio := figures.ratio(work, ours, theirs))]
    height = _TOP + _LINE * len(drawn) + 12
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'height="{height}" font-family="sans-serif" font-size="12" fill="{_INK}">',
            f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
            f'<text x="10" y="20" font-size="14">{escape(ours)} beside {escape(theirs)}: how many times better</text>',
            *_axis(height),
            *_bars(drawn),
            *([] if older is None else _rings(figures, [work for work, _ in drawn], ours, older)),
            "</svg>",
            "",
        ]
    )


def _axis(height: int) -> list[str]:
    lines = []
    for factor in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50):
        x = _place(factor)
        lines.append(f'<text x="{x}" y="44" text-anchor="middle" fill="{_GREY}">{factor:g}</text>')
        colour = _INK if factor == 1 else "#e4e4e4"
        lines.append(f'<line x1="{x}" x2="{x}" y1="50" y2="{height - 8}" stroke="{colour}"/>')
    return lines


def _bars(drawn: Sequence[tuple[Work, float]]) -> list[str]:
    lines = []
    for number, (work, ratio) in enumerate(drawn):
        y = _TOP + number * _LINE
        better = _as_better(work, ratio)
        start, end = sorted((_place(1), _place(better)))
        is_good = better >= 1 if work.goal is None else work.is_met(ratio)
        colour = _BETTER if is_good else _WORSE
        name = escape(work.name.strip())
        lines.append(f'<text x="{_LABELS - 10}" y="{y + 12}" text-anchor="end">{name}</text>')
        lines.append(f'<rect x="{start}" y="{y + 2}" width="{round(end - start, 1)}" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{_WIDTH - 8}" y="{y + 12}" text-anchor="end">{better:.2f}</text>')
        if work.goal is not None:
            x = _place(_as_better(work, work.goal))
            lines.append(f'<line x1="{x}" x2="{x}" y1="{y}" y2="{y + 16}" stroke="{_INK}" stroke-width="2"/>')
    return lines


def _rings(figures: Figures, drawn: Sequence[Work], ours: str, older: str) -> list[str]:
    lines = [
        f'<circle cx="{_WIDTH - 250}" cy="16" r="5" fill="#fff" stroke="{_INK}" stroke-width="1.5"/>',
        f'<text x="{_WIDTH - 238}" y="20">beside {escape(older)}</text>',
    ]
    for number, work in enumerate(drawn):
        ratio = figures.ratio(work, ours, older)
        if ratio:
            x, y = _place(_as_better(work, ratio)), _TOP + number * _LINE + 8
            lines.append(f'<circle cx="{x}" cy="{y}" r="5" fill="#fff" stroke="{_INK}" stroke-width="1.5"/>')
    return lines


def _as_better(work: Work, ratio: float) -> float:
    return 1 / ratio if work.bound == AT_MOST else ratio


def _place(factor: float) -> float:
    # A bar longer than the axis ends where the axis does; its figure is written beside it.
    return round(_MIDDLE + _DECADE * max(-1.0, min(1.7, math.log10(factor))), 1)
