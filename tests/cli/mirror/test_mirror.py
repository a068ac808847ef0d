"""`penstock mirror run` as a process, and `status` of it; options that are wrong."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import Shell
from tests.cli.running import Running
from tests.mirror.mirrors import produce, same
from tests.timeouts import until

from penstock.client.admin import Admin
from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.fixture(scope="module")
def offline() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as embedded:
        yield embedded


def test_a_mirror_runs_until_a_signal_and_its_status_is_shown(
    shell: Shell, broker: EmbeddedBroker, offline: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    config = tmp_path / "mirror.toml"
    config.write_text(
        f'name = "{topic}"\ntopics = ["{topic}"]\nrefresh.interval.ms = 100\n'
        f'[source.live]\nbootstrap.servers = "{broker.address}"\n[target]\nbootstrap.servers = "{offline.address}"\n'
    )
    produce(broker.address, topic, 100)
    missing = shell("mirror", "status", "--config", config)
    assert missing.exit_code == 4
    assert f"no mirror '{topic}'" in missing.output
    with Running("mirror", "run", "--config", config) as running:
        running.until("routes change: partitions=3")

        def is_done() -> bool:
            found = json.loads(shell("mirror", "status", "--config", config, "--format", "json").stdout)
            return len(found["partitions"]) == 3 and found["lagRecords"] == 0 and found["processes"] == 1

        until(is_done, "everything is mirrored")
        assert running.stop(signal.SIGTERM) == 0
    same(broker.address, offline.address, topic, 3)
    produce(broker.address, topic, 30, start=100)
    lines = shell.lines("mirror", "status", "--config", config)
    assert lines[0].split()[:4] == ["SOURCE", "TOPIC", "PARTITION", "TARGET"]
    assert "lag 30 records" in lines[-1]
    assert "0 processes running" in lines[-1]
    with Admin(broker.address) as admin:
        admin.delete_records({(topic, index): -1 for index in range(3)})
    with Running("mirror", "run", "--config", config) as running:
        running.until("partition stopped")
        running.stop(signal.SIGINT)
    stopped = shell("mirror", "status", "--config", config, "--stopped")
    assert stopped.exit_code == 1
    assert "stopped: lost" in stopped.output
    assert "were deleted before they were mirrored" in " ".join(stopped.output.split())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--target", "b:1"], "No source cluster is given"),
        (["--source", "a:1"], "Target.bootstrap.servers is not set"),
        (["--source", "a:1", "--source", "b:1", "--target", "c:1"], "given twice"),
        (["--source", "a:1", "--target", "b:1", "--set", "shard=3"], "no setting shard"),
        (["--config", "none.toml"], "Cannot read none.toml"),
        (["--source", "a:none", "--target", "b:1"], "a:none"),
    ],
)
def test_wrong_options_are_named(shell: Shell, args: list[str], message: str) -> None:
    for command in ("run", "status"):
        result = shell("mirror", command, *args)
        assert result.exit_code == 2
        assert message.lower() in result.output.lower()


def test_a_cluster_that_cannot_be_reached_ends_the_command(shell: Shell, offline: EmbeddedBroker) -> None:
    result = shell("mirror", "status", "--source", "127.0.0.1:1", "--target", offline.address)
    assert result.exit_code == 3
