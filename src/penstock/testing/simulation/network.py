"""A network of hosts, and what can happen to it.

Noun: hosts by address, directed paths between them, each with its delay, and the listeners and sockets on them.

Rule: a path from one host to another is open or cut, each direction for itself. A host without power swallows what is
sent to it; one that is on refuses connections to ports at which nobody listens. Everything that is drawn comes from the
seed: delays, rarely a long one, and how streams fall into pieces.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable
from random import Random as PythonRandom
from typing import Final

from penstock.runtime.network import AddressInUse, Limits
from penstock.testing.simulation.loop import SimulatedLoop, kernel_of
from penstock.testing.simulation.scheduler import Scheduler
from penstock.testing.simulation.sockets import Address, Pipe, SimulatedListener, SimulatedSocket

_FIRST_PORT: Final = 30_000
_BYTES_PER_S: Final = 100e6
_SPLIT_CHANCE: Final = 0.05
_TAIL_CHANCE: Final = 0.01
_TAIL_FACTOR: Final = 20.0
_LEAST_DELAY_S: Final = 0.0001
_SPREAD_S: Final = 0.0006
_SYN_AGAIN_S: Final = 1.0
_SYN_TRIES: Final = 8
_SENT_AGAIN_S: Final = 0.4


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
        self._doubled: dict[str, int] = {}
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
        """When something that is sent now arrives."""
        draw = self._draw
        delay_s = _LEAST_DELAY_S + draw() * _SPREAD_S + size / _BYTES_PER_S
        if draw() < _TAIL_CHANCE:
            delay_s *= _TAIL_FACTOR
        if self._slow:
            delay_s *= self._slow.get((source, target), 1.0)
        return self._scheduler.now_s + delay_s

    def pieces(self, data: bytes) -> Iterable[bytes]:
        """How a write arrives: mostly as it was sent, now and then in two parts."""
        if len(data) > 1 and self._draw() < _SPLIT_CHANCE:
            middle = self._random.randrange(1, len(data))
            return (data[:middle], data[middle:])
        return (data,)

    def cut(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Nothing gets from any of the sources to any of the targets, until as many `heal`s."""
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
        """Every path is open and as fast as any; hosts without power stay so."""
        self._cuts.clear()
        self._slow.clear()
        self._resume()

    def slow_down(self, source: str, target: str, factor: float) -> None:
        """Delays on a path are so many times as long; 1 is as ever."""
        self._slow[source, target] = factor

    def double_connections(self, host: str) -> None:
        """Whoever connects to it is accepted twice, of which he knows nothing, until as many `single_connections`."""
        self._doubled[host] = self._doubled.get(host, 0) + 1

    def single_connections(self, host: str) -> None:
        self._doubled[host] -= 1

    def _resume(self) -> None:
        for pipe in list(self.stalled):
            if self.reaches(pipe.sender.local.host, pipe.receiver.local.host):
                del self.stalled[pipe]
                pipe.resume(self._random.random() * _SENT_AGAIN_S)

    # --- hosts

    def process_ended(self, loop: SimulatedLoop) -> None:
        """The operating system closes what a dead process had open: politely, or by resets."""
        is_polite = self._random.random() < 0.5
        for listener in [each for each in self._listeners.values() if each.loop is loop]:
            listener.close()
        for socket in [each for each in self._sockets if each.loop is loop]:
            if is_polite:
                socket.close()
            else:
                socket.abort()

    def power_off(self, host: str) -> None:
        """It neither takes nor says anything any more."""
        self._off.add(host)
        for listener in [each for each in self._listeners.values() if each.address.host == host]:
            del self._listeners[listener.address]
        for socket in [each for each in self._sockets if each.local.host == host]:
            socket.vanish()

    def power_on(self, host: str) -> None:
        self._off.discard(host)
        self._resume()

    def reset_connections(self, host: str) -> int:
        """Every connection of a host breaks, as when a firewall forgets them; how many."""
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
        """Tell a socket that its connection is over, unless the way there is cut when it would arrive."""
        self.kernel.call_at(self.arrival_s(source, socket.local.host), self._reset, source, socket)

    def _reset(self, source: str, socket: SimulatedSocket) -> None:
        if self.reaches(source, socket.local.host) and not socket.closed:
            self.trace.note(socket.local.host, f"reset of {socket.local} by {socket.remote}")
            socket.fail(errno.ECONNRESET)

    def answer_with_reset(self, pipe: Pipe) -> None:
        """Something arrived for a socket that is no more."""
        if not pipe.sender.closed:
            self.send_reset(pipe.receiver.local.host, pipe.sender)

    # --- connections

    def listen(self, loop: SimulatedLoop, host: str, port: int, limits: Limits | None = None) -> SimulatedListener:
        """A listener at the loop's own host; an empty host means the same. AddressInUse."""
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
        """A socket, connected; OSError: refused, or no answer."""
        future: asyncio.Future[SimulatedSocket] = loop.create_future()
        self._knock(loop, Address(loop.host, self._new_port(loop.host)), Address(host, port), future, 0)
        return future

    def _knock(
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
        self.kernel.call_at(self.arrival_s(local.host, remote.host), self._knocked, loop, local, remote, future)
        self.kernel.call_later(_SYN_AGAIN_S * 2**tries, self._knock, loop, local, remote, future, tries + 1)

    def _knocked(
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
        if self._doubled.get(remote.host):
            # As when the first answer is late: the other side has a connection that nobody will ever use.
            self._accept(listener, loop, Address(local.host, self._new_port(local.host))).vanish()
        self.kernel.call_at(back_s, self._accepted, loop, ours, future)

    def _accept(self, listener: SimulatedListener, loop: SimulatedLoop, local: Address) -> SimulatedSocket:
        """The end of a new connection that is at `local`; the other waits at the listener."""
        theirs = SimulatedSocket(self, listener.loop, listener.address, local)
        ours = SimulatedSocket(self, loop, local, listener.address)
        ours.outgoing = theirs.incoming = Pipe(self, ours, theirs)
        ours.incoming = theirs.outgoing = Pipe(self, theirs, ours)
        self._sockets[ours] = self._sockets[theirs] = None
        listener.came(theirs)
        return ours

    def _refused(self, loop: SimulatedLoop, source: str, future: asyncio.Future[SimulatedSocket]) -> None:
        if self.reaches(source, loop.host):
            self._refuse(loop, future, errno.ECONNREFUSED)

    @staticmethod
    def _refuse(loop: SimulatedLoop, future: asyncio.Future[SimulatedSocket], number: int) -> None:
        def tell() -> None:
            if not future.done():
                future.set_exception(OSError(number, os.strerror(number)))

        loop.call_soon(tell)

    def _accepted(self, loop: SimulatedLoop, socket: SimulatedSocket, future: asyncio.Future[SimulatedSocket]) -> None:
        if loop.is_dead or socket.closed:
            return
        if not self.reaches(socket.remote.host, socket.local.host):
            # The answer was lost: the other side has a connection of which nobody here knows, until it is used.
            socket.vanish()
            return

        def tell() -> None:
            if future.done():
                socket.abort()
            else:
                future.set_result(socket)

        loop.call_soon(tell)
