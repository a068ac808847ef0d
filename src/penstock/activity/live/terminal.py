"""A run on a terminal: a view that is redrawn in place, or lines where there is no terminal.

80 columns and 24 lines are enough; lists use what a larger terminal has. Colour marks only what needs attention. What
happened stays in the scrollback above the view, which is removed when the run ends. It is drawn at most four times a
second, and only if something changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.activity.live import state
from penstock.activity.live.state import Incident, Query, Snapshot, Suspect

_BESIDE: Final = 11
"""Lines of topics, with their title and their sum."""
_FIXED: Final = 6
"""Title, headings, processes, the last line told."""
_LEAST_ALERTS: Final = 2
_LEAST_LISTED: Final = 3
_DIM: Final = "dim"
_HEAD: Final = "bold cyan"
_LAG_NOTED: Final = 30_000


def screen(snapshot: Snapshot, width: int, height: int) -> RenderableType:
    """At most `height` lines."""
    free = max(height - _FIXED - _BESIDE, _LEAST_ALERTS + _LEAST_LISTED)
    alerts = min(max(_LEAST_ALERTS, free // 3), 5)
    listed = max(min(free - alerts, 15), _LEAST_LISTED)
    return Group(
        _title(snapshot, width),
        _beside(width, _topics(snapshot), _queries(snapshot)),
        _heading("Alerts", f"{len(snapshot.open_incidents)} open" if snapshot.incidents else "none yet"),
        *_alerts(snapshot.incidents, alerts, width),
        _beside(width, _items(snapshot, listed), _suspects(snapshot, listed), _rising(snapshot, listed)),
        _processes(snapshot, width),
        _last_line(snapshot, width),
    )


def plain_line(snapshot: Snapshot) -> str:
    """The same in one line, for logs."""
    lag = "lag unknown" if snapshot.lag < 0 else f"lag {snapshot.lag:,}"
    slowest = max(snapshot.queries, key=lambda query: query.batch_ms, default=None)
    parts = [
        elapsed_text(max(snapshot.time_ms - (snapshot.generating_since_ms or snapshot.started_ms), 0)),
        f"{snapshot.rate:,.0f} events/s",
        f"{snapshot.events:,} in all",
        lag,
        "" if slowest is None else f"slowest batch {slowest.batch_ms:,} ms ({slowest.pipeline})",
        f"{len(snapshot.open_incidents)} of {len(snapshot.incidents)} alerts open",
        f"{snapshot.suspects_total} suspects",
        f"top item {snapshot.ranking[0].item}" if snapshot.ranking else "",
        f"waiting for {snapshot.waits_for}" if snapshot.waits_for else "",
    ]
    return "  ".join(part for part in parts if part)


def elapsed_text(milliseconds: int) -> str:
    """ "02:05", "1:02:05"."""
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


# ---------------------------------------------------------------------------------------------- lines


def _title(snapshot: Snapshot, width: int) -> Text:
    since_ms = snapshot.generating_since_ms or snapshot.started_ms
    at = elapsed_text(max(snapshot.time_ms - since_ms, 0))
    if snapshot.ends_ms and snapshot.phase == state.RUNNING:
        at += f" of {elapsed_text(snapshot.ends_ms - since_ms)}"
    style = {state.RUNNING: "bold green", state.STARTING: "bold yellow"}.get(snapshot.phase, "bold magenta")
    line = Text.assemble(("Penstock ", "bold"), (snapshot.phase, style), f" {at}  ")
    told = [snapshot.facts.get("page", ""), "Ctrl-C stops"]
    if snapshot.waits_for:
        told = [f"waiting for {snapshot.waits_for}"]
    line.append("  ".join(text for text in told if text), _DIM)
    line.truncate(width, overflow="ellipsis")
    return line


def _heading(name: str, note: str = "") -> Text:
    return Text.assemble((name, _HEAD), (f"  {note}" if note else "", _DIM))


def _alerts(incidents: Sequence[Incident], most: int, width: int) -> list[Text]:
    lines = []
    for one in incidents[:most]:
        colour = ("bold red" if one.severity == "critical" else "yellow") if one.is_open else _DIM
        span = elapsed_text(max(one.until - one.opened, 0))
        line = Text.assemble(
            (f"{'open' if one.is_open else 'over':5}", colour), f"{one.server:10} {one.kind:8} ",
            (f"{span:>6}  ", _DIM), one.message,
        )  # fmt: skip
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines + [Text("")] * (most - len(lines))


def _processes(snapshot: Snapshot, width: int) -> Text:
    parts = [f"{one.name} {one.memory_bytes / 2**20:,.0f} MB {one.cores * 100:.0f} %" for one in snapshot.processes]
    line = Text("   ".join(parts), style=_DIM)
    line.truncate(width, overflow="ellipsis")
    return line


def _last_line(snapshot: Snapshot, width: int) -> Text:
    line = Text(snapshot.lines[-1].text if snapshot.lines else "", style="yellow")
    line.truncate(width, overflow="ellipsis")
    return line


# ---------------------------------------------------------------------------------------------- tables


def _beside(width: int, *tables: Table) -> Table:
    grid = Table.grid(expand=True, padding=(0, 2, 0, 0))
    grid.width = width
    for _ in tables:
        grid.add_column(ratio=1)
    grid.add_row(*tables)
    return grid


def _table(*columns: tuple[str, str], lines: int, rows: Iterable[Sequence[str | Text]]) -> Table:
    """Columns as (title, "<" or ">"); filled up to `lines`."""
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, header_style=_HEAD, pad_edge=False)
    for number, (title, side) in enumerate(columns):
        table.add_column(
            title, justify="right" if side == ">" else "left", no_wrap=True, overflow="ellipsis",
            ratio=1 if number == 0 and side == "<" else None,
        )  # fmt: skip
    shown = list(rows)[:lines]
    for row in shown:
        table.add_row(*row)
    for _ in range(lines - len(shown)):
        table.add_row(*[""] * len(columns))
    return table


def _topics(snapshot: Snapshot) -> Table:
    rows: list[list[str | Text]] = [
        [topic.name, f"{topic.rate:,.0f}", _short(topic.total)] for topic in snapshot.topics
    ]
    if rows:
        rows.append([Text("all", "bold"), Text(f"{snapshot.rate:,.0f}", "bold"), Text(_short(snapshot.events), "bold")])
    return _table(("Topic", "<"), ("events/s", ">"), ("total", ">"), lines=_BESIDE - 1, rows=rows)


def _queries(snapshot: Snapshot) -> Table:
    rows = [
        [_state(query), _batch(query), "" if query.lag < 0 else _lag(query.lag), _short(query.rows)]
        for query in snapshot.queries
    ]
    return _table(("Pipeline", "<"), ("batch ms", ">"), ("lag", ">"), ("read", ">"), lines=_BESIDE - 1, rows=rows)


def _state(query: Query) -> Text:
    style = {"running": "", "starting": _DIM, "waiting": "yellow", "failed": "bold red", "gone": "bold red"}
    note = "" if query.state in ("running", "starting") else f" {query.state}"
    return Text(f"{query.pipeline}{note}", style.get(query.state, ""))


def _batch(query: Query) -> str:
    return f"{query.batch_ms:,}" if query.batch_id >= 0 and query.rows else ""


def _lag(lag: int) -> Text:
    return Text(_short(lag), "yellow" if lag > _LAG_NOTED else "")


def _items(snapshot: Snapshot, lines: int) -> Table:
    rows: list[list[str | Text]] = [
        [f"item {one.item}", Text("▲", "bold green") if one.rising else "", f"{one.score:.1f}"]
        for one in snapshot.ranking
    ]
    return _table(("Top items", "<"), ("", "<"), ("score", ">"), lines=lines, rows=rows)


def _suspects(snapshot: Snapshot, lines: int) -> Table:
    verdicts: dict[str, list[Suspect]] = {}
    for one in snapshot.suspects:
        verdicts.setdefault(one.verdict, []).append(one)
    # Some of each, however few there is room for.
    mixed = [one for each in zip_longest(*verdicts.values()) for one in each if one is not None]
    rows = [[f"{one.verdict} {one.actor}", f"{one.score:.2f}"] for one in mixed]
    title = f"Suspects ({snapshot.suspects_total})" if snapshot.suspects_total else "Suspects"
    return _table((title, "<"), ("score", ">"), lines=lines, rows=rows)


def _rising(snapshot: Snapshot, lines: int) -> Table:
    rows = [
        [one.keyword, "" if one.ratio is None else f"{one.ratio:.1f} x"]
        for one in snapshot.rising
        if one.user_group == "all"
    ]
    return _table(("Rising terms", "<"), ("usual", ">"), lines=lines, rows=rows)


def _short(count: float) -> str:
    """ "812", "12.3k", "4.57M"."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if count >= size:
            divisor = 1e3 if unit == "k" else size
            return f"{count / divisor:.{1 if unit == 'k' else 2}f}{unit}"
    return f"{count:,.0f}"


_REFRESH_S: Final = 0.25
_LINE_EVERY_S: Final = 10.0


class PlainDisplay:
    """Lines: each step, each thing that happened, and how it is every ten seconds."""

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
    """The same, with the view in place of the line every ten seconds, from the first event on."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live: Live | None = None
        self._drawn_s = 0.0
        self._drawn = -1

    def refresh(self, snapshot: Snapshot) -> None:
        now_s = time.monotonic()
        if snapshot.number == self._drawn or now_s - self._drawn_s < _REFRESH_S or not snapshot.generating_since_ms:
            return
        self._drawn_s, self._drawn = now_s, snapshot.number
        if snapshot.phase in (state.STOPPING, state.STOPPED):
            self._close()
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop")
            self._live.start()
        # A line less than there are, so that the terminal never scrolls.
        size = self._console.size
        self._live.update(screen(snapshot, size.width, size.height - 1), refresh=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
