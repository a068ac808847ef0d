"""Reading partitions of a source as bytes: single requests, and a loop per leader that keeps queues filled.

Committed records only are read: what follows the last stable offset may still be aborted. Every fetch names the leader
epoch of the batch before its position, so a leader whose log diverges from what was mirrored says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import OffsetAndTimestamp, TopicPartition
from penstock.client.connection import Connection
from penstock.client.errors import PenstockError, error_for
from penstock.client.leader_requests import ask_leaders, fetch_partitions, list_offsets
from penstock.mirror.batches import Step, as_batches, steps_of
from penstock.mirror.errors import LOST, TRUNCATED, UNREADABLE, MirrorStopped
from penstock.records.errors import RecordError
from penstock.runtime.clock import Clock
from penstock.wire.fetch_session import FetchOutcome, PartitionFetch, enlarged, outcome_of, records_in
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.fetch import PartitionData
from penstock.wire.types import Buffer

EARLIEST: Final = -2
LATEST: Final = -1
COMMITTED: Final = 1
UNCOMMITTED: Final = 0

_log = logging.getLogger(__name__)
_LANE: Final = "mirror-fetch"
_MAX_WAIT_MS: Final = 500
_SHORT_WAIT_MS: Final = 20  # while a partition is left out, so that it is not left out for long
_MAX_BYTES: Final = 32 * 1024 * 1024
_MAX_BATCH_BYTES: Final = 256 * 1024 * 1024
_QUEUED_BYTES: Final = 4 * 1024 * 1024
_RETRY_S: Final = 0.1


# --------------------------------------------------------------------------------------------------- single requests


async def offsets_of(
    cluster: ClusterClient, times: Mapping[TopicPartition, int], *, isolation: int = UNCOMMITTED
) -> dict[TopicPartition, int]:
    """The offset of an end, or of a time, of each partition; retried, then raises."""

    async def ask(connection: Connection, led: list[TopicPartition], left_ms: int) -> Any:
        wanted = {each: times[each] for each in led}
        return await list_offsets(connection, wanted, isolation_level=isolation, timeout_ms=left_ms)

    answers = await ask_leaders(cluster, "looking up offsets", times, ask, timeout_ms=cluster.request_timeout_ms)
    found: dict[TopicPartition, int] = {}
    for partition, answer in answers.items():
        if isinstance(answer, PenstockError):
            raise answer
        if isinstance(answer, OffsetAndTimestamp):
            found[partition] = answer.offset
    return found


async def offset_of(
    cluster: ClusterClient, partition: TopicPartition, time: int, *, isolation: int = UNCOMMITTED
) -> int:
    """The offset of one end of a partition."""
    return (await offsets_of(cluster, {partition: time}, isolation=isolation))[partition]


class Answer(NamedTuple):
    """What a fetch brought of one partition, as batches; `size` is how many bytes were fetched."""

    records: Buffer
    aborted: list[tuple[int, int]]
    size: int


async def fetch_once(
    cluster: ClusterClient, partition: TopicPartition, offset: int, *, max_bytes: int, isolation: int = COMMITTED
) -> Answer:
    """The batches from an offset on, without waiting for new ones; retried, then raises."""

    async def ask(connection: Connection, led: list[TopicPartition], left_ms: int) -> Any:
        wanted = {partition: PartitionFetch(offset, max_bytes)}
        found, _ = await fetch_partitions(
            connection, wanted, timeout_ms=left_ms, max_bytes=_MAX_BYTES, isolation_level=isolation
        )
        data = found[partition]
        return {partition: error_for(data.error_code, where=str(partition)) if data.error_code else data}

    timeout_ms = cluster.request_timeout_ms
    (answer,) = (
        await ask_leaders(cluster, f"fetching {partition}", [partition], ask, timeout_ms=timeout_ms, lane=_LANE)
    ).values()
    if isinstance(answer, PenstockError):
        raise answer
    try:
        return _answer(answer)
    except RecordError as error:
        raise unreadable(partition, offset, error) from error


def _answer(data: PartitionData) -> Answer:
    """Raises RecordError."""
    aborted = [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()]
    fetched = records_in(data) or b""
    return Answer(as_batches(fetched), aborted, len(fetched))


# --------------------------------------------------------------------------------------------------- throttling


class Throttle:
    """Bytes per second that this process may read; 0 for no limit. The burst is a quarter of a second."""

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._due_ms = clock.monotonic_ms()

    async def take(self, size: int) -> None:
        """Wait until what was read before has been paid for."""
        if not self._rate:
            return
        now_ms = self._clock.monotonic_ms()
        self._due_ms = max(self._due_ms, now_ms - 250) + size * 1000 / self._rate
        if self._due_ms > now_ms:
            await asyncio.sleep((self._due_ms - now_ms) / 1000)


# --------------------------------------------------------------------------------------------------- the loop


class Arrival(NamedTuple):
    """A step, the bytes of the fetch that it accounts for, and when it was fetched."""

    step: Step
    size: int
    fetched_ms: float


class Subscription:
    """One partition that is being read. `get` returns its steps in order, or raises what ended the reading."""

    def __init__(self, partition: TopicPartition, position: int, epoch: int, max_bytes: int) -> None:
        self.partition = partition
        self.position = position
        self.epoch = epoch
        self.max_bytes = max_bytes
        self.failure: PenstockError | None = None
        self.retry_at_ms = 0.0
        self.high_watermark = -1
        self._arrivals: list[Arrival] = []
        self._size = 0
        self._arrived = asyncio.Event()
        self.on_arrival: Callable[[], None] | None = None
        self.on_room: Callable[[], None] | None = None

    @property
    def has_room(self) -> bool:
        return self.failure is None and self._size < _QUEUED_BYTES

    @property
    def has_arrivals(self) -> bool:
        return bool(self._arrivals) or self.failure is not None

    def put(self, steps: list[Step], size: int, now_ms: float) -> None:
        for number, step in enumerate(steps):
            self._arrivals.append(Arrival(step, size if number == len(steps) - 1 else 0, now_ms))
        self._size += size
        self.position, self.epoch = steps[-1].next_offset, max(self.epoch, steps[-1].leader_epoch)
        self._tell()

    def fail(self, error: PenstockError) -> None:
        self.failure = error
        self._tell()

    def _tell(self) -> None:
        self._arrived.set()
        if self.on_arrival is not None:
            self.on_arrival()

    def take(self) -> list[Arrival]:
        """All that has arrived, without waiting. Raises the failure once everything before it was taken."""
        taken, self._arrivals = self._arrivals, []
        if not taken and self.failure is not None:
            raise self.failure
        self._arrived.clear()
        if self.failure is not None:
            self._arrived.set()
        self._size = 0
        if taken and self.on_room is not None:
            self.on_room()
        return taken

    async def get(self) -> list[Arrival]:
        """What has arrived, at least one step."""
        while not self.has_arrivals:
            self._arrived.clear()
            await self._arrived.wait()
        return self.take()


class SourceReader:
    """Fetches the subscribed partitions of one cluster, with one request at a time to each leader."""

    def __init__(self, cluster: ClusterClient, throttle: Throttle) -> None:
        self.cluster = cluster
        self._throttle = throttle
        self._subscriptions: dict[TopicPartition, Subscription] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._changed: dict[int, asyncio.Event] = {}
        self._stop_listening = cluster.on_change(lambda old, new: self._wake())

    def subscribe(self, partition: TopicPartition, position: int, epoch: int, max_bytes: int) -> Subscription:
        """Read a partition from a position on. One subscription per partition."""
        subscription = Subscription(partition, position, epoch, max_bytes)
        subscription.on_room = self._wake
        self._subscriptions[partition] = subscription
        self._wake()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        if self._subscriptions.get(subscription.partition) is subscription:
            del self._subscriptions[subscription.partition]

    def _leader_of(self, subscription: Subscription) -> int:
        view = self.cluster.view.leader_of(*subscription.partition)
        return -1 if view is None else view.leader

    def _wake(self) -> None:
        """Start loops for leaders that have none; wake the others."""
        leaders = {self._leader_of(each) for each in self._subscriptions.values()}
        if -1 in leaders:
            self.cluster.refresh_soon()
        for leader in leaders - {-1} - self._tasks.keys():
            self._changed[leader] = asyncio.Event()
            task = asyncio.create_task(self._loop(leader), name=f"mirror-fetch-{leader}")
            task.add_done_callback(lambda done, leader=leader: self._ended(leader, done))  # type: ignore[misc]
            self._tasks[leader] = task
        for event in self._changed.values():
            event.set()

    def _ended(self, leader: int, task: asyncio.Task[None]) -> None:
        """A loop ends when it is cancelled; a bug must not leave its partitions without one."""
        if not task.cancelled() and self._tasks.get(leader) is task:
            _log.error("fetch loop failed: broker=%s", leader, exc_info=task.exception())
            del self._tasks[leader]
            asyncio.get_running_loop().call_later(_RETRY_S, self._wake)

    async def close(self) -> None:
        self._stop_listening()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _loop(self, leader: int) -> None:
        changed = self._changed[leader]
        while True:
            changed.clear()
            now_ms = self.cluster.clock.monotonic_ms()
            led = [each for each in self._subscriptions.values() if self._leader_of(each) == leader]
            wanted = [each for each in led if each.has_room and each.retry_at_ms <= now_ms]
            if not wanted:
                try:
                    async with asyncio.timeout(_RETRY_S if led else None):
                        await changed.wait()
                except TimeoutError:
                    pass
                continue
            try:
                await self._fetch(leader, wanted, _MAX_WAIT_MS if len(wanted) == len(led) else _SHORT_WAIT_MS)
            except PenstockError as error:
                _log.debug("fetch failed: broker=%s error=%s", leader, error)
                self.cluster.refresh_soon()
                await asyncio.sleep(_RETRY_S)

    async def _fetch(self, leader: int, wanted: list[Subscription], max_wait_ms: int) -> None:
        asked = {
            each.partition: PartitionFetch(each.position, each.max_bytes, last_fetched_epoch=each.epoch)
            for each in wanted
        }
        connection = await self.cluster.to(leader, lane=_LANE)
        found, throttled_ms = await fetch_partitions(
            connection,
            asked,
            timeout_ms=self.cluster.request_timeout_ms,
            max_bytes=_MAX_BYTES,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            isolation_level=COMMITTED,
        )
        size = 0
        for subscription in wanted:
            data = found.get(subscription.partition)
            position = asked[subscription.partition].offset
            if data is not None and subscription.position == position and subscription.failure is None:
                size += self._arrived(subscription, data)
                await asyncio.sleep(0)  # checksums take their time; others need the loop, too
        if throttled_ms:
            await asyncio.sleep(throttled_ms / 1000)
        await self._throttle.take(size)

    def _arrived(self, subscription: Subscription, data: PartitionData) -> int:
        outcome = outcome_of(data)
        if data.error_code:
            self._failed(subscription, data, outcome)
            return 0
        if outcome is FetchOutcome.DIVERGED:
            subscription.fail(truncated(subscription.partition, subscription.position, data.diverging_epoch.end_offset))
            return 0
        subscription.high_watermark = data.high_watermark
        if outcome is not FetchOutcome.RECORDS:
            return 0
        try:
            answer = _answer(data)
            fetched = steps_of(answer.records, subscription.position, answer.aborted)
        except RecordError as error:
            subscription.fail(unreadable(subscription.partition, subscription.position, error))
            return 0
        if fetched.steps:
            subscription.put(fetched.steps, answer.size, self.cluster.clock.monotonic_ms())
        elif (larger := enlarged(subscription.max_bytes, _MAX_BATCH_BYTES)) is not None:
            subscription.max_bytes = larger  # not one batch was whole
        else:
            too_large = RecordError(f"a batch is larger than {_MAX_BATCH_BYTES} bytes")
            subscription.fail(unreadable(subscription.partition, subscription.position, too_large))
        return answer.size

    def _failed(self, subscription: Subscription, data: PartitionData, outcome: FetchOutcome) -> None:
        error = error_for(data.error_code, where=f"source {subscription.partition}")
        # A topic that is gone is looked up again by its shard, which finds out whether it was created again.
        is_gone = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_gone or outcome in (FetchOutcome.OUT_OF_RANGE, FetchOutcome.FATAL):
            subscription.fail(error)
            return
        subscription.retry_at_ms = self.cluster.clock.monotonic_ms() + _RETRY_S * 1000
        self.cluster.refresh_soon()


# --------------------------------------------------------------------------------------------------- what ends it


def truncated(partition: TopicPartition, position: int, end: int) -> MirrorStopped:
    return MirrorStopped(
        TRUNCATED,
        f"{partition} was truncated at the source: records up to {position} are mirrored, and its log ends or differs "
        f"from {end} on",
        _AGAIN,
    )


def lost(partition: TopicPartition, position: int, start: int) -> MirrorStopped:
    return MirrorStopped(
        LOST,
        f"{partition} begins at {start} at the source: records from {position} on were deleted before they were "
        "mirrored",
        f"Raise the retention of the source. {_AGAIN}",
    )


def unreadable(partition: TopicPartition, position: int, error: Exception) -> MirrorStopped:
    return MirrorStopped(
        UNREADABLE,
        f"{partition} cannot be read at {position} at the source: {error}",
        "Check the source with `penstock log verify`",
    )


_AGAIN: Final = "To mirror it from the start again, delete the topic in the target"
