"""What an answer means for a batch."""

from __future__ import annotations

import pytest

from penstock.client.producer.sender import Decision, Verdict, decide, decide_unanswered
from penstock.wire.protocol import ErrorCode


def decision(code: ErrorCode, **facts: bool | int) -> Decision:
    known = {"count": 2, "is_numbered": True, "is_oldest": True, "may_retry": True, **facts}
    return decide(code, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER])
def test_stored_now_or_before_is_stored(code: ErrorCode) -> None:
    assert decision(code).verdict is Verdict.ACKNOWLEDGE


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_a_leader_that_moved_is_looked_for_again(code: ErrorCode) -> None:
    assert decision(code) == Decision(Verdict.AGAIN, refresh=True, is_uncertain=True)


def test_a_broker_that_is_short_of_replicas_is_asked_again() -> None:
    assert decision(ErrorCode.NOT_ENOUGH_REPLICAS) == Decision(Verdict.AGAIN)
    assert decision(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND) == Decision(Verdict.AGAIN, is_uncertain=True)


def test_a_batch_that_came_too_early_waits_its_turn() -> None:
    early = decision(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, is_oldest=False)
    assert early == Decision(Verdict.AGAIN, is_settled=True)


def test_the_oldest_batch_out_of_order_starts_a_new_epoch() -> None:
    assert decision(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) == Decision(Verdict.AGAIN, gap=True, is_settled=True)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_broker_that_has_forgotten_the_producer_gets_a_new_epoch(code: ErrorCode) -> None:
    assert decision(code, is_oldest=False) == Decision(Verdict.AGAIN, gap=True, is_settled=True)


def test_too_large_is_split_unless_it_is_one_record() -> None:
    assert decision(ErrorCode.MESSAGE_TOO_LARGE).verdict is Verdict.SPLIT
    assert decision(ErrorCode.MESSAGE_TOO_LARGE, count=1) == Decision(Verdict.FAIL, gap=True)


def test_a_batch_that_fails_for_good_leaves_a_gap_in_the_sequence() -> None:
    assert decision(ErrorCode.TOPIC_AUTHORIZATION_FAILED) == Decision(Verdict.FAIL, gap=True)
    assert decision(ErrorCode.TOPIC_AUTHORIZATION_FAILED, is_numbered=False) == Decision(Verdict.FAIL)


def test_without_retries_left_even_a_passing_trouble_is_the_end() -> None:
    assert decision(ErrorCode.NOT_ENOUGH_REPLICAS, may_retry=False).verdict is Verdict.FAIL
    assert decide_unanswered(is_retriable=True, is_numbered=False, may_retry=False).verdict is Verdict.FAIL


def test_a_missing_response_is_retried() -> None:
    again = decide_unanswered(is_retriable=True, is_numbered=True, may_retry=True)
    assert again == Decision(Verdict.AGAIN, refresh=True, is_uncertain=True)
    assert decide_unanswered(is_retriable=False, is_numbered=True, may_retry=True).gap
