"""`python -m benchmarks.activity_sustained`: runs, samples and judges; keeps a result and draws a chart."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from benchmarks import results
from benchmarks.activity_sustained import sampler, trends
from benchmarks.activity_sustained.sampler import GENERATOR, Family, Sample, queries_of
from benchmarks.activity_sustained.trends import Points, batch_ms, lag_seconds, memory_mb, warm_up_s
from benchmarks.results import Result
from penstock.activity.report.charts import PALETTE_LIGHT, WIDTH, over_time, palette
from penstock.activity.report.sections import Line, Mark

_EVERY_S: Final = 5.0
_START_S: Final = 300.0
_END_S: Final = 400.0
_STOP_S: Final = 15.0
_GAP, _TOP = 24, 56
_STYLE: Final = (
    "text{fill:#222}.dim{fill:#777}.grid{stroke:#e4e4e4}.mark{stroke:#999;stroke-dasharray:4 3}"
    ".line{fill:none;stroke-width:1.4;stroke-linejoin:round}"
)
Lines = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
"""Points by panel and name: seconds since the first event, and a value."""

# ---------------------------------------------------------------------------------------------- the benchmark


class RunEnded(Exception):
    """The run failed."""


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("activity_sustained", "All pipelines for a while, at a flat rate.")
    parser.add_argument("--minutes", type=float, default=50.0, help="minutes of generated events (50)")
    parser.add_argument("--rate", type=float, default=2_000.0, help="events/s (2000)")
    parser.add_argument("--folder", type=Path, help="folder for the run's data (a temporary folder)")
    parser.add_argument("--without-report", action="store_true", help="do not check at the end that nothing was lost")
    options = parser.parse_args(arguments)
    if options.minutes <= 0 or options.rate < 1:
        parser.error("--minutes must be above 0 and --rate at least 1")
    recording = results.begin("activity_sustained", parser, options, arguments, irrelevant=("folder",))
    # SIGTERM ends the run too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="sustained-") as scratch:
        folder = Path(scratch) / "run"
        try:
            samples, began_ms = _run(folder, options.minutes, options.rate, not options.without_report)
        except RunEnded as error:
            sys.exit(f"{error}\n{_last_lines(folder)}")
        held = [one for one in sampler.held_mb(_collections(folder), began_ms) if 0 <= one[0] <= samples[-1].at_s]
        summary = _json(folder / "generated.json")
        report = None if options.without_report else _json(folder / "report" / "report.json")
    failures = None if report is None else list(report.get("failures", ["there is no report"]))
    verdicts = trends.verdicts(samples, options.rate, summary, failures, held)
    is_sustained = all(one.is_good for one in verdicts)
    recording.keep(
        trends.rows(samples, options.rate, summary, failures, held),
        notes=[f"{'sustained' if is_sustained else 'NOT sustained'}: {sum(one.is_good for one in verdicts)} of "
               f"{len(verdicts)} conditions are met",
               *(f"not met: {one.said}" for one in verdicts if not one.is_good)],
        details={
            "lines": lines_of(samples, held),
            "length_s": samples[-1].at_s,
            "generated": summary,
            "report": None if report is None else {key: report.get(key) for key in ("goals", "failures", "latencies")},
        },
    )  # fmt: skip
    if not is_sustained:
        sys.exit(1)


def _collections(folder: Path) -> Path:
    return folder.with_suffix(".gc")


def _run(folder: Path, minutes: float, rate: float, has_report: bool) -> tuple[list[Sample], int]:
    """Samples from the first event to the last, and the time of the first. Raises RunEnded."""
    output = folder.with_suffix(".out")
    command = [
        sys.executable, "-m", "penstock", "activity", "run", "--data-dir", str(folder), "--port", "0", "--http-port",
        "0", "--minutes", f"{minutes:g}", "--rate", f"{rate:g}", "--rhythm", "flat",
        *(["--report"] if has_report else []),
    ]  # fmt: skip
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env=sampler.environment(_collections(folder), os.environ),
        )  # fmt: skip
    with _ended(process):
        samples: list[Sample] = []
        began_ms = 0
        for sample in _samples(process, folder, minutes):
            began_ms = began_ms or time.time_ns() // 1_000_000 - int(1000 * sample.at_s)
            samples.append(sample)
        if not samples:
            raise RunEnded("no events were seen")
        _say("no more events; waiting for the end")
        try:
            code = process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise RunEnded(f"the run did not end within {_END_S:.0f} s") from None
    if code and not (folder / "report" / "report.json").exists():
        raise RunEnded(f"the run ended with code {code}")
    return samples, began_ms


def _samples(process: subprocess.Popen[bytes], folder: Path, minutes: float) -> Iterator[Sample]:
    """A sample every five seconds while the generator runs."""
    family = Family(process.pid)
    _say("starting broker, Spark and site")
    until_s = time.monotonic() + _START_S
    while GENERATOR not in family.sample(time.monotonic()):
        if process.poll() is not None or time.monotonic() > until_s:
            raise RunEnded("the run did not start in time")
        time.sleep(_EVERY_S / 10)
    began_s = next_s = time.monotonic()
    reported_s = 0.0
    while True:
        next_s = max(next_s + _EVERY_S, time.monotonic())
        time.sleep(max(0.0, next_s - time.monotonic()))
        if process.poll() is not None:
            raise RunEnded(f"the run ended with code {process.returncode} while events should come")
        now_s = time.monotonic()
        usages = family.sample(now_s)
        if GENERATOR not in usages:
            return
        sample = Sample(round(now_s - began_s, 2), queries_of(folder / "warehouse"), usages)
        yield sample
        if now_s - reported_s >= 60:
            reported_s = now_s
            _say(f"{sample.at_s / 60:4.1f} of {minutes:g} min: {_line(sample)}")


def _line(sample: Sample) -> str:
    lags = ", ".join(f"{name} {query.lag:,}" for name, query in sorted(sample.queries.items()))
    used = sum(usage.cores for usage in sample.usages.values())
    memory_mb = sum(usage.memory_mb for usage in sample.usages.values())
    return f"lag {lags}; {used:.2f} cores, {memory_mb:,.0f} MB"


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends the run in any case."""
    try:
        yield
    finally:
        for ask in (process.terminate, process.kill):
            if process.poll() is None:
                ask()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_S)


def _last_lines(folder: Path) -> str:
    output = folder.with_suffix(".out")
    return "\n".join(f"  | {line}" for line in output.read_text(errors="replace").splitlines()[-12:])


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _say(text: str) -> None:
    print(f"sustained: {time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------- the chart


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
    # Rounded for the chart; the rows of the result have the measured values.
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
    """Places two panels per row."""
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
