"""The types of a table's columns: as text in declarations, as Arrow types in files.

Noun: `Column`, a name, an Arrow type, whether it must be there, and how a time is written in the records.

Rule: the words are Spark's own (`long`, `array<string>`, `struct<a:int>`), so that a schema can be copied from
`df.schema.simpleString()`. `timestamp` is ISO 8601 text in JSON; `timestamp_ms` and `timestamp_s` are numbers since
1970 there. All of them are one type in the table: microseconds, UTC. What does not parse is refused with the place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock.spark.tables.errors import DeclarationError

TIMESTAMP: Final = pa.timestamp("us", "UTC")
_SIMPLE: Final[dict[str, Any]] = {
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
}
_EPOCHS: Final = {"timestamp_ms": "ms", "timestamp_s": "s"}
_NAMES: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
}
_WORD = re.compile(r"\s*(`[^`]*`|[A-Za-z_][A-Za-z0-9_.-]*|\d+|[<>(),:])")
_DEEPEST: Final = 16


class Column(NamedTuple):
    """`epoch` is "ms" or "s" where records write the time as a number since 1970."""

    name: str
    type: pa.DataType
    required: bool = False
    epoch: str = ""

    def __str__(self) -> str:
        kind = f"timestamp_{self.epoch}" if self.epoch else type_text(self.type)
        return f"{_quoted(self.name)} {kind}{' not null' if self.required else ''}"


class _Words:
    """The words of a schema, one after another."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def fail(self, problem: str) -> DeclarationError:
        near = self.text[self.position : self.position + 20].strip()
        place = f" at {near!r}" if near else " at its end"
        return DeclarationError(
            f"the schema does not parse{place}: {problem}", hint="Write for example: user string not null, ms long"
        )

    def peek(self) -> str:
        found = _WORD.match(self.text, self.position)
        return found.group(1) if found else ""

    def take(self, wanted: str | None = None) -> str:
        found = _WORD.match(self.text, self.position)
        if found is None or (wanted is not None and found.group(1) != wanted):
            raise self.fail(f"{wanted!r} was expected" if wanted else "a name or a type was expected")
        self.position = found.end()
        return found.group(1)

    @property
    def is_done(self) -> bool:
        return not self.text[self.position :].strip()


def parse_columns(text: str) -> tuple[Column, ...]:
    """`user string not null, at timestamp_ms`; raises DeclarationError."""
    words = _Words(text)
    columns: list[Column] = []
    while not words.is_done:
        if columns:
            words.take(",")
        name = _name(words)
        if words.peek() == ":":
            words.take()
        columns.append(_column(words, name))
    if not columns:
        raise DeclarationError("the schema has no columns", hint="Leave it out to have it inferred from the records")
    return tuple(columns)


def parse_column(name: str, text: str) -> Column:
    """One column whose type is `text`; raises DeclarationError."""
    words = _Words(text)
    column = _column(words, name)
    if not words.is_done:
        raise words.fail("nothing more was expected")
    return column


def _column(words: _Words, name: str) -> Column:
    epoch = _EPOCHS.get(words.peek().lower(), "")
    if epoch:
        words.take()
        kind = TIMESTAMP
    else:
        kind = _type(words, 0)
    required = words.peek().lower() == "not"
    if required:
        words.take()
        if words.take().lower() != "null":
            raise words.fail("'null' was expected behind 'not'")
    return Column(name, kind, required, epoch)


def _name(words: _Words) -> str:
    word = words.take()
    name = word[1:-1] if word.startswith("`") else word
    if not name or word in "<>(),:" or word.isdigit():
        raise words.fail(f"{word!r} is no name of a column")
    return name


def _type(words: _Words, depth: int) -> pa.DataType:
    if depth > _DEEPEST:
        raise words.fail(f"it is nested more than {_DEEPEST} deep")
    word = words.take().lower()
    if word in _SIMPLE:
        return _SIMPLE[word]
    if word == "decimal":
        return _decimal(words)
    if word == "array":
        words.take("<")
        item = _type(words, depth + 1)
        words.take(">")
        return pa.list_(pa.field("element", item))
    if word == "struct":
        return _struct(words, depth)
    if word in _EPOCHS:
        raise words.fail(f"{word} is for columns, not for what is inside of them")
    raise words.fail(f"{word!r} is no type; there are {', '.join(_NAMES.values())}, decimal(p,s), array<>, struct<>")


def _decimal(words: _Words) -> pa.DataType:
    if words.peek() != "(":
        return pa.decimal128(10, 0)
    words.take("(")
    digits = words.take()
    scale = "0"
    if words.peek() == ",":
        words.take()
        scale = words.take()
    words.take(")")
    if not (digits.isdigit() and scale.isdigit() and 1 <= int(digits[:3]) <= 38 and int(scale[:3]) <= int(digits[:3])):
        raise words.fail("a decimal has 1 to 38 digits, of which its scale are behind the point")
    return pa.decimal128(int(digits), int(scale))


def _struct(words: _Words, depth: int) -> pa.DataType:
    words.take("<")
    fields: list[pa.Field] = []
    while words.peek() != ">":
        if fields:
            words.take(",")
        name = _name(words)
        words.take(":")
        fields.append(pa.field(name, _type(words, depth + 1)))
    words.take(">")
    if not fields or len({field.name for field in fields}) < len(fields):
        raise words.fail("a struct has fields, each by a name of its own")
    return pa.struct(fields)


def type_text(kind: pa.DataType) -> str:
    """The word for a type; the inverse of the parser."""
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{_quoted(field.name)}:{type_text(field.type)}' for field in kind)}>"
    return str(kind)


def columns_text(columns: Iterable[Column]) -> str:
    return ", ".join(map(str, columns))


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """What the records' own columns look like in the table: everything may be null, since what must not be is dead."""
    return pa.schema([pa.field(column.name, column.type) for column in columns])


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name}`"
