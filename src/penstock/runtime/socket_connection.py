"""One connection of a socket server: frames in, replies out, in order.

A single reply leaves in the call that completes it; several that complete in one turn of the loop leave together at its
end. While too many frames are unanswered or too many bytes unsent, nothing is read; reading resumes at half.

Busy polling: after 16 small requests in a row that each came soon after a reply, the loop polls for the next one
instead of sleeping, because a wake-up costs tens of microseconds; a request that does not come in time ends it.
Lingering close: closing a socket with unread bytes sends a reset that overtakes the last replies, so unread bytes are
discarded and the peer gets up to a second to close first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from penstock.runtime.clock import Clock
from penstock.runtime.network import Chunk, Counters, Handler, Limits, NetworkError, ReplyAnswered
from penstock.runtime.socket_io import (
    BUFFER_BYTES,
    BUFFERS,
    FrameInput,
    FrameRejected,
    Output,
    PageMover,
    size_of,
)
from penstock.runtime.socket_limits import FREE_FRAMES, FairScheduler, IdleTimingWheel, RequestMemory

if TYPE_CHECKING:
    from penstock.runtime.socket_tls import TlsConnection

logger = logging.getLogger(__name__)

BY_PEER: Final = "the peer closed the connection"
BY_SERVER: Final = "the server closes"
IDLE: Final = "idle for too long"

# Busy polling: the size of a small frame, and how many in a row start it.
SMALL_BYTES: Final = 4096
IN_A_ROW: Final = 16
_LINGER_MS: Final = 1000
_DISCARD_BYTES: Final = 256 * 1024


# ------------------------------------------------------------------------------------ busy polling and lingering close


class BusyPoll:
    """Busy polling of one server. `window_us` is how long to poll; 0: never."""

    __slots__ = ("_answered_s", "_awake", "_earned", "_loop", "_now_s", "_window_s")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, window_us: int, now_s: Callable[[], float] = perf_counter
    ) -> None:
        self._loop = loop
        self._now_s = now_s
        self._window_s = window_us / 1e6
        self._answered_s = float("-inf")
        self._earned = 0
        self._awake = False

    def asked(self) -> None:
        """A small frame arrived."""
        if self._now_s() - self._answered_s < self._window_s:
            self._earned += 1
        else:
            self._earned = 0

    def answered(self) -> None:
        """A small reply was sent."""
        self._answered_s = self._now_s()
        if self._earned >= IN_A_ROW and not self._awake:
            self._awake = True
            self._loop.call_soon(self._poll)

    def large(self) -> None:
        """A large frame or reply: the next request will take longer."""
        self._earned = 0

    def _poll(self) -> None:
        if self._earned and self._now_s() - self._answered_s < self._window_s:
            os.sched_yield()
            # With a scheduled callback the loop does not block on its sockets.
            self._loop.call_soon(self._poll)
        else:
            self._awake = False
            self._earned = 0


def discard_unread(sock: socket.socket) -> bool:
    """Discard received bytes; whether the peer has closed its side, or is gone."""
    try:
        return not sock.recv(_DISCARD_BYTES)
    except BlockingIOError:
        return False
    except OSError:
        return True


class LingeringClose:
    """Waits up to a second for the peer to close, then calls `done`. OSError if it is already gone."""

    __slots__ = ("_descriptor", "_done", "_loop", "_sock", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, done: Callable[[], None]) -> None:
        sock.shutdown(socket.SHUT_WR)
        self._loop = loop
        self._sock = sock
        self._descriptor = sock.fileno()
        self._done = done
        self._timer = loop.call_later(_LINGER_MS / 1000, done)
        loop.add_reader(self._descriptor, self._on_readable)

    def _on_readable(self) -> None:
        if discard_unread(self._sock):
            self._done()

    def cancel(self) -> None:
        """Stop waiting."""
        self._timer.cancel()
        self._loop.remove_reader(self._descriptor)


# ---------------------------------------------------------------------------------------------------------- connection


class Shared:
    """What the connections of a server share."""

    __slots__ = (
        "buffer",
        "counters",
        "forget",
        "handler",
        "handshakes",
        "limits",
        "log_limited",
        "loop",
        "memory",
        "pages",
        "poll",
        "scheduler",
        "scratch",
        "wheel",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handler: Handler,
        limits: Limits,
        wheel: IdleTimingWheel[SocketConnection],
        buffer: memoryview,
        log_limited: Callable[[str, str], None],
        forget: Callable[[SocketConnection], None],
        clock: Clock,
    ) -> None:
        self.loop = loop
        self.handler = handler
        self.limits = limits
        self.wheel = wheel
        self.buffer = buffer
        self.log_limited = log_limited
        self.forget = forget
        self.counters = Counters()
        self.poll = BusyPoll(loop, limits.busy_poll_us)
        self.memory = RequestMemory(loop, clock, limits.max_request_bytes)
        self.scheduler = FairScheduler(loop, clock)
        self.handshakes: dict[TlsConnection, None] = {}
        """Connections whose TLS handshake is in progress, the oldest first."""
        self.pages = PageMover()
        self.scratch = memoryview(bytearray(BUFFER_BYTES))
        """For one call each: encrypted bytes on their way from a socket."""


class SocketReply:
    """A place in the order of replies."""

    __slots__ = ("__weakref__", "_connection", "chunks", "frame_bytes")

    def __init__(self, connection: SocketConnection, frame_bytes: int) -> None:
        self._connection: SocketConnection | None = connection
        self.chunks: Sequence[Chunk] | None = None
        self.frame_bytes = frame_bytes

    def send(self, chunks: Sequence[Chunk]) -> None:
        connection = self._connection
        if connection is None:
            raise ReplyAnswered("the reply was already completed")
        connection.complete(self, chunks)
        self._connection = None

    def skip(self) -> None:
        self.send(())


class SocketConnection:
    """A connection to one peer."""

    __slots__ = (
        "__weakref__",
        "_corked",
        "_descriptor",
        "_finishing",
        "_flush_due",
        "_frame_bytes",
        "_in_line",
        "_input",
        "_lingering",
        "_output",
        "_places",
        "_reading",
        "_resume_due",
        "_shared",
        "_sock",
        "_unsent_bytes",
        "_writing",
        "active_tick",
        "address",
        "closed",
        "id",
        "listener",
        "peer",
        "state",
        "wheel_slot",
    )

    def __init__(
        self, shared: Shared, sock: socket.socket, number: int, address: str, peer: str, listener: str = ""
    ) -> None:
        self._shared = shared
        self._sock = sock
        self._descriptor = sock.fileno()
        self._input = FrameInput(sock, shared.buffer, shared.limits.max_frame_bytes, partial(shared.memory.admit, self))
        self._output = self._new_output()
        self._places: deque[SocketReply] = deque()
        self._unsent_bytes = 0
        self._corked = False
        self._reading = False
        self._writing = False
        self._flush_due = False
        self._resume_due = False
        self._in_line = False
        self._frame_bytes = 0
        self._finishing = False
        self._lingering: LingeringClose | None = None
        self.id = number
        self.address = address
        self.listener = listener
        self.peer = peer
        self.closed = False
        self.state: Any = None
        self.active_tick = 0
        self.wheel_slot = -1

    def _new_output(self) -> Output:
        return Output(self._sock, self._shared.pages)

    def __repr__(self) -> str:
        return f"<SocketConnection {self.id} from {self.peer}{' closed' if self.closed else ''}>"

    @property
    def busy(self) -> bool:
        """Whether the peer waits for this server: for a reply, or to be read. Then it does not count as idle."""
        return (bool(self._places) and not self._output.queue) or self._input.is_waiting

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate that the peer proved to own, DER; None without one."""
        return None

    def limit_frames(self, max_frame_bytes: int | None) -> None:
        """Accept no larger frames from now on; None: the server's limit."""
        self._input.max_frame_bytes = max_frame_bytes or self._shared.limits.max_frame_bytes

    @property
    def pending_replies(self) -> int:
        return len(self._places)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of replies that are ready but not sent, including those in files."""
        return self._unsent_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes of frames that were not yet passed to the handler."""
        return self._input.memory_bytes

    # --- input

    def start(self) -> None:
        """Call the handler and start reading."""
        try:
            self._shared.handler.connected(self)
        except Exception as error:  # noqa: BLE001 - it affects only this connection
            self._handler_failed(error)
        if not self.closed and not self._finishing:
            self._start_reading()

    def _start_reading(self) -> None:
        self._reading = True
        self._shared.loop.add_reader(self._descriptor, self._on_readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._shared.loop.remove_reader(self._descriptor)

    def _on_readable(self) -> None:
        scheduler = self._shared.scheduler
        if scheduler.line or scheduler.fresh or (scheduler.frames >= FREE_FRAMES and scheduler.is_over()):
            self._wait_in_line(fresh=True)
            return
        self._receive()

    def _wait_in_line(self, *, fresh: bool) -> None:
        """Let other connections have their turn first."""
        self._stop_reading()
        self._input.hold()
        self._in_line = True
        self._shared.scheduler.wait(self._serve_turn, fresh=fresh)

    def _serve_turn(self) -> None:
        self._in_line = False
        if self.closed or self._finishing:
            return
        frames = self._shared.counters.frames
        self._resume()
        if self._reading and self._shared.counters.frames == frames:
            self._receive()

    def _receive(self) -> None:
        try:
            count = self._input.receive()
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error)
            return
        if count == 0:
            self._shut(BY_PEER)
            return
        shared = self._shared
        shared.counters.bytes_in += count
        self.active_tick = shared.wheel.tick
        if count <= SMALL_BYTES:
            shared.poll.asked()
        else:
            shared.poll.large()
        self._deliver_frames()

    def _deliver_frames(self) -> None:
        """Pass complete frames to the handler, then send and settle what they left."""
        try:
            self._deliver()
        except FrameRejected as error:
            reason = f"connection closed: id={self.id} peer={self.peer} reason={error}"
            self._shared.log_limited("frame", reason)
            self.close(str(error))
        except Exception as error:  # noqa: BLE001 - it affects only this connection
            self._handler_failed(error)
        self._corked = False
        if self._output.queue and not self._writing:
            self._flush()
        if not self._reading and not self.closed:
            self._settle()

    def _deliver(self) -> None:
        """Pass complete frames to the handler, up to the limit of unanswered ones."""
        shared = self._shared
        limits = shared.limits
        places, source, waiting = self._places, self._input, self._output.queue
        scheduler, memory = shared.scheduler, shared.memory
        delivered = 0
        while True:
            if (
                len(places) >= limits.max_pending_replies
                or self._unsent_bytes > limits.max_output_bytes
                or (places and memory.held > memory.limit)
            ):
                self._stop_reading()
                source.hold()
                break
            # The clock is read with every fourth frame.
            if scheduler.frames >= FREE_FRAMES and (
                (delivered >= scheduler.quantum and (scheduler.line or scheduler.fresh))
                or (not delivered & 3 and scheduler.is_over())
            ):
                self._wait_in_line(fresh=not delivered)
                break
            frame = source.next_frame()
            if frame is None:
                if source.is_waiting:
                    self._stop_reading()
                    source.hold()
                break
            shared.counters.frames += 1
            scheduler.frames += 1
            delivered += 1
            size = self._frame_bytes = len(frame)
            if source.admitted_bytes:
                source.admitted_bytes = 0
                memory.received(self)
            else:
                memory.held += size
            # A single reply may leave immediately; others wait for the replies to the frames after it.
            more = source.more
            self._corked = more or bool(places) or bool(waiting)
            shared.handler.frame(self, frame)
            if self._frame_bytes:
                self._release_frame()  # the handler reserved no reply
            if not more or self.closed or self._finishing:
                break

    def _handler_failed(self, error: Exception) -> None:
        logger.error("connection closed, handler failed: id=%d peer=%s", self.id, self.peer, exc_info=error)
        self.close(f"the handler failed: {error!r}")

    def _settle(self) -> None:
        """While reading is stopped: resume it if possible or, when finishing, close once all replies are sent."""
        if self._finishing:
            if not self._places and not self._output.queue and self._lingering is None:
                self._linger()
        elif not self._resume_due and not self._in_line and not self._input.is_waiting:
            limits, memory = self._shared.limits, self._shared.memory
            if (
                len(self._places) <= limits.max_pending_replies // 2
                and self._unsent_bytes <= limits.max_output_bytes // 2
                and not (self._places and memory.held > memory.limit)
            ):
                # Not now: the handler may be in the middle of completing a reply.
                self._resume_due = True
                self._shared.loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resume_due = False
        if self.closed or self._finishing:
            return
        self._start_reading()
        self._input.unhold()
        self._deliver_frames()

    # --- request memory

    @property
    def arrived_bytes(self) -> int:
        return self._input.arrived_bytes

    def admitted(self) -> None:
        self._input.admit()
        self._settle()

    def too_slow(self) -> None:
        reason = "its request arrives too slowly while others wait for the memory"
        self._shared.log_limited("slow", f"connection closed: id={self.id} peer={self.peer} reason={reason}")
        self.close(reason)

    def _release(self, size: int) -> None:
        self._shared.memory.release(size, large=size > BUFFER_BYTES)

    def _release_frame(self) -> None:
        self._release(self._frame_bytes)
        self._frame_bytes = 0

    def _release_all(self) -> None:
        self._shared.memory.forget(self)
        if self._frame_bytes:
            self._release_frame()
        if self._input.admitted_bytes:
            self._release(self._input.admitted_bytes)
        for reply in self._places:
            self._release(reply.frame_bytes)

    # --- output

    def reply(self) -> SocketReply:
        reply = SocketReply(self, self._frame_bytes)
        if not self.closed:
            self._frame_bytes = 0
            self._places.append(reply)
        return reply

    def complete(self, reply: SocketReply, chunks: Sequence[Chunk]) -> None:
        """Called by a reply: send it after all replies before it."""
        if self.closed:
            return
        memory = self._shared.memory
        size = reply.frame_bytes
        if size > BUFFER_BYTES or memory.line:
            self._release(size)
        else:
            memory.held -= size
        reply.frame_bytes = 0
        places, waiting = self._places, self._output.queue
        if places[0] is not reply:
            reply.chunks = chunks
            self._unsent_bytes += size_of(chunks)
            return
        if len(chunks) == 1 and len(places) == 1 and not waiting and not self._corked:
            chunk = chunks[0]
            if isinstance(chunk, BUFFERS):
                places.popleft()
                self._send_alone(chunk)
                if not self._reading and not self.closed:
                    self._settle()
                return
        self._unsent_bytes += size_of(chunks)
        reply.chunks = chunks
        while places:
            ready = places[0].chunks
            if ready is None:
                break
            waiting.extend(ready)
            places.popleft()
        if self._corked or self._writing:
            return
        if places:
            self._flush_soon()
        else:
            self._flush()

    def _send_alone(self, chunk: bytes | bytearray | memoryview) -> None:
        size = len(chunk)
        try:
            sent = self._sock.send(chunk) if size else 0
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._fail(error)
            return
        shared = self._shared
        shared.counters.bytes_out += sent
        self.active_tick = shared.wheel.tick
        if size <= SMALL_BYTES:
            shared.poll.answered()
        if sent < size:
            self._unsent_bytes += size - sent
            self._output.queue.append(memoryview(chunk)[sent:] if sent else chunk)
            self._start_writing()

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._shared.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_due = False
        if not self.closed and not self._writing:
            self._flush()

    def _start_writing(self) -> None:
        if not self._writing:
            self._writing = True
            self._shared.loop.add_writer(self._descriptor, self._flush)

    def _flush(self) -> None:
        """Send what the socket takes; the loop calls again when it takes more."""
        output = self._output
        try:
            sent = output.flush()
        except (OSError, NetworkError) as error:
            self._fail(error)
            return
        if sent:
            shared = self._shared
            shared.counters.bytes_out += sent
            self.active_tick = shared.wheel.tick
            self._unsent_bytes -= sent
            if sent <= SMALL_BYTES:
                shared.poll.answered()
            else:
                shared.poll.large()
        if output.queue:
            self._start_writing()
        elif self._writing:
            self._writing = False
            self._shared.loop.remove_writer(self._descriptor)
        if not self._reading:
            self._settle()

    # --- close

    def finish(self) -> None:
        """Stop reading frames, and close when the pending replies are sent."""
        if not self._places and not self._output.queue:
            self.close(BY_SERVER)
        self._finishing = True
        self._stop_reading()

    def _linger(self) -> None:
        """The last reply was sent: wait for the peer to close."""
        try:
            self._lingering = LingeringClose(self._shared.loop, self._sock, partial(self._shut, BY_SERVER))
        except OSError as error:
            # The peer has reset the connection. ENOTCONN is not a ConnectionError, and no failure here.
            self._shut(f"{BY_PEER}: {error.strerror}")

    def close(self, reason: str) -> None:
        if self.closed:
            return
        if self._output.queue and not self._writing:
            try:
                self._shared.counters.bytes_out += self._output.flush()
            except (OSError, NetworkError) as error:
                logger.debug("last replies lost: id=%d peer=%s error=%s", self.id, self.peer, error)
        discard_unread(self._sock)
        self._shut(reason)

    def _fail(self, error: OSError | NetworkError) -> None:
        if isinstance(error, ConnectionError | TimeoutError):
            self._shut(f"{BY_PEER}: {error.strerror}")
            return
        self._shared.log_limited("failure", f"connection closed: id={self.id} peer={self.peer} reason={error}")
        self._shut(str(error))

    def _shut(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        shared = self._shared
        self._stop_reading()
        if self._writing:
            self._writing = False
            shared.loop.remove_writer(self._descriptor)
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        self._sock.close()
        self._release_all()
        self._places.clear()
        self._output.queue.clear()
        self._unsent_bytes = 0
        self._input.forget()
        shared.forget(self)
        logger.debug("connection closed: id=%d peer=%s reason=%s", self.id, self.peer, reason)
        self._report_closed(reason)

    def _report_closed(self, reason: str) -> None:
        # Not from within the handler, which may be in the middle of something.
        self._shared.loop.call_soon(self._shared.handler.closed, self, reason)
