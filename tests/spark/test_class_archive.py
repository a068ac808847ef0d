"""The archive of Java's classes: made once, from what a JVM has loaded, and never half."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.timeouts import until

from penstock.spark import class_archive
from penstock.spark.class_archive import ClassArchive, archive_folder, java_command

SUCCEEDS = """#!/bin/sh
for argument do case "$argument" in -XX:SharedArchiveFile=*) target="${argument#*=}" ;; esac; done
printf '%s\\n' "$@" > "$target"
"""


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "spark-core.jar").write_bytes(b"a jar")
    return folder


def java(tmp_path: Path, script: str) -> Path:
    made = tmp_path / "jdk" / "bin" / "java"
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(script)
    made.chmod(0o755)
    return made


def classes_of(options: str) -> Path:
    return Path(options.partition("-XX:DumpLoadedClassList=")[2])


def test_the_first_jvm_lists_its_classes_and_the_second_uses_the_archive(tmp_path: Path, jars: Path) -> None:
    archive = ClassArchive(tmp_path / "cache", java(tmp_path, SUCCEEDS), jars)
    listed = classes_of(archive.java_options())
    listed.write_text("java/lang/Object id: 0\n" * 5_000 + "half a li")
    assert archive.start_making("/jars/a.jar:/jars/b.jar")
    assert not archive.start_making("/jars/a.jar"), "it is being made"
    until(archive.finish, "it is complete")
    made = archive.path.read_text().splitlines()
    assert made[0] == "-Xshare:dump"
    assert made[-2:] == ["-cp", "/jars/a.jar:/jars/b.jar"]
    archive.close()
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [archive.path.name]

    again = ClassArchive(tmp_path / "cache", tmp_path / "jdk" / "bin" / "java", jars)
    assert again.java_options().endswith(f"-XX:SharedArchiveFile={archive.path}")
    assert not again.start_making("/jars/a.jar"), "there is one"


def test_a_list_ends_with_a_complete_line(tmp_path: Path, jars: Path) -> None:
    keeps_list = '#!/bin/sh\nfor argument do case "$argument" in -XX:SharedClassListFile=*) list="${argument#*=}" ;; '
    keeps_list += '-XX:SharedArchiveFile=*) target="${argument#*=}" ;; esac; done\ncp "$list" "$target"\n'
    archive = ClassArchive(tmp_path / "cache", java(tmp_path, keeps_list), jars)
    classes_of(archive.java_options()).write_text("a id: 0\n" * 5_001 + "half a li")
    assert archive.start_making("x")
    until(archive.finish, "it is complete")
    assert archive.path.read_text() == "a id: 0\n" * 5_001


def test_what_fails_or_is_stopped_leaves_no_archive(tmp_path: Path, jars: Path) -> None:
    for script in (SUCCEEDS + "exit 1\n", "#!/bin/sh\nexec sleep 600\n"):
        archive = ClassArchive(tmp_path / "cache", java(tmp_path, script), jars)
        classes_of(archive.java_options()).write_text("a\n" * 9_000)
        assert archive.start_making("x")
        if script.endswith("exit 1\n"):
            until(lambda: archive._process is not None and archive._process.poll() == 1, "it has failed")  # noqa: B023
        assert not archive.finish()
        archive.close()
        assert list((tmp_path / "cache").iterdir()) == []


def test_an_archive_that_cannot_be_put_in_its_place_is_removed(tmp_path: Path, jars: Path) -> None:
    archive = ClassArchive(tmp_path / "cache", java(tmp_path, SUCCEEDS), jars)
    classes_of(archive.java_options()).write_text("a\n" * 9_000)
    assert archive.start_making("x")
    until(lambda: archive._process is not None and archive._process.poll() == 0, "it is complete")
    archive.path.mkdir()
    archive.close()
    assert list((tmp_path / "cache").iterdir()) == [archive.path]


def test_a_jvm_that_cannot_be_ended_does_not_keep_the_rest_from_ending(
    tmp_path: Path, jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = ClassArchive(tmp_path / "cache", java(tmp_path, "#!/bin/sh\nexec sleep 600\n"), jars)
    classes_of(archive.java_options()).write_text("a\n" * 9_000)
    assert archive.start_making("x")
    process = archive._process
    assert process is not None
    with monkeypatch.context() as patched:
        patched.setattr(process, "kill", lambda: None)
        patched.setattr(class_archive, "_STOP_S", 0.01)
        archive.close()
    process.kill()
    process.wait()
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_jvm_that_has_loaded_little_is_no_model(tmp_path: Path, jars: Path) -> None:
    archive = ClassArchive(tmp_path / "cache", java(tmp_path, SUCCEEDS), jars)
    listed = classes_of(archive.java_options())
    assert not archive.start_making("x"), "there is no list"
    listed.write_text("a\n" * 100)
    assert not archive.start_making("x")


def test_another_java_or_spark_has_another_archive_and_old_ones_are_removed(tmp_path: Path, jars: Path) -> None:
    folder, command = tmp_path / "cache", java(tmp_path, SUCCEEDS)
    names = []
    for number in range(4):
        (jars / "spark-core.jar").write_bytes(b"a jar" * (number + 1))
        archive = ClassArchive(folder, command, jars)
        assert not archive.exists
        classes_of(archive.java_options()).write_text("a\n" * 9_000)
        assert archive.start_making("x")
        until(archive.finish, "it is complete")
        os.utime(archive.path, (number, number))
        names.append(archive.path.name)
    assert {each.name for each in folder.glob("*.jsa")} == set(names[2:])
    java(tmp_path, SUCCEEDS + "# a newer Java\n")
    assert ClassArchive(folder, command, jars).path.name not in names


def test_files_of_killed_processes_are_removed_but_not_those_of_living_ones(tmp_path: Path, jars: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = tmp_path / "cache"
    folder.mkdir()
    for pid in (gone.pid, os.getppid()):
        (folder / f"spark-abc.{pid}.classes").touch()
    (folder / "other.file.txt").touch()
    ClassArchive(folder, java(tmp_path, SUCCEEDS), jars).java_options()
    assert {each.name for each in folder.iterdir()} == {f"spark-abc.{os.getppid()}.classes", "other.file.txt"}


@pytest.mark.parametrize(
    ("folder", "can"),
    [("/home/a/.cache", True), ("/home/a b", False), ("/home/a\tb", False), ("/home/o'b", False), ("/a\\b", False)],
)
def test_a_folder_that_spark_would_split_is_in_no_option(folder: str, can: bool) -> None:
    assert class_archive.can_be_in_options(Path(folder)) is can


def test_java_and_folder_are_those_of_the_environment(tmp_path: Path) -> None:
    assert java_command({"JAVA_HOME": "/opt/jdk", "PATH": ""}) == Path("/opt/jdk/bin/java")
    command = java(tmp_path, SUCCEEDS)
    assert java_command({"PATH": str(command.parent)}) == command
    assert java_command({"PATH": str(tmp_path)}) is None
    assert archive_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/penstock/java")
    assert class_archive.archive_folder({"HOME": "/h"}) == Path("/h/.cache/penstock/java")
