"""Records of a topic: browse from an offset or a time, live tail, search, produce.

All three views show the same rows, made here. The script inserts what the event streams send; without it, browsing
works all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from penstock.client.errors import PenstockError, UnknownTopic
from penstock.console.app import Handler, Invalid, Visit, checked_int
from penstock.console.html import (
    Child,
    Html,
    duration,
    h,
    joined,
    moment,
    number,
    path_of,
    shown,
    size,
    with_query,
)
from penstock.console.pages.layout import (
    Change,
    Column,
    area_field,
    change_form,
    check_field,
    confirmed,
    empty,
    event,
    event_stream,
    field,
    page,
    select_field,
    text_field,
)
from penstock.console.pages.topics import name_of, topic_head
from penstock.console.records.decoding import FORMATS, Registry, decode
from penstock.console.records.reading import Isolation, PageOfRecords, Shown, read_page
from penstock.console.records.search import (
    WHERE,
    InvalidSearch,
    Matcher,
    Progress,
    Query,
    Step,
    Where,
    search,
)
from penstock.console.records.tail import tail

LIMITS: Final = (25, 50, 100, 250)
_PREVIEW_CHARS: Final = 240
_MOST_CURSOR: Final = 5_000
_VALUE_KINDS: Final = (
    ("text", "text"), ("json", "JSON, checked"), ("hex", "hex bytes"), ("null", "null: deletes the key on compaction"),
)  # fmt: skip
_FORMATS: Final = [(each, each if each != "auto" else "automatic") for each in FORMATS]


class RecordsView:
    """What the query of a records page asks for."""

    def __init__(self, visit: Visit, indexes: Sequence[int]) -> None:
        query = visit.query
        self.partition = query.get("partition", "")
        self.partitions = list(indexes)
        if self.partition:
            index = checked_int(self.partition, "The partition")
            if index not in indexes:
                raise Invalid(f"There is no partition {index} that can be read; {len(indexes)} have a leader.")
            self.partitions = [index]
        self.limit = visit.number("limit", 50, least=1, most=LIMITS[-1])
        self.isolation: Isolation = "read_uncommitted" if query.get("all") == "1" else "read_committed"
        self.key_format = query.get("key", "auto") if query.get("key") in FORMATS else "auto"
        self.value_format = query.get("value", "auto") if query.get("value") in FORMATS else "auto"
        self.offset = checked_int(query["offset"], "The offset") if query.get("offset", "").strip() else None
        self.from_ms = time_of(query.get("from", ""))
        self.to_ms = time_of(query.get("to", ""))
        self.start = cursor_of(query.get("at", ""))
        if self.start is None and self.offset is not None:
            self.start = dict.fromkeys(self.partitions, self.offset)


def time_of(text: str) -> int | None:
    """Milliseconds of `2026-11-15T10:30` (UTC) or of a number; Invalid if it is neither."""
    text = text.strip()
    if not text:
        return None
    if text.isdigit() and len(text) <= 14:
        return int(text)
    try:
        moment_ = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{text!r} is not a time; write 2026-11-15T10:30, or milliseconds since 1970.") from None
    if moment_.tzinfo is None:
        moment_ = moment_.replace(tzinfo=UTC)
    return max(0, int(moment_.timestamp() * 1000))


def cursor_of(text: str) -> dict[int, int] | None:
    """Offsets by partition: 0:120,1:7."""
    if not text:
        return None
    if len(text) > _MOST_CURSOR:
        raise Invalid("The position in the address is too long.")
    found = {}
    for part in text.split(","):
        index, colon, offset = part.partition(":")
        if not colon or not index.isdigit() or not offset.isdigit():
            raise Invalid(f"{part!r} in the address is not PARTITION:OFFSET.")
        found[int(index)] = int(offset)
    return found


def cursor_text(positions: Mapping[int, int]) -> str:
    """The positions for an address; empty if they do not fit into one, as with a thousand partitions."""
    text = ",".join(f"{index}:{offset}" for index, offset in sorted(positions.items()))
    return text if len(text) <= _MOST_CURSOR else ""


async def indexes_of(visit: Visit, name: str) -> list[int]:
    """The partitions that can be read: a topic is shown without those that have no leader."""
    described = await visit.account.admin.describe_topic(name)
    return [part.index for part in described.partitions if part.leader is not None]


# --------------------------------------------------------------------------------------------------- browsing


async def records(visit: Visit) -> Response:
    name = name_of(visit)
    indexes = await indexes_of(visit, name)
    view = RecordsView(visit, indexes)
    found = await read_page(
        visit.account.admin, name, view.partitions, limit=view.limit, isolation=view.isolation, start=view.start,
        time_ms=view.from_ms if view.start is None else None,
    )  # fmt: skip
    rows = await rows_of(visit, name, found.records, view.key_format, view.value_format)
    head, links = topic_head(visit, name)
    return page(
        visit,
        f"Records of {name}",
        links,
        _tools(visit, name, view, indexes),
        h.div(id="progress", cls="progress", role="status", aria_live="polite"),
        _records_table(rows),
        h.div(_nothing(found), id="nothing") if not rows else None,
        _moves(visit, name, view, found),
        heading=head,
    )


def _nothing(found: PageOfRecords) -> Html:
    if found.is_empty_topic:
        return empty("No records: the first offset of each partition is its end.")
    looked = ", ".join(
        f"{index}: {number(at)}\u2013{number(found.next.get(index, at))}" for index, at in list(found.first.items())[:8]
    )
    if found.is_at_end:
        return empty(f"No records from there to the end. Looked at offsets (by partition) {looked}.")
    return empty(f"No visible records in the offsets that were looked at (by partition {looked}); there are more.")


def _records_table(rows: Iterable[Html]) -> Html:
    heads = [Column("Time"), Column("Partition", True), Column("Offset", True), Column("Key"), Column("Value")]
    return h.div(
        h.table(
            h.caption("Records", cls="hidden"),
            h.thead(h.tr([h.th(each.title, cls="num" if each.is_number else None, scope="col") for each in heads])),
            h.tbody(rows, id="records"),
            cls="records",
        ),
        cls="scroll", role="region", aria_label="Records", tabindex="0",
    )  # fmt: skip


async def rows_of(visit: Visit, name: str, found: Sequence[Shown], key_format: str, value_format: str) -> list[Html]:
    """The rows of records, decoded in a thread: a registry may have to be asked."""
    registry = visit.console.registry
    servers, words = visit.account.servers, visit.console.options.words

    def rows() -> list[Html]:
        return [_row(name, each, key_format, value_format, registry, (servers, *words)) for each in found]

    return await asyncio.to_thread(rows) if found else []


def _row(
    name: str, record: Shown, key_format: str, value_format: str, registry: Registry | None, words: tuple[str, ...]
) -> Html:
    where = h.a(
        number(record.offset), href=with_query(
            path_of("topics", name, "records"), partition=record.partition, offset=record.offset
        ),
    )  # fmt: skip
    if record.problem:
        return h.tr(
            h.td(moment(record.timestamp)), h.td(str(record.partition), cls="num"), h.td(where, cls="num"),
            h.td(h.span(f"cannot be read: {record.problem}", cls="bad-text"), colspan=2),
        )  # fmt: skip
    key, value = decode(record.key, key_format, registry), decode(record.value, value_format, registry)
    details = h.details(
        h.summary(_preview(value.text, value.format)),
        h.div(
            _part("Value", value.text, value.format, value.note, record.value),
            _part("Key", key.text, key.format, key.note, record.key),
            _headers(record.headers),
            _copies(name, record, words),
            cls="detail",
        ),
    )
    return h.tr(
        h.td(moment(record.timestamp)), h.td(str(record.partition), cls="num"), h.td(where, cls="num"),
        h.td(_preview(key.text, key.format, 60)), h.td(details, cls="value"),
    )  # fmt: skip


def _preview(text: str, kind: str, chars: int = _PREVIEW_CHARS) -> Html:
    if kind in ("null", "empty"):
        return h.span(kind, cls="none")
    one_line = " ".join(text[: chars * 4].split())
    return h.span(one_line[:chars] + ("…" if len(one_line) > chars else ""), cls="mono")


def _part(title: str, text: str, kind: str, note: str, data: bytes | None) -> Html:
    length = "" if data is None else f" · {size(len(data))}"
    return h.div(
        h.h3(f"{title} ", h.small(f"{kind}{length}{' · ' + note if note else ''}")),
        h.div(h.pre(h.code(text), tabindex="0"),
              h.button("Copy", type_="button", cls="copy", data_copy=text), cls="code") if text else None,
    )  # fmt: skip


def _headers(headers: Sequence[tuple[str, bytes | None]]) -> Html | None:
    if not headers:
        return None
    return h.div(
        h.h3("Headers"), h.dl([h.div(h.dt(name), h.dd(decode(value).text)) for name, value in headers], cls="headers")
    )


def _copies(name: str, record: Shown, words: tuple[str, ...]) -> Html:
    import shlex

    servers, *more = words
    command = shlex.join(
        ["penstock", "consume", f"{name}:{record.partition}", "--offset", str(record.offset), "-n", "1", "--format",
         "json", "-b", servers, *more]
    )  # fmt: skip
    python = (
        "from penstock import Consumer\n\n"
        f"with Consumer(bootstrap_servers={servers!r}) as consumer:\n"
        f"    consumer.assign([({name!r}, {record.partition})])\n"
        f"    consumer.seek(({name!r}, {record.partition}), {record.offset})\n"
        "    print(next(iter(consumer)))\n"
    )
    return h.div(
        h.button("Copy as command", type_="button", cls="copy", data_copy=command),
        h.button("Copy as Python", type_="button", cls="copy", data_copy=python),
        h.a(
            "Produce again",
            href=with_query(path_of("topics", name, "produce"), again=f"{record.partition}:{record.offset}"),
            cls="button copy",
        ),
        cls="copies",
    )


def _moves(visit: Visit, name: str, view: RecordsView, found: PageOfRecords) -> Html:
    """Links to older and newer records."""
    kept = {key: value for key, value in visit.query.items() if key not in ("at", "offset", "from")}
    path = path_of("topics", name, "records")
    share = max(1, view.limit // max(1, len(view.partitions)))
    newest = view.start is None and view.from_ms is None
    base = dict(found.first)
    if newest:  # more was read than is shown
        base = dict(found.ends)
        for record in found.records:
            base[record.partition] = min(record.offset, base[record.partition])
    older = {index: max(found.starts[index], offset - share) for index, offset in base.items()}
    has_older = bool(cursor_text(older)) and any(base[index] > found.starts[index] for index in base)
    links: list[Child] = []
    if has_older:
        links.append(h.a("Older", href=with_query(path, **kept, at=cursor_text(older)), rel="prev"))
    if not found.is_at_end and cursor_text(found.next):
        links.append(h.a("Newer", href=with_query(path, **kept, at=cursor_text(found.next)), rel="next"))
    if not newest:
        links.append(h.a("Newest", href=with_query(path, **kept)))
    total = sum(found.ends.values()) - sum(found.starts.values())
    return h.nav(
        h.span(f"{number(len(found.records))} records shown; the topic has {number(total)} offsets here"),
        joined(links), cls="pager", aria_label="Pages",
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------- tools


def _tools(visit: Visit, name: str, view: RecordsView, indexes: Sequence[int]) -> Html:
    query = visit.query
    path = path_of("topics", name, "records")
    choices = [("", "all"), *((str(index), str(index)) for index in indexes[:500])]
    common = [
        select_field("partition", "Partition", choices, view.partition),
        select_field("key", "Key as", _FORMATS, view.key_format),
        select_field("value", "Value as", _FORMATS, view.value_format),
    ]
    browse = h.form(
        h.div(
            common,
            text_field("offset", "From offset", query.get("offset", ""), inputmode="numeric", size=12),
            text_field("from", "From time (UTC)", query.get("from", ""), type_="datetime-local", step="1"),
            select_field("limit", "Records", [(str(each), str(each)) for each in LIMITS], str(view.limit)),
            check_field("all", "with aborted and open transactions", checked=view.isolation == "read_uncommitted"),
            cls="fields",
        ),
        h.div(
            h.button("Show", cls="primary"),
            h.button("Live tail", type_="button", id="tail", data_events=path_of("topics", name, "tail.events"),
                     aria_pressed="false"),
            _downloads(name),
            cls="actions",
        ),
        method="get", action=path, cls="card tools", id="browse", aria_label="Browse",
    )  # fmt: skip
    find = h.form(
        h.input(type_="hidden", name="find", value="1"),  # a download of an empty search is not one of all records
        h.div(
            field("Search for", h.input(type_="search", name="text", value=query.get("text", ""), autocomplete="off",
                                        spellcheck="false", maxlength=1000, data_search=True)),
            select_field("where", "In", [(each, "JSON path" if each == "json" else each) for each in WHERE],
                         query.get("where", "anywhere")),
            text_field("path", "JSON path", query.get("path", ""), placeholder="user.id or items[*].price"),
            text_field("from", "From time (UTC)", query.get("from", ""), type_="datetime-local", step="1"),
            text_field("to", "To time (UTC)", query.get("to", ""), type_="datetime-local", step="1"),
            check_field("exact", "whole value"), check_field("nocase", "ignore case"),
            cls="fields",
        ),
        h.div(
            h.button("Search", cls="primary"), h.button("Stop", type_="button", id="stop", disabled=True),
            _downloads(name),
            cls="actions",
        ),
        method="get", action=path, cls="card tools", id="search", role="search", aria_label="Search records",
        data_events=path_of("topics", name, "search.events"),
    )  # fmt: skip
    return h.div(browse, find, cls="toolbox")


def _downloads(name: str) -> Html:
    """The buttons that make a file of what the form finds."""
    path = path_of("topics", name, "export")
    return joined(
        *(
            h.button(label, name="as", value=kind, formaction=path, title="At most 10,000 records")
            for kind, label in (("jsonl", "Download JSON"), ("csv", "Download CSV"))
        )
    )


# --------------------------------------------------------------------------------------------------- live tail


async def tail_events(visit: Visit) -> Response:
    name = name_of(visit)
    view = RecordsView(visit, await indexes_of(visit, name))
    matcher = None
    if visit.query.get("text"):
        matcher = Matcher(query_of(visit))

    async def stream() -> AsyncIterator[str]:
        arrivals = tail(
            visit.account.admin, name, view.partitions, isolation=view.isolation, matcher=matcher, start=view.start
        )
        async with aclosing(arrivals) as source:  # type: ignore[type-var]
            try:
                async for each in source:
                    rows = await rows_of(visit, name, each.records, view.key_format, view.value_format)
                    rows.reverse()
                    yield event(
                        "records",
                        {"html": joined(rows), "count": len(rows), "skipped": each.skipped,
                         "at": cursor_text(each.positions), "problem": each.problem},
                    )  # fmt: skip
            except PenstockError as error:
                yield event("failed", {"problem": error.message})

    return event_stream(stream())


# --------------------------------------------------------------------------------------------------- search


def query_of(visit: Visit, hits: int | None = None) -> Query:
    query = visit.query
    where: Where = next((each for each in WHERE if each == query.get("where")), "anywhere")
    try:
        return Query(
            query.get("text", ""), where, query.get("path", ""), is_exact=query.get("exact") == "1",
            ignores_case=query.get("nocase") == "1", hits=hits or visit.number("hits", 100, least=1, most=500),
        )  # fmt: skip
    except InvalidSearch as error:
        raise Invalid(str(error)) from None


async def search_events(visit: Visit) -> Response:
    name = name_of(visit)
    try:
        wanted = query_of(visit)
        view = RecordsView(visit, await indexes_of(visit, name))
    except Invalid as error:
        return JSONResponse({"problem": error.text}, 400)
    except UnknownTopic as error:
        return JSONResponse({"problem": error.message}, 404)

    async def stream() -> AsyncIterator[str]:
        steps = search(
            visit.account.admin, name, view.partitions, wanted, isolation=view.isolation, from_ms=view.from_ms,
            to_ms=view.to_ms, start=view.start,
        )  # fmt: skip
        async with aclosing(steps) as source:  # type: ignore[type-var]
            async for step in source:
                rows = await rows_of(visit, name, step.hits, view.key_format, view.value_format)
                yield event("step", _step_document(step, rows))

    return event_stream(stream())


def _step_document(step: Step, rows: list[Html]) -> dict[str, Any]:
    progress = step.progress
    return {
        "html": joined(rows),
        "share": round(progress.share, 4),
        "text": progress_text(progress, step.end, step.problem),
        "end": step.end,
        "at": cursor_text(step.positions),
        "looked": progress.looked,
        "matched": progress.matched,
    }


def progress_text(progress: Progress, end: str, problem: str) -> str:
    """Where a search is, in words: what it has found always comes with what it has looked at."""
    looked = f"{number(progress.looked)} of {number(progress.total)} offsets"
    speed = f"{size(progress.read_bytes)} in {duration(progress.took_s)} ({size(progress.bytes_per_s)}/s)"
    hits = f"{number(progress.matched)} found"
    if end == "complete":
        found = hits if progress.matched else "Nothing found"
        return f"{found} in all {number(progress.total)} offsets of this range; {speed}"
    if end == "paused":
        return f"{hits}; paused after {looked}; {speed}"
    if end == "failed":
        return f"Stopped after {looked}, {hits}: {problem}"
    return f"{hits} so far; looked at {looked} ({progress.share:.0%}); {speed}"


# --------------------------------------------------------------------------------------------------- produce


async def _template(visit: Visit, name: str, indexes: Sequence[int]) -> dict[str, str]:
    """The fields of the form; those of a record, to produce it again, if the address names one."""
    start = cursor_of(visit.query.get("again", ""))
    if start is None:
        return {}
    chosen = [index for index in start if index in indexes][:1]
    found = await read_page(visit.account.admin, name, chosen, limit=1, start=start)
    if not found.records or found.records[0].problem:
        raise Invalid("There is no such record any more.")
    record = found.records[0]
    fields = {"partition": str(record.partition), "key": decode(record.key, "text").text if record.key else ""}
    fields["headers"] = "\n".join(f"{key}={decode(value, 'text').text}" for key, value in record.headers)
    if record.value is None:
        return {**fields, "format": "null"}
    text = record.value.decode("utf-8", "replace")
    # A form changes line ends, and what cannot be seen is shown as an escape: such values go as bytes.
    if text.encode() == record.value and shown(text) == text and "\r" not in text:
        return {**fields, "value": text, "format": "text"}
    return {**fields, "value": record.value.hex(" "), "format": "hex"}


async def produce_page(visit: Visit) -> Response:
    name = name_of(visit)
    indexes = await indexes_of(visit, name)
    given = await _template(visit, name, indexes)
    head, links = topic_head(visit, name)
    choices = [("", "by the key"), *((str(index), str(index)) for index in indexes[:500])]
    return page(
        visit,
        f"Produce to {name}",
        links,
        change_form(
            visit, path_of("topics", name, "produce"),
            h.div(
                text_field("key", "Key", given.get("key", ""), hint="Text; empty for none."),
                select_field("partition", "Partition", choices, given.get("partition", "")),
                select_field("format", "Value is", _VALUE_KINDS, given.get("format", "")),
                cls="fields",
            ),
            area_field("value", "Value", given.get("value", ""), rows=10),
            area_field("headers", "Headers", given.get("headers", ""), hint="One NAME=VALUE on each line.", rows=3),
            button="Produce", cls="form card",
        ),
        heading=head,
    )  # fmt: skip


def _value_of(form: Mapping[str, str]) -> bytes | None:
    text, kind = form.get("value", "").replace("\r\n", "\n"), form.get("format", "text")
    if kind == "null":
        return None
    if kind == "hex":
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise Invalid(f"The value is not hex: {error}.") from None
    if kind == "json":
        import json

        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Invalid(f"The value is not JSON: {error}.") from None
    return text.encode()


def _headers_of(text: str) -> list[tuple[str, bytes]]:
    found = []
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if line.strip() and not equals:
            raise Invalid(f"{line.strip()!r} is not NAME=VALUE.")
        if line.strip():
            found.append((name.strip(), value.encode()))
    return found


async def produce(visit: Visit) -> Response:
    from penstock.client.producer import AsyncProducer

    name = name_of(visit)
    value, headers = _value_of(visit.form), _headers_of(visit.form.get("headers", ""))
    key = visit.form.get("key", "").encode() or None
    partition = checked_int(visit.form["partition"], "The partition") if visit.form.get("partition") else None
    words = ["produce", name] + (["--partition", str(partition)] if partition is not None else [])
    where = path_of("topics", name, "records")
    shown = "null" if value is None else f"{size(len(value))}"
    change = Change(
        f"Produce to {name}",
        [h.p("One record is written to ", h.strong(name), f": key {visit.form.get('key') or 'none'}, value {shown}, "
             f"{len(headers)} headers."),
         h.p("The command reads one JSON document on each line, with the key, the value and the headers.")],
        visit.command(*words, "--format", "json"), "Produce the record", f"The record was written to {name}.", where,
    )  # fmt: skip

    async def apply() -> None:
        async with AsyncProducer(visit.account.servers, **visit.account.options_for("penstock-console")) as producer:
            await producer.send(name, value, key=key, partition=partition, headers=headers)

    return await confirmed(visit, change, apply)


PAGES: Final[dict[str, Handler]] = {
    "/topics/{topic}/records": records,
    "/topics/{topic}/tail.events": tail_events,
    "/topics/{topic}/search.events": search_events,
    "/topics/{topic}/produce": produce_page,
}
CHANGES: Final[dict[str, Handler]] = {"/topics/{topic}/produce": produce}
