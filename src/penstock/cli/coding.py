"""Keys and values on the command line: from what is typed to bytes, and from bytes to what is shown.

Noun: a codec by name: text, json, hex, base64, the numbers of Java's serializers, avro:SCHEMA.avsc. The class names of
Kafka's own tools are understood as well.

Rule: `text` is bytes as they are, in both directions. A value that does not fit its codec is an error that shows it.
Avro is typed and shown as JSON, in the plain way: no union says which of its types is meant.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable
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
NAMES: Final = ("text", "json", "hex", "base64", *_NUMBERS, "avro:SCHEMA.avsc")


# What the client library says about a topic is of no use where one value is meant.
_NO_TOPIC: Final = "-"


class NotCodable(ValueError):
    """A key or value that does not fit its codec."""


def _plain_name(name: str) -> str:
    """`kafka.serializer.StringEncoder` and `org.apache.kafka...StringDeserializer` are text."""
    if name in NAMES or name.startswith("avro:"):
        return name
    last = name.rpartition(".")[2].lower()
    for ending in ("deserializer", "serializer", "encoder", "decoder"):
        if last.endswith(ending) and last.removesuffix(ending) in _JAVA:
            return _JAVA[last.removesuffix(ending)]
    raise CommandError(f"There is no codec {name!r}.", f"There are {', '.join(NAMES)}.")


def encoder(name: str) -> Encode | None:
    """From what is typed to the bytes of a record; None: they are the same."""
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
            raise NotCodable(f"{_shown(data)} is not JSON: {error}") from None
        except SerializationError as error:
            raise NotCodable(error.message.replace(f" for topic {_NO_TOPIC}", "")) from None
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
            raise NotCodable(f"{_shown(data)} is not {name}: {error}") from None

    return checked


def decoder(name: str) -> Decode | None:
    """From the bytes of a record to a value to show; None: bytes as they are."""
    plain = _plain_name(name)
    if plain == "text":
        return None
    if plain in _NUMBERS:
        form = struct.Struct(_NUMBERS[plain])

        def number(data: bytes) -> Any:
            if len(data) != form.size:
                raise NotCodable(f"{_shown(data)} is not {plain}: it has {len(data)} bytes, not {form.size}")
            return form.unpack(data)[0]

        return number
    if plain == "json":

        def parsed(data: bytes) -> Any:
            try:
                return json.loads(data)
            except (ValueError, RecursionError) as error:
                raise NotCodable(f"{_shown(data)} is not JSON: {error}") from None

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
            raise NotCodable(error.message.replace(f" of topic {_NO_TOPIC}", "")) from None

    return decode


def _in_json(value: Any) -> Any:
    """A value of Avro as JSON can show it: bytes are text of the characters 0 to 255, as in Avro's own JSON."""
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
        raise CommandError("avro needs a schema.", "Write avro:SCHEMA.avsc.")
    return Avro(path)


def _shown(data: bytes) -> str:
    return repr(data[:60])[1:] + ("..." if len(data) > 60 else "")
