"""Several processes as one: started in order, kept alive, stopped in the opposite order. The processes are stand-ins
that do as they are told and keep a journal; the signals are real."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.timeouts import PATIENCE_S

from penstock.cli.server import supervisor
from penstock.cli.server.supervisor import Backoff, PrefixedLines, Program, Supervisor, ready_message, visible_line

STAND_IN = """
import signal, sys
name, journal, *ways = sys.argv[1:]
def note(event):
    with open(journal, "a") as file: file.write(f"{name} {event}\\n")
def say(level, text):
    print(f"2026-11-15T00:00:00.000Z {level:<7} stand.in: {text}", flush=True)
def end(number, frame):
    note("ended")
    sys.exit(0)
note("began")
first = open(journal).read().count(f"{name} began\\n") == 1
signal.signal(signal.SIGTERM, signal.SIG_IGN if "stays" in ways else end)
if "refuses" in ways:
    print("Error: 1 problem in the settings", flush=True)
    sys.exit(2)
if "fails" in ways and first:
    sys.exit(1)
say("INFO", "unheard")
say("WARNING", "heard")
if "shouts" in ways:
    print("x" * 200_000, flush=True)
if "silent" not in ways:
    say("INFO", f"{name} serves here")
while True:
    signal.pause()
"""


class Story:
    """Stand-ins under a supervisor in this process, and what was told."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "journal"
        self.told: list[tuple[str, str]] = []
        self.is_stopping = False

    def program(self, name: str, *ways: str) -> Program:
        return Program(name, (sys.executable, "-c", STAND_IN, name, str(self.journal), *ways))

    def run(
        self,
        *stages: Sequence[Program],
        serving: Callable[[Supervisor], None] | None = None,
        telling: Callable[[Supervisor, str, str], None] | None = None,
    ) -> int:
        """To its end; `serving` is called when all serve, and by itself asks for the end."""

        async def live() -> int:
            def tell(name: str, text: str) -> None:
                self.told.append((name, text))
                if telling is not None:
                    telling(running, name, text)

            running = Supervisor(stages, level="warning", tell=tell)
            asks = serving or (lambda _: signal.raise_signal(signal.SIGTERM))

            def stopping() -> None:
                self.is_stopping = True

            return await asyncio.wait_for(running.run(lambda: asks(running), stopping), PATIENCE_S)

        return asyncio.run(live())

    @property
    def events(self) -> list[str]:
        return self.journal.read_text().splitlines()

    def said_by(self, name: str) -> list[str]:
        return [text for who, text in self.told if who == name]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_a_stage_begins_when_the_one_before_serves_and_ends_before_it(story: Story) -> None:
    assert story.run([story.program("first")], [story.program("second"), story.program("third")]) == 0
    assert story.events[0] == "first began"
    assert sorted(story.events[1:3]) == ["second began", "third began"]
    assert story.events[3:] == ["third ended", "second ended", "first ended"], "one after the other"
    assert story.is_stopping


def test_what_a_process_says_has_its_name_and_its_level_decides(story: Story) -> None:
    story.run([story.program("one")])
    assert story.said_by("one") == [
        "2026-11-15T00:00:00.000Z WARNING stand.in: heard", "one serves here", "stopping", "stopped",
    ]  # fmt: skip


def test_a_line_without_an_end_is_passed_on_in_pieces(story: Story) -> None:
    story.run([story.program("one", "shouts")])
    pieces = [text for text in story.said_by("one") if text.startswith("x")]
    assert sum(map(len, pieces)) == 200_000
    assert "one serves here" in story.said_by("one")


def test_a_process_that_ends_is_told_and_started_again(story: Story) -> None:
    assert story.run([story.program("one", "fails")]) == 0
    assert story.events == ["one began", "one began", "one ended"]
    assert "has ended, with exit code 1; it is started again in 0.5 s" in story.said_by("one")


def test_one_that_is_killed_later_is_started_again_too(story: Story) -> None:
    lives: list[int] = []

    def serving(supervisor: Supervisor) -> None:
        pid = supervisor.pid("one")
        assert pid is not None
        lives.append(pid)
        os.kill(pid, signal.SIGKILL)

    def telling(supervisor: Supervisor, name: str, text: str) -> None:
        if text == "one serves here" and lives and supervisor.pid("one") not in lives:
            signal.raise_signal(signal.SIGINT)

    assert story.run([story.program("one"), story.program("two")], serving=serving, telling=telling) == 0
    assert "has ended, killed by SIGKILL; it is started again in 0.5 s" in story.said_by("one")
    assert story.events.count("one began") == 2
    assert story.events.count("two began") == 1, "the other one is left alone"


def test_one_that_cannot_even_be_started_is_tried_again(story: Story) -> None:
    def telling(_: Supervisor, name: str, text: str) -> None:
        if "started again" in text:
            signal.raise_signal(signal.SIGTERM)

    assert story.run([Program("none", (str(story.journal.with_name("nowhere")),))], telling=telling) == 0
    first, second = story.said_by("none")
    assert "cannot be started: [Errno 2]" in first
    assert "it is started again in 0.5 s" in second


def test_one_that_refuses_its_settings_ends_the_start(story: Story) -> None:
    assert story.run([story.program("one")], [story.program("two", "refuses"), story.program("three", "silent")]) == 2
    assert story.events.count("two began") == 1
    assert "Error: 1 problem in the settings" in story.said_by("two")
    assert story.events[-1] == "one ended"
    assert not story.is_stopping


def test_a_signal_before_all_serve_ends_the_start(story: Story) -> None:
    def telling(_: Supervisor, name: str, text: str) -> None:
        if name == "slow" and text.endswith("heard"):
            signal.raise_signal(signal.SIGTERM)

    served: list[Supervisor] = []
    assert story.run([story.program("slow", "silent")], [story.program("never")], serving=served.append,
                     telling=telling) == 0  # fmt: skip
    assert story.events == ["slow began", "slow ended"]
    assert served == []


def test_what_does_not_stop_in_time_is_killed(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LAST_STAGE_STOPS_S", 0.4)
    assert story.run([story.program("first")], [story.program("mule", "stays"), story.program("sheep")]) == 0
    assert story.events[-2:] == ["sheep ended", "first ended"]
    assert any("killed" in text for text in story.said_by("mule"))
    assert story.said_by("mule").count("stopped") == 0
    for name in ("sheep", "first"):
        assert story.said_by(name)[-1] == "stopped"
        assert "stopping" in story.said_by(name)


_DRIVER = """
import asyncio, sys
from penstock.cli.server.supervisor import Program, Supervisor
command = sys.argv[1:]
stages = [[Program("mule", tuple(command))]]
def say(*words): print(*words, flush=True)
async def live():
    supervisor = Supervisor(stages, level="warning", tell=say)
    return await supervisor.run(lambda: say("pid", supervisor.pid("mule")), lambda: say("stopping"))
sys.exit(asyncio.run(live()))
"""


def _driver(story: Story, *ways: str) -> tuple[subprocess.Popen[str], int]:
    """A supervisor in a process of its own, and the process that it supervises."""
    command = [sys.executable, "-c", _DRIVER, *story.program("mule", *ways).command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = ""
    while not line.startswith("pid "):
        line = process.stdout.readline()
        assert line, "it ended before it served"
    return process, int(line.split()[1])


def _wait_for_end(pid: int) -> None:
    """Of a process that is somebody else's child; it may have ended before."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        import select

        assert select.select([descriptor], [], [], PATIENCE_S)[0], f"process {pid} is still there"
    finally:
        os.close(descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="needs process descriptors")
def test_a_second_signal_kills_all_at_once(story: Story) -> None:
    driver, mule = _driver(story, "stays")
    with driver:
        try:
            assert driver.stdout is not None
            driver.send_signal(signal.SIGINT)
            assert driver.stdout.readline() == "stopping\n"
            driver.send_signal(signal.SIGINT)
            assert driver.wait(PATIENCE_S) == 128 + signal.SIGINT
            _wait_for_end(mule)
        finally:
            driver.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can promise that")
def test_nobody_outlives_a_supervisor_that_is_killed(story: Story) -> None:
    driver, mule = _driver(story)
    with driver:
        driver.kill()
        driver.wait(PATIENCE_S)
        _wait_for_end(mule)
    assert story.events[-1] == "mule ended", "it could close what it had open"


# --- parts


def test_the_back_off_grows_and_is_forgotten_by_who_lives_long() -> None:
    backoff = Backoff()
    assert [backoff.after(0.1) for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert backoff.after(40) == 0.5
    assert backoff.after(1) == 1


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        ("2026-11-15T13:12:34.567Z INFO    a.b: fine", False),
        ("2026-11-15T13:12:34.567Z WARNING a.b: not so fine", True),
        ("2026-11-15T13:12:34.567Z ERROR   a.b: bad", True),
        ("Error: not an event at all", True),
    ],
)
def test_events_below_the_level_are_not_shown(line: str, is_shown: bool) -> None:
    assert visible_line(line, "warning") == (line if is_shown else None)


def test_serving_is_heard_in_events_only() -> None:
    assert ready_message("2026-11-15T13:12:34.567Z INFO    a.b: broker 1 serves X") == "broker 1 serves X"
    assert ready_message("a waiter serves X") is None


def test_names_stand_in_a_column_and_control_characters_do_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    lines = PrefixedLines(["broker 1", "zookeeper"])
    lines("broker 1", "a\x1b[31mb")
    lines("zookeeper", "c")
    assert capfd.readouterr().err == "broker 1  | a\\x1b[31mb\nzookeeper | c\n"
