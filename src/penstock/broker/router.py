"""From frames to handlers and back.

Noun: the router takes a frame, finds out what it asks for, and hands it to the API's handler with a callback.

Rule: whatever the bytes are, the outcome is an answer or a closed connection, never an exception in the loop. A request
that can be answered with an error is; one that cannot be understood at all ends the connection, as the stream cannot be
trusted any more. What takes more than a turn of the loop is done in slices (`penstock.broker.long_requests`).
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.broker.handlers import api_versions
from penstock.broker.long_requests import (
    LONG_BYTES,
    MAX_ELEMENTS,
    MAX_FETCH_ELEMENTS,
    SPLIT_BYTES,
    serve_parts,
    split,
)
from penstock.broker.request import Channel, Encoded, EndConnection, Request
from penstock.broker.served import Served
from penstock.runtime.network import Chunk, Complaints, Connection, Reply
from penstock.wire.api_keys import ApiKey
from penstock.wire.errors import UnknownVersion, WireError
from penstock.wire.headers import RequestHeader, decode_request, encode_response, lead_response
from penstock.wire.registry import request_codec, response_codec
from penstock.wire.types import Chunk as WireChunk
from penstock.wire.types import Message

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

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
        self._complain = Complaints(broker.clock, logger)

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
        elif isinstance(error, EndConnection):
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
                broker.long_work.start(connection.state, size, work)
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
            broker.long_work.start(connection.state, size, serve)

    async def _decode(
        self,
        connection: Connection,
        slices: Generator[None, None, tuple[Message, int]],
        served: Served,
        header: RequestHeader,
        size: int,
        answer: _Answer,
    ) -> None:
        broker, channel = self._broker, connection.state
        await broker.long_work.pause(channel)
        message, _ = await broker.long_work.through(slices, channel)
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
        broker.long_work.start(self._connection.state, 0, partial(self._send_rest, slices))
        return False

    async def _send_rest(self, slices: Generator[None, None, list[WireChunk]]) -> None:
        broker, channel = self._router._broker, self._connection.state
        try:
            await broker.long_work.pause(channel)
            self._let_go(await broker.long_work.through(slices, channel))
        except WireError as error:
            self._fail(error)
            return
        broker.observe(self._key, perf_counter() - self._started)

    def _let_go(self, body: list[WireChunk]) -> None:
        chunks = lead_response(self._key, self._version, self._correlation_id, body)
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
