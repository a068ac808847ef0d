"""Quotas: set, listed and removed."""

from __future__ import annotations

import pytest
from tests.cli.commands import Shell

from penstock.testing.embedded_broker import EmbeddedBroker


def test_quotas_are_set_listed_and_removed(shell: Shell, broker: EmbeddedBroker) -> None:
    empty = shell("quotas", "list")
    assert (empty.stdout, empty.stderr) == ("", "No quotas.\n")
    rate = ("producer_byte_rate=1048576", "request_percentage=50")
    shell.done("quotas", "set", *rate, "--user", "alice")
    shell.done("quotas", "set", "consumer_byte_rate=10", "--user", "default", "--client-id", "app")
    shell.done("quotas", "set", "controller_mutation_rate=1234567.25", "--user", "bob")
    shell.done("quotas", "set", "connection_creation_rate=5", "--ip", "10.1.2.3")
    assert broker.broker.cluster.image.users["alice"] == {"producer_byte_rate": "1048576", "request_percentage": "50.0"}
    assert shell.json("quotas", "list", "--user", "alice") == {
        "quotas": [
            {"entity": {"user": "alice"}, "values": {"producer_byte_rate": 1048576.0, "request_percentage": 50.0}}
        ]
    }
    table = shell.done("quotas", "list")
    assert [word in table for word in ("alice", "<default>", "app", "10.1.2.3", "1048576\n", "1234567.25\n")] == [
        True
    ] * 6
    assert "Dry run" in shell.done("quotas", "remove", "--user", "alice", "--dry-run")
    shell.done("quotas", "remove", "request_percentage", "--user", "alice")
    shell.done("quotas", "remove", "--user", "alice")
    shell.done("quotas", "remove", "--user", "default", "--client-id", "app")
    shell.done("quotas", "remove", "--ip", "10.1.2.3")
    shell.done("quotas", "remove", "--user", "bob")
    assert shell.json("quotas", "list") == {"quotas": []}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("set", "producer_byte_rate=1"), "--user"),
        (("set", "producer_byte_rate", "--user", "a"), "QUOTA=NUMBER"),
        (("set", "speed=1", "--user", "a"), "producer_byte_rate"),
        (("set", "producer_byte_rate=-1", "--user", "a"), "more than 0"),
        (("set", "producer_byte_rate=nan", "--user", "a"), "more than 0"),
        (("set", "=1", "--user", "a"), "producer_byte_rate"),
        (("set", "producer_byte_rate=1", "--ip", "10.0.0.1"), "connection_creation_rate"),
        (("remove", "--user", "nobody"), "There are no quotas"),
    ],
)
def test_what_is_not_a_quota_is_explained(shell: Shell, words: tuple[str, ...], text: str) -> None:
    failed = shell("quotas", *words)
    assert failed.exit_code != 0
    assert text in failed.stderr
