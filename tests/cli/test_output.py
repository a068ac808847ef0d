"""Sentences and JSON errors of commands."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from tests.cli.logs import run

from penstock.cli.output import EXIT_PARTLY, JSON, TEXT, CommandError, json_errors_wanted, sentence, show_found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("views-17 on broker 0: not the leader", "views-17 on broker 0: not the leader."),
        ("views has no partition", "views has no partition."),
        ("pip install 'penstock[spark]'", "pip install 'penstock[spark]'."),
        ("batch.size is 5", "batch.size is 5."),
        ("/var/log is not a folder", "/var/log is not a folder."),
        ("loading tables needs pyarrow", "Loading tables needs pyarrow."),
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


# --- some found, others not


def shown(found: list[str], failed: dict[str, str], output_format: str) -> Result:
    """The result of a command that looks for groups and shows what it has found."""

    @click.command
    def command() -> None:
        show_found(
            found,
            {name: CommandError(problem, code="GROUP_ID_NOT_FOUND") for name, problem in failed.items()},
            output_format,
            title="groups",
            document=lambda name: {"group": name},
            show=lambda output, name: output.line(f"Group {name}"),
            nothing="No groups.",
        )

    return CliRunner().invoke(command)


def test_what_was_found_is_shown_beside_what_failed() -> None:
    result = shown(["a", "b"], {"c": "Group 'c' does not exist."}, TEXT)
    assert result.stdout == "Group a\n\nGroup b\n"
    assert "Group 'c' does not exist." in result.stderr
    assert result.exit_code == EXIT_PARTLY


def test_json_has_what_was_found_and_the_errors_by_name() -> None:
    result = shown(["a"], {"c": "Group 'c' does not exist."}, JSON)
    document = json.loads(result.stdout)
    assert document["groups"] == [{"group": "a"}]
    assert document["failed"]["c"]["code"] == "GROUP_ID_NOT_FOUND"
    assert json.loads(result.stderr)["code"] == "GROUP_ID_NOT_FOUND"
    assert result.exit_code == EXIT_PARTLY


def test_if_everything_failed_the_first_error_ends_the_command() -> None:
    result = shown([], {"c": "Group 'c' does not exist.", "d": "Group 'd' does not exist."}, TEXT)
    assert result.stdout == ""
    assert "'c'" in result.stderr
    assert "'d'" not in result.stderr
    assert result.exit_code == CommandError.exit_code


def test_an_empty_result_without_failures_says_so() -> None:
    result = shown([], {}, TEXT)
    assert (result.stdout, result.exit_code) == ("", 0)
    assert "No groups." in result.stderr
