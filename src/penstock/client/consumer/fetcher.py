"""Fetches ahead: one request in flight to each broker, while there is memory for the response.

`pump` sends what can be sent and never waits; it is called after every change. A response counts only for partitions
that are still where they were when the request left. No record is decoded here: the loop's work is O(batches). A
fetch that waits at a broker cannot be withdrawn, so partitions that become ready later (a seek, an assignment, a new
leader) are fetched beside it, on a second connection, by short requests without a session.

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
    Budget,
    Chunk,
    FetchRotation,
    FetchSource,
    FetchState,
    NodePlan,
    PartitionState,
    PreferredReadReplicas,
    Truncation,
    chunk_in,
    plan_fetches,
    start_of,
)
from penstock.records import RecordError
from penstock.runtime.clock import Clock
from penstock.wire.fetch_session import (
    FIRST_VERSION_WITH_SESSIONS,
    LAST_VERSION_WITH_NAMES,
    SESSION_ERRORS,
    FetchOutcome,
    FetchSession,
    PartitionFetch,
    SessionRequest,
    enlarged,
    fetch_request,
    outcome_of,
    records_in,
    without_session,
)
from penstock.wire.protocol import ApiKey, error_code
from penstock.wire.schemas.fetch import FetchResponse, PartitionData

_log = logging.getLogger(__name__)

_PARTIAL_WAIT_MS: Final = 20
# Fetches wait at the broker for records to arrive; nothing else should wait behind them.
LANE: Final = "fetch"
URGENT_LANE: Final = "fetch beside"

Session = FetchSession[TopicPartition, PartitionFetch]
Request = SessionRequest[TopicPartition, PartitionFetch]
Kind = Literal["assign", "revoke", "lose"]


class _FetchedFrom(NamedTuple):
    """A partition as it was when it was requested."""

    state: PartitionState
    version: int
    offset: int
    leader_epoch: int

    @property
    def is_current(self) -> bool:
        """A former leader may send records that its successor, which is asked by now, does not have."""
        state = self.state
        return (
            state.version == self.version
            and state.fetch_state is FetchState.READY
            and state.fetch_offset == self.offset
            and state.leader_epoch == self.leader_epoch
        )


class _InFlightFetch:
    """A request in flight. `is_brief`: the broker answers soon, with or without records."""

    __slots__ = ("is_brief", "node_id", "requested", "task")

    def __init__(self, node_id: int, states: Iterable[PartitionState], node_plan: NodePlan) -> None:
        self.node_id = node_id
        self.is_brief = node_plan.is_partial
        self.task: asyncio.Task[None] | None = None
        self.requested = {
            state.partition: _FetchedFrom(state, state.version, state.fetch_offset, state.leader_epoch)
            for state in states
            if state.partition in node_plan.wanted
        }

    def without(self, node_plan: NodePlan) -> NodePlan:
        """The part of a plan that this request will not bring: partitions that moved since, or were not requested."""
        requested = self.requested
        wanted = {p: how for p, how in node_plan.wanted.items() if p not in requested or not requested[p].is_current}
        return NodePlan(wanted, node_plan.is_partial or len(wanted) < len(node_plan.wanted))


class Fetcher:
    """Fetches the assigned partitions of one consumer; used on its event loop."""

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
        self._rotation = FetchRotation()
        self._connections: dict[tuple[int, str], Connection] = {}
        self._sessions: dict[int, Session] = {}
        self._preferred = PreferredReadReplicas(settings.metadata_max_age_ms)
        self._in_flight: dict[tuple[int, str], _InFlightFetch] = {}
        self._not_before_ms: dict[int, float] = {}
        self._closed = False
        self.fetches = self.fetch_failures = self.records_fetched = self.bytes_fetched = 0
        self.latency_total_ms = self.latency_max_ms = 0.0

    # ------------------------------------------------------------------------------------------ what to fetch

    def set_assignment(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        self._rotation.set(states.values())

    def pump(self, now_ms: float) -> None:
        """Send what can be sent."""
        if self._closed:
            return
        for node_id, node_plan in plan_fetches(self._rotation, self._sources(now_ms), now_ms).items():
            if now_ms < self._not_before_ms.get(node_id, 0.0):
                continue
            waiting, beside = self._in_flight.get((node_id, LANE)), self._in_flight.get((node_id, URGENT_LANE))
            if waiting is None:
                self._send(node_id, LANE, node_plan if beside is None else beside.without(node_plan))
            elif beside is None and not waiting.is_brief:
                self._send(node_id, URGENT_LANE, waiting.without(node_plan)._replace(is_partial=True))

    def _sources(self, now_ms: float) -> dict[TopicPartition, FetchSource]:
        """Which broker to fetch each partition from; updates their leader epochs on the way."""
        sources: dict[TopicPartition, FetchSource] = {}
        view = self._cluster.view
        for state in self._rotation:
            found = view.leader_of(*state.partition)
            if found is not None and found.leader >= 0:
                leader, epoch = found.leader, found.leader_epoch
                state.led_by(epoch)
                source = self._preferred.source(state.partition, leader, epoch, view.nodes, now_ms)
                sources[state.partition] = FetchSource(source, epoch)
        return sources

    def next_retry_ms(self, now_ms: float) -> float:
        """When the next delayed fetch is due. Pass the time of the last `pump`: a fetch that falls due between two
        readings of the clock would be missed by both."""
        due = [at for at in self._not_before_ms.values() if at > now_ms]
        due += [state.not_before_ms for state in self._rotation if state.not_before_ms > now_ms]
        return min(due, default=float("inf"))

    def abandon(self, node_id: int) -> None:
        """A broker does not answer: cancel requests of which nothing is wanted any more because others lead by now.

        What they would bring is requested there already; here they would hold memory until they time out.
        """
        for (node, lane), flight in list(self._in_flight.items()):
            is_wanted = any(one.is_current for one in flight.requested.values())
            if node == node_id and flight.task is not None and not is_wanted:
                if lane == LANE and node in self._sessions:
                    self._sessions[node].reset()
                flight.task.cancel()

    # ------------------------------------------------------------------------------------------ one request

    def _send(self, node_id: int, lane: str, node_plan: NodePlan) -> None:
        budget = self._queue.budget
        if not node_plan.wanted or budget.room <= 0:
            return
        expected = min(self._settings.fetch_max_bytes, sum(how.max_bytes for how in node_plan.wanted.values()))
        budget.expect((node_id, lane), expected)
        flight = self._in_flight[node_id, lane] = _InFlightFetch(node_id, self._rotation, node_plan)
        flight.task = asyncio.create_task(self._fetch(flight, lane, node_plan))

    async def _fetch(self, flight: _InFlightFetch, lane: str, node_plan: NodePlan) -> None:
        node_id = flight.node_id
        session = self._sessions.setdefault(node_id, FetchSession()) if lane == LANE else None
        try:
            connection = self._connections.get((node_id, lane))
            if connection is None or connection.closed:
                connection = self._connections[node_id, lane] = await self._cluster.to(node_id, lane=lane)
            begun_ms = self._clock.monotonic_ms()
            request, response = await self._exchange(connection, session, node_plan)
            self.fetches += 1
            took_ms = self._clock.monotonic_ms() - begun_ms
            self.latency_total_ms += took_ms
            self.latency_max_ms = max(self.latency_max_ms, took_ms)
            self._queue.budget.arrived((node_id, lane))
            self._apply(flight, session, request, response)
        except PenstockError as error:
            self._failed(node_id, session, error)
        finally:
            self._queue.budget.arrived((node_id, lane))
            self._in_flight.pop((node_id, lane), None)
            self._on_change()

    async def _exchange(
        self, connection: Connection, session: Session | None, node_plan: NodePlan
    ) -> tuple[Request, FetchResponse]:
        settings = self._settings
        version = connection.version_of(ApiKey.FETCH, LAST_VERSION_WITH_NAMES)
        if session is not None and version >= FIRST_VERSION_WITH_SESSIONS:
            session.want_exactly(node_plan.wanted)
            request = session.next_request()
        else:
            request = without_session(node_plan.wanted)
        wait_ms = settings.fetch_max_wait_ms
        if node_plan.is_partial:
            wait_ms = min(wait_ms, _PARTIAL_WAIT_MS)
        may_redirect = self._preferred.may_redirect(node_plan.wanted, self._clock.monotonic_ms())
        message = fetch_request(
            request,
            version=version,
            max_wait_ms=wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=int(settings.isolation_level == "read_committed"),
            rack_id=settings.client_rack or "" if may_redirect else "",
        )
        response: FetchResponse = await connection.request(
            ApiKey.FETCH, message, version=version, timeout_ms=settings.request_timeout_ms + wait_ms, wait_ms=wait_ms
        )
        return request, response

    def _failed(self, node_id: int, session: Session | None, error: PenstockError) -> None:
        now_ms = self._clock.monotonic_ms()
        self.fetch_failures += 1
        if session is not None:
            session.reset()
        self._preferred.lost(node_id, now_ms)
        self._not_before_ms[node_id] = now_ms + self._settings.retry_backoff_ms
        if error.retriable:
            _log.info("fetch failed, retrying: broker=%d error=%s", node_id, error)
            self._cluster.refresh_soon()
        else:
            self._queue.fail(error)

    # ------------------------------------------------------------------------------------------ responses

    def _apply(
        self, flight: _InFlightFetch, session: Session | None, request: Request, response: FetchResponse
    ) -> None:
        if session is not None and response.error_code in SESSION_ERRORS:
            session.reset()
            return
        if response.error_code:
            raise error_for(response.error_code, where=f"fetch from broker {flight.node_id}")
        if session is not None:
            session.accepted(request, response.session_id)
        for topic in response.responses:
            for data in topic.partitions:
                one = flight.requested.get(TopicPartition(topic.topic, data.partition_index))
                if one is not None and one.is_current:
                    self._apply_partition(flight.node_id, one.state, data)

    def _apply_partition(self, node_id: int, state: PartitionState, data: PartitionData) -> None:
        match outcome_of(data):
            case FetchOutcome.RECORDS:
                self._update_offsets(state, data)
                self._take_records(state, data)
            case FetchOutcome.EMPTY:
                self._update_offsets(state, data)
            case FetchOutcome.REDIRECTED:
                self._redirected(state, data.preferred_read_replica)
            case FetchOutcome.DIVERGED:
                self._update_offsets(state, data)
                if data.diverging_epoch.end_offset >= 0:
                    self.truncated(state, state.diverged(data.diverging_epoch.end_offset))
            case error:
                self._partition_failed(node_id, state, error, data)

    def _update_offsets(self, state: PartitionState, data: PartitionData) -> None:
        state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset
        if data.log_start_offset >= 0:
            state.log_start_offset = data.log_start_offset

    def _take_records(self, state: PartitionState, data: PartitionData) -> None:
        self._rotation.move_to_end(state.partition)
        try:
            chunk = chunk_in(state, data, verify=self._settings.check_crcs)
        except RecordError as damage:
            self._unreadable(state, f"the bytes are damaged: {damage}", "Seek past the damage to continue")
            return
        if chunk is None:
            larger = enlarged(state.fetch_bytes)
            if larger is None:
                self._unreadable(state, "a batch is larger than any fetch may be", "Seek past it to continue")
            else:
                state.fetch_bytes = larger
        elif chunk.next_offset > chunk.from_offset:
            state.fetch_bytes = self._settings.max_partition_fetch_bytes
            self.records_fetched += sum(header.record_count for header in chunk.headers)
            self.bytes_fetched += len(records_in(data) or b"")
            self._queue.put(chunk)

    def _unreadable(self, state: PartitionState, reason: str, hint: str) -> None:
        state.fetch_state = FetchState.STUCK
        self._queue.fail(RecordUnreadable(state.partition, state.fetch_offset, reason, hint))

    def truncated(self, state: PartitionState, truncation: Truncation | None) -> None:
        """The log was truncated below what the application has read."""
        if truncation is None:
            return
        if start_of(self._settings.auto_offset_reset) is None:
            self._queue.fail(LogTruncated(truncation))
            return
        _log.warning(
            "log truncated below the position, continuing at its end: partition=%s position=%d end_offset=%d",
            *truncation,
        )
        state.seek(truncation.end_offset)
        self._queue.set_attention()

    def _redirected(self, state: PartitionState, node_id: int) -> None:
        leader = self._cluster.view.leader_of(*state.partition)
        if leader is None:
            return
        _log.info("reading from a nearer replica: partition=%s broker=%d", state.partition, node_id)
        self._preferred.redirected(state.partition, node_id, leader.leader_epoch, self._clock.monotonic_ms())
        if node_id not in self._cluster.view.nodes:
            self._cluster.refresh_soon()

    def _partition_failed(
        self, node_id: int, state: PartitionState, outcome: FetchOutcome, data: PartitionData
    ) -> None:
        now_ms = self._clock.monotonic_ms()
        code = error_code(data.error_code)
        if self._preferred.ended(state.partition, node_id, now_ms):
            # A follower may lag, or may have left the replicas. Only the leader knows, and it is asked at once.
            _log.info(
                "reading from the leader again: partition=%s broker=%d error=%s", state.partition, node_id, code.name
            )
            self._cluster.refresh_soon()
            return
        state.retry_at(now_ms + self._settings.retry_backoff_ms)
        match outcome:
            case FetchOutcome.OUT_OF_RANGE:
                self._out_of_range(state)
            case FetchOutcome.NOT_LEADER:
                self._cluster.refresh_soon()
            case FetchOutcome.RETRY:
                pass
            case _:
                state.fetch_state = FetchState.STUCK
                self._queue.fail(error_for(code, where=f"fetch of {state.partition}"))

    def _out_of_range(self, state: PartitionState) -> None:
        if state.position != state.fetch_offset:
            return  # What is buffered can still be read; afterwards the broker says it again.
        reset_to = start_of(self._settings.auto_offset_reset)
        if reset_to is None:
            state.fetch_state = FetchState.STUCK
            self._queue.fail(PositionOutOfRange(state.partition, state.fetch_offset))
            return
        _log.warning(
            "position out of range, resetting: partition=%s offset=%d reset=%s",
            state.partition, state.fetch_offset, self._settings.auto_offset_reset,
        )  # fmt: skip
        state.seek_to(reset_to)

    async def close(self) -> None:
        self._closed = True
        tasks = [flight.task for flight in self._in_flight.values() if flight.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --------------------------------------------------------------------------------------------------- to the application


class RebalanceCallback:
    """Partitions that were assigned, revoked or lost; the application calls `finish` when its callbacks have run."""

    __slots__ = ("finish", "kind", "partitions", "states")

    def __init__(
        self,
        kind: Kind,
        partitions: frozenset[TopicPartition],
        states: list[PartitionState],
        finish: Callable[[], object],
    ) -> None:
        self.kind = kind
        self.partitions = partitions
        self.states = states
        self.finish = finish


def _no_listener() -> None:
    pass


class ApplicationQueue:
    """The queue of fetched chunks, from the event loop to the thread of the application."""

    def __init__(self, budget: Budget, *, on_room: Callable[[], object] = _no_listener) -> None:
        self.attention = False
        self.closed = False
        self.polled = 0
        """Counts the application's calls: a group member that does not poll leaves the group."""
        self.budget = budget
        self.wake: Callable[[], None] = _no_listener
        self._on_room = on_room
        self._lock = Lock()
        self._chunks: deque[Chunk] = deque()
        self._callbacks: deque[RebalanceCallback] = deque()
        self._errors: deque[BaseException] = deque()
        self._commit_due = False

    # On the loop

    def put(self, chunk: Chunk) -> None:
        with self._lock:
            self._chunks.append(chunk)
            chunk.state.fetched(chunk.next_offset, chunk.epoch, chunk.size)
            self.budget.add(chunk.size)
        self.wake()

    def post(self, callback: RebalanceCallback) -> None:
        with self._lock:
            self._callbacks.append(callback)
            self.attention = True
        self.wake()

    def fail(self, error: BaseException) -> None:
        """The application's next call raises this error."""
        with self._lock:
            self._errors.append(error)
            self.attention = True
        self.wake()

    def sought(self, partitions: Iterable[TopicPartition]) -> None:
        """The application sought: withdraw a NoOffset error for these partitions that was not raised yet."""
        found = frozenset(partitions)
        with self._lock:
            for error in self._errors:
                if isinstance(error, NoOffset):
                    error.unsought -= found
            self._errors = deque(each for each in self._errors if not isinstance(each, NoOffset) or each.unsought)

    def ask_for_commit(self) -> None:
        """The auto-commit interval is over: the application's next call commits."""
        with self._lock:
            self._commit_due = True
            self.attention = True
        self.wake()

    def set_attention(self) -> None:
        """The application looks at its partitions before the next record: what it holds may be stale."""
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

    # In the application's thread

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
                elif chunk.state.paused:
                    self._chunks.rotate(-1)
                else:
                    self._chunks.popleft()
                    self.budget.release(chunk.size)
                    chunk.state.buffered_bytes -= chunk.size
                    taken = chunk
                    break
        if taken is not None or released:
            self._on_room()
        return taken

    def give_back(self, chunk: Chunk) -> None:
        """Put back a chunk that was not read to its end because its partition was paused."""
        with self._lock:
            self._chunks.appendleft(chunk)
            chunk.state.buffered_bytes += chunk.size
            self.budget.add(chunk.size)

    def has_chunks(self) -> bool:
        with self._lock:
            return any(not chunk.state.paused and not chunk.is_stale for chunk in self._chunks)

    def attend(self) -> tuple[list[RebalanceCallback], BaseException | None, bool]:
        """Callbacks to run, an error to raise, and whether to commit; clears `attention`."""
        with self._lock:
            self.polled += 1
            callbacks = list(self._callbacks)
            self._callbacks.clear()
            error = self._errors.popleft() if self._errors else None
            commit_due, self._commit_due = self._commit_due, False
            self.attention = bool(self._errors) or self.closed
        return callbacks, error, commit_due

    def put_back(self, callbacks: Iterable[RebalanceCallback]) -> None:
        """Put back callbacks that did not run because one before them raised."""
        with self._lock:
            self._callbacks.extendleft(reversed(list(callbacks)))
            self.attention = bool(self._callbacks) or self.attention
