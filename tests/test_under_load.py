"""Tests beside busy loops: every run is counted, and no loop is left."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

_TOOL = Path(__file__).resolve().parents[1] / "tools" / "under_load.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("under_load", _TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["under_load"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("arguments", "says"), [(["--runs", "0"], "0 is not 1 or more"), (["--loops", "x"], "--loops")]
)
def test_bad_numbers_are_rejected(
    tool: ModuleType, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        tool.main(arguments)
    assert says in capsys.readouterr().err


def test_one_failed_run_of_two_is_a_failure_and_named(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = """
import pathlib, sys
there = pathlib.Path(sys.argv[1])
print("1 seen", flush=True)
print("make: *** [test] Error 1")
if not there.exists():
    there.touch()
    sys.exit(3)
"""
    command = [sys.executable, "-c", program]
    assert tool.main(["--runs", "2", "--loops", "1", "--", *command, str(tmp_path / "there")]) == 1
    printed = capsys.readouterr().out
    assert "run 1 FAILED (3) in" in printed
    assert "run 2 passed in" in printed
    assert ": 1 seen" in printed
    assert "1 of 2 runs passed" in printed


def test_loops_end_with_the_runs_also_if_one_is_interrupted(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    real = subprocess.Popen

    def start(*given: object, **named: object) -> subprocess.Popen[str]:
        started.append(real(*given, **named))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)

    def interrupted(command: object) -> None:
        assert [loop.poll() for loop in started] == [None, None]
        raise KeyboardInterrupt

    monkeypatch.setattr(tool, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tool.main(["--loops", "2"])
    assert len(started) == 2
    assert all(loop.poll() is not None for loop in started)
