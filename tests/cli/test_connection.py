"""`brokers`, `configs`, `offsets`, and what all commands about a cluster share."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.cli.commands import Shell
from tests.ports import free_port

from penstock.cli.connection import command_error_for
from penstock.client.errors import UnsupportedVersion
from penstock.testing.embedded_broker import EmbeddedBroker

# --- brokers


# --- configs


# --- offsets


# --- what all share


def test_nothing_listening_says_how_to_start_a_broker(shell: Shell) -> None:
    result = shell("topics", "list", "-b", f"127.0.0.1:{free_port()}")
    assert result.exit_code == 3
    assert "penstock up" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "args",
    [("reassign", "plan"), ("elect", "preferred"), ("brokers", "describe"), ("topics", "list"),
     ("produce", "x"), ("consume", "x"), ("groups", "list"), ("brokers",), ("offsets",),
     ("configs", "describe", "--topic", "x"), ("perf", "produce", "-t", "x"), ("perf", "consume", "-t", "x"),
     ("perf", "latency", "-t", "x")],
)  # fmt: skip
def test_no_broker_is_exit_code_3_everywhere(shell: Shell, args: tuple[str, ...]) -> None:
    assert shell(*args, "-b", f"127.0.0.1:{free_port()}", stdin="").exit_code == 3


def test_an_invalid_address_is_a_usage_error(shell: Shell) -> None:
    result = shell("topics", "list", "-b", "localhost:what")
    assert result.exit_code == 2
    assert "what" in result.stderr


def test_a_server_that_is_not_a_broker_is_recognised(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        result = shell("topics", "list", "-b", f"127.0.0.1:{silent.getsockname()[1]}", "--request-timeout-ms", 300)
    assert result.exit_code == 3
    assert "no answer" in result.stderr


def test_a_file_of_properties_is_used(shell: Shell, tmp_path: Path, broker: EmbeddedBroker) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers = {broker.address}\nclient.id=me\nrequest.timeout.ms=9000\nlinger.ms=1\n")
    plain = Shell("")
    plain.environment = {}
    assert plain("topics", "list", "--command-config", file).exit_code == 0
    assert plain("produce", "from-file", "--command-config", file, stdin="x").exit_code == 0


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        ("clinet.id=me", "Did you mean client.id?"),
        ("security.protocol=TLS", "SASL_PLAINTEXT or SASL_SSL"),
        ("security.protocol=SASL_SSL", "sasl.mechanism is not set"),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN", "sasl.username and sasl.password"),
        ("security.protocol=SSL\nssl.ca.location=/nowhere.pem", "PEM files"),
        ("security.protocol=SSL\nssl.truststore.location=x\nssl.truststore.type=JKS", "Use PEM"),
        ("request.timeout.ms=soon", "milliseconds"),
    ],
)
def test_invalid_properties_are_rejected(shell: Shell, tmp_path: Path, content: str, reported: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(content)
    result = shell("topics", "list", "--command-config", file)
    assert result.exit_code == 2
    assert reported in result.stderr


def test_a_file_of_properties_that_does_not_exist(shell: Shell, tmp_path: Path) -> None:
    result = shell("topics", "list", "--command-config", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "--command-config" in result.stderr
    assert shell("topics", "list", "--command-property", "no.such=1").exit_code == 2


def test_tls_against_a_plain_port_says_so(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\n")
    result = shell("topics", "list", "--command-config", file, "--request-timeout-ms", 3000)
    assert result.exit_code == 3
    assert "does not use TLS" in result.stderr


# --- brokers of another time


def test_what_a_broker_does_not_support_is_reported() -> None:
    error = command_error_for(UnsupportedVersion("old:9092", "CreateTopics", (0, 7), None))
    assert error.exit_code == 4
    assert "brokers versions" in error.message
