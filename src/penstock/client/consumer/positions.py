"""Where a consumer stands in each of its partitions. Pure.

Noun: a `Place`, one partition's position. It has two offsets: `position`, the next record to hand out, which is what
gets committed, and `fetch_offset`, the next to ask a broker for, which runs ahead by what is buffered.

    position 100, fetched 100..599, handed out up to 249:  position 250, fetch_offset 600

Rule: a place is fetched only while it is READY. It gets there from UNKNOWN by a committed offset or by the reset
policy, and leaves when the leader says that the offset does not exist. Whatever moves the position by hand makes a new
`version`: what was fetched for an older one is dropped.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, NamedTuple

from penstock.client.consumer.types import TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1
NO_EPOCH: Final = -1
NO_OFFSET: Final = -1

ResetPolicy = Literal["earliest", "latest", "none"]
RESET_TIMES: Final[dict[str, int]] = {"earliest": EARLIEST, "latest": LATEST}


class Standing(Enum):
    UNKNOWN = "unknown"  # needs the committed offset
    RESET = "reset"  # needs the offset of `reset_to`
    VALIDATE = "validate"  # the leader changed: was what we read cut off?
    READY = "ready"
    STUCK = "stuck"  # no offset and no policy: the user has to seek


class Truncation(NamedTuple):
    """Records up to `position` were read, but the log agrees with what was read only up to `end_offset`."""

    partition: TopicPartition
    position: int
    end_offset: int


class Place:
    """One assigned partition."""

    __slots__ = (
        "buffered_bytes", "epoch", "fetch_bytes", "fetch_epoch", "fetch_offset", "high_watermark", "last_stable_offset",
        "leader_epoch", "log_start_offset", "not_before_ms", "partition", "paused", "position", "reset_to", "standing",
        "version",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, fetch_bytes: int) -> None:
        self.partition = partition
        self.standing = Standing.UNKNOWN
        self.version = 0
        self.position = NO_OFFSET
        self.epoch = NO_EPOCH
        """The leader epoch of the last record handed out: goes into commits."""
        self.fetch_offset = NO_OFFSET
        self.fetch_epoch = NO_EPOCH
        self.leader_epoch = NO_EPOCH
        """The current leader's epoch, as metadata says; it fences fetches to brokers that do not lead any more."""
        self.reset_to = LATEST
        self.paused = False
        self.buffered_bytes = 0
        self.fetch_bytes = fetch_bytes
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.not_before_ms = 0.0

    def __repr__(self) -> str:
        return f"<Place {self.partition} at {self.position}, {self.standing.value}>"

    @property
    def has_position(self) -> bool:
        return self.standing in (Standing.READY, Standing.VALIDATE)

    def seek(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """Go on from `offset`; what is buffered counts no more. With an epoch, it is validated first."""
        self.version += 1
        self.buffered_bytes = 0
        self.position = self.fetch_offset = offset
        self.epoch = self.fetch_epoch = epoch
        self.not_before_ms = 0.0
        known = epoch != NO_EPOCH and self.leader_epoch > epoch
        self.standing = Standing.VALIDATE if known else Standing.READY

    def seek_to(self, time_ms: int) -> None:
        """Go on from the first record at or after a time, or from one of the ends."""
        self.version += 1
        self.buffered_bytes = 0
        self.reset_to = time_ms
        self.not_before_ms = 0.0
        self.standing = Standing.RESET

    def retry_at(self, not_before_ms: float) -> None:
        self.not_before_ms = not_before_ms

    def led_by(self, leader_epoch: int) -> None:
        """Metadata knows a newer leader: what was read under the old one may have been cut off."""
        if leader_epoch <= self.leader_epoch:
            return
        self.leader_epoch = leader_epoch
        if self.standing is Standing.READY and NO_EPOCH < self.fetch_epoch < leader_epoch:
            self.standing = Standing.VALIDATE

    def validated(self, version: int, epoch: int, end_offset: int) -> Truncation | None:
        """The leader's answer to where `fetch_epoch` ended. A truncation if it ended before what was fetched."""
        if version != self.version or self.standing is not Standing.VALIDATE:
            return None
        if end_offset < 0 or epoch < 0:
            # The leader knows no such epoch: nothing can be said against the position.
            self.standing = Standing.READY
            return None
        if end_offset >= self.fetch_offset:
            self.standing = Standing.READY
            return None
        return self.diverged(end_offset)

    def diverged(self, end_offset: int) -> Truncation | None:
        """The log agrees up to `end_offset` only. What was fetched beyond it and not handed out is dropped quietly:
        only what the user has seen is worth an alarm."""
        seen = self.position
        if end_offset >= seen:
            self.seek(seen)
            return None
        self.standing = Standing.STUCK
        return Truncation(self.partition, seen, end_offset)

    def fetched(self, next_offset: int, epoch: int, buffered_bytes: int) -> None:
        """A response was taken: everything before `next_offset` is buffered, or nobody's business."""
        self.fetch_offset = next_offset
        if epoch != NO_EPOCH:
            self.fetch_epoch = epoch
        self.buffered_bytes += buffered_bytes

    def handed_out(self, version: int, next_offset: int, epoch: int) -> None:
        """The user has everything before `next_offset`; of no effect for what was fetched before a seek."""
        if version == self.version and next_offset > self.position:
            self.position = next_offset
            if epoch != NO_EPOCH:
                self.epoch = epoch

    @property
    def lag(self) -> int | None:
        """Records between the position and the end, as far as the last fetch knew."""
        if not self.has_position or self.high_watermark == NO_OFFSET:
            return None
        return max(0, self.high_watermark - self.position)


def is_offset(value: object) -> bool:
    """Whether a value from the user can be an offset."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def start_of(policy: ResetPolicy) -> int | None:
    """The time that a reset policy asks for; None where it leaves the choice to the user."""
    return RESET_TIMES.get(policy)
