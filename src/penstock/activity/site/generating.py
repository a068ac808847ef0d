"""A site's events, generated into a cluster.

Nouns: `Plan`, from when, for how long and how fast; `Generation`, the doing of it.

Rule: in real time the event time is the clock's: a tick is made once it is over, after a stall the ticks that were
missed are made up, in order. As fast as possible event time runs as fast as events are made. What is planted is told in
the topic of truth, and acknowledged there, before the first event of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from penstock.activity.events import TRUTH_TOPIC
from penstock.activity.site.batching import Batches
from penstock.activity.site.columns import TICK_MS
from penstock.activity.site.encoding import Encoded
from penstock.activity.site.incidents import TURN_MS
from penstock.activity.site.sending import Counts, Outbox, Sender
from penstock.activity.site.site import Site
from penstock.runtime.clock import Clock

_CATCH_UP_TICKS: Final = 20
_EVENTS_AT_A_TIME: Final = 40_000
_MOST_TICKS: Final = 100
_BEHIND_MS: Final = 2_000.0
_TELL_EVERY_MS: Final = 30_000.0
STOPPED_DRAIN_S: Final = 5.0


@dataclass(frozen=True)
class Plan:
    """What is to be generated."""

    start_ms: int
    is_paced: bool
    minutes: float | None = None
    events: int | None = None

    @property
    def first_tick(self) -> int:
        return -(-self.start_ms // TICK_MS)

    @property
    def end_tick(self) -> int | None:
        """The tick before which it ends."""
        return None if self.minutes is None else self.first_tick + max(1, round(self.minutes * 60_000 / TICK_MS))

    def ticks_due(self, next_tick: int, now_ms: float, rate: float) -> int:
        """How many ticks are to be made at once; 0: the next is not over yet."""
        if self.is_paced:
            due = min(int(now_ms // TICK_MS) - next_tick, _CATCH_UP_TICKS)
        else:
            due = min(max(round(_EVENTS_AT_A_TIME / (rate * TICK_MS / 1000)), 1), _MOST_TICKS)
        end = self.end_tick
        return max(due if end is None else min(due, end - next_tick), 0)


@dataclass(frozen=True)
class Progress:
    """How far it is."""

    acknowledged: int
    unacknowledged: int
    seconds: float
    event_time_ms: int
    behind_ms: float


@dataclass(frozen=True)
class Summary:
    """What came of it."""

    counts: dict[str, Counts]
    unacknowledged: int
    ticks: int
    seconds: float
    start_ms: int
    end_ms: int
    """The event time before which all events are."""
    most_behind_ms: float


class Generation:
    """Generates a site's events by a plan."""

    def __init__(
        self,
        site: Site,
        plan: Plan,
        batches: Batches,
        sender: Sender,
        clock: Clock,
        *,
        stop: threading.Event,
        told: Callable[[str], None],
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._site = site
        self._plan = plan
        self._batches = batches
        self._clock = clock
        self._stop = stop
        self._told = told
        self._progress = progress
        self._outbox = Outbox(sender, clock, stop, told)
        self._truth = Outbox(sender, clock, stop, told)
        self._truth_until_ms: int | None = None
        self._tick = plan.first_tick
        self._handed_over = 0
        self._behind_ms = 0.0
        self._most_behind_ms = 0.0
        self._told_behind_ms = -_TELL_EVERY_MS

    def run(self) -> Summary:
        """To the end of the plan, or until it is stopped. Raises what the cluster refused."""
        self._began_ms = self._clock.monotonic_ms()
        while not self._stop.is_set() and not self._is_done():
            due = self._plan.ticks_due(self._tick, self._now_ms(), self._site.rate)
            if due:
                self._step(due)
            else:
                self._stop.wait(max((self._tick + 1) * TICK_MS - self._now_ms(), 1.0) / 1000)
            self._progress(self._state())
        left = self._outbox.drain(None)
        if left:
            left = self._outbox.drain(STOPPED_DRAIN_S)
        return Summary(
            self._outbox.counts, left, self._tick - self._plan.first_tick, self._seconds(),
            self._plan.first_tick * TICK_MS, self._tick * TICK_MS, self._most_behind_ms,
        )  # fmt: skip

    def _step(self, ticks: int) -> None:
        self._tell_truth(self._tick + ticks)
        if self._stop.is_set():
            return
        most = None if self._plan.events is None else self._plan.events - self._handed_over
        batches = self._batches.of(range(self._tick, self._tick + ticks), most)
        self._outbox.put(batches)
        self._handed_over += sum(map(len, batches))
        self._tick += ticks
        if self._plan.is_paced:
            self._look_behind()

    def _is_done(self) -> bool:
        if self._plan.events is not None and self._handed_over >= self._plan.events:
            return True
        return self._plan.end_tick is not None and self._tick >= self._plan.end_tick

    # --- what is planted

    def _tell_truth(self, before_tick: int) -> None:
        """See to it that the truth of the ticks before this one is known."""
        if self._truth_until_ms is not None and before_tick * TICK_MS <= self._truth_until_ms:
            return
        known_ms, until_ms = self._truth_until_ms, before_tick * TICK_MS + TURN_MS
        truths = self._site.truth(until_ms)
        if known_ms is None:
            new = [each for each in truths if each.end_ms is None or each.end_ms > self._plan.start_ms]
        else:
            new = [each for each in truths if each.end_ms is not None and each.start_ms >= known_ms]
        if new:
            columns = [
                pa.array([truth.key for truth in new], pa.string()),
                pa.array([msgspec.json.encode(truth.value) for truth in new], pa.binary()),
            ]
            self._truth.put([Encoded(TRUTH_TOPIC, pa.record_batch(columns, ["key", "value"]))])
            if self._truth.drain(None):
                return
        self._truth_until_ms = until_ms

    # --- time

    def _now_ms(self) -> float:
        """The event time that it is: from the start on it does not jump, whatever the wall clock does."""
        return self._plan.start_ms + self._clock.monotonic_ms() - self._began_ms

    def _seconds(self) -> float:
        return (self._clock.monotonic_ms() - self._began_ms) / 1000

    def _look_behind(self) -> None:
        self._behind_ms = max(self._now_ms() - (self._tick + 1) * TICK_MS, 0.0)
        self._most_behind_ms = max(self._most_behind_ms, self._behind_ms)
        now_ms = self._clock.monotonic_ms()
        if self._behind_ms > _BEHIND_MS and now_ms - self._told_behind_ms >= _TELL_EVERY_MS:
            self._told_behind_ms = now_ms
            self._told(
                f"{self._behind_ms / 1000:.1f} s behind the clock at {self._site.rate:,.0f} events/s; catching up."
            )

    def _state(self) -> Progress:
        outbox = self._outbox
        return Progress(
            outbox.acknowledged, outbox.unacknowledged, self._seconds(), self._tick * TICK_MS, self._behind_ms
        )  # fmt: skip
