"""A process that is kept running: started, looked at, started again if it dies.

Nouns: `Kept`, one of them; `RunFailed`, what is told when it won't come up.

Rule: a process that dies before it has come up once is not tried again: it says why, in its last lines. One that dies
later is started again, after a wait, unless it has died too often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.activity.live.processes import Restarts


class RunFailed(Exception):
    """A run that cannot go on: why, what the process in question printed last, and what to do."""

    def __init__(self, problem: str, lines: Sequence[str], advice: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.lines = list(lines)
        self.advice = advice


class Runs(Protocol):
    """What is kept: a `Child`, or what tests have instead."""

    @property
    def pid(self) -> int | None: ...

    @property
    def is_alive(self) -> bool: ...

    @property
    def exit_code(self) -> int | None: ...

    def start(self) -> None: ...

    def ask_to_end(self) -> None: ...

    def wait(self, timeout_s: float) -> bool: ...

    def kill(self) -> None: ...

    def last_lines(self, most: int = ...) -> list[str]: ...

    def how_it_ended(self) -> str: ...


class Kept:
    """`make` gives the process that is to run now; `told` gets a line when something happens to it."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Runs],
        restarts: Restarts,
        told: Callable[[str], None],
        *,
        log: str,
        is_done: Callable[[int], bool] = lambda code: False,
    ) -> None:
        self.name = name
        self.has_come_up = False
        self._make = make
        self._restarts = restarts
        self._told = told
        self._log = log
        self._is_done = is_done
        self._child: Runs | None = None
        self._again_at_s: float | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def is_alive(self) -> bool:
        return self._child is not None and self._child.is_alive

    @property
    def is_done(self) -> bool:
        """Whether it has ended as it should."""
        code = None if self._child is None else self._child.exit_code
        return code is not None and self._is_done(code)

    @property
    def exit_code(self) -> int | None:
        return None if self._child is None else self._child.exit_code

    def start(self) -> None:
        self.ask_to_end()
        self._child = self._make()
        self._child.start()

    def look(self, now_s: float) -> None:
        """Start it again if it has died. Raises RunFailed if it won't do."""
        child = self._child
        if child is None or child.is_alive or self.is_done:
            return
        if self._again_at_s is None:
            wait_s = self._restarts.wait_s(now_s) if self.has_come_up else None
            if wait_s is None:
                raise RunFailed(
                    f"{self.name} {child.how_it_ended()}{'' if self.has_come_up else ' before it had come up'}.",
                    child.last_lines(),
                    f"All that it printed is in {self._log}",
                )
            self._again_at_s = now_s + wait_s
            self._told(f"{self.name} {child.how_it_ended()}; starting it again")
        elif now_s >= self._again_at_s:
            self._again_at_s = None
            self.start()

    def ask_to_end(self) -> None:
        self._again_at_s = None
        if self._child is not None:
            self._child.ask_to_end()

    def wait(self, timeout_s: float) -> bool:
        return self._child is None or self._child.wait(timeout_s)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def last_lines(self) -> list[str]:
        return [] if self._child is None else self._child.last_lines()
