"""`penstock topics`."""

from __future__ import annotations

import pytest
from tests.cli.commands import Shell

from penstock.client.producer import Producer
from penstock.testing.embedded_broker import EmbeddedBroker

START_MS = 1_600_000_000_000


def test_a_topic_is_created_described_altered_and_deleted(shell: Shell) -> None:
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


def test_if_not_exists_accepts_an_existing_topic(shell: Shell, topic: str) -> None:
    rejected = shell("topics", "create", topic)
    assert rejected.exit_code == 4
    assert "--if-not-exists" in rejected.stderr
    assert shell.done("topics", "create", topic, "--if-not-exists") == f"{topic} already exists.\n"


def test_some_topics_are_created_although_others_are_not(shell: Shell, topic: str) -> None:
    result = shell("topics", "create", topic, f"{topic}-too")
    assert result.exit_code == 4
    assert result.stdout == f"Created {topic}-too with 1 partition.\n"


def test_a_dry_run_creates_nothing(shell: Shell) -> None:
    assert "dry run" in shell.done("topics", "create", "not-made", "--dry-run")
    assert "not-made" not in shell.lines("topics", "list")


@pytest.mark.parametrize("name", ["a b", "..", "x" * 250])
def test_a_bad_name_is_rejected_by_the_broker(shell: Shell, name: str) -> None:
    result = shell("topics", "create", name)
    assert result.exit_code == 4
    assert "INVALID_TOPIC_EXCEPTION" in result.stderr


def test_an_unknown_setting_has_a_nearest_one(shell: Shell, topic: str) -> None:
    for args in (("create", "new-one", "-c"), ("alter", topic, "-c")):
        result = shell("topics", *args, "retension.ms=5")
        assert result.exit_code == 4
        assert "Did you mean retention.ms?" in result.stderr
    assert "new-one" not in shell.lines("topics", "list")


def test_a_value_that_is_out_of_range_is_reported_by_the_broker(shell: Shell, topic: str) -> None:
    result = shell("topics", "alter", topic, "-c", "segment.bytes=-5")
    assert result.exit_code == 4
    assert "segment.bytes" in result.stderr


def test_fewer_partitions_are_rejected(shell: Shell, topic: str) -> None:
    result = shell("topics", "alter", topic, "-p", 1)
    assert result.exit_code == 4
    assert "INVALID_PARTITIONS" in result.stderr


def test_altering_nothing_names_the_options(shell: Shell, topic: str) -> None:
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


def test_if_exists_accepts_a_missing_topic(shell: Shell) -> None:
    assert shell("topics", "delete", "never-was").exit_code == 4
    assert shell.done("topics", "delete", "never-was", "--if-exists") == ""


def test_internal_topics_are_shown_on_request(shell: Shell, single: str, group: str) -> None:
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


def test_an_empty_list_says_so_without_writing_a_line(shell: Shell) -> None:
    result = shell("topics", "list", "--match", "no-such-.*")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No topic matches 'no-such-.*'.\n"
    assert shell("groups", "list", "--state", "Dead").stderr == "No group is in state Dead.\n"


def test_a_cluster_without_topics_says_so() -> None:
    with EmbeddedBroker() as fresh:
        empty = Shell(fresh.address)
        for command in (("topics", "list"), ("topics", "describe"), ("offsets",)):
            result = empty(*command)
            assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No topics.\n")
        for command in (("groups", "list"), ("groups", "describe")):
            result = empty(*command)
            assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No groups.\n")


# --- changes


# --- trim


def begins(shell: Shell, topic: str) -> dict[int, int]:
    return {each["partition"]: each["begin"] for each in shell.json("offsets", topic)["partitions"]}


@pytest.fixture
def filled(shell: Shell, topic: str) -> str:
    """Ten records in each of three partitions, a second apart."""
    with Producer[bytes, bytes](shell.address) as producer:
        for number in range(30):
            producer.send(topic, b"v", partition=number % 3, timestamp_ms=START_MS + number // 3 * 1000)
    return topic


def test_records_before_an_offset_are_trimmed_of_the_partitions_that_are_named(shell: Shell, filled: str) -> None:
    text = shell.done("topics", "trim", f"{filled}:0,2", "--before-offset", 4, "--execute")
    assert text.splitlines()[-1] == "Deleted 8 records."
    assert begins(shell, filled) == {0: 4, 1: 0, 2: 4}


def test_records_before_a_time_are_trimmed(shell: Shell, filled: str) -> None:
    shell.done("topics", "trim", filled, "--before-time", START_MS + 2500, "--execute")
    assert begins(shell, filled) == {0: 3, 1: 3, 2: 3}
    # All of them are years old.
    shell.done("topics", "trim", f"{filled}:1", "--older-than", "7 days", "--execute")
    assert begins(shell, filled) == {0: 3, 1: 10, 2: 3}


def test_a_trim_only_shows_its_plan_without_execute(shell: Shell, filled: str) -> None:
    for words in (("--dry-run",), ()):
        document = shell.json("topics", "trim", filled, "--all-records", *words)
        assert document["executed"] is False
        assert [each["deleted"] for each in document["partitions"]] == [10, 10, 10]
    declined = shell.at_terminal("topics", "trim", filled, "--all-records", answer="n\n")
    assert (declined.returncode, "Delete 30 records of 3 partitions?" in declined.stderr) == (1, True)
    assert begins(shell, filled) == {0: 0, 1: 0, 2: 0}
    accepted = shell.at_terminal("topics", "trim", filled, "--all-records", answer="y\n")
    assert (accepted.returncode, "Deleted 30 records." in accepted.stdout) == (0, True)
    assert begins(shell, filled) == {0: 10, 1: 10, 2: 10}


def test_a_trim_never_leaves_the_range_of_a_partition(shell: Shell, filled: str) -> None:
    shell.done("topics", "trim", filled, "--before-offset", 6, "--execute")
    text = shell.done("topics", "trim", filled, "--before-offset", 2, "--execute")
    assert "Nothing to delete" in text
    assert begins(shell, filled) == {0: 6, 1: 6, 2: 6}
    shell.done("topics", "trim", filled, "--before-offset", 99, "--execute")
    assert begins(shell, filled) == {0: 10, 1: 10, 2: 10}


@pytest.mark.parametrize("words", [(), ("--all-records", "--before-offset", "3")])
def test_a_trim_says_which_records_it_needs_to_know(shell: Shell, filled: str, words: tuple[str, ...]) -> None:
    result = shell("topics", "trim", filled, *words)
    assert (result.exit_code, "--older-than" in result.stderr) == (2, True)


def test_a_compacted_topic_is_not_trimmed(shell: Shell, single: str) -> None:
    shell.done("configs", "alter", "-t", single, "--set", "cleanup.policy=compact")
    shell.done("produce", single, "-k", "a", stdin="v\n")
    result = shell("topics", "trim", single, "--all-records", "--execute")
    assert result.exit_code == 1
    assert "POLICY_VIOLATION" in result.stderr
    assert begins(shell, single) == {0: 0}


# --- watch
