"""`penstock doctor`: each illness is made, and found."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Shell
from tests.ports import free_port
from tests.timeouts import PATIENCE_S

from penstock.client import diagnosis
from penstock.client.diagnosis import OK, PROBLEM
from penstock.client.producer import Producer
from penstock.testing.embedded_broker import EmbeddedBroker


def findings(shell: Shell, *options: str) -> tuple[int, list[dict[str, Any]]]:
    result = shell("doctor", "--http-port", "0", "--format", "json", *options)
    document = json.loads(result.stdout)
    assert document["healthy"] == (result.exit_code == 0)
    return result.exit_code, document["findings"]


def checks(found: list[dict[str, Any]], level: str) -> set[str]:
    return {finding["check"] for finding in found if finding["level"] == level}


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the machine that runs the tests may be nearly full."""
    monkeypatch.setattr(diagnosis, "FREE_SHARE", 0.0)
    monkeypatch.setattr(diagnosis, "FREE_BYTES", 0)


@pytest.mark.usefixtures("roomy")
def test_a_healthy_cluster(tmp_path: Path) -> None:
    with EmbeddedBroker(str(tmp_path)) as broker:
        broker.create_topic("views")
        code, found = findings(Shell(broker.address))
        assert code == 0, found
        assert {"connect", "advertised", "versions", "leaders", "disk"} <= checks(found, OK)
        assert "No problems found." in Shell(broker.address).done("doctor", "--http-port", "0")


@pytest.mark.usefixtures("roomy")
def test_a_probe_writes_reads_and_leaves_nothing(tmp_path: Path) -> None:
    with EmbeddedBroker(str(tmp_path)) as broker:
        shell = Shell(broker.address)
        code, found = findings(shell, "--probe")
        assert code == 0, found
        assert {"probe", "clock"} <= checks(found, OK)
        assert shell.lines("topics", "list") == []


def test_nothing_listening() -> None:
    code, found = findings(Shell(f"127.0.0.1:{free_port()}"))
    assert code == 1
    (problem,) = [finding for finding in found if finding["level"] == PROBLEM]
    assert problem["check"] == "refused"
    assert "penstock up" in problem["advice"]


def test_every_address_has_a_finding_of_its_own() -> None:
    code, found = findings(Shell(f"127.0.0.1:{free_port()},nowhere.invalid:9092"))
    assert code == 1
    assert checks(found, PROBLEM) == {"refused", "dns"}


def test_a_wrong_advertised_address(tmp_path: Path) -> None:
    bound, reported = free_port(), free_port()
    settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{reported}"}
    with EmbeddedBroker(str(tmp_path), port=bound, settings=settings):
        code, found = findings(Shell(f"127.0.0.1:{bound}"))
    assert code == 1
    (problem,) = [finding for finding in found if finding["level"] == PROBLEM]
    assert problem["check"] == "advertised"
    assert f"advertises 127.0.0.1:{reported}" in problem["text"]
    assert "advertised.listeners" in problem["advice"]


@pytest.mark.usefixtures("roomy")
def test_min_insync_replicas_above_the_replication_factor_is_found(tmp_path: Path) -> None:
    with EmbeddedBroker(str(tmp_path), settings={"min.insync.replicas": "2"}) as broker:
        broker.create_topic("views")
        broker.create_topic("clicks", config={"min.insync.replicas": "1"})
        code, found = findings(Shell(broker.address))
    assert code == 1
    (problem,) = [finding for finding in found if finding["level"] == PROBLEM]
    assert (problem["check"], problem["subject"]) == ("min-insync", "views")
    assert "min.insync.replicas is 2 with 1 replica" in problem["text"]
    assert "--topic views --set min.insync.replicas=1" in problem["advice"]


@pytest.mark.usefixtures("roomy")
def test_records_of_the_future(tmp_path: Path) -> None:
    with EmbeddedBroker(
        str(tmp_path), settings={"log.message.timestamp.after.max.ms": "9223372036854775807"}
    ) as broker:
        with Producer[bytes, bytes](broker.address) as producer:
            producer.send("ahead", b"v", timestamp_ms=time.time_ns() // 1_000_000 + 7_200_000).result(PATIENCE_S)
        code, found = findings(Shell(broker.address))
    assert code == 1
    assert checks(found, PROBLEM) == {"clock"}


@pytest.mark.usefixtures("roomy")
def test_the_clock_of_a_broker_is_read_by_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.cluster.doctor_checks._HTTP_TIMEOUT_S", PATIENCE_S)
    with EmbeddedBroker(str(tmp_path), http_port=0) as broker:
        shell = Shell(broker.address)
        options = ("doctor", "--format", "json", "--http-port", str(broker.http_port))
        healthy = json.loads(shell.done(*options))["findings"]
        assert "clock" in checks(healthy, OK)
        now = time.time
        monkeypatch.setattr("penstock.cli.cluster.doctor_checks.time.time", lambda: now() - 120.5)
        ill = json.loads(shell(*options).stdout)["findings"]
    (problem,) = [finding for finding in ill if finding["level"] == PROBLEM and finding["check"] == "clock"]
    assert re.search(r"(2 m \d|1 m 59) s ahead of", problem["text"])
