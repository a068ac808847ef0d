"""Records out of standard input and files.

Noun: a reader: it is given pieces of a stream and gives records.

Rule: whatever has arrived is handed on at once, so a line typed by hand goes out when Enter is pressed, and a file goes
out by the megabyte. A line's end is LF or CRLF; the last line needs none. A line longer than any record may be is
refused before it fills the memory. Properties are those of Kafka's LineMessageReader.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from penstock.cli.coding import Encode, NotCodable
from penstock.cli.output import CommandError
from penstock.cli.record_json import BadRecord, Header, record_of
from penstock.client.producer import ProducerRecord

PIECE_BYTES: Final = 1024 * 1024
_MOST_LINE_BYTES: Final = 128 * 1024 * 1024
_PROPERTIES: Final = {
    "parse.key": "false", "key.separator": "\t", "parse.headers": "false", "headers.delimiter": "\t",
    "headers.separator": ",", "headers.key.separator": ":", "ignore.error": "false", "null.marker": "",
}  # fmt: skip
_ESCAPES: Final = {"\\t": "\t", "\\n": "\n", "\\0": "\0", "\\\\": "\\"}


@dataclass(frozen=True, slots=True)
class LineRules:
    """How a line becomes a record."""

    key_separator: bytes | None = None
    headers_delimiter: bytes | None = None
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    fixed_key: bytes | None = None
    fixed_headers: tuple[Header, ...] = ()
    encode_key: Encode | None = None
    encode_value: Encode | None = None
    is_json: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether lines are values as they are."""
        return self == LineRules()


def rules_from(properties: Mapping[str, str], **options: Any) -> LineRules:
    """Properties as Kafka's tool has them, and what the options say."""
    unknown = sorted(properties.keys() - _PROPERTIES.keys())
    if unknown:
        raise CommandError(f"The reader has no property {unknown[0]!r}.", f"There are {', '.join(_PROPERTIES)}.")
    given = _PROPERTIES | {name: unescaped(value) for name, value in properties.items()}
    return LineRules(
        key_separator=given["key.separator"].encode() if given["parse.key"] == "true" else None,
        headers_delimiter=given["headers.delimiter"].encode() if given["parse.headers"] == "true" else None,
        headers_separator=given["headers.separator"].encode(),
        headers_key_separator=given["headers.key.separator"].encode(),
        null_marker=given["null.marker"].encode() or None,
        **options,
    )


def unescaped(text: str) -> str:
    r"""A separator as it is typed: \t is a tabulator."""
    for written, meant in _ESCAPES.items():
        text = text.replace(written, meant)
    return text


Wanted = Callable[[int, BaseException], None]
Piece = list[bytes] | list[ProducerRecord]


def line_records(stream: BinaryIO, rules: LineRules, on_bad: Wanted) -> Iterator[Piece]:
    """Lists of values or records, one for each piece that was read; `on_bad` is told of lines that are none."""
    number = 0
    for lines in pieces_of_lines(stream):
        if rules.is_plain:
            yield lines
            continue
        records: list[ProducerRecord] = []
        for line in lines:
            number += 1
            try:
                records.append(_record(line, rules))
            except (BadRecord, NotCodable) as error:
                # What came before it goes out before anything is said about it.
                if records:
                    yield records
                    records = []
                on_bad(number, error)
        if records:
            yield records


def pieces_of_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """The lines of a stream, as many at a time as have arrived."""
    read = getattr(stream, "read1", stream.read)
    pieces: list[bytes] = []
    size = 0
    while data := read(PIECE_BYTES):
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            pieces.append(data)
            size += len(data)
            if size > _MOST_LINE_BYTES:
                raise CommandError(
                    f"A line is longer than {_MOST_LINE_BYTES} bytes.", "Send the file as one record with --format raw."
                )
            continue
        lines = (b"".join(pieces) + head).split(b"\n")
        pieces, size = [tail] if tail else [], len(tail)
        yield [line[:-1] if line.endswith(b"\r") else line for line in lines]
    if pieces:
        yield [b"".join(pieces)]


def _record(line: bytes, rules: LineRules) -> ProducerRecord:
    if rules.is_json:
        found = record_of(line)
        key, value, headers = found["key"], found["value"], found["headers"]
        partition, timestamp_ms = found["partition"], found["timestamp"]
    else:
        partition = timestamp_ms = None
        headers, rest = _headers(line, rules)
        key, value = _key(rest, rules)
    if rules.null_marker is not None:
        key = None if key == rules.null_marker else key
        value = None if value == rules.null_marker else value
    if rules.encode_key is not None and key is not None:
        key = rules.encode_key(key)
    if rules.encode_value is not None and value is not None:
        value = rules.encode_value(value)
    if key is None:
        key = rules.fixed_key
    return ProducerRecord(value, key, [*rules.fixed_headers, *headers] or None, partition, timestamp_ms)


def _headers(line: bytes, rules: LineRules) -> tuple[list[Header], bytes]:
    if rules.headers_delimiter is None:
        return [], line
    text, found, rest = line.partition(rules.headers_delimiter)
    if not found:
        raise BadRecord(f"there is no {rules.headers_delimiter.decode()!r} after its headers")
    if rules.null_marker is not None and text == rules.null_marker:
        return [], rest
    headers: list[Header] = []
    for part in text.split(rules.headers_separator) if text else []:
        name, found, value = part.partition(rules.headers_key_separator)
        if not found:
            raise BadRecord(f"header {part!r} has no {rules.headers_key_separator.decode()!r}")
        is_null = rules.null_marker is not None and value == rules.null_marker
        headers.append((name.decode("utf-8", "replace"), None if is_null else value))
    return headers, rest


def _key(line: bytes, rules: LineRules) -> tuple[bytes | None, bytes | None]:
    if rules.key_separator is None:
        return None, line
    key, found, value = line.partition(rules.key_separator)
    if not found:
        raise BadRecord(f"there is no {rules.key_separator.decode()!r} between key and value")
    return key, value


def whole_records(stream: BinaryIO, rules: LineRules, on_bad: Wanted) -> Iterator[Piece]:
    """All of a stream as the value of one record."""
    data = stream.read(_MOST_LINE_BYTES + 1)
    if len(data) > _MOST_LINE_BYTES:
        raise CommandError(f"It is longer than {_MOST_LINE_BYTES} bytes.", "No broker takes a record of this size.")
    try:
        value = rules.encode_value(data) if rules.encode_value is not None else data
    except NotCodable as error:
        on_bad(1, error)
        return
    yield [ProducerRecord(value, rules.fixed_key, list(rules.fixed_headers) or None)]


def own_reader(name: str, properties: Mapping[str, str]) -> Callable[[BinaryIO], Iterable[Any]]:
    """`module:function` of the user's: called with the stream and the properties, it gives values or records."""
    function = load_named(name, "--reader")
    return lambda stream: function(stream, dict(properties))


def load_named(name: str, option: str) -> Callable[..., Any]:
    """What `module:name` means in Python; the working directory is looked into as well, last: it shadows nothing."""
    import os
    import sys

    module, colon, attribute = name.partition(":")
    advice = f"{option} takes MODULE:NAME, a function or class of Python that can be imported from here."
    if not colon or not attribute:
        raise CommandError(f"{option} is {name!r}.", advice)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise CommandError(f"{name} cannot be loaded: {error}.", advice) from None
    if not callable(found):
        raise CommandError(f"{name} is not a function or class.", advice)
    return found  # type: ignore[no-any-return]
