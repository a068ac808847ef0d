"""What to do with a batch after an answer, or after none.

Rule: decided from the code, the batch's numbers and its place in its partition; nothing is done here.

    acknowledge   stored, now or before
    again         after a pause; `gap` if its numbers are of no use any more, `refresh` if the leader may have moved
    split         too large as it is, and more than one record
    fail          trying again cannot help, or may not be tried
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from penstock.wire.error_codes import ErrorCode


class Verdict(Enum):
    ACKNOWLEDGE = auto()
    AGAIN = auto()
    SPLIT = auto()
    FAIL = auto()


class Decision(NamedTuple):
    verdict: Verdict
    refresh: bool = False
    gap: bool = False
    is_settled: bool = False
    """The broker compared the batch's numbers with what it has: whether it is stored is certain now."""


_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_FORGOTTEN: Final = frozenset(
    {ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
)
_LEADER_MOVED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)


def decide(
    code: ErrorCode, *, count: int, is_numbered: bool, is_oldest: bool, may_retry: bool, is_recognisable: bool = True
) -> Decision:
    """What an answer with this code means for a batch of `count` records.

    `is_oldest`: no batch with numbers that is not settled stands before it in its partition. `is_recognisable`: a
    broker that has it would say so; otherwise it may have it and call it out of order.
    """
    if code is ErrorCode.NONE or code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        return Decision(Verdict.ACKNOWLEDGE, is_settled=True)
    if code in _TOO_LARGE:
        return Decision(Verdict.SPLIT) if count > 1 else Decision(Verdict.FAIL, gap=is_numbered)
    if is_numbered and may_retry:
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # With others before it, it came too early, and waits its turn. As the oldest it should have followed
            # what the broker has: the broker has lost records, or something before it has failed for good.
            if is_oldest and not is_recognisable:
                return Decision(Verdict.FAIL, gap=True)
            return Decision(Verdict.AGAIN, gap=is_oldest, is_settled=is_recognisable)
        if code in _FORGOTTEN and is_recognisable:
            return Decision(Verdict.AGAIN, gap=True, is_settled=True)
    if may_retry and (code.retriable or code in _LEADER_MOVED):
        return Decision(Verdict.AGAIN, refresh=code in _LEADER_MOVED)
    return Decision(Verdict.FAIL, refresh=code in _LEADER_MOVED, gap=is_numbered)


def decide_unanswered(*, is_retriable: bool, is_numbered: bool, may_retry: bool) -> Decision:
    """The same where the connection broke, or the answer did not come in time: the batch may be stored."""
    if may_retry and is_retriable:
        return Decision(Verdict.AGAIN, refresh=True)
    return Decision(Verdict.FAIL, refresh=True, gap=is_numbered)
