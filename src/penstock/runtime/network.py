"""What a server needs from a network, and what servers and clients share: bound ports, keep-alive, protocol detection.

A connection delivers frames (i32 length, bytes). The handler reserves one `Reply` per frame. Replies may complete in
any order and leave in the order of reservation. All calls are on the event loop's thread. Completing a reply on a
closed connection is harmless; `Handler.closed` reports it.

`PortReservation` binds a port without listening: its number is known, no other process gets it, and clients that
connect are refused immediately instead of waiting. It is released right before the address is listened on.

TCP keep-alive detects that the peer of a quiet connection is gone: a machine that loses power sends nothing, and a
client that only waits sends nothing that could fail. Probes end the connection after `KEEP_ALIVE_IDLE_S +
KEEP_ALIVE_PROBES * KEEP_ALIVE_INTERVAL_S` = 30 s. A slow peer is not affected: its kernel answers.

Connections within this machine are not paced. A congestion control that paces (BBR) sends by timer, at the rate that it
has measured. Where nothing can be congested, that only costs CPU: three times that of large replies without it.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from penstock.runtime.clock import Clock
from penstock.runtime.files import Buffer, File

UNLIMITED: Final = 2**31 - 1
UNBOUNDED: Final = 2**63 - 1
SYSTEM_DEFAULT: Final = -1
KEEP_ALIVE_IDLE_S: Final = 15
KEEP_ALIVE_INTERVAL_S: Final = 5
KEEP_ALIVE_PROBES: Final = 3
_LOG_INTERVAL_MS: Final = 1000
# Linux only.
_TCP_CONGESTION: Final[int | None] = getattr(socket, "TCP_CONGESTION", None)
_CONGESTION_NAME_BYTES: Final = 16
_PACING_PREFIX: Final = b"bbr"
# Every kernel has it, and every user may choose it.
_UNPACED: Final = b"reno"


# --------------------------------------------------------------------------------------------- servers and connections


class NetworkError(Exception):
    """Base of network errors."""


class ReplyAnswered(NetworkError):
    """A reply was completed a second time."""


class ServerClosed(NetworkError):
    """`listen` was called on a closed server."""


class CannotListen(NetworkError):
    """The server cannot listen on an address."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot listen on {address}: {reason}")
        self.address = address
        self.reason = reason


class AddressInUse(CannotListen):
    """Another socket listens on the address."""


class FileRegion(Protocol):
    """Bytes of a file, sent without passing through this process. Holding it keeps the file readable."""

    @property
    def file(self) -> File: ...

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...


Chunk: TypeAlias = Buffer | FileRegion
TlsContexts: TypeAlias = Callable[[], ssl.SSLContext]
"""The context for a new connection."""


class Reply(Protocol):
    """The place of one reply in the order of replies. Complete it exactly once; ReplyAnswered otherwise."""

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Reply with these bytes, including the length prefix. They must not change any more."""

    def skip(self) -> None:
        """Send no reply: the peer expects none."""


class Connection(Protocol):
    """A connection to one peer."""

    state: Any
    """For the handler: a session, a principal. None at first."""

    @property
    def id(self) -> int:
        """Unique in its server, never reused."""

    @property
    def peer(self) -> str:
        """The peer's address: "127.0.0.1:5123", "[::1]:5123"."""

    @property
    def address(self) -> str:
        """The peer's address without its port."""

    @property
    def listener(self) -> str:
        """The name of the listener that accepted it."""

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate that the peer proved to own, DER; None without one, and without TLS."""

    @property
    def closed(self) -> bool: ...

    def limit_frames(self, max_frame_bytes: int | None) -> None:
        """Accept no larger frames from now on; None: the server's limit."""

    def reply(self) -> Reply:
        """Reserve the next place in the order of replies: once per frame, before `Handler.frame` returns."""

    def close(self, reason: str) -> None:
        """Close, after trying once to send the replies that are ready. Calling it again is harmless."""


class Handler(Protocol):
    """The user of a server's connections. An exception from `connected` or `frame` closes the connection."""

    def connected(self, connection: Connection) -> None: ...

    def frame(self, connection: Connection, frame: bytearray) -> None:
        """A frame without its length. The handler owns it and may change and keep it."""

    def closed(self, connection: Connection, reason: str) -> None:
        """Called once for each connection that was `connected`, never from within another call."""


class Server(Protocol):
    """Listens and passes connections to its handler."""

    @property
    def counters(self) -> Counters: ...

    def listen(self, host: str, port: int, listener: str = "", tls: TlsContexts | None = None) -> tuple[str, int]:
        """Accept connections at an address, for a listener of that name. Returns the address, with a free port for port
        0.

        With `tls`, each connection starts with a handshake in the context that `tls()` returns at that moment. An empty
        host means every address of the machine. CannotListen if that fails.
        """

    def set_limits(self, limits: Limits) -> None:
        """Replace the limits on the number of connections; it applies to new connections."""

    async def close(self, timeout_ms: int) -> None:
        """Accept no further connections and frames, wait until pending replies are sent, then close everything.

        Replies that are not sent after `timeout_ms` are lost.
        """


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the peers of a server."""

    max_frame_bytes: int = 100 * 1024 * 1024
    max_pending_replies: int = 100
    """Unanswered frames per connection. At this many the server stops reading until half are answered."""
    max_output_bytes: int = 8 * 1024 * 1024
    """Bytes of replies that may wait for a peer. Beyond it the server stops reading from that peer."""
    max_request_bytes: int = UNBOUNDED
    """Bytes of requests being received or unanswered, over all connections. Beyond it a large request is not read until
    there is room."""
    max_connections: int = UNLIMITED
    max_connections_per_s: int = UNLIMITED
    """New connections beyond it wait to be accepted."""
    max_connections_per_address: int = UNLIMITED
    max_connections_overrides: Mapping[str, int] = field(default_factory=dict)
    """By address, another maximum."""
    idle_ms: int = 600_000
    """A connection without traffic or pending replies for this long is closed; 0: never."""
    backlog: int = 1024
    send_buffer_bytes: int = SYSTEM_DEFAULT
    receive_buffer_bytes: int = SYSTEM_DEFAULT
    max_handshakes: int = 500
    """TLS handshakes in progress. Beyond it, the oldest one is closed."""
    handshake_ms: int = 10_000
    """How long a TLS handshake may take."""
    busy_poll_us: int = 0
    """How long the loop polls for the next of a series of small frames; 0: never."""

    def __post_init__(self) -> None:
        least = {
            "busy_poll_us": 0,
            "idle_ms": 0,
            "max_connections": 0,
            "max_connections_per_address": 0,
            "send_buffer_bytes": SYSTEM_DEFAULT,
            "receive_buffer_bytes": SYSTEM_DEFAULT,
        }
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int) and value < least.get(each.name, 1):
                raise ValueError(f"{each.name} is {value}; it must be at least {least.get(each.name, 1)}")


@dataclass(slots=True)
class Counters:
    """What a server did since it was created."""

    connections: int = 0
    """Open now."""
    accepted: int = 0
    rejected: int = 0
    idle_closed: int = 0
    frames: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class RateLimitedLogger:
    """Log lines that peers can cause: at most one per second and kind, with the number of suppressed ones."""

    def __init__(self, clock: Clock, logger: logging.Logger) -> None:
        self._clock = clock
        self._logger = logger
        self._next_ms: dict[str, float] = {}
        self._suppressed: Counter[str] = Counter()

    def __call__(self, kind: str, text: str, level: int = logging.WARNING, error: BaseException | None = None) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms.get(kind, now_ms):
            self._suppressed[kind] += 1
            return
        self._next_ms[kind] = now_ms + _LOG_INTERVAL_MS
        suppressed = self._suppressed.pop(kind, 0)
        more = f" suppressed={suppressed}" if suppressed else ""
        self._logger.log(level, "%s%s", text, more, exc_info=error)


# ------------------------------------------------------------------------------------------------------- bound sockets


class PortReservation:
    """An address of this machine, bound until released. AddressInUse, CannotListen."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self._socket = bind_socket(host, port)
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Release the port. Calling it again is harmless."""
        self._socket.close()


class _Listener(socket.socket):
    """A listener whose connections within this machine are not paced.

    Pacing cannot be turned off once a connection has it. So all connections start without, and those of other machines
    get the system's congestion control as they are accepted.
    """

    pacing = b""
    """The system's congestion control, if it paces."""

    def stop_pacing(self) -> None:
        if _TCP_CONGESTION is None:
            return
        with contextlib.suppress(OSError):
            name = self.getsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, _CONGESTION_NAME_BYTES).rstrip(b"\0")
            if name.startswith(_PACING_PREFIX):
                self.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, _UNPACED)
                self.pacing = name

    def accept(self) -> tuple[socket.socket, Any]:
        accepted, address = super().accept()
        if self.pacing and _TCP_CONGESTION is not None:
            with contextlib.suppress(OSError):
                if not is_this_machine(address[0], accepted.getsockname()[0]):
                    accepted.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, self.pacing)
        return accepted, address


def is_this_machine(peer: str, own: str) -> bool:
    """Whether the peer of a connection is on this machine, by the addresses of its two ends."""
    if peer == own:
        return True
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"


def bind_socket(host: str, port: int, limits: Limits | None = None) -> socket.socket:
    """Bind the first of the host's addresses that this machine has, IPv4 before IPv6; with `limits`, listen on it.

    AddressInUse if another socket listens there, CannotListen if it cannot be bound.
    """
    text = address_text(host, port)
    if not 0 <= port <= 65535:
        raise CannotListen(text, "a port is a number from 0 to 65535")
    problem: OSError | None = None
    for family, address in _addresses(text, host, port):
        try:
            return _bind(family, address, limits, dual_stack=not host)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(text, "the address is in use") from error
            problem = error
    raise CannotListen(text, str(problem or "the host has no address")) from problem


def _addresses(text: str, host: str, port: int) -> list[tuple[int, Any]]:
    if not host:
        return [(socket.AF_INET6, ("::", port)) if socket.has_dualstack_ipv6() else (socket.AF_INET, ("", port))]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CannotListen(text, str(error)) from error
    return sorted(((family, address) for family, _, _, _, address in found), key=lambda each: each[0] != socket.AF_INET)


def _bind(family: int, address: Any, limits: Limits | None, *, dual_stack: bool) -> socket.socket:
    bound = _Listener(family, socket.SOCK_STREAM)
    try:
        # Lingering connections of an earlier process do not block the port.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual_stack else 1)
        if limits is not None and limits.receive_buffer_bytes >= 0:
            # Before listening: accepted sockets inherit it, and the window is agreed on at the start.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
        bound.bind(address)
        if limits is not None:
            bound.setblocking(False)
            bound.stop_pacing()
            bound.listen(limits.backlog)
    except OSError:
        bound.close()
        raise
    return bound


class KeepAliveSocket(Protocol):
    """The part of a socket that asyncio's transports show."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def probe_when_idle(sock: KeepAliveSocket) -> None:
    """Turn on keep-alive probes. Where the kernel has no such option, its own times apply."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEP_ALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEP_ALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEP_ALIVE_PROBES),
    ):
        option: int | None = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


# -------------------------------------------------------------------------------------------------- protocol detection


class ForeignProtocol(NamedTuple):
    """A protocol other than Kafka's, recognised by the first bytes of a connection."""

    start: bytes
    family: str
    name: str


_FOREIGN_PROTOCOLS: Final = (
    ForeignProtocol(b"\x15\x03", "TLS", "a TLS alert"),
    ForeignProtocol(b"\x16\x03", "TLS", "a TLS handshake"),
    ForeignProtocol(b"HTTP", "HTTP", "an HTTP response"),
    ForeignProtocol(b"<htm", "HTTP", "an HTML page"),
    ForeignProtocol(b"<!DO", "HTTP", "an HTML page"),
    ForeignProtocol(b"GET ", "HTTP", "an HTTP request"),
    ForeignProtocol(b"POST", "HTTP", "an HTTP request"),
    ForeignProtocol(b"HEAD", "HTTP", "an HTTP request"),
    ForeignProtocol(b"SSH-", "SSH", "an SSH banner"),
    ForeignProtocol(b"220 ", "SMTP or FTP", "a mail or FTP server"),
    ForeignProtocol(b"-ERR", "Redis", "a Redis server"),
    ForeignProtocol(b"AMQP", "AMQP", "an AMQP header"),
)


def detect_protocol(first_bytes: bytes) -> ForeignProtocol | None:
    """The protocol of a peer whose first bytes are not a Kafka frame; None if unknown."""
    for known in _FOREIGN_PROTOCOLS:
        if first_bytes.startswith(known.start):
            return known
    return None


def protocol_remark(first_bytes: bytes) -> str:
    """A remark for an error message; empty if the protocol is unknown."""
    known = detect_protocol(first_bytes)
    return f" (this looks like {known.name})" if known is not None else ""


def is_host_of(header: str | None, names: Collection[str]) -> bool:
    """Whether a Host header names this machine: by an address, as localhost, or by one of its names."""
    if header is None:
        return True  # HTTP/1.0, which browsers do not use
    host = header.strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") <= 1:
        host = host.partition(":")[0]
    if host == "localhost" or host.endswith(".localhost") or host.removesuffix(".") in names:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
