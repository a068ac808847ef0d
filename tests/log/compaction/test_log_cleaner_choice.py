"""Which log is compacted next and when, at what cost and rate, and when segments are sealed."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.cleaner_stories import RETRY_POLICY, Broker, broker_of, newest, slow_broker, write
from tests.log.compaction_stories import NOW, SMALL, new_log, put, view_of

from penstock.log.compaction import log_cleaner as cleaner_candidates
from penstock.log.compaction.job import LogFacts, Plan, plan
from penstock.log.compaction.log_cleaner import Candidates, Throttle, changes_at_ms, mean_piece_bytes
from penstock.log.segment import Row, SegmentTable
from penstock.log.settings import COMPACT, DELETE, NEVER, LogSettings
from penstock.records import encode_batch
from penstock.runtime.clock import ManualClock
from penstock.testing.simulated_files import SimulatedFiles

HALF = replace(SMALL, min_cleanable_dirty_ratio=0.5)
MIB = 1024 * 1024


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The times at which plans were made."""
    made: list[int] = []

    def counted(facts: LogFacts, settings: LogSettings, first_dirty_offset: int | None, now_ms: int) -> Plan:
        made.append(now_ms)
        return plan(facts, settings, first_dirty_offset, now_ms)

    monkeypatch.setattr(cleaner_candidates, "plan", counted)
    return made


def cleaned_once(broker: Broker, topic: str, settings: LogSettings, *, rounds: int, more: int) -> None:
    """A log with a clean part, and a dirty one of `more` rounds."""
    log = broker.filled(topic, settings, rounds=rounds)
    key = (topic, 0)
    broker.manager.directory_of(*key).set_cleaner_offset(key, log.log_end_offset)
    write(log, more, first=rounds)
    broker.settle(log)


def order(broker: Broker) -> list[str]:
    """The topics in the order in which they would be compacted now."""
    candidates = Candidates(broker.manager, RETRY_POLICY)
    candidates.look(broker.clock.now_ms())
    found: list[str] = []
    while (watched := candidates.next(broker.clock.now_ms())) is not None:
        found.append(watched.key[0])
    return found


# --- the order


def test_the_log_with_the_most_to_gain_comes_first() -> None:
    broker = broker_of()
    cleaned_once(broker, "little", SMALL, rounds=9, more=3)
    cleaned_once(broker, "much", SMALL, rounds=3, more=9)
    cleaned_once(broker, "some", SMALL, rounds=6, more=6)
    assert order(broker) == ["much", "some", "little"]


def test_a_log_whose_records_waited_too_long_comes_before_all_others_however_little_there_is_to_gain() -> None:
    broker = broker_of()
    impatient = replace(HALF, max_compaction_lag_ms=5000)
    cleaned_once(broker, "much", SMALL, rounds=3, more=9)
    cleaned_once(broker, "impatient", impatient, rounds=9, more=2)
    cleaned_once(broker, "more-impatient", replace(impatient, max_compaction_lag_ms=3000), rounds=9, more=2)
    broker.clock.advance(4000)
    assert order(broker) == ["more-impatient", "much"]
    broker.clock.advance(2000)
    assert order(broker) == ["more-impatient", "impatient", "much"]


def test_a_log_that_only_deletes_is_never_compacted() -> None:
    broker = broker_of()
    broker.filled("views", replace(SMALL, cleanup_policy=frozenset({DELETE})))
    assert not broker.tick()
    assert broker.cleaner.metrics.rounds == 0
    broker.manager.update_settings("views", replace(SMALL, cleanup_policy=frozenset({DELETE, COMPACT})))
    broker.tick()
    assert broker.cleaner.metrics.rounds == 1


def test_a_log_waits_until_it_is_dirty_enough() -> None:
    broker = broker_of()
    cleaned_once(broker, "views", HALF, rounds=6, more=3)
    log = broker.manager.get("views", 0)
    assert log is not None
    broker.tick()
    assert broker.cleaner.metrics.rounds == 0
    assert 0.2 < broker.cleaner.metrics.max_dirty_ratio < 0.5
    write(log, 3, first=9)
    broker.settle(log)
    broker.tick()
    assert broker.cleaner.metrics.rounds == 1
    assert view_of(log) == newest(12)


def test_what_is_not_yet_checkpointed_is_not_compacted_though_all_else_is_ready() -> None:
    broker = broker_of()
    log = broker.create("views")
    write(log, 6)
    log.roll(log.log_end_offset, NOW)
    log.flush()
    log.advance_high_watermark(log.log_end_offset)
    broker.tick()
    assert broker.cleaner.metrics.rounds == 0
    broker.manager.checkpoint_tick()
    broker.tick()
    assert broker.cleaner.metrics.rounds == 1


def test_a_log_deleted_while_it_was_next_is_skipped() -> None:
    broker, workers = slow_broker()
    for topic in ("views", "clicks", "orders"):
        broker.filled(topic)
    broker.tick()
    cleaning = broker.cleaner.cleaning
    assert cleaning is not None
    gone = next(topic for topic in ("views", "clicks", "orders") if topic != cleaning[0])
    broker.manager.delete(gone, 0, NOW)
    workers.run_all()
    assert broker.cleaner.metrics.rounds == 2


# --- cheaply


def test_a_log_that_does_not_change_is_planned_once(plans: list[int]) -> None:
    broker = broker_of()
    cleaned_once(broker, "views", HALF, rounds=6, more=3)
    broker.tick()
    files = broker.files
    assert isinstance(files, SimulatedFiles)
    operations = files.operations.count
    for _ in range(5):
        broker.tick(60_000)
    assert len(plans) == 1
    assert files.operations.count == operations


def test_appends_and_a_moving_high_watermark_change_no_plan_but_a_sealed_segment_does(plans: list[int]) -> None:
    broker = broker_of()
    cleaned_once(broker, "views", HALF, rounds=6, more=3)
    log = broker.manager.get("views", 0)
    assert log is not None
    broker.tick()
    for number in range(4):
        put(log, (b"key", b"%d" % number))
        log.flush()
        log.advance_high_watermark(log.log_end_offset)
        broker.manager.checkpoint_tick()
        broker.tick(1000)
    assert len(plans) == 1
    broker.settle(log)
    broker.tick(1000)
    assert len(plans) == 2


@pytest.mark.parametrize("damaged", [False, True])
def test_a_log_that_is_only_tried_later_or_never_is_not_planned(plans: list[int], damaged: bool) -> None:
    files = SimulatedFiles()
    broker = broker_of(files)
    log = broker.filled("views")
    if damaged:
        files.corrupt(f"{log.folder}/{0:020d}.log", 80)
    else:
        files.operations.fail("write", errno.ENOSPC, path_ending=".cleaned")
    broker.tick()
    assert broker.cleaner.metrics.failed == 1
    made = len(plans)
    write(log, 3, first=6)
    broker.settle(log)
    broker.tick(RETRY_POLICY.retry_after_ms - 1)
    assert len(plans) == made
    broker.tick(1)
    assert (len(plans) == made) == damaged


def test_other_settings_are_another_plan(plans: list[int]) -> None:
    broker = broker_of()
    cleaned_once(broker, "views", HALF, rounds=6, more=3)
    broker.tick()
    broker.manager.update_settings("views", replace(HALF, min_cleanable_dirty_ratio=0.1))
    broker.tick(1)
    assert broker.cleaner.metrics.rounds == 1
    assert plans == [NOW, NOW + 1, NOW + 1]


def test_many_logs_at_once_are_planned_some_at_a_time(plans: list[int]) -> None:
    broker = broker_of()
    for number in range(5):
        broker.filled(f"topic-{number}", HALF, rounds=3)
    candidates = Candidates(broker.manager, RETRY_POLICY, plans_max=2)
    for known in (2, 4, 5, 5):
        candidates.look(NOW)
        assert len(plans) == known
        assert sum(watched.decision is not None for watched in candidates.watched.values()) == known


def test_logs_that_are_gone_are_forgotten() -> None:
    broker = broker_of()
    for topic in ("views", "clicks"):
        broker.filled(topic)
    candidates = Candidates(broker.manager, RETRY_POLICY)
    candidates.look(NOW)
    broker.manager.delete("views", 0, NOW)
    candidates.look(NOW)
    assert list(candidates.watched) == [("clicks", 0)]


# --- in time


def test_a_lag_that_is_over_makes_a_log_due_though_nothing_else_happened(plans: list[int]) -> None:
    broker = broker_of()
    broker.filled("views", replace(SMALL, min_compaction_lag_ms=10_000), rounds=1)
    for _ in range(9):
        broker.tick(1000)
    assert broker.cleaner.metrics.rounds == 0
    assert len(plans) == 1
    broker.tick(1000)
    assert broker.cleaner.metrics.rounds == 1


def test_a_log_is_due_at_the_moment_at_which_its_records_waited_too_long(plans: list[int]) -> None:
    broker = broker_of()
    lagging = replace(SMALL, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=10_000)
    cleaned_once(broker, "views", lagging, rounds=9, more=1)
    first_ms = NOW + 9  # of the first dirty record
    broker.tick(10_000)
    broker.tick(9)
    assert broker.clock.now_ms() == first_ms + 10_000
    assert broker.cleaner.metrics.rounds == 0
    assert len(plans) == 1
    broker.tick(1)
    assert broker.cleaner.metrics.rounds == 1


def test_how_long_records_wait_is_known_also_of_a_log_that_cannot_be_compacted() -> None:
    files = SimulatedFiles()
    broker = broker_of(files)
    log = broker.filled("views", replace(SMALL, max_compaction_lag_ms=10_000))
    files.corrupt(f"{log.folder}/{0:020d}.log", 80)
    broker.tick(15_000)
    assert broker.cleaner.metrics.max_overdue_ms == 5000
    broker.tick(1000)
    assert broker.cleaner.metrics.max_overdue_ms == 6000


class Times:
    def __init__(self, stamps: list[tuple[int, int]]) -> None:
        self._stamps = stamps

    def newest_ms(self, index: int) -> int:
        return self._stamps[index][1]

    def first_ms(self, index: int) -> int:
        return self._stamps[index][0]


@settings(max_examples=200, deadline=None)
@given(
    stamps=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=5),
    first_dirty=st.integers(0, 50),
    decided=st.integers(0, 60),
    min_lag_ms=st.integers(0, 30),
    max_lag_ms=st.one_of(st.just(NEVER), st.integers(1, 30)),
    ratio=st.sampled_from([0.0, 0.5, 1.0]),
    now_ms=st.integers(0, 100),
)
def test_time_alone_changes_no_plan_before_the_predicted_moment(
    stamps: list[tuple[int, int]],
    first_dirty: int,
    decided: int,
    min_lag_ms: int,
    max_lag_ms: int,
    ratio: float,
    now_ms: int,
) -> None:
    rows = [Row(index * 10, 100, newest_ms) for index, (_, newest_ms) in enumerate(stamps)]
    end = len(rows) * 10
    facts = LogFacts(SegmentTable.of(rows), Times(stamps), end, 0, end, min(decided, end), end)
    given_settings = replace(
        SMALL,
        min_compaction_lag_ms=min_lag_ms,
        max_compaction_lag_ms=max_lag_ms,
        min_cleanable_dirty_ratio=ratio,
    )
    decision = plan(facts, given_settings, first_dirty, now_ms)
    changes_ms = changes_at_ms(facts, given_settings, decision)
    assert changes_ms > now_ms
    for later_ms in range(now_ms, min(changes_ms, now_ms + 100)):
        later = plan(facts, given_settings, first_dirty, later_ms)
        assert later._replace(overdue_ms=0) == decision._replace(overdue_ms=0)
        assert (later.overdue_ms > 0) == (decision.overdue_ms > 0)
    if changes_ms < NEVER:
        assert plan(facts, given_settings, first_dirty, changes_ms) != decision


# --- how fast


def test_the_throttle_keeps_the_average_below_its_limit() -> None:
    clock = ManualClock()
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        clock.advance(round(seconds * 1000))

    throttle = Throttle(10_000, clock, sleep)
    for _ in range(20):
        throttle.charge(5000)
        throttle.wait(lambda: False)
    assert clock.monotonic_ms() == 10_000
    assert max(naps) <= 0.1
    clock.advance(60_000)  # what was not used is not saved up
    throttle.charge(5000)
    throttle.wait(lambda: False)
    assert clock.monotonic_ms() == 70_500


def test_a_stopped_throttle_does_not_wait() -> None:
    clock = ManualClock()
    naps: list[float] = []
    throttle = Throttle(1, clock, naps.append)
    throttle.charge(MIB)
    throttle.wait(lambda: len(naps) >= 2)
    assert naps == [0.1, 0.1]


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_limit_of_zero_or_less_is_rejected(limit: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Throttle(limit, ManualClock(), lambda seconds: None)


def test_what_is_read_between_two_questions_is_known_on_average() -> None:
    assert mean_piece_bytes([]) == 0
    assert mean_piece_bytes([0, 0]) == 0
    assert mean_piece_bytes([600, 200]) == 400
    assert mean_piece_bytes([3 * MIB, MIB // 2]) == 896 * 1024


# --- when segments are sealed


@pytest.mark.parametrize(
    ("policy", "max_lag_ms", "segment_ms", "rolls_after_ms"),
    [
        ({COMPACT}, 1000, 60_000, 1000),
        ({COMPACT, DELETE}, 1000, 60_000, 1000),
        ({COMPACT}, 60_000, 1000, 1000),
        ({COMPACT}, NEVER, 60_000, 60_000),
        ({DELETE}, 1000, 60_000, 60_000),
    ],
)
def test_a_segment_that_is_to_be_compacted_in_time_is_sealed_in_time(
    policy: set[str], max_lag_ms: int, segment_ms: int, rolls_after_ms: int
) -> None:
    rule = LogSettings(cleanup_policy=frozenset(policy), max_compaction_lag_ms=max_lag_ms, segment_ms=segment_ms)
    log = new_log(SimulatedFiles(), rule)
    put(log, (b"a", b"1"), at_ms=NOW)
    put(log, (b"a", b"2"), at_ms=NOW + rolls_after_ms)
    assert len(log.table) == 0
    put(log, (b"a", b"3"), at_ms=NOW + rolls_after_ms + 1)
    assert list(log.table.bases) == [0]


def test_a_segment_without_timestamps_is_sealed_in_time_by_the_clock() -> None:
    log = new_log(SimulatedFiles(), LogSettings(cleanup_policy=frozenset({COMPACT}), max_compaction_lag_ms=1000))
    batch = bytes(encode_batch([(-1, b"a", b"1", ())]))
    log.append(batch, leader_epoch=1, now_ms=NOW)
    log.append(batch, leader_epoch=1, now_ms=NOW + 1000)
    assert len(log.table) == 0
    log.append(batch, leader_epoch=1, now_ms=NOW + 1001)
    assert list(log.table.bases) == [0]
