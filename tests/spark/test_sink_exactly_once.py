"""df.write and df.writeStream with penstock.delivery=exactly-once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.exactly_once_stories import AnyBroker, committed, require_transactions
from tests.spark.sink_stories import our_line
from tests.timeouts import PATIENCE_S

from penstock import Admin, Producer, TopicSpec

EXACTLY_ONCE = {"penstock.delivery": "exactly-once"}


def target_of(broker: AnyBroker, topic: str) -> str:
    name = f"{topic}-out"
    with Admin(broker.address) as admin:
        admin.create_topic(TopicSpec(name, 2))
    return name


def produce(broker: AnyBroker, topic: str, values: range) -> None:
    with Producer(broker.address) as producer:
        for value in values:
            producer.send(topic, b"%03d" % value, partition=value % 2)


def stream_of(spark: SparkSession, broker: AnyBroker, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", broker.address)
    return reader.options(subscribe=topic, startingOffsets="earliest", **options).load()


def started(df: DataFrame, broker: AnyBroker, checkpoint: Path, topic: str, **options: str) -> StreamingQuery:
    named = {"kafka.bootstrap.servers": broker.address, "topic": topic, "checkpointLocation": str(checkpoint)}
    writer = df.writeStream.format("penstock").options(**named, **EXACTLY_ONCE, **options)
    return writer.trigger(availableNow=True).start()


def save(df: DataFrame, broker: AnyBroker, topic: str, **options: str) -> None:
    named = {"kafka.bootstrap.servers": broker.address, "topic": topic}
    df.write.format("penstock").options(**named, **EXACTLY_ONCE, **options).mode("append").save()


def expected(values: range) -> list[bytes]:
    return [b"%03d" % value for value in values]


def test_a_stream_writes_every_row_once_and_continues_at_its_position(
    spark: SparkSession, broker: AnyBroker, topic: str, tmp_path: Path
) -> None:
    require_transactions(broker)
    target = target_of(broker, topic)
    for sent, total in ((range(20), 20), (range(20, 30), 30), (range(0), 30)):
        produce(broker, topic, sent)
        query = started(stream_of(spark, broker, topic, maxOffsetsPerTrigger="8"), broker, tmp_path, target)
        assert query.awaitTermination(PATIENCE_S)
        assert committed(broker.address, target) == expected(range(total))


@pytest.mark.long
def test_a_batch_that_spark_repeats_is_not_written_again(
    spark: SparkSession, broker: AnyBroker, topic: str, tmp_path: Path
) -> None:
    require_transactions(broker)
    target = target_of(broker, topic)
    produce(broker, topic, range(20))
    df = stream_of(spark, broker, topic)
    assert started(df, broker, tmp_path, target).awaitTermination(PATIENCE_S)
    # As if the driver had died before Spark noted the batch.
    last = max(int(path.name) for path in (tmp_path / "commits").iterdir() if path.name.isdecimal())
    for path in (tmp_path / "commits").glob(f"*{last}*"):
        path.unlink()
    produce(broker, topic, range(20, 25))
    assert started(df, broker, tmp_path, target).awaitTermination(PATIENCE_S)
    assert committed(broker.address, target) == expected(range(25))


def failing(mark: Path) -> object:
    """A function for mapInArrow that fails once, after some of the rows have gone on to the sink."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if not mark.exists():
                mark.touch()
                raise ValueError("this task fails once")
            yield batch.slice(batch.num_rows // 2)

    return work


@pytest.mark.long
def test_a_batch_whose_task_fails_leaves_nothing_visible_and_is_written_by_the_next_start(
    spark: SparkSession, broker: AnyBroker, topic: str, tmp_path: Path
) -> None:
    require_transactions(broker)
    target = target_of(broker, topic)
    produce(broker, topic, range(40))
    df = stream_of(spark, broker, topic).select("value").mapInArrow(failing(tmp_path / "mark"), "value binary")  # type: ignore[arg-type]
    with pytest.raises(StreamingQueryException, match="this task fails once"):
        started(df, broker, tmp_path / "checkpoint", target).awaitTermination(PATIENCE_S)
    assert started(df, broker, tmp_path / "checkpoint", target).awaitTermination(PATIENCE_S)
    assert committed(broker.address, target) == expected(range(40))


@pytest.mark.long
def test_a_batch_write_is_visible_as_a_whole_or_not_at_all(
    spark: SparkSession, broker: AnyBroker, topic: str, tmp_path: Path
) -> None:
    require_transactions(broker)
    df = spark.range(40).repartition(4).selectExpr("CAST(lpad(id, 3, '0') AS BINARY) AS value")
    with pytest.raises(PySparkException, match="this task fails once"):
        save(df.mapInArrow(failing(tmp_path / "mark"), "value binary"), broker, topic)  # type: ignore[arg-type]
    assert committed(broker.address, topic) == []
    save(df, broker, topic)
    assert committed(broker.address, topic) == expected(range(40))


def test_a_batch_write_with_a_name_is_written_once(spark: SparkSession, broker: AnyBroker, topic: str) -> None:
    require_transactions(broker)
    df = spark.range(10).selectExpr("CAST(lpad(id, 3, '0') AS BINARY) AS value")
    name = {"penstock.write.id": f"job-{uuid4().hex}"}
    for _ in range(2):
        save(df, broker, topic, **name)
        assert committed(broker.address, topic) == expected(range(10))


def test_bad_delivery_is_rejected_by_name(spark: SparkSession, broker: AnyBroker, topic: str) -> None:
    df = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    for options, line in (
        ({"penstock.delivery": "once"}, "option penstock.delivery is 'once'. Use at-least-once or exactly-once"),
        ({"penstock.write.id": "x", "penstock.delivery": "at-least-once"}, "option penstock.write.id has no effect"),
    ):
        named = {"kafka.bootstrap.servers": broker.address, "topic": topic, **options}
        with pytest.raises(PySparkException) as rejected:
            df.write.format("penstock").options(**named).mode("append").save()
        assert our_line(str(rejected.value)).startswith(line)
