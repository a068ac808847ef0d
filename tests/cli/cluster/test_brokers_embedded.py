"""`penstock brokers` against a single broker."""

from __future__ import annotations

from tests.cli.commands import Shell

from penstock.testing.embedded_broker import EmbeddedBroker


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


def test_a_broker_that_does_not_exist_is_reported(shell: Shell) -> None:
    result = shell("brokers", "disks", "77", "--request-timeout-ms", "2000")
    assert result.exit_code == 1
    assert "Broker 77" in result.stderr
    assert "penstock doctor" not in result.stderr


def test_versions_are_those_that_both_know(shell: Shell) -> None:
    found = {each["api"]: each for each in shell.json("brokers", "versions")["versions"]}
    assert found["Produce"]["lowest"] <= found["Produce"]["used"] <= found["Produce"]["highest"]
    assert "Metadata" in shell.done("brokers", "versions", "0")
