"""Pipelines and tables: until when each table is complete, its audit by hour, its dead letters and their replay.

Tables are files of the console's user, so a visitor's own rights decide what is shown of them: those who may
describe the topic see its table in the list, with its counts, those who may read it see its counts by hour and its dead
letters, and those who may alter the topic's settings may try the dead letters again. Pipelines, and what failed, may be
about any topic: they are for those who may describe the cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from html import escape
from typing import Any, Final

from starlette.responses import Response

from penstock.client.admin import ConfigResource
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import PenstockError, UnknownTopic
from penstock.console.app import Handler, Invalid, NotThere, Visit, needed
from penstock.console.cluster.state import page_of
from penstock.console.html import (
    Child,
    Html,
    duration,
    h,
    joined,
    moment,
    number,
    path_of,
    rate,
    size,
    with_query,
)
from penstock.console.pages.layout import (
    PAGE_ROWS,
    Change,
    Column,
    card,
    change_form,
    code,
    confirmed,
    empty,
    event,
    event_stream,
    facts,
    page,
    pager,
    search_form,
    sorting,
    table,
    tabs,
    tag,
    trail,
)
from penstock.console.pages.verdict import may_see_all, visible
from penstock.console.records.reading import ends_of, fetch
from penstock.console.warehouse import (
    Audit,
    DeadLetter,
    Hour,
    PipelineRow,
    TableRow,
    View,
    Warehouse,
    WarehouseError,
)

_EVENT_S: Final = 2.0
_FIRST_S: Final = 3.0
_REPLAY_S: Final = 10.0
_MOST_REASONS: Final = 20
_VALUE_CHARS: Final = 400
_PARTS: Final = (
    ("landed", "landed"), ("empty", "no record"), ("dead", "dead"), ("dropped", "dropped"), ("waiting", "waiting"),
    ("missing", "missing"), ("surplus", "duplicate"),
)  # fmt: skip
_SORTS: Final[Mapping[str, Callable[[TableRow], Any]]] = {
    "name": lambda row: row.name,
    "complete": lambda row: row.complete_until,
    "rows": lambda row: row.rows,
    "dead": lambda row: row.dead,
    "loaded": lambda row: None if row.last_load is None else row.last_load.time,
}
_STATES: Final = {
    "running": "good", "waiting": "good", "starting": "accent", "stopping": "warn", "failed": "bad", "gone": "bad",
}  # fmt: skip


def _of(visit: Visit) -> Warehouse:
    found = visit.account.warehouse
    if found is None:
        raise NotThere("This console has no warehouse.")
    return found


# --------------------------------------------------------------------------------------------------- rights


async def _row(visit: Visit, name: str) -> TableRow:
    """A table whose topic the visitor may read. Raises what the brokers say if not."""
    await visit.snapshot()
    view = await _of(visit).first(_FIRST_S)
    found = visible(visit, view, visit.account.collector.look()).get(name)
    if found is None:
        known = "The warehouse is being read; try again in a moment." if not view.is_known else ""
        raise NotThere(known or f"There is no table {name}.")
    await _check_read(visit, found.topic)
    return found


async def _check_read(visit: Visit, topic: str) -> None:
    """Raises what the brokers say if the visitor may not read the topic. Without logins a topic may be gone, and a
    damaged table has none."""
    login = visit.console.options.login
    if not topic and not login:
        return
    try:
        described = await visit.account.admin.describe_topic(topic)
        keys = [TopicPartition(topic, part.index) for part in described.partitions if part.leader is not None][:1]
        if login and not keys:
            raise NotThere(f"Nobody can say whether you may read {topic}: none of its partitions has a leader.")
        _, ends = await ends_of(visit.account.admin, keys, "read_committed")
        answers = await fetch(visit.account.admin, ends, isolation="read_committed", partition_bytes=1)
    except UnknownTopic:
        if login:
            raise
        return
    for answer in answers.values():
        if isinstance(answer, PenstockError):
            raise answer


# --------------------------------------------------------------------------------------------------- the list


async def tables(visit: Visit) -> Response:
    warehouse = visit.account.warehouse
    if warehouse is None:
        return page(
            visit, "Pipelines and tables",
            card(
                "No warehouse",
                h.p("Tables that are loaded from topics are shown when the console knows their folder:"),
                code(visit.command("console", "--warehouse", "FOLDER")),
                h.p("For the console of a broker, set ", h.span("penstock.console.warehouse", cls="mono"),
                    " in its settings. ", h.span("penstock table create", cls="mono"), " creates a table."),
            ),
        )  # fmt: skip
    view = await warehouse.first(_FIRST_S)
    await visit.snapshot()
    return page(
        visit, "Pipelines and tables", search_form(visit, "Search tables", "Search tables and topics"),
        h.div(_parts(visit, view), id="live", data_events=with_query("/tables.events", **visit.query), aria_live="off"),
    )  # fmt: skip


async def events(visit: Visit) -> Response:
    """The list again whenever the warehouse was read again."""
    warehouse = _of(visit)

    async def stream() -> AsyncIterator[str]:
        seen = -1
        while not visit.account.is_closed:
            view = warehouse.look()
            if view.time_ms != seen:
                seen = view.time_ms
                yield event("screen", {"html": _parts(visit, view)})
            else:
                yield ": alive\n\n"
            await asyncio.sleep(_EVENT_S)

    return event_stream(stream())


def _parts(visit: Visit, view: View) -> Html:
    if not view.is_known:
        return h.div(h.p("Reading the warehouse …"), cls="empty", role="status")
    snapshot = visit.account.collector.look()
    return joined(
        problems(visit, view), _pipelines(view.pipelines) if may_see_all(visit, snapshot) else None, _list(visit, view),
        h.p("As of ", moment(view.time_ms), f" UTC, read in {duration(view.took_s)}", cls="none asof"),
    )  # fmt: skip


def problems(visit: Visit, view: View) -> Html | None:
    """What could not be read."""
    if not view.errors:
        return None
    if not may_see_all(visit, visit.account.collector.look()):
        return h.div(h.p("Parts of the warehouse could not be read."), cls="card problem", role="alert")
    return h.div([h.p(" ".join(filter(None, each))) for each in view.errors], cls="card problem", role="alert")


def _list(visit: Visit, view: View) -> Html:
    sort, descending = sorting(visit, _SORTS, "name", descending=False)
    known = visible(visit, view, visit.account.collector.look())
    found = page_of(
        known.values(), search=visit.query.get("q", ""), name=lambda row: f"{row.name} {row.topic}",
        key=_SORTS[sort], descending=descending, number=visit.number("page", 1, least=1), size=PAGE_ROWS,
    )  # fmt: skip
    if not found.rows:
        return empty("No table has these words." if visit.query.get("q") else "No tables in this warehouse.")
    columns = [
        Column("Table", sort="name"), Column("Topic", cls="wide-only"), Column("Complete until", sort="complete"),
        Column("Rows", True, "rows"), Column("Waiting", True), Column("Dead letters", True, "dead"),
        Column("Last load", sort="loaded"), Column("State"),
    ]  # fmt: skip
    rows = [
        (
            link(row), h.a(row.topic, href=path_of("topics", row.topic)) if row.topic else "\u2013", until(row),
            number(row.rows), number(row.total("waiting")), _dead_link(row),
            "\u2013" if row.last_load is None else moment(row.last_load.time), state(row),
        )
        for row in found.rows
    ]  # fmt: skip
    content = table(columns, rows, caption="Tables", visit=visit, sort=sort, descending=descending, cls="list")
    return joined(h.h2("Tables"), content, pager(visit, found, "tables"))


def link(row: TableRow) -> Html:
    return h.a(row.name, href=with_query("/tables/show", name=row.name))


def _dead_link(row: TableRow) -> Child:
    if not row.dead:
        return "0"
    return h.a(number(row.dead), href=with_query("/tables/dead", name=row.name), title=f"Dead letters of {row.name}")


def until(row: TableRow) -> Child:
    """Until when a table is complete, or that no hour of the last day is."""
    if row.audit is None:
        return "\u2013"
    return "no hour of the last day" if row.complete_until is None else moment(row.complete_until)


def state(row: TableRow) -> Html:
    if row.error:
        return joined(tag("error", "bad"), " ", h.small(row.error[:200]))
    if row.trouble:
        return joined(tag("not sound", "bad"), " ", h.small(row.trouble))
    return tag("waiting", "accent") if row.total("waiting") else tag("complete", "good")


def _pipelines(pipelines: tuple[PipelineRow, ...]) -> Html | None:
    if not pipelines:
        return None
    rows: list[tuple[Child, ...]] = []
    for each in pipelines:
        shown = tag(each.shown_state, _STATES.get(each.shown_state, ""))
        if not each.queries:
            rows.append((each.name, "\u2013", shown, *["\u2013"] * 6, each.message[:200]))
        for query in each.queries:
            lives = each.shown_state in ("running", "waiting", "starting")
            rows.append(
                (
                    each.name, query.name, tag(query.state, _STATES.get(query.state, "")) if lives else shown,
                    number(query.lag) if query.lag >= 0 else "\u2013", rate(query.rows_per_s, ""),
                    number(query.input_rows_total), number(query.malformed_total),
                    f"{number(query.batch_ms)} ms" if query.batch_id >= 0 else "\u2013",
                    moment(query.last_commit_ms) if query.last_commit_ms else "\u2013",
                    (query.message or each.message)[:200],
                )
            )  # fmt: skip
    columns = [
        Column("Pipeline"), Column("Query"), Column("State"), Column("Behind, records", True), Column("Rows/s", True),
        Column("Rows read", True), Column("Malformed", True), Column("Last batch", True, cls="wide-only"),
        Column("Last commit", cls="wide-only"), Column("Message"),
    ]  # fmt: skip
    return joined(h.h2("Pipelines"), table(columns, rows, caption="Pipelines"))


# --------------------------------------------------------------------------------------------------- first screen


def overview_card(visit: Visit, most: int) -> Html | None:
    """The tables that are the least complete, for the first screen."""
    warehouse = visit.account.warehouse
    if warehouse is None:
        return None
    view = warehouse.look()
    rows = sorted(
        visible(visit, view, visit.account.collector.look()).values(),
        key=lambda row: (row.complete_until or 0, row.name),
    )
    content: Child = empty("Reading the warehouse …" if not view.is_known else "No tables in this warehouse.")
    if rows:
        content = table(
            [Column("Table"), Column("Complete until"), Column("Rows", True), Column("Dead letters", True),
             Column("State")],
            [(link(row), until(row), number(row.rows), _dead_link(row), state(row)) for row in rows[:most]],
            caption="Tables by complete until",
        )  # fmt: skip
    return card("Tables", content, action=h.a(f"All {number(len(rows))}", href="/tables"))


# --------------------------------------------------------------------------------------------------- one table


def _head(visit: Visit, row: TableRow) -> tuple[Html, Html]:
    links = [
        (with_query("/tables/show", name=row.name), "Audit by hour"),
        (with_query("/tables/dead", name=row.name), "Dead letters"),
    ]
    here = with_query(visit.request.url.path, name=row.name)
    return trail(("Tables", "/tables"), (row.name, None)), tabs(links, here)


async def one(visit: Visit) -> Response:
    row = await _row(visit, visit.query.get("name", ""))
    head, links = _head(visit, row)
    loaded = row.last_load
    return page(
        visit,
        f"Table {row.name}",
        links,
        h.div(h.p(row.error), h.p(row.hint) if row.hint else None, cls="card problem", role="alert")
        if row.error else None,
        facts(
            ("Topic", h.a(row.topic, href=path_of("topics", row.topic)) if row.topic else "\u2013"),
            ("Complete until", until(row)),
            ("State", state(row) if not row.error else tag("error", "bad")),
            ("Rows", number(row.rows)),
            ("Size", f"{size(row.bytes)} in {number(row.files)} files"),
            ("Dead letters", number(row.dead)),
            ("Dropped by policy", number(row.dropped)),
            ("Last load", "\u2013" if loaded is None
             else joined(moment(loaded.time), f", {number(loaded.records)} records")),
            ("Format", row.format), ("Mode", row.mode), ("Version", number(row.version)),
        ),
        _hours(row.audit) if row.audit is not None else None,
        _reasons(row),
        card(
            "On the command line", code(visit.command("table", "audit", row.name, "-w", _of(visit).options.uri)),
            code(visit.command("load", row.name, "-w", _of(visit).options.uri)),
        ),
        heading=head,
    )  # fmt: skip


def _hours(audit: Audit) -> Html:
    """The hours with records, the newest first, and a chart of them."""
    known = [hour for hour in audit.hours if hour.produced or hour.surplus]
    if not known:
        return card("Audit by hour", empty("No records were produced in the hours of the last day."))
    names = [(name, words) for name, words in _PARTS if name in ("landed", "waiting") or audit.total(name)]
    rows = [
        (
            _hour(hour.start), number(hour.produced), *(number(getattr(hour, name)) for name, _ in names),
            tag("complete", "good") if hour.complete else tag("not complete", "bad" if hour.missing or hour.surplus
                                                              else "accent"),
        )
        for hour in reversed(known)
    ]  # fmt: skip
    columns = [
        Column("Hour (UTC)"),
        Column("Produced", True),
        *(Column(words.capitalize(), True) for _, words in names),
        Column("State"),
    ]
    return card(
        "Audit by hour",
        h.p("What was produced in each hour of the log, and what became of it. Every offset is counted once."),
        _chart(audit), table(columns, rows, caption="Audit by hour"),
    )  # fmt: skip


def _hour(start_ms: int) -> Html:
    text = time.strftime("%Y-%m-%d %H:%M", time.gmtime(start_ms / 1000))
    return h.time(text, datetime=text.replace(" ", "T") + "Z")


_CHART_HEIGHT: Final = 90


def _chart(audit: Audit) -> Html:
    """A bar for each hour: what was produced, by what became of it."""
    most = max(hour.produced + hour.surplus for hour in audit.hours) or 1
    width = len(audit.hours) * 10
    label = f"Produced against landed records of {len(audit.hours)} hours; the table below has the numbers"
    bars = [_bar(hour, position, most) for position, hour in enumerate(audit.hours)]
    legend = h.ul(
        [h.li(Html(f'<svg viewBox="0 0 10 10" width="10" height="10" aria-hidden="true">'
                   f'<rect class="{name}" width="10" height="10"/></svg>'), " ", words)
         for name, words in _PARTS if audit.total(name)],
        cls="legend",
    )  # fmt: skip
    return joined(
        Html(
            f'<svg class="hours" viewBox="0 0 {width} {_CHART_HEIGHT}" preserveAspectRatio="none" role="img"'
            f' aria-label="{escape(label)}">{"".join(bars)}</svg>'
        ),
        legend,
    )


def _bar(hour: Hour, position: int, most: int) -> str:
    parts, top = [], float(_CHART_HEIGHT)
    for name, _ in _PARTS:
        count = getattr(hour, name)
        if count:
            height = max(1.0, (_CHART_HEIGHT - 2) * count / most)
            top -= height
            place = f'x="{position * 10 + 1}" y="{max(0.0, top):.1f}" width="8" height="{height:.1f}"'
            parts.append(f'<rect class="{name}" {place}/>')
    words = ", ".join(f"{getattr(hour, name):,} {words}" for name, words in _PARTS if getattr(hour, name))
    title = time.strftime("%H:%M", time.gmtime(hour.start / 1000))
    return f"<g><title>{title}: {hour.produced:,} produced; {escape(words)}</title>{''.join(parts)}</g>"


def _reasons(row: TableRow) -> Html | None:
    if not row.reasons:
        return None
    rows = [
        (h.a(each.reason, href=with_query("/tables/dead", name=row.name, reason=each.reason)) if each.reason
         else "(no reason)", number(each.count))
        for each in row.reasons[:_MOST_REASONS]
    ]  # fmt: skip
    return card(
        "Dead letters by reason",
        table([Column("Reason"), Column("Records", True)], rows, caption="Dead letters by reason"),
    )


# --------------------------------------------------------------------------------------------------- dead letters


async def dead(visit: Visit) -> Response:
    row = await _row(visit, visit.query.get("name", ""))
    reason = visit.query.get("reason", "")
    warehouse = _of(visit)
    head, links = _head(visit, row)
    content: Child
    try:
        letters, count = await asyncio.to_thread(warehouse.letters, row.name, reason)
        content = _letters(row, letters, count)
    except WarehouseError as error:
        content = h.div(h.p(error.text), h.p(error.hint) if error.hint else None, cls="card problem", role="alert")
    words = ["table", "dead", row.name, *(["--reason", reason] if reason else []), "-w", warehouse.options.uri]
    return page(
        visit,
        f"Dead letters of {row.name}",
        links,
        h.p("Only those with the reason ", h.strong(reason), ". ",
            h.a("Show all", href=with_query("/tables/dead", name=row.name))) if reason else None,
        h.div(_replay_card(visit, row), _reasons(row) if not reason else None, cls="columns"),
        content,
        card("On the command line", code(visit.command(*words))),
        heading=head,
    )  # fmt: skip


def _letters(row: TableRow, letters: list[DeadLetter], count: int) -> Html:
    if not letters:
        return empty("No dead letters: every record that was read is in the table.")
    rows = [
        (
            h.a(f"{each.partition}:{each.offset:,}", href=with_query(
                path_of("topics", row.topic, "records"), partition=each.partition, offset=each.offset)),
            moment(each.timestamp), each.reason or "\u2013",
            h.span("dropped by policy", cls="none") if each.dropped else _value(each),
        )
        for each in letters
    ]  # fmt: skip
    shown = f"The newest {number(len(letters))} of {number(count)}." if count > len(letters) else ""
    columns = [Column("Partition and offset"), Column("Time"), Column("Reason"), Column("Value")]
    return joined(h.p(shown) if shown else None, table(columns, rows, caption="Dead letters", cls="letters"))


def _value(letter: DeadLetter) -> Child:
    if letter.value is None:
        return h.span("null", cls="none")
    is_part = letter.bytes is not None and letter.bytes > len(letter.value.encode("utf-8", "replace"))
    cut = is_part or len(letter.value) > _VALUE_CHARS
    start = " ".join(letter.value[:_VALUE_CHARS].split())
    return joined(h.span(start, cls="mono"), h.small(f" … {size(letter.bytes)}") if cut else None)


def _replay_card(visit: Visit, row: TableRow) -> Html:
    last = _of(visit).replays.get(row.name)
    if last is not None and not last.done.is_set():
        return card(
            "Try again", h.p("The dead letters are being tried again since ", moment(last.started_ms), " UTC. "),
            h.p(h.a("Look again", href=with_query("/tables/dead", name=row.name), cls="button")),
        )  # fmt: skip
    result = None
    if last is not None:
        result = h.p(
            "The last time, ",
            moment(last.started_ms),
            " UTC: ",
            last.text,
            cls="bad-text" if last.is_failed else "none",
        )
    if not row.dead:
        return card("Try again", result, h.p("There are no dead letters to try again."))
    return card(
        "Try again",
        result,
        h.p("After a change of the table, all dead letters are read again; those that fit are moved into it."),
        change_form(visit, "/tables/replay", h.input(type_="hidden", name="name", value=row.name),
                    button="Try all dead letters again"),
    )  # fmt: skip


async def replay(visit: Visit) -> Response:
    name = needed(visit.form, "name", "The table")
    row = await _row(visit, name)
    # The right to change the settings of the topic is the right to decide what becomes of its records.
    await visit.account.admin.alter_config(ConfigResource.topic(row.topic), {}, validate_only=True)
    warehouse = _of(visit)
    notices: list[str] = []
    change = Change(
        f"Try the dead letters of {name} again",
        h.p(f"{number(row.dead)} dead letters are read again; those that fit now are moved into ", h.strong(name),
            " in one commit. At every moment a record is in the table or a dead letter."),
        visit.command(*warehouse.replay_words(name)), "Try again", "", with_query("/tables/dead", name=name),
    )  # fmt: skip

    async def apply() -> None:
        try:
            started = warehouse.replay(name)
        except WarehouseError as error:
            raise Invalid(error.text, error.hint) from None
        is_done = await asyncio.to_thread(started.done.wait, _REPLAY_S)
        if is_done and started.is_failed:
            raise Invalid(started.text)
        notices.append(started.text if is_done else "The dead letters are being tried again; this page has the result.")

    response = await confirmed(visit, change, apply)
    return visit.go(change.back, notices[0]) if notices else response


PAGES: Final[dict[str, Handler]] = {
    "/tables": tables,
    "/tables.events": events,
    "/tables/show": one,
    "/tables/dead": dead,
}
CHANGES: Final[dict[str, Handler]] = {"/tables/replay": replay}
