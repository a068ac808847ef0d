"""A request on its way through the broker, and how a long one is served in slices.

A handler gets a `Request` and a callback. It calls the callback exactly once, now or later, with a message, or with
None where the protocol wants no response. Responses leave in the order of the requests.

The broker is one event loop, so a request that takes seconds would stall everyone. Requests above `LONG_BYTES` (16
KiB) are decoded, handled and encoded in slices of a few milliseconds, and one slice of all long requests runs per
turn of the loop. `_SPLITS` lists which arrays of a request can be split into parts; other handlers slice their own
work (Fetch, Metadata). A decoded request takes 20 to 30 times the memory of its bytes, so at most `MAX_BYTES` (8 MiB)
of requests are in progress at once, or one; the rest wait as bytes. Later requests of the same connection wait for
the long one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from penstock.wire.protocol import ApiKey
from penstock.wire.types import Message

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


Answer = Callable[[Message | None], None]


class CloseConnection(Exception):
    """Raised by a handler whose peer expects no answer and must learn all the same that something went wrong."""


class Disconnection:
    """The end of a connection, for those who would wait for something that only its peer cares about."""

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
    """A connection as the broker serves it. While it is muted, the requests that come by it wait in `held`."""

    __slots__ = ("_unmuted", "end", "held", "is_closed", "muted")

    def __init__(self, unmuted: Callable[[], None], end: Callable[[Exception], None]) -> None:
        super().__init__()
        self._unmuted = unmuted
        self.end = end
        """For a handler that has returned already, and whose peer must learn all the same that something went wrong."""
        self.held: deque[Callable[[], None]] = deque()
        self.muted = 0
        self.is_closed = False

    def happen(self) -> None:
        self.is_closed = True
        self.held.clear()
        # Both hold the connection, which holds this.
        self._unmuted = _nothing
        self.end = _ignore
        super().happen()

    def mute(self) -> None:
        self.muted += 1

    def unmute(self) -> None:
        self.muted -= 1
        if not self.muted and self.held:
            self._unmuted()


class Encoded(Message):
    """An answer that was encoded before: the bytes of its body. It holds no error."""

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

    @property
    def channel(self) -> Channel | None:
        return self.disconnection if isinstance(self.disconnection, Channel) else None


T = TypeVar("T")

LONG_BYTES: Final = 16 * 1024
"""Requests of more bytes are decoded in slices. Those of a few large values are through after the first."""

MAX_ELEMENTS: Final = 200_000
"""Elements of all arrays of one request: more than a cluster of hundreds of brokers has partitions."""
MAX_FETCH_ELEMENTS: Final = 50_000
"""A fetch asks one broker for what it leads."""

MAX_BYTES: Final = 8 * 1024 * 1024
PART_ELEMENTS: Final = 500
SPLIT_BYTES: Final = 1024
"""Requests of fewer bytes are never split."""


class ChannelClosed(Exception):
    """The connection of a long request is closed: nobody waits for its answer."""


class _Job(NamedTuple):
    channel: Channel | None
    size: int
    work: Callable[[], Coroutine[Any, Any, None]]


class LongRequests:
    """The long requests of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: deque[_Job] = deque()
        self._active = 0
        self._active_bytes = 0
        self._paused: deque[asyncio.Future[None]] = deque()
        self.slices = 0
        """Slices that have ended, for those who measure."""

    def start(self, channel: Channel | None, size: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work` for a request of `size` bytes. The requests that follow it on its connection wait until then.

        If it raises, the connection is closed; if the connection is closed or the broker stops, it may never begin.
        """
        if channel is not None:
            channel.mute()
        self._waiting.append(_Job(channel, size, work))
        self._admit()

    async def pause(self, channel: Channel | None = None) -> None:
        """End a slice. ChannelClosed if the connection was closed meanwhile."""
        loop = self._broker.loop
        turn: asyncio.Future[None] = loop.create_future()
        if not self._paused:
            loop.call_soon(self._next)
        self._paused.append(turn)
        self.slices += 1
        await turn
        if channel is not None and channel.is_closed:
            raise ChannelClosed

    async def through(self, slices: Generator[None, None, T], channel: Channel | None = None) -> T:
        """What a generator returns, with a pause at each of its yields."""
        while True:
            try:
                next(slices)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.pause(channel)

    def _next(self) -> None:
        turn = self._paused.popleft()
        if not turn.done():
            turn.set_result(None)
        if self._paused:
            self._broker.loop.call_soon(self._next)

    def _admit(self) -> None:
        waiting = self._waiting
        is_stopping = not (self._broker.is_ready or self._broker.is_joining)
        for _ in range(len(waiting)):
            job = waiting.popleft()
            if is_stopping or (job.channel is not None and job.channel.is_closed):
                continue
            if not self._active or self._active_bytes + job.size <= MAX_BYTES:
                self._active += 1
                self._active_bytes += job.size
                self._broker.spawn(self._run(job), lambda _: None)
            else:
                waiting.append(job)

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


# --- parts


class _Split(NamedTuple):
    """The arrays of a request, outermost first, those of its answer, and how many elements are a slice."""

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    most: int = PART_ELEMENTS


_BY_PARTITION: Final = _Split(("topics", "partitions"), ("topics", "partitions"))
_SPLITS: Final = {
    ApiKey.PRODUCE: _Split(("topic_data", "partition_data"), ("responses", "partition_responses")),
    ApiKey.LIST_OFFSETS: _BY_PARTITION._replace(most=100),  # each may read an index and a batch
    ApiKey.METADATA: _Split(("topics",), ("topics",)),
    ApiKey.OFFSET_COMMIT: _BY_PARTITION,
    ApiKey.OFFSET_DELETE: _BY_PARTITION,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _BY_PARTITION,
    ApiKey.DELETE_RECORDS: _BY_PARTITION,
    ApiKey.FIND_COORDINATOR: _Split(("coordinator_keys",), ("coordinators",)),
    ApiKey.DESCRIBE_GROUPS: _Split(("groups",), ("groups",), 100),
    ApiKey.DELETE_GROUPS: _Split(("groups_names",), ("results",), 100),
    ApiKey.DESCRIBE_CONFIGS: _Split(("resources",), ("results",), 20),  # each has sixty settings
    ApiKey.LEAVE_GROUP: _Split(("members",), ("members",), 100),
}
_OFFSETS_OF_ONE_GROUP: Final = _Split(("topics", "partition_indexes"), ("topics", "partitions"))
_OFFSETS_OF_GROUPS: Final = _Split(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions"))
_SEVERAL_GROUPS: Final = 8


class Parts(NamedTuple):
    """The parts of a request, made one by one, and the path by which to put their answers together."""

    requests: Iterator[Message]
    answered: tuple[str, ...]


def split(api_key: int, version: int, message: Message, size: int) -> Parts | None:
    """The parts of a request of `size` bytes; None if it is short enough to be handled as it is."""
    if size < SPLIT_BYTES or (api_key == ApiKey.PRODUCE and size < LONG_BYTES):
        return None
    if api_key == ApiKey.OFFSET_FETCH:
        by = _OFFSETS_OF_GROUPS if version >= _SEVERAL_GROUPS else _OFFSETS_OF_ONE_GROUP
    else:
        found = _SPLITS.get(ApiKey(api_key))
        if found is None:
            return None
        by = found
    if _count(message, by.asked) <= by.most:
        return None
    return Parts(_parts(message, by.asked, by.most), by.answered)


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


def merge(answers: Sequence[Message], path: Sequence[str]) -> Message:
    """One answer of the answers to the parts of a request, in their order. The first becomes part of it.

    A part that was rejected as a whole makes the answer one that says so.
    """
    whole = answers[0]
    for answer in answers[1:]:
        _extend(whole, answer, path)
        code = getattr(answer, "error_code", 0)
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


async def serve_parts(
    broker: Broker,
    request: Request,
    parts: Parts,
    handle: Callable[[Broker, Request, Answer], None],
    answer: Answer,
) -> None:
    """Handle a long request part by part, and answer when all parts are answered."""
    gathering = _PartResponses(broker.loop)
    for part in parts.requests:
        handle(broker, request._replace(message=part, size=0), gathering.part())
        await broker.long_requests.pause(request.channel)
    gathering.end()
    gathering.complete.add_done_callback(lambda _: answer(gathering.merged(parts.answered)))
    if request.api_key != ApiKey.PRODUCE:
        # A producer chooses how long it waits for replicas. Other long requests must not wait with it.
        await gathering.complete


class _PartResponses:
    """The answers to the parts of one request, as they come."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._answers: list[Message | None] = []
        self._awaited = 1  # the end of the parts
        self.complete: asyncio.Future[None] = loop.create_future()

    def part(self) -> Callable[[Message | None], None]:
        """What takes the answer to one more part."""
        index = len(self._answers)
        self._answers.append(None)
        self._awaited += 1

        def take(message: Message | None) -> None:
            self._answers[index] = message
            self._one_less()

        return take

    def end(self) -> None:
        """There are no more parts."""
        self._one_less()

    def _one_less(self) -> None:
        self._awaited -= 1
        if not self._awaited and not self.complete.done():
            self.complete.set_result(None)

    def merged(self, path: Sequence[str]) -> Message | None:
        """None where the protocol wants no answer."""
        answers = [answer for answer in self._answers if answer is not None]
        return merge(answers, path) if answers else None
