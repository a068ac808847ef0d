"""A run from its first process to its last: started step by step, watched, ended in order.

Broker, pipelines, generator come up in this order, each when the one before it answers; so `--minutes` and what is
planted count from the moment when everything is there. They end in the other order: the generator sends what it has
made, the pipelines commit what they have begun, the broker goes last. Each part reports that it stops and when it has
stopped. Nothing is killed that can still stop: the bound is far above what a stop takes, and whoever does not want to
wait sends a second signal. With a report, the pipelines first read to the end of the log, for which there is a bound
too.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from penstock.activity.live import state
from penstock.activity.live.processes import Child, Restarts
from penstock.activity.live.state import Query, Snapshot
from penstock.activity.live.supervising_kept import Kept, RunFailed
from penstock.activity.live.supervising_plan import Plan

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


class Seen(Protocol):
    """What is known of the run: a `Watch`."""

    @property
    def snapshot(self) -> Snapshot: ...

    def cluster_is_there(self) -> None: ...

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
        seen: Seen,
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
        self.broker = self._kept("broker", plan.broker_command, Restarts(2, 600.0))
        self.pipelines = self._kept("pipelines", plan.pipelines_command, Restarts(5, 600.0))
        self.generator = self._kept("generator", self._generator_command, Restarts(3, 600.0), self._has_generated)

    @property
    def pids(self) -> dict[str, int | None]:
        return {kept.name: kept.pid for kept in self._all}

    @property
    def _all(self) -> tuple[Kept, ...]:
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
            self._come_up(self.broker, f"on {self._plan.servers}", self._broker_answers)
        self._seen.cluster_is_there()
        names = ", ".join(self._plan.pipelines)
        self._come_up(self.pipelines, f"Spark with {names}", self._queries_are_there)
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
        self._come_up(self.generator, f"{self._plan.rate:,.0f} events/s", self._events_come)
        self._seen.set(waits_for="")

    def _come_up(self, kept: Kept, what: str, is_up: Callable[[], bool]) -> None:
        began_s = time.monotonic()
        self._seen.set(waits_for=f"{kept.name}: {what}")
        self._display.step(kept.name, what)
        kept.start()
        self._wait_until(is_up, _START_S, kept)
        kept.has_come_up = True
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

    def _wait_until(self, condition: Callable[[], bool], limit_s: float | None, kept: Kept | None = None) -> None:
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
        self._ask_to_end(self.generator)
        self._await_end(self.generator)
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
        self._ask_to_end(self.pipelines)
        self._await_end(self.pipelines)

    def _stop_all(self) -> None:
        self._seen.set(phase=state.STOPPING, waits_for="")
        # The view goes now: what is left to see are these lines.
        self._display.refresh(self._seen.snapshot)
        if any(kept.is_alive for kept in self._all):
            self._display.line("Stopping; Ctrl-C again kills what is left, and nothing acknowledged is lost.")
        self._ask_to_end(self.generator)
        self._ask_to_end(self.pipelines)
        self._await_end(self.generator)
        self._await_end(self.pipelines)
        if self._plan.has_broker:
            self._ask_to_end(self.broker)
            self._await_end(self.broker)

    def _ask_to_end(self, kept: Kept) -> None:
        if kept.is_alive:
            self._display.step(kept.name, f"stopping: {_ENDS_WITH[kept.name]}")
        kept.ask_to_end()

    def _await_end(self, kept: Kept) -> None:
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
        self, name: str, command: Callable[[], list[str]], restarts: Restarts,
        is_done: Callable[[int], bool] = lambda code: False,
    ) -> Kept:  # fmt: skip
        log = self._plan.logs / f"{name}.log"
        output = self._plan.generated if name == "generator" else None

        def told(text: str) -> None:
            self._seen.told(text)
            self._display.line(text)

        return Kept(name, lambda: Child(name, command(), log, output), restarts, told, log=str(log), is_done=is_done)

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
