"""Runs whose children are scripts: up in order, kept up, down in order."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.activity.live.runs import (
    NOW_MS,
    UNTIL_THE_PIPE_CLOSES,
    HandMade,
    Heard,
    ScriptPlan,
    query,
    script_plan,
)
from tests.ports import free_port
from tests.timeouts import PATIENCE_S, until

from penstock.activity.live import run
from penstock.activity.live.run import Drain, Plan, Run, RunFailed
from penstock.runtime import supervisor

COUNTS_AT_THE_END = "import sys; sys.stdin.read(); print('{\"events\": 5}')"


class Story:
    """A run in a thread."""

    def __init__(self, plan: ScriptPlan, seen: HandMade, report: Callable[[Any], int] | None = None) -> None:
        self.seen = seen
        self.heard = Heard()
        self.stop = threading.Event()
        self.run = Run(plan, seen, self.heard, self.stop, report=report)
        self.code: int | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.code = self.run.run()
        except RunFailed as error:
            self.error = error

    def start(self) -> Story:
        self._thread.start()
        return self

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, "it comes to that; heard so far: " + repr((self.heard.lines, self.error)))

    def until_it_runs(self) -> None:
        self.until(lambda: any(line.startswith("pipelines ready") for line in self.heard.lines))

    def end(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def stories(tmp_path: Path) -> Iterator[Callable[..., Story]]:
    made: list[Story] = []

    def make(seen: HandMade | None = None, report: Callable[[Any], int] | None = None, **values: Any) -> Story:
        plan = script_plan(tmp_path, free_port(), **values)
        made.append(Story(plan, seen or HandMade(query("operations")), report))
        return made[-1].start()

    yield make
    for story in made:
        story.stop.set()
        story.end()
        story.run.kill()


def test_all_come_up_in_order_and_end_when_asked(stories: Callable[..., Story]) -> None:
    story = stories()
    story.until_it_runs()
    pids = story.run.pids
    assert all(pids.values())
    story.stop.set()
    story.end()
    assert story.code == 0
    assert not any(story.run.pids.values())
    started = [line.split()[0] for line in story.heard.lines if "ready" in line]
    assert started == ["broker", "generator", "pipelines"]
    assert story.seen.phases == ["running", "stopping", "stopped"]


def test_spark_does_not_wait_for_the_broker_and_the_site_does_not_wait_for_spark(
    stories: Callable[..., Story], tmp_path: Path
) -> None:
    may_listen = tmp_path / "may listen"
    slow_broker = (
        "import os, socket, sys, time\n"
        f"while not os.path.exists({str(may_listen)!r}): time.sleep(0.02)\n"
        'listener = socket.create_server(("127.0.0.1", {port}))\nsys.stdin.read()\n'
    )
    story = stories(HandMade(), broker_script=slow_broker)
    story.until(lambda: bool(story.run.pids["pipelines"]))
    assert not any("ready" in line or line.startswith("generator") for line in story.heard.lines)
    may_listen.touch()
    story.until(lambda: any(line.startswith("generator ready") for line in story.heard.lines))
    assert "running" not in story.seen.phases, "Spark has no queries yet"
    story.seen.shows(queries=[query("operations", state="starting")])
    story.until(lambda: "running" in story.seen.phases)


def test_the_site_s_time_has_begun_when_the_generator_starts(
    stories: Callable[..., Story], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator rejects an origin that is still to come."""
    ahead_ms: list[int] = []

    def command(plan: ScriptPlan, origin_ms: int) -> list[str]:
        ahead_ms.append(origin_ms - time.time_ns() // 1_000_000)
        return [sys.executable, "-c", UNTIL_THE_PIPE_CLOSES]

    monkeypatch.setattr(ScriptPlan, "generator_command", command)
    stories().until_it_runs()
    assert len(ahead_ms) == 1
    assert ahead_ms[0] <= 0


def test_a_pipeline_counts_as_started_when_all_of_its_queries_are(
    stories: Callable[..., Story], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptPlan, "queries", property(lambda self: {"operations": 2}))
    story = stories(HandMade(query("operations")))
    story.until(lambda: story.heard.refreshed > 5)
    assert "running" not in story.seen.phases
    story.seen.shows(queries=[query("operations"), query("operations", "more")])
    story.until(lambda: "running" in story.seen.phases)


def test_the_minutes_of_a_run_count_from_the_moment_when_everything_runs(stories: Callable[..., Story]) -> None:
    story = stories(HandMade(), minutes=0.001)
    story.until(lambda: any(line.startswith("generator ready") for line in story.heard.lines))
    refreshed = story.heard.refreshed
    story.until(lambda: story.heard.refreshed > refreshed + 5)
    assert "stopping" not in story.seen.phases
    story.seen.shows(queries=[query("operations")])
    story.end()
    assert (story.code, story.seen.phases) == (0, ["running", "stopping", "stopped"])


def test_one_that_is_stopped_while_it_starts_has_no_report(stories: Callable[..., Story]) -> None:
    reported: list[Any] = []

    def report(summary: Any) -> int:
        reported.append(summary)
        return 1

    story = stories(HandMade(), report)
    story.until(lambda: any(line.startswith("generator ready") for line in story.heard.lines))
    story.stop.set()
    story.end()
    assert (story.code, reported) == (0, [])
    said = [line.split()[0] for line in story.heard.lines if "stopping" in line and "still" not in line]
    assert said == ["generator", "pipelines", "broker"], "each part says that it stops"


def test_a_process_that_dies_is_started_again_and_that_is_reported(stories: Callable[..., Story]) -> None:
    story = stories()
    story.until_it_runs()
    for name in ("pipelines", "broker"):
        pid = story.run.pids[name]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        story.until(lambda name=name, pid=pid: story.run.pids[name] not in (pid, None))  # type: ignore[misc]
        assert f"{name} was killed by SIGKILL; restarting in 0.5 s" in story.seen.lines
    story.stop.set()
    story.end()
    assert story.code == 0


def test_a_process_that_keeps_dying_ends_the_run_with_its_output(stories: Callable[..., Story], tmp_path: Path) -> None:
    came_up = str(tmp_path / "came up")
    story = stories(
        broker_script="import os, socket, sys\n"
        'listener = socket.create_server(("127.0.0.1", {port}))\n'
        f"if not os.path.exists({came_up!r}):\n"
        f"    os.mkdir({came_up!r}); listener.accept()\n"
        "sys.exit('the disk is full')"
    )
    story.end()
    assert isinstance(story.error, RunFailed)
    assert story.error.problem == "broker exited with code 1."
    assert story.error.lines[-1] == "the disk is full"
    assert not any(story.run.pids.values()), "nothing of it stays"


def test_one_that_does_not_come_up_is_not_tried_again(stories: Callable[..., Story]) -> None:
    story = stories(HandMade(), pipelines_script="import sys; sys.exit('no Java here')")
    story.end()
    assert isinstance(story.error, RunFailed)
    assert "before it was ready" in story.error.problem
    assert story.error.lines[-1] == "no Java here"
    assert story.error.advice.endswith("pipelines.log")
    assert not any(story.run.pids.values())


def test_it_can_be_stopped_while_it_waits(stories: Callable[..., Story]) -> None:
    story = stories(HandMade(), broker_script=UNTIL_THE_PIPE_CLOSES)
    story.until(lambda: bool(story.run.pids["pipelines"]))
    story.stop.set()
    story.end()
    assert story.code == 0
    assert not any(line.startswith("generator") for line in story.heard.lines), "it waits for the broker"


def test_a_child_that_hangs_is_killed(stories: Callable[..., Story], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "STOP_S", 2.0)
    hangs = "import time; print('up', flush=True); time.sleep(600)"
    story = stories(pipelines_script=hangs)
    story.until_it_runs()
    story.stop.set()
    story.end()
    assert "pipelines did not stop within 2 s; killed" in story.heard.lines


def test_each_part_says_that_it_stops_and_none_is_killed_that_takes_its_time(
    stories: Callable[..., Story], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark may take longer to stop than anybody expects: it is waited for, and that is said."""
    monkeypatch.setattr(supervisor, "_STILL_EVERY_S", 0.2)
    may_end = tmp_path / "may end"
    slow = (
        "import os, sys, time\nprint('up', flush=True)\nsys.stdin.read()\n"
        f"while not os.path.exists({str(may_end)!r}): time.sleep(0.05)\n"
    )
    story = stories(pipelines_script=slow)
    story.until_it_runs()
    story.stop.set()
    story.until(lambda: sum("still stopping" in line for line in story.heard.lines) >= 2)
    assert story.run.pids["broker"], "it goes last"
    may_end.touch()
    story.end()
    assert story.code == 0
    begin = story.heard.lines.index("Stopping. Ctrl-C again kills all processes; nothing acknowledged is lost.")
    said = [line for line in story.heard.lines[begin + 1 :] if "still" not in line]
    assert [line.partition(" after")[0] for line in said] == [
        "generator stopping: sends its last events",
        "pipelines stopping: commit their batches",
        "generator stopped",
        "pipelines stopped",
        "broker stopping: closes its logs",
        "broker stopped",
    ]
    assert not any("killed" in line for line in story.heard.lines[begin + 1 :])


def test_with_a_report_the_pipelines_first_read_to_the_end(stories: Callable[..., Story]) -> None:
    seen = HandMade(query("operations", lag=40))
    got: list[Any] = []

    def report(summary: Any) -> int:
        got.append((summary, story.run.pids))
        return 3

    story = stories(seen, report, generator_script=COUNTS_AT_THE_END, minutes=0.01)
    story.until(lambda: "draining" in seen.phases)
    story.until(lambda: story.heard.refreshed > 3)
    assert not got
    seen.shows(queries=[query("operations", lag=0, updated_ms=NOW_MS * 2)])
    story.end()
    ((summary, pids),) = got
    assert summary == {"events": 5}
    assert (pids["pipelines"], pids["generator"]) == (None, None)
    assert pids["broker"], "the report reads the log"
    assert story.code == 3


def test_who_stops_it_while_it_drains_gets_no_report(stories: Callable[..., Story]) -> None:
    story = stories(
        HandMade(query("operations", lag=40)), lambda summary: 0, generator_script=COUNTS_AT_THE_END, minutes=0.01
    )
    story.until(lambda: "draining" in story.seen.phases)
    story.stop.set()
    story.end()
    assert (story.code, "Stopped before the report was written." in story.heard.lines) == (1, True)


def test_a_generator_that_another_process_ended_is_started_again(stories: Callable[..., Story]) -> None:
    story = stories(generator_script="import time; time.sleep(1)")
    story.until(lambda: "generator exited with code 0; restarting in 0.5 s" in story.seen.lines)


def test_drained_is_lag_nothing_after_the_end_and_two_more_rounds_of_loads() -> None:
    before = [query("feed", lag=0, updated_ms=90), query("reporting", "loads", batch_id=4, lag=0, updated_ms=90)]
    drain = Drain(before, ended_ms=100)
    assert not drain.is_done(before), "that was seen before the end"
    feed = query("feed", lag=0, updated_ms=101)
    assert not drain.is_done([feed, query("reporting", "loads", batch_id=5, lag=0, updated_ms=101)])
    assert drain.left == "reporting/loads"
    assert not drain.is_done([query("feed", lag=-1, updated_ms=102), query("reporting", "loads", batch_id=6)])
    assert drain.is_done([feed, query("reporting", "loads", batch_id=6, lag=0, updated_ms=101)])
    assert not drain.is_done([])


def test_rounds_of_loads_are_counted_again_after_a_restart() -> None:
    drain = Drain([query("reporting", "loads", batch_id=40)], ended_ms=100)
    for batch_id, is_done in ((-1, False), (0, False), (1, True)):
        assert drain.is_done([query("reporting", "loads", batch_id=batch_id, updated_ms=101)]) is is_done


def test_the_children_are_commands_that_say_everything(tmp_path: Path) -> None:
    plan = Plan(
        tmp_path, ("feed", "search"), seed=7, rate=500, malformed=0.01, port=19, broker_http_port=20, master="local[2]"
    )
    assert plan.broker_command()[4:] == [
        "server", "start", "--data-dir", str(tmp_path / "broker"), "--listen", "127.0.0.1:19", "--http-port", "20",
        "--set", "group.initial.rebalance.delay.ms=0", "--set", f"penstock.console.warehouse={tmp_path / 'warehouse'}",
    ]  # fmt: skip
    assert plan.pipelines_command()[4:] == [
        "pipeline", "run", "feed", "search", "--master", "local[2]", "--value-format", "json", "--warehouse",
        str(tmp_path / "warehouse"), "--bootstrap-server", "127.0.0.1:19",
    ]  # fmt: skip
    command = " ".join(plan.generator_command(123)[4:])
    assert "--seed 7 --rate 500 --malformed 0.01 --rhythm daily --origin 123 --value-format" in command
    elsewhere = Plan(tmp_path, ("feed",), bootstrap="kafka:9092", warehouse="s3://b/t")
    assert (elsewhere.servers, elsewhere.warehouse_uri, elsewhere.broker_url) == ("kafka:9092", "s3://b/t", None)
