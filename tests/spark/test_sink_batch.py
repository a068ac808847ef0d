"""df.write.format("penstock"): rows of a DataFrame become records."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from tests.ports import free_port
from tests.spark.sink_stories import our_line, rejection, rows, stored, values, write
from tests.timeouts import PATIENCE_S

from penstock import Producer
from penstock.testing import Broker


def test_a_row_becomes_a_record_with_key_value_headers_and_partition(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    df = spark.sql("""
        SELECT CAST('k' AS BINARY) AS key, 'v' AS value, 1 AS partition,
               array(named_struct('key', 'a', 'value', CAST('1' AS BINARY)),
                     named_struct('key', 'a', 'value', CAST(NULL AS BINARY))) AS headers
    """)
    write(df, broker, topic=topic)
    (record,) = stored(broker, topic)
    assert (record.partition, record.key, record.value) == (1, b"k", b"v")
    assert record.headers == (("a", b"1"), ("a", None))


@pytest.mark.long
def test_nulls_stay_nulls_and_empty_stays_empty(spark: SparkSession, broker: Broker, topic: str) -> None:
    df = spark.sql("SELECT * FROM VALUES ('a', NULL, 0), (NULL, '', 0), ('', 'x', NULL) AS t(key, value, partition)")
    write(df.coalesce(1), broker, topic=topic)
    found = stored(broker, topic)
    assert sorted((r.key or b"-", r.value or b"-", r.key is None, r.value is None) for r in found) == [
        (b"-", b"-", True, False), (b"-", b"x", False, False), (b"a", b"-", False, True)
    ]  # fmt: skip


@pytest.mark.long
def test_rows_go_to_the_topics_that_they_name(spark: SparkSession, broker: Broker, topic: str) -> None:
    other = f"{topic}-2"
    broker.create_topic(other, 1)
    write(rows(spark, f"('{topic}', 'a'), ('{other}', 'b'), ('{topic}', 'c') AS t(topic, value)"), broker)
    assert sorted(map(bytes, filter(None, values(broker, topic)))) == [b"a", b"c"]
    assert values(broker, other, 1) == [b"b"]


@pytest.mark.long
def test_the_option_topic_overrides_the_column(spark: SparkSession, broker: Broker, topic: str) -> None:
    write(rows(spark, "('no-such-topic', 'a'), (NULL, 'b') AS t(topic, value)"), broker, topic=topic)
    assert sorted(map(bytes, filter(None, values(broker, topic)))) == [b"a", b"b"]


@pytest.mark.long
def test_what_was_read_can_be_written_again_and_other_columns_are_ignored(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    write(rows(spark, "('k1', 'a'), ('k2', 'b') AS t(key, value)"), broker, topic=topic)
    read = (
        spark.read.format("penstock").option("kafka.bootstrap.servers", broker.address)
        .option("subscribe", topic).option("includeHeaders", "true").load()
    )  # fmt: skip
    write(read, broker, topic=topic)
    found = Counter((record.key, record.value, record.partition) for record in stored(broker, topic))
    assert set(found.values()) == {2}
    assert {key for key, _, _ in found} == {b"k1", b"k2"}


@pytest.mark.long
def test_keys_go_where_every_other_client_puts_them(spark: SparkSession, broker: Broker, topic: str) -> None:
    write(spark.range(200).selectExpr("CAST(id AS STRING) AS key", "'x' AS value"), broker, topic=topic)
    chosen = {record.key: record.partition for record in stored(broker, topic)}
    with Producer(broker.address) as producer:
        sent = {key: producer.send(topic, b"y", key=key) for key in chosen}
        assert {key: delivery.result(PATIENCE_S).partition for key, delivery in sent.items()} == chosen


@pytest.mark.long
def test_many_rows_in_many_tasks_are_all_there_once(spark: SparkSession, broker: Broker, topic: str) -> None:
    df = spark.range(0, 50_000, numPartitions=3).selectExpr("CAST(id AS STRING) AS value")
    write(df, broker, topic=topic, kafka_compression_type="lz4")
    assert sorted(int(value or -1) for value in values(broker, topic)) == list(range(50_000))


@pytest.mark.long
def test_an_empty_dataframe_writes_nothing(spark: SparkSession, broker: Broker, topic: str) -> None:
    write(spark.range(0).selectExpr("CAST(id AS STRING) AS value"), broker, topic=topic)
    assert values(broker, topic) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("('a') AS t(key)", "column value is missing; columns are key. Alias the column to write AS value"),
        ("(1) AS t(value)", "column value must be string or binary, not int. Cast it to string or binary"),
        ("(1, 'a') AS t(key, value)", "column key must be string or binary, not int. Cast it to string or binary"),
        ("('0', 'a') AS t(partition, value)", "column partition must be int, not string. Cast it to int"),
        ("(array('a'), 'a') AS t(headers, value)", "column headers must be array<struct<key:string,value:binary>>"),
    ],
)
def test_columns_of_the_wrong_kind_are_rejected_before_anything_runs(
    spark: SparkSession, broker: Broker, topic: str, query: str, problem: str
) -> None:
    assert rejection(rows(spark, query), broker, topic=topic).startswith(problem)
    assert values(broker, topic) == []


@pytest.mark.long
def test_rows_without_a_topic_are_rejected(spark: SparkSession, broker: Broker, topic: str) -> None:
    nowhere = rejection(rows(spark, "('a') AS t(value)"), broker)
    assert nowhere.startswith("no topic: set the option topic or add a column topic. Give every row a topic")
    null = rejection(rows(spark, "(CAST(NULL AS STRING), 'a') AS t(topic, value)"), broker)
    assert null.startswith("column topic is null in a row. Give every row a topic")
    number = rejection(rows(spark, "(1, 'a') AS t(topic, value)"), broker)
    assert number.startswith("column topic must be string, not int")


@pytest.mark.long
def test_a_topic_cannot_be_overwritten(spark: SparkSession, broker: Broker, topic: str) -> None:
    line = rejection(rows(spark, "('a') AS t(value)"), broker, "overwrite", topic=topic)
    assert line == 'a topic cannot be overwritten. Use .mode("append")'


@pytest.mark.long
def test_spark_itself_rejects_a_write_without_a_mode(spark: SparkSession, broker: Broker, topic: str) -> None:
    # A Python data source cannot have the stock connector's default: the error names the mode to use.
    with pytest.raises(AnalysisException, match=r'use either the "Append"'):
        write(rows(spark, "('a') AS t(value)"), broker, "errorifexists", topic=topic)


@pytest.mark.long
def test_an_unknown_option_is_rejected_with_the_nearest(spark: SparkSession, broker: Broker, topic: str) -> None:
    line = rejection(rows(spark, "('a') AS t(value)"), broker, topic=topic, kafka_linger="5")
    assert line.startswith("unknown option kafka.linger. Did you mean kafka.linger.ms?")


@pytest.mark.long
def test_missing_partition_fails_in_one_line(spark: SparkSession, broker: Broker, topic: str) -> None:
    line = rejection(rows(spark, "(7, 'a') AS t(partition, value)"), broker, topic=topic)
    assert line.startswith(f"a row has partition 7, but {topic} has partitions 0 to 1. Correct the column")
    negative = rejection(rows(spark, "(-1, 'a') AS t(partition, value)"), broker, topic=topic)
    assert negative.startswith("a row has partition -1")
    assert values(broker, topic) == []


@pytest.mark.long
def test_a_record_that_is_too_large_fails_in_one_line(spark: SparkSession, broker: Broker, topic: str) -> None:
    line = rejection(spark.sql("SELECT repeat('x', 2000000) AS value"), broker, topic=topic)
    assert topic in line
    assert "MESSAGE_TOO_LARGE" in line


@pytest.mark.long
def test_a_topic_name_that_cannot_be_fails_in_one_line(spark: SparkSession, broker: Broker) -> None:
    line = rejection(rows(spark, "('a') AS t(value)"), broker, topic="no/such", kafka_max_block_ms="3000")
    assert "no/such" in line


@pytest.mark.long
def test_missing_broker_fails_in_one_line(spark: SparkSession) -> None:
    address, other = (f"127.0.0.1:{free_port()}" for _ in range(2))
    df = rows(spark, "('a') AS t(value)")
    writer = df.write.format("penstock").option("kafka.bootstrap.servers", f"{address},{other}")
    with pytest.raises(Exception, match="no broker was found") as failed:
        writer.option("topic", "t").mode("append").save()
    assert address in our_line(str(failed.value))
