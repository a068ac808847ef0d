"""Hostile or broken clients over real sockets.

Whatever they send, the outcome is a response or a closed connection. After each test a well-behaved client is served,
and nothing of the others is left: no connection, no descriptor, no task.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import resource
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
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
from tests.timeouts import until
from tests.wire.generate import Generator

from penstock.broker.api_table import PRIVATE, apis_of
from penstock.broker.broker import Broker
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.layout import ArrayOf, Kind, Struct
from penstock.wire.protocol import APIS, ApiKey, ErrorCode
from penstock.wire.schemas.api_versions import ApiVersionsRequest
from penstock.wire.schemas.metadata import MetadataRequest
from penstock.wire.types import STRING

SETTINGS = {
    "socket.request.max.bytes": "1000000",
    # Clients in threads of the same process come faster than the loop can take them in.
    "socket.listen.backlog.size": "4096",
    "offsets.topic.num.partitions": "2",
    "auto.create.topics.enable": "false",
}
SERVED = apis_of(in_cluster=False)
SERVED_VERSIONS = [
    (ApiKey(key), version) for key, api in SERVED.items() for version in range(api.min_version, api.max_version + 1)
]


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return SETTINGS


@pytest.fixture
def broker(embedded: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> Iterator[Broker]:
    """The broker, which must be as well after the story as it was before, and was never taken by surprise."""
    broker = embedded.broker
    is_served(embedded)
    until(lambda: open_connections(broker) == 0, "earlier connections are closed")
    tasks = call(broker, lambda: len(asyncio.all_tasks(broker.services.loop)))
    yield broker
    is_served(embedded)
    until(lambda: open_connections(broker) == 0, "the connections are closed")
    until(lambda: call(broker, lambda: len(asyncio.all_tasks(broker.services.loop))) <= tasks, "the tasks are done")
    surprises = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert not surprises, [record.getMessage() for record in surprises]


def open_connections(broker: Broker) -> int:
    return call(broker, lambda: broker.services.server.counters.connections)


def is_served(embedded: EmbeddedBroker) -> None:
    """A well-behaved client writes and reads."""
    topic = make_topic(embedded.broker)
    with WireClient(embedded.port) as client:
        assert client.produce(topic, batch_of(b"well")).error_code == ErrorCode.NONE
        assert values_in(client.fetch(topic).records) == [b"well"]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(api: int, version: int, number: int = 1) -> bytes:
    flexible = api in APIS and version in APIS[api].flexible
    return struct.pack(">hhih", api, version, number, -1) + (b"\0" if flexible else b"")


def tolerates(embedded: EmbeddedBroker, data: bytes) -> None:
    """Say this and hang up: whatever the broker makes of it, it does by itself."""
    with WireClient(embedded.port) as client:
        try:
            client.send_bytes(data)
        except ConnectionError:
            return


# --- bytes


@pytest.mark.parametrize("seed", range(4))
def test_random_bodies_in_every_version_of_every_api(embedded: EmbeddedBroker, broker: Broker, seed: int) -> None:
    chance = random.Random(seed)
    for api, version in SERVED_VERSIONS:
        body = chance.randbytes(chance.choice((0, 1, 3, 8, 40, 300)))
        tolerates(embedded, framed(header(api, version) + body))


@pytest.mark.parametrize("seed", range(4))
def test_requests_with_some_bytes_changed_in_every_version_of_every_api(
    embedded: EmbeddedBroker, broker: Broker, seed: int
) -> None:
    chance = random.Random(1000 + seed)
    topic = make_topic(broker)
    for api, version in SERVED_VERSIONS:
        message = APIS[api].request()
        if api is ApiKey.PRODUCE:
            message = produce_request({(topic, 0): batch_of(b"value")}, acks=1)
        elif api is ApiKey.FETCH:
            message = fetch_request({(topic, 0): 0})
        data = bytearray(request_bytes(api, version, 1, message)[4:])
        # Key and version stay, so that the change meets the API that it is meant for.
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(4, len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        tolerates(embedded, framed(bytes(data)))


class Nonsense(Generator):
    """Requests that are sound in form, about topics and groups that are there and others, with extreme numbers."""

    def __init__(self, seed: int, topic: str) -> None:
        super().__init__(seed)
        self._names = (topic, topic, topic, "nobody", "__consumer_offsets", "", "../up", "x" * 300, "Gr\u00fc\u00dfe")

    def value(self, kind: Kind, name: str) -> Any:
        if kind is STRING:
            return self.random.choice(self._names)
        if not isinstance(kind, (Struct, ArrayOf)) and kind.name == "records" and self.random.random() < 0.7:
            batch = batch_of(b"value", producer_id=self.random.choice((-1, 5)), producer_epoch=0, base_sequence=0)
            if self.random.random() < 0.5:
                batch[self.random.randrange(len(batch))] ^= 1 << self.random.randrange(8)
            return bytes(batch)
        return super().value(kind, name)


@pytest.mark.parametrize("seed", range(4))
def test_sound_requests_full_of_nonsense_in_every_version_of_every_api(
    embedded: EmbeddedBroker, broker: Broker, seed: int
) -> None:
    nonsense = Nonsense(seed, make_topic(broker))
    for api, version in SERVED_VERSIONS:
        message = nonsense.message(APIS[api].request, version)
        tolerates(embedded, request_bytes(api, version, 1, message))


def test_a_request_cut_off_anywhere_ends_the_connection(embedded: EmbeddedBroker, broker: Broker) -> None:
    topic = make_topic(broker)
    data = request_bytes(ApiKey.PRODUCE, 9, 1, produce_request({(topic, 0): batch_of(b"value")}, acks=1))[4:]
    for cut in range(0, len(data), 3):
        with WireClient(embedded.port) as client:
            client.send_bytes(framed(data[:cut]))
            assert client.is_ended(), f"cut at {cut} of {len(data)}"
    partition = broker.replicas.get(topic, 0)
    assert partition is not None
    assert partition.log.log_end_offset == 0


@pytest.mark.parametrize("size", [-1, -(2**31), 1_000_001, 2**31 - 1])
def test_a_length_that_cannot_be_ends_the_connection(embedded: EmbeddedBroker, broker: Broker, size: int) -> None:
    with WireClient(embedded.port) as client:
        client.send_bytes(struct.pack(">i", size) + b"whatever")
        assert client.is_ended()


def test_another_protocol_is_not_answered(embedded: EmbeddedBroker, broker: Broker) -> None:
    for greeting in (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10):
        with WireClient(embedded.port) as client:
            client.send_bytes(greeting)
            assert client.is_ended()


def test_a_count_of_elements_that_cannot_be_there_ends_the_connection(embedded: EmbeddedBroker, broker: Broker) -> None:
    # acks, timeout and then two thousand million topics.
    body = struct.pack(">hhii", -1, -1, 1000, 2**31 - 1)
    with WireClient(embedded.port) as client:
        client.send_bytes(framed(header(ApiKey.PRODUCE, 3) + body))
        assert client.is_ended()


# --- versions


@pytest.mark.parametrize("api", [-1, 4, 999, 32767])
def test_an_unknown_api_closes_the_connection(embedded: EmbeddedBroker, broker: Broker, api: int) -> None:
    with WireClient(embedded.port) as client:
        client.send_bytes(framed(header(api, 0) + bytes(20)))
        assert client.is_ended()


def test_versions_beyond_what_is_served_end_the_connection(embedded: EmbeddedBroker, broker: Broker) -> None:
    for key, api in SERVED.items():
        for version in (api.min_version - 1, api.max_version + 1, -(2**15)):
            if key == ApiKey.API_VERSIONS:
                continue
            with WireClient(embedded.port) as client:
                client.send_bytes(framed(header(key, version) + bytes(40)))
                assert client.is_ended(), f"{ApiKey(key).name} {version}"


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_api_versions_of_the_future_is_answered_in_version_0(
    embedded: EmbeddedBroker, broker: Broker, version: int
) -> None:
    with WireClient(embedded.port) as client:
        client.send_bytes(framed(struct.pack(">hhih", ApiKey.API_VERSIONS, version, 77, -1) + b"\x00\x02\x03"))
        number, answer = client.receive(ApiKey.API_VERSIONS, 0)
        assert (number, answer.error_code) == (77, ErrorCode.UNSUPPORTED_VERSION)
        assert {(row.api_key, row.min_version, row.max_version) for row in answer.api_keys} == {
            # The last version of InitProducerId is that of two-phase commit, which a setting allows.
            (key, api.min_version, api.max_version - (key == ApiKey.INIT_PRODUCER_ID))
            for key, api in SERVED.items()
            if key < PRIVATE
        }
        # The connection is good for another try.
        assert client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 3).error_code == ErrorCode.NONE


def test_every_advertised_version_is_served(embedded: EmbeddedBroker, broker: Broker) -> None:
    """With nothing in it, a request of any kind is answered, in order, on one connection."""
    with WireClient(embedded.port) as client:
        for api, version in SERVED_VERSIONS:
            if api is ApiKey.PRODUCE:
                continue  # with its default of acks=0 it has no answer
            client.ask(api, APIS[api].request(), version)


# --- slow, silent and many


def test_a_client_that_sends_byte_by_byte_is_served_and_does_not_delay_others(
    embedded: EmbeddedBroker, broker: Broker
) -> None:
    data = request_bytes(ApiKey.METADATA, 9, 5, MetadataRequest(topics=[]))
    with WireClient(embedded.port) as slow, WireClient(embedded.port) as other:
        for position in range(len(data)):
            slow.send_bytes(data[position : position + 1])
            if position % 5 == 0:
                other.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 3)
        assert slow.receive(ApiKey.METADATA, 9)[0] == 5


def test_a_client_that_stops_in_the_middle_of_a_request_is_disconnected(
    embedded: EmbeddedBroker, broker: Broker
) -> None:
    data = request_bytes(ApiKey.METADATA, 9, 5, MetadataRequest(topics=[]))
    with WireClient(embedded.port) as client:
        client.send_bytes(data[:-3])
        client.socket.shutdown(1)
        assert client.is_ended()


def test_a_client_that_never_reads_does_not_delay_others(embedded: EmbeddedBroker, broker: Broker) -> None:
    topic = make_topic(broker)
    with WireClient(embedded.port) as deaf, WireClient(embedded.port) as other:
        for _ in range(4):
            other.produce(topic, batch_of(bytes(500_000)), acks=1)
        for number in range(200):
            deaf.send_bytes(request_bytes(ApiKey.FETCH, 12, number, fetch_request({(topic, 0): 0})))
        assert other.produce(topic, batch_of(b"still here"), acks=1).error_code == ErrorCode.NONE
        # When it does read, everything is there, in order.
        for number in range(200):
            assert deaf.receive(ApiKey.FETCH, 12)[0] == number


def test_an_announced_frame_takes_no_memory_until_it_arrives(embedded: EmbeddedBroker, broker: Broker) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ExitStack() as stack:
        for _ in range(200):
            client = stack.enter_context(WireClient(embedded.port))
            client.send_bytes(struct.pack(">i", 999_999) + b"\0\0")
        is_served(embedded)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 100_000, "200 times a megabyte was announced, and next to nothing sent"


def test_two_thousand_connections_at_once_and_none_of_them_stays(embedded: EmbeddedBroker, broker: Broker) -> None:
    count = 2000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * count + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{needed} descriptors are needed, {hard} may be had")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    before = open_descriptors()
    try:
        with ExitStack() as stack:
            clients = [stack.enter_context(WireClient(embedded.port)) for _ in range(count)]
            for client in clients:
                client.send(ApiKey.API_VERSIONS, ApiVersionsRequest(), 3)
            for client in clients:
                assert client.receive(ApiKey.API_VERSIONS, 3)[1].error_code == ErrorCode.NONE
            assert open_connections(broker) == count
        until(lambda: open_connections(broker) == 0, "the connections are closed")
        assert open_descriptors() <= before + 5
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_per_address_are_bounded() -> None:
    with EmbeddedBroker(settings={**SETTINGS, "max.connections.per.ip": "3"}) as embedded, ExitStack() as stack:
        clients = [stack.enter_context(WireClient(embedded.port)) for _ in range(3)]
        for client in clients:
            client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 3)
        with WireClient(embedded.port) as fourth:
            assert fourth.is_ended()
        for client in clients:
            client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 3)
        clients[0].close()
        until(lambda: open_connections(embedded.broker) == 2, "the place is free")
        with WireClient(embedded.port) as successor:
            successor.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 3)


def test_a_connection_that_says_nothing_for_long_is_ended() -> None:
    with (
        EmbeddedBroker(settings={**SETTINGS, "connections.max.idle.ms": "200"}) as embedded,
        WireClient(embedded.port) as client,
    ):
        client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 3)
        with pytest.raises(Disconnected):
            client.receive_frame()
