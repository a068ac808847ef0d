"""Java's properties format, which Kafka's servers and clients are configured with.

What java.util.Properties reads from a file, this reads too, with two differences: bytes are UTF-8 (Latin-1 only if
they are not), and a damaged line costs only itself: its problem is reported with the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.config_def import Problem, UnreadableFile, shown

MAX_FILE_BYTES: Final = 1024 * 1024

_BLANK: Final = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_ESCAPE = re.compile(r"\\(u(.{0,4})|.|$)", re.DOTALL)
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_PLAIN: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Property:
    """One setting as it was written."""

    name: str
    value: str
    where: str


@dataclass(frozen=True, slots=True)
class ParsedProperties:
    """In the order of the file; a name may occur several times."""

    properties: tuple[Property, ...]
    problems: tuple[Problem, ...]


class _BadEscape(Exception):
    pass


def read_properties(path: str | Path) -> ParsedProperties:
    """The settings of a file. UnreadableFile if it is missing or not text."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UnreadableFile(str(path), error.strerror or str(error)) from error
    except ValueError as error:  # a NUL in the path
        raise UnreadableFile(str(path), str(error)) from error
    if len(data) > MAX_FILE_BYTES:
        raise UnreadableFile(str(path), f"larger than {MAX_FILE_BYTES} bytes, so it is not a settings file")
    if b"\0" in data:
        raise UnreadableFile(str(path), "contains zero bytes, so it is not a text file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return parse_properties(text, Path(path).name)


def parse_properties(text: str, file_name: str) -> ParsedProperties:
    """The settings in a text; `file_name` is for messages."""
    properties = []
    problems = []
    for number, line in _logical_lines(text):
        where = f"{file_name}:{number}"
        raw_name, raw_value = _split(line)
        try:
            properties.append(Property(_unescaped(raw_name), _unescaped(raw_value), where))
        except _BadEscape as error:
            problems.append(Problem(where, shown(raw_name), str(error)))
    return ParsedProperties(tuple(properties), tuple(problems))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of the first line, line with its continuations), without comments and blank lines."""
    pieces: list[str] = []
    first = 0
    for number, raw in enumerate(_LINE_END.split(text), start=1):
        line = raw.lstrip(_BLANK)
        if not pieces:
            # A comment may start here.
            if not line or line[0] in "#!":
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            if line[:-1] or pieces:
                pieces.append(line[:-1])
            continue
        pieces.append(line)
        yield first, "".join(pieces)
        pieces.clear()
    if any(pieces):
        yield first, "".join(pieces)


def _split(line: str) -> tuple[str, str]:
    """Name and value, both escaped: the name ends at the first =, : or blank without a backslash."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return line[:end], rest


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_replacement, text)
    try:
        # Characters beyond 16 bits are written as two escapes.
        return plain.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _BadEscape("half of a pair of \\u escapes; a character beyond \\uffff takes two of them") from None


def _replacement(match: re.Match[str]) -> str:
    digits = match[2]
    if digits is None:
        return _PLAIN.get(match[1], match[1])
    if _HEX4.fullmatch(digits) is None:
        raise _BadEscape(
            f"\\u{digits} is not a character: \\u needs four hexadecimal digits (write \\\\ for a backslash)"
        )
    return chr(int(digits, 16))
