"""`spark.readStream.format("penstock")` on real Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from tests.spark.source_stories import (
    QUERY_TIMEOUT_S,
    fill,
    numbers,
    put_sparse,
    recreate,
    remove_before,
    run_available,
    stream,
)

from penstock.client.admin import Admin
from penstock.testing import Broker
from penstock.testing.pytest_plugin import topic_name


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "out")


def landed(spark: SparkSession, folder: str) -> list[int]:
    return numbers(spark.read.parquet(folder))


def test_available_now_reads_everything_in_limited_batches_and_continues_next_time(
    spark: SparkSession, broker: Broker, topic: str, folder: str, checkpoint: str
) -> None:
    fill(broker, topic, range(100))
    fill(broker, topic, range(100, 140), partition=1)
    reading = stream(spark, broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=50)
    query = run_available(reading, folder, checkpoint)
    sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    assert sum(sizes) == 140
    assert max(sizes) <= 50
    with Admin(broker.address) as admin:
        admin.create_partitions(topic, 3)
    fill(broker, topic, range(140, 150), partition=2)
    run_available(reading, folder, checkpoint)
    assert landed(spark, folder) == list(range(150))


@pytest.mark.long
def test_a_running_query_reads_what_arrives(spark: SparkSession, broker: Broker, topic: str, checkpoint: str) -> None:
    query = (
        stream(spark, broker, topic, startingOffsets="earliest")
        .writeStream.format("memory")
        .queryName("arriving")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        for first in (0, 10):
            fill(broker, topic, range(first, first + 10))
            query.processAllAvailable()
            assert numbers(spark.table("arriving")) == list(range(first + 10))
        progress = query.lastProgress
        assert progress is not None
        ends = json.loads(progress.sources[0].endOffset)
        assert ends[topic] == {"0": 20, "1": 0}
    finally:
        query.stop()


@pytest.mark.long
def test_a_stream_from_the_end_that_stops_before_the_first_record_misses_none(
    spark: SparkSession, broker: Broker, topic: str, folder: str, checkpoint: str
) -> None:
    fill(broker, topic, range(10))
    reading = stream(spark, broker, topic)
    run_available(reading, folder, checkpoint)
    fill(broker, topic, range(10, 20))
    run_available(reading, folder, checkpoint)
    assert landed(spark, folder) == list(range(10, 20))


@pytest.mark.long
def test_trap_1_a_first_batch_that_failed_is_read_again_from_its_own_start(
    spark: SparkSession, broker: Broker, topic: str, folder: str, checkpoint: str
) -> None:
    fill(broker, topic, range(10))
    (started := Path(folder).parent / "fail").touch()
    flag = str(started)

    def write(frame: object, number: int) -> None:
        if Path(flag).exists():
            fill(broker, topic, range(10, 20))
            raise RuntimeError("the first try fails, after more has arrived")
        frame.write.mode("append").parquet(folder)  # type: ignore[attr-defined]

    def run() -> None:
        writing = stream(spark, broker, topic, startingOffsets="latest").writeStream.foreachBatch(write)
        query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_TIMEOUT_S)

    with pytest.raises(StreamingQueryException, match="the first try fails"):
        run()
    started.unlink()
    run()
    assert landed(spark, folder) == list(range(10, 20))


@pytest.mark.long
def test_recreated_topic_ends_the_query_and_leaves_its_checkpoint_alone(
    spark: SparkSession, broker: Broker, topic: str, folder: str, checkpoint: str
) -> None:
    fill(broker, topic, range(10))
    run_available(stream(spark, broker, topic, startingOffsets="earliest"), folder, checkpoint)
    recreate(broker, topic)
    fill(broker, topic, range(100, 130))
    before = sorted(path.name for path in Path(checkpoint, "offsets").iterdir())
    with pytest.raises(StreamingQueryException, match=f"topic {topic} was deleted and recreated"):
        run_available(stream(spark, broker, topic, startingOffsets="earliest"), folder, checkpoint)
    assert sorted(path.name for path in Path(checkpoint, "offsets").iterdir()) == before
    assert landed(spark, folder) == list(range(10))
    run_available(stream(spark, broker, topic, failOnDataLoss="false"), folder, checkpoint)
    assert landed(spark, folder) == [*range(10), *range(100, 130)]


@pytest.mark.long
def test_lost_records_end_the_query_or_are_skipped(
    spark: SparkSession, broker: Broker, topic: str, folder: str, checkpoint: str
) -> None:
    fill(broker, topic, range(10))
    run_available(stream(spark, broker, topic, startingOffsets="earliest"), folder, checkpoint)
    fill(broker, topic, range(10, 30))
    remove_before(broker, topic, 25)
    with pytest.raises(StreamingQueryException, match="offsets 10 to 24 were removed before they were read"):
        run_available(stream(spark, broker, topic), folder, checkpoint)
    run_available(stream(spark, broker, topic, failOnDataLoss="false"), folder, checkpoint)
    assert landed(spark, folder) == [*range(10), *range(25, 30)]


@pytest.mark.long
def test_a_checkpoint_of_another_topic_is_rejected_in_one_line(
    spark: SparkSession, broker: Broker, topic: str, folder: str, checkpoint: str
) -> None:
    fill(broker, topic, range(10))
    run_available(stream(spark, broker, topic, startingOffsets="earliest"), folder, checkpoint)
    other = topic_name("other")
    broker.create_topic(other, 1)
    with pytest.raises(StreamingQueryException, match=f"query over {topic}, but this query reads topic {other}"):
        run_available(stream(spark, broker, other), folder, checkpoint)


@pytest.mark.long
def test_gaps_do_not_hold_a_stream_up(spark: SparkSession, broker: Broker, folder: str, checkpoint: str) -> None:
    topic = topic_name("gaps")
    broker.create_topic(topic, 1)
    put_sparse(broker, topic, [3, 17])
    put_sparse(broker, topic, [90])
    reading = stream(spark, broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=30)
    run_available(reading, folder, checkpoint)
    assert landed(spark, folder) == [3, 17, 90]


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets is for batch queries"),
        ({"maxOffsetPerTrigger": "5"}, "Did you mean maxOffsetsPerTrigger?"),
    ],
)
def test_a_wrong_option_is_one_line(
    spark: SparkSession, broker: Broker, topic: str, folder: str, checkpoint: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        run_available(stream(spark, broker, topic, **options), folder, checkpoint)
    assert said in str(raised.value)


@pytest.mark.long
def test_a_missing_topic_is_one_line(spark: SparkSession, broker: Broker, folder: str, checkpoint: str) -> None:
    with pytest.raises(PySparkException, match="topic nowhere-to-be-seen: it does not exist"):
        run_available(stream(spark, broker, "nowhere-to-be-seen"), folder, checkpoint)
