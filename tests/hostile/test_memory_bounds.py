"""Peers that make a broker hold memory: half-sent requests, converted records, group members, fetch sessions."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from struct import pack
from typing import Any

import pytest
from tests.broker.broker_peer import authenticate
from tests.broker.wire_client import MIB, WireClient, call, fetch_request, make_topic, produce_request
from tests.timeouts import until

from penstock.broker import down_conversion
from penstock.broker.broker import Broker
from penstock.records import Codec, encode_batch
from penstock.runtime.socket_io import BUFFER_BYTES
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.framing import chunk_size
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.api_versions import ApiVersionsRequest
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest
from penstock.wire.schemas.join_group import JoinGroupRequest, JoinGroupRequestProtocol

QUEUED_BYTES = 4 * MIB
GROUP_BYTES = MIB
SESSION_PARTITIONS = 1_000


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return {
        "queued.max.request.bytes": str(QUEUED_BYTES),
        "socket.request.max.bytes": str(2 * MIB),
        "group.max.metadata.bytes": str(GROUP_BYTES),
        "max.incremental.fetch.session.cache.partitions": str(SESSION_PARTITIONS),
        "offsets.topic.num.partitions": "1",
    }


def server_of(broker: Broker) -> Any:
    """With what only the real one has."""
    return broker.services.server


def send_what_is_taken(peer: socket.socket, data: bytes) -> int:
    """Send until the kernel takes no more."""
    peer.setblocking(False)
    sent = 0
    with suppress(BlockingIOError):
        while sent < len(data):
            sent += peer.send(data[sent:])
    return sent


def test_half_sent_requests_take_at_most_queued_max_request_bytes(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient
) -> None:
    size = MIB
    half = pack(">i", size) + bytes(size - 1000)
    with ExitStack() as stack:
        peers = [stack.enter_context(WireClient(embedded.port)).socket for _ in range(12)]
        left = dict.fromkeys(peers, half)

        def push() -> bool:
            """Whether four are received, and all others wait."""
            for peer in peers:
                left[peer] = left[peer][send_what_is_taken(peer, left[peer]) :]
            return call(broker, lambda: len(server_of(broker)._shared.memory.line)) == 8

        until(push, "all but four wait")
        until(lambda: push() and sum(not data for data in left.values()) >= 4, "four are received but for the end")
        held = call(broker, lambda: [each.unread_bytes for each in server_of(broker).connections])
        assert sum(size > BUFFER_BYTES for size in held) == 4
        assert sum(held) <= QUEUED_BYTES + len(peers) * BUFFER_BYTES
        assert call(broker, lambda: server_of(broker).request_bytes) <= QUEUED_BYTES + BUFFER_BYTES
        # Those with small requests are served as ever.
        assert client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
    until(lambda: call(broker, lambda: server_of(broker).request_bytes) == 0, "the memory is given back")
    # And there is room for the next.
    topic = make_topic(broker)
    answer = client.ask(
        ApiKey.PRODUCE, produce_request({(topic, 0): encode_batch([(0, None, bytes(MIB // 2), ())])}), 9
    )
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def test_records_converted_for_old_readers_that_do_not_read_them_are_bounded(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 4 * MIB
    monkeypatch.setattr(broker.services.conversions, "_max_bytes", limit)
    topic = make_topic(broker, configs={"max.message.bytes": str(8 * MIB)})
    batch = encode_batch([(0, None, bytes(MIB // 2), ()), (0, None, bytes(MIB // 2), ())])
    for _ in range(3):
        assert client.produce(topic, batch).error_code == ErrorCode.NONE
    request = fetch_request({(topic, 0): 0}, partition_max_bytes=8 * MIB)
    readers = 12
    with ExitStack() as stack:
        crowd = [stack.enter_context(WireClient(embedded.port)) for _ in range(readers)]
        for each in crowd:
            each.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(10):
                each.send(ApiKey.FETCH, request, 3)
        frames = call(broker, lambda: server_of(broker).counters.frames)

        def is_done() -> bool:
            return call(
                broker,
                lambda: (
                    broker.services.long_requests._active == 0
                    and all(c.pending_replies == 0 for c in server_of(broker).connections)
                ),
            )

        until(is_done, "every fetch is answered")
        assert frames
        held = call(broker, lambda: broker.services.conversions.held)
        assert 0 < held <= limit + down_conversion.MAX_SET_BYTES // 8, held
    until(
        lambda: call(broker, lambda: broker.services.conversions.held) == 0,
        "memory of closed connections is given back",
    )
    old = client.fetch(topic, version=3, partition_max_bytes=8 * MIB)
    assert old.error_code == ErrorCode.NONE
    assert chunk_size(old.records or b"") > MIB


def test_a_compressed_batch_is_converted_beside_the_loop(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient
) -> None:
    topic = make_topic(broker)
    values = [b"%d" % number * 1000 for number in range(200)]
    client.produce(topic, encode_batch([(0, None, value, ()) for value in values], codec=Codec.GZIP))
    threads: list[object] = []
    run = broker.services.conversions._workers.run

    def watched(work: object, done: object) -> None:
        threads.append(work)
        run(work, done)  # type: ignore[arg-type]

    broker.services.conversions._workers.run = watched  # type: ignore[method-assign]
    try:
        assert client.fetch(topic, version=2).records
    finally:
        broker.services.conversions._workers.run = run  # type: ignore[method-assign]
    assert len(threads) == 1


def test_what_members_of_all_groups_bring_is_bounded(broker: Broker, client: WireClient) -> None:
    question = FindCoordinatorRequest(key="g")
    until(lambda: client.ask(ApiKey.FIND_COORDINATOR, question, 3).error_code == ErrorCode.NONE, "groups are served")
    metadata = bytes(200 * 1024)

    def join(number: int) -> int:
        request = JoinGroupRequest(
            group_id=f"group-{number}",
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        code: int = client.ask(ApiKey.JOIN_GROUP, request, 3).error_code
        return code

    until(lambda: join(0) == ErrorCode.NONE, "the coordinator is loaded")
    codes = [join(number) for number in range(1, 12)]
    assert codes == [ErrorCode.NONE] * 4 + [ErrorCode.GROUP_MAX_SIZE_REACHED] * 7
    assert call(broker, lambda: broker.services.groups.memory.held) <= GROUP_BYTES


@pytest.mark.parametrize("replica_id", [-1, 7])
def test_the_partitions_of_all_fetch_sessions_are_bounded(broker: Broker, client: WireClient, replica_id: int) -> None:
    topic = make_topic(broker)
    if replica_id >= 0:
        authenticate(client, broker)

    def open_session(width: int) -> int:
        request: FetchRequest = fetch_request({(topic, 0): 0}, session_epoch=0)
        request.replica_id = replica_id
        request.topics[0].partitions = [FetchPartition(partition=index) for index in range(width)]
        session_id: int = client.ask(ApiKey.FETCH, request, 12).session_id
        return session_id

    sessions = [open_session(400) for _ in range(5)]
    assert [bool(each) for each in sessions] == [True, True, False, False, False]
    assert call(broker, lambda: broker.services.sessions.partitions_cached) <= 2 * SESSION_PARTITIONS
    for each in sessions[:2]:
        assert call(broker, partial(broker.services.sessions.close_session, each))
