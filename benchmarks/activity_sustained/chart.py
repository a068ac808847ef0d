"""The whole run as a picture: lag, batches, memory and processor time over the minutes, warm-up marked.

It is drawn from the lines that the result keeps, by the charts of the run's own report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

from benchmarks.activity_sustained.figures import Points, batch_ms, lag_seconds, memory_mb, warm_up_s
from benchmarks.activity_sustained.watching import Sample
from benchmarks.results import Result
from penstock.activity.live.charts import PALETTE_LIGHT, WIDTH, Line, Mark, over_time, palette

_GAP, _TOP = 24, 56
_STYLE: Final = (
    "text{fill:#222}.dim{fill:#777}.grid{stroke:#e4e4e4}.mark{stroke:#999;stroke-dasharray:4 3}"
    ".line{fill:none;stroke-width:1.4;stroke-linejoin:round}"
)

Lines = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
"""By panel and name: seconds since the first event, and a value."""


def lines_of(samples: Sequence[Sample], held: Points = ()) -> dict[str, dict[str, list[tuple[float, float]]]]:
    queries = sorted({name for one in samples for name in one.queries})
    kinds = sorted({kind for one in samples for kind in one.usages})
    heap = {"Spark's Java after collections": list(held)} if held else {}
    lines = {
        "seconds of events that wait": {name: lag_seconds(samples, name) for name in queries},
        "time of a batch, ms": {name: batch_ms(samples, name) for name in queries},
        "memory, MB": {**{kind: memory_mb(samples, kind) for kind in kinds}, **heap},
        "cores": {kind: _cores(samples, kind) for kind in kinds},
    }
    # Enough for a picture; what is judged is in the rows of the result, as it was measured.
    return {
        panel: {name: [(at_s, round(value, 3)) for at_s, value in points] for name, points in each.items()}
        for panel, each in lines.items()
    }


def pictures(result: Result) -> dict[str, str]:
    details: Mapping[str, Any] = result.details
    is_met = all(row.is_met is not False for row in result.rows)
    minutes = result.settings["minutes"]
    title = f"All six pipelines, {minutes:g} min at {result.settings['rate']:,.0f} events/s: "
    title += f"{'flat' if is_met else 'not flat'} ({result.machine})"
    return {f"{result.name}.svg": svg(details["lines"], details["length_s"], title)}


def svg(lines: Lines, length_s: float, title: str) -> str:
    panels = [_panel(unit, length_s, each) for unit, each in lines.items()]
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


def _panel(unit: str, length_s: float, lines: Mapping[str, Sequence[Sequence[float]]]) -> str:
    drawn = [Line(name, [(1000 * at_s, value) for at_s, value in points]) for name, points in lines.items()]
    return over_time(unit, drawn, [Mark(1000 * warm_up_s(length_s), "judged from here on")], unit=unit)


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
