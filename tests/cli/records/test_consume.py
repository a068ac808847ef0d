"""`penstock consume`: records become output."""

from __future__ import annotations

import json

import pytest
from tests.cli.commands import Shell

from penstock.client.producer import Producer
from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.fixture
def filled(shell: Shell, single: str) -> str:
    """Ten records v0 to v9, with keys, the times of which are a second apart."""
    with Producer[bytes, bytes](shell.address) as producer:
        for number in range(10):
            producer.send(single, b"v%d" % number, b"k%d" % number, timestamp_ms=1_700_000_000_000 + number * 1000)
    return single


def test_everything_that_is_there(shell: Shell, filled: str) -> None:
    result = shell("consume", filled, "--exit")
    assert result.stdout.split() == [f"v{number}" for number in range(10)]
    assert result.stderr == "10 records.\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from-beginning", "-n", "2"], "v0 v1"),
        (["-o", "earliest", "-n", "1"], "v0"),
        (["-o", "7", "-e"], "v7 v8 v9"),
        (["-o", "-2", "-e"], "v8 v9"),
        (["-o", "-200", "-n", "1"], "v0"),
        (["-o", "latest", "-e"], ""),
        (["--from-time", "1700000007000", "-e"], "v7 v8 v9"),
        (["--from-time", "2023-11-14T22:13:26.5Z", "--until-time", "1700000009000"], "v7 v8"),
        (["--until-time", "1700000002000"], "v0 v1"),
        (["--from-time", "now", "-e"], ""),
        (["--from-beginning", "-n", "0"], ""),
        (["--from-beginning", "--timeout-ms", "500", "--partition", "0"], "v0 v1 v2 v3 v4 v5 v6 v7 v8 v9"),
        (["-o", "500", "--timeout-ms", "300"], ""),
        (["--consumer-property", "auto.offset.reset=earliest", "-n", "2"], "v0 v1"),
        (["--consumer-property", "auto.offset.reset=earliest", "-o", "7", "-e"], "v7 v8 v9"),
    ],
)
def test_where_it_begins_and_ends(shell: Shell, filled: str, options: list[str], expected: str) -> None:
    assert shell.done("consume", filled, *options, "-q").split() == expected.split()


def test_the_properties_of_kafka_s_formatter(shell: Shell, single: str) -> None:
    shell.done("produce", single, "--headers-separator", "|", stdin="a:1,b:2|v\n")
    names = ["timestamp", "partition", "offset", "headers", "key", "value"]
    options = [part for name in names for part in ("--property", f"print.{name}=true")]
    shown = shell.done("consume", single, "-e", "-q", *options, "--property", "key.separator=;")
    assert shown.partition(";")[2] == "Partition:0;Offset:0;a:1,b:2;null;v\n"
    assert shown.startswith("CreateTime:")
    assert shell("consume", single, "--property", "print.kye=true").exit_code == 2


def test_json_can_be_produced_again(shell: Shell, filled: str, topic: str) -> None:
    shell.done("produce", filled, "--format", "raw", "-H", "h=x", stdin=b"\xff\n\x00")
    lines = shell.done("consume", filled, "-e", "-f", "json", "-q")
    shell.done("produce", topic, "--format", "json", "-p", 2, stdin=lines)
    again = shell.done("consume", f"{topic}:2", "-e", "-f", "json", "-q")
    ours, theirs = ([json.loads(line) for line in text.splitlines()] for text in (lines, again))
    for record in (*ours, *theirs):
        del record["topic"], record["partition"]
    assert ours == theirs
    assert ours[-1]["valueBase64"] == "/woA"
    assert ours[-1]["headers"] == [["h", "x"]]


def test_a_null_differs_from_an_empty_value(shell: Shell, single: str) -> None:
    shell.done("produce", single, "--property", "null.marker=N", stdin="N\n\n")
    assert shell.lines("consume", single, "-e", "-q") == ["null", ""]
    assert shell.lines("consume", single, "-e", "-q", "--property", "null.literal=none") == ["none", ""]
    assert [json.loads(line)["value"] for line in shell.lines("consume", single, "-e", "-q", "-f", "json")] == [
        None,
        "",
    ]


@pytest.mark.parametrize(
    ("codec", "expected"),
    [("hex", "00000007"), ("base64", "AAAABw=="), ("int", "7"), ("json", None), ("long", None)],
)
def test_values_are_decoded(shell: Shell, single: str, codec: str, expected: str | None) -> None:
    shell.done("produce", single, "--value-encoder", "int", stdin="7\n")
    result = shell("consume", single, "-e", "-q", "--value-decoder", codec)
    if expected is None:
        assert result.exit_code == 1
        assert f"{single}-0, offset 0 cannot be decoded" in result.stderr
    else:
        assert result.stdout == f"{expected}\n"


def test_what_cannot_be_shown_can_be_skipped(shell: Shell, single: str) -> None:
    shell.done("produce", single, stdin='{"a": 1}\nnonsense\n[2]\n')
    result = shell("consume", single, "-e", "--value-decoder", "json", "--skip-message-on-error")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == ['{"a": 1}', "[2]"]
    assert f"Skipped {single}-0, offset 1" in result.stderr
    assert "2 records, 1 skipped." in result.stderr


def test_what_comes_before_a_record_that_cannot_be_shown_is_shown(shell: Shell, single: str, group: str) -> None:
    shell.done("produce", single, stdin='{"a": 1}\n[2]\nnonsense\n[4]\n')
    options = ("--value-decoder", "json", "--group", group, "--from-beginning", "--timeout-ms", 5000)
    result = shell("consume", single, *options)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == ['{"a": 1}', "[2]"]
    again = shell("consume", single, *options, "--skip-message-on-error", "-n", 1)
    assert again.stdout.splitlines()[-1] == "[4]"


def test_topics_by_pattern_have_ends_too(shell: Shell, broker: EmbeddedBroker, group: str) -> None:
    for number in range(3):
        broker.create_topic(f"{group}.{number}", partitions=2)
        shell.done("produce", f"{group}.{number}", stdin="a\nb\n")
    options = ("--include", f"{group}[.].*", "--exit", "-q")
    assert sorted(shell.lines("consume", *options)) == ["a", "a", "a", "b", "b", "b"]
    assert len(shell.lines("consume", *options, "--from-time", "1h ago")) == 6
    assert set(shell.lines("consume", *options, "-o", "-1")) <= {"a", "b"}
    assert sorted(shell.lines("consume", *options, "--group", group, "--from-beginning")) == [
        "a",
        "a",
        "a",
        "b",
        "b",
        "b",
    ]


def test_black_list_alone_leaves_out_only_its_topics() -> None:
    with EmbeddedBroker() as own:
        shell = Shell(own.address)
        for name in ("web-eu", "web-us", "app-eu", "app-us"):
            own.create_topic(name)
            shell.done("produce", name, stdin=f"{name}\n")
        shown = shell.lines("consume", "--blacklist", "web-.*", "--from-beginning", "-n", 2, "-q")
        assert sorted(shown) == ["app-eu", "app-us"]
        assert shell.lines("consume", "--blacklist", "web-.*,.*-us", "--exit", "-q") == ["app-eu"]


def test_topics_by_white_list_and_black_list(shell: Shell, broker: EmbeddedBroker, group: str) -> None:
    for name in ("web-eu", "web-us", "app-eu"):
        broker.create_topic(f"{group}.{name}")
        shell.done("produce", f"{group}.{name}", stdin=f"{name}\n")
    prefix = group.replace("-", "\\-")
    both = shell.lines("consume", "--whitelist", f"{prefix}.web-.*", "--from-beginning", "-n", 2, "-q")
    assert sorted(both) == ["web-eu", "web-us"]
    either = shell.lines("consume", "--include", f"{prefix}.web-us,{prefix}.app-.*", "--from-beginning", "-n", 2, "-q")
    assert sorted(either) == ["app-eu", "web-us"]
    one = shell.lines(
        "consume", "--include", f"{prefix}.*", "--exclude", ".*-eu", "--from-beginning", "--timeout-ms", 1000, "-q"
    )
    assert one == ["web-us"]
    assert shell("consume", "--include", "(").exit_code == 2
    assert shell("consume", "x", "--include", "y").exit_code == 2


def test_a_group_continues_at_its_position(shell: Shell, filled: str, group: str) -> None:
    first = shell.done("consume", filled, "--group", group, "--from-beginning", "--max-messages", 4, "-q")
    assert first.split() == ["v0", "v1", "v2", "v3"]
    rest = shell.done("consume", filled, "--group", group, "--exit", "-q")
    assert rest.split() == ["v4", "v5", "v6", "v7", "v8", "v9"]
    assert shell.json("groups", "describe", group)["groups"][0]["lagRecords"] == 0


def test_a_record_that_comes_with_the_assignment_is_shown(shell: Shell, group: str) -> None:
    shell.done("produce", f"{group}.one", stdin="alone\n")
    options = ("--group", group, "--from-beginning", "--exit", "-q")
    assert shell.lines("consume", f"{group}.one", *options) == ["alone"]
    assert shell.lines("consume", f"{group}.one", *options) == []


def test_a_group_commits_nothing_that_was_not_shown(shell: Shell, filled: str, group: str) -> None:
    options = ("--group", group, "--from-beginning", "--until-time", "1700000003000", "-q")
    assert shell.done("consume", filled, *options).split() == ["v0", "v1", "v2"]
    (described,) = shell.json("groups", "describe", group)["groups"]
    assert described["partitions"][0]["committed"] == 3


def test_no_commit_commits_nothing(shell: Shell, filled: str, group: str) -> None:
    options = ("--group", group, "--from-beginning", "-n", 4, "-q")
    for _ in range(2):
        assert len(shell.lines("consume", filled, *options, "--no-commit")) == 4
    assert shell.json("groups", "describe", group)["groups"][0]["partitions"] == []


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ([], "--include"),
        (["{topic}", "--group", "g", "--offset", "5"], "groups seek"),
        (["{topic}:0", "--group", "g"], "Use one of them"),
        (["{topic}", "--from-beginning", "--offset", "5"], "Use one of"),
        (["--partition", "1"], "Give one TOPIC"),
        (["{topic}", "--offset", "first"], "earliest"),
    ],
)
def test_contradicting_options_are_rejected(shell: Shell, filled: str, options: list[str], advice: str) -> None:
    result = shell("consume", *(option.format(topic=filled) for option in options))
    assert result.exit_code == 2
    assert advice in result.stderr


def test_a_missing_topic_is_rejected_and_not_created(shell: Shell, filled: str) -> None:
    assert shell("consume", "no-such-topic", "-e").exit_code == 4
    assert "no-such-topic" not in shell.lines("topics", "list")
    result = shell("consume", f"{filled}:7", "-e")
    assert result.exit_code == 4
    assert "only partition 0" in result.stderr


def test_the_options_of_the_first_console_consumer(shell: Shell, filled: str, group: str) -> None:
    shown = shell.done(
        "consume", "--bootstrap-server", shell.address, "--topic", filled, "--from-beginning", "--group", group,
        "--max-messages", 3, "--autocommit.interval.ms", 100, "--consumer-timeout-ms", 5000, "--fetch-size", 1000,
        "--formatter", "kafka.consumer.ConsoleConsumer$NewlineMessageFormatter", "--property", "print.key=false",
        "--skip-message-on-error", "--socket-buffer-size", 1000,
    )  # fmt: skip
    assert shown.split() == ["v0", "v1", "v2"]
