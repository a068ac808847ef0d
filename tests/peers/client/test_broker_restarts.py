"""Apache Kafka 4.3 goes away under load and comes back at its address: nothing is lost, doubled or out of order."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from tests.client.contract.contract import Worker, new_group, read_all, values
from tests.peers.client.kafka_server import JavaServer
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, Delivery, Producer, TopicSpec

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

_ENOUGH = 2_000
_PAUSE_S = 0.0005


class Load(threading.Thread):
    """Sends numbers without an end, and remembers what became of each."""

    def __init__(self, producer: Producer[Any, Any], topic: str) -> None:
        super().__init__(daemon=True)
        self.sent: list[Delivery] = []
        self._producer = producer
        self._topic = topic
        self._is_ending = False

    def run(self) -> None:
        while not self._is_ending:
            self.sent.append(self._producer.send(self._topic, b"%d" % len(self.sent)))
            time.sleep(_PAUSE_S)

    def end(self) -> int:
        self._is_ending = True
        self.join(PATIENCE_S)
        return len(self.sent)

    def acknowledged(self) -> int:
        """How many of the first ones are through."""
        return next((number for number, each in enumerate(self.sent) if not each.done()), len(self.sent))


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_a_restart_under_load_costs_nothing_but_time(kafka: JavaServer, ending: str) -> None:
    topic, group = f"restarted-{ending}", new_group()
    with Admin(kafka.address) as admin:
        admin.create_topic(TopicSpec(topic, 1))
    with Producer(kafka.address, batch_size=2_000, linger_ms=1) as producer:
        load = Load(producer, topic)
        with Worker(kafka.address, topic, group) as reading:
            load.start()
            until(lambda: load.acknowledged() > _ENOUGH and len(reading.seen) > _ENOUGH, "it is under way")
            if ending == "killed":
                kafka.kill()
            else:
                kafka.stop()
            gone = len(load.sent)
            until(lambda: len(load.sent) > gone + _ENOUGH, "send does not wait for a broker")
            kafka.launch()
            kafka.wait_until_listening()
            before = len(load.sent)
            until(lambda: load.acknowledged() > before, "it continues")
            count = load.end()
            producer.flush(PATIENCE_S)
            until(lambda: len(reading.seen) >= count, "all is read")
        assert [delivery.result(0).offset for delivery in load.sent] == list(range(count))
    assert values(read_all(kafka.address, topic, count)) == [b"%d" % number for number in range(count)]
    assert [offset for _, offset in reading.seen] == list(range(count))
