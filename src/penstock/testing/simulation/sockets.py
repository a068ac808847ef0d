"""Simulated sockets: streams of bytes between processes, as an operating system keeps them.

Nouns: a `SimulatedSocket`, one end of a connection, with the calls of `socket.socket` that Penstock's server uses; a
`Pipe`, one direction of a connection; a `SimulatedListener`.

Rule: a pipe delivers what was sent, in order, in pieces of any size, or never. Its buffers are bounded: whoever sends
to a peer that does not read must wait. A path that is cut holds the bytes back, as TCP does by sending again, until it
heals or the sender gives up. A socket of a process that died answers with a reset; one of a machine without power does
not answer. Sockets belong to the machine: they work while their process is paused.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.runtime.files import Buffer
from penstock.testing.simulation.loop import SimulatedLoop

if TYPE_CHECKING:
    from penstock.testing.simulation.network import SimulatedNetwork

WINDOW_BYTES: Final = 256 * 1024
_EOF: Final = b""

Callback = tuple[Callable[..., object], tuple[Any, ...]]


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Pollable(Protocol):
    """What a loop can watch."""

    def set_reader(self, callback: Callback | None) -> bool: ...

    def set_writer(self, callback: Callback | None) -> bool: ...


class _Polled:
    """Calls the reader as long as there is something to read, and the writer as long as there is room, on its loop."""

    def __init__(self, network: SimulatedNetwork, loop: SimulatedLoop) -> None:
        self.network = network
        self.loop = loop
        self.descriptor = network.new_descriptor()
        loop.descriptors[self.descriptor] = self
        self._reader: Callback | None = None
        self._writer: Callback | None = None
        self._is_due = False

    def is_readable(self) -> bool:
        raise NotImplementedError

    def is_writable(self) -> bool:
        return False

    def set_reader(self, callback: Callback | None) -> bool:
        before, self._reader = self._reader, callback
        self.poll()
        return before is not None

    def set_writer(self, callback: Callback | None) -> bool:
        before, self._writer = self._writer, callback
        self.poll()
        return before is not None

    def poll(self) -> None:
        """Something may have changed: see to it that whoever waits for it is called."""
        if self._is_due or self.loop.is_dead:
            return
        if (self._reader is not None and self.is_readable()) or (self._writer is not None and self.is_writable()):
            self._is_due = True
            self.loop.call_soon(self._call)

    def _call(self) -> None:
        self._is_due = False
        if self._reader is not None and self.is_readable():
            self._reader[0](*self._reader[1])
        if self._writer is not None and self.is_writable():
            self._writer[0](*self._writer[1])
        self.poll()

    @property
    def is_waiting_for_room(self) -> bool:
        return self._writer is not None

    def fileno(self) -> int:
        return self.descriptor

    def _forget(self) -> None:
        self._reader = self._writer = None
        self.loop.descriptors.pop(self.descriptor, None)


class SimulatedSocket(_Polled):
    """One end of a connection. `outgoing` and the peer are set by the network."""

    def __init__(self, network: SimulatedNetwork, loop: SimulatedLoop, local: Address, remote: Address) -> None:
        super().__init__(network, loop)
        self.local = local
        self.remote = remote
        self.outgoing: Pipe
        self.incoming: Pipe
        self.closed = False
        self.error: OSError | None = None
        self._inbox: deque[bytes] = deque()
        self._is_at_end = False
        self._is_shut = False

    def __repr__(self) -> str:
        return f"<SimulatedSocket {self.local} to {self.remote}>"

    def is_readable(self) -> bool:
        return bool(self._inbox) or self._is_at_end or self.error is not None

    def is_writable(self) -> bool:
        return self.error is not None or self.outgoing.room > 0

    @property
    def room(self) -> int:
        """Bytes that can be sent now; none where an error has to be told first."""
        return 0 if self.closed or self._is_shut or self.error is not None else self.outgoing.room

    # --- the calls of a socket

    def recv(self, size: int) -> bytes:
        self._require_open()
        if self._inbox:
            piece = self._inbox.popleft()
            if len(piece) > size:
                self._inbox.appendleft(piece[size:])
                piece = piece[:size]
            self.incoming.taken(len(piece))
            return piece
        if self.error is not None:
            raise self.error
        if self._is_at_end:
            return b""
        raise BlockingIOError(errno.EAGAIN, "nothing has arrived")

    def recv_into(self, buffer: memoryview) -> int:
        piece = self.recv(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def send(self, data: Buffer) -> int:
        self._require_open()
        if self.error is not None:
            raise self.error
        if self._is_shut:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        room = self.outgoing.room
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "no room")
        taken = data if isinstance(data, bytes) and len(data) <= room else bytes(data[:room])
        if taken:
            self.outgoing.send(taken)
        return len(taken)

    def sendmsg(self, buffers: list[Buffer], ancillary: object = (), flags: int = 0) -> int:
        return self.send(b"".join(buffers))

    def shutdown(self, how: int) -> None:
        self._require_open()
        if self.error is not None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        self._finish()

    def _finish(self) -> None:
        if not self._is_shut:
            self._is_shut = True
            self.outgoing.send(_EOF)

    def close(self) -> None:
        """As a kernel does it: politely, or with a reset if something was not read."""
        if self.closed:
            return
        if self._inbox:
            self.abort()
            return
        if self.error is None:
            self._finish()
        self._end()

    def abort(self) -> None:
        """The peer is told that it is over, and what is on its way is lost."""
        if not self.closed:
            if self.error is None and not self.incoming.sender.closed:
                self.outgoing.reset()
            self._end()

    def vanish(self) -> None:
        """The machine lost power: what has left has left, and nothing is said."""
        self._end()

    def _end(self) -> None:
        self.closed = True
        self._inbox.clear()
        self._forget()
        self.network.forget(self)

    def _require_open(self) -> None:
        if self.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def setsockopt(self, *option: object) -> None:
        """No option makes a difference here."""

    def getsockname(self) -> Address:
        return self.local

    # --- what the network brings

    def arrived(self, piece: bytes) -> bool:
        """Bytes, or the end of the stream; False if nobody is here to take them."""
        if self.closed or self.error is not None:
            return False
        if piece == _EOF:
            self._is_at_end = True
        else:
            self._inbox.append(piece)
        self.poll()
        return True

    def fail(self, number: int) -> None:
        """The connection is lost."""
        if not self.closed and self.error is None:
            self.error = OSError(number, os.strerror(number))
            self._inbox.clear()
            self.poll()


class Pipe:
    """One direction of a connection."""

    __slots__ = (
        "_armed", "_flights", "_from", "_is_stalled", "_outstanding", "_source", "_stalls", "_target", "network",
        "receiver", "sender",
    )  # fmt: skip

    def __init__(self, network: SimulatedNetwork, sender: SimulatedSocket, receiver: SimulatedSocket) -> None:
        self.network = network
        self.sender = sender
        self.receiver = receiver
        self._from = f"from {sender.local}:"
        self._source, self._target = sender.local.host, receiver.local.host
        self._flights: deque[tuple[float, bytes]] = deque()
        self._outstanding = 0
        self._armed = False
        self._is_stalled = False
        self._stalls = 0

    @property
    def room(self) -> int:
        """Bytes that may be sent now."""
        return WINDOW_BYTES - self._outstanding

    def send(self, data: bytes) -> None:
        """Bytes, or none for the end."""
        self._outstanding += len(data)
        flights = self._flights
        due_s = self.network.arrival_s(self._source, self._target, len(data))
        if flights and flights[-1][0] > due_s:
            due_s = flights[-1][0]
        for piece in self.network.pieces(data):
            flights.append((due_s, piece))
        if not self._armed:
            self._arm()

    def _arm(self) -> None:
        if self._flights and not self._armed and not self._is_stalled:
            self._armed = True
            self.network.kernel.call_at(self._flights[0][0], self._arrive)

    def _arrive(self) -> None:
        self._armed = False
        network, flights = self.network, self._flights
        if not network.reaches(self._source, self._target):
            self._stall()
            return
        now_s = network.kernel.time()
        while flights and flights[0][0] <= now_s:
            _, piece = flights.popleft()
            network.trace.note(self._target, self._from, len(piece), "bytes", zlib.crc32(piece))
            if not self.receiver.arrived(piece):
                flights.clear()
                network.answer_with_reset(self)
                return
        if flights:
            self._arm()

    def _stall(self) -> None:
        self._is_stalled = True
        self._stalls += 1
        self.network.stalled[self] = None
        self.network.kernel.call_later(self.network.give_up_s, self._give_up, self._stalls)

    def _give_up(self, stall: int) -> None:
        if self._is_stalled and stall == self._stalls:
            self.network.stalled.pop(self, None)
            self._is_stalled = False
            self._flights.clear()
            self.sender.fail(errno.ETIMEDOUT)

    def resume(self, after_s: float) -> None:
        """The path may be whole again: what was held back is sent again."""
        self._is_stalled = False
        due_s = self.network.kernel.time() + after_s
        self._flights = deque((max(due_s, at_s), piece) for at_s, piece in self._flights)
        self._arm()

    def taken(self, count: int) -> None:
        """The receiver's process has read so much: there is room for more."""
        self._outstanding -= count
        if not self.sender.closed and self.sender.is_waiting_for_room:
            self.sender.poll()

    def reset(self) -> None:
        """Tell the receiver that it is over, if it can be told."""
        self._flights.clear()
        self.network.send_reset(self.sender.local.host, self.receiver)


class SimulatedListener(_Polled):
    """A port at which connections come in; those not accepted yet wait in it."""

    def __init__(self, network: SimulatedNetwork, loop: SimulatedLoop, address: Address) -> None:
        super().__init__(network, loop)
        self.address = address
        self.closed = False
        self._waiting: deque[SimulatedSocket] = deque()

    def is_readable(self) -> bool:
        return bool(self._waiting)

    def came(self, socket: SimulatedSocket) -> None:
        self._waiting.append(socket)
        self.poll()

    def accept(self) -> tuple[SimulatedSocket, Address]:
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "nobody has come")
        socket = self._waiting.popleft()
        return socket, socket.remote

    def getsockname(self) -> Address:
        return self.address

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._forget()
            self.network.unlisten(self)
            for socket in self._waiting:
                socket.abort()
            self._waiting.clear()
