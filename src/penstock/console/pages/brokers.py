"""Brokers: disks, versions, leaders, their settings, and partitions that move between them."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from penstock.client.admin import ConfigResource, PartitionReassignment
from penstock.client.cluster_metadata import TopicPartition
from penstock.console.app import Handler, NotThere, Visit, needed
from penstock.console.cluster.state import BrokerRow, Snapshot
from penstock.console.html import Child, Html, bar, h, joined, moment, number, path_of, size
from penstock.console.pages.layout import (
    Change,
    Column,
    card,
    change_form,
    code,
    confirmed,
    empty,
    facts,
    page,
    search_form,
    table,
    tag,
    trail,
)
from penstock.console.pages.topics import setting_row

_MOST_MOVES: Final = 200
_MOST_ELECTIONS: Final = 100


async def brokers(visit: Visit) -> Response:
    snapshot = await visit.snapshot()
    rows = [
        (
            h.a(f"broker {row.id}", href=path_of("brokers", row.id)) if not row.is_away else f"broker {row.id}",
            _state(row), f"{row.host}:{row.port}" if row.host else "\u2013", row.rack or "\u2013",
            row.version or "\u2013", number(row.leaders), number(row.replicas), size(row.size), _disk(row),
        )
        for row in snapshot.brokers
    ]  # fmt: skip
    columns = [
        Column("Broker"), Column("State"), Column("Address"), Column("Rack", cls="wide-only"),
        Column("Version", cls="wide-only"), Column("Leaders", True), Column("Replicas", True), Column("Size", True),
        Column("Fullest disk"),
    ]  # fmt: skip
    content = table(columns, rows, caption="Brokers", cls="list") if rows else empty("Reading the cluster …")
    parts = (_election(visit, snapshot), _moves(visit, snapshot), _elections(snapshot))
    return page(visit, "Brokers", content, *parts)


def _state(row: BrokerRow) -> Html:
    if row.is_away:
        return tag("away", "bad")
    return joined(tag("up", "good"), " ", tag("controller", "accent") if row.is_controller else None)


def _disk(row: BrokerRow) -> Child:
    if row.disk_error:
        return h.span("not reported", title=row.disk_error, cls="none")
    if any(folder.error is not None for folder in row.disks):
        return tag("a disk is offline", "bad")
    known = [
        (1 - folder.usable_bytes / folder.total_bytes, folder.usable_bytes)
        for folder in row.disks
        if folder.total_bytes > 0
    ]
    if not known:
        return "\u2013"
    share, free = max(known)
    return joined(bar(share, f"{share:.0%} used"), " ", h.small(f"{size(free)} free"))


def _election(visit: Visit, snapshot: Snapshot) -> Html | None:
    uneven = [row for row in snapshot.brokers if not row.is_away]
    if len(uneven) < 2:
        return None
    return card(
        "Preferred leaders",
        h.p("After a restart a broker leads less than its share until leaders are elected again."),
        change_form(visit, "/brokers/elect", button="Elect preferred leaders", cls="form inline-form"),
    )


def _elections(snapshot: Snapshot) -> Html | None:
    """The changes of leaders that this console has seen."""
    if not snapshot.seen_since_ms:
        return None
    since = joined("since ", moment(snapshot.seen_since_ms), " UTC, while somebody looked")
    if not snapshot.elections:
        return card("Elections", h.p("No partition and no controller has changed its leader ", since, "."))
    rows = [
        (
            moment(each.time_ms),
            "controller" if each.partition is None
            else h.a(str(each.partition), href=path_of("topics", each.partition.topic)),
            _broker(each.before), _broker(each.after),
            "\u2013" if each.epoch < 0 else f"{each.epoch_before} \u2192 {each.epoch}",
        )
        for each in snapshot.elections[:_MOST_ELECTIONS]
    ]  # fmt: skip
    columns = [Column("Seen (UTC)"), Column("Partition"), Column("From"), Column("To"), Column("Epoch", True)]
    return card("Elections", h.p("The newest first, ", since, "."), table(columns, rows, caption="Elections"))


def _broker(broker_id: int | None) -> Child:
    return tag("no leader", "bad") if broker_id is None else f"broker {broker_id}"


def _moves(visit: Visit, snapshot: Snapshot) -> Html:
    if not snapshot.moves:
        return card(
            "Moves", h.p("No partitions move between brokers. To move some:"),
            code(visit.command("reassign", "plan", "TOPIC", "--brokers", "1,2,3")),
        )  # fmt: skip
    rows = [
        (
            h.a(f"{key.topic}-{key.partition}", href=path_of("topics", key.topic)),
            ", ".join(map(str, move.original)), ", ".join(map(str, move.target)), _progress(snapshot, key, move),
        )
        for key, move in list(snapshot.moves.items())[:_MOST_MOVES]
    ]  # fmt: skip
    columns = [Column("Partition"), Column("From"), Column("To"), Column("Catching up")]
    return card(
        f"Moves: {number(len(snapshot.moves))} partitions", code(visit.command("reassign", "status")),
        table(columns, rows, caption="Moves"),
    )  # fmt: skip


def _progress(snapshot: Snapshot, key: TopicPartition, move: PartitionReassignment) -> Child:
    """How much of the partition the brokers that are added have, by the sizes on their disks."""
    sizes = {row.id: folder.sizes[key] for row in snapshot.brokers for folder in row.disks if key in folder.sizes}
    whole = max(sizes.values(), default=0)
    parts: list[Child] = []
    for broker_id in move.adding:
        share = sizes.get(broker_id, 0) / whole if whole else None
        parts += [f"broker {broker_id} ", bar(share, "copied") if share is not None else None, " "]
        parts.append(h.small(f"{size(sizes.get(broker_id, 0))} of {size(whole)} "))
    return parts


# --------------------------------------------------------------------------------------------------- one broker


def _id_of(visit: Visit) -> int:
    text = str(visit.request.path_params["broker"])
    if not text.isdigit() or len(text) > 9:
        raise NotThere(f"There is no broker {text}.")
    return int(text)


async def broker(visit: Visit) -> Response:
    broker_id = _id_of(visit)
    snapshot = await visit.snapshot()
    row = next((each for each in snapshot.brokers if each.id == broker_id), None)
    if row is None:
        raise NotThere(f"There is no broker {broker_id}.")
    settings: Child = empty("The broker is away, so its settings are not known.")
    if not row.is_away:
        found = await visit.account.admin.describe_config(ConfigResource.broker(broker_id))
        search = visit.query.get("q", "").lower()
        entries = sorted(
            (each for each in found.values() if search in each.name.lower()),
            key=lambda each: (each.is_default, each.name),
        )
        settings = table(
            [Column("Setting"), Column("Value"), Column("Source"), Column("Change")],
            [setting_row(visit, each, path_of("brokers", broker_id), "dynamic broker") for each in entries],
            caption="Settings", cls="settings",
        )  # fmt: skip
    disks = [
        (
            h.span(folder.path, cls="mono"), "offline" if folder.error is not None else "online",
            number(len(folder.sizes)), size(sum(folder.sizes.values())), size(folder.usable_bytes),
            bar(1 - folder.usable_bytes / folder.total_bytes, "used") if folder.total_bytes > 0 else "\u2013",
            number(len(folder.moving)),
        )
        for folder in row.disks
    ]  # fmt: skip
    columns = [
        Column("Folder"), Column("State"), Column("Replicas", True), Column("Size", True), Column("Free", True),
        Column("Used"), Column("Moving here", True),
    ]  # fmt: skip
    return page(
        visit,
        f"Broker {broker_id}",
        facts(
            ("State", _state(row)), ("Address", f"{row.host}:{row.port}" if row.host else "\u2013"),
            ("Rack", row.rack or "\u2013"), ("Version", row.version or "\u2013"), ("Leaders", number(row.leaders)),
            ("Replicas", number(row.replicas)), ("Size", size(row.size)),
        ),
        table(columns, disks, caption="Disks") if disks else None,
        h.h2("Settings"),
        search_form(visit, "Search settings", "Search settings"),
        settings,
        heading=trail(("Brokers", "/brokers"), (f"broker {broker_id}", None)),
    )  # fmt: skip


async def change_setting(visit: Visit) -> Response:
    broker_id = _id_of(visit)
    setting, value = needed(visit.form, "name", "The setting"), visit.form.get("value", "")
    assignment = ["--set", f"{setting}={value}"] if value else ["--unset", setting]
    change = Change(
        f"Change {setting} of broker {broker_id}",
        h.p(f"Broker {broker_id}: {setting} becomes ", h.strong(value) if value else "the default again", "."),
        visit.command("configs", "alter", "--broker", str(broker_id), *assignment), "Change the setting",
        f"{setting} of broker {broker_id} was changed.", path_of("brokers", broker_id), danger=True,
    )  # fmt: skip
    resource = ConfigResource.broker(broker_id)
    return await confirmed(visit, change, lambda: visit.account.admin.alter_config(resource, {setting: value or None}))


async def elect(visit: Visit) -> Response:
    change = Change(
        "Elect preferred leaders",
        h.p("Every partition is led by the first of its replicas again, if that one is in sync."),
        visit.command("elect", "preferred"), "Elect", "Preferred leaders were elected.", "/brokers",
    )  # fmt: skip
    return await confirmed(visit, change, lambda: visit.account.admin.elect_leaders("preferred"))


PAGES: Final[dict[str, Handler]] = {"/brokers": brokers, "/brokers/{broker}": broker}
CHANGES: Final[dict[str, Handler]] = {"/brokers/elect": elect, "/brokers/{broker}": change_setting}
