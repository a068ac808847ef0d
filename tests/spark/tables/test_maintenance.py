"""Maintenance and audits."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.tables.table_stories import FIRST_MS, VIEWS, World, dead, once, places, rows, view

from penstock.spark.tables import OpenTable
from penstock.spark.tables.audit import HOUR_MS, Audit, audit_table
from penstock.spark.tables.load_plan import Span
from penstock.spark.tables.maintenance import compact, expire, maintain, vacuum_old
from penstock.spark.tables.runner import LocalRunner

RUNNER = LocalRunner(2)
DAY_MS = 86_400_000


def small_files(world: World, **settings: object) -> OpenTable:
    opened = world.make(schema=VIEWS, event_time="at", **settings)
    for number in range(6):
        world.views(40, first=number * 40)
        world.loader(opened).load_new()
    return opened


def test_small_files_become_one_a_day_and_partition_and_rows_stay(world: World) -> None:
    opened = small_files(world)
    before = rows(opened).sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    count = len(opened.store.files())
    joined, into = compact(opened, RUNNER, least=2)
    after = rows(opened).sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    assert (joined, into) == (count, len(opened.store.files()))
    assert into < count // 4
    assert after.equals(before)
    assert all(file.span is not None for file in opened.store.files())
    assert compact(opened, RUNNER, least=2) == (0, 0)


def test_small_files_with_fewer_columns_are_joined_with_those_that_have_more(world: World) -> None:
    opened = small_files(world)
    world.send([b'{"user": "x", "page": "/", "ms": 3000000000}'])
    world.loader(opened).load_new()
    compact(opened, RUNNER, least=2)
    assert places(rows(opened)) == once(world.log())
    assert "/" in rows(opened).column("page").to_pylist()


def test_dead_letters_are_joined_too(world: World) -> None:
    opened = world.make(schema=VIEWS)
    for _ in range(4):
        world.send([b"bad"], partition=0)
        world.loader(opened).load_new()
    compact(opened, RUNNER, least=2)
    assert len(opened.dead.files()) == 1
    assert places(dead(opened)) == once(world.log())


def test_maintenance_waits_until_enough_is_due(world: World) -> None:
    opened = small_files(world, compact_after_files=1000)
    assert maintain(opened, RUNNER, FIRST_MS).joined == 0
    opened = world.warehouse.open("views")
    opened.declare(world.declare(schema=VIEWS, event_time="at", compact_after_files=3))
    assert maintain(opened, RUNNER, FIRST_MS).joined > 0


def test_days_beyond_the_retention_go(world: World) -> None:
    world.send([view(0), view(60 * 24 * 10), view(60 * 24 * 30)])
    opened = world.make(schema=VIEWS, event_time="at", retention="7d")
    world.loader(opened).load_new()
    assert expire(opened, FIRST_MS + 12 * DAY_MS) == 1
    assert sorted(rows(opened).column("ms").to_pylist()) == [60 * 24 * 10, 60 * 24 * 30]
    assert world.loader(opened).load_new().commits == 0


def test_a_vacuum_removes_what_is_old_and_unneeded_and_nothing_else(world: World) -> None:
    opened = small_files(world, vacuum_after="1h")
    compact(opened, RUNNER, least=2)
    root = Path(opened.store.storage.uri)
    staged = root / "_staging"
    staged.mkdir()
    for path in (root / "event_day=2026-01-01" / "part-orphan.parquet", staged / "part-orphan.parquet"):
        path.write_bytes(b"x")
        long_ago = time.time() - 7200
        os.utime(path, (long_ago, long_ago))
    young = staged / "part-young.parquet"
    young.write_bytes(b"x")
    assert vacuum_old(opened) == 2
    assert young.exists()
    assert places(rows(opened)) == once(world.log())


# ---------------------------------------------------------------------------------------------- audits


def audited(world: World, opened: OpenTable, hours: int) -> Audit:
    return audit_table(world.loader(opened), world.admin, RUNNER, FIRST_MS, FIRST_MS + hours * HOUR_MS - 1)


def produced(world: World, hours: int, each: int = 10) -> None:
    for hour in range(hours):
        world.send([view(hour * each + n) for n in range(each)], timestamp_ms=FIRST_MS + hour * HOUR_MS + 1)


def test_an_audit_counts_what_landed_of_each_hour_of_the_log(world: World) -> None:
    produced(world, 3)
    world.send([b"bad"] * 2, timestamp_ms=FIRST_MS + 2 * HOUR_MS + 5)
    opened = world.make(schema=VIEWS)
    world.loader(opened).load_new()
    audit = audited(world, opened, 3)
    assert [(hour.produced, hour.landed, hour.dead) for hour in audit.hours] == [(10, 10, 0), (10, 10, 0), (12, 10, 2)]
    assert audit.is_sound
    assert audit.complete_until_ms == audit.now_ms
    produced_later = FIRST_MS + 3 * HOUR_MS + 1
    world.send([view(0)] * 4, timestamp_ms=produced_later)
    audit = audited(world, opened, 4)
    assert [hour.waiting for hour in audit.hours] == [0, 0, 0, 4]
    assert audit.complete_until_ms == FIRST_MS + 3 * HOUR_MS


def test_an_audit_does_not_count_what_was_before_the_table(world: World) -> None:
    produced(world, 1)
    opened = world.make(schema=VIEWS, start="latest")
    world.loader(opened).load_new()
    world.send([view(0)], timestamp_ms=FIRST_MS + HOUR_MS + 1)
    world.loader(opened).load_new()
    audit = audited(world, opened, 2)
    assert [(hour.produced, hour.landed) for hour in audit.hours] == [(0, 0), (1, 1)]
    assert audit.is_sound


def test_an_audit_finds_rows_that_are_missing_and_rows_that_are_there_twice(world: World) -> None:
    produced(world, 2)
    opened = world.make(schema=VIEWS)
    world.loader(opened).load_new()
    store = opened.store
    store.delta.delete(f"_partition = 0 AND _offset = {opened.coverage([0]).covered[0][1] - 1}")
    store.refresh()
    audit = audited(world, opened, 2)
    assert not audit.is_sound
    assert audit.total("missing") == 1
    assert audit.hours[1].missing == 1
    assert audit.complete_until_ms == FIRST_MS + HOUR_MS
    from deltalake import write_deltalake

    write_deltalake(store.delta, rows(opened).slice(0, 2), mode="append")
    store.refresh()
    assert audited(world, opened, 2).total("surplus") + audited(world, opened, 2).total("missing") > 0
    loader = world.loader(opened)
    loader.load_range([Span(span.partition, 0, span.end) for span in opened.coverage([0, 1]).spans], bounded=True)
    assert audited(world, opened, 2).is_sound
    assert places(rows(opened)) == once(world.log())


def test_an_audit_of_compacted_files_and_of_an_upsert_table(world: World) -> None:
    produced(world, 2)
    opened = world.make(schema=VIEWS)
    world.loader(opened, commit_records=7).load_new()
    compact(opened, RUNNER, least=2)
    assert [hour.landed for hour in audited(world, opened, 2).hours] == [10, 10]
    from penstock.spark.tables import create

    merged = create(world.warehouse, world.declare(name="latest", schema=VIEWS, mode="upsert"), world.address)
    world.loader(merged).load_new()
    audit = audited(world, merged, 2)
    assert [(hour.produced, hour.landed) for hour in audit.hours] == [(10, 10), (10, 10)]
    assert audit.is_sound


def test_offsets_without_a_record_are_not_counted_as_missing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with holes, as compaction and transactions leave them: the reader and the audit see the same ones."""
    from penstock.spark import fetch

    produced(world, 1)
    real = fetch.read_range

    def holed(*args: object, **kwargs: object) -> object:
        for batch in real(*args, **kwargs):  # type: ignore[arg-type]
            yield batch.filter(pa.array([offset % 3 > 0 for offset in batch.column("offset").to_pylist()], pa.bool_()))

    monkeypatch.setattr(fetch, "read_range", holed)
    opened = world.make(schema=VIEWS)
    report = world.loader(opened).load_new()
    audit = audited(world, opened, 1)
    assert audit.is_sound
    (hour,) = audit.hours
    assert (hour.produced, hour.landed, hour.empty) == (10, report.counts.landed, 10 - report.counts.landed)
    assert hour.empty
