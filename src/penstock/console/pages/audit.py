"""The audit log: who logged in, who changed what, and what was denied, by principal, request, outcome and time.

It is read from the topic that the brokers write it to (`penstock.audit.topic`), as the visitor: who may not read that
topic does not see it.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from penstock.client.admin import ConfigResource
from penstock.client.errors import PenstockError, UnknownTopic
from penstock.console.app import Handler, Visit
from penstock.console.html import Child, Html, h, joined, moment, number, path_of, with_query
from penstock.console.pages.layout import (
    Column,
    card,
    code,
    empty,
    page,
    select_field,
    table,
    tag,
    text_field,
)
from penstock.console.pages.records import cursor_of, cursor_text, time_of
from penstock.console.records.audit import OUTCOMES, AuditFilter, AuditPage, AuditRecord, read_audit

_LEVELS: Final = {"allowed": "good", "denied": "bad", "failed": "warn"}
_LINES: Final = 100
_SETTING: Final = "penstock.audit.topic"


async def audit(visit: Visit) -> Response:
    topic = await _topic(visit)
    if not topic:
        return _none(visit, h.p("The brokers write no audit log to a topic, or do not say to which one. With this "
                                "setting they write logins, changes and what they deny:"))  # fmt: skip
    wanted = _wanted(visit)
    try:
        described = await visit.account.admin.describe_topic(topic)
    except UnknownTopic:
        return _none(visit, h.p("There is no topic ", h.strong(topic), " that you may see."))
    indexes = [part.index for part in described.partitions if part.leader is not None]
    found = await read_audit(
        visit.account.admin, topic, indexes, wanted, before=cursor_of(visit.query.get("at", "")), limit=_LINES
    )
    return page(visit, "Audit log", _form(visit, wanted), _table(found), _below(visit, topic, found))


async def _topic(visit: Visit) -> str:
    """The topic that was named to the console, or that the brokers have as a setting."""
    if visit.console.options.audit_topic:
        return visit.console.options.audit_topic
    snapshot = await visit.snapshot()
    for row in snapshot.brokers:
        if not row.is_away:
            try:
                found = await visit.account.admin.describe_config(ConfigResource.broker(row.id))
            except PenstockError:
                return ""
            return (found[_SETTING].value or "") if _SETTING in found else ""
    return ""


def _none(visit: Visit, words: Html) -> Response:
    return page(
        visit, "Audit log",
        card("No audit log", words, code("penstock.audit.topic=audit"),
             h.p("If the topic has another name, name it to the console:"),
             code(visit.command("console", "--audit-topic", "TOPIC"))),
    )  # fmt: skip


def _wanted(visit: Visit) -> AuditFilter:
    query = visit.query
    outcome = query.get("outcome", "")
    return AuditFilter(
        query.get("principal", "").strip(), query.get("action", "").strip(), query.get("resource", "").strip(),
        outcome if outcome in OUTCOMES else "", time_of(query.get("from", "")), time_of(query.get("to", "")),
    )  # fmt: skip


def _form(visit: Visit, wanted: AuditFilter) -> Html:
    query = visit.query
    return h.form(
        h.div(
            text_field("principal", "Principal", wanted.principal, placeholder="User:alice", data_search=True),
            text_field("action", "Request or mechanism", wanted.action, placeholder="DeleteTopics"),
            text_field("resource", "Resource", wanted.resource, placeholder="Topic views"),
            select_field("outcome", "Outcome", [("", "all"), *((each, each) for each in OUTCOMES)], wanted.outcome),
            text_field("from", "From time (UTC)", query.get("from", ""), type_="datetime-local", step="1"),
            text_field("to", "To time (UTC)", query.get("to", ""), type_="datetime-local", step="1"),
            cls="fields",
        ),
        h.div(h.button("Show", cls="primary"), h.a("Clear", href="/audit", cls="button"), cls="actions"),
        method="get", action="/audit", cls="card tools", role="search", aria_label="Filter the audit log",
    )  # fmt: skip


def _table(found: AuditPage) -> Html:
    if not found.records:
        return empty(f"Nothing found in {number(found.looked)} lines of the {number(found.total)} here.")
    columns = [
        Column("Time (UTC)"), Column("Outcome"), Column("Principal"), Column("Request"), Column("About"),
        Column("From"), Column("Client", cls="wide-only"), Column("Broker", True, cls="wide-only"),
    ]  # fmt: skip
    return table(columns, [_row(each) for each in found.records], caption="Audit log", cls="audit")


def _row(record: AuditRecord) -> tuple[Child, ...]:
    line = record.line
    what: list[Child] = [", ".join(line.resources)]
    if line.more_resources:
        what.append(f" and {number(line.more_resources)} more")
    if line.errors:
        what.append(h.small(f" {', '.join(line.errors)}"))
    if line.suppressed:
        what.append(h.small(f" {number(line.suppressed)} more of this kind in the same second"))
    return (
        moment(record.time_ms), tag(line.outcome or line.event, _LEVELS.get(line.outcome, "")),
        line.principal or "\u2013", "Login, " + line.action if line.event == "login" else line.action or line.event,
        joined(*what) if any(what) else "\u2013", h.span(line.host or "\u2013", title=line.listener),
        line.client_id or "\u2013", str(line.broker) if line.broker >= 0 else "\u2013",
    )  # fmt: skip


def _below(visit: Visit, topic: str, found: AuditPage) -> Html:
    kept = {name: value for name, value in visit.query.items() if name != "at"}
    links: list[Child] = []
    if visit.query.get("at"):
        links.append(h.a("Newest", href=with_query("/audit", **kept), rel="prev"))
    if found.older and cursor_text(found.older):
        links.append(h.a("Older", href=with_query("/audit", **kept, at=cursor_text(found.older)), rel="next"))
    unreadable = f", {number(found.unreadable)} of them are not lines of an audit log" if found.unreadable else ""
    return h.nav(
        h.span(
            f"{number(len(found.records))} lines shown; looked at {number(found.looked)} of {number(found.total)}"
            f"{unreadable}, in topic ", h.a(topic, href=path_of("topics", topic)),
        ),
        joined(*links), cls="pager", aria_label="Pages",
    )  # fmt: skip


PAGES: Final[dict[str, Handler]] = {"/audit": audit}
CHANGES: Final[dict[str, Handler]] = {}
