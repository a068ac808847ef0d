"""The start of a run as steps, with a bar and the expected time. No I/O, no clock.

The steps run side by side. Each is done when what it waits for has been observed, and stays done. Expected times are
those of the last start on this machine, else `USUAL_MS`.

The bar follows the clock from one expected end to the next. It waits where the next step is late, so it never promises
what has not happened, and jumps ahead where a step is early. It never moves back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

WAITING: Final = "waiting"
RUNNING: Final = "running"
DONE: Final = "done"

BROKER: Final = "broker"
SITE: Final = "site"
SPARK: Final = "spark"
QUERIES: Final = "queries"
RESULTS: Final = "results"
TITLES: Final[Mapping[str, str]] = {
    BROKER: "The broker answers",
    SITE: "The site generates events",
    SPARK: "Spark starts",
    QUERIES: "The queries start",
    RESULTS: "The first results",
}
USUAL_MS: Final[Mapping[str, int]] = {BROKER: 1_500, SITE: 4_000, SPARK: 8_000, QUERIES: 15_000, RESULTS: 12_000}
"""When each step ends, in milliseconds from the start, where no start is known."""
_AFTER: Final[Mapping[str, str]] = {SITE: BROKER, QUERIES: SPARK, RESULTS: SPARK}
_LONGEST_MS: Final = 3_600_000


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step at a moment. `ended_ms` is 0 until it is done; times count from the start of the run."""

    name: str
    title: str
    state: str
    note: str = ""
    ended_ms: int = 0
    expected_ms: int = 0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a run at a moment. `share` is between 0 and 1, and 1 only when everything is done."""

    steps: list[Step] = []
    share: float = 0.0
    elapsed_ms: int = 0
    expected_ms: int = 0
    """How long the whole start takes: expected, or measured when everything is done."""

    @property
    def is_done(self) -> bool:
        return all(step.state == DONE for step in self.steps)

    @property
    def is_late(self) -> bool:
        """Whether it takes longer than expected."""
        return not self.is_done and self.elapsed_ms > self.expected_ms

    def time_text(self) -> str:
        """ "7 s of about 15 s"."""
        elapsed = f"{self.elapsed_ms / 1000:.0f} s"
        if self.is_done:
            return elapsed
        if self.is_late:
            return f"{elapsed}, longer than the expected {self.expected_ms / 1000:.0f} s"
        return f"{elapsed} of about {self.expected_ms / 1000:.0f} s"

    def waits_for(self) -> str:
        """What is not done yet, in a few words."""
        open_steps = [step for step in self.steps if step.state == RUNNING]
        return ", ".join(f"{_in_sentence(step.title)}{f' ({step.note})' if step.note else ''}" for step in open_steps)


class StartProgress:
    """Follows one start. `observe` what is true; read `view` at any time."""

    def __init__(self, steps: Sequence[str], expected_ms: Mapping[str, int] | None = None) -> None:
        self._expected_ms = _plausible(steps, expected_ms or {})
        self._ended_ms: dict[str, int] = {}
        self._notes: dict[str, str] = {}

    @property
    def is_done(self) -> bool:
        return len(self._ended_ms) == len(self._expected_ms)

    @property
    def ended_ms(self) -> dict[str, int]:
        """When each step was done, to expect the same of the next start."""
        return dict(self._ended_ms)

    def observe(self, elapsed_ms: int, observed: Mapping[str, bool], notes: Mapping[str, str] | None = None) -> None:
        """Whether what each step waits for is there. A step that was done remains done."""
        for name, is_there in observed.items():
            if is_there and name in self._expected_ms and name not in self._ended_ms:
                self._ended_ms[name] = max(elapsed_ms, 1)
        self._notes |= notes or {}

    def view(self, elapsed_ms: int) -> Progress:
        steps = [self._step(name) for name in self._expected_ms]
        total_ms = max(self._expected_ms.values(), default=0)
        if self.is_done:
            took_ms = max(self._ended_ms.values(), default=0)
            return Progress(steps=steps, share=1.0, elapsed_ms=took_ms, expected_ms=took_ms)
        # The last step is not done, so the bar is not full.
        share = min(self._reached_ms(elapsed_ms) / total_ms, 0.99)
        return Progress(steps=steps, share=round(share, 4), elapsed_ms=elapsed_ms, expected_ms=total_ms)

    def _reached_ms(self, elapsed_ms: int) -> int:
        """The place on the expected line of time."""
        next_ms = min(end for name, end in self._expected_ms.items() if name not in self._ended_ms)
        passed_ms = max(
            (end for name, end in self._expected_ms.items() if name in self._ended_ms and end <= next_ms), default=0
        )
        return min(max(elapsed_ms, passed_ms), next_ms)

    def _step(self, name: str) -> Step:
        before = _AFTER.get(name)
        if name in self._ended_ms:
            state = DONE
        elif before in self._expected_ms and before not in self._ended_ms:
            state = WAITING
        else:
            state = RUNNING
        note = self._notes.get(name, "") if state == RUNNING else ""
        return Step(
            name=name, title=TITLES[name], state=state, note=note, ended_ms=self._ended_ms.get(name, 0),
            expected_ms=self._expected_ms[name],
        )  # fmt: skip


def _in_sentence(title: str) -> str:
    """ "The" loses its capital, and names keep theirs."""
    return title.replace("The ", "the ", 1) if title.startswith("The ") else title


def _plausible(steps: Sequence[str], expected_ms: Mapping[str, int]) -> dict[str, int]:
    """The expected end of each step: known if it is plausible, else usual; none before the step that it waits for."""
    found: dict[str, int] = {}
    for name in steps:
        known = expected_ms.get(name, 0)
        end_ms = known if 0 < known <= _LONGEST_MS else USUAL_MS[name]
        found[name] = max(end_ms, found.get(_AFTER.get(name, ""), 0))
    return found
