"""Single checks of `penstock doctor`."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from penstock.cli.cluster import doctor_checks
from penstock.client.admin import LogDirectory
from penstock.client.diagnosis import NOTE, OK, PROBLEM, disk_finding, skew


@pytest.mark.parametrize(("ahead_s", "level"), [(0.2, OK), (-4.9, OK), (6, PROBLEM), (-3600, PROBLEM)])
def test_clocks_may_differ_a_little(ahead_s: float, level: str) -> None:
    assert skew("broker 0", ahead_s, 0.0).level == level


GB = 1024**3


@pytest.mark.parametrize(
    ("total", "free", "level"),
    [(100 * GB, 50 * GB, OK), (100 * GB, 9 * GB, PROBLEM), (5 * GB, GB // 2, PROBLEM), (-1, -1, NOTE)],
)
def test_disks_that_are_nearly_full(total: int, free: int, level: str) -> None:
    finding = disk_finding("broker 0", LogDirectory("/data", total, free, {}), local=False)
    assert finding.level == level


def test_a_disk_of_an_old_broker_on_this_machine_is_looked_at(tmp_path: Path) -> None:
    assert "free" in disk_finding("broker 0", LogDirectory(str(tmp_path), -1, -1, {}), local=True).text
    assert disk_finding("broker 0", LogDirectory("/no/such", -1, -1, {}), local=True).level == NOTE


def test_a_folder_that_is_offline() -> None:
    finding = disk_finding("broker 0", LogDirectory("/data", 1, 1, {}, error=RuntimeError("it burns")), local=False)
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
def test_the_version_of_java_is_read(script: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_versions_that_do_not_meet_are_reported(produce: tuple[int, int], level: str, named: str) -> None:
    served = dict.fromkeys((1, 2, 3, 8, 10, 11, 12, 14), (0, 0))
    finding = doctor_checks._versions("broker 0", OldBroker({0: produce, **served}))  # type: ignore[arg-type]
    assert finding.level == level
    assert named in finding.text
    assert "Kafka 0.9" in finding.text
