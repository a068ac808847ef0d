"""What the stories about writing share."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock import Consumer, ConsumerRecord, TopicPartition
from penstock.testing import Broker

Record = ConsumerRecord[bytes, bytes]


def rows(spark: SparkSession, query: str) -> DataFrame:
    """Rows of VALUES, with the names that the query gives them."""
    return spark.sql(f"SELECT * FROM VALUES {query}")


def write(df: DataFrame, broker: Broker, mode: str = "append", **options: str) -> None:
    named = {name.replace("_", "."): value for name, value in options.items()}
    df.write.format("penstock").options(**{"kafka.bootstrap.servers": broker.address, **named}).mode(mode).save()


def rejection(df: DataFrame, broker: Broker, mode: str = "append", **options: str) -> str:
    """The line in which a write is rejected."""
    with pytest.raises(PySparkException) as rejected:
        write(df, broker, mode, **options)
    return our_line(str(rejected.value))


def our_line(text: str) -> str:
    """Of Spark's report, the one line that is ours."""
    lines = [line for line in text.splitlines() if line.startswith("penstock.")]
    assert lines, text
    assert len(set(lines)) == 1, text
    return lines[0].partition(": ")[2]


def stored(broker: Broker, topic: str, partitions: int = 2) -> list[Record]:
    """Everything in a topic, by partition and offset."""
    found: list[Record] = []
    with Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer:
        all_of = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(all_of)
        ends: Mapping[TopicPartition, int] = consumer.end_offsets(all_of)
        while any(consumer.position(one) < ends[one] for one in all_of):
            for records in consumer.poll(timeout_ms=1_000).values():
                found += records
    return sorted(found, key=lambda record: (record.partition, record.offset))


def values(broker: Broker, topic: str, partitions: int = 2) -> list[bytes | None]:
    return [record.value for record in stored(broker, topic, partitions)]
