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
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from itertools import islice
from operator import attrgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast, get_args, get_type_hints

import msgspec

from penstock.broker.api_table import Api, Counts, ServedBy, apis_of
from penstock.broker.authentication import Gate, SecureListener, session_of
from penstock.broker.handlers import api_versions
from penstock.broker.handlers.forward import forwarded, response_in
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
from penstock.security.distinguished_name import CertificateError
from penstock.security.principal import Session
from penstock.wire.errors import UnknownVersion, WireError
from penstock.wire.framing import RequestHeader, decode_request, encode_response, frame_response
from penstock.wire.protocol import ApiKey, request_codec, response_codec
from penstock.wire.schemas.produce import ProduceRequest, ProduceResponse
from penstock.wire.types import BUFFERS, Message
from penstock.wire.types import Chunk as WireChunk

if TYPE_CHECKING:
    from penstock.broker.handlers.proxy import Proxy
    from penstock.wire.codec import Codec

logger = logging.getLogger(__name__)

_FORWARD_TIMEOUT_MS: Final = 30_000
_COPIED_BYTES: Final = 4096
# Requests that waited for a long one and are then taken in one turn of the loop.
_HELD_AT_ONCE: Final = 8
# As numbers: looking up a member of an enumeration takes longer than the comparison.
_PRODUCE, _FETCH = int(ApiKey.PRODUCE), int(ApiKey.FETCH)
_CODE: Final = "error_code"
_CODE_OF: Final = attrgetter(_CODE)
_COUNTED_AT_ONCE: Final = 2_000


class Router:
    """Decodes requests, calls their handlers and sends the responses: what the socket server calls."""

    def __init__(self, services: Services, *, in_cluster: bool) -> None:
        self.services = services
        self.apis = apis_of(in_cluster=in_cluster)
        self._codecs: dict[tuple[int, int], Codec[Any]] = {}
        """Of requests, by API and version: those that were asked for."""
        self.complain = RateLimitedLogger(services.clock, logger)
        self.listeners: Mapping[str, SecureListener] = {}
        """The listeners with TLS or SASL, by name."""
        self.proxy: Proxy | None = None
        """What serves the connections of proxied listeners; None if there are none."""

    # --- connections

    def connected(self, connection: Connection) -> None:
        listener = self.listeners.get(connection.listener)
        session = Session(listener=connection.listener, host=connection.address)
        channel = Channel(partial(self._resume, connection), partial(self._end, connection), session)
        connection.state = channel
        throttling = self.services.throttling
        if throttling.quotas.limits_addresses and not throttling.admits(connection.address):
            reason = "the connection_creation_rate of its address is exceeded"
            self.complain("connection rate", f"connection rejected: peer={connection.peer} reason={reason}")
            connection.close(reason)
            return
        if self.proxy is not None and connection.listener in self.services.proxied:
            channel.proxied = self.proxy.connected(channel)
        if listener is None:
            return
        try:
            channel.session = session_of(listener, connection)
        except CertificateError as error:
            self._end(connection, CloseConnection(f"certificate not accepted: {error}"))
            return
        if listener.uses_sasl:
            channel.authentication = Gate(self.services, listener, connection, channel, self._take)

    def closed(self, connection: Connection, reason: str) -> None:
        logger.debug("connection closed: peer=%s reason=%s", connection.peer, reason)
        connection.state.happen()

    def frame(self, connection: Connection, frame: bytearray) -> None:
        reply = connection.reply()
        channel: Channel = connection.state
        if channel.is_resuming:
            channel.held.append(partial(self._pass, connection, frame, reply))
        elif channel.muted:
            if channel.gate is not None:
                channel.gate.frame(frame, reply)
            else:
                channel.held.append(partial(self._pass, connection, frame, reply))
        else:
            self._take(connection, frame, reply)

    def _pass(self, connection: Connection, frame: bytearray, reply: Reply) -> None:
        """Take a request that waited. One before it may have started a re-authentication."""
        channel: Channel = connection.state
        if channel.gate is not None:
            channel.gate.frame(frame, reply)
        else:
            self._take(connection, frame, reply)

    def _resume(self, connection: Connection) -> None:
        """Take the requests that waited for a long one: a few at once, since there may be a hundred."""
        channel: Channel = connection.state
        if channel.is_resuming:
            return
        taken = 0
        while channel.held and (not channel.muted or channel.gate is not None):
            if taken >= _HELD_AT_ONCE:
                channel.is_resuming = True
                self.services.long_requests.take_turn(partial(self._resume_later, connection))
                return
            taken += 1
            channel.held.popleft()()

    def _resume_later(self, connection: Connection) -> None:
        channel: Channel = connection.state
        channel.is_resuming = False
        self._resume(connection)

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
        size = len(frame)
        codec = self._codecs.get((key, version))
        if codec is None:
            if key != ApiKey.PRODUCE:
                prepare = partial(self._prepare, connection, frame, reply, key, version)
                services.long_requests.start(connection.state, size, prepare)
                return
            # At once: a producer that wants no acknowledgement may close its connection before its turn comes.
            codec = self._codecs[key, version] = request_codec(key, version)
        answer = _Answer(self, api, connection, reply, header, size)
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

    async def _prepare(self, connection: Connection, frame: bytearray, reply: Reply, key: int, version: int) -> None:
        """Compile the codecs of an API in a version and import its handler, then take its first request.

        Each step takes some milliseconds, and there are hundreds of versions: one step per turn of the loop.
        """
        long_requests, channel = self.services.long_requests, connection.state
        await long_requests.pause(channel)
        codec = request_codec(key, version)
        await long_requests.pause(channel)
        response = response_codec(key, version)
        api = self.apis[key]
        if api.is_short is not True:
            await long_requests.pause(channel)
            response.prepare_encode_slices()
        if isinstance(api.handler, str):
            await long_requests.pause(channel)
            self._import(key, api, api.handler)
        self._codecs[key, version] = codec
        self._route(connection, frame, reply)

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
        channel: Channel = connection.state
        access = services.access_control
        permits = access.permits(channel, message) if access is not None and key == _FETCH else None
        request = Request(
            key, version, header.client_id, connection.peer, message, now_ms, channel, size, channel.session, permits
        )
        if api.restricted is not None and not request.session.is_broker:
            rejection = api.restricted(services, request)
            if rejection is not None:
                text = f"request rejected, only brokers may send it: api={header.api.name} peer={connection.peer}"
                self.complain("broker only", text)
                answer(rejection)
                return None
        handle = api.handler
        if isinstance(handle, str):
            handle = self._import(key, api, handle)
        if channel.proxied is not None:
            handle = channel.proxied.handler(key, handle)
        if api.counts is Counts.PRODUCE:
            answer.produced = message
            _count_produce_requests(services, message)
        if access is not None and permits is None and not (key == _PRODUCE and access.may_produce(channel, message)):
            # This broker decides, before the controller is asked.
            if api.by is ServedBy.CONTROLLER and services.cluster.controller is None:
                handle = partial(self._forward, handle)
            handle = access.guarded(api.splits, request, handle)
        elif api.by is ServedBy.CONTROLLER and services.cluster.controller is None:
            self._forward(handle, services, request, answer)
            return None
        throttling = services.throttling
        is_throttled = throttling.quotas.is_active and not request.session.is_broker
        if is_throttled:
            throttling.begin(request)
        parts = split(api.splits, version, message, size) if size >= SPLIT_BYTES and api.splits else None
        if parts is None:
            began_s = perf_counter() if is_throttled else 0.0
            handle(services, request, answer)
            if is_throttled:
                throttling.handled(request, perf_counter() - began_s)
            known = channel.known_topics
            if permits is not None and known is not None and known.denied and access is not None:
                access.fetched(request, known)
            return None
        answer.is_long = True
        return partial(serve_parts, services, request, parts, handle, answer)

    def _import(self, key: int, api: Api, name: str) -> Handler:
        module, _, function = name.partition(".")
        handler: Handler = getattr(import_module(f"penstock.broker.handlers.{module}"), function)
        self.apis[key] = api._replace(handler=handler)
        return handler

    def _forward(self, handle: Handler, services: Services, request: Request, answer: Answer) -> None:
        """Pass on the controller's response. If it cannot be reached, the local handler answers NOT_CONTROLLER: the
        client looks for the controller and retries.
        """
        membership = services.membership_or_none
        if membership is None:
            handle(services, request, answer)
            return

        async def ask() -> None:
            try:
                forwarding = forwarded(request)
                message = await membership.ask_controller(ApiKey.FORWARD, 0, forwarding, _FORWARD_TIMEOUT_MS)
                response = response_in(request, message)
            except LinkLost as error:
                logger.warning("request not forwarded: api=%s error=%s", ApiKey(request.api_key).name, error)
                handle(services, request, answer)
            else:
                answer(response)

        services.spawn(ask(), lambda _: handle(services, request, answer))


# --- responses


def _send(reply: Reply, key: int, version: int, correlation_id: int, message: Message) -> None:
    # The codec passes records through, and the only ones that are not bytes are regions of files.
    reply.send(cast("list[Chunk]", encode_response(key, version, correlation_id, message)))


class _Answer:
    """The callback of one request: counts the response's errors, encodes it and sends it."""

    __slots__ = ("_connection", "_header", "_reply", "_router", "_size", "_started_s", "api", "is_long", "produced")

    def __init__(
        self, router: Router, api: Api, connection: Connection, reply: Reply, header: RequestHeader, size: int
    ) -> None:
        self.api = api
        self.is_long = False
        """Whether the response may be long although its API's are not."""
        self.produced: ProduceRequest | None = None
        self._router = router
        self._connection = connection
        self._reply = reply
        self._header = header
        self._size = size
        self._started_s = perf_counter()

    def __call__(self, message: Any) -> None:
        header, services = self._header, self._router.services
        key = header.api.key
        if services.throttling.quotas.is_active and not self._connection.state.session.is_broker:
            services.throttling.answered(self._connection.state, header.client_id, key, self._size, message)
        if message is None:
            self._reply.skip()
        elif type(message) is Encoded:
            self._send_body([message.body if len(message.body) < _COPIED_BYTES else memoryview(message.body)])
        else:
            if self.produced is not None:
                if _has_errors(message):
                    _count_produce_errors(services, self.produced, message)
            elif self.api.counts is Counts.ERRORS:
                codes = _codes(message)
                if not self._count(codes):
                    services.long_requests.start(self._connection.state, 0, partial(self._count_rest, codes, message))
                    return
            self._encode(message)
            return
        services.metrics.observe(key, perf_counter() - self._started_s)

    def _count(self, codes: Iterator[int]) -> bool:
        """Count as many errors as fit a slice; whether these were all."""
        metrics = self._router.services.metrics.api(self._header.api.key)
        some = list(islice(codes, _COUNTED_AT_ONCE))
        for code in some:
            if code:
                metrics.count_error(code)
        return len(some) < _COUNTED_AT_ONCE

    async def _count_rest(self, codes: Iterator[int], message: Message) -> None:
        long_requests, channel = self._router.services.long_requests, self._connection.state
        await long_requests.pause(channel)
        while not self._count(codes):
            await long_requests.pause(channel)
        self._encode(message)

    def _encode(self, message: Message) -> None:
        header, is_short = self._header, self.api.is_short
        key = header.api.key
        try:
            if not self.is_long and (is_short is True or (is_short is not False and is_short(message))):
                _send(self._reply, key, header.api_version, header.correlation_id, message)
            elif not self._send_in_slices(message):
                return
        except WireError as error:
            self._fail(error)
            return
        self._router.services.metrics.observe(key, perf_counter() - self._started_s)

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
    return filter(None, _codes(message))


def _codes(message: msgspec.Struct) -> Iterator[int]:
    """The same with NONE, so that as much as fits a slice can be taken of it."""
    has_code, nested = _shape(type(message))
    if has_code:
        yield getattr(message, _CODE)
    for name, is_flat in nested:
        parts = getattr(message, name) or ()
        if is_flat:
            yield from map(_CODE_OF, parts)
        else:
            for part in parts:
                yield from _codes(part)


@cache
def _shape(message: type[msgspec.Struct]) -> tuple[bool, tuple[tuple[str, bool], ...]]:
    """Whether a message has an error code, and those of its arrays whose elements have one, at any depth; with each,
    whether its elements have no such arrays.
    """
    nested = []
    for name, hint in get_type_hints(message).items():
        element = _element(hint)
        if element is not None and any(_shape(element)):
            nested.append((name, not _shape(element)[1]))
    return _CODE in message.__struct_fields__, tuple(nested)


def _element(hint: Any) -> type[msgspec.Struct] | None:
    """The message that a field is an array of, nullable or not."""
    for each in (hint, *get_args(hint)):
        for argument in get_args(each):
            if isinstance(argument, type) and issubclass(argument, msgspec.Struct):
                return argument
    return None
