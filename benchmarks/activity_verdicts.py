"""Who is named a crawler, spammer or abuser on sites that nobody has looked at, by another path than Spark's.

    python -m benchmarks.activity_verdicts [--seeds 201-212] [--rates 300,1000] [--minutes 2]

Rule: behaviour is counted event by event in plain Python, items and texts exactly; the verdicts over it are the
pipeline's. A verdict is judged over all seeds of a rate: precision and recall of at least 0.9, and each seed's own are
shown where they are below.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from tests.activity.plain.minutes import behaviour

from benchmarks.report import table
from penstock.activity.pipelines.security import suspects
from penstock.activity.site import Site, rows_between

LEAST: Final = 0.9
VERDICTS: Final = ("crawler", "spammer", "abuser")
_ORIGIN_MS: Final = 1_790_000_050_000
_COUNTS: Final = ("views", "led", "items", "seconds", "posts", "linked", "texts", "calls", "refused", "failed")


class Judged(NamedTuple):
    """Of a verdict on a site: who was planted, and who was named."""

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
    """1 of nothing: nobody was named without reason, or missed."""
    return part / whole if whole else 1.0


def lines(every: Sequence[Judged], rate: float) -> list[dict[str, Any]]:
    """A row a verdict, over all seeds."""
    found = []
    for verdict in VERDICTS:
        mine = [one for one in every if one.verdict == verdict]
        right, named, planted = (
            sum(one.right for one in mine), sum(len(one.named) for one in mine), sum(len(one.planted) for one in mine)
        )  # fmt: skip
        least = min(
            (min(share(one.right, len(one.named)), share(one.right, len(one.planted))) for one in mine), default=1
        )
        found.append(
            {
                f"at {rate:g} events/s": verdict, "planted": planted, "named": named, "right": right,
                "precision": f"{share(right, named):.3f}", "recall": f"{share(right, planted):.3f}",
                "least of a seed": f"{least:.3f}",
            }
        )  # fmt: skip
    return found


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.activity_verdicts", description=(__doc__ or "")[:100])
    parser.add_argument("--seeds", default="201-212", help="FIRST-LAST (201-212)")
    parser.add_argument("--rates", default="300,1000", help="events a second, several with commas (300,1000)")
    parser.add_argument("--minutes", type=float, default=2.0, help="how much of each site is looked at (2)")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    is_good = True
    for rate in map(float, options.rates.split(",")):
        every = [
            one for seed in range(int(first), int(last or first) + 1) for one in judged(seed, rate, options.minutes)
        ]
        rows = lines(every, rate)
        table(f"Seeds {options.seeds}, the first {options.minutes:g} min", rows)
        is_good = is_good and all(float(row[name]) >= LEAST for row in rows for name in ("precision", "recall"))
        for one in every:
            wrong, missed = sorted(one.named - one.planted), sorted(one.planted - one.named)
            if wrong or missed:
                said = f"wrong {', '.join(wrong) or '-'}; missed {', '.join(missed) or '-'}"
                print(f"  seed {one.seed}, {one.verdict}: {said}")
    print(f"\ngoal: precision and recall of at least {LEAST}: {'met' if is_good else 'MISSED'}")
    if not is_good:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
