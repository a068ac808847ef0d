"""A record as a line of JSON: what `consume --format json` writes, `produce --format json` reads.

    {"topic": "views", "partition": 0, "offset": 7, "timestamp": 1700000000000,
     "key": "u1", "value": "...", "headers": [["src", "web"]]}

Rule: what was written can be read back to the same bytes. Text is UTF-8; bytes that are not are base 64, under
`keyBase64` and `valueBase64`, and as {"base64": ...} in headers; null stays null.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

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
    }
)


def as_json(name: str, value: object) -> dict[str, Any]:
    """A key or value under its name, which says if it is base 64."""
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


class BadRecord(ValueError):
    """A line that is no record."""


def record_of(line: bytes) -> dict[str, Any]:
    """key, value (bytes or None), headers, and partition and timestamp where the line has them; raises BadRecord."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRecord("it is not a JSON object")
    unknown = [name for name in found if name not in _KNOWN]
    if unknown:
        raise BadRecord(f"a record has no {unknown[0]!r}; there is {', '.join(sorted(_KNOWN))}")
    return {
        "key": _bytes(found, "key"),
        "value": _bytes(found, "value"),
        "headers": _headers(found.get("headers")),
        "partition": _number(found, "partition"),
        "timestamp": _number(found, "timestamp"),
    }


def _number(found: dict[str, Any], name: str) -> int | None:
    number = found.get(name)
    if number is None or (isinstance(number, int) and not isinstance(number, bool) and number >= 0):
        return number
    raise BadRecord(f"{name} is {number!r}, no number from 0 on")


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
        raise BadRecord(f"{name} is not base 64") from None


def _headers(given: object) -> tuple[Header, ...]:
    if given is None:
        return ()
    pairs = list(given.items()) if isinstance(given, dict) else given
    headers: list[Header] = []
    for pair in pairs if isinstance(pairs, list) else [None]:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise BadRecord('headers are an object, or a list of ["name", "value"]')
        name, value = pair
        if isinstance(value, dict) and set(value) == {"base64"}:
            headers.append((name, _decoded(value["base64"], f"header {name}")))
        elif value is None or isinstance(value, str):
            headers.append((name, None if value is None else value.encode()))
        else:
            raise BadRecord(f"header {name} is neither text nor null")
    return tuple(headers)
