"""Records as a file: what a browse or a search finds, as JSON lines or CSV.

A line of JSON is what `penstock consume --format json` prints, so `penstock produce --format json` reads it back to the
same bytes. A file has a bounded number of records, bytes and seconds; if the last two end it, its name says so. It is
collected before it is sent, because a name cannot be changed afterwards.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import IO, Any, Final

from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.client.errors import PenstockError
from penstock.console.app import Handler, Invalid, Visit
from penstock.console.pages.records import RecordsView, indexes_of, query_of
from penstock.console.pages.topics import name_of
from penstock.console.records.decoding import Registry, decode
from penstock.console.records.reading import Shown, ends_of, read_page
from penstock.console.records.search import search

MOST_RECORDS: Final = 10_000
_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_S: Final = 30.0
_AT_ONCE: Final = 4
_STEP: Final = 500
_AT_A_TIME: Final = 50
"""Records whose lines are in memory at once."""
_SPOOLED: Final = 2 * 1024 * 1024
_PIECE: Final = 64 * 1024
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_COLUMNS: Final = (
    "topic", "partition", "offset", "timestamp", "time", "key", "keyBase64", "value", "valueBase64", "decoded",
    "headers",
)  # fmt: skip
_TYPES: Final = {"jsonl": "application/x-ndjson; charset=utf-8", "csv": "text/csv; charset=utf-8"}
_running: Final[set[object]] = set()


async def export(visit: Visit) -> Response:
    kind = visit.query.get("as", "jsonl")
    if kind not in _TYPES:
        raise Invalid(f"{kind!r} is not a format of files; use jsonl or csv.")
    if len(_running) >= _AT_ONCE:
        return PlainTextResponse("Too many files are being collected; try again in a moment.", 503)
    file: IO[bytes] = tempfile.SpooledTemporaryFile(_SPOOLED)  # noqa: SIM115 - closed when it was sent
    _running.add(file)
    try:
        return await _exported(visit, kind, file)
    except BaseException:
        _release(file)
        raise


def _release(file: IO[bytes]) -> None:
    _running.discard(file)
    file.close()


async def _exported(visit: Visit, kind: str, file: IO[bytes]) -> Response:
    name = name_of(visit)
    indexes = await indexes_of(visit, name)
    view = RecordsView(visit, indexes)
    most = visit.number("most", MOST_RECORDS, least=1, most=MOST_RECORDS)
    is_search = any(visit.query.get(each) for each in ("find", "text", "path"))
    found = _searched(visit, name, view, most) if is_search else _browsed(visit, name, view, most)
    count, is_whole = await _collected(file, kind, name, found, visit.console.registry)
    file_name = f"{_UNSAFE.sub('_', name)}-{count}-records{'' if is_whole else '-incomplete'}.{kind}"
    headers = {"Content-Disposition": f'attachment; filename="{file_name}"', "Content-Length": str(file.tell())}
    return _FileResponse(file, _TYPES[kind], headers)


class _FileResponse(StreamingResponse):
    """Sends a file. However that ends, the file is closed, and another one may be collected."""

    def __init__(self, file: IO[bytes], media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__(_pieces(file), media_type=media_type, headers=headers)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _release(self._file)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while piece := file.read(_PIECE):
        yield piece


async def _collected(
    file: IO[bytes], kind: str, topic: str, found: AsyncIterator[list[Shown]], registry: Registry | None
) -> tuple[int, bool]:
    """Write what is found; how many records that were, and whether neither bytes nor seconds ended it."""
    import asyncio

    deadline = time.monotonic() + _MOST_S
    count = 0
    if kind == "csv":
        file.write(_csv_line(_COLUMNS))
    async with aclosing(found) as source:  # type: ignore[type-var]
        async for found_now in source:
            for at in range(0, len(found_now), _AT_A_TIME):
                records = found_now[at : at + _AT_A_TIME]
                room = _MOST_BYTES - file.tell()
                data, written = await asyncio.to_thread(_lines, kind, topic, records, registry, room)
                file.write(data)
                count += written
                if written < len(records):
                    return count, False
            # Also where nothing was found: a search for what is rare must end.
            if time.monotonic() > deadline:
                return count, False
    return count, True


def _lines(kind: str, topic: str, records: Sequence[Shown], registry: Registry | None, room: int) -> tuple[bytes, int]:
    """Records as lines, as many as fit."""
    lines, used, count = [], 0, 0
    for record in records:
        if record.problem:
            count += 1  # a batch that cannot be read is no record
            continue
        document = document_of(topic, record, registry)
        line = _csv_line(_cells(document)) if kind == "csv" else _json_line(document)
        used += len(line)
        if used > room:
            break
        lines.append(line)
        count += 1
    return b"".join(lines), count


def document_of(topic: str, record: Shown, registry: Registry | None) -> dict[str, Any]:
    """A record as JSON. What a registry's schema makes of its value is added under "decoded"."""
    document: dict[str, Any] = {
        "topic": topic, "partition": record.partition, "offset": record.offset,
        "timestamp": record.timestamp if record.timestamp >= 0 else None,  # without one, a new record gets its own
        **_named("key", record.key), **_named("value", record.value),
        "headers": [[name, _header(value)] for name, value in record.headers],
    }  # fmt: skip
    if registry is not None and record.value is not None and record.value[:1] == b"\0":
        decoded = decode(record.value, "auto", registry)
        if decoded.format in ("avro", "protobuf", "json"):
            document["decoded"] = decoded.text
    return document


def _named(name: str, data: bytes | None) -> dict[str, Any]:
    """Bytes under a name, which tells whether they are base 64."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data).decode()}


def _header(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _json_line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _cells(document: dict[str, Any]) -> list[str]:
    stamp = document["timestamp"]
    cells = {**document, "headers": json.dumps(document["headers"], ensure_ascii=False), "time": ""}
    if stamp is not None and stamp < 253_402_300_800_000:
        cells["time"] = datetime.fromtimestamp(stamp / 1000, UTC).isoformat(timespec="milliseconds")
    return ["" if cells.get(name) is None else str(cells[name]) for name in _COLUMNS]


def _csv_line(cells: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow([_harmless(cell) for cell in cells])
    return text.getvalue().encode("utf-8", "replace")


def _harmless(cell: str) -> str:
    """A spreadsheet must not run a value as a formula."""
    if not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


# --------------------------------------------------------------------------------------------------- what is found


async def _browsed(visit: Visit, name: str, view: RecordsView, most: int) -> AsyncIterator[list[Shown]]:
    """The records from an offset or a time on; by default the newest, as many of each partition."""
    admin, start, time_ms = visit.account.admin, view.start, view.from_ms
    if start is None and time_ms is None and view.partitions:
        from penstock.client.cluster_metadata import TopicPartition

        starts, ends = await ends_of(admin, [TopicPartition(name, index) for index in view.partitions], view.isolation)
        share = -(-most // len(view.partitions))
        start = {key.partition: max(starts[key], end - share) for key, end in ends.items()}
    while most > 0:
        found = await read_page(
            admin, name, view.partitions, limit=min(_STEP, most), isolation=view.isolation, start=start,
            time_ms=time_ms if start is None else None,
        )  # fmt: skip
        yield sorted(found.records, key=lambda each: (each.timestamp, each.partition, each.offset))[:most]
        most -= len(found.records)
        if found.is_at_end or found.next == start:
            return
        start = dict(found.next)


async def _searched(visit: Visit, name: str, view: RecordsView, most: int) -> AsyncIterator[list[Shown]]:
    """The matches, some hundred at a time: a search that pauses is continued where it was."""
    start, is_paused = view.start, True
    while is_paused and most > 0:
        steps = search(
            visit.account.admin, name, view.partitions, query_of(visit, hits=min(_STEP, most)),
            isolation=view.isolation, from_ms=view.from_ms, to_ms=view.to_ms, start=start,
        )  # fmt: skip
        async with aclosing(steps) as source:  # type: ignore[type-var]
            async for step in source:
                if step.end == "failed":
                    raise PenstockError(step.problem)
                yield step.hits
                most -= len(step.hits)
                start, is_paused = dict(step.positions), step.end == "paused"


PAGES: Final[dict[str, Handler]] = {"/topics/{topic}/export": export}
CHANGES: Final[dict[str, Handler]] = {}
