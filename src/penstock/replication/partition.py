"""A partition that this broker leads.

Noun: a log, the epoch in which it is led, and the readers who wait for it to grow.

Rule: the high watermark is the smallest log end among the replicas in sync; with this broker as the only one it
follows the log's end. Readers are told of growth after the watermark moved, never before.
"""

from __future__ import annotations

from typing import Protocol

from penstock.log.partition_log import Appended, PartitionLog
from penstock.records import Buffer
from penstock.wire.error_codes import ErrorCode


class Watcher(Protocol):
    """Somebody who waits for records."""

    def grown(self, partition: Partition, size: int) -> None:
        """`size` more bytes may be read from `partition`."""

    def gone(self, partition: Partition) -> None:
        """The partition is no longer here."""


class Partition:
    """One partition on this broker."""

    __slots__ = ("_watchers", "index", "leader_epoch", "log", "min_insync_replicas", "topic")

    def __init__(
        self, topic: str, index: int, log: PartitionLog, *, leader_epoch: int, min_insync_replicas: int = 1
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.leader_epoch = leader_epoch
        self.min_insync_replicas = min_insync_replicas
        self._watchers: set[Watcher] = set()

    @property
    def insync_replicas(self) -> int:
        return 1

    def append(self, batches: Buffer, now_ms: int, *, from_client: bool = True) -> Appended:
        """Append as the leader; what the log raises passes through."""
        log = self.log
        appended = log.append(batches, leader_epoch=self.leader_epoch, now_ms=now_ms, from_client=from_client)
        if not appended.is_duplicate:
            log.advance_high_watermark(log.log_end_offset)
            if self._watchers:
                size = len(batches)
                for watcher in tuple(self._watchers):
                    watcher.grown(self, size)
        return appended

    @property
    def watchers(self) -> int:
        """How many wait for more."""
        return len(self._watchers)

    def check_epoch(self, believed: int) -> ErrorCode:
        """What to say to a reader who believes that this epoch leads; below 0 is one who does not know of epochs.

        In epoch 5: 5 and -1 are right, 4 is fenced, 6 is not known here yet.
        """
        if believed < 0 or believed == self.leader_epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if believed < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    def watch(self, watcher: Watcher) -> None:
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def drop(self) -> None:
        """It is deleted or moved away: nobody need wait any longer."""
        watchers, self._watchers = self._watchers, set()
        for watcher in watchers:
            watcher.gone(self)
