"""`penstock log`: its paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.logs import partition, run


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_a_path_is_needed(command: str) -> None:
    result = run("log", command)
    assert result.exit_code == 2
    assert "PATH" in result.stderr


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_an_unknown_path_says_what_to_give(command: str, tmp_path: Path) -> None:
    result = run("log", command, tmp_path / "nowhere")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "nowhere: no such file" in result.stderr
    assert "a partition's folder" in result.stderr


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_one_unknown_path_of_two_does_nothing(command: str, tmp_path: Path) -> None:
    partition(tmp_path / "t-0")
    result = run("log", command, tmp_path / "t-0", tmp_path / "nowhere")
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_a_file_that_is_not_of_a_log_is_rejected(command: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    result = run("log", command, tmp_path / "notes.txt")
    assert result.exit_code == 2
    assert "is not a file of a log" in result.stderr


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_a_folder_that_is_not_of_a_log_is_rejected(command: str, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    result = run("log", command, tmp_path / "letters")
    assert result.exit_code == 2
    assert "is not a data folder or a partition's folder" in result.stderr
