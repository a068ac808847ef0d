"""Spark's stock connector beside ours, on our broker and on Apache Kafka 4.3: they read the same, read what the other
wrote, and take over each other's checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.peers.spark.kafka_cluster import KafkaCluster
from tests.spark.source_stories import QUERY_TIMEOUT_S
from tests.spark.tables.table_stories import Cluster

from penstock import Producer
from penstock.testing import Broker
from penstock.testing.pytest_plugin import topic_name

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

STOCK, OURS = "kafka", "penstock"
BOTH = (STOCK, OURS)
BEGIN_MS = 1_700_000_000_000


@pytest.fixture(params=["our broker", "Kafka 4.3"])
def cluster(
    request: pytest.FixtureRequest, stock: list[Path] | str, our_broker: Broker, broker: KafkaCluster
) -> Cluster:
    if isinstance(stock, str):
        pytest.skip(f"the stock connector is not available: {stock}")
    return our_broker if request.param == "our broker" else broker


@pytest.fixture
def views(cluster: Cluster) -> str:
    name = topic_name("views")
    cluster.create_topic(name, 3)
    return name


def send(cluster: Cluster, topic: str, first: int, count: int) -> None:
    """Numbers; every fifth has no key, every seventh a header, every eleventh no value."""
    with Producer(cluster.address, compression_type="zstd") as producer:
        for number in range(first, first + count):
            producer.send(
                topic,
                None if number % 11 == 10 else b"%d" % number,
                key=None if number % 5 == 4 else b"k%d" % number,
                headers={"n": b"%d" % number} if number % 7 == 6 else None,
                partition=number % 3,
                timestamp_ms=BEGIN_MS + number,
            )


def options(cluster: Cluster, topic: str, more: dict[str, str]) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.address, "subscribe": topic, **more}


def read(spark: SparkSession, kind: str, cluster: Cluster, topic: str, **more: str) -> DataFrame:
    return spark.read.format(kind).options(**options(cluster, topic, more)).load()


def contents(frame: DataFrame) -> list[tuple[object, ...]]:
    # Headers as text: a row within a row knows no order.
    columns = [f"CAST({name} AS STRING)" if name == "headers" else name for name in frame.columns]
    return sorted((tuple(row) for row in frame.selectExpr(*columns).collect()), key=lambda row: (row[3], row[4]))


def run(frame: DataFrame, folder: str, checkpoint: str) -> None:
    writing = frame.writeStream.format("parquet").option("path", folder).option("checkpointLocation", checkpoint)
    query = writing.trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end"


@pytest.mark.parametrize(
    "more",
    [
        {"includeHeaders": "true"},
        {
            "startingOffsets": '{"TOPIC": {"0": 5, "1": -2, "2": 60}}',
            "endingOffsets": '{"TOPIC": {"0": 20, "1": -1, "2": 61}}',
        },
        {"startingTimestamp": str(BEGIN_MS + 150), "endingTimestamp": str(BEGIN_MS + 190)},
        {"minPartitions": "8"},
    ],
    ids=["headers", "offsets", "times", "split"],
)
def test_both_read_the_same_rows_of_the_same_columns(
    spark: SparkSession, cluster: Cluster, views: str, more: dict[str, str]
) -> None:
    send(cluster, views, 0, 200)
    wanted = {name: value.replace("TOPIC", views) for name, value in more.items()}
    stock, ours = (read(spark, kind, cluster, views, **wanted) for kind in BOTH)
    assert [(field.name, field.dataType) for field in stock.schema] == [
        (field.name, field.dataType) for field in ours.schema
    ]
    assert contents(stock) == contents(ours) != []


def test_each_writes_what_the_other_reads(spark: SparkSession, cluster: Cluster, views: str) -> None:
    rows = spark.sql(f"""
        SELECT '{views}' AS topic, CAST(id AS STRING) AS key, CAST(id AS STRING) AS value,
               CAST(id % 3 AS INT) AS partition,
               array(named_struct('key', 'h', 'value', CAST(id AS BINARY))) AS headers
        FROM (SELECT CAST(id AS STRING) AS id FROM range(100))
    """)
    for kind in BOTH:
        rows.write.format(kind).option("kafka.bootstrap.servers", cluster.address).mode("append").save()
    for kind in BOTH:
        frame = read(spark, kind, cluster, views, includeHeaders="true")
        shown = "CAST(key AS STRING) k, CAST(value AS STRING) v, partition p, CAST(headers[0].value AS STRING) h"
        found = sorted(tuple(row) for row in frame.selectExpr(*shown.split(", ")).collect())
        once = sorted((str(n), str(n), n % 3, str(n)) for n in range(100))
        assert found == sorted([*once, *once])


def test_a_stream_of_the_stock_connector_goes_through_it_from_topic_to_topic(
    spark: SparkSession, cluster: Cluster, views: str, checkpoint: str
) -> None:
    target = topic_name("copy")
    cluster.create_topic(target, 2)
    for first in (0, 60):
        send(cluster, views, first, 60)
        more = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "25"}
        reading = spark.readStream.format(STOCK).options(**options(cluster, views, more)).load()
        writing = reading.select("key", "value").writeStream.format(STOCK)
        named = {"kafka.bootstrap.servers": cluster.address, "topic": target, "checkpointLocation": checkpoint}
        query = writing.options(**named).trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_TIMEOUT_S)
    copied = [(row.key, row.value) for row in read(spark, OURS, cluster, target).select("key", "value").collect()]
    source = [(row.key, row.value) for row in read(spark, OURS, cluster, views).select("key", "value").collect()]
    assert sorted(copied, key=str) == sorted(source, key=str)
    assert len(copied) == 120


@pytest.mark.parametrize("kinds", [(STOCK, OURS, STOCK), (OURS, STOCK, OURS)], ids=" then ".join)
def test_a_checkpoint_is_taken_over_and_given_back(
    spark: SparkSession, cluster: Cluster, views: str, tmp_path: Path, checkpoint: str, kinds: tuple[str, ...]
) -> None:
    folder = str(tmp_path / "out")
    for number, kind in enumerate(kinds):
        send(cluster, views, number * 50, 50)
        more = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
        run(spark.readStream.format(kind).options(**options(cluster, views, more)).load(), folder, checkpoint)
    found = spark.read.parquet(folder)
    assert sorted((row.partition, row.offset) for row in found.select("partition", "offset").collect()) == [
        (partition, offset) for partition in range(3) for offset in range(50)
    ]
    last = max(
        (path for path in Path(checkpoint, "offsets").iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
    )
    assert json.loads(last.read_text().splitlines()[-1])[views] == {"0": 50, "1": 50, "2": 50}
