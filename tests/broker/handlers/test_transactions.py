"""The requests of transactions over a socket: every version, wrong states, fenced producers, and descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.broker.broker_peer import authenticate
from tests.broker.transactional_client import (
    FEW_PARTITIONS,
    TRANSACTION,
    Transactional,
    added_codes,
    committed_values,
    describe,
    find_transaction_coordinator,
    init,
    state_of,
    uncommitted_values,
    unique_id,
)
from tests.broker.wire_client import (
    WireClient,
    batch_of,
    call,
    delete_topic,
    log_of,
    make_topic,
    produce_request,
)
from tests.timeouts import until

from penstock.broker.broker import Broker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.wire.schemas.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.wire.schemas.describe_producers import DescribeProducersRequest, TopicRequest
from penstock.wire.schemas.describe_transactions import DescribeTransactionsRequest
from penstock.wire.schemas.end_txn import EndTxnRequest
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest
from penstock.wire.schemas.init_producer_id import InitProducerIdRequest
from penstock.wire.schemas.list_transactions import ListTransactionsRequest

OLD_FENCED = ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return {**FEW_PARTITIONS, "num.partitions": "1"}


@pytest.fixture
def client(client: WireClient, broker: Broker) -> WireClient:
    """A connection of a broker: some of these requests are rejected from clients."""
    return authenticate(client, broker)


# --- every version


@pytest.mark.parametrize("version", range(1, 6))
def test_the_coordinator_of_a_transactional_id_is_found(client: WireClient, broker: Broker, version: int) -> None:
    name = unique_id()
    find_transaction_coordinator(client, name)
    keys: dict[str, Any] = {"key": name} if version < 4 else {"coordinator_keys": [name, ""]}
    answer = client.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key_type=TRANSACTION, **keys), version)
    if version < 4:
        assert (answer.error_code, answer.node_id, answer.port) == (
            0,
            broker.services.node_id,
            broker.advertised[0].port,
        )
    else:
        found, empty = answer.coordinators
        assert (found.error_code, found.key, found.node_id) == (0, name, broker.services.node_id)
        assert empty.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("commit", [True, False])
def test_partitions_of_clients_join_and_the_transaction_ends(
    client: WireClient, broker: Broker, version: int, commit: bool
) -> None:
    topic = make_topic(broker, partitions=2)
    producer = Transactional(client, version=1).start()
    assert producer.add((topic, 0), (topic, 1), version=version) == 0
    assert producer.write(topic, b"a") == 0
    assert producer.write(topic, b"b", partition=1) == 0
    assert (committed_values(client, topic), uncommitted_values(client, topic)) == ([], [b"a"])
    assert producer.end(commit=commit) == 0
    until(lambda: log_of(broker, topic).last_stable_offset == 2, "the marker is there")
    until(lambda: log_of(broker, topic, 1).last_stable_offset == 2, "so is the other one")
    assert committed_values(client, topic) == ([b"a"] if commit else [])
    assert committed_values(client, topic, 1) == ([b"b"] if commit else [])


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_of_produce_writes_into_a_transaction(client: WireClient, broker: Broker, version: int) -> None:
    topic = make_topic(broker)
    producer = Transactional(client, version=2 if version >= 12 else 1).start()
    if version < 12:
        assert producer.add((topic, 0)) == 0
    assert [producer.write(topic, b"a", version=version), producer.write(topic, b"b", version=version)] == [0, 0]
    assert producer.commit() == 0
    until(lambda: committed_values(client, topic) == [b"a", b"b"], "both are committed")


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_end_txn_commits(client: WireClient, broker: Broker, version: int) -> None:
    topic = make_topic(broker)
    producer = Transactional(client).start()
    producer_id, epoch = producer.producer_id, producer.epoch
    assert producer.write(topic, b"a") == 0
    answer = client.ask(ApiKey.END_TXN, producer.end_request(commit=True), version)
    assert answer.error_code == 0
    # From version 5 on each transaction has its own epoch (KIP-890).
    assert (answer.producer_id, answer.producer_epoch) == ((producer_id, epoch + 1) if version >= 5 else (-1, -1))
    until(lambda: committed_values(client, topic) == [b"a"], "it is committed")
    assert describe(client, producer.transactional_id).producer_epoch == epoch + (version >= 5)


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_add_partitions_and_verify_them(client: WireClient, broker: Broker, version: int) -> None:
    topic = make_topic(broker, partitions=2)
    first, second = Transactional(client).start(), Transactional(client).start()

    def ask(*, verify_only: bool) -> list[list[int]]:
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=each.transactional_id,
                    producer_id=each.producer_id,
                    producer_epoch=each.epoch,
                    verify_only=verify_only,
                    topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0, 1])],
                )
                for each in (first, second)
            ]
        )
        answer = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, request, version)
        assert [each.transactional_id for each in answer.results_by_transaction] == [
            first.transactional_id,
            second.transactional_id,
        ]
        return [
            [each.partition_error_code for each in result.topic_results[0].results_by_partition]
            for result in answer.results_by_transaction
        ]

    assert first.add((topic, 1)) == 0
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    assert ask(verify_only=True) == [[abortable, 0], [abortable, abortable]]
    assert ask(verify_only=False) == [[0, 0], [0, 0]]
    assert ask(verify_only=True) == [[0, 0], [0, 0]]
    second.epoch -= 1
    assert ask(verify_only=True) == [[0, 0], [ErrorCode.PRODUCER_FENCED, ErrorCode.PRODUCER_FENCED]]


# --- wrong input


@pytest.mark.parametrize("version", range(4))
def test_all_partitions_join_or_none(client: WireClient, broker: Broker, version: int) -> None:
    topic = make_topic(broker)
    producer = Transactional(client, version=1).start()
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=[0, 1]),
            AddPartitionsToTxnTopic(name="nowhere", partitions=[0]),
        ],
    )
    codes = added_codes(client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, request, version))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {(topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED, (topic, 1): unknown, ("nowhere", 0): unknown}
    assert state_of(client, producer.transactional_id) == "Empty"


def test_a_batch_outside_a_transaction_is_rejected_as_its_client_understands(
    client: WireClient, broker: Broker
) -> None:
    topic = make_topic(broker)
    producer = Transactional(client, version=1).start()
    assert producer.write(topic, b"stray", version=11) == ErrorCode.TRANSACTION_ABORTABLE
    assert producer.write(topic, b"stray", version=10) == ErrorCode.INVALID_TXN_STATE
    assert producer.write(topic, b"stray", version=3) == ErrorCode.INVALID_TXN_STATE
    assert log_of(broker, topic).log_end_offset == 0


def test_a_transactional_batch_needs_a_request_with_the_transactional_id(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker)
    producer = Transactional(client).start()
    sent = client.produce(topic, producer.batch(topic, b"stray"), version=9)
    assert sent.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert log_of(broker, topic).log_end_offset == 0


def test_a_batch_under_another_producers_transactional_id_is_rejected(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker)
    mine, yours = Transactional(client).start(), Transactional(client).start()
    mine.transactional_id = yours.transactional_id
    assert mine.write(topic, b"stray") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    mine.transactional_id = unique_id()
    assert mine.write(topic, b"stray") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert log_of(broker, topic).log_end_offset == 0


def test_a_batch_that_is_not_transactional_is_not_written_into_an_open_transaction(
    client: WireClient, broker: Broker
) -> None:
    topic = make_topic(broker)
    producer = Transactional(client).start()
    assert producer.write(topic, b"mine") == 0
    plain = batch_of(b"stray", producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=1)
    assert client.produce(topic, plain).error_code == ErrorCode.INVALID_TXN_STATE
    assert producer.commit() == 0


def test_a_request_writes_to_several_partitions_and_one_of_them_does_not_exist(
    client: WireClient, broker: Broker
) -> None:
    topic = make_topic(broker)
    producer = Transactional(client).start()
    batches = {(topic, 0): producer.batch(topic, b"a"), ("nowhere", 0): producer.batch("nowhere", b"b")}
    request = produce_request(batches)
    request.transactional_id = producer.transactional_id
    answer = client.ask(ApiKey.PRODUCE, request, 12)
    codes = {each.name: each.partition_responses[0].error_code for each in answer.responses}
    assert codes == {topic: 0, "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert producer.commit() == 0


@pytest.mark.parametrize("acks", [0, 1])
def test_transactional_batches_are_verified_whatever_acks_they_want(
    client: WireClient, other: WireClient, broker: Broker, acks: int
) -> None:
    topic = make_topic(broker)
    producer = Transactional(client).start()
    if acks:
        assert producer.write(topic, b"a", acks=1) == 0
    else:
        request = produce_request({(topic, 0): producer.batch(topic, b"a")}, acks=0)
        request.transactional_id = producer.transactional_id
        client.send(ApiKey.PRODUCE, request, 12)
    assert producer.commit() == 0, "what is sent behind it finds the partition in the transaction"
    until(lambda: committed_values(client, topic) == [b"a"], "it is committed")
    stray = Transactional(other, version=1).start()
    if not acks:
        request = produce_request({(topic, 0): stray.batch(topic, b"stray")}, acks=0)
        request.transactional_id = stray.transactional_id
        other.send(ApiKey.PRODUCE, request, 11)
        assert other.is_ended(), "without a response, the end of the connection shows the error"


@pytest.mark.parametrize(("version", "expected"), [(0, OLD_FENCED), (1, OLD_FENCED), (2, ErrorCode.PRODUCER_FENCED)])
def test_a_fenced_producer_gets_the_code_that_its_version_knows(
    client: WireClient, broker: Broker, version: int, expected: int
) -> None:
    topic = make_topic(broker)
    old = Transactional(client, version=1).start()
    assert old.add((topic, 0)) == 0
    new = Transactional(client, old.transactional_id, version=1).start()
    assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 2), "the open transaction ended in an epoch"
    assert old.add((topic, 0), version=version) == expected
    assert old.end(commit=True, version=version) == expected
    assert old.add_offsets("group", version=version) == expected
    assert old.write(topic, b"zombie") == OLD_FENCED
    assert new.add((topic, 0)) == 0
    assert old.write(topic, b"zombie") == OLD_FENCED
    assert [new.write(topic, b"mine"), new.commit()] == [0, 0]
    until(lambda: committed_values(client, topic) == [b"mine"], "only the new one is heard")


def test_a_new_producer_aborts_the_transaction_of_the_old_one(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker)
    old = Transactional(client).start()
    assert old.write(topic, b"unfinished") == 0
    Transactional(client, old.transactional_id).start()
    assert state_of(client, old.transactional_id) == "Empty", "the new one starts when the old one is over"
    assert log_of(broker, topic).last_stable_offset == 2
    assert committed_values(client, topic) == []
    assert old.write(topic, b"zombie") == OLD_FENCED
    assert old.commit() == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("version", [1, 2])
def test_what_ended_cannot_be_ended_otherwise(client: WireClient, broker: Broker, version: int) -> None:
    topic = make_topic(broker)
    producer = Transactional(client, version=version).start()
    if version == 1:
        assert producer.commit() == ErrorCode.INVALID_TXN_STATE, "nothing is open"
        assert producer.abort() == ErrorCode.INVALID_TXN_STATE
        assert producer.add((topic, 0)) == 0
    assert producer.write(topic, b"a") == 0
    first = producer.end_request(commit=True)
    assert producer.commit() == 0
    until(lambda: state_of(client, producer.transactional_id) == "CompleteCommit", "it is complete")
    wire = 4 if version == 1 else 5
    again = client.ask(ApiKey.END_TXN, first, wire)
    assert again.error_code == 0, "a repeated request succeeds"
    if version == 2:
        assert (again.producer_id, again.producer_epoch) == (producer.producer_id, producer.epoch)
    first.committed = False
    assert client.ask(ApiKey.END_TXN, first, wire).error_code == ErrorCode.INVALID_TXN_STATE
    assert producer.commit() == (0 if version == 1 else ErrorCode.INVALID_TXN_STATE)


def test_a_delayed_end_does_not_end_the_next_transaction_of_version_2(client: WireClient, broker: Broker) -> None:
    """KAFKA-17754."""
    topic = make_topic(broker)
    producer = Transactional(client).start()
    assert producer.write(topic, b"first") == 0
    late = producer.end_request(commit=True)
    assert producer.commit() == 0
    assert producer.write(topic, b"second") == 0
    assert client.ask(ApiKey.END_TXN, late, 5).error_code == ErrorCode.PRODUCER_FENCED
    assert producer.abort() == 0
    until(lambda: log_of(broker, topic).last_stable_offset == 4, "both have ended")
    assert committed_values(client, topic) == [b"first"]


def test_a_transaction_of_version_2_without_partitions_can_be_aborted(client: WireClient) -> None:
    producer = Transactional(client).start()
    epoch = producer.epoch
    assert [producer.abort(), producer.abort()] == [0, 0]
    assert producer.epoch == epoch + 2
    assert producer.commit() == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("transactional_id", ["", "unknown to all"])
def test_requests_about_an_unknown_id_say_so(client: WireClient, broker: Broker, transactional_id: str) -> None:
    topic = make_topic(broker)
    find_transaction_coordinator(client, "any")
    unknown = Transactional(client, "any", version=1)
    unknown.transactional_id, unknown.producer_id, unknown.epoch = transactional_id, 77, 0
    expected = ErrorCode.INVALID_PRODUCER_ID_MAPPING if transactional_id else ErrorCode.INVALID_REQUEST
    assert unknown.add((topic, 0)) == expected
    assert unknown.commit() == expected
    assert unknown.add_offsets("group") == expected
    not_found = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else ErrorCode.INVALID_REQUEST
    assert describe(client, transactional_id).error_code == not_found


@pytest.mark.parametrize(("version", "expected"), [(1, ErrorCode.PRODUCER_FENCED), (2, ErrorCode.INVALID_TXN_STATE)])
def test_a_transaction_over_its_timeout_is_aborted_and_its_producer_fenced(
    client: WireClient, broker: Broker, version: int, expected: int
) -> None:
    topic = make_topic(broker)
    slow = Transactional(client, version=version, timeout_ms=100).start()
    if version == 1:
        assert slow.add((topic, 0)) == 0
    assert slow.write(topic, b"late") == 0
    until(lambda: state_of(client, slow.transactional_id) == "CompleteAbort", "the coordinator aborts it")
    assert log_of(broker, topic).last_stable_offset == 2
    assert committed_values(client, topic) == []
    assert slow.write(topic, b"later") == OLD_FENCED
    assert slow.commit() == expected
    # Naming its epoch (KIP-360) does not help: it would not notice that its transaction was aborted.
    again = InitProducerIdRequest(
        transactional_id=slow.transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=slow.producer_id,
        producer_epoch=slow.epoch,
    )
    assert init(client, again).error_code == ErrorCode.PRODUCER_FENCED


def test_a_topic_that_is_deleted_during_a_transaction_needs_no_marker(client: WireClient, broker: Broker) -> None:
    kept, gone = make_topic(broker), make_topic(broker)
    producer = Transactional(client).start()
    assert [producer.write(gone, b"a"), producer.write(kept, b"b")] == [0, 0]
    delete_topic(broker, gone)
    assert producer.commit() == 0
    until(lambda: state_of(client, producer.transactional_id) == "CompleteCommit", "it ends all the same")
    assert committed_values(client, kept) == [b"b"]


def test_offsets_need_a_group(client: WireClient) -> None:
    producer = Transactional(client).start()
    request = AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id, producer_id=producer.producer_id, producer_epoch=producer.epoch
    )
    assert client.ask(ApiKey.ADD_OFFSETS_TO_TXN, request, 4).error_code == ErrorCode.INVALID_GROUP_ID


# --- descriptions


def test_a_transaction_is_described_in_each_of_its_states(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker, partitions=3)
    producer = Transactional(client, timeout_ms=12_345).start()
    empty = describe(client, producer.transactional_id)
    assert (empty.transaction_state, empty.transaction_timeout_ms, empty.transaction_start_time_ms) == (
        "Empty",
        12_345,
        -1,
    )
    assert [producer.write(topic, b"a", partition=2), producer.write(topic, b"b")] == [0, 0]
    open_one = describe(client, producer.transactional_id)
    assert (open_one.transaction_state, open_one.producer_id, open_one.producer_epoch) == (
        "Ongoing",
        producer.producer_id,
        producer.epoch,
    )
    assert open_one.transaction_start_time_ms > 0
    assert [(each.topic, each.partitions) for each in open_one.topics] == [(topic, [0, 2])]
    assert producer.abort() == 0
    until(lambda: state_of(client, producer.transactional_id) == "CompleteAbort", "it is complete")
    assert describe(client, producer.transactional_id).topics == []


def test_transactions_are_listed_by_state_producer_duration_and_pattern(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker)
    mark = unique_id()
    idle = Transactional(client, f"{mark}.idle").start()
    busy = Transactional(client, f"{mark}-busy").start()
    assert busy.write(topic, b"a") == 0

    def listed(version: int, **filters: Any) -> dict[str, str]:
        answer = client.ask(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest(**filters), version)
        assert answer.error_code == 0
        return {
            each.transactional_id.removeprefix(mark): each.transaction_state
            for each in answer.transaction_states
            if each.transactional_id.startswith(mark)
        }

    both = {".idle": "Empty", "-busy": "Ongoing"}
    for version in range(3):
        assert listed(version) == both
        assert listed(version, state_filters=["Ongoing"]) == {"-busy": "Ongoing"}
        assert listed(version, producer_id_filters=[idle.producer_id]) == {".idle": "Empty"}
        assert listed(version, state_filters=["Ongoing"], producer_id_filters=[idle.producer_id]) == {}
    until(lambda: listed(1, duration_filter=1) == {"-busy": "Ongoing"}, "it is open for more than a millisecond")
    assert listed(1, duration_filter=3_600_000) == {}
    patterns = {
        f"{mark}.*": both,
        f"{mark}.idle": {".idle": "Empty"},
        f"{mark}[.]idle": {".idle": "Empty"},
        f"{mark}(-busy|[.]idle)": both,
        f"{mark}": {},
        ".*idle": {".idle": "Empty"},
        "": both,
    }
    assert {pattern: listed(2, transactional_id_pattern=pattern) for pattern in patterns} == patterns


def test_a_state_that_does_not_exist_is_named_and_a_bad_pattern_rejected(client: WireClient) -> None:
    request = ListTransactionsRequest(state_filters=["Ongoing", "Sleeping"])
    answer = client.ask(ApiKey.LIST_TRANSACTIONS, request, 0)
    assert (answer.error_code, answer.unknown_state_filters) == (0, ["Sleeping"])
    only_unknown = client.ask(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest(state_filters=["Sleeping"]), 0)
    assert only_unknown.transaction_states == []
    bad = client.ask(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest(transactional_id_pattern="(a"), 2)
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_the_producers_of_a_partition_are_described(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker)
    open_one, closed = Transactional(client).start(), Transactional(client).start()
    closed.transact(topic, b"a")
    until(lambda: log_of(broker, topic).last_stable_offset == 2, "the marker is there")
    assert open_one.write(topic, b"b", b"c") == 0
    request = DescribeProducersRequest(
        topics=[
            TopicRequest(name=topic, partition_indexes=[0, 1]),
            TopicRequest(name="nowhere", partition_indexes=[0]),
        ]
    )
    here, nowhere = client.ask(ApiKey.DESCRIBE_PRODUCERS, request, 0).topics
    found = {each.producer_id: each for each in here.partitions[0].active_producers}
    mine = found[open_one.producer_id]
    assert (mine.producer_epoch, mine.last_sequence, mine.current_txn_start_offset) == (open_one.epoch, 1, 2)
    other = found[closed.producer_id]
    assert (other.producer_epoch, other.current_txn_start_offset) == (closed.epoch, -1)
    assert other.coordinator_epoch >= 0
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (here.partitions[1].error_code, nowhere.partitions[0].error_code) == (unknown, unknown)
    assert open_one.abort() == 0


def test_many_ids_are_described_in_one_request(client: WireClient) -> None:
    producers = [Transactional(client).start() for _ in range(3)]
    names = [each.transactional_id for each in producers]
    answer = client.ask(
        ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest(transactional_ids=[*names, "unknown"]), 0
    )
    assert [(each.transactional_id, each.error_code) for each in answer.transaction_states] == [
        *((name, 0) for name in names),
        ("unknown", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
    ]


# --- requests that meet


def test_a_producer_continues_at_once_after_a_commit(client: WireClient, broker: Broker) -> None:
    """The markers of the last transaction are still on their way: requests of the next one wait, and are not sent
    back."""
    topic = make_topic(broker, partitions=5)
    for version in (1, 2):
        producer = Transactional(client, version=version).start()
        for number in range(10):
            places = [(topic, index) for index in range(5)]
            codes = [producer.add(*places)] if version == 1 else []
            codes += [producer.write(topic, b"%d" % number, partition=index) for _, index in places]
            codes.append(producer.end(commit=number % 2 == 0))
            assert set(codes) == {0}
    until(lambda: len(committed_values(client, topic, 4)) == 10, "every second one is committed")
    assert committed_values(client, topic, 4) == [b"0", b"2", b"4", b"6", b"8"] * 2


def test_requests_sent_one_behind_the_other_are_served_in_order(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker)
    producer = Transactional(client).start()
    written = produce_request({(topic, 0): producer.batch(topic, b"a")})
    written.transactional_id = producer.transactional_id
    client.send(ApiKey.PRODUCE, written, 12)
    client.send(ApiKey.END_TXN, producer.end_request(commit=True), 5)
    _, first = client.receive(ApiKey.PRODUCE, 12)
    _, second = client.receive(ApiKey.END_TXN, 5)
    assert (first.responses[0].partition_responses[0].error_code, second.error_code) == (0, 0)
    until(lambda: committed_values(client, topic) == [b"a"], "it is committed")


def test_two_producers_with_one_id_fence_each_other_until_one_is_left(
    client: WireClient, other: WireClient, broker: Broker
) -> None:
    topic = make_topic(broker)
    name = unique_id()
    producers = [Transactional(each, name) for each in (client, other)]
    for number in range(6):
        current, rival = producers[number % 2].start(), producers[(number + 1) % 2]
        assert current.write(topic, b"%d" % number) == 0
        if number:
            assert rival.commit() == ErrorCode.PRODUCER_FENCED
    assert producers[1].commit() == 0
    until(lambda: committed_values(client, topic) == [b"5"], "only the last one is committed")


def test_an_end_txn_that_is_sent_on_two_connections_counts_once(
    client: WireClient, other: WireClient, broker: Broker
) -> None:
    topic = make_topic(broker)
    producer = Transactional(client).start()
    assert producer.write(topic, b"a") == 0
    request: EndTxnRequest = producer.end_request(commit=True)
    for connection in (client, other):
        connection.send(ApiKey.END_TXN, request, 5)
    answers = [connection.receive(ApiKey.END_TXN, 5)[1] for connection in (client, other)]
    assert {(each.error_code, each.producer_id, each.producer_epoch) for each in answers} == {
        (0, producer.producer_id, producer.epoch + 1)
    }
    log = log_of(broker, topic)
    until(lambda: log.last_stable_offset == 2, "there is one marker")
    assert call(broker, lambda: log.log_end_offset) == 2
