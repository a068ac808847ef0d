"""The HTTP port under attack: clients of /metrics that do not read, and web pages of other sites."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.broker.http_stories import Peer, Site, run, says, site
from tests.timeouts import PATIENCE_S, until_async

from penstock.broker.http import Handler, HttpLimits, HttpRequest, Reply
from penstock.runtime.network import is_host_of
from penstock.testing.embedded_broker import EmbeddedBroker

ROUTES = 3
LIMITS = HttpLimits(connections=12, answers_per_route=ROUTES, slow_s=2.0)


def endless() -> Handler:
    """More than any socket's buffers hold."""

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield bytes(65536)

    async def handle(request: HttpRequest) -> Reply:
        return Reply(200, "text/plain", pieces())

    return handle


async def slow_reader(place: Site) -> Peer:
    """Asks, reads nothing, and stays."""
    peer = await place.peer()
    await peer.send(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
    return peer


def answering(place: Site) -> int:
    return len(place.server._answering["/metrics"])


def test_health_is_answered_however_many_read_metrics_slowly() -> None:
    async def story() -> None:
        async with site({"/metrics": endless(), "/health": says(b"ok")}, LIMITS) as place:
            # As many as there are connections.
            readers = [await slow_reader(place) for _ in range(LIMITS.connections)]
            await until_async(lambda: answering(place) == ROUTES, "as many as may are being answered")
            answers = [await reader.answer() for reader in readers[ROUTES:]]
            assert {answer.status for answer in answers} == {503}
            assert {answer.headers["retry-after"] for answer in answers} == {"1"}
            for _ in range(3):
                assert (await (await place.peer()).ask("/health")).body == b"ok"
            assert answering(place) == ROUTES
            for reader in readers:
                reader.writer.transport.abort()

    run(story)


def test_an_answer_that_takes_too_long_makes_room_for_the_next() -> None:
    async def story() -> None:
        async with site({"/metrics": endless(), "/health": says(b"ok")}, LIMITS) as place:
            readers = [await slow_reader(place) for _ in range(ROUTES)]
            await until_async(lambda: answering(place) == ROUTES, "as many as may are being answered")
            assert (await (await place.peer()).ask("/metrics")).status == 503
            place.server._clock.advance(2_000)  # type: ignore[attr-defined]
            late = await slow_reader(place)
            async with asyncio.timeout(PATIENCE_S):
                head = await late.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert answering(place) == ROUTES
            for reader in (*readers, late):
                reader.writer.transport.abort()

    run(story)


@pytest.mark.parametrize(
    ("header", "is_ours"),
    [
        (None, True),
        ("127.0.0.1:8092", True),
        ("10.0.0.7", True),
        ("[::1]:8092", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST:8092", True),
        ("app.localhost:8092", True),
        ("broker-1.example:8092", True),
        ("Broker-1.example.", True),
        ("evil.example", False),
        ("evil.example:8092", False),
        ("broker-1.example.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_host_headers_that_name_this_machine(header: str | None, is_ours: bool) -> None:
    assert is_host_of(header, {"broker-1.example"}) == is_ours


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(http_port=0, settings={"penstock.http.hosts": "metrics.example"}) as broker:
        yield broker


@pytest.mark.parametrize("path", ["/metrics", "/health"])
@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1", 200), ("localhost:8092", 200), ("metrics.example", 200), ("rebound.evil.example", 421)],
)
def test_a_broker_answers_to_its_own_names_only(embedded: EmbeddedBroker, path: str, host: str, status: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", embedded.http_port or 0, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == status, body
        assert (b"penstock.http.hosts" in body) == (status == 421)
    finally:
        connection.close()
