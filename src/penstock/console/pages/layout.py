"""What all pages have in common: the frame, lists with search and pages, forms, confirmations and messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from starlette.responses import HTMLResponse, Response, StreamingResponse

from penstock import __version__
from penstock.console.app import Visit
from penstock.console.cluster.state import Page
from penstock.console.html import Child, Html, h, joined, json_text, number, with_query
from penstock.console.pages import verdict
from penstock.console.static_files import address_of

NAV: Final = (
    ("/", "Overview", "g o"),
    ("/topics", "Topics", "g t"),
    ("/groups", "Groups", "g g"),
    ("/tables", "Tables", "g p"),
    ("/brokers", "Brokers", "g b"),
    ("/transactions", "Transactions", "g x"),
    ("/users", "Users", "g u"),
    ("/acls", "ACLs", "g a"),
    ("/quotas", "Quotas", "g q"),
    ("/audit", "Audit", "g l"),
)
PAGE_ROWS: Final = 50
_EVENTS: Final = ".events"


def html_page(title: str, body: Child, *, status: int = 200) -> Response:
    """A whole document."""
    head = h.head(
        h.meta(charset="utf-8"),
        h.meta(name="viewport", content="width=device-width, initial-scale=1"),
        h.meta(name="color-scheme", content="light dark"),
        h.title(f"{title} · Penstock"),
        h.link(rel="icon", href="data:,"),
        h.link(rel="stylesheet", href=address_of("console.css")),
        h.script("", src=address_of("console.js")),
    )
    document = h.html(head, h.body(body), lang="en")
    return HTMLResponse(f"<!doctype html>{document}", status)


def plain_page(title: str, text: str, status: int) -> Response:
    """A message for somebody without a session."""
    body = h.main(
        h.h1(title), h.p(text), h.p(h.a("Go to the overview", href="/", cls="button")), id="main", cls="plain"
    )
    return html_page(title, body, status=status)


def page(visit: Visit, title: str, *content: Child, heading: Child = None, status: int = 200) -> Response:
    """A page with the navigation. `heading` replaces the title in the page."""
    here = visit.request.url.path
    links = [
        h.li(
            h.a(
                h.span(label), h.kbd(keys, aria_hidden="true"), href=path, data_keys=keys,
                aria_current="page" if (here == path or (path != "/" and here.startswith(path))) else None,
            )
        )
        for path, label, keys in NAV
    ]  # fmt: skip
    snapshot = visit.account.collector.snapshot
    name = snapshot.cluster.cluster_id if snapshot.cluster and snapshot.cluster.cluster_id else visit.account.servers
    problems = len(verdict.problems(visit, snapshot))
    who = None
    if visit.account.user is not None:
        who = h.form(
            _csrf(visit), h.span(visit.account.user, cls="who", title="Kafka user"),
            h.button("Log out", cls="link"), method="post", action="/logout",
        )  # fmt: skip
    side = h.header(
        h.a(_logo(), h.span("Penstock"), href="/", cls="brand"),
        h.div(h.span(name, cls="cluster", title=f"{name} at {visit.account.servers}"), cls="where"),
        h.button("Menu", cls="menu", type_="button", aria_expanded="false", aria_controls="nav"),
        h.nav(h.ul(links), id="nav", aria_label="Main"),
        h.div(
            None if visit.may_change else h.span("read-only", cls="tag"),
            h.span(f"{problems} problem{'s' if problems > 1 else ''}", cls="tag bad") if problems else None,
            who,
            h.button("Theme: auto", cls="link theme", type_="button"),
            h.button("Keys: ?", cls="link keys", type_="button"),
            h.span(__version__, cls="version"),
            cls="foot",
        ),
        cls="side",
    )
    body = joined(
        h.a("Skip to content", href="#main", cls="skip"),
        side,
        h.main(
            h.div(visit.notice, cls="notice", role="status") if visit.notice else None,
            heading if heading is not None else h.h1(title),
            content,
            id="main",
            tabindex="-1",
        ),
        _keys_dialog(),
    )
    return html_page(title, body, status=status)


def _logo() -> Html:
    return Html(
        '<svg class="logo" viewBox="0 0 24 24" width="22" height="22" aria-hidden="true">'
        '<path d="M3 5h7v4l8 8v4h-5v-2L5 11H3z"/></svg>'
    )


def _keys_dialog() -> Html:
    rows = [h.div(h.dt(h.kbd(keys)), h.dd(label)) for _, label, keys in NAV]
    rows += [
        h.div(h.dt(h.kbd(keys)), h.dd(text))
        for keys, text in (
            ("/", "search in the list or the records"), ("j k", "next and previous row"), ("Enter", "open the row"),
            ("n p", "next and previous page of a list"), ("t", "light, dark or automatic theme"), ("?", "these keys"),
        )
    ]  # fmt: skip
    return h.dialog(
        h.h2("Keys"), h.dl(rows, cls="keylist"), h.form(h.button("Close"), method="dialog"), id="keys",
        aria_label="Keys",
    )  # fmt: skip


def problem_page(visit: Visit, title: str, text: str, hint: str, status: int) -> Response:
    """Something that could not be done: what failed, and what to do."""
    return page(
        visit,
        title,
        h.div(h.p(_sentence(text)), h.p(_sentence(hint)) if hint else None, cls="card problem", role="alert"),
        h.p(h.a("Back", href=_referer(visit), cls="button")),
        status=status,
    )


def _sentence(text: str) -> str:
    text = text.strip()
    text = text[:1].upper() + text[1:] if text[:1].isalpha() and " " in text else text
    return text if not text or text.endswith((".", "?", "!")) else f"{text}."


def _referer(visit: Visit) -> str:
    from urllib.parse import urlsplit

    given = urlsplit(visit.request.headers.get("referer", ""))
    same = given.netloc.lower() == visit.request.headers.get("host", "").lower()
    path = given.path if same and given.path.startswith("/") and not given.path.startswith("//") else "/"
    return f"{path}?{given.query}" if same and given.query else path


def _path(visit: Visit) -> str:
    """The page that is shown, also where a stream of events shows it again."""
    return visit.request.url.path.removesuffix(_EVENTS)


def _csrf(visit: Visit) -> Html:
    return h.input(type_="hidden", name="csrf", value=visit.csrf)


# --------------------------------------------------------------------------------------------------- events


def event(name: str, data: dict[str, object]) -> str:
    return f"event: {name}\ndata: {json_text(data)}\n\n"


def event_stream(parts_: AsyncIterator[str]) -> Response:
    return StreamingResponse(
        parts_, media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


# --------------------------------------------------------------------------------------------------- parts


def trail(*steps: tuple[str, str | None]) -> Html:
    """The way to a page: names with their addresses; the last one is the page."""
    *before, last = steps
    return h.div(
        h.nav([joined(h.a(name, href=path), h.span("/", aria_hidden="true")) for name, path in before],
              cls="trail", aria_label="Breadcrumb"),
        h.h1(last[0]),
        cls="heading",
    )  # fmt: skip


def tabs(links: Sequence[tuple[str, str]], here: str) -> Html:
    """Links to the views of one thing: addresses and their names."""
    return h.nav(
        [h.a(label, href=path, aria_current="page" if path == here else None) for path, label in links],
        cls="tabs",
        aria_label="Views",
    )


def card(title: Child, *content: Child, cls: str = "", action: Child = None, **attributes: str) -> Html:
    head = h.div(h.h2(title), action, cls="cardhead") if action is not None else h.h2(title)
    return h.section(head, content, cls=f"card {cls}".strip(), **attributes)


def tag(text: str, level: str = "") -> Html:
    return h.span(text, cls=f"tag {level}".strip())


def facts(*pairs: tuple[str, Child]) -> Html:
    """Names and values, side by side."""
    return h.dl([h.div(h.dt(name), h.dd(value)) for name, value in pairs], cls="facts")


def code(text: str, label: str = "Copy") -> Html:
    """A command or a program, with a button that copies it."""
    return h.div(
        h.pre(h.code(text), tabindex="0"), h.button(label, type_="button", cls="copy", data_copy=text), cls="code"
    )


def empty(text: Child, *more: Child) -> Html:
    return h.div(h.p(text), more, cls="empty")


class Column(NamedTuple):
    """A column of a table. `sort` is its name in the query; numbers are aligned to the right."""

    title: str
    is_number: bool = False
    sort: str = ""
    cls: str = ""
    descending_first: bool = True


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[Child]],
    *,
    caption: str,
    visit: Visit | None = None,
    sort: str = "",
    descending: bool = False,
    cls: str = "",
) -> Html:
    """A table. With a visit, its titles sort the list on the server."""
    heads = []
    for column in columns:
        classes = f"{'num' if column.is_number else ''} {column.cls}".strip() or None
        if visit is None or not column.sort:
            heads.append(h.th(column.title, cls=classes, scope="col"))
            continue
        is_now = column.sort == sort
        down = not descending if is_now else column.descending_first and column.is_number
        query = {name: value for name, value in visit.query.items() if name not in ("sort", "desc", "page")}
        link = with_query(_path(visit), **query, sort=column.sort, desc="1" if down else "0")
        order = "descending" if descending else "ascending"
        mark = h.span("▼" if descending else "▲", aria_hidden="true") if is_now else None
        heads.append(
            h.th(h.a(column.title, mark, href=link), cls=classes, scope="col", aria_sort=order if is_now else None)
        )
    body = []
    for row in rows:
        cells = []
        for position, (column, cell) in enumerate(zip(columns, row, strict=True)):
            classes = f"{'num' if column.is_number else ''} {column.cls}".strip() or None
            cells.append(h.th(cell, cls=classes, scope="row") if position == 0 else h.td(cell, cls=classes))
        body.append(h.tr(cells))
    return h.div(
        h.table(h.caption(caption, cls="hidden"), h.thead(h.tr(heads)), h.tbody(body), cls=cls or None),
        cls="scroll",
        role="region",
        aria_label=caption,
        tabindex="0",
    )


def search_form(visit: Visit, label: str, placeholder: str, *more: Child) -> Html:
    """The search of a list; `/` goes to it."""
    kept = [name for name in ("sort", "desc") if name in visit.query]
    hidden = [h.input(type_="hidden", name=name, value=visit.query[name]) for name in kept]
    return h.form(
        hidden,
        h.label(label, for_="q", cls="hidden"),
        h.input(type_="search", id="q", name="q", value=visit.query.get("q", ""), placeholder=placeholder,
                autocomplete="off", spellcheck="false", maxlength=200, data_search=True),
        more,
        h.button("Search"),
        method="get", action=visit.request.url.path, cls="bar-form", role="search",
    )  # fmt: skip


def pager(visit: Visit, found: Page[Any], noun: str) -> Html:
    """How many rows there are, and the links to other pages."""

    def link(to: int, label: str, rel: str) -> Child:
        if not 1 <= to <= found.pages:
            return h.span(label, cls="off")
        query = {name: value for name, value in visit.query.items() if name != "page"}
        return h.a(label, href=with_query(_path(visit), **query, page=to), rel=rel)

    first = (found.number - 1) * PAGE_ROWS + 1
    shown = f"{number(first)}\u2013{number(first + len(found.rows) - 1)} of " if found.pages > 1 else ""
    return h.nav(
        h.span(f"{shown}{number(found.total)} {noun if found.total != 1 else noun.removesuffix('s')}"),
        joined(link(found.number - 1, "Previous", "prev"), link(found.number + 1, "Next", "next"))
        if found.pages > 1 else None,
        cls="pager", aria_label="Pages",
    )  # fmt: skip


def sorting(visit: Visit, keys: Mapping[str, Any], default: str, *, descending: bool) -> tuple[str, bool]:
    """The column and the direction of a list."""
    sort = visit.query.get("sort", default)
    if sort not in keys:
        sort = default
    given = visit.query.get("desc")
    return sort, given == "1" if given in ("0", "1") else descending


# --------------------------------------------------------------------------------------------------- forms


def field(label: str, control: Html, hint: str = "", *, wide: bool = False) -> Html:
    return h.div(
        h.label(h.span(label), control), h.small(hint) if hint else None, cls="field wide" if wide else "field"
    )


def text_field(
    name: str, label: str, value: str = "", *, hint: str = "", type_: str = "text", wide: bool = False, **more: Any
) -> Html:
    control = h.input(type_=type_, name=name, value=value, autocomplete=more.pop("autocomplete", "off"), **more)
    return field(label, control, hint, wide=wide)


def area_field(name: str, label: str, value: str = "", *, hint: str = "", rows: int = 6) -> Html:
    return field(label, h.textarea("\n", value, name=name, rows=rows, spellcheck="false"), hint, wide=True)


def select_field(
    name: str, label: str, choices: Iterable[tuple[str, str]], chosen: str = "", *, hint: str = ""
) -> Html:
    options = [h.option(title, value=value, selected=value == chosen) for value, title in choices]
    return field(label, h.select(options, name=name), hint)


def check_field(name: str, label: str, *, checked: bool = False) -> Html:
    return h.div(
        h.label(h.input(type_="checkbox", name=name, value="1", checked=checked), h.span(label)), cls="field check"
    )


def change_form(
    visit: Visit, action: str, *fields: Child, button: str, danger: bool = False, cls: str = "form"
) -> Html:
    """A form for a change; nothing in read-only mode."""
    if not visit.may_change:
        return h.p("This console is read-only.", cls="none")
    return h.form(
        _csrf(visit), fields, h.div(h.button(button, cls="danger" if danger else "primary"), cls="actions"),
        method="post", action=action, cls=cls,
    )  # fmt: skip


class Change(NamedTuple):
    """A change that is asked for before it is made."""

    title: str
    text: Child
    command: str
    button: str
    done: str
    """The notice afterwards."""
    back: str
    danger: bool = False
    secret: tuple[str, ...] = ()
    """Fields that are not repeated in the page; they are asked for again."""


async def confirmed(visit: Visit, change: Change, apply: Callable[[], Awaitable[object]]) -> Response:
    """Ask, with the equivalent command; make the change once the visitor has confirmed it."""
    if visit.form.get("confirm") == "yes":
        await apply()
        visit.account.collector.refresh_soon()
        return visit.go(change.back, change.done)
    kept = [
        h.input(type_="hidden", name=name, value=value)
        for name, value in visit.form.items()
        if name not in ("csrf", "confirm")
    ]
    return page(
        visit,
        change.title,
        h.form(
            _csrf(visit),
            kept,
            h.input(type_="hidden", name="confirm", value="yes"),
            h.div(change.text, cls="prose"),
            h.h2("The same on the command line"),
            code(change.command),
            h.div(
                h.button(change.button, cls="danger" if change.danger else "primary", autofocus=not change.danger),
                h.a("Cancel", href=change.back, cls="button"),
                cls="actions",
            ),
            method="post",
            action=visit.request.url.path,
            cls="card confirm",
        ),
    )
