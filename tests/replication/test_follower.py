"""A follower's fetchers, by stories: what is asked when, and what becomes of the answers."""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from typing import Any

import pytest
from tests.log.log_stories import NOW_MS, ROOMY, base_offsets, batch_of
from tests.replication.fetch_stories import QUICK, Copy, Host, Room, content

from penstock.log.settings import LogSettings
from penstock.log.truncation import truncate_to
from penstock.replication.follower import FetcherSettings, Pause
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.fetch import EpochEndOffset, FetchPartition, FetchRequest, FetchResponse, PartitionData


class Pair:
    """A leader, broker 1, and a follower, broker 2, of topic t."""

    def __init__(
        self, *, settings: FetcherSettings = QUICK, log: LogSettings = ROOMY, sync_ms: float = 0.3, epoch: int = 1
    ) -> None:
        self.room = Room(sync_ms=sync_ms)
        self.one, self.two = self.room.host(1), self.room.host(2, settings=settings)
        self.leader, self.follower = self.one.open(settings=log), self.two.open(settings=log)
        self.leader.lead(epoch, {1, 2})

    def follow(self) -> None:
        self.two.follow(self.follower, 1, self.leader.leader_epoch)

    def until_same(self, *, within_ms: float = 5000) -> float:
        return self.room.until(self.is_same, within_ms=within_ms)

    def is_same(self) -> bool:
        return self.follower.log.log_end_offset == self.leader.log.log_end_offset

    def beside(self, topic: str = "u") -> tuple[Copy, Copy]:
        """Another partition with the same leader and follower."""
        leader, follower = self.one.open(topic), self.two.open(topic)
        leader.lead(1, {1, 2})
        self.two.follow(follower, 1, 1)
        return leader, follower


# --- copying


def test_follower_copies_everything_and_then_what_comes() -> None:
    pair = Pair()
    pair.leader.put(*range(5))
    pair.follow()
    pair.until_same()
    pair.leader.put(5, 6)
    pair.until_same()
    assert content(pair.follower.log) == content(pair.leader.log)
    pair.room.until(lambda: pair.follower.log.high_watermark == 14, within_ms=5)
    assert pair.two.fetchers.lags() == {("t", 0): 0}
    assert pair.two.fetchers.metrics.bytes_in == len(content(pair.leader.log))
    pair.room.close()


def test_leader_hears_of_a_record_only_when_the_follower_has_synced_it() -> None:
    pair = Pair(sync_ms=50)
    pair.follow()
    pair.room.pass_time(10)
    pair.leader.put(0)
    pair.until_same()
    assert pair.leader.log.high_watermark == 0
    assert pair.two.fetchers.pauses() == {("t", 0): Pause.SYNC}
    waited_ms = pair.room.until(lambda: pair.leader.log.high_watermark == 2)
    assert 49 < waited_ms < 51
    assert pair.follower.log.flushed_offset == 2
    pair.room.close()


def test_topic_that_does_not_sync_before_ack_is_acknowledged_at_once() -> None:
    pair = Pair(log=LogSettings(sync_before_ack=False, flush_ms=1000), sync_ms=50)
    pair.follow()
    pair.room.pass_time(10)
    pair.leader.put(0)
    assert pair.room.until(lambda: pair.leader.log.high_watermark == 2) < 1
    assert pair.follower.log.flushed_offset == 0
    pair.room.close()


def test_what_a_previous_leader_had_not_synced_is_synced_before_it_fetches_from_its_end() -> None:
    pair = Pair(sync_ms=20)
    pair.leader.put(0)
    pair.follower.log.append_as_follower(content(pair.leader.log), now_ms=NOW_MS)
    pair.follow()
    pair.room.pass_time(19)
    assert pair.one.server.requests == []
    pair.room.pass_time(5)
    assert pair.one.server.asked_for("t")[0][1] == 2
    assert pair.follower.log.flushed_offset == 2
    pair.room.close()


def test_one_round_trip_and_one_sync_acknowledge_a_record() -> None:
    """Two wires to the follower and back again (0.4 ms), a sync (0.3 ms): no waiting beside these."""
    pair = Pair()
    pair.follow()
    pair.room.pass_time(10)
    pair.leader.put(0)
    assert pair.room.until(lambda: pair.leader.log.high_watermark == 2) == pytest.approx(0.1 + 0.3 + 0.1, abs=0.01)
    pair.room.close()


def test_request_names_only_what_changed() -> None:
    pair = Pair()
    others = [pair.beside(f"quiet{number}") for number in range(10)]
    pair.follow()
    pair.room.pass_time(10)
    count = len(pair.one.server.requests)
    pair.leader.put(0)
    pair.until_same()
    pair.room.pass_time(10)
    named = [[topic.topic_id for topic in request.topics] for _, request in pair.one.server.requests[count:]]
    assert named == [[pair.leader.topic_id], []] or named == [[pair.leader.topic_id]]
    assert len(others) == 10
    pair.room.close()


def test_log_start_that_moved_is_adopted_and_reported_to_the_leader() -> None:
    pair = Pair()
    pair.leader.put(*range(4))
    pair.follow()
    pair.room.until(lambda: pair.leader.log.high_watermark == 8)
    pair.leader.log.advance_start(4)
    pair.leader.moved()
    pair.room.until(lambda: pair.leader.starts.get(2) == 4)
    assert pair.follower.log.log_start_offset == 4
    pair.room.close()


# --- several partitions


def test_two_syncs_that_are_done_in_time_are_one_request() -> None:
    pair = Pair(sync_ms=1.0)
    leader, _ = pair.beside()
    pair.follow()
    pair.room.pass_time(10)
    before = pair.two.fetchers.metrics.requests
    pair.leader.log.append(batch_of(0), leader_epoch=1, now_ms=NOW_MS)
    pair.leader.log.flush()
    leader.put(0)
    pair.room.until(lambda: leader.log.high_watermark == 2 and pair.leader.log.high_watermark == 2)
    assert pair.two.fetchers.metrics.requests == before + 1
    pair.room.close()


def _is_committed(leader: Copy, end: int) -> bool:
    return leader.log.high_watermark >= end


def test_slow_sync_of_one_partition_does_not_hold_up_another() -> None:
    pair = Pair()
    leader, follower = pair.beside()
    pair.two.disk.slow["/u-0"] = 1000
    pair.follow()
    pair.room.pass_time(10)
    leader.put(0)
    pair.room.until(lambda: follower.log.log_end_offset == 2)
    waits_ms = []
    for number in range(20):
        pair.leader.put(number)
        end = pair.leader.log.log_end_offset
        waits_ms.append(pair.room.until(partial(_is_committed, pair.leader, end)))
    assert leader.log.high_watermark == 0
    assert max(waits_ms) < QUICK.sync_patience_ms + 2
    pair.room.pass_time(900)
    assert leader.log.high_watermark == 0
    pair.room.until(lambda: leader.log.high_watermark == 2, within_ms=200)
    pair.room.close()


def test_when_a_slow_sync_is_done_the_leader_hears_of_it_at_once() -> None:
    """Another request waits at the leader: the next one overtakes it."""
    pair = Pair()
    leader, _ = pair.beside()
    pair.two.disk.slow["/u-0"] = 200
    pair.follow()
    pair.room.pass_time(10)
    leader.put(0)
    waited_ms = pair.room.until(lambda: leader.log.high_watermark == 2)
    assert waited_ms < 200 + 1
    assert pair.two.fetchers.metrics.overtaking > 0
    pair.room.close()


def test_leader_that_does_not_release_an_overtaken_fetch_costs_at_most_another_sync() -> None:
    pair = Pair()
    pair.one.server.releases_overtaken = False
    leader, follower = pair.beside()
    pair.two.disk.slow["/u-0"] = 40
    pair.follow()
    pair.room.pass_time(600)
    leader.put(0)
    assert pair.room.until(lambda: leader.log.high_watermark == 2) < 2 * 40 + 5
    leader.put(1)
    pair.room.until(lambda: leader.log.high_watermark == 4)
    assert content(follower.log) == content(leader.log)
    assert pair.two.fetchers.metrics.links_lost == 0
    pair.room.close()


def test_a_newly_followed_partition_is_fetched_at_once_though_a_request_waits() -> None:
    pair = Pair()
    pair.follow()
    pair.room.pass_time(100)
    leader, follower = pair.beside()
    leader.put(0)
    assert pair.room.until(lambda: leader.log.high_watermark == 2) < 2
    assert follower.log.log_end_offset == 2
    pair.room.close()


def test_partition_that_is_not_followed_any_more_is_forgotten_at_the_leader() -> None:
    pair = Pair()
    leader, follower = pair.beside()
    pair.follow()
    pair.room.pass_time(10)
    pair.two.fetchers.unfollow([("u", 0), ("nobody", 7)])
    leader.put(0)
    pair.leader.put(0)
    pair.until_same()
    pair.room.pass_time(1000)
    assert follower.log.log_end_offset == 0
    forgotten = [topic.topic_id for _, sent in pair.one.server.requests for topic in sent.forgotten_topics_data]
    assert forgotten == [leader.topic_id]
    pair.room.close()


def test_last_partition_takes_its_fetcher_with_it() -> None:
    pair = Pair()
    pair.follow()
    pair.room.pass_time(10)
    pair.two.fetchers.unfollow([("t", 0)])
    assert pair.two.fetchers.leaders == []
    count = len(pair.one.server.requests)
    pair.room.pass_time(5000)
    assert len(pair.one.server.requests) == count
    pair.room.close()


# --- epochs and leaders


def test_answer_of_the_old_epoch_is_not_applied_in_the_new_one() -> None:
    pair = Pair()
    pair.room.delay_s = 0.01
    pair.leader.put(0)
    pair.follow()
    pair.room.pass_time(15)  # the answer with the records is on its way
    pair.two.follow(pair.follower, 1, 2)
    pair.room.pass_time(10)
    assert pair.follower.log.log_end_offset == 0
    pair.leader.lead(2, {1, 2})
    pair.until_same()
    pair.room.close()


def test_answer_is_not_applied_once_the_partition_itself_is_in_another_epoch() -> None:
    """The partition changes first, then the fetchers learn of it."""
    pair = Pair()
    pair.room.delay_s = 0.01
    pair.leader.put(0)
    pair.follow()
    pair.room.pass_time(15)
    pair.follower.be_led(1, 2)
    pair.room.pass_time(100)
    assert pair.follower.log.log_end_offset == 0
    assert pair.two.fetchers.pauses() == {("t", 0): Pause.METADATA}
    pair.room.close()


def test_partition_moves_to_its_new_leader() -> None:
    pair = Pair()
    three = pair.room.host(3)
    third = three.open()
    three.follow(third, 1, 1)
    pair.leader.put(0, 1)
    pair.follow()
    pair.until_same()
    pair.room.until(lambda: third.log.log_end_offset == 4)
    third.lead(2, {2, 3})
    third.put(2)
    three.fetchers.unfollow([("t", 0)])
    pair.two.follow(pair.follower, 3, 2)
    assert pair.two.fetchers.leaders == [3]
    pair.room.until(lambda: third.log.high_watermark == 6)
    assert content(pair.follower.log) == content(third.log)
    pair.room.close()


def test_leader_that_does_not_know_of_its_epoch_yet_is_asked_again_after_a_while() -> None:
    pair = Pair()
    pair.leader.put(0)
    pair.two.follow(pair.follower, 1, 2)
    pair.room.pass_time(10)
    assert pair.two.fetchers.pauses() == {("t", 0): Pause.BACKOFF}
    pair.room.pass_time(500)
    assert len(pair.one.server.requests) < 12, "it backs off"
    pair.leader.lead(2, {1, 2})
    pair.until_same(within_ms=QUICK.backoff_max_ms + 5)
    pair.room.close()


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID])
def test_leader_that_has_not_heard_of_a_new_partition_is_asked_again_without_news(error: ErrorCode) -> None:
    """The follower had the news first, and there will be no more: nothing else would make it ask again."""
    pair = Pair()
    pair.leader.put(0)
    pair.leader.rejections += [error] * 3
    pair.follow()
    pair.room.pass_time(10)
    assert pair.two.fetchers.pauses() == {("t", 0): Pause.METADATA}
    pair.until_same(within_ms=500)
    pair.room.close()


def test_who_is_fenced_waits_for_news() -> None:
    pair = Pair(epoch=5)
    pair.leader.put(0)
    pair.two.follow(pair.follower, 1, 4)
    pair.room.pass_time(10)
    count = len(pair.one.server.requests)
    pair.room.pass_time(10_000)
    assert len(pair.one.server.requests) == count
    assert pair.two.fetchers.pauses() == {("t", 0): Pause.METADATA}
    pair.follow()
    pair.until_same()
    pair.room.close()


def test_a_replica_without_a_leader_or_that_leads_follows_no_broker() -> None:
    pair = Pair()
    pair.follow()
    pair.two.follow(pair.follower, -1, 2)
    assert pair.two.fetchers.leaders == []
    pair.two.follow(pair.follower, 2, 3)
    assert pair.two.fetchers.leaders == []
    pair.room.close()


# --- cutting


def _copy_all(leader: Copy, follower: Copy) -> None:
    follower.log.append_as_follower(content(leader.log), now_ms=NOW_MS)


def test_kip_101_a_follower_is_cut_by_epoch_and_keeps_what_is_committed_beyond_its_watermark() -> None:
    pair = Pair()
    pair.leader.put(0, 1)
    _copy_all(pair.leader, pair.follower)
    pair.follower.log.append(batch_of(7), leader_epoch=1, now_ms=NOW_MS)  # it led, and no other replica got this
    assert pair.follower.log.high_watermark == 0
    pair.leader.lead(2, {1, 2})
    pair.leader.put(2, 3)
    pair.follow()
    pair.until_same()
    assert pair.follower.cuts == [4]
    assert content(pair.follower.log) == content(pair.leader.log)
    pair.room.close()


def test_kip_279_two_fast_failovers_are_unwound_epoch_by_epoch() -> None:
    pair = Pair()
    pair.leader.put(0)
    _copy_all(pair.leader, pair.follower)
    for epoch in (2, 3):
        pair.follower.log.append(batch_of(epoch), leader_epoch=epoch, now_ms=NOW_MS)
    pair.leader.put(5)
    pair.leader.lead(4, {1, 2})
    pair.leader.put(6)
    pair.follow()
    pair.room.until(lambda: pair.leader.log.high_watermark == 6)
    assert pair.follower.cuts == [2]
    assert content(pair.follower.log) == content(pair.leader.log)
    pair.room.close()


def test_kafka_10706_an_epoch_that_wrote_nothing_does_not_block_its_previous_leader() -> None:
    pair = Pair()
    pair.leader.put(0)
    _copy_all(pair.leader, pair.follower)
    pair.follower.log.epochs.assign(2, 2)
    pair.leader.lead(3, {1, 2})
    pair.follow()
    pair.room.pass_time(20)
    pair.leader.put(1)
    pair.until_same(within_ms=20)
    assert pair.follower.cuts == []
    pair.room.close()


@pytest.mark.parametrize("copied", [0, 1])
def test_who_led_and_wrote_nothing_takes_records_of_older_epochs_than_its_own(copied: int) -> None:
    """It led in epoch 3, with nothing or with a record of epoch 1; the leader has records of epochs 1, 2 and 4."""
    pair = Pair()
    pair.leader.put(0)
    if copied:
        _copy_all(pair.leader, pair.follower)
    for epoch in (2, 4):
        pair.leader.lead(epoch, {1, 2})
        pair.leader.put(epoch)
    pair.follower.log.epochs.assign(3, pair.follower.log.log_end_offset)
    pair.follow()
    pair.until_same(within_ms=20)
    assert pair.follower.log.epochs.entries == pair.leader.log.epochs.entries
    assert pair.follower.cuts == []
    pair.room.close()


def test_watermark_does_not_move_before_the_log_is_cut() -> None:
    pair = Pair()
    pair.leader.isr = {1}
    pair.leader.put(0, 1)
    pair.follower.log.append(batch_of(7), leader_epoch=0, now_ms=NOW_MS)
    seen: list[tuple[int, bytes]] = []
    pair.follower.after_followed = lambda: seen.append((pair.follower.log.high_watermark, content(pair.follower.log)))
    pair.follow()
    pair.until_same()
    for high_watermark, bytes_then in seen:
        assert high_watermark == 0 or content(pair.leader.log).startswith(bytes_then)
    assert pair.follower.cuts == [0]
    pair.room.close()


def test_leader_that_answers_nonsense_about_epochs_cuts_nothing() -> None:
    pair = Pair()
    pair.leader.put(0, 1)
    _copy_all(pair.leader, pair.follower)
    pair.leader.log.epochs.assign(9, 4)
    truncate_to(pair.leader.log, 2, NOW_MS)

    def lie(wanted: FetchPartition, data: PartitionData) -> None:
        data.diverging_epoch = EpochEndOffset(epoch=8, end_offset=1)

    pair.leader.falsify = lie
    pair.follow()
    pair.room.pass_time(1000)
    assert pair.follower.cuts == []
    assert pair.follower.log.log_end_offset == 4
    assert pair.two.fetchers.pauses() == {("t", 0): Pause.BACKOFF}
    pair.room.close()


def test_follower_of_what_was_deleted_starts_over_where_the_leader_begins() -> None:
    pair = Pair()
    pair.leader.put(*range(5))
    _copy_all_first(pair.leader, pair.follower)
    pair.leader.log.set_high_watermark(10)
    pair.leader.log.advance_start(6)
    pair.follow()
    pair.until_same()
    assert pair.follower.restarts == [6]
    assert base_offsets(pair.follower.log) == [6, 8]
    pair.room.close()


def _copy_all_first(leader: Copy, follower: Copy) -> None:
    region = leader.log.read(0, 1)
    assert region is not None
    follower.log.append_as_follower(region.read(), now_ms=NOW_MS)


def test_leader_that_begins_inside_of_a_batch_can_be_followed() -> None:
    pair = Pair()
    pair.leader.put(*range(5))
    pair.leader.log.set_high_watermark(10)
    pair.leader.log.advance_start(5)
    pair.follow()
    pair.until_same()
    assert pair.follower.log.log_start_offset == 5
    pair.room.until(lambda: pair.leader.log.high_watermark == 10)
    assert content(pair.follower.log) == content(pair.leader.log)
    pair.room.close()


def test_batches_too_far_apart_for_one_segment_are_appended_one_by_one() -> None:
    pair = Pair()
    for base in (0, 3_000_000_000):
        batch = batch_of(base % 100, base_offset=base, leader_epoch=1)
        pair.leader.log.append_as_follower(batch, now_ms=NOW_MS)
    pair.leader.tamper = lambda data: (
        content(pair.leader.log) if data and pair.follower.log.log_end_offset == 0 else data
    )
    pair.follow()
    pair.until_same()
    assert base_offsets(pair.follower.log) == [0, 3_000_000_000]
    pair.room.close()


# --- bytes


def test_damaged_bytes_are_never_appended_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    pair.leader.put(0)
    pair.leader.tamper = lambda data: data[:-1] + bytes([data[-1] ^ 1])
    pair.follow()
    pair.room.pass_time(1000)
    assert pair.follower.log.log_end_offset == 0
    assert 3 < pair.two.fetchers.metrics.damaged < 12
    assert pair.two.fetchers.pauses() == {("t", 0): Pause.BACKOFF}
    reported = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(reported) == 1
    assert "t-0" in reported[0]
    assert "offset=0" in reported[0]
    pair.leader.tamper = bytes
    pair.until_same(within_ms=QUICK.backoff_max_ms + 5)
    pair.room.close()


def test_one_damaged_partition_does_not_hold_up_the_others() -> None:
    pair = Pair()
    leader, follower = pair.beside()
    leader.tamper = lambda data: data[:-1] + bytes([data[-1] ^ 1])
    leader.put(0)
    pair.leader.put(0)
    pair.follow()
    pair.until_same(within_ms=10)
    assert follower.log.log_end_offset == 0
    pair.room.close()


def test_batch_larger_than_what_is_asked_for_gets_through() -> None:
    pair = Pair(settings=FetcherSettings(partition_max_bytes=100, max_bytes=100))
    pair.leader.put(0, size=5000)
    pair.follow()
    pair.until_same()
    pair.room.close()


def test_leader_that_cuts_off_batches_is_asked_for_more() -> None:
    pair = Pair(settings=FetcherSettings(partition_max_bytes=300, max_bytes=300))
    pair.leader.put(0, 1, size=1000)
    asked: list[int] = []

    def cut_off(wanted: FetchPartition, data: PartitionData) -> None:
        asked.append(wanted.partition_max_bytes)
        if isinstance(data.records, bytes):
            data.records = data.records[: asked[-1]]

    pair.leader.falsify = cut_off
    pair.follow()
    pair.until_same(within_ms=50)
    assert 2400 in asked
    pair.room.pass_time(10)
    assert asked[-1] == 300
    pair.room.close()


# --- disks


def test_log_whose_disk_failed_is_left_out_and_reported_and_the_others_continue() -> None:
    pair = Pair()
    leader, follower = pair.beside()
    pair.follow()
    pair.room.pass_time(10)
    pair.two.files.operations.fail("sync", errno.EIO, path_ending=".log")
    leader.put(0)
    pair.room.until(lambda: bool(pair.two.failed))
    pair.leader.put(0)
    pair.until_same(within_ms=20)
    assert [partition for partition, _ in pair.two.failed] == [follower]
    leader.put(1)
    pair.room.pass_time(1000)
    assert pair.two.fetchers.pauses() == {("u", 0): Pause.FAILED}
    assert follower.log.log_end_offset == 2
    assert leader.log.high_watermark == 0
    assert len(pair.two.failed) == 1
    pair.room.close()


def test_full_disk_is_tried_again_after_a_while() -> None:
    pair = Pair()
    pair.follow()
    pair.room.pass_time(10)
    for _ in range(2):
        pair.two.files.operations.fail("write", errno.ENOSPC, path_ending=".log")
    pair.leader.put(0)
    pair.room.pass_time(1)
    assert pair.two.fetchers.pauses() == {("t", 0): Pause.BACKOFF}
    pair.until_same(within_ms=200)
    assert content(pair.follower.log) == content(pair.leader.log)
    pair.room.close()


# --- links and sessions


def test_lost_link_is_opened_again_with_a_new_session() -> None:
    pair = Pair()
    pair.leader.put(0)
    pair.follow()
    pair.until_same()
    pair.room.cut_off.add(1)
    pair.room.pass_time(3000)
    assert pair.two.fetchers.metrics.links_lost > 3
    pair.leader.put(1)
    pair.room.cut_off.clear()
    pair.until_same(within_ms=QUICK.backoff_max_ms + 5)
    pair.room.pass_time(10)
    assert pair.room.connections > 3
    assert pair.one.server.requests[-1][1].session_id > 1
    assert content(pair.follower.log) == content(pair.leader.log)
    pair.room.close()


def test_change_of_an_unreachable_leader_takes_effect_at_once() -> None:
    pair = Pair(settings=FetcherSettings(backoff_ms=5000, backoff_max_ms=5000))
    pair.leader.put(0)
    pair.room.cut_off.add(1)
    pair.follow()
    pair.room.pass_time(100)
    pair.room.cut_off.clear()
    pair.leader.lead(2, {1, 2})
    pair.follow()
    pair.until_same(within_ms=5)
    pair.room.close()


def test_leader_that_registered_again_is_asked_again_although_a_response_is_pending() -> None:
    """A machine that loses power does not close its connections; without news the timeout of a fetch is waited for."""
    pair = Pair()
    pair.leader.put(0)
    pair.follow()
    pair.until_same()
    server, serve = pair.one.server, pair.one.server.serve

    async def silent(request: FetchRequest) -> FetchResponse | None:
        await asyncio.Event().wait()
        return None

    server.serve = silent  # type: ignore[method-assign]
    pair.room.pass_time(QUICK.max_wait_ms + 100)
    server.serve = serve  # type: ignore[method-assign]
    pair.leader.put(1)
    pair.room.pass_time(100)
    assert not pair.is_same()
    pair.two.fetchers.reconnect([1, 99])
    pair.until_same(within_ms=QUICK.backoff_max_ms + 5)
    pair.room.close()


def test_unknown_leader_is_tried_until_it_is_known_or_no_longer_followed() -> None:
    pair = Pair()
    pair.two.follow(pair.follower, 99, 1)
    pair.room.pass_time(1000)
    assert pair.two.fetchers.metrics.links_lost > 3
    pair.follow()
    pair.leader.put(0)
    pair.until_same()
    pair.room.close()


def test_leader_that_forgot_the_session_gets_a_full_fetch_at_once() -> None:
    pair = Pair()
    leader, follower = pair.beside()
    pair.follow()
    pair.room.pass_time(10)
    pair.one.server.forget_sessions()
    pair.leader.put(0)
    leader.put(0)
    pair.until_same(within_ms=5)
    pair.room.until(lambda: follower.log.log_end_offset == 2, within_ms=5)
    assert pair.room.connections == 1
    pair.room.close()


def test_leader_without_sessions_is_followed_and_not_asked_without_end() -> None:
    pair = Pair()
    pair.one.server.keeps_sessions = False
    pair.follow()
    for number in range(3):
        pair.leader.put(number)
        pair.until_same(within_ms=5)
    pair.room.pass_time(5000)
    assert len(pair.one.server.requests) < 25
    pair.room.close()


def test_restarted_leader_is_followed_in_its_next_epoch() -> None:
    pair = Pair()
    pair.leader.put(0, 1)
    pair.follow()
    pair.until_same()
    files = pair.one.files
    pair.room.kill(1)
    files.crash()
    pair.one = pair.room.host(1, files, life=2)
    pair.leader = pair.one.open()
    pair.leader.lead(2, {1, 2})
    pair.leader.put(2)
    pair.follow()
    pair.until_same()
    assert content(pair.follower.log) == content(pair.leader.log)
    assert pair.follower.cuts == []
    pair.room.close()


def test_replica_and_its_broker_epoch_are_named_in_every_request() -> None:
    pair = Pair()
    pair.follow()
    pair.room.pass_time(2000)
    states = {(sent.replica_state.replica_id, sent.replica_state.replica_epoch) for _, sent in pair.one.server.requests}
    assert states == {(2, 1)}
    assert len(pair.one.server.requests) in (5, 6), "a quiet leader is asked twice a second"
    pair.room.close()


# --- the end


def test_after_close_nothing_is_asked_or_appended() -> None:
    pair = Pair(sync_ms=100)
    pair.leader.put(0)
    pair.follow()
    pair.until_same()
    pair.room.loop.run_until_complete(pair.two.fetchers.close())
    count = len(pair.one.server.requests)
    pair.leader.put(1)
    pair.room.pass_time(5000)
    assert pair.follower.log.log_end_offset == 2
    assert len(pair.one.server.requests) == count
    with pytest.raises(RuntimeError, match="closed"):
        pair.follow()


def test_same_scenario_runs_the_same_way_every_time() -> None:
    def story() -> list[object]:
        pair = Pair()
        copies = [pair.beside(f"topic{number}") for number in range(8)]
        pair.follow()
        for number in range(10):
            pair.room.pass_time(0.7)
            copies[number % 8][0].put(number)
            if number == 4:
                pair.room.cut_off.add(1)
                pair.room.pass_time(50)
                pair.room.cut_off.clear()
        pair.room.pass_time(1000)
        pair.room.close()
        return [(time_s, repr(request)) for time_s, request in pair.one.server.requests]

    assert story() == story()


def test_error_in_applying_a_response_is_reported_and_does_not_stop_following(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair()
    pair.leader.put(0)
    reported: list[dict[str, Any]] = []
    monkeypatch.setattr(pair.room.loop, "call_exception_handler", reported.append)

    def fail_once() -> None:
        pair.follower.before_append = lambda: None
        raise ZeroDivisionError("a mistake of ours")

    pair.follower.before_append = fail_once
    pair.follow()
    pair.until_same(within_ms=100)
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]
    pair.room.close()


def test_hosts_are_what_the_stories_take_them_for() -> None:
    """The scripted leader rejects what a real leader rejects: otherwise the tests would prove nothing."""
    room = Room()
    host: Host = room.host(1)
    copy = host.open()
    copy.lead(3)

    def code(epoch: int) -> int:
        return copy.answer(FetchPartition(current_leader_epoch=epoch), 2).error_code

    assert [code(2), code(3), code(4)] == [ErrorCode.FENCED_LEADER_EPOCH, 0, ErrorCode.UNKNOWN_LEADER_EPOCH]
    assert copy.answer(FetchPartition(current_leader_epoch=3, fetch_offset=9), 2).error_code == 1
    room.close()
