"""`penstock registry start`, and the registry in a broker's process."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

from tests.cli.commands import Shell
from tests.registry.api import Api, record
from tests.timeouts import PATIENCE_S, until

from penstock.cli.server.broker_process import free_port_after
from penstock.testing.embedded_broker import EmbeddedBroker


def test_it_serves_until_a_signal(shell: Shell) -> None:
    with shell.process(
        "registry", "start", "--port", 0, "--schemas-topic", "_schemas-cli", "--election-group", "cli"
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        found = re.fullmatch(r"Schema registry: (http://127\.0\.0\.1:\d+)\n", line)
        assert found, line
        assert Api(found[1]).register("s", record("page"))["version"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_a_port_in_use_and_a_cluster_that_is_away(shell: Shell, broker: EmbeddedBroker) -> None:
    found = shell.error_of_process("registry", "start", "--port", broker.port)
    assert found["exitCode"] == 1
    assert "another process listens there" in found["message"]
    away = shell.error_of_process("registry", "start", "--port", 0, "-b", "127.0.0.1:1", "--request-timeout-ms", 300)
    assert (away["exitCode"], away["code"]) == (3, "UNREACHABLE")


def test_options_that_need_each_other(shell: Shell) -> None:
    for words in (["--auth-user", "me"], ["--tls-key", "key.pem"], ["--auth-token", "secret"]):
        assert shell.error("registry", "start", *words)["exitCode"] == 2


def test_a_broker_brings_a_registry(shell: Shell, tmp_path: Path) -> None:
    port = free_port_after(20_000 + hash(tmp_path) % 20_000)
    assert port is not None
    with shell.process(
        "server", "start", "--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0", "--http-port", 0,
        "--registry-port", port,
    ) as process:  # fmt: skip
        api = Api(f"http://127.0.0.1:{port}")

        def answers() -> bool:
            try:
                return api("GET", "/subjects").status == 200
            except OSError:
                assert process.poll() is None
                return False

        until(answers, "the registry serves")
        assert api.register("s", record("page"))["id"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_a_broker_stops_if_its_registry_cannot_start(shell: Shell, broker: EmbeddedBroker, tmp_path: Path) -> None:
    found = shell.error_of_process(
        "server", "start", "--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0", "--http-port", 0,
        "--registry-port", broker.port, "--log-level", "error",
    )  # fmt: skip
    assert found["exitCode"] == 1
    assert "another process listens there" in json.dumps(found)
