"""Parses schemas without a JVM: `id BIGINT NOT NULL, tags ARRAY<STRING>, who STRUCT<name: STRING>`.

The text means what Spark's DDL means; Spark's schema JSON (`df.schema.json()`) is accepted too. Planning and tasks run
in Python processes without a session, where Spark's own parser is not available. An error names the place and what was
expected, in one line.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import types as spark

from penstock.client.errors import ConfigError

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_][A-Za-z0-9_]*)|(\d+)|('(?:[^'\\]|\\.)*')|([<>,:()]))")
_SIMPLE: Final[dict[str, type[spark.DataType]]] = {
    "boolean": spark.BooleanType,
    "tinyint": spark.ByteType,
    "byte": spark.ByteType,
    "smallint": spark.ShortType,
    "short": spark.ShortType,
    "int": spark.IntegerType,
    "integer": spark.IntegerType,
    "bigint": spark.LongType,
    "long": spark.LongType,
    "float": spark.FloatType,
    "real": spark.FloatType,
    "double": spark.DoubleType,
    "string": spark.StringType,
    "binary": spark.BinaryType,
    "date": spark.DateType,
    "timestamp": spark.TimestampType,
    "timestamp_ltz": spark.TimestampType,
    "timestamp_ntz": spark.TimestampNTZType,
}
_DECIMALS: Final = frozenset({"decimal", "dec", "numeric"})
_MAX_DEPTH: Final = 64
_MAX_PRECISION: Final = 38


def parse_schema(text: str) -> spark.StructType:
    """The schema; raises ConfigError."""
    stripped = text.strip()
    if stripped.startswith("{"):
        return _from_json(stripped)
    return _Parser(stripped).schema()


def _from_json(text: str) -> spark.StructType:
    import json

    try:
        document = json.loads(text)
        if document.get("type") != "struct":
            raise ConfigError(f"the schema is of type {document.get('type')!r}", hint="It must be a struct")
        return spark.StructType.fromJson(document)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - pyspark raises whatever the mismatch leads to
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"the schema is not Spark's schema JSON: {why}", hint="df.schema.json() writes it") from None


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def schema(self) -> spark.StructType:
        if self._word() == "struct" and self._after_word().lstrip().startswith("<"):
            found = self._type()
            if isinstance(found, spark.StructType):
                self._end()
                return found
        fields = self._fields(is_nested=False)
        self._end()
        return spark.StructType(fields)

    def _end(self) -> None:
        if self._text[self._at :].strip():
            raise self._error("the end, or a comma and the next column")

    def _fields(self, *, is_nested: bool) -> list[spark.StructField]:
        fields: list[spark.StructField] = []
        while True:
            name = self._name()
            if name in [field.name for field in fields]:
                raise ConfigError(f"the schema has two columns {name}", hint="Names must differ")
            if self._peek() == ":":
                self._next()
            elif is_nested and self._peek() in (",", ">", ""):
                raise self._error("a type")
            kind = self._type()
            nullable = not self._skip_words("not", "null")
            metadata = {"comment": self._string()} if self._skip_words("comment") else None
            fields.append(spark.StructField(name, kind, nullable, metadata))
            if self._peek() != ",":
                return fields
            self._next()

    def _type(self) -> spark.DataType:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ConfigError(f"the schema is nested deeper than {_MAX_DEPTH}", hint="Flatten it")
        try:
            return self._one_type()
        finally:
            self._depth -= 1

    def _one_type(self) -> spark.DataType:
        word = self._word()
        if word in _SIMPLE:
            self._next()
            return _SIMPLE[word]()
        if word in _DECIMALS:
            self._next()
            return self._decimal()
        if word == "array":
            self._next()
            self._expect("<")
            element = self._type()
            self._expect(">")
            return spark.ArrayType(element)
        if word == "map":
            self._next()
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return spark.MapType(key, value)
        if word == "struct":
            self._next()
            self._expect("<")
            fields = [] if self._peek() == ">" else self._fields(is_nested=True)
            self._expect(">")
            return spark.StructType(fields)
        if word in ("varchar", "char"):
            self._next()
            self._expect("(")
            self._number()
            self._expect(")")
            return spark.StringType()
        raise self._error("a type, such as STRING, BIGINT or ARRAY<...>")

    def _decimal(self) -> spark.DecimalType:
        if self._peek() != "(":
            return spark.DecimalType(10, 0)
        self._next()
        precision, scale = self._number(), 0
        if self._peek() == ",":
            self._next()
            scale = self._number()
        self._expect(")")
        if not 1 <= precision <= _MAX_PRECISION or scale > precision:
            raise ConfigError(
                f"DECIMAL({precision}, {scale}) cannot be", hint="Precision is 1 to 38, scale at most that"
            )
        return spark.DecimalType(precision, scale)

    # --- tokens

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

    def _after_word(self) -> str:
        found = self._match()
        return "" if found is None else self._text[found.end() :]

    def _skip_words(self, *words: str) -> bool:
        start = self._at
        for word in words:
            if self._word() != word:
                self._at = start
                return False
            self._next()
        return True

    def _name(self) -> str:
        found = self._match()
        if found is not None and found[1]:
            self._at = found.end()
            return found[1][1:-1].replace("``", "`")
        if found is not None and found[2]:
            self._at = found.end()
            return found[2]
        raise self._error("the name of a column")

    def _number(self) -> int:
        found = self._match()
        if found is None or not found[3]:
            raise self._error("a number")
        self._at = found.end()
        return int(found[3])

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
        return ConfigError(
            f"the schema does not parse {where}: {wanted} is expected", hint='Write it as "id BIGINT, name STRING"'
        )
