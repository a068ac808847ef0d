"""Sentences and JSON errors of commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.logs import run

from penstock.cli.output import json_errors_wanted, sentence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("views-17 on broker 0: not the leader", "views-17 on broker 0: not the leader."),
        ("views has no partition", "views has no partition."),
        ("pip install 'penstock[spark]'", "pip install 'penstock[spark]'."),
        ("batch.size is 5", "batch.size is 5."),
        ("/var/log is no folder", "/var/log is no folder."),
        ("topic 'x' does not exist", "Topic 'x' does not exist."),
        ("topic x: deleted", "Topic x: deleted."),
        ("Already a sentence.", "Already a sentence."),
    ],
)
def test_names_keep_their_case(text: str, expected: str) -> None:
    assert sentence(text) == expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["topics", "list", "--format", "json"], True),
        (["topics", "list", "--format=json"], True),
        (["consume", "views", "-f", "json"], True),
        (["perf", "produce", "--json"], True),
        (["topics", "list", "--format", "text"], False),
        (["topics", "list"], False),
        ([], False),
        (["produce", "views", "--format", "json"], False),
    ],
)
def test_errors_are_json_if_the_command_line_asks_for_it(args: list[str], expected: bool) -> None:
    assert json_errors_wanted(args) is expected


def test_a_name_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    result = run("log", "verify", tmp_path / "x\x1b[31m\nred")
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr
    assert "\\x1b[31m\\nred" in result.stderr
