"""`python -m benchmarks.activity_sustained`: run, watched, judged, and kept in benchmarks/results/."""

from __future__ import annotations

import argparse
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

from benchmarks.activity_sustained import figures, heap
from benchmarks.activity_sustained.chart import svg
from benchmarks.activity_sustained.figures import Course, Points, Verdict
from benchmarks.activity_sustained.watching import GENERATOR, Family, Sample, queries_of
from benchmarks.report import machine, table

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
_EVERY_S: Final = 5.0
_START_S: Final = 300.0
_END_S: Final = 400.0
_STOP_S: Final = 15.0
_LONG_MIN: Final = 10.0
_QUIET_LOAD: Final = 0.5


class RunEnded(Exception):
    """The run is not what it should be."""


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.activity_sustained", description="All pipelines for a while, at a flat rate."
    )
    parser.add_argument("--minutes", type=float, default=50.0, help="how long events come (50)")
    parser.add_argument("--rate", type=float, default=2_000.0, help="events a second (2000)")
    parser.add_argument("--folder", type=Path, help="where the run's data is put meanwhile (a temporary folder)")
    parser.add_argument("--without-report", action="store_true", help="do not check at the end that nothing was lost")
    options = parser.parse_args(arguments)
    if options.minutes <= 0 or options.rate < 1:
        parser.error("--minutes has to be above 0, and --rate at least 1")
    load = os.getloadavg()[0]
    # Who is told to end takes the run along.
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
    _print(samples, verdicts, held)
    if load > _QUIET_LOAD:
        print(f"CAUTION: the machine was busy before the run began (load {load:.1f})")
    _keep(samples, verdicts, held, options, summary, report, load)
    if not all(one.is_good for one in verdicts):
        sys.exit(1)


# ---------------------------------------------------------------------------------------------- running


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


# ---------------------------------------------------------------------------------------------- telling


def _print(samples: Sequence[Sample], verdicts: Sequence[Verdict], held: Points) -> None:
    table("Seconds of events that wait, after the warm-up", _rows(figures.lags(samples), 1))
    table("Times of batches, ms", _rows(figures.batches(samples), 0))
    table("Memory, MB", _rows(_memory(samples, held), 0))
    used = figures.cores(samples)
    table("Cores in the mean", [{"process": name, "cores": f"{each:.2f}"} for name, each in used.items()])
    print(f"  all: {sum(used.values()):.2f} of {os.cpu_count()}\n")
    for one in verdicts:
        print(f"{'yes' if one.is_good else 'NO ':<4}{one.said}")


def _memory(samples: Sequence[Sample], held: Points) -> dict[str, Course]:
    return {**figures.memories(samples), **figures.heap(samples, held), **figures.state(samples)}


def _rows(courses: dict[str, Course], digits: int) -> list[dict[str, Any]]:
    return [
        {
            "": name,
            "p50": f"{one.p50:,.{digits}f}",
            "p95": f"{one.p95:,.{digits}f}",
            "most": f"{one.most:,.{digits}f}",
            "a minute": f"{one.slope_per_min:+,.2f}",
            "in all": f"{one.growth:+,.1f}",
        }
        for name, one in courses.items()
    ]


def _keep(
    samples: Sequence[Sample], verdicts: Sequence[Verdict], held: Points, options: argparse.Namespace,
    summary: dict[str, Any], report: dict[str, Any] | None, load: float,
) -> None:  # fmt: skip
    is_long = options.minutes >= _LONG_MIN
    name = "activity_sustained" if is_long else "activity_sustained_short"
    is_good = all(one.is_good for one in verdicts)
    reached = summary.get("events_per_second", 0.0)
    title = (
        f"All six pipelines, {options.minutes:g} min at {reached:,.0f} events/s: {'flat' if is_good else 'not flat'}"
    )
    kept = {
        "machine": machine(),
        "load_before": load,
        "minutes": options.minutes,
        "rate": options.rate,
        "is_sustained": is_good,
        "verdicts": [one._asdict() for one in verdicts],
        "lag_s": _plain(figures.lags(samples)),
        "batch_ms": _plain(figures.batches(samples)),
        "memory_mb": _plain(_memory(samples, held)),
        "cores": figures.cores(samples),
        "generated": summary,
        "report": None if report is None else {key: report.get(key) for key in ("goals", "failures", "latencies")},
        "held_mb": held,
        "samples": [
            {
                "at_s": one.at_s,
                "queries": {key: value._asdict() for key, value in one.queries.items()},
                "usages": {key: value._asdict() for key, value in one.usages.items()},
            }
            for one in samples
        ],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False))
    (RESULTS / f"{name}.svg").write_text(svg(samples, f"{title} ({machine()})", held))
    short = "" if is_long else "; short, not to be quoted"
    print(f"\nkept in {RESULTS.parent.name}/{RESULTS.name}/ ({name}.json, {name}.svg{short})")


def _plain(courses: dict[str, Course]) -> dict[str, dict[str, float]]:
    return {
        name: {key: value for key, value in one._asdict().items() if key != "may_grow"} for name, one in courses.items()
    }
