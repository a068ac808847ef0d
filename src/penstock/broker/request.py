"""A request on its way through the broker, and how a long one is served in slices.

A handler gets `Services`, a `Request` and a callback. It calls the callback exactly once, now or later, with a message,
or with None where the protocol wants no response. Responses leave in the order of the requests.

The broker is one event loop, so a request that takes seconds would stall everyone. Requests above `LONG_BYTES` (16
KiB) are decoded, handled and encoded in slices of a few milliseconds, and one slice of all long requests runs per
turn of the loop. `Split` says which arrays of a request can be split into parts; other handlers slice their own work
(Fetch, Metadata, changes of metadata). A decoded request takes 20 to 30 times the memory of its bytes, so at most
`MAX_BYTES` (8 MiB) of requests are in progress at once, or one; the rest wait as bytes. Later requests of the same
connection wait for the long one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from penstock.broker.throttling import Throttling
from penstock.cluster.broker_links import LinkLost
from penstock.cluster.errors import ClusterError, NotStarted
from penstock.runtime.network import RateLimitedLogger
from penstock.security.broker_proof import AcceptingProof
from penstock.security.principal import ANONYMOUS_SESSION, Session
from penstock.wire.protocol import INTERNAL_TOPICS
from penstock.wire.types import Message

if TYPE_CHECKING:
    from penstock.broker.audit import AuditLog
    from penstock.broker.authentication import Gate
    from penstock.broker.authorization import AccessControl, Authorizer, KnownTopics
    from penstock.broker.background_tasks import CallLater
    from penstock.broker.down_conversion import DownConverter
    from penstock.broker.dynamic_config import DynamicConfig
    from penstock.broker.fetch_session import FetchSessions
    from penstock.broker.handlers.create_topics import AutoTopicCreation
    from penstock.broker.handlers.metadata import MetadataAnswers
    from penstock.broker.handlers.proxy import ProxiedConnection
    from penstock.broker.handlers.schema_ids import SchemaIds
    from penstock.broker.metrics import BrokerMetrics, TopicMetrics
    from penstock.broker.settings import BrokerSettings, Listener
    from penstock.cluster.image import ClusterImage
    from penstock.cluster.membership.broker_lifecycle import Membership
    from penstock.cluster.membership.standalone import Metadata
    from penstock.coordination.group_coordinator import GroupCoordinator
    from penstock.coordination.transactions.broker_requests import TransactionClient
    from penstock.coordination.transactions.transaction_coordinator import TransactionCoordinator
    from penstock.log.group_commit import GroupCommit
    from penstock.replication.replica_manager import ReplicaManager
    from penstock.runtime.clock import Clock
    from penstock.runtime.files import Files
    from penstock.runtime.network import Server
    from penstock.runtime.randomness import Random
    from penstock.runtime.threads import Workers

logger = logging.getLogger(__name__)

LONG_BYTES: Final = 16 * 1024
"""Requests of more bytes are decoded in slices. Those with a few large values are decoded in the first."""
SPLIT_BYTES: Final = 1024
"""Requests of fewer bytes are never split."""
MAX_ELEMENTS: Final = 200_000
"""Elements of all arrays of one request: more than a cluster of hundreds of brokers has partitions."""
MAX_CHANGES: Final = 100_000
"""The same of a request that changes topics, settings or quotas."""
MAX_BYTES: Final = 8 * 1024 * 1024
PART_ELEMENTS: Final = 500
_COMPARED_AT_ONCE: Final = 5_000

T = TypeVar("T")

Answer = Callable[[Message | None], None]


# --- connections and requests


class CloseConnection(Exception):
    """Raised by a handler whose client expects no response but must learn that its request failed."""


class Disconnection:
    """The end of a connection, for requests that wait for something only its client needs."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: set[Callable[[], None]] = set()

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` when the connection ends."""
        self._waiting.add(gone)

    def unwatch(self, gone: Callable[[], None]) -> None:
        self._waiting.discard(gone)

    def happen(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for gone in waiting:
            gone()


def _nothing() -> None:
    pass


def _ignore(error: Exception) -> None:
    pass


class Channel(Disconnection):
    """A connection as the broker serves it. While it is muted, its next requests wait in `held`."""

    __slots__ = (
        "_unmuted", "authentication", "end", "gate", "held", "is_closed", "is_resuming", "known_topics", "muted",
        "proof", "proxied", "session",
    )  # fmt: skip

    def __init__(
        self,
        unmuted: Callable[[], None],
        end: Callable[[Exception], None],
        session: Session = ANONYMOUS_SESSION,
    ) -> None:
        super().__init__()
        self._unmuted = unmuted
        self.end = end
        """Closes the connection for an error of a handler that has already returned."""
        self.session = session
        self.proof: AcceptingProof | None = None
        """Of a peer that is proving itself to be a broker."""
        self.authentication: Gate | None = None
        """The SASL exchange of the connection, if its listener has one."""
        self.gate: Gate | None = None
        """The same while it takes the frames, before authentication and after the end of a session; muted then."""
        self.proxied: ProxiedConnection | None = None
        """What serves its requests, if its listener is proxied."""
        self.held: deque[Callable[[], None]] = deque()
        self.muted = 0
        self.is_resuming = False
        """Whether the rest of `held` is taken in later turns; what arrives meanwhile waits behind it."""
        self.is_closed = False
        self.known_topics: KnownTopics | None = None
        """What the authorizer has decided for the session, if there is one."""

    def happen(self) -> None:
        self.is_closed = True
        self.held.clear()
        # Both hold the connection, which holds this.
        self._unmuted = _nothing
        self.end = _ignore
        if self.authentication is not None:
            self.authentication.closed()
            self.authentication = self.gate = None
        super().happen()
        self.proxied = None

    def mute(self) -> None:
        self.muted += 1

    def unmute(self) -> None:
        self.muted -= 1
        if not self.muted and self.held:
            self._unmuted()


class Encoded(Message):
    """A response that was encoded before: the bytes of its body. It holds no error."""

    body: bytes = b""


class Request(NamedTuple):
    """A decoded request."""

    api_key: int
    version: int
    client_id: str | None
    peer: str
    message: Any
    now_ms: int
    disconnection: Disconnection | None = None
    size: int = 0
    """Bytes of the frame that it came in."""
    session: Session = ANONYMOUS_SESSION
    """Who sent it."""
    permits: Callable[[str], bool] | None = None
    """Which topics its sender may read; None is all. Only for requests whose topics are not all in the message."""

    @property
    def channel(self) -> Channel | None:
        return self.disconnection if isinstance(self.disconnection, Channel) else None


# --- what handlers use


class BrokerState(Enum):
    STARTING = "starting"
    JOINING = "joining"
    """Ports are open, but only the controller is served until the first image arrives."""
    RUNNING = "running"
    WITHDRAWN = "withdrawn"
    """All data folders failed: the broker left its cluster and waits for the operator."""
    STOPPING = "stopping"


class Node(NamedTuple):
    """A broker as clients see it."""

    id: int
    host: str
    port: int
    rack: str | None


@dataclass(slots=True)
class Services:
    """What handlers use. `Broker` fills it while it starts; requests are served once it is complete."""

    clock: Clock
    random: Random
    files: Files
    config: DynamicConfig
    metrics: BrokerMetrics
    sessions: FetchSessions
    metadata_answers: MetadataAnswers
    state: BrokerState = BrokerState.STARTING
    membership_or_none: Membership | None = None
    """The broker's place in a cluster; None if it stands alone."""
    authorizer: Authorizer | None = None
    """Decides what sessions may do; None if requests are not authorized."""
    audit: AuditLog | None = None
    """Where logins, denials and changes are noted; None if nowhere."""
    access_control: AccessControl | None = None
    """What requests pass on their way to their handlers; None if nothing is checked or noted."""

    protected_topics: frozenset[str] = field(init=False)
    """Topics that only brokers write to: internal ones, and that of the audit log."""
    loop: asyncio.AbstractEventLoop = field(init=False)
    call_later: CallLater = field(init=False)
    long_requests: LongRequests = field(init=False)
    conversions: DownConverter = field(init=False)
    validators: Workers = field(init=False)
    schema_ids: SchemaIds = field(init=False)
    schema_workers: Workers = field(init=False)
    """They wait for a schema registry."""
    server: Server = field(init=False)
    advertised: tuple[Listener, ...] = field(init=False)
    proxied: Mapping[str, Listener] = field(init=False, default_factory=dict)
    """The proxied listeners, with the one address that their clients reach, by name."""
    cluster: Metadata = field(init=False)
    commits: GroupCommit = field(init=False)
    replicas: ReplicaManager = field(init=False)
    groups: GroupCoordinator = field(init=False)
    transactions: TransactionCoordinator = field(init=False)
    transaction_client: TransactionClient = field(init=False)
    topic_creation: AutoTopicCreation = field(init=False)
    throttling: Throttling = field(init=False)
    complain: RateLimitedLogger = field(init=False)
    """For log lines that peers can cause."""
    _tasks: set[asyncio.Task[None]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.complain = RateLimitedLogger(self.clock, logger)
        settings = self.config.settings
        audit = settings.penstock_audit_topic
        self.protected_topics = INTERNAL_TOPICS if audit is None else INTERNAL_TOPICS | {audit}
        self.throttling = Throttling(self, settings.quota_window_num, settings.quota_window_size_seconds * 1000)

    @property
    def node_id(self) -> int:
        return self.config.node_id

    @property
    def settings(self) -> BrokerSettings:
        return self.config.settings

    @property
    def is_ready(self) -> bool:
        return self.state is BrokerState.RUNNING

    @property
    def membership(self) -> Membership:
        """The broker's place in its cluster. RuntimeError if it stands alone."""
        if self.membership_or_none is None:
            raise RuntimeError("this broker stands alone")
        return self.membership_or_none

    def live_brokers(self, listener: str, image: ClusterImage | None = None) -> list[Node]:
        """The live brokers of an image, or of the current one, with their addresses for clients of this listener."""
        brokers = (image or self.cluster.image).brokers.values()
        address = self.proxied.get(listener)
        if address is not None:
            return [Node(broker.broker_id, address.host, address.port, broker.rack) for broker in brokers]
        return [
            Node(broker.broker_id, endpoint.host, endpoint.port, broker.rack)
            for broker in brokers
            for endpoint in broker.endpoints
            if endpoint.listener == listener
        ]

    def topic_metrics_or_none(self, topic: str) -> TopicMetrics | None:
        """The counters of a topic that a client names; None if the topic does not exist."""
        return self.metrics.topic(topic) if topic in self.cluster.image.topics else None

    def spawn(self, work: Coroutine[Any, Any, None], on_error: Callable[[BaseException], None]) -> None:
        """Run `work`, which waits for something, beside the handlers. `on_error` answers the request if it fails, or if
        the broker stops before it is done: without its response, a connection would delay the stop.
        """

        async def run() -> None:
            try:
                await work
            except (ClusterError, LinkLost) as error:
                # The controller moved or is stopping: clients find the new one and retry.
                logger.info("request rejected: error=%s", error)
                on_error(error)
            except Exception as error:
                logger.exception("request failed")
                on_error(error)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            work.close()  # if the task is cancelled before its first turn, it never awaits the coroutine
            if task.cancelled():
                on_error(NotStarted())

        task = self.loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(ended)

    def cancel_tasks(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()


Handler = Callable[[Services, Request, Answer], None]


# --- long requests


class ChannelClosed(Exception):
    """The connection of a long request is closed, so its response is no longer needed."""


class _Job(NamedTuple):
    channel: Channel | None
    size: int
    work: Callable[[], Coroutine[Any, Any, None]]


def _end(job: _Job, error: BaseException) -> None:
    """Close the connection of a job that will not answer."""
    if job.channel is not None:
        job.channel.end(CloseConnection(str(error)))


class LongRequests:
    """The long requests of a broker."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: deque[_Job] = deque()
        self._active = 0
        self._active_bytes = 0
        self._paused: deque[asyncio.Future[None]] = deque()
        self.slices = 0
        """Slices that have ended, for measurements."""

    def start(self, channel: Channel | None, size: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work` for a request of `size` bytes. Later requests of its connection wait until it is done.

        If it raises, the connection is closed; if the connection is closed or the broker stops, it may never begin.
        """
        if channel is not None:
            channel.mute()
        self._waiting.append(_Job(channel, size, work))
        self._admit()

    async def pause(self, channel: Channel | None = None) -> None:
        """End a slice. ChannelClosed if the connection was closed meanwhile."""
        await self._turn()
        if channel is not None and channel.is_closed:
            raise ChannelClosed

    def take_turn(self, work: Callable[[], None]) -> None:
        """Call `work` as a slice of its own."""
        self._turn().add_done_callback(lambda turn: None if turn.cancelled() else work())

    def _turn(self) -> asyncio.Future[None]:
        loop = self._services.loop
        turn: asyncio.Future[None] = loop.create_future()
        if not self._paused:
            loop.call_soon(self._next)
        self._paused.append(turn)
        self.slices += 1
        return turn

    async def through(self, slices: Generator[None, None, T], channel: Channel | None = None) -> T:
        """Run a generator, with a pause at each of its yields; returns what it returns."""
        while True:
            try:
                next(slices)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.pause(channel)

    async def each(self, items: Iterable[T], at_once: int = PART_ELEMENTS) -> AsyncIterator[T]:
        """The items, with a pause after every slice."""
        for number, item in enumerate(items, 1):
            yield item
            if not number % at_once:
                await self.pause()

    async def duplicates(self, keys: Iterable[T]) -> set[T]:
        known: set[T] = set()
        twice: set[T] = set()
        async for key in self.each(keys, _COMPARED_AT_ONCE):
            if key in known:
                twice.add(key)
            known.add(key)
        return twice

    def answer_rows(self, channel: Channel | None, rows: Iterable[T], answer: Callable[[list[T]], None]) -> None:
        """Call `answer` with a list of the rows of a response: at once if they are few, otherwise made in slices."""

        def slices() -> Generator[None, None, None]:
            made: list[T] = []
            for number, row in enumerate(rows, 1):
                made.append(row)
                if not number % PART_ELEMENTS:
                    yield
            answer(made)

        self.finish(channel, slices())

    def finish(self, channel: Channel | None, slices: Generator[None, None, None]) -> None:
        """Run a generator that answers a request: at once up to its first yield, the rest as slices. Later requests of
        the connection wait for it.
        """
        try:
            next(slices)
        except StopIteration:
            return

        async def rest() -> None:
            try:
                await self.pause(channel)
                await self.through(slices, channel)
            except ChannelClosed:
                pass
            finally:
                if channel is not None:
                    channel.unmute()

        if channel is not None:
            channel.mute()
        self._services.spawn(
            rest(), lambda error: None if channel is None else channel.end(CloseConnection(str(error)))
        )

    def _next(self) -> None:
        turn = self._paused.popleft()
        if not turn.done():
            turn.set_result(None)
        if self._paused:
            self._services.loop.call_soon(self._next)

    def _admit(self) -> None:
        waiting = self._waiting
        is_stopping = self._services.state not in (BrokerState.RUNNING, BrokerState.JOINING)
        for _ in range(len(waiting)):
            job = waiting.popleft()
            if is_stopping or (job.channel is not None and job.channel.is_closed):
                _end(job, NotStarted())
                continue
            if not self._active or self._active_bytes + job.size <= MAX_BYTES:
                self._active += 1
                self._active_bytes += job.size
                self._services.spawn(self._run(job), partial(self._ended_by_stop, job))
            else:
                waiting.append(job)

    def _ended_by_stop(self, job: _Job, error: BaseException) -> None:
        _end(job, error)
        self._admit()

    async def _run(self, job: _Job) -> None:
        try:
            await job.work()
        except ChannelClosed:
            pass
        except Exception as error:
            if job.channel is None:
                raise
            job.channel.end(error)
        finally:
            self._active -= 1
            self._active_bytes -= job.size
            self._admit()
            if job.channel is not None:
                job.channel.unmute()


# --- requests in parts


class Split(NamedTuple):
    """How to split a request: its arrays, outermost first, those of its response, and the elements of a part."""

    requested: tuple[str, ...]
    answered: tuple[str, ...]
    max_elements: int = PART_ELEMENTS
    min_bytes: int = SPLIT_BYTES
    """Shorter requests stay whole."""
    since: int = 0
    """The first version that has these arrays."""
    is_awaited: bool = True
    """Whether the next long request waits until all parts are answered."""
    identity: Callable[[Any], object] | None = None
    """What makes two elements the same, if one response is enough for both."""


class Parts(NamedTuple):
    """The parts of a request, made one by one, and how to merge their responses."""

    requests: Iterator[Message]
    by: Split


def split(splits: Sequence[Split], version: int, message: Message, size: int) -> Parts | None:
    """The parts of a request of `size` bytes; None if it is short enough to be handled as a whole."""
    by = next((each for each in reversed(splits) if version >= each.since), None)
    if by is None or size < by.min_bytes or _count(message, by.requested) <= by.max_elements:
        return None
    if by.identity is not None:
        name = by.requested[0]
        message = msgspec.structs.replace(message, **{name: distinct(getattr(message, name), by.identity)})
    return Parts(_parts(message, by.requested, by.max_elements), by)


def distinct(items: Iterable[T], identity: Callable[[T], object]) -> list[T]:
    """The first of those that are the same."""
    return list({identity(item): item for item in reversed(list(items))}.values())[::-1]


def each_once(keys: Iterable[T]) -> Iterator[T]:
    """The keys without those that were there before, made one by one."""
    known: set[T] = set()
    for key in keys:
        if key not in known:
            known.add(key)
            yield key


def _count(message: Message, path: Sequence[str]) -> int:
    items = getattr(message, path[0]) or ()
    if len(path) == 1:
        return len(items)
    return sum(max(1, _count(item, path[1:])) for item in items)


def _parts(message: Message, path: Sequence[str], most: int) -> Iterator[Message]:
    items = getattr(message, path[0])
    if not items or (len(path) == 1 and len(items) <= most):
        yield message
        return
    if len(path) == 1:
        for begin in range(0, len(items), most):
            yield msgspec.structs.replace(message, **{path[0]: items[begin : begin + most]})
        return
    part: list[Message] = []
    count = 0
    for item in items:
        for piece in _parts(item, path[1:], most):
            size = max(1, _count(piece, path[1:]))
            if part and count + size > most:
                yield msgspec.structs.replace(message, **{path[0]: part})
                part, count = [], 0
            part.append(piece)
            count += size
    yield msgspec.structs.replace(message, **{path[0]: part})


def merge(responses: Sequence[Message], path: Sequence[str]) -> Message:
    """One response from the responses to the parts of a request, in their order. The first becomes part of it.

    The error of a part that was rejected as a whole becomes that of the response.
    """
    whole = responses[0]
    for response in responses[1:]:
        _extend(whole, response, path)
        code = getattr(response, "error_code", 0)
        if code and not getattr(whole, "error_code", 0):
            whole.error_code = code  # type: ignore[attr-defined]
    return whole


def _extend(whole: Message, more: Message, path: Sequence[str]) -> None:
    name, inner = path[0], path[1:]
    items, added = getattr(whole, name), getattr(more, name)
    if inner and items and added and _is_same(items[-1], added[0], inner[0]):
        _extend(items[-1], added[0], inner)
        added = added[1:]
    items.extend(added)


def _is_same(one: Message, other: Message, but_for: str) -> bool:
    """Whether two elements are one that was cut in two: alike in everything but the array that was cut."""
    return all(getattr(one, name) == getattr(other, name) for name in one.__struct_fields__ if name != but_for)


class Responses:
    """Collects the responses to the parts of one request; `done` gets them, in order, when all are there."""

    def __init__(self, done: Callable[[list[Any]], None]) -> None:
        self._responses: list[Message | None] = []
        self._missing = 1  # the end of the parts
        self._done = done

    def part(self) -> Answer:
        """The callback for one more part."""
        index = len(self._responses)
        self._responses.append(None)
        self._missing += 1

        def take(message: Message | None) -> None:
            self._responses[index] = message
            self.end()

        return take

    def end(self) -> None:
        """All parts have been handled."""
        self._missing -= 1
        if not self._missing:
            self._done(self._responses)


async def serve_parts(services: Services, request: Request, parts: Parts, handle: Handler, answer: Answer) -> None:
    """Handle a long request part by part, and answer when all parts are answered."""
    complete: asyncio.Future[None] = services.loop.create_future()

    def done(responses: list[Message | None]) -> None:
        # None where the protocol wants no response.
        found = [each for each in responses if each is not None]
        if not complete.done():
            complete.set_result(None)
        answer(merge(found, parts.by.answered) if found else None)

    responses = Responses(done)
    for part in parts.requests:
        handle(services, request._replace(message=part, size=0), responses.part())
        await services.long_requests.pause(request.channel)
    responses.end()
    if parts.by.is_awaited:
        await complete
