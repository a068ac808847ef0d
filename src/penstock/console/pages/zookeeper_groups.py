"""Groups in ZooKeeper: members, owners, offsets, and how far behind they are. Nothing can be changed here.

ZooKeeper knows no users of Kafka, so where visitors log in, the brokers decide: who may not describe a group of that
name does not see it, and of its topics those are shown that the visitor may describe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from starlette.responses import Response

from penstock.client.admin import GroupDescription, OffsetResult
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.zookeeper_registry import Subscription
from penstock.client.errors import ConfigError, PenstockError, UnknownGroup
from penstock.console.app import Handler, NotThere, Visit
from penstock.console.cluster.state import Page, page_of
from penstock.console.cluster.zookeeper_groups import (
    MOST_PARTITIONS,
    GroupPartition,
    GroupSummary,
    ZooKeeperGroup,
    ZooKeeperGroups,
)
from penstock.console.html import Child, Html, duration, h, number, path_of, with_query
from penstock.console.pages.layout import (
    PAGE_ROWS,
    Column,
    card,
    empty,
    facts,
    page,
    pager,
    search_form,
    table,
    tabs,
    trail,
)
from penstock.console.records.reading import fetch, shown_records

_MOST_ASKED: Final = 200
"""Brokers are asked about each group of a list, where visitors log in."""
_MOST_AGES: Final = 100
_AGE_BYTES: Final = 64 * 1024


def group_tabs(visit: Visit) -> Html | None:
    """The two kinds of groups, where the console knows a ZooKeeper."""
    if visit.console.zookeeper_groups is None:
        return None
    return tabs([("/groups", "At the brokers"), ("/groups/zookeeper", "In ZooKeeper")], visit.request.url.path)


def _of(visit: Visit) -> ZooKeeperGroups:
    found = visit.console.zookeeper_groups
    if found is None:
        raise NotThere("This console knows no ZooKeeper.")
    return found


async def _permitted(visit: Visit, names: list[str]) -> list[str]:
    """The groups that the visitor may describe; all where nobody logs in.

    Brokers check rights first: a group that they do not know is one that the visitor may describe. Any other answer
    permits nothing.
    """
    if not visit.console.options.login or not names:
        return names
    found = await visit.account.admin.describe_groups(names, with_lag=False)
    return [name for name in names if isinstance(found.get(name), GroupDescription | UnknownGroup)]


async def _listed(visit: Visit, names: list[str]) -> tuple[Page[str], bool]:
    """A page of the groups that the visitor may describe, and whether there were too many to ask the brokers about."""
    search, is_cut = visit.query.get("q", ""), False
    if visit.console.options.login:
        # Neither rows nor their number show that other groups exist.
        matching = page_of(names, search=search, name=str, size=_MOST_ASKED)
        names, is_cut = await _permitted(visit, matching.rows), matching.pages > 1
    page_ = page_of(names, search=search, name=str, number=visit.number("page", 1, least=1), size=PAGE_ROWS)
    return page_, is_cut


async def groups(visit: Visit) -> Response:
    zookeeper = _of(visit)
    found, is_cut = await _listed(visit, await asyncio.to_thread(zookeeper.names))
    rows = await asyncio.to_thread(zookeeper.summaries, found.rows)
    columns = [Column("Group"), Column("Members", True), Column("Topics")]
    content = table(columns, [_row(visit, each) for each in rows], caption="Groups in ZooKeeper", cls="list")
    return page(
        visit, "Groups", group_tabs(visit), search_form(visit, "Search groups", "Search groups in ZooKeeper"),
        h.p(f"Only the first {number(_MOST_ASKED)} groups were looked at; search for others.") if is_cut else None,
        content if rows else empty(f"No groups in {zookeeper.where}."), pager(visit, found, "groups"),
    )  # fmt: skip


def _row(visit: Visit, each: GroupSummary) -> tuple[Child, ...]:
    topics = [topic for topic in each.topics if _may_see(visit, topic)]
    more = f" and {len(topics) - 5} more" if len(topics) > 5 else ""
    link = h.a(each.name, href=with_query("/groups/zookeeper/show", name=each.name))
    return link, number(each.members), ", ".join(topics[:5]) + more or "\u2013"


def _may_see(visit: Visit, topic: str) -> bool:
    return not visit.console.options.login or topic in visit.account.collector.look().topics


async def group(visit: Visit) -> Response:
    zookeeper, name = _of(visit), visit.query.get("name", "")
    await visit.snapshot()
    permitted = await _permitted(visit, [name]) if name else []
    found = None
    with suppress(ConfigError):  # a name that no node can have
        found = await asyncio.to_thread(zookeeper.group, name) if permitted else None
    if found is None:
        raise NotThere(f"There is no group {name} in ZooKeeper.")
    shown = [each for each in found.partitions if _may_see(visit, each.partition.topic)]
    ends = await _ends(visit, shown)
    ages = await _ages(visit, shown, ends)
    lags = [ends[each.partition] - each.offset for each in shown if each.offset is not None and each.partition in ends]
    return page(
        visit, f"Group {name}",
        facts(
            ("Members", number(len(found.members))), ("Partitions", number(len(shown))),
            ("Records behind", number(sum(max(0, lag) for lag in lags)) if lags else "\u2013"),
            ("Behind", duration(_behind(lags, ages.values()))), ("Kept in", str(zookeeper.where)),
        ),
        _partitions(found, shown, ends, ages),
        _members(visit, found),
        heading=trail(("Groups", "/groups"), ("In ZooKeeper", "/groups/zookeeper"), (name, None)),
    )  # fmt: skip


def _behind(lags: Sequence[int], ages: Iterable[float]) -> float | None:
    """How far behind a group is, in seconds; None if that cannot be read."""
    return max(ages, default=0.0 if lags and max(lags) <= 0 else None)


async def _ends(visit: Visit, shown: list[GroupPartition]) -> dict[TopicPartition, int]:
    """The end offsets of the partitions that the brokers still have."""
    topics = visit.account.collector.look().topics
    wanted = [each.partition for each in shown if each.partition.topic in topics]
    found = await visit.account.admin.list_offsets(dict.fromkeys(wanted, "latest")) if wanted else {}
    return {key: each.offset for key, each in found.items() if isinstance(each, OffsetResult) and each.offset >= 0}


async def _ages(
    visit: Visit, shown: list[GroupPartition], ends: dict[TopicPartition, int]
) -> dict[TopicPartition, float]:
    """How old the first unread record of a partition is, in seconds; left out where it cannot be read."""
    behind = {
        each.partition: each.offset
        for each in shown
        if each.offset is not None and each.offset < ends.get(each.partition, 0)
    }
    asked = dict(list(behind.items())[:_MOST_AGES])
    if not asked:
        return {}
    answers = await fetch(visit.account.admin, asked, isolation="read_uncommitted", partition_bytes=_AGE_BYTES)
    now_s = time.time()
    ages = {}
    for key, answer in answers.items():
        if isinstance(answer, PenstockError):
            continue
        first = await asyncio.to_thread(shown_records, key.partition, answer, asked[key], 1)
        if first and first[0].timestamp >= 0:
            ages[key] = max(0.0, now_s - first[0].timestamp / 1000)
    return ages


def _partitions(
    found: ZooKeeperGroup,
    shown: list[GroupPartition],
    ends: dict[TopicPartition, int],
    ages: dict[TopicPartition, float],
) -> Html:
    if not shown:
        return empty("The group has stored no offsets and owns no partitions.")
    rows: list[tuple[Child, ...]] = []
    for each in shown:
        key, end = each.partition, ends.get(each.partition)
        lag = None if end is None or each.offset is None else max(0, end - each.offset)
        offset: Child = h.span("damaged", title=each.problem, cls="bad-text") if each.problem else number(each.offset)
        rows.append(
            (
                h.a(str(key), href=with_query(path_of("topics", key.topic, "records"), partition=key.partition,
                                              offset=each.offset)),
                offset, number(end), number(lag), duration(0.0 if lag == 0 else ages.get(key)), each.owner or "\u2013",
            )
        )  # fmt: skip
    columns = [
        Column("Partition"), Column("Stored", True), Column("End", True), Column("Lag", True), Column("Behind", True),
        Column("Owner"),
    ]  # fmt: skip
    cut = h.p(f"The first {number(MOST_PARTITIONS)} partitions.") if found.is_cut else None
    return h.div(cut, table(columns, rows, caption="Partitions"))


def _members(visit: Visit, found: ZooKeeperGroup) -> Html | None:
    if not found.members:
        return None
    rows = [(h.span(name, cls="mono"), reads(visit, each)) for name, each in found.members.items()]
    return card("Members", table([Column("Member"), Column("Reads (threads)")], rows, caption="Members"))


def reads(visit: Visit, subscription: Subscription | str) -> str:
    """What a member subscribes to, as far as the visitor may see its topics. A pattern may name any topic."""
    if visit.console.options.login and (isinstance(subscription, str) or subscription.kind != "static"):
        return "\u2013" if isinstance(subscription, str) else "topics by a pattern"
    if isinstance(subscription, str):
        return subscription
    words = {"static": "", "white_list": "all topics like ", "black_list": "all topics but those like "}
    is_pattern = subscription.kind != "static"
    streams = [
        f"{each} ({n})" for each, n in sorted(subscription.streams.items()) if is_pattern or _may_see(visit, each)
    ]
    return words[subscription.kind] + ", ".join(streams) or "\u2013"


PAGES: Final[dict[str, Handler]] = {"/groups/zookeeper": groups, "/groups/zookeeper/show": group}
CHANGES: Final[dict[str, Handler]] = {}
