"""From frames to handlers and back.

The router decodes a frame, looks up its API in `api_table` and calls the handler with a callback. The callback counts
the error codes that the response carries, encodes it and sends it.

Whatever the bytes are, the outcome is a response or a closed connection, never an exception in the event loop. A
request that can be answered with an error is; one that cannot be decoded closes the connection, because the stream
can no longer be trusted. Work that takes longer than one turn of the loop is done in slices
(`penstock.broker.request`). Handlers report errors in their response and nowhere else, so no error goes uncounted;
names of unknown topics create no series.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast, get_args, get_type_hints

import msgspec

from penstock.broker.api_table import Api, Handler
from penstock.broker.handlers import api_versions
from penstock.broker.request import (
    LONG_BYTES,
    MAX_ELEMENTS,
    MAX_FETCH_ELEMENTS,
    SPLIT_BYTES,
    Answer,
    Channel,
    CloseConnection,
    Encoded,
    Request,
    serve_parts,
    split,
)
from penstock.runtime.network import Chunk, Connection, RateLimitedLogger, Reply
from penstock.wire.errors import UnknownVersion, WireError
from penstock.wire.framing import RequestHeader, decode_request, encode_response, frame_response
from penstock.wire.protocol import ApiKey, request_codec, response_codec
from penstock.wire.schemas.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
)
from penstock.wire.types import BUFFERS, Message
from penstock.wire.types import Chunk as WireChunk

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


_CODE = "error_code"


def counted(served: Mapping[int, Api]) -> dict[int, Api]:
    """The same table, with counters behind the handlers."""
    return {key: entry if key == ApiKey.FETCH else _with_counter(key, entry) for key, entry in served.items()}


def _with_counter(key: int, entry: Api) -> Api:
    return entry._replace(handle=_count_produce(entry) if key == ApiKey.PRODUCE else _count_errors(key, entry))


def _count_errors(key: int, entry: Api) -> Handler:
    def handle(broker: Broker, request: Request, answer: Answer) -> None:
        def count(message: Message | None) -> None:
            if message is not None:
                for code in error_codes(message):
                    broker.count_error(key, code)
            answer(message)

        entry.handle(broker, request, count)

    return handle


def error_codes(message: msgspec.Struct) -> Iterator[int]:
    """The codes other than NONE in a message and in whatever is nested in it."""
    has_code, nested = _shape(type(message))
    if has_code:
        code: int = getattr(message, _CODE)
        if code:
            yield code
    for name in nested:
        for part in getattr(message, name) or ():
            yield from error_codes(part)


@cache
def _shape(message: type[msgspec.Struct]) -> tuple[bool, tuple[str, ...]]:
    """Whether there is a code in a message, and the arrays of those that have one, somewhere, too."""
    nested = []
    for name, hint in get_type_hints(message).items():
        element = _element(hint)
        if element is not None and any(_shape(element)):
            nested.append(name)
    return _CODE in message.__struct_fields__, tuple(nested)


def _element(hint: Any) -> type[msgspec.Struct] | None:
    """The message that a field is an array of, nullable or not."""
    for each in (hint, *get_args(hint)):
        for argument in get_args(each):
            if isinstance(argument, type) and issubclass(argument, msgspec.Struct):
                return argument
    return None


# --- produce


def _count_produce(entry: Api) -> Handler:
    def handle(broker: Broker, request: Request, answer: Answer) -> None:
        asked: ProduceRequest = request.message
        for topic in asked.topic_data:
            figures = broker.topic_metrics_or_none(topic.name)
            if figures is not None:
                figures.produce_requested()

        def count(message: Any) -> None:
            if message is not None:
                for topic in message.responses:
                    for outcome in topic.partition_responses:
                        if outcome.error_code:
                            _count_produce_errors(broker, asked, message)
                            answer(message)
                            return
            answer(message)

        entry.handle(broker, request, count)

    return handle


def _count_produce_errors(broker: Broker, asked: ProduceRequest, told: ProduceResponse) -> None:
    for place, topic in enumerate(told.responses):
        failed = [(at, each) for at, each in enumerate(topic.partition_responses) if each.error_code]
        if not failed:
            continue
        for _, outcome in failed:
            broker.count_error(ApiKey.PRODUCE, outcome.error_code)
        figures = broker.topic_metrics_or_none(topic.name)
        if figures is not None:
            sent = asked.topic_data[place].partition_data
            figures.produce_failed(sum(_rejected_bytes(sent[at], outcome) for at, outcome in failed))


def _rejected_bytes(sent: PartitionProduceData, outcome: PartitionProduceResponse) -> int:
    return len(sent.records) if isinstance(sent.records, BUFFERS) and sent.index == outcome.index else 0


logger = logging.getLogger(__name__)

_WHILE_JOINING = frozenset({ApiKey.API_VERSIONS, ApiKey.PUSH_IMAGE})
# By key, whether answers are never long, unless their request was. Numbers, since members of an enum hash slowly.
_FETCH: Final = int(ApiKey.FETCH)
_FEW_KEYS: Final = 64
_IS_SHORT: Final = [
    key
    in (
        ApiKey.PRODUCE,
        ApiKey.API_VERSIONS,
        ApiKey.HEARTBEAT,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_COMMIT,
        ApiKey.SYNC_GROUP,
    )
    for key in range(_FEW_KEYS)
]
_NARROW_PARTITIONS: Final = 500
_COPIED_BYTES: Final = 4096


class Router:
    """What the socket server calls."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._complain = RateLimitedLogger(broker.clock, logger)

    def connected(self, connection: Connection) -> None:
        connection.state = Channel(partial(self._resume, connection), partial(self._end, connection))

    def closed(self, connection: Connection, reason: str) -> None:
        logger.debug("connection %s closed: %s", connection.peer, reason)
        connection.state.happen()

    def frame(self, connection: Connection, frame: bytearray) -> None:
        reply = connection.reply()
        channel: Channel = connection.state
        if channel.muted:
            channel.held.append(partial(self._take, connection, frame, reply))
        else:
            self._take(connection, frame, reply)

    def _resume(self, connection: Connection) -> None:
        """Go on with the requests that had to wait for a long one."""
        channel: Channel = connection.state
        while channel.held and not channel.muted:
            channel.held.popleft()()

    def _take(self, connection: Connection, frame: bytearray, reply: Reply) -> None:
        try:
            self._route(connection, frame, reply)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this connection only
            self._end(connection, error)

    def _end(self, connection: Connection, error: Exception) -> None:
        """A request cannot be answered. Peers can provoke this at will, so it is logged once a second."""
        if isinstance(error, WireError):
            self._complain("bad request", f"connection {connection.peer}: {error}: closed")
        elif isinstance(error, CloseConnection):
            self._complain("ended", f"connection {connection.peer}: {error}: closed", logging.INFO)
        else:
            text = f"connection {connection.peer}: a request failed in a way nobody foresaw: closed"
            self._complain("failure", text, logging.ERROR, error)
            connection.close("internal error")
            return
        connection.close(str(error))

    def _route(self, connection: Connection, frame: bytearray, reply: Reply) -> None:
        broker = self._broker
        if not broker.is_ready and not broker.is_joining:
            connection.close("the broker is starting or stopping")
            return
        try:
            header, position = decode_request(frame)
        except UnknownVersion as error:
            if error.api_key != ApiKey.API_VERSIONS or error.correlation_id is None:
                raise
            # The one question that must be answered whatever version it comes in: with the lowest.
            _send(reply, ApiKey.API_VERSIONS, 0, error.correlation_id, api_versions.unsupported(broker))
            return
        key, version = header.api.key, header.api_version
        if not broker.is_ready and key not in _WHILE_JOINING:
            connection.close("the broker is starting")
            return
        served = broker.served.get(key)
        if served is None or not served.lowest <= version <= served.highest:
            if key == ApiKey.API_VERSIONS:
                _send(reply, key, 0, header.correlation_id, api_versions.unsupported(broker))
                return
            raise WireError(f"{header.api.name} version {version} is not served here")
        codec = request_codec(key, version)
        answer = _Answer(self, connection, reply, key, version, header.correlation_id)
        size = len(frame)
        if size <= LONG_BYTES:
            message, _ = codec.decode(frame, position)
        else:
            slices = codec.decode_slices(frame, position, MAX_FETCH_ELEMENTS if key == _FETCH else MAX_ELEMENTS)
            try:
                next(slices)
            except StopIteration as end:
                message, _ = end.value
            else:
                work = partial(self._decode, connection, slices, served, header, size, answer)
                broker.long_requests.start(connection.state, size, work)
                return
        request = Request(
            key, version, header.client_id, connection.peer, message, broker.clock.now_ms(), connection.state, size
        )
        parts = split(key, version, message, size) if size >= SPLIT_BYTES else None
        if parts is None:
            served.handle(broker, request, answer)
        else:
            answer.is_long = True
            serve = partial(serve_parts, broker, request, parts, served.handle, answer)
            broker.long_requests.start(connection.state, size, serve)

    async def _decode(
        self,
        connection: Connection,
        slices: Generator[None, None, tuple[Message, int]],
        served: Api,
        header: RequestHeader,
        size: int,
        answer: _Answer,
    ) -> None:
        broker, channel = self._broker, connection.state
        await broker.long_requests.pause(channel)
        message, _ = await broker.long_requests.through(slices, channel)
        key, version = header.api.key, header.api_version
        request = Request(
            key, version, header.client_id, connection.peer, message, broker.clock.now_ms(), channel, size
        )
        parts = split(key, version, message, size) if size >= SPLIT_BYTES else None
        if parts is None:
            served.handle(broker, request, answer)
        else:
            answer.is_long = True
            await serve_parts(broker, request, parts, served.handle, answer)


def _send(reply: Reply, key: int, version: int, correlation_id: int, message: Message) -> None:
    # The codec passes records through as they are, and the only ones that are no bytes are regions of files.
    reply.send(cast("list[Chunk]", encode_response(key, version, correlation_id, message)))


class _Answer:
    """Takes a handler's message, encodes it and lets it go."""

    __slots__ = (
        "_connection", "_correlation_id", "_key", "_reply", "_router", "_started", "_version", "is_long",
    )  # fmt: skip

    def __init__(
        self, router: Router, connection: Connection, reply: Reply, key: int, version: int, correlation_id: int
    ) -> None:
        self._router = router
        self._connection = connection
        self._reply = reply
        self._key = key
        self._version = version
        self._correlation_id = correlation_id
        self._started = perf_counter()
        self.is_long = False
        """Whether the answer may be long although those of its kind are not."""

    def __call__(self, message: Message | None) -> None:
        key = self._key
        if message is None:
            self._reply.skip()
        elif type(message) is Encoded:
            self._let_go([message.body if len(message.body) < _COPIED_BYTES else memoryview(message.body)])
        else:
            try:
                if not self.is_long and (
                    (key < _FEW_KEYS and _IS_SHORT[key]) or (key == _FETCH and _is_narrow(message))
                ):
                    _send(self._reply, key, self._version, self._correlation_id, message)
                elif not self._send_in_slices(message):
                    return
            except WireError as error:
                self._fail(error)
                return
        self._router._broker.observe(key, perf_counter() - self._started)

    def _send_in_slices(self, message: Message) -> bool:
        """Encode as much as fits a slice; False if there is more, which then follows."""
        slices = response_codec(self._key, self._version).encode_slices(message)
        try:
            next(slices)
        except StopIteration as end:
            self._let_go(end.value)
            return True
        broker = self._router._broker
        broker.long_requests.start(self._connection.state, 0, partial(self._send_rest, slices))
        return False

    async def _send_rest(self, slices: Generator[None, None, list[WireChunk]]) -> None:
        broker, channel = self._router._broker, self._connection.state
        try:
            await broker.long_requests.pause(channel)
            self._let_go(await broker.long_requests.through(slices, channel))
        except WireError as error:
            self._fail(error)
            return
        broker.observe(self._key, perf_counter() - self._started)

    def _let_go(self, body: list[WireChunk]) -> None:
        chunks = frame_response(self._key, self._version, self._correlation_id, body)
        self._reply.send(cast("list[Chunk]", chunks))

    def _fail(self, error: WireError) -> None:
        self._router._complain(
            "answer", f"connection {self._connection.peer}: an answer cannot be written", logging.ERROR, error
        )
        self._connection.close(str(error))


def _is_narrow(message: Any) -> bool:
    partitions = 0
    for topic in message.responses:
        partitions += len(topic.partitions)
    return partitions <= _NARROW_PARTITIONS
