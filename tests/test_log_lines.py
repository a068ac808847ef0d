"""A log line is an event, then `key=value` pairs: "leader unreachable, retrying: leader=1 error=...".

What varies is in the pairs, so that lines of one event can be found by its text. An event may be looked up (`%s: ...`),
and all pairs may come from a function (`...: %s`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_SOURCE = Path(__file__).resolve().parents[1] / "src" / "penstock"
_LOGGERS = ("logger", "_log", "_logger", "log")
_LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")
_LINE = re.compile(r"[^%:]+|(%s|[^%:]+): (%s$|([\w.]+|%s)=.*|%s .*)", re.DOTALL)


def _messages(module: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(module.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if not isinstance(node.func.value, ast.Name) or node.func.value.id not in _LOGGERS:
            continue
        if node.func.attr in _LEVELS:
            message = node.args[1 if node.func.attr == "log" else 0]
            yield node.lineno, str(message.value) if isinstance(message, ast.Constant) else ast.unparse(message)


def test_a_log_line_is_an_event_and_pairs() -> None:
    found = {
        (path.relative_to(_SOURCE).as_posix(), line): message
        for path in _SOURCE.rglob("*.py")
        for line, message in _messages(path)
    }
    assert len(found) > 200, "the lines are found"
    assert {place: message for place, message in found.items() if not _LINE.fullmatch(message)} == {}
