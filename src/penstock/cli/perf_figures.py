"""Figures of a measurement: counts, rates, percentiles; and the bar that shows how far it is.

Rule: the percentile p is the smallest measured value that at least p of all values do not exceed.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from penstock.cli.output import JSON, Output, human_bytes

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)
_MB: Final = 1024 * 1024
_UPDATE_S: Final = 0.1


def percentile(values: Sequence[float], percent: float) -> float:
    """Of sorted values."""
    return values[max(0, math.ceil(percent / 100 * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Figures:
    what: str
    topic: str
    records: int
    data_bytes: int
    seconds: float
    latencies_ms: Sequence[float] = ()
    failed: int = 0

    @property
    def per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    def show(self, output: Output, output_format: str) -> None:
        values = sorted(self.latencies_ms)
        if output_format == JSON:
            output.json(self._document(values), indent=2)
            output.flush()
            return
        rate = f"{self.per_second:,.0f} records/s, {self.data_bytes / max(self.seconds, 1e-9) / _MB:,.2f} MB/s"
        output.line(
            f"{self.what}: {self.records:,} records, {human_bytes(self.data_bytes)} in {self.seconds:.2f} s: "
            + output.style(rate, bold=True)
        )
        if values:
            parts = [f"p{percent:g} {percentile(values, percent):.2f}" for percent in PERCENTILES]
            mean = sum(values) / len(values)
            output.line(
                f"latency, ms: mean {mean:.2f}, {', '.join(parts)}, max {values[-1]:.2f} ({len(values):,} measured)"
            )
        if self.failed:
            output.line(output.style(f"{self.failed:,} records were not acknowledged.", "red"))
        output.flush()

    def _document(self, values: Sequence[float]) -> dict[str, object]:
        document: dict[str, object] = {
            "test": self.what,
            "topic": self.topic,
            "records": self.records,
            "failed": self.failed,
            "bytes": self.data_bytes,
            "seconds": round(self.seconds, 6),
            "recordsPerSecond": round(self.per_second, 1),
            "megabytesPerSecond": round(self.data_bytes / max(self.seconds, 1e-9) / _MB, 3),
        }
        if values:
            document["latencyMs"] = {
                "mean": round(sum(values) / len(values), 4),
                **{f"p{percent:g}": round(percentile(values, percent), 4) for percent in PERCENTILES},
                "max": round(values[-1], 4),
                "measured": len(values),
            }
        return document


@contextmanager
def progress(total: int | None, what: str) -> Iterator[Callable[[int], None]]:
    """Call it with how many are done by now; a bar on standard error, if there is somebody to see it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("", total=total)
        begun = time.monotonic()
        last = 0.0

        def update(done: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _UPDATE_S:
                last = now
                bar.update(task, completed=done, description=f"{done / max(now - begun, 0.001):,.0f} records/s")

        yield update


class Pace:
    """Keeps to a rate: `wait` until record `number` is due."""

    def __init__(self, per_second: float) -> None:
        self._interval_s = 1 / per_second if per_second else 0.0
        self._begun = time.perf_counter()

    def wait(self, number: int) -> None:
        if not self._interval_s:
            return
        early_s = self._begun + number * self._interval_s - time.perf_counter()
        # A sleep overshoots by a tenth of a millisecond: what is nearer than one is sent now.
        if early_s > 0.001:
            time.sleep(early_s)
