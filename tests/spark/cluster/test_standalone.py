"""Reading, streaming and writing by executors of a standalone cluster that have this environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.cluster import stories
from tests.spark.cluster.drivers import Driver
from tests.spark.cluster.standalone import Standalone
from tests.spark.sink_stories import stored
from tests.spark.source_stories import fill

from penstock.testing import Broker


def log_of(broker: Broker, topic: str) -> stories.Found:
    return [(one.partition, one.offset, one.value or b"") for one in stored(broker, topic)]


def test_a_topic_is_read_by_the_executors_of_both_workers(
    driver: Driver, standalone: Standalone, broker: Broker, topic: str
) -> None:
    for partition in (0, 1):
        fill(broker, topic, range(500), partition=partition)
    assert driver.tells(stories.master) == (standalone.url, 2)
    assert driver.tells(stories.read, broker.address, topic) == log_of(broker, topic)
    places = driver.tells(stories.readers, broker.address, topic)
    assert [Path(place).parents[1].name for place in places] == ["worker-0", "worker-1"]


@pytest.mark.long
def test_a_stream_ends_and_continues_where_it_was(driver: Driver, broker: Broker, topic: str, tmp_path: Path) -> None:
    fill(broker, topic, range(100))
    first, batches = driver.tells(
        stories.to_parquet, broker.address, topic, str(tmp_path), None, maxOffsetsPerTrigger="40"
    )
    assert batches == 3
    fill(broker, topic, range(100, 150))
    fill(broker, topic, range(30), partition=1)
    again, batches = driver.tells(stories.to_parquet, broker.address, topic, str(tmp_path))
    assert (again, batches) == (first, 4)
    assert driver.tells(stories.parquet, str(tmp_path)) == log_of(broker, topic)


@pytest.mark.long
def test_what_executors_write_is_in_the_topic_once(driver: Driver, broker: Broker, topic: str, tmp_path: Path) -> None:
    driver.tells(stories.write, broker.address, topic, 200)
    assert sorted(int(value) for _, _, value in log_of(broker, topic)) == list(range(200))
    broker.create_topic(f"{topic}-copy", 2)
    driver.tells(stories.to_topic, broker.address, topic, f"{topic}-copy", str(tmp_path / "checkpoint"))
    assert log_of(broker, f"{topic}-copy") == log_of(broker, topic)
