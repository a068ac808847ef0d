"""A whole broker over a socket: restarts, disks that fail, and topics that go while they are used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.broker.faulty_files import FaultyFiles
from tests.broker.group_client import NO_OFFSET, commit, committed, find_coordinator
from tests.broker.wire_client import (
    WireClient,
    batch_of,
    call,
    delete_topic,
    make_topic,
    produce_request,
    records_in,
    values_in,
)
from tests.timeouts import NEVER_MS, until

from penstock.broker.broker import Broker
from penstock.broker.settings import settings_from
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import OFFSETS_TOPIC, ApiKey, ErrorCode
from penstock.wire.schemas.metadata import MetadataRequest, MetadataRequestTopic

SETTINGS = {"offsets.topic.num.partitions": "2"}
Story = Callable[[Broker, WireClient, FaultyFiles], None]


def with_faulty_disk(folder: Path, story: Story) -> None:
    """Tell a story, in a thread, to a broker on a disk that can fail; the broker must stop cleanly all the same."""

    async def run() -> None:
        files = FaultyFiles()
        settings = settings_from({**SETTINGS, "log.dirs": str(folder), "listeners": "PLAINTEXT://127.0.0.1:0"})
        broker = Broker(settings, files=files)
        await broker.start()
        try:
            with WireClient(broker.advertised[0].port) as client:
                await asyncio.to_thread(story, broker, client, files)
        finally:
            await broker.stop()

    asyncio.run(run())


# --- disks


def test_a_full_disk_rejects_its_partitions_until_there_is_room_and_others_are_served(tmp_path: Path) -> None:
    def story(broker: Broker, client: WireClient, files: FaultyFiles) -> None:
        full, other = make_topic(broker), make_topic(broker)
        assert client.produce(full, batch_of(b"before")).base_offset == 0
        files.full.add(f"{full}-0")
        for acks in (-1, 1):
            outcome = client.produce(full, batch_of(b"no room"), acks=acks)
            assert (outcome.error_code, outcome.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        both = produce_request({(full, 0): batch_of(b"no room"), (other, 0): batch_of(b"room")})
        answer = client.ask(ApiKey.PRODUCE, both, 9)
        assert [t.partition_responses[0].error_code for t in answer.responses] == [56, ErrorCode.NONE]
        assert values_in(client.fetch(full).records) == [b"before"], "what is there can be read"
        files.full.clear()
        assert client.produce(full, batch_of(b"after")).base_offset == 1
        assert values_in(client.fetch(full).records) == [b"before", b"after"]

    with_faulty_disk(tmp_path, story)


def test_a_sync_that_fails_takes_one_partition_offline_and_no_other(tmp_path: Path) -> None:
    def story(broker: Broker, client: WireClient, files: FaultyFiles) -> None:
        broken, other = make_topic(broker), make_topic(broker)
        files.broken.add(f"{broken}-0")
        assert client.produce(broken, batch_of(b"lost")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        files.broken.clear()
        again = client.produce(broken, batch_of(b"lost too"))
        assert again.error_code == ErrorCode.KAFKA_STORAGE_ERROR, "a sync that failed is not tried again"
        assert client.fetch(broken).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.produce(other, batch_of(b"kept")).error_code == ErrorCode.NONE
        assert values_in(client.fetch(other).records) == [b"kept"]

    with_faulty_disk(tmp_path, story)


def test_commits_that_cannot_be_stored_fail(tmp_path: Path) -> None:
    def story(broker: Broker, client: WireClient, files: FaultyFiles) -> None:
        topic = make_topic(broker)
        find_coordinator(client, "group")
        assert commit(client, "group", topic, 1) == ErrorCode.NONE
        files.full.update({f"{OFFSETS_TOPIC}-0", f"{OFFSETS_TOPIC}-1"})
        assert commit(client, "group", topic, 2) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert committed(client, "group", topic) == 1
        files.full.clear()
        assert commit(client, "group", topic, 3) == ErrorCode.NONE
        assert committed(client, "group", topic) == 3

    with_faulty_disk(tmp_path, story)


# --- restarts


def test_a_restart_keeps_records_settings_sequences_and_offsets(tmp_path: Path) -> None:
    sequenced = batch_of(b"c", producer_id=5, producer_epoch=0, base_sequence=0)
    with EmbeddedBroker(str(tmp_path), settings=SETTINGS) as embedded, WireClient(embedded.port) as client:
        topic = make_topic(embedded.broker, configs={"max.message.bytes": "1000"})
        cluster_id = embedded.broker.cluster.image.cluster_id
        client.produce(topic, batch_of(b"a", b"b"), acks=1)
        assert client.produce(topic, sequenced).base_offset == 2
        find_coordinator(client, "group")
        assert commit(client, "group", topic, 2) == ErrorCode.NONE
    with EmbeddedBroker(str(tmp_path), settings=SETTINGS) as embedded, WireClient(embedded.port) as client:
        assert embedded.broker.cluster.image.cluster_id == cluster_id
        assert [(r.offset, r.value) for r in records_in(client.fetch(topic).records)] == [
            (0, b"a"),
            (1, b"b"),
            (2, b"c"),
        ]
        repeated = client.produce(topic, sequenced)
        assert (repeated.error_code, repeated.base_offset) == (ErrorCode.NONE, 2)
        assert client.produce(topic, batch_of(bytes(1000))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert committed(client, "group", topic) == 2


def test_a_second_broker_on_the_same_folder_does_not_start(tmp_path: Path) -> None:
    with EmbeddedBroker(str(tmp_path), settings=SETTINGS) as embedded:
        with pytest.raises(Exception, match="lock"):
            EmbeddedBroker(str(tmp_path), settings=SETTINGS).start()
        topic = make_topic(embedded.broker)
        with WireClient(embedded.port) as client:
            assert client.produce(topic, batch_of(b"undisturbed")).error_code == ErrorCode.NONE


# --- topics that go


def test_a_deleted_topic_comes_back_empty_under_its_name(tmp_path: Path) -> None:
    with EmbeddedBroker(str(tmp_path), settings=SETTINGS) as embedded, WireClient(embedded.port) as client:
        topic = make_topic(embedded.broker)
        client.produce(topic, batch_of(b"old"))
        delete_topic(embedded.broker, topic)
        assert client.produce(topic, batch_of(b"lost")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
        assert client.ask(ApiKey.METADATA, wanted, 9).topics[0].error_code == ErrorCode.NONE
        assert client.produce(topic, batch_of(b"new")).base_offset == 0
        assert values_in(client.fetch(topic).records) == [b"new"]


def test_files_of_a_deleted_topic_are_removed_after_the_delay_not_with_the_next_retention(tmp_path: Path) -> None:
    settings = {**SETTINGS, "log.segment.delete.delay.ms": "0", "log.retention.check.interval.ms": str(NEVER_MS)}
    with EmbeddedBroker(data_dir=str(tmp_path), settings=settings) as embedded:
        topic = make_topic(embedded.broker, partitions=2)
        assert len(list(tmp_path.glob(f"{topic}-*"))) == 2
        delete_topic(embedded.broker, topic)
        until(lambda: not list(tmp_path.glob(f"{topic}-*")), "the folders are removed")


def test_groups_start_again_after_their_offsets_topic_was_deleted(tmp_path: Path) -> None:
    with EmbeddedBroker(str(tmp_path), settings=SETTINGS) as embedded, WireClient(embedded.port) as client:
        topic = make_topic(embedded.broker)
        find_coordinator(client, "group")
        assert commit(client, "group", topic, 7) == ErrorCode.NONE
        delete_topic(embedded.broker, OFFSETS_TOPIC)
        assert commit(client, "group", topic, 8) == ErrorCode.NOT_COORDINATOR
        find_coordinator(client, "group")
        assert committed(client, "group", topic) == NO_OFFSET
        assert commit(client, "group", topic, 9) == ErrorCode.NONE
        assert committed(client, "group", topic) == 9


# --- metadata


@pytest.mark.parametrize("version", [10, 11, 12])
def test_an_unused_topic_id_is_unknown(tmp_path: Path, version: int) -> None:
    with EmbeddedBroker(str(tmp_path), settings=SETTINGS) as embedded, WireClient(embedded.port) as client:
        topic = make_topic(embedded.broker)
        topic_id = call(embedded.broker, lambda: embedded.broker.cluster.image.topics[topic].topic_id)
        wanted = [MetadataRequestTopic(name=None, topic_id=each) for each in (b"\x07" * 16, topic_id)]
        unknown, known = client.ask(ApiKey.METADATA, MetadataRequest(topics=wanted), version).topics
        assert (unknown.error_code, unknown.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, b"\x07" * 16)
        assert (known.error_code, known.name) == (ErrorCode.NONE, topic)


def test_a_topic_that_makes_itself_has_what_the_operator_laid_down_for_its_name() -> None:
    with EmbeddedBroker(settings={"topic.partition.count.map": "logs:7"}) as broker, WireClient(broker.port) as client:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="logs"), MetadataRequestTopic(name="others")])
        answer = client.ask(ApiKey.METADATA, request, 4)
        assert [len(topic.partitions) for topic in answer.topics] == [7, 1]
