"""Clients that exceed their quotas get a throttle time and are held back; others, and brokers, are not."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pytest
from tests.broker.broker_peer import authenticate
from tests.broker.handlers.test_client_quotas import Entity, alter
from tests.broker.wire_client import WireClient, batch_of, fetch_request, make_topic, produce_request
from tests.timeouts import until

from penstock.broker.broker import Broker
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.alter_client_quotas import OpData
from penstock.wire.schemas.api_versions import ApiVersionsRequest
from penstock.wire.schemas.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from penstock.wire.schemas.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.wire.schemas.delete_topics import DeleteTopicsRequest, DeleteTopicState

BYTES = 20_000


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return {"quota.window.num": "2"}


@pytest.fixture
def quota(embedded: EmbeddedBroker, broker: Broker) -> Iterator[WireClient]:
    """A connection of a broker, which sets quotas and is never held back; they are removed afterwards."""
    with WireClient(embedded.port) as admin:
        authenticate(admin, broker)
        yield admin
        entities: tuple[Entity, ...] = ({"client-id": "story"}, {"user": None})
        for entity in entities:
            for key in ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"):
                assert alter(admin, entity, OpData(key, remove=True)) == 0
        assert alter(admin, {"ip": None}, OpData("connection_creation_rate", remove=True)) == 0


def seconds_of_a_question(client: WireClient) -> float:
    began = time.monotonic()
    client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0)
    return time.monotonic() - began


def test_a_producer_over_its_quota_gets_a_throttle_time_and_its_next_request_waits(
    client: WireClient, other: WireClient, quota: WireClient, broker: Broker
) -> None:
    topic = make_topic(broker)
    request = produce_request({(topic, 0): batch_of(b"x" * BYTES)})
    assert client.ask(ApiKey.PRODUCE, request, 9).throttle_time_ms == 0
    assert alter(quota, {"client-id": "story"}, OpData("producer_byte_rate", BYTES / 2)) == 0
    answer = client.ask(ApiKey.PRODUCE, request, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert 500 < answer.throttle_time_ms < 5_000
    assert seconds_of_a_question(client) > answer.throttle_time_ms / 1000 * 0.9
    # The quota is the client id's: a second connection waits after its own request.
    assert other.ask(ApiKey.PRODUCE, request, 9).throttle_time_ms > 0
    assert quota.ask(ApiKey.PRODUCE, request, 9).throttle_time_ms == 0, "a broker"
    rendered = "".join(str(each) for each in broker.services.metrics.registry.render())
    assert 'kafka_server_throttle_seconds_total{quota="producer_byte_rate"}' in rendered


def test_a_producer_that_wants_no_response_is_held_back_too(
    client: WireClient, quota: WireClient, broker: Broker
) -> None:
    topic = make_topic(broker)
    assert alter(quota, {"client-id": "story"}, OpData("producer_byte_rate", BYTES)) == 0
    for _ in range(2):
        client.send(ApiKey.PRODUCE, produce_request({(topic, 0): batch_of(b"x" * BYTES)}, acks=0), 9)
    assert seconds_of_a_question(client) > 0.3


def test_a_consumer_over_its_quota_is_held_back_and_gets_at_most_what_its_windows_allow(
    client: WireClient, quota: WireClient, broker: Broker
) -> None:
    topic = make_topic(broker)
    for _ in range(4):
        assert quota.produce(topic, batch_of(b"x" * BYTES)).error_code == 0
    assert alter(quota, {"user": None}, OpData("consumer_byte_rate", BYTES / 2)) == 0
    answer = client.ask(ApiKey.FETCH, fetch_request({(topic, 0): 0}), 12)
    size = len(answer.responses[0].partitions[0].records)
    assert BYTES < size < 2 * BYTES, "one whole batch, not four"
    assert answer.throttle_time_ms > 500
    assert seconds_of_a_question(client) > 0.5
    assert quota.ask(ApiKey.FETCH, fetch_request({(topic, 0): 0}), 12).throttle_time_ms == 0, "a broker"


def test_a_client_that_takes_too_much_of_the_loop_is_held_back(client: WireClient, quota: WireClient) -> None:
    assert alter(quota, {"client-id": "story"}, OpData("request_percentage", 0.000_01)) == 0
    seconds_of_a_question(client)
    assert client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 1).throttle_time_ms > 0


def test_changes_over_the_quota_are_rejected_in_new_versions_and_made_in_old_ones(
    client: WireClient, other: WireClient, quota: WireClient, broker: Broker
) -> None:
    def create(via: WireClient, version: int, *names: str) -> tuple[int, list[int]]:
        topics = [CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
        answer = via.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=topics, timeout_ms=5_000), version)
        return answer.throttle_time_ms, [each.error_code for each in answer.topics]

    assert alter(quota, {"client-id": "story"}, OpData("controller_mutation_rate", 1.0)) == 0
    wait_ms, codes = create(client, 7, "q1", "q2", "q3")
    assert sorted(codes) == [0, 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED], "a bucket of 2 is overdrawn once"
    assert 1_000 < wait_ms <= 2_000
    assert create(other, 5, "q4")[1] == [0]
    assert set(broker.cluster.image.topics) >= {"q4"}
    delete = DeleteTopicsRequest(topics=[DeleteTopicState(name="q4")])
    with WireClient(broker.advertised[0].port) as third:
        assert third.ask(ApiKey.DELETE_TOPICS, delete, 6).responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert quota.ask(ApiKey.DELETE_TOPICS, delete, 6).responses[0].error_code == 0, "a broker"


def test_an_address_that_connects_too_often_is_rejected(
    client: WireClient, quota: WireClient, embedded: EmbeddedBroker
) -> None:
    assert alter(quota, {"ip": None}, OpData("connection_creation_rate", 2.0)) == 0
    outcomes = []
    for _ in range(12):
        with WireClient(embedded.port) as each:
            try:
                seconds_of_a_question(each)
                outcomes.append(True)
            except ConnectionError:
                outcomes.append(False)
    assert outcomes[0]
    assert not all(outcomes)
    seconds_of_a_question(client)


def test_connections_per_second_are_bounded() -> None:
    with EmbeddedBroker(settings={"max.connection.creation.rate": "5"}) as own:
        began = time.monotonic()
        for _ in range(12):
            with WireClient(own.port) as each:
                seconds_of_a_question(each)
        assert time.monotonic() - began > 1.5
        until(lambda: own.broker.services.server.counters.rejected == 0, "no connection is rejected")


def test_without_quotas_nothing_is_counted(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker)
    quotas = broker.services.throttling.quotas
    assert not quotas.is_active
    before = dict(quotas._rates)
    client.produce(topic, batch_of(b"x"))
    assert quotas._rates == before


def test_the_partitions_of_a_cluster_are_bounded() -> None:
    with EmbeddedBroker(settings={"penstock.max.partitions": "5"}) as own, WireClient(own.port) as client:

        def create(*topics: tuple[str, int]) -> list[int]:
            wanted = [CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in topics]
            answer = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=wanted, timeout_ms=5_000), 7)
            return [each.error_code for each in answer.topics]

        assert create(("a", 3), ("b", 3), ("c", 1)) == [0, ErrorCode.POLICY_VIOLATION, 0]
        for validate_only in (False, True):
            row = CreatePartitionsTopic(name="a", count=5)
            more = CreatePartitionsRequest(topics=[row], validate_only=validate_only)
            assert client.ask(ApiKey.CREATE_PARTITIONS, more, 3).results[0].error_code == ErrorCode.POLICY_VIOLATION
        wide = CreatableTopic(name="wide", num_partitions=6, replication_factor=1)
        answer = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[wide], validate_only=True), 7)
        assert answer.topics[0].error_code == ErrorCode.POLICY_VIOLATION
        more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=4, assignments=None)])
        assert client.ask(ApiKey.CREATE_PARTITIONS, more, 3).results[0].error_code == 0
