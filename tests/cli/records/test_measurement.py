"""Percentiles, pace and progress of measurements."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import Shell

from penstock.cli.records.measurement import Pace, percentile


@pytest.mark.parametrize(("percent", "expected"), [(50, 5), (95, 10), (99.9, 10), (10, 1), (1, 1), (100, 10), (55, 6)])
def test_percentiles_are_measured_values(percent: float, expected: float) -> None:
    assert percentile([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], percent) == expected


def test_no_pace_never_waits() -> None:
    pace = Pace(0)
    for number in range(1000):
        pace.wait(number)


def test_progress_is_shown_at_a_terminal(shell: Shell, topic: str, tmp_path: Path) -> None:
    """Standard error is a terminal; standard output is a file and stays clean."""
    (tmp_path / "lines").write_text("x\n" * 1000)
    for args in (
        ("perf", "produce", "-t", topic, "-n", "400", "--throughput", "800", "--json"),
        ("produce", topic, str(tmp_path / "lines")),
    ):
        ours, theirs = os.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *args],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs,
            env={**os.environ, **shell.environment, "TERM": "xterm", "COLUMNS": "100"},
        )  # fmt: skip
        os.close(theirs)
        shown = _read_all(ours)
        assert process.stdout is not None
        with process:
            output = process.stdout.read()
        assert process.returncode == 0
        assert b"records" in shown
        assert b"\x1b" in shown
        assert b"\x1b" not in output


def _read_all(terminal: int) -> bytes:
    """Until the last process that has the other end is gone, which a terminal tells by an error."""
    said = b""
    try:
        while data := os.read(terminal, 65_536):
            said += data
    except OSError:
        pass
    finally:
        os.close(terminal)
    return said
