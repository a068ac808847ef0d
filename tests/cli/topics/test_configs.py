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


def test_kafkas_largest_number_for_no_limit_is_shown_as_not_set_and_kept_in_documents(shell: Shell, topic: str) -> None:
    largest = str(2**63 - 1)
    shown = shell.done("configs", "describe", "--topic", topic, "flush.messages", "flush.ms", "retention.ms")
    assert shown.count("(not set)") == 2
    assert largest not in shown
    entries = shell.json("configs", "describe", "--topic", topic, "flush.messages", "retention.ms")["settings"]
    assert {each["name"]: each["value"] for each in entries} == {"flush.messages": largest, "retention.ms": "604800000"}
    # A value that was set is shown, and so is the one before it.
    assert "(not set)" in shell.done("configs", "alter", "--topic", topic, "--set", "flush.messages=7", "--dry-run")
    shell.done("configs", "alter", "--topic", topic, "--set", "flush.messages=7")
    assert "(not set)" not in shell.done("configs", "describe", "--topic", topic, "flush.messages")
    shell.done("configs", "alter", "--topic", topic, "--unset", "flush.messages")


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


def test_a_mistyped_setting_of_all_brokers_is_rejected_and_not_stored(shell: Shell) -> None:
    result = shell("configs", "alter", "--all-brokers", "--set", "log.retention.mss=1")
    assert result.exit_code == 4
    assert "Did you mean log.retention.ms?" in result.stderr
    assert shell.json("configs", "describe", "--all-brokers")["settings"] == []


def test_a_throttle_of_all_brokers_needs_not_be_listed_by_a_broker(shell: Shell) -> None:
    shell.done("configs", "alter", "--all-brokers", "--set", "leader.replication.throttled.rate=1000", "--dry-run")


def test_a_default_that_leaves_topics_without_acks_all_is_warned_about(shell: Shell, topic: str) -> None:
    change = ("configs", "alter", "--all-brokers", "--dry-run", "--set")
    assert shell(*change, "min.insync.replicas=1").stderr == ""
    result = shell(*change, "min.insync.replicas=2")
    assert result.exit_code == 0
    assert "Warning: no write with acks=all can succeed" in result.stderr
    assert "fewer than 2 replicas" in result.stderr
    # A topic with a value of its own is not concerned.
    shell.done("topics", "create", "own-value", "--set", "min.insync.replicas=1", "--if-not-exists")
    try:
        assert "own-value" not in shell(*change, "min.insync.replicas=2").stderr
    finally:
        shell.done("topics", "delete", "own-value", "--yes")


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
