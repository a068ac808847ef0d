"""The registry on Apache Kafka 4.3: the stories of several instances, and of the API, are those of our own broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.peers.client.kafka_server import JavaServer, kafka_4_3
from tests.peers.provision import Found
from tests.registry import test_leadership as leadership
from tests.registry.api import Api, record

from penstock.registry import Registry, RegistrySettings

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

topic = leadership.topic
instances = leadership.instances
test_every_instance_takes_writes = leadership.test_every_instance_takes_writes_and_reads_what_it_wrote
test_another_instance_takes_over = leadership.test_another_instance_takes_over
test_concurrent_writes = leadership.test_concurrent_writes_at_all_instances_number_versions_without_gaps
test_an_old_leader_is_fenced = leadership.test_an_old_leader_is_fenced
test_what_was_not_committed_is_not_there = leadership.test_what_was_not_committed_is_not_there


@pytest.fixture(scope="module")
def broker(peer: Callable[[str], Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServer]:
    server = kafka_4_3(peer("java"), peer("kafka-broker-4.3"), tmp_path_factory.mktemp("kafka"))
    try:
        server.launch()
        server.wait_until_listening()
        yield server
    finally:
        server.kill()


@pytest.fixture
def settings(broker: Any, topic: str) -> RegistrySettings:
    made = RegistrySettings(bootstrap_servers=broker.address, topic=topic, group_id=f"group-{topic}", port=0)
    return replace(made, session_timeout_ms=6_000)  # the least that this broker accepts


def test_schemas_outlive_the_registry(settings: RegistrySettings) -> None:
    for number in range(1, 4):
        with Registry(settings=settings) as instance:
            api = Api(instance.url)
            assert api.register("s", record(optional=tuple(f"f{n}" for n in range(number))))["version"] == number
            assert api.done("DELETE", f"/subjects/s/versions/{number}") == number
            assert api.get("/subjects/s/versions?deleted=true") == list(range(1, number + 1))
