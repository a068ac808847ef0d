"""SQL for any DB-API 2 driver: statements are written once, with {names}, and put into the driver's parameter style.

    Statement("SELECT a FROM t WHERE b = {b}").on(cursor, "qmark", b=1)     # "... b = ?", (1,)

Rule: values travel as parameters, never inside the text. The names of tables do, so they are checked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from penstock.client.errors import ConfigError

_NAME: Final = re.compile(r"\{(\w+)\}")
_TABLE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", re.ASCII)
_POSITIONAL: Final[dict[str, Callable[[int], str]]] = {
    "qmark": lambda number: "?",
    "format": lambda number: "%s",
    "numeric": lambda number: f":{number}",
}
_NAMED: Final[dict[str, Callable[[str], str]]] = {
    "named": lambda name: f":{name}",
    "pyformat": lambda name: f"%({name})s",
}
STYLES: Final = (*_POSITIONAL, *_NAMED)


class Statement:
    """One statement in every style."""

    def __init__(self, text: str) -> None:
        self._names = _NAME.findall(text)
        self._texts: dict[str, str] = {}
        for style, named in _NAMED.items():
            self._texts[style] = _NAME.sub(lambda match, named=named: named(match[1]), text)  # type: ignore[misc]
        for style, numbered in _POSITIONAL.items():
            numbers = iter(range(1, len(self._names) + 1))
            self._texts[style] = _NAME.sub(lambda match, of=numbered, n=numbers: of(next(n)), text)  # type: ignore[misc]

    def on(self, cursor: Any, style: str, **values: Any) -> int:
        """Execute it; how many rows it changed."""
        parameters: Any = values if style in _NAMED else tuple(values[name] for name in self._names)
        cursor.execute(self._texts[style], parameters)
        changed: int = cursor.rowcount
        return changed


def checked_table(name: str) -> str:
    if not _TABLE.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be the name of a table", hint="Use letters, digits, _; schema.table")
    return name


def checked_style(style: str) -> str:
    if style not in STYLES:
        raise ConfigError(f"paramstyle {style!r} is not one of DB-API 2", hint=f"Use one of {', '.join(STYLES)}")
    return style


def style_of(connection: Any) -> str:
    """The parameter style of the driver that a connection or cursor is of."""
    parts = type(connection).__module__.split(".")
    for length in range(len(parts), 0, -1):
        style = getattr(sys.modules.get(".".join(parts[:length])), "paramstyle", None)
        if isinstance(style, str):
            return checked_style(style)
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise ConfigError(f"the paramstyle of {kind} cannot be told", hint="Pass paramstyle= to SqlOffsetStore")


@contextmanager
def cursor_of(connection: Any) -> Iterator[Any]:
    """A cursor of a connection, closed afterwards; what is a cursor already is left open."""
    make = getattr(connection, "cursor", None)
    if make is None:
        yield connection
        return
    cursor = make()
    try:
        yield cursor
    finally:
        cursor.close()
