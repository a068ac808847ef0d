"""Offsets without a record, made as brokers make them: a topic that is really compacted, read and loaded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from tests.spark.source_stories import numbers, run_available
from tests.spark.tables.table_stories import Cluster, World, once, places, rows, world_of
from tests.timeouts import PATIENCE_S

from penstock.spark.tables import Loader
from penstock.spark.tables.audit import audit_table
from penstock.spark.tables.runner import LocalRunner
from penstock.testing import Broker
from penstock.testing.pytest_plugin import topic_name

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
    "retention.ms": "-1",
}
KEYS = 7
FIXTURES = ("compacted",)


@pytest.fixture(scope="session")
def compacting() -> Iterator[Cluster]:
    """A broker that compacts soon."""
    with Broker(settings={"log.cleaner.backoff.ms": "50"}) as running:
        yield running


@pytest.fixture
def compacted(compacting: Cluster, tmp_path: Path) -> Iterator[World]:
    topic = topic_name("compacted")
    compacting.create_topic(topic, 1, COMPACTED)
    with world_of(compacting, topic, tmp_path) as world:
        yield world


def key_of(number: int) -> bytes:
    return b"k%d" % (number % KEYS) if number else b"first"


class Written:
    """Numbers as JSON, the first under a key of its own, the others under seven; and what compaction leaves of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent = 0
        self._now_ms = time.time_ns() // 1_000_000 - 600_000

    def send(self, count: int) -> None:
        first = self.sent
        self._now_ms += 5_000
        self.world.send(
            (b'{"n": %d}' % number for number in range(first, first + count)),
            key=lambda number: key_of(first + number), partition=0, timestamp_ms=self._now_ms,
        )  # fmt: skip
        self.sent += count

    def compact(self) -> Mapping[int, bytes | None]:
        """A record begins the next segment, so that all before it can go; then wait until it has gone."""
        self.send(1)
        last_of_key = {key_of(number): number for number in range(self.sent - 1)}
        kept = {*last_of_key.values(), self.sent - 1}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            log = {offset: value for (_, offset), value in self.world.log().items()}
            if set(log) == kept:
                return log
            assert time.monotonic() < deadline, f"{len(log)} records are left, of which {len(kept)} should be"
            time.sleep(0.05)


@pytest.mark.long
def test_a_compacted_topic_is_read_by_batch_and_stream(compacted: World, spark: SparkSession, tmp_path: Path) -> None:
    written = Written(compacted)
    written.send(300)
    kept = sorted(written.compact())
    assert len(kept) == KEYS + 2
    options = {"kafka.bootstrap.servers": compacted.address, "subscribe": compacted.topic}
    number = "CAST(get_json_object(CAST(value AS STRING), '$.n') AS INT) AS value"
    batch = spark.read.format("penstock").options(**options, minPartitions="9").load()
    assert numbers(batch.selectExpr(number)) == kept
    folder, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "120"}
    stream = spark.readStream.format("penstock").options(**options, **limits).load().selectExpr(number)
    run_available(stream, folder, checkpoint)
    assert numbers(spark.read.parquet(folder)) == kept
    # What comes after has its first records compacted away before it is read.
    written.send(100)
    later = sorted(offset for offset in written.compact() if offset > 300)
    run_available(stream, folder, checkpoint)
    assert numbers(spark.read.parquet(folder)) == sorted([*kept, *later])


@pytest.mark.long
def test_a_compacted_topic_is_loaded_gap_by_gap_and_the_audit_understands(compacted: World) -> None:
    written = Written(compacted)
    written.send(200)
    log = written.compact()
    opened = compacted.make(schema="n long")
    loader = compacted.loader(opened, commit_records=30, task_records=7)
    assert loader.load_new().counts.records == len(log)
    assert places(rows(opened)) == once((0, offset) for offset in log)
    assert opened.coverage([0]).covered == {0: (0, written.sent)}
    notes = [opened.store.note(version) for version in range(1, opened.store.version + 1)]
    assert sum(note.gaps for note in notes if note is not None) == written.sent - len(log)

    written.send(50)
    loader.load_new()
    there = places(rows(opened))
    written.compact()
    loader.load_new()
    # What is compacted away after it was loaded stays in the table, and is nothing that is there twice.
    assert places(rows(opened)) == there + once([(0, written.sent - 1)])
    assert missing_and_surplus(loader, compacted) == (0, 0)
    newest = pa.table(opened.store.delta.to_pyarrow_dataset().to_table(filter=pads.field("n") == written.sent - 2))
    opened.store.delta.delete(f"n = {written.sent - 2}")
    assert missing_and_surplus(loader, compacted) == (1, 0)
    write_deltalake(opened.store.delta, pa.concat_tables([newest, newest]), mode="append")
    assert missing_and_surplus(loader, compacted) == (0, 1)


def missing_and_surplus(loader: Loader, world: World) -> tuple[int, int]:
    now_ms = time.time_ns() // 1_000_000
    found = audit_table(loader, world.admin, LocalRunner(1), now_ms - 3_600_000, now_ms)
    return found.total("missing"), found.total("surplus")


def test_a_compacted_topic_gives_an_upsert_table_the_same_rows_before_and_after(compacted: World) -> None:
    written = Written(compacted)
    written.send(60)
    early = compacted.make(schema="n long", mode="upsert", name="early")
    compacted.loader(early).load_new()
    written.compact()
    late = compacted.make(schema="n long", mode="upsert", name="late")
    newest = {key_of(number): number for number in range(written.sent)}
    for opened in (early, late):
        compacted.loader(opened).load_new()
        assert sorted(rows(opened).column("n").to_pylist()) == sorted(newest.values())
