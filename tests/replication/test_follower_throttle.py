"""How fast partitions that are being moved may be copied."""

from __future__ import annotations

import pytest
from tests.replication.fetch_stories import Room, content

from penstock.replication.follower import UNLIMITED, FetcherSettings, Pause, Throttle


def test_second_in_advance_is_free_and_the_rest_is_paid_off_by_time() -> None:
    throttle = Throttle(1000, lambda topic, index: True)
    assert throttle.delay_ms(0) == 0
    throttle.add(3000, 0)
    assert throttle.delay_ms(0) == pytest.approx(2000)
    assert throttle.delay_ms(1500) == pytest.approx(500)
    assert throttle.delay_ms(2000) == 0


def test_long_idleness_saves_up_at_most_one_second() -> None:
    throttle = Throttle(1000, lambda topic, index: True)
    throttle.add(1, 1_000_000)
    throttle.add(2000, 1_000_000)
    assert throttle.delay_ms(1_000_000) == pytest.approx(1001)


def test_another_rate_counts_from_then_on() -> None:
    throttle = Throttle(1000, lambda topic, index: True)
    throttle.add(3000, 0)
    throttle.set_rate(100, 1000)
    assert throttle.delay_ms(1000) == pytest.approx(19_000)
    throttle.set_rate(UNLIMITED, 1000)
    assert throttle.delay_ms(1000) == 0
    assert not throttle.applies_to("t", 0)


@pytest.mark.parametrize("rate", [0, -5, float("nan")])
def test_rate_that_lets_nothing_through_is_rejected(rate: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Throttle(rate, lambda topic, index: True)
    with pytest.raises(ValueError, match="positive"):
        Throttle(1, lambda topic, index: True).set_rate(rate, 0)


SMALL = FetcherSettings(partition_max_bytes=1000, max_bytes=10_000)


def test_throttled_partition_is_copied_at_the_rate_and_the_others_at_full_speed() -> None:
    room = Room()
    one, two = room.host(1), room.host(2, settings=SMALL, throttle=Throttle(10_000, lambda topic, index: topic == "t"))
    moved, kept = one.open("t"), one.open("u")
    moved_copy, kept_copy = two.open("t"), two.open("u")
    for copy in (moved, kept):
        copy.lead(1, {1})
        copy.put(*range(200))
    two.follow(moved_copy, 1, 1)
    two.follow(kept_copy, 1, 1)
    room.until(lambda: kept_copy.log.log_end_offset == 400, within_ms=1000)
    assert two.fetchers.pauses()["t", 0] is Pause.THROTTLED
    size = len(content(moved.log))
    took_ms = room.until(lambda: moved_copy.log.log_end_offset == 400, within_ms=60_000)
    assert took_ms == pytest.approx((size - 10_000) / 10_000 * 1000, rel=0.1)
    assert two.fetchers.metrics.throttled_bytes_in == size
    room.close()


def test_replica_in_sync_is_never_throttled() -> None:
    """Else the throttle would throw it out of the ISR, and the move would never end."""
    room = Room()
    throttle = Throttle(1000, lambda topic, index: True)
    one, two = room.host(1), room.host(2, settings=SMALL, throttle=throttle)
    leader, follower = one.open(), two.open()
    leader.lead(1, {1, 2})
    two.follow(follower, 1, 1)
    room.pass_time(10)
    for number in range(20):
        leader.put(number)
        assert room.until(lambda: leader.log.high_watermark == leader.log.log_end_offset) < 2
    assert throttle.delay_ms(room.loop.time() * 1000) > 1000
    room.close()


def test_who_begins_to_follow_asks_once_though_there_is_a_debt_for_it_may_be_in_sync() -> None:
    room = Room()
    throttle = Throttle(1000, lambda topic, index: True)
    one, two = room.host(1), room.host(2, settings=SMALL, throttle=throttle)
    leader, follower = one.open(), two.open()
    leader.lead(1, {1, 2})
    throttle.add(1_000_000, 0)
    two.follow(follower, 1, 1)
    leader.put(0)
    assert room.until(lambda: leader.log.high_watermark == 2) < 2
    room.close()
