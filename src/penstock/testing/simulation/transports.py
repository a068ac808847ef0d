"""asyncio transports over simulated sockets.

They behave like asyncio's own: `connection_lost` never runs within a call by the protocol and comes exactly once, as
the last callback; a peer that does not read causes `pause_writing`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.runtime.files import Buffer
from penstock.testing.simulation.loop import SimulatedLoop
from penstock.testing.simulation.network import SimulatedListener, SimulatedSocket

_HIGH_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 256 * 1024


class SimulatedTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, loop: SimulatedLoop, socket: SimulatedSocket, protocol: asyncio.BaseProtocol) -> None:
        super().__init__({"peername": tuple(socket.remote), "sockname": tuple(socket.local)})
        self._loop = loop
        self._socket = socket
        self._protocol = protocol
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._has_paused_protocol = False
        self._is_closing = False
        self._is_lost = False
        self._is_reading = True
        protocol.connection_made(self)
        socket.set_reader((self._on_readable, ()))

    # --- reading

    def _on_readable(self) -> None:
        if self._is_lost:
            return
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if not data:
            self._socket.set_reader(None)
            keep_open = self._call_protocol("eof_received")
            if not keep_open:
                self.close()
            return
        self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        protocol: Any = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        rest = memoryview(data)
        while rest and not self._is_lost:
            buffer = memoryview(protocol.get_buffer(len(rest)))
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            protocol.buffer_updated(count)

    def _call_protocol(self, name: str) -> Any:
        return getattr(self._protocol, name)()

    def pause_reading(self) -> None:
        self._is_reading = False
        self._socket.set_reader(None)

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._is_reading = True
            self._socket.set_reader((self._on_readable, ()))

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    # --- writing

    def write(self, data: Buffer) -> None:
        if self._is_closing or not data:
            return
        if not self._unsent and len(data) <= self._socket.room:
            # The common case, in which the protocol needs no flow control.
            self._socket.send(data)
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._flush()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def _flush(self) -> None:
        while self._unsent and not self._is_lost:
            piece = self._unsent[0]
            try:
                count = self._socket.send(piece)
            except BlockingIOError:
                self._socket.set_writer((self._flush, ()))
                break
            except OSError as error:
                self._loop.call_soon(self._lose, error)
                break
            self._unsent_bytes -= count
            if count == len(piece):
                self._unsent.popleft()
            else:
                self._unsent[0] = piece[count:]
        if not self._unsent:
            self._socket.set_writer(None)
            if self._is_closing and not self._is_lost:
                self._loop.call_soon(self._lose, None)
        self._update_flow_control()

    def _update_flow_control(self) -> None:
        if not self._has_paused_protocol and self._unsent_bytes > self._high:
            self._has_paused_protocol = True
            self._call_protocol("pause_writing")
        elif self._has_paused_protocol and self._unsent_bytes <= self._low and not self._is_lost:
            self._has_paused_protocol = False
            self._call_protocol("resume_writing")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def can_write_eof(self) -> bool:
        return False

    # --- closing

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._socket.set_reader(None)
            self._flush()

    def abort(self) -> None:
        self._is_closing = True
        if not self._is_lost:
            self._unsent.clear()
            self._socket.abort()
            self._loop.call_soon(self._lose, None)

    def _lose(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._socket.close()
        self._protocol.connection_lost(error)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol


class SimulatedServer:
    """The result of `create_server`: a listener, and a new protocol for each connection."""

    def __init__(
        self, loop: SimulatedLoop, listener: SimulatedListener, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._protocol_factory = protocol_factory
        listener.set_reader((self._on_acceptable, ()))

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.address

    def _on_acceptable(self) -> None:
        socket, _ = self._listener.accept()
        SimulatedTransport(self._loop, socket, self._protocol_factory())

    def close(self) -> None:
        self._listener.close()

    async def wait_closed(self) -> None:
        """`close` takes effect at once."""
