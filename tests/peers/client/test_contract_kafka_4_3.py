"""The contract of the client and of the command, kept by Apache Kafka 4.3."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from tests.client.contract import (
    test_administering,
    test_administering_transactions,
    test_command_line,
    test_consuming,
    test_producing,
    test_sharing,
    test_transacting,
)
from tests.client.contract.contract import KEPT, Capabilities, MakeTopic, is_led, new_name, reader, stories_of, take
from tests.peers.client.kafka_server import JavaServer
from tests.peers.java_process import JavaProcess
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, Producer, TopicSpec

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]


@pytest.fixture(scope="module")
def bootstrap(kafka: JavaServer) -> str:
    return kafka.address


@pytest.fixture(scope="module")
def capabilities() -> Capabilities:
    return Capabilities("Kafka 4.3")


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as admin:
        yield admin


@pytest.fixture
def make_topic(admin: Admin) -> MakeTopic:
    def make(partitions: int = 1, config: Mapping[str, str] | None = None, *, prefix: str = "t") -> str:
        name = new_name(prefix)
        admin.create_topic(TopicSpec(name, partitions, config={**KEPT, **(config or {})}))
        until(lambda: is_led(admin, name, partitions), f"{name} is there")
        return name

    return make


@pytest.mark.peer("java-clients-4.3")
def test_a_key_goes_where_java_sends_it(
    bootstrap: str, make_topic: MakeTopic, start_java: Callable[..., JavaProcess]
) -> None:
    topic, keys = make_topic(7), [f"clé-{number}" * (number % 4 + 1) for number in range(300)]
    records = [{"key": key, "value": "java"} for key in keys]
    start_java("java-clients-4.3", "NewClients").ask("produce", address=bootstrap, topic=topic, records=records)
    with Producer(bootstrap) as producer:
        producer.send_many(topic, ["ours"] * len(keys), keys=keys).result(PATIENCE_S)
    homes: dict[bytes, dict[bytes, int]] = {b"java": {}, b"ours": {}}
    with reader(bootstrap, topic) as consumer:
        for record in take(consumer, 2 * len(keys)):
            homes[record.value][record.key] = record.partition
    assert len(homes[b"java"]) == len(keys)
    assert homes[b"ours"] == homes[b"java"]


globals().update(
    stories_of(
        test_producing,
        test_consuming,
        test_sharing,
        test_administering,
        test_administering_transactions,
        test_command_line,
        test_transacting,
    )
)
