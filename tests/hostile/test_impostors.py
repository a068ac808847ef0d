"""Clients that pose as brokers of a cluster without configuration: what they ask for changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.broker.broker_peer import authenticate, begin, finish, prove
from tests.broker.cluster_stories import BrokerCluster, running
from tests.broker.wire_client import WireClient, batch_of, on_loop
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, Producer, TopicSpec
from penstock.broker.api_table import API_TABLE, PRIVATE
from penstock.cluster.broker_links import LinkLost
from penstock.cluster.image import encode_delta, make_delta
from penstock.cluster.image_propagation import WHOLE
from penstock.security.broker_proof import NONCE_BYTES, ClusterSecret, ConnectingProof
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.alter_partition import AlterPartitionRequest, BrokerState, PartitionData, TopicData
from penstock.wire.schemas.api_versions import ApiVersionsRequest
from penstock.wire.schemas.controlled_shutdown import ControlledShutdownRequest
from penstock.wire.schemas.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from penstock.wire.schemas.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from penstock.wire.schemas.forward import ForwardRequest
from penstock.wire.schemas.push_image import PushImageRequest

FAILED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
HUGE = 2**31 - 2
TOPIC = "deposits"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with running(str(tmp_path_factory.mktemp("impostors"))) as made:
        with Admin(made.bootstrap) as admin:
            admin.create_topics([TopicSpec(TOPIC, 1, 3)])
        made.until_in_sync(TOPIC)
        with Producer(made.bootstrap) as producer:
            producer.send(TOPIC, b"first").result(PATIENCE_S)
        yield made


def to(cluster: BrokerCluster, number: int) -> WireClient:
    return WireClient(cluster.brokers[number].port)


def still_works(cluster: BrokerCluster) -> None:
    """A change by the controller reaches every broker, and a record is acknowledged by all replicas."""
    name = f"after-{len(cluster.image().topics)}"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([TopicSpec(name, 1, 3)])
    for number in cluster.brokers:
        cluster.until_known(number, {name})
    with Producer(cluster.bootstrap) as producer:
        producer.send(name, b"x").result(PATIENCE_S)


def huge_image(cluster: BrokerCluster, victim: int) -> PushImageRequest:
    """The image that the victim has, under a controller epoch that no real controller will ever reach."""
    image = cluster.image(victim).with_controller(victim, HUGE)
    return PushImageRequest(
        controller_id=victim,
        controller_epoch=HUGE,
        broker_id=victim,
        broker_epoch=cluster.epoch(victim),
        number=1,
        base=WHOLE,
        delta=encode_delta(make_delta(type(image)(), image)),
    )


def test_an_image_with_a_huge_controller_epoch_stops_no_cluster(cluster: BrokerCluster) -> None:
    for number in cluster.brokers:
        with to(cluster, number) as client:
            assert client.ask(ApiKey.PUSH_IMAGE, huge_image(cluster, number), 0).error_code == FAILED
    still_works(cluster)


def test_not_even_a_broker_can_make_the_others_adopt_an_epoch_that_the_tree_does_not_hold(
    cluster: BrokerCluster,
) -> None:
    for number, broker in cluster.brokers.items():
        with to(cluster, number) as client:
            authenticate(client, broker.broker)
            answer = client.ask(ApiKey.PUSH_IMAGE, huge_image(cluster, number), 0)
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert cluster.image(number).controller_epoch < HUGE
    still_works(cluster)


@pytest.mark.parametrize("version", [4, 12, 17])
def test_a_fetch_in_the_name_of_a_replica_acknowledges_nothing(cluster: BrokerCluster, version: int) -> None:
    leader = cluster.partition(TOPIC).leader
    follower = next(each for each in cluster.brokers if each != leader)
    topic = cluster.image().topics[TOPIC]
    partition = FetchPartition(partition=0, fetch_offset=1000, current_leader_epoch=-1, partition_max_bytes=1 << 20)
    by_name = version < 13
    request = FetchRequest(
        replica_id=follower if version < 15 else -1,
        replica_state=ReplicaState(follower, cluster.epoch(follower)) if version >= 15 else ReplicaState(),
        topics=[FetchTopic(topic=TOPIC if by_name else "", topic_id=topic.topic_id, partitions=[partition])],
    )
    with to(cluster, leader) as client:
        answer = client.ask(ApiKey.FETCH, request, version)
    code = answer.error_code if version >= 7 else answer.responses[0].partitions[0].error_code
    assert code == FAILED
    assert sorted(cluster.partition(TOPIC).isr) == [0, 1, 2]


def test_controlled_shutdown_of_another_broker_moves_no_leader(cluster: BrokerCluster) -> None:
    before = cluster.partition(TOPIC)
    victim = before.leader
    with to(cluster, cluster.controller) as client:
        request = ControlledShutdownRequest(broker_id=victim, broker_epoch=cluster.epoch(victim))
        assert client.ask(ApiKey.CONTROLLED_SHUTDOWN, request, 3).error_code == FAILED
    assert cluster.partition(TOPIC) == before
    assert not cluster.image().shutting_down


def test_alter_partition_pushes_no_broker_out_of_an_isr(cluster: BrokerCluster) -> None:
    before = cluster.partition(TOPIC)
    leader = before.leader
    item = PartitionData(
        partition_index=0,
        leader_epoch=before.leader_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=leader, broker_epoch=cluster.epoch(leader))],
        partition_epoch=before.state_version,
    )
    request = AlterPartitionRequest(
        broker_id=leader,
        broker_epoch=cluster.epoch(leader),
        topics=[TopicData(topic_id=cluster.image().topics[TOPIC].topic_id, partitions=[item])],
    )
    with to(cluster, cluster.controller) as client:
        assert client.ask(ApiKey.ALTER_PARTITION, request, 3).error_code == FAILED
    assert cluster.partition(TOPIC) == before


def test_a_client_forwards_nothing_in_the_name_of_another_principal(cluster: BrokerCluster) -> None:
    request = ForwardRequest(api_key=ApiKey.DELETE_TOPICS, api_version=6, principal="User:admin")
    with to(cluster, cluster.controller) as client:
        assert client.ask(ApiKey.FORWARD, request, 0).error_code == FAILED


def test_every_private_api_is_restricted_to_brokers() -> None:
    open_to_all = {key for key, api in API_TABLE.items() if key >= PRIVATE and api.restricted is None}
    assert open_to_all == {ApiKey.AUTHENTICATE_BROKER}


# --- the proof itself


def test_a_wrong_secret_a_proof_without_a_nonce_and_a_replayed_proof_prove_nothing(cluster: BrokerCluster) -> None:
    secret = cluster.brokers[0].broker.cluster.secret
    with to(cluster, 0) as client:
        assert finish(client, 7, b"\0" * 32).error_code == FAILED
        begin(client, 7, b"n" * NONCE_BYTES)
        assert finish(client, 7, b"\0" * 32).error_code == FAILED
        proof = ConnectingProof(secret, 7, 0, b"n" * NONCE_BYTES)
        theirs = begin(client, 7, proof.nonce)
        ours = proof.answer(theirs.broker_id, bytes(theirs.nonce), bytes(theirs.proof))
        # What the broker said of itself is not what it accepts.
        assert finish(client, 7, bytes(theirs.proof)).error_code == FAILED
        assert finish(client, 7, ours).error_code == FAILED, "a nonce is good for one attempt"
        begin(client, 7, proof.nonce)
        assert finish(client, 7, ours).error_code == FAILED, "the proof of an earlier exchange"
        assert client.ask(ApiKey.PUSH_IMAGE, PushImageRequest(), 0).error_code == FAILED
        assert prove(client, secret, 0, 7).error_code == ErrorCode.NONE
        assert client.ask(ApiKey.PUSH_IMAGE, PushImageRequest(), 0).error_code == ErrorCode.STALE_CONTROLLER_EPOCH


def test_a_short_nonce_or_an_impossible_id_is_rejected(cluster: BrokerCluster) -> None:
    with to(cluster, 0) as client:
        assert begin(client, 7, b"short").error_code == FAILED
        assert begin(client, -1, b"n" * NONCE_BYTES).error_code == FAILED
        assert begin(client, 0, b"n" * NONCE_BYTES).error_code == FAILED, "it names the broker itself"


def test_a_broker_does_not_talk_to_another_that_cannot_prove_itself(
    cluster: BrokerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """As if an impostor listened at the address of broker 1."""
    membership = cluster.brokers[0].broker.services.membership
    links: Any = membership._dependencies.links

    async def ask() -> None:
        right, membership.secret = membership.secret, ClusterSecret(b"x" * 32)
        link = links.to(1)
        try:
            await link.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest(), PATIENCE_S * 1000)
        finally:
            membership.secret = right
            link.close()

    with pytest.raises(LinkLost, match="another cluster secret"):
        on_loop(cluster.brokers[0].broker, ask())
    assert "broker not authenticated: broker=1" in caplog.text
    still_works(cluster)


def test_all_brokers_have_one_secret_which_is_in_no_text(cluster: BrokerCluster) -> None:
    secrets = [broker.broker.cluster.secret for broker in cluster.brokers.values()]
    nonces = (b"a", b"b")
    assert len({each.prove(b"connects", 1, 2, nonces) for each in secrets}) == 1
    assert repr(secrets[0]) == "ClusterSecret(***)"


# --- internal topics


def test_committed_offsets_are_neither_forged_nor_deleted_by_clients_of_any_broker(cluster: BrokerCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.set_group_offsets("readers", {(TOPIC, 0): 1})
    until(lambda: "__consumer_offsets" in cluster.image().topics, "the topic exists")
    offsets = cluster.image().topics["__consumer_offsets"]
    invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
    for number in cluster.brokers:
        with to(cluster, number) as client:
            assert client.produce("__consumer_offsets", batch_of(b"forged")).error_code == invalid
            by_name = DeleteTopicsRequest(topics=[DeleteTopicState(name="__consumer_offsets")])
            by_id = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=offsets.topic_id)])
            for request in (by_name, by_id):
                answer = client.ask(ApiKey.DELETE_TOPICS, request, 6)
                assert answer.responses[0].error_code == invalid
            more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="__consumer_offsets", count=60)])
            assert client.ask(ApiKey.CREATE_PARTITIONS, more, 3).results[0].error_code == invalid
    assert cluster.image().topics["__consumer_offsets"] == offsets
