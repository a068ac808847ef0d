"""A broker with an authorizer, as clients meet it: records, groups, fetch sessions, administration, a cluster."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.broker.cluster_stories import running
from tests.broker.wire_client import BEGIN_MS, Disconnected, WireClient, on_loop, produce_request
from tests.timeouts import PATIENCE_S

from penstock.broker.authorization import AccessControl, Authorizer, KnownTopics, with_ready
from penstock.broker.authorization_rules import Prepared
from penstock.broker.broker import Broker
from penstock.broker.request import Channel
from penstock.broker.router import Router
from penstock.cluster.controller.topics import NewTopic
from penstock.cluster.image import ClusterImage
from penstock.records import encode_batch
from penstock.runtime.network import Connection
from penstock.security.acls import (
    CLUSTER_NAME,
    AclAuthorizer,
    AclBinding,
    AclEntry,
    AclFilter,
    Acls,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from penstock.security.principal import Principal, Session
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.wire.schemas.delete_topics import DeleteTopicsRequest
from penstock.wire.schemas.describe_acls import DescribeAclsRequest
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest
from penstock.wire.schemas.metadata import MetadataRequest, MetadataRequestTopic

R, OP = ResourceType, Operation
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:admin"}


def make(broker: Broker, name: str) -> None:
    on_loop(broker, broker.cluster.require_controller().create_topics([NewTopic(name, 1, 1)]))


def batch(value: bytes = b"x") -> bytes:
    return bytes(encode_batch([(BEGIN_MS, None, value, ())]))


@pytest.fixture
def broker(embedded: EmbeddedBroker) -> Iterator[Broker]:
    """Without ACLs at the start of each test."""
    yield embedded.broker
    revoke(embedded.broker)


def grant(
    broker: Broker, operation: Operation, kind: ResourceType, name: str, *, permission: Permission = Permission.ALLOW
) -> None:
    prefixed = name.endswith("~")
    pattern = ResourcePattern(kind, name.rstrip("~"), PatternType.PREFIXED if prefixed else PatternType.LITERAL)
    binding = AclBinding(pattern, AclEntry("User:ANONYMOUS", "*", operation, permission))
    controller = broker.cluster.require_controller()
    assert on_loop(broker, controller.create_acls([binding])) == [None]


def revoke(broker: Broker, wanted: AclFilter = AclFilter()) -> None:  # noqa: B008 - immutable
    on_loop(broker, broker.cluster.require_controller().delete_acls([wanted]))


def fetch(topic: str, *, offset: int = 0, session: tuple[int, int] = (0, -1), wait_ms: int = 0) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    session_id, epoch = session
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic=topic, partitions=[wanted])] if epoch <= 0 else [],
    )


def test_users_without_acls_can_do_nothing(client: WireClient, broker: Broker) -> None:
    make(broker, "views")
    assert client.produce("views", batch()).error_code == DENIED
    response = client.ask(ApiKey.METADATA, MetadataRequest(topics=None), 9)
    assert response.topics == []
    assert len(response.brokers) == 1
    found = client.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key="g"), 3)
    assert found.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    acls = client.ask(
        ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1), 2
    )
    assert acls.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    created = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic]), 7)
    assert created.topics[0].error_code == DENIED
    deleted = client.ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topic_names=["views"]), 5)
    assert deleted.responses[0].error_code == DENIED
    assert "views" in broker.cluster.image.topics


def test_what_is_granted_works_at_once_and_what_is_revoked_ends_at_once(client: WireClient, broker: Broker) -> None:
    make(broker, "granted")
    grant(broker, OP.WRITE, R.TOPIC, "gran~")
    assert client.produce("granted", batch()).error_code == 0
    named = MetadataRequest(topics=[MetadataRequestTopic(name="granted"), MetadataRequestTopic(name="other")])
    topics = {topic.name: topic for topic in client.ask(ApiKey.METADATA, named, 9).topics}
    assert (topics["granted"].error_code, topics["other"].error_code) == (0, DENIED)
    listed = client.ask(ApiKey.METADATA, MetadataRequest(topics=None), 9)
    assert [topic.name for topic in listed.topics] == ["granted"]
    revoke(broker)
    assert client.produce("granted", batch()).error_code == DENIED
    assert client.ask(ApiKey.METADATA, MetadataRequest(topics=None), 9).topics == []


def test_a_fetch_session_follows_what_is_granted_and_revoked(client: WireClient, broker: Broker) -> None:
    make(broker, "session")
    grant(broker, OP.ALL, R.TOPIC, "session")
    client.produce("session", batch(b"one"))
    revoke(broker)
    first = client.ask(ApiKey.FETCH, fetch("session", session=(0, 0)), 12)
    session_id = first.session_id
    assert session_id > 0
    assert first.responses[0].partitions[0].error_code == DENIED
    assert first.responses[0].partitions[0].records in (None, b"")
    grant(broker, OP.READ, R.TOPIC, "session")
    second = client.ask(ApiKey.FETCH, fetch("session", session=(session_id, 1)), 12)
    assert second.responses[0].partitions[0].error_code == 0
    assert b"one" in bytes(second.responses[0].partitions[0].records)
    revoke(broker)
    third = client.ask(ApiKey.FETCH, fetch("session", session=(session_id, 2)), 12)
    assert third.responses[0].partitions[0].error_code == DENIED


def test_a_waiting_fetch_returns_no_records_that_were_revoked_meanwhile(
    client: WireClient, other: WireClient, broker: Broker
) -> None:
    make(broker, "late")
    grant(broker, OP.ALL, R.TOPIC, "late")
    number = client.send(ApiKey.FETCH, fetch("late", wait_ms=30_000), 11)
    other.ask(ApiKey.METADATA, MetadataRequest(topics=[]), 9)  # the fetch waits by now
    revoke(broker)
    grant(broker, OP.WRITE, R.TOPIC, "late")
    assert other.produce("late", batch(b"secret")).error_code == 0
    answered, response = client.receive(ApiKey.FETCH, 11)
    assert answered == number
    assert response.responses[0].partitions[0].error_code == DENIED
    assert response.responses[0].partitions[0].records in (None, b"")


def test_a_denied_topic_does_not_end_the_wait_of_another(client: WireClient, other: WireClient, broker: Broker) -> None:
    make(broker, "mine")
    make(broker, "theirs")
    grant(broker, OP.ALL, R.TOPIC, "mine")
    message = fetch("mine", wait_ms=30_000)
    message.topics += fetch("theirs").topics
    client.send(ApiKey.FETCH, message, 11)
    other.ask(ApiKey.METADATA, MetadataRequest(topics=[]), 9)
    assert other.produce("mine", batch(b"record")).error_code == 0
    _, response = client.receive(ApiKey.FETCH, 11)
    rows = {topic.topic: topic.partitions[0] for topic in response.responses}
    assert b"record" in bytes(rows["mine"].records)
    assert rows["theirs"].error_code == DENIED


def test_a_session_waits_for_idle_partitions_although_another_topic_is_denied(
    client: WireClient, other: WireClient, broker: Broker
) -> None:
    for name in ("quiet", "foreign"):
        make(broker, name)
    grant(broker, OP.ALL, R.TOPIC, "quiet")
    first = fetch("quiet", session=(0, 0))
    first.topics += fetch("foreign").topics
    session_id = client.ask(ApiKey.FETCH, first, 12).session_id
    client.ask(ApiKey.FETCH, fetch("quiet", session=(session_id, 1)), 12)
    client.send(ApiKey.FETCH, fetch("quiet", session=(session_id, 2), wait_ms=30_000), 12)
    other.ask(ApiKey.METADATA, MetadataRequest(topics=[]), 9)
    assert other.produce("quiet", batch(b"record")).error_code == 0
    _, response = client.receive(ApiKey.FETCH, 12)
    rows = {topic.topic: topic.partitions[0] for topic in response.responses}
    assert b"record" in bytes(rows["quiet"].records)
    assert rows["foreign"].error_code == DENIED


def test_a_session_without_news_waits(client: WireClient, broker: Broker) -> None:
    make(broker, "idle")
    grant(broker, OP.READ, R.TOPIC, "idle")
    session_id = client.ask(ApiKey.FETCH, fetch("idle", session=(0, 0)), 12).session_id
    for epoch, wait_ms in ((1, 0), (2, 300)):
        began = time.monotonic()
        response = client.ask(ApiKey.FETCH, fetch("idle", session=(session_id, epoch), wait_ms=wait_ms), 12)
        assert response.responses == []
        assert time.monotonic() - began >= wait_ms / 1000


def test_without_a_response_a_denied_write_closes_the_connection(client: WireClient, broker: Broker) -> None:
    make(broker, "silent")
    client.send(ApiKey.PRODUCE, produce_request({("silent", 0): batch()}, acks=0), 9)
    with pytest.raises(Disconnected):
        client.ask(ApiKey.METADATA, MetadataRequest(topics=[]), 9)


def test_topics_are_created_by_name_only_with_create(client: WireClient, broker: Broker) -> None:
    named = MetadataRequest(topics=[MetadataRequestTopic(name="auto")])
    grant(broker, OP.DESCRIBE, R.TOPIC, "auto")
    assert client.ask(ApiKey.METADATA, named, 9).topics[0].error_code == DENIED
    assert "auto" not in broker.cluster.image.topics
    grant(broker, OP.CREATE, R.CLUSTER, CLUSTER_NAME)
    assert client.ask(ApiKey.METADATA, named, 9).topics[0].error_code in (0, ErrorCode.LEADER_NOT_AVAILABLE)
    assert "auto" in broker.cluster.image.topics


def test_unreadable_acls_close_the_broker_for_all_but_super_users(client: WireClient, broker: Broker) -> None:
    make(broker, "closed")
    grant(broker, OP.ALL, R.TOPIC, "*")
    assert client.produce("closed", batch()).error_code == 0
    image = broker.cluster.image

    async def damage(problem: str | None) -> None:
        found = type(image.acls)(image.acls.by_pattern, problem)
        assert broker.services.authorizer is not None
        broker.services.authorizer.follow(image, image.with_acls(found))

    on_loop(broker, damage("/kafka-acl/Topic/x: damaged"))
    assert client.produce("closed", batch()).error_code == DENIED
    on_loop(broker, damage(None))
    assert client.produce("closed", batch()).error_code == 0


def test_without_an_authorizer_every_operation_is_authorized_and_acls_are_disabled() -> None:
    with EmbeddedBroker() as embedded, WireClient(embedded.port) as client:
        assert embedded.broker.services.access_control is None
        message = MetadataRequest(
            topics=[], include_cluster_authorized_operations=True, include_topic_authorized_operations=True
        )
        assert client.ask(ApiKey.METADATA, message, 9).cluster_authorized_operations == 0b1_1111_1010_0000 & ~(1 << 6)
        described = client.ask(
            ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1), 2
        )
        assert described.error_code == ErrorCode.SECURITY_DISABLED


def test_in_a_cluster_the_first_broker_decides_and_the_controller_trusts_it(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = Router.connected

    def recognize(self: Router, connection: Connection) -> None:
        """Clients of this test come from another address; everybody else is a broker."""
        connected(self, connection)
        is_broker = connection.address != "127.0.0.2"
        connection.state.session = replace(connection.state.session, is_broker=is_broker)

    monkeypatch.setattr(Router, "connected", recognize)
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with running(str(tmp_path_factory.mktemp("cluster")), authorizer_class_name=authorizer) as cluster:
        controller_id = cluster.brokers[0].broker.cluster.image.controller_id
        controller = cluster.brokers[controller_id].broker
        other = next(each for number, each in cluster.brokers.items() if number != controller_id)
        client = WireClient(other.port)
        client.socket.close()
        client.socket = socket.create_connection(("127.0.0.1", other.port), PATIENCE_S, source_address=("127.0.0.2", 0))

        def create() -> int:
            wanted = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=3)])
            result: int = client.ask(ApiKey.CREATE_TOPICS, wanted, 7).topics[0].error_code
            return result

        assert create() == DENIED
        assert "t" not in controller.cluster.image.topics
        grant(controller, OP.CREATE, R.TOPIC, "t")
        assert create() == 0
        client.close()


# --- what a connection knows of its topics


def rules(*granted: tuple[str, Operation]) -> AclAuthorizer:
    found = AclAuthorizer()
    use(found, *granted)
    return found


def use(found: AclAuthorizer, *granted: tuple[str, Operation]) -> None:
    entries = [
        AclBinding(ResourcePattern(R.TOPIC, name), AclEntry("User:alice", "*", operation, Permission.ALLOW))
        for name, operation in granted
    ]
    found.use(Acls.of(entries))


ALICE = Session(Principal("User", "alice"), host="10.0.0.7")


def test_known_topics_are_forgotten_with_the_acls_that_allowed_them() -> None:
    applied = rules(("views", OP.READ), ("views", OP.WRITE))
    known = KnownTopics(applied, ALICE)
    assert known.may_read("views")
    assert known.may_write("views")
    assert not known.may_write("clicks")
    use(applied, ("clicks", OP.WRITE))
    assert not known.may_write("views")
    assert not known.may_read("views")
    assert known.may_write("clicks")
    assert [(denial.operation, denial.name) for denial in known.denied] == [(OP.READ, "views")]


def test_a_connection_remembers_a_bounded_number_of_topics() -> None:
    known = KnownTopics(rules(("*", OP.READ)), ALICE)
    assert all(known.may_read(f"topic-{number}") for number in range(2_000))
    assert len(known._readable) == 1_000


def test_a_new_session_of_a_connection_has_to_be_authorized_itself() -> None:
    settings = SimpleNamespace(super_users=frozenset(), allow_everyone_if_no_acl_found=False)
    authorizer = Authorizer(settings)  # type: ignore[arg-type]
    image = ClusterImage("c").with_acls(rules(("views", OP.WRITE)).acls)
    authorizer.follow(image, image)
    control = AccessControl(authorizer)
    channel = Channel(lambda: None, lambda _: None, ALICE)

    def passes(topic: str, transaction: str | None = None) -> bool:
        message = produce_request({(topic, 0): batch()})
        message.transactional_id = transaction
        return control.may_produce(channel, message)

    assert passes("views")
    assert not passes("clicks")
    assert not passes("views", "a transaction")
    channel.session = replace(ALICE, principal=Principal("User", "bob"))
    assert not passes("views")


def test_very_many_answers_that_were_ready_are_put_in_their_places_without_moving_the_others_each_time() -> None:
    """Each insertion would move a megabyte of pointers."""
    count = 200_000
    prepared = Prepared(None, "rows", [-number for number in range(count)], range(0, 2 * count, 2))
    begin_s = time.thread_time()
    found = with_ready(list(range(count)), prepared)
    assert time.thread_time() - begin_s < 1
    assert found == [each for number in range(count) for each in (-number, number)]
    assert with_ready([1, 2], Prepared(None, "rows", [3, 4], [0, 3])) == [3, 1, 2, 4]
    assert with_ready([1, 2], Prepared(None, "rows", [3, 4])) == [1, 2, 3, 4]
