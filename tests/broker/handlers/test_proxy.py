"""Three brokers behind one address: whichever broker a connection reaches, it serves every partition and group."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from tests.broker.balancer import Balancer
from tests.broker.broker_process import BrokerProcess
from tests.broker.cluster_stories import SETTINGS, BrokerCluster
from tests.broker.wire_client import (
    WireClient,
    batch_of,
    call,
    fetch_request,
    produce_request,
    send_and_be_heard,
    values_in,
)
from tests.compatibility.client_interface import Client, Record, take
from tests.compatibility.client_interface import Producer as AnyProducer
from tests.compatibility.clients import AIOKAFKA, CONFLUENT, KAFKA_PYTHON
from tests.ports import free_port
from tests.timeouts import PATIENCE_MS, PATIENCE_S, until

from penstock import Admin, Consumer, Producer, TopicSpec
from penstock.broker.handlers.forward import PROXIED
from penstock.broker.handlers.proxy import ROUTES, Proxy, _parts
from penstock.client.admin import AclBinding, AclFilter, GroupDescription, QuotaEntity
from penstock.cluster.broker_links import Link, LinkLost
from penstock.security.acls import AclEntry, Operation, Permission, ResourcePattern, ResourceType
from penstock.testing.zookeeper import ZooKeeperServer
from penstock.wire.protocol import OFFSETS_TOPIC, ApiKey, ErrorCode
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest
from penstock.wire.schemas.heartbeat import HeartbeatRequest
from penstock.wire.schemas.list_groups import ListGroupsRequest
from penstock.wire.schemas.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.wire.schemas.metadata import MetadataRequest
from penstock.wire.types import Message

PARTITIONS = 6
LISTENER = "ONE"
PROTOCOLS = f"PLAINTEXT:PLAINTEXT,{LISTENER}:PLAINTEXT"


def listeners(port: int, proxied_port: int, advertised_port: int) -> dict[str, str]:
    """Brokers reach each other on PLAINTEXT; clients have only the balancer's address."""
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},{LISTENER}://127.0.0.1:{proxied_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},{LISTENER}://127.0.0.1:{advertised_port}",
        "listener.security.protocol.map": PROTOCOLS,
        "penstock.proxy.listeners": LISTENER.lower(),
    }


class Cluster(NamedTuple):
    brokers: BrokerCluster
    balancer: Balancer
    ports: tuple[int, ...]
    """Of the proxied listeners, by broker."""

    @property
    def address(self) -> str:
        return self.balancer.address

    def make(self, partitions: int = PARTITIONS) -> str:
        name = f"views-{uuid.uuid4().hex[:8]}"
        with Admin(self.address) as admin:
            admin.create_topic(TopicSpec(name, partitions, replication_factor=3))
        for number in self.brokers.brokers:
            self.brokers.until_known(number, {name})
        assert len({each.leader for each in self.brokers.image().topics[name].partitions}) == min(3, partitions)
        return name

    def remote(self, topic: str, index: int = 0) -> int:
        """A broker that does not lead a partition."""
        leader = self.brokers.partition(topic, index).leader
        return next(number for number in self.brokers.brokers if number != leader)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = str(tmp_path_factory.mktemp("proxied"))
    settings = {
        "authorizer.class.name": "penstock",
        "allow.everyone.if.no.acl.found": "true",
        "transaction.state.log.num.partitions": "4",
    }
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeperServer())
        balancer = stack.enter_context(Balancer())
        brokers = BrokerCluster(zookeeper, folder, settings)
        stack.callback(brokers.close)
        ports = tuple(free_port() for _ in range(3))
        for number, port in enumerate(ports):
            brokers.start(number, **listeners(free_port(), port, balancer.port))
        balancer.ports = ports
        yield Cluster(brokers, balancer, ports)


def test_every_broker_and_coordinator_has_the_one_address(cluster: Cluster) -> None:
    for port in cluster.ports:
        with WireClient(port) as client:
            brokers = client.ask(ApiKey.METADATA, MetadataRequest(topics=[]), 12).brokers
            assert {(each.node_id, each.host, each.port) for each in brokers} == {
                (number, "127.0.0.1", cluster.balancer.port) for number in range(3)
            }
            wanted = FindCoordinatorRequest(coordinator_keys=["a", "b", "c"])

            def are_found(client: WireClient = client, wanted: FindCoordinatorRequest = wanted) -> bool:
                found = client.ask(ApiKey.FIND_COORDINATOR, wanted, 4).coordinators
                return all(not each.error_code and each.port == cluster.balancer.port for each in found)

            until(are_found, "coordinators are known")


def test_an_ordinary_listener_is_as_before(cluster: Cluster) -> None:
    topic = cluster.make()
    broker = cluster.brokers.brokers[cluster.remote(topic)]
    with WireClient(broker.port) as client:
        brokers = client.ask(ApiKey.METADATA, MetadataRequest(topics=[]), 12).brokers
        assert {each.port for each in brokers} == {each.port for each in cluster.brokers.brokers.values()}
        outcome = client.produce(topic, batch_of(b"elsewhere"))
        assert outcome.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_bootstrap_through_a_balancer_by_advertised_listeners(cluster: Cluster) -> None:
    topic = cluster.make()
    with Balancer() as balancer:
        balancer.ports = [each.port for each in cluster.brokers.brokers.values()]
        with Producer(balancer.address) as producer:
            for number in range(PARTITIONS):
                producer.send(topic, b"%d" % number, partition=number).result(PATIENCE_S)
        assert sum(balancer.served.values()) >= 1
    with Consumer(topic, bootstrap_servers=cluster.brokers.bootstrap, auto_offset_reset="earliest") as consumer:
        found: list[bytes] = []
        while len(found) < PARTITIONS:
            found += [record.value for records in consumer.poll(PATIENCE_MS).values() for record in records]
    assert sorted(found) == [b"%d" % number for number in range(PARTITIONS)]


@pytest.mark.parametrize(
    "client",
    [CONFLUENT, KAFKA_PYTHON, pytest.param(AIOKAFKA, marks=pytest.mark.long)],
    ids=lambda each: each.features.name,
)
def test_clients_write_and_read_every_partition_and_share_a_group(cluster: Cluster, client: Client) -> None:
    topic, group = cluster.make(), f"group-{uuid.uuid4().hex[:8]}"
    count = 60
    with client.producing(cluster.address, idempotent=True, batch_records=3) as producer:
        for number in range(count):
            producer.send(topic, Record(b"%d" % number, partition=number % PARTITIONS))
        sent = producer.settle()
        assert [each.error for each in sent] == [None] * count
    with client.consuming(cluster.address, topic=topic, group=group) as consumer:
        records = take(consumer, count)
        assert sorted(int(each.value or b"") for each in records) == list(range(count))
        for index in range(PARTITIONS):
            of_partition = [int(each.value or b"") for each in records if each.partition == index]
            assert of_partition == sorted(of_partition)
            assert consumer.ends(topic, index) == (0, count // PARTITIONS)
        consumer.commit()
        assert [consumer.committed(topic, index) for index in range(PARTITIONS)] == [count // PARTITIONS] * PARTITIONS
    with client.administering(cluster.address) as admin:
        assert group in admin.groups()
        assert admin.delete_records(topic, 1, 2) == 2


def test_our_client_writes_and_reads_in_transactions(cluster: Cluster) -> None:
    topic, group = cluster.make(), f"group-{uuid.uuid4().hex[:8]}"
    with Producer(cluster.address, transactional_id=f"loader-{uuid.uuid4().hex[:8]}") as producer:
        for attempt in range(2):
            with producer.transaction():
                for number in range(PARTITIONS):
                    producer.send(topic, b"%d-%d" % (attempt, number), partition=number)
    with Consumer(
        topic,
        bootstrap_servers=cluster.address,
        group_id=group,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        found: list[bytes] = []
        while len(found) < 2 * PARTITIONS:
            found += [record.value for records in consumer.poll(PATIENCE_MS).values() for record in records]
        consumer.commit()
    assert sorted(found) == sorted(b"%d-%d" % (attempt, number) for attempt in range(2) for number in range(PARTITIONS))
    with Admin(cluster.address) as admin:
        assert group in {each.group_id for each in admin.list_groups()}
        assert isinstance(admin.describe_groups([group])[group], GroupDescription)


def test_one_request_may_name_partitions_of_every_leader(cluster: Cluster) -> None:
    topic = cluster.make()
    indexes = [4, 0, 5, 1, 3, 2]
    with WireClient(cluster.ports[0]) as client:
        wanted = produce_request({(topic, index): batch_of(b"%d" % index) for index in indexes})
        rows = [each.partition_responses[0] for each in client.ask(ApiKey.PRODUCE, wanted, 9).responses]
        assert [(each.index, each.error_code, each.base_offset) for each in rows] == [(each, 0, 0) for each in indexes]
        read = client.ask(ApiKey.FETCH, fetch_request({(topic, index): 0 for index in indexes}, max_wait_ms=1000), 12)
        rows = [each.partitions[0] for each in read.responses]
        assert [(each.partition_index, values_in(each.records)) for each in rows] == [
            (each, [b"%d" % each]) for each in indexes
        ]
        ends = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[ListOffsetsPartition(partition_index=index, timestamp=-1) for index in indexes],
                )
            ],
        )
        (answered,) = client.ask(ApiKey.LIST_OFFSETS, ends, 5).topics
        assert [(each.partition_index, each.offset) for each in answered.partitions] == [(each, 1) for each in indexes]


@pytest.mark.parametrize("partitions", [1, 2], ids=["of one leader", "of two leaders"])
def test_a_fetch_waits_for_records_of_another_broker(cluster: Cluster, partitions: int) -> None:
    topic = cluster.make()
    here = cluster.brokers.brokers[cluster.remote(topic)]
    port = cluster.ports[here.broker.services.node_id]
    with WireClient(port) as reader, WireClient(port) as writer:
        wanted = fetch_request({(topic, index): 0 for index in range(partitions)}, max_wait_ms=PATIENCE_MS)
        number = send_and_be_heard(here.broker, reader, ApiKey.FETCH, wanted, 12)
        assert writer.produce(topic, batch_of(b"late")).error_code == 0
        answered, response = reader.receive(ApiKey.FETCH, 12)
        assert answered == number
        assert values_in(response.responses[0].partitions[0].records) == [b"late"]
        assert response.session_id == 0


def test_a_session_of_an_earlier_time_starts_again(cluster: Cluster) -> None:
    with WireClient(cluster.ports[0]) as client:
        response = client.ask(ApiKey.FETCH, fetch_request({}, session_id=7, session_epoch=3), 12)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_errors_of_the_leader_are_passed_on(cluster: Cluster) -> None:
    topic = cluster.make()
    with WireClient(cluster.ports[cluster.remote(topic)]) as client:
        assert client.fetch(topic, 99).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert client.produce(topic, b"\0" * 70).error_code == ErrorCode.CORRUPT_MESSAGE
        assert client.fetch("unknown").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_records_without_acknowledgement_are_written_and_errors_close_the_connection(cluster: Cluster) -> None:
    topic = cluster.make()
    with WireClient(cluster.ports[cluster.remote(topic)]) as client:
        client.send(ApiKey.PRODUCE, produce_request({(topic, 0): batch_of(b"unanswered")}, acks=0), 9)
        assert values_in(client.fetch(topic, max_wait_ms=PATIENCE_MS).records) == [b"unanswered"]
        client.send(ApiKey.PRODUCE, produce_request({(topic, 0): b"\0" * 70}, acks=0), 9)
        assert client.is_ended()


def test_internal_topics_are_not_written_by_way_of_another_broker(cluster: Cluster) -> None:
    for port in cluster.ports:
        with WireClient(port) as client:
            for index in range(4):
                outcome = client.produce(OFFSETS_TOPIC, batch_of(b"forged"), partition=index)
                assert outcome.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_receiving_broker_denies_what_acls_deny(cluster: Cluster) -> None:
    topic, other = cluster.make(), cluster.make()
    pattern = ResourcePattern(ResourceType.TOPIC, topic)
    denied = [
        AclBinding(pattern, AclEntry("User:ANONYMOUS", "*", operation, Permission.DENY))
        for operation in (Operation.READ, Operation.WRITE)
    ]
    with Admin(cluster.address) as admin:
        admin.create_acls(denied)
        for number in cluster.brokers.brokers:
            until(partial(_has_acls, cluster, number), f"broker {number} knows the ACLs")
        try:
            for port in cluster.ports:
                with WireClient(port) as client:
                    wanted = produce_request({(topic, 0): batch_of(b"no"), (other, 0): batch_of(b"yes")})
                    rows = {
                        each.name: each.partition_responses[0].error_code
                        for each in client.ask(ApiKey.PRODUCE, wanted, 9).responses
                    }
                    assert rows == {topic: ErrorCode.TOPIC_AUTHORIZATION_FAILED, other: 0}
                    read = client.ask(ApiKey.FETCH, fetch_request({(topic, 0): 0, (other, 0): 0}), 12)
                    found = {each.topic: each.partitions[0] for each in read.responses}
                    assert found[topic].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    assert set(values_in(found[other].records)) == {b"yes"}
        finally:
            admin.delete_acls([AclFilter()])


def _has_acls(cluster: Cluster, number: int) -> bool:
    return bool(cluster.brokers.image(number).acls)


def test_quotas_are_those_of_the_receiving_broker(cluster: Cluster) -> None:
    topic = cluster.make()
    entity = QuotaEntity(client_id="story")
    with Admin(cluster.address) as admin:
        admin.alter_quota(entity, {"producer_byte_rate": 1})
        here = cluster.brokers.brokers[cluster.remote(topic)]
        until(lambda: here.broker.services.throttling.quotas.is_active, "the quota is known")
        try:
            with WireClient(cluster.ports[here.broker.services.node_id]) as client:
                wanted = produce_request({(topic, 0): batch_of(b"x" * 100)})
                assert client.ask(ApiKey.PRODUCE, wanted, 9).throttle_time_ms > 0
        finally:
            admin.alter_quota(entity, {"producer_byte_rate": None})


def test_topics_may_be_named_by_id(cluster: Cluster) -> None:
    topic = cluster.make()
    topic_id = cluster.brokers.image().topics[topic].topic_id
    with WireClient(cluster.ports[0]) as client:
        for index in range(3):
            assert client.produce(topic, batch_of(b"%d" % index), partition=index).error_code == 0
        wanted = fetch_request({("", index): 0 for index in range(3)}, max_wait_ms=PATIENCE_MS)
        for each in wanted.topics:
            each.topic_id = topic_id
        response = client.ask(ApiKey.FETCH, wanted, 17)
    assert [(each.topic_id, values_in(each.partitions[0].records)) for each in response.responses] == [
        (topic_id, [b"%d" % index]) for index in range(3)
    ]


class LostLinks:
    """No broker can be reached."""

    def to(self, broker_id: int) -> Link:
        raise LinkLost(f"broker {broker_id} is away")


def test_a_lost_leader_is_answered_as_one_that_has_moved(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = cluster.make()
    here = cluster.brokers.brokers[cluster.remote(topic)].broker
    monkeypatch.setattr(here.router.proxy, "links", LostLinks())
    with WireClient(cluster.ports[here.services.node_id]) as client:
        # What became of the records is unknown: they are not sent again in the client's name.
        assert client.produce(topic, batch_of(b"lost")).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert client.fetch(topic).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert client.ask(ApiKey.LIST_GROUPS, ListGroupsRequest(), 4).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        beats = [client.ask(ApiKey.HEARTBEAT, HeartbeatRequest(group_id=f"g{each}"), 3) for each in range(16)]
        assert ErrorCode.NOT_COORDINATOR in {each.error_code for each in beats}


class SilentLink:
    """Of a host that vanished: nothing comes back, and nothing is closed."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[Message] | None = None

    async def ask(self, *_: object) -> Message:
        self.closed = asyncio.get_running_loop().create_future()
        return await self.closed

    def close(self) -> None:
        if self.closed is not None:
            self.closed.set_exception(LinkLost("closed"))


def test_requests_to_a_silent_host_end_when_the_cluster_gives_it_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cluster.make()
    here = cluster.brokers.brokers[cluster.remote(topic)].broker
    proxy, link = here.router.proxy, SilentLink()
    assert proxy is not None
    monkeypatch.setattr(proxy, "links", SimpleNamespace(to=lambda _: link))
    image = here.cluster.image
    gone = image.without_broker(cluster.brokers.partition(topic).leader)
    with WireClient(cluster.ports[here.services.node_id]) as client:
        client.send(ApiKey.PRODUCE, produce_request({(topic, 0): batch_of(b"silence")}), 9)
        until(lambda: link.closed is not None, "the leader is asked")
        call(here, lambda: proxy.follow(image, gone))
        _, response = client.receive(ApiKey.PRODUCE, 9)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT


def test_a_request_for_very_many_partitions_is_sent_in_parts(cluster: Cluster) -> None:
    services = cluster.brokers.brokers[0].broker.services
    topic = cluster.make(1)
    (led,) = services.cluster.image.topics[topic].partitions
    wide = services.cluster.image.topics[topic].with_partitions([led] * 1_199)
    fake = SimpleNamespace(node_id=-5, cluster=SimpleNamespace(image=services.cluster.image.with_topic(wide)))
    message = fetch_request({(topic, 0): 0})
    (first,) = message.topics[0].partitions
    message.topics[0].partitions = [replace(first, partition=index) for index in range(1_200)]
    request: Any = SimpleNamespace(message=message, api_key=ApiKey.FETCH, permits=None)
    slices = _parts(fake, ROUTES[ApiKey.FETCH], request)  # type: ignore[arg-type]
    pauses = 0
    while True:
        try:
            next(slices)
            pauses += 1
        except StopIteration as end:
            parts = end.value
            break
    assert pauses > 1
    assert [(broker, len(part.topics[0].partitions)) for broker, part in parts] == [
        (led.leader, 500),
        (led.leader, 500),
        (led.leader, 200),
    ]


def test_links_end_with_the_connection_that_needed_them(cluster: Cluster) -> None:
    topic = cluster.make()
    here = cluster.brokers.brokers[cluster.remote(topic)].broker
    proxy = here.router.proxy
    assert isinstance(proxy, Proxy)
    with WireClient(cluster.ports[here.services.node_id]) as client:
        assert client.produce(topic, batch_of(b"once")).error_code == 0
        wanted = fetch_request({(topic, 0): 1}, max_wait_ms=PATIENCE_MS)
        send_and_be_heard(here, client, ApiKey.FETCH, wanted, 12)
        until(lambda: proxy.fetches == 1, "the fetch waits")
    until(lambda: proxy.fetches == 0, "the fetch is given up")


def test_more_fetches_share_the_same_memory(cluster: Cluster) -> None:
    proxy = Proxy(cluster.brokers.brokers[0].broker.services, None)  # type: ignore[arg-type]
    alone = proxy.fetch_bytes()
    proxy.fetches = 99
    assert proxy.fetch_bytes() * 100 <= 8 * alone
    proxy.fetches = 1_000_000
    assert proxy.fetch_bytes() > 0


def test_brokers_accept_what_proxies_forward() -> None:
    assert ROUTES.keys() - PROXIED == {ApiKey.PRODUCE, ApiKey.FETCH}
    assert ROUTES.keys() >= PROXIED


# --- a leader is killed


class Processes(NamedTuple):
    address: str
    brokers: dict[int, BrokerProcess]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Three brokers behind a balancer, and the topic `views`."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeperServer())
        balancer = stack.enter_context(Balancer())
        brokers: dict[int, BrokerProcess] = {}
        ports = {number: free_port() for number in range(3)}
        for number, port in ports.items():
            settings = {
                **SETTINGS,
                **listeners(free_port(), port, balancer.port),
                "zookeeper.connect": zookeeper.connect,
                "broker.id": str(number),
            }
            brokers[number] = stack.enter_context(BrokerProcess(tmp_path / str(number), settings))
        balancer.ports = list(ports.values())
        with Admin(balancer.address) as admin:
            admin.create_topic(TopicSpec("views", PARTITIONS, replication_factor=3))
        yield Processes(balancer.address, brokers)


@pytest.mark.long
@pytest.mark.parametrize("client", [CONFLUENT, KAFKA_PYTHON], ids=lambda each: each.features.name)
def test_a_killed_leader_delays_clients_and_nothing_is_lost_or_doubled(processes: Processes, client: Client) -> None:
    with (
        client.producing(processes.address, idempotent=True) as producer,
        client.consuming(processes.address, topic="views", group="readers") as consumer,
    ):
        _send(producer, range(60))
        read = take(consumer, 60)
        processes.brokers[1].kill()
        _send(producer, range(60, 180))
        read += take(consumer, 120)
    assert sorted(int(each.value or b"") for each in read) == list(range(180))


def _send(producer: AnyProducer, numbers: range) -> None:
    for number in numbers:
        producer.send("views", Record(b"%d" % number, partition=number % PARTITIONS))
    assert [sent.error for sent in producer.settle()] == [None] * len(numbers)


@pytest.mark.long
def test_a_killed_leader_delays_our_clients_and_nothing_is_lost_or_doubled(processes: Processes) -> None:
    with (
        Producer(processes.address) as producer,
        Consumer(
            "views", bootstrap_servers=processes.address, group_id="readers", auto_offset_reset="earliest"
        ) as consumer,
    ):
        read: list[int] = []
        for numbers in (range(60), range(60, 180)):
            if numbers.start:
                processes.brokers[1].kill()
            sent = [producer.send("views", b"%d" % each, partition=each % PARTITIONS) for each in numbers]
            for delivery in sent:
                delivery.result(PATIENCE_S)
            while len(read) < numbers.stop:
                read += [int(each.value) for records in consumer.poll(PATIENCE_MS).values() for each in records]
    assert sorted(read) == list(range(180))
