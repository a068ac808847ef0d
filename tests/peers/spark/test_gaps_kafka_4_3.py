"""Gaps as Apache Kafka 4.3 makes them: transactions that ended either way, compaction, records removed, a topic made
again. Aborted records are not counted, and no marker holds a reader up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.peers.spark.kafka_cluster import KafkaCluster, Transactions, shared
from tests.spark.source_stories import batch, numbers, run_available, stream
from tests.spark.tables import test_loader_compacted_topics
from tests.spark.tables.table_stories import Cluster, World, once, places, rows, view, world_of
from tests.timeouts import until

from penstock import Admin
from penstock.client.admin import ConfigResource

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

COMMITTED: dict[str, object] = {"kafka__isolation__level": "read_committed"}

globals().update(shared(test_loader_compacted_topics))


@pytest.fixture(scope="session")
def compacting(broker: KafkaCluster) -> Cluster:
    with Admin(broker.address) as admin:
        admin.alter_config(ConfigResource.broker(), {"log.cleaner.backoff.ms": "100"})
    return broker


@pytest.fixture
def world(broker: KafkaCluster, topic: str, tmp_path: Path) -> Iterator[World]:
    with world_of(broker, topic, tmp_path) as made:
        yield made


def written(address: str, topic: str) -> Transactions:
    """Partition 0: 0 to 4 committed, 100 to 104 aborted, 5 to 9 committed, 200 and 201 aborted at the end. Partition 1
    holds nothing but an aborted record and its marker."""
    transactions = Transactions(address, f"of-{topic}")
    transactions.write(topic, (b"%d" % number for number in range(5)), commit=True)
    transactions.write(topic, (b"%d" % number for number in range(100, 105)), commit=False)
    transactions.write(topic, (b"%d" % number for number in range(5, 10)), commit=True)
    transactions.write(topic, (b"%d" % number for number in range(200, 202)), commit=False)
    transactions.write(topic, [b"300"], partition=1, commit=False)
    return transactions


ABORTED = [*range(100, 105), 200, 201, 300]


@pytest.mark.parametrize("split", [None, 7])
def test_a_batch_counts_what_was_committed_or_everything(
    spark: SparkSession, broker: KafkaCluster, topic: str, split: int | None
) -> None:
    written(broker.address, topic)
    committed = batch(spark, broker, topic, minPartitions=split, **COMMITTED)  # type: ignore[arg-type]
    assert numbers(committed) == list(range(10))
    assert committed.count() == 10
    assert numbers(batch(spark, broker, topic, minPartitions=split)) == [*range(10), *ABORTED]  # type: ignore[arg-type]


def test_a_stream_passes_markers_and_aborted_records_and_waits_at_an_open_transaction(
    spark: SparkSession, broker: KafkaCluster, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    transactions = written(broker.address, topic)
    transactions.write(topic, [b"10", b"11"], commit=None)
    folder = str(tmp_path / "out")
    reading = stream(spark, broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=4, **COMMITTED)  # type: ignore[arg-type]
    run_available(reading, folder, checkpoint)
    assert numbers(spark.read.parquet(folder)) == list(range(10))
    transactions.end(commit=True)
    # The marker is there a moment after the coordinator has answered.
    until(lambda: batch(spark, broker, topic, **COMMITTED).count() == 12, "the end of the transaction")  # type: ignore[arg-type]
    run_available(reading, folder, checkpoint)
    assert numbers(spark.read.parquet(folder)) == list(range(12))


def test_a_load_takes_committed_records_and_is_not_stopped_by_markers(world: World) -> None:
    transactions = Transactions(world.address, f"of-{world.topic}")
    for first, commit in ((0, True), (10, False), (20, True), (30, False)):
        values = [view(number) for number in range(first, first + 10)]
        transactions.write(world.topic, values, partition=0, commit=commit)
    opened = world.make(schema="user string, ms int, at timestamp_ms")
    loader = world.loader(opened, commit_records=7, task_records=3)

    def caught_up() -> bool:
        loader.load_new()
        return opened.coverage([0]).covered == {0: (0, 44)}

    until(caught_up, "the last marker")
    wanted = [*range(10), *range(20, 30)]
    assert sorted(rows(opened).column("ms").to_pylist()) == wanted
    assert places(rows(opened)) == once(world.log())
    notes = [opened.store.note(version) for version in range(opened.store.version + 1)]
    assert sum(note.gaps for note in notes if note is not None) == 24
    assert loader.load_new().commits == 0
    transactions.write(world.topic, [view(40)], partition=0, commit=None)
    assert loader.load_new().counts.records == 0
    transactions.end(commit=True)
    until(lambda: loader.load_new().counts.records == 1, "the end of the transaction")
    assert sorted(rows(opened).column("ms").to_pylist()) == [*wanted, 40]


def test_a_table_may_ask_for_what_was_aborted_too(world: World) -> None:
    transactions = Transactions(world.address, f"of-{world.topic}")
    transactions.write(world.topic, [view(0)], partition=0, commit=False)
    transactions.write(world.topic, [view(1)], partition=0, commit=None)
    opened = world.make(schema="user string, ms int", isolation="read_uncommitted")
    world.loader(opened).load_new()
    assert sorted(rows(opened).column("ms").to_pylist()) == [0, 1]
    transactions.end(commit=True)


def test_records_that_kafka_removed_end_the_query_or_are_skipped(
    spark: SparkSession, broker: KafkaCluster, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    folder = str(tmp_path / "out")
    with Admin(broker.address) as admin:
        Transactions(broker.address, f"of-{topic}").write(topic, [b"%d" % number for number in range(10)], commit=True)
        until(lambda: batch(spark, broker, topic, **COMMITTED).count() == 10, "the marker")  # type: ignore[arg-type]
        reading = stream(spark, broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=2, **COMMITTED)  # type: ignore[arg-type]
        run_available(reading, folder, checkpoint)
        Transactions(broker.address, f"of-{topic}").write(
            topic, [b"%d" % number for number in range(10, 20)], commit=True
        )
        admin.delete_records({(topic, 0): 16})
    with pytest.raises(StreamingQueryException, match="were removed before they were read"):
        run_available(stream(spark, broker, topic, **COMMITTED), folder, checkpoint)  # type: ignore[arg-type]
    run_available(stream(spark, broker, topic, failOnDataLoss="false", **COMMITTED), folder, checkpoint)  # type: ignore[arg-type]
    assert numbers(spark.read.parquet(folder)) == [*range(10), *range(15, 20)]
