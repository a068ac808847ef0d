"""Files in the working directory that are called like modules of the standard library are not taken for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.running import Running
from tests.timeouts import PATIENCE_S

from penstock.activity.live.run import CHILD
from penstock.cli.main import main
from penstock.cli.server.local_cluster import penstock_command

SHADOWED = ("http", "json", "logging", "asyncio", "socket", "tempfile", "email", "click", "penstock")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose modules shadow those of the standard library."""
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the working directory was imported')\n")
    return tmp_path


@pytest.mark.parametrize("command", [penstock_command(), CHILD], ids=["brokers of a cluster", "parts of activity run"])
def test_processes_that_a_command_starts_do_not_import_from_the_working_directory(
    folder: Path, command: tuple[str, ...]
) -> None:
    # Without the variable that this process may have passed on: the command line alone must do.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [*command, "server", "start", "--help"], cwd=folder, env=variables, capture_output=True, text=True,
        timeout=PATIENCE_S, stdin=subprocess.PIPE,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "Run a broker in the foreground" in done.stdout


def test_a_broker_runs_in_such_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started as `python -m penstock`, which looks into the working directory before anything of ours runs."""
    (folder / "penstock.py").unlink()
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with Running("up", "--data-dir", folder / "data", "--port", "0", "--http-port", "0", cwd=folder) as up:
        up.until("is running")
        assert up.stop() == 0


def test_started_processes_ignore_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark starts its Python workers by itself; they have it from the environment."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # so that it is put back
    monkeypatch.delenv("PYTHONSAFEPATH")
    with pytest.raises(SystemExit):
        main(["--version"])
    seen = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.flags.safe_path)"], capture_output=True, text=True, check=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert seen.stdout == "True\n"
