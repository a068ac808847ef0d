"""The HTTP server, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import logging
import socket
from collections.abc import AsyncIterator
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.exposition import parse
from tests.broker.http_stories import Peer, run, says, site
from tests.timeouts import PATIENCE_S

from penstock.broker.http import (
    AddressInUse,
    CannotListen,
    Health,
    HttpLimits,
    HttpRequest,
    HttpServer,
    RejectedRequest,
    Reply,
    health_route,
    metrics_route,
    parse_request,
)
from penstock.broker.metrics import CONTENT_TYPE, Registry

HELLO = {"/hello": says(b"hello")}


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
        (b"GET / http/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"G\xc3T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET hello HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"CONNECT there:443 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET ftp://there/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET http:///hello HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: y\nZ: w\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: y\rZ: w\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: \xb2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
def test_a_malformed_head_is_rejected(head: bytes, status: int) -> None:
    with pytest.raises(RejectedRequest) as rejected:
        parse_request(head)
    assert rejected.value.status == status


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([b"GET", b" ", b"/a", b"HTTP/1.1", b"\r\n", b"Host", b":", b"\n", b"\xff", b"?"])))
def test_any_bytes_are_a_request_or_rejected(parts: list[bytes]) -> None:
    try:
        request = parse_request(b"".join(parts) + b"\r\n\r\n")
    except RejectedRequest:
        return
    assert request.path.startswith("/")


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", ""),
        ("/a?b=c?d", "/a", "b=c?d"),
        ("/a?u=http://there/x", "/a", "u=http://there/x"),
        ("http://there:80/a?b", "/a", "b"),
        ("HTTP://there", "/", ""),
        ("http://there?b", "/", "b"),
        ("*", "/", ""),
    ],
)
def test_a_target_is_a_path_and_a_query(target: str, path: str, query: str) -> None:
    request = parse_request(f"OPTIONS {target} HTTP/1.1\r\nHost: there\r\n\r\n".encode())
    assert (request.path, request.query) == (path, query)


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip;q=0.001", True),
        ("identity", False),
        ("gzipped", False),
        ("", False),
    ],
)
def test_gzip_is_used_for_clients_that_accept_it(header: str, accepted: bool) -> None:
    request = parse_request(f"GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {header}\r\n\r\n".encode())
    assert request.accepts_gzip is accepted


def test_a_request_is_answered_and_the_connection_stays_open() -> None:
    async def story() -> None:
        async with site(HELLO) as here:
            peer = await here.peer()
            for _ in range(3):
                answer = await peer.ask("/hello?x=1")
                assert (answer.status, answer.body) == (200, b"hello")
            assert answer.headers["date"] == "Sun, 06 Nov 1994 08:49:37 GMT"
            assert answer.headers["content-type"] == "text/plain"
            assert answer.headers["connection"] == "keep-alive"
            assert here.server.connections == 1

    run(story)


def test_a_malformed_request_gets_400_and_the_end() -> None:
    async def story() -> None:
        async with site(HELLO) as here:
            peer = await here.peer()
            await peer.send(b"\x16\x03\x01 this is not HTTP\r\n\r\nGET /hello HTTP/1.1\r\nHost: a\r\n\r\n")
            answer = await peer.answer()
            assert (answer.status, answer.headers["connection"]) == (400, "close")
            assert await peer.ended()
            assert (await (await here.peer()).ask("/hello")).status == 200

    run(story)


def test_a_request_that_ends_in_its_middle_gets_400() -> None:
    async def story() -> None:
        async with site(HELLO) as here:
            for part in (b"G", b"GET /hello HTTP/1.1\r\nHo", b"\r", b"\r\n"):
                peer = await here.peer()
                await peer.send(part)
                peer.writer.write_eof()
                assert (await peer.answer()).status == 400
                assert await peer.ended()

    run(story)


def test_a_head_beyond_the_limit_gets_431_however_it_comes() -> None:
    async def story() -> None:
        async with site(HELLO) as here:
            start = b"GET /hello HTTP/1.1\r\nHost: a\r\n"
            for flood in (b"X: " + b"y" * 9000 + b"\r\n\r\n", b"X: y\r\n" * 2000 + b"\r\n", b"y" * 300_000):
                peer = await here.peer()
                peer.writer.write(start + flood)
                assert (await peer.answer()).status == 431
                assert await peer.ended()
            peer = await here.peer()
            fits = b"X: " + b"y" * (8 * 1024 - len(start) - 10) + b"\r\n\r\n"
            await peer.send(start + fits)
            assert (await peer.answer()).status == 200

    run(story)


def test_a_head_that_trickles_gets_408() -> None:
    async def story() -> None:
        async with site(HELLO, HttpLimits(head_s=0.05)) as here:
            peer = await here.peer()
            await peer.send(b"GET /hello HT")
            assert (await peer.answer()).status == 408
            assert await peer.ended()

    run(story)


def test_an_idle_connection_is_closed_without_a_response() -> None:
    async def story() -> None:
        async with site(HELLO, HttpLimits(idle_s=0.3)) as here:
            fresh, used = await here.peer(), await here.peer()
            assert (await used.ask("/hello")).status == 200
            assert await fresh.ended()
            assert await used.ended()

    run(story)


def test_an_unknown_path_gets_404_that_lists_the_known_ones() -> None:
    async def story() -> None:
        async with site({"/metrics": says(b""), "/health": says(b"")}) as here:
            peer = await here.peer()
            for target in ("/", "/metrics/", "/<script>"):
                answer = await peer.ask(target)
                assert (answer.status, answer.body) == (404, b"not found; available: /health, /metrics\n")
            assert (await peer.ask("/health")).status == 200

    run(story)


def test_other_methods_get_405_and_a_body_ends_the_connection() -> None:
    async def story() -> None:
        async with site(HELLO) as here:
            peer = await here.peer()
            for method in ("DELETE", "OPTIONS", "get"):
                answer = await peer.ask("/hello", method=method)
                assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
            smuggled = b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"
            await peer.send(b"POST /hello HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(smuggled) + smuggled)
            answer = await peer.answer()
            assert (answer.status, answer.headers["connection"]) == (405, "close")
            assert await peer.ended()

    run(story)


def test_a_body_that_is_not_read_can_be_sent_to_its_end_without_a_reset() -> None:
    async def story() -> None:
        async with site(HELLO) as here:
            peer = await here.peer()
            await peer.send(b"GET /hello HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            answer = await peer.answer()
            assert (answer.status, answer.body) == (200, b"hello")
            assert await peer.reader.read() == b""
            for _ in range(50):
                await peer.send(b"x" * 10_000)

    run(story)


def test_a_body_without_end_is_not_read_without_end() -> None:
    async def flood(peer: Peer) -> None:
        while True:
            await peer.send(b"x" * 65_536)

    async def story() -> None:
        async with site(HELLO) as here:
            peer = await here.peer()
            await peer.send(b"POST /hello HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            with pytest.raises(ConnectionError):
                await flood(peer)

    run(story)


def test_a_head_request_gets_the_head_of_the_answer() -> None:
    asked = False

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal asked
        asked = True
        yield b"body"

    async def stream(_: HttpRequest) -> Reply:
        return Reply(200, "text/plain", pieces())

    async def story() -> None:
        async with site({**HELLO, "/stream": stream}) as here:
            peer = await here.peer()
            answer = await peer.ask("/hello", method="HEAD")
            assert (answer.status, answer.headers["content-length"]) == (200, "5")
            answer = await peer.ask("/stream", method="HEAD")
            assert (answer.status, answer.headers["transfer-encoding"]) == (200, "chunked")
            assert not asked
            assert (await peer.ask("/nowhere", method="HEAD")).status == 404
            assert (await peer.ask("/hello")).body == b"hello"

    run(story)


def test_pipelined_requests_are_answered_in_order() -> None:
    routes = {f"/{number}": says(b"%d" % number) for number in range(50)}

    async def story() -> None:
        async with site(routes) as here:
            peer = await here.peer()
            lines = b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number for number in range(50))
            await peer.send(b"\r\n" + lines[:777])
            await peer.send(lines[777:])
            assert [(await peer.answer()).body for _ in range(50)] == [b"%d" % number for number in range(50)]

    run(story)


def test_close_and_http_1_0_end_the_connection_keep_alive_does_not() -> None:
    async def story() -> None:
        async with site(HELLO) as here:
            for headers, version in ((["Connection: foo, Close"], "1.1"), ([], "1.0")):
                peer = await here.peer()
                answer = await peer.ask("/hello", *headers, version=version)
                assert (answer.body, answer.headers["connection"]) == (b"hello", "close")
                assert await peer.ended()
            peer = await here.peer()
            for _ in range(2):
                answer = await peer.ask("/hello", "Connection: keep-alive", version="1.0")
                assert (answer.body, answer.headers["connection"]) == (b"hello", "keep-alive")

    run(story)


def test_a_stream_is_chunked_for_http_1_1_and_ends_with_the_connection_for_1_0() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one ", b"", b"two ", b"x" * 100_000):
            yield piece

    async def stream(_: HttpRequest) -> Reply:
        return Reply(200, "text/plain", pieces())

    async def story() -> None:
        async with site({"/stream": stream}) as here:
            peer = await here.peer()
            for _ in range(2):
                answer = await peer.ask("/stream")
                assert answer.body == b"one two " + b"x" * 100_000
                assert answer.headers["transfer-encoding"] == "chunked"
                answer = await peer.ask("/stream", "Accept-Encoding: gzip")
                assert len(answer.body) < 2000
                assert gzip.decompress(answer.body) == b"one two " + b"x" * 100_000
            old = await here.peer()
            answer = await old.ask("/stream", "Connection: keep-alive", version="1.0")
            assert answer.body == b"one two " + b"x" * 100_000
            assert "transfer-encoding" not in answer.headers
            assert await old.ended()

    run(story)


def test_short_answers_are_not_worth_gzip_longer_ones_are() -> None:
    async def story() -> None:
        async with site({**HELLO, "/long": says(b"long" * 1000)}) as here:
            peer = await here.peer()
            answer = await peer.ask("/hello", "Accept-Encoding: gzip")
            assert "content-encoding" not in answer.headers
            answer = await peer.ask("/long", "Accept-Encoding: gzip")
            assert answer.headers["content-encoding"] == "gzip"
            assert answer.headers["vary"] == "Accept-Encoding"
            assert gzip.decompress(answer.body) == b"long" * 1000
            assert (await peer.ask("/long")).body == b"long" * 1000

    run(story)


def test_a_failed_handler_returns_500_and_keeps_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: HttpRequest) -> Reply:
        raise RuntimeError("secret")

    async def story() -> None:
        async with site({**HELLO, "/broken": broken}) as here:
            peer = await here.peer()
            answer = await peer.ask("/broken")
            assert answer.status == 500
            assert b"secret" not in answer.body
            assert (await peer.ask("/hello")).status == 200

    with caplog.at_level(logging.ERROR):
        run(story)
    assert [record.getMessage() for record in caplog.records] == ["HTTP request failed: path=/broken"]


def test_a_stream_that_fails_in_its_middle_is_seen_to_be_cut(caplog: pytest.LogCaptureFixture) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        raise RuntimeError("broken")

    async def stream(_: HttpRequest) -> Reply:
        return Reply(200, "text/plain", pieces())

    async def story() -> None:
        async with site({"/stream": stream}) as here:
            peer = await here.peer()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await peer.ask("/stream")

    with caplog.at_level(logging.ERROR):
        run(story)
    assert [record.getMessage() for record in caplog.records] == ["HTTP connection failed"]


def test_a_peer_that_leaves_or_does_not_read_ends_the_stream_behind_it() -> None:
    async def story() -> None:
        ends = 0
        ended = asyncio.Event()

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal ends
            try:
                while True:
                    yield b"x" * 65_536
            finally:
                ends += 1
                ended.set()

        async def stream(_: HttpRequest) -> Reply:
            return Reply(200, "text/plain", pieces())

        async with site({**HELLO, "/stream": stream}, HttpLimits(answer_s=0.5)) as here:
            stuck, gone = await here.peer(), await here.peer()
            for peer in (stuck, gone):
                await peer.send(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            await gone.leave()
            assert (await (await here.peer()).ask("/hello")).status == 200
            while ends < 2:
                ended.clear()
                await ended.wait()

    run(story)


def test_a_handler_that_hangs_does_not_keep_its_connection() -> None:
    async def hang(_: HttpRequest) -> Reply:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")

    async def story() -> None:
        async with site({"/hang": hang}, HttpLimits(answer_s=0.05)) as here:
            peer = await here.peer()
            await peer.send(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")
            assert await peer.ended()

    run(story)


def test_when_all_connections_are_busy_another_gets_503() -> None:
    async def story() -> None:
        release = asyncio.Event()
        entered = asyncio.Semaphore(0)

        async def slow(_: HttpRequest) -> Reply:
            entered.release()
            await release.wait()
            return Reply(200, "text/plain", b"done")

        async with site({"/slow": slow}, HttpLimits(connections=3)) as here:
            busy = [await here.peer() for _ in range(3)]
            for peer in busy:
                await peer.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
                await entered.acquire()
            for _ in range(2):
                answer = await (await here.peer()).ask("/slow")
                assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert here.server.connections == 3
            release.set()
            assert [(await peer.answer()).body for peer in busy] == [b"done"] * 3
            assert (await (await here.peer()).ask("/slow")).status == 200

    run(story)


def test_the_longest_idle_connection_makes_room() -> None:
    async def story() -> None:
        async with site(HELLO, HttpLimits(connections=4)) as here:
            slow = [await here.peer() for _ in range(4)]
            for peer in slow[1:]:
                assert (await peer.ask("/hello")).status == 200
            await slow[0].send(b"GET /hello HT")
            assert (await (await here.peer()).ask("/hello")).status == 200
            assert await slow[0].ended()
            assert (await slow[1].ask("/hello")).status == 200
            assert (await (await here.peer()).ask("/hello")).status == 200
            assert await slow[2].ended()
            assert (await slow[1].ask("/hello")).status == 200
            assert (await slow[3].ask("/hello")).status == 200

    run(story)


def test_many_peers_at_once_are_all_answered() -> None:
    async def story() -> None:
        async with site({**HELLO, "/long": says(bytes(200_000))}) as here:

            async def visit(peer: Peer) -> None:
                for _ in range(10):
                    assert (await peer.ask("/hello")).body == b"hello"
                    assert (await peer.ask("/long")).body == bytes(200_000)

            await asyncio.gather(*[visit(await here.peer()) for _ in range(40)])
            assert here.server.connections == 40

    run(story)


def test_an_ordinary_client_understands_all_of_it() -> None:
    registry = Registry()
    family = registry.counters("a_total", "x", "number", series_max=5000)
    for number in range(3000):
        family.labelled(number=number).add(number)

    def visit(port: int) -> None:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        for _ in range(2):
            client.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
            response = client.getresponse()
            assert response.getheader("Content-Type") == CONTENT_TYPE
            assert parse(gzip.decompress(response.read()).decode())["a_total"].value(number="2999") == 2999
            client.request("HEAD", "/metrics")
            assert client.getresponse().read() == b""
            client.request("POST", "/metrics", body=b"x" * 5000)
            response = client.getresponse()
            assert (response.status, response.read()) == (405, b"only GET and HEAD are supported\n")
        client.close()

    async def story() -> None:
        async with site({"/metrics": metrics_route(registry.render)}) as here:
            await asyncio.to_thread(visit, here.port)

    run(story)


def test_metrics_let_the_loop_run_between_their_pieces() -> None:
    async def story() -> None:
        turns: list[str] = []

        async def other() -> None:
            turns.append("other")

        reply = await metrics_route(lambda _: iter([b"a", b"b", b"c"]))(HttpRequest("GET", "/", "", 1, {}))
        assert not isinstance(reply.body, bytes)
        async for piece in reply.body:
            turns.append(piece.decode())
            task = asyncio.get_running_loop().create_task(other())
        await task
        assert turns == ["a", "other", "b", "other", "c", "other"]

    run(story)


@pytest.mark.parametrize(("status", "code"), [("ok", 200), ("degraded", 200), ("starting", 503), ("stopping", 503)])
def test_health_says_whether_the_broker_serves(
    status: Literal["ok", "degraded", "starting", "stopping"], code: int
) -> None:
    async def story() -> None:
        health = Health(status, 7, "1.2.3", 12.5, ("disk /data/1 failed",))
        async with site({"/health": health_route(lambda: health)}) as here:
            answer = await (await here.peer()).ask("/health")
            assert answer.status == code
            assert answer.headers["content-type"] == "application/json"
            assert json.loads(answer.body) == {
                "status": status,
                "broker_id": 7,
                "version": "1.2.3",
                "uptime_s": 12.5,
                "reasons": ["disk /data/1 failed"],
            }

    run(story)


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(AddressInUse, match=rf"127\.0\.0\.1:{port}.*--http-port 0"):
                await HttpServer(HELLO).listen("127.0.0.1", port)

    run(story)


@pytest.mark.parametrize(
    ("host", "port"),
    [("192.0.2.1", 0), ("fe80::1%nowhere", 0), ("x" * 300, 0), ("127.0.0.1", 70_000), ("127.0.0.1", -1)],
)
def test_an_unavailable_address_is_a_typed_error(host: str, port: int) -> None:
    async def story() -> None:
        with pytest.raises(CannotListen, match="--http-port") as failure:
            await HttpServer(HELLO).listen(host, port)
        assert not isinstance(failure.value, AddressInUse)

    run(story)


def test_all_addresses_of_a_host_get_the_same_port() -> None:
    async def story() -> None:
        server = HttpServer(HELLO)
        port = await server.listen("", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        peer = Peer(reader, writer)
        assert (await peer.ask("/hello")).status == 200
        await peer.leave()
        await server.close()

    run(story)


def test_closing_finishes_what_runs_and_ends_what_waits() -> None:
    async def story() -> None:
        entered, release = asyncio.Event(), asyncio.Event()

        async def slow(_: HttpRequest) -> Reply:
            entered.set()
            await release.wait()
            return Reply(200, "text/plain", b"done")

        async with site({"/slow": slow}) as here:
            waiting, busy = await here.peer(), await here.peer()
            await busy.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
            await entered.wait()
            closing = asyncio.get_running_loop().create_task(here.server.close(grace_s=30))
            assert await waiting.ended()
            with pytest.raises(ConnectionError):
                await here.peer()
            release.set()
            answer = await busy.answer()
            assert (answer.body, answer.headers["connection"]) == (b"done", "close")
            assert await busy.ended()
            await busy.leave()
            await closing
            await here.server.close()

    run(story)


def test_closing_does_not_wait_beyond_the_grace() -> None:
    async def story() -> None:
        entered = asyncio.Event()

        async def hang(_: HttpRequest) -> Reply:
            entered.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError("unreachable")

        async with site({"/hang": hang}) as here:
            peer, fresh = await here.peer(), await here.peer()
            await peer.send(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")
            await entered.wait()
            await here.server.close(grace_s=0)
            assert await peer.ended()
            assert await fresh.ended()

    run(story)
