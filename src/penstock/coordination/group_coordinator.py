"""The group coordinators of this broker: a shard per partition of `__consumer_offsets` that it leads.

The shard decides; this module sends replies, appends records as one batch, waits for the commit, reports it to the
shard and wakes it in time. A batch that cannot be written is reported as failed. If it is unknown whether a batch will
last, the shard is unloaded and its clients look for the coordinator again; if the log is still led here, the shard is
loaded from it. A log is replayed 128 KiB at a time, other requests are served in between, and requests for its groups
get COORDINATOR_LOAD_IN_PROGRESS.

A group belongs to the partition given by Java's String.hashCode (31-adic over UTF-16 code units, 32 bits, sign bit
cleared) modulo the number of partitions, as in every Kafka broker and tool.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, Protocol

from penstock.coordination.errors import BadGroupRecord
from penstock.coordination.groups.group import GroupSettings, MemberMemory
from penstock.coordination.offsets import CommittedOffsets
from penstock.coordination.responses import Outcome, RequestContext
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.log.errors import LogError
from penstock.records import RecordError, encode_batch, records_of, scan
from penstock.replication.errors import CommitTimedOut, NotEnoughReplicas, NotEnoughReplicasAfterAppend, NotLeaderError
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import LeadershipChanges, ReplicaManager
from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random
from penstock.wire.protocol import OFFSETS_TOPIC, ErrorCode
from penstock.wire.types import Message

logger = logging.getLogger(__name__)

_LOAD_BYTES: Final = 128 * 1024  # some ten milliseconds of the loop's time
_MAX_SLEEP_MS: Final = 60_000

Answer = Callable[[Message], None]
Handle = Callable[[GroupCoordinatorShard, RequestContext, int], Outcome]


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


def partition_for_group(group_id: str, partitions: int) -> int:
    """The partition, from 0 to `partitions` - 1, whose leader coordinates the group."""
    units = memoryview(group_id.encode("utf-16-le", "surrogatepass")).cast("H")
    code = 0
    for unit in units:
        code = (31 * code + unit) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % partitions


class GroupCoordinator:
    """The shards of this broker."""

    def __init__(
        self, replicas: ReplicaManager, settings: GroupSettings, random: Random, clock: Clock, call_later: CallLater
    ) -> None:
        self._replicas = replicas
        self._settings = settings
        self._random = random
        self._clock = clock
        self._call_later = call_later
        self._shards: dict[int, _Shard] = {}
        self._latest_ms = 0
        self.memory = MemberMemory()
        self.partitions = 0

    def now_ms(self) -> int:
        """The wall clock, but never going back: a session must not end because the time was set."""
        self._latest_ms = max(self._latest_ms, self._clock.now_ms())
        return self._latest_ms

    def on_leadership_change(self, changes: LeadershipChanges) -> None:
        """See `ReplicaManager.on_leadership_change`."""
        for topic, index in (*changes.removed, *((each.topic, each.index) for each in changes.followers)):
            if topic == OFFSETS_TOPIC:
                self.resign(index)
        for partition in changes.leaders:
            if partition.topic == OFFSETS_TOPIC:
                self.lead(partition, len(changes.image.topics[OFFSETS_TOPIC].partitions))
        if OFFSETS_TOPIC in changes.deleted_topics:
            self.close()  # until the topic is created again
        elif changes.deleted_topics:
            for shard in tuple(self._shards.values()):
                shard.forget_topics(changes.deleted_topics)

    def lead(self, partition: Partition, partitions: int) -> None:
        """Load a partition of the offsets topic, then serve its groups."""
        self.resign(partition.index)
        self.partitions = partitions
        shard = _Shard(self, partition, GroupCoordinatorShard(self._settings, self._random, self.memory))
        self._shards[partition.index] = shard
        shard.load()

    def resign(self, partition: int) -> None:
        """Another broker leads this partition, or its log failed: clients look for the coordinator again."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.close()

    @property
    def shards(self) -> Iterable[GroupCoordinatorShard]:
        """The loaded shards."""
        return [shard.machine for shard in self._shards.values() if shard.is_loaded]

    def offsets_of(self, group_id: str) -> CommittedOffsets | None:
        """The offsets of a group's shard; None if its coordinator is not here, or not loaded."""
        shard = self._shards.get(partition_for_group(group_id, self.partitions)) if self.partitions else None
        return shard.machine.offsets if shard is not None and shard.is_loaded else None

    def count_by_state(self) -> dict[str, int]:
        """The number of groups in each state."""
        return dict(Counter(state for shard in self._shards.values() for state in shard.machine.states()))

    def committed(self) -> Iterator[tuple[str, str, int, int]]:
        """Group, topic, partition and offset of all offsets committed on this broker."""
        for shard in self._shards.values():
            if shard.is_loaded:
                for (group_id, topic, partition), stored in shard.machine.offsets.each():
                    yield group_id, topic, partition, stored.offset

    def handle(self, group_id: str, context: RequestContext, handle: Handle) -> ErrorCode:
        """Handle a request for a group; returns an error if its coordinator is not here, or not loaded."""
        if not self.partitions:
            return ErrorCode.NOT_COORDINATOR
        shard = self._shards.get(partition_for_group(group_id, self.partitions))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        if not shard.is_loaded:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        shard.handle(context, handle)
        return ErrorCode.NONE

    def close(self) -> None:
        """Answer waiting requests, and stop."""
        for partition in tuple(self._shards):
            self.resign(partition)
        self.partitions = 0


class _Shard:
    """One shard with its log and its timer."""

    def __init__(self, service: GroupCoordinator, partition: Partition, machine: GroupCoordinatorShard) -> None:
        self._service = service
        self._partition = partition
        self._name = f"{OFFSETS_TOPIC}-{partition.index}"
        self.machine = machine
        self._timer: Timer | None = None
        self._timer_due_ms = 0
        self._closed = False
        self._position = partition.log.log_start_offset
        self._forgotten: list[str] = []  # topics deleted while it was loading
        self.is_loaded = False

    def load(self) -> None:
        """Replay a region, and continue in the next turn of the loop if there is more."""
        if self._closed:
            return
        try:
            region = self._partition.log.read(self._position, _LOAD_BYTES)
            if region is not None and not self._replay_all(region.read()):
                raise LogError(f"no record batch at offset {self._position}")
        except (LogError, RecordError, OSError) as error:
            logger.error("groups not loaded: partition=%s error=%s", self._name, error)
            self._service.resign(self._partition.index)
            return
        if region is not None and self._position < self._partition.log.log_end_offset:
            self._timer = self._service._call_later(0, self.load)
            return
        self._timer = None
        now_ms = self._service.now_ms()
        self.machine.loaded(now_ms)
        self.is_loaded = True
        self._schedule()
        if self._forgotten:
            self.carry_out(self.machine.forget_topics(self._forgotten, now_ms))

    def _replay_all(self, data: bytes) -> bool:
        headers = scan(data).headers
        for header in headers:
            self._position = header.next_offset
            if header.is_control:
                continue
            for record in records_of(data, header):
                self._replay(record.key, record.value, record.offset)
        return bool(headers)

    def _replay(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        try:
            self.machine.replay(key, value)
        except BadGroupRecord as error:
            logger.error("group record skipped: partition=%s offset=%d error=%s", self._name, offset, error)

    def forget_topics(self, topics: list[str]) -> None:
        if self.is_loaded:
            self.carry_out(self.machine.forget_topics(topics, self._service.now_ms()))
        else:
            self._forgotten += topics

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
            self._partition.append(
                batch,
                now_ms,
                done=partial(self._written, write_id),
                timeout_ms=self._service._settings.commit_timeout_ms,
                from_client=False,
            )
        except (LogError, RecordError) as error:
            logger.error("group records not appended: partition=%s error=%s", self._name, error)
            self.carry_out(self.machine.append_failed(write_id, _code_of(error), now_ms))

    def _written(self, write_id: int, error: LogError | None) -> None:
        if self._closed:
            return
        if error is None:
            self.carry_out(self.machine.appended(write_id, self._service.now_ms()))
            return
        logger.error("group records not committed: partition=%s error=%s", self._name, error)
        service, partition = self._service, self._partition
        service.resign(partition.index)
        if isinstance(error, (CommitTimedOut, NotEnoughReplicasAfterAppend)) and partition.is_leader:
            service.lead(partition, service.partitions)

    def _schedule(self) -> None:
        due_ms = self.machine.next_deadline_ms
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return  # it fires early and is set again
            self._timer.cancel()
        wait_ms = min(max(0, due_ms - self._service.now_ms()), _MAX_SLEEP_MS)
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


def _code_of(error: Exception) -> ErrorCode:
    """The error code of a batch that was not appended."""
    if isinstance(error, NotLeaderError):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return (
        ErrorCode.NOT_ENOUGH_REPLICAS if isinstance(error, NotEnoughReplicas) else ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
