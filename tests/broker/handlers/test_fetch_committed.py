"""Fetch with read_committed over a socket: aborted transactions, the last stable offset, and readers that wait."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.broker.transactional_client import (
    FEW_PARTITIONS,
    READ_COMMITTED,
    Transactional,
    committed_values,
    describe,
    fetch_committed,
    find_transaction_coordinator,
    state_of,
    visible_values,
)
from tests.broker.wire_client import (
    WireClient,
    batch_of,
    call,
    fetch_request,
    log_of,
    make_topic,
    records_in,
    send_and_be_heard,
    values_in,
)
from tests.timeouts import NEVER_MS, until

from penstock.broker.broker import Broker
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.fetch import PartitionData
from penstock.wire.schemas.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

LATEST = -1
TOGETHER = {"segment.ms": str(2**62)}
"""Settings of a topic whose old records and new markers share a segment."""


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return FEW_PARTITIONS


def stable(broker: Broker, topic: str, offset: int) -> None:
    until(lambda: log_of(broker, topic).last_stable_offset == offset, f"everything below {offset} is decided")


def aborted_in(data: PartitionData) -> list[tuple[int, int]]:
    assert data.aborted_transactions is not None
    return [(each.producer_id, each.first_offset) for each in data.aborted_transactions]


def test_aborted_transactions_are_listed_by_their_first_offset_whatever_the_order_of_their_markers(
    client: WireClient, broker: Broker
) -> None:
    topic = make_topic(broker, configs=TOGETHER)
    producers = [Transactional(client).start() for _ in range(4)]
    for number, producer in enumerate(producers):
        assert producer.write(topic, b"%d" % number) == 0
    ids = [producer.producer_id for producer in producers]
    for number in (3, 1, 2, 0):
        assert producers[number].end(commit=number == 2) == 0
        name = producers[number].transactional_id
        until(lambda name=name: state_of(client, name).startswith("Complete"), "its marker is there")  # type: ignore[misc]
    stable(broker, topic, 8)
    data = fetch_committed(client, topic)
    assert aborted_in(data) == [(ids[0], 0), (ids[1], 1), (ids[3], 3)]
    assert visible_values(data) == [b"2"]


def test_readers_of_everything_get_no_list_of_aborted_transactions(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker, configs=TOGETHER)
    Transactional(client).start().transact(topic, b"a", commit=False)
    stable(broker, topic, 2)
    for version in range(4, 13):
        data = client.fetch(topic, version=version)
        assert (data.aborted_transactions, data.last_stable_offset) == (None, 2)
        data = client.fetch(topic, version=version, isolation_level=READ_COMMITTED)
        assert len(aborted_in(data)) == 1


def test_only_the_aborted_transactions_of_the_records_that_are_sent_are_listed(
    client: WireClient, broker: Broker
) -> None:
    topic = make_topic(broker, configs={**TOGETHER, "index.interval.bytes": "100"})
    producer = Transactional(client).start()
    for number in range(300):
        producer.transact(topic, b"%d" % number * 50, commit=False)
    stable(broker, topic, 600)
    batch = len(bytes(producer.batch(topic, b"100" * 50)))
    seen: list[int] = []
    offset = 0
    while offset < 600:
        data = fetch_committed(client, topic, offset, partition_max_bytes=10 * batch)
        listed = [first for _, first in aborted_in(data)]
        headers = [record.offset for record in records_in(data.records)]
        assert listed == sorted(listed)
        assert {first for first in listed if first >= offset} >= {each for each in headers if each % 2 == 0}
        assert len(listed) <= len(headers), "not those of later records"
        assert visible_values(data) == []
        seen += headers
        offset = headers[-1] + 1
    assert len(seen) == 600


def test_a_reader_in_the_middle_of_a_transaction_learns_that_it_was_aborted(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker, configs=TOGETHER)
    producer = Transactional(client).start()
    assert [producer.write(topic, b"a"), producer.write(topic, b"b"), producer.abort()] == [0, 0, 0]
    client.produce(topic, batch_of(b"plain"))
    stable(broker, topic, 4)
    data = fetch_committed(client, topic, 1)
    assert aborted_in(data) == [(producer.producer_id, 0)]
    assert visible_values(data) == [b"plain"]
    assert aborted_in(fetch_committed(client, topic, 3)) == []


def test_the_last_stable_offset_is_before_the_first_open_transaction(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker, configs=TOGETHER)
    first, second = Transactional(client).start(), Transactional(client).start()
    client.produce(topic, batch_of(b"plain"))
    assert [first.write(topic, b"a"), second.write(topic, b"b")] == [0, 0]
    assert second.commit() == 0
    until(lambda: log_of(broker, topic).high_watermark == 4, "the marker is there")
    data = fetch_committed(client, topic)
    assert (data.last_stable_offset, data.high_watermark, visible_values(data)) == (1, 4, [b"plain"])
    listed = ListOffsetsRequest(
        isolation_level=READ_COMMITTED,
        topics=[ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=LATEST)])],
    )
    answer = client.ask(ApiKey.LIST_OFFSETS, listed, 5)
    assert answer.topics[0].partitions[0].offset == 1, "the end, for a reader of committed records"
    assert first.abort() == 0
    stable(broker, topic, 5)
    assert committed_values(client, topic) == [b"plain", b"b"]


def test_a_waiting_reader_of_committed_records_is_woken_by_the_marker(
    client: WireClient, other: WireClient, broker: Broker
) -> None:
    topic = make_topic(broker, configs=TOGETHER)
    producer = Transactional(other).start()
    request = fetch_request({(topic, 0): 0}, max_wait_ms=NEVER_MS, isolation_level=READ_COMMITTED)
    send_and_be_heard(broker, client, ApiKey.FETCH, request, 12)
    producer.transact(topic, b"a")
    _, answer = client.receive(ApiKey.FETCH, 12)
    assert visible_values(answer.responses[0].partitions[0]) == [b"a"]


def test_a_waiting_reader_of_committed_records_is_not_answered_while_a_transaction_is_open(
    client: WireClient, other: WireClient, broker: Broker
) -> None:
    """It would ask again at once, as often as records arrive that it may not see."""
    topic = make_topic(broker, configs=TOGETHER)
    producer = Transactional(other).start()
    assert producer.write(topic, b"open") == 0
    request = fetch_request({(topic, 0): 0}, max_wait_ms=NEVER_MS, isolation_level=READ_COMMITTED)
    send_and_be_heard(broker, client, ApiKey.FETCH, request, 12)
    partition = broker.replicas.get(topic, 0)
    assert partition is not None
    for _ in range(5):
        other.produce(topic, batch_of(b"plain"))
        assert call(broker, lambda: partition.watchers) == 1
    assert producer.commit() == 0
    _, answer = client.receive(ApiKey.FETCH, 12)
    assert visible_values(answer.responses[0].partitions[0]) == [b"open"] + [b"plain"] * 5


def test_a_waiting_session_of_committed_records_continues_after_the_transaction(
    client: WireClient, other: WireClient, broker: Broker
) -> None:
    topic = make_topic(broker, configs=TOGETHER)
    producer = Transactional(other).start()
    first = client.ask(
        ApiKey.FETCH, fetch_request({(topic, 0): 0}, session_epoch=0, isolation_level=READ_COMMITTED), 12
    )
    assert producer.write(topic, b"a") == 0
    for epoch in (1, 2):
        wait = fetch_request({}, session_id=first.session_id, session_epoch=epoch, isolation_level=READ_COMMITTED)
        quiet = client.ask(ApiKey.FETCH, wait, 12)
        assert [values_in(row.records) for each in quiet.responses for row in each.partitions] in ([], [[]])
    wait = fetch_request(
        {}, session_id=first.session_id, session_epoch=3, isolation_level=READ_COMMITTED, max_wait_ms=NEVER_MS
    )
    send_and_be_heard(broker, client, ApiKey.FETCH, wait, 12)
    assert producer.commit() == 0
    _, answer = client.receive(ApiKey.FETCH, 12)
    assert visible_values(answer.responses[0].partitions[0]) == [b"a"]


@pytest.mark.parametrize("kill", [False, True])
def test_a_broker_that_restarts_in_the_middle_of_a_transaction_knows_it(tmp_path: Path, kill: bool) -> None:
    """After a kill the log is recovered; after a clean stop its snapshot is loaded."""
    data = tmp_path / "data"
    with EmbeddedBroker(str(data), settings=FEW_PARTITIONS) as embedded, WireClient(embedded.port) as client:
        topic = make_topic(embedded.broker, configs=TOGETHER)
        aborted, open_one = Transactional(client).start(), Transactional(client, timeout_ms=300_000).start()
        aborted.transact(topic, b"aborted", commit=False)
        assert open_one.write(topic, b"open") == 0
        stable(embedded.broker, topic, 2)
        if kill:
            shutil.copytree(data, tmp_path / "killed")
    again = EmbeddedBroker(str(tmp_path / "killed" if kill else data), settings=FEW_PARTITIONS)
    with again as embedded, WireClient(embedded.port) as client:
        open_one.client = client
        find_transaction_coordinator(client, open_one.transactional_id)
        found = fetch_committed(client, topic)
        # After a kill the marker may be written again.
        assert found.last_stable_offset == 2
        assert found.high_watermark in ((3, 4) if kill else (3,))
        assert aborted_in(found) == [(aborted.producer_id, 0)]
        assert describe(client, open_one.transactional_id).transaction_state == "Ongoing"
        assert [open_one.write(topic, b"more"), open_one.commit()] == [0, 0]
        # The marker that is written again may come only now.
        log = log_of(embedded.broker, topic)
        until(lambda: log.last_stable_offset >= found.high_watermark + 2, "the transaction is decided")
        assert committed_values(client, topic) == [b"open", b"more"]


def test_a_transaction_that_was_decided_before_a_restart_is_completed_after_it(tmp_path: Path) -> None:
    """The decision is in the log and the marker is not: a copy of the files at that moment."""
    data = tmp_path / "data"
    with EmbeddedBroker(str(data), settings=FEW_PARTITIONS) as embedded, WireClient(embedded.port) as client:
        broker = embedded.broker
        topic = make_topic(broker, configs=TOGETHER)
        producer = Transactional(client).start()
        assert producer.write(topic, b"a") == 0
        sender = broker.services.transactions.sender
        assert sender is not None
        call(broker, lambda: setattr(sender, "_append", lambda *_: None))
        assert producer.commit() == 0, "the decision counts"
        assert describe(client, producer.transactional_id).transaction_state == "PrepareCommit"
        shutil.copytree(data, tmp_path / "killed")
    again = EmbeddedBroker(str(tmp_path / "killed"), settings=FEW_PARTITIONS)
    with again as embedded, WireClient(embedded.port) as client:
        stable(embedded.broker, topic, 2)
        assert committed_values(client, topic) == [b"a"]
        until(lambda: state_of(client, producer.transactional_id) == "CompleteCommit", "it is complete")
