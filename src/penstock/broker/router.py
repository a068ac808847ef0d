"""From frames to handlers and back.

Noun: the router takes a frame, finds out what it asks for, and hands it to the API's handler with a callback.

Rule: whatever the bytes are, the outcome is an answer or a closed connection, never an exception in the loop. A request
that can be answered with an error is; one that cannot be understood at all ends the connection, as the stream cannot be
trusted any more.
"""

from __future__ import annotations

import logging
from time import perf_counter
from typing import TYPE_CHECKING, cast

from penstock.broker.handlers import api_versions
from penstock.broker.request import Departure, EndConnection, Request
from penstock.runtime.network import Chunk, Connection, Reply
from penstock.wire.api_keys import ApiKey
from penstock.wire.errors import UnknownVersion, WireError
from penstock.wire.headers import decode_request, encode_response
from penstock.wire.registry import request_codec
from penstock.wire.types import Message

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

logger = logging.getLogger(__name__)

_WHILE_JOINING = frozenset({ApiKey.API_VERSIONS, ApiKey.PUSH_IMAGE})


class Router:
    """What the socket server calls."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def connected(self, connection: Connection) -> None:
        connection.state = Departure()

    def closed(self, connection: Connection, reason: str) -> None:
        logger.debug("connection %s closed: %s", connection.peer, reason)
        connection.state.happen()

    def frame(self, connection: Connection, frame: bytearray) -> None:
        reply = connection.reply()
        try:
            self._route(connection, frame, reply)
        except WireError as error:
            logger.warning("connection %s: %s: closed", connection.peer, error)
            connection.close(str(error))
        except EndConnection as error:
            logger.info("connection %s: %s: closed", connection.peer, error)
            connection.close(str(error))
        except Exception:
            logger.exception("connection %s: a request failed in a way nobody foresaw: closed", connection.peer)
            connection.close("internal error")

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
        message, _ = request_codec(key, version).decode(frame, position)
        request = Request(
            key, version, header.client_id, connection.peer, message, broker.clock.now_ms(), connection.state
        )
        served.handle(broker, request, _Answer(self, connection, reply, key, version, header.correlation_id))


def _send(reply: Reply, key: int, version: int, correlation_id: int, message: Message) -> None:
    # The codec passes records through as they are, and the only ones that are no bytes are regions of files.
    reply.send(cast("list[Chunk]", encode_response(key, version, correlation_id, message)))


class _Answer:
    """Takes a handler's message, encodes it and lets it go."""

    __slots__ = ("_connection", "_correlation_id", "_key", "_reply", "_router", "_started", "_version")

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

    def __call__(self, message: Message | None) -> None:
        if message is None:
            self._reply.skip()
        else:
            try:
                _send(self._reply, self._key, self._version, self._correlation_id, message)
            except WireError as error:
                logger.exception("connection %s: an answer cannot be written", self._connection.peer)
                self._connection.close(str(error))
                return
        self._router._broker.observe(self._key, perf_counter() - self._started)
