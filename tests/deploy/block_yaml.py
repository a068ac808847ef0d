"""The part of YAML that the files in `deploy/` use, so that tests need no parser that nothing else needs.

Block mappings and sequences, plain and double-quoted scalars, folded text (`>-`), comments on lines of their own and
`---` between documents. Scalars stay text; a missing value is None. Anything else is a ValueError.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_KEY = re.compile(r"([A-Za-z0-9_./-]+):(?: (.*))?")


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


def documents(text: str) -> list[Any]:
    found = []
    for part in re.split(r"^---$", text, flags=re.MULTILINE):
        lines = [
            _Line(number, len(line) - len(line.lstrip()), line.strip())
            for number, line in enumerate(part.splitlines(), 1)
            if line.strip() and not line.lstrip().startswith("#")
        ]
        value, rest = _block(lines, 0)
        if rest:
            raise ValueError(f"line {rest[0].number}: {rest[0].text!r} has another indentation")
        found.append(value)
    return found


def _block(lines: list[_Line], least: int) -> tuple[Any, list[_Line]]:
    """A mapping or a sequence that is indented by `least` or more, and the lines after it."""
    if not lines or lines[0].indent < least:
        return None, lines
    indent = lines[0].indent
    return (_sequence if lines[0].text.startswith("- ") else _mapping)(lines, indent)


def _sequence(lines: list[_Line], indent: int) -> tuple[list[Any], list[_Line]]:
    found: list[Any] = []
    value: Any
    while lines and lines[0].indent == indent and lines[0].text.startswith("- "):
        line, inner = lines[0], lines[0].text[2:]
        if inner == ">-":
            value, lines = _folded(lines[1:], indent)
        elif _KEY.fullmatch(inner):
            lines = [_Line(line.number, indent + 2, inner), *lines[1:]]
            value, lines = _mapping(lines, indent + 2)
        else:
            value, lines = _scalar(inner, line), lines[1:]
        found.append(value)
    return found, lines


def _mapping(lines: list[_Line], indent: int) -> tuple[dict[str, Any], list[_Line]]:
    found: dict[str, Any] = {}
    while lines and lines[0].indent == indent and not lines[0].text.startswith("- "):
        line = lines[0]
        match = _KEY.fullmatch(line.text)
        if match is None or match[1] in found:
            raise ValueError(f"line {line.number}: {line.text!r} is not a new key")
        if match[2] == ">-":
            found[match[1]], lines = _folded(lines[1:], indent)
        elif match[2] is not None:
            found[match[1]], lines = _scalar(match[2], line), lines[1:]
        else:
            found[match[1]], lines = _block(lines[1:], indent + 1)
    return found, lines


def _folded(lines: list[_Line], indent: int) -> tuple[str, list[_Line]]:
    count = next((at for at, line in enumerate(lines) if line.indent <= indent), len(lines))
    return " ".join(line.text for line in lines[:count]), lines[count:]


def _scalar(text: str, line: _Line) -> str:
    if text.startswith('"') and text.endswith('"') and "\\" not in text:
        return text[1:-1]
    if text[:1] in "\"'[]{}&*!|>%@`" or ": " in text or " #" in text:
        raise ValueError(f"line {line.number}: {text!r} is beyond this parser")
    return text
