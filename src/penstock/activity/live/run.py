"""A live run: broker, pipelines and generator, started side by side and stopped in order.

Spark takes longest to start, so it starts at once. The generator starts when the broker answers: there are events when
Spark is ready. `--minutes` counts from the moment when everything runs. On the way
down the generator flushes, the pipelines commit, and the broker stops last; with a report the pipelines first read to
the end of the log, within a bound. A part that does not stop within `STOP_S` is killed; a second signal kills at once.

A process that exits before it was ready ends the run with its last lines. One that exits later is restarted with a
backoff, unless it exits too often (`penstock.runtime.supervisor`). Children are ordinary commands with all options
given, so the first line of a log repeats them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.activity.cluster import Cluster, ValueFormat
from penstock.activity.live import state
from penstock.activity.live.state import Query, Snapshot
from penstock.runtime.supervisor import (
    LoggedChild,
    ProcessFailed,
    RestartPolicy,
    StopRequested,
    SupervisedProcess,
    Supervisor,
)

# -P: a file in the working directory does not shadow a module of the standard library.
CHILD: Final = (sys.executable, "-P", "-m", "penstock.cli.activity.child")
_HOST: Final = "127.0.0.1"
STOP_S: Final = 60.0
"""For each process to stop. Spark finishes the batches that it has begun, which may take many seconds."""
_CONNECT_S: Final = 0.1
_DRAIN_S: Final = 120.0
_START_S: Final = 180.0
_RESTARTS_WITHIN_S: Final = 600.0
_LOADS: Final = "loads"
_ALIVE: Final = ("starting", "running", "waiting")
_ROUNDS_AFTER: Final = 2
_NOT_ALL_ACKNOWLEDGED: Final = 1
_NO_REPORT: Final = 1


@dataclass(frozen=True)
class Plan:
    """The options of a run. Without `bootstrap` the run has its own broker on `port`."""

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
    """How to connect to an existing cluster, as options of commands."""
    connecting: Mapping[str, str] = field(default_factory=dict)
    """The same, as options of readers."""

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
        """The address of the broker's HTTP server."""
        return f"http://{_HOST}:{self.broker_http_port}" if self.has_broker else None

    @property
    def queries(self) -> dict[str, int]:
        """How many queries each pipeline has; its loads and reports count as one."""
        from penstock.activity.pipelines import definition

        found = definition.selected_pipelines(self.pipelines)
        return {one.name: len(one.rows) + bool(one.loads or one.reports) for one in found}

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def generated(self) -> Path:
        """The file to which the generator writes its counts."""
        return self.folder / "generated.json"

    @property
    def report_folder(self) -> Path:
        return self.folder / "report"

    def broker_command(self) -> list[str]:
        return [
            *CHILD, "server", "start", "--data-dir", str(self.folder / "broker"), "--listen", self.servers,
            "--http-port", str(self.broker_http_port), "--set", "group.initial.rebalance.delay.ms=0",
            "--set", f"penstock.console.warehouse={self.warehouse_uri}",
        ]  # fmt: skip

    def pipelines_command(self) -> list[str]:
        master = [] if self.master is None else ["--master", self.master]
        return [
            *CHILD, "pipeline", "run", *self.pipelines, *master, "--value-format", self.value_format,
            "--warehouse", self.warehouse_uri, *self._reaching,
        ]  # fmt: skip

    def generator_command(self, origin_ms: int) -> list[str]:
        """`origin_ms` is the start of the site's time; a restarted generator continues the same site."""
        return [
            *CHILD, "activity", "generate", "--seed", str(self.seed), "--rate", f"{self.rate:g}",
            "--malformed", f"{self.malformed:g}", "--rhythm", self.rhythm, "--origin", str(origin_ms),
            "--value-format", self.value_format, "--format", "json", *self._reaching,
        ]  # fmt: skip

    @property
    def _reaching(self) -> list[str]:
        """The options of every command for the cluster."""
        config = [] if self.command_config is None else ["--command-config", self.command_config]
        properties = [word for each in self.command_properties for word in ("--command-property", each)]
        return ["--bootstrap-server", self.servers, *config, *properties]


class RunFailed(Exception):
    """A run that cannot continue: why, the last lines of the process, and what to do."""

    def __init__(self, problem: str, lines: Sequence[str], advice: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.lines = list(lines)
        self.advice = advice


class WatchedRun(Protocol):
    """The state of the run: a `Watch`."""

    @property
    def snapshot(self) -> Snapshot: ...

    def cluster_ready(self) -> None: ...

    def add_line(self, text: str) -> None: ...

    def set(self, **values: Any) -> None: ...


class Display(Protocol):
    """Shows the run."""

    def step(self, name: str, text: str) -> None:
        """A process changes its state."""

    def line(self, text: str) -> None:
        """An event."""

    def refresh(self, snapshot: Snapshot) -> None:
        """Called often."""


class Run:
    """One run. `stop` is set from outside, mostly by a signal."""

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
        self._launched_s: dict[str, float] = {}
        self._ends_at_s: float | None = None
        self._is_stopping = False
        self._broker = self._process("broker", plan.broker_command, 2, "closes its logs")
        self._pipelines = self._process("pipelines", plan.pipelines_command, 5, "commit their batches")
        self._generator = self._process("generator", self._generator_command, 3, "sends its last events")
        own = [self._broker] if plan.has_broker else []
        self._supervisor = Supervisor([*own, self._pipelines, self._generator], stop, self._pause)

    @property
    def pids(self) -> dict[str, int | None]:
        return self._supervisor.pids

    def run(self) -> int:
        """Run until it is stopped or has generated what was requested. Returns the exit code. Raises RunFailed."""
        try:
            with contextlib.suppress(StopRequested):
                self._start()
                self._supervisor.wait_until(self._is_over)
            return self._end()
        except ProcessFailed as error:
            self.kill()
            raise self._failure(error.name, error.problem, error.lines) from None
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        self._supervisor.kill()

    def _failure(self, name: str, problem: str, lines: Sequence[str]) -> RunFailed:
        return RunFailed(problem, lines, f"Its complete output is in {self._log(name)}")

    def _pause(self, seconds: float) -> None:
        self._display.refresh(self._seen.snapshot)
        if self._stop.is_set():
            time.sleep(seconds)
        else:
            self._stop.wait(seconds)

    # --- start

    def _start(self) -> None:
        names = ", ".join(self._plan.pipelines)
        if self._plan.has_broker:
            self._launch(self._broker, f"on {self._plan.servers}")
        self._launch(self._pipelines, f"Spark with {names}")
        if self._plan.has_broker:
            self._wait_until_ready(self._broker, self._broker_answers)
        self._seen.cluster_ready()
        # On a whole second, so that planted times are easy to read. A generator rejects an origin in the future.
        self._origin_ms = (time.time_ns() // 1_000_000_000 + 1) * 1000
        self._supervisor.wait_until(lambda: time.time_ns() // 1_000_000 >= self._origin_ms)
        self._seen.set(generating_since_ms=self._origin_ms)
        self._launch(self._generator, f"{self._plan.rate:,.0f} events/s")
        self._wait_until_ready(self._generator, self._has_events)
        self._wait_until_ready(self._pipelines, self._has_all_queries)
        minutes = self._plan.minutes
        if minutes is not None:
            self._ends_at_s = time.monotonic() + minutes * 60
        now_ms = time.time_ns() // 1_000_000
        self._seen.set(phase=state.RUNNING, ends_ms=0 if minutes is None else now_ms + round(minutes * 60_000))

    def _launch(self, process: SupervisedProcess, what: str) -> None:
        self._launched_s[process.name] = time.monotonic()
        self._display.step(process.name, what)
        process.start()

    def _wait_until_ready(self, process: SupervisedProcess, is_ready: Callable[[], bool]) -> None:
        """Waits for one of those that start. Raises RunFailed, StopRequested and ProcessFailed."""
        if not self._supervisor.wait_until(is_ready, _START_S):
            problem = f"{process.name} was not ready within {_START_S:.0f} s."
            raise self._failure(process.name, problem, process.last_lines())
        process.was_ready = True
        self._display.step(process.name, f"ready after {time.monotonic() - self._launched_s[process.name]:.1f} s")

    def _is_over(self) -> bool:
        return self._ends_at_s is not None and time.monotonic() >= self._ends_at_s

    def _broker_answers(self) -> bool:
        try:
            with socket.create_connection((_HOST, self._plan.port), _CONNECT_S):
                return True
        except OSError:
            return False

    def _has_all_queries(self) -> bool:
        """Whether every query was started; its first batch may still be running."""
        found = Counter(query.pipeline for query in self._seen.snapshot.queries if query.state in _ALIVE)
        return all(found[name] >= count for name, count in self._plan.queries.items())

    def _has_events(self) -> bool:
        return self._seen.snapshot.rate > 0

    # --- end

    def _end(self) -> int:
        if not self._pipelines.was_ready:
            # Stopped while it started: there is nothing to report.
            self._stop_all()
            return 0
        code = 0
        if self._report is not None:
            try:
                self._drain()
                self._seen.set(phase=state.REPORTING, waits_for="the report")
                code = self._report(self.summary())
            except StopRequested:
                self._display.line("Stopped before the report was written.")
                code = _NO_REPORT
        self._stop_all()
        if self._generator.exit_code == _NOT_ALL_ACKNOWLEDGED:
            self._display.line("Not all events were acknowledged; logs/generator.log has the counts.")
            code = code or _NOT_ALL_ACKNOWLEDGED
        self._seen.set(phase=state.STOPPED)
        return code

    def _drain(self) -> None:
        """Stop the generator, let the pipelines read to the end of the log, then stop them.

        A run that was stopped still gets its report; a second stop, here, cancels it. Raises StopRequested.
        """
        was_stopped = self._stop.is_set()
        self._seen.set(phase=state.DRAINING, waits_for="the generator to send its last events")
        self._supervisor.stop([self._generator], STOP_S)
        ended_ms = time.time_ns() // 1_000_000
        self._seen.set(waits_for="the pipelines to read to the end of the log", ends_ms=ended_ms)
        self._display.line("All events are generated; the pipelines read to the end of the log ...")
        drain = Drain(self._seen.snapshot.queries, ended_ms)
        is_done = self._supervisor.wait_until(
            lambda: drain.is_done(self._seen.snapshot.queries), _DRAIN_S, ignores_stop=was_stopped
        )
        if not is_done:
            self._display.line(f"The pipelines did not finish within {_DRAIN_S:.0f} s: {drain.left}")
        self._supervisor.stop([self._pipelines], STOP_S)

    def _stop_all(self) -> None:
        self._seen.set(phase=state.STOPPING, waits_for="")
        self._is_stopping = True
        # Ends the live view, so that the lines that follow can be seen.
        self._display.refresh(self._seen.snapshot)
        if any(self.pids.values()):
            self._display.line("Stopping. Ctrl-C again kills all processes; nothing acknowledged is lost.")
        self._supervisor.stop([self._generator, self._pipelines], STOP_S)
        if self._plan.has_broker:
            self._supervisor.stop([self._broker], STOP_S)

    def summary(self) -> dict[str, Any]:
        """What the generator printed at its end; empty if it did not get there."""
        found: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self._plan.generated.read_text())
        return found

    # --- processes

    def _process(self, name: str, command: Callable[[], list[str]], restarts: int, stopping: str) -> SupervisedProcess:
        output = self._plan.generated if name == "generator" else None

        def report(text: str) -> None:
            if not self._is_stopping:
                self._seen.add_line(f"{name} {text}")
            self._display.step(name, text)

        return SupervisedProcess(
            name, lambda: LoggedChild(command(), self._log(name), output), RestartPolicy(restarts, _RESTARTS_WITHIN_S),
            report, stopping=f"stopping: {stopping}", must_become_ready=True,
        )  # fmt: skip

    def _log(self, name: str) -> Path:
        return self._plan.logs / f"{name}.log"

    def _generator_command(self) -> list[str]:
        return self._plan.generator_command(self._origin_ms)


class Drain:
    """Whether the pipelines have read everything, by their own status.

    A query has if its lag, reported after the generator's end, is 0. Loads visit one topic after another, so only a
    round that began after the end has seen all of them: the second to end after it.
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
        # A restarted process counts its rounds from the beginning.
        self._rounds[key] = min(self._rounds.get(key, query.batch_id), query.batch_id)
        return query.batch_id >= self._rounds[key] + _ROUNDS_AFTER
