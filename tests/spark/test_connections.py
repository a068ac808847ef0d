"""What a worker that Spark keeps does for the tasks to come."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tests.spark.source_stories import fill

from penstock.spark import connections
from penstock.spark.source import BatchReader, PenstockDataSource
from penstock.testing import Broker


@pytest.fixture(autouse=True)
def _collector_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(connections, "_is_frozen", False)
    gc.unfreeze()
    yield
    gc.unfreeze()
    connections.close_all()


def _reader(broker: Broker, topic: str) -> BatchReader:
    source = PenstockDataSource({"kafka.bootstrap.servers": broker.address, "subscribe": topic})
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    return reader


def _read_all(broker: Broker, topic: str) -> int:
    reader = _reader(broker, topic)
    return sum(batch.num_rows for partition in reader.partitions() for batch in reader.read(partition))


def test_a_worker_that_is_kept_spares_the_collector_what_stays(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark collects garbage after every task: with all modules in sight that takes ten times as long as the task."""
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    fill(broker, topic, range(10))
    assert _read_all(broker, topic) == 10
    settled = gc.get_freeze_count()
    assert settled > 10_000
    assert _read_all(broker, topic) == 10
    assert gc.get_freeze_count() <= settled


def test_a_task_alone_does_it_too(broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(broker, topic, range(10))
    reader = _reader(broker, topic)
    partitions = reader.partitions()
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    assert sum(batch.num_rows for partition in partitions for batch in reader.read(partition)) == 10
    assert gc.get_freeze_count() > 10_000


def test_any_other_process_keeps_its_collector(broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    fill(broker, topic, range(10))
    assert _read_all(broker, topic) == 10
    assert gc.get_freeze_count() == 0
