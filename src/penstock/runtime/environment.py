"""The environment of a broker: clock, randomness, files, and factories for servers, reserved ports and workers.

A broker reaches the machine only through it, so the same broker runs on a machine and in the simulator. What it creates
belongs to the event loop that is running at that moment.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.files import Files, PosixFiles
from penstock.runtime.network import Handler, Limits, PortReservation, Server
from penstock.runtime.randomness import Random, SystemRandom
from penstock.runtime.socket_server import SocketServer
from penstock.runtime.threads import ThreadWorkers, Workers


class Reservation(Protocol):
    """A port that is bound but not listened on."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    def release(self) -> None:
        """Release it. Calling it again is harmless."""


class Environment(Protocol):
    """Everything outside a broker."""

    @property
    def clock(self) -> Clock: ...

    @property
    def random(self) -> Random: ...

    @property
    def files(self) -> Files: ...

    def server(self, handler: Handler, limits: Limits) -> Server: ...

    def reserve(self, host: str, port: int) -> Reservation:
        """AddressInUse, CannotListen."""

    def workers(self, threads: int) -> Workers: ...

    def threads(self, wanted: int) -> int:
        """How many threads to use, at most `wanted`; 1 means only the caller's."""

    def stopwatch_s(self) -> float:
        """Seconds from an arbitrary start, to measure durations on any thread."""


class SystemEnvironment:
    """The real machine. Clock, randomness and files can be replaced."""

    def __init__(self, *, clock: Clock | None = None, random: Random | None = None, files: Files | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.random: Random = random or SystemRandom()
        self.files: Files = files or PosixFiles()
        self.stopwatch_s = time.perf_counter

    def server(self, handler: Handler, limits: Limits) -> Server:
        return SocketServer(asyncio.get_running_loop(), handler, limits, self.clock)

    def reserve(self, host: str, port: int) -> Reservation:
        return PortReservation(host, port)

    def workers(self, threads: int) -> Workers:
        return ThreadWorkers(asyncio.get_running_loop(), threads)

    def threads(self, wanted: int) -> int:
        return wanted
