"""df.writeStream.format("penstock"): a stream's batches become records."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.sink_stories import our_line, stored, values
from tests.timeouts import PATIENCE_S

from penstock import Producer
from penstock.testing import Broker


def stream_of(spark: SparkSession, broker: Broker, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", broker.address)
    return reader.options(subscribe=topic, startingOffsets="earliest", **options).load()


def started(df: DataFrame, broker: Broker, checkpoint: str | Path, topic: str | None = None) -> StreamingQuery:
    writer = df.writeStream.format("penstock").option("kafka.bootstrap.servers", broker.address)
    if topic is not None:
        writer = writer.option("topic", topic)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def produce(broker: Broker, topic: str, *sent: bytes) -> None:
    with Producer(broker.address) as producer:
        for number, value in enumerate(sent):
            producer.send(topic, value, key=b"k%d" % number)


def test_a_stream_writes_its_batch_to_a_topic(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    """The smoke test of streams into topics: one query, one batch."""
    target = f"{topic}-out"
    broker.create_topic(target, 2)
    produce(broker, topic, b"1", b"2")
    assert started(stream_of(spark, broker, topic), broker, tmp_path, target).awaitTermination(PATIENCE_S)
    assert sorted(map(bytes, filter(None, values(broker, target)))) == [b"1", b"2"]


@pytest.mark.long
def test_a_stream_goes_from_topic_to_topic_and_on_where_it_was(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-out"
    broker.create_topic(target, 2)
    for sent, expected in (([b"1", b"2", b"3"], 3), ([b"4"], 4), ([], 4)):
        produce(broker, topic, *sent)
        query = started(stream_of(spark, broker, topic), broker, tmp_path, target)
        assert query.awaitTermination(PATIENCE_S)
        assert len(stored(broker, target)) == expected
    assert sorted(map(bytes, filter(None, values(broker, target)))) == [b"1", b"2", b"3", b"4"]


@pytest.mark.long
def test_batches_of_one_query_share_producers_and_each_is_committed(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-out"
    broker.create_topic(target, 2)
    produce(broker, topic, *(b"%d" % number for number in range(30)))
    query = started(stream_of(spark, broker, topic, maxOffsetsPerTrigger="6"), broker, tmp_path, target)
    assert query.awaitTermination(PATIENCE_S)
    commits = {path.name for path in (tmp_path / "commits").iterdir() if path.name.isdecimal()}
    assert len(commits) >= 5
    assert sorted(int(value or -1) for value in values(broker, target)) == list(range(30))


@pytest.mark.long
def test_a_complete_result_is_appended_whole(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    target = f"{topic}-out"
    broker.create_topic(target, 1)
    for sent in ([b"a", b"a"], [b"a"]):
        produce(broker, topic, *sent)
        counts = stream_of(spark, broker, topic).groupBy("value").count()
        writer = counts.selectExpr("value AS key", "CAST(count AS STRING) AS value").writeStream.format("penstock")
        named = {"kafka.bootstrap.servers": broker.address, "topic": target, "checkpointLocation": str(tmp_path)}
        query = writer.options(**named).outputMode("complete").trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)
    assert [(record.key, record.value) for record in stored(broker, target, 1)] == [(b"a", b"2"), (b"a", b"3")]


@pytest.mark.long
def test_a_batch_that_cannot_be_written_fails_the_query_in_one_line_and_is_tried_again(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-out"
    broker.create_topic(target, 2)
    produce(broker, topic, b"1")
    df = stream_of(spark, broker, topic)
    query = started(df.selectExpr("value", "7 AS partition"), broker, tmp_path, target)
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(PATIENCE_S)
    assert our_line(str(failed.value)).startswith(f"a row has partition 7, but {target} has")
    assert values(broker, target) == []
    # The checkpoint was not moved: the batch comes again, and is written once it can be.
    assert started(df.select("value"), broker, tmp_path, target).awaitTermination(PATIENCE_S)
    assert values(broker, target) == [b"1"]
