"""A shard of transactional ids: stories of producers, and the rules that hold in every one of them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.coordination.coordinator_record import CoordinatorRecord
from penstock.coordination.errors import ShardNotActive, WriteOutOfOrder
from penstock.coordination.transactions.transaction import (
    LAST_EPOCH,
    Transaction,
    TransactionRecord,
    TransactionState,
    encode_record,
)
from penstock.coordination.transactions.transaction_shard import (
    Add,
    Added,
    End,
    Ended,
    Init,
    Initialized,
    Markers,
    Outcome,
    Request,
    TransactionSettings,
    TransactionShard,
)
from penstock.wire.protocol import ErrorCode

VIEWS = ("views", 0)
CLICKS = ("clicks", 3)
NONE = ErrorCode.NONE


class Coordinator:
    """A shard whose records are committed at once, unless `holds` is set; its log can be replayed."""

    def __init__(self, log: list[CoordinatorRecord] | None = None, **settings: Any) -> None:
        self.log: list[CoordinatorRecord] = []
        self.now_ms = 1_000_000
        self.next_id = 1000
        self.has_ids = True
        self.holds = False
        self.pending: list[Outcome] = []
        self.markers: list[Markers] = []
        self.replies: dict[str, Any] = {}
        self.shard = TransactionShard(TransactionSettings(**settings), self.take)
        for key, value in log or []:
            self.shard.replay(key, value)
            self.log.append(CoordinatorRecord(key, value))
        self.carry_out(self.shard.loaded(self.now_ms))

    def take(self) -> int | None:
        if not self.has_ids:
            return None
        self.next_id += 1
        return self.next_id

    def carry_out(self, outcome: Outcome) -> None:
        for reply in outcome.replies:
            assert reply.token not in self.replies, "answered twice"
            self.replies[str(reply.token)] = reply.message
        self.markers += outcome.markers
        if outcome.write_id is not None:
            self.pending.append(outcome)
            if not self.holds:
                self.commit()

    def commit(self) -> None:
        while self.pending:
            outcome = self.pending.pop(0)
            self.log += outcome.records
            assert outcome.write_id is not None
            self.carry_out(self.shard.appended(outcome.write_id, self.now_ms))

    def fail(self, code: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS) -> None:
        outcome = self.pending.pop(0)
        assert outcome.write_id is not None
        self.carry_out(self.shard.append_failed(outcome.write_id, code, self.now_ms))

    def ask(self, request: Request, token: str = "it") -> Any:
        self.replies.pop(token, None)
        self.carry_out(self.shard.handle(request, token, self.now_ms))
        return self.replies.get(token)

    def init(self, name: str = "t", **more: Any) -> Initialized:
        answer = self.ask(Init(name, more.pop("timeout_ms", 60_000), **more))
        assert isinstance(answer, Initialized)
        return answer

    def add(self, producer: Initialized | Ended, *partitions: tuple[str, int], version: int = 2, **more: Any) -> Any:
        return self.ask(Add("t", producer.producer_id, producer.epoch, frozenset(partitions), version, **more))

    def end(self, producer: Initialized | Ended, commit: bool = True, version: int = 2, token: str = "it") -> Any:
        return self.ask(End("t", producer.producer_id, producer.epoch, commit, version), token)

    def mark(self) -> None:
        """All markers are written."""
        markers, self.markers = self.markers, []
        for each in markers:
            self.carry_out(self.shard.marked(each.transactional_id, each.epoch, each.partitions, self.now_ms))

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        while self.shard.next_deadline_ms <= self.now_ms:
            before = (self.shard.next_deadline_ms, len(self.log))
            self.carry_out(self.shard.tick(self.now_ms))
            if (self.shard.next_deadline_ms, len(self.log)) == before:
                break

    @property
    def state(self) -> str:
        transaction = self.shard.get("t")
        return "" if transaction is None else transaction.state.label

    def restarted(self, **settings: Any) -> Coordinator:
        """Another coordinator that loads the log."""
        other = Coordinator(self.log, **settings)
        other.next_id = self.next_id + 1000
        other.now_ms = self.now_ms
        return other


# --- the usual story


def test_a_transaction_is_decided_then_marked_then_complete() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    assert producer == Initialized(NONE, 1001, 0)
    assert coordinator.add(producer, VIEWS, CLICKS) == Added(NONE)
    assert coordinator.state == "Ongoing"
    ended = coordinator.end(producer)
    assert ended == Ended(NONE, 1001, 1)
    assert coordinator.state == "PrepareCommit"
    assert coordinator.markers == [Markers("t", 1001, 1, True, 2, frozenset({VIEWS, CLICKS}))]
    coordinator.mark()
    assert coordinator.state == "CompleteCommit"
    assert coordinator.add(ended, VIEWS) == Added(NONE)


def test_a_client_of_version_1_keeps_its_epoch() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    for _ in range(2):
        assert coordinator.add(producer, VIEWS, version=1) == Added(NONE)
        assert coordinator.end(producer, commit=False, version=1) == Ended(NONE)
        assert coordinator.markers == [Markers("t", 1001, 0, False, 1, frozenset({VIEWS}))]
        coordinator.mark()
        assert coordinator.state == "CompleteAbort"


def test_the_decision_is_not_answered_before_it_is_committed() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    coordinator.holds = True
    assert coordinator.end(producer) is None
    assert coordinator.markers == []
    coordinator.commit()
    assert coordinator.replies["it"] == Ended(NONE, 1001, 1)
    assert len(coordinator.markers) == 1


def test_markers_may_come_one_by_one() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS, CLICKS)
    coordinator.end(producer)
    coordinator.carry_out(coordinator.shard.marked("t", 1, [VIEWS], 0))
    assert coordinator.state == "PrepareCommit"
    coordinator.carry_out(coordinator.shard.marked("t", 1, [CLICKS], 0))
    assert coordinator.state == "CompleteCommit"


def test_markers_of_another_epoch_do_not_count() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    coordinator.end(producer)
    coordinator.carry_out(coordinator.shard.marked("t", 0, [VIEWS], 0))
    assert coordinator.state == "PrepareCommit"


def test_partitions_of_deleted_topics_need_no_marker() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS, CLICKS)
    coordinator.end(producer)
    coordinator.carry_out(coordinator.shard.forget_topics(["views"], 0))
    assert coordinator.state == "PrepareCommit"
    coordinator.carry_out(coordinator.shard.forget_topics(["clicks"], 0))
    assert coordinator.state == "CompleteCommit"


# --- requests that find a decision under way


def test_the_next_transaction_waits_for_the_end_of_the_last_one() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    ended = coordinator.end(producer)
    assert coordinator.add(ended, CLICKS) is None
    coordinator.mark()
    assert coordinator.replies["it"] == Added(NONE)
    assert coordinator.state == "Ongoing"


def test_the_end_of_the_last_transaction_and_the_next_one_are_one_batch() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    ended = coordinator.end(producer)
    coordinator.add(ended, CLICKS)
    coordinator.holds = True
    coordinator.mark()
    assert [len(outcome.records) for outcome in coordinator.pending] == [2]
    # Both are lost: the markers will be sent again, and the client tries again.
    coordinator.fail()
    assert coordinator.replies["it"] == Added(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert coordinator.state == "PrepareCommit"


def test_waiting_ends_with_concurrent_transactions() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    ended = coordinator.end(producer)
    coordinator.add(ended, CLICKS)
    coordinator.wait(10_000)
    assert coordinator.replies["it"] == Added(ErrorCode.CONCURRENT_TRANSACTIONS)
    coordinator.mark()
    assert coordinator.state == "CompleteCommit"


def test_only_a_few_requests_of_an_id_wait() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    ended = coordinator.end(producer)
    for number in range(20):
        coordinator.ask(Add("t", ended.producer_id, ended.epoch, frozenset({CLICKS}), 2), f"add {number}")
    rejected = [each for each in coordinator.replies.values() if each == Added(ErrorCode.CONCURRENT_TRANSACTIONS)]
    assert len(rejected) == 12


def test_partitions_of_several_leaders_that_wait_join_in_one_record() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.holds = True
    assert coordinator.add(producer, VIEWS) is None
    for number in range(3):
        request = Add("t", producer.producer_id, producer.epoch, frozenset({("clicks", number)}), 2)
        assert coordinator.ask(request, f"leader {number}") is None
    coordinator.holds = False
    coordinator.commit()
    assert coordinator.replies == {"it": Added(NONE)} | {f"leader {number}": Added(NONE) for number in range(3)}
    transaction = coordinator.shard.get("t")
    assert transaction is not None
    assert transaction.partitions == {VIEWS, *(("clicks", number) for number in range(3))}
    assert len(coordinator.log) == 3, "Empty, Ongoing with the first, Ongoing with all"


def test_only_requests_about_the_same_transaction_share_a_record_and_none_overtakes() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.holds = True
    coordinator.add(producer, VIEWS)
    alike = Add("t", producer.producer_id, producer.epoch, frozenset({CLICKS}), 2)
    waiting: dict[str, Request] = {
        "alike": alike,
        "fenced": alike._replace(epoch=7),
        "end": End("t", producer.producer_id, producer.epoch, True, 2),
        "late": alike._replace(partitions=frozenset({("late", 0)})),
    }
    for token, request in waiting.items():
        assert coordinator.ask(request, token) is None
    coordinator.holds = False
    coordinator.commit()
    assert coordinator.replies["alike"] == Added(NONE)
    assert coordinator.replies["fenced"] == Added(ErrorCode.PRODUCER_FENCED)
    assert coordinator.replies["end"] == Ended(NONE, 1001, 1)
    assert coordinator.markers == [Markers("t", 1001, 1, True, 2, frozenset({VIEWS, CLICKS}))]
    coordinator.mark()
    assert coordinator.replies["late"] == Added(ErrorCode.PRODUCER_FENCED), "its epoch is over"


def test_all_who_share_a_record_hear_that_it_was_not_written() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.holds = True
    coordinator.add(producer, VIEWS)
    for token in ("first", "second"):
        request = Add("t", producer.producer_id, producer.epoch, frozenset({(token, 0)}), 2)
        coordinator.ask(request, token)
    outcome = coordinator.pending.pop(0)
    assert outcome.write_id is not None
    coordinator.carry_out(coordinator.shard.appended(outcome.write_id, coordinator.now_ms))
    coordinator.fail()
    for token in ("first", "second"):
        assert coordinator.replies[token] == Added(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    coordinator.holds = False
    assert coordinator.end(producer) == Ended(NONE, 1001, 1)
    assert coordinator.markers == [Markers("t", 1001, 1, True, 2, frozenset({VIEWS}))]


# --- fencing


def test_a_new_producer_aborts_the_open_transaction_and_fences_the_old_one() -> None:
    coordinator = Coordinator()
    old = coordinator.init()
    coordinator.add(old, VIEWS)
    assert coordinator.ask(Init("t", 60_000)) is None
    assert coordinator.markers == [Markers("t", 1001, 1, False, 2, frozenset({VIEWS}))]
    coordinator.mark()
    new = coordinator.replies["it"]
    assert new == Initialized(NONE, 1001, 2)
    assert coordinator.add(old, VIEWS) == Added(ErrorCode.PRODUCER_FENCED)
    assert coordinator.end(old) == Ended(ErrorCode.PRODUCER_FENCED)
    assert coordinator.init(producer_id=1001, epoch=0).code == ErrorCode.PRODUCER_FENCED
    assert coordinator.add(new, VIEWS) == Added(NONE)


def test_a_producer_that_names_its_epoch_gets_the_next_one_and_once_only() -> None:
    """KIP-360, and KAFKA-19367: a repeated request must not bump the epoch twice."""
    coordinator = Coordinator()
    producer = coordinator.init()
    assert coordinator.init(producer_id=1001, epoch=producer.epoch) == Initialized(NONE, 1001, 1)
    assert coordinator.init(producer_id=1001, epoch=producer.epoch) == Initialized(NONE, 1001, 1)
    assert coordinator.init(producer_id=1001, epoch=1) == Initialized(NONE, 1001, 2)


def test_a_producer_that_names_its_epoch_with_an_open_transaction_gets_the_epoch_after_the_abort() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    coordinator.ask(Init("t", 60_000, producer.producer_id, producer.epoch))
    coordinator.mark()
    assert coordinator.replies["it"] == Initialized(NONE, 1001, 1)


def test_the_id_of_another_producer_is_rejected() -> None:
    coordinator = Coordinator()
    coordinator.init()
    outsider = Initialized(NONE, 5, 0)
    assert coordinator.add(outsider, VIEWS) == Added(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert coordinator.end(outsider) == Ended(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert coordinator.init(producer_id=5, epoch=0).code == ErrorCode.PRODUCER_FENCED
    assert coordinator.ask(End("unknown", 1001, 0, True, 2)) == Ended(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


# --- repeated and delayed ends


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_has_the_same_answer(commit: bool) -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    first = coordinator.end(producer, commit)
    assert coordinator.end(producer, commit) is None  # while the markers are being written
    coordinator.mark()
    assert coordinator.replies["it"] == first
    assert coordinator.end(producer, commit) == first
    assert coordinator.end(producer, not commit) == Ended(ErrorCode.INVALID_TXN_STATE)
    assert coordinator.end(producer, commit, version=1) == Ended(ErrorCode.PRODUCER_FENCED)


def test_a_delayed_end_cannot_end_the_next_transaction() -> None:
    """KAFKA-17754, found by Jepsen."""
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    ended = coordinator.end(producer)
    coordinator.mark()
    coordinator.add(ended, VIEWS)
    for commit in (True, False):
        assert coordinator.end(producer, commit) == Ended(ErrorCode.PRODUCER_FENCED)
    assert coordinator.state == "Ongoing"


def test_a_late_end_of_a_fenced_producer_is_rejected() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.init()
    for commit in (True, False):
        assert coordinator.end(producer, commit) == Ended(ErrorCode.PRODUCER_FENCED)


def test_a_transaction_without_partitions_can_only_be_aborted() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    assert coordinator.end(producer) == Ended(ErrorCode.INVALID_TXN_STATE)
    assert coordinator.end(producer, commit=False) == Ended(NONE, 1001, 1)
    assert coordinator.state == "CompleteAbort"
    assert coordinator.markers == []
    assert coordinator.end(Initialized(NONE, 1001, 1), commit=False, version=1) == Ended(NONE)


# --- verification


def test_partitions_are_verified_without_joining() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS, version=1)
    assert coordinator.add(producer, VIEWS, verify_only=True) == Added(NONE)
    missing = coordinator.add(producer, VIEWS, CLICKS, verify_only=True)
    assert missing == Added(ErrorCode.TRANSACTION_ABORTABLE, frozenset({CLICKS}))
    coordinator.end(producer, version=1)
    assert coordinator.add(producer, VIEWS, verify_only=True) == Added(ErrorCode.CONCURRENT_TRANSACTIONS)
    coordinator.mark()
    assert coordinator.add(producer, VIEWS, verify_only=True).code == ErrorCode.TRANSACTION_ABORTABLE


# --- time


def test_a_transaction_is_aborted_when_its_time_is_over() -> None:
    coordinator = Coordinator()
    producer = coordinator.init(timeout_ms=5_000)
    coordinator.add(producer, VIEWS)
    coordinator.wait(4_000)
    coordinator.add(producer, CLICKS)  # which does not prolong it
    coordinator.wait(999)
    assert coordinator.state == "Ongoing"
    coordinator.wait(1)
    assert coordinator.state == "PrepareAbort"
    assert coordinator.markers == [Markers("t", 1001, 1, False, 2, frozenset({VIEWS, CLICKS}))]
    coordinator.mark()
    assert coordinator.end(producer) == Ended(ErrorCode.INVALID_TXN_STATE)
    # It learns the epoch in which it may continue.
    assert coordinator.end(producer, commit=False) == Ended(NONE, 1001, 1)


def test_a_timeout_that_cannot_be_written_is_tried_again() -> None:
    coordinator = Coordinator()
    producer = coordinator.init(timeout_ms=5_000)
    coordinator.add(producer, VIEWS)
    coordinator.holds = True
    coordinator.wait(5_000)
    coordinator.fail()
    assert coordinator.state == "Ongoing"
    coordinator.holds = False
    coordinator.wait(1_000)
    assert coordinator.state == "PrepareAbort"


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_out_of_bounds_are_rejected(timeout_ms: int) -> None:
    assert Coordinator().init(timeout_ms=timeout_ms).code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_an_id_that_is_not_used_is_forgotten() -> None:
    coordinator = Coordinator(id_expiration_ms=1_000, expiry_interval_ms=500)
    producer = coordinator.init()
    coordinator.wait(900)
    assert coordinator.state == "Empty"
    coordinator.wait(600)
    assert coordinator.state == ""
    assert coordinator.restarted().shard.get("t") is None
    assert coordinator.add(producer, VIEWS) == Added(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert coordinator.init().code == NONE


def test_an_open_transaction_keeps_its_id() -> None:
    coordinator = Coordinator(id_expiration_ms=1_000, expiry_interval_ms=500)
    coordinator.add(coordinator.init(), VIEWS)
    coordinator.wait(5_000)
    assert coordinator.state == "Ongoing"


def test_who_waits_while_an_id_is_forgotten_starts_anew() -> None:
    coordinator = Coordinator(id_expiration_ms=1_000, expiry_interval_ms=500)
    coordinator.init()
    coordinator.holds = True
    coordinator.wait(2_000)
    assert coordinator.ask(Init("t", 60_000)) is None
    coordinator.commit()
    assert coordinator.replies["it"] == Initialized(NONE, 1002, 0)


# --- epochs that are used up


def test_a_producer_without_a_next_epoch_gets_another_id() -> None:
    used_up = Transaction(producer_id=1001, epoch=LAST_EPOCH, timeout_ms=60_000)
    coordinator = Coordinator([encode_record(TransactionRecord("t", used_up))])
    coordinator.next_id = 1001
    last = Initialized(NONE, 1001, LAST_EPOCH)
    coordinator.add(last, VIEWS)
    ended = coordinator.end(last)
    assert ended == Ended(NONE, 1002, 0)
    assert coordinator.markers == [Markers("t", 1001, LAST_EPOCH + 1, True, 2, frozenset({VIEWS}))]
    coordinator.mark()
    assert coordinator.end(last) == Ended(NONE, 1002, 0)  # repeated
    assert coordinator.add(ended, VIEWS) == Added(NONE)
    assert coordinator.end(last) == Ended(ErrorCode.PRODUCER_FENCED)


def test_without_a_producer_id_at_hand_the_client_tries_again() -> None:
    coordinator = Coordinator()
    coordinator.has_ids = False
    assert coordinator.init().code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    coordinator.has_ids = True
    assert coordinator.init().code == NONE


# --- two-phase commit


def test_two_phase_commit_needs_the_setting() -> None:
    assert Coordinator().init(two_phase=True).code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_prepared_transaction_has_no_timeout_and_is_kept_for_the_next_producer() -> None:
    coordinator = Coordinator(two_phase_commit=True)
    old = coordinator.init(two_phase=True)
    coordinator.add(old, VIEWS)
    coordinator.wait(10 * 900_000)
    coordinator = coordinator.restarted(two_phase_commit=True)
    coordinator.wait(10 * 900_000)
    assert coordinator.state == "Ongoing"
    new = coordinator.init(two_phase=True, keep_prepared=True)
    assert new == Initialized(NONE, 1001, 1, 1001, 0)
    assert coordinator.end(old) == Ended(ErrorCode.PRODUCER_FENCED)
    assert coordinator.add(old, CLICKS) == Added(ErrorCode.PRODUCER_FENCED)
    assert coordinator.end(new) == Ended(NONE, 1001, 2)
    assert coordinator.markers == [Markers("t", 1001, 2, True, 2, frozenset({VIEWS}))]


def test_a_producer_that_does_not_keep_it_aborts_a_prepared_transaction() -> None:
    coordinator = Coordinator(two_phase_commit=True)
    coordinator.add(coordinator.init(two_phase=True), VIEWS)
    coordinator.ask(Init("t", 60_000))
    assert coordinator.state == "PrepareAbort"


# --- failures and restarts


def test_a_coordinator_that_takes_over_carries_out_decisions() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    ended = coordinator.end(producer)
    other = coordinator.restarted()
    assert other.markers == [Markers("t", 1001, 1, True, 2, frozenset({VIEWS}))]
    assert other.add(ended, VIEWS) is None
    other.mark()
    assert other.replies["it"] == Added(NONE)


def test_a_coordinator_that_takes_over_keeps_timeouts() -> None:
    coordinator = Coordinator()
    coordinator.add(coordinator.init(timeout_ms=5_000), VIEWS)
    other = coordinator.restarted()
    other.wait(5_000)
    assert other.state == "PrepareAbort"


def test_a_lost_complete_record_only_repeats_the_markers() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    ended = coordinator.end(producer)
    coordinator.holds = True
    coordinator.mark()
    assert coordinator.state == "CompleteCommit"  # it counts already
    other = coordinator.restarted()
    assert (other.state, len(other.markers)) == ("PrepareCommit", 1)
    other.mark()
    assert other.add(ended, VIEWS) == Added(NONE)


def test_a_record_that_is_not_written_changes_nothing() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    coordinator.holds = True
    coordinator.end(producer)
    coordinator.fail()
    assert coordinator.replies["it"] == Ended(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert coordinator.state == "Ongoing"
    coordinator.holds = False
    assert coordinator.end(producer) == Ended(NONE, 1001, 1)


def test_an_unloaded_shard_answers_everyone_and_takes_no_more_requests() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    coordinator.holds = True
    coordinator.end(producer, token="end")
    coordinator.ask(Init("t", 60_000), "init")
    coordinator.carry_out(coordinator.shard.unload())
    assert coordinator.replies["end"] == Ended(ErrorCode.NOT_COORDINATOR)
    assert coordinator.replies["init"] == Initialized(ErrorCode.NOT_COORDINATOR)
    with pytest.raises(ShardNotActive):
        coordinator.shard.handle(Init("t", 60_000), "late", 0)


def test_writes_are_reported_in_their_order() -> None:
    coordinator = Coordinator()
    coordinator.holds = True
    coordinator.ask(Init("one", 60_000), "one")
    coordinator.ask(Init("two", 60_000), "two")
    with pytest.raises(WriteOutOfOrder):
        coordinator.shard.appended(2, 0)


@pytest.mark.parametrize(
    "request_", [Init("", 60_000), Add("", 1, 0, frozenset({VIEWS})), End("", 1, 0, True)], ids=["init", "add", "end"]
)
def test_an_empty_id_is_an_invalid_request(request_: Request) -> None:
    assert Coordinator().ask(request_).code == ErrorCode.INVALID_REQUEST


def test_states_of_a_story_are_those_of_the_log() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    coordinator.end(producer)
    coordinator.mark()
    coordinator.wait(50)
    other = coordinator.restarted()
    assert dict(other.shard.each()) == dict(coordinator.shard.each())
    assert other.shard.get("t").state is TransactionState.COMPLETE_COMMIT  # type: ignore[union-attr]


def test_the_end_of_a_transaction_shares_a_batch_with_the_next_record() -> None:
    coordinator = Coordinator()
    first, second = coordinator.init("t"), coordinator.init("other")
    coordinator.add(first, VIEWS)
    coordinator.end(first)
    before = len(coordinator.log)
    coordinator.mark()
    assert len(coordinator.log) == before, "it is not awaited"
    coordinator.ask(Add("other", second.producer_id, second.epoch, frozenset({VIEWS}), 2))
    assert len(coordinator.log) == before + 2
    assert coordinator.shard.next_deadline_ms > coordinator.now_ms + 50, "nothing is left to append"


def test_the_end_of_a_transaction_is_appended_before_the_shard_is_unloaded() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, VIEWS)
    coordinator.end(producer)
    coordinator.mark()
    coordinator.carry_out(coordinator.shard.write_deferred(coordinator.now_ms))
    other = coordinator.restarted()
    assert other.shard.get("t").state is TransactionState.COMPLETE_COMMIT  # type: ignore[union-attr]
    assert not coordinator.shard.write_deferred(coordinator.now_ms).records


def test_a_log_that_rejects_writes_rejects_those_who_wait_too() -> None:
    """They are not served again at once: each would write, fail and be served again, without end."""
    it = Coordinator()
    producer = it.init()
    it.add(producer, VIEWS)
    it.holds = True
    assert it.ask(Init("t", 60_000), "new") is None  # waits for the abort
    assert it.ask(End("t", producer.producer_id, producer.epoch, True, 2), "old") is None
    it.fail()
    assert it.replies["new"].code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert it.replies["old"].code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not it.pending
    it.holds = False
    assert it.end(producer).code is NONE
