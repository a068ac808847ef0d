"""Transactions: those that are open, those that hang, and how to end them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.responses import Response

from penstock.client.admin import OpenTransaction, TransactionDescription, TransactionListing
from penstock.client.errors import PenstockError
from penstock.console.app import Handler, Visit, checked_int, needed
from penstock.console.cluster.state import page_of
from penstock.console.html import Child, Html, duration, h, moment, number, with_query
from penstock.console.pages.layout import (
    PAGE_ROWS,
    Change,
    Column,
    card,
    change_form,
    code,
    confirmed,
    empty,
    facts,
    page,
    pager,
    search_form,
    sorting,
    table,
    tag,
    trail,
)

_SORTS: Final[Mapping[str, Callable[[TransactionListing], Any]]] = {
    "name": lambda item: item.transactional_id,
    "state": lambda item: item.state,
    "producer": lambda item: item.producer_id,
}
_LEVELS: Final = {"Ongoing": "accent", "PrepareCommit": "warn", "PrepareAbort": "warn", "CompleteCommit": "good"}
_MOST_LOOKED_AT: Final = 2_000


def _state(state: str | None) -> Html:
    return tag(state or "unknown", _LEVELS.get(state or "", ""))


async def transactions(visit: Visit) -> Response:
    listed = await visit.account.admin.list_transactions()
    sort, descending = sorting(visit, _SORTS, "state", descending=True)
    found = page_of(
        listed, search=visit.query.get("q", ""), name=lambda item: item.transactional_id, key=_SORTS[sort],
        descending=descending, number=visit.number("page", 1, least=1), size=PAGE_ROWS,
    )  # fmt: skip
    described = await visit.account.admin.describe_transactions([each.transactional_id for each in found.rows])
    now_ms = time.time() * 1000
    rows = []
    for item in found.rows:
        about = described.get(item.transactional_id)
        known = about if isinstance(about, TransactionDescription) else None
        is_open = known is not None and known.start_time_ms is not None and item.state == "Ongoing"
        age = (now_ms - known.start_time_ms) / 1000 if known is not None and known.start_time_ms is not None else None
        rows.append(
            (
                h.a(item.transactional_id, href=with_query("/transactions/show", id_=item.transactional_id)),
                _state(item.state), number(item.producer_id), duration(age) if is_open else "\u2013",
                number(len(known.partitions)) if known else "\u2013", f"broker {item.coordinator.id}",
            )
        )  # fmt: skip
    columns = [
        Column("Transactional id", sort="name"), Column("State", sort="state"), Column("Producer", True, "producer"),
        Column("Open for", True), Column("Partitions", True), Column("Coordinator"),
    ]  # fmt: skip
    content: Child = table(
        columns, rows, caption="Transactions", visit=visit, sort=sort, descending=descending, cls="list"
    )
    return page(
        visit,
        "Transactions",
        h.p(h.a("Look for hanging transactions", href="/transactions/hanging", cls="button")),
        search_form(visit, "Search transactions", "Search transactional ids"),
        content if rows else empty("No transactional ids."),
        pager(visit, found, "transactional ids"),
    )


async def transaction(visit: Visit) -> Response:
    name = visit.query.get("id", "")
    found = await visit.account.admin.describe_transaction(name)
    rows = [(str(key),) for key in found.partitions]
    return page(
        visit,
        f"Transaction {name}",
        facts(
            ("State", _state(found.state)), ("Producer", number(found.producer_id)),
            ("Epoch", number(found.producer_epoch)), ("Time-out", duration(found.timeout_ms / 1000)),
            ("Began", moment(found.start_time_ms)),
            ("Coordinator", f"broker {found.coordinator.id}" if found.coordinator else "\u2013"),
        ),
        table([Column("Partition without a marker")], rows, caption="Partitions") if rows else None,
        card(
            "Fence the producer",
            h.p("Its open transaction is aborted, and the producer that has the id now fails at its next request."),
            change_form(visit, "/transactions/fence", h.input(type_="hidden", name="id", value=name),
                        button="Fence the producer", danger=True),
        ),
        card("On the command line", code(visit.command("transactions", "describe", name))),
        heading=trail(("Transactions", "/transactions"), (name, None)),
    )  # fmt: skip


async def fence(visit: Visit) -> Response:
    name = needed(visit.form, "id", "The transactional id")
    change = Change(
        f"Fence {name}", h.p("The open transaction of ", h.strong(name), " is aborted and its producer is fenced."),
        visit.command("transactions", "fence", name), "Fence the producer", f"{name} was fenced.", "/transactions",
        danger=True,
    )  # fmt: skip

    async def apply() -> None:
        found = (await visit.account.admin.fence_producers([name]))[name]
        if isinstance(found, PenstockError):
            raise found

    return await confirmed(visit, change, apply)


# --------------------------------------------------------------------------------------------------- hanging ones


async def _held(visit: Visit) -> tuple[list[OpenTransaction], int, int]:
    """The open transactions that hold up readers, how many partitions were looked at, and how many there are."""
    admin = visit.account.admin
    described = await admin.describe_topics()
    led = [
        (name, part.index)
        for name, topic in described.items()
        if not isinstance(topic, PenstockError)
        for part in topic.partitions
        if part.leader
    ]
    looked_at = led[:_MOST_LOOKED_AT]
    ends = await admin.list_offsets(dict.fromkeys(looked_at, "latest"))
    stable = await admin.list_offsets(dict.fromkeys(looked_at, "latest"), isolation_level="read_committed")
    held = [
        key
        for key, end in ends.items()
        if not isinstance(end, PenstockError)
        and not isinstance(committed := stable[key], PenstockError)
        and committed.offset < end.offset
    ]
    answers = await admin.open_transactions(held) if held else {}
    found = [item for each in answers.values() if not isinstance(each, PenstockError) for item in each]
    return sorted(found, key=lambda item: not item.is_hanging), len(looked_at), len(led)


async def hanging(visit: Visit) -> Response:
    found, looked_at, total = await _held(visit)
    rows = []
    for item in found:
        words = ["transactions", "abort", f"{item.partition.topic}:{item.partition.partition}"]
        words += ["--start-offset", str(item.start_offset)]
        form: Child = None
        if item.is_hanging and visit.may_change:
            form = change_form(
                visit, "/transactions/abort", h.input(type_="hidden", name="topic", value=item.partition.topic),
                h.input(type_="hidden", name="partition", value=item.partition.partition),
                h.input(type_="hidden", name="offset", value=item.start_offset), button="Abort", danger=True,
            )  # fmt: skip
        rows.append(
            (
                str(item.partition), tag("hangs", "bad") if item.is_hanging else tag("open", "accent"),
                item.transactional_id or "\u2013", number(item.producer.producer_id), number(item.start_offset),
                moment(item.producer.last_timestamp), form,
            )
        )  # fmt: skip
    columns = [
        Column("Partition"), Column("State"), Column("Transactional id"), Column("Producer", True),
        Column("From offset", True), Column("Last record"), Column("End it"),
    ]  # fmt: skip
    looked = f"Looked at {number(looked_at)} of {number(total)} partitions."
    none = f"{looked} No open transaction keeps committed readers waiting."
    return page(
        visit,
        "Hanging transactions",
        h.p(looked) if rows else None,
        table(columns, rows, caption="Open transactions") if rows else empty(none),
        card("On the command line", code(visit.command("transactions", "find-hanging"))),
        heading=trail(("Transactions", "/transactions"), ("Open and hanging", None)),
    )


async def abort(visit: Visit) -> Response:
    topic = needed(visit.form, "topic", "The topic")
    partition = checked_int(visit.form.get("partition", ""), "The partition", most=2**31 - 1)
    offset = checked_int(visit.form.get("offset", ""), "The offset")
    change = Change(
        f"Abort the transaction in {topic}-{partition}",
        h.p(f"The transaction that begins at offset {offset:,} is aborted; its records are never shown to readers of "
            "committed records. The brokers check first that no coordinator is going to complete it."),
        visit.command("transactions", "abort", f"{topic}:{partition}", "--start-offset", str(offset)),
        "Abort the transaction", f"The transaction in {topic}-{partition} was aborted.", "/transactions/hanging",
        danger=True,
    )  # fmt: skip
    return await confirmed(
        visit, change, lambda: visit.account.admin.abort_transaction(topic, partition, start_offset=offset)
    )


PAGES: Final[dict[str, Handler]] = {
    "/transactions": transactions,
    "/transactions/show": transaction,
    "/transactions/hanging": hanging,
}
CHANGES: Final[dict[str, Handler]] = {"/transactions/fence": fence, "/transactions/abort": abort}
