"""Keys, values and records as text: codecs by name, and records as lines of JSON.

Codecs are text, json, hex, base64, the numbers of Java's serializers, and avro:SCHEMA.avsc; class names of Kafka's
tools are accepted too. `text` is bytes as they are, in both directions. A value that does not fit its codec is an
error that shows the value. Avro is read and written as plain JSON, without union tags.

    {"topic": "views", "partition": 0, "offset": 7, "timestamp": 1700000000000,
     "key": "u1", "value": "...", "headers": [["src", "web"]]}

A record written by `consume --format json` is read back by `produce --format json` to the same bytes: bytes that are
not UTF-8 are base64, under `keyBase64` and `valueBase64`, and as {"base64": ...} in headers; null stays null. What the
console adds under `decoded` is for readers: `produce` sends the value itself.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable, Sequence
from datetime import date, time
from typing import Any, Final

from penstock.cli.output import CommandError

Encode = Callable[[bytes], bytes]
Decode = Callable[[bytes], Any]

_NUMBERS: Final = {"int": ">i", "long": ">q", "short": ">h", "float": ">f", "double": ">d"}
_JAVA: Final = {
    "string": "text", "default": "text", "bytearray": "text", "bytes": "text", "bytebuffer": "text", "null": "text",
    "integer": "int", "long": "long", "short": "short", "float": "float", "double": "double",
}  # fmt: skip
CODEC_NAMES: Final = ("text", "json", "hex", "base64", *_NUMBERS, "avro:SCHEMA.avsc")


# What the client library says about a topic is of no use where one value is meant.
_NO_TOPIC: Final = "-"


class CodecError(ValueError):
    """A key or value that does not fit its codec."""


def _plain_name(name: str) -> str:
    """The codec of a class name: `org.apache.kafka...StringDeserializer` is text."""
    if name in CODEC_NAMES or name.startswith("avro:"):
        return name
    last = name.rpartition(".")[2].lower()
    for ending in ("deserializer", "serializer", "encoder", "decoder"):
        if last.endswith(ending) and last.removesuffix(ending) in _JAVA:
            return _JAVA[last.removesuffix(ending)]
    raise CommandError(f"Unknown codec {name!r}.", f"Use one of {', '.join(CODEC_NAMES)}.")


def encoder(name: str) -> Encode | None:
    """The function from text to the bytes of a record; None if they are the same."""
    plain = _plain_name(name)
    if plain == "text":
        return None
    if plain in _NUMBERS:
        return _checked(plain, lambda data, form=_NUMBERS[plain]: struct.pack(form, _number(data, form)))  # type: ignore[misc]
    if plain == "json":
        return _checked("json", _same_json)
    if plain == "hex":
        return _checked("hex", lambda data: bytes.fromhex(data.decode("ascii")))
    if plain == "base64":
        return _checked("base64", lambda data: base64.b64decode(data, validate=True))
    avro = _avro(plain)

    def encode(data: bytes) -> bytes:
        from penstock.client.errors import SerializationError

        try:
            made = avro.encode(_NO_TOPIC, json.loads(data))
        except ValueError as error:
            raise CodecError(f"{_shown(data)} is not JSON: {error}") from None
        except SerializationError as error:
            raise CodecError(error.message.replace(f" for topic {_NO_TOPIC}", "")) from None
        return bytes(made or b"")

    return encode


def _same_json(data: bytes) -> bytes:
    json.loads(data)
    return data


def _number(data: bytes, form: str) -> float:
    return float(data) if form[-1] in "fd" else int(data)


def _checked(name: str, encode: Encode) -> Encode:
    def checked(data: bytes) -> bytes:
        try:
            return encode(data)
        except (ValueError, struct.error, binascii.Error) as error:
            raise CodecError(f"{_shown(data)} is not {name}: {error}") from None

    return checked


def decoder(name: str) -> Decode | None:
    """The function from the bytes of a record to a value to show; None for bytes as they are."""
    plain = _plain_name(name)
    if plain == "text":
        return None
    if plain in _NUMBERS:
        form = struct.Struct(_NUMBERS[plain])

        def number(data: bytes) -> Any:
            if len(data) != form.size:
                raise CodecError(f"{_shown(data)} is not {plain}: it has {len(data)} bytes, not {form.size}")
            return form.unpack(data)[0]

        return number
    if plain == "json":

        def parsed(data: bytes) -> Any:
            try:
                return json.loads(data)
            except (ValueError, RecursionError) as error:
                raise CodecError(f"{_shown(data)} is not JSON: {error}") from None

        return parsed
    if plain == "hex":
        return lambda data: data.hex()
    if plain == "base64":
        return lambda data: base64.b64encode(data).decode()
    avro = _avro(plain)

    def decode(data: bytes) -> Any:
        from penstock.client.errors import DeserializationError

        try:
            return _in_json(avro.decode(_NO_TOPIC, data))
        except DeserializationError as error:
            raise CodecError(error.message.replace(f" of topic {_NO_TOPIC}", "")) from None

    return decode


def _in_json(value: Any) -> Any:
    """An Avro value for JSON: bytes are text of the characters 0 to 255, as in Avro's own JSON."""
    if isinstance(value, dict):
        return {name: _in_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_in_json(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, date | time):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _avro(name: str) -> Any:
    from penstock.client.serializers.avro import Avro

    path = name.partition(":")[2]
    if not path:
        raise CommandError("The codec avro needs a schema.", "Use avro:SCHEMA.avsc.")
    return Avro(path)


def _shown(data: bytes) -> str:
    return repr(data[:60])[1:] + ("..." if len(data) > 60 else "")


Header = tuple[str, bytes | None]

_KNOWN = frozenset(
    {
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "key",
        "keyBase64",
        "value",
        "valueBase64",
        "headers",
        "decoded",
    }
)


def as_json(name: str, value: object) -> dict[str, Any]:
    """A key or value under its name, which tells whether it is base 64."""
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        try:
            return {name: data.decode()}
        except UnicodeDecodeError:
            return {f"{name}Base64": base64.b64encode(data).decode()}
    return {name: value}


def headers_as_json(headers: Sequence[Header]) -> list[list[Any]]:
    return [[name, _header(value)] for name, value in headers]


def _header(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


class MalformedRecord(ValueError):
    """A line that is not a record."""


def record_of(line: bytes) -> dict[str, Any]:
    """The record of a line of JSON. Raises MalformedRecord."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MalformedRecord(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise MalformedRecord("not a JSON object")
    unknown = [name for name in found if name not in _KNOWN]
    if unknown:
        raise MalformedRecord(f"a record has no {unknown[0]!r}; the fields are {', '.join(sorted(_KNOWN))}")
    return {
        "key": _bytes(found, "key"),
        "value": _bytes(found, "value"),
        "headers": _headers(found.get("headers")),
        "partition": _non_negative(found, "partition"),
        "timestamp": _non_negative(found, "timestamp"),
    }


def _non_negative(found: dict[str, Any], name: str) -> int | None:
    number = found.get(name)
    if number is None or (isinstance(number, int) and not isinstance(number, bool) and number >= 0):
        return number
    raise MalformedRecord(f"{name} is {number!r}, not a number of 0 or more")


def _bytes(found: dict[str, Any], name: str) -> bytes | None:
    if f"{name}Base64" in found:
        return _decoded(found[f"{name}Base64"], f"{name}Base64")
    value = found.get(name)
    if value is None:
        return None
    # What a decoder made (an object, a number) goes back as the JSON that it is shown as.
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()


def _decoded(text: object, name: str) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except (ValueError, binascii.Error):
        raise MalformedRecord(f"{name} is not base 64") from None


def _headers(given: object) -> tuple[Header, ...]:
    if given is None:
        return ()
    pairs = list(given.items()) if isinstance(given, dict) else given
    headers: list[Header] = []
    for pair in pairs if isinstance(pairs, list) else [None]:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise MalformedRecord('headers must be an object or a list of ["name", "value"]')
        name, value = pair
        if isinstance(value, dict) and set(value) == {"base64"}:
            headers.append((name, _decoded(value["base64"], f"header {name}")))
        elif value is None or isinstance(value, str):
            headers.append((name, None if value is None else value.encode()))
        else:
            raise MalformedRecord(f"header {name} is neither text nor null")
    return tuple(headers)
