"""Properties of clients on the command line: a wrong value is rejected by the name of its property, before anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Shell

from penstock.cli.connection import Cluster, consumer_options, producer_options, property_value
from penstock.cli.output import CommandError
from penstock.testing import Broker

NOWHERE = Shell("127.0.0.1:1")
WRONG = [
    ("produce", "linger.ms=abc", "linger.ms cannot be 'abc'.", "Use a number of milliseconds."),
    ("produce", "enable.idempotence=maybe", "enable.idempotence cannot be 'maybe'.", "Use true or false."),
    ("produce", "request.timeout.ms=x", "request.timeout.ms cannot be 'x'.", "Use a whole number of milliseconds."),
    ("produce", "retries=-1", "retries cannot be -1.", "Use 0 or more."),
    ("produce", "acks=2", "acks cannot be '2'.", "Use all, -1, 0 or 1."),
    ("produce", "compression.type=brotli", "compression.type cannot be 'brotli'.", "Use none, gzip, snappy,"),
    ("consume", "isolation.level=x", "isolation.level cannot be 'x'.", "Use read_uncommitted or read_committed."),
    ("consume", "auto.offset.reset=foo", "auto.offset.reset cannot be 'foo'.", "Use earliest, latest or none."),
    ("consume", "check.crcs=1", "check.crcs cannot be '1'.", "Use true or false."),
    ("consume", "fetch.min.bytes=1.5", "fetch.min.bytes cannot be '1.5'.", "Use a whole number."),
    ("consume", "session.timeout.ms=0", "session.timeout.ms cannot be 0.", "Use 1 or more."),
    ("consume", "partition.assignment.strategy=none", "partition.assignment.strategy cannot be 'none'.", "Use one"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "assignment", "message", "advice"), WRONG)
def test_a_wrong_value_is_rejected_by_name_before_a_broker_is_asked(
    command: str, assignment: str, message: str, advice: str
) -> None:
    option = "--producer-property" if command == "produce" else "--consumer-property"
    result = NOWHERE(command, "views", option, assignment, stdin="x\n")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {message}\n{advice}")


def test_a_wrong_value_in_the_file_is_rejected_by_every_command(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("linger.ms=abc\n")
    result = NOWHERE("topics", "list", "--command-config", tmp_path / "client.properties")
    assert result.stderr.startswith("Error: linger.ms cannot be 'abc'.\n")


def test_what_is_given_by_name_wins_over_the_options_of_the_command_and_these_over_the_file() -> None:
    cluster = Cluster("127.0.0.1:1", {"request.timeout.ms": "1", "linger.ms": "2", "client.id": "ours"}, 3_000)
    options = cluster.options_for("penstock-produce", producer_options(), {})
    assert (options["request_timeout_ms"], options["linger_ms"], options["client_id"]) == (3_000, 2, "ours")
    given = {"request.timeout.ms": "4000", "linger.ms": "5", "client.id": "mine"}
    options = cluster.options_for("penstock-produce", producer_options(), given)
    assert (options["request_timeout_ms"], options["linger_ms"], options["client_id"]) == (4_000, 5, "mine")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("linger.ms", "5", 5),
        ("linger.ms", "0.5", 0.5),
        ("retries", "0", 0),
        ("enable.idempotence", "False", False),
        ("check.crcs", "true", True),
        ("acks", "-1", "-1"),
        ("client.id", "123", "123"),
        ("group.id", "true", "true"),
        ("compression.level", "-5", -5),
        ("partition.assignment.strategy", "range, sticky", ["range", "sticky"]),
    ],
)
def test_values_become_what_the_python_clients_take(name: str, text: str, value: Any) -> None:
    found = property_value(name, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("option", sorted(producer_options() | consumer_options()))
def test_every_property_that_is_not_text_rejects_what_is_not_its_kind(option: str) -> None:
    name = option.replace("_", ".")
    if name in {"client.id", "group.id", "group.instance.id", "client.rack", "transactional.id"}:
        assert property_value(name, "so what?") == "so what?"
    else:
        with pytest.raises(CommandError, match=name):
            property_value(name, "so what?")


def test_a_file_of_kafka_0_7_serves_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_partitioner.py").write_text("def last(topic, key, count):\n    return count - 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    file = tmp_path / "producer.properties"
    with Broker() as broker:
        broker.create_topic("views", 3)
        file.write_text(
            f"broker.list=0:{broker.address}\nproducer.type=sync\nserializer.class=kafka.serializer.StringEncoder\n"
            "partitioner.class=own_partitioner:last\ngroupid=feed\nautooffset.reset=smallest\nqueue.time=5\n"
        )
        Shell("").done("produce", "views", "--command-config", file, "-q", stdin="a\nb\n")
        led = [each for each in broker.broker.replicas.led() if each.topic == "views"]
        assert sorted(each.log.log_end_offset for each in led) == [0, 0, 2]
        output = Shell("").lines("consume", "views", "--command-config", file, "--max-messages", 2)
        assert output == ["a", "b"]


def test_a_class_that_cannot_be_loaded_is_named_before_anything_is_sent() -> None:
    result = NOWHERE("produce", "views", "--producer-property", "partitioner.class=nowhere_to_be:found", stdin="x\n")
    assert result.exit_code == 2
    assert "no module named 'nowhere_to_be'" in result.stderr
