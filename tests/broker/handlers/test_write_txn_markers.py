"""WriteTxnMarkers over a socket: who may end a transaction in a partition, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.broker.broker_peer import authenticate
from tests.broker.transactional_client import FEW_PARTITIONS, Transactional, committed_values
from tests.broker.wire_client import WireClient, log_of, make_topic

from penstock.broker.broker import Broker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return FEW_PARTITIONS


@pytest.fixture
def client(client: WireClient, broker: Broker) -> WireClient:
    """A connection of a broker: some of these requests are rejected from clients."""
    return authenticate(client, broker)


def marker(producer: Transactional, *topics: str, commit: bool = True, **more: Any) -> WritableTxnMarker:
    values = {"producer_epoch": producer.epoch, "coordinator_epoch": 5, **more}
    return WritableTxnMarker(
        producer_id=producer.producer_id,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0]) for topic in topics],
        **values,
    )


def write(client: WireClient, *markers: WritableTxnMarker, version: int = 1) -> list[list[int]]:
    answer = client.ask(ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest(markers=list(markers)), version)
    return [[each.error_code for topic in result.topics for each in topic.partitions] for result in answer.markers]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_ends_the_transaction_of_a_partition(
    client: WireClient, broker: Broker, version: int, commit: bool
) -> None:
    topic = make_topic(broker)
    producer = Transactional(client).start()
    assert producer.write(topic, b"a") == 0
    assert write(client, marker(producer, topic, commit=commit), version=version) == [[0]]
    assert log_of(broker, topic).last_stable_offset == 2
    assert committed_values(client, topic) == ([b"a"] if commit else [])


def test_each_partition_of_each_marker_is_answered_by_itself(client: WireClient, broker: Broker) -> None:
    topic, other = make_topic(broker), make_topic(broker)
    first, second = Transactional(client).start(), Transactional(client).start()
    assert [first.write(topic, b"a"), second.write(other, b"b")] == [0, 0]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answers = write(client, marker(first, topic, "nowhere", other), marker(second, other, commit=False))
    assert answers == [[0, unknown, 0], [0]]
    assert (committed_values(client, topic), committed_values(client, other)) == ([b"a"], [])


def test_a_marker_of_an_old_epoch_or_an_old_coordinator_is_rejected(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker)
    producer = Transactional(client, version=1).start()
    assert [producer.add((topic, 0)), producer.write(topic, b"a")] == [0, 0]
    old = marker(producer, topic, producer_epoch=producer.epoch - 1)
    assert write(client, old) == [[ErrorCode.INVALID_PRODUCER_EPOCH]]
    assert write(client, marker(producer, topic, coordinator_epoch=5)) == [[0]]
    assert producer.write(topic, b"b") == 0
    late = marker(producer, topic, coordinator_epoch=4)
    assert write(client, late) == [[ErrorCode.TRANSACTION_COORDINATOR_FENCED]]
    assert committed_values(client, topic) == [b"a"]


def test_a_marker_of_version_2_must_have_the_next_epoch_unless_it_is_a_repetition(
    client: WireClient, broker: Broker
) -> None:
    """KIP-1228 and KAFKA-19999."""
    topic = make_topic(broker)
    producer = Transactional(client).start()
    assert producer.write(topic, b"a") == 0
    same_epoch = marker(producer, topic, transaction_version=2)
    assert write(client, same_epoch, version=2) == [[ErrorCode.INVALID_PRODUCER_EPOCH]]
    ending = marker(producer, topic, producer_epoch=producer.epoch + 1, transaction_version=2)
    assert write(client, ending, version=2) == [[0]]
    assert write(client, ending, version=2) == [[0]], "a repetition succeeds, or it would be sent forever"
    assert committed_values(client, topic) == [b"a"]


def test_a_batch_that_comes_after_the_marker_opens_no_transaction(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker)
    producer = Transactional(client).start()
    assert producer.write(topic, b"a") == 0
    ending = marker(producer, topic, producer_epoch=producer.epoch + 1, transaction_version=2)
    assert write(client, ending, version=2) == [[0]]
    assert producer.write(topic, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log_of(broker, topic).last_stable_offset == 2


def test_markers_without_partitions_are_answered(client: WireClient) -> None:
    unknown = Transactional(client, "unknown")
    unknown.take(5, 0)
    assert write(client, marker(unknown), marker(unknown)) == [[], []]
    assert write(client) == []
