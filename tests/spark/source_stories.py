"""What the stories about reading share: topics with known records, logs with gaps, and short ways to read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.broker.wire_client import BEGIN_MS, WireClient, call, delete_topic

from penstock.client.cluster_metadata import TopicPartition
from penstock.log.partition_log import PartitionLog
from penstock.records import encode_batch
from penstock.records.batch import EndMarker, encode_marker
from penstock.replication.partition import Partition
from penstock.spark.fetch import read_range
from penstock.spark.options import Isolation, ReaderOptions
from penstock.testing import Broker

QUERY_TIMEOUT_S = 90


def fill(
    broker: Broker, topic: str, values: Iterable[int], *, partition: int = 0, a_batch: int = 10, **more: Any
) -> None:
    """Write numbers, with a millisecond between one and the next."""
    numbers = list(values)
    with WireClient(broker.port) as client:
        for start in range(0, len(numbers), a_batch):
            records = [(BEGIN_MS + n, b"k%d" % n, b"%d" % n, ()) for n in numbers[start : start + a_batch]]
            answer = client.produce(topic, encode_batch(records, **more), partition=partition)
            assert answer.error_code == 0


def partition_of(broker: Broker, topic: str, partition: int = 0) -> Partition:
    found = broker.broker.replicas.get(topic, partition)
    assert found is not None
    return found


def log_of(broker: Broker, topic: str, partition: int = 0) -> PartitionLog:
    return partition_of(broker, topic, partition).log


def put_sparse(broker: Broker, topic: str, offsets: Sequence[int], *, partition: int = 0) -> None:
    """One batch with these offsets and no others, as compaction leaves it; each value tells its offset."""
    records = [(BEGIN_MS + n, b"k%d" % n, b"%d" % n, ()) for n in offsets]
    log = log_of(broker, topic, partition)

    def append() -> None:
        log.append_as_follower(encode_batch(records, offsets=offsets, leader_epoch=0), now_ms=BEGIN_MS)
        log.advance_high_watermark(log.log_end_offset)

    call(broker.broker, append)


def put_transaction(
    broker: Broker, topic: str, values: Sequence[int], *, producer: int, commit: bool | None, sequence: int = 0
) -> None:
    """Records of a transaction, and the marker that ends it; with None it stays open.

    They are put into the log itself: the broker rejects such batches of clients.
    """
    records = [(BEGIN_MS + n, b"k%d" % n, b"%d" % n, ()) for n in values]
    batch = encode_batch(
        records, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
    )  # fmt: skip
    partition = partition_of(broker, topic)
    call(broker.broker, lambda: partition.append(batch, BEGIN_MS, from_client=False))
    if commit is None:
        return
    marker = encode_marker(EndMarker(commit, 0), timestamp_ms=BEGIN_MS, producer_id=producer, producer_epoch=0)
    call(broker.broker, lambda: partition.append(marker, BEGIN_MS, from_client=False))


def remove_before(broker: Broker, topic: str, offset: int, partition: int = 0) -> None:
    """What retention does: records below the offset are gone."""
    log = log_of(broker, topic, partition)
    call(broker.broker, lambda: log.advance_start(offset))


def recreate(broker: Broker, topic: str, partitions: int = 2) -> None:
    delete_topic(broker.broker, topic)
    broker.create_topic(topic, partitions)


def values_of(
    address: str,
    topic: str,
    start: int,
    end: int,
    *,
    partition: int = 0,
    isolation: Isolation = "read_uncommitted",
    **options: Any,
) -> list[int]:
    """The numbers in a range, read without Spark."""
    reader = ReaderOptions(**{"poll_timeout_ms": 10_000, **options})
    batches = read_range(address, reader, topic, partition, start, end, isolation=isolation)
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def source_options(broker: Broker, topic: str, **options: object) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, **options}
    return {name.replace("__", "."): str(value) for name, value in given.items() if value is not None}


def batch(spark: SparkSession, broker: Broker, topic: str, **options: object) -> DataFrame:
    return spark.read.format("penstock").options(**source_options(broker, topic, **options)).load()


def stream(spark: SparkSession, broker: Broker, topic: str, **options: object) -> DataFrame:
    return spark.readStream.format("penstock").options(**source_options(broker, topic, **options)).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def run_available(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    """Everything that is there into Parquet files, to the end."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", folder)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end"
    return query


def offsets_json(**partitions: Sequence[int]) -> str:
    """{"topic": {"0": ..., "1": ...}}"""
    return json.dumps({topic: {str(n): offset for n, offset in enumerate(some)} for topic, some in partitions.items()})


def at(topic: str, *offsets: int) -> dict[TopicPartition, int]:
    """Offsets of the partitions from 0 on."""
    return {TopicPartition(topic, number): offset for number, offset in enumerate(offsets)}
