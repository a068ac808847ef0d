"""Generating by a plan, with a clock and a producer that the test holds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from penstock.activity.events import TRUTH_TOPIC
from penstock.activity.site import Site
from penstock.activity.site.encoding import Batches, Encoded
from penstock.activity.site.generator import (
    MOST_UNACKNOWLEDGED_BYTES,
    EventGenerator,
    Plan,
    Progress,
    Summary,
    wait_for_broker,
)
from penstock.client.errors import Attempt, BootstrapError, Cause
from penstock.runtime.clock import ManualClock

START_MS = 1_790_000_000_040
SITE = Site(seed=1, rate=1000, origin_ms=START_MS, rhythm="flat")


class Sent:
    """A delivery, done when the test says so."""

    def __init__(self, place: int, error: Exception | None) -> None:
        self.is_done = True
        self.place = place
        self.error = error

    def done(self) -> bool:
        return self.is_done

    def exception(self, timeout: float | None = None) -> Exception | None:
        if not self.is_done:
            raise TimeoutError
        return self.error

    def failures(self) -> Sequence[tuple[int, Exception]]:
        return [(self.place, self.error)] if self.error else []


class Records:
    """A producer that keeps what it is handed; `stall` says from which call on it does not acknowledge."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.deliveries: list[Sent] = []
        self.is_stalled = False
        self.error: Exception | None = None
        self.on_send: Callable[[], None] = lambda: None

    def send_arrow(self, topic: str, table: Any) -> Sent:
        self.sent.append((topic, table))
        delivery = Sent(0, self.error if topic != TRUTH_TOPIC else None)
        delivery.is_done = not self.is_stalled or topic == TRUTH_TOPIC
        self.deliveries.append(delivery)
        self.on_send()
        return delivery

    @property
    def times(self) -> list[int]:
        found: list[int] = []
        for topic, table in self.sent:
            if topic != TRUTH_TOPIC:
                found += table.column("timestamp").cast("int64").to_pylist()
        return found


class Waiting(threading.Event):
    """An event whose waiting is the clock's going on."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits += 1
        self.clock.advance(max(round(timeout * 1000), 1))
        return self.is_set()


class Sparse(Batches):
    """Only the first of the ticks that it is asked for: for a long time in a short one."""

    def of(self, ticks: Iterable[int], most: int | None = None) -> list[Encoded]:
        return super().of([next(iter(ticks))], most)


class Story:
    """A generation with everything around it."""

    def __init__(self, plan: Plan, malformed: float = 0.0, site: Site = SITE, batches: Batches | None = None) -> None:
        self.clock = ManualClock(START_MS)
        self.stop = Waiting(self.clock)
        self.records = Records()
        self.told: list[str] = []
        self.states: list[Progress] = []
        self.generation = EventGenerator(
            site, plan, batches or Batches(site, "json", malformed), self.records, self.clock,
            stop=self.stop, notify=self.told.append, progress=self.states.append,
        )  # fmt: skip

    def run(self) -> Summary:
        return self.generation.run()


def total(summary: Summary) -> int:
    return sum(counts.good + counts.malformed for counts in summary.counts.values())


def test_in_real_time_a_tick_is_sent_when_it_is_over_and_not_before() -> None:
    story = Story(Plan(START_MS, is_paced=True, minutes=0.05))
    late: list[int] = []

    def look() -> None:
        topic, table = story.records.sent[-1]
        if topic != TRUTH_TOPIC:
            now_ms = story.clock.now_ms()
            late.extend(now_ms - time for time in table.column("timestamp").cast("int64").to_pylist())

    story.records.on_send = look
    summary = story.run()
    assert min(late) >= 0
    assert max(late) <= 110
    assert summary.ticks == 30
    assert total(summary) == len(story.records.times) == pytest.approx(3 * 1200 + 5400, rel=0.2)
    assert summary.seconds == pytest.approx(3.1, abs=0.15)
    assert not story.told


def test_after_a_stall_what_was_missed_is_made_up_and_reported() -> None:
    whole = Story(Plan(START_MS, is_paced=True, minutes=0.2))
    whole.run()
    story = Story(Plan(START_MS, is_paced=True, minutes=0.2))
    calls = 0

    def stall_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 60:
            story.clock.advance(5_000)

    story.records.on_send = stall_once
    summary = story.run()
    assert sorted(story.records.times) == sorted(whole.records.times)
    assert summary.most_behind_ms > 2_000
    assert len(story.told) == 1
    assert "behind the clock at 1,000 events/s" in story.told[0]
    assert story.states[-1].behind_ms < 500


def test_as_fast_as_possible_does_not_wait_for_the_clock() -> None:
    story = Story(Plan(START_MS, is_paced=False, minutes=1))
    summary = story.run()
    assert story.stop.waits == 0
    assert summary.ticks == 600
    assert max(story.records.times) < summary.end_ms == summary.start_ms + 60_000
    assert min(story.records.times) >= START_MS


def test_the_number_of_events_is_the_one_requested() -> None:
    story = Story(Plan(START_MS, is_paced=False, events=12_345), malformed=0.05)
    summary = story.run()
    assert total(summary) == len(story.records.times) == 12_345
    assert 400 < sum(counts.malformed for counts in summary.counts.values()) < 850


def test_the_truth_is_known_before_the_first_event_and_that_of_later_turns_in_time() -> None:
    story = Story(Plan(START_MS, is_paced=False, minutes=25), batches=Sparse(SITE))
    story.run()
    assert story.records.sent[0][0] == TRUTH_TOPIC
    told: list[dict[str, Any]] = []
    newest_ms = 0
    for topic, table in story.records.sent:
        if topic == TRUTH_TOPIC:
            values = [json.loads(value) for value in table.column("value").to_pylist()]
            assert all(value["start_ms"] >= newest_ms for value in values)
            told += values
        else:
            newest_ms = max(newest_ms, max(table.column("timestamp").cast("int64").to_pylist()))
    wanted = [each.value for each in SITE.truth(SITE.origin_ms + 25 * 60_000)]
    assert all(value in told for value in wanted)
    assert len({json.dumps(value) for value in told}) == len(told)


def test_site_that_continues_later_does_not_publish_past_truth() -> None:
    story = Story(Plan(START_MS + 3_600_000, is_paced=False, events=100))
    story.run()
    values = [json.loads(value) for value in story.records.sent[0][1].column("value").to_pylist()]
    assert len(values) > 32
    assert all(value["end_ms"] is None or value["end_ms"] > START_MS + 3_600_000 for value in values)


def test_when_the_broker_does_not_answer_events_are_made_only_while_there_is_room() -> None:
    site = Site(seed=1, rate=100_000, origin_ms=START_MS, rhythm="flat")
    story = Story(Plan(START_MS, is_paced=False, minutes=1), site=site)
    story.records.is_stalled = True
    held: list[int] = []

    def wait(timeout: float | None = None) -> Exception | None:
        story.clock.advance(1000)
        held.append(sum(table.nbytes for _, table in story.records.sent))
        if len(held) == 6:
            story.stop.set()
        raise TimeoutError

    story.records.on_send = lambda: setattr(story.records.deliveries[-1], "exception", wait)
    summary = story.run()
    assert MOST_UNACKNOWLEDGED_BYTES / 2 < held[0] < MOST_UNACKNOWLEDGED_BYTES * 2
    assert held[0] == held[5]
    assert summary.unacknowledged == len(story.records.times)
    assert total(summary) == 0
    assert "is not responding" in story.told[0]


def test_what_a_broker_rejects_ends_it_with_the_reason() -> None:
    story = Story(Plan(START_MS, is_paced=True, minutes=1))
    story.records.error = RuntimeError("no such topic")
    with pytest.raises(RuntimeError, match="no such topic"):
        story.run()


def test_asked_to_stop_it_ends_with_what_was_sent() -> None:
    story = Story(Plan(START_MS, is_paced=True))
    story.records.on_send = lambda: story.stop.set() if len(story.records.sent) > 100 else None
    summary = story.run()
    assert total(summary) == len(story.records.times)
    assert summary.unacknowledged == 0


def attempt(cause: Cause) -> BootstrapError:
    return BootstrapError([Attempt("localhost:1", cause, "nothing listens there", "start one")])


def test_a_broker_that_is_unreachable_is_waited_for_and_one_that_will_never_do_is_not() -> None:
    clock = ManualClock()
    answers: list[BootstrapError | str] = [attempt(Cause.REFUSED)] * 20 + ["here"]
    told: list[str] = []

    def make() -> str:
        answer = answers.pop(0)
        if isinstance(answer, BootstrapError):
            raise answer
        return answer

    assert wait_for_broker(make, Waiting(clock), told.append) == "here"
    assert told == ["Waiting for a broker: localhost:1: nothing listens there."] * 2
    answers = [attempt(Cause.TLS_REQUIRED)]
    with pytest.raises(BootstrapError):
        wait_for_broker(make, Waiting(clock), told.append)
    stopped = Waiting(clock)
    stopped.set()
    assert wait_for_broker(make, stopped, told.append) is None
