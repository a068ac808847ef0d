"""The console behind the HTTP port of a broker: a real process, and what is passed on to it."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import sys
from collections.abc import Iterator

import pytest
from tests.console.visitor import Visitor
from tests.timeouts import PATIENCE_S, until

from penstock.broker.console_process import MAX_BODY
from penstock.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http_port=0, settings={"penstock.http.token": "a-token-for-others"}) as found:
        found.create_topic("views")
        yield found


@pytest.fixture
def visitor(broker: Broker) -> Visitor:
    assert broker.http_port is not None
    return Visitor(broker.http_port)


def _children(broker: Broker) -> list[int]:
    """Processes whose command line names the broker's own port: its consoles."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if b"console" in words and f"http://127.0.0.1:{broker.http_port}".encode() in words:
            found.append(int(entry))
    return found


def test_the_console_is_at_the_root_and_the_brokers_own_pages_stay(visitor: Visitor, broker: Broker) -> None:
    assert visitor.get("/health").status == 200
    assert "kafka_server_partitions" in visitor.get("/metrics").text
    until(lambda: "All is well" in visitor.get("/").words, "a verdict")
    assert "views" in visitor.get("/topics").words
    assert visitor.get("/absent").status == 404
    assert len(_children(broker)) == 1


def test_a_change_and_a_stream_pass_through(visitor: Visitor) -> None:
    assert visitor.change("/topics", name="made-here").status == 200
    with visitor.events("/overview.events") as events:
        assert next(events)[0] == "screen"


def test_only_some_metrics_are_rendered_if_only_some_are_asked_for(visitor: Visitor) -> None:
    text = visitor.get("/metrics", name="kafka_server_partitions,process_open_fds").text
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == {
        "kafka_server_partitions",
        "process_open_fds",
    }
    assert visitor.get("/metrics", name="no_such_metric").text == ""


def test_what_the_broker_rejects_does_not_start_a_console() -> None:
    with Broker(http_port=0) as broker:
        visitor = Visitor(broker.http_port or 0)
        assert visitor.ask("GET", "/", headers={"Host": "evil.example"}).status == 421
        assert visitor.ask("GET", "/", headers={"X-Forwarded-For": "10.0.0.1"}).status == 401
        assert visitor.ask("PUT", "/").status == 405
        assert visitor.ask("POST", "/topics", None, {"Content-Length": str(MAX_BODY + 1)}).status == 413
        assert visitor.ask("POST", "/topics", None, {"Transfer-Encoding": "chunked"}).status == 411
        assert _children(broker) == []


def test_credentials_for_the_broker_do_not_reach_the_console(visitor: Visitor) -> None:
    headers = {"Authorization": "Bearer a-token-for-others", "X-Forwarded-For": "10.0.0.1"}
    answer = visitor.ask("GET", "/topics/new", headers=headers)
    assert answer.status == 200
    assert "a-token" not in answer.text


def test_a_console_can_be_turned_off() -> None:
    with Broker(http_port=0, settings={"penstock.console": "false"}) as broker:
        answer = Visitor(broker.http_port or 0).get("/")
        assert answer.status == 404
        assert "/metrics" in answer.text


def test_a_killed_console_is_started_again(visitor: Visitor, broker: Broker) -> None:
    assert visitor.get("/topics/new").status == 200
    (pid,) = _children(broker)
    os.kill(pid, signal.SIGKILL)
    until(lambda: visitor.get("/topics/new").status == 200, "a page")
    until(lambda: pid not in _children(broker), "the end of the killed process")
    assert len(_children(broker)) == 1


def test_a_visitor_that_leaves_or_sends_half_a_form_leaves_nothing_behind(visitor: Visitor, broker: Broker) -> None:
    assert visitor.get("/topics/new").status == 200
    for data in (
        b"GET /overview.events HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nname=",
        b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3,
    ):
        with socket.create_connection(("127.0.0.1", broker.http_port or 0), timeout=PATIENCE_S) as peer:
            peer.sendall(data)
    assert visitor.get("/topics/new").status == 200
    child = _children(broker)[0]
    until(lambda: len(os.listdir(f"/proc/{child}/fd")) < 40, "connections to be closed")


def test_the_console_ends_with_the_broker_and_leaves_no_folder() -> None:
    with Broker(http_port=0) as broker:
        visitor = Visitor(broker.http_port or 0)
        assert visitor.get("/topics/new").status == 200
        (pid,) = _children(broker)
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode().split("\0")
        folder = os.path.dirname(words[words.index("--socket") + 1])
        assert os.stat(folder).st_mode & 0o077 == 0
        assert os.stat(f"{folder}/console").st_mode & 0o177 == 0
        assert os.getpriority(os.PRIO_PROCESS, pid) >= 10
    assert not os.path.exists(f"/proc/{pid}")
    assert not os.path.exists(folder)


def test_a_program_that_cannot_serve_is_an_error_for_the_visitor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.embedded_broker.console_program", lambda *_: [sys.executable, "-c", "pass"])
    with Broker(http_port=0) as broker:
        answer = Visitor(broker.http_port or 0).get("/")
        assert answer.status == 502
        assert "did not start" in answer.text
        assert Visitor(broker.http_port or 0).get("/health").status == 200


def test_the_console_of_a_broker_with_logins_asks_for_one() -> None:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain."
        'PlainLoginModule required user_ann="secret";',
    }
    with Broker(http_port=0, settings=settings) as broker:
        visitor = Visitor(broker.http_port or 0)
        assert visitor.get("/").status == 303
        token = visitor.token("/login")
        fields = {"csrf": token, "user": "ann", "password": "secret", "mechanism": "PLAIN"}
        assert visitor.post("/login", fields).headers["location"] == "/"
        until(lambda: "All is well" in visitor.get("/").words, "a verdict")


def test_a_slow_form_is_cut_off(visitor: Visitor, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert visitor.get("/").status == 200  # The console runs.
    monkeypatch.setattr("penstock.broker.console_process.BODY_S", 0.2)
    with socket.create_connection(("127.0.0.1", broker.http_port or 0), timeout=PATIENCE_S) as slow:
        slow.sendall(b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nname=")
        with contextlib.closing(http.client.HTTPResponse(slow)) as answer:
            answer.begin()
            assert answer.status == 408, answer.read()
