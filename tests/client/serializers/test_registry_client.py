"""The client of registries, and what it does when one is away, slow or wrong."""

from __future__ import annotations

import http.server
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock import RegistryClient, RegistrySchema
from penstock.client.errors import ConfigError, RegistryRequestFailed, RegistryUnreachable
from penstock.client.serializers import SchemaReference
from penstock.registry import Registry

INT, LONG = RegistrySchema('"int"'), RegistrySchema('"long"')


@pytest.fixture
def subject() -> str:
    return f"s/{uuid.uuid4().hex[:12]} ä"


@contextmanager
def scripted(*answers: tuple[int, Any] | None) -> Iterator[tuple[str, list[tuple[str, str, dict[str, str]]]]]:
    """A server that gives these answers, the last one again and again; None closes the connection."""
    seen: list[tuple[str, str, dict[str, str]]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = answers[min(len(seen), len(answers) - 1)]
            seen.append((self.command, self.path, dict(self.headers)))
            if answer is None:
                self.close_connection = True
                return
            body = answer[1] if isinstance(answer[1], bytes) else json.dumps(answer[1]).encode()
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_register_find_and_read(registry: Registry, subject: str) -> None:
    client = RegistryClient(registry.url)
    first = client.register(subject, INT)
    assert (first.subject, first.version, first.schema) == (subject, 1, INT)
    second = client.register(subject, LONG)
    assert client.latest(subject).id == second.id
    assert client.version(subject, 1).schema == INT
    assert client.by_id(first.id).schema.text == INT.text
    assert client.by_guid(first.guid).schema.text == INT.text
    assert client.look_up(subject, INT).version == 1
    referring = RegistrySchema('{"type": "array", "items": "int"}', references=(SchemaReference("x", subject, 1),))
    found = client.register(f"{subject}-2", referring)
    assert {name: each.schema.text for name, each in client.referenced(found.schema).items()} == {"x": '"int"'}
    with pytest.raises(RegistryRequestFailed) as failed:
        client.version(subject, 9)
    assert (failed.value.status, failed.value.error_code, failed.value.retriable) == (404, 40402, False)


def test_what_does_not_change_is_asked_once() -> None:
    with scripted((200, {"id": 7, "schema": '"int"', "version": 1})) as (url, seen):
        client = RegistryClient(url)
        for _ in range(3):
            client.by_id(7)
            client.register("s", INT)
            client.latest("s")
        assert len(seen) == 3
        assert RegistryClient(url, latest_ttl_s=0).latest("s").id == 7
        client.close()


def test_the_memory_is_bounded() -> None:
    with scripted((200, {"schema": '"int"'})) as (url, seen):
        client = RegistryClient(url, cached=2)
        for number in (1, 2, 3, 1):
            client.by_id(number)
        assert len(seen) == 4


def test_failures_of_the_registry_are_tried_again() -> None:
    with scripted((503, {}), (500, b"no JSON"), None, (200, ["a"])) as (url, seen):
        assert RegistryClient(url).request("GET", "/subjects") == ["a"]
        assert len(seen) == 4


def test_rejections_are_not_tried_again() -> None:
    with scripted((409, {"error_code": 409, "message": "it does not fit"})) as (url, seen):
        with pytest.raises(RegistryRequestFailed, match="it does not fit"):
            RegistryClient(url).request("GET", "/subjects")
        assert len(seen) == 1


def test_in_the_end_the_last_failure_is_raised() -> None:
    with scripted((500, {"error_code": 50001, "message": "the store is away"})) as (url, seen):
        with pytest.raises(RegistryRequestFailed, match="the store is away") as failed:
            RegistryClient(url, retries=1).request("GET", "/subjects")
        assert (len(seen), failed.value.retriable) == (2, True)


def test_the_next_address_is_tried_and_kept() -> None:
    with scripted((200, [])) as (url, seen):
        client = RegistryClient(f"http://127.0.0.1:1, {url}")
        for _ in range(2):
            assert client.request("GET", "/subjects") == []
        assert len(seen) == 2
        assert client._preferred == 1


def test_none_that_answers() -> None:
    with pytest.raises(RegistryUnreachable, match=r"127\.0\.0\.1:1") as failed:
        RegistryClient("http://127.0.0.1:1", retries=0).request("GET", "/subjects")
    assert failed.value.retriable


def test_logins() -> None:
    with scripted((200, [])) as (url, seen):
        RegistryClient(url, token="t0ken").request("GET", "/")
        RegistryClient(url, user="me", password="pass").request("GET", "/")
        RegistryClient(url.replace("://", "://me:p%61ss@")).request("GET", "/")
        shown = [headers.get("Authorization") for _, _, headers in seen]
        assert shown == ["Bearer t0ken", "Basic bWU6cGFzcw==", "Basic bWU6cGFzcw=="]
        assert "pass" not in repr(RegistryClient(url.replace("://", "://me:pass@")))


@pytest.mark.parametrize("url", ["", "localhost:8081", "ftp://a", "http://", "http://a:x", []])
def test_addresses_that_are_none(url: Any) -> None:
    with pytest.raises(ConfigError, match="address"):
        RegistryClient(url)


def test_two_logins_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="contradict"):
        RegistryClient("http://a", token="t", user="u")
