"""Stories of aiokafka, which uses old versions of the protocol, beyond the contract of all clients."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.compatibility.client_interface import send_all, take
from tests.compatibility.client_stories import BROKER_SETTINGS, numbered
from tests.compatibility.clients import AIOKAFKA
from tests.ports import free_port

from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_both_isolation_levels_read_plain_records(address: str, topic: str, isolation: str) -> None:
    send_all(AIOKAFKA, address, topic, numbered(5))
    with AIOKAFKA.consuming(address, isolation=isolation) as consumer:
        consumer.assign(topic, 0)
        assert [record.value for record in take(consumer, 5)] == numbered(5)


def test_a_member_continues_through_a_restart_of_the_broker(tmp_path: Path, topic: str, group: str) -> None:
    port = free_port()
    first, second = (EmbeddedBroker(str(tmp_path), port=port, settings=BROKER_SETTINGS) for _ in range(2))
    with ExitStack() as stack:  # the consumer is closed before the broker
        address = stack.enter_context(first).address
        send_all(AIOKAFKA, address, topic, [b"before"])
        stack.callback(second.stop)
        consumer = stack.enter_context(AIOKAFKA.consuming(address, topic=topic, group=group))
        assert [record.value for record in take(consumer, 1)] == [b"before"]
        first.stop()
        second.start()
        send_all(AIOKAFKA, address, topic, [b"after"])
        assert take(consumer, 1)[-1].value == b"after"


def test_alter_configs_replaces_everything_set_before(address: str, topic: str) -> None:
    with AIOKAFKA.administering(address) as admin:
        admin.create_topic(topic, 1, {"cleanup.policy": "compact"})
        admin.alter_setting(topic, "max.message.bytes", "2000")
        assert admin.setting(topic, "cleanup.policy") == "delete"
