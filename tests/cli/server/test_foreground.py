"""Several processes in the foreground as one. The processes are scripts that keep a journal; the signals are real."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.timeouts import PATIENCE_S

from penstock.cli.server import foreground
from penstock.cli.server.foreground import Foreground, PrefixedLines, Program, ready_message, visible_line

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
if "rejects" in ways:
    print("Error: 1 problem in the settings", flush=True)
    sys.exit(2)
if "fails" in ways and first:
    sys.exit(1)
say("INFO", "unheard")
say("WARNING", "heard")
if "shouts" in ways:
    print("x" * 200_000, flush=True)
if "silent" not in ways:
    say("INFO", f"broker started: id={name}")
while True:
    signal.pause()
"""


class Story:
    """Scripts in the foreground of this process, and what was printed."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "journal"
        self.printed: list[tuple[str, str]] = []
        self.is_stopping = False

    def program(self, name: str, *ways: str) -> Program:
        return Program(name, (sys.executable, "-c", STAND_IN, name, str(self.journal), *ways))

    def run(
        self,
        *stages: Sequence[Program],
        serving: Callable[[Foreground], None] | None = None,
        printing: Callable[[Foreground, str, str], None] | None = None,
    ) -> int:
        """Run to the end. `serving` is called when all serve; by default it asks for the end."""

        def print_line(name: str, text: str) -> None:
            self.printed.append((name, text))
            if printing is not None:
                printing(running, name, text)

        def stopping() -> None:
            self.is_stopping = True

        running = Foreground(stages, level="warning", print_line=print_line)
        asks = serving or (lambda _: signal.raise_signal(signal.SIGTERM))
        return running.run(lambda: asks(running), stopping)

    @property
    def events(self) -> list[str]:
        return self.journal.read_text().splitlines()

    def said_by(self, name: str) -> list[str]:
        return [text for who, text in self.printed if who == name]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_a_stage_begins_when_the_one_before_serves_and_ends_before_it(story: Story) -> None:
    assert story.run([story.program("first")], [story.program("second"), story.program("third")]) == 0
    assert story.events[0] == "first began"
    assert sorted(story.events[1:3]) == ["second began", "third began"]
    assert story.events[3:] == ["third ended", "second ended", "first ended"], "one after the other"
    assert story.is_stopping


def test_lines_have_the_name_of_their_process_and_low_levels_are_left_out(story: Story) -> None:
    story.run([story.program("one")])
    first, second, third, fourth = story.said_by("one")
    assert first == "2026-11-15T00:00:00.000Z WARNING stand.in: heard"
    assert (second, third) == ("broker started: id=one", "stopping")
    assert fourth.startswith("stopped after ")


def test_a_line_without_an_end_is_passed_on_in_pieces(story: Story) -> None:
    story.run([story.program("one", "shouts")])
    pieces = [text for text in story.said_by("one") if text.startswith("x")]
    assert sum(map(len, pieces)) == 200_000
    assert "broker started: id=one" in story.said_by("one")


def test_a_process_that_exits_is_reported_and_restarted(story: Story) -> None:
    assert story.run([story.program("one", "fails")]) == 0
    assert story.events == ["one began", "one began", "one ended"]
    assert "exited with code 1; restarting in 0.5 s" in story.said_by("one")


def test_a_process_that_is_killed_later_is_restarted_too(story: Story) -> None:
    lives: list[int] = []

    def serving(running: Foreground) -> None:
        pid = running.pid("one")
        assert pid is not None
        lives.append(pid)
        os.kill(pid, signal.SIGKILL)

    def printing(running: Foreground, name: str, text: str) -> None:
        if text == "broker started: id=one" and lives and running.pid("one") not in lives:
            signal.raise_signal(signal.SIGINT)

    assert story.run([story.program("one"), story.program("two")], serving=serving, printing=printing) == 0
    assert "was killed by SIGKILL; restarting in 0.5 s" in story.said_by("one")
    assert story.events.count("one began") == 2
    assert story.events.count("two began") == 1, "the other one is left alone"


def test_a_command_that_cannot_be_started_is_tried_again(story: Story) -> None:
    def printing(_: Foreground, name: str, text: str) -> None:
        if "restarting" in text:
            signal.raise_signal(signal.SIGTERM)

    assert story.run([Program("none", (str(story.journal.with_name("nowhere")),))], printing=printing) == 0
    (line,) = story.said_by("none")
    assert line.startswith("cannot be started: [Errno 2]")
    assert line.endswith("; restarting in 0.5 s")


def test_a_process_that_rejects_its_settings_ends_the_start(story: Story) -> None:
    assert story.run([story.program("one")], [story.program("two", "rejects"), story.program("three", "silent")]) == 2
    assert story.events.count("two began") == 1
    assert "Error: 1 problem in the settings" in story.said_by("two")
    assert story.events[-1] == "one ended"
    assert not story.is_stopping


def test_a_signal_before_all_serve_ends_the_start(story: Story) -> None:
    def printing(_: Foreground, name: str, text: str) -> None:
        if name == "slow" and text.endswith("heard"):
            signal.raise_signal(signal.SIGTERM)

    served: list[Foreground] = []
    assert story.run([story.program("slow", "silent")], [story.program("never")], serving=served.append,
                     printing=printing) == 0  # fmt: skip
    assert story.events == ["slow began", "slow ended"]
    assert served == []


def test_a_process_that_does_not_stop_in_time_is_killed(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreground, "_LAST_STAGE_STOPS_S", 0.4)
    assert story.run([story.program("first")], [story.program("mule", "stays"), story.program("sheep")]) == 0
    assert story.events[-2:] == ["sheep ended", "first ended"]
    assert any("killed" in text for text in story.said_by("mule"))
    assert not any(text.startswith("stopped") for text in story.said_by("mule"))
    for name in ("sheep", "first"):
        assert story.said_by(name)[-1].startswith("stopped after ")
        assert "stopping" in story.said_by(name)


_DRIVER = """
import sys
from penstock.cli.server.foreground import Foreground, Program
command = sys.argv[1:]
stages = [[Program("mule", tuple(command))]]
def say(*words): print(*words, flush=True)
foreground = Foreground(stages, level="warning", print_line=say)
sys.exit(foreground.run(lambda: say("pid", foreground.pid("mule")), lambda: say("stopping now")))
"""


def _driver(story: Story, *ways: str) -> tuple[subprocess.Popen[str], int]:
    """A foreground in a process of its own, and the process that it supervises."""
    command = [sys.executable, "-c", _DRIVER, *story.program("mule", *ways).command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = ""
    while not line.startswith("pid "):
        line = process.stdout.readline()
        assert line, "it ended before it served"
    return process, int(line.split()[1])


def _wait_for_end(pid: int) -> None:
    """Wait for a process that is not our child; it may have ended before."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended = select.poll()  # unlike select, for any number of descriptors
        ended.register(descriptor, select.POLLIN)
        assert ended.poll(PATIENCE_S * 1000), f"process {pid} is still there"
    finally:
        os.close(descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="needs process descriptors")
def test_a_second_signal_kills_all_at_once(story: Story) -> None:
    driver, mule = _driver(story, "stays")
    with driver:
        try:
            assert driver.stdout is not None
            driver.send_signal(signal.SIGINT)
            assert driver.stdout.readline() == "stopping now\n"
            driver.send_signal(signal.SIGINT)
            assert driver.wait(PATIENCE_S) == 128 + signal.SIGINT
            _wait_for_end(mule)
        finally:
            driver.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the parent death signal")
def test_no_process_outlives_a_foreground_that_is_killed(story: Story) -> None:
    driver, mule = _driver(story)
    with driver:
        driver.kill()
        driver.wait(PATIENCE_S)
        _wait_for_end(mule)
    assert story.events[-1] == "mule ended", "it could close what it had open"


# --- parts


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


def test_only_a_log_line_says_that_a_process_serves() -> None:
    assert ready_message("2026-11-15T13:12:34.567Z INFO    a.b: broker started: id=1") == "broker started: id=1"
    assert ready_message("2026-11-15T13:12:34.567Z INFO    a.b: topic started: id=1") is None
    assert ready_message("broker started: id=1") is None


def test_names_stand_in_a_column_and_control_characters_do_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    lines = PrefixedLines(["broker 1", "zookeeper"])
    lines("broker 1", "a\x1b[31mb")
    lines("zookeeper", "c")
    assert capfd.readouterr().err == "broker 1  | a\\x1b[31mb\nzookeeper | c\n"
