"""The lines of the log: one event, one line."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.cli.log_format import LineFormatter


def _logged(message: str, fail: Callable[[], object] | None = None) -> str:
    record = logging.LogRecord("penstock.x", logging.WARNING, __file__, 1, message, (), None)
    record.created = 1_700_000_000.25
    if fail is not None:
        try:
            fail()
        except ValueError as error:
            record.exc_info = (type(error), error, error.__traceback__)
    return LineFormatter().format(record)


def test_an_event_is_a_line() -> None:
    assert _logged("it rains") == "2023-11-14T22:13:20.250Z WARNING penstock.x: it rains"


def test_an_event_that_holds_a_line_break_is_still_one() -> None:
    assert _logged("a\nb\x1b[31m").endswith(r"a\nb\x1b[31m")


def test_an_exception_is_on_the_line_of_its_event() -> None:
    line = _logged("broken", lambda: int("x\ny"))
    assert "\n" not in line
    assert "broken | ValueError: invalid literal" in line
    assert "(test_log_format.py:" in line
