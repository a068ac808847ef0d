"""The ratios to Kafka as a picture; a ring shows the same for an older server, if one ran.

Rule: a ratio that should be small is drawn as its inverse, so that to the right is better in every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from benchmarks.peers.figures import AT_MOST, DISK, ROWS, Figures, Work
from benchmarks.ratio_chart import INK, LINE, TOP, WIDTH, Bar, picture, place


def svg(figures: Figures, ours: str, theirs: str, older: str | None = None) -> str:
    drawn = [(work, ratio) for work in ROWS if work is not DISK and (ratio := figures.ratio(work, ours, theirs))]
    bars = [
        Bar(work.name.strip(), _as_better(work, ratio), None if work.goal is None else _as_better(work, work.goal))
        for work, ratio in drawn
    ]
    rings = [] if older is None else _rings(figures, [work for work, _ in drawn], ours, older)
    return picture(f"{ours} beside {theirs}: how many times better", bars, rings)


def _rings(figures: Figures, drawn: Sequence[Work], ours: str, older: str) -> list[str]:
    lines = [
        f'<circle cx="{WIDTH - 250}" cy="16" r="5" fill="#fff" stroke="{INK}" stroke-width="1.5"/>',
        f'<text x="{WIDTH - 238}" y="20">beside {escape(older)}</text>',
    ]
    for number, work in enumerate(drawn):
        ratio = figures.ratio(work, ours, older)
        if ratio:
            x, y = place(_as_better(work, ratio)), TOP + number * LINE + 8
            lines.append(f'<circle cx="{x}" cy="{y}" r="5" fill="#fff" stroke="{INK}" stroke-width="1.5"/>')
    return lines


def _as_better(work: Work, ratio: float) -> float:
    return 1 / ratio if work.bound == AT_MOST else ratio
