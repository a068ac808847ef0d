"""A connection to one broker: a pipeline of requests over one socket.

Requests leave in the order of the calls and a broker answers in that order, so a response belongs to the oldest
request in flight; another correlation id closes the connection. So does a request that times out. When a connection
ends, every request in flight fails with NotConnected. One timer serves all time-outs.

A connection is silent (`is_silent`) when its oldest request is `OVERDUE_MS` late and no bytes arrive. `on_silence` is
then called repeatedly, so that the client can ask another broker for the current leaders; the connection stays open.

The first bytes of a peer that is not a broker identify its protocol: TLS, HTTP, SSH, Redis, AMQP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from penstock.client.errors import (
    NotConnected,
    PenstockError,
    ProtocolViolation,
    RequestTimedOut,
    UnsupportedVersion,
)
from penstock.runtime.network import probe_when_idle, protocol_remark
from penstock.wire.errors import Frame, FrameError, WireError
from penstock.wire.framing import FrameReceiver, decode_response, encode_request
from penstock.wire.protocol import APIS, response_codec
from penstock.wire.types import Buffer, Chunk, Message

MAX_FRAME_BYTES: Final = 512 * 1024 * 1024
# Until the peer has proved to be a broker: far below the length that the first bytes of a TLS alert or of HTTP spell.
_FIRST_FRAME_BYTES: Final = 16 * 1024 * 1024

# How much memory a broker's announced frame length may make us allocate at once.
_BROKER_AT_ONCE_BYTES: Final = 16 * 1024 * 1024

_log = logging.getLogger(__name__)

# Below this, one copy costs less than another chunk for the system call.
_JOIN_BYTES: Final = 32 * 1024
_HIGH_WATER_BYTES: Final = 1024 * 1024
_MAX_CORRELATION: Final = 2**31 - 1
OVERDUE_MS: Final = 1_000.0
_SILENCE_MS: Final = 500.0  # between two calls of on_silence
_LONG_SILENCE_MS: Final = 10_000.0  # after which they become less frequent
_LONG_BETWEEN_MS: Final = 2_000.0


class IgnoredRequest(NotConnected):
    """The broker answered a later request: it will never answer this one."""


class BufferList(list[Buffer]):
    """The records of a request as several buffers, which are sent one after the other without joining them."""

    @property
    def size(self) -> int:
        return sum(map(len, self))


class _InFlightRequest:
    """A request in flight."""

    __slots__ = ("api_key", "correlation_id", "deadline", "due", "future", "timeout_ms", "version")

    def __init__(
        self,
        api_key: int,
        version: int,
        correlation_id: int,
        future: asyncio.Future[Any],
        deadline: float,
        due: float,
        timeout_ms: float,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.future = future
        self.deadline = deadline
        self.due = due
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return f"{APIS[self.api_key].name} v{self.version}"


class Connection(asyncio.BufferedProtocol):
    """A connection to one broker. Opened by `connection_pool.open_connection`; used on its loop's thread only."""

    def __init__(
        self,
        node: str,
        *,
        client_id: str | None,
        loop: asyncio.AbstractEventLoop | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self.node = node
        self.closed = False
        self.legacy_release: str | None = None
        """The release of a broker without ApiVersions, such as "0.9"; None for newer ones."""
        self.close_reason = ""
        self.is_silent = False
        self.on_silence: Callable[[], None] | None = None
        self._has_received = False
        self.first_bytes = b""
        self.was_reset = False
        """Whether it broke, instead of being closed by the peer in good order."""
        self.client_id = client_id
        self._loop = loop or asyncio.get_running_loop()
        self._versions: dict[int, tuple[int, int]] = {}
        self.finalized_features: dict[str, int] = {}
        """The levels of the cluster's features when the connection was opened, such as transaction.version."""
        self._max_frame_bytes = max_frame_bytes
        self._receiver = FrameReceiver(_FIRST_FRAME_BYTES)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_InFlightRequest] = deque()
        self._held_back: deque[list[Chunk]] = deque()
        self._paused = False
        self._gathers = False
        self._correlation_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._lost = self._loop.create_future()
        self.is_authenticated = False
        """Whether it was opened with a SASL login."""
        self._is_held = False
        self._held = 0
        self._session_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = f"closed: {self.close_reason}" if self.closed else f"{len(self._waiting)} in flight"
        return f"<Connection {self.node}, {state}>"

    # ------------------------------------------------------------------------------------------ versions

    def agree(
        self,
        versions: Iterable[tuple[int, int, int]],
        legacy_release: str | None = None,
        features: Mapping[str, int] | None = None,
    ) -> None:
        """Set the versions that the broker serves (API, lowest and highest version) and the cluster's features."""
        self.finalized_features = dict(features or {})
        self._versions = {key: (lowest, highest) for key, lowest, highest in versions}
        self.legacy_release = legacy_release
        self._receiver.max_frame_bytes = self._max_frame_bytes
        self._receiver.at_once_bytes = _BROKER_AT_ONCE_BYTES

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        """The versions that the broker serves, by API."""
        return dict(self._versions)

    def version_of(self, api_key: int, at_most: int | None = None) -> int:
        """The highest version that both sides know, up to `at_most`; raises UnsupportedVersion."""
        theirs = self._versions.get(api_key)
        api = APIS.get(api_key)
        if theirs is not None and api is not None:
            version = min(theirs[1], api.versions.highest)
            if at_most is not None:
                version = min(version, at_most)
            if version >= theirs[0] and version >= api.versions.lowest:
                return version
        name = api.name if api is not None else f"API {api_key}"
        ours = None if api is None else (api.versions.lowest, min(api.versions.highest, at_most or 0x7FFF))
        raise UnsupportedVersion(self.node, name, ours, theirs)

    def supports(self, api_key: int, version: int) -> bool:
        """Whether both sides know this version."""
        theirs = self._versions.get(api_key)
        api = APIS.get(api_key)
        return theirs is not None and api is not None and theirs[0] <= version <= theirs[1] and version in api.versions

    @property
    def plain_peer(self) -> tuple[int, Any] | None:
        """Family and address of the peer; None with TLS or SASL, or when there is no connection."""
        transport = self._transport
        if transport is None or self.is_authenticated or transport.get_extra_info("sslcontext") is not None:
            return None
        sock = transport.get_extra_info("socket")
        return None if sock is None else (sock.family, transport.get_extra_info("peername"))

    # ------------------------------------------------------------------------------------------ requests

    @property
    def in_flight(self) -> int:
        """Requests that wait for their response."""
        return len(self._waiting)

    async def request(
        self,
        api_key: int,
        message: Message,
        *,
        timeout_ms: float,
        version: int | None = None,
        expects_answer: bool = True,
        wait_ms: float = 0,
    ) -> Any:
        """The response message; None where no response is expected.

        Records of the request are sent without a copy, so they must not change before the response is here; records
        of the response are views of the received frame. Raises NotConnected, RequestTimedOut, UnsupportedVersion,
        ProtocolViolation. Cancelling drops the response, not the request.
        """
        future = self.send(
            api_key, message, timeout_ms=timeout_ms, version=version, expects_answer=expects_answer, wait_ms=wait_ms
        )
        return None if future is None else await future

    def send(
        self,
        api_key: int,
        message: Message,
        *,
        timeout_ms: float,
        version: int | None = None,
        expects_answer: bool = True,
        wait_ms: float = 0,
        is_urgent: bool = False,
    ) -> asyncio.Future[Any] | None:
        """`request` in two steps: the request is in flight when this returns, in the order of the calls.

        `wait_ms` is how long the broker may hold the response back. `is_urgent` passes `hold`.
        """
        if self.closed:
            raise NotConnected(self.node, self.close_reason)
        if version is None:
            version = self.version_of(api_key)
        self._correlation_id = correlation_id = self._correlation_id % _MAX_CORRELATION + 1
        chunks = encode_request(api_key, version, correlation_id, self.client_id, message)
        future: asyncio.Future[Any] | None = None
        if expects_answer:
            future = self._loop.create_future()
            now = self._loop.time()
            deadline, due = now + timeout_ms / 1000, now + (wait_ms + OVERDUE_MS) / 1000
            if not self._waiting:
                self._has_received = False
            request = _InFlightRequest(api_key, version, correlation_id, future, deadline, due, timeout_ms)
            if self._held and is_urgent:
                self._waiting.insert(len(self._waiting) - self._held, request)
            else:
                self._waiting.append(request)
            if deadline < self._timer_at or due < self._timer_at:
                self._arm(min(deadline, due))
        if self._is_held and not is_urgent:
            self._held += expects_answer
            self._held_back.append(chunks)
        elif (self._paused or self._held_back) and not is_urgent:
            self._held_back.append(chunks)
        else:
            self._write(chunks)
        return future

    # ------------------------------------------------------------------------------------------ sessions

    @property
    def has_backlog(self) -> bool:
        """Whether requests wait for the socket."""
        return bool(self._held_back)

    def hold(self) -> None:
        """Keep requests back, except urgent ones: the broker accepts nothing else while a session is renewed.

        Not while there is a backlog, which urgent requests would overtake.
        """
        self._is_held = True
        self._held = 0

    def release(self) -> None:
        """Send what was kept back."""
        self._is_held = False
        self._held = 0
        self._write_held_back()

    def call_later(self, delay_s: float, then: Callable[[], None]) -> None:
        """Call `then`, unless the connection ends before."""
        if not self.closed:
            self._session_timer = self._loop.call_later(delay_s, then)

    def keep_task(self, task: asyncio.Task[None]) -> None:
        """Keep the task that renews the session from being collected."""
        self._task = task

    def _write_held_back(self) -> None:
        while self._held_back and not self._paused and not self._is_held and not self.closed:
            self._write(self._held_back.popleft())

    def _write(self, chunks: list[Chunk]) -> None:
        transport = self._transport
        if transport is None or self.closed:
            return
        buffers = _gathered(chunks)
        if len(buffers) == 1:
            transport.write(buffers[0])
        elif self._gathers:
            transport.writelines(buffers)
        else:
            for buffer in buffers:
                transport.write(buffer)

    # ------------------------------------------------------------------------------------------ time-outs

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._sweep)

    def _sweep(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now = self._loop.time()
        late = [waiting for waiting in self._waiting if waiting.deadline <= now]
        if not late:
            if self._waiting:
                self._look_for_silence(now)
            return
        for waiting in late:
            if not waiting.future.done():
                waiting.future.set_exception(RequestTimedOut(self.node, str(waiting), waiting.timeout_ms))
        self.abort(f"{late[0]} was not answered within {late[0].timeout_ms:.0f} ms")

    def _look_for_silence(self, now: float) -> None:
        """The broker answers in order, so the oldest request shows whether it answers at all."""
        due = self._waiting[0].due
        if due <= now:
            is_long = now - due > _LONG_SILENCE_MS / 1000
            due = now + (_LONG_BETWEEN_MS if is_long else _SILENCE_MS) / 1000
            self.is_silent = not self._has_received
            self._has_received = False  # until the next check
        self._arm(min(due, min(waiting.deadline for waiting in self._waiting)))
        if self.is_silent and self.on_silence is not None:
            self.on_silence()

    # ------------------------------------------------------------------------------------------ the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):  # already closed; connection_lost follows
                probe_when_idle(sock)
        # asyncio before 3.12 joins the buffers of writelines.
        self._gathers = sys.version_info >= (3, 12) or not type(transport).__module__.startswith("asyncio.")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        self._has_received = True
        self.is_silent = False
        try:
            frames = self._receiver.received(nbytes)
        except FrameError as error:
            for whole in error.frames:
                self._take(whole)
            self.first_bytes = self._receiver.first_bytes()
            self._violated(str(error) + protocol_remark(self.first_bytes))
            return
        for frame in frames:
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        if self.closed:
            return
        if not self._waiting:
            self.first_bytes = bytes(frame[:16])
            self._violated(f"{len(frame)} bytes without a request")
            return
        waiting = self._waiting[0]
        try:
            if not self._versions:
                waiting = self._without_ignored(frame)
            header, position = decode_response(waiting.api_key, waiting.version, frame)
            if header.correlation_id != waiting.correlation_id:
                raise WireError(f"correlation id {header.correlation_id}, expected {waiting.correlation_id}")
            version = waiting.version
            if waiting.api_key == _API_VERSIONS and frame[position : position + 2] == _UNSUPPORTED:
                version = 0  # A broker that does not know the version of the request answers in version 0.
            message, _ = response_codec(waiting.api_key, version).decode(frame, position)
        except WireError as error:
            self.first_bytes = bytes(frame[:16])
            self._violated(f"in response to {waiting}: {error}")
            return
        self._waiting.popleft()
        if not waiting.future.done():
            waiting.future.set_result(message)

    def _without_ignored(self, frame: Frame) -> _InFlightRequest:
        """The request of a response before versions are known: old brokers ignore requests that they do not know."""
        correlation_id = int.from_bytes(frame[:4], "big")
        if any(waiting.correlation_id == correlation_id for waiting in self._waiting):
            while self._waiting[0].correlation_id != correlation_id:
                ignored = self._waiting.popleft()
                if not ignored.future.done():
                    ignored.future.set_exception(IgnoredRequest(self.node, f"it ignored {ignored}"))
        return self._waiting[0]

    def _violated(self, reason: str) -> None:
        error = ProtocolViolation(self.node, reason)
        if self._waiting and not self._waiting[0].future.done():
            self._waiting[0].future.set_exception(error)
        self.abort(error.message)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._write_held_back()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed:
            self.was_reset = error is not None
            pending = self._receiver.pending_bytes
            cut = f" in the middle of a frame, {pending} bytes into it" if pending else ""
            if not self._versions:
                self.first_bytes = self._receiver.first_bytes(min(pending, 16))
            self._ended(f"the connection broke{cut}: {error}" if error else f"the broker closed the connection{cut}")
        if not self._lost.done():
            self._lost.set_result(None)

    # ------------------------------------------------------------------------------------------ the end

    def close(self, reason: str = "the client closed the connection") -> None:
        """Requests in flight fail with NotConnected, what was written is still sent. It may be called twice."""
        if not self.closed:
            self._ended(reason)
            if self._transport is not None:
                self._transport.close()

    def abort(self, reason: str = "the client aborted the connection") -> None:
        """Close it at once: what was written and not sent yet is lost."""
        if not self.closed:
            self._ended(reason)
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self, timeout_ms: float) -> None:
        """Wait until the socket is closed; what is not sent by then is lost."""
        if self._transport is not None:
            _, late = await asyncio.wait((self._lost,), timeout=timeout_ms / 1000)
            if late:
                self.abort()
                await asyncio.wait((self._lost,), timeout=1.0)

    async def wait_lost(self) -> None:
        """Wait until the connection ends, for whatever reason."""
        await asyncio.shield(self._lost)

    def _ended(self, reason: str) -> None:
        self.closed = True
        self.close_reason = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._session_timer is not None:
            self._session_timer.cancel()
            self._session_timer = None
        waiting, self._waiting = self._waiting, deque()
        self._held_back.clear()
        if waiting:
            _log.debug("connection closed: node=%s reason=%s in_flight=%d", self.node, reason, len(waiting))
        for request in waiting:
            if not request.future.done():
                request.future.set_exception(NotConnected(self.node, reason))
                # A client that is closed at once does not wait for its answers: asyncio is not to complain.
                request.future.exception()


_API_VERSIONS: Final = 18
_UNSUPPORTED: Final = (35).to_bytes(2, "big")


def _gathered(chunks: list[Chunk]) -> list[Buffer]:
    """The buffers to send, with small neighbours joined."""
    buffers: list[Buffer] = []
    small: list[Buffer] = []
    small_bytes = 0
    for chunk in _flattened(chunks):
        size = len(chunk)
        if size < _JOIN_BYTES:
            small.append(chunk)
            small_bytes += size
            if small_bytes < _JOIN_BYTES:
                continue
        if small:
            buffers.append(small[0] if len(small) == 1 else b"".join(small))
            small, small_bytes = [], 0
        if size >= _JOIN_BYTES:
            buffers.append(chunk)
    if small:
        buffers.append(small[0] if len(small) == 1 else b"".join(small))
    return buffers


def _flattened(chunks: list[Chunk]) -> Iterable[Buffer]:
    for chunk in chunks:
        if isinstance(chunk, bytes | bytearray | memoryview):
            yield chunk
        elif isinstance(chunk, BufferList):
            yield from chunk
        else:
            raise PenstockError(f"records cannot be sent from {type(chunk).__name__}")
