"""`python -m benchmarks.growth`: measured, printed as tables, kept as a result, and drawn.

The chart shows the cost in multiples of the smallest scale on a logarithmic axis from 1: no bar means no growth.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from tests.peers.installing import CACHE, NotAvailable

from benchmarks import results
from benchmarks.growth.lifecycle import FULL, QUICK, REQUESTS, Run, Starter, request, rows, table_of
from benchmarks.peers import kafka, ours
from benchmarks.ratio_chart import ratios
from benchmarks.results import Result, Row

_NOTES = (
    "memory per partition and per connection: what the resident memory grew by; a JVM's reserved heap hides it",
    "create: until every partition can be read; Kafka has answered long before that",
    "CPU: the broker's, for all that is needed to ask once; ours also looks for the next request while it has time",
)
_WIDTH, _LABELS, _LINE, _GAP, _TOP = 860, 330, 15, 8, 56
_DECADE: Final = 150
_COLOURS: Final = ("#b8cfe0", "#88afcd", "#5b8fb9", "#35719f", "#1b5582", "#0b3a5e")
_INK, _GREY = "#222", "#999"
_DRAWN: Final = {request(name, "p50").name for name in REQUESTS}

# ---------------------------------------------------------------------------------------------- the benchmark


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("growth", "What a broker's size costs.")
    parser.add_argument("--quick", action="store_true", help="few partitions: shows that it works, not how it grows")
    parser.add_argument("--ours-only", action="store_true", help="without Kafka")
    parser.add_argument("--folder", type=Path, default=CACHE, help="folder for the brokers' data during the run")
    options = parser.parse_args(arguments)
    recording = results.begin("growth", parser, options, arguments, irrelevant=("folder",))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"growth: {time.monotonic() - began:4.0f} s  {text}", file=sys.stderr, flush=True)

    # A terminated run takes its brokers along.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    beside: Starter | None = None
    if not options.ours_only:
        try:
            beside = kafka.Kafka().start
        except NotAvailable as error:
            recording.lacks(f"{kafka.NAME} is not available: {error}")
    options.folder.mkdir(parents=True, exist_ok=True)
    load = QUICK if options.quick else FULL
    run = Run(load, ours.start, beside, options.folder, say)
    run.run()
    say("done")
    servers = [ours.NAME] if beside is None else [ours.NAME, kafka.NAME]
    recording.keep(rows(run.figures, servers), notes=_NOTES, settings={"load": asdict(load)})


# ---------------------------------------------------------------------------------------------- the chart


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
