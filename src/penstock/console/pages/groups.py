"""Consumer groups and Spark streams: lag in records and seconds, members, seek with a dry run, delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from starlette.responses import Response

from penstock.client.admin import GroupDescription, OffsetResult
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import PenstockError
from penstock.console.app import Handler, Invalid, Visit, checked_int
from penstock.console.cluster.state import GroupRow, page_of
from penstock.console.html import Child, Html, duration, h, joined, number, path_of, sparkline, with_query
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
    select_field,
    sorting,
    table,
    tag,
    text_field,
    trail,
)
from penstock.console.pages.overview import state_tag
from penstock.console.pages.records import time_of
from penstock.console.pages.zookeeper_groups import group_tabs

_SORTS: Final[Mapping[str, Callable[[GroupRow], Any]]] = {
    "name": lambda row: row.name,
    "kind": lambda row: row.kind,
    "state": lambda row: row.state,
    "lag": lambda row: row.lag_records,
    "behind": lambda row: row.lag_seconds,
}
_MEASURE_S: Final = 0.15
_GOALS: Final = (
    ("earliest", "the first record"),
    ("latest", "the end"),
    ("time", "a time (UTC)"),
    ("offset", "an offset"),
    ("shift", "forward or back by"),
)
_SHOWN: Final = 1_000


async def groups(visit: Visit) -> Response:
    snapshot = await visit.snapshot()
    sort, descending = sorting(visit, _SORTS, "behind", descending=True)
    wanted = visit.query.get("kind", "")
    found = page_of(
        (row for row in snapshot.groups.values() if not wanted or row.kind.lower() == wanted.lower()),
        search=visit.query.get("q", ""), name=lambda row: row.name, key=_SORTS[sort], descending=descending,
        number=visit.number("page", 1, least=1), size=PAGE_ROWS,
    )  # fmt: skip
    await visit.account.collector.measure([row for row in found.rows if row.lag_records], _MEASURE_S)
    kinds = sorted({row.kind for row in snapshot.groups.values()})
    choice = h.label(
        h.span("Kind", cls="hidden"),
        h.select(
            h.option("all kinds", value=""),
            [h.option(kind, value=kind, selected=kind == wanted) for kind in kinds],
            name="kind", data_submit=True,
        ),
    )  # fmt: skip
    content: Child = group_table(found.rows, visit=visit, sort=sort, descending=descending)
    if not found.rows:
        content = empty(
            "No group has these words in its name." if visit.query.get("q") or wanted
            else "No consumer groups yet." if snapshot.is_known else "Reading the cluster …"
        )  # fmt: skip
    return page(
        visit, "Groups", group_tabs(visit), search_form(visit, "Search groups", "Search groups and streams", choice),
        content, pager(visit, found, "groups"),
    )  # fmt: skip


def group_table(
    rows: Sequence[GroupRow], *, visit: Visit | None = None, sort: str = "", descending: bool = False
) -> Html:
    columns = [
        Column("Group or stream", sort="name"), Column("Behind", True, "behind"), Column("Records", True, "lag"),
        Column("Trend", cls="wide-only"), Column("Kind", sort="kind"), Column("State", sort="state"),
        Column("Topics", cls="wide-only"),
    ]  # fmt: skip
    return table(
        columns,
        [
            (
                h.a(row.name or "(empty name)", href=with_query("/groups/show", name=row.name or None)),
                duration(row.lag_seconds), number(row.lag_records), sparkline(row.history, f"lag of {row.name}"),
                tag(row.kind, "accent" if row.is_spark else ""), state_tag(row.state),
                ", ".join(row.topics[:3]) + (f" and {len(row.topics) - 3} more" if len(row.topics) > 3 else ""),
            )
            for row in rows
        ],
        caption="Groups", visit=visit, sort=sort, descending=descending, cls="list",
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------- one group


def _name(fields: Mapping[str, str]) -> str:
    return fields.get("name", "")


async def group(visit: Visit) -> Response:
    name = _name(visit.query)
    described = await visit.account.admin.describe_group(name)
    row = visit.account.collector.look().groups.get(name)
    return page(
        visit,
        f"Group {name}",
        facts(
            ("State", state_tag(described.state)),
            ("Kind", row.kind if row else described.protocol_type or "\u2013"),
            ("Assignment", described.protocol or "\u2013"),
            ("Coordinator", f"broker {described.coordinator.id}" if described.coordinator else "\u2013"),
            ("Members", number(len(described.members))),
            ("Behind", duration(described.lag_seconds)),
            ("Records behind", number(described.lag_records)),
            ("Trend", sparkline(row.history if row else (), f"lag of {name}", width=140)),
        ),
        _partitions(described),
        _members(described),
        h.div(_seek_form(visit, described), _delete_form(visit, described), cls="columns"),
        card("On the command line", code(visit.command("groups", "describe", name))),
        heading=trail(("Groups", "/groups"), (name, None)),
    )


def _partitions(described: GroupDescription) -> Html:
    if not described.partitions:
        return empty("The group has committed no offsets and reads no partitions.")
    hosts = {member.member_id: member.client_id for member in described.members}
    rows = [
        (
            h.a(f"{each.partition.topic}-{each.partition.partition}",
                href=with_query(path_of("topics", each.partition.topic, "records"),
                                partition=each.partition.partition, offset=each.committed)),
            number(each.committed), number(each.end), number(each.lag_records), duration(each.lag_seconds),
            h.span(hosts.get(each.member_id or "", "\u2013"), title=each.member_id or ""),
        )
        for each in described.partitions[:_SHOWN]
    ]  # fmt: skip
    return table(
        [Column("Partition"), Column("Committed", True), Column("End", True), Column("Lag", True),
         Column("Behind", True), Column("Member")],
        rows, caption="Partitions",
    )  # fmt: skip


def _members(described: GroupDescription) -> Html | None:
    if not described.members:
        return None
    rows = [
        (
            h.span(member.client_id or "\u2013"), h.span(member.host, cls="mono"),
            h.span(member.group_instance_id or "\u2013", cls="mono"), number(len(member.assignment)),
            h.span(member.member_id, cls="mono dim"),
        )
        for member in described.members[:_SHOWN]
    ]  # fmt: skip
    columns = [Column("Client"), Column("Host"), Column("Instance"), Column("Partitions", True), Column("Member id")]
    return card("Members", table(columns, rows, caption="Members"))


def _seek_form(visit: Visit, described: GroupDescription) -> Html:
    topics = sorted({each.partition.topic for each in described.partitions})
    if described.members:
        return card("Seek", h.p("Offsets can be moved when the group has no members. Stop its consumers first."))
    return card(
        "Seek",
        h.p("Shows where each partition would go, before anything is moved."),
        change_form(
            visit, "/groups/seek",
            h.input(type_="hidden", name="name", value=described.group_id),
            h.div(
                select_field("topic", "Topic", [("", "all topics"), *((each, each) for each in topics)]),
                select_field("to", "Move to", _GOALS),
                text_field("value", "Time, offset or number", placeholder="2026-11-15T10:30"),
                cls="fields",
            ),
            button="Show the plan",
        ),
    )  # fmt: skip


def _delete_form(visit: Visit, described: GroupDescription) -> Html:
    if described.members:
        return card("Delete", h.p("A group can be deleted when it has no members."))
    return card(
        "Delete",
        h.p("The group and its committed offsets are deleted. Its consumers then start as new ones."),
        change_form(visit, "/groups/delete", h.input(type_="hidden", name="name", value=described.group_id),
                    button="Delete group", danger=True),
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------- seek


async def seek(visit: Visit) -> Response:
    name = _name(visit.form)
    described = await visit.account.admin.describe_group(name)
    plan, words = await _plan(visit, described)
    if not plan:
        raise Invalid("The group has committed no offsets there, so there is nothing to move.")
    committed = {each.partition: each.committed for each in described.partitions}
    ends = {each.partition: each.end for each in described.partitions}
    if visit.form.get("confirm") == "yes" and visit.form.get("plan") != _plan_text(plan):
        raise Invalid("The partitions have changed since the plan was shown; nothing was moved. Look at it again.")
    rows = [
        (f"{key.topic}-{key.partition}", number(committed.get(key)), number(offset),
         _change_text(committed.get(key), offset), number(None if ends.get(key) is None else ends[key] - offset))  # type: ignore[operator]
        for key, offset in list(plan.items())[:_SHOWN]
    ]  # fmt: skip
    columns = [
        Column("Partition"), Column("Now", True), Column("Then", True), Column("Change", True),
        Column("Lag then", True),
    ]  # fmt: skip
    change = Change(
        f"Seek {name}",
        joined(
            h.p(f"{len(plan)} partitions would move; nothing has been changed yet."),
            table(columns, rows, caption="Plan"),
            h.input(type_="hidden", name="plan", value=_plan_text(plan)),
        ),
        visit.command("groups", "seek", name, *words), "Move the group", f"The offsets of {name} were moved.",
        with_query("/groups/show", name=name), danger=True,
    )  # fmt: skip

    async def apply() -> None:
        found = await visit.account.admin.set_group_offsets(
            name, {(key.topic, key.partition): plan[key] for key in plan}
        )
        for key, error in found.items():
            if error is not None:
                raise Invalid(f"{key} was not moved: {error.message}.", error.hint)

    return await confirmed(visit, change, apply)


def _plan_text(plan: Mapping[TopicPartition, int]) -> str:
    import hashlib

    text = ";".join(f"{key.topic}:{key.partition}:{offset}" for key, offset in sorted(plan.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _change_text(before: int | None, after: int) -> str:
    if before is None:
        return "new"
    return f"{after - before:+,}" if after != before else "0"


async def _plan(visit: Visit, described: GroupDescription) -> tuple[dict[TopicPartition, int], list[str]]:
    """Where each partition goes, inside of what it holds, and the options of the command."""
    topic, goal, value = visit.form.get("topic", ""), visit.form.get("to", ""), visit.form.get("value", "").strip()
    now = {
        each.partition: each.committed
        for each in described.partitions
        if each.committed is not None and (not topic or each.partition.topic == topic)
    }
    admin = visit.account.admin
    starts = _known(await admin.list_offsets(dict.fromkeys(now, "earliest")))
    ends = _known(await admin.list_offsets(dict.fromkeys(now, "latest")))
    words = ["--topic", topic] if topic else ["--all-topics"]
    if goal == "earliest":
        wanted, words = starts, [*words, "--to-earliest"]
    elif goal == "latest":
        wanted, words = ends, [*words, "--to-latest"]
    elif goal == "time":
        time_ms = time_of(value)
        if time_ms is None:
            raise Invalid("The time is missing; write 2026-11-15T10:30, or milliseconds since 1970.")
        at = _known(await admin.list_offsets(dict.fromkeys(now, time_ms)))
        wanted = {key: at[key] if at[key] >= 0 else ends[key] for key in now}
        words = [*words, "--to-time", str(time_ms)]
    elif goal == "offset":
        offset = checked_int(value, "The offset")
        wanted, words = dict.fromkeys(now, offset), [*words, "--to-offset", str(offset)]
    elif goal == "shift":
        shift = checked_int(value, "The number", least=-(2**62), most=2**62)
        wanted = {key: offset + shift for key, offset in now.items()}
        words = [*words, "--shift-by", str(shift)]
    else:
        raise Invalid("Say where to move the group.")
    return {key: max(starts[key], min(ends[key], offset)) for key, offset in wanted.items()}, words


def _known(found: Mapping[TopicPartition, OffsetResult | PenstockError]) -> dict[TopicPartition, int]:
    offsets = {}
    for key, result in found.items():
        if isinstance(result, PenstockError):
            raise result
        offsets[key] = result.offset
    return offsets


async def delete(visit: Visit) -> Response:
    name = _name(visit.form)
    change = Change(
        f"Delete group {name}", h.p("Group ", h.strong(name), " and its committed offsets are deleted."),
        visit.command("groups", "delete", name), "Delete the group", f"Group {name} was deleted.", "/groups",
        danger=True,
    )  # fmt: skip
    return await confirmed(visit, change, lambda: visit.account.admin.delete_group(name))


PAGES: Final[dict[str, Handler]] = {"/groups": groups, "/groups/show": group}
CHANGES: Final[dict[str, Handler]] = {"/groups/seek": seek, "/groups/delete": delete}
