"""Topics: the list, one topic with partitions and settings, and changes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.responses import Response

from penstock.client.admin import (
    ConfigEntry,
    ConfigResource,
    OffsetResult,
    PartitionDescription,
    TopicDescription,
    TopicSpec,
)
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import PenstockError
from penstock.console.app import Handler, Invalid, Visit, checked_int, needed
from penstock.console.cluster.state import TopicRow, page_of
from penstock.console.html import Child, Html, h, joined, number, path_of, rate, size, sparkline
from penstock.console.pages.layout import (
    PAGE_ROWS,
    Change,
    Column,
    area_field,
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
    tabs,
    tag,
    text_field,
    trail,
)

_SORTS: Final[Mapping[str, Callable[[TopicRow], Any]]] = {
    "name": lambda row: row.name,
    "partitions": lambda row: row.partitions,
    "replication": lambda row: row.replication,
    "records": lambda row: row.records,
    "size": lambda row: row.size,
    "rate": lambda row: row.rate,
    "trouble": lambda row: row.trouble,
}
_MOST_SHOWN_PARTITIONS: Final = 1_000


async def topics(visit: Visit) -> Response:
    snapshot = await visit.snapshot()
    sort, descending = sorting(visit, _SORTS, "name", descending=False)
    internal = visit.query.get("internal") == "1"
    found = page_of(
        (row for row in snapshot.topics.values() if internal or not row.is_internal),
        search=visit.query.get("q", ""), name=lambda row: row.name, key=_SORTS[sort], descending=descending,
        number=visit.number("page", 1, least=1), size=PAGE_ROWS,
    )  # fmt: skip
    columns = [
        Column("Topic", sort="name"), Column("Partitions", True, "partitions"),
        Column("Replicas", True, "replication"), Column("Offsets", True, "records"), Column("Size", True, "size"),
        Column("Records/s", True, "rate"), Column("Trend", cls="wide-only"), Column("State", sort="trouble"),
    ]  # fmt: skip
    rows = [
        (
            h.a(row.name, href=path_of("topics", row.name)), number(row.partitions), number(row.replication),
            number(row.records), size(row.size), rate(row.rate, ""), sparkline(row.history, f"rate of {row.name}"),
            _state(row),
        )
        for row in found.rows
    ]  # fmt: skip
    content: Child = table(columns, rows, caption="Topics", visit=visit, sort=sort, descending=descending, cls="list")
    if not rows:
        content = empty(
            "No topic has these words in its name." if visit.query.get("q")
            else "No topics yet." if snapshot.is_known else "Reading the cluster …"
        )  # fmt: skip
    new = h.a("New topic", href="/topics/new", cls="button primary") if visit.may_change else None
    toggle = h.label(
        h.input(type_="checkbox", name="internal", value="1", checked=internal, data_submit=True), h.span("internal"),
        cls="inline",
    )  # fmt: skip
    return page(
        visit,
        "Topics",
        search_form(visit, "Search topics", "Search topics", toggle),
        content,
        pager(visit, found, "topics"),
        heading=h.div(h.h1("Topics"), new, cls="heading"),
    )


def _state(row: TopicRow) -> Html:
    if row.leaderless:
        return tag(f"{row.leaderless} without leader", "bad")
    if row.under_replicated:
        return tag(f"{row.under_replicated} out of sync", "warn")
    return tag("in sync", "good")


# --------------------------------------------------------------------------------------------------- one topic


def topic_head(visit: Visit, name: str) -> tuple[Html, Html]:
    """The title and the tabs of a topic's pages."""
    links = [
        (path_of("topics", name), "Partitions"),
        (path_of("topics", name, "records"), "Records"),
        (path_of("topics", name, "settings"), "Settings"),
        (path_of("topics", name, "readers"), "Groups"),
    ]
    if visit.may_change:
        links += [(path_of("topics", name, "produce"), "Produce"), (path_of("topics", name, "manage"), "Manage")]
    asked = path_of("topics", name, *visit.request.url.path.rstrip("/").split("/")[3:4])
    here = asked if asked in {path for path, _ in links} else links[0][0]
    return trail(("Topics", "/topics"), (name, None)), tabs(links, here)


def name_of(visit: Visit) -> str:
    return str(visit.request.path_params["topic"])


async def topic(visit: Visit) -> Response:
    name = name_of(visit)
    admin = visit.account.admin
    described = await admin.describe_topic(name)
    keys = [TopicPartition(name, part.index) for part in described.partitions if part.leader]
    starts: Mapping[TopicPartition, OffsetResult | PenstockError] = {}
    ends: Mapping[TopicPartition, OffsetResult | PenstockError] = {}
    shown = keys[:_MOST_SHOWN_PARTITIONS]
    starts = await admin.list_offsets(dict.fromkeys(shown, "earliest"))
    ends = await admin.list_offsets(dict.fromkeys(shown, "latest"))
    snapshot = visit.account.collector.look()
    sizes = _sizes(visit, name)
    head, links = topic_head(visit, name)
    row = snapshot.topics.get(name)
    return page(
        visit,
        name,
        links,
        _summary(described, row, starts, ends),
        _partitions(described, starts, ends, sizes),
        card(
            "Use it",
            h.p("Read it on the command line, in Python, or with Spark."),
            code(visit.command("consume", name, "--from-beginning")),
            code(python_snippet(visit, name)),
            code(spark_snippet(visit, name)),
        ),
        heading=head,
    )


def _offset(found: Mapping[TopicPartition, OffsetResult | PenstockError], key: TopicPartition) -> int | None:
    result = found.get(key)
    return result.offset if isinstance(result, OffsetResult) else None


def _summary(
    described: TopicDescription,
    row: TopicRow | None,
    starts: Mapping[TopicPartition, OffsetResult | PenstockError],
    ends: Mapping[TopicPartition, OffsetResult | PenstockError],
) -> Html:
    offsets = sum(max(0, (_offset(ends, key) or 0) - (_offset(starts, key) or 0)) for key in ends)
    pairs: list[tuple[str, Child]] = [
        ("Partitions", number(len(described.partitions))),
        ("Replicas", number(described.replication_factor)),
        ("Offsets", number(offsets)),
    ]
    if row is not None:
        pairs += [("Size of all replicas", size(row.size)), ("Records/s", rate(row.rate, "")), ("State", _state(row))]
    return facts(*pairs)


def _sizes(visit: Visit, name: str) -> dict[int, int]:
    """The largest replica of each partition."""
    sizes: dict[int, int] = {}
    for broker in visit.account.collector.snapshot.brokers:
        for folder in broker.disks:
            for key, held in folder.sizes.items():
                if key.topic == name:
                    sizes[key.partition] = max(held, sizes.get(key.partition, 0))
    return sizes


def _partitions(
    described: TopicDescription,
    starts: Mapping[TopicPartition, OffsetResult | PenstockError],
    ends: Mapping[TopicPartition, OffsetResult | PenstockError],
    sizes: Mapping[int, int],
) -> Html:
    rows = []
    for part in described.partitions[:_MOST_SHOWN_PARTITIONS]:
        key = TopicPartition(described.name, part.index)
        first, end = _offset(starts, key), _offset(ends, key)
        rows.append(
            (
                h.a(part.index, href=path_of("topics", described.name, "records") + f"?partition={part.index}"),
                tag("none", "bad") if part.leader is None else str(part.leader.id),
                _replicas(part), number(part.leader_epoch), number(first), number(end),
                number(None if first is None or end is None else max(0, end - first)), size(sizes.get(part.index)),
            )
        )  # fmt: skip
    hidden = len(described.partitions) - len(rows)
    return joined(
        table(
            [Column("Partition"), Column("Leader", True), Column("Replicas"), Column("Epoch", True, cls="wide-only"),
             Column("First offset", True), Column("End offset", True), Column("Offsets", True), Column("Size", True)],
            rows, caption="Partitions",
        ),
        h.p(f"{number(hidden)} more partitions are not shown.", cls="none") if hidden > 0 else None,
    )  # fmt: skip


def _replicas(part: PartitionDescription) -> Html:
    return h.span(
        [
            h.span(
                str(broker), cls="replica" if broker in part.isr else "replica out",
                title="in sync" if broker in part.isr else "out of sync",
            )
            for broker in part.replicas
        ],
        cls="replicas",
    )  # fmt: skip


def python_snippet(visit: Visit, name: str) -> str:
    return (
        "from penstock import Consumer\n\n"
        f"with Consumer({name!r}, bootstrap_servers={visit.account.servers!r},\n"
        '              auto_offset_reset="earliest") as consumer:\n'
        "    for record in consumer:\n"
        "        print(record.partition, record.offset, record.key, record.value)\n"
    )


def spark_snippet(visit: Visit, name: str) -> str:
    return (
        "import penstock.spark\n\n"
        "spark = penstock.spark.session()\n"
        'frame = (spark.read.format("penstock")\n'
        f'         .option("kafka.bootstrap.servers", {visit.account.servers!r})\n'
        f'         .option("subscribe", {name!r})\n'
        "         .load())\n"
        'frame.selectExpr("partition", "offset", "timestamp", "CAST(value AS STRING)").show()\n'
    )


# --------------------------------------------------------------------------------------------------- settings


async def settings(visit: Visit) -> Response:
    name = name_of(visit)
    found = await visit.account.admin.describe_config(ConfigResource.topic(name))
    head, links = topic_head(visit, name)
    search = visit.query.get("q", "").lower()
    entries = [each for each in found.values() if search in each.name.lower()]
    entries.sort(key=lambda each: (each.source != "topic", each.name))
    return page(
        visit,
        f"Settings of {name}",
        links,
        search_form(visit, "Search settings", "Search settings"),
        table(
            [Column("Setting"), Column("Value"), Column("Source"), Column("Change")],
            [setting_row(visit, each, path_of("topics", name, "settings"), "topic") for each in entries],
            caption="Settings", cls="settings",
        ) if entries else empty("No setting has these words in its name."),
        heading=head,
    )  # fmt: skip


def setting_row(visit: Visit, entry: ConfigEntry, action: str, own_source: str) -> tuple[Child, ...]:
    """A setting with its value and source, and a form that changes it."""
    value = "hidden" if entry.is_sensitive else entry.value if entry.value is not None else "not set"
    own = entry.source == own_source
    form: Child = None
    if visit.may_change and not entry.is_read_only:
        form = h.details(
            h.summary("change"),
            change_form(
                visit, action,
                h.input(type_="hidden", name="name", value=entry.name),
                text_field("value", "New value", "" if entry.is_sensitive else entry.value or "",
                           hint="Leave it empty to use the default again." if own else ""),
                button="Change", cls="form inline-form",
            ),
        )  # fmt: skip
    return (
        joined(h.span(entry.name, cls="mono"), h.small(entry.documentation) if entry.documentation else None),
        h.span(value, cls="mono" + ("" if own else " dim")), tag(entry.source, "accent" if own else ""), form,
    )  # fmt: skip


async def change_setting(visit: Visit) -> Response:
    name = name_of(visit)
    setting, value = needed(visit.form, "name", "The setting"), visit.form.get("value", "")
    assignment = ["--set", f"{setting}={value}"] if value else ["--unset", setting]
    change = Change(
        f"Change {setting} of {name}",
        h.p("Topic ", h.strong(name), f": {setting} becomes ", h.strong(value) if value else "the default again", "."),
        visit.command("configs", "alter", "--topic", name, *assignment),
        "Change the setting", f"{setting} of {name} was changed.", path_of("topics", name, "settings"),
    )  # fmt: skip
    return await confirmed(
        visit, change,
        lambda: visit.account.admin.alter_config(ConfigResource.topic(name), {setting: value or None}),
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------- readers


async def readers(visit: Visit) -> Response:
    from penstock.console.pages.groups import group_table

    name = name_of(visit)
    snapshot = await visit.snapshot()
    found = [row for row in snapshot.groups.values() if name in row.topics]
    found.sort(key=lambda row: -(row.lag_records or 0))
    head, links = topic_head(visit, name)
    return page(
        visit,
        f"Groups of {name}",
        links,
        group_table(found[:200]) if found else empty(f"No group has committed offsets of {name}."),
        heading=head,
    )


# --------------------------------------------------------------------------------------------------- changes


async def new_topic(visit: Visit) -> Response:
    return page(
        visit,
        "New topic",
        change_form(
            visit, "/topics",
            text_field("name", "Name", required=True, maxlength=249, pattern="[a-zA-Z0-9._\\-]+", autofocus=True,
                       hint="Letters, digits, '.', '_' and '-'."),
            text_field("partitions", "Partitions", type_="number", min_="1", placeholder="default of the brokers"),
            text_field("replicas", "Replicas", type_="number", min_="1", placeholder="default of the brokers"),
            select_field("policy", "When records are old",
                         [("", "default of the brokers"), ("delete", "delete them"),
                          ("compact", "keep the last of each key"), ("compact,delete", "both")]),
            area_field("settings", "Other settings", hint="One NAME=VALUE on each line, such as retention.ms=86400000.",
                       rows=4),
            button="Create topic", cls="form card",
        ),
        heading=trail(("Topics", "/topics"), ("New topic", None)),
    )  # fmt: skip


async def create(visit: Visit) -> Response:
    name = needed(visit.form, "name", "The name")
    partitions = _optional(visit, "partitions", "The number of partitions", 100_000)
    replicas = _optional(visit, "replicas", "The number of replicas", 32_767)
    config: dict[str, str] = {}
    if visit.form.get("policy"):
        config["cleanup.policy"] = visit.form["policy"]
    for line in visit.form.get("settings", "").splitlines():
        setting, equals, value = line.strip().partition("=")
        if line.strip() and (not equals or not setting.strip()):
            raise Invalid(f"{line.strip()!r} is not NAME=VALUE.")
        if setting.strip():
            config[setting.strip()] = value.strip()
    words = ["topics", "create", name]
    words += ["-p", str(partitions)] if partitions > 0 else []
    words += ["-r", str(replicas)] if replicas > 0 else []
    for setting, value in config.items():
        words += ["--config", f"{setting}={value}"]
    spec = TopicSpec(name, partitions, replicas, config)
    if visit.form.get("confirm") != "yes":
        await visit.account.admin.create_topic(spec, validate_only=True)
    change = Change(
        f"Create {name}", h.p("The brokers have checked it: the topic can be created."), visit.command(*words),
        "Create the topic", f"Topic {name} was created.", path_of("topics", name),
    )  # fmt: skip
    return await confirmed(visit, change, lambda: visit.account.admin.create_topic(spec))


def _optional(visit: Visit, name: str, what: str, most: int) -> int:
    text = visit.form.get(name, "").strip()
    return checked_int(text, what, least=1, most=most) if text else -1


async def manage(visit: Visit) -> Response:
    name = name_of(visit)
    described = await visit.account.admin.describe_topic(name)
    count = len(described.partitions)
    head, links = topic_head(visit, name)
    return page(
        visit,
        f"Manage {name}",
        links,
        h.div(
            card(
                "Add partitions",
                h.p("The number can only grow. Keys go to other partitions afterwards."),
                change_form(visit, path_of("topics", name, "partitions"),
                            text_field("total", "Partitions", str(count + 1), type_="number", min_=str(count + 1)),
                            button="Add partitions"),
            ),
            card(
                "Delete records",
                h.p("All records before an offset are deleted; an empty offset deletes all that are there now."),
                change_form(visit, path_of("topics", name, "trim"),
                            text_field("partition", "Partition", placeholder="all"),
                            text_field("offset", "Before offset", placeholder="the end"),
                            button="Delete records", danger=True),
            ),
            card(
                "Delete the topic",
                h.p("Its records, and the offsets that groups have committed for it, are lost."),
                change_form(visit, path_of("topics", name, "delete"),
                            text_field("name", "Type the name of the topic", hint=name),
                            button="Delete topic", danger=True),
            ),
            cls="columns three",
        ),
        heading=head,
    )  # fmt: skip


async def add_partitions(visit: Visit) -> Response:
    name = name_of(visit)
    total = checked_int(visit.form.get("total", ""), "The number of partitions", least=1, most=100_000)
    if visit.form.get("confirm") != "yes":
        await visit.account.admin.create_partitions(name, total, validate_only=True)
    change = Change(
        f"Add partitions to {name}", h.p(h.strong(name), f" will have {total:,} partitions."),
        visit.command("topics", "alter", name, "--partitions", str(total)),
        "Add the partitions", f"{name} has {total:,} partitions.", path_of("topics", name),
    )  # fmt: skip
    return await confirmed(visit, change, lambda: visit.account.admin.create_partitions(name, total))


async def trim(visit: Visit) -> Response:
    name = name_of(visit)
    described = await visit.account.admin.describe_topic(name)
    indexes = [part.index for part in described.partitions]
    if visit.form.get("partition", "").strip():
        indexes = [checked_int(visit.form["partition"], "The partition", most=len(indexes) - 1)]
    text = visit.form.get("offset", "").strip()
    offset = checked_int(text, "The offset") if text else -1
    words = ["topics", "trim", *(f"{name}:{index}" for index in indexes)]
    words += ["--before-offset", str(offset)] if text else ["--all-records"]
    change = Change(
        f"Delete records of {name}",
        [h.p("Records before ", h.strong(f"offset {offset:,}" if text else "the present end"), " are deleted in ",
             h.strong(f"{len(indexes)} partitions of {name}"), ". They cannot be had back.")],
        visit.command(*words), "Delete the records", f"Records of {name} were deleted.", path_of("topics", name),
        danger=True,
    )  # fmt: skip

    async def apply() -> None:
        found = await visit.account.admin.delete_records({(name, index): offset for index in indexes})
        for result in found.values():
            if isinstance(result, PenstockError):
                raise result

    return await confirmed(visit, change, apply)


async def delete(visit: Visit) -> Response:
    name = name_of(visit)
    if visit.form.get("name", "").strip() != name:
        raise Invalid(f"The name that you typed is not {name!r}; nothing was deleted.")
    change = Change(
        f"Delete {name}", h.p("Topic ", h.strong(name), " and all its records are deleted. They cannot be had back."),
        visit.command("topics", "delete", name), "Delete the topic", f"Topic {name} was deleted.", "/topics",
        danger=True,
    )  # fmt: skip
    return await confirmed(visit, change, lambda: visit.account.admin.delete_topic(name))


PAGES: Final[dict[str, Handler]] = {
    "/topics": topics,
    "/topics/new": new_topic,
    "/topics/{topic}": topic,
    "/topics/{topic}/settings": settings,
    "/topics/{topic}/readers": readers,
    "/topics/{topic}/manage": manage,
}
CHANGES: Final[dict[str, Handler]] = {
    "/topics": create,
    "/topics/{topic}/settings": change_setting,
    "/topics/{topic}/partitions": add_partitions,
    "/topics/{topic}/trim": trim,
    "/topics/{topic}/delete": delete,
}
