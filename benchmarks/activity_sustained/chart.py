"""The whole run as a picture: lag, batches, memory and processor time over the minutes, warm-up marked.

Rule: drawn by the charts of the run's own report; the file needs nothing else to be looked at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.activity_sustained.figures import Points, batch_ms, lag_seconds, memory_mb, warm_up_s
from benchmarks.activity_sustained.watching import Sample
from penstock.activity.live.charts import PALETTE_LIGHT, WIDTH, Line, Mark, over_time, palette

_GAP, _TOP = 24, 56
_STYLE: Final = (
    "text{fill:#222}.dim{fill:#777}.grid{stroke:#e4e4e4}.mark{stroke:#999;stroke-dasharray:4 3}"
    ".line{fill:none;stroke-width:1.4;stroke-linejoin:round}"
)


def svg(samples: Sequence[Sample], title: str, held: Points = ()) -> str:
    queries = sorted({name for one in samples for name in one.queries})
    kinds = sorted({kind for one in samples for kind in one.usages})
    heap = [("Spark's Java after collections", held)] if held else []
    panels = [
        _panel("seconds of events that wait", samples, [(name, lag_seconds(samples, name)) for name in queries]),
        _panel("time of a batch, ms", samples, [(name, batch_ms(samples, name)) for name in queries]),
        _panel("memory, MB", samples, [*((kind, memory_mb(samples, kind)) for kind in kinds), *heap]),
        _panel("cores", samples, [(kind, _cores(samples, kind)) for kind in kinds]),
    ]
    placed, height = _placed([panel for panel in panels if panel])
    width = 2 * WIDTH + 3 * _GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="sans-serif" font-size="13">',
            f"<style>{_STYLE}{palette(PALETTE_LIGHT)}</style>",
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            f'<text x="{_GAP}" y="30" font-size="16">{escape(title)}</text>',
            *placed,
            "</svg>",
            "",
        ]
    )


def _panel(unit: str, samples: Sequence[Sample], lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> str:
    warm = [Mark(1000 * warm_up_s(samples[-1].at_s), "judged from here on")] if samples else []
    drawn = [Line(name, [(1000 * at_s, value) for at_s, value in points]) for name, points in lines]
    return over_time(unit, drawn, warm, unit=unit)


def _cores(samples: Sequence[Sample], kind: str) -> list[tuple[float, float]]:
    return [(one.at_s, one.usages[kind].cores) for one in samples if kind in one.usages]


def _placed(panels: Sequence[str]) -> tuple[list[str], int]:
    """Two in a row."""
    placed: list[str] = []
    y = _TOP
    for start in range(0, len(panels), 2):
        row = panels[start : start + 2]
        heights = [_height(panel) for panel in row]
        for number, (panel, height) in enumerate(zip(row, heights, strict=True)):
            x = _GAP + number * (WIDTH + _GAP)
            placed.append(panel.replace("<svg ", f'<svg x="{x}" y="{y}" width="{WIDTH}" height="{height}" ', 1))
        y += max(heights) + _GAP
    return placed, y


def _height(panel: str) -> int:
    found = re.match(r'<svg viewBox="0 0 \d+ (\d+)"', panel)
    return int(found[1]) if found else 0
