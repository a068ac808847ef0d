"""`spark.read.format("penstock")` on real Spark."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from tests.broker.wire_client import BEGIN_MS
from tests.spark.source_stories import batch, fill, numbers, offsets_json, put_sparse, put_transaction
from tests.timeouts import PATIENCE_S

from penstock import Producer
from penstock.testing import Broker
from penstock.testing.pytest_plugin import topic_name


def test_a_topic_is_a_data_frame_with_the_columns_of_the_stock_connector(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    with Producer(broker.address) as producer:
        producer.send(topic, b"value", key=b"key", headers={"h": b"1"}, partition=1, timestamp_ms=BEGIN_MS).result(
            PATIENCE_S
        )
    frame = batch(spark, broker, topic, includeHeaders="true")
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    (row,) = frame.selectExpr("*", "unix_millis(timestamp) as ms").collect()
    assert (bytes(row.key), bytes(row.value), row.topic, row.partition, row.offset) == (b"key", b"value", topic, 1, 0)
    assert (row.ms, row.timestampType) == (BEGIN_MS, 0)
    assert [(one.key, bytes(one.value)) for one in row.headers] == [("h", b"1")]


@pytest.mark.long
def test_a_task_a_partition_or_finer(spark: SparkSession, broker: Broker, topic: str) -> None:
    fill(broker, topic, range(100))
    fill(broker, topic, range(100, 120), partition=1)
    whole = batch(spark, broker, topic)
    assert whole.rdd.getNumPartitions() == 2
    split = batch(spark, broker, topic, minPartitions=6)
    assert split.rdd.getNumPartitions() == 6
    small = batch(spark, broker, topic, maxRecordsPerPartition=30)
    assert small.rdd.getNumPartitions() == 5
    assert numbers(whole) == numbers(split) == numbers(small) == list(range(120))


@pytest.mark.long
def test_an_empty_topic_is_an_empty_data_frame(spark: SparkSession, broker: Broker, topic: str) -> None:
    assert batch(spark, broker, topic).count() == 0


@pytest.mark.long
def test_a_stretch_between_offsets_or_times(spark: SparkSession, broker: Broker, topic: str) -> None:
    fill(broker, topic, range(50))
    fill(broker, topic, range(100, 150), partition=1)
    by_offsets = batch(
        spark,
        broker,
        topic,
        startingOffsets=offsets_json(**{topic: [10, -2]}),
        endingOffsets=offsets_json(**{topic: [12, 3]}),
    )
    assert numbers(by_offsets) == [10, 11, 100, 101, 102]
    by_times = batch(spark, broker, topic, startingTimestamp=BEGIN_MS + 48, endingTimestamp=BEGIN_MS + 101)
    assert numbers(by_times) == [48, 49, 100]
    each = json.dumps({topic: {"0": BEGIN_MS + 49, "1": BEGIN_MS + 149}})
    assert numbers(batch(spark, broker, topic, startingOffsetsByTimestamp=each)) == [49, 149]


@pytest.mark.long
def test_several_topics_by_list_and_by_pattern(spark: SparkSession, broker: Broker) -> None:
    stem = topic_name("several")
    for number, name in enumerate((f"{stem}-a", f"{stem}-b")):
        broker.create_topic(name, 1)
        fill(broker, name, [number])
    assert numbers(batch(spark, broker, f"{stem}-a,{stem}-b")) == [0, 1]
    assert numbers(batch(spark, broker, "", subscribe=None, subscribePattern=f"{stem}-[b-z]")) == [1]


@pytest.mark.long
def test_gaps_of_compacted_and_transactional_topics(spark: SparkSession, broker: Broker) -> None:
    compacted, transactional = topic_name("compacted"), topic_name("transactional")
    broker.create_topic(compacted, 1)
    broker.create_topic(transactional, 1)
    put_sparse(broker, compacted, [3, 17])
    put_sparse(broker, compacted, [90])
    assert numbers(batch(spark, broker, compacted, minPartitions=5)) == [3, 17, 90]
    put_transaction(broker, transactional, [0, 1], producer=9, commit=False)
    put_transaction(broker, transactional, [2, 3], producer=9, commit=True, sequence=2)
    put_transaction(broker, transactional, [4], producer=10, commit=None)
    assert numbers(batch(spark, broker, transactional)) == [0, 1, 2, 3, 4]
    assert numbers(batch(spark, broker, transactional, kafka__isolation__level="read_committed")) == [2, 3]


@pytest.mark.long
def test_values_are_decoded_on_request(spark: SparkSession, broker: Broker, topic: str) -> None:
    with Producer(broker.address) as producer:
        producer.send(topic, b'{"id": 5, "name": "five"}').result(PATIENCE_S)
    frame = batch(spark, broker, topic, penstock__decode="json: id BIGINT, name STRING")
    (row,) = frame.select("decoded.id", "decoded.name").collect()
    assert (row.id, row.name) == (5, "five")


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "earliest"}, "unknown option startingoffset. Did you mean startingOffsets?"),
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest in a batch query"),
        ({"kafka.auto.offset.reset": "earliest"}, "option kafka.auto.offset.reset is not supported"),
        ({"subscribe": None}, "one of assign, subscribe or subscribePattern is required; none is set"),
    ],
)
def test_a_wrong_option_is_one_line_at_load(
    spark: SparkSession, broker: Broker, topic: str, options: dict[str, str | None], said: str
) -> None:
    with pytest.raises(AnalysisException) as raised:
        batch(spark, broker, topic, **options).count()
    assert said in str(raised.value)


def test_a_missing_topic_is_one_line(spark: SparkSession, broker: Broker, topic: str) -> None:
    with pytest.raises(PySparkException) as raised:
        batch(spark, broker, f"{topic}x").count()
    assert f"topic {topic}x: it does not exist on {broker.address}" in str(raised.value)
    assert f"Did you mean {topic}?" in str(raised.value)


@pytest.mark.long
def test_no_broker_is_one_line(spark: SparkSession, broker: Broker, topic: str) -> None:
    with pytest.raises(PySparkException, match=r"127.0.0.1:1: connection refused"):
        batch(spark, broker, topic, kafka__bootstrap__servers="127.0.0.1:1", kafka__request__timeout__ms="300").count()


@pytest.mark.long
def test_a_schema_of_the_users_own_is_rejected(spark: SparkSession, broker: Broker, topic: str) -> None:
    reading = spark.read.format("penstock").option("kafka.bootstrap.servers", broker.address)
    with pytest.raises(PySparkException, match="the schema of this source is fixed"):
        reading.option("subscribe", topic).schema("value STRING").load().count()


@pytest.mark.long
def test_a_broker_lost_in_the_middle_of_a_job_is_one_line_after_the_time_out(spark: SparkSession) -> None:
    with Broker() as doomed:
        doomed.create_topic("views", 1)
        fill(doomed, "views", range(100))
        frame = batch(spark, doomed, "views", kafkaConsumer__pollTimeoutMs="700", kafka__request__timeout__ms="300")
        assert frame.count() == 100
    with pytest.raises(PySparkException) as raised:
        frame.count()
    (said,) = {line for line in str(raised.value).splitlines() if "ReadStalled" in line and "was read up to" in line}
    assert "views-0 was read up to offset 0 of 100, then no records came for 700 ms" in said


@pytest.mark.long
def test_trap_2_latest_is_what_it_was_when_the_frame_was_first_planned(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    fill(broker, topic, range(10))
    frame = batch(spark, broker, topic)
    assert frame.count() == 10
    fill(broker, topic, range(10))
    assert frame.count() == 10
    assert batch(spark, broker, topic).count() == 20


@pytest.mark.long
def test_trap_3_filters_of_one_query_do_not_reach_another(spark: SparkSession, broker: Broker, topic: str) -> None:
    fill(broker, topic, range(20))
    frame = batch(spark, broker, topic)
    assert frame.filter("offset < 5").count() == 5
    assert frame.filter("offset >= 5").count() == 15
    assert frame.filter("partition = 1").count() == 0
    assert frame.count() == 20
