"""What a report measures: counts of the log, of the warehouse and of the pipelines' tables, and delays.

Nothing is changed, and everything could be read by `penstock table audit` or any reader of Delta. The sums that tables
of pipelines must add up to are computed from the loaded events, without Spark and without the pipelines' code. Tables
that keep only some groups (`behaviour`) or pairs (`feed_entries`) are compared with those, for the time of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.activity.cluster import Cluster
from penstock.activity.events import (
    API_CALLS,
    FOLLOWS,
    IMPRESSIONS,
    KINDS,
    POSTS,
    REQUESTS,
    SEARCHES,
    SERVERS,
    VIEWS,
    VOTES,
)
from penstock.activity.pipelines.security import MIN_CALLS, MIN_POSTS, MIN_VIEWS
from penstock.activity.report.scores import PublishedRecord, published_record
from penstock.client.admin import Admin
from penstock.client.errors import PenstockError
from penstock.spark.tables import Loader, Warehouse
from penstock.spark.tables.audit import audit_table
from penstock.spark.tables.delta import Storage, Store
from penstock.spark.tables.load_plan import log_state, offsets_at
from penstock.spark.tables.runner import LocalRunner

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.tables.audit import Audit


_MINUTE_MS: Final = 60_000
_MOST_HOURS_MS: Final = 7 * 24 * 3_600_000
_COMMITS: Final = 20_000
_SUMS: Final = {
    "item_minutes": (
        ("impressions", "clicks", "views", "votes_up", "votes_down"),
        (VIEWS.topic, IMPRESSIONS.topic, VOTES.topic),
    ),
    "keyword_minutes": (("searches",), (SEARCHES.topic,)),
    "server_windows": (("requests", "measures"), (REQUESTS.topic, SERVERS.topic)),
    "sessions": (("impressions", "clicks", "views"), (VIEWS.topic, IMPRESSIONS.topic)),
}
"""Columns whose sums equal the events of topics."""


class ReportError(PenstockError):
    """There is nothing to report on, or the report cannot be written."""


class Tables:
    """The tables of a warehouse, opened as needed."""

    def __init__(self, warehouse_uri: str) -> None:
        self._storage = Storage(warehouse_uri)
        self._existing = {
            name for name in self._storage.folders() if Store.exists(self._storage.child(name))
        }  # fmt: skip
        self._stores: dict[str, Store] = {}
        if not self._existing:
            raise ReportError(
                f"no tables in {warehouse_uri}",
                hint="Run `penstock pipeline run`, or set --warehouse",
            )

    def has(self, *names: str) -> bool:
        return all(name in self._existing for name in names)

    def store(self, name: str) -> Store:
        if name not in self._stores:
            self._stores[name] = Store(self._storage.child(name))
        return self._stores[name]

    def rows(self, name: str) -> int:
        return sum(file.rows or 0 for file in self.store(name).files())

    def read(self, name: str, columns: Sequence[str], since: tuple[str, int] | None = None) -> pa.Table:
        """Columns of all rows, or of the rows whose time in the column `since[0]` is at least `since[1]`."""
        filters = None if since is None else [(since[0], ">=", _moment(since[1]))]
        return self.store(name).read(columns, filters).select(list(columns))

    def commits(self, name: str) -> Iterator[Mapping[str, Any]]:
        """The commitInfo of the retained commits of a table, newest first."""
        store = self.store(name)
        for version in range(store.version, max(-1, store.version - _COMMITS), -1):
            info = store.commit_info(version)
            if info is None:
                return
            yield info


def published_records(cluster: Cluster, admin: Admin, topic: str, since_ms: int | None = None) -> list[PublishedRecord]:
    """The records of a topic since a time of publication; none if the topic does not exist."""
    from penstock.spark.fetch import read_range

    if topic not in admin.list_topics():
        return []
    state = log_state(admin, topic, "read_committed")
    starts = {} if since_ms is None else offsets_at(admin, state, since_ms)
    found: list[PublishedRecord] = []
    reader = cluster.reader()
    for partition, (begin, end) in state.bounds.items():
        start = starts.get(partition, begin)
        for batch in read_range(cluster.bootstrap, reader, topic, partition, start, end, isolation="read_committed"):
            columns = [batch.column(name).to_pylist() for name in ("key", "value", "timestamp")]
            for key, value, stamp in zip(*columns, strict=True):
                found.append(published_record(key, value, round(stamp.timestamp() * 1000)))
    return found


# ---------------------------------------------------------------------------------------------- events: log and tables


@dataclass(frozen=True)
class TableCount:
    """The counts of a table of events. Those of the log start at the hour in which the run started."""

    table: str
    logged: int
    landed: int
    dead: int
    waiting: int
    missing: int
    surplus: int
    complete_until_ms: int | None
    run_logged: int
    """Records from the run's start on, exactly."""
    run_dead: int
    acknowledged: int | None = None
    """Events in the generator's summary, malformed ones included; None without a summary."""
    malformed: int | None = None

    @property
    def problems(self) -> list[str]:
        """Why the table is not complete."""
        found = [
            f"{count:,} {what}"
            for count, what in ((self.missing, "missing"), (self.surplus, "duplicate"), (self.waiting, "waiting"))
            if count
        ]
        if self.acknowledged is not None and self.run_logged != self.acknowledged:
            found.append(f"{self.acknowledged:,} acknowledged but {self.run_logged:,} in the log")
        if self.malformed is not None and self.run_dead != self.malformed:
            found.append(f"{self.malformed:,} malformed but {self.run_dead:,} dead letters")
        return found

    @property
    def is_complete(self) -> bool:
        return not self.problems


def table_counts(
    cluster: Cluster, admin: Admin, warehouse_uri: str, since_ms: int, now_ms: int, summary: Mapping[str, Any] | None
) -> list[TableCount]:
    """The counts of all existing tables of events."""
    warehouse = Warehouse(warehouse_uri)
    there = set(warehouse.names())
    runner = LocalRunner(1)
    found: list[TableCount] = []
    for topic in (kind.topic for kind in KINDS if kind.topic in there):
        loader = Loader(warehouse.open(topic), admin, cluster.bootstrap, runner, options=dict(cluster.options))
        audit = audit_table(loader, admin, runner, max(since_ms, now_ms - _MOST_HOURS_MS), now_ms)
        found.append(_count(loader, admin, audit, since_ms, summary))
    return found


def _count(loader: Loader, admin: Admin, audit: Audit, since_ms: int, summary: Mapping[str, Any] | None) -> TableCount:
    state = loader.state()
    started_ms = since_ms if summary is None else int(summary["start_ms"])
    starts = offsets_at(admin, state, started_ms)
    dead = loader.opened.dead.read(["_partition", "_offset"]).to_pydict()
    in_run = [
        offset >= starts.get(partition, 0)
        for partition, offset in zip(dead["_partition"], dead["_offset"], strict=True)
    ]
    topic = audit.topic
    good, malformed = (None if summary is None else int(summary[name].get(topic, 0)) for name in ("good", "malformed"))
    return TableCount(
        audit.table, audit.total("produced") - audit.total("empty"), audit.total("landed"),
        audit.total("dead") + audit.total("dropped"), audit.total("waiting"), audit.total("missing"),
        audit.total("surplus"), audit.complete_until_ms,
        sum(end - starts[partition] for partition, (_, end) in state.bounds.items()), sum(in_run),
        None if good is None or malformed is None else good + malformed, malformed,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- tables of pipelines


@dataclass(frozen=True)
class RowsCount:
    """The rows of a table against the events they must add up to; `what` names what was counted."""

    table: str
    what: str
    counted: int
    events: int

    @property
    def is_complete(self) -> bool:
        return self.counted == self.events


def rows_counts(tables: Tables, since_ms: int) -> list[RowsCount]:
    """Counts of the existing tables whose tables of events exist too."""
    found: list[RowsCount] = []
    for name, (columns, topics) in _SUMS.items():
        if tables.has(name, *topics):
            rows = tables.read(name, columns)
            counted = sum(_sum(rows, column) for column in columns)
            found.append(RowsCount(name, f"events of {_and(topics)}", counted, sum(map(tables.rows, topics))))
    minute_ms = since_ms // _MINUTE_MS * _MINUTE_MS
    if tables.has("behaviour", VIEWS.topic, POSTS.topic, API_CALLS.topic):
        found.append(_behaviour(tables, minute_ms))
    if tables.has("feed_entries", POSTS.topic, VOTES.topic, FOLLOWS.topic):
        found.append(_feed(tables, since_ms))
    return found


def _behaviour(tables: Tables, since_ms: int) -> RowsCount:
    rows = tables.read("behaviour", ("views", "posts", "calls"), ("minute", since_ms))
    counted = sum(_sum(rows, column) for column in ("views", "posts", "calls"))
    members = grouped(
        {
            "views": tables.read(VIEWS.topic, ("time", "member"), ("time", since_ms)),
            "posts": tables.read(POSTS.topic, ("time", "member"), ("time", since_ms)),
        }
    )
    calls = grouped({"calls": tables.read(API_CALLS.topic, ("time", "client"), ("time", since_ms))})
    events = sum(
        one["views"] + one["posts"] for one in members if one["views"] >= MIN_VIEWS or one["posts"] >= MIN_POSTS
    )
    events += sum(one["calls"] for one in calls if one["calls"] >= MIN_CALLS)
    return RowsCount("behaviour", "acts of actors above the minimum per minute", counted, events)


def grouped(events: Mapping[str, pa.Table]) -> list[dict[str, int]]:
    """Counts by minute and actor. The first column of each table is the time, the second the actor."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts: list[pa.Table] = []
    for name, rows in events.items():
        time, actor = rows.columns
        minute = pc.divide(time.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()), _MINUTE_MS)
        counts = {
            each: pa.array([int(each == name)] * rows.num_rows, pa.int64()) for each in events
        }  # fmt: skip
        parts.append(pa.table({"minute": minute, "actor": actor.cast(pa.string()), **counts}))
    sums = pa.concat_tables(parts).group_by(["minute", "actor"]).aggregate([(name, "sum") for name in events])
    columns = [sums.column(f"{name}_sum").to_pylist() for name in events]
    return [dict(zip(events, counts, strict=True)) for counts in zip(*columns, strict=True)]


def _feed(tables: Tables, since_ms: int) -> RowsCount:
    entries = tables.read("feed_entries", ("time",), ("time", since_ms)).num_rows
    follows = tables.read(FOLLOWS.topic, ("time", "followed"))
    posts = tables.read(POSTS.topic, ("time", "member"), ("time", since_ms))
    votes = tables.read(VOTES.topic, ("time", "member", "vote"), ("time", since_ms))
    import pyarrow.compute as pc

    up = votes.filter(pc.greater(votes.column("vote"), 0))
    events = pairs(follows, posts) + pairs(follows, up.select(["time", "member"]))
    return RowsCount("feed_entries", "posts and up-votes, for each earlier follow of their author", entries, events)


def pairs(follows: pa.Table, acts: pa.Table) -> int:
    """The number of pairs of an act and an earlier follow or unfollow of its author."""
    import numpy as np

    if not follows.num_rows or not acts.num_rows:
        return 0
    follow_ms, act_ms = _ms(follows.column("time")), _ms(acts.column("time"))
    first_ms = min(follow_ms.min(), act_ms.min())
    span = max(follow_ms.max(), act_ms.max()) - first_ms + 1
    followed, codes = np.unique(follows.column("followed").to_numpy(), return_inverse=True)
    authors = acts.column("member").to_numpy()
    places = np.minimum(np.searchsorted(followed, authors), len(followed) - 1)
    known = followed[places] == authors
    line = np.sort(codes * span + (follow_ms - first_ms))
    start = places[known] * span
    until = np.searchsorted(line, start + (act_ms[known] - first_ms), side="right")
    return int((until - np.searchsorted(line, start, side="left")).sum())


def _sum(rows: pa.Table, column: str) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(rows.column(column)).as_py() or 0)


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# ---------------------------------------------------------------------------------------------- delays


@dataclass(frozen=True)
class Landing:
    """The events of a table: how many in each second, and their delay until the table's commit."""

    table: str
    by_second: Mapping[int, int]
    delay_p50_ms: float | None
    delay_p99_ms: float | None
    delay_most_ms: float | None


def landing(tables: Tables, name: str, since_ms: int) -> Landing:
    """Computed from the offsets and the time of each commit."""
    import numpy as np

    rows = tables.read(name, ("time", "_partition", "_offset"), ("time", since_ms))
    time_ms = _ms(rows.column("time"))
    seconds, counts = np.unique(time_ms // 1000, return_counts=True)
    by_second = dict(zip((seconds * 1000).tolist(), counts.tolist(), strict=True))
    partitions, offsets = rows.column("_partition").to_numpy(), rows.column("_offset").to_numpy()
    spans = sorted(_spans(tables, name))
    delays = [np.empty(0)]
    for partition in np.unique(partitions).tolist():
        of = [(start, end, commit_ms) for each, start, end, commit_ms in spans if each == partition]
        mine = partitions == partition
        if not of:
            continue
        starts, ends, commits_ms = (np.array(column) for column in zip(*of, strict=True))
        place = np.searchsorted(starts, offsets[mine], side="right") - 1
        inside = (place >= 0) & (offsets[mine] < ends[np.maximum(place, 0)])
        delays.append((commits_ms[place] - time_ms[mine])[inside])
    every = np.concatenate(delays)
    if not every.size:
        return Landing(name, by_second, None, None, None)
    p50, p99, most = (float(np.quantile(every, share)) for share in (0.5, 0.99, 1.0))
    return Landing(name, by_second, p50, p99, most)


def _spans(tables: Tables, name: str) -> Iterator[tuple[int, int, int, int]]:
    """(partition, start offset, end offset, commit time) of each load."""
    for info in tables.commits(name):
        note = info.get("penstock")
        if isinstance(note, dict) and note.get("kind") == "load":
            for partition, spans in note.get("offsets", {}).items():
                for start, end in spans:
                    yield int(partition), int(start), int(end), int(info["timestamp"])


# ---------------------------------------------------------------------------------------------- values


def _ms(column: Any) -> Any:
    """A column of timestamps as an array of milliseconds."""
    import pyarrow as pa

    return column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_numpy()


def _moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)
