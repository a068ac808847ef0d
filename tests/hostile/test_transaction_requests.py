"""Requests of transactions that would take long: they are bounded, or served in slices with others in between."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.broker.broker_peer import authenticate
from tests.broker.group_client import find_coordinator
from tests.broker.transactional_client import (
    FEW_PARTITIONS,
    Transactional,
    added_codes,
    describe,
    find_transaction_coordinator,
    state_of,
)
from tests.broker.wire_client import Disconnected, WireClient, call, log_of, make_topic
from tests.hostile.loop_meter import Gate, LoopMeter
from tests.timeouts import until

from penstock.broker.broker import Broker
from penstock.coordination.transactions.transaction import Transaction, TransactionRecord
from penstock.coordination.transactions.transaction_shard import TransactionShard
from penstock.log.producer_state import ProducerEntry
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.wire.schemas.api_versions import ApiVersionsRequest
from penstock.wire.schemas.describe_producers import DescribeProducersRequest, TopicRequest
from penstock.wire.schemas.describe_transactions import DescribeTransactionsRequest
from penstock.wire.schemas.list_transactions import ListTransactionsRequest
from penstock.wire.schemas.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from penstock.wire.schemas.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

WIDE = 600


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return FEW_PARTITIONS


@pytest.fixture
def client(client: WireClient, broker: Broker) -> WireClient:
    """A connection of a broker: some of these requests are rejected from clients."""
    return authenticate(client, broker)


@pytest.fixture(scope="module")
def wide_topic(embedded: EmbeddedBroker) -> str:
    return make_topic(embedded.broker, partitions=WIDE)


@pytest.fixture
def producer(client: WireClient) -> Transactional:
    return Transactional(client, timeout_ms=600_000).start()


def is_answered(embedded: EmbeddedBroker) -> None:
    with WireClient(embedded.port) as other:
        assert other.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0).error_code == ErrorCode.NONE


def slices(broker: Broker) -> int:
    return call(broker, lambda: broker.services.long_requests.slices)


def add_request(producer: Transactional, topic: str, partitions: int) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(range(partitions)))],
    )


def test_ten_thousand_partitions_of_which_most_do_not_exist_join_no_transaction(
    client: WireClient, broker: Broker, wide_topic: str, producer: Transactional
) -> None:
    with LoopMeter(broker, "AddPartitionsToTxn of 9,900 partitions"):
        answer = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, add_request(producer, wide_topic, 9_900), 3)
    codes = added_codes(answer)
    assert (len(codes), codes[wide_topic, 0], codes[wide_topic, WIDE]) == (
        9_900,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
    assert state_of(client, producer.transactional_id) == "Empty"


def test_more_partitions_than_that_are_rejected_before_they_are_built(
    client: WireClient, broker: Broker, producer: Transactional
) -> None:
    with LoopMeter(broker, "AddPartitionsToTxn of 1,000,000 partitions"), pytest.raises(Disconnected):
        client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, add_request(producer, "any", 1_000_000), 3)


def test_a_transaction_over_very_many_partitions_ends_in_slices(
    client: WireClient, broker: Broker, wide_topic: str, producer: Transactional
) -> None:
    answer = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, add_request(producer, wide_topic, WIDE), 3)
    assert set(added_codes(answer).values()) == {0}
    with LoopMeter(broker, f"EndTxn of {WIDE} partitions") as meter:
        assert producer.abort() == 0
        until(lambda: state_of(client, producer.transactional_id) == "CompleteAbort", "all markers are written")
    assert {log_of(broker, wide_topic, index).last_stable_offset for index in range(WIDE)} == {1}
    assert meter.turns > WIDE // 50, "not all markers in one turn"


def test_brokers_that_add_to_very_many_transactions_are_served_in_parts(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient, wide_topic: str
) -> None:
    producers = [Transactional(client, timeout_ms=600_000).start() for _ in range(120)]
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                producer_epoch=each.epoch,
                topics=[AddPartitionsToTxnTopic(name=wide_topic, partitions=[0])],
            )
            for each in producers
        ]
    )
    with LoopMeter(broker, "AddPartitionsToTxn of 120 transactions"):
        gate = Gate(broker)
        client.send(ApiKey.ADD_PARTITIONS_TO_TXN, request, 5)
        gate.reached()
        is_answered(embedded)
        gate.open()
        _, answer = client.receive(ApiKey.ADD_PARTITIONS_TO_TXN, 5)
    assert [each.transactional_id for each in answer.results_by_transaction] == [
        each.transactional_id for each in producers
    ]
    assert set(added_codes(answer).values()) == {0}
    assert {each.abort() for each in producers} == {0}


def test_markers_for_very_many_partitions_are_written_in_parts(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient, wide_topic: str
) -> None:
    request = WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=0,
                topics=[WritableTxnMarkerTopic(name=wide_topic, partition_indexes=list(range(1_000)))],
            )
            for producer_id in (900_001, 900_002)
        ]
    )
    with LoopMeter(broker, "WriteTxnMarkers of 2,000 partitions"):
        gate = Gate(broker)
        client.send(ApiKey.WRITE_TXN_MARKERS, request, 2)
        gate.reached()
        is_answered(embedded)
        gate.open()
        _, answer = client.receive(ApiKey.WRITE_TXN_MARKERS, 2)
    assert [each.producer_id for each in answer.markers] == [900_001, 900_002]
    for marker in answer.markers:
        (topic,) = marker.topics
        assert [each.partition_index for each in topic.partitions] == list(range(1_000))
        assert [each.error_code for each in topic.partitions] == [0] * WIDE + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (
            1_000 - WIDE
        )


def test_offsets_of_very_many_partitions_join_a_transaction(
    broker: Broker, client: WireClient, wide_topic: str, producer: Transactional
) -> None:
    find_coordinator(client, "wide")
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id="wide",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=wide_topic,
                partitions=[TxnOffsetCommitRequestPartition(partition_index=index) for index in range(9_000)],
            )
        ],
    )
    with LoopMeter(broker, "TxnOffsetCommit of 9,000 partitions"):
        answer = client.ask(ApiKey.TXN_OFFSET_COMMIT, request, 5)
    codes = {each.partition_index: each.error_code for topic in answer.topics for each in topic.partitions}
    assert len(codes) == 9_000
    assert (codes[WIDE - 1], codes[WIDE]) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert producer.commit() == 0


# --- descriptions


@pytest.fixture(scope="module")
def many_ids(embedded: EmbeddedBroker) -> list[str]:
    """Ids in one shard, one of them in a very wide transaction."""
    with WireClient(embedded.port) as client:
        find_transaction_coordinator(client, "any")

    def load() -> list[str]:
        (shard, *_) = embedded.broker.services.transactions.shards
        assert isinstance(shard, TransactionShard)
        names = [f"{'a' * 200}-{number}" for number in range(5_000)]
        for number, name in enumerate(names):
            shard._apply(TransactionRecord(name, Transaction(producer_id=10_000_000 + number, timeout_ms=1_000)))
        return names

    return call(embedded.broker, load)


@pytest.mark.parametrize(
    "pattern",
    ["(a*)*b", "(a|a)*b", "a?" * 100 + "a" * 100 + "b", "(a|a)" * 100 + "b", ".*.*.*.*.*x", "(.*a){20}"],
)
def test_patterns_that_would_backtrack_are_matched_in_slices(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient, many_ids: list[str], pattern: str
) -> None:
    """With five thousand ids of two hundred characters, Python's own would not end."""
    long = Transactional(client, "a" * 30_000).start()
    request = ListTransactionsRequest(transactional_id_pattern=pattern, producer_id_filters=[long.producer_id])
    before = slices(broker)
    with LoopMeter(broker, f"ListTransactions of {pattern[:20]}"):
        answer = client.ask(ApiKey.LIST_TRANSACTIONS, request, 2)
    assert answer.error_code == 0
    assert [each.transactional_id[:3] for each in answer.transaction_states] == (
        ["aaa"] if pattern == "(.*a){20}" else []
    )
    assert slices(broker) > before


def test_all_ids_are_listed_and_matched_while_others_are_served(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient, many_ids: list[str]
) -> None:
    with LoopMeter(broker, "ListTransactions of 5,000 ids"):
        gate = Gate(broker)
        client.send(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest(transactional_id_pattern="a+-.*9"), 2)
        gate.reached()
        is_answered(embedded)
        gate.open()
        _, answer = client.receive(ApiKey.LIST_TRANSACTIONS, 2)
    found = sorted(each.transactional_id for each in answer.transaction_states)
    assert found == sorted(name for name in many_ids if name.endswith("9"))


def test_a_wide_transaction_is_described_many_times_in_slices(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient, wide_topic: str, producer: Transactional
) -> None:
    answer = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, add_request(producer, wide_topic, WIDE), 3)
    assert set(added_codes(answer).values()) == {0}
    request = DescribeTransactionsRequest(transactional_ids=[producer.transactional_id] * 500)
    with LoopMeter(broker, "DescribeTransactions, 500 times 600 partitions"):
        gate = Gate(broker)
        client.send(ApiKey.DESCRIBE_TRANSACTIONS, request, 0)
        gate.reached()
        is_answered(embedded)
        gate.open()
        _, answer = client.receive(ApiKey.DESCRIBE_TRANSACTIONS, 0)
    assert [len(each.topics[0].partitions) for each in answer.transaction_states] == [WIDE] * 500
    assert producer.abort() == 0
    assert describe(client, producer.transactional_id).error_code == 0


def test_the_producers_of_a_busy_partition_are_described_in_slices(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient
) -> None:
    topic = make_topic(broker)
    producers = log_of(broker, topic).producers

    def fill() -> None:
        for producer_id in range(20_000):
            producers._put(ProducerEntry(producer_id, 0, last_timestamp_ms=1, last_active_ms=1))

    call(broker, fill)
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0, 0, 0])])
    with LoopMeter(broker, "DescribeProducers of three times 20,000"):
        gate = Gate(broker)
        client.send(ApiKey.DESCRIBE_PRODUCERS, request, 0)
        gate.reached()
        is_answered(embedded)
        gate.open()
        _, answer = client.receive(ApiKey.DESCRIBE_PRODUCERS, 0)
    assert [len(each.active_producers) for each in answer.topics[0].partitions] == [20_000] * 3
