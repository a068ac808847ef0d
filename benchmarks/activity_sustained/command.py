"""`python -m benchmarks.activity_sustained`: run, watched, judged, and kept as a result."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import results
from benchmarks.activity_sustained import chart, figures, heap
from benchmarks.activity_sustained.watching import GENERATOR, Family, Sample, queries_of

_EVERY_S: Final = 5.0
_START_S: Final = 300.0
_END_S: Final = 400.0
_STOP_S: Final = 15.0


class RunEnded(Exception):
    """The run is not what it should be."""


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("activity_sustained", "All pipelines for a while, at a flat rate.")
    parser.add_argument("--minutes", type=float, default=50.0, help="how long events come (50)")
    parser.add_argument("--rate", type=float, default=2_000.0, help="events/s (2000)")
    parser.add_argument("--folder", type=Path, help="folder for the run's data (a temporary folder)")
    parser.add_argument("--without-report", action="store_true", help="do not check at the end that nothing was lost")
    options = parser.parse_args(arguments)
    if options.minutes <= 0 or options.rate < 1:
        parser.error("--minutes has to be above 0, and --rate at least 1")
    recording = results.begin("activity_sustained", parser, options, arguments, irrelevant=("folder",))
    # A terminated benchmark takes the run along.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="sustained-") as scratch:
        folder = Path(scratch) / "run"
        try:
            samples, began_ms = _run(folder, options.minutes, options.rate, not options.without_report)
        except RunEnded as error:
            sys.exit(f"{error}\n{_last_lines(folder)}")
        held = [one for one in heap.held_mb(_collections(folder), began_ms) if 0 <= one[0] <= samples[-1].at_s]
        summary = _json(folder / "generated.json")
        report = None if options.without_report else _json(folder / "report" / "report.json")
    failures = None if report is None else list(report.get("failures", ["there is no report"]))
    verdicts = figures.verdicts(samples, options.rate, summary, failures, held)
    is_sustained = all(one.is_good for one in verdicts)
    recording.keep(
        figures.rows(samples, options.rate, summary, failures, held),
        notes=[f"{'sustained' if is_sustained else 'NOT sustained'}: {sum(one.is_good for one in verdicts)} of "
               f"{len(verdicts)} conditions are met",
               *(f"not met: {one.said}" for one in verdicts if not one.is_good)],
        details={
            "lines": chart.lines_of(samples, held),
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
    """Samples from the first event to the last, and when that was. Raises RunEnded."""
    output = folder.with_suffix(".out")
    command = [
        sys.executable, "-m", "penstock", "activity", "run", "--data-dir", str(folder), "--port", "0", "--http-port",
        "0", "--minutes", f"{minutes:g}", "--rate", f"{rate:g}", "--rhythm", "flat",
        *(["--report"] if has_report else []),
    ]  # fmt: skip
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env=heap.environment(_collections(folder), os.environ),
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
    """One every five seconds while the generator is there."""
    family = Family(process.pid)
    _say("starting broker, Spark and site")
    until_s = time.monotonic() + _START_S
    while GENERATOR not in family.look(time.monotonic()):
        if process.poll() is not None or time.monotonic() > until_s:
            raise RunEnded("the run did not come up")
        time.sleep(_EVERY_S / 10)
    began_s = next_s = time.monotonic()
    told_s = 0.0
    while True:
        next_s = max(next_s + _EVERY_S, time.monotonic())
        time.sleep(max(0.0, next_s - time.monotonic()))
        if process.poll() is not None:
            raise RunEnded(f"the run ended with code {process.returncode} while events should come")
        now_s = time.monotonic()
        usages = family.look(now_s)
        if GENERATOR not in usages:
            return
        sample = Sample(round(now_s - began_s, 2), queries_of(folder / "warehouse"), usages)
        yield sample
        if now_s - told_s >= 60:
            told_s = now_s
            _say(f"{sample.at_s / 60:4.1f} of {minutes:g} min: {_line(sample)}")


def _line(sample: Sample) -> str:
    lags = ", ".join(f"{name} {query.lag:,}" for name, query in sorted(sample.queries.items()))
    used = sum(usage.cores for usage in sample.usages.values())
    memory_mb = sum(usage.memory_mb for usage in sample.usages.values())
    return f"lag {lags}; {used:.2f} cores, {memory_mb:,.0f} MB"


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever happens, the run does not stay behind."""
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
