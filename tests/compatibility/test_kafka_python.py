"""Stories of kafka-python beyond the contract of all clients."""

from __future__ import annotations

from pathlib import Path

from tests.compatibility.client_stories import BROKER_SETTINGS, DoomedProcess
from tests.ports import free_port

from penstock.testing.embedded_broker import EmbeddedBroker

# In a process of its own: the client does not close the sockets of failed connection attempts.
LASTING = """
import sys
from kafka import KafkaProducer
address, topic = sys.argv[1:]
producer = KafkaProducer(bootstrap_servers=address, enable_idempotence=True)
while True:
    print(producer.send(topic, b"v", partition=0).get(30).offset, flush=True)
    sys.stdin.readline()
"""


def test_a_producer_continues_through_a_restart_of_the_broker(tmp_path: Path, topic: str) -> None:
    port = free_port()
    with EmbeddedBroker(str(tmp_path), port=port, settings=BROKER_SETTINGS) as broker:
        lasting = DoomedProcess(LASTING, broker.address, topic)
        assert lasting.wait_for_its_line() == b"0"
    with lasting, EmbeddedBroker(str(tmp_path), port=port, settings=BROKER_SETTINGS):
        lasting.go_on()
        assert lasting.wait_for_its_line() == b"1"
