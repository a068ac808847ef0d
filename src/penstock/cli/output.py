"""Standard output and error of commands: text or JSON, tables, and errors.

Text and JSON carry the same facts. Text has colour on a terminal only (and not with NO_COLOR), is not wrapped when it
is piped, and shows control characters of the data escaped. Lines are written as they are produced: the reader may be
`head` and the data larger than memory. Tables have no frames and are not wrapped, so that `grep` and `awk` work on
them.

Errors go to standard error and say what to do next. With `--format json` an error is one line of JSON with `code`,
`message`, `hint` and `exitCode`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

EXIT_SOUND: Final = 0
EXIT_DAMAGE: Final = 1
EXIT_PARTLY: Final = 1
"""Some of several things could be done, others failed."""

TEXT: Final = "text"
JSON: Final = "json"
WATCH: Final = "penstock.watch"
"""Key in a context's meta: a function to call before the first line of each repetition (`--watch`)."""

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Found = TypeVar("_Found")


if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:
    _Choice = click.Choice  # not generic in older versions of click


class _Format(_Choice):
    """text or json; "table" is an alias of text."""

    def __init__(self) -> None:
        super().__init__([TEXT, JSON])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(TEXT if value == "table" else value, param, ctx)


def format_option(command: _Command) -> _Command:
    """The `--format` that every command has."""
    return click.option(
        "--format", "output_format", type=_Format(), default=TEXT, show_default=True,
        help="Output format.",
    )(command)  # fmt: skip


class CommandError(click.ClickException):
    """A command that cannot do its work: what failed, and what to do if anything helps.

    `code` is for programs: the broker's error code if a broker answered, else the kind of error.
    """

    exit_code = 2
    code: str = "USAGE"

    def __init__(self, problem: str, hint: str = "", *, code: str | None = None) -> None:
        self.problem = printable(problem)
        self.hint = printable(hint)
        if code is not None:
            self.code = code
        super().__init__("\n".join(filter(None, (self.problem, self.hint))))

    def document(self) -> dict[str, object]:
        """The error as a JSON object."""
        return {"code": self.code, "message": self.problem, "hint": self.hint or None}


class Declined(CommandError):
    """The user answered no to a confirmation."""

    exit_code = 1
    code = "DECLINED"

    def __init__(self) -> None:
        super().__init__("Nothing was changed.")

    def show(self, file: Any = None) -> None:
        click.echo(self.problem, err=True)


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation at a terminal, unless `yes`. Raises Declined."""
    if not yes and sys.stdin.isatty() and not click.confirm(question, err=True):
        raise Declined


def json_errors_wanted(args: Sequence[str]) -> bool:
    """Whether a command line asks for JSON. Looks at the raw words, because parsing may be what fails."""
    if args[:1] == ["produce"]:
        return False  # its --format is that of its input
    is_json = any(word in ("--format", "-f") and value == JSON for word, value in pairwise(args))
    return is_json or not {"--format=json", "-fjson", "--json"}.isdisjoint(args)


def show_error(error: click.ClickException, *, as_json: bool) -> None:
    """An error on standard error, for people or for programs."""
    if not as_json:
        error.show()
        return
    if isinstance(error, CommandError):
        document = error.document()
    else:
        path = getattr(getattr(error, "ctx", None), "command_path", "")
        hint = f"`{path} --help` shows the options" if path else None
        document = {"code": CommandError.code, "message": error.format_message(), "hint": hint}
    click.echo(json.dumps({**document, "exitCode": error.exit_code}, ensure_ascii=False), err=True)


class Output:
    """Standard output, line by line."""

    def __init__(self) -> None:
        self._stream = sys.stdout.buffer
        self.is_terminal = self._stream.isatty()
        dumb = os.environ.get("TERM") == "dumb"
        self.has_colour = self.is_terminal and not dumb and "NO_COLOR" not in os.environ
        self._width = min(shutil.get_terminal_size().columns, 120) if self.is_terminal else None
        context = click.get_current_context(silent=True)
        self._begin: Callable[[], None] | None = None if context is None else context.meta.get(WATCH)
        self._is_watched = self._begin is not None

    def line(self, text: str = "") -> None:
        if self._begin is not None:
            begin, self._begin = self._begin, None
            begin()
            sys.stdout.flush()
        # A path need not be UTF-8.
        self._stream.write(text.encode("utf-8", "backslashreplace") + b"\n")
        if self.is_terminal:
            self._stream.flush()

    def flush(self) -> None:
        self._stream.flush()

    def nothing(self, text: str) -> None:
        """Say that a list is empty, on standard error: scripts count lines of standard output."""
        if self._is_watched:
            self.line(text)
            return
        self.flush()
        click.echo(text, err=True)

    def json(self, value: Mapping[str, object] | Sequence[object], *, indent: int | None = None) -> None:
        """One JSON value, on one line without `indent` or with --watch."""
        self.line(json.dumps(value, ensure_ascii=False, indent=None if self._is_watched else indent))
        if self._is_watched:
            self._stream.flush()

    def paragraph(self, text: str, indent: str = "", first: str | None = None) -> None:
        """Text wrapped on a terminal, after `first` on its first line and `indent` on the others."""
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
    """The text with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def sentence(text: str) -> str:
    """The text with a full stop, and a capital if its first word is an ordinary one. Names keep their case."""
    text = text.strip()
    if text.partition(" ")[0] in _OPENING_WORDS:
        text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "?", "!")) else text + "."


_OPENING_WORDS: Final = frozenset(
    {
        "a", "all", "an", "another", "bring", "broker", "brokers", "cannot", "choose", "data", "either", "give",
        "group", "groups", "install", "it", "its", "leave", "loading", "lower", "make", "name", "no", "none", "not",
        "nothing", "one", "only", "partition", "partitions", "put", "raise", "record", "records", "run", "say", "see",
        "set", "several", "some", "start", "stop", "table", "tables", "that", "the", "their", "there", "these", "this",
        "those", "topic", "topics", "two", "use", "wait", "write",
    }
)  # fmt: skip


_GAP = "  "


def show_table(output: Output, titles: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> None:
    """Rows under titles. A column of numbers is right-aligned. Without rows nothing is printed."""
    cells = [[_text(cell) for cell in row] for row in rows]
    if not cells:
        return
    values = [[_is_number(cell) for cell in column] for column in zip(*cells, strict=True)]
    numeric = [all(number is not False for number in column) and any(column) for column in values]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    output.line(indent + output.style(_line(titles, widths, numeric), bold=True))
    for row in cells:
        output.line(indent + _line(row, widths, numeric))


def show_found(
    found: Sequence[_Found],
    failed: Mapping[str, CommandError],
    output_format: str,
    *,
    title: str,
    document: Callable[[_Found], Mapping[str, object]],
    show: Callable[[Output, _Found], None],
    nothing: str = "",
) -> None:
    """What was found on standard output, and what failed, by name, on standard error.

    `title` names the list of what was found in JSON. `nothing` is shown if nothing was found and nothing failed. If
    everything failed, the first error is raised; if some did, the command exits with EXIT_PARTLY.
    """
    output = Output()
    if output_format == JSON:
        failures = {name: error.document() for name, error in failed.items()}
        output.json({title: [document(each) for each in found], "failed": failures}, indent=2)
    else:
        for number, each in enumerate(found):
            if number:
                output.line()
            show(output, each)
        if nothing and not found and not failed:
            output.nothing(nothing)
    output.flush()
    if failed and not found:
        raise next(iter(failed.values()))
    for error in failed.values():
        show_error(error, as_json=output_format == JSON)
    if failed:
        click.get_current_context().exit(EXIT_PARTLY)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    )
    return _GAP.join(parts).rstrip()


def _text(cell: object) -> str:
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, list | tuple):
        return ",".join(map(str, cell)) or "-"
    return printable(str(cell))


def _is_number(cell: str) -> bool | None:
    """None for an empty cell."""
    if cell == "-":
        return None
    return cell.lstrip("+-").replace(",", "").replace(".", "", 1).isdigit() and not cell.startswith(",")
