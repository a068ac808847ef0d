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
from typing import Any, Final

from penstock.runtime.clock import Clock
from penstock.runtime.network import Chunk, Counters, Handler, Limits, NetworkError, ReplyAnswered
from penstock.runtime.socket_io import BUFFER_BYTES, BUFFERS, FrameInput, FrameRejected, Output, size_of
from penstock.runtime.socket_limits import FREE_FRAMES, QUANTUM_FRAMES, FairScheduler, IdleTimingWheel, RequestMemory

SMALL_BYTES: Final = 4096
IN_A_ROW: Final = 16


class BusyPoll:
    """One for a server; `window_us` is how long to stay awake, 0 is never."""

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
        """A small question came."""
        if self._now_s() - self._answered_s < self._window_s:
            self._earned += 1
        else:
            self._earned = 0

    def answered(self) -> None:
        """A small answer left."""
        self._answered_s = self._now_s()
        if self._earned >= IN_A_ROW and not self._awake:
            self._awake = True
            self._loop.call_soon(self._look)

    def large(self) -> None:
        """Much came or went: what comes next will take its time."""
        self._earned = 0

    def _look(self) -> None:
        if self._earned and self._now_s() - self._answered_s < self._window_s:
            os.sched_yield()
            # A turn of the loop with something to do does not wait for its sockets.
            self._loop.call_soon(self._look)
        else:
            self._awake = False
            self._earned = 0


_LINGER_MS: Final = 1000
_DISCARD_BYTES: Final = 256 * 1024


def discard_unread(sock: socket.socket) -> bool:
    """Throw away what has come; whether the peer has closed its direction, or is gone."""
    try:
        return not sock.recv(_DISCARD_BYTES)
    except BlockingIOError:
        return False
    except OSError:
        return True


class LingeringClose:
    """Waits for the peer to close, for a second at most, then calls `done`. OSError if it is gone already."""

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
        """Let go of the socket."""
        self._timer.cancel()
        self._loop.remove_reader(self._descriptor)


logger = logging.getLogger(__name__)

BY_PEER: Final = "the peer closed the connection"
BY_SERVER: Final = "the server closes"
IDLE: Final = "nothing moved for too long"


class Shared:
    """What the connections of one server have in common."""

    __slots__ = (
        "buffer",
        "complain",
        "counters",
        "forget",
        "handler",
        "limits",
        "loop",
        "memory",
        "poll",
        "turns",
        "wheel",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handler: Handler,
        limits: Limits,
        wheel: IdleTimingWheel[SocketConnection],
        buffer: memoryview,
        complain: Callable[[str, str], None],
        forget: Callable[[SocketConnection], None],
        clock: Clock,
    ) -> None:
        self.loop = loop
        self.handler = handler
        self.limits = limits
        self.wheel = wheel
        self.buffer = buffer
        self.complain = complain
        self.forget = forget
        self.counters = Counters()
        self.poll = BusyPoll(loop, limits.busy_poll_us)
        self.memory = RequestMemory(loop, clock, limits.max_request_bytes)
        self.turns = FairScheduler(loop, clock)


class SocketReply:
    """A place in the order of answers."""

    __slots__ = ("__weakref__", "_connection", "chunks", "frame_bytes")

    def __init__(self, connection: SocketConnection, frame_bytes: int) -> None:
        self._connection: SocketConnection | None = connection
        self.chunks: Sequence[Chunk] | None = None
        self.frame_bytes = frame_bytes

    def send(self, chunks: Sequence[Chunk]) -> None:
        connection = self._connection
        if connection is None:
            raise ReplyAnswered("this reply was completed before")
        connection.complete(self, chunks)
        self._connection = None

    def skip(self) -> None:
        self.send(())


class SocketConnection:
    """One peer."""

    __slots__ = (
        "__weakref__",
        "_corked",
        "_descriptor",
        "_farewell",
        "_finishing",
        "_flush_due",
        "_frame_bytes",
        "_in_line",
        "_input",
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
        "peer",
        "state",
        "wheel_slot",
    )

    def __init__(self, shared: Shared, sock: socket.socket, number: int, address: str, peer: str) -> None:
        self._shared = shared
        self._sock = sock
        self._descriptor = sock.fileno()
        self._input = FrameInput(sock, shared.buffer, shared.limits.max_frame_bytes, partial(shared.memory.admit, self))
        self._output = Output(sock)
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
        self._farewell: LingeringClose | None = None
        self.id = number
        self.address = address
        self.peer = peer
        self.closed = False
        self.state: Any = None
        self.active_tick = 0
        self.wheel_slot = -1

    def __repr__(self) -> str:
        return f"<SocketConnection {self.id} from {self.peer}{' closed' if self.closed else ''}>"

    @property
    def busy(self) -> bool:
        """The peer waits for an answer that is not ready, or is not read: it cannot be blamed for silence."""
        return (bool(self._places) and not self._output.queue) or self._input.is_waiting

    @property
    def pending_replies(self) -> int:
        return len(self._places)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that are ready and have not left, those in files included."""
        return self._unsent_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes held of frames that were not handed out."""
        return self._input.memory_bytes

    # In

    def start(self) -> None:
        """Tell the handler, and begin to read."""
        try:
            self._shared.handler.connected(self)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this connection only
            self._blame_handler(error)
        if not self.closed and not self._finishing:
            self._read_on()

    def _read_on(self) -> None:
        self._reading = True
        self._shared.loop.add_reader(self._descriptor, self._on_readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._shared.loop.remove_reader(self._descriptor)

    def _on_readable(self) -> None:
        turns = self._shared.turns
        if turns.line or (turns.frames >= FREE_FRAMES and turns.is_over()):
            self._wait_in_line()
            return
        self._receive()

    def _wait_in_line(self) -> None:
        """Others have their turn first."""
        self._stop_reading()
        self._input.hold()
        self._in_line = True
        self._shared.turns.wait(self._have_turn)

    def _have_turn(self) -> None:
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
        self._hand_out()

    def _hand_out(self) -> None:
        """Give the handler the frames that are whole, as many as may be unanswered."""
        shared = self._shared
        limits = shared.limits
        places, source, waiting = self._places, self._input, self._output.queue
        turns, memory = shared.turns, shared.memory
        handed_out = 0
        try:
            while True:
                if (
                    len(places) >= limits.max_pending_replies
                    or self._unsent_bytes > limits.max_output_bytes
                    or (places and memory.held > memory.limit)
                ):
                    self._stop_reading()
                    source.hold()
                    break
                # The clock is looked at with every fourth frame.
                if turns.frames >= FREE_FRAMES and (
                    (handed_out >= QUANTUM_FRAMES and turns.line) or (not handed_out & 3 and turns.is_over())
                ):
                    self._wait_in_line()
                    break
                frame = source.next_frame()
                if frame is None:
                    if source.is_waiting:
                        self._stop_reading()
                        source.hold()
                    break
                shared.counters.frames += 1
                turns.frames += 1
                handed_out += 1
                size = self._frame_bytes = len(frame)
                if source.admitted_bytes:
                    source.admitted_bytes = 0
                    memory.received(self)
                else:
                    memory.held += size
                # A lone answer may leave at once; others wait for those of the frames behind it.
                more = source.more
                self._corked = more or bool(places) or bool(waiting)
                shared.handler.frame(self, frame)
                if self._frame_bytes:
                    self._release_frame()  # no answer was reserved for it
                if not more or self.closed or self._finishing:
                    break
        except FrameRejected as error:
            shared.complain("frame", f"connection {self.id} from {self.peer} is closed: {error}")
            self.close(str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this connection only
            self._blame_handler(error)
        self._corked = False
        if waiting and not self._writing:
            self._flush()
        if not self._reading and not self.closed:
            self._settle()

    def _blame_handler(self, error: Exception) -> None:
        logger.error("connection %d from %s is closed: its handler failed", self.id, self.peer, exc_info=error)
        self.close(f"the handler failed: {error!r}")

    def _settle(self) -> None:
        """Reading is stopped: see whether it may go on, or, at the end, whether nothing is owed any more."""
        if self._finishing:
            if not self._places and not self._output.queue and self._farewell is None:
                self._part()
        elif not self._resume_due and not self._in_line and not self._input.is_waiting:
            limits, memory = self._shared.limits, self._shared.memory
            if (
                len(self._places) <= limits.max_pending_replies // 2
                and self._unsent_bytes <= limits.max_output_bytes // 2
                and not (self._places and memory.held > memory.limit)
            ):
                # Not here: the handler may be in the middle of completing a reply.
                self._resume_due = True
                self._shared.loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resume_due = False
        if self.closed or self._finishing:
            return
        self._read_on()
        self._input.unhold()
        self._hand_out()

    # The memory of requests

    @property
    def arrived_bytes(self) -> int:
        return self._input.arrived_bytes

    def admitted(self) -> None:
        self._input.admit()
        self._settle()

    def too_slow(self) -> None:
        reason = "others wait for the memory of its request, which comes too slowly"
        self._shared.complain("slow", f"connection {self.id} from {self.peer} is closed: {reason}")
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

    # Out

    def reply(self) -> SocketReply:
        reply = SocketReply(self, self._frame_bytes)
        if not self.closed:
            self._frame_bytes = 0
            self._places.append(reply)
        return reply

    def complete(self, reply: SocketReply, chunks: Sequence[Chunk]) -> None:
        """Called by a reply: let it leave when all before it have."""
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
            self._write_on()

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._shared.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_due = False
        if not self.closed and not self._writing:
            self._flush()

    def _write_on(self) -> None:
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
            self._write_on()
        elif self._writing:
            self._writing = False
            self._shared.loop.remove_writer(self._descriptor)
        if not self._reading:
            self._settle()

    # The end

    def finish(self) -> None:
        """Take no more frames, and close when the answers that are owed have left."""
        if not self._places and not self._output.queue:
            self.close(BY_SERVER)
        self._finishing = True
        self._stop_reading()

    def _part(self) -> None:
        """The last answer is on its way."""
        try:
            self._farewell = LingeringClose(self._shared.loop, self._sock, partial(self._shut, BY_SERVER))
        except OSError as error:
            self._fail(error)

    def close(self, reason: str) -> None:
        if self.closed:
            return
        if self._output.queue and not self._writing:
            try:
                self._shared.counters.bytes_out += self._output.flush()
            except (OSError, NetworkError) as error:
                logger.debug("connection %d from %s: its last answers are lost: %s", self.id, self.peer, error)
        discard_unread(self._sock)
        self._shut(reason)

    def _fail(self, error: OSError | NetworkError) -> None:
        if isinstance(error, ConnectionError | TimeoutError):
            self._shut(f"{BY_PEER}: {error.strerror}")
            return
        self._shared.complain("failure", f"connection {self.id} from {self.peer} is closed: {error}")
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
        if self._farewell is not None:
            self._farewell.cancel()
            self._farewell = None
        self._sock.close()
        self._release_all()
        self._places.clear()
        self._output.queue.clear()
        self._unsent_bytes = 0
        self._input.forget()
        shared.forget(self)
        logger.debug("connection %d from %s is closed: %s", self.id, self.peer, reason)
        # Never from within the handler: it may be in the middle of anything.
        shared.loop.call_soon(shared.handler.closed, self, reason)
