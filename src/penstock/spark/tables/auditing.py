"""An audit of a table, carried out: the log asked for its hours, the table for its offsets.

Rule: files that lie within one hour are counted by their statistics; only the others are opened, for two columns. The
log is read only for hours whose sums differ, to tell offsets without a record from records that are missing; and only
for those that seem to have too much, offset is compared with offset: a compacted log loses records that were loaded.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from penstock.spark.options import ReaderOptions
from penstock.spark.tables import audit
from penstock.spark.tables.audit import Audit, Hour, hour_spans, hour_starts
from penstock.spark.tables.delta import LiveFile, Store
from penstock.spark.tables.loading import Loader
from penstock.spark.tables.log_state import offsets_at_all
from penstock.spark.tables.ranges import Span, split, total

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.spark.tables.running import Runner

_TASK_RECORDS = 1_000_000


@dataclass(frozen=True)
class CountTask:
    """How many records some offsets have; it travels to an executor."""

    bootstrap: str
    reader: ReaderOptions
    topic: str
    span: Span
    isolation: str


def count_pickled(task: bytes) -> bytes:
    return pickle.dumps(_count(pickle.loads(task)))


def offsets_pickled(task: bytes) -> bytes:
    """The offsets that have a record, as 64-bit integers."""
    batches = _read(pickle.loads(task))
    return b"".join(batch.column("offset").to_numpy().astype("int64").tobytes() for batch in batches)


def _count(task: CountTask) -> int:
    return sum(batch.num_rows for batch in _read(task))


def _read(task: CountTask) -> Iterator[Any]:
    from penstock.spark.fetching import read_range

    return read_range(
        task.bootstrap, replace(task.reader, include_headers=False), task.topic, task.span.partition, task.span.start,
        task.span.end, isolation=task.isolation,  # type: ignore[arg-type]
    )  # fmt: skip


def audit_table(loader: Loader, admin: Admin, runner: Runner, since_ms: int, now_ms: int) -> Audit:
    """Hour by hour from `since_ms` to now."""
    loader.settle()
    opened, table = loader.opened, loader.opened.table
    if table.retention_ms:
        since_ms = max(since_ms, now_ms - table.retention_ms)
    state = loader.state()
    standing = opened.standing(state.bounds)
    starts = hour_starts(since_ms, now_ms)
    offsets = offsets_at_all(admin, state, starts)
    spans = hour_spans(offsets, state, standing, len(starts))
    landed = _landed(opened.store, offsets, len(starts))
    dead, dropped = _dead(opened.dead, offsets, len(starts))
    hours: list[Hour] = []
    for number, start_ms in enumerate(starts):
        waits = audit.waiting(spans[number], standing)
        here = landed[number]
        if table.mode == "upsert":
            # Rows are the newest of their keys: what was merged is all that was covered and is not dead.
            here = total(spans[number]) - waits - dead[number] - dropped[number]
        hour = Hour(start_ms, total(spans[number]), here, dead[number], dropped[number], waits)
        hours.append(hour if not hour.difference else _verified(loader, runner, hour, spans[number]))
    return Audit(table.name, table.topic, tuple(hours), now_ms)


def _verified(loader: Loader, runner: Runner, hour: Hour, spans: Sequence[Span]) -> Hour:
    """The hour with its empty offsets counted in the log."""
    standing = loader.opened.standing({span.partition for span in spans})
    reread = split(audit.covered(spans, standing), _TASK_RECORDS)
    table = loader.opened.table
    made = [
        pickle.dumps(CountTask(loader.bootstrap, loader.reader, table.topic, span, table.isolation)) for span in reread
    ]
    records = sum(pickle.loads(answer) for answer in runner.run(count_pickled, made))
    counted = replace(hour, empty=total(reread) - records)
    if not counted.surplus or table.mode == "upsert":
        return counted
    in_log = zip(reread, runner.run(offsets_pickled, made), strict=True)
    return replace(counted, removed=sum(_removed(loader, span, answer) for span, answer in in_log))


def _removed(loader: Loader, span: Span, in_log: bytes) -> int:
    """How many offsets of the span the table or its dead letters have, and the log has not."""
    import numpy

    kept = numpy.unique(
        numpy.concatenate([_offsets(store, span) for store in (loader.opened.store, loader.opened.dead)])
    )
    return int(numpy.setdiff1d(kept, numpy.frombuffer(in_log, dtype="int64"), assume_unique=True).size)


def _offsets(store: Store, span: Span) -> Any:
    import numpy

    found = [numpy.empty(0, dtype="int64")]
    for file in store.files():
        if file.may_meet(span):
            rows = _where(store, file)
            offsets = rows.column("_offset").to_numpy()
            mine = (rows.column("_partition").to_numpy() == span.partition) & (offsets >= span.start)
            found.append(offsets[mine & (offsets < span.end)])
    return numpy.concatenate(found)


# ---------------------------------------------------------------------------------------------- counting rows


def _landed(store: Store, starts: Mapping[int, Sequence[int]], count: int) -> list[int]:
    hours = [0] * count
    for file in store.files():
        _add_file(store, file, starts, hours)
    return hours


def _dead(store: Store, starts: Mapping[int, Sequence[int]], count: int) -> tuple[list[int], list[int]]:
    dead, dropped = [0] * count, [0] * count
    rows = store.delta.to_pyarrow_table(columns=["_partition", "_offset", "dropped"])
    columns = [rows.column(name).to_pylist() for name in rows.column_names]
    for partition, offset, is_dropped in zip(*columns, strict=True):
        number = _hour_of(starts.get(partition, ()), offset)
        if number is not None:
            (dropped if is_dropped else dead)[number] += 1
    return dead, dropped


def _add_file(store: Store, file: LiveFile, starts: Mapping[int, Sequence[int]], hours: list[int]) -> None:
    span = file.span
    if span is not None and file.rows is not None:
        bounds = starts.get(span.partition, ())
        first, last = _hour_of(bounds, span.start), _hour_of(bounds, span.end - 1)
        if first == last:
            if first is not None:
                hours[first] += file.rows
            return
    _add_rows(_where(store, file), starts, hours)


def _where(store: Store, file: LiveFile) -> Any:
    """Where the rows of a file come from."""
    filesystem, root = store.storage.filesystem()
    return pq.read_table(
        f"{root}/{file.path}", filesystem=filesystem, columns=["_partition", "_offset"], partitioning=None
    )


def _add_rows(rows: Any, starts: Mapping[int, Sequence[int]], hours: list[int]) -> None:
    import numpy

    partitions = rows.column("_partition").to_numpy()
    offsets = rows.column("_offset").to_numpy()
    for partition, bounds in starts.items():
        mine = offsets[partitions == partition]
        numbers = numpy.searchsorted(numpy.asarray(bounds), mine, side="right") - 1
        for number, found in enumerate(numpy.bincount(numbers[numbers >= 0], minlength=len(hours))):
            hours[number] += int(found)


def _hour_of(bounds: Sequence[int], offset: int) -> int | None:
    """The last hour that begins at or before the offset; hours without records begin where the next does."""
    from bisect import bisect_right

    number = bisect_right(bounds, offset) - 1
    return None if number < 0 else number
