"""A small HTTP/1.1 server for `/metrics` and `/health`, which passes other paths to the console.

Only GET and HEAD are served here. The parser is strict: what two readers could understand differently (folded headers,
two lengths) is rejected. Each peer costs a bounded amount: request heads are limited in bytes and time, responses in
time, bodies are never read, connections are counted, and the longest idle one makes room. A route sends a few
responses at a time, so slow readers of `/metrics` do not block `/health`.

The Host header must name this broker (an address, localhost, or a known name): a page from another site whose name
was pointed here cannot read its metrics.

Other machines need a token or a password. Without one they learn from `/health` whether the broker serves requests,
and nothing else. A request that a proxy on this machine passed on is not one of this machine.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import hashlib
import hmac
import ipaddress
import json
import logging
import re
import socket
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from urllib.parse import parse_qs

from penstock import __version__
from penstock.broker.console_process import ConsoleError, Fallback
from penstock.broker.metrics import CONTENT_TYPE as METRICS_TYPE
from penstock.broker.request import BrokerState, Services
from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.network import is_host_of

if TYPE_CHECKING:
    from penstock.broker.log_startup import LogLoader
    from penstock.replication.replica_manager import ReplicaManager

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/(\d)\.(\d)")
_FIELD_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(r"(?:https?://[^/?#]+)?(/[^?]*|(?=\?|$))(?:\?(.*))?|\*", re.IGNORECASE)


class RejectedRequest(Exception):
    """A request that is answered with an error before its connection is closed."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The head of a request. Header names are in lower case; values of repeated headers are joined by commas."""

    method: str
    path: str
    query: str
    minor_version: int
    headers: Mapping[str, str]
    is_trusted: bool = True
    """Whether its sender is on this machine, or has shown who it is."""

    @property
    def has_body(self) -> bool:
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0").strip("0") != ""

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection stays open. Bodies are never read, so nothing can be read after one."""
        options = {option.strip().lower() for option in self.headers.get("connection", "").split(",")}
        return not self.has_body and "close" not in options and (self.minor_version >= 1 or "keep-alive" in options)

    @property
    def accepts_gzip(self) -> bool:
        for item in self.headers.get("accept-encoding", "").lower().split(","):
            coding, *parameters = (part.strip() for part in item.split(";"))
            if coding in ("gzip", "x-gzip"):
                return not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
        return False


def parse_request(head: bytes) -> HttpRequest:
    """The request of a head, which ends with an empty line. RejectedRequest."""
    line, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise RejectedRequest(HTTPStatus.BAD_REQUEST, "the first line is not an HTTP/1.1 request line")
    method, target, major, minor = (group.decode("ascii") for group in match.groups())
    if major != "1":
        raise RejectedRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 is supported")
    headers = _parse_fields(fields)
    if minor != "0" and "host" not in headers:
        raise RejectedRequest(HTTPStatus.BAD_REQUEST, "the Host header is missing")
    where = _TARGET.fullmatch(target)
    if where is None:
        raise RejectedRequest(HTTPStatus.BAD_REQUEST, "the request target must be a path")
    return HttpRequest(method, where[1] or "/", where[2] or "", int(minor), headers)


def _parse_fields(fields: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for field in fields:
        name, colon, value = field.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
            raise RejectedRequest(HTTPStatus.BAD_REQUEST, "a header is malformed")
        key, text = name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")
        if key in headers:
            if key in ("host", "content-length"):
                raise RejectedRequest(HTTPStatus.BAD_REQUEST, f"the request has several {key} headers")
            text = f"{headers[key]}, {text}"
        headers[key] = text
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or ("transfer-encoding" in headers and "content-length" in headers):
        raise RejectedRequest(HTTPStatus.BAD_REQUEST, "the length of the body is ambiguous")
    return headers


class HttpCredentials:
    """Who may read more than the state of the broker. Only digests of secrets are kept."""

    def __init__(
        self,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        *,
        allow_anonymous: bool = False,
    ) -> None:
        self._allow_anonymous = allow_anonymous
        given = [f"bearer {token}"] if token else []
        if user is not None and password:
            given.append(f"basic {user}:{password}")
        self._digests = [hashlib.sha256(each.encode()).digest() for each in given]

    def trusts(self, request: HttpRequest, peer: str) -> bool:
        if self._allow_anonymous or (_is_loopback(peer) and _FORWARDED.isdisjoint(request.headers)):
            return True
        shown = hashlib.sha256(_shown_credentials(request.headers.get("authorization", ""))).digest()
        # All are compared, so that the time says nothing.
        return sum(hmac.compare_digest(shown, digest) for digest in self._digests) > 0


_CHALLENGE: Final = (("WWW-Authenticate", 'Bearer realm="penstock", Basic realm="penstock"'),)
_FORWARDED: Final = frozenset({"forwarded", "x-forwarded-for", "x-real-ip", "via"})
_NO_ACCESS: Final = (
    "other machines need a token or a password: see penstock.http.token, penstock.http.user and penstock.http.password"
)


def _is_loopback(peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _shown_credentials(header: str) -> bytes:
    """`bearer <token>` or `basic <user>:<password>`; empty if it is neither."""
    scheme, _, value = header.partition(" ")
    scheme, value = scheme.lower(), value.strip()
    if scheme == "bearer":
        return f"bearer {value}".encode("utf-8", "replace")
    if scheme == "basic":
        try:
            return b"basic " + base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return b""
    return b""


logger = logging.getLogger(__name__)

_TEXT = "text/plain; charset=utf-8"
_GZIP_MIN_BYTES = 1024
_GZIP_LEVEL = 1  # It shrinks metrics to a tenth; higher levels cost the loop more than they save the network.
_GZIP_WBITS = 31
_NOT_HERE = "the Host header does not name this broker; add the name that you use to penstock.http.hosts"
_LINGER_S = 1.0
_LINGER_BYTES = 1024 * 1024


class HttpServerError(Exception):
    """The server cannot do what was requested."""


class CannotListen(HttpServerError):
    """The server cannot listen on an address; the message says why and what to do."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"HTTP (metrics, health) cannot listen on {host or '*'}:{port}: {reason}; "
            "choose another port with --http-port, or turn HTTP off with --http-port 0"
        )
        self.host = host
        self.port = port


class AddressInUse(CannotListen):
    """Another process listens on the address."""


class Reply(NamedTuple):
    status: int
    content_type: str
    body: bytes | AsyncIterator[bytes]
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[HttpRequest], Awaitable[Reply]]
_Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    head_bytes: int = 8 * 1024
    connections: int = 64
    idle_s: float = 60.0
    head_s: float = 10.0
    answer_s: float = 30.0
    answers_per_route: int = 8
    """Responses of one route that may be sent at the same time."""
    slow_s: float = 2.0
    """A response that takes longer may be cut off for others."""


class HttpServer:
    """Serves `routes` on the running event loop."""

    def __init__(
        self,
        routes: Mapping[str, Handler],
        *,
        limits: HttpLimits | None = None,
        clock: Clock | None = None,
        hosts: Collection[str] | None = None,
        credentials: HttpCredentials | None = None,
        open_paths: Collection[str] = (),
        fallback: Fallback | None = None,
    ) -> None:
        """`hosts` are the names of this machine, besides addresses and localhost; None allows all. With `credentials`,
        only `open_paths` are served to those who are not trusted. `fallback` answers what no route does.
        """
        self._fallback = fallback
        self._credentials = credentials
        self._open_paths = frozenset(open_paths)
        self._routes = dict(routes)
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._limits = limits or HttpLimits()
        self._clock = clock or SystemClock()
        self._servers: list[asyncio.Server] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._rejecting: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.StreamWriter, None] = {}  # for a request, the longest waiting one first
        # Responses being sent by route, with their start times, the oldest first.
        self._answering: dict[str, dict[asyncio.StreamWriter, float]] = {path: {} for path in self._routes}
        self._closing = False

    @property
    def connections(self) -> int:
        return len(self._serving)

    async def listen(self, host: str, port: int) -> int:
        """Listen on every address of `host` ("" is all); returns the port, a free one for 0."""
        bound, failure = port, "it has no address"
        try:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for address in dict.fromkeys(str(entry[4][0]) for entry in found):
                try:
                    # One by one, so that the port chosen for the first address is used for the others.
                    server = await asyncio.start_server(self._connected, address, bound, limit=self._limits.head_bytes)
                except OSError as error:
                    if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
                    failure = f"{address} is not an address of this machine"
                    continue
                self._servers.append(server)
                bound = server.sockets[0].getsockname()[1]
        except (OSError, OverflowError, UnicodeError) as error:
            self._stop_listening()
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                raise AddressInUse(host, bound, "another process listens there") from error
            raise CannotListen(host, port, getattr(error, "strerror", None) or str(error)) from error
        if not self._servers:
            raise CannotListen(host, port, failure)
        return bound

    async def close(self, grace_s: float = 1.0) -> None:
        """Stop accepting, close idle connections, and the others when answered or after `grace_s`."""
        self._closing = True
        self._stop_listening()
        for writer in self._waiting:
            writer.transport.abort()
        open_tasks = self._serving | self._rejecting
        if open_tasks:
            _, late = await asyncio.wait(open_tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _stop_listening(self) -> None:
        while self._servers:
            self._servers.pop().close()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        full = len(self._serving) >= self._limits.connections
        if full and self._waiting:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()
            full = False
        elif full and any(self._cut_slow(path) for path in self._answering):
            full = False
        if self._closing or (full and len(self._rejecting) >= self._limits.connections):
            writer.transport.abort()
            return
        tasks, talk = (self._rejecting, self._reject) if full else (self._serving, self._serve)
        # Written bytes are then held by the system, not here: a drain waits until all are handed over.
        writer.transport.set_write_buffer_limits(high=0)
        task = asyncio.get_running_loop().create_task(self._guarded(talk, reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    def _cut_slow(self, path: str) -> bool:
        """Cut off the oldest response of a route if it takes too long; whether it did."""
        answering = self._answering[path]
        oldest, since_ms = next(iter(answering.items()), (None, 0.0))
        if oldest is None or self._clock.monotonic_ms() - since_ms < self._limits.slow_s * 1000:
            return False
        del answering[oldest]
        oldest.transport.abort()
        return True

    async def _guarded(self, talk: _Talk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
            await _end(reader, writer)
        except (OSError, TimeoutError):
            pass  # The peer is gone, or too slow.
        except Exception:
            logger.exception("HTTP connection failed")

    async def _reject(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reply = _text_reply(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections; try again later")
        async with asyncio.timeout(self._limits.answer_s):
            await self._send(writer, None, reply._replace(headers=(("Retry-After", "1"),)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        goes_on = True
        while goes_on and not self._closing:
            try:
                head = await self._read_head(reader, writer)
                if not head:
                    return
                request = parse_request(head)
            except RejectedRequest as rejected:
                async with asyncio.timeout(self._limits.answer_s):
                    await self._send(writer, None, _text_reply(rejected.status, rejected.text))
                return
            if self._fallback is not None and request.path not in self._routes:
                await self._pass_on(self._fallback, request, reader, writer)
                return
            async with asyncio.timeout(self._limits.answer_s):
                goes_on = await self._answer(writer, request)

    async def _pass_on(
        self, fallback: Fallback, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Have a request answered elsewhere, if it may be served at all. An event stream has no time limit."""
        rejected = self._rejection(writer, request)
        if rejected is None:
            try:
                await fallback.pass_on(request, reader, writer)
                return
            except ConsoleError as error:
                rejected = _text_reply(error.status, error.text)
        async with asyncio.timeout(self._limits.answer_s):
            await self._send(writer, None, rejected)

    def _rejection(self, writer: asyncio.StreamWriter, request: HttpRequest) -> Reply | None:
        """The reply to a request that does not name this broker, or whose sender has not shown who it is."""
        if self._hosts is not None and not is_host_of(request.headers.get("host"), self._hosts):
            return _text_reply(HTTPStatus.MISDIRECTED_REQUEST, _NOT_HERE)
        if self._credentials is not None:
            peer = writer.get_extra_info("peername")
            if not self._credentials.trusts(request, str(peer[0]) if peer else ""):
                reply = _text_reply(HTTPStatus.UNAUTHORIZED, _NO_ACCESS)
                return reply._replace(headers=_CHALLENGE)
        return None

    async def _answer(self, writer: asyncio.StreamWriter, request: HttpRequest) -> bool:
        rejected = self._rejection(writer, request)
        if rejected is not None:
            if rejected.status != HTTPStatus.UNAUTHORIZED or request.path not in self._open_paths:
                return await self._send(writer, request, rejected)
            request = replace(request, is_trusted=False)
        answering = self._answering.get(request.path)
        if answering is None:
            return await self._send(writer, request, await self._reply(request))
        if len(answering) >= self._limits.answers_per_route and not self._cut_slow(request.path):
            text = f"{len(answering)} responses of {request.path} are being sent; try again later"
            reply = _text_reply(HTTPStatus.SERVICE_UNAVAILABLE, text)
            return await self._send(writer, request, reply._replace(headers=(("Retry-After", "1"),)))
        answering[writer] = self._clock.monotonic_ms()
        try:
            return await self._send(writer, request, await self._reply(request))
        finally:
            answering.pop(writer, None)

    async def _read_head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """The next head; empty if the peer disconnects or stays idle."""
        self._waiting[writer] = None
        try:
            try:
                async with asyncio.timeout(self._limits.idle_s):
                    first = await reader.read(1)
            except TimeoutError:
                return b""
            return first and await self._finish_head(reader, first)
        finally:
            self._waiting.pop(writer, None)

    async def _finish_head(self, reader: asyncio.StreamReader, first: bytes) -> bytes:
        try:
            async with asyncio.timeout(self._limits.head_s):
                if first == b"\r":  # Old clients send an empty line after a body.
                    first = (await reader.readexactly(2))[1:]
                return first + await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            raise RejectedRequest(HTTPStatus.REQUEST_TIMEOUT, "the request took too long to arrive") from None
        except asyncio.LimitOverrunError:
            text = f"the head of a request must not exceed {self._limits.head_bytes} bytes"
            raise RejectedRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text) from None
        except asyncio.IncompleteReadError:
            raise RejectedRequest(HTTPStatus.BAD_REQUEST, "the request is incomplete") from None

    async def _reply(self, request: HttpRequest) -> Reply:
        handler = self._routes.get(request.path)
        if handler is None:
            return _text_reply(HTTPStatus.NOT_FOUND, "not found; available: " + ", ".join(sorted(self._routes)))
        if request.method not in ("GET", "HEAD"):
            reply = _text_reply(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are supported")
            return reply._replace(headers=(("Allow", "GET, HEAD"),))
        try:
            return await handler(request)
        except Exception:
            logger.exception("HTTP request failed: path=%s", request.path)
            return _text_reply(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the broker's log")

    async def _send(self, writer: asyncio.StreamWriter, request: HttpRequest | None, reply: Reply) -> bool:
        """Whether the connection stays open; not after a rejected request (None)."""
        goes_on = request is not None and request.keeps_alive and not self._closing
        body = reply.body
        squeezed = request is not None and request.accepts_gzip
        headers = [("Date", formatdate(self._clock.now_ms() / 1000, usegmt=True)), ("Content-Type", reply.content_type)]
        chunked = False
        if isinstance(body, bytes):
            squeezed = squeezed and len(body) >= _GZIP_MIN_BYTES
            body = zlib.compress(body, _GZIP_LEVEL, _GZIP_WBITS) if squeezed else body
            headers.append(("Content-Length", str(len(body))))
        elif request is not None and request.minor_version >= 1:
            chunked = True
            headers.append(("Transfer-Encoding", "chunked"))
        else:
            goes_on = False  # The body ends with the connection.
        if squeezed:
            headers.append(("Content-Encoding", "gzip"))
        headers += [("Vary", "Accept-Encoding"), ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")]
        headers += [*reply.headers, ("Connection", "keep-alive" if goes_on else "close")]
        lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}", *(f"{k}: {v}" for k, v in headers)]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        wanted = request is None or request.method != "HEAD"
        if isinstance(body, bytes):
            writer.write(head + body if wanted else head)
        else:
            writer.write(head)
            await _stream(writer, body, wanted=wanted, chunked=chunked, squeezed=squeezed)
        await writer.drain()
        return goes_on


async def _stream(
    writer: asyncio.StreamWriter, body: AsyncIterator[bytes], *, wanted: bool, chunked: bool, squeezed: bool
) -> None:
    squeezer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS) if squeezed else None

    async def write(data: bytes) -> None:
        if data:  # An empty chunk would end the body.
            writer.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
            await writer.drain()

    try:
        if wanted:
            async for piece in body:
                await write(squeezer.compress(piece) if squeezer else piece)
            await write(squeezer.flush() if squeezer else b"")
            writer.write(b"0\r\n\r\n" if chunked else b"")
    finally:
        if isinstance(body, AsyncGenerator):
            await body.aclose()


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close so that the peer can still read the response: closing with unread bytes would reset the connection."""
    async with asyncio.timeout(_LINGER_S):
        writer.write_eof()
        unread = _LINGER_BYTES
        while unread > 0 and (data := await reader.read(64 * 1024)):
            unread -= len(data)


def _text_reply(status: HTTPStatus, text: str) -> Reply:
    return Reply(status, _TEXT, f"{text}\n".encode())


class Health(NamedTuple):
    """The health of a broker. A degraded one serves requests, but not all that it should; the reasons say why."""

    status: Literal["ok", "degraded", "starting", "stopping"]
    broker_id: int
    version: str
    uptime_s: float
    reasons: tuple[str, ...] = ()
    progress: Mapping[str, int] | None = None  # of a start


class HealthCheck:
    """Reads the health of a broker."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._started_ms = services.clock.monotonic_ms()
        self.loading: LogLoader | None = None
        """Set when the logs begin to load."""

    def __call__(self) -> Health:
        services, state = self._services, self._services.state
        uptime_s = round((services.clock.monotonic_ms() - self._started_ms) / 1000, 1)
        if state in (BrokerState.RUNNING, BrokerState.WITHDRAWN):
            reasons = tuple(_health_problems(services.replicas))
            status: Literal["ok", "degraded"] = "degraded" if reasons else "ok"
            return Health(status, services.node_id, __version__, uptime_s, reasons)
        if state is BrokerState.STOPPING:
            return Health("stopping", services.node_id, __version__, uptime_s)
        loading = self.loading
        progress = None if loading is None else {"logs_open": loading.done, "logs": loading.total}
        return Health("starting", services.node_id, __version__, uptime_s, progress=progress)


def _health_problems(replicas: ReplicaManager) -> Iterator[str]:
    for path, error in replicas.logs.offline.items():
        yield f"data folder {path} is offline: {error.reason}"
    not_created = replicas.not_created
    if not_created:
        (topic, index), reason = next(iter(not_created.items()))
        yield f"{len(not_created)} partitions cannot be created, {topic}-{index} among them: {reason}"


def known_hosts(services: Services, http_host: str) -> set[str] | None:
    """The names by which HTTP requests may call this broker; None is any."""
    settings = services.settings
    if "*" in settings.penstock_http_hosts:
        return None
    names = {settings.host_name, settings.host_name.partition(".")[0], http_host}
    return names | set(settings.penstock_http_hosts) | {each.host for each in services.advertised}


def health_route(read: Callable[[], Health]) -> Handler:
    """`/health`: 200 while the broker serves requests, else 503."""

    async def handle(request: HttpRequest) -> Reply:
        health = read()
        status = HTTPStatus.OK if health.status in ("ok", "degraded") else HTTPStatus.SERVICE_UNAVAILABLE
        fields = health._asdict()
        if health.progress is None:
            del fields["progress"]
        if not request.is_trusted:
            fields = {"status": health.status}
        return Reply(status, "application/json", json.dumps(fields).encode() + b"\n")

    return handle


def metrics_route(render: Callable[[frozenset[str]], Iterator[bytes]]) -> Handler:
    """`/metrics`: `render` returns the text in pieces, between which the loop serves others.

    With `?name=a,b` only those families are read and shown.
    """

    async def pieces(names: frozenset[str]) -> AsyncIterator[bytes]:
        for piece in render(names):
            yield piece
            await asyncio.sleep(0)

    async def handle(request: HttpRequest) -> Reply:
        given = parse_qs(request.query).get("name", [])
        names = frozenset(name for text in given for name in text.split(",") if name)
        return Reply(HTTPStatus.OK, METRICS_TYPE, pieces(names))

    return handle
