"""A run that cannot work is rejected before anything starts, with what to do."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from tests.ports import free_port

from penstock.activity.live import preflight as checks
from penstock.activity.live.preflight import (
    OWN_BROKER,
    CannotRun,
    RunFolder,
    RunIdentity,
    StartTimes,
    start_times_path,
)
from penstock.activity.live.run import Plan
from penstock.testing.embedded_broker import EmbeddedBroker


def test_a_folder_is_one_runs_at_a_time(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.take()
    with pytest.raises(CannotRun, match=rf"in use by another run \(process {os.getpid()}\).*--data-dir"):
        second.take()
    first.release()
    second.take()
    second.release()


def test_a_folder_continues_with_its_site_and_its_cluster(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    made = folder.check(None, OWN_BROKER)
    assert made == RunIdentity(seed=1, cluster=OWN_BROKER)
    folder.remember(folder.check(5, OWN_BROKER))
    assert folder.check(None, OWN_BROKER).seed == 5
    assert folder.check(5, OWN_BROKER).seed == 5
    with pytest.raises(CannotRun, match=r"seed 5, not 6\. Remove --seed"):
        folder.check(6, OWN_BROKER)
    with pytest.raises(CannotRun, match="a broker of its own, but this run uses cluster abc"):
        folder.check(None, "abc")


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").touch()
    with pytest.raises(CannotRun, match="that was not created by"):
        RunFolder(tmp_path).check(None, OWN_BROKER)
    other = tmp_path / "other"
    other.mkdir()
    (other / "run.json").write_text("{")
    with pytest.raises(CannotRun, match=r"Cannot read .*run\.json"):
        RunFolder(other).check(None, OWN_BROKER)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(CannotRun, match="Cannot write"):
        RunFolder(tmp_path / "run").take()


def test_a_file_where_the_folder_should_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(CannotRun, match="Cannot write"):
        RunFolder(tmp_path / "run").take()


def test_a_port_in_use_is_reported_with_one_that_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotRun, match=rf"127.0.0.1:{port} is in use.*--http-port \d+\."):
            checks.bound_page(port)
        with pytest.raises(CannotRun, match=rf"--bootstrap-server 127.0.0.1:{port}; otherwise .*--port \d+\."):
            checks.check_broker_port(port)


def test_the_page_keeps_its_port_from_the_first_moment_on() -> None:
    port = free_port()
    with checks.bound_page(port) as listener:
        listener.listen()
        with pytest.raises(CannotRun, match="is in use"):
            checks.bound_page(port)


def test_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(CannotRun, match="JAVA_HOME"):
        checks.check_java(None)
    assert "Connect" in checks.check_java("sc://host")


def test_a_cluster_of_others_is_asked_who_it_is(tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        assert len(checks.cluster_id(Plan(tmp_path, (), bootstrap=broker.address))) == 22
    with pytest.raises(CannotRun):
        checks.cluster_id(Plan(tmp_path, (), bootstrap=f"127.0.0.1:{free_port()}"))


def test_the_times_of_a_start_are_those_of_the_same_pipelines(tmp_path: Path) -> None:
    path = start_times_path({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    all_of_them, one = StartTimes(path, ["feed", "search"]), StartTimes(path, ["search"])
    assert all_of_them.read() == {}
    all_of_them.write({"spark": 7_000})
    one.write({"spark": 5_000})
    all_of_them.write({"spark": 8_000})
    assert StartTimes(path, ["search", "feed"]).read() == {"spark": 8_000}
    assert one.read() == {"spark": 5_000}
    for number in range(40):
        StartTimes(path, [f"p{number}"]).write({})
    assert len(path.read_bytes()) < 500, "it does not grow for ever"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"search": 5}', '{"search": {"spark": "soon"}}'])
def test_a_damaged_file_of_times_is_as_good_as_none(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "starts.json"
    path.write_text(damaged)
    times = StartTimes(path, ["search"])
    assert times.read() == {}
    times.write({"spark": 5_000})
    assert times.read() == {"spark": 5_000}


def test_times_that_cannot_be_kept_are_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    StartTimes(tmp_path / "file" / "starts.json", ["search"]).write({"spark": 5_000})
