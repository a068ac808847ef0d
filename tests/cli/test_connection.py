"""`brokers`, `configs`, `offsets`, and what all commands about a cluster share."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.cli.commands import Shell
from tests.ports import free_port

from penstock.cli.connection import command_error_for
from penstock.cli.topics.topics_report import is_internal
from penstock.client.admin import TopicDescription
from penstock.client.errors import UnsupportedVersion
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey

# --- brokers


def test_brokers_are_listed_with_what_they_lead(shell: Shell, topic: str, broker: EmbeddedBroker) -> None:
    document = shell.json("brokers")
    (one,) = document["brokers"]
    assert (one["id"], one["host"], one["port"], one["controller"]) == (0, "127.0.0.1", broker.port, True)
    assert one["leads"] >= 3
    assert document["cluster"]
    assert shell.done("brokers") == shell.done("brokers", "list")


def test_disks_show_what_lies_on_them(shell: Shell, single: str, broker: EmbeddedBroker) -> None:
    shell.done("produce", single, stdin="x" * 1000)
    (folder,) = shell.json("brokers", "disks")["folders"]
    assert folder["path"] == broker.data_dir
    assert folder["topics"][single] > 1000
    assert folder["freeBytes"] < folder["totalBytes"]
    assert single in shell.done("brokers", "disks", "--topics")


def test_a_broker_that_is_not_there_is_told(shell: Shell) -> None:
    result = shell("brokers", "disks", "77", "--request-timeout-ms", "2000")
    assert result.exit_code == 1
    assert "Broker 77" in result.stderr
    assert "penstock doctor" not in result.stderr


def test_versions_are_those_that_both_know(shell: Shell) -> None:
    found = {each["api"]: each for each in shell.json("brokers", "versions")["versions"]}
    assert found["Produce"]["lowest"] <= found["Produce"]["used"] <= found["Produce"]["highest"]
    assert "Metadata" in shell.done("brokers", "versions", "0")


# --- configs


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
def test_settings_of_nobody_or_nothing_are_refused(shell: Shell, options: tuple[str, ...]) -> None:
    result = shell("configs", *options)
    assert result.exit_code == 2
    assert "Use " in result.stderr


def test_a_value_that_is_refused_is_told(shell: Shell, topic: str) -> None:
    result = shell("configs", "alter", "--topic", topic, "--set", "cleanup.policy=shred")
    assert result.exit_code == 4
    assert "cleanup.policy" in result.stderr


# --- offsets


def test_offsets_of_ends_and_of_a_time(shell: Shell, single: str) -> None:
    lines = "\n".join(f'{{"value": "{n}", "timestamp": {1_700_000_000_000 + n * 1000}}}' for n in range(5))
    shell.done("produce", single, "--format", "json", stdin=lines)
    (row,) = shell.json("offsets", single, "--time", "1700000002500")["partitions"]
    assert row == {
        "topic": single, "partition": 0, "begin": 0, "end": 5, "records": 5, "atOffset": 3, "atTime": 1_700_000_003_000,
    }  # fmt: skip
    text = shell.done("offsets", f"{single}:0", "--time", "1700000002500")
    assert text.splitlines()[1].split() == [single, "0", "0", "5", "5", "3", "2023-11-14T22:13:23.000Z"]
    (late,) = shell.json("offsets", single, "--time", "now")["partitions"]
    assert (late["atOffset"], late["atTime"]) == (None, None)
    assert shell("offsets", f"{single}:3").exit_code == 4
    assert shell("offsets", "no-such").exit_code == 4
    assert single in shell.done("offsets")


# --- what all share


def test_nothing_listening_says_how_to_start_a_broker(shell: Shell) -> None:
    result = shell("topics", "list", "-b", f"127.0.0.1:{free_port()}")
    assert result.exit_code == 3
    assert "penstock up" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "args",
    [("reassign", "plan"), ("elect", "preferred"), ("brokers", "describe"), ("topics", "list"),
     ("produce", "x"), ("consume", "x"), ("groups", "list"), ("brokers",), ("offsets",),
     ("configs", "describe", "--topic", "x"), ("perf", "produce", "-t", "x"), ("perf", "consume", "-t", "x"),
     ("perf", "latency", "-t", "x")],
)  # fmt: skip
def test_no_broker_is_exit_code_3_everywhere(shell: Shell, args: tuple[str, ...]) -> None:
    assert shell(*args, "-b", f"127.0.0.1:{free_port()}", stdin="").exit_code == 3


def test_an_address_that_makes_no_sense_is_a_usage_error(shell: Shell) -> None:
    result = shell("topics", "list", "-b", "localhost:what")
    assert result.exit_code == 2
    assert "what" in result.stderr


def test_a_stranger_is_told_from_a_broker(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        result = shell("topics", "list", "-b", f"127.0.0.1:{silent.getsockname()[1]}", "--request-timeout-ms", 300)
    assert result.exit_code == 3
    assert "no answer" in result.stderr


def test_a_file_of_properties_is_used(shell: Shell, tmp_path: Path, broker: EmbeddedBroker) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers = {broker.address}\nclient.id=me\nrequest.timeout.ms=9000\nlinger.ms=1\n")
    plain = Shell("")
    plain.environment = {}
    assert plain("topics", "list", "--command-config", file).exit_code == 0
    assert plain("produce", "from-file", "--command-config", file, stdin="x").exit_code == 0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("clinet.id=me", "Did you mean client.id?"),
        ("security.protocol=SASL_SSL", "PLAINTEXT or SSL"),
        ("security.protocol=SSL\nssl.ca.location=/nowhere.pem", "PEM files"),
        ("security.protocol=SSL\nssl.truststore.location=x\nssl.truststore.type=JKS", "Only PEM"),
        ("request.timeout.ms=soon", "milliseconds"),
    ],
)
def test_properties_that_make_no_sense_are_refused(shell: Shell, tmp_path: Path, content: str, told: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(content)
    result = shell("topics", "list", "--command-config", file)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_file_of_properties_that_is_not_there(shell: Shell, tmp_path: Path) -> None:
    result = shell("topics", "list", "--command-config", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "--command-config" in result.stderr
    assert shell("topics", "list", "--command-property", "no.such=1").exit_code == 2


def test_tls_against_a_plain_port_says_so(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\n")
    result = shell("topics", "list", "--command-config", file, "--request-timeout-ms", 3000)
    assert result.exit_code == 3
    assert "does not use TLS" in result.stderr


# --- brokers of another time


def test_a_broker_without_times_is_not_asked_for_them(
    shell: Shell, single: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.client.connection import Connection

    supports = Connection.supports

    def older(self: Connection, api_key: int, version: int) -> bool:
        return supports(self, api_key, version) and not (api_key == ApiKey.LIST_OFFSETS and version >= 1)

    monkeypatch.setattr(Connection, "supports", older)
    for args in (
        ("groups", "seek", group, "--topic", single, "--to-time", "1h ago", "--execute"),
        ("groups", "seek", group, "--topic", single, "--by-duration", "1h"),
        ("offsets", single, "--time", "1h ago"),
        ("consume", single, "--from-time", "1h ago", "-e"),
        ("consume", single, "--until-time", "now"),
    ):
        result = shell(*args)
        assert result.exit_code == 4, args
        assert "too old to look up records by time" in result.stderr
    assert shell("groups", "describe", group).exit_code == 4


@pytest.mark.parametrize(("name", "flag", "internal"), [("__consumer_offsets", False, True), ("views", True, True),
                                                        ("views", False, False)])  # fmt: skip
def test_an_internal_topic_is_known_by_name_where_the_broker_does_not_say(
    name: str, flag: bool, internal: bool
) -> None:
    assert is_internal(TopicDescription(name, None, flag, ())) == internal


def test_what_a_broker_does_not_have_is_said_so() -> None:
    error = command_error_for(UnsupportedVersion("old:9092", "CreateTopics", (0, 7), None))
    assert error.exit_code == 4
    assert "brokers versions" in error.message
