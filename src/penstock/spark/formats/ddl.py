"""Parses schemas without a JVM: `id BIGINT NOT NULL, tags ARRAY<STRING>, who STRUCT<name: STRING>`.

The text means what Spark's DDL means; Spark's schema JSON (`df.schema.json()`) is accepted too. Planning and tasks run
in Python processes without a session, where Spark's own parser is not available. `parse_fields` and `parse_type` give
a neutral tree, from which `parse_schema` makes Spark's types and the declaration of a table makes Arrow's. An error
names the place and what was expected, in one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.client.errors import ConfigError
from penstock.spark.errors import one_line

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_][A-Za-z0-9_.-]*)|(\d+)|('(?:[^'\\]|\\.)*')|([<>,:()]))")
_SPARK_TYPES: Final = {
    "boolean": "Boolean", "tinyint": "Byte", "byte": "Byte", "smallint": "Short", "short": "Short",
    "int": "Integer", "integer": "Integer", "bigint": "Long", "long": "Long", "float": "Float", "real": "Float",
    "double": "Double", "string": "String", "binary": "Binary", "date": "Date", "timestamp": "Timestamp",
    "timestamp_ltz": "Timestamp", "timestamp_ntz": "TimestampNTZ",
}  # fmt: skip
_DECIMALS: Final = frozenset({"decimal", "dec", "numeric"})
_MAX_DEPTH: Final = 64
_MAX_PRECISION: Final = 38


# ---------------------------------------------------------------------------------------------- the tree


class Named(NamedTuple):
    """A type without parameters, in lower case."""

    word: str


class Decimal(NamedTuple):
    precision: int
    scale: int


class Array(NamedTuple):
    element: Type


class Map(NamedTuple):
    key: Type
    value: Type


class Struct(NamedTuple):
    fields: tuple[Field, ...]


Type = Named | Decimal | Array | Map | Struct


class Field(NamedTuple):
    """A column, or a field of a struct."""

    name: str
    type: Type
    is_nullable: bool = True
    comment: str | None = None


def parse_fields(text: str, words: Collection[str], *, max_depth: int = _MAX_DEPTH) -> tuple[Field, ...]:
    """The columns of a schema; `words` are the types without parameters. Raises ConfigError."""
    parser = _Parser(text, words, max_depth)
    found = parser.fields(is_nested=False)
    parser.end()
    return found


def parse_type(name: str, text: str, words: Collection[str], *, max_depth: int = _MAX_DEPTH) -> Field:
    """The column `name` whose type, with NOT NULL and COMMENT, is `text`. Raises ConfigError."""
    parser = _Parser(text, words, max_depth)
    found = parser.field(name)
    parser.end()
    return found


# ---------------------------------------------------------------------------------------------- Spark's types


def parse_schema(text: str) -> StructType:
    """The schema as Spark's types. Raises ConfigError."""
    stripped = text.strip()
    if stripped.startswith("{"):
        return _from_json(stripped)
    if re.match(r"struct\s*<", stripped, re.IGNORECASE):
        kind = parse_type("", stripped, _SPARK_TYPES).type
        if isinstance(kind, Struct):
            return _spark_struct(kind)
    return _spark_struct(Struct(parse_fields(stripped, _SPARK_TYPES)))


def _from_json(text: str) -> StructType:
    from pyspark.sql.types import StructType

    try:
        document = json.loads(text)
        kind = document.get("type")
        schema = StructType.fromJson(document) if kind == "struct" else None
    except Exception as error:  # noqa: BLE001 - pyspark raises whatever the mismatch leads to
        raise ConfigError(
            f"the schema is not Spark's schema JSON: {one_line(error)}", hint="df.schema.json() writes it"
        ) from None
    if schema is None:
        raise ConfigError(f"the schema is of type {kind!r}", hint="It must be a struct")
    return schema


def _spark_struct(struct: Struct) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(
                field.name, _spark_type(field.type), field.is_nullable,
                None if field.comment is None else {"comment": field.comment},
            )
            for field in struct.fields
        ]
    )  # fmt: skip


def _spark_type(kind: Type) -> DataType:
    from pyspark.sql import types as spark

    match kind:
        case Decimal(precision, scale):
            return spark.DecimalType(precision, scale)
        case Array(element):
            return spark.ArrayType(_spark_type(element))
        case Map(key, value):
            return spark.MapType(_spark_type(key), _spark_type(value))
        case Struct():
            return _spark_struct(kind)
        case Named(word):
            made: DataType = getattr(spark, f"{_SPARK_TYPES[word]}Type")()
            return made


# ---------------------------------------------------------------------------------------------- the parser


class _Parser:
    """Recursive descent over the tokens of a text."""

    def __init__(self, text: str, words: Collection[str], max_depth: int) -> None:
        self._text = text
        self._words = words
        self._max_depth = max_depth
        self._at = 0
        self._depth = 0

    def end(self) -> None:
        if self._text[self._at :].strip():
            raise self._error("the end, or a comma and the next column")

    def fields(self, *, is_nested: bool) -> tuple[Field, ...]:
        fields: list[Field] = []
        while True:
            name = self._name()
            if name in [field.name for field in fields]:
                raise ConfigError(f"the schema has two columns named {name}", hint="Rename one")
            if self._peek() == ":":
                self._next()
            elif is_nested and self._peek() in (",", ">", ""):
                raise self._error("a type")
            fields.append(self.field(name))
            if self._peek() != ",":
                return tuple(fields)
            self._next()

    def field(self, name: str) -> Field:
        kind = self._type()
        is_nullable = True
        if self._word() == "not":
            self._next()
            if self._word() != "null":
                raise self._error("NULL after NOT")
            self._next()
            is_nullable = False
        if self._word() != "comment":
            return Field(name, kind, is_nullable)
        self._next()
        return Field(name, kind, is_nullable, self._string())

    def _type(self) -> Type:
        self._depth += 1
        if self._depth > self._max_depth:
            raise ConfigError(f"the schema is nested deeper than {self._max_depth}", hint="Flatten it")
        try:
            return self._one_type()
        finally:
            self._depth -= 1

    def _one_type(self) -> Type:
        word = self._word()
        known = word in self._words or word in _DECIMALS or word in ("array", "map", "struct", "varchar", "char")
        if not known:
            raise self._error("a type, such as STRING, BIGINT or ARRAY<...>")
        self._next()
        if word in self._words:
            return Named(word)
        if word in _DECIMALS:
            return self._decimal()
        if word in ("varchar", "char"):
            self._expect("(")
            self._number()
            self._expect(")")
            return Named("string")
        self._expect("<")
        found: Type
        if word == "array":
            found = Array(self._type())
        elif word == "map":
            key = self._type()
            self._expect(",")
            found = Map(key, self._type())
        else:
            found = Struct(() if self._peek() == ">" else self.fields(is_nested=True))
        self._expect(">")
        return found

    def _decimal(self) -> Decimal:
        if self._peek() != "(":
            return Decimal(10, 0)
        self._next()
        precision, scale = self._number(), 0
        if self._peek() == ",":
            self._next()
            scale = self._number()
        self._expect(")")
        if not 1 <= precision <= _MAX_PRECISION or scale > precision:
            raise ConfigError(
                f"DECIMAL({precision}, {scale}) is not valid", hint="DECIMAL(p, s) needs 1 <= p <= 38 and s <= p"
            )
        return Decimal(precision, scale)

    # ------------------------------------------------------------------------------------------ tokens

    def _match(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self._at)

    def _peek(self) -> str:
        found = self._match()
        return found[found.lastindex] if found is not None and found.lastindex else ""

    def _next(self) -> str:
        found = self._match()
        if found is None or not found.lastindex:
            raise self._error("more")
        self._at = found.end()
        return found[found.lastindex]

    def _word(self) -> str:
        found = self._match()
        return found[2].lower() if found is not None and found[2] else ""

    def _name(self) -> str:
        found = self._match()
        if found is None or not (found[1] or found[2]):
            raise self._error("the name of a column")
        self._at = found.end()
        return found[1][1:-1].replace("``", "`") if found[1] else found[2]

    def _number(self) -> int:
        found = self._match()
        if found is None or not found[3]:
            raise self._error("a number")
        self._at = found.end()
        return int(found[3][:9])

    def _string(self) -> str:
        found = self._match()
        if found is None or not found[4]:
            raise self._error("a text in quotes")
        self._at = found.end()
        return re.sub(r"\\(.)", r"\1", found[4][1:-1])

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._error(f"{sign!r}")
        self._next()

    def _error(self, wanted: str) -> ConfigError:
        rest = " ".join(self._text[self._at :].split())
        where = f"at {rest[:24]!r}" if rest else "at its end"
        return ConfigError(f"invalid schema {where}: expected {wanted}", hint='Write it as "id BIGINT, name STRING"')
