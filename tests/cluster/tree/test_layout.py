"""The documents at the classic paths, held against what Kafka writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.errors import LayoutError
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import (
    BrokerRegistration,
    Endpoint,
    PartitionAssignment,
    PartitionState,
    ProducerIdBlock,
    TopicReplicas,
)
from penstock.log.log_dirs.identity import encode_id

TOPIC_ID = bytes(range(16))
TOPIC_ID_TEXT = "AAECAwQFBgcICQoLDA0ODw"


def parsed(data: bytes) -> Any:
    assert b": " not in data
    return json.loads(data)


# --- brokers

BROKER_V1 = b'{"jmx_port":-1,"timestamp":"1420485325400","host":"172.16.8.243","version":1,"port":9091}'
BROKER_V2 = b"""{"version":2,"host":"localhost","port":9092,"jmx_port":9999,"timestamp":"2233345666",
    "endpoints":["PLAINTEXT://host1:9092","SSL://host1:9093"]}"""
BROKER_V3 = BROKER_V2.replace(b'"version":2', b'"version":3,"rack":"dc1"')
BROKER_V4 = b"""{"version":4,"host":"localhost","port":9092,"jmx_port":9999,"timestamp":"2233345666",
    "endpoints":["CLIENT://host1:9092","REPLICATION://[::1]:9093"],
    "listener_security_protocol_map":{"CLIENT":"SSL","REPLICATION":"PLAINTEXT"},"rack":null}"""
BROKER_V5 = b"""{"features":{"f":{"min_version":1,"max_version":2}},
    "listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://localhost:9092"],
    "jmx_port":-1,"port":9092,"host":"localhost","version":5,"timestamp":"1611146362123","rack":"r1","new":[1]}"""


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            BROKER_V1,
            BrokerRegistration(7, (Endpoint("PLAINTEXT", "PLAINTEXT", "172.16.8.243", 9091),), None, 1420485325400),
        ),
        (
            BROKER_V2,
            BrokerRegistration(
                7,
                (Endpoint("PLAINTEXT", "PLAINTEXT", "host1", 9092), Endpoint("SSL", "SSL", "host1", 9093)),
                None,
                2233345666,
            ),
        ),
        (
            BROKER_V3,
            BrokerRegistration(
                7,
                (Endpoint("PLAINTEXT", "PLAINTEXT", "host1", 9092), Endpoint("SSL", "SSL", "host1", 9093)),
                "dc1",
                2233345666,
            ),
        ),
        (
            BROKER_V4,
            BrokerRegistration(
                7,
                (Endpoint("CLIENT", "SSL", "host1", 9092), Endpoint("REPLICATION", "PLAINTEXT", "::1", 9093)),
                None,
                2233345666,
            ),
        ),
        (
            BROKER_V5,
            BrokerRegistration(
                7,
                (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),),
                "r1",
                1611146362123,
                {"f": {"min_version": 1, "max_version": 2}},
            ),
        ),
    ],
)
def test_broker_of_any_version_is_read(document: bytes, expected: BrokerRegistration) -> None:
    assert layout.decode_broker(7, document) == expected


def test_broker_is_written_as_kafka_writes_it() -> None:
    endpoints = (Endpoint("SSL", "SSL", "::1", 9093), Endpoint("CLIENT", "PLAINTEXT", "h", 9092))
    data = layout.encode_broker(BrokerRegistration(1, endpoints, "r1", 1611146362123))
    assert parsed(data) == {
        "features": {},
        "listener_security_protocol_map": {"SSL": "SSL", "CLIENT": "PLAINTEXT"},
        "endpoints": ["SSL://[::1]:9093", "CLIENT://h:9092"],
        "jmx_port": -1,
        "port": 9092,
        "host": "h",
        "version": 5,
        "timestamp": "1611146362123",
        "rack": "r1",
    }
    assert layout.decode_broker(1, data) == BrokerRegistration(1, endpoints, "r1", 1611146362123)


def test_broker_lists_the_replicas_that_it_has_kept_and_those_that_are_offline() -> None:
    endpoints = (Endpoint("CLIENT", "PLAINTEXT", "h", 9092),)
    kept = {"views": TopicReplicas(b"v" * 16, frozenset({3, 1})), "clicks": TopicReplicas(b"c" * 16, frozenset({0}))}
    offline = {"views": TopicReplicas(b"v" * 16, frozenset({2}))}
    registration = BrokerRegistration(1, endpoints, is_emptied=True, kept=kept, offline=offline)
    data = layout.encode_broker(registration)
    assert layout.decode_broker(1, data) == registration
    assert parsed(data)["penstock_offline"] == {"views": [encode_id(b"v" * 16), [2]]}
    assert registration.has_kept("views", b"v" * 16, 3)
    assert not registration.has_kept("views", b"w" * 16, 3), "another topic of the name"
    assert not registration.has_kept("views", b"v" * 16, 2)
    assert registration.is_offline("views", b"v" * 16, 2)
    for broken in (b'"views":["short",[2]]', b'"views":["' + b"!" * 22 + b'",[2]]', b'"views":[2]'):
        with pytest.raises(LayoutError, match="/brokers/ids/1"):
            layout.decode_broker(1, data.replace(f'"views":["{encode_id(b"v" * 16)}",[2]]'.encode(), broken))


def test_broker_stores_its_previous_epoch_and_kafka_ignores_it() -> None:
    endpoints = (Endpoint("CLIENT", "PLAINTEXT", "h", 9092),)
    registration = BrokerRegistration(1, endpoints, epoch=30, clean_epoch=20, is_emptied=True, clean_since=10)
    data = layout.encode_broker(registration)
    assert parsed(data)["penstock_clean_epoch"] == 20
    assert "epoch" not in parsed(data)
    assert layout.decode_broker(1, data, 30) == registration
    assert layout.decode_broker(1, layout.encode_broker(BrokerRegistration(1, endpoints))).clean_epoch == -1
    with pytest.raises(LayoutError, match="penstock_clean_epoch"):
        layout.decode_broker(1, data.replace(b":20", b":-20"))
    with pytest.raises(LayoutError, match="penstock_clean_since"):
        layout.decode_broker(1, data.replace(b":10", b":-10"))


def test_broker_without_plaintext_and_rack_has_no_host_for_old_clients() -> None:
    document = parsed(layout.encode_broker(BrokerRegistration(1, (Endpoint("SSL", "SSL", "h", 9093),))))
    assert document["host"] is None
    assert document["port"] == -1
    assert "rack" not in document


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b'{"version":0}',
        b'{"version":1,"host":"h"}',
        b'{"version":2}',
        b'{"version":2,"endpoints":["nonsense"]}',
        b'{"version":2,"endpoints":["A://h:99999"]}',
        b'{"version":4,"endpoints":["A://h:1"],"listener_security_protocol_map":{}}',
        b'{"version":"5"}',
        b"[" * 100_000,
    ],
)
def test_invalid_broker_is_rejected_with_its_path(document: bytes) -> None:
    with pytest.raises(LayoutError, match="/brokers/ids/7"):
        layout.decode_broker(7, document)


# --- topics


def test_topic_is_written_as_kafka_writes_it() -> None:
    data = layout.encode_topic(TOPIC_ID, [PartitionAssignment((1, 2)), PartitionAssignment((2, 3, 1), (3,), (1,))])
    assert parsed(data) == {
        "removing_replicas": {"1": [1]},
        "partitions": {"0": [1, 2], "1": [2, 3, 1]},
        "topic_id": TOPIC_ID_TEXT,
        "adding_replicas": {"1": [3]},
        "version": 3,
    }
    assert layout.decode_topic("t", data) == (
        TOPIC_ID,
        (PartitionAssignment((1, 2)), PartitionAssignment((2, 3, 1), (3,), (1,))),
    )


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            b'{"version":1,"partitions":{"1":[2],"0":[1]}}',
            (None, (PartitionAssignment((1,)), PartitionAssignment((2,)))),
        ),
        (
            b'{"version":2,"partitions":{"0":[1,2]},"adding_replicas":{"0":[2]},"removing_replicas":{}}',
            (None, (PartitionAssignment((1, 2), (2,)),)),
        ),
        (b'{"version":4,"partitions":{},"topic_id":"%s","more":1}' % TOPIC_ID_TEXT.encode(), (TOPIC_ID, ())),
    ],
)
def test_topic_of_any_version_is_read(
    document: bytes, expected: tuple[bytes | None, tuple[PartitionAssignment, ...]]
) -> None:
    assert layout.decode_topic("t", document) == expected


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b'{"version":3}',
        b'{"version":3,"partitions":{"0":[]}}',
        b'{"version":3,"partitions":{"1":[0]}}',
        b'{"version":3,"partitions":{"4000000000":[0]}}',
        b'{"version":3,"partitions":{"0":[1,1]}}',
        b'{"version":3,"partitions":{"0":[-1]}}',
        b'{"version":3,"partitions":{"0":["1"]}}',
        b'{"version":3,"partitions":{"0":[1]},"topic_id":"short"}',
        b'{"version":3,"partitions":{"0":[1]},"topic_id":"!!!!!!!!!!!!!!!!!!!!!!"}',
    ],
)
def test_invalid_topic_is_rejected_with_its_path(document: bytes) -> None:
    with pytest.raises(LayoutError, match="/brokers/topics/t"):
        layout.decode_topic("t", document)


def test_partition_state_is_written_as_kafka_writes_it() -> None:
    data = layout.encode_partition_state(PartitionState(1, 4, (1, 2), 9))
    assert data == b'{"controller_epoch":9,"leader":1,"version":1,"leader_epoch":4,"isr":[1,2]}'
    assert layout.decode_partition_state("/p", data) == PartitionState(1, 4, (1, 2), 9)
    recovering = PartitionState(-1, 4, (1,), 9, recovering=True)
    data = layout.encode_partition_state(recovering)
    assert parsed(data)["leader_recovery_state"] == 1
    assert layout.decode_partition_state("/p", data) == recovering


def test_kafka_ignores_the_elr_of_a_partition_state() -> None:
    state = PartitionState(1, 4, (1,), 9, elr=(2, 3))
    data = layout.encode_partition_state(state)
    assert parsed(data)["penstock_elr"] == [2, 3]
    assert layout.decode_partition_state("/p", data) == state


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b'{"leader":1}',
        b'{"controller_epoch":9,"leader":-2,"version":1,"leader_epoch":4,"isr":[1]}',
        b'{"controller_epoch":9,"leader":1,"version":1,"leader_epoch":-4,"isr":[1]}',
        b'{"controller_epoch":9,"leader":1,"version":1,"leader_epoch":4,"isr":[-1]}',
        b'{"controller_epoch":9,"leader":1,"version":1,"leader_epoch":99999999999,"isr":[1]}',
    ],
)
def test_invalid_partition_state_is_rejected(document: bytes) -> None:
    with pytest.raises(LayoutError, match="/p"):
        layout.decode_partition_state("/p", document)


# --- the small ones


def test_settings_are_written_as_kafka_writes_them() -> None:
    data = layout.encode_config({"retention.ms": "1000", "Ω": '"'})
    assert parsed(data) == {"version": 1, "config": {"retention.ms": "1000", "Ω": '"'}}
    assert layout.decode_config("/p", data) == {"retention.ms": "1000", "Ω": '"'}
    assert layout.decode_config("/p", b"") == {}
    with pytest.raises(LayoutError):
        layout.decode_config("/p", b'{"version":1,"config":{"a":1}}')


def test_controller_is_written_as_kafka_writes_it() -> None:
    data = layout.encode_controller(3, 1611146362123)
    assert parsed(data) == {"version": 2, "brokerid": 3, "timestamp": "1611146362123", "kraftControllerEpoch": -1}
    assert layout.decode_controller(data) == 3


@pytest.mark.parametrize("document", [b'{"version":1,"brokerid":3,"timestamp":"1416974968782"}', b"3"])
def test_controllers_of_old_are_read(document: bytes) -> None:
    assert layout.decode_controller(document) == 3


def test_controller_epoch_is_a_number() -> None:
    assert layout.encode_controller_epoch(12) == b"12"
    assert layout.decode_controller_epoch(b"12") == 12
    for wrong in (b"", b"x", b"-1", b"\xff", b"99999999999"):
        with pytest.raises(LayoutError):
            layout.decode_controller_epoch(wrong)


def test_cluster_id_is_written_as_kafka_writes_it() -> None:
    data = layout.encode_cluster_id(TOPIC_ID_TEXT)
    assert data == b'{"version":"1","id":"AAECAwQFBgcICQoLDA0ODw"}'
    assert layout.decode_cluster_id(data) == TOPIC_ID_TEXT
    with pytest.raises(LayoutError):
        layout.decode_cluster_id(b'{"version":"1","id":""}')


def test_block_of_producer_ids_is_written_as_kafka_writes_it() -> None:
    data = layout.encode_producer_ids(ProducerIdBlock(2, 1000, 1999))
    assert data == b'{"version":1,"broker":2,"block_start":"1000","block_end":"1999"}'
    assert layout.decode_producer_ids(data) == ProducerIdBlock(2, 1000, 1999)
    assert layout.decode_producer_ids(b"") is None
    for wrong in (data.replace(b"1999", b"99"), data.replace(b"1999", b"9" * 19), data.replace(b"1999", b"x")):
        with pytest.raises(LayoutError):
            layout.decode_producer_ids(wrong)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_decoded_or_raise_layout_error(data: bytes) -> None:
    for decode in (
        lambda: layout.decode_broker(1, data),
        lambda: layout.decode_topic("t", data),
        lambda: layout.decode_partition_state("/p", data),
        lambda: layout.decode_config("/p", data),
        lambda: layout.decode_controller(data),
        lambda: layout.decode_controller_epoch(data),
        lambda: layout.decode_cluster_id(data),
        lambda: layout.decode_producer_ids(data),
        lambda: layout.decode_acls("/p", data),
    ):
        try:
            decode()
        except LayoutError:
            continue


# --- requests of tools

T = ("t", 0)


def test_requests_of_old_tools_are_read_as_kafka_writes_them() -> None:
    moves = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any","any"]}]}'
    assert layout.decode_reassignment(moves) == {T: (1, 2)}
    assert layout.decode_reassignment(layout.encode_reassignment({T: (2, 3)})) == {T: (2, 3)}
    assert layout.decode_preferred_election(b'{"version":1,"partitions":[{"topic":"t","partition":0}]}') == [T]


@pytest.mark.parametrize("data", [b"", b"{}", b'{"version":1,"partitions":[{"topic":"t"}]}', b"[" * 100_000, b"\xff"])
def test_requests_that_cannot_be_read_are_rejected_with_their_path(data: bytes) -> None:
    with pytest.raises(LayoutError, match="/admin/reassign_partitions"):
        layout.decode_reassignment(data)
    with pytest.raises(LayoutError, match="/admin/preferred_replica_election"):
        layout.decode_preferred_election(data)


def test_request_that_lists_a_partition_twice_is_rejected() -> None:
    twice = b'{"version":1,"partitions":[%s,%s]}' % ((b'{"topic":"t","partition":0,"replicas":[1]}',) * 2)
    with pytest.raises(LayoutError, match="twice"):
        layout.decode_reassignment(twice)
    with pytest.raises(LayoutError, match="twice"):
        layout.decode_preferred_election(twice)


# --- the cluster's secret


def test_the_cluster_secret_is_stored_and_read_and_a_damaged_one_is_not_quoted() -> None:
    data = layout.encode_cluster_secret(b"s" * 32)
    assert layout.decode_cluster_secret(data) == b"s" * 32
    for bad in (b"", b"{}", data.replace(b"c3", b"", 1), b'{"version":1,"secret":"hunter2"}'):
        with pytest.raises(LayoutError, match="/penstock/cluster_secret") as caught:
            layout.decode_cluster_secret(bad)
        assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "entity"),
    [
        (b'{"version":1,"entity_type":"topics","entity_name":"views"}', "topics/views"),
        (b'{"version":2,"entity_path":"users/alice/clients/web"}', "users/alice/clients/web"),
        (b'"views"', "topics/views"),
    ],
)
def test_notifications_of_every_version_say_whose_settings_changed(data: bytes, entity: str) -> None:
    assert layout.decode_config_change("/config/changes/x", data) == entity


@pytest.mark.parametrize("data", [b"", b"{", b"7", b"{}", b'{"version":1,"entity_type":"topics"}', b"\xff"])
def test_notification_without_a_name(data: bytes) -> None:
    with pytest.raises(LayoutError, match="/config/changes/x"):
        layout.decode_config_change("/config/changes/x", data)


@pytest.mark.parametrize("data", [b"", b"null", b"{", b"\xff", b'{"version":1}', b'{"version":1,"topic_id":"x"}'])
def test_node_above_partitions_without_an_id_has_none(data: bytes) -> None:
    assert layout.decode_topic_id(data) is None


def test_id_in_the_node_above_partitions() -> None:
    assert layout.decode_topic_id(layout.encode_topic_id(b"i" * 16)) == b"i" * 16
    assert layout.encode_topic_id(None) == b""
