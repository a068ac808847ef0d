"""Runs several processes in the foreground as one: start in order, restart, stop in reverse order.

Programs come in stages; a stage starts when every program of the stage before it serves. Each line of a process is
printed with its name. A process that exits is restarted after a back-off (0.5 s, doubled up to 30 s, reset after 30 s
of life), unless it rejects its settings with exit code 2.

The first SIGTERM, SIGINT or SIGHUP stops the last stage one process after the other, so that each can hand over its
leadership, then the stages before it. A process that does not stop in time is killed; a second signal kills all at
once. On Linux no process outlives this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import click

from penstock.cli.log_format import LEVELS
from penstock.cli.output import printable

EXIT_INVALID_SETTINGS: Final = 2
_SERVES: Final = " serves "
_LINE: Final = re.compile(r"\S+Z (DEBUG|INFO|WARNING|ERROR) +(\S+): (.*)")
_LINE_MAX_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 64 * 1024
_BACKOFF_S: Final = 0.5
_BACKOFF_MAX_S: Final = 30.0
_STEADY_S: Final = 30.0
# For each process. Far above what a stop takes: what can stop is not killed, and a second signal does not wait.
_LAST_STAGE_STOPS_S: Final = 60.0
_OTHERS_STOP_S: Final = 20.0
_KILLED: Final = 128
_NOT_STARTED: Final = 126  # as a shell has it
_PR_SET_PDEATHSIG: Final = 1

PrintLine = Callable[[str, str], None]


class Program(NamedTuple):
    """A command that logs as `penstock server start` does, and says so when it serves."""

    name: str
    command: tuple[str, ...]


class Backoff:
    """How long to wait before what has ended is started again. Pure."""

    def __init__(self) -> None:
        self._next_s = _BACKOFF_S

    def after(self, lived_s: float) -> float:
        """Twice as long each time, until it has lived for a while."""
        if lived_s >= _STEADY_S:
            self._next_s = _BACKOFF_S
        delay_s, self._next_s = self._next_s, min(2 * self._next_s, _BACKOFF_MAX_S)
        return delay_s


def visible_line(line: str, level: str) -> str | None:
    """A line of a process if it is to be shown: an event of the level and above, or what is no event at all."""
    found = _LINE.fullmatch(line)
    if found is not None and LEVELS.index(found[1].lower()) < LEVELS.index(level):
        return None
    return line


def ready_message(line: str) -> str | None:
    """What a process says when it begins to serve."""
    found = _LINE.fullmatch(line)
    return found[3] if found is not None and _SERVES in found[3] else None


class _Process:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.running: asyncio.subprocess.Process | None = None
        self.serves = asyncio.Event()
        self.backoff = Backoff()
        self.keeper: asyncio.Task[None] | None = None

    def send(self, number: signal.Signals) -> None:
        if self.running is not None and self.running.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.running.send_signal(number)


class Supervisor:
    """`run` once."""

    def __init__(self, stages: Sequence[Sequence[Program]], *, level: str, tell: PrintLine) -> None:
        self._stages = [[_Process(program) for program in stage] for stage in stages]
        self._level = level
        self._tell = tell
        self._stop_requested = asyncio.Event()
        self._refused = asyncio.Event()

    def pid(self, name: str) -> int | None:
        """Of the process of a program, while it runs."""
        for each in self._all():
            if each.program.name == name and each.running is not None:
                return each.running.pid
        return None

    async def run(self, on_serving: Callable[[], None], on_stopping: Callable[[], None]) -> int:
        """Until a signal, or until a program refuses its settings before all serve. The exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # Started by nohup: it is meant to outlive its terminal.
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            if await self._start():
                on_serving()
                await self._stop_requested.wait()
            if not self._refused.is_set() or self._stop_requested.is_set():
                # Whoever has closed the terminal does not read this, and the stop goes on.
                with contextlib.suppress(OSError):
                    on_stopping()
        finally:
            refused = self._refused.is_set() and not self._stop_requested.is_set()
            await self._stop()
        return EXIT_INVALID_SETTINGS if refused else 0

    def _all(self) -> list[_Process]:
        return [each for stage in self._stages for each in stage]

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._stop_requested.is_set():
            self._stop_requested.set()
            return
        for each in self._all():
            each.send(signal.SIGKILL)
        os._exit(_KILLED + number)

    async def _start(self) -> bool:
        """Whether all serve; not if it was asked to stop before, or one of them refuses its settings."""
        for stage in self._stages:
            for each in stage:
                each.keeper = asyncio.create_task(self._keep(each))
            serving = asyncio.create_task(_all_set([each.serves for each in stage]))
            ending = [asyncio.create_task(event.wait()) for event in (self._stop_requested, self._refused)]
            await asyncio.wait({serving, *ending}, return_when=asyncio.FIRST_COMPLETED)
            for task in (serving, *ending):
                task.cancel()
            if self._stop_requested.is_set() or self._refused.is_set():
                return False
        return True

    async def _keep(self, each: _Process) -> None:
        name = each.program.name
        while not self._stop_requested.is_set():
            begun_s = time.monotonic()
            try:
                code = await self._live(each)
            except OSError as error:
                self._tell(name, f"cannot be started: {error}")
                code = _NOT_STARTED
            if self._stop_requested.is_set() or self._refused.is_set():
                return
            if code == EXIT_INVALID_SETTINGS:
                self._tell(name, "refuses its settings, and is not started again")
                if not each.serves.is_set():
                    self._refused.set()
                return
            delay_s = each.backoff.after(time.monotonic() - begun_s)
            self._tell(name, f"has ended, {_exit_text(code)}; it is started again in {delay_s:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_requested.wait(), delay_s)

    async def _live(self, each: _Process) -> int:
        """One life of a process, to its exit code."""
        process = await asyncio.create_subprocess_exec(
            *each.program.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C is for this process, which then stops them in order.
            start_new_session=True,
            preexec_fn=_parent_death_signal(),
        )
        each.running = process
        if self._stop_requested.is_set():
            each.send(signal.SIGTERM)
        assert process.stdout is not None
        await self._forward_output(each, process.stdout)
        return await process.wait()

    async def _forward_output(self, each: _Process, stream: asyncio.StreamReader) -> None:
        rest = b""
        while data := await stream.read(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _LINE_MAX_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._passed(each, line)
        if rest:
            self._passed(each, rest)

    def _passed(self, each: _Process, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        served = ready_message(text)
        if served is not None:
            each.serves.set()
            self._tell(each.program.name, served)
            return
        shown = visible_line(text, self._level)
        if shown:
            self._tell(each.program.name, shown)

    async def _stop(self) -> None:
        self._stop_requested.set()
        *others, last = self._stages
        for each in reversed(last):
            await self._end(each, _LAST_STAGE_STOPS_S)
        for stage in reversed(others):
            await asyncio.gather(*(self._end(each, _OTHERS_STOP_S) for each in stage))

    async def _end(self, each: _Process, limit_s: float) -> None:
        if each.keeper is None:
            return
        is_alive = each.running is not None and each.running.returncode is None
        if is_alive:
            self._tell(each.program.name, "stopping")
        each.send(signal.SIGTERM)
        done, _ = await asyncio.wait({each.keeper}, timeout=limit_s)
        if not done:
            self._tell(each.program.name, f"does not stop within {limit_s:.0f} s: killed")
            each.send(signal.SIGKILL)
        await each.keeper
        if is_alive and done:
            self._tell(each.program.name, "stopped")


async def _all_set(events: Sequence[asyncio.Event]) -> bool:
    for event in events:
        await event.wait()
    return True


def _exit_text(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"with exit code {code}"


def _parent_death_signal() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    parent = os.getpid()

    def ask() -> None:
        # Not by SIGKILL: whoever is left alone still closes its logs.
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask


class PrefixedLines:
    """Standard error, with the name of a process before each line; names in colours on a terminal."""

    _COLOURS = ("cyan", "green", "yellow", "magenta", "blue")

    def __init__(self, names: Sequence[str]) -> None:
        self._width = max(map(len, names), default=0)
        is_plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not sys.stderr.isatty()
        self._colours = {} if is_plain else {name: self._COLOURS[n % 5] for n, name in enumerate(names)}

    def __call__(self, name: str, text: str) -> None:
        prefix = f"{name:<{self._width}} |"
        colour = self._colours.get(name)
        # A terminal that has gone is no reason to leave the processes alone.
        with contextlib.suppress(OSError):
            click.echo(f"{click.style(prefix, fg=colour) if colour else prefix} {printable(text)}", err=True)
