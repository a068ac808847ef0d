"""Several commands in the foreground as one: their output, their signals, their exit code.

Programs come in stages; a stage starts when every program of the stage before it serves. Each line of a process is
printed with its name. A process that exits is restarted after a back-off (0.5 s, doubled up to 30 s, reset after 30 s
of life), unless it rejects its settings with exit code 2 (`penstock.runtime.supervisor`).

The first SIGTERM, SIGINT or SIGHUP stops the last stage one process after the other, so that each can hand over its
leadership, then the stages before it. A process that does not stop in time is killed; a second signal kills all at
once. On Linux no process outlives this one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Final, NamedTuple

import click

from penstock.cli.log_format import LEVELS
from penstock.cli.output import printable
from penstock.runtime.supervisor import (
    ForwardedChild,
    ProcessFailed,
    RestartPolicy,
    StopRequested,
    SupervisedProcess,
    Supervisor,
    forward_output,
)

EXIT_INVALID_SETTINGS: Final = 2
_READY: Final = re.compile(r"(?:broker|zookeeper) started: ")
_LINE: Final = re.compile(r"\S+Z (DEBUG|INFO|WARNING|ERROR) +(\S+): (.*)")
_STEADY_S: Final = 30.0
# Far above what a stop takes: a second signal does not wait.
_LAST_STAGE_STOPS_S: Final = 60.0
_OTHERS_STOP_S: Final = 20.0
_KILLED: Final = 128

PrintLine = Callable[[str, str], None]


class Program(NamedTuple):
    """A command that logs as `penstock server start` does: "broker started: ..." when it serves."""

    name: str
    command: tuple[str, ...]


class Foreground:
    """Runs the stages of programs. `run` once."""

    def __init__(self, stages: Sequence[Sequence[Program]], *, level: str, print_line: PrintLine) -> None:
        self._level = level
        self._print = print_line
        self._stop = threading.Event()
        self._stages = [[self._supervised(program) for program in stage] for stage in stages]
        self._supervisor = Supervisor(
            [process for stage in self._stages for process in stage], self._stop, self._forward_output
        )

    def pid(self, name: str) -> int | None:
        """The process id of a program while it runs."""
        return self._supervisor.pids.get(name)

    def run(self, on_serving: Callable[[], None], on_stopping: Callable[[], None]) -> int:
        """Run until a signal, or until a program rejects its settings before all serve. Returns the exit code."""
        code = 0
        with self._signals():
            try:
                self._start()
                on_serving()
                self._supervisor.wait_until(lambda: False)
            except StopRequested:
                with contextlib.suppress(OSError):  # the terminal may be closed
                    on_stopping()
            except ProcessFailed as error:
                code = error.exit_code or 1
            finally:
                self._stop_all()
        return code

    def _supervised(self, program: Program) -> SupervisedProcess:
        def make() -> ForwardedChild:
            return ForwardedChild(program.command, functools.partial(self._on_line, process))

        process = SupervisedProcess(
            program.name,
            make,
            RestartPolicy(steady_s=_STEADY_S),
            functools.partial(self._print, program.name),
            final_codes={EXIT_INVALID_SETTINGS: "rejects its settings"},
        )
        return process

    def _on_line(self, process: SupervisedProcess, line: str) -> None:
        message = ready_message(line)
        if message is not None:
            process.was_ready = True
            self._print(process.name, message)
        elif shown := visible_line(line, self._level):
            self._print(process.name, shown)

    def _forward_output(self, timeout_s: float) -> None:
        children = [process.child for process in self._supervisor.processes]
        forward_output([child for child in children if isinstance(child, ForwardedChild)], timeout_s)

    def _start(self) -> None:
        for stage in self._stages:
            for process in stage:
                process.start()
            self._supervisor.wait_until(lambda stage=stage: all(each.was_ready for each in stage))  # type: ignore[misc]

    def _stop_all(self) -> None:
        *others, last = self._stages
        for process in reversed(last):
            self._supervisor.stop([process], _LAST_STAGE_STOPS_S)
        for stage in reversed(others):
            self._supervisor.stop(stage, _OTHERS_STOP_S)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def on_signal(number: int, frame: FrameType | None) -> None:
            if not self._stop.is_set():
                self._stop.set()
                return
            # Not Supervisor.kill, which waits: this may interrupt a wait.
            for pid in filter(None, self._supervisor.pids.values()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os._exit(_KILLED + number)

        # SIGHUP is ignored by nohup, whose commands outlive their terminal.
        numbers = [number for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
                   if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN]  # fmt: skip
        before = {number: signal.signal(number, on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def visible_line(line: str, level: str) -> str | None:
    """The line, unless it is a log line below the level."""
    found = _LINE.fullmatch(line)
    if found is not None and LEVELS.index(found[1].lower()) < LEVELS.index(level):
        return None
    return line


def ready_message(line: str) -> str | None:
    """The message by which a process says that it serves."""
    found = _LINE.fullmatch(line)
    return found[3] if found is not None and _READY.match(found[3]) else None


class PrefixedLines:
    """Prints lines on standard error with the name of a process, coloured on a terminal."""

    _COLOURS = ("cyan", "green", "yellow", "magenta", "blue")

    def __init__(self, names: Sequence[str]) -> None:
        self._width = max(map(len, names), default=0)
        is_plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not sys.stderr.isatty()
        self._colours = {} if is_plain else {name: self._COLOURS[n % 5] for n, name in enumerate(names)}

    def __call__(self, name: str, text: str) -> None:
        prefix = f"{name:<{self._width}} |"
        colour = self._colours.get(name)
        # A closed terminal must not stop the supervision.
        with contextlib.suppress(OSError):
            click.echo(f"{click.style(prefix, fg=colour) if colour else prefix} {printable(text)}", err=True)
