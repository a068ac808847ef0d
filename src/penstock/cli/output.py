"""What commands say, and how.

Noun: the two formats of standard output: text for people, JSON for programs.

Rule: the same facts in both. Text has colour on a terminal only (and not with NO_COLOR), is not wrapped where it is
piped, and never passes control characters of the data on to the terminal. Lines leave as they are made: the reader may
be `head`, and the data larger than memory. Errors say what to do next, on standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

EXIT_SOUND: Final = 0
EXIT_DAMAGE: Final = 1

TEXT: Final = "text"
JSON: Final = "json"

_Command = TypeVar("_Command", bound=Callable[..., Any])

_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB")


if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:
    _Choice = click.Choice  # it has not always been generic


class _Format(_Choice):
    """text or json; "table" is another word for text."""

    def __init__(self) -> None:
        super().__init__([TEXT, JSON])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(TEXT if value == "table" else value, param, ctx)


def format_option(command: _Command) -> _Command:
    """The `--format` that every command has."""
    return click.option(
        "--format", "output_format", type=_Format(), default=TEXT, show_default=True,
        help="Text for people, JSON for programs.",
    )(command)  # fmt: skip


class CommandError(click.ClickException):
    """A command that cannot do what it was asked for: why, and what to do instead."""

    exit_code = 2

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{printable(problem)}\n{printable(advice)}")


class Output:
    """Standard output, line by line."""

    def __init__(self) -> None:
        self._stream = sys.stdout.buffer
        self.is_terminal = self._stream.isatty()
        dumb = os.environ.get("TERM") == "dumb"
        self.has_colour = self.is_terminal and not dumb and "NO_COLOR" not in os.environ
        self._width = min(shutil.get_terminal_size().columns, 120) if self.is_terminal else None

    def line(self, text: str = "") -> None:
        # A path need not be UTF-8; what cannot be encoded is shown escaped.
        self._stream.write(text.encode("utf-8", "backslashreplace") + b"\n")
        if self.is_terminal:
            self._stream.flush()

    def flush(self) -> None:
        self._stream.flush()

    def json(self, value: Mapping[str, object] | Sequence[object], *, indent: int | None = None) -> None:
        """One JSON value; without `indent` on one line."""
        self.line(json.dumps(value, ensure_ascii=False, indent=indent))

    def paragraph(self, text: str, indent: str = "", first: str | None = None) -> None:
        """Text that is wrapped on a terminal, behind `first` on its first line and `indent` on the others."""
        first = indent if first is None else first
        if self._width is None:
            self.line(first + text)
            return
        plain_first = click.unstyle(first)
        lines = textwrap.wrap(
            text, self._width, initial_indent=" " * len(plain_first), subsequent_indent=indent, break_long_words=False
        )
        for number, line in enumerate(lines):
            self.line(first + line[len(plain_first) :] if number == 0 else line)

    def style(self, text: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> str:
        if not self.has_colour:
            return text
        return click.style(text, fg=colour, bold=bold or None, dim=dim or None)


def printable(text: str) -> str:
    """The text with what would move the cursor, change colours or begin a line shown as an escape."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def human_bytes(count: int) -> str:
    """1536 -> "1.5 KB"; units of 1024."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} {_UNITS[0]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def counted(count: int, noun: str) -> str:
    """ "1 segment", "1,234 batches"."""
    plural = noun if count == 1 else noun + ("es" if noun.endswith("ch") else "s")
    return f"{count:,} {plural}"
