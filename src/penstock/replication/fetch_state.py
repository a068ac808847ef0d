"""The state of a followed partition, and what a fetch response does to its log. Pure, but for the log that it is given.

A follower's log is a prefix of its leader's as far as leader epochs tell; where it is not, it is truncated before
anything is appended and before the high watermark moves. It is truncated by epochs, never by a high watermark: the
leader names the last epoch that both can have and where it ended in its log.

    follower  epochs 1: 0-4, 2: 5-9        fetches from 10, last epoch 2
    leader    epochs 1: 0-6, 3: 7-         answers: diverging, epoch 1 ends at 7
    the follower's epoch 1 ends at 5       it truncates to 5 and fetches from 5 in epoch 1

A `PartitionFetchState` lasts for one leader epoch; a response that arrives for an earlier one finds it over. A
response is applied only if it answers a fetch from the current log end. Damaged bytes are not appended. A damaged log
is truncated at the damage once its leader has answered for the first time, if the damage was reported to the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from penstock.log.errors import InvalidBatch, NonMonotonicOffsets
from penstock.records import Buffer, scan
from penstock.wire.fetch_session import NO_EPOCH, FetchOutcome, PartitionFetch, enlarged, outcome_of, records_in
from penstock.wire.protocol import ErrorCode, error_code
from penstock.wire.schemas.fetch import PartitionData

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog

SessionKey: TypeAlias = tuple[bytes, int]
"""Topic id and partition."""
PARTITION_BYTES_MAX: Final = 2**27
"""No batch is larger: a length that says so is damaged."""
_NEVER_REQUESTED: Final = 2**63
# A leader that answers with one of these knows this broker's epoch, and so does the controller: it has acted on what
# the broker reported when it registered, and does not count on anything that this log had.
_LEADER_KNOWS_EPOCH: Final = frozenset({ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE})


# --------------------------------------------------------------------------------------------------- decisions


class Position(NamedTuple):
    """Where a follower fetches from."""

    offset: int
    last_epoch: int
    """Epoch of its last record, NO_EPOCH if it has none. The leader compares it with its own log."""


class Epochs(Protocol):
    """The leader epochs of a log."""

    def epoch_for_offset(self, offset: int) -> int: ...

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd: ...


class EpochEnd(Protocol):
    @property
    def epoch(self) -> int: ...

    @property
    def end_offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Truncate:
    """Remove everything from `offset` on."""

    offset: int


@dataclass(frozen=True, slots=True)
class TruncateFully:
    """Remove everything and start at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records, if any; then high watermark and log start may advance to these."""

    high_watermark: int
    log_start: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Leave the log alone and fetch again later. `until_metadata`: this epoch is over, or not known there yet."""

    reason: ErrorCode
    until_metadata: bool


Step = Truncate | TruncateFully | Append | Hold


def position_of(log_end: int, log_start: int, epochs: Epochs) -> Position:
    """The log end and the epoch of the last record.

    An empty log has no epoch, even if it knows of some: it must not be truncated by one. Nor does an epoch count that
    was led here and wrote nothing: no other log needs to know it.
    """
    return Position(log_end, NO_EPOCH if log_end <= log_start else epochs.epoch_for_offset(log_end - 1))


def divergence(position: Position, log_end: int, epochs: Epochs) -> EpochEnd | None:
    """What a leader with these epochs answers to a follower; None if the follower's log is a prefix of its own."""
    if position.last_epoch == NO_EPOCH:
        return None
    end = epochs.end_offset_for(position.last_epoch, log_end)
    return end if end.epoch < position.last_epoch or end.end_offset < position.offset else None


def next_step(data: PartitionData, log_end: int, epochs: Epochs) -> Step:
    """What to do with the response to a fetch from `log_end`."""
    outcome = outcome_of(data)
    match outcome:
        case FetchOutcome.RECORDS | FetchOutcome.EMPTY | FetchOutcome.REDIRECTED:
            return Append(data.high_watermark, data.log_start_offset)
        case FetchOutcome.DIVERGED:
            return Truncate(_common_end(data.diverging_epoch.epoch, data.diverging_epoch.end_offset, log_end, epochs))
        case FetchOutcome.OUT_OF_RANGE if log_end < data.log_start_offset:
            return TruncateFully(data.log_start_offset)  # the leader has deleted what comes next
        case FetchOutcome.OUT_OF_RANGE if 0 <= data.high_watermark < log_end:
            return Truncate(data.high_watermark)  # the leader never had it, and the epochs are the same
    return Hold(error_code(data.error_code), outcome is FetchOutcome.NOT_LEADER)


def _common_end(epoch: int, end: int, log_end: int, epochs: Epochs) -> int:
    mine = epochs.end_offset_for(epoch, log_end)
    if mine.epoch == NO_EPOCH:
        # All epochs of this log are newer than any that the leader knows: the two share nothing.
        return 0
    if mine.epoch == epoch:
        return min(end, mine.end_offset, log_end)
    return min(mine.end_offset, log_end)


# --------------------------------------------------------------------------------------------------- one partition


class FollowedPartition(Protocol):
    """A partition that this broker follows. Its leader and epoch change before the fetchers are notified."""

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
        """The leader's broker id; negative if there is none."""

    @property
    def leader_epoch(self) -> int: ...

    def append_as_follower(self, records: Buffer) -> None:
        """Append whole batches after checking their checksums; raises LogError or RecordError without effect."""

    def followed(self, high_watermark: int, log_start: int) -> None:
        """Take over the leader's high watermark and log start."""

    def truncate_to(self, offset: int) -> None:
        """Remove everything from `offset` on, and leader epochs that wrote nothing below it."""

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything and start at `offset`."""


class Pause(Enum):
    """Why a partition is not fetched."""

    NONE = "none"
    SYNC = "sync"  # what it has is not durable yet
    BACKOFF = "backoff"  # after an error that may pass
    THROTTLED = "throttled"
    METADATA = "metadata"  # this leader epoch is over, or not known to the leader yet
    FAILED = "failed"  # its disk


class PartitionFetchState:
    """One partition in one leader epoch."""

    __slots__ = (
        "epoch", "failures", "is_over", "lag", "leader", "max_bytes", "partition", "pause", "requested",
        "requested_log_start", "requested_serial", "session_key", "token",
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
        self.lag: int | None = None  # to the leader's high watermark; None before the first response
        self.requested = Position(0, NO_EPOCH)
        self.requested_log_start = 0
        self.requested_serial = _NEVER_REQUESTED  # number of that request; responses to earlier ones are ignored
        self.token = 0  # changes when a wait is cancelled

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.index}"

    @property
    def key(self) -> tuple[str, int]:
        return self.partition.topic, self.partition.index

    @property
    def is_current(self) -> bool:
        """Whether the partition still has the leader and epoch that it had at the beginning."""
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

    def request(self, serial: int) -> PartitionFetch:
        """What request number `serial` says about this partition: where its log ends now."""
        log = self.partition.log
        self.requested = position_of(log.log_end_offset, log.log_start_offset, log.epochs)
        self.requested_log_start = log.log_start_offset
        self.requested_serial = serial
        return PartitionFetch(
            self.requested.offset, self.max_bytes, self.epoch, self.requested.last_epoch, self.requested_log_start
        )

    def succeeded(self, high_watermark: int) -> None:
        """The leader answered without an error."""
        self.failures = 0
        self.lag = max(0, high_watermark - self.partition.log.log_end_offset)

    def enlarge(self) -> bool:
        """Not even one whole batch came: fetch more bytes next time; False at the limit."""
        larger = enlarged(self.max_bytes, PARTITION_BYTES_MAX)
        if larger is not None:
            self.max_bytes = larger
        return larger is not None


# --------------------------------------------------------------------------------------------------- responses


class Effect(Enum):
    """What a response did to the log, and so when to fetch again."""

    NOTHING = "nothing"  # the leader knows where this log starts and ends
    MOVED = "moved"  # the log starts or ends elsewhere now: the leader has to know
    TOO_SMALL = "too small"  # not one whole batch came: fetch more bytes
    WAIT = "wait"  # fetch again after a backoff
    AWAIT_METADATA = "await metadata"  # fetch again when the cluster's metadata changes


class Cut(Enum):
    """Why a log was truncated: the event to log."""

    DAMAGE = "truncated at damage, copying from the leader"
    DIVERGED = "truncated, the leader's log differs"
    OUT_OF_RANGE = "starting over at the leader's log start"


class Truncation(NamedTuple):
    """What a truncation did to the log: from its old end to the new one, or to a new start."""

    why: Cut
    offset: int
    end: int
    high_watermark: int
    detail: str = ""


class Applied(NamedTuple):
    effect: Effect
    reason: str = ""
    is_final: bool = False
    """Fetching again in this epoch cannot help."""
    truncation: Truncation | None = None


def apply_fetch_response(state: PartitionFetchState, data: PartitionData) -> Applied:
    """Append or truncate as the response demands. Errors of the log pass through, and then nothing was appended."""
    log = state.partition.log
    damage = log.damage
    if damage is not None and damage.is_reported and data.error_code in _LEADER_KNOWS_EPOCH:
        end = log.log_end_offset
        state.partition.truncate_to(end)
        found = Truncation(Cut.DAMAGE, end, end, log.high_watermark, str(damage.error()))
        return Applied(Effect.MOVED, truncation=found)
    records = records_in(data)
    is_here = log.log_end_offset == state.requested.offset
    last_epoch, found_epoch = state.requested.last_epoch, data.diverging_epoch.epoch
    if is_here and found_epoch > last_epoch:
        # The two can share at most what this log has: truncating by an impossible answer would lose records.
        return Applied(Effect.WAIT, f"requested with epoch {last_epoch}, answered with diverging epoch {found_epoch}")
    step = next_step(data, log.log_end_offset, log.epochs)
    if isinstance(step, Append):
        return _appended(state, step, records if is_here else None)
    if isinstance(step, Hold):
        effect = Effect.AWAIT_METADATA if step.until_metadata else Effect.WAIT
        return Applied(effect, step.reason.name, step.reason == ErrorCode.FENCED_LEADER_EPOCH)
    return _truncated(state, step) if is_here else Applied(Effect.NOTHING)


def _appended(state: PartitionFetchState, step: Append, records: Buffer | None) -> Applied:
    log = state.partition.log
    end = log.log_end_offset
    if end < state.requested.offset:
        return Applied(Effect.NOTHING)  # truncated since: the next response tells whether it is a prefix now
    if records is not None:
        _append(state, records)
        if log.log_end_offset == end:
            return Applied(Effect.TOO_SMALL)
    state.partition.followed(step.high_watermark, step.log_start)
    state.succeeded(step.high_watermark)
    # The leader has to know a later log start: DeleteRecords is complete when all replicas have deleted.
    has_moved = records is not None or log.log_start_offset != state.requested_log_start
    return Applied(Effect.MOVED if has_moved else Effect.NOTHING)


def _append(state: PartitionFetchState, records: Buffer) -> None:
    partition, log = state.partition, state.partition.log
    try:
        partition.append_as_follower(records)
    except NonMonotonicOffsets as error:
        # The leader's log starts inside of a batch, which comes whole: so this log starts at the batch, too.
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


def _truncated(state: PartitionFetchState, step: Truncate | TruncateFully) -> Applied:
    partition, log = state.partition, state.partition.log
    end = log.log_end_offset
    if isinstance(step, Truncate):
        if step.offset >= end:
            return Applied(Effect.WAIT, f"the leader asks to truncate at {step.offset}, the log ends at {end}")
        found = Truncation(Cut.DIVERGED, step.offset, end, log.high_watermark)
        partition.truncate_to(step.offset)
    else:
        found = Truncation(Cut.OUT_OF_RANGE, step.offset, end, log.high_watermark)
        partition.truncate_fully_and_start_at(step.offset)
    return Applied(Effect.MOVED, truncation=found)
