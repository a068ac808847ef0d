"""What Spark prints, and what of it a command shows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pyspark import SparkConf, SparkContext
from tests.timeouts import until

from penstock.spark.session import ConsoleOutput, TracebackFilter, quiet_settings

OPTIONS = "spark.driver.extraJavaOptions"

CLOSED = [
    b"Traceback (most recent call last):\n",
    b'  File "daemon.py", line 95, in worker\n',
    b"    outfile.flush()\n",
    b"BrokenPipeError: [Errno 32] Broken pipe\n",
]


def shown(*lines: bytes) -> list[bytes]:
    kept = TracebackFilter()
    return [one for line in lines for one in kept.lines(line)]


def test_traceback_of_a_closed_pipe_is_not_shown() -> None:
    chain = [b"\n", b"During handling of the above exception, another exception occurred:\n", b"\n"]
    assert shown(b"before\n", *CLOSED, *chain, *CLOSED, b"after\n") == [b"before\n", b"after\n"]
    assert shown(b"PySpark daemon failed to flush the output to the worker process:\n", *CLOSED) == []


def test_every_other_traceback_is_shown_whole() -> None:
    other = [*CLOSED[:-1], b"ValueError: no\n"]
    assert shown(*other, b"\n", b"after\n") == [*other, b"\n", b"after\n"]


def test_what_the_user_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    ours = quiet_settings({}, "local[2]", tmp_path)
    assert Path(ours[OPTIONS].removeprefix("-Dlog4j2.configurationFile=file://")).is_file()
    assert ours["spark.python.daemon.module"] == "penstock.spark.worker_daemon"
    assert quiet_settings({OPTIONS: "-Xss16m"}, None, tmp_path)[OPTIONS].startswith("-Xss16m -Dlog4j2")
    assert OPTIONS not in quiet_settings({OPTIONS: "-Dlog4j2.configurationFile=mine"}, None, tmp_path)
    assert "spark.python.daemon.module" not in quiet_settings({}, "spark://host:7077", tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.properties").touch()
    assert OPTIONS not in quiet_settings({}, None, tmp_path)


class Jvm:
    """Something that prints as a JVM does, in the place of one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = False
        self.stderr = -1
        monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
        monkeypatch.setattr(SparkContext, "_gateway", None)
        monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda **_: None)
        monkeypatch.setattr("pyspark.java_gateway.launch_gateway", self.launch)

    def launch(self, conf: SparkConf, options: dict[str, int]) -> None:
        self.stderr = os.dup(options["stderr"])
        self.prints("WARNING: Using incubator modules")
        if self.fails:
            raise RuntimeError("no JVM")

    def prints(self, line: str) -> None:
        os.write(self.stderr, f"{line}\n".encode())


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Jvm:
    return Jvm(monkeypatch)


def test_what_is_printed_at_the_start_is_dropped_and_later_errors_are_shown(
    jvm: Jvm, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(sys.stderr, "write", shown.append)
    console = ConsoleOutput()
    with console.held_back(SparkConf(loadDefaults=False)):
        until(lambda: console.held, "the first line is held back")
    jvm.prints("ERROR Executor: bad")
    until(lambda: shown, "the error is shown")
    console.end()
    jvm.prints("ERROR at the end")
    os.close(jvm.stderr)
    until(lambda: console.is_closed, "all was read")
    assert shown == ["ERROR Executor: bad\n"]


def test_a_jvm_that_does_not_start_shows_all_its_output(jvm: Jvm, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(sys.stderr, "write", shown.append)
    jvm.fails = True
    console = ConsoleOutput()
    with pytest.raises(RuntimeError, match="no JVM"), console.held_back(SparkConf(loadDefaults=False)):
        pass
    until(lambda: shown, "the reason is shown")
    os.close(jvm.stderr)
    until(lambda: console.is_closed, "all was read")
    assert shown == ["WARNING: Using incubator modules\n"]
