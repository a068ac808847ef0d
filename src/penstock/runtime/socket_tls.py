"""TLS on the connections of a socket server.

`TlsSocket` looks like the plain socket that `FrameInput` and `Output` use, so that the plaintext path stays as it is:
what cannot be done yet raises BlockingIOError. It receives 64 KiB at a time and decrypts from memory. OpenSSL itself
would make two system calls for each record, and librdkafka's records have 4 KB: that took nearly twice the CPU.

A write is done when its encrypted bytes have left. Until then it is not reported, and must be repeated with the same
bytes: the queue of `Output` keeps its order, and what is offered is always the longest possible prefix. At most 64 KiB
are encrypted ahead, and small buffers are joined to records of 16 KiB.

File regions are read in pieces, since `sendfile` would send them unencrypted. The handshake has a time limit; when too
many are in progress, the oldest one is closed, because an honest one takes milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.runtime.files import Buffer
from penstock.runtime.network import FileRegion, detect_protocol
from penstock.runtime.socket_connection import BY_PEER, Shared, SocketConnection, discard_unread
from penstock.runtime.socket_io import Output, read_region

if TYPE_CHECKING:
    from penstock.runtime.network import TlsContexts

logger = logging.getLogger(__name__)

RECORD_BYTES: Final = 16 * 1024
# What is encrypted before it is sent. Larger pieces come from fresh pages each time, which took twice the CPU.
_AHEAD_BYTES: Final = 64 * 1024
# What one region keeps in memory while its peer is slow.
_PIECE_BYTES: Final = 256 * 1024
# How often a call receives without a byte for its caller, however fast the peer is: then others have their turn.
_FILLS: Final = 8
_HANDSHAKE: Final = 0x16
_PEEKED_BYTES: Final = 12


class TlsSocket:
    """A socket with TLS after `wrap`; before it, the plain socket. `scratch` holds nothing between two calls."""

    __slots__ = ("_encrypted", "_incoming", "_is_drained", "_outgoing", "_owed", "_plain", "_scratch", "_tls")

    def __init__(self, sock: socket.socket, scratch: memoryview) -> None:
        self._plain = sock
        self._scratch = scratch
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._is_drained = True
        # Encrypted bytes that the socket did not take yet, and how many bytes of a write they are the rest of.
        self._encrypted = memoryview(b"")
        self._owed = 0

    def wrap(self, context: ssl.SSLContext) -> None:
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    @property
    def tls(self) -> ssl.SSLObject:
        if self._tls is None:
            raise BlockingIOError
        return self._tls

    def fileno(self) -> int:
        return self._plain.fileno()

    def peek(self) -> bytes:
        """The first bytes, which stay unread. BlockingIOError, OSError; b"" at the end of the stream."""
        return self._plain.recv(_PEEKED_BYTES, socket.MSG_PEEK)

    # --- encrypted bytes

    def _fill(self) -> None:
        """Receive once. BlockingIOError if nothing has arrived, OSError."""
        count = self._plain.recv_into(self._scratch)
        if count:
            self._incoming.write(self._scratch[:count])
        else:
            self._incoming.write_eof()

    def _push(self) -> bool:
        """Send encrypted bytes; whether all of them have left. OSError."""
        while True:
            if not len(self._encrypted):
                if not self._outgoing.pending:
                    return True
                self._encrypted = memoryview(self._outgoing.read())
            try:
                sent = self._plain.send(self._encrypted)
            except BlockingIOError:
                return False
            self._encrypted = self._encrypted[sent:]

    def shake_hands(self) -> None:
        """Continue the handshake. SSLWantReadError, SSLWantWriteError, OSError."""
        for left in reversed(range(_FILLS)):
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                if not self._push():
                    raise ssl.SSLWantWriteError from None
            except ssl.SSLError:
                self._send_alert()
                raise
            else:
                if not self._push():
                    raise ssl.SSLWantWriteError
                self._is_drained = False
                return
            # Nothing may wait in memory at the end: the event loop knows the socket only.
            try:
                if left:
                    self._fill()
            except BlockingIOError:
                break
        raise ssl.SSLWantReadError

    def _send_alert(self) -> None:
        """Tell the peer what is wrong, if the socket takes it now."""
        with contextlib.suppress(OSError):
            self._push()

    # --- input

    @property
    def has_pending(self) -> bool:
        """Whether there may be bytes that the event loop does not know of."""
        return not self._is_drained and (self.tls.pending() > 0 or self._incoming.pending > 0)

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        read: Any = self.tls.read
        size, count, fills = len(buffer), 0, 0
        with memoryview(buffer) as view:
            # A record is at most 16 KiB: continue while there is room for another.
            while not count or size - count >= RECORD_BYTES:
                try:
                    more = read(size - count, view[count:])
                except ssl.SSLWantReadError:
                    self._is_drained = True
                    fills += 1
                    if not count and fills > _FILLS:
                        raise BlockingIOError from None
                    if not self._receives_more(is_needed=not count):
                        break
                except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                    break
                except OSError:
                    if count:
                        break  # the next call will raise it again
                    self._send_alert()
                    raise
                else:
                    if not more:
                        break
                    self._is_drained = False
                    count += more
        return count

    def _receives_more(self, *, is_needed: bool) -> bool:
        """Receive once. If bytes are needed, BlockingIOError if nothing has arrived, OSError; else False for both."""
        try:
            if self._outgoing.pending:
                self._answer_tls()
            self._fill()
        except OSError:
            if is_needed:
                raise
            return False
        return True

    def _answer_tls(self) -> None:
        """Send what TLS itself answers. OSError if the peer lets it pile up."""
        if not self._push() and len(self._encrypted) + self._outgoing.pending > 2 * _AHEAD_BYTES:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the peer has stopped reading")

    def recv(self, size: int) -> bytes:
        """Encrypted bytes, only to discard them."""
        return self._plain.recv(size)

    # --- output

    def send(self, chunk: Buffer) -> int:
        return self.sendmsg([chunk])

    def sendmsg(self, batch: Sequence[Buffer], ancillary: Any = (), flags: int = 0) -> int:
        """Bytes of which the encrypted form has left; BlockingIOError if none."""
        write = self.tls.write
        total = number = position = 0
        while self._push():
            # Those that have left now, and after the first turn those of the last one.
            total += self._owed
            number, position = _after(batch, number, position + self._owed)
            self._owed = 0
            if number == len(batch):
                return total
            chunk = batch[number]
            piece: Buffer
            if len(chunk) - position >= RECORD_BYTES or number == len(batch) - 1:
                piece = memoryview(chunk)[position : position + _AHEAD_BYTES]
            else:
                piece = _joined(batch, number, position)
            try:
                self._owed = write(piece)
            except ssl.SSLZeroReturnError:
                raise ConnectionAbortedError(errno.ECONNABORTED, "the peer has stopped reading") from None
        if not total:
            raise BlockingIOError
        return total

    # --- close

    def shutdown(self, how: int) -> None:
        self.say_goodbye()
        self._plain.shutdown(how)

    def say_goodbye(self) -> None:
        """Send the alert that ends a TLS connection, if the socket takes it now."""
        if self._tls is not None and self._tls.version() is not None:
            with contextlib.suppress(OSError, ValueError):
                self._tls.unwrap()
            self._send_alert()

    def close(self) -> None:
        self._plain.close()


def _after(batch: Sequence[Buffer], number: int, position: int) -> tuple[int, int]:
    """The place of a byte, counted from the beginning of a buffer, as the number of its buffer and a position in it."""
    while number < len(batch) and position >= len(batch[number]):
        position -= len(batch[number])
        number += 1
    return number, position


def _joined(batch: Sequence[Buffer], number: int, position: int) -> bytes:
    """The next record: as many bytes of the buffers as it holds."""
    parts: list[Buffer] = []
    room = RECORD_BYTES
    while room and number < len(batch):
        part = memoryview(batch[number])[position : position + room]
        parts.append(part)
        room -= len(part)
        number, position = number + 1, 0
    return b"".join(parts)


class TlsOutput(Output):
    """An output that reads file regions in pieces."""

    __slots__ = ()

    def _send_region(self, region: FileRegion, max_bytes: int) -> tuple[int, int]:
        offered = min(region.size, max_bytes, _PIECE_BYTES)
        self._advance(region, offered, read_region(region, offered))
        return self._send_batch(offered)


class TlsConnection(SocketConnection):
    """A connection that starts with a TLS handshake. The handler sees it when that has succeeded."""

    __slots__ = ("_certificate", "_contexts", "_is_established", "_timer", "_tls")

    def __init__(
        self,
        shared: Shared,
        sock: socket.socket,
        number: int,
        address: str,
        peer: str,
        listener: str,
        contexts: TlsContexts,
    ) -> None:
        self._tls = TlsSocket(sock, shared.scratch)
        super().__init__(shared, self._tls, number, address, peer, listener)  # type: ignore[arg-type]
        self._contexts = contexts
        self._is_established = False
        self._certificate: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None

    def _new_output(self) -> Output:
        return TlsOutput(self._tls, self._shared.pages)  # type: ignore[arg-type]

    @property
    def peer_certificate(self) -> bytes | None:
        return self._certificate

    # --- handshake

    def start(self) -> None:
        shared = self._shared
        handshakes, limits = shared.handshakes, shared.limits
        if len(handshakes) >= limits.max_handshakes:
            next(iter(handshakes)).give_up("too many TLS handshakes are in progress")
        handshakes[self] = None
        self._timer = shared.loop.call_later(limits.handshake_ms / 1000, self._too_late)
        self._reading = True
        shared.loop.add_reader(self._descriptor, self._on_first_bytes)

    def _too_late(self) -> None:
        self.give_up(f"the TLS handshake took longer than {self._shared.limits.handshake_ms} ms")

    def give_up(self, reason: str, detail: str = "") -> None:
        """Close a connection whose handshake cannot succeed."""
        text = f"TLS handshake failed: listener={self.listener} peer={self.peer} reason={reason}{detail}"
        self._shared.log_limited("handshake", text)
        discard_unread(self._sock)  # a reset could overtake the alert
        self._shut(reason)

    def _on_first_bytes(self) -> None:
        try:
            first = self._tls.peek()
        except BlockingIOError:
            return
        except OSError as error:
            self._shut(f"{BY_PEER}: {error.strerror}")
            return
        if not first:
            self._shut(BY_PEER)
            return
        if first[0] != _HANDSHAKE:
            known = detect_protocol(first)
            what = known.name if known is not None else "not TLS"
            self.give_up(
                f"the first bytes are {what}", "; clients of this listener need security.protocol=SSL or SASL_SSL"
            )
            return
        try:
            self._tls.wrap(self._contexts())
        except (OSError, ValueError) as error:
            self.give_up(str(error))
            return
        self._shared.loop.add_reader(self._descriptor, self._shake_hands)
        self._shake_hands()

    def _shake_hands(self) -> None:
        loop = self._shared.loop
        try:
            self._tls.shake_hands()
        except ssl.SSLWantReadError:
            self._stop_waiting_to_write()
            return
        except ssl.SSLWantWriteError:
            if not self._writing:
                self._writing = True
                loop.add_writer(self._descriptor, self._shake_hands)
            return
        except ssl.SSLError as error:
            self.give_up(_reason_of(error))
            return
        except OSError as error:
            self._shut(f"{BY_PEER}: {error.strerror}")
            return
        self._stop_waiting_to_write()
        self._end_handshake()
        self._is_established = True
        self._certificate = self._tls.tls.getpeercert(binary_form=True)
        self._stop_reading()
        super().start()

    def _stop_waiting_to_write(self) -> None:
        if self._writing:
            self._writing = False
            self._shared.loop.remove_writer(self._descriptor)

    def _end_handshake(self) -> None:
        self._shared.handshakes.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- data that the event loop does not know of

    def _start_reading(self) -> None:
        super()._start_reading()
        if self._tls.has_pending:
            self._shared.loop.call_soon(self._read_pending)

    def _receive(self) -> None:
        super()._receive()
        if not self.closed and self._reading and self._tls.has_pending:
            self._shared.loop.call_soon(self._read_pending)

    def _read_pending(self) -> None:
        if not self.closed and self._reading and self._tls.has_pending:
            self._on_readable()

    # --- close

    def close(self, reason: str) -> None:
        if not self.closed and not self._is_established:
            self._shut(reason)
        else:
            super().close(reason)

    def _shut(self, reason: str) -> None:
        if not self.closed:
            self._end_handshake()
            if self._is_established and not reason.startswith(BY_PEER):
                self._tls.say_goodbye()
        super()._shut(reason)

    def _report_closed(self, reason: str) -> None:
        if self._is_established:
            super()._report_closed(reason)


_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate, and ssl.client.auth is required",
    "CERTIFICATE_VERIFY_FAILED": "the client's certificate is not accepted",
    "NO_SHARED_CIPHER": "client and listener have no cipher suite in common",
    "UNSUPPORTED_PROTOCOL": "the client offers no TLS version of ssl.enabled.protocols",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust this broker's certificate (unknown authority)",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept this broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept this broker's certificate",
}


def _reason_of(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{_REASONS['CERTIFICATE_VERIFY_FAILED']}: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "the client closed the connection; it may not accept this broker's certificate"
    reason = error.reason or str(error)
    return _REASONS.get(reason, reason)
