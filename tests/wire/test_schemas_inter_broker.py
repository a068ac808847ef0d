"""Messages between brokers that no oracle has, against bytes written by hand from the protocol's
description.
"""

from __future__ import annotations

from struct import pack

import pytest

from penstock.wire.codec import codec_for
from penstock.wire.schemas.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionData,
    PartitionDataResult,
    TopicData,
    TopicDataResult,
)
from penstock.wire.schemas.authenticate_broker import AuthenticateBrokerRequest, AuthenticateBrokerResponse
from penstock.wire.schemas.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from penstock.wire.schemas.forward import ForwardRequest, ForwardResponse
from penstock.wire.schemas.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
)
from penstock.wire.schemas.push_image import PushImageRequest, PushImageResponse, RemovedTopic
from penstock.wire.schemas.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
    StopReplicaTopicV1,
)
from penstock.wire.schemas.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from penstock.wire.types import Message

TOPIC_ID = bytes(range(16))


def text(value: str) -> bytes:
    return pack(">h", len(value)) + value.encode()


def compact(value: str) -> bytes:
    return bytes([len(value) + 1]) + value.encode()


def ints(*values: int) -> bytes:
    return pack(f">i{len(values)}i", len(values), *values)


def compact_ints(*values: int) -> bytes:
    return pack(f">B{len(values)}i", len(values) + 1, *values)


def one(element: bytes) -> bytes:
    return pack(">i", 1) + element


def compact_one(element: bytes) -> bytes:
    return b"\2" + element


def check(message: Message, version: int, expected: bytes) -> None:
    codec = codec_for(type(message), version)
    assert codec.encode(message) == expected
    assert codec.decode(expected) == (message, len(expected))


def leader_and_isr(version: int) -> tuple[LeaderAndIsrRequest, bytes]:
    flexible, grouped = version >= 4, version >= 2
    string, array, wrapped = (compact, compact_ints, compact_one) if flexible else (text, ints, one)
    end = b"\0" if flexible else b""
    state = LeaderAndIsrPartitionState(
        topic_name="" if grouped else "orders",
        partition_index=3,
        controller_epoch=7,
        leader=1,
        leader_epoch=9,
        isr=[1, 2],
        partition_epoch=11,
        replicas=[1, 2, 3],
        adding_replicas=[3] if version >= 3 else [],
        is_new=version >= 1,
        leader_recovery_state=1 if version >= 6 else 0,
    )
    partition = pack(">iiii", 3, 7, 1, 9) + array(1, 2) + pack(">i", 11) + array(1, 2, 3)
    partition += array(3) + array() if version >= 3 else b""
    partition += b"\1" if version >= 1 else b""
    partition += b"\1" if version >= 6 else b""
    partition += end
    request = LeaderAndIsrRequest(
        controller_id=5,
        is_kraft_controller=version >= 7,
        controller_epoch=7,
        broker_epoch=99 if grouped else -1,
        type=2 if version >= 5 else 0,
        live_leaders=[LeaderAndIsrLiveLeader(1, "one", 9092)],
    )
    expected = pack(">i", 5) + (b"\1" if version >= 7 else b"") + pack(">i", 7)
    expected += pack(">q", 99) if grouped else b""
    expected += b"\2" if version >= 5 else b""
    if grouped:
        topic_id = TOPIC_ID if version >= 5 else bytes(16)
        request.topic_states = [LeaderAndIsrTopicState("orders", topic_id, [state])]
        expected += wrapped(string("orders") + (topic_id if version >= 5 else b"") + wrapped(partition) + end)
    else:
        request.ungrouped_partition_states = [state]
        expected += wrapped(text("orders") + partition)
    expected += wrapped(pack(">i", 1) + string("one") + pack(">i", 9092) + end) + end
    return request, expected


@pytest.mark.parametrize("version", range(8))
def test_leader_and_isr_grows_from_flat_partitions_to_topics_with_ids(version: int) -> None:
    check(*_with(version, leader_and_isr(version)))


@pytest.mark.parametrize("version", range(8))
def test_leader_and_isr_answers_by_topic_name_until_5(version: int) -> None:
    if version >= 5:
        error = LeaderAndIsrPartitionError(partition_index=3, error_code=56)
        message = LeaderAndIsrResponse(0, topics=[LeaderAndIsrTopicError(TOPIC_ID, [error])])
        inner = compact_one(pack(">ih", 3, 56) + b"\0")
        check(message, version, pack(">h", 0) + compact_one(TOPIC_ID + inner + b"\0") + b"\0")
        return
    message = LeaderAndIsrResponse(0, [LeaderAndIsrPartitionError("orders", 3, 56)])
    if version == 4:
        check(
            message,
            version,
            pack(">h", 0) + compact_one(compact("orders") + pack(">ih", 3, 56) + b"\0") + b"\0",
        )
    else:
        check(message, version, pack(">h", 0) + one(text("orders") + pack(">ih", 3, 56)))


def test_stop_replica_has_three_shapes() -> None:
    flat = StopReplicaRequest(5, controller_epoch=7, delete_partitions=True)
    flat.ungrouped_partitions = [StopReplicaPartitionV0("orders", 3)]
    check(flat, 0, pack(">ii?", 5, 7, True) + one(text("orders") + pack(">i", 3)))

    by_topic = StopReplicaRequest(5, False, 7, 99, True, topics=[StopReplicaTopicV1("orders", [3, 4])])
    check(by_topic, 1, pack(">iiq?", 5, 7, 99, True) + one(text("orders") + ints(3, 4)))
    flexible = compact_one(compact("orders") + compact_ints(3, 4) + b"\0")
    check(by_topic, 2, pack(">iiq?", 5, 7, 99, True) + flexible + b"\0")

    state = StopReplicaPartitionState(3, 9, True)
    states = StopReplicaRequest(5, False, 7, 99, topic_states=[StopReplicaTopicState("orders", [state])])
    body = compact_one(compact("orders") + compact_one(pack(">ii?x", 3, 9, True)) + b"\0") + b"\0"
    check(states, 3, pack(">iiq", 5, 7, 99) + body)
    states.is_kraft_controller = True
    check(states, 4, pack(">i?iq", 5, True, 7, 99) + body)


@pytest.mark.parametrize("version", range(5))
def test_stop_replica_answers_flat_in_all_versions(version: int) -> None:
    message = StopReplicaResponse(41, [StopReplicaPartitionError("orders", 3, 74)])
    if version >= 2:
        check(message, version, pack(">h", 41) + compact_one(compact("orders") + pack(">ihx", 3, 74)) + b"\0")
    else:
        check(message, version, pack(">h", 41) + one(text("orders") + pack(">ih", 3, 74)))


def update_metadata(version: int) -> tuple[UpdateMetadataRequest, bytes]:
    flexible, grouped = version >= 6, version >= 5
    string, array, wrapped = (compact, compact_ints, compact_one) if flexible else (text, ints, one)
    end = b"\0" if flexible else b""
    state = UpdateMetadataPartitionState(
        "" if grouped else "orders", 3, 7, 1, 9, [1, 2], 11, [1, 2], [2] if version >= 4 else []
    )
    partition = pack(">iiii", 3, 7, 1, 9) + array(1, 2) + pack(">i", 11) + array(1, 2)
    partition += (array(2) if version >= 4 else b"") + end
    broker = UpdateMetadataBroker(1)
    live = pack(">i", 1)
    if version == 0:
        broker.v0_host, broker.v0_port = "one", 9092
        live += text("one") + pack(">i", 9092)
    else:
        listener = "PLAINTEXT" if version >= 3 else ""
        broker.endpoints = [UpdateMetadataEndpoint(9092, "one", listener, 1)]
        endpoint = pack(">i", 9092) + string("one") + (string(listener) if listener else b"") + pack(">h", 1) + end
        live += wrapped(endpoint)
    if version >= 2:
        broker.rack = None
        live += b"\0" if flexible else b"\xff\xff"
    live += end
    request = UpdateMetadataRequest(
        5, version >= 8, 1 if version >= 8 else 0, 7, 99 if grouped else -1, live_brokers=[broker]
    )
    expected = pack(">i", 5) + (b"\1" if version >= 8 else b"") + pack(">i", 7)
    if grouped:
        topic_id = TOPIC_ID if version >= 7 else bytes(16)
        request.topic_states = [UpdateMetadataTopicState("orders", topic_id, [state])]
        topic = string("orders") + (topic_id if version >= 7 else b"") + wrapped(partition) + end
        expected += pack(">q", 99) + wrapped(topic)
    else:
        request.ungrouped_partition_states = [state]
        expected += wrapped(text("orders") + partition)
    tags = b"\1\0\1\1" if version >= 8 else end
    return request, expected + wrapped(live) + tags


@pytest.mark.parametrize("version", range(9))
def test_update_metadata_grows_from_one_host_to_endpoints_and_topics(version: int) -> None:
    check(*_with(version, update_metadata(version)))


@pytest.mark.parametrize("version", range(9))
def test_update_metadata_answers_with_a_code_only(version: int) -> None:
    check(UpdateMetadataResponse(11), version, pack(">h", 11) + (b"\0" if version >= 6 else b""))


@pytest.mark.parametrize("version", range(4))
def test_controlled_shutdown_gains_the_broker_epoch(version: int) -> None:
    end = b"\0" if version >= 3 else b""
    request = ControlledShutdownRequest(4, 99 if version >= 2 else -1)
    check(request, version, pack(">i", 4) + (pack(">q", 99) if version >= 2 else b"") + end)
    response = ControlledShutdownResponse(0, [RemainingPartition("orders", 3)])
    if version >= 3:
        check(response, version, pack(">h", 0) + compact_one(compact("orders") + pack(">ix", 3)) + end)
    else:
        check(response, version, pack(">h", 0) + one(text("orders") + pack(">i", 3)))


@pytest.mark.parametrize("version", [0, 1])
def test_alter_partition_names_topics_before_it_used_ids(version: int) -> None:
    recovering = version
    partition = PartitionData(3, 9, [1, 2], leader_recovery_state=recovering, partition_epoch=11)
    recovery = pack(">b", recovering) if version else b""
    inner = compact_one(pack(">ii", 3, 9) + compact_ints(1, 2) + recovery + pack(">ix", 11))
    request = AlterPartitionRequest(4, 99, [TopicData("orders", partitions=[partition])])
    check(request, version, pack(">iq", 4, 99) + compact_one(compact("orders") + inner + b"\0") + b"\0")

    result = PartitionDataResult(3, 0, 1, 9, [1, 2], recovering, 11)
    inner = compact_one(pack(">ihii", 3, 0, 1, 9) + compact_ints(1, 2) + recovery + pack(">ix", 11))
    response = AlterPartitionResponse(20, 0, [TopicDataResult("orders", partitions=[result])])
    check(response, version, pack(">ih", 20, 0) + compact_one(compact("orders") + inner + b"\0") + b"\0")


def test_push_image_is_ours_alone_and_stays_as_it_is() -> None:
    request = PushImageRequest(1, 7, 2, 99, 12, 11, b"delta")
    check(request, 0, pack(">iiiqqq", 1, 7, 2, 99, 12, 11) + b"\x06delta" + b"\0")
    response = PushImageResponse(95, 11, [RemovedTopic("orders", TOPIC_ID)])
    check(response, 0, pack(">hq", 95, 11) + compact_one(compact("orders") + TOPIC_ID + b"\0") + b"\0")


def test_what_brokers_prove_and_forward_stays_as_it_is() -> None:
    proof = AuthenticateBrokerRequest(7, b"nonce", b"proof")
    check(proof, 0, pack(">i", 7) + b"\x06nonce" + b"\x06proof" + b"\0")
    proven = AuthenticateBrokerResponse(31, 7, b"nonce", b"proof")
    check(proven, 0, pack(">hi", 31, 7) + b"\x06nonce" + b"\x06proof" + b"\0")
    request = ForwardRequest(19, 7, "app", "User:a", ["Group:b"], "L", "SSL", "::1", b"body")
    texts = compact("User:a") + b"\x02" + compact("Group:b") + compact("L") + compact("SSL") + compact("::1")
    check(request, 0, pack(">hh", 19, 7) + compact("app") + texts + b"\x05body" + b"\0")
    check(ForwardResponse(41, b"body"), 0, pack(">h", 41) + b"\x05body" + b"\0")


def _with(version: int, pair: tuple[Message, bytes]) -> tuple[Message, int, bytes]:
    return pair[0], version, pair[1]
