"""A partition on this broker: a log and its role, leader or follower.

The high watermark is the smallest log end among the in-sync replicas, and a log ends where it is as durable as the
topic demands: where acknowledgements wait for a sync, nothing is visible that a power loss could take, unless its
producer did not wait and there is no other replica. A role is known by leader epoch and state version; anything older
is ignored. Consumers are woken when the high watermark moves, followers as soon as there is something to copy.

    append 10..12            followers are woken          a sync is requested
    synced                   the leader's end is 13       the others are at 10: the high watermark stays
    all fetch from 13        the high watermark is 13     consumers are woken, producers answered

`CommitWaiters` answers each waiting producer exactly once: when the high watermark is there, when its time is over, or
when this leader can no longer know.

`RejectedSequences` keeps a retry from being stored twice. A log accepts any first sequence of a producer it does not
know. If a first batch is rejected for too few in-sync replicas and the second, already sent, is accepted, the first
would stay out of order, both would be sent again under new numbers, and one would be stored twice. So rejected
sequences are remembered for 60 s: what follows them is out of order until they come again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import Final, NamedTuple, Protocol

from penstock.cluster.image import NO_ID, NO_STATE, PartitionImage
from penstock.cluster.tree.layout import NO_LEADER
from penstock.log.errors import LogError, OutOfOrderSequence, RecordsTruncated
from penstock.log.group_commit import GroupCommit
from penstock.log.partition_log import Appended, PartitionLog
from penstock.log.producer_state import EPOCH_PER_TRANSACTION, ProducerStates
from penstock.log.validation import Validated
from penstock.records import Buffer, scan
from penstock.records.batch import EndMarker, encode_marker
from penstock.replication.errors import CommitTimedOut, NotEnoughReplicas, NotEnoughReplicasAfterAppend, NotLeaderError
from penstock.replication.fetch_state import EpochEnd, Position, divergence
from penstock.replication.isr import UNKNOWN_START, Leadership
from penstock.runtime.clock import Clock
from penstock.wire.fetch_session import NO_EPOCH
from penstock.wire.protocol import ErrorCode

logger = logging.getLogger(__name__)

Done = Callable[[LogError | None], None]

ACKS_ALL: Final = -1
NEVER_MS: Final = inf
_MAX_SIZES: Final = 1024
_REMEMBERED_MS: Final = 60_000
_MAX_PRODUCERS: Final = 1_000
MARKER_TIMEOUT_MS: Final = 10_000


# --- the partition


class LogTruncation(Protocol):
    """Truncates logs and keeps checkpoints consistent with them; a LogManager."""

    def advance_start(self, topic: str, partition: int, offset: int) -> bool: ...

    def truncate_to(self, topic: str, partition: int, offset: int, now_ms: int) -> bool: ...

    def truncate_fully(self, topic: str, partition: int, offset: int, now_ms: int) -> None: ...


class Partition:
    """One partition on this broker."""

    __slots__ = (
        "_clock", "_commits", "_limit", "_rejected", "_start_waiters", "_sync_error", "_truncation", "_verifications",
        "_waiters", "_watchers",
        "index", "is_alone", "leader", "leader_epoch", "leadership", "log", "min_insync_replicas", "state_version",
        "topic", "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        index: int,
        log: PartitionLog,
        commits: GroupCommit,
        truncation: LogTruncation,
        clock: Clock,
        limit: Callable[[Partition], None],
        *,
        topic_id: bytes = NO_ID,
        min_insync_replicas: int = 1,
    ) -> None:
        """`limit` is called when a producer starts to wait with a deadline; `expire` must be called from then on."""
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.state_version = NO_STATE
        self.leadership: Leadership | None = None
        self.min_insync_replicas = min_insync_replicas
        self._commits = commits
        self._truncation = truncation
        self._clock = clock
        self._limit = limit
        self.is_alone = False  # it leads and has no other replica: the high watermark is where its own log is durable
        self._sync_error: LogError | None = None  # of the last sync
        self._rejected: RejectedSequences | None = None  # rarely needed
        self._verifications: dict[int, Verification] = {}  # by producer id
        self._waiters = CommitWaiters()
        self._start_waiters: CommitWaiters | None = None  # rarely needed
        self._watchers = Watchers()

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index} led by {self.leader} in epoch {self.leader_epoch}>"

    # --- state

    @property
    def is_leader(self) -> bool:
        return self.leadership is not None

    @property
    def insync_replicas(self) -> int:
        """How many replicas are certainly in sync; only a leader knows, a follower returns 0."""
        return 0 if self.leadership is None else self.leadership.insync_replicas

    @property
    def is_settled(self) -> bool:
        """Whether a leader's high watermark has reached the start of its epoch: until then the true one is unknown."""
        return self.leadership is None or self.log.high_watermark >= self.leadership.epoch_start

    def check_epoch(self, believed: int) -> ErrorCode:
        """The error for a reader that believes in this leader epoch; below 0, the reader does not use epochs.

        In epoch 5: 5 and -1 are right, 4 is fenced, 6 is not known here yet.
        """
        if believed < 0 or believed == self.leader_epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if believed < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    # --- roles

    def lead(self, image: PartitionImage, me: int, brokers: Mapping[int, int], now_ms: float) -> bool:
        """Lead in the epoch of `image`, or note its state if this epoch is led already; returns whether it is new.

        `brokers` are the live brokers' epochs by id, `now_ms` is monotonic.
        """
        if self._is_stale(image):
            return False
        leadership = self.leadership
        if leadership is not None and leadership.epoch == image.leader_epoch:
            self._settle(leadership, image, brokers, now_ms)
            return False
        log = self.log
        self._take_role(image)
        self._watchers.forget_sizes()
        self.leadership = Leadership(
            me,
            epoch=image.leader_epoch,
            epoch_start=log.log_end_offset,
            replicas=image.replicas,
            isr=image.isr,
            state_version=image.state_version,
            high_watermark=log.high_watermark,
            min_insync_replicas=self.min_insync_replicas,
            now_ms=now_ms,
        )
        self._replicas_known(self.leadership)
        self._watchers.remove_all(self)
        self.catch_up()
        self._fail_if_too_few_in_sync(self.leadership)
        return True

    def _settle(self, leadership: Leadership, image: PartitionImage, brokers: Mapping[int, int], now_ms: float) -> None:
        if not leadership.settled(image.replicas, image.isr, image.state_version, now_ms):
            return
        self.brokers_changed(brokers, now_ms)
        self.state_version = image.state_version
        self._replicas_known(leadership)
        self.advance()
        self._fail_if_too_few_in_sync(leadership)

    def _replicas_known(self, leadership: Leadership) -> None:
        self.is_alone = leadership.is_alone
        if not self.is_alone and self.log.epochs.latest_epoch < leadership.epoch:
            # At once, not with the first record: a follower must find the epoch here (KAFKA-10706, KAFKA-15510).
            self.log.epochs.assign(leadership.epoch, self.log.log_end_offset)

    def follow(self, image: PartitionImage) -> bool:
        """Follow the leader of `image`, if there is one; returns whether leader or epoch are new."""
        if self._is_stale(image):
            return False
        known = (self.leader, self.leader_epoch) == (image.leader, image.leader_epoch) and self.leadership is None
        self._take_role(image)
        if not known:
            # An epoch that was led here and wrote nothing is not history: the next records may be of an older one.
            self.log.epochs.truncate_from_end(self.log.log_end_offset)
            self._lose_role()
        return not known

    def resign(self) -> None:
        """Neither lead nor follow, until an image gives a role again."""
        self.leader = NO_LEADER
        self._lose_role()

    def _is_stale(self, image: PartitionImage) -> bool:
        return (image.leader_epoch, image.state_version) < (self.leader_epoch, self.state_version)

    def _take_role(self, image: PartitionImage) -> None:
        self.leader = image.leader
        self.leader_epoch = image.leader_epoch
        self.state_version = image.state_version
        self._rejected = None
        self._verifications.clear()

    def _lose_role(self) -> None:
        self.leadership = None
        self.is_alone = False
        self._verifications.clear()
        self._watchers.forget_sizes()
        for waiters in (self._waiters, self._start_waiters):
            if waiters:
                waiters.fail(NotLeaderError(self.topic, self.index))
        self._watchers.remove_all(self)

    def set_min_insync_replicas(self, min_insync_replicas: int) -> None:
        """The topic's settings changed: min.insync.replicas, or its flush policy."""
        self.min_insync_replicas = min_insync_replicas
        if self.leadership is not None:
            self.leadership.min_insync_replicas = min_insync_replicas
            self.catch_up()
            self._fail_if_too_few_in_sync(self.leadership)

    def brokers_changed(self, brokers: Mapping[int, int], now_ms: float) -> None:
        """Brokers joined, left, or have other epochs."""
        if self.leadership is None or self.is_alone:
            return
        if self.leadership.brokers_known(brokers, now_ms):
            # A follower that must fetch again to count must not treat this partition as idle.
            self._watchers.remove_followers(self)
        if self._start_waiters is not None:
            self._start_waiters.release(self.lowest_start(brokers))

    # --- as leader

    def append(
        self,
        records: Buffer | Validated,
        now_ms: int,
        acks: int = ACKS_ALL,
        done: Done | None = None,
        *,
        timeout_ms: float = 0,
        from_client: bool = True,
    ) -> Appended:
        """Append as the leader, and call `done` when the records are as safe as `acks` demands.

        acks=all: enough replicas must be in sync, and `done` is called when the records are committed. acks=0 and 1:
        `done` is called now. In both cases a batch that reaches `flush.messages` is synced first.

        Raises NotLeaderError, NotEnoughReplicas and the log's errors: nothing was appended, `done` is not called.
        """
        leadership = self.leadership
        if leadership is None:
            raise NotLeaderError(self.topic, self.index)
        log = self.log
        data = records.batches if isinstance(records, Validated) else records
        is_waited_for = acks == ACKS_ALL
        if is_waited_for and leadership.insync_replicas < self.min_insync_replicas:
            if from_client:
                self._rejected = self._rejected or RejectedSequences()
                self._rejected.add(data, log.producers, now_ms)
            raise NotEnoughReplicas(self.min_insync_replicas, leadership.insync_replicas)
        if self._rejected:
            self._rejected.check(data, log.producers, now_ms)
        appended = log.append(records, leader_epoch=leadership.epoch, now_ms=now_ms, from_client=from_client)
        end = appended.last_offset + 1
        if not appended.is_duplicate:
            size = len(data)
            self._watchers.appended(end, size)
            # Before the sync, which may run here: followers copy meanwhile.
            self._watchers.wake_followers(self, size)
            if not log.settings.sync_before_ack:
                self.advance()
            elif is_waited_for or not self.is_alone or log.high_watermark < appended.base_offset:
                self._request_sync(end, is_urgent=is_waited_for)
            else:
                # Everything before is visible and no producer waits: it is synced with the next that is waited for.
                self._show(leadership, end)
        elif end > log.flushed_offset and log.settings.sync_before_ack:
            self._request_sync(end, is_urgent=is_waited_for)
        if done is not None:
            self._acknowledge(end, is_waited_for, timeout_ms, done)
        return appended

    def append_marker(
        self, marker: EndMarker, producer_id: int, epoch: int, version: int, now_ms: int, done: Done
    ) -> None:
        """Append the end of a producer's transaction, and call `done` when it is committed.

        Verifications of the producer are over: they were for the transaction that ends. Raises as `append` does.
        """
        batch = encode_marker(marker, timestamp_ms=now_ms, producer_id=producer_id, producer_epoch=epoch)
        found = scan(batch)
        for header in found.headers:
            self.log.producers.check_marker(header, marker, version)
        self.append(Validated(batch, found), now_ms, done=done, timeout_ms=MARKER_TIMEOUT_MS, from_client=False)
        verification = self._verifications.get(producer_id)
        # In transaction version 2 the next transaction has the epoch of this marker, and may be on its way already.
        if verification is not None and (version < EPOCH_PER_TRANSACTION or verification.epoch < epoch):
            del self._verifications[producer_id]

    def begin_verification(self, producer_id: int, epoch: int) -> Verification | None:
        """Before a transactional write: None if the producer's transaction is open here.

        Otherwise the coordinator is asked, and the write needs the verification that is returned (KIP-890). A marker
        that is written meanwhile ends the verification: the write would open a transaction that never ends.
        """
        if self._has_open_transaction(producer_id, epoch):
            return None
        verification = self._verifications.get(producer_id)
        if verification is None or verification.epoch != epoch:
            verification = self._verifications[producer_id] = Verification(epoch)
        verification.users += 1
        return verification

    def end_verification(self, producer_id: int, verification: Verification) -> None:
        """The write was made or rejected."""
        verification.users -= 1
        if not verification.users and self._verifications.get(producer_id) is verification:
            del self._verifications[producer_id]

    def is_verified(self, producer_id: int, epoch: int, verification: Verification | None) -> bool:
        """Whether a transactional write is part of an open transaction, or may open it."""
        if verification is not None and self._verifications.get(producer_id) is verification:
            return True
        return self._has_open_transaction(producer_id, epoch)

    def _has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        entry = self.log.producers.get(producer_id)
        return entry is not None and entry.in_transaction and entry.epoch == epoch

    def _acknowledge(self, end: int, is_waited_for: bool, timeout_ms: float, done: Done) -> None:
        log = self.log
        if log.settings.sync_before_ack or not log.flush_count_reached:
            if is_waited_for:
                self.when_committed(end, timeout_ms, done)
            else:
                done(None)
            return

        def synced(error: LogError | None) -> None:
            if error is None and is_waited_for:
                self.when_committed(end, timeout_ms, done)
            else:
                done(error)

        self._commits.when_durable(log, end, synced)

    def _request_sync(self, end: int, *, is_urgent: bool) -> None:
        self._sync_error = None
        self._commits.when_durable(self.log, end, self._durable, is_urgent=is_urgent)

    def _durable(self, error: LogError | None) -> None:
        if self.is_alone or self.log.flushed_offset > self.log.high_watermark:
            self.advance()
        if error is None:
            return
        if self.leadership is not None and not isinstance(error, RecordsTruncated):
            # Truncated records have no waiters: those failed when the role was lost.
            self._sync_error = error
            self._waiters.fail(error)
            if self.log.failure is not None:
                self._watchers.remove_all(self)

    def catch_up(self) -> None:
        """Let a leader's high watermark reach its log end, with a sync if needed."""
        log = self.log
        if self.leadership is None or log.failure is not None:
            return
        if log.settings.sync_before_ack and log.flushed_offset < log.log_end_offset:
            self._request_sync(log.log_end_offset, is_urgent=False)
        self.advance()

    def when_committed(self, end_offset: int, timeout_ms: float, done: Done) -> None:
        """Call `done` when the high watermark reaches `end_offset` and, where acknowledgements wait for a sync, what is
        below it is durable here.

        `done` gets NotLeaderError, NotEnoughReplicasAfterAppend, CommitTimedOut or the disk's error if that does not
        happen or cannot be known here. A partition without other replicas waits for its disk only: it has no deadline.
        """
        if self.leadership is None:
            done(NotLeaderError(self.topic, self.index))
        elif self._committed_offset >= end_offset:
            done(None)
        elif self._sync_error is not None or self.log.failure is not None:
            done(self._sync_error or self.log.failure)
        elif self.is_alone:
            self._waiters.add(end_offset, NEVER_MS, done)
        else:
            self._waiters.add(end_offset, self._clock.monotonic_ms() + timeout_ms, done)
            self._limit(self)

    @property
    def _committed_offset(self) -> int:
        """The offset below which waiting producers can be answered."""
        log = self.log
        if self.is_alone and log.settings.sync_before_ack:
            return min(log.high_watermark, log.flushed_offset)
        return log.high_watermark

    def expire(self, now_ms: float) -> bool:
        """Answer those whose deadline has passed; returns whether others still wait."""
        self._waiters.expire(now_ms)
        if self._start_waiters is None:
            return len(self._waiters) > 0
        self._start_waiters.expire(now_ms)
        return len(self._waiters) + len(self._start_waiters) > 0

    def lowest_start(self, brokers: Mapping[int, int]) -> int:
        """The offset below which no live replica has records; a follower knows only its own."""
        start = self.log.log_start_offset
        return start if self.leadership is None else self.leadership.lowest_start(start, brokers)

    def when_deleted(self, offset: int, deadline_ms: float, brokers: Mapping[int, int], done: Done) -> None:
        """The log starts at `offset` now: wake the followers, and call `done` when the logs of all live replicas do.

        NotLeaderError, CommitTimedOut.
        """
        if self.leadership is None:
            done(NotLeaderError(self.topic, self.index))
        elif self.lowest_start(brokers) >= offset:
            done(None)
        else:
            if self._start_waiters is None:
                self._start_waiters = CommitWaiters()
            self._start_waiters.add(offset, deadline_ms, done)
            self._watchers.offsets_moved(self)

    def fetched_by(
        self,
        broker: int,
        broker_epoch: int,
        position: Position,
        brokers: Mapping[int, int],
        now_ms: float,
        log_start: int = UNKNOWN_START,
    ) -> tuple[ErrorCode, EpochEnd | None]:
        """A follower fetches from `position`: returns an error, or where its log diverges, or neither.

        What it has below the position counts for the high watermark, unless the two logs have diverged.
        """
        leadership = self.leadership
        if leadership is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
        if not leadership.has_follower(broker):
            return ErrorCode.REPLICA_NOT_AVAILABLE, None
        if brokers.get(broker) != broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH, None
        log = self.log
        diverging = divergence(position, log.log_end_offset, log.epochs)
        if diverging is not None:
            # An epoch that is not known here has no end.
            return (ErrorCode.NONE, diverging) if diverging.epoch >= 0 else (ErrorCode.UNKNOWN_LEADER_EPOCH, None)
        if not log.log_start_offset <= position.offset <= log.log_end_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE, None
        leadership.fetched(broker, broker_epoch, position.offset, log.log_end_offset, brokers, now_ms, log_start)
        if self._start_waiters is not None:
            self._start_waiters.release(leadership.lowest_start(log.log_start_offset, brokers))
        self.advance()
        return ErrorCode.NONE, None

    def advance(self) -> None:
        """Move a leader's high watermark as far as its ISR allows."""
        leadership = self.leadership
        if leadership is None:
            return
        log = self.log
        end = log.flushed_offset if log.settings.sync_before_ack else log.log_end_offset
        if self.is_alone:
            self._show(leadership, end)
            self._waiters.release(end)
        elif log.advance_high_watermark(leadership.advance(end)):
            self._committed()

    def _show(self, leadership: Leadership, end: int) -> None:
        """Make everything below `end` visible, of a partition without other replicas."""
        leadership.high_watermark = max(leadership.high_watermark, end)
        if self.log.advance_high_watermark(end):
            self._watchers.wake_readers(self, end)

    def _fail_if_too_few_in_sync(self, leadership: Leadership) -> None:
        if len(self._waiters) and not leadership.is_enough:
            self._waiters.fail(NotEnoughReplicasAfterAppend(self.min_insync_replicas, len(leadership.isr)))

    # --- as follower

    def append_as_follower(self, records: Buffer) -> None:
        """Append the leader's records unchanged. LogError, RecordError: nothing was appended."""
        if self.leadership is not None:
            raise LogError(f"{self.topic}-{self.index} is led by this broker and cannot be appended to as a follower")
        appended = self.log.append_as_follower(records, now_ms=self._clock.now_ms())
        if appended is not None:
            self._watchers.appended(appended.last_offset + 1, len(records))

    def followed(self, high_watermark: int, log_start: int) -> None:
        """Take over the leader's offsets, after its records were appended, as far as this log reaches."""
        log = self.log
        if self.leadership is not None:
            return
        if log.advance_high_watermark(high_watermark):
            self._committed()
        start = min(log_start, log.high_watermark)
        if start > log.log_start_offset:
            self._truncation.advance_start(self.topic, self.index, start)

    def truncate_to(self, offset: int) -> None:
        """Remove everything from `offset` on, and the epochs that start there."""
        log = self.log
        if offset < log.high_watermark:
            logger.warning(
                "log truncated below its high watermark: partition=%s-%d offset=%d high_watermark=%d",
                self.topic,
                self.index,
                offset,
                log.high_watermark,
            )
        self._truncation.truncate_to(self.topic, self.index, offset, self._clock.now_ms())
        log.epochs.truncate_from_end(min(offset, log.log_end_offset))
        self._truncated()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records, and let the log start at `offset`."""
        self._truncation.truncate_fully(self.topic, self.index, offset, self._clock.now_ms())
        self._truncated()

    def _truncated(self) -> None:
        self._watchers.forget_sizes()
        self._watchers.remove_all(self)

    # --- readers

    @property
    def watchers(self) -> int:
        """How many readers wait."""
        return len(self._watchers)

    def watch(self, watcher: Watcher) -> None:
        """Wake it for records below the high watermark."""
        self._watchers.add(watcher)

    def watch_end(self, watcher: EndWatcher) -> None:
        """Wake it for appended records, and when the high watermark moves."""
        self._watchers.add_at_end(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Of either kind."""
        self._watchers.remove(watcher)

    def _committed(self) -> None:
        high_watermark = self.log.high_watermark
        self._watchers.wake_readers(self, high_watermark)
        self._waiters.release(high_watermark)


# --- waiting producers


class Waiter(NamedTuple):
    end_offset: int
    deadline_ms: float
    done: Done


class CommitWaiters:
    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end_offset: int, deadline_ms: float, done: Done) -> None:
        waiting = self._waiting
        waiting.append(Waiter(end_offset, deadline_ms, done))
        if len(waiting) > 1 and waiting[-2].end_offset > end_offset:
            # A retry of what was appended before others: rare.
            self._waiting = deque(sorted(waiting, key=lambda waiter: waiter.end_offset))

    def release(self, high_watermark: int) -> None:
        """Answer producers whose records are below."""
        # A producer that is answered may add a waiter at once.
        while self._waiting and self._waiting[0].end_offset <= high_watermark:
            self._waiting.popleft().done(None)

    def fail(self, error: LogError) -> None:
        """Answer all that wait now."""
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            waiter.done(error)

    def expire(self, now_ms: float) -> None:
        """Answer those whose deadline has passed."""
        if all(waiter.deadline_ms > now_ms for waiter in self._waiting):
            return
        late = [waiter for waiter in self._waiting if waiter.deadline_ms <= now_ms]
        self._waiting = deque(waiter for waiter in self._waiting if waiter.deadline_ms > now_ms)
        for waiter in late:
            waiter.done(CommitTimedOut(waiter.end_offset))


# --- waiting readers


class Watcher(Protocol):
    """A reader that waits for records."""

    def grown(self, partition: Partition, size: int) -> None:
        """`size` more bytes can be read from `partition`."""

    def gone(self, partition: Partition) -> None:
        """The partition is gone, or has another role."""


class EndWatcher(Watcher, Protocol):
    """A follower that waits for records: `grown` is about the log end."""

    def moved(self, partition: Partition) -> None:
        """The high watermark or the log start has moved."""


class Watchers:
    """The waiting readers of one partition."""

    __slots__ = ("_at_end", "_at_watermark", "_sizes")

    def __init__(self) -> None:
        self._at_watermark: dict[Watcher, None] = {}
        self._at_end: dict[EndWatcher, None] = {}
        # End offset and bytes of appends above the high watermark; beyond _MAX_SIZES the last are added up.
        self._sizes: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._at_watermark) + len(self._at_end)

    def add(self, watcher: Watcher) -> None:
        self._at_watermark[watcher] = None

    def add_at_end(self, watcher: EndWatcher) -> None:
        self._at_end[watcher] = None

    def remove(self, watcher: Watcher) -> None:
        """Of either kind."""
        self._at_watermark.pop(watcher, None)
        self._at_end.pop(watcher, None)  # type: ignore[call-overload]

    def appended(self, end_offset: int, size: int) -> None:
        """Note bytes that become readable when the high watermark reaches their end."""
        sizes = self._sizes
        if len(sizes) >= _MAX_SIZES:
            size += sizes.pop()[1]
        sizes.append((end_offset, size))

    def forget_sizes(self) -> None:
        """Forget the noted sizes: their bytes may not be in the log any longer."""
        self._sizes.clear()

    def wake_followers(self, partition: Partition, size: int) -> None:
        """There is more to copy."""
        for watcher in tuple(self._at_end):
            watcher.grown(partition, size)

    def wake_readers(self, partition: Partition, high_watermark: int) -> None:
        """There is more to read."""
        sizes, size = self._sizes, 0
        while sizes and sizes[0][0] <= high_watermark:
            size += sizes.popleft()[1]
        for watcher in tuple(self._at_watermark):
            watcher.grown(partition, size)
        self.offsets_moved(partition)

    def offsets_moved(self, partition: Partition) -> None:
        """Report the new high watermark or log start to the followers."""
        for follower in tuple(self._at_end):
            follower.moved(partition)

    def remove_all(self, partition: Partition) -> None:
        watchers, self._at_watermark = self._at_watermark, {}
        for watcher in watchers:
            watcher.gone(partition)
        self.remove_followers(partition)

    def remove_followers(self, partition: Partition) -> None:
        watchers, self._at_end = self._at_end, {}
        for watcher in watchers:
            watcher.gone(partition)


# --- rejected sequences


class _RejectedSequence(NamedTuple):
    epoch: int
    sequence: int
    until_ms: int


class Verification:
    """A producer's transaction that is not open in this partition yet, while its coordinator is asked."""

    __slots__ = ("epoch", "users")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.users = 0


class RejectedSequences:
    def __init__(self) -> None:
        self._first: dict[int, _RejectedSequence] = {}
        self._until_ms = 0  # when all are forgotten

    def __len__(self) -> int:
        return len(self._first)

    def add(self, records: Buffer, producers: ProducerStates, now_ms: int) -> None:
        """These records were rejected for a reason that may pass."""
        for header in scan(records).headers[:1]:
            producer, known = header.producer_id, self._first.get(header.producer_id)
            if producer < 0 or header.base_sequence < 0 or producers.get(producer) is not None:
                continue
            if known is not None and known.epoch == header.producer_epoch and known.sequence <= header.base_sequence:
                continue
            self._make_room(now_ms)
            self._until_ms = now_ms + _REMEMBERED_MS
            self._first[producer] = _RejectedSequence(header.producer_epoch, header.base_sequence, self._until_ms)

    def check(self, records: Buffer, producers: ProducerStates, now_ms: int) -> None:
        """OutOfOrderSequence for records that follow rejected ones. Otherwise their producer is forgotten."""
        if now_ms >= self._until_ms:
            self._first.clear()
            return
        for header in scan(records).headers[:1]:
            rejected = self._first.get(header.producer_id)
            if rejected is None:
                return
            is_over = now_ms >= rejected.until_ms or producers.get(header.producer_id) is not None
            if not is_over and header.producer_epoch == rejected.epoch and header.base_sequence > rejected.sequence:
                raise OutOfOrderSequence(
                    header.producer_id, header.producer_epoch, header.base_sequence, rejected.sequence
                )
            del self._first[header.producer_id]

    def _make_room(self, now_ms: int) -> None:
        if len(self._first) < _MAX_PRODUCERS:
            return
        self._first = {producer: one for producer, one in self._first.items() if now_ms < one.until_ms}
        while len(self._first) >= _MAX_PRODUCERS:
            del self._first[next(iter(self._first))]
