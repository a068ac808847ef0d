"""Which actors are named crawler, spammer or abuser on unseen seeds, computed without Spark.

    python -m benchmarks.activity_verdicts [--seeds 201-212] [--rates 300,1000] [--minutes 2]

Behaviour is counted event by event in plain Python, items and texts exactly; the verdicts over it are the pipeline's. A
verdict is judged over all seeds of a rate: precision and recall of at least 0.9. The lowest of a single seed is shown
as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from tests.activity.plain.minutes import behaviour

from benchmarks import results
from benchmarks.results import Better, Figure, Row
from penstock.activity.pipelines.security import suspects
from penstock.activity.site import Site, rows_between

LEAST: Final = 0.9
OURS: Final = "penstock"
VERDICTS: Final = ("crawler", "spammer", "abuser")
_ORIGIN_MS: Final = 1_790_000_050_000
_COUNTS: Final = ("views", "led", "items", "seconds", "posts", "linked", "texts", "calls", "refused", "failed")


class Judged(NamedTuple):
    """A verdict on a site: planted and named actors."""

    seed: int
    verdict: str
    planted: frozenset[str]
    named: frozenset[str]

    @property
    def right(self) -> int:
        return len(self.planted & self.named)


def judged(seed: int, rate: float, minutes: float) -> Iterator[Judged]:
    """Every verdict on the first minutes of a site."""
    site = Site(seed=seed, rate=rate, origin_ms=_ORIGIN_MS, rhythm="flat")
    until_ms = _ORIGIN_MS + round(minutes * 60_000)
    events: dict[str, list[Any]] = {"views": [], "posts": [], "api_calls": []}
    for kind, row in rows_between(site, _ORIGIN_MS, until_ms):
        if kind.topic in events:
            events[kind.topic].append(row)
    found = suspects(_table(behaviour(events))).to_pylist()
    for verdict in VERDICTS:
        planted = frozenset(str(one.subject["id"]) for one in site.truth(until_ms) if one.kind == verdict)
        yield Judged(seed, verdict, planted, frozenset(row["actor"] for row in found if row["verdict"] == verdict))


def _table(counted: dict[tuple[Any, str, str], dict[str, int]]) -> pa.Table:
    keys = list(counted)
    columns: dict[str, Any] = {
        "minute": pa.array([minute for minute, _, _ in keys], pa.timestamp("us", "UTC")),
        "kind": pa.array([kind for _, kind, _ in keys], pa.string()),
        "actor": pa.array([actor for _, _, actor in keys], pa.string()),
    }
    return pa.table(columns | {name: pa.array([counted[key][name] for key in keys], pa.int64()) for name in _COUNTS})


def share(part: int, whole: int) -> float:
    """1 if there is nothing to find."""
    return part / whole if whole else 1.0


def rows_of(every: Sequence[Judged], rate: float) -> list[Row]:
    """Rows for each verdict, over all seeds."""
    found: list[Row] = []
    table = f"At {rate:g} events/s"
    for verdict in VERDICTS:
        mine = [one for one in every if one.verdict == verdict]
        right, named, planted = (
            sum(one.right for one in mine), sum(len(one.named) for one in mine), sum(len(one.planted) for one in mine)
        )  # fmt: skip
        precisions, recalls = (
            [share(one.right, len(one.named)) for one in mine], [share(one.right, len(one.planted)) for one in mine]
        )  # fmt: skip

        def row(
            work: str, better: Better | None, figure: Figure, goal: float | None = None, verdict: str = verdict
        ) -> Row:
            return Row(f"{verdict}: {work}", "", better, {OURS: figure}, OURS, goal=goal, table=table)

        found += [
            row("planted", None, Figure(planted)),
            row("named", None, Figure(named)),
            row("named rightly", None, Figure(right)),
            row("precision", Better.HIGHER, Figure(share(right, named), tuple(precisions)), LEAST),
            row("recall", Better.HIGHER, Figure(share(right, planted), tuple(recalls)), LEAST),
            row("lowest of a seed", Better.HIGHER, Figure(min([*precisions, *recalls], default=1.0))),
        ]
    return found


def mistakes(every: Sequence[Judged], rate: float) -> list[str]:
    """Who was named or missed wrongly, by seed."""
    found = []
    for one in every:
        wrong, missed = sorted(one.named - one.planted), sorted(one.planted - one.named)
        if wrong or missed:
            said = f"wrong {', '.join(wrong) or '-'}; missed {', '.join(missed) or '-'}"
            found.append(f"{rate:g} events/s, seed {one.seed}, {one.verdict}: {said}")
    return found


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("activity_verdicts", "Named actors on unseen seeds.")
    parser.add_argument("--seeds", default="201-212", help="FIRST-LAST (201-212)")
    parser.add_argument("--rates", default="300,1000", help="events/s, several with commas (300,1000)")
    parser.add_argument("--minutes", type=float, default=2.0, help="how much of each site is looked at (2)")
    options = parser.parse_args(arguments)
    recording = results.begin("activity_verdicts", parser, options, arguments)
    first, _, last = options.seeds.partition("-")
    rows: list[Row] = []
    notes: list[str] = []
    for rate in map(float, options.rates.split(",")):
        every = [
            one for seed in range(int(first), int(last or first) + 1) for one in judged(seed, rate, options.minutes)
        ]
        rows += rows_of(every, rate)
        notes += mistakes(every, rate)
    recording.keep(rows, notes=notes)
    if any(row.is_met is False for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
