"""A run on a terminal: a view that is redrawn in place, or lines where there is no terminal.

While a run starts, the view has its steps, a bar and the expected time. Then it lays out the sections of a snapshot. 80
columns and 24 lines are enough; lists use what a larger terminal has. Colour marks only what needs attention. Log lines
stay in the scrollback above the view, which is removed when the run ends. It is drawn at most four times per second, if
something changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile, zip_longest
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from penstock.activity.live import state
from penstock.activity.live.progress import DONE, RUNNING, WAITING, Progress, Step
from penstock.activity.live.state import Snapshot, Suspect
from penstock.activity.report.sections import Column, Table, elapsed_text

_REFRESH_S: Final = 0.25
_LINE_EVERY_S: Final = 10.0
_BESIDE: Final = 11
"""Lines of topics, with their title and their sum."""
_FIXED: Final = 6
"""Title, headings, processes, the last log line."""
_LEAST_ALERTS: Final = 2
_LEAST_LISTED: Final = 3
_DIM: Final = "dim"
_HEAD: Final = "bold cyan"
_STYLES: Final = {"": "", "good": "bold green", "warn": "yellow", "bad": "bold red", "quiet": _DIM}
_MARKS: Final = {DONE: ("✓", "green"), RUNNING: ("●", "bold"), WAITING: ("○", _DIM)}
_USUAL_STATES: Final = ("running", "starting")


# ---------------------------------------------------------------------------------------------- the view


def screen(snapshot: Snapshot, width: int, height: int) -> RenderableType:
    """The sections of a snapshot in at most `height` lines."""
    free = max(height - _FIXED - _BESIDE, _LEAST_ALERTS + _LEAST_LISTED)
    alerts = min(max(_LEAST_ALERTS, free // 3), 5)
    listed = max(min(free - alerts, 15), _LEAST_LISTED)
    sections = {section.name: section for section in snapshot.sections()}
    of = {name: one.table.without_details() for name, one in sections.items() if one.table is not None}
    suspects = f"Suspects ({snapshot.suspects_total})" if snapshot.suspects_total else "Suspects"
    everybody = [one for one in snapshot.rising if one.user_group == "all"]
    return Group(
        _title(snapshot, width),
        _beside(width, _listed("Topic", of["topics"], _BESIDE - 1), _listed("Pipeline", of["queries"], _BESIDE - 1)),
        Text.assemble(("Alerts", _HEAD), (f"  {sections['alerts'].note}", _DIM)),
        _lines(of["alerts"], alerts),
        _beside(
            width,
            _listed("Ranking", of["ranking"], listed),
            _listed(suspects, replace(of["suspects"], rows=_some_of_each(snapshot.suspects)), listed),
            _listed("Rising terms", replace(of["rising"], rows=everybody), listed),
        ),
        _cut(Text("   ".join(_row_texts(of["processes"])), _DIM), width),
        _cut(Text(snapshot.lines[-1].text if snapshot.lines else "", "yellow"), width),
    )


def start_screen(snapshot: Snapshot, width: int) -> RenderableType:
    """The steps of a start, with a bar; and the topics, which already grow."""
    start = snapshot.start or Progress()
    lines: list[RenderableType] = [_title(snapshot, width), Text(), _start_bar(start, width), Text()]
    lines += [_cut(_step(step), width) for step in start.steps]
    if snapshot.events:
        lines.append(Text())
        lines.append(_cut(Text(f"  {snapshot.events:,} events so far, {snapshot.rate:,.0f} per second", _DIM), width))
    if snapshot.lines:
        lines.append(_cut(Text(f"  {snapshot.lines[-1].text}", "yellow"), width))
    return Group(*lines)


def _start_bar(start: Progress, width: int) -> Text:
    room = max(min(width - 50, 40), 10)
    filled = round(start.share * room)
    return Text.assemble(
        "  ", ("━" * filled, "bold cyan"), ("━" * (room - filled), _DIM), f" {start.share:4.0%}  ",
        (start.time_text(), "yellow" if start.is_late else _DIM),
    )  # fmt: skip


def _step(step: Step) -> Text:
    mark, style = _MARKS[step.state]
    note = f"{step.ended_ms / 1000:.1f} s" if step.state == DONE else step.note
    return Text.assemble(f"  {mark} ", (f"{step.title:<28}", style), (note, _DIM))


def plain_line(snapshot: Snapshot) -> str:
    """The figures of a snapshot in one line, for logs."""
    figures = [
        f"{figure.title.lower()} {figure.value} ({figure.note})" for figure in snapshot.figures() if figure.value != "-"
    ]
    waiting = [f"waiting for {snapshot.waiting_text}"] if snapshot.waiting_text else []
    since_ms = snapshot.generating_since_ms or snapshot.started_ms
    start = snapshot.start
    starting = [] if start is None else [f"{start.share:.0%} started, {start.time_text()}"]
    return "  ".join([elapsed_text(max(snapshot.time_ms - since_ms, 0)), *starting, *figures, *waiting])


def _title(snapshot: Snapshot, width: int) -> Text:
    since_ms = snapshot.generating_since_ms or snapshot.started_ms
    at = elapsed_text(max(snapshot.time_ms - since_ms, 0))
    if snapshot.ends_ms and snapshot.phase == state.RUNNING:
        at += f" of {elapsed_text(snapshot.ends_ms - since_ms)}"
    style = {state.RUNNING: "bold green", state.STARTING: "bold yellow"}.get(snapshot.phase, "bold magenta")
    notes = [snapshot.facts.get("page", ""), "Ctrl-C stops"]
    has_steps = snapshot.start is not None and snapshot.phase == state.STARTING
    if snapshot.waiting_text and not has_steps:
        notes = [f"waiting for {snapshot.waiting_text}"]
    notes = [note for note in notes if note]
    line = Text.assemble(("Penstock ", "bold"), (snapshot.phase, style), f" {at}  ", ("  ".join(notes), _DIM))
    return _cut(line, width)


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _some_of_each(suspects: Iterable[Suspect]) -> list[Suspect]:
    """One of each verdict in turn, so that a short list has some of each."""
    verdicts: dict[str, list[Suspect]] = {}
    for one in suspects:
        verdicts.setdefault(one.verdict, []).append(one)
    return [one for each in zip_longest(*verdicts.values()) for one in each if one is not None]


# ---------------------------------------------------------------------------------------------- tables


def _beside(width: int, *tables: Grid) -> Grid:
    grid = Grid.grid(expand=True, padding=(0, 2, 0, 0))
    grid.width = width
    for _ in tables:
        grid.add_column(ratio=1)
    grid.add_row(*tables)
    return grid


def _listed(title: str, table: Table, lines: int) -> Grid:
    """A table in `lines` lines under a heading; text before the first number is joined into one cell."""
    labels = len(list(takewhile(lambda column: not column.is_number, table.columns)))
    numbers = table.columns[labels:]
    grid = Grid(box=None, padding=(0, 1, 0, 0), expand=True, header_style=_HEAD, pad_edge=False)
    grid.add_column(title, no_wrap=True, overflow="ellipsis", ratio=1)
    for column in numbers:
        grid.add_column(column.title, justify="right", no_wrap=True)
    rows = table.cells()[:lines]
    for row in rows:
        cells = [_cell(column, value) for column, value in zip(numbers, row[labels:], strict=True)]
        grid.add_row(_label(table.columns[:labels], row[:labels]), *cells)
    for _ in range(lines - len(rows)):
        grid.add_row("")
    return grid


def _lines(table: Table, lines: int) -> Grid:
    """A table in `lines` lines without headings; the last column takes the rest of the line."""
    grid = Grid.grid(expand=True, padding=(0, 1, 0, 0))
    for column in table.columns:
        is_last = column is table.columns[-1]
        grid.add_column(
            justify="right" if column.is_number else "left", no_wrap=True, overflow="ellipsis",
            ratio=1 if is_last else None,
        )  # fmt: skip
    rows = table.cells()[:lines]
    for row in rows:
        grid.add_row(*map(_cell, table.columns, row))
    for _ in range(lines - len(rows)):
        grid.add_row("")
    return grid


def _label(columns: Sequence[Column], cells: Sequence[object]) -> Text:
    """Text cells in one; a state colours them and is named only if it is unusual."""
    parts = [_cell(column, cell) for column, cell in zip(columns, cells, strict=True) if cell not in _USUAL_STATES]
    label = Text(" ").join(part for part in parts if part.plain)
    for column, cell in zip(columns, cells, strict=True):
        if column.kind == "state":
            label.stylize(_STYLES[column.look(cell)])
    return label


def _cell(column: Column, value: object) -> Text:
    return Text("" if value is None else column.text(value), _STYLES[column.look(value)])


def _row_texts(table: Table) -> list[str]:
    return [" ".join(map(Column.text, table.columns, row)) for row in table.cells()]


# ---------------------------------------------------------------------------------------------- displays


class PlainDisplay:
    """Prints lines: each step, each log line, and the figures every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._shown_s = self._began_s

    def step(self, name: str, text: str) -> None:
        self.line(f"{name:10} {text}")

    def line(self, text: str) -> None:
        seconds = time.monotonic() - self._began_s
        self._console.print(Text.assemble((f"{seconds:6.1f} s  ", "dim"), text), soft_wrap=True)
        self._console.file.flush()

    def refresh(self, snapshot: Snapshot) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s >= _LINE_EVERY_S:
            self._shown_s = now_s
            self.line(plain_line(snapshot))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None


class TerminalDisplay(PlainDisplay):
    """Shows the view instead of the figures, from the first second on."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live: Live | None = None
        self._drawn_s = 0.0
        self._drawn = -1

    def refresh(self, snapshot: Snapshot) -> None:
        now_s = time.monotonic()
        if snapshot.number == self._drawn or now_s - self._drawn_s < _REFRESH_S:
            return
        self._drawn_s, self._drawn = now_s, snapshot.number
        if snapshot.phase in (state.STOPPING, state.STOPPED):
            self._close()
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop")
            self._live.start()
        # One line less than the terminal has, so that it never scrolls.
        size = self._console.size
        is_starting = snapshot.phase == state.STARTING and snapshot.start is not None
        shown = start_screen(snapshot, size.width) if is_starting else screen(snapshot, size.width, size.height - 1)
        self._live.update(shown, refresh=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
