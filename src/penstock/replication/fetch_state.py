"""Fetch state of a followed partition, the follower's fetch session, and applying a fetch response.

A follower's log is a prefix of its leader's as far as leader epochs tell; where it is not, it is truncated before
anything is appended and before the high watermark moves. It is truncated by epochs, never by a high watermark: the
leader names the last epoch that both can have and where it ended in its log.

    follower  epochs 1: 0-4, 2: 5-9        fetches from 10, last epoch 2
    leader    epochs 1: 0-6, 3: 7-         answers: diverging, epoch 1 ends at 7
    the follower's epoch 1 ends at 5       it truncates to 5 and fetches from 5 in epoch 1

A `PartitionFetchState` lasts for one leader epoch; what is still in flight for an earlier one finds it over. A response
is applied only if it answers a fetch from the current log end. Damaged bytes are not appended. A damaged log is
truncated at the damage once its leader has answered for the first time, if the cluster was told.

A session (KIP-227) sends only what changed, so a request costs what happens and not what is followed. What was sent
counts as known, because one connection carries all requests of a session in order; so a second request may overtake the
first.

    wants(a), wants(b); take() -> full: a, b       accepted(7)          session 7, next epoch 1
    leaves(a); take() -> epoch 1: forget a         wants(a); take() -> epoch 2: a
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.log.errors import InvalidBatch, NonMonotonicOffsets
from penstock.log.partition_log import PartitionLog
from penstock.records import Buffer, scan
from penstock.wire.protocol import ErrorCode, error_code
from penstock.wire.schemas.fetch import FetchPartition, PartitionData
from penstock.wire.types import BUFFERS

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
class FetchedPartition:
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
class Truncate:
    """Take away everything from `offset` on."""

    offset: int


@dataclass(frozen=True, slots=True)
class TruncateFully:
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


Step = Truncate | TruncateFully | Append | Hold

_STALE_EPOCH_ERRORS: Final = frozenset(
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


def next_step(answer: FetchedPartition, log_end: int, epochs: Epochs) -> Step:
    """What to do with an answer to a question from `log_end`."""
    if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
        # Behind: the leader has deleted what comes next. Ahead, with the same epochs: it never had it.
        if log_end < answer.log_start:
            return TruncateFully(answer.log_start)
        return (
            Truncate(answer.high_watermark)
            if 0 <= answer.high_watermark < log_end
            else Hold(Wait.A_WHILE, answer.error)
        )
    if answer.error in _STALE_EPOCH_ERRORS:
        return Hold(Wait.NEWS, answer.error)
    if answer.error != ErrorCode.NONE:
        return Hold(Wait.A_WHILE, answer.error)
    if answer.diverging is not None:
        return Truncate(_common_end(*answer.diverging, log_end, epochs))
    return Append(answer.high_watermark, answer.log_start)


def _common_end(epoch: int, end: int, log_end: int, epochs: Epochs) -> int:
    mine = epochs.end_offset_for(epoch, log_end)
    if mine.epoch == NO_EPOCH:
        # The leader knows of no epoch as old as this log's: nothing of it is the leader's.
        return 0
    if mine.epoch == epoch:
        return min(end, mine.end_offset, log_end)
    return min(mine.end_offset, log_end)


SessionKey: TypeAlias = tuple[bytes, int]
"""Topic id and partition."""

NO_SESSION: Final = 0
FULL: Final = 0
_LAST_EPOCH: Final = 2**31 - 1

T = TypeVar("T")


class FetchRequestData(NamedTuple, Generic[T]):
    """What a request says of the session."""

    session_id: int
    epoch: int
    named: list[T]
    forgotten: list[SessionKey]

    @property
    def is_full(self) -> bool:
        return self.epoch == FULL


class FetchSessionHandler(Generic[T]):
    """Holds one T a partition that is asked for."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FULL
        self._wanted: dict[SessionKey, T] = {}
        self._known: set[SessionKey] = set()
        # In order, so that a run is the same every time.
        self._fresh: dict[SessionKey, T] = {}
        self._gone: dict[SessionKey, None] = {}

    @property
    def is_open(self) -> bool:
        return self._id != NO_SESSION

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to ask for."""
        return not self._wanted

    @property
    def has_fresh(self) -> bool:
        """Whether something is asked for that the leader does not know of."""
        return bool(self._fresh)

    def wants(self, key: SessionKey, what: T) -> None:
        """Ask for a partition, or for another place in it."""
        self._wanted[key] = self._fresh[key] = what
        self._gone.pop(key, None)

    def leaves(self, key: SessionKey) -> None:
        """Ask for it no more."""
        self._wanted.pop(key, None)
        self._fresh.pop(key, None)
        if key in self._known:
            self._gone[key] = None

    def take(self) -> FetchRequestData[T]:
        """What the next request says."""
        if not self.is_open:
            said = FetchRequestData(NO_SESSION, FULL, list(self._wanted.values()), [])
            self._known = set(self._wanted)
        else:
            said = FetchRequestData(self._id, self._epoch, list(self._fresh.values()), list(self._gone))
            self._known.update(self._fresh)
            self._known.difference_update(self._gone)
            self._epoch = 1 if self._epoch >= _LAST_EPOCH else self._epoch + 1
        self._fresh.clear()
        self._gone.clear()
        return said

    def accepted(self, session_id: int) -> None:
        """The leader answered a full request; id 0 says that it keeps no session, and the next is full again."""
        self._id = session_id
        self._epoch = 1 if session_id != NO_SESSION else FULL

    def reset(self) -> None:
        """The leader remembers nothing: the next request is a full one."""
        self._id, self._epoch = NO_SESSION, FULL
        self._known.clear()
        self._gone.clear()
        self._fresh = dict(self._wanted)


PARTITION_BYTES_MAX: Final = 2**27
"""No batch is larger: a length that says so is damaged."""
_NEVER_ASKED: Final = 2**63


class FollowedPartition(Protocol):
    """A partition that this broker follows. Its leader and epoch change before the fetchers are told."""

    @property
    def topic(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def topic_id(self) -> bytes: ...

    @property
    def log(self) -> PartitionLog: ...

    @property
    def leader(self) -> int:
        """The broker that leads it; negative if nobody does."""

    @property
    def leader_epoch(self) -> int: ...

    def append_as_follower(self, records: Buffer) -> None:
        """Whole batches as the leader has them, checksums checked; LogError, RecordError: then nothing is appended."""

    def followed(self, high_watermark: int, log_start: int) -> None:
        """What the leader says of its watermark and of its log's start."""

    def cut(self, offset: int) -> None:
        """Take away everything from `offset` on, and leader epochs that wrote nothing below it."""

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Take away everything, and begin at `offset`."""


class Pause(Enum):
    """Why a partition is not asked for."""

    NONE = "none"
    SYNC = "sync"  # what it has is not durable yet
    WHILE = "while"  # something went wrong that may pass
    THROTTLED = "throttled"
    NEWS = "news"  # of the cluster
    FAILED = "failed"  # its disk


class PartitionFetchState:
    """One partition in one leader epoch."""

    __slots__ = (
        "asked", "asked_log_start", "asked_serial", "epoch", "failures", "is_over", "lag", "leader", "max_bytes",
        "partition", "pause", "session_key", "timer", "token",
    )  # fmt: skip

    def __init__(self, partition: FollowedPartition, max_bytes: int) -> None:
        self.partition = partition
        self.leader = partition.leader
        self.epoch = partition.leader_epoch
        self.session_key: SessionKey = (partition.topic_id, partition.index)
        self.max_bytes = max_bytes
        self.pause = Pause.NONE
        self.is_over = False
        self.failures = 0  # in a row
        self.lag: int | None = None  # to the leader's watermark; None before it told one
        self.asked = Position(0, NO_EPOCH)
        self.asked_log_start = 0
        self.asked_serial = _NEVER_ASKED  # of the request that said so: what answers an earlier one is of no use
        self.token = 0  # changes when what was waited for does not matter any more
        self.timer: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.index}"

    @property
    def key(self) -> tuple[str, int]:
        return self.partition.topic, self.partition.index

    @property
    def is_current(self) -> bool:
        """Whether the partition is still led as it was when the course began."""
        partition = self.partition
        return not self.is_over and partition.leader_epoch == self.epoch and partition.leader == self.leader

    @property
    def is_behind(self) -> bool:
        """Whether it is known that this replica is not in sync."""
        return self.lag is not None and self.lag > 0

    @property
    def must_sync(self) -> bool:
        """Whether what was appended must be durable before the leader may count on it, and is not yet."""
        log = self.partition.log
        if log.flushed_offset >= log.log_end_offset:
            return False
        return log.settings.sync_before_ack or log.flush_count_reached

    def ask(self, serial: int) -> FetchPartition:
        """What request number `serial` says of this partition: where its log ends now."""
        log = self.partition.log
        self.asked = position_of(log.log_end_offset, log.log_start_offset, log.epochs)
        self.asked_log_start = log.log_start_offset
        self.asked_serial = serial
        return FetchPartition(
            partition=self.partition.index,
            current_leader_epoch=self.epoch,
            fetch_offset=self.asked.offset,
            last_fetched_epoch=self.asked.last_epoch,
            log_start_offset=self.asked_log_start,
            partition_max_bytes=self.max_bytes,
        )

    def heard(self, high_watermark: int) -> None:
        """The leader told its watermark, and nothing was wrong."""
        self.failures = 0
        self.lag = max(0, high_watermark - self.partition.log.log_end_offset)

    def enlarge(self) -> bool:
        """Not even one batch came whole: ask for more; False if that would be too much."""
        if self.max_bytes >= PARTITION_BYTES_MAX:
            return False
        self.max_bytes = min(PARTITION_BYTES_MAX, self.max_bytes * 2)
        return True

    def stop_waiting(self) -> None:
        self.token += 1
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


logger = logging.getLogger(__name__)


# A leader that answers so knows the broker epoch of this life, and so does the controller: it has dealt with what the
# broker told when it registered, and counts on nothing that this log had.
_LEADER_KNOWS_EPOCH: Final = frozenset({ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE})


class Effect(Enum):
    NOTHING = "nothing"  # the leader knows all that it must
    MOVED = "moved"  # the log begins or ends elsewhere now: say so
    TOO_SMALL = "too small"  # not one whole batch came: ask for more bytes
    WAIT = "wait"  # ask again after a while
    NEWS = "news"  # ask again when the cluster has news


class Applied(NamedTuple):
    effect: Effect
    reason: str = ""
    is_final: bool = False
    """Asking again in this epoch cannot help."""


def records_in(data: PartitionData) -> Buffer | None:
    """The bytes that came, if any."""
    records = data.records
    return records if isinstance(records, BUFFERS) and len(records) else None


def apply_fetch_response(course: PartitionFetchState, data: PartitionData) -> Applied:
    """Do what the answer asks for; what the log raises passes through, and then nothing was appended."""
    log = course.partition.log
    damage = log.damage
    if damage is not None and damage.is_reported and data.error_code in _LEADER_KNOWS_EPOCH:
        logger.warning(
            "%s: cut where it is damaged, copied anew from leader %d: %s", course, course.leader, damage.error()
        )
        course.partition.cut(log.log_end_offset)
        return Applied(Effect.MOVED)
    records = records_in(data)
    diverging = None
    if data.diverging_epoch.epoch >= 0 or data.diverging_epoch.end_offset >= 0:
        diverging = (data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
    is_here = log.log_end_offset == course.asked.offset
    if diverging is not None and is_here and diverging[0] > course.asked.last_epoch:
        # Both can have at most what this log has: cutting by an answer that makes no sense would lose records.
        return Applied(Effect.WAIT, f"asked about epoch {course.asked.last_epoch}, it told of epoch {diverging[0]}")
    step = next_step(
        FetchedPartition(
            error_code(data.error_code), data.high_watermark, data.log_start_offset, records is not None, diverging
        ),
        log.log_end_offset,
        log.epochs,
    )
    if isinstance(step, Append):
        return _appended(course, step, records if is_here else None)
    if isinstance(step, Hold):
        effect = Effect.NEWS if step.until is Wait.NEWS else Effect.WAIT
        return Applied(effect, step.reason.name, step.reason == ErrorCode.FENCED_LEADER_EPOCH)
    return _truncated(course, step) if is_here else Applied(Effect.NOTHING)


def _appended(course: PartitionFetchState, step: Append, records: Buffer | None) -> Applied:
    log = course.partition.log
    end = log.log_end_offset
    if end < course.asked.offset:
        return Applied(Effect.NOTHING)  # cut since: whether it is a prefix of the leader's now, it has not told
    if records is not None:
        _append(course, records)
        if log.log_end_offset == end:
            return Applied(Effect.TOO_SMALL)
    course.partition.followed(step.high_watermark, step.log_start)
    course.heard(step.high_watermark)
    # The leader wants to know of a log that begins later: deleting records is done when all replicas have done it.
    has_moved = records is not None or log.log_start_offset != course.asked_log_start
    return Applied(Effect.MOVED if has_moved else Effect.NOTHING)


def _append(course: PartitionFetchState, records: Buffer) -> None:
    partition, log = course.partition, course.partition.log
    try:
        partition.append_as_follower(records)
    except NonMonotonicOffsets as error:
        # The leader's log begins in the middle of a batch, which comes whole: so this one begins before that, too.
        if log.log_start_offset != log.log_end_offset or not _spans(records, log.log_end_offset):
            raise
        partition.truncate_fully_and_start_at(error.found)
        partition.append_as_follower(records)
    except InvalidBatch:
        # Where compaction left a gap wider than a segment, batches cannot be appended together.
        headers = scan(records).headers
        if len(headers) < 2:
            raise
        view = memoryview(records)
        for header in headers:
            partition.append_as_follower(view[header.position : header.position + header.size])


def _spans(records: Buffer, offset: int) -> bool:
    headers = scan(records).headers
    return bool(headers) and headers[0].base_offset < offset < headers[0].next_offset


def _truncated(course: PartitionFetchState, step: Truncate | TruncateFully) -> Applied:
    partition, log = course.partition, course.partition.log
    end = log.log_end_offset
    if isinstance(step, Truncate):
        if step.offset >= end:
            return Applied(Effect.WAIT, f"it told to cut at {step.offset} a log that ends at {end}")
        logger.info(
            "%s: cut at %d, it ended at %d, high watermark %d: leader %d of epoch %d has other records there",
            course, step.offset, end, log.high_watermark, course.leader, course.epoch,
        )  # fmt: skip
        partition.cut(step.offset)
    else:
        logger.warning(
            "%s: ended at %d, where leader %d begins at %d: starting over there",
            course, end, course.leader, step.offset,
        )  # fmt: skip
        partition.truncate_fully_and_start_at(step.offset)
    return Applied(Effect.MOVED)
