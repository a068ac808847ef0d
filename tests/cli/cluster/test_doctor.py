"""`penstock doctor`: each illness is made, and found."""

from __future__ import annotations

import json
import re
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Shell
from tests.ports import free_port
from tests.timeouts import PATIENCE_S

from penstock.cli.cluster import doctor_checks
from penstock.cli.cluster.doctor_checks import NOTE, OK, PROBLEM, _disk, _skew
from penstock.client.admin import LogDirectory
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
    """The disk of whoever runs the tests may be nearly full."""
    monkeypatch.setattr(doctor_checks, "_FREE_SHARE", 0.0)
    monkeypatch.setattr(doctor_checks, "_FREE_BYTES", 0)


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
    bound, told = free_port(), free_port()
    settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{told}"}
    with EmbeddedBroker(str(tmp_path), port=bound, settings=settings):
        code, found = findings(Shell(f"127.0.0.1:{bound}"))
    assert code == 1
    (problem,) = [finding for finding in found if finding["level"] == PROBLEM]
    assert problem["check"] == "advertised"
    assert f"advertises 127.0.0.1:{told}" in problem["text"]
    assert "advertised.listeners" in problem["advice"]


@pytest.mark.usefixtures("roomy")
def test_more_replicas_in_sync_are_asked_for_than_there_are(tmp_path: Path) -> None:
    with EmbeddedBroker(str(tmp_path), settings={"min.insync.replicas": "2"}) as broker:
        broker.create_topic("views")
        broker.create_topic("clicks", config={"min.insync.replicas": "1"})
        code, found = findings(Shell(broker.address))
    assert code == 1
    (problem,) = [finding for finding in found if finding["level"] == PROBLEM]
    assert (problem["check"], problem["subject"]) == ("min-insync", "views")
    assert "min.insync.replicas is 2 and there is 1 replica" in problem["text"]
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


@pytest.mark.parametrize(("ahead_s", "level"), [(0.2, OK), (-4.9, OK), (6, PROBLEM), (-3600, PROBLEM)])
def test_clocks_may_differ_a_little(ahead_s: float, level: str) -> None:
    assert _skew("broker 0", ahead_s, 0.0).level == level


GB = 1024**3


@pytest.mark.parametrize(
    ("total", "free", "level"),
    [(100 * GB, 50 * GB, OK), (100 * GB, 9 * GB, PROBLEM), (5 * GB, GB // 2, PROBLEM), (-1, -1, NOTE)],
)
def test_disks_that_are_nearly_full(total: int, free: int, level: str) -> None:
    finding = _disk("broker 0", LogDirectory("/data", total, free, {}), local=False)
    assert finding.level == level


def test_a_disk_of_an_old_broker_on_this_machine_is_looked_at(tmp_path: Path) -> None:
    assert "free" in _disk("broker 0", LogDirectory(str(tmp_path), -1, -1, {}), local=True).text
    assert _disk("broker 0", LogDirectory("/no/such", -1, -1, {}), local=True).level == NOTE


def test_a_folder_that_is_offline() -> None:
    finding = _disk("broker 0", LogDirectory("/data", 1, 1, {}, error=RuntimeError("it burns")), local=False)
    assert (finding.level, "it burns" in finding.text) == (PROBLEM, True)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.9" 2023-10-17', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("nonsense", None),
    ],
)
def test_the_version_of_java(said: str, version: int | None) -> None:
    assert doctor_checks.java_version(said) == version


def test_a_missing_java_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.cluster.doctor_checks.shutil.which", lambda *_, **__: None)
    (java,) = [finding for finding in doctor_checks.examine_machine() if finding.check == "java"]
    assert java.level == NOTE
    assert "JDK 17" in java.advice


@pytest.mark.parametrize(("script", "level"), [('echo \'openjdk version "11.0.1"\' >&2', NOTE), ("exit 1", NOTE),
                                               ('echo \'openjdk version "17.0.1"\' >&2', OK)])  # fmt: skip
def test_a_java_is_asked_for_its_version(
    script: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (found,) = [finding for finding in doctor_checks.examine_machine() if finding.check == "java"]
    assert found.level == level


def test_a_missing_spark_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("penstock.cli.cluster.doctor_checks.metadata.version", missing)
    (spark,) = [finding for finding in doctor_checks.examine_machine() if finding.check == "spark"]
    assert (spark.level, "penstock[spark]" in spark.advice) == (NOTE, True)


class OldBroker:
    legacy_release = "0.9"

    def __init__(self, versions: dict[int, tuple[int, int]]) -> None:
        self.versions = versions


@pytest.mark.parametrize(
    ("produce", "level", "named"), [((0, 1), NOTE, "topics create"), ((90, 99), PROBLEM, "Produce: 90-99 there")]
)
def test_versions_that_do_not_meet_are_told(produce: tuple[int, int], level: str, named: str) -> None:
    served = dict.fromkeys((1, 2, 3, 8, 10, 11, 12, 14), (0, 0))
    finding = doctor_checks._versions("broker 0", OldBroker({0: produce, **served}))  # type: ignore[arg-type]
    assert finding.level == level
    assert named in finding.text
    assert "Kafka 0.9" in finding.text
