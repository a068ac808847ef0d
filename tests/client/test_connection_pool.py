"""Every way in which an address can turn out to be no broker, and what the error says."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.client.scripted import VERSIONS, Handle, Scripted, answer_bytes, brokers, next_request, run, speaking
from tests.client.tls import server_context, trusting_context
from tests.ports import free_port
from tests.timeouts import PATIENCE_MS, PATIENCE_S, until_async

from penstock.client.addresses import Address
from penstock.client.cluster_client import ClusterClient
from penstock.client.connection_pool import ConnectionOptions, UnusableAddress, open_connection
from penstock.client.errors import BootstrapError, Cause
from penstock.runtime.network import PortReservation
from penstock.wire.framing import RequestHeader
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.api_versions import ApiVersion, ApiVersionsResponse
from penstock.wire.schemas.list_groups import ListGroupsResponse
from penstock.wire.schemas.metadata import MetadataResponse

WAY = ConnectionOptions(connect_timeout_ms=PATIENCE_MS, request_timeout_ms=PATIENCE_MS)


def saying(first_bytes: bytes) -> Handle:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(first_bytes)
        await writer.drain()

    return handle


async def failure(server: Scripted, way: ConnectionOptions = WAY) -> UnusableAddress:
    with pytest.raises(UnusableAddress) as caught:
        await open_connection(Address("127.0.0.1", server.port), way)
    return caught.value


@pytest.mark.parametrize(
    ("first_bytes", "cause", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Cause.HTTP, "an HTTP response"),
        (b"\x15\x03\x01\x00\x02\x02\x46", Cause.TLS_REQUIRED, "a TLS alert"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Cause.NOT_KAFKA, "an SSH banner"),
        (b"220 mail ESMTP\r\n", Cause.NOT_KAFKA, "a mail or FTP server"),
        (b"-ERR unknown command\r\n", Cause.NOT_KAFKA, "a Redis server"),
        (b"\x00\x00\x00\x06zzzzzz", Cause.NOT_KAFKA, "not a Kafka broker's (it starts with 7a 7a"),
        (b"\xff\xff\xff\xff", Cause.NOT_KAFKA, "not a Kafka broker's"),
        (b"\x00\x00", Cause.NOT_KAFKA, "it starts with 00 00)"),
    ],
)
def test_other_servers_are_recognised_by_their_first_bytes(first_bytes: bytes, cause: Cause, words: str) -> None:
    async def story() -> None:
        async with Scripted(saying(first_bytes)) as server:
            error = await failure(server)
            assert error.cause is cause
            assert words in error.reason
            assert error.hint
            assert str(server.port) in str(error)

    run(story())


def test_nothing_listens() -> None:
    async def story() -> None:
        with pytest.raises(BootstrapError) as caught:
            await ClusterClient(f"127.0.0.1:{reservation.port}").start()
        (attempt,) = caught.value.attempts
        assert attempt.cause is Cause.REFUSED
        assert "is the broker running" in str(caught.value)

    reservation = PortReservation("127.0.0.1", 0)
    try:
        run(story())
    finally:
        reservation.release()


def test_a_host_that_cannot_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def story() -> None:
        with pytest.raises(BootstrapError) as caught:
            await ClusterClient("no-such-host.invalid:9092").start()
        assert caught.value.attempts[0].cause is Cause.DNS
        assert "'no-such-host.invalid' cannot be resolved" in str(caught.value)

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    run(story())


def test_a_silent_name_server_costs_at_most_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    answered = threading.Event()

    def silent(*_: object, **__: object) -> None:
        answered.wait(PATIENCE_S)
        raise socket.gaierror(socket.EAI_AGAIN, "too late")

    async def story() -> None:
        with pytest.raises(BootstrapError) as caught:
            await ClusterClient("slow.invalid:9092", connect_timeout_ms=100).start()
        assert caught.value.attempts[0].cause is Cause.CONNECT_TIMEOUT

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    run(story(), limit_s=5)
    answered.set()


def test_a_host_that_drops_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        # A full backlog: the kernel drops what does not fit in it, as a firewall would.
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
            address = full.getsockname()
            others = []
            for _ in range(4):
                other = socket.socket()
                other.setblocking(False)
                other.connect_ex(address)
                others.append(other)
            with pytest.raises(UnusableAddress) as caught:
                await open_connection(Address(*address), WAY._replace(connect_timeout_ms=200))
            for other in others:
                other.close()
            assert caught.value.cause is Cause.CONNECT_TIMEOUT
            assert "within 200 ms" in caught.value.reason

    run(story())


def test_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(*_: object, **__: object) -> None:
        raise OSError(113, "No route to host")

    async def story() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", unreachable)
        with pytest.raises(UnusableAddress) as caught:
            await open_connection(Address("127.0.0.1", 9), WAY)
        assert caught.value.cause is Cause.UNREACHABLE

    run(story())


def test_a_port_that_wants_tls(tmp_path: Path) -> None:
    async def story() -> None:
        async with Scripted(saying(b""), tls=server_context(tmp_path)) as server:
            error = await failure(server)
            assert error.cause is Cause.TLS_REQUIRED
            assert "set security_protocol" in error.hint

    run(story())


def test_a_port_that_does_not_want_tls() -> None:
    async def story() -> None:
        way = WAY._replace(ssl=ssl.create_default_context())
        for first_bytes in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
            async with Scripted(saying(first_bytes)) as server:
                error = await failure(server, way)
                assert error.cause is Cause.TLS_REFUSED
                assert "another security_protocol" in error.hint

    run(story())


def test_an_untrusted_certificate(tmp_path: Path) -> None:
    async def story() -> None:
        async with Scripted(saying(b""), tls=server_context(tmp_path)) as server:
            error = await failure(server, WAY._replace(ssl=ssl.create_default_context()))
            assert error.cause is Cause.TLS_CERTIFICATE
            assert "self-signed" in error.reason

    run(story())


def test_a_port_that_wants_a_certificate_of_the_client_too(tmp_path: Path) -> None:
    asking = server_context(tmp_path)
    asking.verify_mode = ssl.CERT_REQUIRED
    asking.load_verify_locations(tmp_path / "server.pem")

    async def story() -> None:
        async with Scripted(saying(b""), tls=asking) as server:
            error = await failure(server, WAY._replace(ssl=trusting_context()))
            assert error.cause is Cause.CLOSED
            assert "TLS" in error.reason
            assert "ssl_keystore_location" in error.hint

    run(story())


def test_tls_that_is_trusted_works(tmp_path: Path) -> None:
    async def story() -> None:
        answer = speaking(lambda header, message: ListGroupsResponse())
        async with Scripted(answer, tls=server_context(tmp_path)) as server:
            way = WAY._replace(ssl=trusting_context())
            connection = await open_connection(Address("127.0.0.1", server.port), way)
            assert connection.supports(ApiKey.FETCH, 12)
            connection.close()
            await connection.wait_closed(1_000)

    run(story())


def test_a_server_that_hears_but_does_not_speak() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def story() -> None:
        async with Scripted(mute) as server:
            error = await failure(server, WAY._replace(connect_timeout_ms=100))
            assert error.cause is Cause.NO_ANSWER

    run(story())


def test_a_load_balancer_without_a_broker() -> None:
    async def hanging_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        return

    async def story() -> None:
        async with Scripted(hanging_up) as server:
            error = await failure(server)
            assert error.cause is Cause.CLOSED
            assert "balancer" in error.hint

    run(story())


def test_a_broker_that_rejects_version_3_is_asked_in_version_0() -> None:
    asked: list[int] = []

    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            header, _ = await next_request(reader)
            asked.append(header.api_version)
            if header.api_version:
                reply = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
            else:
                reply = ApiVersionsResponse(
                    api_keys=[ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=2)]
                )
            # A broker answers a version that it does not know in the oldest.
            writer.write(answer_bytes(header._replace(api_version=0), reply))

    async def story() -> None:
        async with Scripted(old) as server:
            connection = await open_connection(Address("127.0.0.1", server.port), WAY)
            assert asked == [3, 0]
            assert connection.version_of(ApiKey.METADATA) == 2
            connection.close()

    run(story())


def test_a_broker_too_new_for_us_is_named_so() -> None:
    versions = [ApiVersion(api_key=ApiKey.METADATA, min_version=50, max_version=60)]

    async def story() -> None:
        async with Scripted(speaking(lambda header, message: None, versions)) as server:
            error = await failure(server)
            assert error.cause is Cause.VERSION
            assert "50 to 60" in error.reason

    run(story())


def knows_only(*keys: ApiKey) -> Handle:
    """A broker of before ApiVersions: what it does not know makes it hang up."""

    def answer(header: RequestHeader) -> Any:
        return ListGroupsResponse() if header.api.key is ApiKey.LIST_GROUPS else MetadataResponse()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            header, _ = await next_request(reader)
            if header.api.key not in keys or header.api_version:
                return
            writer.write(answer_bytes(header, answer(header)))

    return handle


@pytest.mark.parametrize(
    ("keys", "era", "joins"),
    [((ApiKey.LIST_GROUPS, ApiKey.METADATA), "0.9", True), ((ApiKey.METADATA,), "0.8", False)],
)
def test_a_broker_of_before_api_versions_is_recognised(keys: tuple[ApiKey, ...], era: str, joins: bool) -> None:
    async def story() -> None:
        async with Scripted(knows_only(*keys)) as server:
            connection = await open_connection(Address("127.0.0.1", server.port), WAY)
            assert connection.legacy_release == era
            assert connection.supports(ApiKey.JOIN_GROUP, 0) is joins
            assert connection.version_of(ApiKey.METADATA) == 0
            connection.close()

    run(story())


def passes_over_all_but(*keys: ApiKey) -> Handle:
    """A broker that takes no notice of requests that it does not know."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            header, _ = await next_request(reader)
            if header.api.key in keys and not header.api_version:
                reply = ListGroupsResponse() if header.api.key is ApiKey.LIST_GROUPS else MetadataResponse()
                writer.write(answer_bytes(header, reply))

    return handle


@pytest.mark.parametrize("maybe_old", [False, True])
@pytest.mark.parametrize(("keys", "era"), [((ApiKey.LIST_GROUPS, ApiKey.METADATA), "0.9"), ((ApiKey.METADATA,), "0.8")])
def test_a_broker_that_passes_over_api_versions_is_recognised(
    keys: tuple[ApiKey, ...], era: str, maybe_old: bool
) -> None:
    async def story() -> None:
        async with Scripted(passes_over_all_but(*keys)) as server:
            connection = await open_connection(Address("127.0.0.1", server.port), WAY, maybe_old=maybe_old)
            assert connection.legacy_release == era
            assert server.connections == 1
            assert connection.in_flight == 0
            connection.close()

    run(story())


@pytest.mark.parametrize("maybe_old", [False, True])
def test_a_slow_new_broker_is_not_treated_as_an_old_one(maybe_old: bool) -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, _ = await next_request(reader)
        # The probe arrives, and the answer to the first request still comes first.
        second, _ = await next_request(reader)
        third, _ = await next_request(reader)
        writer.write(answer_bytes(first, ApiVersionsResponse(api_keys=VERSIONS)))
        writer.write(answer_bytes(second, ListGroupsResponse()) + answer_bytes(third, MetadataResponse()))
        await reader.read()

    async def story() -> None:
        async with Scripted(slow) as server:
            connection = await open_connection(Address("127.0.0.1", server.port), WAY, maybe_old=maybe_old)
            assert connection.legacy_release is None
            assert connection.version_of(ApiKey.METADATA) == 12
            await until_async(lambda: connection.in_flight == 0, "all answers are taken")
            assert not connection.closed
            connection.close()

    run(story())


@pytest.mark.parametrize("hang_ups", [1, 2])
def test_hanging_up_does_not_make_a_new_broker_an_old_one(hang_ups: int) -> None:
    async def story() -> None:
        polite = speaking(
            lambda header, message: ListGroupsResponse() if header.api.key is ApiKey.LIST_GROUPS else MetadataResponse()
        )

        async def moody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if server.connections > hang_ups:
                await polite(reader, writer)

        async with Scripted(moody) as server:
            connection = await open_connection(Address("127.0.0.1", server.port), WAY)
            assert connection.legacy_release is None
            connection.close()

    run(story())


def test_a_broker_that_dies_twice_while_it_is_asked_is_not_treated_as_an_old_one() -> None:
    async def story() -> None:
        async def dying(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while server.connections < 3:  # The third one asks for TLS.
                header, _ = await next_request(reader)
                if header.api.key is ApiKey.API_VERSIONS:
                    if server.connections > 1:
                        reset(writer)
                    return
                writer.write(answer_bytes(header, ListGroupsResponse()))

        async with Scripted(dying) as server:
            error = await failure(server)
            assert error.cause is Cause.CLOSED
            assert server.connections == 3, "closed in good order, it was probed; reset, it was not taken for old"

    run(story())


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a machine that loses power and is asked again."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def test_every_address_is_tried_and_has_its_cause() -> None:
    async def story() -> None:
        async with Scripted(saying(b"HTTP/1.1 400\r\n")) as web:
            reservation = PortReservation("127.0.0.1", 0)
            nobody = f"127.0.0.1:{reservation.port}"
            with pytest.raises(BootstrapError) as caught:
                await ClusterClient([web.address, nobody]).start()
            reservation.release()
            assert [(attempt.address, attempt.cause) for attempt in caught.value.attempts] == [
                (web.address, Cause.HTTP),
                (nobody, Cause.REFUSED),
            ]

    run(story())


def test_one_good_address_among_bad_ones_is_enough() -> None:
    async def story() -> None:
        async with (
            Scripted(saying(b"HTTP/1.1 400\r\n")) as web,
            Scripted(
                lambda reader, writer: speaking(lambda *_: brokers((1, "127.0.0.1", good.port)))(reader, writer)
            ) as good,
            ClusterClient([web.address, good.address]) as cluster,
        ):
            assert set(cluster.view.nodes) == {1}

    run(story())


def test_a_wrong_advertised_address_is_reported_with_its_source() -> None:
    async def story() -> None:
        reservation = PortReservation("127.0.0.1", 0)
        answer = speaking(lambda *_: brokers((1, "127.0.0.1", reservation.port)))
        async with Scripted(answer) as server:
            with pytest.raises(BootstrapError) as caught:
                await ClusterClient(server.address).start()
        reservation.release()
        (attempt,) = caught.value.attempts
        assert attempt.cause is Cause.ADVERTISED
        assert f"{server.address} answers" in attempt.detail
        assert f"advertises 127.0.0.1:{reservation.port}" in attempt.detail
        assert "advertised.listeners" in attempt.hint

    run(story())


def test_a_start_with_time_waits_for_a_broker_that_is_still_starting() -> None:
    async def story() -> None:
        port = free_port()
        server = Scripted(speaking(lambda *_: brokers((1, "127.0.0.1", port))))
        server.port = port
        cluster = ClusterClient(f"127.0.0.1:{port}", retry_backoff_ms=20)
        starting = asyncio.ensure_future(cluster.start(timeout_ms=PATIENCE_MS))
        await asyncio.sleep(0.1)  # several attempts; a start that is slow to try only makes this easier to pass
        assert not starting.done()
        async with server:
            await starting
            await cluster.close()

    run(story())


def test_a_start_with_time_ends_with_it_and_says_why() -> None:
    async def story() -> None:
        reservation = PortReservation("127.0.0.1", 0)
        cluster = ClusterClient(f"127.0.0.1:{reservation.port}", retry_backoff_ms=20)
        with pytest.raises(BootstrapError, match="refused"):
            await cluster.start(timeout_ms=1_000)
        await cluster.close()
        reservation.release()

    run(story())
