"""The event loop of one simulated process.

Each process has its own loop object, also after a restart; all loops share the queue of one `Scheduler`. After `kill`
no callback of the loop runs. Its tasks are kept until `discard`, so that not even a `finally` runs before. While a
process is paused its callbacks wait, in order. Anything that would reach the real machine (threads, sockets, name
resolution, signals) raises NotImplementedError.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import sys
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random
from penstock.testing.simulation.scheduler import Handle, Scheduler, SimulationFailed, Stuck

if TYPE_CHECKING:
    from penstock.testing.simulation.network import Pollable

T = TypeVar("T")

_NO_LIMIT_S = 1e9
_MAX_CLOSES = 20
# Added so that a timer is also due by the drifting clock of its host when it runs.
_ROUNDING_S = 1e-9


class Unhandled(SimulationFailed):
    """An unhandled exception, or an error reported by asyncio."""

    def __init__(self, process: str, text: str) -> None:
        super().__init__(f"{process}: {text}")


class Network(Protocol):
    """The network as a loop needs it."""

    def connect(self, loop: SimulatedLoop, host: str, port: int) -> Awaitable[Pollable]: ...

    def listen(self, loop: SimulatedLoop, host: str, port: int) -> Pollable: ...


@contextmanager
def unreported_finalizers() -> Iterator[None]:
    """Python reports no errors of finalizers: those of dead processes have no running loop."""
    before, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = before


class SimulatedLoop(asyncio.AbstractEventLoop):
    """One process's view of the scheduler. `host` is the address of its machine."""

    def __init__(
        self,
        scheduler: Scheduler,
        name: str,
        *,
        host: str = "",
        network: Network | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        rate: float = 1.0,
    ) -> None:
        """`rate` is the speed of the machine's clocks: 1.01 is 1 % fast."""
        self.scheduler = scheduler
        self.rate = rate
        self.name = name
        self.host = host
        self.network = network
        self.clock = clock
        self.random = random
        self.is_running_now = True
        """Whether its callbacks may run: it is neither dead nor paused."""
        self.is_dead = False
        self.descriptors: dict[int, Pollable] = {}
        self._pauses = 0
        self._busy_until_s = 0.0
        self._held: list[Handle] = []
        self._tasks_at_death: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self._ready = scheduler.ready
        self._schedule = scheduler.schedule

    def __repr__(self) -> str:
        state = "dead" if self.is_dead else "running" if self.is_running_now else "paused"
        return f"<SimulatedLoop {self.name} {state}>"

    # --- the life cycle of a process

    def kill(self) -> None:
        """End the process at once. Its tasks are kept as they are: a dead process runs no `finally`."""
        self._tasks_at_death = asyncio.all_tasks(self)
        self.is_dead = True
        self.is_running_now = False
        self._held.clear()

    def discard(self) -> None:
        """Close what a dead process was doing. Otherwise the garbage collector does so later, and reports errors."""
        with unreported_finalizers():
            while self._tasks_at_death:
                coroutine = cast("Coroutine[Any, Any, Any]", self._tasks_at_death.pop().get_coro())
                for _ in range(_MAX_CLOSES):
                    with suppress(Exception):  # of a `finally`, which has no running loop, or waits
                        coroutine.close()
                        break

    def pause(self) -> None:
        """Hold callbacks until `resume` was called as often as `pause`."""
        self._pauses += 1
        self.is_running_now = False

    def resume(self) -> None:
        self._pauses -= 1
        if self._pauses == 0 and not self.is_dead:
            self.is_running_now = True
            held, self._held = self._held, []
            self._ready.extend(held)

    def busy_for(self, seconds: float) -> None:
        """Block the loop, as a synchronous call does."""
        if self.is_dead or seconds <= 0:
            return
        now_s = self.scheduler.now_s
        if self._busy_until_s <= now_s:
            self._busy_until_s = now_s
            self.pause()
            kernel_of(self.scheduler).call_soon(self._end_busy)
        self._busy_until_s += seconds

    def _end_busy(self) -> None:
        # Runs on the kernel's loop, since the callbacks of a paused process do not run.
        if self.scheduler.now_s < self._busy_until_s:
            kernel_of(self.scheduler).call_at(self._busy_until_s, self._end_busy)
        else:
            self.resume()

    def hold(self, handle: Handle) -> None:
        """Keep a callback that is ready but may not run."""
        if not self.is_dead:
            self._held.append(handle)

    # --- callbacks

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = Handle(self, 0.0, callback, args, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        when_s = self.scheduler.now_s + (delay if self.rate == 1.0 else delay / self.rate + _ROUNDING_S)
        handle = Handle(self, when_s, callback, args, context)
        self._schedule(when_s, handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        when_s = when if self.rate == 1.0 else when / self.rate + _ROUNDING_S
        handle = Handle(self, when_s, callback, args, context)
        self._schedule(when_s, handle)
        return handle

    def time(self) -> float:
        return self.scheduler.now_s * self.rate

    # --- futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        return asyncio.Task(cast("Coroutine[Any, Any, T]", coro), loop=self, name=name, context=context)

    def run_until_complete(  # type: ignore[override]
        self, future: Awaitable[T], *, limit_s: float = _NO_LIMIT_S
    ) -> T:
        """The result of a future. Raises Stuck if it is not done by virtual time `limit_s`."""
        task = asyncio.ensure_future(future, loop=self)
        if not self.scheduler.run_until(task.done, limit_s=limit_s):
            raise Stuck(f"{self.name}: {future!r} is not done by {limit_s} s")
        return task.result()

    # --- the network

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        self.descriptors[fd].set_reader((callback, args))

    def remove_reader(self, fd: Any) -> bool:
        socket = self.descriptors.get(fd)
        return socket is not None and socket.set_reader(None)

    def add_writer(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        self.descriptors[fd].set_writer((callback, args))

    def remove_writer(self, fd: Any) -> bool:
        socket = self.descriptors.get(fd)
        return socket is not None and socket.set_writer(None)

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        from penstock.testing.simulation.transports import SimulatedTransport

        if self.network is None or host is None or port is None:
            raise NotImplementedError("only connections to an address and a port of a simulated network are simulated")
        socket = await self.network.connect(self, host, port)
        if ssl is not None:
            # TLS is not simulated: the peer closes the connection, as a plaintext server does.
            cast(Any, socket).abort()
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        protocol = protocol_factory()
        return SimulatedTransport(self, cast(Any, socket), protocol), protocol

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str | None = None, port: int | None = None
    ) -> Any:
        from penstock.testing.simulation.transports import SimulatedServer

        if self.network is None or port is None:
            raise NotImplementedError("only servers at a port of a simulated network are simulated")
        return SimulatedServer(self, cast(Any, self.network.listen(self, host or "", port)), protocol_factory)

    # --- errors

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_dead:
            return
        error = context.get("exception")
        failure = Unhandled(self.name, f"{context.get('message')}: {error!r}")
        failure.__cause__ = error
        self.scheduler.fail(failure)

    default_exception_handler = call_exception_handler

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True


def process_loop(scheduler: Scheduler, name: str, **arguments: Any) -> SimulatedLoop:
    """A loop for a new process, with the arguments of `SimulatedLoop`."""
    # The abstract methods that are not simulated stay asyncio's own, which raise NotImplementedError.
    return SimulatedLoop(scheduler, name, **arguments)  # type: ignore[abstract]


def kernel_of(scheduler: Scheduler) -> SimulatedLoop:
    """The loop of everything outside the processes: network and operating systems. It is never paused."""
    if scheduler.kernel is None:
        scheduler.kernel = process_loop(scheduler, "kernel")
    return scheduler.kernel
