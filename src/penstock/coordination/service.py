"""Carrying out what the group coordinators decide: append, sync, reply, wake up in time.

Noun: the shards of `__consumer_offsets` that this broker leads, each with its partition and one timer.

Rule: a shard decides and this carries out, in order: replies leave, records are appended as one batch and made durable,
the shard is told, and what it then decides is carried out the same way. A batch that cannot be written is reported as
failed. One of which nobody knows whether it is on the disk ends the shard: whoever waits is told to look elsewhere, and
the next start reads what is there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from penstock.coordination.errors import BadGroupRecord
from penstock.coordination.events import Outcome, RequestContext
from penstock.coordination.placement import partition_for_group
from penstock.coordination.settings import GroupSettings
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.log.errors import LogError
from penstock.records import RecordError, encode_batch, records_of, scan
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random
from penstock.wire.error_codes import ErrorCode
from penstock.wire.types import Message

logger = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
_LOAD_BYTES = 1024 * 1024
_LONGEST_SLEEP_MS = 60_000

Answer = Callable[[Message], None]
Handle = Callable[[GroupCoordinatorShard, RequestContext, int], Outcome]


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class GroupService:
    """The group coordinators of this broker."""

    def __init__(
        self, replicas: Replicas, settings: GroupSettings, random: Random, clock: Clock, call_later: CallLater
    ) -> None:
        self._replicas = replicas
        self._settings = settings
        self._random = random
        self._clock = clock
        self._call_later = call_later
        self._shards: dict[int, _Shard] = {}
        self._latest_ms = 0
        self.partitions = 0

    def now_ms(self) -> int:
        """The wall clock, but never going back: a session must not end because somebody set the time."""
        self._latest_ms = max(self._latest_ms, self._clock.now_ms())
        return self._latest_ms

    def lead(self, partition: Partition, partitions: int) -> None:
        """Take on a partition of the offsets topic: replay what it holds, then serve."""
        self.partitions = partitions
        shard = _Shard(self, partition, GroupCoordinatorShard(self._settings, self._random))
        shard.load(self.now_ms())
        self._shards[partition.index] = shard

    @property
    def shards(self) -> Iterable[GroupCoordinatorShard]:
        return [shard.machine for shard in self._shards.values()]

    def count_by_state(self) -> dict[str, int]:
        """How many groups are in which state."""
        return dict(Counter(state for shard in self._shards.values() for state in shard.machine.states()))

    def handle(self, group_id: str, context: RequestContext, handle: Handle) -> bool:
        """Let the coordinator of a group handle a request; False if that is not here."""
        if not self.partitions:
            return False
        shard = self._shards.get(partition_for_group(group_id, self.partitions))
        if shard is None:
            return False
        shard.handle(context, handle)
        return True

    def forget_topics(self, topics: Iterable[str]) -> None:
        gone = list(topics)
        for shard in self._shards.values():
            shard.carry_out(shard.machine.forget_topics(gone, self.now_ms()))

    def give_up(self, partition: int) -> None:
        """The log of a shard failed: its groups have no coordinator until the next start."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.close()

    def close(self) -> None:
        """Answer whoever waits, and stop."""
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()
        self.partitions = 0


class _Shard:
    """One shard with what it acts on."""

    def __init__(self, service: GroupService, partition: Partition, machine: GroupCoordinatorShard) -> None:
        self._service = service
        self._partition = partition
        self.machine = machine
        self._timer: Timer | None = None
        self._timer_due_ms = 0
        self._closed = False

    def load(self, now_ms: int) -> None:
        log = self._partition.log
        offset = log.log_start_offset
        while (region := log.read(offset, _LOAD_BYTES)) is not None:
            data = region.read()
            for header in scan(data).headers:
                offset = header.next_offset
                if header.is_control:
                    continue
                for record in records_of(data, header):
                    self._replay(record.key, record.value, record.offset)
        self.machine.loaded(now_ms)
        self._schedule()

    def _replay(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        try:
            self.machine.replay(key, value)
        except BadGroupRecord as error:
            logger.error("%s-%d offset %d: %s: skipped", OFFSETS_TOPIC, self._partition.index, offset, error)

    def handle(self, context: RequestContext, handle: Handle) -> None:
        self.carry_out(handle(self.machine, context, self._service.now_ms()))

    def carry_out(self, outcome: Outcome) -> None:
        for reply in outcome.replies:
            answer: Answer = reply.token  # type: ignore[assignment]
            answer(reply.message)
        if outcome.records and outcome.write_id is not None:
            self._write(outcome, outcome.write_id)
        elif not self._closed:
            self._schedule()

    def _write(self, outcome: Outcome, write_id: int) -> None:
        now_ms = self._service.now_ms()
        batch = encode_batch([(now_ms, record.key, record.value, ()) for record in outcome.records])
        try:
            appended = self._partition.append(batch, now_ms, from_client=False)
        except (LogError, RecordError) as error:
            logger.error("%s-%d: groups cannot be stored: %s", OFFSETS_TOPIC, self._partition.index, error)
            self.carry_out(self.machine.append_failed(write_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, now_ms))
            return
        self._service._replicas.when_durable(
            self._partition, appended.last_offset + 1, partial(self._written, write_id)
        )

    def _written(self, write_id: int, error: LogError | None) -> None:
        if error is None:
            self.carry_out(self.machine.appended(write_id, self._service.now_ms()))
            return
        logger.error("%s-%d: groups cannot be stored: %s", OFFSETS_TOPIC, self._partition.index, error)
        self._service.give_up(self._partition.index)

    def _schedule(self) -> None:
        due_ms = self.machine.next_deadline_ms
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return  # it comes early, looks again, and goes on
            self._timer.cancel()
        wait_ms = min(max(0, due_ms - self._service.now_ms()), _LONGEST_SLEEP_MS)
        self._timer_due_ms = due_ms
        self._timer = self._service._call_later(wait_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._closed:
            self.carry_out(self.machine.tick(self._service.now_ms()))

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.carry_out(self.machine.unload())
