"""The transaction coordinators of this broker: a shard per partition of `__transaction_state` that it leads.

Loading, writing and timers are those of every coordinator (`coordinator_runtime`); markers are sent by a
`MarkerSender`. A producer id is allocated ahead, so that the shards, which do not wait, find one.

Partitions join a transaction only if this broker's image has them. So a partition that the image does not have when the
transaction ends was deleted, and needs no marker.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.cluster.errors import ClusterError
from penstock.cluster.image import ClusterImage
from penstock.coordination.coordinator_runtime import CallLater, Coordinator, Shard
from penstock.coordination.transactions.broker_requests import MarkerSender, Tasks
from penstock.coordination.transactions.transaction import ONGOING, Transaction
from penstock.coordination.transactions.transaction_shard import (
    Add,
    Added,
    End,
    Ended,
    Init,
    Initialized,
    Markers,
    TransactionSettings,
    TransactionShard,
)
from penstock.replication.partition import Partition
from penstock.runtime.clock import Clock
from penstock.wire.protocol import TRANSACTION_STATE_TOPIC, ErrorCode

logger = logging.getLogger(__name__)


class TransactionCoordinator(Coordinator[TransactionShard]):
    """The shards of this broker."""

    topic = TRANSACTION_STATE_TOPIC
    acts_when_loaded = True  # it sends markers for the decisions that it loads

    def __init__(
        self,
        settings: TransactionSettings,
        clock: Clock,
        call_later: CallLater,
        image: Callable[[], ClusterImage],
        allocate_producer_id: Callable[[], Awaitable[int]],
    ) -> None:
        super().__init__(clock, call_later, settings.write_timeout_ms)
        self.settings = settings
        self._image = image
        self._ids = _ProducerIds(allocate_producer_id)
        self.sender: MarkerSender | None = None
        """Set before the first partition is led."""

    def make_machine(self, partition: Partition) -> TransactionShard:
        return TransactionShard(self.settings, self._ids.take)

    def closing(self, shard: Shard[TransactionShard]) -> None:
        shard.carry_out(shard.machine.write_deferred(self.now_ms()))

    def carry_out_rest(self, shard: Shard[TransactionShard], outcome: Any) -> None:
        markers: Markers
        for markers in outcome.markers:
            if self.sender is not None:
                self.sender.send(shard, markers)

    # --- requests

    def init(self, request: Init, answer: Callable[[Initialized], None]) -> None:
        def serve(is_ready: bool) -> None:
            shard = self.find(request.transactional_id)
            if not is_ready:
                answer(Initialized(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            elif isinstance(shard, ErrorCode):
                answer(Initialized(shard))
            else:
                shard.carry_out(shard.machine.handle(request, answer, self.now_ms()))

        self._ids.when_ready(serve)

    def add(self, request: Add, answer: Callable[[Added], None], hold_ms: int | None = None) -> None:
        """See `TransactionShard.handle`. A request of a broker should not wait long: requests of other producers are
        behind it on the same connection.
        """
        shard = self.find(request.transactional_id)
        if isinstance(shard, ErrorCode):
            answer(Added(shard))
            return
        image = self._image()
        unknown = frozenset(
            (topic, index)
            for topic, index in request.partitions
            if image.partition(topic, index) is None or topic in image.deleting
        )
        if unknown and not request.verify_only:
            answer(Added(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, unknown))
            return
        shard.carry_out(shard.machine.handle(request, answer, self.now_ms(), hold_ms))

    def end(self, request: End, answer: Callable[[Ended], None]) -> None:
        shard = self.find(request.transactional_id)
        if isinstance(shard, ErrorCode):
            answer(Ended(shard))
            return
        shard.carry_out(shard.machine.handle(request, answer, self.now_ms()))
        self._ids.when_ready(_ignore)  # the next id is allocated ahead

    # --- for administrators and metrics

    def describe(self, transactional_id: str) -> Transaction | ErrorCode:
        shard = self.find(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        found = shard.machine.get(transactional_id)
        return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if found is None else found

    def open_transactions(self) -> tuple[int, float]:
        """The number of open transactions, and the age of the oldest in seconds (0 if there is none)."""
        started = [each.start_ms for shard in self.shards for _, each in shard.each() if each.state is ONGOING]
        now_ms = self.now_ms()
        return len(started), (now_ms - min(started, default=now_ms)) / 1000

    def close(self) -> None:
        super().close()
        self._ids.close()


class _ProducerIds:
    """One producer id, allocated ahead."""

    def __init__(self, allocate: Callable[[], Awaitable[int]]) -> None:
        self._allocate = allocate
        self._spare: list[int] = []
        self._waiting: list[Callable[[bool], None]] = []
        self._is_allocating = False
        self._tasks = Tasks()

    def take(self) -> int | None:
        return self._spare.pop() if self._spare else None

    def when_ready(self, done: Callable[[bool], None]) -> None:
        """Call `done` with True when an id can be taken, with False if none can be allocated now."""
        if self._spare:
            done(True)
            return
        self._waiting.append(done)
        if not self._is_allocating:
            self._is_allocating = True
            self._tasks.start(self._fill())

    async def _fill(self) -> None:
        """Allocate until no one waits: a waiting request may take the id."""
        try:
            while self._waiting:
                try:
                    self._spare.append(await self._allocate())
                except ClusterError as error:
                    logger.warning("producer id not allocated: error=%s", error)
                    waiting, self._waiting = self._waiting, []
                    for done in waiting:
                        done(False)
                    return
                while self._waiting and self._spare:
                    self._waiting.pop(0)(True)
        finally:
            self._is_allocating = False

    def close(self) -> None:
        self._tasks.close()


def _ignore(is_ready: bool) -> None:
    pass
