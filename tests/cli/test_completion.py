"""`penstock completion`, and what a shell completes on Tab."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from tests.cli.commands import Shell, put_on_path
from tests.cli.logs import run
from tests.cli.scripted_transactions import Known, ScriptedTransactions
from tests.ports import free_port
from tests.timeouts import PATIENCE_S

from penstock.cli.main import cli
from penstock.testing.embedded_broker import EmbeddedBroker


def completed(shell: Shell, *words: str) -> list[str]:
    """What bash would offer for the last word."""
    environment = {
        **os.environ, **shell.environment, "COMP_WORDS": " ".join(("penstock", *words)),
        "COMP_CWORD": str(len(words)), "_PENSTOCK_COMPLETE": "bash_complete",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "from penstock.cli.main import main; main()"],
        env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_and_options_are_completed(shell: Shell) -> None:
    assert completed(shell, "to") == ["topics"]
    assert "describe" in completed(shell, "topics", "d")
    assert "--from-beginning" in completed(shell, "consume", "--from")


def test_topics_and_groups_are_completed_from_the_broker(shell: Shell, topic: str, single: str, group: str) -> None:
    shell.done("groups", "seek", group, "--topic", single, "--to-earliest", "--execute")
    assert completed(shell, "topics", "describe", topic[:8]) == [topic]
    assert completed(shell, "consume", "--topic", single[:8]) == [single]
    assert completed(shell, "groups", "describe", group[:8]) == [group]
    assert completed(shell, "configs", "describe", "--topic", topic, "retention.m") == ["retention.ms"]


def test_transactional_ids_are_completed_from_their_coordinators() -> None:
    with ScriptedTransactions({"ledger": Known(7, coordinator=1), "lead": Known(8, coordinator=2)}) as cluster:
        shell = Shell(cluster.address)
        assert offered_here(shell, "transactions", "describe", "le") == ["lead", "ledger"]
        assert offered_here(shell, "transactions", "fence", "--transactional-id", "led") == ["ledger"]


def offered_here(shell: Shell, *words: str) -> list[str]:
    """The same, in this process."""
    with CliRunner().isolation(env=shell.environment):
        found = ShellComplete(cli, {}, "penstock", "_PENSTOCK_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found]


def test_settings_are_completed_after_set(shell: Shell, topic: str) -> None:
    for words in (("create", "a-new-one", "--set"), ("alter", topic, "-c"), ("alter", topic, "--config")):
        assert offered_here(shell, "topics", *words, "retention.m") == ["retention.ms="]
    assert offered_here(shell, "configs", "alter", "-t", topic, "--set", "retention.m") == ["retention.ms="]
    assert offered_here(shell, "configs", "alter", "--broker", "0", "--set", "log.retention.m") == [
        "log.retention.minutes=", "log.retention.ms=",
    ]  # fmt: skip
    assert offered_here(shell, "topics", "alter", topic, "--unset", "retention.m") == ["retention.ms"]
    assert offered_here(shell, "server", "start", "--set", "log.retention.h") == ["log.retention.hours="]


def test_completion_asks_the_cluster_of_the_profile(broker: EmbeddedBroker, topic: str) -> None:
    nowhere = Shell("")
    nowhere.done("profile", "create", "here", "-b", broker.address)
    nowhere.done("profile", "use", "--none")
    assert offered_here(nowhere, "topics", "describe", "--profile", "h") == ["here"]
    assert offered_here(nowhere, "topics", "describe", "--profile", "here", topic[:8]) == [topic]
    assert offered_here(nowhere, "topics", "describe", topic[:8]) == []
    nowhere.done("profile", "use", "here")
    assert offered_here(nowhere, "topics", "describe", topic[:8]) == [topic]


def test_without_a_broker_there_is_no_completion() -> None:
    shell = Shell(f"127.0.0.1:{free_port()}")
    assert completed(shell, "topics", "describe", "x") == []


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell_name: str) -> None:
    result = run("completion", shell_name)
    assert result.exit_code == 0
    assert f"_PENSTOCK_COMPLETE={shell_name}_complete" in result.stdout
    program = shutil.which(shell_name)
    if program is not None:
        subprocess.run([program, "-n"], input=result.stdout, text=True, check=True, timeout=PATIENCE_S)


_PRESS_TAB = """
eval "$(penstock completion bash)"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
eval "$(complete -p penstock | sed 's/.*-F \\([^ ]*\\) .*/\\1/') penstock"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_itself_completes_commands_options_and_topics(shell: Shell, topic: str, tmp_path: Path) -> None:
    def offered(*words: str) -> list[str]:
        done = subprocess.run(
            ["bash", "--norc", "-c", _PRESS_TAB, "bash", "penstock", *words],
            env={**put_on_path(tmp_path), **shell.environment}, capture_output=True, text=True, check=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout.split()

    assert offered("to") == ["topics"]
    assert offered("consume", "--from") == ["--from-beginning", "--from-time"]
    assert offered("topics", "describe", topic[:8]) == [topic]
    assert offered("topics", "describe", "no-such-topic") == []


def test_another_shell_is_rejected() -> None:
    assert run("completion", "tcsh").exit_code == 2
