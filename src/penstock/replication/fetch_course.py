"""What a fetcher knows of one partition that it follows.

Noun: a `Course`, the following of one partition in one leader epoch. A new leader or a new epoch is a new course, so
whatever is still on its way for the old one finds that it is over.

Rule: a course is either asked for, or it pauses, and then it says why.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, Protocol

from penstock.log.partition_log import PartitionLog
from penstock.records import Buffer
from penstock.replication.fetch_session import SessionKey
from penstock.replication.following import NO_EPOCH, Position, position_of
from penstock.wire.schemas.fetch import FetchPartition

PARTITION_BYTES_MAX: Final = 2**27
"""No batch is larger: a length that says so is damaged."""
_NEVER_ASKED: Final = 2**63


class Followed(Protocol):
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

    def start_over(self, offset: int) -> None:
        """Take away everything, and begin at `offset`."""


class Pause(Enum):
    """Why a partition is not asked for."""

    NONE = "none"
    SYNC = "sync"  # what it has is not durable yet
    WHILE = "while"  # something went wrong that may pass
    THROTTLED = "throttled"
    NEWS = "news"  # of the cluster
    FAILED = "failed"  # its disk


class Course:
    """One partition in one leader epoch."""

    __slots__ = (
        "asked", "asked_log_start", "asked_serial", "epoch", "failures", "is_over", "lag", "leader", "max_bytes",
        "partition", "pause", "session_key", "timer", "token",
    )  # fmt: skip

    def __init__(self, partition: Followed, max_bytes: int) -> None:
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
