"""Supervised processes: how they are started, restarted and stopped. The children are scripts, the signals are real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.timeouts import until

from penstock.runtime import supervisor
from penstock.runtime.supervisor import (
    ChildProcess,
    ForwardedChild,
    LoggedChild,
    ProcessFailed,
    RestartPolicy,
    StopRequested,
    SupervisedProcess,
    Supervisor,
    forward_output,
)

UNTIL_THE_PIPE_CLOSES = "import sys; print('up', flush=True); sys.stdin.read()"
HANGS = "import time; print('up', flush=True); time.sleep(600)"


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def until_printed(log: Path, text: str) -> None:
    until(lambda: log.exists() and text in log.read_text(), f"the child prints {text!r}")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "child.log"


# --- children


def test_a_logged_child_stops_when_it_is_asked_to(log: Path) -> None:
    child = LoggedChild(script(UNTIL_THE_PIPE_CLOSES), log)
    assert child.exit_text() == "was not started"
    child.start()
    until_printed(log, "\nup\n")
    assert child.is_alive
    child.request_stop()
    child.request_stop()
    until(lambda: not child.is_alive, "it stops")
    assert (child.exit_code, child.pid, child.exit_text()) == (0, None, "exited with code 0")


def test_a_child_that_does_not_stop_is_killed_and_its_last_lines_are_kept(log: Path) -> None:
    child = LoggedChild(script("import time\nfor n in range(9): print(n, flush=True)\ntime.sleep(600)"), log)
    child.start()
    until_printed(log, "\n8\n")
    child.request_stop()
    child.kill()
    assert child.exit_text() == "was killed by SIGKILL"
    assert child.last_lines(3) == ["6", "7", "8"]


def test_standard_output_can_have_a_file_of_its_own(log: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    child = LoggedChild(script("import sys; print('{}'); print('news', file=sys.stderr)"), log, output)
    child.start()
    until(lambda: not child.is_alive, "it ends")
    child.settle()
    assert output.read_text() == "{}\n"
    assert "news" in log.read_text()


def test_a_logged_child_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    parent = subprocess.Popen(
        script(
            "import pathlib, sys, time\n"
            "from penstock.runtime.supervisor import LoggedChild\n"
            f"child = LoggedChild([sys.executable, '-c', {UNTIL_THE_PIPE_CLOSES!r}], pathlib.Path({str(log)!r}))\n"
            "child.start(); print(child.pid, flush=True); time.sleep(600)\n"
        ),
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    until_printed(log, "\nup\n")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not _runs(pid), "the child ends")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_forwarded_child_passes_on_its_lines_and_long_ones_in_pieces() -> None:
    lines: list[str] = []
    child = ForwardedChild(script("print('first\\r'); print('x' * 200_000); print('no end', end='')"), lines.append)
    child.start()

    def has_all() -> bool:
        forward_output([child], 0.01)
        return child.descriptor is None and not child.is_alive

    until(has_all, "its output has ended")
    assert lines[0] == "first"
    assert sum(len(line) for line in lines if line.startswith("x")) == 200_000
    assert lines[-1] == "no end"


def test_the_pipe_of_a_child_that_exited_is_closed_although_a_process_of_its_own_holds_it() -> None:
    lines: list[str] = []
    start_another = "import os, subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    child = ForwardedChild(script(f"{start_another}; os._exit(0)"), lines.append)
    child.start()
    until(lambda: not child.is_alive, "it exits")
    child.settle()
    assert child.descriptor is None
    os.kill(int(lines[0]), signal.SIGKILL)


def test_a_command_that_does_not_exist_counts_as_one_that_exited(log: Path) -> None:
    child = LoggedChild(["/nowhere/to/be/found"], log)
    child.start()
    assert not child.is_alive
    assert child.exit_code == 126
    assert child.exit_text().startswith("cannot be started: [Errno 2]")


# --- restarts


def test_delays_double_and_too_many_exits_are_not_restarted() -> None:
    restarts = RestartPolicy(3, 60.0, first_wait_s=1.0)
    assert [restarts.wait_s(now_s) for now_s in (0.0, 1.0, 2.0, 3.0)] == [1.0, 2.0, 4.0, None]
    assert restarts.wait_s(200.0) == 1.0


def test_delays_have_a_maximum_and_start_over_after_a_steady_run() -> None:
    restarts = RestartPolicy(steady_s=30.0)
    assert [restarts.wait_s(now_s, 0.1) for now_s in range(9)] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert restarts.wait_s(9.0, 40.0) == 0.5
    assert restarts.wait_s(10.0, 1.0) == 1.0


class Scripted(ChildProcess):
    """A child without a process, whose exit code a test sets."""

    def __init__(self) -> None:
        super().__init__([])
        self.code: int | None = None
        self.stops = 0

    def start(self) -> None:
        pass

    def request_stop(self) -> None:
        self.stops += 1

    @property
    def pid(self) -> int | None:
        return 7 if self.code is None else None

    @property
    def exit_code(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9


class Story:
    """A supervised process of scripted children."""

    def __init__(self, **options: object) -> None:
        self.children: list[Scripted] = []
        self.reports: list[str] = []
        self.stop = threading.Event()
        self.process = SupervisedProcess(
            "part",
            self._make,
            RestartPolicy(2, 60.0),
            self.reports.append,
            **options,  # type: ignore[arg-type]
        )
        self.supervisor = Supervisor([self.process], self.stop, lambda _: None)
        self.process.start()

    def _make(self) -> Scripted:
        self.children.append(Scripted())
        return self.children[-1]


def test_a_process_that_exits_is_restarted_after_the_delay() -> None:
    story = Story()
    story.children[0].code = 3
    story.process.look(10.0)
    assert story.reports == ["exited with code 3; restarting in 0.5 s"]
    story.process.look(10.4)
    assert len(story.children) == 1
    story.process.look(10.5)
    assert len(story.children) == 2


def test_a_process_that_exits_too_often_fails() -> None:
    story = Story()

    def exit_again_and_again() -> None:
        for now_s in range(100):
            story.children[-1].code = 1
            story.process.look(float(now_s))

    with pytest.raises(ProcessFailed, match=r"part exited with code 1\.") as caught:
        exit_again_and_again()
    assert caught.value.exit_code == 1
    assert len(story.children) == 3


def test_an_exit_before_it_was_ready_can_be_a_failure() -> None:
    story = Story(must_become_ready=True)
    story.children[0].code = 1
    with pytest.raises(ProcessFailed, match="before it was ready"):
        story.process.look(0.0)


def test_a_final_exit_code_fails_before_it_was_ready_and_ends_restarts_after() -> None:
    early, late = Story(final_codes={2: "rejects its settings"}), Story(final_codes={2: "rejects its settings"})
    early.children[0].code = late.children[0].code = 2
    with pytest.raises(ProcessFailed) as caught:
        early.process.look(0.0)
    assert caught.value.exit_code == 2
    late.process.was_ready = True
    late.process.look(0.0)
    late.process.look(100.0)
    assert late.reports == ["rejects its settings; not restarted"]
    assert len(late.children) == 1


def test_a_process_that_is_done_or_was_asked_to_stop_is_not_restarted() -> None:
    done, asked = Story(is_done=lambda code: code == 0), Story()
    done.children[0].code = 0
    asked.process.request_stop()
    asked.children[0].code = 1
    for story in (done, asked):
        story.process.look(0.0)
        story.process.look(100.0)
        assert len(story.children) == 1
    assert done.process.is_done
    assert asked.reports == ["stopping"]


# --- the supervisor


def test_waiting_ends_by_its_condition_by_time_and_by_a_stop() -> None:
    story = Story()
    assert story.supervisor.wait_until(lambda: True)
    assert not story.supervisor.wait_until(lambda: False, 0.01)
    story.stop.set()
    with pytest.raises(StopRequested):
        story.supervisor.wait_until(lambda: False)
    assert not story.supervisor.wait_until(lambda: False, 0.01, ignores_stop=True)


def test_a_process_that_does_not_stop_in_time_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_STILL_EVERY_S", 0.0)
    story = Story()
    story.supervisor.stop([story.process], 0.05)
    assert story.children[0].stops == 1
    assert story.reports[0] == "stopping"
    assert story.reports[1] == "still stopping after 0 s"
    assert story.reports[-1] == "did not stop within 0.05 s; killed"


def test_processes_of_a_group_are_asked_together_and_reported_when_they_have_stopped(log: Path) -> None:
    reports: list[tuple[str, str]] = []
    processes = [
        SupervisedProcess(
            name,
            lambda name=name: LoggedChild(script(UNTIL_THE_PIPE_CLOSES), log.with_name(name)),  # type: ignore[misc]
            RestartPolicy(),
            lambda text, name=name: reports.append((name, text.partition(" after")[0])),  # type: ignore[misc]
        )
        for name in ("one", "two")
    ]
    several = Supervisor(processes, threading.Event())
    for process in processes:
        process.start()
    for name in ("one", "two"):
        until_printed(log.with_name(name), "\nup\n")
    assert all(several.pids.values())
    several.stop(processes, 60.0)
    assert reports == [("one", "stopping"), ("two", "stopping"), ("one", "stopped"), ("two", "stopped")]
    assert not any(several.pids.values())


def test_a_hanging_process_is_killed_for_real(log: Path) -> None:
    reports: list[str] = []
    process = SupervisedProcess("mule", lambda: LoggedChild(script(HANGS), log), RestartPolicy(), reports.append)
    alone = Supervisor([process], threading.Event())
    process.start()
    until_printed(log, "\nup\n")
    alone.stop([process], 0.2)
    assert reports[-1] == "did not stop within 0.2 s; killed"
    assert process.exit_code == -9


def test_what_a_process_printed_before_it_was_killed_is_passed_on_and_its_pipe_is_closed() -> None:
    lines: list[str] = []
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
    child = ForwardedChild(script(f"{ignores}; time.sleep(600)"), lines.append)
    process = SupervisedProcess("mule", lambda: child, RestartPolicy(), lambda text: None)
    process.start()

    def has_printed() -> bool:
        forward_output([child], 0.01)
        return bool(lines)

    until(has_printed, "it prints")
    process.kill()
    assert child.descriptor is None
    assert (lines, process.exit_code) == (["up"], -9)
