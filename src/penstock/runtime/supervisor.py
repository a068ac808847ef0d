"""Supervises child processes: starts them, restarts those that exit, stops them in order.

A process that exits is restarted after a delay that doubles. Restarting ends if it exits too often, if its exit code is
final, or if it must not exit before it was ready. To stop, a process is asked, waited for, and killed if it takes too
long. `Supervisor` runs on the calling thread and polls; its `pause` is what happens between two looks: forwarding
output, or refreshing a screen.

A `LoggedChild` writes to a file. A byte in the pipe that is its standard input, then the end of the pipe, asks it to
stop; if this process is killed, the kernel closes the pipe without the byte. A `ForwardedChild` passes on each line
that it prints. SIGTERM asks it to stop; it has a session of its own, so that Ctrl-C reaches only this process, and on
Linux it gets SIGTERM when this process dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

_LOOK_S: Final = 0.1
_STILL_EVERY_S: Final = 5.0
_KILLED_S: Final = 5.0
_LAST_BYTES: Final = 8_192
_READ_BYTES: Final = 64 * 1024
_LINE_MAX_BYTES: Final = 64 * 1024
_DEATHS_MAX: Final = 16
_PR_SET_PDEATHSIG: Final = 1
_EXIT_NOT_STARTED: Final = 126  # as in a shell


class StopRequested(Exception):
    """The stop event was set while waiting."""


class ProcessFailed(Exception):
    """A process that is not restarted although it is needed: why, and the last lines that it printed."""

    def __init__(self, name: str, problem: str, lines: Sequence[str], exit_code: int | None) -> None:
        super().__init__(problem)
        self.name = name
        self.problem = problem
        self.lines = list(lines)
        self.exit_code = exit_code


# --- child processes


class ChildProcess:
    """One run of a command. A subclass starts it and asks it to stop."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._start_error: OSError | None = None

    def start(self) -> None:
        """A command that cannot be started counts as one that exited."""
        try:
            self._process = self._opened()
        except OSError as error:
            self._start_error = error

    def _opened(self) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def request_stop(self) -> None:
        """Returns at once; may be called again."""
        raise NotImplementedError

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    @property
    def is_alive(self) -> bool:
        return self.pid is not None

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and before it was started."""
        if self._start_error is not None:
            return _EXIT_NOT_STARTED
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILLED_S)

    def settle(self) -> None:
        """Release what it has left behind. Call it once it has exited."""

    def last_lines(self, most: int = 8) -> list[str]:
        """The end of its output, where that is kept."""
        return []

    def exit_text(self) -> str:
        """ "exited with code 3", "was killed by SIGKILL"."""
        if self._start_error is not None:
            return f"cannot be started: {self._start_error}"
        code = self.exit_code
        if code is None:
            return "runs" if self._process is not None else "was not started"
        if code >= 0:
            return f"exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}"


class LoggedChild(ChildProcess):
    """Appends to `log`. `output` gets its standard output instead, if given."""

    def __init__(self, command: Sequence[str], log: Path, output: Path | None = None) -> None:
        super().__init__(command)
        self._log = log
        self._output = output

    def _opened(self) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as files:
            log = files.enter_context(self._log.open("ab"))
            log.write(f"--- {' '.join(self._command)}\n".encode())
            log.flush()
            output = log if self._output is None else files.enter_context(self._output.open("wb"))
            return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=output, stderr=log)

    def request_stop(self) -> None:
        pipe = None if self._process is None else self._process.stdin
        if pipe is None or pipe.closed:
            return
        with contextlib.suppress(OSError):
            pipe.write(b"\n")
            pipe.flush()
        with contextlib.suppress(OSError):
            pipe.close()

    def settle(self) -> None:
        self.request_stop()  # closes our end of the pipe

    def kill(self) -> None:
        self.request_stop()
        super().kill()

    def last_lines(self, most: int = 8) -> list[str]:
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-most:]


class ForwardedChild(ChildProcess):
    """Passes each line of its output to `on_line`, whenever `forward` is called."""

    def __init__(self, command: Sequence[str], on_line: Callable[[str], None]) -> None:
        super().__init__(command)
        self._on_line = on_line
        self._rest = b""

    def _opened(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._command,
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_parent_death_signal(),
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return process

    def request_stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    @property
    def descriptor(self) -> int | None:
        """The pipe of its output, until its end."""
        pipe = None if self._process is None else self._process.stdout
        return None if pipe is None or pipe.closed else pipe.fileno()

    def settle(self) -> None:
        self.forward()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()  # a process that it started may still hold the other end

    def forward(self) -> None:
        """Pass on what has arrived. A line without an end is passed on in pieces."""
        pipe = None if self._process is None else self._process.stdout
        if pipe is None or pipe.closed:
            return
        while (data := pipe.read(_READ_BYTES)) is not None:
            *lines, self._rest = (self._rest + data).split(b"\n")
            if self._rest and (not data or len(self._rest) > _LINE_MAX_BYTES):
                lines, self._rest = [*lines, self._rest], b""
            for line in lines:
                self._on_line(line.decode("utf-8", "replace").rstrip("\r"))
            if not data:
                pipe.close()
                return


def forward_output(children: Sequence[ForwardedChild], timeout_s: float) -> None:
    """Wait until one of them prints something, at most this long, and pass it on."""
    by_descriptor = {child.descriptor: child for child in children if child.descriptor is not None}
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    for descriptor, _ in poll.poll(timeout_s * 1000):
        by_descriptor[descriptor].forward()


def _parent_death_signal() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    parent = os.getpid()

    def ask() -> None:
        # SIGTERM, not SIGKILL: an orphan still closes its logs.
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask


# --- restarting


class RestartPolicy:
    """When to restart a process that exited. Pure.

    The delay doubles with every exit within `within_s`, up to `max_wait_s`; a run of `steady_s` starts over. More than
    `most` exits within `within_s` are too many.
    """

    def __init__(
        self,
        most: int | None = None,
        within_s: float = float("inf"),
        *,
        steady_s: float = float("inf"),
        first_wait_s: float = 0.5,
        max_wait_s: float = 30.0,
    ) -> None:
        self._most = most
        self._within_s = within_s
        self._steady_s = steady_s
        self._first_wait_s = first_wait_s
        self._max_wait_s = max_wait_s
        self._exits_s: deque[float] = deque(maxlen=_DEATHS_MAX if most is None else most + 1)

    def wait_s(self, now_s: float, ran_s: float = 0.0) -> float | None:
        """The delay before the restart of a process that has run for `ran_s`; None if it exits too often."""
        if ran_s >= self._steady_s:
            self._exits_s.clear()
        self._exits_s.append(now_s)
        recent = sum(1 for each in self._exits_s if now_s - each < self._within_s)
        if self._most is not None and recent > self._most:
            return None
        return min(self._first_wait_s * 2.0 ** (recent - 1), self._max_wait_s)


class SupervisedProcess:
    """A process that is kept running. `make` returns the child to start now; `report` gets a line for each event.

    `is_done` tells by its exit code that it has finished its work. `final_codes` are exit codes after which a restart
    is useless, with the reason. With `must_become_ready` an exit before `was_ready` is a failure.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], ChildProcess],
        restarts: RestartPolicy,
        report: Callable[[str], None],
        *,
        stopping: str = "stopping",
        must_become_ready: bool = False,
        is_done: Callable[[int], bool] = lambda code: False,
        final_codes: Mapping[int, str] | None = None,
    ) -> None:
        self.name = name
        self.was_ready = False
        self._make = make
        self._restarts = restarts
        self.report = report
        self._stopping = stopping
        self._must_become_ready = must_become_ready
        self._is_done = is_done
        self._final_codes = final_codes or {}
        self._is_given_up = False
        self._started_s = 0.0
        self._restart_at_s: float | None = None
        self.child: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        return None if self.child is None else self.child.pid

    @property
    def is_alive(self) -> bool:
        return self.pid is not None

    @property
    def exit_code(self) -> int | None:
        return None if self.child is None else self.child.exit_code

    @property
    def is_done(self) -> bool:
        """Whether it has exited and finished its work."""
        code = self.exit_code
        return code is not None and self._is_done(code)

    def start(self) -> None:
        if self.child is not None:
            self.child.request_stop()
        self._restart_at_s = None
        self._started_s = time.monotonic()
        self.child = self._make()
        self.child.start()

    def look(self, now_s: float) -> None:
        """Restart it if it has exited. Raises ProcessFailed if it cannot be restarted."""
        child = self.child
        if child is None or child.is_alive or self._is_given_up or self.is_done:
            return
        if self._restart_at_s is not None:
            if now_s >= self._restart_at_s:
                self.start()
            return
        child.settle()
        reason = self._final_codes.get(child.exit_code or 0)
        if reason is not None:
            self._is_given_up = True
            self.report(f"{reason}; not restarted")
            if not self.was_ready:
                raise self._failure(child, reason)
            return
        if self._must_become_ready and not self.was_ready:
            raise self._failure(child, f"{child.exit_text()} before it was ready")
        wait_s = self._restarts.wait_s(now_s, now_s - self._started_s)
        if wait_s is None:
            raise self._failure(child, child.exit_text())
        self._restart_at_s = now_s + wait_s
        self.report(f"{child.exit_text()}; restarting in {wait_s:g} s")

    def _failure(self, child: ChildProcess, problem: str) -> ProcessFailed:
        return ProcessFailed(self.name, f"{self.name} {problem}.", child.last_lines(), child.exit_code)

    def request_stop(self) -> None:
        """Ask it to stop, and do not restart it."""
        self._is_given_up = True
        if self.is_alive:
            self.report(self._stopping)
        if self.child is not None:
            self.child.request_stop()

    def settle(self) -> None:
        if self.child is not None:
            self.child.settle()

    def kill(self) -> None:
        self._is_given_up = True
        if self.child is not None:
            self.child.kill()
            self.child.settle()

    def last_lines(self) -> list[str]:
        return [] if self.child is None else self.child.last_lines()


# --- supervising


class Supervisor:
    """Keeps processes running until `stop` is set. `pause` waits for up to the given seconds."""

    def __init__(
        self,
        processes: Sequence[SupervisedProcess],
        stop: threading.Event,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        self.processes = tuple(processes)
        self._stop = stop
        self._pause = pause or self._wait

    def _wait(self, seconds: float) -> None:
        if self._stop.is_set():
            time.sleep(seconds)
        else:
            self._stop.wait(seconds)

    @property
    def pids(self) -> dict[str, int | None]:
        return {process.name: process.pid for process in self.processes}

    def wait_until(
        self, condition: Callable[[], bool], limit_s: float | None = None, *, ignores_stop: bool = False
    ) -> bool:
        """Keep all processes running until the condition holds; False if it does not within `limit_s`.

        Raises StopRequested and ProcessFailed.
        """
        began_s = time.monotonic()
        while not condition():
            if self._stop.is_set() and not ignores_stop:
                raise StopRequested
            now_s = time.monotonic()
            if limit_s is not None and now_s - began_s > limit_s:
                return False
            for process in self.processes:
                process.look(now_s)
            self._pause(_LOOK_S)
        return True

    def stop(self, group: Sequence[SupervisedProcess], limit_s: float) -> None:
        """Stop these together. One that takes longer than `limit_s` is killed."""
        alive = [process for process in group if process.is_alive]
        for process in group:
            process.request_stop()
        for process in group:
            self._wait_for_exit(process, limit_s, reports=process in alive)

    def _wait_for_exit(self, process: SupervisedProcess, limit_s: float, *, reports: bool) -> None:
        began_s = time.monotonic()
        still_s = began_s + _STILL_EVERY_S
        while process.is_alive:
            self._pause(_LOOK_S)
            now_s = time.monotonic()
            if now_s - began_s >= limit_s:
                process.report(f"did not stop within {limit_s:g} s; killed")
                process.kill()
                return
            if now_s >= still_s:
                still_s += _STILL_EVERY_S
                process.report(f"still stopping after {now_s - began_s:.0f} s")
        process.settle()
        if reports:
            process.report(f"stopped after {time.monotonic() - began_s:.1f} s")

    def kill(self) -> None:
        for process in reversed(self.processes):
            process.kill()
