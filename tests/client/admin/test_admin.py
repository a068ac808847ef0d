"""The admin client against a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as TheirPartition
from tests.client.scripted import VERSIONS, Scripted, brokers, run, speaking
from tests.timeouts import PATIENCE_MS, until

from penstock.client.admin import Admin, AsyncAdmin, ConfigResource, ConfigSynonym, OffsetResult, TopicSpec
from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import (
    BootstrapError,
    BrokerError,
    ClosedError,
    ConfigError,
    GroupNotEmpty,
    InvalidSetting,
    InvalidTopic,
    NotConnected,
    PenstockError,
    TimedOut,
    TopicExists,
    UnknownBroker,
    UnknownGroup,
    UnknownTopic,
    UnsupportedVersion,
)
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.records import encode_batch
from penstock.runtime.network import PortReservation
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.framing import RequestHeader
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.alter_configs import AlterConfigsResponse
from penstock.wire.schemas.api_versions import ApiVersion
from penstock.wire.schemas.create_topics import CreatableTopicResult, CreateTopicsResponse
from penstock.wire.schemas.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from penstock.wire.schemas.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.wire.types import Message


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(broker.address) as made:
        yield made


def produce(address: str, topic: str, partition: int, times_ms: list[int]) -> None:
    """A batch for each record, so that a read can begin at any of them."""

    async def story() -> None:
        async with ClusterClient(address) as cluster:
            await cluster.wait_for_topic(topic, timeout_ms=PATIENCE_MS)
            connection = await cluster.to_any()
            for time_ms in times_ms:
                batch = encode_batch([(time_ms, None, b"v" * 50, ())])
                data = TopicProduceData(
                    name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)]
                )
                answer = await connection.request(
                    ApiKey.PRODUCE,
                    ProduceRequest(acks=-1, timeout_ms=PATIENCE_MS, topic_data=[data]),
                    timeout_ms=PATIENCE_MS,
                )
                assert answer.responses[0].partition_responses[0].error_code == 0

    run(story())


# ---------------------------------------------------------------------------------------------- topics


def test_a_topic_is_made_described_widened_and_deleted(admin: Admin) -> None:
    made = admin.create_topic(TopicSpec("life", partitions=3, config={"retention.ms": 86_400_000}))
    assert (made.partitions, made.replication_factor, made.existed) == (3, 1, False)
    described = admin.describe_topic("life")
    assert described.topic_id == made.topic_id
    assert [part.index for part in described.partitions] == [0, 1, 2]
    assert described.partitions[0].leader == admin.describe_cluster().nodes[0]
    assert described.partitions[0].isr == described.partitions[0].replicas == (0,)
    assert described.replication_factor == 1
    admin.create_partitions("life", 5)
    assert len(admin.describe_topic("life").partitions) == 5
    assert "life" in admin.list_topics()
    admin.delete_topic("life")
    assert "life" not in admin.list_topics()
    with pytest.raises(UnknownTopic, match="topic life"):
        admin.describe_topic("life")


def test_a_topic_that_exists_is_an_error_unless_that_is_fine(admin: Admin) -> None:
    admin.create_topic("twice")
    with pytest.raises(TopicExists):
        admin.create_topic("twice")
    assert admin.create_topic("twice", exist_ok=True).existed


def test_deleting_what_is_not_there(admin: Admin) -> None:
    with pytest.raises(UnknownTopic):
        admin.delete_topic("missing")
    admin.delete_topic("missing", missing_ok=True)


def test_many_topics_each_have_their_own_outcome(admin: Admin) -> None:
    admin.create_topic("there")
    outcomes = admin.create_topics(["new", "there", "not a name", TopicSpec("wide", 2, 77)])
    assert not isinstance(outcomes["new"], PenstockError)
    assert isinstance(outcomes["there"], TopicExists)
    assert isinstance(outcomes["not a name"], InvalidTopic)
    assert isinstance(outcomes["wide"], InvalidSetting)
    described = admin.describe_topics(["new", "nowhere"])
    assert isinstance(described["nowhere"], UnknownTopic)
    assert not isinstance(described["new"], PenstockError)
    assert set(admin.describe_topics()) >= {"new", "there"}
    deleted = admin.delete_topics(["new", "nowhere"])
    assert deleted["new"] is None
    assert isinstance(deleted["nowhere"], UnknownTopic)
    assert admin.create_topics([]) == admin.delete_topics([]) == admin.describe_topics([]) == {}


def test_a_dry_run_makes_nothing(admin: Admin) -> None:
    admin.create_topic("imagined", validate_only=True)
    assert "imagined" not in admin.list_topics()


def test_describing_a_topic_does_not_make_it(admin: Admin) -> None:
    admin.describe_topics(["unmade"])
    assert "unmade" not in admin.list_topics()


def test_a_topic_given_twice_is_rejected(admin: Admin) -> None:
    with pytest.raises(ConfigError, match="twice"):
        admin.create_topics(["a", TopicSpec("a", 2)])


def test_fewer_partitions_than_there_are(admin: Admin) -> None:
    admin.create_topic(TopicSpec("narrow", 3))
    with pytest.raises(InvalidSetting, match="narrow"):
        admin.create_partitions("narrow", 2)


def test_results_do_not_change(admin: Admin) -> None:
    described = admin.describe_cluster()
    with pytest.raises(AttributeError):
        described.cluster_id = "x"  # type: ignore[misc]


# ---------------------------------------------------------------------------------------------- offsets, records


def test_offsets_of_both_ends_and_of_a_time(admin: Admin, broker: EmbeddedBroker) -> None:
    admin.create_topic(TopicSpec("timed", 2))
    produce(broker.address, "timed", 0, [1_000, 2_000, 3_000])
    zero, one = TopicPartition("timed", 0), TopicPartition("timed", 1)

    def offset(partition: TopicPartition, spec: Any) -> Any:
        answer = admin.list_offsets({partition: spec})[partition]
        assert isinstance(answer, OffsetResult)
        return answer.offset

    assert (offset(zero, "earliest"), offset(zero, "latest"), offset(one, "latest")) == (0, 3, 0)
    assert offset(zero, 1_500) == 1
    assert offset(zero, datetime.fromtimestamp(3, UTC)) == 2
    assert offset(zero, 3_001) == -1
    answers = admin.list_offsets({("timed", 0): "latest", ("timed", 9): "latest", ("nowhere", 0): "earliest"})
    assert isinstance(answers[TopicPartition("timed", 9)], UnknownTopic)
    assert isinstance(answers[TopicPartition("nowhere", 0)], UnknownTopic)
    assert answers[zero] == OffsetResult(3, -1, 0)


@pytest.mark.parametrize("spec", ["first", -5, True])
def test_an_offset_that_makes_no_sense(admin: Admin, spec: Any) -> None:
    with pytest.raises(ConfigError):
        admin.list_offsets({("t", 0): spec})


def test_records_are_deleted_up_to_an_offset(admin: Admin, broker: EmbeddedBroker) -> None:
    admin.create_topic(TopicSpec("cut", 2))
    produce(broker.address, "cut", 0, [1, 2, 3, 4])
    answers = admin.delete_records({("cut", 0): 2, ("cut", 7): 1})
    assert answers[TopicPartition("cut", 0)] == 2
    assert isinstance(answers[TopicPartition("cut", 7)], UnknownTopic)
    assert admin.delete_records({("cut", 0): -1}) == {TopicPartition("cut", 0): 4}


# ---------------------------------------------------------------------------------------------- settings


def test_settings_are_changed_one_by_one_and_given_back(admin: Admin) -> None:
    admin.create_topic(TopicSpec("set", 1, config={"retention.ms": 1_000_000}))
    topic = ConfigResource.topic("set")
    admin.alter_config(topic, {"max.message.bytes": 5_000, "cleanup.policy": "compact"})
    present = admin.describe_config(topic)
    assert present["retention.ms"].value == "1000000"
    assert present["max.message.bytes"].value == "5000"
    assert (present["cleanup.policy"].source, present["cleanup.policy"].is_default) == ("topic", False)
    admin.alter_config(topic, {"cleanup.policy": None})
    assert admin.describe_config(topic)["cleanup.policy"].value == "delete"


def test_rejected_settings_have_a_reason(admin: Admin) -> None:
    admin.create_topic("picky")
    topic, missing = ConfigResource.topic("picky"), ConfigResource.topic("missing")
    with pytest.raises(InvalidSetting, match=r"no\.such"):
        admin.alter_config(topic, {"no.such": 1})
    outcomes = admin.alter_configs({topic: {"retention.ms": 5}, missing: {"retention.ms": 5}})
    assert outcomes[topic] is None
    assert isinstance(outcomes[missing], BrokerError)
    described = admin.describe_configs([topic, missing])
    assert isinstance(described[missing], BrokerError)
    admin.alter_config(topic, {"retention.ms": 77}, validate_only=True)
    assert admin.describe_config(topic)["retention.ms"].value == "5"


def test_a_brokers_settings_come_from_that_broker(admin: Admin) -> None:
    assert admin.describe_config(ConfigResource.broker(0))["log.dirs"].value
    with pytest.raises(ConfigError, match="not a broker id"):
        admin.describe_config(ConfigResource("broker", "x"))
    with pytest.raises(PenstockError, match="broker 9"):
        admin.describe_config(ConfigResource.broker(9))


def test_every_layer_of_a_setting_is_described_on_request(admin: Admin) -> None:
    admin.create_topic(TopicSpec("layered", 1, config={"retention.bytes": 1_000}))
    topic = ConfigResource.topic("layered")
    assert admin.describe_config(topic)["retention.bytes"].synonyms == ()
    layers = admin.describe_config(topic, include_synonyms=True)["retention.bytes"].synonyms
    assert layers[0] == ConfigSynonym("retention.bytes", "1000", "topic")
    assert layers[-1] == ConfigSynonym("log.retention.bytes", "-1", "default")


def test_settings_of_many_are_one_question_to_each_broker_that_has_to_answer() -> None:
    asked: list[list[str]] = []

    def answer(header: RequestHeader, message: Any) -> Message:
        if header.api.key is ApiKey.METADATA:
            return brokers((7, "127.0.0.1", server.port))
        asked.append([wanted.resource_name for wanted in message.resources])
        results = []
        for wanted in message.resources:
            code = 0
            if wanted.resource_name == "moving" and len(asked) < 3:
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            elif wanted.resource_name == "secret":
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            results.append(
                DescribeConfigsResult(
                    error_code=code, resource_type=wanted.resource_type, resource_name=wanted.resource_name,
                    configs=[DescribeConfigsResourceResult(name="whose", value=wanted.resource_name, config_source=5)],
                )
            )  # fmt: skip
        return DescribeConfigsResponse(results=results[::-1])

    async def story() -> None:
        async with server, AsyncAdmin(server.address) as admin:
            topics = [ConfigResource.topic(name) for name in ("a", "moving", "secret", "b")]
            own = ConfigResource.broker(7)
            found = await admin.describe_configs([*topics, own, topics[0]])
        assert list(found) == [*topics, own]
        rejected = found.pop(topics[2])
        assert isinstance(rejected, BrokerError)
        assert rejected.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for resource, settings in found.items():
            assert not isinstance(settings, PenstockError)
            assert settings["whose"].value == resource.name

    versions = [*VERSIONS, ApiVersion(api_key=ApiKey.DESCRIBE_CONFIGS, min_version=0, max_version=4)]
    server = Scripted(speaking(answer, versions))
    run(story())
    assert sorted(asked[:2]) == [["7"], ["a", "moving", "secret", "b"]]
    assert asked[2:] == [["moving"]]


def test_an_old_broker_that_replaces_all_settings_is_sent_the_current_ones_too() -> None:
    sent: list[dict[str, str]] = []

    def answer(header: RequestHeader, message: Any) -> Message:
        if header.api.key is ApiKey.DESCRIBE_CONFIGS:
            entries = [
                DescribeConfigsResourceResult(name="a", value="1", config_source=1),
                DescribeConfigsResourceResult(name="b", value="2", config_source=1),
                DescribeConfigsResourceResult(name="c", value="3", config_source=5),
            ]
            return DescribeConfigsResponse(
                results=[DescribeConfigsResult(resource_type=2, resource_name="t", configs=entries)]
            )
        if header.api.key is ApiKey.ALTER_CONFIGS:
            sent.append({item.name: item.value for item in message.resources[0].configs})
            return AlterConfigsResponse()
        return brokers((1, "127.0.0.1", server.port))

    versions = [
        ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=5),
        ApiVersion(api_key=ApiKey.DESCRIBE_CONFIGS, min_version=0, max_version=1),
        ApiVersion(api_key=ApiKey.ALTER_CONFIGS, min_version=0, max_version=0),
    ]
    server = Scripted(speaking(answer, versions))

    async def story() -> None:
        async with server, AsyncAdmin(server.address) as admin:
            await admin.alter_config(ConfigResource.topic("t"), {"b": None, "d": True})
            assert sent == [{"a": "1", "d": "true"}]
            with pytest.raises(UnsupportedVersion, match="CreateTopics"):
                await admin.create_topic("t")

    run(story())


# ---------------------------------------------------------------------------------------------- cluster


def test_the_cluster_and_its_disks(admin: Admin, broker: EmbeddedBroker) -> None:
    admin.create_topic("stored")
    produce(broker.address, "stored", 0, [1, 2])
    cluster = admin.describe_cluster()
    assert cluster.controller == cluster.nodes[0]
    assert (cluster.nodes[0].host, cluster.nodes[0].port) == ("127.0.0.1", broker.port)
    assert cluster.cluster_id
    (directory,) = admin.describe_log_dirs()[0]  # type: ignore[misc]
    assert directory.path == broker.data_dir
    assert directory.sizes[TopicPartition("stored", 0)] > 100
    assert directory.total_bytes > directory.usable_bytes > 0
    assert isinstance(admin.describe_log_dirs([8])[8], UnknownBroker)


# ---------------------------------------------------------------------------------------------- groups


def test_offsets_of_a_group_are_set_read_and_deleted(admin: Admin) -> None:
    admin.create_topic(TopicSpec("read", 2))
    zero, one = TopicPartition("read", 0), TopicPartition("read", 1)
    noted = OffsetAndMetadata(0, -1, "note")
    assert admin.set_group_offsets("reader", {zero: 0, one: noted}) == {zero: None, one: None}
    assert admin.group_offsets("reader") == {zero: OffsetAndMetadata(0), one: noted}
    assert admin.group_offsets("reader", [("read", 1), ("read", 5)]) == {one: noted}
    assert admin.delete_group_offsets("reader", [one]) == {one: None}
    assert admin.group_offsets("reader") == {zero: OffsetAndMetadata(0)}
    admin.delete_group("reader")
    assert admin.group_offsets("reader") == {}
    with pytest.raises(UnknownGroup):
        admin.delete_group("reader")
    with pytest.raises(ConfigError, match="is not an offset"):
        admin.set_group_offsets("reader", {zero: -4})


def test_lag_is_shown_in_records_and_in_seconds(admin: Admin, broker: EmbeddedBroker) -> None:
    admin.create_topic(TopicSpec("slow", 3))
    now_ms = time.time_ns() // 1_000_000
    produce(broker.address, "slow", 0, [now_ms - 60_000, now_ms - 30_000, now_ms])
    produce(broker.address, "slow", 1, [now_ms])
    admin.set_group_offsets("behind", {("slow", 0): 1, ("slow", 1): 1})
    group = admin.describe_group("behind")
    described_ms = time.time_ns() // 1_000_000
    assert (group.state, group.members) == ("Empty", ())
    late, current = group.partitions
    assert (late.partition, late.committed, late.end, late.lag_records) == (TopicPartition("slow", 0), 1, 3, 2)
    assert late.lag_seconds is not None
    assert 30 <= late.lag_seconds <= 30 + (described_ms - now_ms) / 1000
    assert (current.lag_records, current.lag_seconds) == (0, 0.0)
    assert group.lag_records == 2
    assert group.lag_seconds == late.lag_seconds
    assert admin.describe_group("behind", with_lag=False).partitions == ()


def test_members_and_what_they_read(admin: Admin, broker: EmbeddedBroker) -> None:
    admin.create_topic(TopicSpec("shared", 2))
    consumer = KafkaConsumer(
        bootstrap_servers=broker.address, group_id="team", client_id="someone", enable_auto_commit=False
    )
    # It would join before it knows the topic's partitions. It joins again when it does, and then forgets about that if
    # a poll ends before it knows its partitions.
    consumer.topics()
    consumer.subscribe(["shared"])
    try:
        until(lambda: consumer.poll(timeout_ms=100) is not None and len(consumer.assignment()) == 2, "it has both")
        assert consumer.assignment() == {TheirPartition("shared", 0), TheirPartition("shared", 1)}
        group = admin.describe_group("team")
        assert (group.state, group.protocol_type) == ("Stable", "consumer")
        assert group.coordinator is not None
        (member,) = group.members
        assert member.client_id == "someone"
        assert member.topics == ("shared",)
        assert member.assignment == (TopicPartition("shared", 0), TopicPartition("shared", 1))
        assert [(item.committed, item.member_id) for item in group.partitions] == [(None, member.member_id)] * 2
        (listed,) = [item for item in admin.list_groups() if item.group_id == "team"]
        assert (listed.protocol_type, listed.state) == ("consumer", "Stable")
        assert "team" not in {item.group_id for item in admin.list_groups(states=["Empty"])}
        with pytest.raises(GroupNotEmpty):
            admin.delete_group("team")
        outcome = admin.set_group_offsets("team", {("shared", 0): 5})[TopicPartition("shared", 0)]
        assert isinstance(outcome, BrokerError)
    finally:
        consumer.close()


def test_groups_that_are_not_there(admin: Admin) -> None:
    with pytest.raises(UnknownGroup, match="group ghost"):
        admin.describe_group("ghost")
    outcomes = admin.describe_groups(["ghost", "phantom"])
    assert {name: type(outcome) for name, outcome in outcomes.items()} == dict.fromkeys(outcomes, UnknownGroup)


# ---------------------------------------------------------------------------------------------- faults, life


def test_a_controller_that_moves_is_followed() -> None:
    errors = [41, 41, 0]

    def answer(header: RequestHeader, message: Any) -> Message:
        if header.api.key is ApiKey.CREATE_TOPICS:
            return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=errors.pop(0))])
        return brokers((1, "127.0.0.1", server.port))

    versions = [
        ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=12),
        ApiVersion(api_key=ApiKey.CREATE_TOPICS, min_version=0, max_version=7),
    ]
    server = Scripted(speaking(answer, versions))

    async def story() -> None:
        async with server, AsyncAdmin(server.address) as admin:
            assert (await admin.create_topic(TopicSpec("t", 4))).partitions == 4
            assert errors == []

    run(story())


def test_a_broker_that_says_nothing_ends_the_call_in_its_time() -> None:
    def answer(header: RequestHeader, message: Any) -> Message | None:
        return None if header.api.key is ApiKey.LIST_GROUPS else brokers((1, "127.0.0.1", server.port))

    server = Scripted(speaking(answer))

    async def story() -> None:
        async with server, AsyncAdmin(server.address) as admin:
            with pytest.raises(TimedOut):
                await admin.list_groups(timeout_ms=200)

    run(story())


def test_no_cluster_is_an_error_of_the_constructor_and_leaves_no_thread() -> None:
    reservation = PortReservation("127.0.0.1", 0)
    before = threading.active_count()
    with pytest.raises(BootstrapError, match="refused"):
        Admin(f"127.0.0.1:{reservation.port}")
    reservation.release()
    with pytest.raises(ConfigError):
        Admin("a:b:c")
    assert threading.active_count() == before


def test_a_closed_client_says_so(broker: EmbeddedBroker) -> None:
    admin = Admin(broker.address)
    admin.close()
    admin.close()
    with pytest.raises(ClosedError):
        admin.list_topics()


def test_an_async_client_starts_by_itself(broker: EmbeddedBroker) -> None:
    async def story() -> None:
        admin = AsyncAdmin(broker.address)
        assert isinstance(await admin.list_topics(), list)
        await admin.close()
        with pytest.raises(ClosedError):
            await admin.list_topics()

    run(story())


def test_a_broker_that_is_restarted_is_waited_for(tmp_path: Any) -> None:
    first = EmbeddedBroker(str(tmp_path)).start()
    port = first.port
    with Admin(first.address) as admin:
        first.stop()
        second = EmbeddedBroker(str(tmp_path), port=port)
        timer = threading.Timer(0.3, second.start)
        timer.start()
        try:
            assert admin.list_topics(timeout_ms=PATIENCE_MS) == []
            admin.create_topic("after", timeout_ms=PATIENCE_MS)
        finally:
            timer.join()
            second.stop()
        with pytest.raises((NotConnected, TimedOut, BootstrapError)):
            admin.create_topic("too late", timeout_ms=300)


def test_the_spec_of_a_topic_is_a_value() -> None:
    assert TopicSpec("a", 2) == TopicSpec("a", partitions=2)
    with pytest.raises(AttributeError):
        TopicSpec("a").partitions = 3  # type: ignore[misc]
    assert msgspec.structs.replace(TopicSpec("a"), partitions=3).partitions == 3
