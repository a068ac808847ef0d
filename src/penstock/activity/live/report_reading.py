"""What a report needs, read from the log and the warehouse.

Nouns: `Tables`, the warehouse's, read by columns and times; `TableCount`, what the log has of a topic and what became
of it; `Delays`, how long events took to their table.

Rule: nothing is changed, and nothing is read that `penstock table audit` and any reader of Delta could not read too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.activity.clusters import Cluster
from penstock.activity.events import KINDS
from penstock.activity.live.report_counts import moment
from penstock.activity.live.truth import Told, told_of
from penstock.client.admin import Admin
from penstock.client.errors import PenstockError
from penstock.spark.tables import Loader, Warehouse
from penstock.spark.tables.auditing import audit_table
from penstock.spark.tables.delta import Store
from penstock.spark.tables.log_state import log_state, offsets_at
from penstock.spark.tables.running import LocalRunner
from penstock.spark.tables.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.tables.audit import Audit

_MOST_HOURS_MS: Final = 7 * 24 * 3_600_000
_COMMITS: Final = 20_000


class ReportError(PenstockError):
    """There is nothing to report on."""


@dataclass(frozen=True)
class TableCount:
    """Of a table of events. The log's part is from the hour of the run's start on."""

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
    """Events that the generator says it sent, malformed ones included; None if it was not asked."""
    malformed: int | None = None

    @property
    def problems(self) -> list[str]:
        """Why it is not complete."""
        found = [
            f"{count:,} {what}"
            for count, what in ((self.missing, "missing"), (self.surplus, "there twice"), (self.waiting, "waiting"))
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


class Tables:
    """The warehouse's."""

    def __init__(self, warehouse_uri: str) -> None:
        self._storage = Storage(warehouse_uri)
        self._there = {
            name for name in self._storage.folders() if Store.is_there(self._storage.child(name))
        }  # fmt: skip
        self._stores: dict[str, Store] = {}
        if not self._there:
            raise ReportError(
                f"there are no tables in {warehouse_uri}",
                hint="`penstock pipeline run` makes them; --warehouse says where they are",
            )

    def has(self, *names: str) -> bool:
        return all(name in self._there for name in names)

    def store(self, name: str) -> Store:
        if name not in self._stores:
            self._stores[name] = Store(self._storage.child(name))
        return self._stores[name]

    def rows(self, name: str) -> int:
        return sum(file.rows or 0 for file in self.store(name).files())

    def read(self, name: str, columns: Sequence[str], since: tuple[str, int] | None = None) -> pa.Table:
        """Columns, of all rows or of those whose time in a column is not before one."""
        filters = None if since is None else [(since[0], ">=", moment(since[1]))]
        return self.store(name).delta.to_pyarrow_table(columns=list(columns), filters=filters).select(list(columns))

    def commits(self, name: str) -> Iterator[Mapping[str, Any]]:
        """What the commits of a table say of themselves, the newest first, as far as they are kept."""
        store = self.store(name)
        for version in range(store.version, max(-1, store.version - _COMMITS), -1):
            text = store.storage.read_text(f"_delta_log/{version:020d}.json")
            if text is None:
                return
            for line in text.splitlines():
                if line.startswith('{"commitInfo"'):
                    yield json.loads(line)["commitInfo"]


def told(cluster: Cluster, admin: Admin, topic: str, since_ms: int | None = None) -> list[Told]:
    """The records of a topic, from a time of publication on; none if there is no such topic."""
    from penstock.spark.fetching import read_range

    if topic not in admin.list_topics():
        return []
    state = log_state(admin, topic, "read_committed")
    starts = {} if since_ms is None else offsets_at(admin, state, since_ms)
    found: list[Told] = []
    reader = cluster.reader()
    for partition, (begin, end) in state.bounds.items():
        start = starts.get(partition, begin)
        for batch in read_range(cluster.bootstrap, reader, topic, partition, start, end, isolation="read_committed"):
            columns = [batch.column(name).to_pylist() for name in ("key", "value", "timestamp")]
            for key, value, stamp in zip(*columns, strict=True):
                found.append(told_of(key, value, round(stamp.timestamp() * 1000)))
    return found


def table_counts(
    cluster: Cluster, admin: Admin, warehouse_uri: str, since_ms: int, now_ms: int, summary: Mapping[str, Any] | None
) -> list[TableCount]:
    """Of all tables of events that are there."""
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
    dead = loader.opened.dead.delta.to_pyarrow_table(columns=["_partition", "_offset"]).to_pydict()
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


@dataclass(frozen=True)
class Landing:
    """The events of a table by the clock: how many in each second, and how long they took to the table."""

    table: str
    by_second: Mapping[int, int]
    delay_p50_ms: float | None
    delay_p99_ms: float | None
    delay_most_ms: float | None


def landing(tables: Tables, name: str, since_ms: int) -> Landing:
    """From the offsets that each commit says it brought, and its time."""
    import numpy as np
    import pyarrow as pa

    rows = tables.read(name, ("time", "_partition", "_offset"), ("time", since_ms))
    time_ms = rows.column("time").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_numpy()
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
    """Partition, offsets from and to, and the time of the commit that brought them first."""
    for info in tables.commits(name):
        note = info.get("penstock")
        if isinstance(note, dict) and note.get("kind") == "load":
            for partition, spans in note.get("offsets", {}).items():
                for start, end in spans:
                    yield int(partition), int(start), int(end), int(info["timestamp"])
