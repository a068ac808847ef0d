"""The broker goes away in the middle of a job: it is waited for, or one line ends the job and nothing is half done."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.spark.cluster import stories
from tests.spark.cluster.drivers import Driver, StoryFailed
from tests.spark.cluster.test_standalone import log_of
from tests.spark.sink_stories import our_line
from tests.spark.source_stories import fill
from tests.spark.tables.table_stories import VIEWS, World, once, places, rows, world_of
from tests.timeouts import PATIENCE_S

from penstock.client.errors import PenstockError
from penstock.spark.errors import ReadStalled
from penstock.spark.tables.loader import LoadReport, follow
from penstock.testing import Broker

TOPIC = "views"
SHORT = {"kafkaConsumer.pollTimeoutMs": "1500", "kafka.request.timeout.ms": "1500"}


class Gate:
    """Where a job stops until the test lets it continue."""

    def __init__(self) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self._door.settimeout(PATIENCE_S)
        self.port: int = self._door.getsockname()[1]

    def is_reached(self) -> socket.socket:
        waiting, _ = self._door.accept()
        return waiting

    def close(self) -> None:
        self._door.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


class Frail:
    """A broker that can go, and come back as the same one."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._port = free_port()
        self.now = self.comes_back()
        self.address = self.now.address

    def comes_back(self) -> Broker:
        self.now = Broker(self._folder, port=self._port).start()
        return self.now


@pytest.fixture
def frail(tmp_path: Path) -> Iterator[Frail]:
    made = Frail(tmp_path / "broker")
    made.now.create_topic(TOPIC, 2)
    yield made
    made.now.stop()


@pytest.fixture
def world(frail: Frail, tmp_path: Path) -> Iterator[World]:
    with world_of(frail.now, TOPIC, tmp_path) as made:
        yield made


@pytest.mark.long
def test_a_load_waits_for_its_broker_and_one_that_stays_away_ends_it_after_the_last_commit(
    driver: Driver, frail: Frail, world: World, gate: Gate
) -> None:
    world.views(400)
    opened = world.make(schema=VIEWS)
    uri = world.warehouse.storage.uri
    gone = driver.begins(stories.rejected_load, frail.address, uri, 100, gate.port, **SHORT)
    with gate.is_reached():
        frail.now.stop()
    kind, why = gone.result(PATIENCE_S)
    assert kind == "ReadStalled"
    assert "was read up to offset" in why
    assert "\n" not in why
    landed = places(rows(opened))
    covered = opened.coverage([0, 1]).covered
    there = {(partition, offset) for partition, (first, after) in covered.items() for offset in range(first, after)}
    assert opened.store.version == 1
    assert landed == once(there)
    # The same again, and again the broker goes in the middle; but this time it comes back.
    frail.comes_back()
    back = driver.begins(stories.load, frail.address, uri, 100, None, gate.port)
    with gate.is_reached():
        frail.now.stop()
    frail.comes_back()
    commits, count = back.result(PATIENCE_S)
    assert commits >= 2
    assert count == 400 - len(there)
    assert places(rows(opened)) == once(world.log())


@pytest.mark.long
def test_a_stream_waits_for_its_broker_and_one_that_stays_away_ends_it_between_batches(
    driver: Driver, frail: Frail, gate: Gate, tmp_path: Path
) -> None:
    fill(frail.now, TOPIC, range(200))
    folder = str(tmp_path / "query")
    few = {"maxOffsetsPerTrigger": "50"}
    gone = driver.begins(stories.to_parquet, frail.address, TOPIC, folder, None, (gate.port, 60), **few, **SHORT)
    with gate.is_reached():
        frail.now.stop()
    with pytest.raises(StoryFailed) as failure:
        gone.result(PATIENCE_S)
    assert frail.address in our_line(str(failure.value))
    assert len(driver.tells(stories.parquet, folder)) == 100
    frail.comes_back()
    back = driver.begins(stories.to_parquet, frail.address, TOPIC, folder, None, (gate.port, 110), **few)
    with gate.is_reached():
        frail.now.stop()
    broker = frail.comes_back()
    back.result(PATIENCE_S)
    assert driver.tells(stories.parquet, folder) == log_of(broker, TOPIC)


def test_a_load_that_follows_outlives_a_read_that_stalled() -> None:
    stop, seen = threading.Event(), list[PenstockError]()

    class Stalls:
        tries = 0

        def load_new(self, stop: threading.Event) -> LoadReport:
            self.tries += 1
            if self.tries == 1:
                raise ReadStalled("nothing more came")
            stop.set()
            return LoadReport()

    def notify(error: PenstockError, wait_s: float) -> None:
        seen.append(error)

    loader: Any = Stalls()
    follow(loader, stop, interval_s=0, notify=notify)
    assert loader.tries == 2
    assert [str(error) for error in seen] == ["nothing more came"]
