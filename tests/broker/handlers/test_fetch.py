"""Fetch over a socket: how much, how long, from where, and in which format."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.broker.wire_client import (
    BEGIN_MS,
    WireClient,
    batch_of,
    call,
    delete_topic,
    fetch_request,
    make_topic,
    records_in,
    send_and_be_heard,
    values_in,
)
from tests.timeouts import NEVER_MS, until

from penstock.broker.broker import Broker
from penstock.records import Codec
from penstock.records.batch import EndMarker, encode_marker
from penstock.records.legacy import decode_message_set
from penstock.runtime.socket_io import PageMover
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.fetch import FetchResponse, ForgottenTopic, PartitionData


def bytes_of(data: PartitionData) -> bytes:
    """The records as they came."""
    records: Any = data.records
    return bytes(records)


def waiting_for(broker: Broker, topic: str) -> int:
    partition = broker.replicas.get(topic, 0)
    return 0 if partition is None else call(broker, lambda: partition.watchers)


def errors_of(answer: FetchResponse) -> list[int]:
    return [partition.error_code for topic in answer.responses for partition in topic.partitions]


# --- the way of the bytes


@pytest.mark.parametrize("by", ["a pipe", "sendfile"])
def test_the_records_of_a_large_fetch_are_not_copied(
    broker: Broker, client: WireClient, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    topic = make_topic(broker)
    batch = batch_of(*[b"x" * 1000] * 500)
    client.produce(topic, batch)
    send = PageMover.send
    sent: list[int] = []

    def counted(mover: PageMover, *where: int) -> tuple[int, int]:
        if by == "sendfile":
            mover.close()
        result = send(mover, *where)
        sent.append(result[0])
        return result

    monkeypatch.setattr(PageMover, "send", counted)
    data = bytes_of(client.fetch(topic))
    assert len(data) == len(batch)
    # A short rest that the socket did not take may be read.
    assert len(data) - 16 * 1024 <= sum(sent) <= len(data)
    assert len(records_in(data)) == 500


# --- errors


@pytest.mark.parametrize("offset", [-1, 4, 2**63 - 1])
def test_an_offset_outside_the_log_is_out_of_range(broker: Broker, client: WireClient, offset: int) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"a", b"b", b"c"))
    data = client.fetch(topic, offset, max_wait_ms=NEVER_MS)
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_what_is_not_there_is_unknown_and_the_rest_is_read(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"a"))
    answer = client.ask(ApiKey.FETCH, fetch_request({("nowhere", 0): 0, (topic, 1): 0, (topic, 0): 0}), 12)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors_of(answer) == [unknown, unknown, ErrorCode.NONE]
    assert values_in(answer.responses[-1].partitions[-1].records) == [b"a"]


def test_another_leader_epoch_is_reported_at_once(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    current = broker.replicas.get(topic, 0)
    assert current is not None
    data = client.fetch(topic, leader_epoch=current.leader_epoch + 1, max_wait_ms=NEVER_MS)
    assert data.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert client.fetch(topic, leader_epoch=current.leader_epoch).error_code == ErrorCode.NONE
    call(broker, lambda: setattr(current, "leader_epoch", current.leader_epoch + 1))
    data = client.fetch(topic, leader_epoch=current.leader_epoch - 1, max_wait_ms=NEVER_MS)
    assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("version", [0, 3, 4, 9])
def test_zstd_is_not_sent_to_clients_without_zstd(broker: Broker, client: WireClient, version: int) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"plain"))
    client.produce(topic, batch_of(b"packed" * 50, codec=Codec.ZSTD))
    plain = bytes_of(client.fetch(topic, version=version))
    if version < 4:
        assert [message.value for message in decode_message_set(plain, limit=1 << 20)] == [b"plain"]
    else:
        assert values_in(plain) == [b"plain"]
    assert client.fetch(topic, 1, version=version).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert values_in(client.fetch(topic, 1, version=10).records) == [b"packed" * 50]


# --- waiting


def test_a_waiting_fetch_is_answered_when_records_arrive(broker: Broker, client: WireClient, other: WireClient) -> None:
    topic = make_topic(broker)
    send_and_be_heard(broker, client, ApiKey.FETCH, fetch_request({(topic, 0): 0}, max_wait_ms=NEVER_MS), 12)
    other.produce(topic, batch_of(b"news"))
    _, answer = client.receive(ApiKey.FETCH, 12)
    assert values_in(answer.responses[0].partitions[0].records) == [b"news"]


def test_a_fetch_is_answered_empty_when_its_time_is_over(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    begin_s = time.monotonic()
    data = client.fetch(topic, max_wait_ms=150)
    assert time.monotonic() - begin_s > 0.14, "it was waited for"
    assert (data.error_code, data.high_watermark, bytes_of(data)) == (ErrorCode.NONE, 0, b"")


def test_a_fetch_waits_for_min_bytes(broker: Broker, client: WireClient, other: WireClient) -> None:
    topic = make_topic(broker)
    batch = batch_of(bytes(1000))
    request = fetch_request({(topic, 0): 0}, max_wait_ms=NEVER_MS, min_bytes=2 * len(batch) + 1)
    send_and_be_heard(broker, client, ApiKey.FETCH, request, 12)
    for _ in range(3):
        other.produce(topic, batch)
    _, answer = client.receive(ApiKey.FETCH, 12)
    assert len(records_in(answer.responses[0].partitions[0].records)) == 3


def test_a_waiting_fetch_of_several_partitions_is_woken_by_one(
    broker: Broker, client: WireClient, other: WireClient
) -> None:
    topic, quiet = make_topic(broker, partitions=2), make_topic(broker)
    wanted = {(quiet, 0): 0, (topic, 0): 0, (topic, 1): 0}
    send_and_be_heard(broker, client, ApiKey.FETCH, fetch_request(wanted, max_wait_ms=NEVER_MS), 12)
    other.produce(topic, batch_of(b"news"), partition=1)
    _, answer = client.receive(ApiKey.FETCH, 12)
    found = {(t.topic, p.partition_index): values_in(p.records) for t in answer.responses for p in t.partitions}
    assert found == {(quiet, 0): [], (topic, 0): [], (topic, 1): [b"news"]}


def test_deleting_a_topic_answers_waiting_fetches(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker, partitions=2)
    wanted = {(topic, 0): 0, (topic, 1): 0}
    send_and_be_heard(broker, client, ApiKey.FETCH, fetch_request(wanted, max_wait_ms=NEVER_MS), 12)
    delete_topic(broker, topic)
    _, answer = client.receive(ApiKey.FETCH, 12)
    assert errors_of(answer) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2


def test_a_client_that_left_while_it_waited_does_not_disturb_others(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient
) -> None:
    topic = make_topic(broker)
    forever = fetch_request({(topic, 0): 0}, max_wait_ms=2**31 - 1, min_bytes=2**31 - 1)
    with WireClient(embedded.port) as gone:
        send_and_be_heard(broker, gone, ApiKey.FETCH, forever, 12)
        assert waiting_for(broker, topic) == 1
    until(lambda: waiting_for(broker, topic) == 0, "no fetch waits any more")
    assert client.produce(topic, batch_of(b"news")).error_code == ErrorCode.NONE
    assert values_in(client.fetch(topic).records) == [b"news"]


# --- limits


def test_the_first_batch_is_returned_whole_however_small_the_limits(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    for value in (b"a" * 500, b"b" * 500):
        client.produce(topic, batch_of(value))
    for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}, {"partition_max_bytes": 0}):
        assert values_in(client.fetch(topic, **limits).records) == [b"a" * 500], limits


def test_a_partitions_limit_cuts_between_batches(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    batch = batch_of(bytes(500))
    for _ in range(5):
        client.produce(topic, batch)
    answer = client.ask(ApiKey.FETCH, fetch_request({(topic, 0): 0}, partition_max_bytes=3 * len(batch)), 12)
    records = bytes(answer.responses[0].partitions[0].records)
    assert len(records) == 3 * len(batch)
    assert [record.offset for record in records_in(records)] == [0, 1, 2]


def test_the_limit_of_the_whole_leaves_later_partitions_empty(broker: Broker, client: WireClient) -> None:
    topics = [make_topic(broker) for _ in range(3)]
    batch = batch_of(bytes(500))
    for topic in topics:
        client.produce(topic, batch)
    wanted = {(topic, 0): 0 for topic in topics}
    answer = client.ask(ApiKey.FETCH, fetch_request(wanted, max_bytes=2 * len(batch)), 12)
    assert [len(bytes(t.partitions[0].records)) for t in answer.responses] == [len(batch), len(batch), 0]


def test_a_fetch_from_the_middle_of_a_batch_gives_the_batch(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"a", b"b", b"c"))
    assert [record.offset for record in records_in(client.fetch(topic, 1).records)] == [0, 1, 2]


# --- transactions


def test_readers_of_committed_records_wait_for_the_end_of_a_transaction(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"before"))
    partition = broker.replicas.get(topic, 0)
    assert partition is not None
    opened = batch_of(b"open", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    call(broker, lambda: partition.append(opened, BEGIN_MS))
    client.produce(topic, batch_of(b"behind"))
    held = client.fetch(topic, isolation_level=1)
    assert values_in(held.records) == [b"before"]
    assert (held.last_stable_offset, held.high_watermark, held.aborted_transactions) == (1, 3, [])
    assert values_in(client.fetch(topic).records) == [b"before", b"open", b"behind"]

    marker = encode_marker(EndMarker(False, 0), timestamp_ms=BEGIN_MS, producer_id=9, producer_epoch=0)
    call(broker, lambda: partition.append(marker, BEGIN_MS, from_client=False))
    client.produce(topic, batch_of(b"after"))  # what is before it is committed with it
    free = client.fetch(topic, isolation_level=1)
    assert values_in(free.records)[:3] == [b"before", b"open", b"behind"]
    aborted = free.aborted_transactions
    assert aborted is not None
    assert [(entry.producer_id, entry.first_offset) for entry in aborted] == [(9, 1)]
    assert free.last_stable_offset == 5


# --- old clients


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4])
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_the_oldest_versions_get_message_sets(broker: Broker, client: WireClient, version: int, codec: Codec) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"one", b"two", codec=codec))
    client.produce(topic, batch_of(b"three"))
    data = client.fetch(topic, 1, version=version)
    assert data.error_code == ErrorCode.NONE
    messages = decode_message_set(bytes_of(data), limit=1 << 20)
    stamps = [-1, -1] if version < 2 else [BEGIN_MS + 1, BEGIN_MS]
    assert [(m.offset, m.value, m.timestamp) for m in messages if m.offset >= 1] == [
        (1, b"two", stamps[0]),
        (2, b"three", stamps[1]),
    ]


@pytest.mark.parametrize("version", range(4, 13))
def test_later_versions_get_batches(broker: Broker, client: WireClient, version: int) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"one", b"two"))
    data = client.fetch(topic, version=version)
    assert (data.error_code, data.high_watermark) == (ErrorCode.NONE, 2)
    assert values_in(data.records) == [b"one", b"two"]


# --- sessions


def test_a_session_speaks_of_changes_only(broker: Broker, client: WireClient) -> None:
    topics = [make_topic(broker) for _ in range(3)]
    for topic in topics:
        client.produce(topic, batch_of(b"first"))
    opening = fetch_request({(topic, 0): 0 for topic in topics}, session_epoch=0)
    first = client.ask(ApiKey.FETCH, opening, 12)
    assert first.session_id > 0
    assert [t.topic for t in first.responses] == topics

    moved = fetch_request({(topic, 0): 1 for topic in topics}, session_id=first.session_id, session_epoch=1)
    assert client.ask(ApiKey.FETCH, moved, 12).responses == []
    client.produce(topics[1], batch_of(b"second"))
    changed = client.ask(ApiKey.FETCH, fetch_request({}, session_id=first.session_id, session_epoch=2), 12)
    assert [(t.topic, values_in(t.partitions[0].records)) for t in changed.responses] == [(topics[1], [b"second"])]

    forgetting = fetch_request({}, session_id=first.session_id, session_epoch=3)
    forgetting.forgotten_topics_data = [ForgottenTopic(topic=topics[1], partitions=[0])]
    assert client.ask(ApiKey.FETCH, forgetting, 12).responses == []


def test_an_unknown_session_and_an_unexpected_epoch_are_rejected(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    unknown = client.ask(ApiKey.FETCH, fetch_request({}, session_id=123_456, session_epoch=1), 12)
    assert (unknown.error_code, unknown.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
    opened = client.ask(ApiKey.FETCH, fetch_request({(topic, 0): 0}, session_epoch=0), 12)
    early = client.ask(ApiKey.FETCH, fetch_request({}, session_id=opened.session_id, session_epoch=5), 12)
    assert early.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_session_waits_as_a_full_fetch_does(broker: Broker, client: WireClient, other: WireClient) -> None:
    topic = make_topic(broker)
    opened = client.ask(ApiKey.FETCH, fetch_request({(topic, 0): 0}, session_epoch=0), 12)
    waiting = fetch_request({}, session_id=opened.session_id, session_epoch=1, max_wait_ms=NEVER_MS)
    send_and_be_heard(broker, client, ApiKey.FETCH, waiting, 12)
    other.produce(topic, batch_of(b"news"))
    _, answer = client.receive(ApiKey.FETCH, 12)
    assert values_in(answer.responses[0].partitions[0].records) == [b"news"]
