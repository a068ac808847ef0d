"""Ratios as a picture: one bar per row on a logarithmic axis, to the right of 1 where ours is better.

A ratio that should be small is drawn as its inverse, so that "better" is one direction for every row. The mark on a bar
is its goal. A bar is red if it misses the goal or, without a goal, if the peer is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from benchmarks.results import Result, Row

_WIDTH, _LABELS, _LINE, _TOP = 900, 440, 20, 56
_INK = "#222"
_MIDDLE: Final = _LABELS + 150
_DECADE: Final = 150
_BETTER, _WORSE, _GREY = "#2a7f62", "#b5483a", "#999"
_MOST_LETTERS: Final = 66


class Bar(NamedTuple):
    """How many times better ours is, and how many times it should be."""

    label: str
    better: float
    goal: float | None = None

    @property
    def is_good(self) -> bool:
        return self.better >= (1.0 if self.goal is None else self.goal)


def ratios(result: Result) -> dict[str, str]:
    """The picture of a result that has rows with a peer, by its file name."""
    compared = [row for row in result.rows if row.times_better is not None]
    if not compared:
        return {}
    tables = list(dict.fromkeys(row.table for row in compared))
    lines: list[Bar | str] = []
    for title in tables:
        lines += [title] if title and len(tables) > 1 else []
        lines += [bar for row in compared if row.table == title and (bar := _bar(row)) is not None]
    pairs = {(row.subject, row.peer) for row in compared}
    who = "{} beside {}".format(*next(iter(pairs))) if len(pairs) == 1 else f"{result.name}: ours beside its peers"
    return {f"{result.name}.svg": picture(f"{who}: how many times better", lines)}


def _bar(row: Row) -> Bar | None:
    better = row.times_better
    return None if better is None else Bar(f"{row.work.strip()}, {row.unit}", better, row.turned(row.goal))


def picture(title: str, bars: Sequence[Bar | str]) -> str:
    """The chart as SVG. A text among the bars is a heading."""
    height = _TOP + _LINE * len(bars) + 12
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'height="{height}" font-family="sans-serif" font-size="12" fill="{_INK}">',
            f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
            f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
            *_axis(height),
            *(line for number, bar in enumerate(bars) for line in _drawn(number, bar)),
            "</svg>",
            "",
        ]
    )


def _place(better: float) -> float:
    """Where on the axis; a bar longer than the axis ends where that does, and its figure is written beside it."""
    return round(_MIDDLE + _DECADE * max(-1.0, min(1.7, math.log10(better))), 1)


def _axis(height: int) -> list[str]:
    lines = []
    for factor in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50):
        x = _place(factor)
        lines.append(f'<text x="{x}" y="44" text-anchor="middle" fill="{_GREY}">{factor:g}</text>')
        colour = _INK if factor == 1 else "#e4e4e4"
        lines.append(f'<line x1="{x}" x2="{x}" y1="50" y2="{height - 8}" stroke="{colour}"/>')
    return lines


def _drawn(number: int, bar: Bar | str) -> list[str]:
    y = _TOP + number * _LINE
    if isinstance(bar, str):
        return [f'<text x="10" y="{y + 13}" font-weight="bold">{escape(bar)}</text>']
    start, end = sorted((_place(1), _place(bar.better)))
    colour = _BETTER if bar.is_good else _WORSE
    label = bar.label if len(bar.label) <= _MOST_LETTERS else f"{bar.label[: _MOST_LETTERS - 1]}…"
    lines = [
        f'<text x="{_LABELS - 10}" y="{y + 12}" text-anchor="end">{escape(label)}</text>',
        f'<rect x="{start}" y="{y + 2}" width="{round(end - start, 1)}" height="12" fill="{colour}"/>',
        f'<text x="{_WIDTH - 8}" y="{y + 12}" text-anchor="end">{bar.better:.2f}</text>',
    ]
    if bar.goal is not None:
        x = _place(bar.goal)
        lines.append(f'<line x1="{x}" x2="{x}" y1="{y}" y2="{y + 16}" stroke="{_INK}" stroke-width="2"/>')
    return lines
