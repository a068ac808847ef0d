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
import ssl as tls
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

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

if TYPE_CHECKING:
    from penstock.client.security import Contexts, Login

T = TypeVar("T")
VersionRanges = dict[int, tuple[int, int]]
SOFTWARE_NAME: Final = "penstock"
HINTS: dict[Cause, str] = {
    Cause.DNS: "Check the spelling of the host, /etc/hosts and the DNS settings of this machine",
    Cause.REFUSED: "Nothing listens there: is the broker running, and is this its port?",
    Cause.CONNECT_TIMEOUT: "The host is down, or a firewall drops the packets",
    Cause.UNREACHABLE: "This machine has no route to the host: check the network, VPN and address family",
    Cause.TLS_REQUIRED: "The port speaks TLS: set security_protocol to SSL or SASL_SSL, or use the plaintext port",
    Cause.TLS_REFUSED: "The port does not speak TLS: use another security_protocol, or the TLS port",
    Cause.TLS_CERTIFICATE: "Set ssl_truststore_location to the file of the certificate authority, "
    "and use the host name that the certificate has",
    Cause.HTTP: "An HTTP server listens on this port; brokers usually listen on 9092",
    Cause.NOT_KAFKA: "Another server listens on this port; brokers usually listen on 9092",
    Cause.VERSION: "Use a broker of Kafka 0.9 or later",
    Cause.CLOSED: "It may require TLS or SASL, be starting, be at its connection limit, "
    "or be a load balancer without a broker",
    Cause.NO_ANSWER: "It accepts connections but does not answer: a hung broker, or not a broker",
    Cause.ADVERTISED: "Set advertised.listeners of the broker to an address that its clients can reach",
    Cause.ZOOKEEPER: "Check the zookeeper:// address and its chroot, or use the brokers' own addresses",
}

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_MS = 1_000
_GONE = "the broker has left the cluster or changed its address"
_API_VERSIONS_VERSION: Final = 3
# How long a broker may be silent before it is probed with a request that old brokers answer.
_SILENCE_MS: Final = 300
_CLOSED_TLS_HINT: Final = (
    "It may require a client certificate (ssl_keystore_location) or SASL (security_protocol=SASL_SSL), be starting, or "
    "be at its connection limit"
)
_UNREACHABLE = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.EADDRNOTAVAIL, errno.EACCES}
)
_FOREIGN_CAUSES: Final = {"TLS": Cause.TLS_REQUIRED, "HTTP": Cause.HTTP}


# --------------------------------------------------------------------------------------------------- pool


class ConnectionOptions(NamedTuple):
    """How connections are opened."""

    client_id: str | None = "penstock"
    connect_timeout_ms: float = 10_000
    request_timeout_ms: float = 30_000
    ssl: Contexts | None = None
    login: Login | None = None

    @property
    def security_protocol(self) -> str:
        return ("SASL_" if self.login is not None else "") + ("PLAINTEXT" if self.ssl is None else "SSL")


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
    """All connections of one client."""

    def __init__(
        self,
        options: ConnectionOptions,
        clock: Clock,
        random: Random,
        retry_backoff_ms: float,
        retry_backoff_max_ms: float,
    ) -> None:
        self._options = options
        self._clock = clock
        self._random = random
        self._backoff_ms = retry_backoff_ms
        self._backoff_max_ms = retry_backoff_max_ms
        self._pooled: dict[ConnectionKey, _PooledConnection] = {}
        self._old: set[Address] = set()
        self._closed = False
        self.on_silence: Callable[[int], None] = _ignore_silence
        """Called with the id of a node while it leaves requests unanswered, repeatedly."""

    def connections(self, lane: str | None = None) -> Iterator[tuple[ConnectionKey, Connection]]:
        """The open connections."""
        for key, entry in self._pooled.items():
            if entry.connection is not None and not entry.connection.closed and lane in (None, key.lane):
                yield key, entry.connection

    @property
    def count(self) -> int:
        """The number of open connections; may be called from any thread."""
        pooled = list(self._pooled.values())
        return sum(entry.connection is not None and not entry.connection.closed for entry in pooled)

    def waits(self, key: ConnectionKey) -> bool:
        """Whether opening it failed and its backoff is not over."""
        entry = self._pooled.get(key)
        return entry is not None and entry.backoff.remaining_ms(self._clock.monotonic_ms()) > 0

    def adopt(self, key: ConnectionKey, address: Address, connection: Connection) -> None:
        """Use a connection that was opened elsewhere."""
        self._drop(key)
        entry = self._pooled[key] = _PooledConnection(address, self._new_backoff())
        self._use(key, entry, connection)

    def _use(self, key: ConnectionKey, entry: _PooledConnection, connection: Connection) -> None:
        entry.connection = connection
        connection.on_silence = lambda: self.on_silence(key.node_id)
        if connection.legacy_release is None:
            self._old.discard(entry.address)
        else:
            self._old.add(entry.address)

    async def get(self, key: ConnectionKey, address: Address) -> Connection:
        """The connection to a node in a lane, opened if necessary; raises UnusableAddress."""
        entry = self._pooled.get(key)
        if entry is not None and entry.address == address:
            connection = entry.connection
            if connection is not None and not connection.closed:
                return connection
        else:
            self._drop(key)
            if self._closed:
                raise ClosedError("the client is closed")
            entry = self._pooled[key] = _PooledConnection(address, self._new_backoff())
        if entry.opening is None:
            if self._closed:
                raise ClosedError("the client is closed")
            entry.opening = asyncio.create_task(self._open(key, entry))
            entry.opening.add_done_callback(_mark_retrieved)
        try:
            return await shared(entry.opening)
        except ClosedError:
            if self._closed:
                raise
        return self._instead(key, address)

    def _instead(self, key: ConnectionKey, address: Address) -> Connection:
        """The connection that replaced one that was dropped while it was being opened."""
        entry = self._pooled.get(key)
        connection = entry.connection if entry is not None and entry.address == address else None
        if connection is None or connection.closed:
            raise NotConnected(str(address), _GONE)
        return connection

    async def _open(self, key: ConnectionKey, entry: _PooledConnection) -> Connection:
        try:
            wait_ms = entry.backoff.remaining_ms(self._clock.monotonic_ms())
            if wait_ms:
                await asyncio.sleep(wait_ms / 1000)
            try:
                connection = await open_connection(entry.address, self._options, maybe_old=entry.address in self._old)
            except PenstockError as error:
                entry.backoff.failed(self._clock.monotonic_ms())
                _log.debug("connection failed: address=%s error=%s", entry.address, error)
                raise
            entry.backoff.succeeded()
            self._use(key, entry, connection)
            return connection
        finally:
            entry.opening = None

    def keep_only(self, addresses: dict[int, Address]) -> None:
        """Close connections to nodes that have left or moved."""
        for key, entry in list(self._pooled.items()):
            if addresses.get(key.node_id) != entry.address:
                self._drop(key)

    def _new_backoff(self) -> Backoff:
        return Backoff(self._backoff_ms, self._backoff_max_ms, self._random)

    def _drop(self, key: ConnectionKey) -> None:
        entry = self._pooled.pop(key, None)
        if entry is None:
            return
        if entry.opening is not None:
            entry.opening.cancel()
        if entry.connection is not None:
            entry.connection.close(_GONE)

    async def close(self) -> None:
        self._closed = True
        pooled, self._pooled = list(self._pooled.values()), {}
        openings = [entry.opening for entry in pooled if entry.opening is not None]
        for opening in openings:
            opening.cancel()
        if openings:
            await asyncio.wait(openings)
        connections = [entry.connection for entry in pooled if entry.connection is not None]
        for connection in connections:
            connection.close("the client was closed")
        await asyncio.gather(*(connection.wait_closed(_CLOSE_TIMEOUT_MS) for connection in connections))


def _ignore_silence(_: int) -> None:
    """The default of `on_silence`."""


def _mark_retrieved(future: asyncio.Future[Any]) -> None:
    """A failure that no caller waits for any more must not be logged as never retrieved."""
    if not future.cancelled():
        future.exception()


async def shared(task: asyncio.Task[T]) -> T:
    """The result of a task that others wait for, too. Cancelling the caller does not cancel the task; if the task is
    cancelled, the caller gets ClosedError."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        own = asyncio.current_task()
        if task.cancelled() and not (own is not None and own.cancelling()):
            raise ClosedError("the client was closed meanwhile") from None
        raise


async def first_of(
    makers: Sequence[Callable[[], Coroutine[Any, Any, T]]],
    *,
    stagger_ms: float,
    discard: Callable[[T], object] | None = None,
) -> tuple[int, T] | list[PenstockError]:
    """The first success and its index, or the error of each. The next one starts when one fails, or after
    `stagger_ms`; later successes are passed to `discard`."""
    running: dict[asyncio.Future[T], int] = {}
    failures: dict[int, PenstockError] = {}
    begun = 0
    try:
        while begun < len(makers) or running:
            if begun < len(makers):
                running[asyncio.create_task(makers[begun]())] = begun
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


# --------------------------------------------------------------------------------------------------- opening


async def open_connection(address: Address, options: ConnectionOptions, *, maybe_old: bool = False) -> Connection:
    """A connection, ready for requests; raises UnusableAddress. `maybe_old` saves the wait for a broker that was old
    before."""
    connection = await _connect(address, options)
    try:
        if await _agreed(connection, address, options, maybe_old=maybe_old):
            if options.login is not None:
                await _log_in(connection, options.login, options)
            return connection
    finally:
        if not connection.versions:
            connection.abort()
    if options.login is not None:
        raise await _closed_without_answer(address, options)  # old brokers have no SASL
    return await _open_old(address, options)


async def _log_in(connection: Connection, login: Login, options: ConnectionOptions) -> None:
    # Imported here because it takes time, and plaintext clients do not need it.
    from penstock.client.security import authenticate

    try:
        await authenticate(connection, login, _handshake_ms(options))
    except BaseException:
        connection.abort()
        raise


async def _agreed(
    connection: Connection, address: Address, options: ConnectionOptions, *, maybe_old: bool = False
) -> bool:
    """Whether versions are known; False if the peer closed the connection without a byte. Raises UnusableAddress."""
    try:
        await _agree(connection, options, 0 if maybe_old else _SILENCE_MS)
    except UnsupportedVersion as error:
        raise UnusableAddress(str(address), Cause.VERSION, error.message) from error
    except PenstockError as error:
        if isinstance(error, NotConnected) and not connection.first_bytes:
            return False
        raise handshake_failure(address, error, connection.first_bytes) from error
    return True


async def _agree(connection: Connection, options: ConnectionOptions, silence_ms: float) -> None:
    timeout_ms = _handshake_ms(options)
    request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=_version())
    asked = _sent(connection, ApiKey.API_VERSIONS, request, _API_VERSIONS_VERSION, timeout_ms)
    await asyncio.wait((asked,), timeout=silence_ms / 1000)
    if not asked.done():
        legacy = await _detect_legacy_broker(connection, asked, timeout_ms)
        if legacy is not None:
            connection.agree(((key, *versions) for key, versions in legacy.versions.items()), legacy.name)
            return
    answer: ApiVersionsResponse = await asked
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        answer = await connection.request(ApiKey.API_VERSIONS, ApiVersionsRequest(), version=0, timeout_ms=timeout_ms)
    if answer.error_code:
        raise UnsupportedVersion(connection.node, "ApiVersions", (0, _API_VERSIONS_VERSION), None)
    connection.agree(
        ((api.api_key, api.min_version, api.max_version) for api in answer.api_keys),
        features={feature.name: feature.max_version_level for feature in answer.finalized_features},
    )
    connection.version_of(ApiKey.METADATA)


def _sent(
    connection: Connection, api_key: ApiKey, message: Message, version: int, timeout_ms: float
) -> asyncio.Future[Any]:
    future = connection.send(api_key, message, version=version, timeout_ms=timeout_ms)
    if future is None:
        raise PenstockError("a request that expects a response has no future")
    future.add_done_callback(_mark_retrieved)
    return future


def _version() -> str:
    from penstock import __version__

    return __version__


def _handshake_ms(options: ConnectionOptions) -> float:
    return min(options.request_timeout_ms, options.connect_timeout_ms)


async def _connect(address: Address, options: ConnectionOptions) -> Connection:
    """A connection on which nothing was sent yet."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + options.connect_timeout_ms / 1000
    failure: BaseException | None = None
    try:
        async with asyncio.timeout_at(deadline):
            hosts = await resolve(address.host, address.port)
    except (OSError, PenstockError) as error:
        raise connect_failure(address, error, options.connect_timeout_ms, with_tls=False) from error
    context = _context_for(options)
    for number, host in enumerate(hosts):
        connection = Connection(str(address), client_id=options.client_id, loop=loop)
        # A name with several addresses shares the time between them.
        until = loop.time() + (deadline - loop.time()) / (len(hosts) - number)
        try:
            async with asyncio.timeout_at(until):
                await loop.create_connection(
                    lambda made=connection: made,
                    host,
                    address.port,
                    ssl=context,
                    server_hostname=address.host if context is not None else None,
                )
        except OSError as error:
            failure = error
        else:
            return connection
        with contextlib.suppress(asyncio.InvalidStateError):
            connection.abort("no connection")
    if failure is None:
        failure = OSError("the name has no address")
    raise connect_failure(address, failure, options.connect_timeout_ms, with_tls=options.ssl is not None) from failure


def _context_for(options: ConnectionOptions) -> tls.SSLContext | None:
    """The context for a new connection; changed certificate files are loaded again."""
    if options.ssl is None or isinstance(options.ssl, tls.SSLContext):
        return options.ssl
    options.ssl.reload()
    return options.ssl()


async def resolve(host: str, port: int) -> list[str]:
    """The numeric addresses of a host, in the order in which to try them; raises socket.gaierror."""
    with contextlib.suppress(ValueError):
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


async def run_in_daemon_thread(work: Callable[[], T], name: str) -> T:
    """The result of `work`; after a cancellation the thread finishes by itself."""
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
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, failure)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:  # Threads cannot be started while the interpreter ends.
        raise ClosedError(f"cannot start a thread: {error}") from error
    return await future


# --------------------------------------------------------------------------------------------------- old brokers


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

# Newest first; all know the last one's probe. Its topic name cannot exist: it neither lists all topics nor creates one.
LEGACY_BROKERS: Final = (
    LegacyBroker("0.9", ApiKey.LIST_GROUPS, ListGroupsRequest(), _SINCE_0_9),
    LegacyBroker("0.8", ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name="?")]), _SINCE_0_8),
)


async def _detect_legacy_broker(
    connection: Connection, asked: asyncio.Future[Any], timeout_ms: float
) -> LegacyBroker | None:
    """Send the probe of each release, newest first; None if the broker is none of them, or has answered by now."""
    probes = [_sent(connection, legacy.probe_key, legacy.probe, 0, timeout_ms) for legacy in LEGACY_BROKERS]
    # All releases answer the last one, and its response shows which of the others were ignored.
    await asyncio.wait((asked, probes[-1]), return_when=asyncio.FIRST_COMPLETED)
    answered = [probe.done() and probe.exception() is None for probe in probes]
    if not (asked.done() and isinstance(asked.exception(), IgnoredRequest)):
        return None
    return next((legacy for legacy, known in zip(LEGACY_BROKERS, answered, strict=True) if known), None)


async def _open_old(address: Address, options: ConnectionOptions) -> Connection:
    """The peer closed the connection on ApiVersions: an old broker, or anything else that hangs up."""
    for legacy in LEGACY_BROKERS:
        connection = await _connect(address, options)
        try:
            if not await _answers(connection, legacy, options):
                continue
            # It is a broker. If it knows ApiVersions now, it hung up for another reason, or there is a load balancer.
            if await _agreed(connection, address, options):
                return connection
            if connection.was_reset:  # An old broker would close it in good order. This one ended, or the network did.
                break
        finally:
            if not connection.versions:
                connection.abort()
        connection = await _connect(address, options)
        connection.agree(((key, *versions) for key, versions in legacy.versions.items()), legacy.name)
        return connection
    raise await _closed_without_answer(address, options)


async def _closed_without_answer(address: Address, options: ConnectionOptions) -> UnusableAddress:
    if options.ssl is None and await _speaks_tls(address, options):
        return UnusableAddress(str(address), Cause.TLS_REQUIRED, "it closes plaintext connections and answers TLS")
    if options.ssl is not None:
        # In TLS 1.3 a server checks the client certificate only after the client has finished the handshake.
        closed = "it accepts TLS connections and closes them without an answer"
        return UnusableAddress(str(address), Cause.CLOSED, closed, _CLOSED_TLS_HINT)
    return UnusableAddress(str(address), Cause.CLOSED, "it accepts connections and closes them without an answer")


async def _answers(connection: Connection, legacy: LegacyBroker, options: ConnectionOptions) -> bool:
    try:
        await connection.request(legacy.probe_key, legacy.probe, version=0, timeout_ms=_handshake_ms(options))
    except PenstockError:
        return False
    return True


async def _speaks_tls(address: Address, options: ConnectionOptions) -> bool:
    """Only for an error message, so the certificate does not matter."""
    context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = tls.CERT_NONE
    try:
        connection = await _connect(address, options._replace(ssl=context, login=None))
    except UnusableAddress as error:
        return isinstance(error.__cause__, tls.SSLError) and error.cause is not Cause.TLS_REFUSED
    connection.abort()
    return True


# --------------------------------------------------------------------------------------------------- failures


class UnusableAddress(NotConnected):
    """An address that could not be used."""

    def __init__(self, address: str, cause: Cause, detail: str, hint: str | None = None) -> None:
        super().__init__(address, detail, hint=HINTS.get(cause, "") if hint is None else hint)
        self.cause = cause

    @property
    def attempt(self) -> Attempt:
        return Attempt(self.node, self.cause, self.reason, self.hint)


def connect_failure(address: Address, error: BaseException, timeout_ms: float, *, with_tls: bool) -> UnusableAddress:
    """The error for a connection that could not be opened."""
    where = str(address)
    if isinstance(error, UnusableAddress):
        return error
    if isinstance(error, socket.gaierror):
        return UnusableAddress(
            where, Cause.DNS, f"the name {address.host!r} cannot be resolved ({error.strerror or error})"
        )
    if isinstance(error, tls.SSLCertVerificationError):
        return UnusableAddress(where, Cause.TLS_CERTIFICATE, f"its certificate is not accepted: {error.verify_message}")
    if isinstance(error, tls.SSLError):
        reason = error.reason or str(error)
        if reason in {"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"}:
            return UnusableAddress(where, Cause.TLS_REFUSED, f"the answer to the TLS handshake is not TLS ({reason})")
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


def handshake_failure(address: Address, error: PenstockError, first_bytes: bytes) -> UnusableAddress:
    """The error for a peer that does not answer as a broker does."""
    where = str(address)
    known = detect_protocol(first_bytes)
    if known is not None:
        return UnusableAddress(where, _FOREIGN_CAUSES.get(known.family, Cause.NOT_KAFKA), f"the answer is {known.name}")
    if isinstance(error, RequestTimedOut):
        return UnusableAddress(where, Cause.NO_ANSWER, f"connected, but no answer to {error.request}")
    if isinstance(error, ProtocolViolation) or first_bytes:
        shown = first_bytes[:8].hex(" ") if first_bytes else "nothing"
        return UnusableAddress(where, Cause.NOT_KAFKA, f"the answer is not a Kafka broker's (it starts with {shown})")
    return UnusableAddress(where, Cause.CLOSED, "it accepted the connection and closed it without an answer")
