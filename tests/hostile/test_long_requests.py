"""Requests that would take seconds of the event loop: they are served in slices, or rejected before they are built."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from struct import pack
from typing import Any

import pytest
from tests.broker.wire_client import (
    Disconnected,
    WireClient,
    batch_of,
    call,
    fetch_request,
    make_topic,
    produce_request,
    request_bytes,
    values_in,
)
from tests.hostile.loop_meter import Gate, LoopMeter
from tests.timeouts import NEVER_MS, until

from penstock.broker.api_table import API_TABLE
from penstock.broker.broker import Broker
from penstock.broker.handlers.metadata import MetadataAnswers
from penstock.broker.request import MAX_ELEMENTS, PART_ELEMENTS
from penstock.coordination.group_records import CommittedOffset, OffsetRecord
from penstock.runtime.clock import ManualClock
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import APIS, ApiKey, ErrorCode
from penstock.wire.schemas.api_versions import ApiVersionsRequest
from penstock.wire.schemas.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.wire.schemas.describe_log_dirs import DescribeLogDirsRequest
from penstock.wire.schemas.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest, FetchResponse
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest
from penstock.wire.schemas.list_groups import ListGroupsRequest
from penstock.wire.schemas.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.schemas.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.schemas.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic

GROUP = "readers"
WIDE = 600


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings={"offsets.topic.num.partitions": "1"}) as broker, WireClient(broker.port) as client:
        question = FindCoordinatorRequest(key=GROUP)
        until(
            lambda: client.ask(ApiKey.FIND_COORDINATOR, question, 3).error_code == ErrorCode.NONE, "groups are served"
        )
        # The first request of an API in a version is prepared in slices, which stories must be able to stop.
        is_answered(broker)
        client.produce("nobody", batch_of(b"value"))
        yield broker


@pytest.fixture(scope="module")
def wide_topic(embedded: EmbeddedBroker) -> str:
    return make_topic(embedded.broker, partitions=WIDE)


def is_answered(embedded: EmbeddedBroker) -> None:
    with WireClient(embedded.port) as other:
        assert other.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0).error_code == ErrorCode.NONE


def commit_of(topic: str, partitions: int, offset: int = 7) -> OffsetCommitRequest:
    rows = [OffsetCommitRequestPartition(partition_index=index, committed_offset=offset) for index in range(partitions)]
    return OffsetCommitRequest(group_id=GROUP, topics=[OffsetCommitRequestTopic(name=topic, partitions=rows)])


def wide_fetch(topic: str, partitions: int) -> FetchRequest:
    request = fetch_request({(topic, 0): 0}, session_epoch=0)
    request.topics[0].partitions = [
        FetchPartition(partition=index, partition_max_bytes=100) for index in range(partitions)
    ]
    return request


def test_a_commit_of_very_many_partitions_is_written_in_parts_and_others_are_served_between_them(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient
) -> None:
    partitions = 10_000
    topic = make_topic(broker, partitions=2)
    before = broker.services.long_requests.slices
    with LoopMeter(broker, "OffsetCommit of 10,000 partitions"):
        gate = Gate(broker)
        client.send(ApiKey.OFFSET_COMMIT, commit_of(topic, partitions), 8)
        # What comes behind it on the same connection sees what it did, so it has to wait.
        asked = OffsetFetchRequest(
            group_id=GROUP, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0, partitions - 1])]
        )
        client.send(ApiKey.OFFSET_FETCH, asked, 5)
        gate.reached()
        is_answered(embedded)
        gate.open()
        _, answer = client.receive(ApiKey.OFFSET_COMMIT, 8)
        _, found = client.receive(ApiKey.OFFSET_FETCH, 5)
    assert [topic.name for topic in answer.topics] == [topic]
    assert sorted(row.partition_index for row in answer.topics[0].partitions) == list(range(partitions))
    assert found.topics[0].partitions[0].committed_offset == 7
    assert broker.services.long_requests.slices - before >= partitions // PART_ELEMENTS


def test_a_fetch_of_very_many_partitions_is_read_in_slices_and_becomes_a_session(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient
) -> None:
    partitions = 10_000
    topic = make_topic(broker, partitions=2)
    before = broker.services.long_requests.slices
    with LoopMeter(broker, "Fetch of 10,000 partitions"):
        gate = Gate(broker)
        client.send(ApiKey.FETCH, wide_fetch(topic, partitions), 12)
        gate.reached()
        is_answered(embedded)
        gate.open()
        _, answer = client.receive(ApiKey.FETCH, 12)
    rows = answer.responses[0].partitions
    assert [row.partition_index for row in rows] == list(range(partitions))
    assert [row.error_code for row in rows[:3]] == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    # It is decoded, read, counted, answered, remembered and encoded, all in slices.
    assert broker.services.long_requests.slices - before >= 4 * (partitions // 500) + 2 * (partitions // 1024) - 4
    assert answer.session_id
    following = fetch_request({}, session_id=answer.session_id, session_epoch=1)
    again: FetchResponse = client.ask(ApiKey.FETCH, following, 12)
    assert again.error_code == ErrorCode.NONE
    # Those that do not exist are reported again, and only those.
    assert sum(len(each.partitions) for each in again.responses) == partitions - 2


@pytest.mark.parametrize(("version", "partition"), [(6, 0), (12, 1)])
def test_records_that_arrive_during_a_wide_read_are_not_missed(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient, wide_topic: str, version: int, partition: int
) -> None:
    request = wide_fetch(wide_topic, WIDE)
    del request.topics[0].partitions[:partition]
    request.max_wait_ms = NEVER_MS
    gate = Gate(broker)
    client.send(ApiKey.FETCH, request, version)
    gate.reached()
    with WireClient(embedded.port) as producer:
        assert producer.produce(wide_topic, batch_of(b"in between"), partition=partition).error_code == ErrorCode.NONE
    gate.open()
    _, answer = client.receive(ApiKey.FETCH, version)
    found = {row.partition_index: values_in(row.records) for row in answer.responses[0].partitions if row.records}
    assert found == {partition: [b"in between"]}


def test_a_description_of_very_many_topics_is_split(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient
) -> None:
    names = [f"topic-{number}" for number in range(200)]
    resources = [
        DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None) for name in names
    ]
    with LoopMeter(broker, "DescribeConfigs of 200 topics"):
        gate = Gate(broker)
        client.send(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=resources), 4)
        gate.reached()
        is_answered(embedded)
        gate.open()
        _, answer = client.receive(ApiKey.DESCRIBE_CONFIGS, 4)
    assert [result.resource_name for result in answer.results] == names


@pytest.mark.parametrize("version", [5, 8])
def test_all_offsets_of_a_group_that_has_very_many_are_fetched_in_parts(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient, version: int
) -> None:
    group, count = f"collector-{version}", 5_000

    def fill() -> None:
        offsets = broker.services.groups.offsets_of(group)
        assert offsets is not None
        for index in range(count):
            offsets.replay(OffsetRecord(group, f"topic-{index % 3}", index, CommittedOffset(index, -1, "", 0)))

    call(broker, fill)
    request = OffsetFetchRequest(group_id=group, topics=None)
    if version >= 8:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    with LoopMeter(broker, f"OffsetFetch of all of {count} offsets, version {version}"):
        gate = Gate(broker)
        client.send(ApiKey.OFFSET_FETCH, request, version)
        gate.reached()
        is_answered(embedded)
        gate.open()
        _, answer = client.receive(ApiKey.OFFSET_FETCH, version)
    topics = answer.topics if version < 8 else answer.groups[0].topics
    assert [topic.name for topic in topics] == ["topic-0", "topic-1", "topic-2"]
    found = {row.partition_index: row.committed_offset for topic in topics for row in topic.partitions}
    assert found == {index: index for index in range(count)}


def test_very_many_groups_are_listed_in_slices(embedded: EmbeddedBroker, broker: Broker, client: WireClient) -> None:
    names = {f"listed-{number}" for number in range(5_000)}

    def fill() -> None:
        [shard] = broker.services.groups.shards
        for name in names:
            shard._groups.ensure(name)

    def empty() -> None:
        [shard] = broker.services.groups.shards
        for group in shard.groups:
            if group.group_id in names:
                shard._groups.forget(group)

    call(broker, fill)
    with LoopMeter(broker, f"ListGroups of {len(names)} groups"):
        gate = Gate(broker)
        client.send(ApiKey.LIST_GROUPS, ListGroupsRequest(), 4)
        gate.reached()
        is_answered(embedded)
        gate.open()
        _, answer = client.receive(ApiKey.LIST_GROUPS, 4)
    assert names <= {group.group_id for group in answer.groups}
    call(broker, empty)


def test_very_many_partitions_of_a_disk_are_described_in_slices(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient, wide_topic: str
) -> None:
    with LoopMeter(broker, f"DescribeLogDirs of {WIDE} partitions"):
        gate = Gate(broker)
        client.send(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None), 4)
        gate.reached()
        is_answered(embedded)
        gate.open()
        _, answer = client.receive(ApiKey.DESCRIBE_LOG_DIRS, 4)
    [directory] = answer.results
    sizes = {topic.name: [row.partition_index for row in topic.partitions] for topic in directory.topics}
    assert sorted(sizes[wide_topic]) == list(range(WIDE))


def test_metadata_of_very_many_names_is_made_and_encoded_in_slices(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient
) -> None:
    names = [f"nothing-{number}" for number in range(20_000)]
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    before = broker.services.long_requests.slices
    with LoopMeter(broker, "Metadata of 20,000 names"):
        answer = client.ask(ApiKey.METADATA, request, 9)
    assert [topic.name for topic in answer.topics] == names
    # Decoding and encoding pause every thousand names, and the handler every five hundred.
    assert broker.services.long_requests.slices - before >= 20_000 // 1024 * 2 + 20_000 // 500
    is_answered(embedded)


@pytest.mark.parametrize("times", [20, 5_000])
def test_a_topic_that_is_named_often_is_described_once(client: WireClient, wide_topic: str, times: int) -> None:
    """Otherwise a request of a few kilobytes would be answered with gigabytes."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=wide_topic)] * times)
    answer = client.ask(ApiKey.METADATA, request, 9)
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [(wide_topic, WIDE)]


def test_the_last_part_of_a_long_list_of_names_may_be_one_that_was_asked_for_before(
    broker: Broker, client: WireClient
) -> None:
    topic = make_topic(broker)
    names = [*(f"nobody-{number}" for number in range(PART_ELEMENTS)), topic]
    for asked in ([topic], names):
        rows = [MetadataRequestTopic(name=name) for name in asked]
        answer = client.ask(ApiKey.METADATA, MetadataRequest(topics=rows, allow_auto_topic_creation=False), 9)
        assert [row.name for row in answer.topics] == asked


def test_a_topic_with_many_partitions_is_described_in_slices(
    broker: Broker, client: WireClient, wide_topic: str
) -> None:
    topics = [TopicRequest(name=wide_topic)]
    for api, request, version in (
        (ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name=wide_topic)]), 8),
        (ApiKey.DESCRIBE_TOPIC_PARTITIONS, DescribeTopicPartitionsRequest(topics=topics), 0),
    ):
        client.ask(api, APIS[api].request(), version)  # the codecs are compiled
        before = broker.services.long_requests.slices
        answer = client.ask(api, request, version)
        assert len(answer.topics[0].partitions) == WIDE
        assert broker.services.long_requests.slices > before


def test_requests_with_an_absurd_number_of_elements_are_rejected_before_they_are_built(
    embedded: EmbeddedBroker, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    long_requests = broker.services.long_requests
    until(lambda: not long_requests._active and not long_requests._paused, "requests of earlier tests are done")
    fetch = wide_fetch("views", API_TABLE[ApiKey.FETCH].max_elements + 1)
    commit = commit_of("views", MAX_ELEMENTS + 1)
    indexes = OffsetFetchRequest(
        group_id=GROUP, topics=[OffsetFetchRequestTopic(name="views", partition_indexes=[0] * (MAX_ELEMENTS + 1))]
    )
    before = long_requests.slices
    for api, request, version in (
        (ApiKey.FETCH, fetch, 12),
        (ApiKey.OFFSET_COMMIT, commit, 8),
        (ApiKey.OFFSET_FETCH, indexes, 5),
    ):
        data = request_bytes(api, version, 1, request)
        with WireClient(embedded.port) as hostile:
            hostile.send_bytes(data)
            with pytest.raises(Disconnected):
                hostile.receive_frame()
    # Fetches of earlier tests may end meanwhile, in a few slices; each of these requests would take 50 or more.
    assert long_requests.slices < before + 40
    assert "too many elements in the message" in caplog.text
    is_answered(embedded)


def test_a_section_of_very_many_tagged_fields_is_rejected(embedded: EmbeddedBroker) -> None:
    # A header with a hundred thousand empty tagged fields.
    tags = b"".join(bytes((128 | tag & 127, 128 | tag >> 7 & 127, tag >> 14, 0)) for tag in range(100_000))
    body = pack(">hhih", ApiKey.METADATA, 9, 1, -1) + b"\xa0\x8d\x06" + tags
    with WireClient(embedded.port) as hostile:
        hostile.send_bytes(pack(">i", len(body)) + body)
        with pytest.raises(Disconnected):
            hostile.receive_frame()
    is_answered(embedded)


def test_the_metadata_that_everybody_asks_for_is_encoded_once(
    embedded: EmbeddedBroker, broker: Broker, wide_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    keep = MetadataAnswers.keep

    def counting(self: MetadataAnswers, *arguments: object) -> object:
        kept.append(1)
        return keep(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(MetadataAnswers, "keep", counting)
    everything = MetadataRequest(topics=None)
    call(broker, broker.services.metadata_answers._answers.clear)
    with LoopMeter(broker, "50 connections with 40 Metadata requests each"), ExitStack() as stack:
        crowd = [stack.enter_context(WireClient(embedded.port)) for _ in range(50)]
        data = b"".join(request_bytes(ApiKey.METADATA, 9, number, everything) for number in range(40))
        for each in crowd:
            each.send_bytes(data)
        is_answered(embedded)
        answers = {each.receive_frame()[4:] for each in crowd for _ in range(40)}
    assert len(answers) == 1
    assert len(kept) == 1
    # And made again when the cluster has changed.
    name = make_topic(broker)
    with WireClient(embedded.port) as client:
        assert name in {topic.name for topic in client.ask(ApiKey.METADATA, everything, 9).topics}


def test_the_first_requests_of_many_versions_are_prepared_one_after_the_other_while_others_are_served() -> None:
    """Codecs are compiled when they are first needed: some milliseconds each, and there are hundreds."""
    with EmbeddedBroker() as embedded, ExitStack() as stack:
        is_answered(embedded)
        broker = embedded.broker
        before = broker.services.long_requests.slices
        crowd = [stack.enter_context(WireClient(embedded.port)) for _ in range(13)]
        gate = Gate(broker)
        for version, client in enumerate(crowd):
            client.send(ApiKey.METADATA, MetadataRequest(topics=[]), version)
        gate.reached()
        is_answered(embedded)
        gate.open()
        for version, client in enumerate(crowd):
            assert client.receive(ApiKey.METADATA, version)[1].brokers
        # That of the request, that of the response, and what encodes it in slices.
        assert broker.services.long_requests.slices - before == 3 * len(crowd)


def test_requests_that_waited_for_a_long_one_are_taken_a_few_at_once_and_in_order(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient
) -> None:
    topic, count = make_topic(broker), 96
    client.ask(ApiKey.FETCH, wide_fetch(topic, 10_000), 12)  # the first one is prepared in slices
    before = broker.services.long_requests.slices
    client.ask(ApiKey.FETCH, wide_fetch(topic, 10_000), 12)
    alone = broker.services.long_requests.slices - before
    before = broker.services.long_requests.slices
    gate = Gate(broker)
    client.send(ApiKey.FETCH, wide_fetch(topic, 10_000), 12)
    gate.reached()
    numbers = [client.send(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0) for _ in range(count)]
    until(
        lambda: call(broker, lambda: any(len(each.state.held) == count for each in server_of(broker).connections)),
        "all of them wait",
    )
    gate.open()
    client.receive(ApiKey.FETCH, 12)
    assert [client.receive(ApiKey.API_VERSIONS, 0)[0] for _ in range(count)] == numbers
    assert broker.services.long_requests.slices - before >= alone + count // 8 - 1


def test_the_first_records_without_acknowledgement_are_stored_although_their_connection_is_closed_at_once(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient
) -> None:
    """Their version of Produce was not used before, so its codec has to be compiled."""
    topic = make_topic(broker)
    gate = Gate(broker)
    with WireClient(embedded.port) as producer:
        for number in range(3):
            request = produce_request({(topic, 0): batch_of(b"%d" % number)}, acks=0)
            producer.send(ApiKey.PRODUCE, request, 5)
    is_answered(embedded)  # by now the broker has seen the others
    gate.open()
    until(lambda: client.fetch(topic).high_watermark == 3, "all three are stored")


def server_of(broker: Broker) -> Any:
    return broker.services.server


def test_a_peer_that_leaves_ends_the_work_that_is_done_for_it(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient
) -> None:
    before = broker.services.long_requests.slices
    gate = Gate(broker)
    hostile = WireClient(embedded.port)
    hostile.send(ApiKey.FETCH, wide_fetch(make_topic(broker), 40_000), 12)
    gate.reached()
    hostile.close()
    until(lambda: call(broker, lambda: broker.services.server.counters.connections) <= 2, "the connection is closed")
    gate.open()
    until(lambda: call(broker, lambda: broker.services.long_requests._active) == 0, "its work has ended")
    assert broker.services.long_requests.slices - before == 1
    is_answered(embedded)


def test_a_long_request_that_fails_ends_its_connection_and_no_other(
    embedded: EmbeddedBroker, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of order")

    with monkeypatch.context() as patch, WireClient(embedded.port) as hostile:
        patch.setattr("penstock.broker.handlers.fetch._read_into", broken)
        hostile.send(ApiKey.FETCH, wide_fetch(make_topic(broker), 2_000), 12)
        with pytest.raises(Disconnected):
            hostile.receive_frame()
    until(lambda: call(broker, lambda: broker.services.long_requests._active) == 0, "its work has ended")
    assert "out of order" in caplog.text
    is_answered(embedded)


def test_nothing_is_kept_of_a_closed_connection(embedded: EmbeddedBroker, broker: Broker) -> None:
    server: Any = broker.services.server

    def newest() -> Any:
        return weakref.ref(server.connections[-1])

    with WireClient(embedded.port) as client:
        client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0)
        witness = call(broker, newest)
        gc.disable()
    try:
        until(lambda: witness() is None, "it is gone, without a collector")
    finally:
        gc.enable()


def test_bad_requests_are_logged_once_a_second(
    embedded: EmbeddedBroker, broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(10_000)
    clock.advance(10_000_000)
    complain = broker.router.complain
    monkeypatch.setattr(complain, "_clock", clock)
    complain._next_ms.clear()
    caplog.set_level(logging.INFO)

    def fail(times: int) -> list[str]:
        caplog.clear()
        for _ in range(times):
            with WireClient(embedded.port) as hostile:
                hostile.send_bytes(pack(">ihhi", 8, 999, 0, 1))
                assert hostile.is_ended()
        return [record.getMessage() for record in caplog.records if "closed" in record.getMessage()]

    assert len(fail(20)) == 1
    clock.advance(1_000)
    (line,) = fail(20)
    assert "suppressed=19" in line
