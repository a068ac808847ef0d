"""A socket of its own to a broker, for a thread that sends a request and waits for the answer itself.

Rule: one request at a time. It belongs to one thread at a time: to the one that waits (`send`, `answer`), or to the
event loop, which goes on where a thread had to stop (`watch`) and looks after it while nobody needs it.

To wake a thread costs as much as a broker near by needs to answer. So where answers take less than a millisecond, the
thread sleeps only for the first half of the time that they usually take, and then looks for the answer again and again,
for 0.3 ms at most, giving way to whoever else wants the processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.client.connection import Connection
from penstock.client.errors import NotConnected, PenstockError, ProtocolViolation, RequestTimedOut
from penstock.client.framing import FrameReceiver
from penstock.wire.api_keys import ApiKey
from penstock.wire.errors import WireError
from penstock.wire.headers import decode_response, encode_request
from penstock.wire.registry import response_codec
from penstock.wire.schemas.produce import ProduceRequest, ProduceResponse

_MOST_ANSWER_BYTES: Final = 1024 * 1024
_MAX_CORRELATION: Final = 2**31 - 1
_AWAKE_S: Final = 300e-6
_WORTH_S: Final = 1e-3  # beyond this, to be woken is a small part of what an answer takes
_SLOW_S: Final = 2e-3
_WAKING_S: Final = 60e-6
_MEMORY: Final = 8  # answers, of which the usual time is the mean
_EMPTY: Final = b""

# With one processor the broker could not answer before the thread sleeps.
_MAY_STAY_AWAKE: Final = (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) > 1

_give_way: Final[Callable[[], object]] = getattr(os, "sched_yield", partial(time.sleep, 0))

Ended = Callable[[ProduceResponse | PenstockError], None]


class SideLink:
    """Made by `open_side_link`. Everything that fails here raises a PenstockError, and the link is of no use then."""

    def __init__(self, sock: socket.socket, node: str, version: int, client_id: str | None) -> None:
        self.node = node
        self.version = version
        self.is_busy = False  # a request is on its way
        self._is_held = False  # by a thread
        self._is_closing = False
        self._sock = sock
        self._client_id = client_id
        self._receiver = FrameReceiver(_MOST_ANSWER_BYTES)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._correlation_id = 0
        self._usual_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # --- the thread that waits

    def hold(self) -> None:
        """Before a request: the link is the calling thread's until `let_go`."""
        self.is_busy = self._is_held = True

    def let_go(self) -> None:
        """The calling thread is done with the link; if it was closed meanwhile, the socket goes now."""
        self._is_held = False
        if self._is_closing:
            self._sock.close()

    def send(self, message: ProduceRequest) -> None:
        """The request is on its way when this returns."""
        self._correlation_id = self._correlation_id % _MAX_CORRELATION + 1
        chunks = encode_request(ApiKey.PRODUCE, self.version, self._correlation_id, self._client_id, message)
        data = _EMPTY.join(chunks)  # type: ignore[arg-type]
        try:
            sent = self._sock.send(data)
        except OSError as error:
            raise NotConnected(self.node, f"the connection broke: {error}") from error
        if sent < len(data):
            raise NotConnected(self.node, "it takes no more at the moment")

    def answer(self, patience_s: float) -> ProduceResponse | None:
        """The answer to what was sent; None if it is not here in time: then it is still to come."""
        began_s = time.perf_counter()
        awake_until_s = self._doze(began_s) if patience_s > _WORTH_S else began_s
        receiver, receive = self._receiver, self._sock.recv_into
        while True:
            try:
                count = receive(receiver.get_buffer())
            except BlockingIOError:
                now_s = time.perf_counter()
                if now_s < awake_until_s:
                    _give_way()  # the broker may be waiting for this very processor
                    continue
                left_s = began_s + patience_s - now_s
                if left_s <= 0 or not self._poll.poll(left_s * 1000):
                    self._usual_s = _SLOW_S
                    return None
                continue
            except OSError as error:
                raise NotConnected(self.node, f"the connection broke: {error}") from error
            if not count:
                raise NotConnected(self.node, "the broker closed the connection")
            try:
                frames = receiver.received(count)
                if frames:
                    took_s = min(time.perf_counter() - began_s, _SLOW_S)
                    self._usual_s += (took_s - self._usual_s) / _MEMORY
                    return self._decoded(frames)
            except WireError as error:
                raise ProtocolViolation(self.node, f"as answer to Produce: {error}") from error

    def _doze(self, now_s: float) -> float:
        """Sleeps for as long as the answer certainly takes; until when to stay awake after that."""
        usual_s = self._usual_s
        if usual_s >= _WORTH_S or not _MAY_STAY_AWAKE:
            return now_s
        nap_s = usual_s / 2 - _WAKING_S
        if nap_s > _WAKING_S:
            time.sleep(nap_s)
        return time.perf_counter() + _AWAKE_S

    def _decoded(self, frames: list[bytes | memoryview]) -> ProduceResponse:
        header, position = decode_response(ApiKey.PRODUCE, self.version, frames[0])
        if header.correlation_id != self._correlation_id or len(frames) > 1:
            raise WireError(f"correlation id {header.correlation_id}, {self._correlation_id} was expected")
        message, _ = response_codec(ApiKey.PRODUCE, self.version).decode(frames[0], position)
        if not isinstance(message, ProduceResponse):
            raise WireError(f"a {type(message).__name__}")
        return message

    # --- the event loop

    def watch(self, loop: asyncio.AbstractEventLoop, timeout_ms: float, on_end: Ended) -> None:
        """Goes on on the loop: `on_end` is told the answer, or why there will be none."""

        def look() -> None:
            try:
                response = self.answer(0)
            except PenstockError as error:
                end(error)
            else:
                if response is not None:
                    end(response)

        def late() -> None:
            end(RequestTimedOut(self.node, f"Produce v{self.version}", timeout_ms))

        def end(outcome: ProduceResponse | PenstockError) -> None:
            self.unwatch(loop)
            on_end(outcome)

        self._timer = loop.call_later(timeout_ms / 1000, late)
        loop.add_reader(self._sock, look)

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on the link may be used by a thread again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sock.fileno() >= 0:
            loop.remove_reader(self._sock)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the loop. A thread that waits for an answer is told that there will be none; again is harmless."""
        self.unwatch(loop)
        if self._sock.fileno() < 0:
            return
        with contextlib.suppress(OSError):  # the broker was faster
            self._sock.shutdown(socket.SHUT_RDWR)
        self._is_closing = True  # first, so that of two threads at least one sees what the other did
        if not self._is_held:
            self._sock.close()


async def open_side_link(connection: Connection, version: int, timeout_ms: float) -> SideLink | None:
    """A second way to the broker of a connection; None where it needs TLS. Raises NotConnected."""
    peer = connection.plain_peer
    if peer is None:
        return None
    family, address = peer
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(timeout_ms / 1000):
            await asyncio.get_running_loop().sock_connect(sock, address)
    except OSError as error:  # a TimeoutError is one too
        sock.close()
        raise NotConnected(connection.node, f"no second connection: {str(error) or 'not in time'}") from error
    except BaseException:
        sock.close()
        raise
    return SideLink(sock, connection.node, version, connection.client_id)
