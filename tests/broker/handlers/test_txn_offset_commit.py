"""TxnOffsetCommit over a socket: offsets become visible with the transaction, and members of other generations are
fenced."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.broker.group_client import NO_OFFSET, committed, find_coordinator
from tests.broker.transactional_client import FEW_PARTITIONS, Transactional, describe, find_transaction_coordinator
from tests.broker.wire_client import WireClient, delete_topic, make_topic
from tests.timeouts import until

from penstock.broker.broker import Broker
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import OFFSETS_TOPIC, ApiKey, ErrorCode
from penstock.wire.schemas.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.wire.schemas.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from penstock.wire.schemas.sync_group import SyncGroupRequest


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return {**FEW_PARTITIONS, "group.min.session.timeout.ms": "500"}


@pytest.fixture
def group(client: WireClient, request: pytest.FixtureRequest) -> str:
    find_coordinator(client, request.node.name)
    name: str = request.node.name
    return name


def unstable(client: WireClient, group: str, topic: str) -> int:
    """The error code for a reader that wants stable offsets only."""
    wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])], require_stable=True)
    code: int = client.ask(ApiKey.OFFSET_FETCH, asked, 8).groups[0].topics[0].partitions[0].error_code
    return code


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_become_visible_with_the_transaction(
    client: WireClient, broker: Broker, group: str, version: int, commit: bool
) -> None:
    topic = make_topic(broker)
    producer = Transactional(client, version=2 if version >= 5 else 1).start()
    if version < 5:
        assert producer.add_offsets(group, version=min(version, 4)) == 0
    assert producer.commit_offset(group, topic, 7, version=version) == 0
    assert committed(client, group, topic) == NO_OFFSET
    assert unstable(client, group, topic) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert producer.end(commit=commit) == 0
    until(lambda: unstable(client, group, topic) == 0, "the transaction is over")
    assert committed(client, group, topic) == (7 if commit else NO_OFFSET)


@pytest.mark.parametrize(
    ("version", "expected"),
    [(0, ErrorCode.INVALID_TXN_STATE), (3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_offsets_outside_a_transaction_are_rejected(
    client: WireClient, broker: Broker, group: str, version: int, expected: int
) -> None:
    topic = make_topic(broker)
    producer = Transactional(client, version=1).start()
    assert producer.commit_offset(group, topic, 7, version=version) == expected
    assert unstable(client, group, topic) == 0


def test_a_fenced_producer_commits_no_offsets(client: WireClient, broker: Broker, group: str) -> None:
    topic = make_topic(broker)
    old = Transactional(client).start()
    assert old.commit_offset(group, topic, 1) == 0
    new = Transactional(client, old.transactional_id).start()
    assert old.commit_offset(group, topic, 2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert new.commit_offset(group, topic, 3) == 0
    assert old.commit_offset(group, topic, 4) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert new.commit() == 0
    until(lambda: committed(client, group, topic) == 3, "only those of the new one count")


def test_offsets_of_an_unknown_producer_are_rejected(client: WireClient, broker: Broker, group: str) -> None:
    topic = make_topic(broker)
    find_transaction_coordinator(client, "unknown")
    unknown = Transactional(client, "unknown")
    unknown.take(123_456, 0)
    assert unknown.commit_offset(group, topic, 1) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert unknown.commit_offset("", topic, 1) == ErrorCode.INVALID_GROUP_ID


def test_a_member_of_another_generation_commits_no_offsets(client: WireClient, broker: Broker, group: str) -> None:
    """KIP-447: the generation fences, not only the producer's epoch."""
    topic = make_topic(broker)
    join = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    joined = client.ask(ApiKey.JOIN_GROUP, join, 3)
    assert joined.error_code == 0
    sync = SyncGroupRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)
    assert client.ask(ApiKey.SYNC_GROUP, sync, 2).error_code == 0
    producer = Transactional(client).start()
    member = {"generation_id": joined.generation_id, "member_id": joined.member_id}
    outsider = {**member, "member_id": "outsider"}
    assert producer.commit_offset(group, topic, 1, **outsider) == ErrorCode.UNKNOWN_MEMBER_ID
    later = {**member, "generation_id": joined.generation_id + 1}
    assert producer.commit_offset(group, topic, 1, **later) == ErrorCode.ILLEGAL_GENERATION
    assert producer.commit_offset(group, topic, 2, **member) == 0
    assert producer.commit() == 0
    until(lambda: committed(client, group, topic) == 2, "the member's own offset")


def test_an_unknown_partition_is_named_and_the_others_are_committed(
    client: WireClient, broker: Broker, group: str
) -> None:
    topic, gone = make_topic(broker), make_topic(broker)
    delete_topic(broker, gone)
    producer = Transactional(client).start()
    assert producer.commit_offset(group, gone, 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert producer.commit_offset(group, topic, 1) == 0
    assert producer.commit() == 0
    until(lambda: committed(client, group, topic) == 1, "it is committed")


@pytest.mark.parametrize("version", [1, 2])
def test_the_first_group_of_a_broker_may_be_that_of_a_transaction(version: int) -> None:
    """A producer adds offsets before it looks for the group's coordinator: no other request creates their topic."""
    with EmbeddedBroker(settings=FEW_PARTITIONS) as embedded, WireClient(embedded.port) as client:
        topic = make_topic(embedded.broker)
        producer = Transactional(client, version=version).start()
        assert OFFSETS_TOPIC not in embedded.broker.services.cluster.image.topics
        if version == 1:
            assert producer.add_offsets("first") == 0
            assert [each.topic for each in describe(client, producer.transactional_id).topics] == [OFFSETS_TOPIC]
        find_coordinator(client, "first")
        assert producer.commit_offset("first", topic, 5) == 0
        assert producer.commit() == 0
        until(lambda: committed(client, "first", topic) == 5, "it is committed")


def test_offsets_in_an_open_transaction_survive_a_restart(tmp_path: str) -> None:
    data = str(tmp_path)
    with EmbeddedBroker(data, settings=FEW_PARTITIONS) as embedded, WireClient(embedded.port) as client:
        topic = make_topic(embedded.broker)
        find_coordinator(client, "group")
        producer = Transactional(client, timeout_ms=300_000).start()
        assert producer.commit_offset("group", topic, 5) == 0
    with EmbeddedBroker(data, settings=FEW_PARTITIONS) as embedded, WireClient(embedded.port) as client:
        producer.client = client
        find_coordinator(client, "group")
        find_transaction_coordinator(client, producer.transactional_id)
        until(lambda: unstable(client, "group", topic) == ErrorCode.UNSTABLE_OFFSET_COMMIT, "the group is loaded")
        assert committed(client, "group", topic) == NO_OFFSET
        assert producer.commit() == 0
        until(lambda: committed(client, "group", topic) == 5, "it is committed")
