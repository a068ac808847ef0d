"""A task's writer by itself: what it keeps from task to task, and what happens when brokers go and come."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.ports import free_port
from tests.spark.sink_stories import values
from tests.timeouts import PATIENCE_S

from penstock.client.errors import ConfigError
from penstock.spark import sink
from penstock.spark.ledger import StoredRange
from penstock.spark.sink import SinkOptions, TaskWriter, WriteFailed, by_topic, sink_options
from penstock.testing import Broker


def options_for(broker: Broker, topic: str | None, **more: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": broker.address, **{name.replace("_", "."): text for name, text in more.items()}}
    return sink_options(given if topic is None else {**given, "topic": topic})


def batch(*rows: str | None, **columns: list[object]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(rows, pa.string()), **columns})


@pytest.fixture(autouse=True)
def no_producers_left() -> Iterator[None]:
    yield
    sink._close_all()


def test_the_receipt_says_what_is_stored_where(broker: Broker, topic: str) -> None:
    writer = TaskWriter(options_for(broker, topic))
    partition = pa.array([0, 0, 1], pa.int32())
    first = writer.write([batch("a", "b", "c", partition=partition)])
    assert first.records == 3
    assert first.stored == (StoredRange(topic, 0, 0, 2), StoredRange(topic, 1, 0, 1))
    second = writer.write([batch("d", partition=pa.array([0], pa.int32())), batch()])
    assert second.stored == (StoredRange(topic, 0, 2, 3),)


def test_tasks_of_a_process_share_a_producer(broker: Broker, topic: str) -> None:
    options = options_for(broker, topic)
    TaskWriter(options).write([batch("a")])
    producer = sink.producer_for(options)
    TaskWriter(options_for(broker, topic)).write([batch("b")])
    assert sink.producer_for(options) is producer


def test_a_producer_that_has_failed_a_task_is_thrown_away(broker: Broker, topic: str) -> None:
    options = options_for(broker, topic)
    TaskWriter(options).write([batch("a")])
    with pytest.raises(WriteFailed, match="MESSAGE_TOO_LARGE"):
        TaskWriter(options).write([batch("x" * 2_000_000)])
    assert options not in sink._producers
    TaskWriter(options).write([batch("b")])
    assert sorted(map(bytes, filter(None, values(broker, topic)))) == [b"a", b"b"]


def test_the_number_of_kept_producers_is_bounded(broker: Broker, topic: str) -> None:
    for number in range(7):
        TaskWriter(options_for(broker, topic, kafka_client_id=f"c{number}")).write([batch("a")])
    assert [dict(options.producer)["client_id"] for options in sink._producers] == ["c3", "c4", "c5", "c6"]


def test_a_task_without_rows_opens_nothing() -> None:
    options = sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    receipt = TaskWriter(options).write([batch()])
    assert (receipt.records, receipt.stored) == (0, ())
    assert not sink._producers


@pytest.mark.long
def test_a_broker_that_restarts_in_the_middle_of_a_task_costs_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    port = free_port()
    broker = Broker(str(tmp_path), port=port).start()
    broker.create_topic("views", 2)
    options = options_for(broker, "views")
    again = Broker(str(tmp_path), port=port)
    restart = threading.Timer(0.5, again.start)

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(20):
            if number == 7:
                broker.stop()
                restart.start()
            yield batch(*(f"{number}-{row}" for row in range(500)))

    try:
        receipt = TaskWriter(options).write(batches())
        assert receipt.records == 10_000
        restart.join()
        found = [value.decode() for value in values(again, "views") if value is not None]
        assert sorted(found) == sorted(f"{number}-{row}" for number in range(20) for row in range(500))
    finally:
        restart.join()
        again.stop()


def test_a_failure_is_noticed_while_rows_still_come(broker: Broker, topic: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    reached_the_end: list[bool] = []

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch("x" * 2_000_000)
        while time.monotonic() < end_s:
            yield batch("small")
        reached_the_end.append(True)

    with pytest.raises(WriteFailed, match="MESSAGE_TOO_LARGE"):
        TaskWriter(options_for(broker, topic)).write(batches())
    assert not reached_the_end


def test_a_forked_child_makes_producers_of_its_own(broker: Broker, topic: str) -> None:
    TaskWriter(options_for(broker, topic)).write([batch("a")])
    child = os.fork()
    if child == 0:
        os._exit(len(sink._producers))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_rows_are_parted_by_topic_in_the_order_of_their_first(broker: Broker) -> None:
    mixed = batch("1", "2", "3", "4", topic=pa.array(["b", "a", "b", "a"]), more=pa.array([1, 2, 3, 4]))
    parts = [(topic, rows.to_pydict()) for topic, rows in by_topic(mixed, None)]
    assert parts == [("b", {"value": ["1", "3"]}), ("a", {"value": ["2", "4"]})]
    with pytest.raises(ConfigError, match="column topic is null"):
        list(by_topic(batch("1", topic=pa.array([None], pa.string())), None))
