"""Counts how many seeds catch each mutation.

A seed catches a mutation if its run ends with a violation that the mutation names, and passes without the mutation.
Other violations are counted separately. A run in which the mutated code itself fails (a TypeError, logged or raised)
shows nothing: the mutation is broken. The results are kept in a file. The table in the documentation is generated from
it, and tests run seeds that are known to catch.
"""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.testing.simulation.cluster import CannotStart
from penstock.testing.simulation.cluster_checks import Unhealed
from penstock.testing.simulation.mutations import MUTATIONS, UnknownMutation, mutated
from penstock.testing.simulation.observer import InvariantBroken
from penstock.testing.simulation.run import Plan, Violation, simulate

RAREST: Final = 200
"""A mutation that fewer than one of this many seeds catch counts as too rare."""
_SEEDS_LISTED: Final = 3
_VIOLATIONS: Final = tuple(f"{error.__name__}: " for error in (InvariantBroken, Violation, Unhealed, CannotStart))
_CODE_ERRORS: Final = (TypeError, AttributeError, NameError, ImportError, NotImplementedError, AssertionError)
_TABLE_BEGINS: Final = "<!-- mutations: written by `python -m penstock.testing.simulation --mutations` -->"
_TABLE_ENDS: Final = "<!-- end of mutations -->"


class Verdict(Enum):
    PASSED = "passed"
    CAUGHT = "caught"
    OTHER = "failed otherwise"
    BROKEN = "broken"
    UNSOUND = "fails without it too"


class Trial(NamedTuple):
    """The outcome of one seed under one mutation."""

    seed: int
    verdict: Verdict
    problem: str = ""


def try_seed(seed: int, name: str) -> Trial:
    """Run a seed without the safeguard. `is_sound` checks whether it passes with it."""
    mutation = MUTATIONS[name]
    with mutated(name), _logged_code_errors() as code_errors:
        problem = simulate(seed, Plan(brokers=mutation.brokers), lines=1).problem
    if code_errors:
        return Trial(seed, Verdict.BROKEN, code_errors[0])
    if not problem:
        return Trial(seed, Verdict.PASSED)
    if mutation.is_caught_by(problem):
        return Trial(seed, Verdict.CAUGHT, problem)
    is_violation = problem.startswith(_VIOLATIONS)
    return Trial(seed, Verdict.OTHER if is_violation else Verdict.BROKEN, problem)


def is_sound(seed: int, brokers: int) -> bool:
    return not simulate(seed, Plan(brokers=brokers), lines=1).problem


@contextmanager
def _logged_code_errors() -> Iterator[list[str]]:
    """Logged exceptions that indicate a bug in the mutated code."""
    found: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if isinstance(error, _CODE_ERRORS):
                found.append(f"{error!r} in {record.getMessage()}")

    logger, listener = logging.getLogger("penstock"), Listener(logging.WARNING)
    logger.addHandler(listener)
    try:
        yield found
    finally:
        logger.removeHandler(listener)


@dataclass(slots=True)
class Tally:
    """The outcomes of all seeds under one mutation."""

    name: str
    trials: list[Trial] = field(default_factory=list)

    def of(self, verdict: Verdict) -> list[Trial]:
        return [trial for trial in self.trials if trial.verdict is verdict]

    @property
    def is_rare(self) -> bool:
        """Whether too few seeds catch it."""
        caught = len(self.of(Verdict.CAUGHT))
        return not caught or caught * RAREST < len(self.trials)

    def __str__(self) -> str:
        caught, runs = self.of(Verdict.CAUGHT), len(self.trials)
        text = f"{self.name}: caught by {len(caught)} of {runs} seeds ({len(caught) / max(runs, 1):.1%})"
        if caught:
            text += f", first {caught[0].seed}: {caught[0].problem[:160]}"
        for verdict in (Verdict.OTHER, Verdict.UNSOUND, Verdict.BROKEN):
            others = self.of(verdict)
            if others:
                text += f"\n  {verdict.value}: {len(others)}, first {others[0].seed}: {others[0].problem[:300]}"
        return text + ("\n  TOO RARE" if self.is_rare else "")


class Campaign:
    """Runs mutations, one after the other, each under the same seeds."""

    def __init__(self, seeds: Sequence[int], *, jobs: int, until_caught: int | None = None) -> None:
        self._seeds = seeds
        self._jobs = jobs
        self._until_caught = until_caught
        self._sound: dict[tuple[int, int], bool] = {}

    def run(self, names: Iterable[str]) -> Iterator[Tally]:
        for name in names:
            if name not in MUTATIONS:
                raise UnknownMutation(name)
            # New processes for each mutation: runs that end early leave objects behind that are never freed.
            pool = ProcessPoolExecutor(self._jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
            try:
                yield self._tally(name, pool)
            finally:
                pool.shutdown(cancel_futures=True)

    def _tally(self, name: str, pool: ProcessPoolExecutor) -> Tally:
        tally = Tally(name)
        batch_size = len(self._seeds) if self._until_caught is None else 2 * self._jobs
        for start in range(0, len(self._seeds), batch_size):
            batch = self._seeds[start : start + batch_size]
            trials = list(pool.map(try_seed, batch, [name] * len(batch)))
            tally.trials += self._confirmed(trials, MUTATIONS[name].brokers, pool)
            if self._until_caught is not None and len(tally.of(Verdict.CAUGHT)) >= self._until_caught:
                break
        return tally

    def _confirmed(self, trials: list[Trial], brokers: int, pool: ProcessPoolExecutor) -> list[Trial]:
        """Mark trials as unsound whose seeds fail without the mutation too."""
        unknown = [
            trial.seed
            for trial in trials
            if trial.verdict is Verdict.CAUGHT and (trial.seed, brokers) not in self._sound
        ]
        for seed, sound in zip(unknown, pool.map(is_sound, unknown, [brokers] * len(unknown)), strict=True):
            self._sound[seed, brokers] = sound
        return [
            trial._replace(verdict=Verdict.UNSOUND)
            if trial.verdict is Verdict.CAUGHT and not self._sound[trial.seed, brokers]
            else trial
            for trial in trials
        ]


# --- results and their table


def as_result(tally: Tally) -> dict[str, Any]:
    """A tally for the results file."""
    caught = tally.of(Verdict.CAUGHT)
    return {
        "seeds": len(tally.trials),
        "caught": len(caught),
        "first": [trial.seed for trial in caught[:_SEEDS_LISTED]],
        "violation": caught[0].problem if caught else "",
    }


def read_results(path: Path) -> dict[str, Any]:
    """Results by mutation; empty if the file does not exist."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def save_results(path: Path, tallies: Iterable[Tally]) -> dict[str, Any]:
    """Replace the results of these mutations in the file. Returns all results."""
    results = {**read_results(path), **{tally.name: as_result(tally) for tally in tallies}}
    known = {name: results[name] for name in MUTATIONS if name in results}
    path.write_text(json.dumps(known, indent=2) + "\n")
    return known


def table(results: Mapping[str, Any]) -> str:
    """The table of mutations as Markdown."""
    lines = [
        "| mutation | without the safeguard | violation | seeds that catch it |",
        "|---|---|---|---|",
    ]
    for name, mutation in MUTATIONS.items():
        expected = "; ".join(map(str, mutation.expected))
        found = results.get(name)
        rate = "not measured" if found is None else f"{found['caught']} of {found['seeds']}"
        lines.append(f"| `{name}` | {mutation.what} | {expected} | {rate} |")
    return "\n".join(lines)


def with_table(document: str, results: Mapping[str, Any]) -> str:
    """The document with the table between its two markers. Raises ValueError without markers."""
    before, begins, rest = document.partition(_TABLE_BEGINS)
    _, ends, after = rest.partition(_TABLE_ENDS)
    if not begins or not ends:
        raise ValueError(
            f"the document has no table of mutations; mark its position with {_TABLE_BEGINS} and {_TABLE_ENDS}"
        )
    return f"{before}{begins}\n{table(results)}\n{ends}{after}"
