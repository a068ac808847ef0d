"""`penstock console`: a process with a port, for a cluster."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.console.visitor import Visitor
from tests.timeouts import PATIENCE_S, until

from penstock.cli.server.console import console
from penstock.testing import Broker


def _run(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "penstock", "console", *words], stdout=subprocess.PIPE, text=True,
        stdin=subprocess.PIPE,
    )  # fmt: skip


def _port_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
    assert found is not None, line
    return int(found[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_serves_and_ends_at_a_signal(number: signal.Signals) -> None:
    with Broker() as broker, _run("-b", broker.address, "--port", "0", "--http-port", "0") as process:
        try:
            visitor = Visitor(_port_of(process))
            assert visitor.get("/topics").status == 200
            assert visitor.ask("GET", "/", headers={"Host": "other.example"}).status == 421
        finally:
            process.send_signal(number)
        assert process.wait(PATIENCE_S) in (0, -number, 128 + number)


def test_a_name_can_be_allowed_and_changes_forbidden() -> None:
    words = ("--port", "0", "--http-port", "0", "--allow-host", "console.example", "--read-only")
    with Broker() as broker, _run("-b", broker.address, *words) as process:
        try:
            visitor = Visitor(_port_of(process), host="console.example:80")
            assert "read-only" in visitor.get("/topics").words
        finally:
            process.terminate()


def test_the_console_of_a_broker_shows_the_warehouse_of_its_settings(tmp_path: Path) -> None:
    settings = {"penstock.console.warehouse": f"{tmp_path}/a b", "penstock.audit.topic": "audit"}
    with Broker(settings=settings, http_port=0) as broker:
        visitor = Visitor(broker.http_port or 0)
        until(lambda: "No tables in this warehouse." in visitor.get("/tables").words, "the warehouse")


@pytest.mark.parametrize("where", ["kafka://a:1", "a b", "zookeeper://"])
def test_what_is_not_a_zookeeper_is_rejected_before_anything_starts(where: str) -> None:
    result = CliRunner().invoke(console, ["-b", "127.0.0.1:1", "--zookeeper-groups", where])
    assert result.exit_code == 2
    assert where.partition("://")[2] in result.output


def test_a_relative_warehouse_is_that_of_the_working_folder(tmp_path: Path) -> None:
    words = ("--port", "0", "--http-port", "0", "--warehouse", "absent")
    with Broker() as broker, _run("-b", broker.address, *words) as process:
        try:
            visitor = Visitor(_port_of(process))
            until(lambda: "No tables in this warehouse." in visitor.get("/tables").words, "the warehouse")
        finally:
            process.terminate()


def test_a_socket_is_served_until_the_parent_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "console"
    with Broker() as broker, _run("-b", broker.address, "--socket", str(path), "--http-port", "0") as process:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(PATIENCE_S)
            until(lambda: peer.connect_ex(str(path)) == 0, "the socket")  # it is there before it listens
            peer.sendall(b"GET /topics/new HTTP/1.1\r\nHost: any.example\r\nConnection: close\r\n\r\n")
            assert peer.recv(12) == b"HTTP/1.1 200"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0


def test_an_idle_console_of_a_broker_ends(tmp_path: Path) -> None:
    words = ("--socket", str(tmp_path / "console"), "--idle", "0.1", "--http-port", "0")
    with Broker() as broker, _run("-b", broker.address, *words) as process:
        assert process.wait(PATIENCE_S) == 0


def test_a_port_in_use_and_a_wrong_registry_are_explained() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = CliRunner().invoke(console, ["--port", str(taken.getsockname()[1]), "--http-port", "0"])
        assert result.exit_code == 2
        assert "Choose another port with --port." in result.output
    result = CliRunner().invoke(console, ["--registry", "file:///etc/passwd", "--port", "0"])
    assert "Use http://HOST:PORT." in result.output
