"""`penstock topics`."""

from __future__ import annotations

import pytest
from tests.cli.commands import Shell

from penstock.testing.embedded_broker import EmbeddedBroker


def test_a_topic_from_its_making_to_its_end(shell: Shell) -> None:
    assert (
        shell.done("topics", "create", "life", "-p", 3, "-c", "retention.ms=60000")
        == "Created life with 3 partitions.\n"
    )
    assert "life" in shell.lines("topics", "list")
    (described,) = shell.json("topics", "describe", "life")["topics"]
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert described["config"] == {"retention.ms": "60000"}
    part = described["partitions"][0]
    # None from a broker that does not say.
    assert [part.pop(name) in (None, []) for name in ("elr", "lastKnownElr")] == [True, True]
    assert part | {"leaderEpoch": 0} == {
        "partition": 0, "leader": 0, "leaderEpoch": 0, "replicas": [0], "isr": [0], "offline": [],
        "beginOffset": 0, "endOffset": 0, "bytes": 0,
    }  # fmt: skip
    shell.done("topics", "alter", "life", "-p", 5, "-c", "cleanup.policy=compact", "--delete-config", "retention.ms")
    (altered,) = shell.json("topics", "describe", "life")["topics"]
    assert len(altered["partitions"]) == 5
    assert altered["config"] == {"cleanup.policy": "compact"}
    assert shell.done("topics", "delete", "life") == "Deleted life.\n"
    assert "life" not in shell.lines("topics", "list")


def test_a_topic_in_text_shows_leaders_replicas_offsets_and_sizes(shell: Shell, single: str) -> None:
    shell.done("produce", single, stdin="one\ntwo\n")
    text = shell.done("topics", "describe", single)
    assert text.startswith(f"{single}: 1 partition, replication factor 1, ")
    assert text.splitlines()[1].split() == ["PARTITION", "LEADER", "REPLICAS", "ISR", "BEGIN", "END", "SIZE"]
    assert text.splitlines()[2].split()[:6] == ["0", "0", "0", "0", "0", "2"]
    assert "\x1b" not in text


def test_a_topic_that_is_there_can_be_accepted(shell: Shell, topic: str) -> None:
    refused = shell("topics", "create", topic)
    assert refused.exit_code == 4
    assert "--if-not-exists" in refused.stderr
    assert shell.done("topics", "create", topic, "--if-not-exists") == f"{topic} already exists.\n"


def test_some_topics_are_made_though_others_are_not(shell: Shell, topic: str) -> None:
    result = shell("topics", "create", topic, f"{topic}-too")
    assert result.exit_code == 4
    assert result.stdout == f"Created {topic}-too with 1 partition.\n"


def test_a_dry_run_makes_nothing(shell: Shell) -> None:
    assert "dry run" in shell.done("topics", "create", "not-made", "--dry-run")
    assert "not-made" not in shell.lines("topics", "list")


@pytest.mark.parametrize("name", ["a b", "..", "x" * 250])
def test_a_bad_name_is_refused_by_the_broker(shell: Shell, name: str) -> None:
    result = shell("topics", "create", name)
    assert result.exit_code == 4
    assert "INVALID_TOPIC_EXCEPTION" in result.stderr


def test_an_unknown_setting_has_a_nearest_one(shell: Shell, topic: str) -> None:
    for args in (("create", "new-one", "-c"), ("alter", topic, "-c")):
        result = shell("topics", *args, "retension.ms=5")
        assert result.exit_code == 4
        assert "Did you mean retention.ms?" in result.stderr
    assert "new-one" not in shell.lines("topics", "list")


def test_a_value_that_is_out_of_range_is_told_by_the_broker(shell: Shell, topic: str) -> None:
    result = shell("topics", "alter", topic, "-c", "segment.bytes=-5")
    assert result.exit_code == 4
    assert "segment.bytes" in result.stderr


def test_fewer_partitions_are_refused(shell: Shell, topic: str) -> None:
    result = shell("topics", "alter", topic, "-p", 1)
    assert result.exit_code == 4
    assert "INVALID_PARTITIONS" in result.stderr


def test_altering_nothing_says_what_could_be(shell: Shell, topic: str) -> None:
    result = shell("topics", "alter", topic)
    assert result.exit_code == 2
    assert "--partitions" in result.stderr


def test_a_mistyped_topic_is_guessed(shell: Shell, broker: EmbeddedBroker) -> None:
    broker.create_topic("page-views")
    for command in ("describe", "delete"):
        result = shell("topics", command, "page-vews")
        assert result.exit_code == 4
        assert "Did you mean page-views?" in result.stderr
    assert "page-views" in shell.lines("topics", "list")


def test_deleting_what_is_not_there_can_be_accepted(shell: Shell) -> None:
    assert shell("topics", "delete", "never-was").exit_code == 4
    assert shell.done("topics", "delete", "never-was", "--if-exists") == ""


def test_internal_topics_are_shown_to_whoever_asks(shell: Shell, single: str, group: str) -> None:
    shell.done("groups", "seek", group, "--topic", single, "--to-earliest", "--execute")
    assert "__consumer_offsets" not in shell.lines("topics", "list")
    assert "__consumer_offsets" in shell.lines("topics", "list", "--internal")
    names = [each["name"] for each in shell.json("topics", "describe")["topics"]]
    assert single in names
    assert "__consumer_offsets" not in names


def test_topics_are_found_by_a_pattern(shell: Shell, topic: str) -> None:
    assert shell.lines("topics", "list", "--match", f"{topic[:-1]}.") == [topic]
    assert shell("topics", "list", "--match", "(").exit_code == 2


def test_healthy_partitions_are_not_troubled(shell: Shell, topic: str) -> None:
    assert shell.done("topics", "describe", topic, "--troubled") == ""


def test_table_is_another_word_for_text(shell: Shell, topic: str) -> None:
    assert shell.done("topics", "describe", topic, "--format", "table") == shell.done("topics", "describe", topic)
