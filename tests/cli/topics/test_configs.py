"""Settings of topics and brokers: where they come from, and changes to them."""

from __future__ import annotations

import pytest
from tests.cli.commands import Shell


def test_settings_say_where_they_come_from(shell: Shell, topic: str) -> None:
    assert "--all shows them" in shell.done("configs", "describe", "--topic", topic)
    changed = shell.json("configs", "alter", "--topic", topic, "--set", "retention.ms=5000")["changes"]
    assert changed == [{"name": "retention.ms", "before": "604800000", "after": "5000"}]
    (entry,) = shell.json("configs", "describe", "--topic", topic)["settings"]
    assert (entry["name"], entry["value"], entry["source"]) == ("retention.ms", "5000", "topic")
    everything = {
        each["name"]: each for each in shell.json("configs", "describe", "--topic", topic, "--all")["settings"]
    }
    assert everything["cleanup.policy"]["source"] == "default"
    assert "topic" in shell.done("configs", "describe", "--topic", topic, "retention.ms")
    assert len(shell.done("configs", "describe", "--topic", topic, "retention.ms", "--docs").splitlines()) == 2
    shell.done("configs", "alter", "--topic", topic, "--unset", "retention.ms")
    assert shell.json("configs", "describe", "--topic", topic)["settings"] == []


def test_settings_of_a_broker_and_of_all(shell: Shell) -> None:
    of_broker = {each["name"]: each for each in shell.json("configs", "describe", "--broker", "0")["settings"]}
    assert of_broker["listeners"]["source"] == "static"
    shell.done("configs", "alter", "--all-brokers", "--set", "log.retention.ms=777000")
    (entry,) = shell.json("configs", "describe", "--broker", "0", "log.retention.ms")["settings"]
    assert (entry["value"], entry["source"]) == ("777000", "dynamic default")
    shell.done("configs", "alter", "--all-brokers", "--unset", "log.retention.ms")


def test_a_dry_run_changes_no_setting(shell: Shell, topic: str) -> None:
    assert "Dry run" in shell.done("configs", "alter", "--topic", topic, "--set", "retention.ms=5", "--dry-run")
    assert shell.json("configs", "describe", "--topic", topic)["settings"] == []


@pytest.mark.parametrize("command", [("describe", "retention.mss"), ("alter", "--set", "retention.mss=1")])
def test_an_unknown_setting_has_a_nearest_one(shell: Shell, topic: str, command: tuple[str, ...]) -> None:
    result = shell("configs", *command, "--topic", topic)
    assert result.exit_code == 4
    assert "Did you mean retention.ms?" in result.stderr


@pytest.mark.parametrize(
    "options", [("describe",), ("describe", "--topic", "a", "--broker", "0"), ("alter", "--topic", "a")]
)
def test_a_command_without_a_target_or_a_change_is_rejected(shell: Shell, options: tuple[str, ...]) -> None:
    result = shell("configs", *options)
    assert result.exit_code == 2
    assert "Use " in result.stderr


def test_a_rejected_value_is_reported(shell: Shell, topic: str) -> None:
    result = shell("configs", "alter", "--topic", topic, "--set", "cleanup.policy=shred")
    assert result.exit_code == 4
    assert "cleanup.policy" in result.stderr
