"""Spark's Python workers whose query is stopped end without a word; others say what happened."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.timeouts import PATIENCE_S

from penstock.spark.worker_daemon import quiet


@pytest.fixture
def short_folder() -> Iterator[str]:
    """The path of a Unix socket has room for 107 bytes; that of a test's own folder may be too long."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


@pytest.mark.parametrize("closed", [BrokenPipeError, ConnectionResetError])
def test_a_worker_whose_pipe_is_closed_ends(closed: type[OSError]) -> None:
    def worker(connection: str, is_known: bool) -> int:
        raise closed

    assert quiet(worker)("connection", True) == 1


def test_a_worker_that_fails_otherwise_is_reported_and_one_that_does_not_continues() -> None:
    def worker(code: int) -> int:
        if code:
            raise MemoryError
        return code

    assert quiet(worker)(0) == 0
    with pytest.raises(MemoryError):
        quiet(worker)(1)


@pytest.mark.parametrize(("module", "is_reported"), [("penstock.spark.worker_daemon", False), ("pyspark.daemon", True)])
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the end of a worker is seen in /proc")
def test_a_daemon_whose_worker_is_closed_says_nothing_but_spark_s_own_does(
    short_folder: str, module: str, is_reported: bool
) -> None:
    environment = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": short_folder,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-m", module, "pyspark.worker"], env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as daemon:  # fmt: skip
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        (length,) = struct.unpack("!i", daemon.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(daemon.stdout.read(length).decode())
            (worker,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
        deadline_s = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{worker}").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        daemon.stdin.close()
        told = daemon.stderr.read().decode()
    assert ("BrokenPipeError" in told) == is_reported
    assert is_reported or not told


@pytest.mark.long
def test_a_session_of_a_run_has_these_workers() -> None:
    """In a process of its own: there is one session in each."""
    asks = (
        "from penstock.activity.pipelines.engine.session import pipeline_session as new\n"
        "spark = new('local[1]')\n"
        "def line(row):\n"
        "    import pathlib, os\n"
        "    return pathlib.Path(f'/proc/{os.getpid()}/cmdline').read_text()\n"
        "print(spark.sparkContext.parallelize([1], 1).map(line).collect()[0].split(chr(0)))\n"
        "spark.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "'penstock.spark.worker_daemon', 'pyspark.worker'" in done.stdout, done.stderr
