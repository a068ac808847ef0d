"""A simulated network: hosts, paths between them, sockets and listeners.

A `Pipe` is one direction of a connection. It delivers the sent bytes in order, in pieces of any size, or not at all.
Buffers are bounded, so a sender waits for a peer that does not read. A cut path holds bytes back, as TCP
retransmission does, until it heals or the sender gives up; each direction is cut separately. A socket of a dead
process answers with a reset; a machine without power does not answer. Sockets belong to the machine and work while
their process is paused. Delays, few of them long, and the pieces of a stream are drawn from the seed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from random import Random as PythonRandom
from typing import Any, Final, NamedTuple, Protocol

from penstock.runtime.files import Buffer
from penstock.runtime.network import AddressInUse, Limits
from penstock.testing.simulation.loop import SimulatedLoop, kernel_of
from penstock.testing.simulation.scheduler import Scheduler

WINDOW_BYTES: Final = 256 * 1024
_EOF: Final = b""

Callback = tuple[Callable[..., object], tuple[Any, ...]]


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Pollable(Protocol):
    """A socket or listener that a loop can poll."""

    def set_reader(self, callback: Callback | None) -> bool: ...

    def set_writer(self, callback: Callback | None) -> bool: ...


class _Polled:
    """Calls the reader while data is readable, and the writer while there is room to write, on its loop."""

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
        """Something may have changed: schedule the callbacks that wait for it."""
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
        """Bytes that can be sent now; 0 if an error must be reported first."""
        return 0 if self.closed or self._is_shut or self.error is not None else self.outgoing.room

    # --- the calls of a socket

    def recv(self, size: int) -> bytes:
        self._require_open()
        if self._inbox:
            piece = self._inbox.popleft()
            if len(piece) > size:
                self._inbox.appendleft(piece[size:])
                piece = piece[:size]
            self.incoming.consumed(len(piece))
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
        """Close as a kernel does: with a FIN, or with a reset if received data was not read."""
        if self.closed:
            return
        if self._inbox:
            self.abort()
            return
        if self.error is None:
            self._finish()
        self._end()

    def abort(self) -> None:
        """Reset the connection; data in flight is lost."""
        if not self.closed:
            if self.error is None and not self.incoming.sender.closed:
                self.outgoing.reset()
            self._end()

    def vanish(self) -> None:
        """The machine lost power: data sent stays sent, and the peer is not notified."""
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
        """Options have no effect."""

    def getsockname(self) -> Address:
        return self.local

    # --- called by the network

    def arrived(self, piece: bytes) -> bool:
        """Receive bytes or the end of the stream; False if the socket is closed."""
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
        """Send bytes; none for the end of the stream."""
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
        """The path works again: retransmit."""
        self._is_stalled = False
        due_s = self.network.kernel.time() + after_s
        self._flights = deque((max(due_s, at_s), piece) for at_s, piece in self._flights)
        self._arm()

    def consumed(self, count: int) -> None:
        """The receiver has read `count` bytes, so there is room for more."""
        self._outstanding -= count
        if not self.sender.closed and self.sender.is_waiting_for_room:
            self.sender.poll()

    def reset(self) -> None:
        """Reset the receiver, if it can be reached."""
        self._flights.clear()
        self.network.send_reset(self.sender.local.host, self.receiver)


class SimulatedListener(_Polled):
    """A listening port with a queue of connections that are not accepted yet."""

    def __init__(self, network: SimulatedNetwork, loop: SimulatedLoop, address: Address) -> None:
        super().__init__(network, loop)
        self.address = address
        self.closed = False
        self._waiting: deque[SimulatedSocket] = deque()

    def is_readable(self) -> bool:
        return bool(self._waiting)

    def enqueue(self, socket: SimulatedSocket) -> None:
        self._waiting.append(socket)
        self.poll()

    def accept(self) -> tuple[SimulatedSocket, Address]:
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "no connection is waiting")
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


_FIRST_PORT: Final = 30_000
_BYTES_PER_S: Final = 100e6
_SPLIT_CHANCE: Final = 0.05
_TAIL_CHANCE: Final = 0.01
_TAIL_FACTOR: Final = 20.0
_LEAST_DELAY_S: Final = 0.0001
_SPREAD_S: Final = 0.0006
_SYN_RETRY_S: Final = 1.0
_SYN_TRIES: Final = 8
_RETRANSMIT_S: Final = 0.4


class SimulatedNetwork:
    """All hosts of a run."""

    def __init__(self, scheduler: Scheduler, seed: int | str, *, give_up_s: float = 20.0) -> None:
        self.kernel = kernel_of(scheduler)
        self.trace = scheduler.trace
        self.give_up_s = give_up_s
        self.stalled: dict[Pipe, None] = {}
        self._scheduler = scheduler
        self._random = PythonRandom(f"{seed}/network")
        self._draw = self._random.random
        self._listeners: dict[Address, SimulatedListener] = {}
        self._sockets: dict[SimulatedSocket, None] = {}
        self._cuts: dict[tuple[str, str], int] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._off: set[str] = set()
        self._duplicating: dict[str, int] = {}
        self._last_port: dict[str, int] = {}
        self._last_descriptor = 2

    def new_descriptor(self) -> int:
        self._last_descriptor += 1
        return self._last_descriptor

    # --- paths

    def reaches(self, source: str, target: str) -> bool:
        """Whether bytes that leave `source` arrive at `target` now."""
        return target not in self._off and not (self._cuts and (source, target) in self._cuts)

    def arrival_s(self, source: str, target: str, size: int = 0) -> float:
        """The arrival time of something sent now."""
        draw = self._draw
        delay_s = _LEAST_DELAY_S + draw() * _SPREAD_S + size / _BYTES_PER_S
        if draw() < _TAIL_CHANCE:
            delay_s *= _TAIL_FACTOR
        if self._slow:
            delay_s *= self._slow.get((source, target), 1.0)
        return self._scheduler.now_s + delay_s

    def pieces(self, data: bytes) -> Iterable[bytes]:
        """The pieces in which a write arrives: mostly one, sometimes two."""
        if len(data) > 1 and self._draw() < _SPLIT_CHANCE:
            middle = self._random.randrange(1, len(data))
            return (data[:middle], data[middle:])
        return (data,)

    def cut(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Cut the paths from sources to targets, until `heal` was called as often."""
        targets = tuple(targets)
        for source in sources:
            for target in targets:
                if source != target:
                    self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def heal(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        targets = tuple(targets)
        for path in [(source, target) for source in sources for target in targets if source != target]:
            left = self._cuts.get(path, 0) - 1
            if left > 0:
                self._cuts[path] = left
            else:
                self._cuts.pop(path, None)
        self._resume()

    def heal_all(self) -> None:
        """Heal every path. Hosts without power stay off."""
        self._cuts.clear()
        self._slow.clear()
        self._resume()

    def slow_down(self, source: str, target: str, factor: float) -> None:
        """Multiply the delays of a path; 1 is normal."""
        self._slow[source, target] = factor

    def double_connections(self, host: str) -> None:
        """Accept every connection to a host twice, until `single_connections` was called as often."""
        self._duplicating[host] = self._duplicating.get(host, 0) + 1

    def single_connections(self, host: str) -> None:
        self._duplicating[host] -= 1

    def _resume(self) -> None:
        for pipe in list(self.stalled):
            if self.reaches(pipe.sender.local.host, pipe.receiver.local.host):
                del self.stalled[pipe]
                pipe.resume(self._random.random() * _RETRANSMIT_S)

    # --- hosts

    def process_ended(self, loop: SimulatedLoop) -> None:
        """Close the sockets of a dead process, as the operating system does: cleanly, or by reset."""
        is_clean = self._random.random() < 0.5
        for listener in [each for each in self._listeners.values() if each.loop is loop]:
            listener.close()
        for socket in [each for each in self._sockets if each.loop is loop]:
            if is_clean:
                socket.close()
            else:
                socket.abort()

    def power_off(self, host: str) -> None:
        """The host neither sends nor answers from now on."""
        self._off.add(host)
        for listener in [each for each in self._listeners.values() if each.address.host == host]:
            del self._listeners[listener.address]
        for socket in [each for each in self._sockets if each.local.host == host]:
            socket.vanish()

    def power_on(self, host: str) -> None:
        self._off.discard(host)
        self._resume()

    def reset_connections(self, host: str) -> int:
        """Break every connection of a host, as a firewall may. Returns their number."""
        broken = [socket for socket in self._sockets if socket.local.host == host]
        for socket in broken:
            self.send_reset(socket.remote.host, socket)
            self.send_reset(host, socket.incoming.sender)
        return len(broken)

    def forget(self, socket: SimulatedSocket) -> None:
        self._sockets.pop(socket, None)

    @property
    def open_sockets(self) -> int:
        return len(self._sockets)

    # --- resets

    def send_reset(self, source: str, socket: SimulatedSocket) -> None:
        """Reset a socket, unless the path is cut when the reset would arrive."""
        self.kernel.call_at(self.arrival_s(source, socket.local.host), self._reset, source, socket)

    def _reset(self, source: str, socket: SimulatedSocket) -> None:
        if self.reaches(source, socket.local.host) and not socket.closed:
            self.trace.note(socket.local.host, f"reset of {socket.local} by {socket.remote}")
            socket.fail(errno.ECONNRESET)

    def answer_with_reset(self, pipe: Pipe) -> None:
        """Data arrived for a closed socket."""
        if not pipe.sender.closed:
            self.send_reset(pipe.receiver.local.host, pipe.sender)

    # --- connections

    def listen(self, loop: SimulatedLoop, host: str, port: int, limits: Limits | None = None) -> SimulatedListener:
        """A listener on the loop's own host, whatever `host` is. Raises AddressInUse."""
        address = Address(loop.host, port or self._new_port(loop.host))
        if address in self._listeners:
            raise AddressInUse(str(address), "the address is in use")
        listener = self._listeners[address] = SimulatedListener(self, loop, address)
        return listener

    def unlisten(self, listener: SimulatedListener) -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def is_listened_on(self, host: str, port: int) -> bool:
        return Address(host, port) in self._listeners

    def _new_port(self, host: str) -> int:
        port = self._last_port[host] = self._last_port.get(host, _FIRST_PORT) + 1
        return port

    def connect(self, loop: SimulatedLoop, host: str, port: int) -> asyncio.Future[SimulatedSocket]:
        """Connect. Raises OSError if the connection is refused or times out."""
        future: asyncio.Future[SimulatedSocket] = loop.create_future()
        self._send_syn(loop, Address(loop.host, self._new_port(loop.host)), Address(host, port), future, 0)
        return future

    def _send_syn(
        self,
        loop: SimulatedLoop,
        local: Address,
        remote: Address,
        future: asyncio.Future[SimulatedSocket],
        tries: int,
    ) -> None:
        if future.done() or loop.is_dead:
            return
        if tries == _SYN_TRIES:
            self._refuse(loop, future, errno.ETIMEDOUT)
            return
        self.kernel.call_at(self.arrival_s(local.host, remote.host), self._syn_arrived, loop, local, remote, future)
        self.kernel.call_later(_SYN_RETRY_S * 2**tries, self._send_syn, loop, local, remote, future, tries + 1)

    def _syn_arrived(
        self, loop: SimulatedLoop, local: Address, remote: Address, future: asyncio.Future[SimulatedSocket]
    ) -> None:
        if not self.reaches(local.host, remote.host) or loop.is_dead:
            return
        listener = self._listeners.get(remote)
        back_s = self.arrival_s(remote.host, local.host)
        if listener is None:
            self.trace.note(remote.host, f"refused {local}")
            self.kernel.call_at(back_s, self._refused, loop, remote.host, future)
            return
        self.trace.note(remote.host, f"accepted {local}")
        ours = self._accept(listener, loop, local)
        if self._duplicating.get(remote.host):
            # As when the first SYN-ACK is late: the server has a connection that no client will ever use.
            self._accept(listener, loop, Address(local.host, self._new_port(local.host))).vanish()
        self.kernel.call_at(back_s, self._accepted, loop, ours, future)

    def _accept(self, listener: SimulatedListener, loop: SimulatedLoop, local: Address) -> SimulatedSocket:
        """Create a connection. Returns the client's end; the other one waits at the listener."""
        theirs = SimulatedSocket(self, listener.loop, listener.address, local)
        ours = SimulatedSocket(self, loop, local, listener.address)
        ours.outgoing = theirs.incoming = Pipe(self, ours, theirs)
        ours.incoming = theirs.outgoing = Pipe(self, theirs, ours)
        self._sockets[ours] = self._sockets[theirs] = None
        listener.enqueue(theirs)
        return ours

    def _refused(self, loop: SimulatedLoop, source: str, future: asyncio.Future[SimulatedSocket]) -> None:
        if self.reaches(source, loop.host):
            self._refuse(loop, future, errno.ECONNREFUSED)

    @staticmethod
    def _refuse(loop: SimulatedLoop, future: asyncio.Future[SimulatedSocket], number: int) -> None:
        def resolve() -> None:
            if not future.done():
                future.set_exception(OSError(number, os.strerror(number)))

        loop.call_soon(resolve)

    def _accepted(self, loop: SimulatedLoop, socket: SimulatedSocket, future: asyncio.Future[SimulatedSocket]) -> None:
        if loop.is_dead or socket.closed:
            return
        if not self.reaches(socket.remote.host, socket.local.host):
            # The SYN-ACK was lost: the server has a connection that the client does not know, until it is used.
            socket.vanish()
            return

        def resolve() -> None:
            if future.done():
                socket.abort()
            else:
                future.set_result(socket)

        loop.call_soon(resolve)
