"""Hostile visitors: other sites, forged forms, huge and slow requests, and what a page may contain."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from tests.console.visitor import Visitor, console
from tests.timeouts import PATIENCE_S

from penstock.client.admin import Admin
from penstock.console.security import MAX_BODY, Keys
from penstock.testing import Broker

PAGES = (
    "/", "/topics", "/topics?q=%3Cscript%3E&internal=1", "/topics/new", "/topics/views", "/topics/views/records",
    "/topics/views/settings", "/topics/views/readers", "/topics/views/manage", "/topics/views/produce", "/groups",
    "/groups/show?name=%3Cimg+src%3Dx+onerror%3Dalert%282%29%3E%2F..%3F%26%23", "/brokers", "/brokers/0",
    "/transactions", "/transactions/hanging", "/users", "/quotas", "/acls", "/groups?q=%22%3E%3Cimg",
)  # fmt: skip


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "local host"])
def test_a_host_that_is_not_this_machine_is_rejected(visitor: Visitor, host: str) -> None:
    answer = visitor.ask("GET", "/", headers={"Host": host})
    assert answer.status == 421
    assert "--allow-host" in answer.text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "[::1]:80", "a.localhost"])
def test_addresses_and_localhost_are_this_machine(visitor: Visitor, host: str) -> None:
    assert visitor.ask("GET", "/topics/new", headers={"Host": host}).status == 200


def test_a_form_without_the_token_changes_nothing(visitor: Visitor, broker: Broker) -> None:
    token = visitor.token()
    other = Visitor(visitor.port)
    fields = {"name": "forged", "confirm": "yes"}
    for answer in (
        visitor.post("/topics", fields),
        visitor.post("/topics", {**fields, "csrf": "0" * 64}),
        visitor.post("/topics", {**fields, "csrf": ""}),
        visitor.post("/topics", {**fields, "csrf": "\u00e9\u4e2d"}),
        other.post("/topics", {**fields, "csrf": token}),  # another session
        visitor.post("/topics", {**fields, "csrf": token}, Origin="http://evil.example"),
        visitor.post("/topics", {**fields, "csrf": token}, Origin="null"),
    ):
        assert answer.status == 403, answer.text
    with Admin(broker.address) as admin:
        assert "forged" not in admin.list_topics()


def test_a_get_changes_nothing(visitor: Visitor, broker: Broker) -> None:
    token = visitor.token()
    for path in ("/topics/orders/delete", "/topics/orders/trim", "/groups/delete", "/acls/remove"):
        assert visitor.get(path, csrf=token, confirm="yes", name="orders").status in (404, 405)
    with Admin(broker.address) as admin:
        assert "orders" in admin.list_topics()


def test_a_read_only_console_changes_nothing_and_offers_no_change(broker: Broker) -> None:
    with console(broker.address, read_only=True) as visitor:
        page = visitor.get("/topics/orders")
        assert "read-only" in page.words
        assert "/topics/orders/manage" not in page.text
        visitor.get("/")
        token = visitor.token("/topics/new") if 'name="csrf"' in visitor.get("/topics/new").text else "none"
        answer = visitor.post("/topics", {"name": "forged", "confirm": "yes", "csrf": token})
        assert answer.status == 403
        with Admin(broker.address) as admin:
            assert "forged" not in admin.list_topics()


def test_a_signed_cookie_cannot_be_made_or_changed() -> None:
    keys, others = Keys(), Keys()
    signature = keys.sign("session", "one")
    assert keys.matches("session", "one", signature)
    assert not keys.matches("session", "two", signature)
    assert not keys.matches("csrf", "one", signature)
    assert not others.matches("session", "one", signature)
    assert not keys.matches("session", "one", signature[:-1])


@pytest.mark.parametrize("cookie", ["x", "a.b.c", "a=b=c", "\x7f", ";;;", "x" * 5000, '"', "$Path=/"])
def test_a_broken_cookie_is_a_new_session(visitor: Visitor, cookie: str) -> None:
    visitor.get("/topics/new")
    (name,) = visitor.cookies
    visitor.cookies = {name: cookie}
    answer = visitor.get("/topics/new")
    assert answer.status == 200
    assert visitor.cookies[name] != cookie


class _Tags(HTMLParser):
    """What a browser finds in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.scripts = 0
        self.script = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "script":
            self.scripts += 1
            self.script = dict(attrs).get("src") or "inline"


@pytest.mark.parametrize("path", PAGES)
def test_names_and_records_never_become_tags_or_scripts(visitor: Visitor, path: str) -> None:
    answer = visitor.get(path)
    assert answer.status == 200, answer.text
    page = _Tags()
    page.feed(answer.text)
    assert page.scripts == 1
    assert re.fullmatch(r"/static/console\.js\?v=[0-9a-f]+", page.script)
    assert page.tags.isdisjoint({"img", "i", "b", "iframe", "object", "style", "base"})
    assert not [name for name in page.attributes if name.startswith("on") or name == "style"]


def test_every_answer_has_the_headers_that_browsers_obey(visitor: Visitor) -> None:
    for path in ("/", "/nothing", "/static/console.js", "/topics/absent"):
        headers = visitor.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    cookie = Visitor(visitor.port).ask("GET", "/topics/new").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie


def test_a_huge_form_is_rejected_before_it_is_read(visitor: Visitor) -> None:
    token = visitor.token()
    answer = visitor.post("/topics/orders/produce", {"csrf": token, "value": "x" * (MAX_BODY + 10)})
    assert answer.status == 413
    many = "&".join(f"f{number}=1" for number in range(2000)).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert visitor.ask("POST", "/topics", many, headers).status == 400
    assert visitor.ask("POST", "/topics", b"\xff\xfe=1", headers).status == 400
    assert visitor.ask("POST", "/topics", b"{}", {"Content-Type": "application/json"}).status == 415
    assert visitor.ask("DELETE", "/topics").status == 405


def _peer(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def test_a_head_that_never_ends_is_cut_off(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.console.server.HEAD_S", 0.2)
    with _peer(visitor.port) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        assert slow.recv(1000) == b""
    with _peer(visitor.port) as silent:
        assert silent.recv(1000) == b""
    assert visitor.get("/topics/new").status == 200


def test_a_body_that_never_ends_is_cut_off(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.console.security.BODY_TIMEOUT_S", 0.2)
    with _peer(visitor.port) as slow:
        slow.sendall(
            b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            b"Content-Length: 1000\r\n\r\nname="
        )
        with contextlib.closing(http.client.HTTPResponse(slow)) as answer:
            answer.begin()
            assert answer.status == 408


def test_the_number_of_live_views_is_limited(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.console.security._MAX_STREAMS", 1)
    with visitor.events("/overview.events") as events:
        assert next(events)[0] == "screen"
        assert visitor.get("/overview.events").status == 503
    assert visitor.get("/topics/new").status == 200


# --- logins

USERS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret" user_bob="bob-secret";'
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
        "authorizer.class.name": "penstock",
        "super.users": "User:alice",
    }
    with Broker(settings=settings, http_port=0) as found:
        yield found


@pytest.fixture
def guarded_console(guarded: Broker) -> Iterator[Visitor]:
    options = {"security_protocol": "SASL_PLAINTEXT", "request_timeout_ms": 10_000}
    with console(guarded.address, login=True, mechanism="PLAIN", client_options=options) as found:
        yield found


def _log_in(visitor: Visitor, user: str, password: str) -> int:
    token = visitor.token("/login")
    return visitor.post(
        "/login", {"csrf": token, "user": user, "password": password, "mechanism": "PLAIN", "to": "/topics"}
    ).status


def test_a_visitor_logs_in_and_acts_with_the_rights_of_the_kafka_user(
    guarded: Broker, guarded_console: Visitor
) -> None:
    alice, bob = guarded_console, Visitor(guarded_console.port)
    assert alice.get("/topics").headers["location"] == "/login?to=%2Ftopics"
    assert _log_in(alice, "alice", "wrong") == 401
    assert alice.get("/topics").status == 303
    assert _log_in(alice, "alice", "alice-secret") == 303
    assert alice.change("/topics", name="secret-plans").status == 200
    assert "secret-plans" in alice.get("/topics/secret-plans").words

    assert _log_in(bob, "bob", "bob-secret") == 303
    assert "secret-plans" not in bob.get("/topics").words
    assert bob.get("/topics/secret-plans").status in (403, 404)
    denied = bob.change("/topics", name="bobs")
    assert denied.status == 403
    assert "may not" in denied.words

    assert bob.post("/logout", {"csrf": bob.token("/topics/new")}).status == 303
    assert bob.get("/topics").status == 303
    assert alice.get("/topics").status == 200
    stale = bob.post("/topics", {"name": "x", "csrf": bob.token("/login")})
    assert stale.status == 401


@pytest.mark.parametrize(
    "to", ["//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil", "javascript:1"]
)
def test_a_login_goes_on_to_this_console_only(guarded_console: Visitor, to: str) -> None:
    page = guarded_console.get("/login", to=to)
    assert 'name="to" value="/"' in page.text
    token = guarded_console.token("/login")
    answer = guarded_console.post(
        "/login", {"csrf": token, "user": "alice", "password": "alice-secret", "to": to, "mechanism": "?"}
    )
    assert answer.headers["location"] == "/"


def test_a_login_gets_a_session_that_nobody_knew_before(guarded_console: Visitor) -> None:
    visitor = guarded_console
    visitor.get("/login")
    planted = Visitor(visitor.port)
    planted.cookies = dict(visitor.cookies)
    assert _log_in(visitor, "alice", "alice-secret") == 303
    assert visitor.cookies != planted.cookies
    assert visitor.get("/topics").status == 200
    assert planted.get("/topics").status == 303


def test_a_live_view_ends_with_the_session(guarded_console: Visitor) -> None:
    visitor = guarded_console
    assert _log_in(visitor, "alice", "alice-secret") == 303
    with visitor.events("/overview.events") as events:
        assert next(events)[0] == "screen"
        visitor.post("/logout", {"csrf": visitor.token()})
        assert len(list(events)) < 100  # the stream has an end
    assert visitor.get("/overview.events").status == 303
