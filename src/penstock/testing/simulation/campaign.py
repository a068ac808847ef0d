"""Counts how many seeds catch each mutation, of those whose runs have what the mutation is about.

A seed catches a mutation if its run ends with a violation that the mutation names, and passes without the mutation.
Other violations are counted separately. A run in which the mutated code itself fails (a TypeError, logged or raised)
shows nothing: the mutation is broken. The results are kept in a file. The table in the documentation is generated from
it, and tests run seeds that are known to catch.

Seeds are drawn; those whose runs have what the mutation is about are eligible. A campaign through all its seeds gives a
rate. One that stops at a catch gives no rate: it shows at which seed the first catch came.
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
from penstock.testing.simulation.summary import with_block

RAREST: Final = 200
"""A mutation that fewer than one of this many seeds catch counts as too rare."""
CATCHES_FOR_A_RATE: Final = 10
"""A campaign that stops after this many catches knows the rate to about a third."""
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
    """Of eligible seeds."""
    first_seed: int = 0
    drawn: int = 0
    """Seeds that were looked at, eligible or not."""
    until_caught: int | None = None
    """The campaign was to stop after this number of catches."""

    def of(self, verdict: Verdict) -> list[Trial]:
        return [trial for trial in self.trials if trial.verdict is verdict]

    @property
    def is_rare(self) -> bool:
        """Whether too few of the drawn seeds catch it."""
        return is_rare(as_result(self))

    def __str__(self) -> str:
        caught = self.of(Verdict.CAUGHT)
        text = f"{self.name}: {described(as_result(self))}"
        if caught:
            text += f"; seed {caught[0].seed}: {caught[0].problem[:160]}"
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
        tally = Tally(name, [], self._seeds[0], len(self._seeds), self._until_caught)
        seeds = [seed for seed in self._seeds if MUTATIONS[name].may_catch(seed)]
        batch_size = len(seeds) if self._until_caught is None else 2 * self._jobs
        for start in range(0, len(seeds), batch_size):
            batch = seeds[start : start + batch_size]
            trials = list(pool.map(try_seed, batch, [name] * len(batch)))
            tally.trials += self._confirmed(trials, MUTATIONS[name].brokers, pool)
            if self._until_caught is not None and len(tally.of(Verdict.CAUGHT)) >= self._until_caught:
                tally.drawn = 1 + self._seeds.index(batch[-1])
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
    """A tally for the results file. `nth_drawn` and `nth_eligible` count up to the first seed that catches."""
    caught = tally.of(Verdict.CAUGHT)
    first = caught[0].seed if caught else None
    return {
        "first_seed": tally.first_seed,
        "drawn": tally.drawn,
        "eligible": len(tally.trials),
        "caught": len(caught),
        "until_caught": tally.until_caught,
        "nth_drawn": None if first is None else first - tally.first_seed + 1,
        "nth_eligible": None if first is None else 1 + [trial.seed for trial in tally.trials].index(first),
        "first": [trial.seed for trial in caught[:_SEEDS_LISTED]],
        "violation": caught[0].problem if caught else "",
    }


def is_rare(result: Mapping[str, Any]) -> bool:
    """Whether fewer than one of `RAREST` drawn seeds catch it; without a rate, whether none of that many has."""
    if not result["caught"]:
        return True
    if _is_rate(result):
        return bool(result["caught"] * RAREST < result["drawn"])
    return bool(result["nth_drawn"] > RAREST)


def _is_rate(result: Mapping[str, Any]) -> bool:
    """Whether enough seeds were drawn: all of them, or as many as it took to catch it `CATCHES_FOR_A_RATE` times."""
    return result["until_caught"] is None or result["until_caught"] >= CATCHES_FOR_A_RATE


def described(result: Mapping[str, Any]) -> str:
    """What is known: a rate, or where the first catch came."""
    drawn, eligible, caught = result["drawn"], result["eligible"], result["caught"]
    are_all = drawn == eligible
    if _is_rate(result) or not caught:
        return f"{caught} of {drawn:,} drawn seeds" + ("" if are_all else f", {eligible:,} of which are eligible")
    nth, among = result["nth_drawn"], result["nth_eligible"]
    return f"first caught at drawn seed no. {nth}" + ("" if nth == among else f", eligible seed no. {among}")


def is_measured(
    result: Mapping[str, Any] | None, seeds: Sequence[int], until_caught: int | None, code: str | None
) -> bool:
    """Whether a kept result is what a campaign of these seeds would find: of the same code, if it counts, and of as
    many seeds."""
    if result is None or result["first_seed"] != seeds[0] or code not in {None, result.get("code")}:
        return False
    if result["until_caught"] is None and result["drawn"] >= len(seeds):
        return True
    return until_caught is not None and result["caught"] >= until_caught


def read_results(path: Path) -> dict[str, Any]:
    """Results by mutation; empty if the file does not exist."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def save_results(path: Path, tallies: Iterable[Tally], **origin: Any) -> dict[str, Any]:
    """Replace the results of these mutations in the file, with their `origin`. Returns all results."""
    results = {**read_results(path), **{tally.name: {**as_result(tally), **origin} for tally in tallies}}
    known = {name: results[name] for name in MUTATIONS if name in results}
    written = path.with_name(f"{path.name}.new")
    written.write_text(json.dumps(known, indent=2) + "\n")
    written.replace(path)
    return known


def table(results: Mapping[str, Any]) -> str:
    """The table of mutations as Markdown."""
    lines = [
        "| mutation | without the safeguard | violation | caught | measured |",
        "|---|---|---|---|---|",
    ]
    for name, mutation in MUTATIONS.items():
        expected = "; ".join(map(str, mutation.expected))
        found = results.get(name)
        caught, measured = ("not yet", "") if found is None else (described(found), _origin_of(found))
        lines.append(f"| `{name}` | {mutation.what} | {expected} | {caught} | {measured} |")
    return "\n".join(lines)


def _origin_of(result: Mapping[str, Any]) -> str:
    """Which code was measured, and when. A seed is another run after a change of the code."""
    if not result.get("commit"):
        return "commit not kept"
    return f"`{result['commit'][:10]}`{' with changes' if result.get('is_dirty') else ''}, {result['date']}"


def with_table(document: str, results: Mapping[str, Any]) -> str:
    """The document with the table between its two markers. Raises ValueError without markers."""
    return with_block(document, _TABLE_BEGINS, table(results), _TABLE_ENDS)
