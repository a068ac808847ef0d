"""Spark's Python workers whose query is stopped end without a word; others say what happened."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.activity.pipelines.workers import quiet


@pytest.mark.parametrize("closed", [BrokenPipeError, ConnectionResetError])
def test_a_worker_whose_pipe_is_closed_ends(closed: type[OSError]) -> None:
    def worker(connection: str, is_known: bool) -> int:
        raise closed

    assert quiet(worker)("connection", True) == 1


def test_a_worker_that_fails_otherwise_is_told_and_one_that_does_not_goes_on() -> None:
    def worker(code: int) -> int:
        if code:
            raise MemoryError
        return code

    assert quiet(worker)(0) == 0
    with pytest.raises(MemoryError):
        quiet(worker)(1)


def test_a_session_of_a_run_has_these_workers() -> None:
    """In a process of its own: there is one session in each."""
    asks = (
        "from penstock.activity.pipelines.running import pipeline_session as new\n"
        "spark = new('local[1]')\n"
        "def line(row):\n"
        "    import pathlib, os\n"
        "    return pathlib.Path(f'/proc/{os.getpid()}/cmdline').read_text()\n"
        "print(spark.sparkContext.parallelize([1], 1).map(line).collect()[0].split(chr(0)))\n"
        "spark.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, timeout=120, check=False)
    assert "'penstock.activity.pipelines.workers', 'pyspark.worker'" in done.stdout, done.stderr
