"""How the value of a record is decoded: format, schema, framing, and what to do with a record that does not match.

    json: id BIGINT NOT NULL, name STRING
    avro: {"type": "record", ...}              or the name of a file
    protobuf: views.desc#shop.View             a file written by protoc --descriptor_set_out, and a message in it

A spec is checked in the driver, where it is made, and holds everything that tasks need: files are read there, since
executors may not have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

from penstock.client.errors import ConfigError

Format = Literal["json", "avro", "protobuf"]
Framing = Literal["none", "confluent"]
Mode = Literal["failfast", "permissive"]

FORMATS: Final = ("json", "avro", "protobuf")
FRAMINGS: Final = ("none", "confluent")
MODES: Final = ("failfast", "permissive")
DEFAULT_COLUMN: Final = "decoded"

OPTION: Final = "penstock.decode"
_PARTS: Final = ("schema", "message", "framing", "registry", "mode", "column")
OPTION_NAMES: Final = (OPTION, *(f"{OPTION}.{part}" for part in _PARTS))
_EXAMPLE: Final = 'Write it as "json: id BIGINT, name STRING", "avro: file.avsc" or "protobuf: file.desc#Message"'


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    """How values are decoded. Created by `parse_spec` or `spec_of_options`."""

    format: Format
    schema: str
    descriptors: bytes = b""
    framing: Framing = "none"
    registry: str | None = None
    mode: Mode = "failfast"
    column: str = DEFAULT_COLUMN


def parse_spec(
    text: str,
    *,
    schema: str | None = None,
    message: str | None = None,
    framing: str = "none",
    registry: str | None = None,
    mode: str = "failfast",
    column: str = DEFAULT_COLUMN,
) -> DecodeSpec:
    """Parses a text such as "json: id BIGINT"; the schema may be given separately. Raises ConfigError."""
    name, colon, rest = text.partition(":")
    chosen = name.strip().lower()
    if chosen not in FORMATS:
        raise ConfigError(f"{OPTION} starts with {name.strip()!r}, which is not a format", hint=_EXAMPLE)
    wanted = (schema if schema is not None else rest if colon else "").strip()
    if not wanted:
        raise ConfigError(f"{OPTION} has no schema", hint=_EXAMPLE)
    _one_of("framing", framing, FRAMINGS)
    _one_of("mode", mode, MODES)
    if not column.strip():
        raise ConfigError(f"{OPTION}.column is empty", hint=f"Its default is {DEFAULT_COLUMN}")
    if chosen == "json" and framing.lower() != "none":
        raise ConfigError("JSON has no framing", hint=f"Remove {OPTION}.framing")
    if registry is not None and (chosen != "avro" or framing.lower() != "confluent"):
        raise ConfigError("a registry applies only to framed Avro", hint=f'Add {OPTION}.framing = "confluent"')
    descriptors = b""
    if chosen == "avro":
        wanted = _avro_text(wanted)
    elif chosen == "protobuf":
        wanted, descriptors = _protobuf(wanted, message)
    spec = DecodeSpec(
        cast(Format, chosen), wanted, descriptors, cast(Framing, framing.lower()), registry,
        cast(Mode, mode.lower()), column.strip(),
    )  # fmt: skip
    _check(spec)
    return spec


def spec_of_options(options: Mapping[str, str]) -> DecodeSpec | None:
    """The spec of a reader's options, None if they have none. Raises ConfigError."""
    named = {name.lower(): value for name, value in options.items()}
    parts = {part: named[f"{OPTION}.{part}"] for part in _PARTS if f"{OPTION}.{part}" in named}
    if OPTION not in named:
        if parts:
            raise ConfigError(f"{OPTION}.{next(iter(parts))} is set, but not {OPTION}", hint=_EXAMPLE)
        return None
    return parse_spec(named[OPTION], **parts)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value.lower() not in known:
        raise ConfigError(f"{OPTION}.{name} is {value!r}", hint=f"Use {' or '.join(known)}")


def _check(spec: DecodeSpec) -> None:
    from penstock.spark.formats.decoder import struct_of

    struct_of(spec)


def _avro_text(wanted: str) -> str:
    if not wanted.startswith(("{", "[", '"')):
        wanted = _read(wanted, "the Avro schema").decode("utf-8", "replace")
    try:
        return json.dumps(json.loads(wanted))
    except ValueError as error:
        raise ConfigError(
            f"the Avro schema is not JSON: {error}", hint="Give the text of an .avsc file, or its path"
        ) from None


def _protobuf(wanted: str, message: str | None) -> tuple[str, bytes]:
    path, _, named = wanted.rpartition("#") if message is None else (wanted, "", message)
    if not path or not named.strip():
        raise ConfigError(
            f"the Protobuf schema {wanted!r} does not name a message", hint="Write it as file.desc#package.Message"
        )
    return named.strip(), _read(path, "the Protobuf descriptors")


def _read(path: str, what: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {what} {path}: {why}", hint="The file must exist on the driver") from None
