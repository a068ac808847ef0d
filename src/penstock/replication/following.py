"""What a follower does with what its leader answers. Pure.

Noun: a `Step`, the next thing to do to the follower's log.

Rule: a follower's log is a prefix of its leader's, as far as epochs tell; where it is not, it is cut before anything is
appended and before the watermark moves. It is cut by epochs, never by a watermark: the leader names the last epoch that
both can have, and where that ended in its log.

    follower  epochs 1: 0-4, 2: 5-9        asks from 10, having read epoch 2 last
    leader    epochs 1: 0-6, 3: 7-         answers: diverging, epoch 1 ends at 7
    the follower's epoch 1 ends at 5       it cuts at 5, and asks from 5 in epoch 1
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

from penstock.wire.error_codes import ErrorCode

NO_EPOCH: Final = -1


class Position(NamedTuple):
    """Where a follower asks from."""

    offset: int
    last_epoch: int
    """Of the last record it has; NO_EPOCH for none. The leader compares it with its own."""


class Epochs(Protocol):
    """What a log knows of leader epochs."""

    def epoch_for_offset(self, offset: int) -> int: ...

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd: ...


class EpochEnd(Protocol):
    @property
    def epoch(self) -> int: ...

    @property
    def end_offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What a leader says of one partition."""

    error: ErrorCode
    high_watermark: int
    log_start: int
    has_records: bool
    diverging: tuple[int, int] | None = None
    """The last epoch that both can have, and where it ended in the leader's log."""


class Wait(Enum):
    """What to wait for before asking again."""

    NOTHING = "nothing"
    A_WHILE = "a while"  # the leader is not ready, or not what it was: it may pass by itself
    NEWS = "news"  # of the cluster: this epoch is over, or not known there yet


@dataclass(frozen=True, slots=True)
class Cut:
    """Take away everything from `offset` on."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """Nothing of the log is of use: begin anew at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append what came, if anything; then the watermark and the log's start may move as far as this."""

    high_watermark: int
    log_start: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Do nothing to the log."""

    until: Wait
    reason: ErrorCode


Step = Cut | StartOver | Append | Hold

_OVER: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)


def position_of(log_end: int, log_start: int, epochs: Epochs) -> Position:
    """An empty log has read no epoch, whatever it has heard of: it must not be cut by one.

    Nor does an epoch count that was led here and wrote nothing: no other log need know of it, nothing is to be cut.
    """
    return Position(log_end, NO_EPOCH if log_end <= log_start else epochs.epoch_for_offset(log_end - 1))


def divergence(position: Position, log_end: int, epochs: Epochs) -> EpochEnd | None:
    """What a leader with these epochs answers to a follower whose log is no prefix of its own; None if it is one."""
    if position.last_epoch == NO_EPOCH:
        return None
    end = epochs.end_offset_for(position.last_epoch, log_end)
    return end if end.epoch < position.last_epoch or end.end_offset < position.offset else None


def next_step(answer: Answer, log_end: int, epochs: Epochs) -> Step:
    """What to do with an answer to a question from `log_end`."""
    if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
        # Behind: the leader has deleted what comes next. Ahead, with the same epochs: it never had it.
        if log_end < answer.log_start:
            return StartOver(answer.log_start)
        return Cut(answer.high_watermark) if 0 <= answer.high_watermark < log_end else Hold(Wait.A_WHILE, answer.error)
    if answer.error in _OVER:
        return Hold(Wait.NEWS, answer.error)
    if answer.error != ErrorCode.NONE:
        return Hold(Wait.A_WHILE, answer.error)
    if answer.diverging is not None:
        return Cut(_common_end(*answer.diverging, log_end, epochs))
    return Append(answer.high_watermark, answer.log_start)


def _common_end(epoch: int, end: int, log_end: int, epochs: Epochs) -> int:
    mine = epochs.end_offset_for(epoch, log_end)
    if mine.epoch == NO_EPOCH:
        # The leader knows of no epoch as old as this log's: nothing of it is the leader's.
        return 0
    if mine.epoch == epoch:
        return min(end, mine.end_offset, log_end)
    return min(mine.end_offset, log_end)
