"""Fetches ahead: one request in flight to each broker, while there is memory for the response.

`pump` sends what can be sent and never waits; it is called after every change. A response counts only for partitions
that are still where they were when the request left. No record is decoded here: the loop's work is O(batches). A
fetch that waits at a broker cannot be called back, so partitions that become ready later (a seek, an assignment, a
new leader) are fetched beside it, on a second connection, by short requests without a session.

`ApplicationQueue` is the only object that both threads of the blocking consumer touch. The loop puts chunks,
rebalance callbacks and errors into it; the application takes them, under one lock. Between two records the
application looks at one flag, `attention`. The loop waits for rebalance callbacks, so partitions are given back only
when the application has stopped reading them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Final, Literal, NamedTuple

from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.connection import Connection
from penstock.client.consumer.settings import ConsumerSettings
from penstock.client.errors import (
    LogTruncated,
    NoOffset,
    PenstockError,
    PositionOutOfRange,
    RecordUnreadable,
    error_for,
)
from penstock.client.fetch_state import (
    FINAL_EPOCH,
    Budget,
    Chunk,
    FetchRotation,
    FetchSession,
    FetchSource,
    FetchState,
    NodePlan,
    PartitionFetch,
    Place,
    PreferredReadReplicas,
    SessionRequest,
    Truncation,
    chunk_of,
    plan_fetches,
    start_of,
)
from penstock.client.metrics import Latency
from penstock.records import DEFAULT_DECOMPRESSED_LIMIT, RecordError
from penstock.runtime.clock import Clock
from penstock.wire.protocol import ApiKey, ErrorCode, error_code
from penstock.wire.schemas.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

Kind = Literal["assign", "revoke", "lose"]


class RebalanceCallback:
    """One thing to do on the user's side; `finish` tells the loop."""

    __slots__ = ("finish", "kind", "partitions", "places")

    def __init__(
        self,
        kind: Kind,
        partitions: frozenset[TopicPartition],
        places: list[Place],
        finish: Callable[[], object],
    ) -> None:
        self.kind = kind
        self.partitions = partitions
        self.places = places
        self.finish = finish


def _no_listener() -> None:
    pass


class ApplicationQueue:
    """Between the loop that fetches and whoever reads."""

    def __init__(self, budget: Budget, *, on_room: Callable[[], object] = _no_listener) -> None:
        self.attention = False
        self.closed = False
        self.polled = 0
        """Counts the user's visits: the loop sees by it that somebody still reads."""
        self.budget = budget
        self.wake: Callable[[], None] = _no_listener
        self._on_room = on_room
        self._lock = Lock()
        self._chunks: deque[Chunk] = deque()
        self._duties: deque[RebalanceCallback] = deque()
        self._errors: deque[BaseException] = deque()
        self._commit_due = False

    # The loop's side

    def put(self, chunk: Chunk) -> None:
        with self._lock:
            self._chunks.append(chunk)
            chunk.place.fetched(chunk.next_offset, chunk.epoch, chunk.size)
            self.budget.add(chunk.size)
        self.wake()

    def post(self, callback: RebalanceCallback) -> None:
        with self._lock:
            self._duties.append(callback)
            self.attention = True
        self.wake()

    def fail(self, error: BaseException) -> None:
        """Raised by the user's next call."""
        with self._lock:
            self._errors.append(error)
            self.attention = True
        self.wake()

    def sought(self, partitions: Iterable[TopicPartition]) -> None:
        """The user said where to go on: that nobody had said so is no error any more, if it was not raised yet."""
        found = frozenset(partitions)
        with self._lock:
            for error in self._errors:
                if isinstance(error, NoOffset):
                    error.unsought -= found
            self._errors = deque(each for each in self._errors if not isinstance(each, NoOffset) or each.unsought)

    def ask_for_commit(self) -> None:
        """The interval of automatic commits is over: the user's side says how far it got."""
        with self._lock:
            self._commit_due = True
            self.attention = True
        self.wake()

    def set_attention(self) -> None:
        """Something changed under the user's hands: what it holds may be stale."""
        self.attention = True
        self.wake()

    def close(self) -> None:
        with self._lock:
            self.closed = self.attention = True
            self._chunks.clear()
        self.wake()

    def drop_stale(self) -> None:
        with self._lock:
            fresh = deque(chunk for chunk in self._chunks if not chunk.is_stale)
            self.budget.release(sum(c.size for c in self._chunks) - sum(c.size for c in fresh))
            self._chunks = fresh

    # The user's side

    def take(self) -> Chunk | None:
        """The next chunk of a partition that is not paused."""
        taken: Chunk | None = None
        released = False
        with self._lock:
            self.polled += 1
            for _ in range(len(self._chunks)):
                chunk = self._chunks[0]
                if chunk.is_stale:
                    self._chunks.popleft()
                    self.budget.release(chunk.size)
                    released = True
                elif chunk.place.paused:
                    self._chunks.rotate(-1)
                else:
                    self._chunks.popleft()
                    self.budget.release(chunk.size)
                    chunk.place.buffered_bytes -= chunk.size
                    taken = chunk
                    break
        if taken is not None or released:
            self._on_room()
        return taken

    def give_back(self, chunk: Chunk) -> None:
        """A chunk that was taken and not read to its end, since its partition was paused."""
        with self._lock:
            self._chunks.appendleft(chunk)
            chunk.place.buffered_bytes += chunk.size
            self.budget.add(chunk.size)

    def has_chunks(self) -> bool:
        with self._lock:
            return any(not chunk.place.paused and not chunk.is_stale for chunk in self._chunks)

    def attend(self) -> tuple[list[RebalanceCallback], BaseException | None, bool]:
        """Duties, an error to raise, and whether offsets are to be committed; the flag is down again."""
        with self._lock:
            self.polled += 1
            callbacks = list(self._duties)
            self._duties.clear()
            error = self._errors.popleft() if self._errors else None
            commit_due, self._commit_due = self._commit_due, False
            self.attention = bool(self._errors) or self.closed
        return callbacks, error, commit_due

    def put_back(self, callbacks: Iterable[RebalanceCallback]) -> None:
        """Duties that were taken and not carried out, since one before them raised."""
        with self._lock:
            self._duties.extendleft(reversed(list(callbacks)))
            self.attention = bool(self._duties) or self.attention


_log = logging.getLogger(__name__)

# From 13 on topics go by id; names are what a consumer has.
_NEWEST: Final = 12
_SESSIONS_FROM: Final = 7
_LARGEST_FETCH: Final = 2**31 - 1
_PARTIAL_WAIT_MS: Final = 20
# Fetches wait at the broker for records to arrive; nothing else should wait behind them.
LANE: Final = "fetch"
URGENT_LANE: Final = "fetch beside"
_RACKS_FROM: Final = 11
_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
_SESSION_LOST: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class _FetchedFrom(NamedTuple):
    """A partition as it stood when it was asked for."""

    place: Place
    version: int
    offset: int
    leader_epoch: int

    @property
    def is_current(self) -> bool:
        """What a leader says after another one was found and asked may be what that one has not."""
        place = self.place
        return (
            place.version == self.version
            and place.standing is FetchState.READY
            and place.fetch_offset == self.offset
            and place.leader_epoch == self.leader_epoch
        )


class _InFlightFetch:
    """A request that is under way. `is_brief`: it is back soon, whether records arrive or not."""

    __slots__ = ("asked", "is_brief", "node_id", "task")

    def __init__(self, node_id: int, places: Iterable[Place], node_plan: NodePlan) -> None:
        self.node_id = node_id
        self.is_brief = node_plan.is_partial
        self.task: asyncio.Task[None] | None = None
        self.asked = {
            place.partition: _FetchedFrom(place, place.version, place.fetch_offset, place.leader_epoch)
            for place in places
            if place.partition in node_plan.wanted
        }

    def without(self, node_plan: NodePlan) -> NodePlan:
        """Of a plan, what this request will not bring: what was moved since it left, or was not to be asked for."""
        asked = self.asked
        wanted = {p: how for p, how in node_plan.wanted.items() if p not in asked or not asked[p].is_current}
        return NodePlan(wanted, node_plan.is_partial or len(wanted) < len(node_plan.wanted))


class Fetcher:
    def __init__(
        self,
        cluster: ClusterClient,
        queue: ApplicationQueue,
        settings: ConsumerSettings,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._queue = queue
        self._settings = settings
        self._clock = clock
        self._on_change = on_change
        self._turns = FetchRotation()
        self._sessions: dict[int, FetchSession] = {}
        self._near = PreferredReadReplicas(settings.metadata_max_age_ms)
        self._under_way: dict[tuple[int, str], _InFlightFetch] = {}
        self._not_before_ms: dict[int, float] = {}
        self._closed = False
        self.fetches = self.fetch_failures = self.records_fetched = self.bytes_fetched = 0
        self.latency = Latency()

    def set_places(self, places: Mapping[TopicPartition, Place]) -> None:
        self._turns.set(places.values())

    def pump(self, now_ms: float) -> None:
        """Send what can be sent."""
        if self._closed:
            return
        for node_id, node_plan in plan_fetches(self._turns, self._sources(now_ms), None, now_ms).items():
            if now_ms < self._not_before_ms.get(node_id, 0.0):
                continue
            waiting, beside = self._under_way.get((node_id, LANE)), self._under_way.get((node_id, URGENT_LANE))
            if waiting is None:
                self._send(node_id, LANE, node_plan if beside is None else beside.without(node_plan))
            elif beside is None and not waiting.is_brief:
                self._send(node_id, URGENT_LANE, waiting.without(node_plan)._replace(is_partial=True))

    def abandon(self, node_id: int) -> None:
        """A broker does not answer: give up requests of which nothing is wanted any more, since others lead by now.

        What they would bring is asked for there already; here they would hold memory until they time out.
        """
        for (node, lane), flight in list(self._under_way.items()):
            is_wanted = any(one.is_current for one in flight.asked.values())
            if node == node_id and flight.task is not None and not is_wanted:
                if lane == LANE and node in self._sessions:
                    self._sessions[node].reset()
                flight.task.cancel()

    def _send(self, node_id: int, lane: str, node_plan: NodePlan) -> None:
        budget = self._queue.budget
        if not node_plan.wanted or budget.room <= 0:
            return
        expected = min(self._settings.fetch_max_bytes, sum(how.max_bytes for how in node_plan.wanted.values()))
        budget.expect((node_id, lane), expected)
        flight = self._under_way[node_id, lane] = _InFlightFetch(node_id, self._turns, node_plan)
        flight.task = asyncio.create_task(self._fetch(flight, lane, node_plan))

    def _sources(self, now_ms: float) -> dict[TopicPartition, FetchSource]:
        """Whom to ask for what; the places learn their leaders' epochs on the way."""
        sources: dict[TopicPartition, FetchSource] = {}
        view = self._cluster.view
        for place in self._turns:
            found = view.leader_of(*place.partition)
            if found is not None and found.leader >= 0:
                leader, epoch = found.leader, found.leader_epoch
                place.led_by(epoch)
                source = self._near.source(place.partition, leader, epoch, view.nodes, now_ms)
                sources[place.partition] = FetchSource(source, epoch)
        return sources

    def next_retry_ms(self, now_ms: float) -> float:
        """When something that was put off is due. The time must be that of the last `pump`: what falls due between two
        looks at the clock would be seen by neither."""
        due = [at for at in self._not_before_ms.values() if at > now_ms]
        due += [place.not_before_ms for place in self._turns if place.not_before_ms > now_ms]
        return min(due, default=float("inf"))

    async def _fetch(self, flight: _InFlightFetch, lane: str, node_plan: NodePlan) -> None:
        node_id = flight.node_id
        session = self._sessions.setdefault(node_id, FetchSession()) if lane == LANE else None
        try:
            connection = await self._cluster.to(node_id, lane=lane)
            begun_ms = self._clock.monotonic_ms()
            response = await self._ask(connection, session, node_plan)
            self.fetches += 1
            self.latency.add(self._clock.monotonic_ms() - begun_ms)
            self._queue.budget.arrived((node_id, lane))
            self._take(flight, session, response)
        except PenstockError as error:
            self.fetch_failures += 1
            if session is not None:
                session.reset()
            self._near.lost(node_id, self._clock.monotonic_ms())
            self._put_off(node_id)
            if error.retriable:
                _log.info("fetch from broker %d failed, trying again: %s", node_id, error)
                self._cluster.refresh_soon()
            else:
                self._queue.fail(error)
        finally:
            self._queue.budget.arrived((node_id, lane))
            self._under_way.pop((node_id, lane), None)
            self._on_change()

    async def _ask(self, connection: Connection, session: FetchSession | None, node_plan: NodePlan) -> FetchResponse:
        settings = self._settings
        version = connection.version_of(ApiKey.FETCH, _NEWEST)
        if version >= _SESSIONS_FROM and session is not None:
            said = session.request(node_plan.wanted)
        else:
            said = SessionRequest(0, FINAL_EPOCH, node_plan.wanted, [])
        wait_ms = settings.fetch_max_wait_ms
        if node_plan.is_partial:
            wait_ms = min(wait_ms, _PARTIAL_WAIT_MS)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=int(settings.isolation_level == "read_committed"),
            session_id=said.session_id,
            session_epoch=said.epoch,
            topics=_topics(said.named, version),
        )
        if version >= _SESSIONS_FROM:
            request.forgotten_topics_data = _forgotten(said.forgotten)
        if version >= _RACKS_FROM and self._near.may_redirect(node_plan.wanted, self._clock.monotonic_ms()):
            request.rack_id = settings.client_rack or ""
        response: FetchResponse = await connection.request(
            ApiKey.FETCH, request, version=version, timeout_ms=settings.request_timeout_ms + wait_ms, wait_ms=wait_ms
        )
        return response

    def _take(self, flight: _InFlightFetch, session: FetchSession | None, response: FetchResponse) -> None:
        if session is not None and response.error_code in _SESSION_LOST:
            session.reset()
            return
        if response.error_code:
            raise error_for(response.error_code, where=f"fetch from broker {flight.node_id}")
        if session is not None:
            session.accepted(response.session_id)
        for topic in response.responses:
            for data in topic.partitions:
                one = flight.asked.get(TopicPartition(topic.topic, data.partition_index))
                if one is not None and one.is_current:
                    self._take_partition(flight.node_id, one.place, data)

    def _take_partition(self, node_id: int, place: Place, data: PartitionData) -> None:
        if data.error_code:
            self._refused(node_id, place, error_code(data.error_code))
            return
        if data.preferred_read_replica >= 0:
            # Such an answer has no records: they are there.
            self._redirected(place, data.preferred_read_replica)
            return
        place.high_watermark = data.high_watermark
        place.last_stable_offset = data.last_stable_offset
        if data.log_start_offset >= 0:
            place.log_start_offset = data.log_start_offset
        if data.diverging_epoch.end_offset >= 0:
            self.truncated(place, place.diverged(data.diverging_epoch.end_offset))
            return
        records = data.records
        if not isinstance(records, bytes | bytearray | memoryview) or not len(records):
            return
        self._turns.move_to_end(place.partition)
        aborted = [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()]
        try:
            chunk = chunk_of(
                place, records, aborted, limit=DEFAULT_DECOMPRESSED_LIMIT, verify=self._settings.check_crcs
            )
        except RecordError as damage:
            self._stuck(place, f"the bytes are damaged: {damage}", "Seek past the damage to go on")
            return
        if chunk is None:
            self._enlarge(place)
        elif chunk.next_offset > chunk.from_offset:
            place.fetch_bytes = self._settings.max_partition_fetch_bytes
            self.records_fetched += sum(header.record_count for header in chunk.headers)
            self.bytes_fetched += len(records)
            self._queue.put(chunk)

    def _enlarge(self, place: Place) -> None:
        """Not even one whole batch fits: brokers before 0.10.1 cut it off. Ask for more next time."""
        if place.fetch_bytes >= _LARGEST_FETCH // 2:
            self._stuck(place, "a batch exceeds what one fetch can bring", "Seek past it to go on")
        else:
            place.fetch_bytes *= 2

    def _stuck(self, place: Place, reason: str, hint: str) -> None:
        place.standing = FetchState.STUCK
        self._queue.fail(RecordUnreadable(place.partition, place.fetch_offset, reason, hint))

    def truncated(self, place: Place, truncation: Truncation | None) -> None:
        """The log was cut below what was read."""
        if truncation is None:
            return
        if start_of(self._settings.auto_offset_reset) is None:
            self._queue.fail(LogTruncated(truncation))
            return
        _log.warning("%s was read up to %d but its log was cut at %d by a new leader; going on from there", *truncation)
        place.seek(truncation.end_offset)
        self._queue.set_attention()

    def _redirected(self, place: Place, node_id: int) -> None:
        leader = self._cluster.view.leader_of(*place.partition)
        if leader is None:
            return
        _log.info("%s is read from broker %d, which is nearer than its leader", place.partition, node_id)
        self._near.redirected(place.partition, node_id, leader.leader_epoch, self._clock.monotonic_ms())
        if node_id not in self._cluster.view.nodes:
            self._cluster.refresh_soon()

    def _refused(self, node_id: int, place: Place, code: ErrorCode) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._near.ended(place.partition, node_id, now_ms):
            # A follower may be behind, or be none any more. Only what the leader says counts, and it is asked at once.
            _log.info("%s is read from its leader again: broker %d said %s", place.partition, node_id, code.name)
            self._cluster.refresh_soon()
            return
        place.retry_at(now_ms + self._settings.retry_backoff_ms)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(place)
        elif code in _MOVED:
            self._cluster.refresh_soon()
        elif code == ErrorCode.UNKNOWN_LEADER_EPOCH or code.retriable:
            # The broker is behind us in what it knows, or asks for patience.
            return
        else:
            place.standing = FetchState.STUCK
            self._queue.fail(error_for(code, where=f"fetch of {place.partition}"))

    def _out_of_range(self, place: Place) -> None:
        if place.position != place.fetch_offset:
            return  # What is buffered can still be read; afterwards the broker will say it again.
        reset_to = start_of(self._settings.auto_offset_reset)
        if reset_to is None:
            place.standing = FetchState.STUCK
            self._queue.fail(PositionOutOfRange(place.partition, place.fetch_offset))
            return
        _log.warning(
            "%s holds no record at offset %d; going on from the %s",
            place.partition, place.fetch_offset, self._settings.auto_offset_reset,
        )  # fmt: skip
        place.seek_to(reset_to)

    def _put_off(self, node_id: int) -> None:
        self._not_before_ms[node_id] = self._clock.monotonic_ms() + self._settings.retry_backoff_ms

    async def close(self) -> None:
        self._closed = True
        tasks = [flight.task for flight in self._under_way.values() if flight.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _topics(named: Mapping[TopicPartition, PartitionFetch], version: int) -> list[FetchTopic]:
    topics: dict[str, FetchTopic] = {}
    for (topic, index), how in named.items():
        wanted = FetchPartition(
            partition=index,
            current_leader_epoch=how.leader_epoch,
            fetch_offset=how.offset,
            partition_max_bytes=how.max_bytes,
        )
        if version >= 12:
            wanted.last_fetched_epoch = how.last_fetched_epoch
        entry = topics.get(topic)
        if entry is None:
            entry = topics[topic] = FetchTopic(topic=topic, partitions=[])
        entry.partitions.append(wanted)
    return list(topics.values())


def _forgotten(partitions: list[TopicPartition]) -> list[ForgottenTopic]:
    topics: dict[str, ForgottenTopic] = {}
    for topic, index in partitions:
        topics.setdefault(topic, ForgottenTopic(topic=topic, partitions=[])).partitions.append(index)
    return list(topics.values())
