"""What people see while a run lasts: a view that changes in its place on a terminal, lines elsewhere.

Nouns: `TerminalDisplay`, `PlainDisplay`.

Rule: what happened stays in the scroll-back, as lines above the view; the view itself goes when the run ends. Drawing
costs little: a few times a second at most, and only when there is something new.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.activity.live import state
from penstock.activity.live.state import Snapshot
from penstock.activity.live.view import plain_line, screen

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
