"""Fetch sessions of many partitions: what is at rest costs nothing, and nothing that happens to it is missed."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from tests.broker.wire_client import (
    WireClient,
    batch_of,
    call,
    delete_topic,
    fetch_request,
    make_topic,
    on_loop,
    send_and_be_heard,
    values_in,
)
from tests.timeouts import NEVER_MS

from penstock.broker.background_tasks import apply_retention
from penstock.broker.broker import Broker
from penstock.broker.fetch_session import RECHECK_MS, FetchSession
from penstock.cluster.controller.topics import NewTopic
from penstock.log.errors import LogFailed
from penstock.replication.partition import Partition
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from penstock.wire.schemas.fetch import FetchResponse, ForgottenTopic, PartitionData

WIDTH = 40
Key = tuple[str, int]


class Reader:
    """A client with a session: its partitions, and what was reported of each."""

    def __init__(self, client: WireClient, offsets: dict[Key, int]) -> None:
        self.client = client
        self.offsets = dict(offsets)
        self.view: dict[Key, tuple[int, int, int]] = {}
        self.read: dict[Key, list[bytes | None]] = {key: [] for key in offsets}
        opened = client.ask(ApiKey.FETCH, fetch_request(self.offsets, session_epoch=0), 12)
        self.id, self.epoch = opened.session_id, 0
        assert self.id > 0
        self._moved: set[Key] = set()
        self.take(opened)

    def request(self, *, max_wait_ms: int = 0, min_bytes: int = 1, forget: tuple[Key, ...] = ()) -> Any:
        self.epoch += 1
        asked = {key: self.offsets[key] for key in sorted(self._moved)}
        self._moved.clear()
        request = fetch_request(
            asked, session_id=self.id, session_epoch=self.epoch, max_wait_ms=max_wait_ms, min_bytes=min_bytes
        )
        request.forgotten_topics_data = [ForgottenTopic(topic=topic, partitions=[index]) for topic, index in forget]
        for key in forget:
            for table in (self.offsets, self.view, self.read):
                del table[key]
        return request

    def fetch(self, **more: Any) -> list[Key]:
        """One round; the partitions in the response."""
        return self.take(self.client.ask(ApiKey.FETCH, self.request(**more), 12))

    def take(self, response: FetchResponse) -> list[Key]:
        assert response.error_code == ErrorCode.NONE
        reported = []
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic, data.partition_index)
                reported.append(key)
                self.view[key] = seen(data)
                values = values_in(data.records or b"")
                if values:
                    self.read[key] += values
                    self.move(key, self.offsets[key] + len(values))
        return reported

    def move(self, key: Key, offset: int) -> None:
        self.offsets[key] = offset
        self.read.setdefault(key, [])
        self._moved.add(key)

    def settle(self) -> None:
        for _ in range(10):
            if not self.fetch():
                self.fetch()
                return
        raise TimeoutError("there is always something new")


def seen(data: PartitionData) -> tuple[int, int, int]:
    return data.error_code, data.high_watermark, data.log_start_offset


def partition_of(broker: Broker, topic: str, index: int = 0) -> Partition:
    found = broker.replicas.get(topic, index)
    if found is None:
        raise LookupError(topic)
    return found


def session_of(broker: Broker, reader: Reader) -> FetchSession:
    session = broker.services.sessions._cache.get(reader.id)
    if session is None:
        raise LookupError(reader.id)
    return session


def delete_below(client: WireClient, topic: str, offset: int, index: int = 0) -> int:
    wanted = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=index, offset=offset)])
    answer = client.ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[wanted], timeout_ms=1000), 2)
    code: int = answer.topics[0].partitions[0].error_code
    return code


@pytest.fixture
def looks(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[Key]:
    """The partitions that are looked up, in order."""
    looked: list[Key] = []
    get = broker.replicas.get

    def counting(topic: str, index: int) -> Partition | None:
        looked.append((topic, index))
        return get(topic, index)

    monkeypatch.setattr(broker.replicas, "get", counting)
    return looked


def wide(broker: Broker, client: WireClient) -> tuple[str, Reader]:
    topic = make_topic(broker, partitions=WIDTH)
    reader = Reader(client, {(topic, index): 0 for index in range(WIDTH)})
    reader.settle()
    return topic, reader


# --- what it costs


def test_an_idle_poll_looks_at_nothing(broker: Broker, client: WireClient, looks: list[Key]) -> None:
    _, reader = wide(broker, client)
    looks.clear()
    assert reader.fetch() == []
    assert looks == []


def test_a_poll_looks_at_what_was_written_to_and_at_it_alone(
    broker: Broker, client: WireClient, other: WireClient, looks: list[Key]
) -> None:
    topic, reader = wide(broker, client)
    other.produce(topic, batch_of(b"a"), partition=7)
    looks.clear()
    assert reader.fetch() == [(topic, 7)]
    assert set(looks) == {(topic, 7)}
    assert reader.read[topic, 7] == [b"a"]
    looks.clear()
    assert reader.fetch() == []
    assert set(looks) == {(topic, 7)}, "it may have had more"
    looks.clear()
    assert reader.fetch() == []
    assert looks == []


def test_a_waiting_fetch_is_woken_by_what_is_at_rest_and_looks_at_nothing_else(
    broker: Broker, client: WireClient, other: WireClient, looks: list[Key]
) -> None:
    topic, reader = wide(broker, client)
    looks.clear()
    send_and_be_heard(broker, client, ApiKey.FETCH, reader.request(max_wait_ms=NEVER_MS), 12)
    other.produce(topic, batch_of(b"a"), partition=3)
    assert reader.take(client.receive(ApiKey.FETCH, 12)[1]) == [(topic, 3)]
    assert set(looks) == {(topic, 3)}


def test_a_waiting_fetch_counts_bytes_of_a_partition_that_was_idle(
    broker: Broker, client: WireClient, other: WireClient
) -> None:
    topic, reader = wide(broker, client)
    batch = batch_of(bytes(500))
    waiting = reader.request(max_wait_ms=NEVER_MS, min_bytes=2 * len(batch) + 1)
    send_and_be_heard(broker, client, ApiKey.FETCH, waiting, 12)
    for _ in range(3):
        other.produce(topic, batch, partition=3)
    assert reader.take(client.receive(ApiKey.FETCH, 12)[1]) == [(topic, 3)]
    assert len(reader.read[topic, 3]) == 3


def test_partitions_without_room_in_an_answer_are_not_put_to_rest(
    broker: Broker, client: WireClient, other: WireClient
) -> None:
    topic, reader = wide(broker, client)
    batch = batch_of(bytes(500))
    for index in (1, 2, 3):
        other.produce(topic, batch, partition=index)
    reported: list[Key] = []
    for _ in range(3):
        request = reader.request()
        request.max_bytes = 1
        reported += [key for key in reader.take(client.ask(ApiKey.FETCH, request, 12)) if reader.read[key]]
    assert {key for key in reported if reader.read[key]} == {(topic, 1), (topic, 2), (topic, 3)}


# --- what must not be missed


def test_a_client_that_does_not_move_on_gets_the_same_records_again(
    broker: Broker, client: WireClient, other: WireClient
) -> None:
    topic, reader = wide(broker, client)
    other.produce(topic, batch_of(b"a"), partition=5)
    for _ in range(3):
        reader._moved.clear()
        assert reader.fetch() == [(topic, 5)]


def test_a_moved_log_start_is_reported_at_the_next_fetch(broker: Broker, client: WireClient, other: WireClient) -> None:
    topic, reader = wide(broker, client)
    other.produce(topic, batch_of(b"a", b"b"), partition=5)
    reader.settle()
    assert delete_below(other, topic, 1, 5) == ErrorCode.NONE
    assert reader.fetch() == [(topic, 5)]
    assert reader.view[topic, 5] == (ErrorCode.NONE, 2, 1)


def test_a_log_start_moved_by_retention_is_reported_at_the_next_fetch(
    broker: Broker, client: WireClient, other: WireClient
) -> None:
    topic, reader = wide(broker, client)
    other.produce(topic, batch_of(b"a", b"b"), partition=5)
    reader.settle()
    partition = partition_of(broker, topic, 5)

    def retain() -> None:
        partition.log.log_start_offset = 2
        assert len(list(apply_retention(broker.services, lambda log: False))) == 1

    call(broker, retain)
    assert reader.fetch() == [(topic, 5)]
    assert reader.view[topic, 5] == (ErrorCode.NONE, 2, 2)


def test_a_deleted_topic_ends_the_wait_and_one_of_its_name_is_read_again(
    broker: Broker, client: WireClient, other: WireClient
) -> None:
    topic, reader = wide(broker, client)
    send_and_be_heard(broker, client, ApiKey.FETCH, reader.request(max_wait_ms=NEVER_MS), 12)
    delete_topic(broker, topic)
    reader.take(client.receive(ApiKey.FETCH, 12)[1])
    reader.fetch()
    assert {code for code, _, _ in reader.view.values()} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    on_loop(broker, broker.cluster.require_controller().create_topics([NewTopic(topic, WIDTH, 1)]))
    reader.settle()
    assert {code for code, _, _ in reader.view.values()} == {ErrorCode.NONE}
    other.produce(topic, batch_of(b"again"), partition=4)
    assert reader.fetch() == [(topic, 4)]
    assert reader.read[topic, 4] == [b"again"]


def let_time_pass(broker: Broker, reader: Reader) -> None:
    call(broker, lambda: setattr(session_of(broker, reader), "checked_ms", broker.services.clock.now_ms() - RECHECK_MS))


def test_a_failed_disk_is_reported_soon() -> None:
    with EmbeddedBroker() as own, WireClient(own.port) as client:
        topic, reader = wide(own.broker, client)
        log = partition_of(own.broker, topic, 5).log
        call(own.broker, lambda: log.fail(LogFailed(log.folder, "a disk for this story")))
        let_time_pass(own.broker, reader)
        assert (topic, 5) in reader.fetch()
        assert reader.view[topic, 5][0] == ErrorCode.KAFKA_STORAGE_ERROR


def test_another_leader_epoch_is_reported_soon(broker: Broker, client: WireClient) -> None:
    topic, reader = wide(broker, client)
    partition = partition_of(broker, topic, 5)
    for key in reader.offsets:
        reader.move(key, 0)
    request = reader.request()
    for asked in request.topics:
        asked.partitions[0].current_leader_epoch = partition.leader_epoch
    reader.take(client.ask(ApiKey.FETCH, request, 12))
    assert call(broker, lambda: session_of(broker, reader).idle) == WIDTH
    call(broker, lambda: setattr(partition, "leader_epoch", partition.leader_epoch + 1))
    let_time_pass(broker, reader)
    assert reader.fetch() == [(topic, 5)]
    assert reader.view[topic, 5][0] == ErrorCode.FENCED_LEADER_EPOCH


def test_a_second_request_of_the_session_does_not_wait_for_the_first(
    broker: Broker, client: WireClient, other: WireClient
) -> None:
    topic, reader = wide(broker, client)
    for _ in range(2):
        send_and_be_heard(broker, client, ApiKey.FETCH, reader.request(max_wait_ms=NEVER_MS), 12)
    other.produce(topic, batch_of(b"a"), partition=9)
    _, superseded = client.receive(ApiKey.FETCH, 12)
    assert superseded.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert reader.take(client.receive(ApiKey.FETCH, 12)[1]) == [(topic, 9)]


# --- nothing stays behind


def watchers(broker: Broker, topic: str) -> int:
    return call(broker, lambda: sum(partition_of(broker, topic, index).watchers for index in range(WIDTH)))


def test_a_session_that_ends_watches_nothing_any_more(broker: Broker, client: WireClient) -> None:
    topic, reader = wide(broker, client)
    assert watchers(broker, topic) == WIDTH
    assert reader.fetch(forget=((topic, 0), (topic, 1))) == []
    assert watchers(broker, topic) == WIDTH - 2
    assert call(broker, lambda: broker.services.sessions.close_session(reader.id))
    assert watchers(broker, topic) == 0


def test_a_fetch_whose_session_is_taken_away_still_hears_of_records(
    broker: Broker, client: WireClient, other: WireClient
) -> None:
    topic, reader = wide(broker, client)
    send_and_be_heard(broker, client, ApiKey.FETCH, reader.request(max_wait_ms=NEVER_MS), 12)
    call(broker, lambda: broker.services.sessions.close_session(reader.id))
    other.produce(topic, batch_of(b"a"), partition=9)
    assert reader.take(client.receive(ApiKey.FETCH, 12)[1]) == [(topic, 9)]
    assert watchers(broker, topic) == 0


def test_a_client_that_leaves_in_the_middle_of_a_wait_leaves_only_its_session(
    embedded: EmbeddedBroker, broker: Broker, other: WireClient
) -> None:
    with WireClient(embedded.port) as client:
        topic, reader = wide(broker, client)
        other.produce(topic, batch_of(bytes(10)), partition=2)
        request = reader.request(max_wait_ms=NEVER_MS, min_bytes=10_000)
        send_and_be_heard(broker, client, ApiKey.FETCH, request, 12)
        assert watchers(broker, topic) == WIDTH
    other.produce(topic, batch_of(b"a"), partition=3)
    call(broker, lambda: broker.services.sessions.close_session(reader.id))
    assert watchers(broker, topic) == 0


# --- beside a full fetch


@pytest.mark.parametrize("seed", range(4))
def test_a_session_always_knows_what_a_full_fetch_returns(
    broker: Broker, client: WireClient, other: WireClient, seed: int
) -> None:
    lots = random.Random(seed)
    names = [f"model-{seed}-{number}-{uuid.uuid4().hex[:8]}" for number in range(3)]
    here: set[str] = set()

    def make(name: str) -> None:
        on_loop(broker, broker.cluster.require_controller().create_topics([NewTopic(name, 3, 1)]))
        here.add(name)

    def unmake(name: str) -> None:
        delete_topic(broker, name)
        here.discard(name)

    for name in names:
        make(name)
    keys = [(name, index) for name in names for index in range(3)]
    reader = Reader(client, dict.fromkeys(keys, 0))
    for _ in range(150):
        name, index = lots.choice(keys)
        step = lots.random()
        if step < 0.4 and name in here:
            other.produce(name, batch_of(*[b"x"] * lots.randint(1, 3)), partition=index)
        elif step < 0.5 and name in here:
            delete_below(other, name, lots.choice([-1, lots.randint(0, 3)]), index)
        elif step < 0.54:
            (unmake if name in here else make)(name)
        elif step < 0.6 and (name, index) in reader.offsets and len(reader.offsets) > 1:
            reader.fetch(forget=((name, index),))
        elif step < 0.7:
            reader.move((name, index), lots.choice([0, 0, 1, 5]))
        reader.fetch()
        truth = other.ask(ApiKey.FETCH, fetch_request(reader.offsets), 12)
        expected = {
            (topic.topic, data.partition_index): seen(data) for topic in truth.responses for data in topic.partitions
        }
        # What was read meanwhile moved the offset on, and with it away from or into an error.
        settled = {key: value for key, value in expected.items() if key not in reader._moved}
        assert {key: reader.view[key] for key in settled} == settled
