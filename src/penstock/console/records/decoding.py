"""Values of records as text: JSON, Avro and Protobuf (by a registry), Protobuf without a schema, text, hex.

"auto" looks at the bytes. Nothing is lost by a wrong guess: the page offers the other formats. What is shown is
bounded, and says how much was left out.
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
import threading
import urllib.request
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

FORMATS: Final = ("auto", "json", "avro", "protobuf", "text", "hex", "int", "double")
SHOWN_CHARS: Final = 20_000
_HEX_BYTES: Final = 1024
_FRAMED: Final = 5
_MAX_DEPTH: Final = 60
_MAX_SCHEMA: Final = 4 * 1024 * 1024
_SCHEMAS: Final = 1_000
_REGISTRY_TIMEOUT_S: Final = 3.0
_PRINTABLE_SHARE: Final = 0.95


class Decoded(NamedTuple):
    """A value as text. `format` is what it was read as; `note` says what was left out or went wrong."""

    text: str
    format: str
    note: str = ""


class Schema(NamedTuple):
    kind: str
    text: str


class Registry:
    """Schemas by id, from a schema registry; only successful answers are kept."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._known: OrderedDict[int, Schema] = OrderedDict()
        self._parsed: dict[int, Any] = {}
        self._lock = threading.Lock()
        if urlsplit(self._url).scheme not in ("http", "https"):
            raise ValueError(f"{url} is not the address of a registry: use http://HOST:PORT")

    def schema(self, schema_id: int) -> Schema:
        """The schema of an id. OSError or ValueError if it cannot be had."""
        with self._lock:
            found = self._known.get(schema_id)
        if found is None:
            with urllib.request.urlopen(f"{self._url}/schemas/ids/{schema_id}", timeout=_REGISTRY_TIMEOUT_S) as answer:
                document = json.loads(answer.read(_MAX_SCHEMA))
            found = Schema(str(document.get("schemaType") or "AVRO"), str(document["schema"]))
            with self._lock:
                self._known[schema_id] = found
                while len(self._known) > _SCHEMAS:
                    oldest, _ = self._known.popitem(last=False)
                    self._parsed.pop(oldest, None)
        return found

    def avro(self, schema_id: int) -> Any:
        """The parsed Avro schema of an id."""
        parsed = self._parsed.get(schema_id)
        if parsed is None:
            import fastavro

            parsed = self._parsed[schema_id] = fastavro.parse_schema(json.loads(self.schema(schema_id).text))
        return parsed


def decode(data: bytes | None, wanted: str = "auto", registry: Registry | None = None) -> Decoded:
    """A key, value or header as text; never raises. It may ask a registry, so call it in a thread."""
    if data is None:
        return Decoded("null", "null")
    if not data:
        return Decoded("", "empty")
    if wanted == "auto":
        return _guessed(data, registry)
    try:
        return _bounded(_DECODERS[wanted](data, registry), wanted)
    except Exception as error:  # noqa: BLE001 - whatever the bytes are, the record is shown
        return Decoded(hex_text(data), "hex", f"not {wanted}: {str(error)[:200]}")


def _guessed(data: bytes, registry: Registry | None) -> Decoded:
    if data[0] == 0 and len(data) > _FRAMED:
        framed = _framed(data, registry)
        if framed is not None:
            return framed
    if data[:1] in b'{["-0123456789tfn':
        with contextlib.suppress(ValueError, RecursionError):
            return _bounded(_json(data, None), "json")
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode("utf-8")
        printable = sum(each.isprintable() or each in "\n\r\t" for each in text[:2000])
        if printable >= _PRINTABLE_SHARE * min(len(text), 2000):
            return _bounded(text, "text")
    if len(data) in (4, 8):
        return Decoded(f"{int.from_bytes(data, 'big', signed=True)}", "int", f"bytes {data.hex(' ')}")
    with contextlib.suppress(ValueError, RecursionError):
        return _bounded(_protobuf(data, None), "protobuf", "without a schema: numbers of fields instead of names")
    return Decoded(hex_text(data), "hex", f"{len(data):,} bytes")


def _framed(data: bytes, registry: Registry | None) -> Decoded | None:
    """A value with the id of a schema in front; None if that is not one."""
    schema_id = struct.unpack_from(">i", data, 1)[0]
    if registry is None:
        with contextlib.suppress(ValueError, RecursionError):
            return _bounded(_json(data[_FRAMED:], None), "json", f"schema {schema_id}")
        return None
    try:
        schema = registry.schema(schema_id)
        if schema.kind == "AVRO":
            return _bounded(_avro(data, registry), "avro", f"schema {schema_id}")
        if schema.kind == "JSON":
            return _bounded(_json(data[_FRAMED:], None), "json", f"schema {schema_id}")
        body = _without_indexes(data[_FRAMED:])
        return _bounded(_protobuf(body, None), "protobuf", f"schema {schema_id}; numbers of fields")
    except Exception as error:  # noqa: BLE001 - the registry is another system
        return Decoded(hex_text(data), "hex", f"schema {schema_id} cannot be used: {str(error)[:200]}")


def _bounded(text: str, kind: str, note: str = "") -> Decoded:
    if len(text) <= SHOWN_CHARS:
        return Decoded(text, kind, note)
    more = f"{len(text) - SHOWN_CHARS:,} more characters are not shown"
    return Decoded(text[:SHOWN_CHARS], kind, f"{note}; {more}" if note else more)


def hex_text(data: bytes) -> str:
    """Lines of 16 bytes, as `xxd` shows them."""
    lines = []
    for start in range(0, min(len(data), _HEX_BYTES), 16):
        row = data[start : start + 16]
        readable = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{start:06x}  {row.hex(' '):<47}  {readable}")
    if len(data) > _HEX_BYTES:
        lines.append(f"… {len(data) - _HEX_BYTES:,} more bytes")
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------- formats


def _json(data: bytes, _: Registry | None) -> str:
    if data[:1] == b"\0" and len(data) > _FRAMED:
        data = data[_FRAMED:]
    # Numbers stay as they are written: 1.0 and 12345678901234567890 are not rounded.
    found = json.loads(data.decode("utf-8"), parse_float=_Number, parse_int=_Number, parse_constant=_Number)
    return _pretty(found, 0)


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


def _pretty(value: Any, depth: int) -> str:
    if isinstance(value, _Number):
        return str(value)
    inner, outer = "  " * (depth + 1), "  " * depth
    if isinstance(value, dict) and value:
        parts = [f"{inner}{_quoted(name)}: {_pretty(each, depth + 1)}" for name, each in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{outer}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(inner + _pretty(each, depth + 1) for each in value) + f"\n{outer}]"
    return _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _avro(data: bytes, registry: Registry | None) -> str:
    import fastavro

    if data[:4] == b"Obj\x01":
        return json.dumps(list(fastavro.reader(io.BytesIO(data)))[:100], indent=2, default=str, ensure_ascii=False)
    if registry is None:
        raise ValueError("its schema is needed; start the console with --registry URL")
    if data[:1] != b"\0" or len(data) <= _FRAMED:
        raise ValueError("it does not begin with the id of a schema")
    schema = registry.avro(struct.unpack_from(">i", data, 1)[0])
    found = fastavro.schemaless_reader(io.BytesIO(data[_FRAMED:]), schema, None)
    return json.dumps(found, indent=2, default=_readable, ensure_ascii=False)


def _readable(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _text(data: bytes, _: Registry | None) -> str:
    return data.decode("utf-8", "replace")


def _hex(data: bytes, _: Registry | None) -> str:
    return hex_text(data)


def _int(data: bytes, _: Registry | None) -> str:
    if len(data) not in (1, 2, 4, 8):
        raise ValueError(f"it has {len(data)} bytes, not 1, 2, 4 or 8")
    return str(int.from_bytes(data, "big", signed=True))


def _double(data: bytes, _: Registry | None) -> str:
    if len(data) not in (4, 8):
        raise ValueError(f"it has {len(data)} bytes, not 4 or 8")
    return str(struct.unpack(">d" if len(data) == 8 else ">f", data)[0])


def _protobuf_wanted(data: bytes, _: Registry | None) -> str:
    if data[:1] == b"\0" and len(data) > _FRAMED:
        with contextlib.suppress(ValueError):
            return _protobuf(_without_indexes(data[_FRAMED:]), None)
    return _protobuf(data, None)


def _protobuf(data: bytes, _: Registry | None) -> str:
    """Fields by their numbers, as `protoc --decode_raw` shows them."""
    return "\n".join(_fields(memoryview(data), 0))


def _without_indexes(data: bytes) -> bytes:
    """The message behind the indexes of its type in the schema."""
    count, at = _varint(memoryview(data), 0)
    for _ in range(min(_zigzag(count), _MAX_DEPTH)):
        _index, at = _varint(memoryview(data), at)
    return data[at:]


def _zigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _fields(data: memoryview, depth: int) -> list[str]:
    if depth > _MAX_DEPTH:
        raise ValueError("messages are nested too deeply")
    lines: list[str] = []
    indent, at = "  " * depth, 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise ValueError("a field has the number 0")
        if kind == 0:
            value, at = _varint(data, at)
            lines.append(f"{indent}{number}: {value}")
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            if at + width > len(data):
                raise ValueError("a number is cut off")
            number_text = struct.unpack_from("<d" if kind == 1 else "<f", data, at)[0]
            lines.append(f"{indent}{number}: {number_text}")
            at += width
        elif kind == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("a field is cut off")
            lines += _delimited(number, data[at : at + length], depth)
            at += length
        else:
            raise ValueError(f"a field has the type {kind}")
    return lines


def _delimited(number: int, data: memoryview, depth: int) -> list[str]:
    indent = "  " * depth
    raw = bytes(data)
    with contextlib.suppress(UnicodeDecodeError):
        text = raw.decode("utf-8")
        if text.isprintable():
            return [f"{indent}{number}: {json.dumps(text, ensure_ascii=False)}"]
    with contextlib.suppress(ValueError):
        return [f"{indent}{number} {{", *_fields(data, depth + 1), f"{indent}}}"]
    return [f"{indent}{number}: {raw.hex(' ')}"]


_DECODERS: Final[dict[str, Callable[[bytes, Registry | None], str]]] = {
    "json": _json, "avro": _avro, "protobuf": _protobuf_wanted, "text": _text, "hex": _hex, "int": _int,
    "double": _double,
}  # fmt: skip
