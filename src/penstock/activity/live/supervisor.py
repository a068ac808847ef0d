"""Runs broker, pipelines and generator: starts them in order, restarts them, stops them in reverse order.

Each starts when the one before it answers, so that `--minutes` counts from the moment when everything runs. On the way
down the generator flushes, the pipelines commit, and the broker stops last; with a report the pipelines first read to
the end of the log, within a bound. A part that does not stop within `STOP_S` is killed; a second signal kills at once.

A process that dies before it was ready ends the run with its last lines. One that dies later is restarted with
backoff, unless it dies too often. Children are ordinary commands with all options given, so the first line of a log
repeats them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.activity.cluster import Cluster, ValueFormat
from penstock.activity.live import state
from penstock.activity.live.processes import Child, RestartPolicy
from penstock.activity.live.state import Query, Snapshot

# -P: a file of the working directory is not taken for a module of the standard library.
CHILD: Final = (sys.executable, "-P", "-m", "penstock.cli.activity.child")
_HOST: Final = "127.0.0.1"


@dataclass(frozen=True)
class Plan:
    """All that was asked for. Without `bootstrap` the run has a broker of its own on `port`."""

    folder: Path
    pipelines: tuple[str, ...]
    seed: int = 1
    rate: float = 2_000.0
    malformed: float = 0.0
    rhythm: str = "daily"
    minutes: float | None = None
    has_report: bool = False
    bootstrap: str | None = None
    port: int = 9092
    broker_http_port: int = 0
    http_port: int = 8092
    master: str | None = None
    warehouse: str | None = None
    value_format: ValueFormat = "json"
    command_config: str | None = None
    command_properties: tuple[str, ...] = ()
    """How to connect to others' cluster, as commands are told."""
    connecting: Mapping[str, str] = field(default_factory=dict)
    """The same, as readers have it."""

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.servers, self.value_format, self.connecting)

    @property
    def has_broker(self) -> bool:
        return self.bootstrap is None

    @property
    def servers(self) -> str:
        return f"{_HOST}:{self.port}" if self.bootstrap is None else self.bootstrap

    @property
    def warehouse_uri(self) -> str:
        return str(self.folder / "warehouse") if self.warehouse is None else self.warehouse

    @property
    def broker_url(self) -> str | None:
        """Where the broker's HTTP answers."""
        return f"http://{_HOST}:{self.broker_http_port}" if self.has_broker else None

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def generated(self) -> Path:
        """Where the generator writes what came of it."""
        return self.folder / "generated.json"

    @property
    def report_folder(self) -> Path:
        return self.folder / "report"

    def broker_command(self) -> list[str]:
        return [
            *CHILD, "server", "start", "--data-dir", str(self.folder / "broker"), "--listen", self.servers,
            "--http-port", str(self.broker_http_port), "--set", "group.initial.rebalance.delay.ms=0",
        ]  # fmt: skip

    def pipelines_command(self) -> list[str]:
        master = [] if self.master is None else ["--master", self.master]
        return [
            *CHILD, "pipeline", "run", *self.pipelines, *master, "--value-format", self.value_format,
            "--warehouse", self.warehouse_uri, *self._reaching,
        ]  # fmt: skip

    def generator_command(self, origin_ms: int, minutes: float | None) -> list[str]:
        """`origin_ms` is when the site opened; after a crash it goes on with the same site."""
        bounded = [] if minutes is None else ["--minutes", f"{minutes:.4f}"]
        return [
            *CHILD, "activity", "generate", "--seed", str(self.seed), "--rate", f"{self.rate:g}",
            "--malformed", f"{self.malformed:g}", "--rhythm", self.rhythm, "--origin", str(origin_ms), *bounded,
            "--value-format", self.value_format, "--format", "json", *self._reaching,
        ]  # fmt: skip

    @property
    def _reaching(self) -> list[str]:
        """The cluster, as every command takes it."""
        config = [] if self.command_config is None else ["--command-config", self.command_config]
        properties = [word for each in self.command_properties for word in ("--command-property", each)]
        return ["--bootstrap-server", self.servers, *config, *properties]


class RunFailed(Exception):
    """A run that cannot go on: why, what the process in question printed last, and what to do."""

    def __init__(self, problem: str, lines: Sequence[str], advice: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.lines = list(lines)
        self.advice = advice


class ChildProcess(Protocol):
    """What is kept: a `Child`, or what tests have instead."""

    @property
    def pid(self) -> int | None: ...

    @property
    def is_alive(self) -> bool: ...

    @property
    def exit_code(self) -> int | None: ...

    def start(self) -> None: ...

    def request_stop(self) -> None: ...

    def wait(self, timeout_s: float) -> bool: ...

    def kill(self) -> None: ...

    def last_lines(self, most: int = ...) -> list[str]: ...

    def exit_text(self) -> str: ...


class SupervisedProcess:
    """`make` gives the process that is to run now; `told` gets a line when something happens to it."""

    def __init__(
        self,
        name: str,
        make: Callable[[], ChildProcess],
        restarts: RestartPolicy,
        told: Callable[[str], None],
        *,
        log: str,
        is_done: Callable[[int], bool] = lambda code: False,
    ) -> None:
        self.name = name
        self.was_ready = False
        self._make = make
        self._restarts = restarts
        self._told = told
        self._log = log
        self._is_done = is_done
        self._child: ChildProcess | None = None
        self._again_at_s: float | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def is_alive(self) -> bool:
        return self._child is not None and self._child.is_alive

    @property
    def is_done(self) -> bool:
        """Whether it has ended as it should."""
        code = None if self._child is None else self._child.exit_code
        return code is not None and self._is_done(code)

    @property
    def exit_code(self) -> int | None:
        return None if self._child is None else self._child.exit_code

    def start(self) -> None:
        self.request_stop()
        self._child = self._make()
        self._child.start()

    def look(self, now_s: float) -> None:
        """Start it again if it has died. Raises RunFailed if it won't do."""
        child = self._child
        if child is None or child.is_alive or self.is_done:
            return
        if self._again_at_s is None:
            wait_s = self._restarts.wait_s(now_s) if self.was_ready else None
            if wait_s is None:
                raise RunFailed(
                    f"{self.name} {child.exit_text()}{'' if self.was_ready else ' before it had come up'}.",
                    child.last_lines(),
                    f"All that it printed is in {self._log}",
                )
            self._again_at_s = now_s + wait_s
            self._told(f"{self.name} {child.exit_text()}; starting it again")
        elif now_s >= self._again_at_s:
            self._again_at_s = None
            self.start()

    def request_stop(self) -> None:
        self._again_at_s = None
        if self._child is not None:
            self._child.request_stop()

    def wait(self, timeout_s: float) -> bool:
        return self._child is None or self._child.wait(timeout_s)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def last_lines(self) -> list[str]:
        return [] if self._child is None else self._child.last_lines()


STOP_S: Final = 60.0
"""For each part to stop. Spark finishes the batches that it has begun, which on a busy machine takes many seconds."""
_LOOK_S: Final = 0.1
_STILL_EVERY_S: Final = 5.0
_ENDS_WITH: Final = {
    "generator": "sends what it has made",
    "pipelines": "commit what they have begun",
    "broker": "closes its logs",
}
_DRAIN_S: Final = 120.0
_START_S: Final = 180.0
_LOADS: Final = "loads"
_ALIVE: Final = ("starting", "running", "waiting")
_ROUNDS_AFTER: Final = 2
_NOT_ALL_ACKNOWLEDGED: Final = 1
_NO_REPORT: Final = 1


class WatchedRun(Protocol):
    """What is known of the run: a `Watch`."""

    @property
    def snapshot(self) -> Snapshot: ...

    def cluster_ready(self) -> None: ...

    def told(self, text: str) -> None: ...

    def set(self, **values: Any) -> None: ...


class Display(Protocol):
    """What people see of it."""

    def step(self, name: str, text: str) -> None:
        """Something is being started, or has been."""

    def line(self, text: str) -> None:
        """Something happened."""

    def refresh(self, snapshot: Snapshot) -> None:
        """Called often."""


class _Stopped(Exception):
    """Asked to stop while waiting."""


class Supervisor:
    """`stop` is set from outside, by a signal mostly."""

    def __init__(
        self,
        plan: Plan,
        seen: WatchedRun,
        display: Display,
        stop: threading.Event,
        *,
        report: Callable[[Mapping[str, Any]], int] | None = None,
    ) -> None:
        self._plan = plan
        self._seen = seen
        self._display = display
        self._stop = stop
        self._report = report
        self._origin_ms = 0
        self._ends_at_s: float | None = None
        self.broker = self._kept("broker", plan.broker_command, RestartPolicy(2, 600.0))
        self.pipelines = self._kept("pipelines", plan.pipelines_command, RestartPolicy(5, 600.0))
        self.generator = self._kept("generator", self._generator_command, RestartPolicy(3, 600.0), self._has_generated)

    @property
    def pids(self) -> dict[str, int | None]:
        return {kept.name: kept.pid for kept in self._all}

    @property
    def _all(self) -> tuple[SupervisedProcess, ...]:
        return (
            (self.broker, self.pipelines, self.generator) if self._plan.has_broker else (self.pipelines, self.generator)
        )

    def run(self) -> int:
        """Until it is stopped or has generated what was asked for; the exit code. Raises RunFailed."""
        try:
            with contextlib.suppress(_Stopped):
                self._start()
                self._attend()
            return self._end()
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """All processes, at once."""
        for kept in reversed(self._all):
            kept.kill()

    # ------------------------------------------------------------------------------------------ up

    def _start(self) -> None:
        if self._plan.has_broker:
            self._start_until_ready(self.broker, f"on {self._plan.servers}", self._broker_answers)
        self._seen.cluster_ready()
        names = ", ".join(self._plan.pipelines)
        self._start_until_ready(self.pipelines, f"Spark with {names}", self._queries_are_there)
        self._seen.set(waits_for="the first events")
        # On a whole second, so that times of what is planted are easy to read.
        self._origin_ms = (time.time_ns() // 1_000_000_000 + 1) * 1000
        self._stop.wait(self._origin_ms / 1000 - time.time())
        minutes = self._plan.minutes
        if minutes is not None:
            self._ends_at_s = time.monotonic() + minutes * 60
        self._seen.set(
            phase=state.RUNNING,
            generating_since_ms=self._origin_ms,
            ends_ms=0 if minutes is None else self._origin_ms + round(minutes * 60_000),
        )
        self._start_until_ready(self.generator, f"{self._plan.rate:,.0f} events/s", self._events_come)
        self._seen.set(waits_for="")

    def _start_until_ready(self, kept: SupervisedProcess, what: str, is_up: Callable[[], bool]) -> None:
        began_s = time.monotonic()
        self._seen.set(waits_for=f"{kept.name}: {what}")
        self._display.step(kept.name, what)
        kept.start()
        self._wait_until(is_up, _START_S, kept)
        kept.was_ready = True
        self._display.step(kept.name, f"ready after {time.monotonic() - began_s:.1f} s")

    def _broker_answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._plan.port), _LOOK_S):
                return True
        except OSError:
            return False

    def _queries_are_there(self) -> bool:
        """Started by this run's process: before the first event there is no batch to wait for."""
        queries = [query for query in self._seen.snapshot.queries if query.state in _ALIVE]
        return {query.pipeline for query in queries} == set(self._plan.pipelines)

    def _events_come(self) -> bool:
        return self._seen.snapshot.rate > 0 or self.generator.is_done

    # ------------------------------------------------------------------------------------------ while it runs

    def _attend(self) -> None:
        self._wait_until(lambda: self.generator.is_done, None)

    def _wait_until(
        self, condition: Callable[[], bool], limit_s: float | None, kept: SupervisedProcess | None = None
    ) -> None:
        """Look after all processes meanwhile. Raises _Stopped, RunFailed."""
        began_s = time.monotonic()
        while not condition():
            if self._stop.wait(_LOOK_S):
                raise _Stopped
            now_s = time.monotonic()
            for each in self._all:
                each.look(now_s)
            self._display.refresh(self._seen.snapshot)
            if limit_s is not None and now_s - began_s > limit_s and kept is not None:
                raise RunFailed(
                    f"{kept.name} did not come up within {limit_s:.0f} s.", kept.last_lines(),
                    f"All that it printed is in {self._plan.logs / kept.name}.log",
                )  # fmt: skip

    # ------------------------------------------------------------------------------------------ down

    def _end(self) -> int:
        if not self._origin_ms:
            self._stop_all()
            return 0
        code = 0
        if self._report is not None:
            try:
                self._drain()
                self._seen.set(phase=state.REPORTING, waits_for="the report")
                code = self._report(self.summary())
            except _Stopped:
                self._display.line("Stopped before there was a report.")
                code = _NO_REPORT
        self._stop_all()
        if self.generator.exit_code == _NOT_ALL_ACKNOWLEDGED:
            self._display.line("Not all events were acknowledged: logs/generator.log has the numbers.")
            code = code or _NOT_ALL_ACKNOWLEDGED
        self._seen.set(phase=state.STOPPED)
        return code

    def _drain(self) -> None:
        """The generator ends, then the pipelines read to the end of the log, then they end.

        Whoever stops a run gets its report; whoever stops it once more, here, does not. Raises _Stopped, RunFailed.
        """
        was_stopped = self._stop.is_set()
        self._seen.set(phase=state.DRAINING, waits_for="the generator to send what it has made")
        self._request_stop(self.generator)
        self._wait_for_exit(self.generator)
        ended_ms = time.time_ns() // 1_000_000
        self._seen.set(waits_for="the pipelines to read to the end of the log", ends_ms=ended_ms)
        self._display.line("Generated; the pipelines read to the end of the log ...")
        drain = Drain(self._seen.snapshot.queries, ended_ms)
        until_s = time.monotonic() + _DRAIN_S
        while not drain.is_done(self._seen.snapshot.queries):
            if self._stop.is_set() and not was_stopped:
                raise _Stopped
            if time.monotonic() > until_s:
                self._display.line(f"The pipelines were not done after {_DRAIN_S:.0f} s: {drain.left}")
                break
            for each in self._all:
                each.look(time.monotonic())
            self._display.refresh(self._seen.snapshot)
            time.sleep(_LOOK_S)
        self._request_stop(self.pipelines)
        self._wait_for_exit(self.pipelines)

    def _stop_all(self) -> None:
        self._seen.set(phase=state.STOPPING, waits_for="")
        # The view goes now: what is left to see are these lines.
        self._display.refresh(self._seen.snapshot)
        if any(kept.is_alive for kept in self._all):
            self._display.line("Stopping; Ctrl-C again kills what is left, and nothing acknowledged is lost.")
        self._request_stop(self.generator)
        self._request_stop(self.pipelines)
        self._wait_for_exit(self.generator)
        self._wait_for_exit(self.pipelines)
        if self._plan.has_broker:
            self._request_stop(self.broker)
            self._wait_for_exit(self.broker)

    def _request_stop(self, kept: SupervisedProcess) -> None:
        if kept.is_alive:
            self._display.step(kept.name, f"stopping: {_ENDS_WITH[kept.name]}")
        kept.request_stop()

    def _wait_for_exit(self, kept: SupervisedProcess) -> None:
        """One that hangs is killed: nothing is lost by that, and the next start goes on."""
        was_alive = kept.is_alive
        began_s = time.monotonic()
        still_s = began_s + _STILL_EVERY_S
        while not kept.wait(_LOOK_S):
            self._display.refresh(self._seen.snapshot)
            now_s = time.monotonic()
            if now_s - began_s >= STOP_S:
                self._display.line(f"{kept.name} did not stop within {STOP_S:.0f} s, and was killed")
                kept.kill()
                return
            if now_s >= still_s:
                still_s += _STILL_EVERY_S
                self._display.step(kept.name, f"still stopping after {now_s - began_s:.0f} s")
        if was_alive:
            self._display.step(kept.name, f"stopped after {time.monotonic() - began_s:.1f} s")

    def summary(self) -> dict[str, Any]:
        """What the generator said came of it; nothing if it did not come to that."""
        found: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self._plan.generated.read_text())
        return found

    # ------------------------------------------------------------------------------------------ processes

    def _kept(
        self, name: str, command: Callable[[], list[str]], restarts: RestartPolicy,
        is_done: Callable[[int], bool] = lambda code: False,
    ) -> SupervisedProcess:  # fmt: skip
        log = self._plan.logs / f"{name}.log"
        output = self._plan.generated if name == "generator" else None

        def told(text: str) -> None:
            self._seen.told(text)
            self._display.line(text)

        return SupervisedProcess(
            name, lambda: Child(name, command(), log, output), restarts, told, log=str(log), is_done=is_done
        )

    def _generator_command(self) -> list[str]:
        left = None if self._ends_at_s is None else max((self._ends_at_s - time.monotonic()) / 60, 0.01)
        return self._plan.generator_command(self._origin_ms, left)

    def _has_generated(self, code: int) -> bool:
        """One that was ended by somebody else before its time has not."""
        return code in (0, _NOT_ALL_ACKNOWLEDGED) and (self._ends_at_s is not None or self._stop.is_set())


class Drain:
    """Whether pipelines have read all there is, by what they say of themselves.

    A query has when its lag, seen after the generator's end, is nothing. Loads look at one topic after another, so only
    a round that began after the end has seen all of them: the second to end after it.
    """

    def __init__(self, queries: list[Query], ended_ms: int) -> None:
        self._ended_ms = ended_ms
        self._rounds = {(query.pipeline, query.name): query.batch_id for query in queries}
        self.left = ""

    def is_done(self, queries: list[Query]) -> bool:
        waiting = [f"{query.pipeline}/{query.name}" for query in queries if not self._has_all(query)]
        self.left = ", ".join(waiting)
        return bool(queries) and not waiting

    def _has_all(self, query: Query) -> bool:
        if query.updated_ms <= self._ended_ms or query.lag != 0:
            return False
        if query.name != _LOADS:
            return True
        key = query.pipeline, query.name
        # A process that was started again counts its rounds from the beginning.
        self._rounds[key] = min(self._rounds.get(key, query.batch_id), query.batch_id)
        return query.batch_id >= self._rounds[key] + _ROUNDS_AFTER
