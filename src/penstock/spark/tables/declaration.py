"""A table as it is declared, for batch and streaming alike: settings, columns and their types.

    name = "views"
    topic = "views"
    format = "json"                    # json, avro, protobuf, text, binary
    schema = "user string not null, page string, at timestamp_ms"    # omitted: inferred from the first records
    partition_by = "day"               # day, hour, none: of the event time
    event_time = "at"                  # omitted: the record's timestamp
    mode = "append"                    # or upsert, by key = ["user"]; omitted: the record's key

A declaration is checked as a whole before anything is created, and an unknown setting is rejected with the closest
known one. It is stored inside the table. Type names are Spark's (`long`, `array<string>`, `struct<a:int>`).
`timestamp` is ISO 8601 text in JSON, `timestamp_ms` and `timestamp_s` are numbers since 1970; in the table all are
microseconds, UTC.
"""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock.client.errors import ConfigError
from penstock.spark.errors import DeclarationError
from penstock.spark.formats import ddl

FORMATS: Final = ("json", "avro", "protobuf", "text", "binary")
MODES: Final = ("append", "upsert")
PARTITIONINGS: Final = ("day", "hour", "none")
EVOLUTIONS: Final = ("add", "none")
LATE_POLICIES: Final = ("accept", "dead", "drop")
ERROR_POLICIES: Final = ("dead", "fail", "drop")
LOSS_POLICIES: Final = ("fail", "skip")
FRAMINGS: Final = ("none", "confluent")
ISOLATIONS: Final = ("read_committed", "read_uncommitted")
STARTS: Final = ("earliest", "latest")
METADATA: Final = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_headers")
DAY: Final = "event_day"
HOUR: Final = "event_hour"
DEAD_SUFFIX: Final = "__dead"
RESERVED: Final = frozenset({*METADATA, DAY, HOUR, "_deleted", "_reason"})
_OWN: Final = ", ".join(sorted(RESERVED))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d|w)")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_CHOICES: Final = {
    "format": FORMATS,
    "mode": MODES,
    "partition_by": PARTITIONINGS,
    "evolution": EVOLUTIONS,
    "late": LATE_POLICIES,
    "on_error": ERROR_POLICIES,
    "on_data_loss": LOSS_POLICIES,
    "framing": FRAMINGS,
    "isolation": ISOLATIONS,
}
_DURATIONS: Final = {
    "allowed_lateness": "allowed_lateness_ms",
    "retention": "retention_ms",
    "vacuum_after": "vacuum_after_ms",
}
_INTERNAL: Final = frozenset({*_DURATIONS.values(), "value_schema", "descriptors", "registry_authorities"})
_EXTRA: Final = ("schema", "avro_schema", "message", "registry_ca")
_OF_REGISTRY: Final = ("subject", "registry_user", "registry_password", "registry_token", "registry_authorities")
_HOUR_MS: Final = 3_600_000
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
_WORDS: Final = frozenset({*_SIMPLE, *_EPOCHS})
_TYPES: Final = f"Types are {', '.join(_NAMES.values())}, decimal(p,s), array<> and struct<>"
_MAX_DEPTH: Final = 16

# ---------------------------------------------------------------------------------------------- the declaration


class Column(NamedTuple):
    """A declared column. `epoch` is "ms" or "s" if records have the time as a number since 1970."""

    name: str
    type: pa.DataType
    required: bool = False
    epoch: str = ""

    def __str__(self) -> str:
        kind = f"timestamp_{self.epoch}" if self.epoch else type_text(self.type)
        return f"{_quoted(self.name)} {kind}{' not null' if self.required else ''}"


@dataclass(frozen=True)
class Table:
    """A table's declaration. `columns` is empty until they are declared or inferred."""

    name: str
    topic: str
    format: str = "json"
    columns: tuple[Column, ...] = ()
    mode: str = "append"
    key: tuple[str, ...] = ()
    partition_by: str = "day"
    event_time: str = ""
    evolution: str = "add"
    late: str = "accept"
    allowed_lateness_ms: int = 86_400_000
    on_error: str = "dead"
    on_data_loss: str = "fail"
    start: str = "earliest"
    isolation: str = "read_committed"
    retention_ms: int = 0
    """Maximum age of a partition by event time; 0 keeps all."""
    value_schema: str = ""
    """The Avro schema as text, the name of the Protobuf message, or the columns of a registered JSON Schema."""
    descriptors: str = ""
    """The output of protoc --descriptor_set_out, in base64."""
    framing: str = "none"
    registry: str = ""
    """The address of a schema registry, for framed Avro, JSON and Protobuf."""
    subject: str = ""
    """The subject whose latest version is the schema, if none is declared: each load looks for a new one."""
    registry_user: str = ""
    registry_password: str = ""
    registry_token: str = ""
    """Secrets are file:/path or env:NAME: the declaration is stored in the table."""
    registry_authorities: str = ""
    """Certificates (PEM) of the authority of an HTTPS registry."""
    compact_after_files: int = 16
    """Compact when this many small files of one day (or hour) and topic partition exist."""
    target_file_mb: int = 128
    vacuum_after_ms: int = 7 * 86_400_000
    max_columns: int = 1000
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the data source for reading: kafka.* and so on."""

    @property
    def dead_name(self) -> str:
        return self.name + DEAD_SUFFIX

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return {"day": (DAY,), "hour": (DAY, HOUR), "none": ()}[self.partition_by]

    def with_columns(self, columns: tuple[Column, ...]) -> Table:
        return replace(self, columns=columns)


def to_json(table: Table) -> str:
    """The declaration as it is stored in the table."""
    document = asdict(replace(table, columns=()))
    document["columns"] = columns_text(table.columns)
    document["key"] = list(table.key)
    return json.dumps(document, sort_keys=True)


def from_json(text: str) -> Table:
    """The inverse of `to_json`; settings of later versions are ignored."""
    document = json.loads(text)
    known = {item.name for item in fields(Table)}
    settings = {name: value for name, value in document.items() if name in known}
    columns = settings.pop("columns")
    settings["key"] = tuple(settings["key"])
    return Table(**settings, columns=parse_columns(columns) if columns else ())


# ---------------------------------------------------------------------------------------------- settings


def from_toml(path: str | Path) -> Table:
    """The table that a file declares. Raises DeclarationError."""
    return from_mapping(read_toml(path), folder=Path(path).parent)


def read_toml(path: str | Path) -> Mapping[str, Any]:
    """The settings of a file, unchecked. Raises DeclarationError."""
    place = Path(path)
    try:
        document = tomllib.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeclarationError(f"{place}: {error.strerror}", hint="Give a file that declares a table") from None
    except UnicodeDecodeError:
        raise DeclarationError(f"{place}: is not UTF-8", hint="TOML is always UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise DeclarationError(f"{place}: is not TOML: {error}", hint='A setting is written name = "views"') from None
    if set(document) == {"table"} and isinstance(document["table"], dict):
        return dict(document["table"])
    return document


def from_mapping(document: Mapping[str, Any], folder: Path | None = None) -> Table:
    """The table that these settings declare. `folder` is that of files they name. Raises DeclarationError."""
    given = dict(document)
    settings: dict[str, Any] = {}
    columns = _columns(given.pop("schema", None), given.pop("columns", None))
    if "avro_schema" in given:
        settings["value_schema"] = _avro_text(given.pop("avro_schema"), folder)
    if "message" in given:
        settings |= _message(given.pop("message"), folder, has_registry="registry" in given)
    if "registry_ca" in given:
        settings["registry_authorities"] = _certificates(given.pop("registry_ca"), folder)
    known = {item.name: item for item in fields(Table)}
    for name, value in given.items():
        if name in _DURATIONS:
            settings[_DURATIONS[name]] = _duration(name, value)
        elif name not in known or name in _INTERNAL:
            raise _unknown(name, [*(set(known) - _INTERNAL), *_DURATIONS, *_EXTRA])
        else:
            settings[name] = _value(name, value, getattr(Table, name, ""))
    for needed in ("name", "topic"):
        if not settings.get(needed):
            raise DeclarationError(f"the table has no {needed}", hint=f'Add {needed} = "views"')
    if settings.get("registry"):
        settings.setdefault("framing", "confluent")
        if not settings.get("descriptors") and (settings.get("format") != "avro" or not settings.get("value_schema")):
            settings.setdefault("subject", f"{settings['topic']}-value")
    return checked(Table(**settings, columns=columns))


def _unknown(name: str, known: list[str]) -> DeclarationError:
    near = get_close_matches(name, known, n=1)
    return DeclarationError(
        f"unknown table setting {name!r}",
        hint=f"Did you mean {near[0]}?" if near else f"Settings: {', '.join(known)}",
    )


def _columns(text: Any, table: Any) -> tuple[Column, ...]:
    if text is not None and table is not None:
        raise DeclarationError("both schema and columns are given", hint="Use one of them")
    if text is not None:
        return parse_columns(_text("schema", text))
    if table is None:
        return ()
    if not isinstance(table, Mapping) or not table:
        raise DeclarationError(
            "columns is not a table of names and types", hint='Write [columns], then user = "string"'
        )
    return tuple(parse_column(name, _text(f"columns.{name}", kind)) for name, kind in table.items())


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise DeclarationError(f"{name} is {value!r}, not a string", hint="Quote it")
    return value


def _value(name: str, value: Any, default: Any) -> Any:
    if name == "key":
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
            raise DeclarationError(f"key is {value!r}", hint='Write key = ["user"]')
        return tuple(names)
    if name == "options":
        if not isinstance(value, Mapping):
            raise DeclarationError(f"options is {value!r}", hint='Write [options], then "kafka.client.id" = "loader"')
        return {str(key): str(item) for key, item in value.items()}
    if isinstance(default, int):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DeclarationError(f"{name} is {value!r}", hint="Give a number above 0")
        return value
    return _text(name, value)


def _duration(name: str, value: Any) -> int:
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise DeclarationError(f"{name} is {value!r}, which is not a duration", hint="Use for example 90s, 12h or 7d")
    return int(found.group(1)) * _UNITS_MS[found.group(2)]


def _avro_text(value: Any, folder: Path | None) -> str:
    if isinstance(value, Mapping | list):
        return json.dumps(value)
    text = _text("avro_schema", value)
    if not text.lstrip().startswith(("{", "[")):
        try:
            text = ((folder or Path()) / text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DeclarationError(
                f"avro_schema: {text}: {getattr(error, 'strerror', None) or 'is not UTF-8'}",
                hint="It is a file beside the declaration, or the schema itself",
            ) from None
    try:
        json.loads(text)
    except ValueError as error:
        raise DeclarationError(f"avro_schema is not valid JSON: {error}", hint="An Avro schema is JSON") from None
    return text


def _certificates(value: Any, folder: Path | None) -> str:
    path = (folder or Path()) / _text("registry_ca", value)
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not a PEM file"
        raise DeclarationError(f"registry_ca: {path}: {why}", hint="Give a PEM file of certificates") from None


def _message(value: Any, folder: Path | None, *, has_registry: bool) -> dict[str, str]:
    path, _, name = _text("message", value).rpartition("#")
    if has_registry and name and not path:
        return {"value_schema": name}
    if not path or not name:
        raise DeclarationError(f"message is {value!r}", hint='Write message = "views.desc#shop.View"')
    try:
        data = ((folder or Path()) / path).read_bytes()
    except OSError as error:
        raise DeclarationError(
            f"message: {path}: {error.strerror}", hint="Write the file with protoc --descriptor_set_out"
        ) from None
    return {"value_schema": name, "descriptors": base64.b64encode(data).decode()}


# ---------------------------------------------------------------------------------------------- checks


def checked(table: Table) -> Table:
    """Returns the table if its settings are valid together. Raises DeclarationError."""
    if not _NAME.fullmatch(table.name) or table.name.endswith(DEAD_SUFFIX):
        raise DeclarationError(
            f"{table.name!r} is not a valid table name",
            hint=f"Use letters, digits, dots, - and _, and not {DEAD_SUFFIX} at the end",
        )
    for name, choices in _CHOICES.items():
        value = getattr(table, name)
        if value not in choices:
            near = get_close_matches(value, choices, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"It is {', '.join(choices)}"
            raise DeclarationError(f"{name} is {value!r}, which is not known", hint=hint)
    if table.start not in STARTS and not table.start.isdigit():
        raise DeclarationError(f"start is {table.start!r}", hint="It is earliest, latest, or milliseconds since 1970")
    if any(name.lower() == "kafka.isolation.level" for name in table.options):
        raise DeclarationError(
            "options contains kafka.isolation.level, which is a setting of the table",
            hint='Set isolation = "read_uncommitted"; the default is read_committed',
        )
    _check_registry(table)
    _check_value_schema(table)
    if table.columns:
        _check_columns(table)
    if table.mode == "append" and table.key:
        raise DeclarationError(
            'key requires mode = "upsert"; the mode is append', hint='Set mode = "upsert", or remove key'
        )
    if table.retention_ms and table.partition_by == "none":
        raise DeclarationError("retention needs partitions by event time", hint='Add partition_by = "day"')
    if 0 < table.vacuum_after_ms < _HOUR_MS:
        raise DeclarationError(
            "vacuum_after is less than an hour", hint="A running load would lose its files. Use 1h or more"
        )
    return table


def checked_columns(table: Table) -> Table:
    """Returns the table if its columns are valid. Raises DeclarationError."""
    _check_columns(table)
    return table


def _check_value_schema(table: Table) -> None:
    needed = {"avro": "avro_schema", "protobuf": "message"}.get(table.format)
    if needed is None and table.value_schema:
        raise DeclarationError(f"the format is {table.format}, which needs no avro_schema or message", hint="Remove it")
    if needed is not None and not table.value_schema and not table.subject:
        raise DeclarationError(f"the format {table.format} needs {needed}", hint=f"Add {needed}, or registry")
    if needed is not None and table.columns:
        raise DeclarationError(f"columns come from {needed}", hint="Remove schema")


def _check_registry(table: Table) -> None:
    from penstock.spark.formats.registry import registry_access

    if not table.registry:
        given = [name for name in _OF_REGISTRY if getattr(table, name)]
        if given:
            raise DeclarationError(f"{given[0]} is set, but not registry", hint='Add registry = "http://HOST:PORT"')
        return
    if table.format not in ("avro", "json", "protobuf") or table.framing != "confluent":
        raise DeclarationError(
            f"a registry applies only to framed Avro, JSON and Protobuf, not to {table.format} "
            f"with framing {table.framing}",
            hint="Remove registry",
        )
    if table.format == "json" and table.columns:
        raise DeclarationError("columns come from the registry's JSON Schema", hint="Remove schema, or registry")
    if table.subject and (table.descriptors or (table.format == "avro" and table.value_schema)):
        raise DeclarationError(
            "both subject and a schema are given", hint="Remove one: the subject's latest version is the schema"
        )
    for name in ("registry_password", "registry_token"):
        if getattr(table, name) and not getattr(table, name).startswith(("file:", "env:")):
            raise DeclarationError(
                f"{name} is written in the declaration, which is stored in the table", hint="Use file:/path or env:NAME"
            )
    with _schema_errors():
        registry_access(
            table.registry, user=table.registry_user, password=table.registry_password, token=table.registry_token
        )


def _check_columns(table: Table) -> None:
    names = [column.name for column in table.columns]
    lowered = [name.lower() for name in names]
    twice = [name for name in lowered if lowered.count(name) > 1]
    if twice:
        raise DeclarationError(f"the column {twice[0]} is declared twice", hint="Column names are case-insensitive")
    taken = [name for name in names if name.lower() in RESERVED]
    if taken:
        raise DeclarationError(f"the column name {taken[0]} is reserved", hint=f"Rename it. Reserved: {_OWN}")
    by_name = {column.name: column for column in table.columns}
    for name in table.key:
        if name not in by_name:
            raise _unknown_column("key", name, names)
    if table.event_time and table.event_time != "_timestamp":
        column = by_name.get(table.event_time)
        if column is None:
            raise _unknown_column("event_time", table.event_time, names)
        if str(column.type) not in ("timestamp[us, tz=UTC]", "date32[day]"):
            raise DeclarationError(
                f"event_time is {column}, which is not a timestamp",
                hint="Declare it as timestamp, timestamp_ms or timestamp_s",
            )


def _unknown_column(setting: str, name: str, names: list[str]) -> DeclarationError:
    near = get_close_matches(name, names, n=1)
    return DeclarationError(
        f"{setting} names the column {name!r}, which is not in the schema",
        hint=f"Did you mean {near[0]}?" if near else f"Columns: {', '.join(names)}",
    )


# ---------------------------------------------------------------------------------------------- schema text


def parse_columns(text: str) -> tuple[Column, ...]:
    """`user string not null, at timestamp_ms`; raises DeclarationError."""
    if not text.strip():
        raise DeclarationError("the schema has no columns", hint="Remove it to infer them from the records")
    with _schema_errors():
        return tuple(map(_column, ddl.parse_fields(text, _WORDS, max_depth=_MAX_DEPTH)))


def parse_column(name: str, text: str) -> Column:
    """One column whose type is `text`; raises DeclarationError."""
    with _schema_errors():
        return _column(ddl.parse_type(name, text, _WORDS, max_depth=_MAX_DEPTH))


@contextmanager
def _schema_errors() -> Iterator[None]:
    try:
        yield
    except DeclarationError:
        raise
    except ConfigError as error:
        raise DeclarationError(error.message, hint=error.hint) from None


def _column(field: ddl.Field) -> Column:
    if field.comment is not None:
        raise DeclarationError(f"the column {field.name} has a COMMENT", hint="Remove it: tables have no comments")
    epoch = _EPOCHS.get(field.type.word, "") if isinstance(field.type, ddl.Named) else ""
    return Column(field.name, TIMESTAMP if epoch else _arrow_type(field.type), not field.is_nullable, epoch)


def _arrow_type(kind: ddl.Type) -> pa.DataType:
    match kind:
        case ddl.Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case ddl.Array(element):
            return pa.list_(pa.field("element", _arrow_type(element)))
        case ddl.Struct(fields):
            if not fields:
                raise DeclarationError("the schema has a struct without fields", hint="Write struct<name: string>")
            if any(not field.is_nullable or field.comment is not None for field in fields):
                raise DeclarationError(
                    "NOT NULL and COMMENT are allowed only for columns, not inside them", hint=_TYPES
                )
            return pa.struct([pa.field(field.name, _arrow_type(field.type)) for field in fields])
        case ddl.Named(word) if word in _SIMPLE:
            return _SIMPLE[word]
        case ddl.Named(word):
            raise DeclarationError(f"{word} is allowed only for columns, not inside them", hint=_TYPES)
        case _:
            raise DeclarationError("tables have no type map", hint=_TYPES)


def type_text(kind: pa.DataType) -> str:
    """The text of a type, which `parse_column` reads."""
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
    """The declared columns in the table. All are nullable: records that lack a required value are dead letters."""
    return pa.schema([pa.field(column.name, column.type) for column in columns])


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name.replace('`', '``')}`"
