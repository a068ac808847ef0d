"""Sends a site's events to a cluster, paced by the clock or as fast as possible.

A paced tick is sent once it is over; after a stall, missed ticks are sent in order. What is planted is acknowledged in
the truth topic before its first event. Only acknowledged records are counted. The outbox is bounded below the
producer's own buffer, so that `send` never blocks and a stop is noticed at once. A broker that is unreachable is
waited for; one that answers and can never work (TLS expected, not Kafka) is not. The producer is idempotent and
retries for a day.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec
import pyarrow as pa

from penstock.activity.events import KINDS, TRUTH_TOPIC
from penstock.activity.site.behaviour import TICK_MS, TURN_MS
from penstock.activity.site.encoding import Batches, Encoded
from penstock.activity.site.site import Site
from penstock.client.admin import Admin, TopicSpec
from penstock.client.errors import BootstrapError, PenstockError
from penstock.client.producer import Producer
from penstock.runtime.clock import Clock

T = TypeVar("T")
PARTITIONS: Final = 4
MOST_UNACKNOWLEDGED_BYTES: Final = 24 * 1024 * 1024
PRODUCER_MEMORY_BYTES: Final = 96 * 1024 * 1024
"""Batches that are not full use their whole size of it."""
STOPPED_DRAIN_S: Final = 5.0
_LOOK_S: Final = 0.2
_REPORT_AFTER_MS: Final = 3_000.0
_RECORD_BYTES: Final = 12
_DAY_MS: Final = 86_400_000
_LINGER_MS: Final = 5
_FIRST_WAIT_S: Final = 0.2
_LONGEST_WAIT_S: Final = 2.0
_REPORT_EVERY: Final = 15
_CATCH_UP_TICKS: Final = 20
_EVENTS_PER_STEP: Final = 40_000
_MOST_TICKS: Final = 100
_BEHIND_MS: Final = 2_000.0
_REPORT_EVERY_MS: Final = 30_000.0

# ---------------------------------------------------------------------------------------------- generating


@dataclass(frozen=True)
class Plan:
    """What to generate."""

    start_ms: int
    is_paced: bool
    minutes: float | None = None
    events: int | None = None

    @property
    def first_tick(self) -> int:
        return -(-self.start_ms // TICK_MS)

    @property
    def end_tick(self) -> int | None:
        """The tick at which generation ends."""
        return None if self.minutes is None else self.first_tick + max(1, round(self.minutes * 60_000 / TICK_MS))

    def ticks_due(self, next_tick: int, now_ms: float, rate: float) -> int:
        """How many ticks to generate now; 0 if the next one is not over yet."""
        if self.is_paced:
            due = min(int(now_ms // TICK_MS) - next_tick, _CATCH_UP_TICKS)
        else:
            due = min(max(round(_EVENTS_PER_STEP / (rate * TICK_MS / 1000)), 1), _MOST_TICKS)
        end = self.end_tick
        return max(due if end is None else min(due, end - next_tick), 0)


@dataclass(frozen=True)
class Progress:
    """Progress of a generation."""

    acknowledged: int
    unacknowledged: int
    seconds: float
    event_time_ms: int
    behind_ms: float


@dataclass(frozen=True)
class Summary:
    """The outcome of a generation."""

    counts: dict[str, Counts]
    unacknowledged: int
    ticks: int
    seconds: float
    start_ms: int
    end_ms: int
    """The event time at which generation ended."""
    most_behind_ms: float


class EventGenerator:
    """Generates and sends a site's events by a plan."""

    def __init__(
        self,
        site: Site,
        plan: Plan,
        batches: Batches,
        sender: Sender,
        clock: Clock,
        *,
        stop: threading.Event,
        notify: Callable[[str], None],
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._site = site
        self._plan = plan
        self._batches = batches
        self._clock = clock
        self._stop = stop
        self._notify = notify
        self._progress = progress
        self._outbox = Outbox(sender, clock, stop, notify)
        self._truth = Outbox(sender, clock, stop, notify)
        self._truth_until_ms: int | None = None
        self._tick = plan.first_tick
        self._handed_over = 0
        self._behind_ms = 0.0
        self._most_behind_ms = 0.0
        self._reported_behind_ms = -_REPORT_EVERY_MS

    def run(self) -> Summary:
        """Runs to the end of the plan, or until it is stopped. Raises errors of the cluster."""
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
        self._publish_truth(self._tick + ticks)
        if self._stop.is_set():
            return
        most = None if self._plan.events is None else self._plan.events - self._handed_over
        batches = self._batches.of(range(self._tick, self._tick + ticks), most)
        self._outbox.put(batches)
        self._handed_over += sum(map(len, batches))
        self._tick += ticks
        if self._plan.is_paced:
            self._measure_delay()

    def _is_done(self) -> bool:
        if self._plan.events is not None and self._handed_over >= self._plan.events:
            return True
        return self._plan.end_tick is not None and self._tick >= self._plan.end_tick

    # --- truth

    def _publish_truth(self, before_tick: int) -> None:
        """Publishes the truth about the ticks before this one."""
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
        """The current event time. It does not jump, whatever the wall clock does."""
        return self._plan.start_ms + self._clock.monotonic_ms() - self._began_ms

    def _seconds(self) -> float:
        return (self._clock.monotonic_ms() - self._began_ms) / 1000

    def _measure_delay(self) -> None:
        self._behind_ms = max(self._now_ms() - (self._tick + 1) * TICK_MS, 0.0)
        self._most_behind_ms = max(self._most_behind_ms, self._behind_ms)
        now_ms = self._clock.monotonic_ms()
        if self._behind_ms > _BEHIND_MS and now_ms - self._reported_behind_ms >= _REPORT_EVERY_MS:
            self._reported_behind_ms = now_ms
            self._notify(
                f"{self._behind_ms / 1000:.1f} s behind the clock at {self._site.rate:,.0f} events/s; catching up."
            )

    def _state(self) -> Progress:
        outbox = self._outbox
        return Progress(
            outbox.acknowledged, outbox.unacknowledged, self._seconds(), self._tick * TICK_MS, self._behind_ms
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------- sending


class Delivery(Protocol):
    """A producer's handle for records that were sent."""

    def done(self) -> bool: ...

    def exception(self, timeout: float | None = None) -> Exception | None: ...

    def failures(self) -> Sequence[tuple[int, Exception]]: ...


class Sender(Protocol):
    """The part of a producer that is used."""

    def send_arrow(self, topic: str, table: Any) -> Delivery: ...


@dataclass
class Counts:
    """Counts of generated events by outcome."""

    good: int = 0
    malformed: int = 0
    failed: int = 0


class Outbox:
    """Records that are sent and not yet acknowledged."""

    def __init__(self, sender: Sender, clock: Clock, stop: threading.Event, notify: Callable[[str], None]) -> None:
        self.counts: dict[str, Counts] = {}
        self._sender = sender
        self._clock = clock
        self._stop = stop
        self._notify = notify
        self._waiting: deque[tuple[Encoded, Delivery]] = deque()
        self._bytes = 0

    def put(self, batches: Sequence[Encoded]) -> None:
        """Sends records and waits until there is room for more. Raises the error of a failed record."""
        for batch in batches:
            self._waiting.append((batch, self._sender.send_arrow(batch.topic, batch.records)))
            self._bytes += batch.size_bytes + len(batch) * _RECORD_BYTES
        self._settle()
        began_ms = self._clock.monotonic_ms()
        is_reported = False
        while self._bytes > MOST_UNACKNOWLEDGED_BYTES and not self._stop.is_set():
            self._wait_for_oldest(_LOOK_S)
            self._settle()
            if not is_reported and self._clock.monotonic_ms() - began_ms > _REPORT_AFTER_MS:
                self._notify(f"The broker is not responding; {self.unacknowledged:,} events are waiting.")
                is_reported = True
        if is_reported and not self._stop.is_set():
            self._notify("The broker is responding again.")

    def drain(self, timeout_s: float | None) -> int:
        """Waits until all records are acknowledged or the timeout passes. Returns how many are not."""
        deadline_ms = None if timeout_s is None else self._clock.monotonic_ms() + timeout_s * 1000
        while self._waiting and (deadline_ms is None or self._clock.monotonic_ms() < deadline_ms):
            if timeout_s is None and self._stop.is_set():
                break
            self._wait_for_oldest(_LOOK_S)
            self._settle()
        return self.unacknowledged

    @property
    def unacknowledged(self) -> int:
        return sum(len(batch) for batch, _ in self._waiting)

    @property
    def acknowledged(self) -> int:
        return sum(counts.good + counts.malformed for counts in self.counts.values())

    def _wait_for_oldest(self, timeout_s: float) -> None:
        if self._waiting:
            try:
                self._waiting[0][1].exception(timeout_s)
            except TimeoutError:
                return

    def _settle(self) -> None:
        error: Exception | None = None
        while self._waiting and self._waiting[0][1].done():
            batch, delivery = self._waiting.popleft()
            self._bytes -= batch.size_bytes + len(batch) * _RECORD_BYTES
            failures = delivery.failures()
            lost = {place for place, _ in failures}
            counts = self.counts.setdefault(batch.topic, Counts())
            counts.failed += len(lost)
            counts.malformed += len(batch.malformed - lost)
            counts.good += len(batch) - len(lost) - len(batch.malformed - lost)
            error = error or next((each for _, each in failures), None)
        if error is not None:
            raise error


# ---------------------------------------------------------------------------------------------- the cluster


def wait_for_broker(make: Callable[[], T], stop: threading.Event, notify: Callable[[str], None]) -> T | None:
    """Calls `make` until a broker is reachable; None if stopped before. Raises errors that waiting cannot fix."""
    wait_s, tried = _FIRST_WAIT_S, 0
    while not stop.is_set():
        try:
            return make()
        except BootstrapError as error:
            if not error.retriable:
                raise
            if tried % _REPORT_EVERY == 0:
                reasons = "; ".join(f"{attempt.address}: {attempt.detail}" for attempt in error.attempts)
                notify(f"Waiting for a broker: {reasons}.")
            tried += 1
        stop.wait(wait_s)
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
    return None


def create_topics(admin: Admin) -> list[str]:
    """Creates missing topics and returns their names. Raises the broker's error."""
    wanted = [TopicSpec(kind.topic, partitions=PARTITIONS) for kind in KINDS]
    wanted.append(TopicSpec(TRUTH_TOPIC, partitions=1, config={"cleanup.policy": "compact"}))
    made = []
    for name, outcome in admin.create_topics(wanted, exist_ok=True).items():
        if isinstance(outcome, PenstockError):
            raise outcome
        if not outcome.existed:
            made.append(name)
    return made


def producer_for(servers: str, **connecting: Any) -> Producer[Any, Any]:
    """A producer that outlasts an outage. Raises BootstrapError if no broker is reachable at first."""
    return Producer(
        servers, linger_ms=_LINGER_MS, buffer_memory=PRODUCER_MEMORY_BYTES, max_block_ms=_DAY_MS,
        delivery_timeout_ms=_DAY_MS, **connecting,
    )  # fmt: skip
