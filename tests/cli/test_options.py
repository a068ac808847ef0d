"""Options that all commands share: names, confirmation, dry run, watch."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import click
from tests.cli.commands import Shell
from tests.timeouts import PATIENCE_S

from penstock.cli.main import cli


def test_topics_may_be_named_by_an_option(shell: Shell, topic: str, single: str) -> None:
    found = shell.json("topics", "describe", "-t", topic, single)["topics"]
    assert [each["name"] for each in found] == sorted([topic, single])
    assert shell("topics", "create").exit_code == 2


def test_answering_no_is_not_an_interrupt(shell: Shell, single: str) -> None:
    result = shell.at_terminal("topics", "delete", single, answer="n\n")
    assert result.returncode == 1
    assert "with all records?" in result.stderr
    assert result.stderr.endswith("Nothing was changed.\n")
    assert "Interrupted" not in result.stderr
    assert single in shell.lines("topics", "list")


def test_yes_at_a_terminal_deletes(shell: Shell, single: str) -> None:
    result = shell.at_terminal("topics", "delete", single, answer="y\n")
    assert (result.returncode, result.stdout) == (0, f"Deleted {single}.\n")
    assert single not in shell.lines("topics", "list")


def test_a_dry_run_deletes_nothing(shell: Shell, single: str) -> None:
    assert shell.done("topics", "delete", single, "--dry-run") == f"{single} would be deleted (dry run).\n"
    assert shell("topics", "delete", f"{single}x", "--dry-run").exit_code == 4
    assert single in shell.lines("topics", "list")
    contradiction = shell("topics", "delete", single, "--dry-run", "--yes")
    assert contradiction.exit_code == 2
    assert single in shell.lines("topics", "list")


def test_a_list_is_shown_again_and_again(shell: Shell, single: str) -> None:
    words = ("topics", "describe", single, "--watch", "--interval", "50ms", "--format", "json")
    with shell.process(*words) as process:
        assert process.stdout is not None
        ends = [json.loads(process.stdout.readline())["topics"][0]["partitions"][0]["endOffset"]]
        shell.done("produce", single, stdin="one more\n")
        while ends[-1] == 0:
            ends.append(json.loads(process.stdout.readline())["topics"][0]["partitions"][0]["endOffset"])
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    assert (ends[0], ends[-1]) == (0, 1)


def test_a_topic_that_does_not_exist_is_not_watched(shell: Shell) -> None:
    result = shell("topics", "describe", "never-was", "--watch")
    assert result.exit_code == 4


# --- alike everywhere

NOT_OF_A_CLUSTER = {"pipeline list", "profile list"}
"""Lists that change only when a command changes them."""


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, dict[str, click.Parameter]]]:
    """Every command that is not a group, with its options by their spellings."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, *path, name)
    else:
        yield " ".join(path), {spelling: option for option in command.params for spelling in option.opts}


def test_options_are_spelled_alike_in_all_commands() -> None:
    pairs = [("--topic", "-t"), ("--group", "-g"), ("--set", "-c"), ("--yes", "-y"), ("--yes", "--execute")]
    wrong = []
    for name, options in commands(cli):
        wrong += [(name, pair) for pair in pairs if (pair[0] in options) and options.get(pair[1]) != options[pair[0]]]
        if "--yes" in options and "--dry-run" not in options:
            wrong.append((name, ("--yes", "--dry-run")))
        if (
            "-b" in options
            and "--format" not in options
            and name not in {"activity run", "console", "registry start", "server start"}
        ):
            wrong.append((name, ("-b", "--format")))
    assert wrong == []


def test_every_list_of_a_cluster_can_be_watched() -> None:
    verbs = ("list", "describe", "status")
    lists = {name: options for name, options in commands(cli) if name.endswith(verbs)}
    assert "users list" in lists
    assert [name for name, options in lists.items() if "--watch" not in options] == sorted(NOT_OF_A_CLUSTER)
