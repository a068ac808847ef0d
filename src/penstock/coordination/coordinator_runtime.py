"""What group and transaction coordinators share: a shard per partition of an internal topic that this broker leads.

The shard, a machine without I/O, decides; this module sends replies, appends records as one batch, waits for the
commit, reports it to the machine and wakes it in time. A batch that cannot be written is reported as failed. If it is
unknown whether a batch will last, the machine is unloaded and its clients look for the coordinator again; if the log is
still led here, a new machine is loaded from it. A log is replayed 128 KiB at a time, other requests are served in
between, and requests meanwhile get COORDINATOR_LOAD_IN_PROGRESS.

A key (a group, a transactional id) belongs to the partition given by Java's String.hashCode (31-adic over UTF-16 code
units, 32 bits, sign bit cleared) modulo the number of partitions, as in every Kafka broker and tool.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Generic, Protocol, TypeVar

from penstock.coordination.coordinator_record import CoordinatorRecord
from penstock.coordination.errors import BadGroupRecord, BadTransactionRecord
from penstock.coordination.responses import NO_PRODUCER_ID, Producer
from penstock.log.errors import CoordinatorFenced, InvalidProducerEpoch, LogError
from penstock.records import RecordError, encode_batch, records_of, scan
from penstock.records.batch import decode_marker
from penstock.replication.errors import CommitTimedOut, NotEnoughReplicas, NotEnoughReplicasAfterAppend, NotLeaderError
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import LeadershipChanges
from penstock.runtime.clock import Clock
from penstock.wire.protocol import ErrorCode
from penstock.wire.types import Buffer

logger = logging.getLogger(__name__)

_LOAD_BYTES: Final = 128 * 1024  # some ten milliseconds of the loop's time
_MAX_SLEEP_MS: Final = 60_000
_RETRY_S: Final = 0.1


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class Outcome(Protocol):
    """What a shard decided: replies to send, and records to append as one batch, to be reported under `write_id`."""

    @property
    def replies(self) -> Sequence[Any]: ...
    @property
    def records(self) -> list[CoordinatorRecord]: ...
    @property
    def write_id(self) -> int | None: ...
    @property
    def producer(self) -> Producer | None: ...


class Machine(Protocol):
    """A shard without I/O."""

    @property
    def next_deadline_ms(self) -> int: ...
    def replay(self, key: Buffer | None, value: Buffer | None, producer_id: int = NO_PRODUCER_ID) -> object: ...
    def end_transaction(self, producer_id: int, *, committed: bool) -> None: ...
    def loaded(self, now_ms: int) -> Outcome | None: ...
    def unload(self) -> Outcome: ...
    def appended(self, write_id: int, now_ms: int) -> Outcome: ...
    def append_failed(self, write_id: int, code: ErrorCode, now_ms: int) -> Outcome: ...
    def tick(self, now_ms: int) -> Outcome: ...
    def forget_topics(self, topics: Iterable[str], now_ms: int) -> Outcome: ...


M = TypeVar("M", bound=Machine)


@lru_cache(256)  # ids may have 32 KiB
def partition_for_key(key: str, partitions: int) -> int:
    """The partition, from 0 to `partitions` - 1, whose leader coordinates the key."""
    units = memoryview(key.encode("utf-16-le", "surrogatepass")).cast("H")
    code = 0
    for unit in units:
        code = (31 * code + unit) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % partitions


class Coordinator(ABC, Generic[M]):
    """The shards of this broker for one internal topic."""

    topic: str
    acts_when_loaded = False
    """Whether machines act on what they load, beyond their own log. They are loaded when all of it is committed: a
    record that a new leader found at the end of its log may be lost with that leader.
    """

    def __init__(self, clock: Clock, call_later: CallLater, write_timeout_ms: int) -> None:
        self._clock = clock
        self.call_later = call_later
        self.write_timeout_ms = write_timeout_ms
        self._shards: dict[int, Shard[M]] = {}
        self._latest_ms = 0.0
        self._looked_ms = clock.monotonic_ms()
        self.partitions = 0

    @abstractmethod
    def make_machine(self, partition: Partition) -> M:
        """An empty machine for a partition that this broker begins to lead."""

    def closing(self, shard: Shard[M]) -> None:
        """Append what is left, if this broker still leads the partition."""

    def carry_out_rest(self, shard: Shard[M], outcome: Any) -> None:
        """Do what an outcome wants besides replies and records."""

    def now_ms(self) -> int:
        """The wall clock, but never going back: a session must not end because the time was set.

        Where the clock was set back, time passes at half speed until it is there again. If it stood still, nothing
        would expire for as long: no session of a dead member, and no transaction.
        """
        monotonic_ms = self._clock.monotonic_ms()
        slow_ms = self._latest_ms + max(0.0, monotonic_ms - self._looked_ms) / 2
        self._looked_ms = monotonic_ms
        self._latest_ms = max(slow_ms, self._clock.now_ms())
        return int(self._latest_ms)

    def on_leadership_change(self, changes: LeadershipChanges) -> None:
        """See `ReplicaManager.on_leadership_change`."""
        for topic, index in (*changes.removed, *((each.topic, each.index) for each in changes.followers)):
            if topic == self.topic:
                self.resign(index)
        for partition in changes.leaders:
            if partition.topic == self.topic:
                self.lead(partition, len(changes.image.topics[self.topic].partitions))
        if self.topic in changes.deleted_topics:
            self.close()  # until the topic is created again
        elif changes.deleted_topics:
            for shard in tuple(self._shards.values()):
                shard.forget_topics(changes.deleted_topics)

    def lead(self, partition: Partition, partitions: int) -> None:
        """Load a partition of the topic, then serve its keys."""
        self.resign(partition.index)
        self.partitions = partitions
        shard = Shard(self, partition, self.make_machine(partition))
        self._shards[partition.index] = shard
        shard.load()

    def resign(self, partition: int) -> None:
        """Another broker leads this partition, or its log failed: clients look for the coordinator again."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.close()

    @property
    def shards(self) -> Iterable[M]:
        """The loaded shards."""
        return [shard.machine for shard in self._shards.values() if shard.is_loaded]

    @property
    def is_loading(self) -> bool:
        return any(not shard.is_loaded for shard in self._shards.values())

    def shard_at(self, index: int) -> Shard[M] | None:
        """The loaded shard of a partition, if this broker leads it."""
        shard = self._shards.get(index)
        return shard if shard is not None and shard.is_loaded else None

    def find(self, key: str) -> Shard[M] | ErrorCode:
        """The shard of a key, or an error if its coordinator is not here, or not loaded."""
        shard = self._shards.get(partition_for_key(key, self.partitions)) if self.partitions else None
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return shard if shard.is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def close(self) -> None:
        """Answer waiting requests, and stop."""
        for partition in tuple(self._shards):
            self.resign(partition)
        self.partitions = 0


class Shard(Generic[M]):
    """One machine with its log and its timer."""

    def __init__(self, coordinator: Coordinator[M], partition: Partition, machine: M) -> None:
        self._coordinator = coordinator
        self.partition = partition
        self._name = f"{partition.topic}-{partition.index}"
        self.machine = machine
        self.leader_epoch = partition.leader_epoch
        self._timer: Timer | None = None
        self._timer_due_ms = 0
        self.is_closed = False
        self._position = partition.log.log_start_offset
        self._forgotten: list[str] = []  # topics deleted while it was loading
        self.is_loaded = False

    # --- loading

    def load(self) -> None:
        """Replay a region, and continue in the next turn of the loop if there is more."""
        if self.is_closed:
            return
        try:
            region = self.partition.log.read(self._position, _LOAD_BYTES)
            if region is not None and not self._replay_all(region.read()):
                raise LogError(f"no record batch at offset {self._position}")
        except (LogError, RecordError, OSError) as error:
            logger.error("coordinator not loaded: partition=%s error=%s", self._name, error)
            self._coordinator.resign(self.partition.index)
            return
        if region is not None and self._position < self.partition.log.log_end_offset:
            self._timer = self._coordinator.call_later(0, self.load)
            return
        self._timer = None
        self._await_commit()

    def _await_commit(self) -> None:
        if self._coordinator.acts_when_loaded:
            self.partition.when_committed(self._position, self._coordinator.write_timeout_ms, self._replayed)
        else:
            self._serve()

    def _replayed(self, error: LogError | None) -> None:
        """Everything that was replayed is committed, or that is not known yet."""
        if self.is_closed:
            return
        if error is None:
            self._serve()
        else:
            logger.warning("coordinator not loaded yet: partition=%s error=%s", self._name, error)
            self._timer = self._coordinator.call_later(_RETRY_S, self.load)

    def _serve(self) -> None:
        now_ms = self._coordinator.now_ms()
        outcome = self.machine.loaded(now_ms)
        self.is_loaded = True
        self._schedule()
        if outcome is not None:
            self.carry_out(outcome)
        if self._forgotten:
            self.carry_out(self.machine.forget_topics(self._forgotten, now_ms))

    def _replay_all(self, data: bytes) -> bool:
        headers = scan(data).headers
        for header in headers:
            self._position = header.next_offset
            if header.is_control:
                marker = decode_marker(data, header)
                if marker is not None:
                    self.machine.end_transaction(header.producer_id, committed=marker.is_commit)
                continue
            producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
            for record in records_of(data, header):
                self._replay(record.key, record.value, producer_id, record.offset)
        return bool(headers)

    def _replay(self, key: bytes | None, value: bytes | None, producer_id: int, offset: int) -> None:
        try:
            self.machine.replay(key, value, producer_id)
        except (BadGroupRecord, BadTransactionRecord) as error:
            logger.error("coordinator record skipped: partition=%s offset=%d error=%s", self._name, offset, error)

    # --- serving

    def forget_topics(self, topics: list[str]) -> None:
        if self.is_loaded:
            self.carry_out(self.machine.forget_topics(topics, self._coordinator.now_ms()))
        else:
            self._forgotten += topics

    def carry_out(self, outcome: Outcome) -> None:
        for reply in outcome.replies:
            reply.token(reply.message)
        self._coordinator.carry_out_rest(self, outcome)
        if outcome.records and outcome.write_id is not None:
            self._write(outcome, outcome.write_id)
        elif not self.is_closed:
            self._schedule()

    def _write(self, outcome: Outcome, write_id: int) -> None:
        now_ms = self._coordinator.now_ms()
        rows = [(now_ms, record.key, record.value, ()) for record in outcome.records]
        producer = outcome.producer
        batch = (
            encode_batch(rows)
            if producer is None
            else encode_batch(
                rows,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transactional=True,
            )
        )
        try:
            self.partition.append(
                batch,
                now_ms,
                done=partial(self._written, write_id),
                timeout_ms=self._coordinator.write_timeout_ms,
                from_client=False,
            )
        except (LogError, RecordError) as error:
            level = logging.WARNING if isinstance(error, NotEnoughReplicas) else logging.ERROR
            logger.log(level, "coordinator records not appended: partition=%s error=%s", self._name, error)
            self.carry_out(self.machine.append_failed(write_id, _code_of(error), now_ms))

    def _written(self, write_id: int, error: LogError | None) -> None:
        if self.is_closed:
            return
        if error is None:
            self.carry_out(self.machine.appended(write_id, self._coordinator.now_ms()))
            return
        logger.error("coordinator records not committed: partition=%s error=%s", self._name, error)
        coordinator, partition = self._coordinator, self.partition
        coordinator.resign(partition.index)
        if isinstance(error, (CommitTimedOut, NotEnoughReplicasAfterAppend)) and partition.is_leader:
            coordinator.lead(partition, coordinator.partitions)

    def _schedule(self) -> None:
        due_ms = self.machine.next_deadline_ms
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return  # it fires early and is set again
            self._timer.cancel()
        wait_ms = min(max(0, due_ms - self._coordinator.now_ms()), _MAX_SLEEP_MS)
        self._timer_due_ms = due_ms
        self._timer = self._coordinator.call_later(wait_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self.is_closed:
            self.carry_out(self.machine.tick(self._coordinator.now_ms()))

    def close(self) -> None:
        if self.is_loaded and self.partition.is_leader:
            self._coordinator.closing(self)
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.carry_out(self.machine.unload())


def _code_of(error: Exception) -> ErrorCode:
    """The error code of a batch that was not appended."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


_CODES: Final = {
    NotLeaderError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    CoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
}
