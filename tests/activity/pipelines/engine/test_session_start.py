"""A session that starts in the background: its errors, its workers, its archive."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from tests.timeouts import PATIENCE_S

from penstock.activity.pipelines.engine.queries import Member
from penstock.activity.pipelines.engine.session import FastSession
from penstock.activity.pipelines.engine.status import QueryStatus
from penstock.spark.environment import DRIVER_VARIABLE, VARIABLE
from penstock.spark.session import NoJava


def test_what_keeps_a_session_from_starting_is_raised_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for name in (VARIABLE, DRIVER_VARIABLE):
        monkeypatch.setenv(name, "")
    session = FastSession("local[1]")
    session.start()
    with pytest.raises(NoJava):
        session.session()
    session.keep_archive(10_000)
    session.close()


def test_pyspark_is_imported_before_two_threads_may_import_it_at_the_same_time() -> None:
    """A run on a busy machine ended with "pyspark is not installed": each thread had a half of it."""
    program = """if True:
        import sys
        from penstock.activity.pipelines.engine.session import FastSession
        FastSession._make = lambda self: None  # the other thread
        session = FastSession("local[1]")
        assert "pyspark" not in sys.modules
        session.start()
        session.close()
        print("pyspark.sql.functions" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="it is used on Linux")
@pytest.mark.parametrize("what", ["a long path", "no programs"])
def test_without_forks_a_session_starts_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    folder = tmp_path / ("temporary" * 12 if what == "a long path" else "t")
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    if what == "no programs":  # as in a file system that is mounted with noexec
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(FastSession, "_make", lambda self: None)
    for name in (VARIABLE, DRIVER_VARIABLE):
        monkeypatch.setenv(name, "")
    session = FastSession("local[1]")
    session.start()
    assert not session.has_forked_workers
    assert [os.environ[name] for name in (VARIABLE, DRIVER_VARIABLE)] == ["", ""]
    assert list(folder.iterdir()) == []
    (line,) = caplog.messages
    assert ("path too long" if what == "a long path" else "cannot be run") in line
    session.close()


@pytest.mark.parametrize(("name", "has_options"), [("cache", True), ("my cache", False)])
def test_a_cache_whose_path_has_a_space_gets_no_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, has_options: bool
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    monkeypatch.setattr("penstock.spark.session.prepare", lambda environment: None)
    assert bool(FastSession("local[1]")._archive_options()) is has_options


class FullDisk:
    """An archive that cannot be written."""

    exists = False

    def __init__(self) -> None:
        self.tries = 0

    def start_making(self, class_path: str) -> bool:
        self.tries += 1
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error", [None, Py4JError("the JVM is gone")])
def test_an_archive_that_cannot_be_made_does_not_end_the_run_and_is_reported_once(
    caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    class Jvm:
        @property
        def java(self) -> Any:
            if error is not None:
                raise error
            return SimpleNamespace(lang=SimpleNamespace(System=SimpleNamespace(getProperty=lambda name: "a.jar")))

    session, disk = FastSession("local[1]"), FullDisk()
    session._made.set_result(cast("Any", SimpleNamespace(_jvm=Jvm())))
    session._archive = cast("Any", disk)
    session.keep_archive(1.0)
    assert caplog.messages == [], "it is too early"
    for _ in range(3):
        session.keep_archive(10_000)
    (line,) = caplog.messages
    assert ("No space left" if error is None else "the JVM is gone") in line
    assert disk.tries == (error is None)


@pytest.fixture
def started_python(monkeypatch: pytest.MonkeyPatch) -> str:
    """The value of the variables that name Spark's Python."""
    for name in (VARIABLE, DRIVER_VARIABLE):
        monkeypatch.setenv(name, sys.executable)
    return sys.executable


@pytest.mark.skipif(sys.platform != "linux", reason="it is used on Linux")
def test_a_session_that_is_closed_while_its_jvm_starts_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, started_python: str
) -> None:
    is_starting, may_continue, is_stopped = threading.Event(), threading.Event(), threading.Event()

    def start_jvm(*_: object) -> Any:
        is_starting.set()
        assert may_continue.wait(PATIENCE_S)
        return SimpleNamespace(stop=is_stopped.set)

    monkeypatch.setattr("penstock.activity.pipelines.engine.session.pipeline_session", start_jvm)
    monkeypatch.setattr(FastSession, "_archive_options", lambda self: {})
    session = FastSession("local[1]")
    session.start()
    server = session._server
    assert server is not None
    process = server._process
    assert process is not None
    assert [os.environ[name] for name in (VARIABLE, DRIVER_VARIABLE)] == [server.python] * 2
    assert is_starting.wait(PATIENCE_S)
    session.close()
    assert process.returncode is not None
    assert not Path(server.python).parent.exists()
    assert [os.environ[name] for name in (VARIABLE, DRIVER_VARIABLE)] == [started_python] * 2
    assert not is_stopped.is_set(), "nobody waits for the JVM"
    may_continue.set()
    assert is_stopped.wait(PATIENCE_S)


@pytest.mark.skipif(sys.platform != "linux", reason="it is used on Linux")
@pytest.mark.usefixtures("started_python")
def test_a_session_that_is_closed_before_its_jvm_starts_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    is_closed = threading.Event()
    started: list[object] = []

    def options(session: FastSession) -> dict[str, str]:
        assert is_closed.wait(PATIENCE_S)
        return {}

    monkeypatch.setattr(FastSession, "_archive_options", options)
    monkeypatch.setattr(
        "penstock.activity.pipelines.engine.session.pipeline_session", lambda *given: started.append(given)
    )
    session = FastSession("local[1]")
    session.start()
    session.close()
    is_closed.set()
    with pytest.raises(CancelledError):
        session.session()
    assert not started


class Endless(Member):
    """Never ends to start, and never ends its first batch."""

    def start(self) -> None: ...

    def is_starting(self) -> bool:
        return True

    def stop(self, deadline_s: float) -> None: ...

    def status(self) -> QueryStatus:
        return QueryStatus(name=self.name)


def test_a_run_that_is_stopped_does_not_wait_for_queries_that_start() -> None:
    stop = threading.Event()
    waiting = threading.Thread(
        target=Endless("feed/feed_entries").await_sources, args=(float("inf"), stop), daemon=True
    )
    waiting.start()
    assert waiting.is_alive()
    stop.set()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="it is used on Linux")
def test_the_workers_of_a_session_are_forks_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own: there is one session in each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    asks = (
        "from penstock.activity.pipelines.engine.session import FastSession\n"
        "session = FastSession('local[1]')\n"
        "session.start()\n"
        "spark = session.session()\n"
        "def line(row):\n"
        "    import pathlib, os\n"
        "    return pathlib.Path(f'/proc/{os.getpid()}/cmdline').read_text()\n"
        "print(spark.sparkContext.parallelize([1], 1).map(line).collect()[0].split(chr(0)))\n"
        "print(spark.range(3).mapInArrow(lambda batches: batches, 'id long').count())\n"
        "session.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "'penstock.spark.fork_server'" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "3"
    assert list(tmp_path.glob("penstock-python-*")) == []
    assert list((tmp_path / "cache" / "penstock" / "java").glob("spark-*")) == []
