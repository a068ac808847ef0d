"""The view of a run on a terminal: its content and its size."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console
from tests.activity.live.runs import full_snapshot

from penstock.activity.live.progress import BROKER, QUERIES, SITE, SPARK, TITLES, Progress, StartProgress
from penstock.activity.live.state import Snapshot, Topic
from penstock.activity.live.terminal import PlainDisplay, TerminalDisplay, plain_line, screen, start_screen
from penstock.activity.report.sections import elapsed_text


def drawn(snapshot: Snapshot, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(screen(snapshot, width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 23), (100, 29), (200, 60)])
@pytest.mark.parametrize("snapshot", [full_snapshot(), Snapshot()], ids=["full", "empty"])
def test_view_fits_into_the_terminal(snapshot: Snapshot, width: int, height: int) -> None:
    lines = drawn(snapshot, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_at_80_by_24_every_section_has_rows() -> None:
    text = "\n".join(drawn(full_snapshot(), 80, 23))
    for part in ("running 02:30 of 03:30", "impressions", "111,110", "reporting", "123.5k", "12,345", "3 open"):
        assert part in text
    for part in (
        "server-7",
        "681 ms",
        "Item 4001",
        "Suspects (32)",
        "quiet desk",
        "pipelines 3,072 MB 125 %",
        "SIGKILL",
    ):
        assert part in text


def test_title_names_what_a_starting_run_waits_for() -> None:
    assert "waiting for broker: on 127.0.0.1:9092" in drawn(Snapshot(waits_for="broker: on 127.0.0.1:9092"), 80, 23)[0]


def start_at(elapsed_ms: int) -> Progress:
    start = StartProgress(tuple(TITLES))
    start.observe(1_200, {BROKER: True})
    start.observe(3_000, {SITE: True, SPARK: True}, {QUERIES: "2 of 6"})
    return start.view(elapsed_ms)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_start_is_shown_as_steps_with_a_bar_and_the_expected_time(width: int) -> None:
    console = Console(width=width, height=24, file=io.StringIO())
    topics = [Topic(name="views", total=4_321, rate=2_000.0)]
    console.print(start_screen(Snapshot(start=start_at(6_000), topics=topics), width))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for part in (
        "✓ The broker answers",
        "1.2 s",
        "✓ Spark starts",
        "● The queries start",
        "2 of 6",
        "● The first results",
    ):
        assert part in text
    for part in ("━━━", " 53%", "6 s of about 15 s", "4,321 events so far"):
        assert part in text


def test_a_start_is_drawn_from_the_first_moment_and_then_gives_way_to_the_sections() -> None:
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    with TerminalDisplay(console) as display:
        display.refresh(Snapshot(number=1, start=start_at(4_000)))
        assert isinstance(console.file, io.StringIO)
        assert "The queries start" in console.file.getvalue()
        display._drawn_s = 0.0
        before = len(console.file.getvalue())
        display.refresh(msgspec.structs.replace(full_snapshot(), start=start_at(9_000)))
    assert "Suspects" in console.file.getvalue()[before:]


def test_without_a_terminal_a_start_is_a_share_and_what_it_waits_for() -> None:
    line = plain_line(Snapshot(start=start_at(6_000)))
    assert "53% started, 6 s of about 15 s" in line
    assert "waiting for the queries start (2 of 6), the first results" in line


def test_without_a_terminal_the_figures_are_one_line() -> None:
    line = plain_line(full_snapshot())
    assert "events per second 111,110" in line
    assert "slowest batch 12,345 ms" in line
    assert "\n" not in line
    assert elapsed_text(3_725_000) == "1:02:05"


def test_display_without_terminal_prints_each_step_but_not_each_snapshot() -> None:
    console = Console(file=io.StringIO(), width=120)
    with PlainDisplay(console) as display:
        display.step("broker", "ready after 0.5 s")
        for _ in range(50):
            display.refresh(full_snapshot())
    assert isinstance(console.file, io.StringIO)
    assert [line.split(" s  ")[1] for line in console.file.getvalue().splitlines()] == ["broker     ready after 0.5 s"]


def test_terminal_is_restored_at_the_end() -> None:
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    with TerminalDisplay(console) as display:
        display.refresh(full_snapshot())
        display.line("something happened")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "something happened" in text
    assert "\x1b[?1049h" not in text, "the alternate screen would take the scroll-back away"
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is hidden once and shown again"
