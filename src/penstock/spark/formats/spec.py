"""How the value of a record is decoded: format, schema, framing, and what to do with a record that does not match.

    json: id BIGINT NOT NULL, name STRING
    avro: {"type": "record", ...}              or the name of a file
    protobuf: views.desc#shop.View             a file written by protoc --descriptor_set_out, and a message in it
    avro                                       with a registry: the latest version of the subject; also json, protobuf

A spec is checked in the driver, where it is made, and holds everything that tasks need: files are read there, since
executors may not have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, cast

from penstock.client.errors import ConfigError
from penstock.spark.formats.registry import RegistryAccess, reader_schema, registry_access, subject_of

Format = Literal["json", "avro", "protobuf"]
Framing = Literal["none", "confluent"]
Mode = Literal["failfast", "permissive"]

FORMATS: Final = ("json", "avro", "protobuf")
FRAMINGS: Final = ("none", "confluent")
MODES: Final = ("failfast", "permissive")
DEFAULT_COLUMN: Final = "decoded"

OPTION: Final = "penstock.decode"
_REGISTRY_PARTS: Final = ("registry.user", "registry.password", "registry.token", "registry.ca")
_PARTS: Final = ("schema", "message", "framing", "registry", *_REGISTRY_PARTS, "subject", "mode", "column")
OPTION_NAMES: Final = (OPTION, *(f"{OPTION}.{part}" for part in _PARTS))
_EXAMPLE: Final = 'Write it as "json: id BIGINT, name STRING", "avro: file.avsc" or "protobuf: file.desc#Message"'


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    """How values are decoded. Created by `parse_spec` or `spec_of_options`."""

    format: Format
    schema: str
    descriptors: bytes = b""
    framing: Framing = "none"
    registry: RegistryAccess | None = None
    mode: Mode = "failfast"
    column: str = DEFAULT_COLUMN
    schema_id: int = -1
    """The id of the schema, if it is from the registry."""


def parse_spec(
    text: str,
    *,
    schema: str | None = None,
    message: str | None = None,
    framing: str | None = None,
    registry: str | None = None,
    subject: str | None = None,
    mode: str = "failfast",
    column: str = DEFAULT_COLUMN,
    **login: str,
) -> DecodeSpec:
    """Parses a text such as "json: id BIGINT"; the schema may be given separately. Without one, a registry is asked
    for the latest version of `subject`. `login` has registry_user, _password, _token and _ca. Raises ConfigError,
    RegistryError."""
    given = _Given(text, schema, message, framing, mode, column)
    return _parsed(given, _access(registry, subject, login), -1)


class _Given(NamedTuple):
    """What a spec is made of, as text."""

    text: str
    schema: str | None = None
    message: str | None = None
    framing: str | None = None
    mode: str = "failfast"
    column: str = DEFAULT_COLUMN


def _parsed(given: _Given, access: RegistryAccess | None, schema_id: int) -> DecodeSpec:
    text, schema, message, framing, mode, column = given
    name, colon, rest = text.partition(":")
    chosen = name.strip().lower()
    if chosen not in FORMATS:
        raise ConfigError(f"{OPTION} starts with {name.strip()!r}, which is not a format", hint=_EXAMPLE)
    wanted = (schema if schema is not None else rest if colon else "").strip()
    if not wanted and access is None:
        raise ConfigError(f"{OPTION} has no schema", hint=_EXAMPLE)
    framing = ("none" if access is None else "confluent") if framing is None else framing.lower()
    _one_of("framing", framing, FRAMINGS)
    _one_of("mode", mode, MODES)
    if not column.strip():
        raise ConfigError(f"{OPTION}.column is empty", hint=f"Its default is {DEFAULT_COLUMN}")
    if chosen == "json" and access is None and framing != "none":
        raise ConfigError("JSON has no framing without a registry", hint=f"Remove {OPTION}.framing")
    if access is not None and framing == "none":
        raise ConfigError("a registry applies only to framed values", hint=f"Remove {OPTION}.framing")
    descriptors = b""
    if access is not None and not wanted:
        schema_id, wanted, descriptors = reader_schema(chosen, access, (message or "").strip(), schema_id)
    else:
        schema_id = -1
        if chosen == "avro":
            wanted = _avro_text(wanted)
        elif chosen == "protobuf":
            wanted, descriptors = _protobuf(wanted, message)
    spec = DecodeSpec(
        cast(Format, chosen), wanted, descriptors, cast(Framing, framing), access,
        cast(Mode, mode.lower()), column.strip(), schema_id,
    )  # fmt: skip
    _check(spec)
    return spec


def _access(registry: str | None, subject: str | None, login: Mapping[str, str]) -> RegistryAccess | None:
    unknown = [name for name in login if name.replace("_", ".", 1) not in _REGISTRY_PARTS]
    if unknown:
        raise ConfigError(f"{OPTION} has no part {unknown[0]}", hint=f"Parts: {', '.join(_PARTS)}")
    if registry is None:
        if login or subject is not None:
            part = next(iter(login), "subject").replace("_", ".", 1)
            raise ConfigError(f"{OPTION}.{part} is set, but not {OPTION}.registry", hint="Set its address")
        return None
    given = {name.removeprefix("registry_"): value for name, value in login.items()}
    return registry_access(registry.strip(), (subject or "").strip(), **given)


def spec_of_options(options: Mapping[str, str], schema_id: int = -1) -> DecodeSpec | None:
    """The spec of a reader's options, None if they have none. `schema_id` is what the query began with, if its schema
    is from a registry. Raises ConfigError, RegistryError."""
    named = {name.lower(): value for name, value in options.items()}
    parts = {part: named[f"{OPTION}.{part}"] for part in _PARTS if f"{OPTION}.{part}" in named}
    if OPTION not in named:
        if parts:
            raise ConfigError(f"{OPTION}.{next(iter(parts))} is set, but not {OPTION}", hint=_EXAMPLE)
        return None
    if "registry" in parts:
        parts.setdefault("subject", subject_of(_topics(named)))
    login = {part.replace(".", "_"): parts.pop(part) for part in _REGISTRY_PARTS if part in parts}
    access = _access(parts.pop("registry", None), parts.pop("subject", None), login)
    return _parsed(_Given(named[OPTION], **parts), access, schema_id)


def _topics(named: Mapping[str, str]) -> list[str]:
    """The topics that options name; what is wrong with them is reported elsewhere."""
    if "assign" not in named:
        return [name.strip() for name in named.get("subscribe", "").split(",") if name.strip()]
    try:
        found = json.loads(named["assign"])
    except ValueError:
        return []
    return list(found) if isinstance(found, dict) else []


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
