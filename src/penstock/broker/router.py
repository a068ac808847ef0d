"""From frames to handlers and back.

The router decodes a frame, looks up its API in `api_table` and calls the handler with a callback. The callback counts
the error codes that the response carries, encodes it and sends it. Handlers report errors in their response and nowhere
else, so no error goes uncounted; names of unknown topics create no series.

Whatever the bytes are, the outcome is a response or a closed connection, never an exception in the event loop. A
request that can be answered with an error is; one that cannot be decoded closes the connection, because the stream
can no longer be trusted. Work that takes longer than one turn of the loop is done in slices (see
`penstock.broker.request`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import cache, partial
from importlib import import_module
from time import perf_counter
from typing import Any, Final, cast, get_args, get_type_hints

import msgspec

from penstock.broker.api_table import Api, Counts, ServedBy, apis_of
from penstock.broker.handlers import api_versions
from penstock.broker.request import (
    LONG_BYTES,
    SPLIT_BYTES,
    Answer,
    BrokerState,
    Channel,
    CloseConnection,
    Encoded,
    Handler,
    Request,
    Services,
    serve_parts,
    split,
)
from penstock.cluster.broker_links import LinkLost
from penstock.runtime.network import Chunk, Connection, RateLimitedLogger, Reply
from penstock.wire.errors import UnknownVersion, WireError
from penstock.wire.framing import RequestHeader, decode_request, encode_response, frame_response
from penstock.wire.protocol import ApiKey, request_codec, response_codec
from penstock.wire.schemas.produce import ProduceRequest, ProduceResponse
from penstock.wire.types import BUFFERS, Message
from penstock.wire.types import Chunk as WireChunk

logger = logging.getLogger(__name__)

_FORWARD_TIMEOUT_MS: Final = 30_000
_COPIED_BYTES: Final = 4096
_CODE: Final = "error_code"


class Router:
    """What the socket server calls."""

    def __init__(self, services: Services, *, in_cluster: bool) -> None:
        self.services = services
        self.apis = apis_of(in_cluster=in_cluster)
        self.complain = RateLimitedLogger(services.clock, logger)

    # --- connections

    def connected(self, connection: Connection) -> None:
        connection.state = Channel(partial(self._resume, connection), partial(self._end, connection))

    def closed(self, connection: Connection, reason: str) -> None:
        logger.debug("connection closed: peer=%s reason=%s", connection.peer, reason)
        connection.state.happen()

    def frame(self, connection: Connection, frame: bytearray) -> None:
        reply = connection.reply()
        channel: Channel = connection.state
        if channel.muted:
            channel.held.append(partial(self._take, connection, frame, reply))
        else:
            self._take(connection, frame, reply)

    def _resume(self, connection: Connection) -> None:
        """Take the requests that waited for a long one."""
        channel: Channel = connection.state
        while channel.held and not channel.muted:
            channel.held.popleft()()

    def _take(self, connection: Connection, frame: bytearray, reply: Reply) -> None:
        try:
            self._route(connection, frame, reply)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this connection only
            self._end(connection, error)

    def _end(self, connection: Connection, error: Exception) -> None:
        """Close the connection of a request that cannot be answered. Clients can provoke this: a log line a second."""
        peer = connection.peer
        if isinstance(error, WireError):
            self.complain("bad request", f"connection closed, bad request: peer={peer} error={error}")
        elif isinstance(error, CloseConnection):
            self.complain("ended", f"connection closed: peer={peer} reason={error}", logging.INFO)
        else:
            self.complain("failure", f"connection closed, unexpected error: peer={peer}", logging.ERROR, error)
            connection.close("internal error")
            return
        connection.close(str(error))

    # --- requests

    def _route(self, connection: Connection, frame: bytearray, reply: Reply) -> None:
        services = self.services
        state = services.state
        if state is not BrokerState.RUNNING and state is not BrokerState.JOINING:
            connection.close("the broker is starting or stopping")
            return
        try:
            header, position = decode_request(frame)
        except UnknownVersion as error:
            if error.api_key != ApiKey.API_VERSIONS or error.correlation_id is None:
                raise
            # ApiVersions must be answered whatever its version: with version 0.
            _send(reply, ApiKey.API_VERSIONS, 0, error.correlation_id, api_versions.unsupported(services))
            return
        key, version = header.api.key, header.api_version
        api = self.apis.get(key)
        if api is None or not api.min_version <= version <= api.max_version:
            if key == ApiKey.API_VERSIONS:
                _send(reply, key, 0, header.correlation_id, api_versions.unsupported(services))
                return
            raise WireError(f"{header.api.name} version {version} is not served by this broker")
        if state is BrokerState.JOINING and not api.while_joining:
            connection.close("the broker is starting")
            return
        codec = request_codec(key, version)
        answer = _Answer(self, api, connection, reply, header)
        size = len(frame)
        if size <= LONG_BYTES:
            message, _ = codec.decode(frame, position)
        else:
            slices = codec.decode_slices(frame, position, api.max_elements)
            try:
                next(slices)
            except StopIteration as end:
                message, _ = end.value
            else:
                services.long_requests.start(
                    connection.state, size, partial(self._decode, connection, slices, header, size, answer)
                )
                return
        rest = self._serve(connection, header, message, size, answer)
        if rest is not None:
            services.long_requests.start(connection.state, size, rest)

    async def _decode(
        self,
        connection: Connection,
        slices: Generator[None, None, tuple[Message, int]],
        header: RequestHeader,
        size: int,
        answer: _Answer,
    ) -> None:
        long_requests, channel = self.services.long_requests, connection.state
        await long_requests.pause(channel)
        message, _ = await long_requests.through(slices, channel)
        rest = self._serve(connection, header, message, size, answer)
        if rest is not None:
            await rest()

    def _serve(
        self, connection: Connection, header: RequestHeader, message: Any, size: int, answer: _Answer
    ) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Call the handler, or return what serves the request in parts."""
        services, api = self.services, answer.api
        key, version = header.api.key, header.api_version
        now_ms = services.clock.now_ms()
        request = Request(key, version, header.client_id, connection.peer, message, now_ms, connection.state, size)
        handle = api.handler
        if isinstance(handle, str):
            handle = self._import(key, api, handle)
        if api.counts is Counts.PRODUCE:
            answer.produced = message
            _count_produce_requests(services, message)
        if api.by is ServedBy.CONTROLLER and services.cluster.controller is None:
            self._forward(handle, request, answer)
            return None
        parts = split(api.splits, version, message, size) if size >= SPLIT_BYTES and api.splits else None
        if parts is None:
            handle(services, request, answer)
            return None
        answer.is_long = True
        return partial(serve_parts, services, request, parts, handle, answer)

    def _import(self, key: int, api: Api, name: str) -> Handler:
        module, _, function = name.partition(".")
        handler: Handler = getattr(import_module(f"penstock.broker.handlers.{module}"), function)
        self.apis[key] = api._replace(handler=handler)
        return handler

    def _forward(self, handle: Handler, request: Request, answer: Answer) -> None:
        """Pass on the controller's response. If it cannot be reached, the local handler answers NOT_CONTROLLER: the
        client looks for the controller and retries.
        """
        services = self.services
        membership = services.membership_or_none
        if membership is None:
            handle(services, request, answer)
            return

        async def ask() -> None:
            try:
                message = await membership.ask_controller(
                    request.api_key, request.version, request.message, _FORWARD_TIMEOUT_MS
                )
            except LinkLost as error:
                logger.warning("request not forwarded: api=%s error=%s", ApiKey(request.api_key).name, error)
                handle(services, request, answer)
            else:
                answer(message)

        services.spawn(ask(), lambda _: handle(services, request, answer))


# --- responses


def _send(reply: Reply, key: int, version: int, correlation_id: int, message: Message) -> None:
    # The codec passes records through, and the only ones that are not bytes are regions of files.
    reply.send(cast("list[Chunk]", encode_response(key, version, correlation_id, message)))


class _Answer:
    """The callback of one request: counts the response's errors, encodes it and sends it."""

    __slots__ = ("_connection", "_header", "_reply", "_router", "_started_s", "api", "is_long", "produced")

    def __init__(self, router: Router, api: Api, connection: Connection, reply: Reply, header: RequestHeader) -> None:
        self.api = api
        self.is_long = False
        """Whether the response may be long although its API's are not."""
        self.produced: ProduceRequest | None = None
        self._router = router
        self._connection = connection
        self._reply = reply
        self._header = header
        self._started_s = perf_counter()

    def __call__(self, message: Any) -> None:
        header, services = self._header, self._router.services
        key = header.api.key
        if message is None:
            self._reply.skip()
        elif type(message) is Encoded:
            self._send_body([message.body if len(message.body) < _COPIED_BYTES else memoryview(message.body)])
        else:
            if self.produced is not None:
                if _has_errors(message):
                    _count_produce_errors(services, self.produced, message)
            elif self.api.counts is Counts.ERRORS:
                for code in error_codes(message):
                    services.metrics.count_error(key, code)
            is_short = self.api.is_short
            try:
                if not self.is_long and (is_short is True or (is_short is not False and is_short(message))):
                    _send(self._reply, key, header.api_version, header.correlation_id, message)
                elif not self._send_in_slices(message):
                    return
            except WireError as error:
                self._fail(error)
                return
        services.metrics.observe(key, perf_counter() - self._started_s)

    def _send_in_slices(self, message: Message) -> bool:
        """Encode as much as fits a slice; False if there is more, which then follows."""
        slices = response_codec(self._header.api.key, self._header.api_version).encode_slices(message)
        try:
            next(slices)
        except StopIteration as end:
            self._send_body(end.value)
            return True
        self._router.services.long_requests.start(self._connection.state, 0, partial(self._send_rest, slices))
        return False

    async def _send_rest(self, slices: Generator[None, None, list[WireChunk]]) -> None:
        services, channel = self._router.services, self._connection.state
        try:
            await services.long_requests.pause(channel)
            self._send_body(await services.long_requests.through(slices, channel))
        except WireError as error:
            self._fail(error)
            return
        services.metrics.observe(self._header.api.key, perf_counter() - self._started_s)

    def _send_body(self, body: list[WireChunk]) -> None:
        header = self._header
        chunks = frame_response(header.api.key, header.api_version, header.correlation_id, body)
        self._reply.send(cast("list[Chunk]", chunks))

    def _fail(self, error: WireError) -> None:
        text = f"response cannot be encoded: peer={self._connection.peer} api={self._header.api.name}"
        self._router.complain("answer", text, logging.ERROR, error)
        self._connection.close(str(error))


# --- counting


def _count_produce_requests(services: Services, request: ProduceRequest) -> None:
    for topic in request.topic_data:
        metrics = services.topic_metrics_or_none(topic.name)
        if metrics is not None:
            metrics.produce_requests.add()


def _has_errors(response: ProduceResponse) -> bool:
    for topic in response.responses:
        for outcome in topic.partition_responses:
            if outcome.error_code:
                return True
    return False


def _count_produce_errors(services: Services, request: ProduceRequest, response: ProduceResponse) -> None:
    # Parts of a long request may be merged: partitions are in the same order, but topics may be cut otherwise.
    sent = (data for topic in request.topic_data for data in topic.partition_data)
    for topic in response.responses:
        failed = [
            (data, outcome)
            for outcome, data in zip(topic.partition_responses, sent, strict=False)
            if outcome.error_code
        ]
        for _, outcome in failed:
            services.metrics.count_error(ApiKey.PRODUCE, outcome.error_code)
        metrics = services.topic_metrics_or_none(topic.name) if failed else None
        if metrics is not None:
            sizes = (len(data.records) for data, _ in failed if isinstance(data.records, BUFFERS))
            metrics.failed_produce_requests.add()
            metrics.bytes_rejected.add(sum(sizes))


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
    """Whether a message has an error code, and those of its arrays whose elements have one, at any depth."""
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
