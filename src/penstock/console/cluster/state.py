"""The snapshot of a cluster: rows of topics, groups and brokers, and their recent history. Pure.

A snapshot is replaced, not changed, so a page works on one state from its first to its last row. Rows hold sums, not
partitions: 10,000 topics with 100,000 partitions take some megabytes, and a page sorts them in milliseconds.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.client.admin import (
    ClusterDescription,
    GroupListing,
    LogDirectory,
    PartitionReassignment,
    TopicDescription,
)
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.diagnosis import NOTE, PROBLEM, Finding
from penstock.client.errors import PenstockError
from penstock.runtime.quantities import counted, some_of

HISTORY: Final = 60
_GROWING_SAMPLES: Final = 8
_GROWING_RECORDS: Final = 1_000
# penstock.spark names a query's group after the query and its id.
_SPARK_GROUP: Final = re.compile(r".+-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

T = TypeVar("T")
History = deque[float]


def new_history() -> History:
    return deque(maxlen=HISTORY)


@dataclass(slots=True)
class TopicRow:
    """A topic in a list. None: not known yet, or not reported by these brokers."""

    name: str
    partitions: int
    replication: int
    leaderless: int
    under_replicated: int
    is_internal: bool
    end: int | None = None
    """The sum of the end offsets."""
    records: int | None = None
    """Offsets between the ends; compaction and markers make it larger than the number of records."""
    size: int | None = None
    rate: float | None = None
    history: History = field(default_factory=new_history)

    @property
    def trouble(self) -> int:
        return self.leaderless * 1_000_000 + self.under_replicated


@dataclass(slots=True)
class GroupRow:
    """A group in a list."""

    name: str
    state: str
    type: str
    protocol_type: str
    coordinator: int
    topics: tuple[str, ...] = ()
    lag_records: int | None = None
    lag_seconds: float | None = None
    history: History = field(default_factory=new_history)

    @property
    def is_spark(self) -> bool:
        return _SPARK_GROUP.fullmatch(self.name) is not None

    @property
    def kind(self) -> str:
        if self.is_spark:
            return "Spark"
        if self.protocol_type not in ("consumer", ""):
            return self.protocol_type
        return self.type.lower() or "classic"

    @property
    def is_growing(self) -> bool:
        """Whether the lag rose at each of the last samples, and by more than a pause of the reader explains."""
        last = list(self.history)[-_GROWING_SAMPLES:]
        rises = all(before <= after for before, after in pairwise(last))
        return len(last) == _GROWING_SAMPLES and rises and last[-1] - last[0] >= _GROWING_RECORDS


@dataclass(slots=True)
class BrokerRow:
    """A broker: its partitions by the metadata, and its disks if it reports them."""

    id: int
    host: str
    port: int
    rack: str | None
    is_controller: bool
    is_away: bool = False
    leaders: int = 0
    replicas: int = 0
    disks: tuple[LogDirectory, ...] = ()
    disk_error: str = ""
    version: str = ""

    @property
    def size(self) -> int | None:
        return sum(sum(each.sizes.values()) for each in self.disks) if self.disks else None


class Traffic(NamedTuple):
    """The cluster's rates at a moment; None where no broker could be asked."""

    time_ms: int
    records_in: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    produce_p99_s: float | None = None
    fetch_p99_s: float | None = None


class LeaderChange(NamedTuple):
    """A partition got another leader, or the same one again with a new epoch. Without a partition: the controller."""

    time_ms: int
    partition: TopicPartition | None
    before: int | None
    after: int | None
    epoch_before: int = -1
    epoch: int = -1


class Leaders(NamedTuple):
    """The leaders of a topic's partitions and their epochs, by index; -1 is none."""

    topic_id: bytes | None
    pairs: tuple[int, ...]


@dataclass(slots=True)
class Snapshot:
    """What is known of the cluster at `time_ms`; 0 before the first refresh."""

    time_ms: int = 0
    took_s: float = 0.0
    cluster: ClusterDescription | None = None
    brokers: tuple[BrokerRow, ...] = ()
    topics: Mapping[str, TopicRow] = field(default_factory=dict)
    groups: Mapping[str, GroupRow] = field(default_factory=dict)
    moves: Mapping[TopicPartition, PartitionReassignment] = field(default_factory=dict)
    may_describe_cluster: bool = False
    """Whether the brokers told which partitions move: that needs the right to describe the cluster."""
    elections: tuple[LeaderChange, ...] = ()
    """What was seen since `seen_since_ms`, the newest first."""
    seen_since_ms: int = 0
    findings: tuple[Finding, ...] = ()
    traffic: Sequence[Traffic] = ()
    errors: tuple[str, ...] = ()
    """Parts that could not be read, with the reason."""
    metered: int = 0
    """How many brokers' metrics were read."""

    @property
    def is_known(self) -> bool:
        return self.time_ms > 0

    @property
    def problems(self) -> list[Finding]:
        return [each for each in self.findings if each.level == PROBLEM]

    @property
    def now(self) -> Traffic:
        return self.traffic[-1] if self.traffic else Traffic(self.time_ms)


# --------------------------------------------------------------------------------------------------- building rows


def topic_rows(topics: Iterable[TopicDescription], before: Mapping[str, TopicRow]) -> dict[str, TopicRow]:
    """Rows of these topics; numbers and history are those of the rows before."""
    rows: dict[str, TopicRow] = {}
    for topic in topics:
        leaderless = sum(part.leader is None for part in topic.partitions)
        under = sum(len(part.isr) < len(part.replicas) for part in topic.partitions if part.leader is not None)
        row = TopicRow(
            topic.name, len(topic.partitions), topic.replication_factor, leaderless, under, topic.is_internal
        )
        old = before.get(topic.name)
        if old is not None:
            row.end, row.records, row.size, row.rate = old.end, old.records, old.size, old.rate
            row.history = old.history
        rows[topic.name] = row
    return rows


def group_rows(listings: Iterable[GroupListing], before: Mapping[str, GroupRow]) -> dict[str, GroupRow]:
    rows: dict[str, GroupRow] = {}
    for item in listings:
        row = GroupRow(item.group_id, item.state, item.type, item.protocol_type, item.coordinator.id)
        old = before.get(item.group_id)
        if old is not None:
            row.topics, row.lag_records, row.lag_seconds = old.topics, old.lag_records, old.lag_seconds
            row.history = old.history
        rows[item.group_id] = row
    return rows


def broker_rows(
    cluster: ClusterDescription,
    topics: Iterable[TopicDescription],
    disks: Mapping[int, tuple[LogDirectory, ...] | PenstockError],
    versions: Mapping[int, str],
) -> tuple[BrokerRow, ...]:
    """Brokers of the cluster, and those that are away but have replicas."""
    leaders: dict[int, int] = {}
    replicas: dict[int, int] = {}
    for topic in topics:
        for part in topic.partitions:
            if part.leader is not None:
                leaders[part.leader.id] = leaders.get(part.leader.id, 0) + 1
            for broker in part.replicas:
                replicas[broker] = replicas.get(broker, 0) + 1
    controller = cluster.controller.id if cluster.controller else None
    rows = [BrokerRow(node.id, node.host, node.port, node.rack, node.id == controller) for node in cluster.nodes]
    known = {row.id for row in rows}
    rows += [BrokerRow(each, "", 0, None, False, is_away=True) for each in sorted(replicas.keys() - known)]
    for row in rows:
        row.leaders, row.replicas = leaders.get(row.id, 0), replicas.get(row.id, 0)
        row.version = versions.get(row.id, "")
        found = disks.get(row.id, ())
        if isinstance(found, PenstockError):
            row.disk_error = found.message
        else:
            row.disks = found
    return tuple(sorted(rows, key=lambda row: row.id))


def leaders_of(topics: Iterable[TopicDescription]) -> dict[str, Leaders]:
    """The leaders of all partitions: a few bytes for each."""
    found = {}
    for topic in topics:
        pairs: list[int] = []
        for part in sorted(topic.partitions, key=lambda each: each.index):
            pairs += (-1 if part.leader is None else part.leader.id, part.leader_epoch)
        found[topic.name] = Leaders(topic.topic_id, tuple(pairs))
    return found


def leader_changes(before: Mapping[str, Leaders], after: Mapping[str, Leaders], time_ms: int) -> list[LeaderChange]:
    """What has changed between two looks. A topic that was created again is another one."""
    changes: list[LeaderChange] = []
    for name, now in after.items():
        then = before.get(name)
        if then is None or then.pairs == now.pairs or then.topic_id != now.topic_id:
            continue
        for at in range(0, min(len(then.pairs), len(now.pairs)), 2):
            old, new = then.pairs[at : at + 2], now.pairs[at : at + 2]
            # A broker that has not heard of an election yet answers with the leader before.
            if old != new and new[1] >= old[1]:
                changes.append(
                    LeaderChange(
                        time_ms, TopicPartition(name, at // 2), None if old[0] < 0 else old[0],
                        None if new[0] < 0 else new[0], old[1], new[1],
                    )
                )  # fmt: skip
    return changes


def newest_leaders(before: Mapping[str, Leaders], after: Mapping[str, Leaders]) -> dict[str, Leaders]:
    """The leaders with the highest epochs of two looks: a broker that is behind does not take back what is known."""
    found = dict(after)
    for name, now in after.items():
        then = before.get(name)
        if then is None or then.pairs == now.pairs or then.topic_id != now.topic_id:
            continue
        pairs = list(now.pairs)
        for at in range(0, min(len(then.pairs), len(pairs)), 2):
            if then.pairs[at + 1] > pairs[at + 1]:
                pairs[at : at + 2] = then.pairs[at : at + 2]
        found[name] = Leaders(now.topic_id, tuple(pairs))
    return found


def state_findings(brokers: Iterable[BrokerRow], groups: Iterable[GroupRow]) -> list[Finding]:
    """What only the console sees: brokers that are away, and lag that grows from sample to sample."""
    findings = [
        Finding(
            PROBLEM, "brokers", f"broker {row.id}", f"is away; {counted(row.replicas, 'replica')} are on it",
            "Start it again, or move its partitions: penstock reassign plan --help",
        )
        for row in brokers
        if row.is_away
    ]  # fmt: skip
    growing = [row for row in groups if row.is_growing]
    if growing:
        growing.sort(key=lambda row: -(row.lag_records or 0))
        findings.append(
            Finding(
                NOTE, "lag", some_of([row.name for row in growing]),
                f"the lag grows; the largest is {growing[0].lag_records or 0:,} records",
                f"Add members, or see what they wait for: penstock groups describe {growing[0].name}",
            )
        )  # fmt: skip
    return findings


# --------------------------------------------------------------------------------------------------- lists


class Page(NamedTuple, Generic[T]):
    """A part of a list, and where it is."""

    rows: list[T]
    total: int
    number: int
    pages: int


def page_of(
    rows: Iterable[T],
    *,
    search: str = "",
    name: Callable[[T], str],
    key: Callable[[T], Any] | None = None,
    descending: bool = False,
    number: int = 1,
    size: int = 50,
) -> Page[T]:
    """The rows whose name has every word of a search, sorted, and of these one page. Rows without a value come last."""
    words = search.lower().split()
    found = [row for row in rows if all(word in name(row).lower() for word in words)] if words else list(rows)
    found.sort(key=name)
    if key is not None:
        wanted = key
        known = [row for row in found if wanted(row) is not None]
        known.sort(key=wanted, reverse=descending)
        found = known + [row for row in found if wanted(row) is None]
    pages = max(1, -(-len(found) // size))
    shown = max(1, min(number, pages))
    return Page(found[(shown - 1) * size : shown * size], len(found), shown, pages)
