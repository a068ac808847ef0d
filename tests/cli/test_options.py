"""Options that all commands share: names, confirmation, dry run, watch."""

from __future__ import annotations

import json
import signal

from tests.cli.commands import Shell
from tests.timeouts import PATIENCE_S


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
