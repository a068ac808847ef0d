"""Compaction of small files, retention of old days, vacuum of old versions.

Readers of the current version see the same rows, except for days beyond the declared retention. Files are joined
within one day (or hour) and topic partition, by offset, so that a later backfill touches few of them. A vacuum keeps
everything younger than `vacuum_after`, for readers of old versions and running loads.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.spark.tables.declaration import DAY, Table
from penstock.spark.tables.delta import COMPACT, EXPIRE, CommitNote, LiveFile, Store
from penstock.spark.tables.tasks import RewriteTask, file_schema, run_rewrite_pickled
from penstock.spark.tables.warehouse import OpenTable

if TYPE_CHECKING:
    from penstock.spark.tables.runner import Runner

_MIB: Final = 1024 * 1024
_HOUR_MS: Final = 3_600_000


class Maintained(NamedTuple):
    """Files joined, files they were joined into, expired and vacuumed."""

    joined: int = 0
    into: int = 0
    expired: int = 0
    vacuumed: int = 0


def maintain(opened: OpenTable, runner: Runner, now_ms: int, *, vacuum: bool = False) -> Maintained:
    """Compacts, expires and vacuums as due. A vacuum lists all files, so by default it runs only after a change."""
    joined, into = compact(opened, runner)
    expired = expire(opened, now_ms)
    return Maintained(joined, into, expired, vacuum_old(opened) if vacuum or joined or expired else 0)


def plan_compaction(table: Table, files: Iterable[LiveFile], least: int) -> list[tuple[LiveFile, ...]]:
    """Groups of files to be joined, in places (day or hour, and partition) with at least `least` small files."""
    target = table.target_file_mb * _MIB
    places: dict[tuple[object, ...], list[LiveFile]] = {}
    for file in files:
        if file.size < target // 2:
            span = file.span
            place = (*sorted(file.partition_values.items()), None if span is None else span.partition)
            places.setdefault(place, []).append(file)
    groups: list[tuple[LiveFile, ...]] = []
    for small in places.values():
        if len(small) >= least:
            groups += _bins(sorted(small, key=lambda one: one.offsets or (0, 0)), target)
    return groups


def _bins(files: Sequence[LiveFile], target: int) -> list[tuple[LiveFile, ...]]:
    groups: list[list[LiveFile]] = [[]]
    size = 0
    for file in files:
        if size + file.size > target and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return [tuple(group) for group in groups if len(group) > 1]


def compact(opened: OpenTable, runner: Runner, *, least: int | None = None) -> tuple[int, int]:
    """Joins small files. Returns how many were joined into how many."""
    table, store = opened.table, opened.store
    store.refresh()
    joined, into = _compact(
        store, plan_compaction(table, store.files(), least or table.compact_after_files), table, runner
    )
    dead_groups = plan_compaction(table, opened.dead.files(), least or table.compact_after_files)
    dead_joined, dead_into = _compact(opened.dead, dead_groups, None, runner)
    return joined + dead_joined, into + dead_into


def _compact(store: Store, groups: list[tuple[LiveFile, ...]], table: Table | None, runner: Runner) -> tuple[int, int]:
    if not groups:
        return 0, 0
    schema = None if table is None else file_schema(table)
    made = [pickle.dumps(RewriteTask(store.storage, group, (), schema)) for group in groups]
    removed = [file for group in groups for file in group]
    runner.expect(sum(file.rows or 0 for file in removed), lambda: sum(file.size for file in removed))
    files = [pickle.loads(answer) for answer in runner.run(run_rewrite_pickled, made)]
    store.commit(CommitNote(COMPACT), add=files, remove=removed, data_change=False)
    return len(removed), len(files)


def expire(opened: OpenTable, now_ms: int) -> int:
    """Removes days beyond the retention. Returns the number of files."""
    table, store = opened.table, opened.store
    if not table.retention_ms:
        return 0
    oldest = datetime.fromtimestamp(now_ms / 1000, UTC) - timedelta(milliseconds=table.retention_ms)
    limit = oldest.date().isoformat()
    store.refresh()
    old = [file for file in store.files() if (file.partition_values.get(DAY) or limit) < limit]
    if old:
        store.commit(CommitNote(EXPIRE), remove=old)
    return len(old)


def vacuum_old(opened: OpenTable) -> int:
    """Deletes files that are in no version younger than `vacuum_after`. Returns their number."""
    hours = max(1, opened.table.vacuum_after_ms // _HOUR_MS)
    removed = 0
    for store in (opened.store, opened.dead):
        store.refresh()
        found = store.delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
        if found:
            store.delta.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
            store.refresh()
        removed += len(found)
    return removed + opened.store.storage.remove_staged(hours * _HOUR_MS / 1000)
