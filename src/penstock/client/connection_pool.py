"""Opening connections, and keeping one per node and lane.

Opening: resolve, connect, TLS if configured, then ApiVersions in version 3, or 0 if the broker rejects that. Brokers
before 0.10 do not know ApiVersions: 0.9.0.1 ignores it and answers the next request, others close the connection. A
broker that stays silent for 300 ms is probed with requests that old brokers know; a peer that hangs up counts as an
old broker only if it answers such a request. Every failure raises UnusableAddress with its cause and a hint.

Pooling: callers that ask while a connection is being opened share the attempt; after a failure the next attempt waits
for the backoff. Lanes keep a heartbeat from waiting behind a long poll, since a broker answers in order. Name
look-ups run in daemon threads of their own: an executor's threads would delay the exit of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import ssl as tls
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final, NamedTuple, TypeVar

from penstock.client.addresses import Address
from penstock.client.connection import Connection, IgnoredRequest
from penstock.client.errors import (
    Attempt,
    Cause,
    ClosedError,
    NotConnected,
    PenstockError,
    ProtocolViolation,
    RequestTimedOut,
    UnsupportedVersion,
)
from penstock.runtime.backoff import Backoff
from penstock.runtime.clock import Clock
from penstock.runtime.network import detect_protocol
from penstock.runtime.randomness import Random
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.schemas.list_groups import ListGroupsRequest
from penstock.wire.schemas.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.types import Message

T = TypeVar("T")


async def run_in_daemon_thread(work: Callable[[], T], name: str) -> T:
    """The result of `work`; cancelling leaves the thread to finish by itself, unheard."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            failure = error
        with suppress(RuntimeError):  # The loop has ended meanwhile.
            loop.call_soon_threadsafe(settle, result, failure)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:  # Threads cannot be started while the interpreter ends.
        raise ClosedError(f"cannot start a thread: {error}") from error
    return await future


async def resolve(host: str, port: int) -> list[str]:
    """The numeric addresses of a host, in the order in which to try them; raises socket.gaierror."""
    with suppress(ValueError):
        return [str(ip_address(host.partition("%")[0])) if "%" not in host else host]
    found = await run_in_daemon_thread(
        lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP), "penstock-dns"
    )
    return list(dict.fromkeys(_numeric(item) for item in found))


def _numeric(item: tuple[Any, ...]) -> str:
    address = item[4]
    host = str(address[0])
    # A link-local address means nothing without its interface.
    scope = address[3] if item[0] == socket.AF_INET6 and len(address) > 3 else 0
    return f"{host}%{scope}" if scope and "%" not in host else host


_UNREACHABLE = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.EADDRNOTAVAIL, errno.EACCES}
)

HINTS: dict[Cause, str] = {
    Cause.DNS: "Look for a typing mistake in the host, and at /etc/hosts and the DNS of this machine",
    Cause.REFUSED: "Nothing listens there: is the broker running, and is this its port?",
    Cause.CONNECT_TIMEOUT: "The host is down, or a firewall drops the packets",
    Cause.UNREACHABLE: "This machine has no route to the host: check the network, VPN and address family",
    Cause.TLS_REQUIRED: "The port speaks TLS: pass ssl=ssl.create_default_context(), or use the plaintext port",
    Cause.TLS_REFUSED: "The port does not speak TLS: leave ssl out, or use the TLS port",
    Cause.TLS_CERTIFICATE: "Load the authority with SSLContext.load_verify_locations, "
    "and use the host name that the certificate has",
    Cause.HTTP: "An HTTP server has this port; brokers usually listen on 9092",
    Cause.NOT_KAFKA: "Something else than a broker has this port; brokers usually listen on 9092",
    Cause.VERSION: "Use a broker of Kafka 0.9 or later",
    Cause.CLOSED: "It may want TLS or SASL, be starting or at its limit of connections, "
    "or be a balancer with no broker behind it",
    Cause.NO_ANSWER: "It accepts connections but does not speak: a hung broker, or no broker",
    Cause.ADVERTISED: "Set advertised.listeners of the broker to an address that its clients can reach",
    Cause.ZOOKEEPER: "Check the zookeeper:// address and its chroot, or give the brokers' own addresses",
}


class UnusableAddress(NotConnected):
    """An address that could not be used."""

    def __init__(self, address: str, cause: Cause, detail: str, hint: str | None = None) -> None:
        super().__init__(address, detail, hint=HINTS.get(cause, "") if hint is None else hint)
        self.cause = cause

    @property
    def attempt(self) -> Attempt:
        return Attempt(self.node, self.cause, self.reason, self.hint)


def connect_failure(address: Address, error: BaseException, timeout_ms: float, *, with_tls: bool) -> UnusableAddress:
    """Why no connection came about."""
    where = str(address)
    if isinstance(error, UnusableAddress):
        return error
    if isinstance(error, socket.gaierror):
        return UnusableAddress(
            where, Cause.DNS, f"the name {address.host!r} cannot be resolved ({error.strerror or error})"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return UnusableAddress(where, Cause.TLS_CERTIFICATE, f"its certificate is not accepted: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        if reason in {"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"}:
            return UnusableAddress(where, Cause.TLS_REFUSED, f"the answer to the TLS handshake is no TLS ({reason})")
        return UnusableAddress(where, Cause.OTHER, f"the TLS handshake failed: {reason}", "")
    if isinstance(error, ConnectionRefusedError):
        return UnusableAddress(where, Cause.REFUSED, "connection refused")
    if isinstance(error, TimeoutError):
        return UnusableAddress(where, Cause.CONNECT_TIMEOUT, f"no connection within {timeout_ms:.0f} ms")
    if isinstance(error, ConnectionError) and with_tls:
        return UnusableAddress(where, Cause.TLS_REFUSED, f"the connection ended in the TLS handshake ({error})")
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return UnusableAddress(where, Cause.UNREACHABLE, f"cannot be reached ({error.strerror or error})")
    if isinstance(error, ConnectionError):
        return UnusableAddress(where, Cause.CLOSED, f"the connection was reset ({error})")
    return UnusableAddress(where, Cause.OTHER, str(error) or type(error).__name__, "")


_FOREIGN_CAUSES: Final = {"TLS": Cause.TLS_REQUIRED, "HTTP": Cause.HTTP}


def handshake_failure(address: Address, error: PenstockError, first_bytes: bytes) -> UnusableAddress:
    """Why a connection is no broker's."""
    where = str(address)
    known = detect_protocol(first_bytes)
    if known is not None:
        return UnusableAddress(where, _FOREIGN_CAUSES.get(known.family, Cause.NOT_KAFKA), f"the answer is {known.name}")
    if isinstance(error, RequestTimedOut):
        return UnusableAddress(where, Cause.NO_ANSWER, f"connected, but no answer to {error.request}")
    if isinstance(error, ProtocolViolation) or first_bytes:
        shown = first_bytes[:8].hex(" ") if first_bytes else "nothing"
        return UnusableAddress(where, Cause.NOT_KAFKA, f"the answer is not Kafka's (it begins with {shown})")
    return UnusableAddress(where, Cause.CLOSED, "it accepted the connection and closed it without an answer")


VersionRanges = dict[int, tuple[int, int]]


class LegacyBroker(NamedTuple):
    """A generation of brokers: how to recognise it, and the versions that it serves."""

    name: str
    probe_key: ApiKey
    probe: Message
    versions: VersionRanges


_SINCE_0_8: Final[VersionRanges] = {
    ApiKey.PRODUCE: (0, 0),
    ApiKey.FETCH: (0, 0),
    ApiKey.LIST_OFFSETS: (0, 0),
    ApiKey.METADATA: (0, 0),
    ApiKey.OFFSET_COMMIT: (0, 1),
    ApiKey.OFFSET_FETCH: (0, 1),
    ApiKey.FIND_COORDINATOR: (0, 0),
}

_SINCE_0_9: Final[VersionRanges] = {
    ApiKey.PRODUCE: (0, 1),
    ApiKey.FETCH: (0, 1),
    ApiKey.LIST_OFFSETS: (0, 0),
    ApiKey.METADATA: (0, 0),
    ApiKey.OFFSET_COMMIT: (0, 2),
    ApiKey.OFFSET_FETCH: (0, 1),
    ApiKey.FIND_COORDINATOR: (0, 0),
    ApiKey.JOIN_GROUP: (0, 0),
    ApiKey.HEARTBEAT: (0, 0),
    ApiKey.LEAVE_GROUP: (0, 0),
    ApiKey.SYNC_GROUP: (0, 0),
    ApiKey.DESCRIBE_GROUPS: (0, 0),
    ApiKey.LIST_GROUPS: (0, 0),
}

# Newest first; the last one's probe is known to all. A topic name that cannot exist keeps it from asking for all topics
# or making one.
LEGACY_BROKERS: Final = (
    LegacyBroker("0.9", ApiKey.LIST_GROUPS, ListGroupsRequest(), _SINCE_0_9),
    LegacyBroker("0.8", ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name="?")]), _SINCE_0_8),
)


SOFTWARE_NAME: Final = "penstock"
_FIRST_TRIED: Final = 3
# How long a broker may be silent before it is asked what only an old one would answer alone.
_SILENCE_MS: Final = 300


class ConnectionOptions(NamedTuple):
    """How connections are opened."""

    client_id: str | None = "penstock"
    connect_timeout_ms: float = 10_000
    request_timeout_ms: float = 30_000
    ssl: tls.SSLContext | None = None


async def open_connection(address: Address, way: ConnectionOptions, *, maybe_old: bool = False) -> Connection:
    """A connection, ready for requests; raises Unusable. `maybe_old` saves the wait where a broker was old before."""
    connection = await _connect(address, way)
    try:
        if await _agreed(connection, address, way, maybe_old=maybe_old):
            return connection
    finally:
        if not connection.versions:
            connection.abort()
    return await _open_old(address, way)


async def _agreed(connection: Connection, address: Address, way: ConnectionOptions, *, maybe_old: bool = False) -> bool:
    """Whether versions are agreed on; False if the peer closed the connection without a byte. Raises Unusable."""
    try:
        await _agree(connection, way, 0 if maybe_old else _SILENCE_MS)
    except UnsupportedVersion as error:
        raise UnusableAddress(str(address), Cause.VERSION, error.message) from error
    except PenstockError as error:
        if isinstance(error, NotConnected) and not connection.first_bytes:
            return False
        raise handshake_failure(address, error, connection.first_bytes) from error
    return True


async def _agree(connection: Connection, way: ConnectionOptions, silence_ms: float) -> None:
    timeout_ms = _handshake_ms(way)
    request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=_version())
    asked = _sent(connection, ApiKey.API_VERSIONS, request, _FIRST_TRIED, timeout_ms)
    await asyncio.wait((asked,), timeout=silence_ms / 1000)
    if not asked.done():
        era = await _detect_legacy_broker(connection, asked, timeout_ms)
        if era is not None:
            connection.agree(((key, *versions) for key, versions in era.versions.items()), era.name)
            return
    answer: ApiVersionsResponse = await asked
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        answer = await connection.request(ApiKey.API_VERSIONS, ApiVersionsRequest(), version=0, timeout_ms=timeout_ms)
    if answer.error_code:
        raise UnsupportedVersion(connection.node, "ApiVersions", (0, _FIRST_TRIED), None)
    connection.agree((api.api_key, api.min_version, api.max_version) for api in answer.api_keys)
    connection.version_of(ApiKey.METADATA)


async def _detect_legacy_broker(
    connection: Connection, asked: asyncio.Future[Any], timeout_ms: float
) -> LegacyBroker | None:
    """Ask what every era knows, newest first; None if the broker is none of them, or has answered by now."""
    probes = [_sent(connection, era.probe_key, era.probe, 0, timeout_ms) for era in LEGACY_BROKERS]
    # The last is known to all, and by its answer it is known which of the others were passed over.
    await asyncio.wait((asked, probes[-1]), return_when=asyncio.FIRST_COMPLETED)
    answered = [probe.done() and probe.exception() is None for probe in probes]
    if not (asked.done() and isinstance(asked.exception(), IgnoredRequest)):
        return None
    return next((era for era, known in zip(LEGACY_BROKERS, answered, strict=True) if known), None)


def _sent(
    connection: Connection, api_key: ApiKey, message: Message, version: int, timeout_ms: float
) -> asyncio.Future[Any]:
    future = connection.send(api_key, message, version=version, timeout_ms=timeout_ms)
    if future is None:
        raise PenstockError("a request that is to be answered has no future")
    future.add_done_callback(_mark_retrieved)
    return future


def _mark_retrieved(future: asyncio.Future[Any]) -> None:
    """An answer that is not waited for any more must not be reported as unheard."""
    if not future.cancelled():
        future.exception()


def _version() -> str:
    from penstock import __version__

    return __version__


_CLOSED_TLS_HINT: Final = (
    "It may want a certificate of the client (SSLContext.load_cert_chain; ssl.certificate.location of the command) or "
    "SASL, be starting, or be at its limit of connections"
)


async def _open_old(address: Address, way: ConnectionOptions) -> Connection:
    """A peer that hung up when it was asked for its versions: an old broker, or anything else that hangs up."""
    for era in LEGACY_BROKERS:
        connection = await _connect(address, way)
        try:
            if not await _answers(connection, era, way):
                continue
            # It speaks Kafka. If it answers now then it hung up for another reason, or another did, behind a balancer.
            if await _agreed(connection, address, way):
                return connection
        finally:
            if not connection.versions:
                connection.abort()
        connection = await _connect(address, way)
        connection.agree(((key, *versions) for key, versions in era.versions.items()), era.name)
        return connection
    if way.ssl is None and await _speaks_tls(address, way):
        raise UnusableAddress(str(address), Cause.TLS_REQUIRED, "it closes plaintext connections and answers TLS")
    if way.ssl is not None:
        # In TLS 1.3 a server looks at the client's certificate only after the client is done with the handshake.
        closed = "it accepts TLS connections and closes them without an answer"
        raise UnusableAddress(str(address), Cause.CLOSED, closed, _CLOSED_TLS_HINT)
    raise UnusableAddress(str(address), Cause.CLOSED, "it accepts connections and closes them without an answer")


async def _answers(connection: Connection, era: LegacyBroker, way: ConnectionOptions) -> bool:
    try:
        await connection.request(era.probe_key, era.probe, version=0, timeout_ms=_handshake_ms(way))
    except PenstockError:
        return False
    return True


async def _speaks_tls(address: Address, way: ConnectionOptions) -> bool:
    """Only to say so in an error, so it does not matter whether the certificate is any good."""
    context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = tls.CERT_NONE
    try:
        connection = await _connect(address, way._replace(ssl=context))
    except UnusableAddress as error:
        return isinstance(error.__cause__, tls.SSLError) and error.cause is not Cause.TLS_REFUSED
    connection.abort()
    return True


def _handshake_ms(way: ConnectionOptions) -> float:
    return min(way.request_timeout_ms, way.connect_timeout_ms)


async def _connect(address: Address, way: ConnectionOptions) -> Connection:
    """A connection on which nothing was said yet."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + way.connect_timeout_ms / 1000
    failure: BaseException | None = None
    try:
        async with asyncio.timeout_at(deadline):
            hosts = await resolve(address.host, address.port)
    except (OSError, PenstockError) as error:
        raise connect_failure(address, error, way.connect_timeout_ms, with_tls=False) from error
    for number, host in enumerate(hosts):
        connection = Connection(str(address), client_id=way.client_id, loop=loop)
        # A name with several addresses shares the time between them.
        until = loop.time() + (deadline - loop.time()) / (len(hosts) - number)
        try:
            async with asyncio.timeout_at(until):
                await loop.create_connection(
                    lambda made=connection: made,
                    host,
                    address.port,
                    ssl=way.ssl,
                    server_hostname=address.host if way.ssl is not None else None,
                )
        except OSError as error:
            failure = error
        else:
            return connection
        with contextlib.suppress(asyncio.InvalidStateError):
            connection.abort("no connection")
    if failure is None:
        failure = OSError("the name has no address")
    raise connect_failure(address, failure, way.connect_timeout_ms, with_tls=way.ssl is not None) from failure


_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_MS = 1_000
_GONE = "the broker has left the cluster or changed its address"


class ConnectionKey(NamedTuple):
    node_id: int
    lane: str


class _PooledConnection:
    __slots__ = ("address", "backoff", "connection", "opening")

    def __init__(self, address: Address, backoff: Backoff) -> None:
        self.address = address
        self.backoff = backoff
        self.connection: Connection | None = None
        self.opening: asyncio.Task[Connection] | None = None


class ConnectionPool:
    """All links of one client."""

    def __init__(
        self, way: ConnectionOptions, clock: Clock, random: Random, retry_backoff_ms: float, retry_backoff_max_ms: float
    ) -> None:
        self._way = way
        self._clock = clock
        self._random = random
        self._backoff_ms = retry_backoff_ms
        self._backoff_max_ms = retry_backoff_max_ms
        self._links: dict[ConnectionKey, _PooledConnection] = {}
        self._old: set[Address] = set()
        self._closed = False
        self.on_silence: Callable[[int], None] = _ignore_silence
        """Called with the id of a node that leaves requests unanswered, again and again while it does."""

    def connections(self, lane: str | None = None) -> Iterator[tuple[ConnectionKey, Connection]]:
        """Those that are open."""
        for key, link in self._links.items():
            if link.connection is not None and not link.connection.closed and lane in (None, key.lane):
                yield key, link.connection

    @property
    def count(self) -> int:
        """How many are open; from any thread."""
        links = list(self._links.values())
        return sum(link.connection is not None and not link.connection.closed for link in links)

    def waits(self, key: ConnectionKey) -> bool:
        """Whether the link failed and its backoff is not over."""
        link = self._links.get(key)
        return link is not None and link.backoff.remaining_ms(self._clock.monotonic_ms()) > 0

    def adopt(self, key: ConnectionKey, address: Address, connection: Connection) -> None:
        """Use a connection that was opened elsewhere."""
        self._drop(key)
        link = self._links[key] = _PooledConnection(address, self._new_backoff())
        self._use(key, link, connection)

    def _use(self, key: ConnectionKey, link: _PooledConnection, connection: Connection) -> None:
        link.connection = connection
        connection.on_silence = lambda: self.on_silence(key.node_id)
        if connection.era is None:
            self._old.discard(link.address)
        else:
            self._old.add(link.address)

    async def get(self, key: ConnectionKey, address: Address) -> Connection:
        """The connection of a link, opened if need be; raises diagnosis.Unusable."""
        link = self._links.get(key)
        if link is not None and link.address == address:
            connection = link.connection
            if connection is not None and not connection.closed:
                return connection
        else:
            self._drop(key)
            if self._closed:
                raise ClosedError("the client is closed")
            link = self._links[key] = _PooledConnection(address, self._new_backoff())
        if link.opening is None:
            if self._closed:
                raise ClosedError("the client is closed")
            link.opening = asyncio.ensure_future(self._open(key, link))
            link.opening.add_done_callback(_mark_open_retrieved)
        try:
            return await shared(link.opening)
        except ClosedError:
            if self._closed:
                raise
        return self._instead(key, address)

    def _instead(self, key: ConnectionKey, address: Address) -> Connection:
        """What there is in the place of a link that was dropped while it was opened."""
        link = self._links.get(key)
        connection = link.connection if link is not None and link.address == address else None
        if connection is None or connection.closed:
            raise NotConnected(str(address), _GONE)
        return connection

    async def _open(self, key: ConnectionKey, link: _PooledConnection) -> Connection:
        try:
            wait_ms = link.backoff.remaining_ms(self._clock.monotonic_ms())
            if wait_ms:
                await asyncio.sleep(wait_ms / 1000)
            try:
                connection = await open_connection(link.address, self._way, maybe_old=link.address in self._old)
            except PenstockError as error:
                link.backoff.failed(self._clock.monotonic_ms())
                _log.debug("cannot open a connection: %s", error)
                raise
            link.backoff.succeeded()
            self._use(key, link, connection)
            return connection
        finally:
            link.opening = None

    def keep_only(self, addresses: dict[int, Address]) -> None:
        """Close links to nodes that are gone or have moved."""
        for key, link in list(self._links.items()):
            if addresses.get(key.node_id) != link.address:
                self._drop(key)

    def _new_backoff(self) -> Backoff:
        return Backoff(self._backoff_ms, self._backoff_max_ms, self._random)

    def _drop(self, key: ConnectionKey) -> None:
        link = self._links.pop(key, None)
        if link is None:
            return
        if link.opening is not None:
            link.opening.cancel()
        if link.connection is not None:
            link.connection.close(_GONE)

    async def close(self) -> None:
        self._closed = True
        links, self._links = list(self._links.values()), {}
        openings = [link.opening for link in links if link.opening is not None]
        for opening in openings:
            opening.cancel()
        if openings:
            await asyncio.wait(openings)
        connections = [link.connection for link in links if link.connection is not None]
        for connection in connections:
            connection.close("the client was closed")
        await asyncio.gather(*(connection.wait_closed(_CLOSE_TIMEOUT_MS) for connection in connections))


def _ignore_silence(_: int) -> None:
    """Until somebody looks after the nodes."""


def _mark_open_retrieved(task: asyncio.Task[Connection]) -> None:
    """Whoever wanted the result may have gone; its failure must not be reported as unheard."""
    if not task.cancelled():
        task.exception()


async def shared(task: asyncio.Task[T]) -> T:
    """The result of a task that others wait for too: our being cancelled does not cancel it, its being cancelled is
    no cancellation of ours."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        own = asyncio.current_task()
        if task.cancelled() and not (own is not None and own.cancelling()):
            raise ClosedError("the client was closed meanwhile") from None
        raise


async def first_of(
    makers: Sequence[Callable[[], Awaitable[T]]], *, stagger_ms: float, discard: Callable[[T], object] | None = None
) -> tuple[int, T] | list[PenstockError]:
    """The first that succeeds, and which; or why each failed. The next is begun when one fails, or after a while.

    What succeeds too late is given to `discard`.
    """
    running: dict[asyncio.Future[T], int] = {}
    failures: dict[int, PenstockError] = {}
    begun = 0
    try:
        while begun < len(makers) or running:
            if begun < len(makers):
                running[asyncio.ensure_future(makers[begun]())] = begun
                begun += 1
            timeout = stagger_ms / 1000 if begun < len(makers) else None
            done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                number = running.pop(future)
                try:
                    return number, future.result()
                except PenstockError as error:
                    failures[number] = error
        return [failures[number] for number in sorted(failures)]
    finally:
        late = list(running)
        for future in late:
            future.cancel()
        if late:
            await asyncio.wait(late)
        for future in late:
            if not future.cancelled() and future.exception() is None and discard is not None:
                discard(future.result())
