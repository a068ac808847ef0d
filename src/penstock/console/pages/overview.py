"""The first screen: is the cluster well, what flows, and who is behind."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import Response

from penstock.client.diagnosis import NOTE, PROBLEM, Finding
from penstock.console.app import Handler, Visit
from penstock.console.cluster.state import GroupRow, Snapshot, page_of
from penstock.console.html import (
    Child,
    Html,
    duration,
    h,
    joined,
    milliseconds,
    moment,
    number,
    path_of,
    rate,
    size,
    sparkline,
    with_query,
)
from penstock.console.pages import tables, verdict
from penstock.console.pages.layout import Column, card, code, empty, event, event_stream, page, table, tag

_ROWS: Final = 8
_EVENT_S: Final = 1.0
_MOST_FINDINGS: Final = 12


async def overview(visit: Visit) -> Response:
    snapshot = await visit.snapshot()
    return page(
        visit,
        "Overview",
        h.div(parts(snapshot, visit), id="live", data_events="/overview.events", aria_live="off"),
        heading=h.h1("Overview", cls="hidden"),
    )


async def events(visit: Visit) -> Response:
    """The first screen again whenever the snapshot is a new one."""

    async def stream() -> AsyncIterator[str]:
        seen = -1
        while not visit.account.is_closed:
            snapshot = visit.account.collector.look()
            if snapshot.time_ms != seen:
                seen = snapshot.time_ms
                yield event("screen", {"html": parts(snapshot, visit)})
            else:
                yield ": alive\n\n"
            await asyncio.sleep(_EVENT_S)

    return event_stream(stream())


def parts(snapshot: Snapshot, visit: Visit) -> Html:
    if not snapshot.is_known:
        return h.div(h.p("Reading the cluster …"), cls="empty", role="status")
    return joined(
        _verdict(snapshot, visit),
        _tiles(snapshot),
        h.div(_topics(snapshot), _groups(snapshot), cls="columns"),
        tables.overview_card(visit, _ROWS),
    )


# --------------------------------------------------------------------------------------------------- the verdict


def _verdict(snapshot: Snapshot, visit: Visit) -> Html:
    found = verdict.findings(visit, snapshot)
    problems, notes = [each for each in found if each.level == PROBLEM], [each for each in found if each.level == NOTE]
    if problems:
        count = len(problems)
        line, level = f"{count} problem{'s' if count > 1 else ''}: {problems[0].subject}: {problems[0].text}", "bad"
    elif notes:
        line, level = f"Works; worth a look: {notes[0].subject}: {notes[0].text}", "warn"
    else:
        partitions = sum(row.partitions for row in snapshot.topics.values())
        brokers = f"{len(snapshot.brokers)} broker{'s' if len(snapshot.brokers) != 1 else ''}"
        line = f"All is well: {brokers}, {number(partitions)} partitions with a leader and all replicas in sync."
        level = "good"
    shown = (problems + notes)[:_MOST_FINDINGS]
    more = len(problems) + len(notes) - len(shown)
    return h.section(
        h.p(h.span("", cls="dot", aria_hidden="true"), h.strong(line), cls="line"),
        h.ul([_finding(each, visit) for each in shown], cls="findings") if shown else None,
        h.p(f"{more} more: run `penstock doctor`.") if more > 0 else None,
        h.p("Not read: " + "; ".join(snapshot.errors), cls="none") if snapshot.errors else None,
        h.p("As of ", moment(snapshot.time_ms), f" UTC, read in {milliseconds(snapshot.took_s)}", cls="none asof"),
        cls=f"verdict {level}", id="verdict", aria_label="Verdict",
    )  # fmt: skip


def _finding(finding: Finding, visit: Visit) -> Html:
    advice, command = split_advice(finding.advice)
    return h.li(
        tag("problem" if finding.level == PROBLEM else "note", "bad" if finding.level == PROBLEM else "warn"),
        h.div(
            h.p(h.strong(finding.subject), ": ", finding.text),
            h.p(advice) if advice else None,
            code(visit.command(*shlex.split(command)[1:])) if command else None,
        ),
    )


def split_advice(advice: str) -> tuple[str, str]:
    """The words of an advice, and the first command in it."""
    if "`penstock" in advice:
        before, _, rest = advice.partition("`penstock")
        command, _, after = rest.partition("`")
        return f"{before}`penstock{command}`{after}", f"penstock{command}"
    if ": penstock " in advice:
        before, _, command = advice.partition(": penstock ")
        command, stop, after = command.partition(". ")
        return f"{before}.{' ' + after if stop else ''}", f"penstock {command.rstrip('.')}"
    return advice, ""


# --------------------------------------------------------------------------------------------------- numbers


def _tile(title: str, value: str, history: list[float | None], note: str = "") -> Html:
    return h.div(
        h.h2(title), h.p(value, cls="value"), sparkline(history, f"{title}, last minutes", width=150, height=30),
        h.small(note) if note else None,
        cls="tile",
    )  # fmt: skip


def _tiles(snapshot: Snapshot) -> Html:
    now, past = snapshot.now, snapshot.traffic
    note = "" if snapshot.metered else "from the brokers' /metrics, which were not reachable"
    tiles = [
        _tile("Records in", rate(now.records_in), [each.records_in for each in past]),
        _tile("Bytes in", "\u2013" if now.bytes_in is None else f"{size(now.bytes_in)}/s",
              [each.bytes_in for each in past], note),
        _tile("Bytes out", "\u2013" if now.bytes_out is None else f"{size(now.bytes_out)}/s",
              [each.bytes_out for each in past], note),
        _tile("Produce p99", milliseconds(now.produce_p99_s), [each.produce_p99_s for each in past], note),
        _tile("Fetch p99", milliseconds(now.fetch_p99_s), [each.fetch_p99_s for each in past],
              note or "with the wait for records"),
    ]  # fmt: skip
    return h.section(tiles, cls="tiles", aria_label="Traffic")


def _topics(snapshot: Snapshot) -> Html:
    found = page_of(
        (row for row in snapshot.topics.values() if not row.is_internal),
        name=lambda row: row.name, key=lambda row: row.rate, descending=True, size=_ROWS,
    )  # fmt: skip
    content: Child = empty("No topics yet.", h.p(h.a("Create a topic", href="/topics/new", cls="button primary")))
    if found.rows:
        content = table(
            [Column("Topic"), Column("Records/s", True), Column("Trend", cls="wide-only"), Column("Size", True)],
            [
                (h.a(row.name, href=path_of("topics", row.name)), rate(row.rate, ""),
                 sparkline(row.history, f"rate of {row.name}"), size(row.size))
                for row in found.rows
            ],
            caption="Topics by rate",
        )  # fmt: skip
    return card("Topics by rate", content, action=h.a(f"All {number(found.total)}", href="/topics?sort=rate&desc=1"))


def _behind(row: GroupRow) -> tuple[float, int]:
    return (row.lag_seconds if row.lag_seconds is not None else -1.0, row.lag_records or 0)


def _groups(snapshot: Snapshot) -> Html:
    found = page_of(snapshot.groups.values(), name=lambda row: row.name, key=_behind, descending=True, size=_ROWS)
    content: Child = empty("No consumer groups and Spark streams yet.")
    if found.rows:
        content = table(
            [Column("Group or stream"), Column("Behind", True), Column("Records", True),
             Column("Trend", cls="wide-only"), Column("State")],
            [
                (h.a(row.name, href=with_query("/groups/show", name=row.name)), duration(row.lag_seconds),
                 number(row.lag_records), sparkline(row.history, f"lag of {row.name}"),
                 joined(state_tag(row.state), " ", tag("Spark") if row.is_spark else None))
                for row in found.rows
            ],
            caption="Groups and streams by time behind",
        )  # fmt: skip
    return card("Furthest behind", content, action=h.a(f"All {number(found.total)}", href="/groups"))


def state_tag(state: str) -> Html:
    level = {"stable": "good", "dead": "bad", "preparingrebalance": "warn", "completingrebalance": "warn"}
    return tag(state or "unknown", level.get(state.lower(), ""))


PAGES: Final[dict[str, Handler]] = {"/": overview, "/overview.events": events}
CHANGES: Final[dict[str, Handler]] = {}
