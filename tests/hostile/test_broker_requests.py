"""What a client may not ask of a broker: requests of replicas and of coordinators, changes of internal topics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.broker.broker_peer import authenticate
from tests.broker.transactional_client import FEW_PARTITIONS, Transactional, added_codes, committed_values
from tests.broker.wire_client import WireClient, batch_of, log_of, make_topic, on_loop

from penstock.broker.broker import METADATA_FOLDER, Broker
from penstock.wire.protocol import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, ApiKey, ErrorCode
from penstock.wire.schemas.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTransaction
from penstock.wire.schemas.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from penstock.wire.schemas.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.wire.schemas.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.wire.schemas.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest

FAILED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
INVALID = ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return FEW_PARTITIONS


def end(client: WireClient, producer: Transactional, topic: str, *, commit: bool, **more: Any) -> int:
    values: dict[str, Any] = {"producer_epoch": producer.epoch, "coordinator_epoch": 0, **more}
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
        **values,
    )
    answer = client.ask(ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest(markers=[marker]), 1)
    code: int = answer.markers[0].topics[0].partitions[0].error_code
    return code


def test_a_client_commits_no_transaction_with_a_marker(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker)
    producer = Transactional(client).start()
    assert producer.write(topic, b"a") == 0
    assert end(client, producer, topic, commit=True) == FAILED
    assert committed_values(client, topic) == []
    assert log_of(broker, topic).last_stable_offset == 0


def test_a_client_aborts_as_tools_do_but_with_no_epoch_that_the_partition_does_not_know(
    client: WireClient, other: WireClient, broker: Broker
) -> None:
    topic = make_topic(broker)
    producer = Transactional(client).start()
    assert producer.write(topic, b"a") == 0
    assert end(client, producer, topic, commit=False, producer_epoch=32_000) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(client, producer, topic, commit=False, coordinator_epoch=2**31 - 1) == 0
    entry = log_of(broker, topic).producers.get(producer.producer_id)
    assert entry is not None
    assert (entry.coordinator_epoch, entry.epoch) == (0, producer.epoch)
    # The real coordinator is not shut out.
    authenticate(other, broker)
    assert end(other, producer, topic, commit=False, coordinator_epoch=1) == 0
    outsider = Transactional(client, "outsider")
    outsider.take(12_345, 3)
    assert end(client, outsider, topic, commit=False) == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("verify_only", [False, True])
def test_a_client_adds_no_partitions_for_other_producers(client: WireClient, verify_only: bool) -> None:
    transaction = AddPartitionsToTxnTransaction(transactional_id="theirs", producer_id=1, verify_only=verify_only)
    answer = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest(transactions=[transaction]), 4)
    assert (answer.error_code, answer.results_by_transaction) == (FAILED, [])


def test_a_client_asks_for_no_epochs_in_the_name_of_a_replica(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker)
    wanted = [OffsetForLeaderTopic(topic=topic, partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)])]
    for replica_id, code in ((1, FAILED), (-1, ErrorCode.NONE), (-2, ErrorCode.NONE)):
        request = OffsetForLeaderEpochRequest(replica_id=replica_id, topics=wanted)
        answer = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, request, 4)
        assert answer.topics[0].partitions[0].error_code == code


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC])
def test_internal_topics_are_written_and_cut_by_brokers_only(client: WireClient, broker: Broker, topic: str) -> None:
    if topic not in broker.cluster.image.topics:
        on_loop(broker, broker.services.topic_creation.create_internal_topic(topic))
    cut = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)])]
    )
    log = log_of(broker, topic)
    before = log.log_end_offset
    assert client.produce(topic, batch_of(b"forged")).error_code == INVALID
    assert client.ask(ApiKey.DELETE_RECORDS, cut, 2).topics[0].partitions[0].error_code == INVALID
    assert log.log_end_offset == before
    authenticate(client, broker)
    assert client.produce(topic, batch_of(b"by a broker")).error_code == 0
    assert client.ask(ApiKey.DELETE_RECORDS, cut, 2).topics[0].partitions[0].error_code == ErrorCode.POLICY_VIOLATION


def test_retention_is_not_made_to_delete_what_an_internal_topic_keeps(client: WireClient, broker: Broker) -> None:
    if OFFSETS_TOPIC not in broker.cluster.image.topics:
        on_loop(broker, broker.services.topic_creation.create_internal_topic(OFFSETS_TOPIC))

    def alter(name: str, operation: int, value: str | None) -> int:
        config = AlterableConfig(name=name, config_operation=operation, value=value)
        resource = AlterConfigsResource(resource_type=2, resource_name=OFFSETS_TOPIC, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        code: int = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, 1).responses[0].error_code
        return code

    assert alter("cleanup.policy", 0, "delete") == ErrorCode.INVALID_CONFIG
    assert alter("cleanup.policy", 0, "compact,delete") == ErrorCode.INVALID_CONFIG
    assert alter("cleanup.policy", 1, None) == ErrorCode.INVALID_CONFIG, "the default is delete"
    assert alter("segment.bytes", 0, "1048576") == 0
    assert broker.cluster.image.topic_config(OFFSETS_TOPIC)["cleanup.policy"] == "compact"


def test_internal_topics_join_no_transaction_of_a_client(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker)
    producer = Transactional(client, version=1).start()
    request = producer.add_request((topic, 0), (OFFSETS_TOPIC, 0))
    codes = added_codes(client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, request, 3))
    assert codes == {
        (topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        (OFFSETS_TOPIC, 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }


def test_the_secret_of_a_single_broker_is_in_a_file_that_only_its_owner_reads(broker: Broker) -> None:
    folder = Path(broker.settings.log_dirs[0]) / METADATA_FOLDER
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if b"secret" in path.read_bytes()}
    assert set(modes.values()) == {0o600}
