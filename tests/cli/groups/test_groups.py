"""`penstock groups`: who reads what, how far behind, and moving them."""

from __future__ import annotations

import time
from urllib.request import urlopen

import pytest
from tests.cli.commands import Shell
from tests.timeouts import PATIENCE_S

from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.testing.embedded_broker import EmbeddedBroker

START_MS = 1_700_000_000_000


@pytest.fixture
def filled(shell: Shell, topic: str) -> str:
    """Ten records in each of three partitions, a second apart."""
    with Producer[bytes, bytes](shell.address) as producer:
        for number in range(30):
            producer.send(topic, b"v", partition=number % 3, timestamp_ms=START_MS + number // 3 * 1000)
    return topic


def test_a_group_with_a_member_is_shown_with_its_lag(shell: Shell, topic: str, group: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    with Producer[bytes, bytes](shell.address) as producer:
        for number in range(6):
            producer.send(topic, b"v", partition=number % 3, timestamp_ms=now_ms - 60_000)
    with Consumer(
        topic, bootstrap_servers=shell.address, group_id=group, auto_offset_reset="earliest", client_id="reader",
        enable_auto_commit=False,
    ) as consumer:  # fmt: skip
        read = 0
        while read < 6:
            read += sum(map(len, consumer.poll(timeout_ms=10_000).values()))
        consumer.commit({(topic, 0): 1, (topic, 1): 2})
        (described,) = shell.json("groups", "describe", group)["groups"]
        text = shell.done("groups", "describe", group)
        listed = {each["group"]: each["state"] for each in shell.json("groups", "list")["groups"]}
        seek = shell("groups", "seek", group, "--topic", topic, "--to-earliest", "--execute")
        dry = shell.done("groups", "seek", group, "--topic", topic, "--to-earliest")
        assert shell("groups", "delete", group).exit_code == 4
    assert (described["state"], listed[group]) == ("Stable", "Stable")
    (member,) = described["members"]
    assert member["client"] == "reader"
    assert {each["partition"] for each in member["partitions"]} == {0, 1, 2}
    first, second, third = described["partitions"]
    assert (first["committed"], first["end"], first["lagRecords"]) == (1, 2, 1)
    assert 59 <= first["lagSeconds"] <= 600
    assert (second["lagRecords"], second["lagSeconds"]) == (0, 0.0)
    assert (third["committed"], third["lagRecords"], third["lagSeconds"]) == (None, None, None)
    assert "Stable, 1 member, range assignment" in text
    assert "  1 m " in text
    assert seek.exit_code == 4
    assert "Stop its consumers first" in seek.stderr
    assert "stop them first" in dry


def test_a_group_is_deleted_or_only_its_offsets(shell: Shell, filled: str, single: str, group: str) -> None:
    for name in (filled, single):
        shell.done("groups", "seek", group, "--topic", name, "--to-earliest", "--execute")
    assert shell.done("groups", "delete", group, "--topic", single) == f"Deleted offsets of {group}.\n"
    (described,) = shell.json("groups", "describe", group)["groups"]
    assert {each["topic"] for each in described["partitions"]} == {filled}
    assert shell.done("groups", "delete", group) == f"Deleted {group}.\n"
    gone = shell("groups", "describe", group)
    assert gone.exit_code == 4
    assert "groups list" in gone.stderr
    assert shell("groups", "delete", group).exit_code == 4


def test_groups_are_listed_by_state(shell: Shell, filled: str, group: str) -> None:
    shell.done("groups", "seek", group, "--topic", filled, "--to-earliest", "--execute")
    assert group in shell.done("groups", "list", "--state", "empty")
    assert group not in shell.done("groups", "list", "--state", "Stable")


def test_one_group_of_two_is_shown(shell: Shell, filled: str, group: str) -> None:
    shell.done("groups", "seek", group, "--topic", filled, "--to-earliest", "--execute")
    result = shell("groups", "describe", group, "never-was")
    assert result.exit_code == 1
    assert group in result.stdout
    assert "never-was" in result.stderr


def test_a_dry_run_deletes_no_group(shell: Shell, single: str, group: str) -> None:
    shell.done("groups", "seek", group, "--topic", single, "--to-earliest", "--execute")
    assert shell.done("groups", "delete", "-g", group, "--dry-run") == f"{group} would be deleted (dry run).\n"
    assert shell("groups", "delete", f"{group}x", "--dry-run").exit_code == 4
    assert group in shell.done("groups", "list")


def test_the_lag_of_a_group_is_among_the_metrics_of_its_coordinator() -> None:
    with EmbeddedBroker(http_port=0) as broker:
        shell = Shell(broker.address)
        broker.create_topic("views", partitions=2)
        shell.done("produce", "views", "-p", 1, stdin="one\ntwo\nthree\n")
        shell.done("groups", "seek", "audit", "--topic", "views", "--to-offset", 1, "--execute")
        with urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
    assert 'kafka_group_committed_offset{group="audit",topic="views",partition="1"} 1' in lines
    assert 'kafka_group_lag{group="audit",topic="views",partition="1"} 2' in lines
    assert 'kafka_group_lag{group="audit",topic="views",partition="0"} 0' in lines
    assert "kafka_group_lag_truncated 0" in lines
