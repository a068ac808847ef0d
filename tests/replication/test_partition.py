"""A partition's roles, what its readers hear, and when its producers are answered."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

import pytest
from tests.replication.replica_stories import LEDGER, NOW_MS, Committed, Host, TopicRules, cluster, with_epoch

from penstock.cluster.image import PartitionImage
from penstock.log.errors import InvalidProducerEpoch, LogError, LogFailed, OutOfOrderSequence
from penstock.log.group_commit import FAST_IN_A_ROW, GroupCommit, InlineSync
from penstock.log.settings import LogSettings
from penstock.records import encode_batch
from penstock.records.batch import EndMarker
from penstock.replication.errors import (
    CommitTimedOut,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderError,
)
from penstock.replication.fetch_state import Append, Hold, Position
from penstock.replication.partition import Partition
from penstock.runtime.threads import InlineWorkers
from penstock.testing.simulated_faults import Fault
from penstock.wire.protocol import ErrorCode


def alone(epoch: int = 0, *, rules: TopicRules | None = None) -> Host:
    host = Host(1, rules=rules)
    host.take(cluster(1, epoch, replicas=(1,), isr=(1,)))
    return host


def three(*, minimum: int = 1) -> tuple[Host, Host, Host]:
    hosts = tuple(Host(broker, rules=TopicRules(min_insync_replicas=minimum)) for broker in (1, 2, 3))
    for host in hosts:
        host.take(cluster(1, 5))
    return hosts[0], hosts[1], hosts[2]


class Reader:
    """A reader that waits and records its events."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def grown(self, partition: Partition, size: int) -> None:
        self.heard.append(("grown", partition.log.high_watermark))

    def moved(self, partition: Partition) -> None:
        self.heard.append(("moved", partition.log.high_watermark))

    def gone(self, partition: Partition) -> None:
        self.heard.append(("gone", 0))


# --- epochs and roles


@pytest.mark.parametrize(
    ("believed", "answer"),
    [
        (-1, ErrorCode.NONE),
        (5, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_reader_with_another_leader_epoch_gets_the_right_error(believed: int, answer: ErrorCode) -> None:
    assert alone(5).partition.check_epoch(believed) == answer


def test_role_from_before_changes_nothing() -> None:
    host = Host(1)
    host.take(cluster(1, 5, version=3))
    partition = host.partition
    assert not partition.follow(PartitionImage((1, 2, 3), 2, 4, (2,), state_version=9))
    assert not partition.lead(PartitionImage((1, 2, 3), 1, 5, (1,), state_version=2), 1, LEDGER, 0)
    assert partition.is_leader
    assert partition.insync_replicas == 3


def test_leader_notes_its_epoch_before_it_writes_in_it_unless_it_is_alone() -> None:
    """KAFKA-10706, KAFKA-15510: a follower must find the epoch, though nothing was written in it."""
    leader, *_ = three()
    assert leader.partition.log.epochs.latest_epoch == 5
    assert alone(5).partition.log.epochs.latest_epoch == -1, (
        "without followers no epoch is needed, and a file less is written"
    )


def test_epoch_is_noted_when_a_replica_is_added_to_one_that_was_alone() -> None:
    host = alone(5)
    host.take(cluster(1, 5, replicas=(1, 2), isr=(1,), version=1))
    assert host.partition.log.epochs.latest_epoch == 5


def test_producer_waiting_for_a_previous_leader_gets_not_leader() -> None:
    leader, *_ = three()
    waiting, reader = leader.append(b"a"), Reader()
    leader.partition.watch(reader)
    leader.take(cluster(2, 6))
    assert isinstance(waiting.answers[0], NotLeaderError)
    assert reader.heard == [("gone", 0)]
    with pytest.raises(NotLeaderError):
        leader.append(b"b")
    later = Committed()
    leader.partition.when_committed(1, 0, later)
    assert isinstance(later.answers[0], NotLeaderError)


def test_leader_that_continues_in_a_new_epoch_keeps_its_producers_waiting() -> None:
    leader, second, _ = three()
    waiting = leader.append(b"a")
    for host in (leader, second):
        host.take(cluster(1, 6, isr=(1, 2)))
    assert not waiting.is_answered
    second.fetch_from(leader)
    second.fetch_from(leader)
    assert waiting.is_good


def test_truncated_records_are_not_an_error_of_the_next_leadership() -> None:
    """A sync overtaken by a truncation must not fail later producers."""
    host = Host(1)
    host.take(cluster(1, 5))
    host.workers.is_held = True
    host.append(b"a")
    host.take(cluster(2, 6))
    host.partition.truncate_to(0)
    host.take(cluster(1, 7))
    waiting = host.append(b"b")
    host.workers.release()
    assert not waiting.is_answered


# --- readers


def test_readers_are_woken_when_records_become_visible() -> None:
    host, reader = alone(), Reader()
    host.workers.is_held = True
    host.partition.watch(reader)
    host.append(b"v", b"w")
    assert reader.heard == [], "a power loss could still take them"
    host.workers.release()
    assert reader.heard == [("grown", 2)]
    host.partition.unwatch(reader)
    host.append(b"x")
    assert len(reader.heard) == 1


def test_topic_with_a_flush_policy_shows_records_at_once() -> None:
    host, reader = alone(rules=TopicRules(LogSettings(sync_before_ack=False))), Reader()
    host.workers.is_held = True
    host.partition.watch(reader)
    assert host.append(b"v").is_good
    assert reader.heard == [("grown", 1)]


def test_records_without_acks_are_synced_and_become_visible() -> None:
    host = alone()
    host.append(b"v", acks_all=False)
    assert host.partition.log.high_watermark == 1


def test_followers_are_woken_by_appends_and_by_the_high_watermark() -> None:
    leader, second, third = three()
    consumer, follower = Reader(), Reader()
    leader.partition.watch(consumer)
    leader.partition.watch_end(follower)
    leader.append(b"a")
    assert (consumer.heard, follower.heard) == ([], [("grown", 0)])
    for host in (second, third):
        host.fetch_from(leader)
        host.fetch_from(leader)
    assert (consumer.heard, follower.heard) == ([("grown", 1)], [("grown", 0), ("moved", 1)])


def test_reader_gets_the_number_of_bytes_committed_together() -> None:
    class Sizes(Reader):
        def grown(self, partition: Partition, size: int) -> None:
            sizes.append(size)

    host, sizes = alone(), list[int]()
    host.workers.is_held = True
    host.partition.watch(Sizes())
    for number in range(3000):
        host.append(b"%d" % number)
    host.workers.release()
    assert sum(sizes) == host.partition.log.size


def test_retry_wakes_no_reader() -> None:
    host, reader = alone(), Reader()
    batch = encode_batch([(1, b"k", b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0)
    first = host.partition.append(bytes(batch), now_ms=5)
    host.partition.watch(reader)
    again = host.partition.append(bytes(batch), now_ms=6)
    assert again.is_duplicate
    assert again.base_offset == first.base_offset
    assert reader.heard == []


def test_removed_partition_answers_its_waiters() -> None:
    host, reader, follower = alone(), Reader(), Reader()
    host.partition.watch(reader)
    host.partition.watch_end(follower)
    host.partition.resign()
    assert reader.heard == follower.heard == [("gone", 0)]


# --- commits


def test_acks_all_waits_for_the_disk_and_for_everyone_in_sync() -> None:
    leader, second, third = three()
    leader.workers.is_held = True
    waiting = leader.append(b"a")
    for host in (second, third):
        host.fetch_from(leader)
        host.fetch_from(leader)
    assert not waiting.is_answered, "all followers have it on their disks, the leader has not"
    leader.workers.release()
    assert waiting.is_good


def test_producers_are_answered_in_the_order_of_their_records_a_retry_included() -> None:
    leader, second, third = three()
    order: list[str] = []

    def note(name: str, error: LogError | None) -> None:
        assert error is None
        order.append(name)

    partition = leader.partition
    batch = encode_batch([(1, b"k", b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0)
    other = encode_batch([(1, b"k", b"w", ())])
    for name, records in (("first", bytes(batch)), ("second", other), ("again", bytes(batch))):
        partition.append(records, NOW_MS, done=partial(note, name), timeout_ms=1000)
    for _ in range(2):
        second.fetch_from(leader)
        third.fetch_from(leader)
    assert order == ["first", "again", "second"]


def test_commit_that_takes_too_long_times_out_and_others_keep_waiting() -> None:
    leader, second, third = three()
    early = leader.append(b"a")
    leader.timers.pass_time(600)
    late = leader.append(b"b")
    leader.timers.pass_time(500)
    assert isinstance(early.answers[0], CommitTimedOut)
    assert not late.is_answered
    for _ in range(2):
        second.fetch_from(leader)
        third.fetch_from(leader)
    assert late.is_good
    assert leader.values(committed_only=True) == [b"a", b"b"]


def test_leader_loses_followers_then_rejects_acks_all() -> None:
    leader, *_ = three(minimum=2)
    waiting = leader.append(b"a")
    leader.take(cluster(1, 5, isr=(1,), version=1))
    assert isinstance(waiting.answers[0], NotEnoughReplicasAfterAppend)
    with pytest.raises(NotEnoughReplicas):
        leader.append(b"b")
    leader.append(b"c", acks_all=False)
    assert leader.partition.log.high_watermark == 0, "KIP-966: what one replica has alone is not committed"


def test_batch_after_a_rejected_first_batch_is_out_of_order() -> None:
    leader, *_ = three(minimum=2)

    def write(sequence: int, *, producer: int = 7, epoch: int = 0) -> int:
        records = encode_batch(
            [(1, None, b"v", ())], producer_id=producer, producer_epoch=epoch, base_sequence=sequence
        )
        return leader.partition.append(records, 1).base_offset

    write(5, producer=9)  # the log does not know what was before, so it counts as the first
    leader.take(cluster(1, 5, isr=(1,), version=1))
    with pytest.raises(NotEnoughReplicas):
        write(0)
    with pytest.raises(NotEnoughReplicas):
        write(1)
    leader.take(cluster(1, 5, isr=(1, 2), version=2))
    with pytest.raises(OutOfOrderSequence, match="sequence 2, expected 0"):
        write(2)
    assert [write(6, producer=9), write(3, producer=8), write(4, epoch=1, producer=10)] == [1, 2, 3]
    assert [write(0), write(1), write(2)] == [4, 5, 6]


def test_rejected_sequences_are_forgotten_with_the_leadership_and_after_a_while() -> None:
    for change in ("epoch", "time", "renumbered"):
        leader, *_ = three(minimum=2)
        leader.take(cluster(1, 5, isr=(1,), version=1))
        first = encode_batch([(1, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0)
        with pytest.raises(NotEnoughReplicas):
            leader.partition.append(first, 1)
        leader.take(cluster(1, 6 if change == "epoch" else 5, isr=(1, 2), version=2))
        epoch = 1 if change == "renumbered" else 0
        later = encode_batch([(1, None, b"v", ())], producer_id=7, producer_epoch=epoch, base_sequence=3)
        assert leader.partition.append(later, 60_001 if change == "time" else 2).base_offset == 0
        assert not leader.partition._rejected


def test_higher_minimum_fails_waiting_producers() -> None:
    leader, *_ = three()
    leader.take(cluster(1, 5, isr=(1, 2), version=1))
    waiting = leader.append(b"a")
    leader.rules = TopicRules(min_insync_replicas=3)
    leader.replicas.update_settings("t", leader.rules)
    assert isinstance(waiting.answers[0], NotEnoughReplicasAfterAppend)


def test_failed_sync_is_reported_to_producers_and_readers() -> None:
    host, reader = alone(), Reader()
    host.append(b"a")
    host.partition.watch(reader)
    host.files.operations.fail("sync", errno.EIO, path_ending=".log")
    waiting = host.append(b"b")
    assert isinstance(waiting.answers[0], LogFailed)
    assert reader.heard == [("gone", 0)]
    assert host.partition.log.high_watermark == 1


def test_retry_of_unsynced_records_requests_the_sync_again() -> None:
    host = alone()
    batch = encode_batch([(1, b"k", b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0)
    host.files.operations.hook = lambda operation: (
        Fault(OSError(errno.ENOSPC, "full")) if "epoch" in operation.path else None
    )
    rejected, taken = Committed(), Committed()
    host.partition.append(bytes(batch), NOW_MS, done=rejected, timeout_ms=1000)
    assert rejected.answers != [None]
    host.files.operations.hook = None
    host.partition.append(bytes(batch), NOW_MS, done=taken, timeout_ms=1000)
    assert taken.is_good


def test_records_synced_by_another_request_are_durable() -> None:
    """A sync that is put off to the end of the turn finds nothing left to do."""
    host, later = alone(), list[Callable[[], None]]()
    prompt = InlineSync(InlineWorkers(), later.append)
    for _ in range(FAST_IN_A_ROW):
        prompt.took(0.1)
        prompt.served(1, 1)
    commits, synced = GroupCommit(InlineWorkers(), prompt), Committed()
    host.workers.is_held = True
    host.append(b"a", acks_all=False)
    commits.when_durable(host.partition.log, 1, synced)
    host.partition.log.flush()
    later[0]()
    assert synced.is_good


# --- followers that ask


def test_follower_counts_only_as_a_replica_under_its_registered_epoch() -> None:
    leader, second, _ = three()
    leader.append(b"a")
    ask = leader.partition.fetched_by
    at_start = Position(0, -1)
    assert ask(4, 104, at_start, {4: 104}, 0)[0] == ErrorCode.REPLICA_NOT_AVAILABLE
    assert ask(2, 99, at_start, LEDGER, 0)[0] == ErrorCode.STALE_BROKER_EPOCH
    assert ask(2, 102, Position(7, -1), LEDGER, 0)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert second.partition.fetched_by(1, 101, at_start, LEDGER, 0)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.partition.leadership is not None
    assert leader.partition.leadership.log_end_of(2) == -1


def test_restarted_follower_is_woken_to_fetch_again() -> None:
    leader, second, third = three()
    for _ in range(2):
        second.fetch_from(leader)
        third.fetch_from(leader)
    follower = Reader()
    leader.partition.watch_end(follower)
    leader.take(with_epoch(leader.image, 2, 202))
    assert follower.heard == [("gone", 0)]
    waiting = leader.append(b"a")
    for _ in range(2):
        third.fetch_from(leader)
        assert isinstance(second.fetch_from(leader), Hold), "under its former epoch"
    assert not waiting.is_answered
    for _ in range(2):
        second.fetch_from(leader, broker_epoch=202)
    assert waiting.is_good


def test_follower_takes_over_watermark_and_start_as_far_as_its_log_goes() -> None:
    leader, second, third = three()
    leader.append(b"a")
    leader.append(b"b")
    for _ in range(2):
        second.fetch_from(leader)
        third.fetch_from(leader)
    leader.logs.advance_start("t", 0, 1)
    assert isinstance(second.fetch_from(leader), Append)
    assert (second.partition.log.high_watermark, second.partition.log.log_start_offset) == (2, 1)
    second.partition.followed(99, 99)
    assert (second.partition.log.high_watermark, second.partition.log.log_start_offset) == (2, 2)


def test_new_leader_is_unsettled_until_its_followers_have_its_log() -> None:
    """KIP-207: its watermark may be behind that of its predecessor, so it names no end yet."""
    leader, second, third = three()
    leader.append(b"a")
    for _ in range(2):
        second.fetch_from(leader)
        third.fetch_from(leader)
    assert second.partition.log.high_watermark == 0, "it asked before the third did, and heard no more since"
    for host in (second, third):
        host.take(cluster(2, 6, isr=(2, 3)))
    settled_first = second.partition.is_settled
    third.fetch_from(second)
    assert (settled_first, second.partition.is_settled) == (False, True)
    assert second.partition.log.high_watermark == 1


# --- transactions


def mark(partition: Partition, epoch: int, version: int, *, commit: bool = True) -> None:
    partition.append_marker(EndMarker(commit, 0), 7, epoch, version, NOW_MS, lambda error: None)


def write(partition: Partition, epoch: int, sequence: int = 0) -> None:
    batch = encode_batch(
        [(NOW_MS, None, b"v", ())],
        producer_id=7,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    partition.append(batch, NOW_MS)


def test_a_write_needs_a_verification_until_the_transaction_is_open_here() -> None:
    partition = alone().partition
    assert not partition.is_verified(7, 0, None)
    verification = partition.begin_verification(7, 0)
    assert verification is not None
    assert partition.is_verified(7, 0, verification)
    write(partition, 0)
    partition.end_verification(7, verification)
    assert partition.begin_verification(7, 0) is None
    assert partition.is_verified(7, 0, None)
    assert not partition.is_verified(7, 1, None)


@pytest.mark.parametrize(("version", "marker_epoch"), [(1, 0), (1, 1), (2, 1)])
def test_a_marker_ends_the_verification_of_its_transaction(version: int, marker_epoch: int) -> None:
    """Otherwise the write would open a transaction that never ends."""
    partition = alone().partition
    verification = partition.begin_verification(7, 0)
    mark(partition, marker_epoch, version, commit=False)
    assert not partition.is_verified(7, 0, verification)


def test_a_marker_of_version_2_leaves_the_verification_of_the_next_transaction() -> None:
    """The producer has the marker's epoch already, and its first write may come before the marker."""
    partition = alone().partition
    write(partition, 0)
    verification = partition.begin_verification(7, 1)
    mark(partition, 1, 2)
    assert partition.is_verified(7, 1, verification)


def test_a_verification_ends_with_the_leadership() -> None:
    host = alone()
    verification = host.partition.begin_verification(7, 0)
    host.take(cluster(1, 1, replicas=(1,), isr=(1,)))
    assert not host.partition.is_verified(7, 0, verification)


def test_two_writes_may_share_a_verification() -> None:
    partition = alone().partition
    first, second = partition.begin_verification(7, 0), partition.begin_verification(7, 0)
    assert first is second
    assert first is not None
    partition.end_verification(7, first)
    assert partition.is_verified(7, 0, second)
    partition.end_verification(7, first)
    assert not partition.is_verified(7, 0, second)


def test_a_late_marker_of_version_2_does_not_end_the_next_transaction() -> None:
    partition = alone().partition
    write(partition, 0)
    mark(partition, 1, 2)
    write(partition, 1)
    with pytest.raises(InvalidProducerEpoch):
        mark(partition, 1, 2, commit=False)
    assert partition.log.last_stable_offset == 2
    mark(partition, 2, 2)
    mark(partition, 2, 2)  # a repetition succeeds
    assert partition.log.last_stable_offset == partition.log.log_end_offset


def test_a_marker_is_larger_than_any_record_may_be_and_still_ends_its_transaction() -> None:
    """The topic's limit is for clients: a transaction that cannot be ended would hold readers up forever."""
    partition = alone(rules=TopicRules(LogSettings(max_message_bytes=72))).partition
    write(partition, 0)
    mark(partition, 1, 2)
    assert partition.log.last_stable_offset == partition.log.log_end_offset == 2
