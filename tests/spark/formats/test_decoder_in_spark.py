"""Decoding in queries: as an option of the source, and as a function over any DataFrame."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.sink_stories import our_line

import penstock.spark
from penstock import Producer
from penstock.client.errors import ConfigError
from penstock.testing import Broker

SCHEMA = "id BIGINT, tags ARRAY<STRING>, inner STRUCT<x: DOUBLE, at: TIMESTAMP>"
GOOD = b'{"id":1,"tags":["a"],"inner":{"x":1.5,"at":"2024-05-01T00:00:00Z"}}'


def produce(broker: Broker, topic: str, *values: bytes | None) -> None:
    with Producer(broker.address) as producer:
        for value in values:
            producer.send(topic, value, partition=0)


def read(spark: SparkSession, broker: Broker, topic: str, **options: str) -> DataFrame:
    named = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, **options}
    return spark.read.format("penstock").options(**named).load()


def test_the_option_adds_a_struct_column(spark: SparkSession, broker: Broker, topic: str) -> None:
    produce(broker, topic, GOOD, None)
    df = read(spark, broker, topic, **{"penstock.decode": f"json: {SCHEMA}"})
    assert df.columns[-1] == "decoded"
    rows = df.orderBy("offset").selectExpr("value IS NULL", "decoded.id", "decoded.tags", "decoded.inner.x").collect()
    assert [tuple(row) for row in rows] == [(False, 1, ["a"], 1.5), (True, None, None, None)]


@pytest.mark.long
def test_the_function_decodes_any_dataframe(spark: SparkSession, broker: Broker, topic: str) -> None:
    df = spark.sql("""SELECT '{"id":7}' AS value, 'other' AS more""")
    row = penstock.spark.decode(df, f"json: {SCHEMA}", column="view").first()
    assert row is not None
    assert (row.more, row.view.id, row.view.tags) == ("other", 7, None)


@pytest.mark.long
def test_option_and_function_agree(spark: SparkSession, broker: Broker, topic: str) -> None:
    produce(broker, topic, GOOD, b"{}", None, b"nonsense", GOOD)
    parts = {"penstock.decode": "json", "penstock.decode.schema": SCHEMA, "penstock.decode.mode": "permissive"}
    by_option = read(spark, broker, topic, **parts)
    by_function = penstock.spark.decode(read(spark, broker, topic), f"json: {SCHEMA}", mode="permissive")
    assert by_option.schema == by_function.schema
    columns = ["offset", "value", "decoded"]
    assert (
        by_option.select(columns).orderBy("offset").collect() == by_function.select(columns).orderBy("offset").collect()
    )


@pytest.mark.long
@pytest.mark.parametrize("way", ["option", "function"])
def test_a_poisoned_record_fails_the_query_with_its_place(
    spark: SparkSession, broker: Broker, topic: str, way: str
) -> None:
    produce(broker, topic, GOOD, b"nonsense")
    if way == "option":
        df = read(spark, broker, topic, **{"penstock.decode": "json: id BIGINT"})
    else:
        df = penstock.spark.decode(read(spark, broker, topic), "json: id BIGINT")
    with pytest.raises(PySparkException) as failed:
        df.select("decoded").collect()
    assert our_line(str(failed.value)).startswith(f"{topic}-0 at offset 1 does not match its json schema: ")


@pytest.mark.long
def test_a_stream_is_decoded(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    produce(broker, topic, GOOD, GOOD)
    named = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "startingOffsets": "earliest"}
    stream = spark.readStream.format("penstock").options(**named).load()
    ids = penstock.spark.decode(stream, f"json: {SCHEMA}").selectExpr("decoded.id AS id")
    target = str(tmp_path / "out")
    query = ids.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
    assert query.trigger(availableNow=True).start(target).awaitTermination(90)
    assert [row.id for row in spark.read.parquet(target).collect()] == [1, 1]


@pytest.mark.long
def test_what_cannot_be_decoded_is_rejected_at_once(spark: SparkSession) -> None:
    df = spark.sql("SELECT 'x' AS text")
    with pytest.raises(ConfigError, match="column value is missing; columns are text"):
        penstock.spark.decode(df, "json: a INT")
    with pytest.raises(ConfigError, match="column more already exists"):
        penstock.spark.decode(spark.sql("SELECT 'x' AS value, 1 AS more"), "json: a INT", column="more")
