"""What a server needs from a network: connections that deliver frames (i32 length, bytes) and take replies.

The handler reserves one `Reply` per frame. Replies may complete in any order and leave in the order of reservation. All
calls are on the event loop's thread. Completing a reply on a closed connection is harmless; `Handler.closed` reports
it.

`PortReservation` binds a port without listening: its number is known, nobody else gets it, and clients that connect are
refused at once instead of waiting. It is released right before the address is listened on.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from penstock.runtime.clock import Clock
from penstock.runtime.files import Buffer, File

UNLIMITED: Final = 2**31 - 1
UNBOUNDED: Final = 2**63 - 1
SYSTEM_DEFAULT: Final = -1
_LOG_INTERVAL_MS: Final = 1000


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


class NetworkError(Exception):
    """The network, or who uses it, broke a rule."""


class ReplyAnswered(NetworkError):
    """A reply was completed a second time."""


class ServerClosed(NetworkError):
    """A closed server was asked to listen."""


class CannotListen(NetworkError):
    """An address cannot be listened on."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot listen on {address}: {reason}")
        self.address = address
        self.reason = reason


class AddressInUse(CannotListen):
    """Somebody listens there already."""


class FileRegion(Protocol):
    """Bytes of a file, sent without passing through this process. Whoever holds it keeps the file readable."""

    @property
    def file(self) -> File: ...

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...


Chunk: TypeAlias = Buffer | FileRegion


class Reply(Protocol):
    """The place of one answer in the order of answers. Complete it exactly once; ReplyAnswered otherwise."""

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Answer with these bytes, the length prefix among them; they must not change any more."""

    def skip(self) -> None:
        """Give the place up: the peer expects no answer."""


class Connection(Protocol):
    """One peer, for as long as it stays."""

    state: Any
    """For the user of the connection: a session, a principal. None at first."""

    @property
    def id(self) -> int:
        """Unique in its server, never used again."""

    @property
    def peer(self) -> str:
        """Where it comes from: "127.0.0.1:5123", "[::1]:5123"."""

    @property
    def closed(self) -> bool: ...

    def reply(self) -> Reply:
        """Reserve the next place in the order of answers: once for each frame, before `Handler.frame` returns."""

    def close(self, reason: str) -> None:
        """Close, having tried once to send the answers that are ready. Again is harmless."""


class Handler(Protocol):
    """Who uses the connections of a server. An exception from `connected` or `frame` closes the connection."""

    def connected(self, connection: Connection) -> None: ...

    def frame(self, connection: Connection, frame: bytearray) -> None:
        """A frame, without its length. It belongs to the handler, which may change and keep it."""

    def closed(self, connection: Connection, reason: str) -> None:
        """The end of a connection: called once for each that was `connected`, never from within another call."""


class Server(Protocol):
    """Listens, and brings connections to its handler."""

    @property
    def counters(self) -> Counters: ...

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Take connections at an address; answers with the address itself, port 0 having become a free one.

        An empty host is every address of the machine. CannotListen if it cannot be had.
        """

    async def close(self, timeout_ms: int) -> None:
        """Take no more connections and frames, let the answers that are owed leave, then close everything.

        What is not answered and sent when `timeout_ms` have passed is lost.
        """


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server grants its peers."""

    max_frame_bytes: int = 100 * 1024 * 1024
    max_pending_replies: int = 100
    """Frames of a connection that may be unanswered; at this many no more are taken, until half are answered."""
    max_output_bytes: int = 8 * 1024 * 1024
    """Bytes of answers that may wait for a peer to read them; beyond, no more frames are taken from it."""
    max_request_bytes: int = UNBOUNDED
    """Bytes of requests that are being received or not answered, over all connections; beyond, who brings a large one
    is not read until there is room."""
    max_connections: int = UNLIMITED
    max_connections_per_address: int = UNLIMITED
    idle_ms: int = 600_000
    """A connection on which nothing moved, and to which nothing is owed, for so long is closed; 0 is never."""
    backlog: int = 1024
    send_buffer_bytes: int = SYSTEM_DEFAULT
    receive_buffer_bytes: int = SYSTEM_DEFAULT
    busy_poll_us: int = 0
    """How long the loop may stay awake for the next of a row of small frames; 0 is never."""

    def __post_init__(self) -> None:
        least = {
            "busy_poll_us": 0,
            "idle_ms": 0,
            "max_connections": 0,
            "max_connections_per_address": 0,
            "send_buffer_bytes": SYSTEM_DEFAULT,
            "receive_buffer_bytes": SYSTEM_DEFAULT,
        }
        for field in fields(self):
            value = getattr(self, field.name)
            if value < least.get(field.name, 1):
                raise ValueError(f"{field.name} is {value}: at least {least.get(field.name, 1)} is needed")


@dataclass(slots=True)
class Counters:
    """What a server has done since it was made."""

    connections: int = 0
    """Open now."""
    accepted: int = 0
    rejected: int = 0
    idle_closed: int = 0
    frames: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class RateLimitedLogger:
    """Log lines that peers can provoke: at most one a second of each kind, with the number of those left out."""

    def __init__(self, clock: Clock, logger: logging.Logger) -> None:
        self._clock = clock
        self._logger = logger
        self._next_ms: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def __call__(self, kind: str, text: str, level: int = logging.WARNING, error: BaseException | None = None) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms.get(kind, now_ms):
            self._left_out[kind] += 1
            return
        self._next_ms[kind] = now_ms + _LOG_INTERVAL_MS
        left_out = self._left_out.pop(kind, 0)
        more = f" (and {left_out} more like this)" if left_out else ""
        self._logger.log(level, "%s%s", text, more, exc_info=error)


class PortReservation:
    """An address of this machine, held until released."""

    def __init__(self, host: str, port: int) -> None:
        """AddressInUse if somebody listens there, CannotListen if nobody can."""
        text = f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"
        if not 0 <= port <= 65535:
            raise CannotListen(text, "a port is a number from 0 to 65535")
        self.host = host
        self._socket = _bind(text, host, port)
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Let go of it; again is harmless."""
        self._socket.close()


def _bind(text: str, host: str, port: int) -> socket.socket:
    problem: OSError | None = None
    for family, address in _addresses(text, host, port):
        reserved = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Connections of an earlier process that still linger are no reason to wait for them.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1 if host else 0)
            reserved.bind(address)
        except OSError as error:
            reserved.close()
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(text, "the address is in use") from error
            problem = error
        else:
            return reserved
    raise CannotListen(text, str(problem or "the host has no address")) from problem


def _addresses(text: str, host: str, port: int) -> list[tuple[int, Any]]:
    """Those of the host, IPv4 before IPv6."""
    if not host:
        return [(socket.AF_INET6, ("::", port)) if socket.has_dualstack_ipv6() else (socket.AF_INET, ("", port))]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CannotListen(text, str(error)) from error
    return sorted(((family, address) for family, _, _, _, address in found), key=lambda each: each[0] != socket.AF_INET)
