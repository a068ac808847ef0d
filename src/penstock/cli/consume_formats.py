r"""Records as they are shown.

Noun: a formatter: a record in, bytes for standard output out.

Rule: `text` and templates pass bytes on as they are, so that what was produced is what comes out; `json` is one object
a line, whatever is in it. A template is kcat's: %t topic, %p partition, %o offset, %k key, %K its length, %s value, %S
its length, %T timestamp, %h headers, %%; \n, \t, \xHH. It ends the line unless it says how the line ends itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.cli.coding import Decode
from penstock.cli.output import CommandError
from penstock.cli.produce_reading import load_named, unescaped
from penstock.cli.record_json import as_json, headers_as_json
from penstock.cli.values import time_text
from penstock.client.consumer import ConsumerRecord

Record = ConsumerRecord[Any, Any]
Formatter = Callable[[Record], bytes]

_PROPERTIES: Final = {
    "print.timestamp": "false", "print.key": "false", "print.offset": "false", "print.epoch": "false",
    "print.partition": "false", "print.topic": "false", "print.headers": "false", "print.value": "true",
    "key.separator": "\t", "line.separator": "\n", "headers.separator": ",", "null.literal": "null",
}  # fmt: skip
_TEMPLATE = re.compile(rb"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|(%)$", re.DOTALL)
_CHARACTERS: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"\\": b"\\", b"0": b"\0", b"c": b""}
_ENDS_ITS_LINE = re.compile(r"\\(n|r|0|c|x[0-9a-fA-F]{2})$")
_CREATE, _APPEND = 0, 1


def as_bytes(value: object, null: bytes = b"null") -> bytes:
    """A key or value as it is shown in a line of text."""
    if value is None:
        return null
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace")
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")


def formatter_for(name: str, properties: Mapping[str, str]) -> Formatter:
    """By the word of --format: text, json, value, or a template."""
    if "%" in name:
        return template(name)
    given = dict(properties)
    if name == "json":
        _check(given)
        return json_line
    if name == "value":
        _check(given)
        return lambda record: as_bytes(record.value, b"") + b"\n"
    if name == "text":
        return default_lines(given)
    raise CommandError(f"There is no format {name!r}.", "There are text, json, value, and templates like '%o %k %s'.")


def named_formatter(name: str, properties: Mapping[str, str]) -> Formatter:
    """By --formatter: a class of Kafka's tools, or MODULE:NAME of the user's own."""
    last = name.rpartition("$")[2].rpartition(".")[2]
    if last in ("DefaultMessageFormatter", "NewlineMessageFormatter"):
        return default_lines(dict(properties))
    if last == "NoOpMessageFormatter":
        return lambda _: b""
    if last == "ChecksumMessageFormatter":
        raise CommandError(f"{name} shows checksums of single records.", "Records have none since Kafka 0.11.")
    own = load_named(name, "--formatter")
    made = own(dict(properties)) if isinstance(own, type) else own

    def show(record: Record) -> bytes:
        shown = made(record)
        return shown if isinstance(shown, bytes) else str(shown).encode("utf-8", "backslashreplace")

    return show


def _check(given: Mapping[str, str]) -> None:
    unknown = sorted(given.keys() - _PROPERTIES.keys())
    if unknown:
        raise CommandError(f"The formatter has no property {unknown[0]!r}.", f"There are {', '.join(_PROPERTIES)}.")


def default_lines(given: Mapping[str, str]) -> Formatter:
    """As Kafka's DefaultMessageFormatter has it, in its order."""
    _check(given)
    rules = _PROPERTIES | {name: unescaped(value) for name, value in given.items()}
    null, end = rules["null.literal"].encode(), rules["line.separator"].encode()
    between, within = rules["key.separator"].encode(), rules["headers.separator"].encode()
    parts: list[Formatter] = []
    if rules["print.timestamp"] == "true":
        parts.append(lambda record: b"%s:%d" % (_TIME_NAMES.get(record.timestamp_type, b"Time"), record.timestamp))
    if rules["print.topic"] == "true":
        parts.append(lambda record: record.topic.encode())
    if rules["print.partition"] == "true":
        parts.append(lambda record: b"Partition:%d" % record.partition)
    if rules["print.offset"] == "true":
        parts.append(lambda record: b"Offset:%d" % record.offset)
    if rules["print.epoch"] == "true":
        parts.append(lambda record: b"Epoch:%d" % record.leader_epoch)
    if rules["print.headers"] == "true":
        parts.append(lambda record: headers_text(record, within, b":", null) or b"NO_HEADERS")
    if rules["print.key"] == "true":
        parts.append(lambda record: as_bytes(record.key, null))
    if rules["print.value"] == "true":
        parts.append(lambda record: as_bytes(record.value, null))
    if len(parts) == 1:
        (part,) = parts
        return lambda record: part(record) + end
    return lambda record: between.join([part(record) for part in parts]) + end


_TIME_NAMES: Final = {_CREATE: b"CreateTime", _APPEND: b"LogAppendTime"}


def headers_text(record: Record, between: bytes, after_name: bytes, null: bytes) -> bytes:
    return between.join(name.encode() + after_name + as_bytes(value, null) for name, value in record.headers)


def json_line(record: Record) -> bytes:
    document = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **as_json("key", record.key),
        **as_json("value", record.value),
        "headers": headers_as_json(record.headers),
    }
    return json.dumps(document, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace") + b"\n"


_FIELDS: Final[dict[bytes, Formatter]] = {
    b"t": lambda record: record.topic.encode(),
    b"p": lambda record: b"%d" % record.partition,
    b"o": lambda record: b"%d" % record.offset,
    b"k": lambda record: as_bytes(record.key, b""),
    b"K": lambda record: b"%d" % _length(record.key),
    b"s": lambda record: as_bytes(record.value, b""),
    b"S": lambda record: b"%d" % _length(record.value),
    b"T": lambda record: b"%d" % record.timestamp,
    b"d": lambda record: time_text(record.timestamp).encode(),
    b"h": lambda record: headers_text(record, b",", b"=", b"NULL"),
}


def _length(value: object) -> int:
    return -1 if value is None else len(as_bytes(value))


def template(text: str) -> Formatter:
    """A template of kcat's; %d is the time for people."""
    raw = text.encode()
    parts: list[bytes | Formatter] = []
    last = 0
    for found in _TEMPLATE.finditer(raw):
        parts.append(raw[last : found.start()])
        last = found.end()
        field, number, character, lonely = found.groups()
        if field == b"%":
            parts.append(b"%")
        elif field is not None and field in _FIELDS:
            parts.append(_FIELDS[field])
        elif field is not None or lonely is not None:
            shown = (field or b"").decode("utf-8", "replace")
            raise CommandError(
                f"The template has %{shown}, which means nothing.",
                f"There are {', '.join(f'%{name.decode()}' for name in _FIELDS)} and %%.",
            )
        elif number is not None:
            parts.append(bytes.fromhex(number.decode()))
        else:
            parts.append(_CHARACTERS.get(character, b"\\" + character))
    parts.append(raw[last:] + (b"" if _ENDS_ITS_LINE.search(text) else b"\n"))
    return lambda record: b"".join([part if isinstance(part, bytes) else part(record) for part in parts])


class CodecDecoder:
    """A codec as the consumer takes it; raises NotCodable."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode

    def decode(self, topic: str, data: bytes) -> Any:
        return self._decode(bytes(data))
