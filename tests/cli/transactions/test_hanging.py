"""`penstock transactions find-hanging` and `abort`: where they search, what they print, what they reject."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest
from tests.cli.commands import Shell
from tests.cli.scripted_transactions import STATE_TOPIC, Known, ScriptedTransactions, writer

from penstock.wire.protocol import ApiKey


def cluster_with(*, ongoing: bool = False, last_ms: int = 1_000) -> ScriptedTransactions:
    ids = {"ledger": Known(5, "Ongoing", partitions=[("views", 1)])} if ongoing else {}
    return ScriptedTransactions(ids, {("views", 1): [writer(5, 40, epoch=3, last_ms=last_ms)]})


# --- find-hanging


def test_each_hanging_transaction_comes_with_the_command_that_aborts_it() -> None:
    with cluster_with() as cluster:
        shell = Shell(cluster.address)
        result = shell("transactions", "find-hanging")
        assert result.exit_code == 1
        lines = result.stdout.splitlines()
        assert lines[1].split()[:5] == ["views", "1", "40", "5", "3"]
        (command,) = [line.strip() for line in lines if "transactions abort" in line]
        assert command == "penstock transactions abort views:1 --start-offset 40"
        assert "Aborted" in shell.done(*shlex.split(command)[1:])
        found = shell("transactions", "find-hanging")
    assert (found.exit_code, found.stderr.strip()) == (0, "No hanging transactions in 4 partitions.")
    assert [(each.producer_id, each.producer_epoch) for each in cluster.markers] == [(5, 3)]


def test_the_command_names_the_cluster_as_it_was_named_but_no_password(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("client.id=me\n")
    with cluster_with() as cluster:
        options = (
            "-b", cluster.address, "--command-config", str(config), "--command-property", "request.timeout.ms=9000",
            "--command-property", "ssl.key.password=secret",
        )  # fmt: skip
        result = Shell("nowhere:1")("transactions", "find-hanging", "--format", "json", *options)
    (item,) = json.loads(result.stdout)["hanging"]
    assert shlex.split(item["abortCommand"]) == [
        "penstock", "transactions", "abort", "views:1", "--start-offset", "40", "--bootstrap-server", cluster.address,
        "--command-config", str(config), "--command-property", "request.timeout.ms=9000",
    ]  # fmt: skip


def test_a_transaction_of_a_coordinator_is_not_reported() -> None:
    with cluster_with(ongoing=True) as cluster:
        found = Shell(cluster.address).json("transactions", "find-hanging")
    assert found == {"searched": 4, "hanging": [], "failed": []}


@pytest.mark.parametrize(("timeout", "count"), [((), 1), (("15",), 1), (("25",), 0), (("25m",), 0), (("1h",), 0)])
def test_only_transactions_older_than_the_longest_time_out_are_reported(timeout: tuple[str, ...], count: int) -> None:
    options = ("--max-transaction-timeout", *timeout) if timeout else ()
    with cluster_with(last_ms=int(time.time() * 1000) - 20 * 60_000) as cluster:
        result = Shell(cluster.address)("transactions", "find-hanging", "--format", "json", *options)
    assert len(json.loads(result.stdout)["hanging"]) == count
    assert result.exit_code == count


@pytest.mark.parametrize(
    ("options", "searched"),
    [
        (("views",), [("views", 0), ("views", 1), ("views", 2)]),
        (("views:0,2",), [("views", 0), ("views", 2)]),
        (("--topic", "views", "--partition", "1"), [("views", 1)]),
        (("--broker-id", "2"), [("views", 2), (STATE_TOPIC, 0)]),
        (("views", "--broker", "0"), [("views", 0), ("views", 1)]),
        ((), [("views", 0), ("views", 1), ("views", 2), (STATE_TOPIC, 0)]),
    ],
)
def test_the_search_is_as_wide_as_asked(options: tuple[str, ...], searched: list[tuple[str, int]]) -> None:
    cluster = ScriptedTransactions()
    for part, replicas in zip(cluster.topics["views"], ([0, 1], [1, 0], [2, 1]), strict=True):
        part.replicas = replicas
    with cluster:
        Shell(cluster.address).done("transactions", "find-hanging", *options)
        requests = [message for _, message in cluster.questions(ApiKey.DESCRIBE_PRODUCERS)]
    asked = [(topic.name, index) for each in requests for topic in each.topics for index in topic.partition_indexes]
    assert sorted(asked) == sorted(searched)


def test_partitions_without_a_leader_do_not_end_the_search() -> None:
    cluster = cluster_with()
    cluster.topics["views"][0].leader = -1
    with cluster:
        result = Shell(cluster.address)("transactions", "find-hanging", "--format", "json")
        only_that = Shell(cluster.address).error("transactions", "find-hanging", "views:0")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["searched"], len(found["hanging"])) == (1, 3, 1)
    assert [(each["partition"], each["error"]["code"]) for each in found["failed"]] == [(0, "LEADER_NOT_AVAILABLE")]
    assert (only_that["code"], only_that["exitCode"]) == ("LEADER_NOT_AVAILABLE", 4)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--partition", "1"), "--partition needs one TOPIC."),
        (("views:0", "--partition", "1"), "--partition needs one TOPIC."),
        (("viws",), "Topic 'viws' does not exist."),
        (("views:7",), "Topic 'views' has no partition 7."),
        (("--broker", "9"), "Broker 9 does not exist or is offline."),
        (("--max-transaction-timeout", "soon"), "'soon' is not a duration"),
    ],
)
def test_a_search_that_makes_no_sense_is_rejected(options: tuple[str, ...], problem: str) -> None:
    with ScriptedTransactions() as cluster:
        error = Shell(cluster.address).error("transactions", "find-hanging", *options)
    assert problem in error["message"]


# --- abort


def test_a_dry_run_aborts_nothing() -> None:
    with cluster_with() as cluster:
        shell = Shell(cluster.address)
        planned = shell.done("transactions", "abort", "views:1", "--start-offset", 40, "--dry-run")
        document = shell.json(
            "transactions", "abort", "views:1", "--producer-id", 5, "--producer-epoch", 3, "--dry-run"
        )
        assert cluster.markers == []
    assert planned == "The transaction of producer 5 in views-1 that starts at offset 40 would be aborted (dry run).\n"
    assert document["dryRun"]
    assert [(each["topic"], each["partition"], each["startOffset"]) for each in document["aborted"]] == [
        ("views", 1, 40)
    ]


def test_aborting_asks_at_a_terminal() -> None:
    words = ("transactions", "abort", "--topic", "views", "--partition", "1", "--start-offset", "40")
    with cluster_with() as cluster:
        shell = Shell(cluster.address)
        declined = shell.at_terminal(*words, answer="n\n")
        assert (declined.returncode, cluster.markers) == (1, [])
        agreed = shell.at_terminal(*words, answer="y\n")
        assert (agreed.returncode, len(cluster.markers)) == (0, 1)
    assert "Abort the transaction of producer 5 in views-1 that starts at offset 40?" in declined.stderr


def test_an_ongoing_transaction_is_rejected_with_the_command_that_fences_it() -> None:
    with cluster_with(ongoing=True) as cluster:
        error = Shell(cluster.address).error("transactions", "abort", "views:1", "--start-offset", 40, "-y")
        assert cluster.markers == []
    assert error == {
        "code": "REJECTED",
        "message": "The transaction of ledger in views-1 does not hang: its coordinator has it as Ongoing.",
        "hint": "To abort it in all its partitions: penstock transactions fence ledger",
        "exitCode": 4,
    }


def test_a_transaction_that_begins_to_be_completed_after_the_question_is_rejected() -> None:
    """The check is repeated when the answer has come."""
    with cluster_with() as cluster:

        def complete(key: ApiKey) -> None:
            if key is ApiKey.DESCRIBE_PRODUCERS and len(cluster.questions(key)) == 3:
                cluster.ids["ledger"] = Known(5, "PrepareAbort", partitions=[("views", 1)])

        cluster.before = complete
        error = Shell(cluster.address).error("transactions", "abort", "views:1", "--start-offset", 40, "-y")
        assert cluster.markers == []
    assert "its coordinator has it as PrepareAbort" in error["message"]
    assert "penstock transactions fence ledger" in error["hint"]


@pytest.mark.parametrize(
    ("options", "problem", "code"),
    [
        (("views:1",), "The transaction is not named.", 2),
        (("views:1", "--producer-id", "5"), "The transaction is not named.", 2),
        (("views:1", "--start-offset", "40", "--producer-id", "5"), "The transaction is not named.", 2),
        (("views", "--start-offset", "40"), "in one partition at a time", 2),
        (("views:1,2", "--start-offset", "40"), "in one partition at a time", 2),
        (("views:9", "--start-offset", "40"), "has no partition 9", 4),
        (("views:1", "--start-offset", "41"), "views-1 has no open transaction with start offset 41.", 4),
        (("views:1", "--producer-id", "5", "--producer-epoch", "4"), "with producer id 5 and producer epoch 4.", 4),
        (("views:1", "--producer-id", "5", "--producer-epoch", "40000"), "40000", 2),
    ],
)
def test_what_cannot_be_aborted_is_rejected(options: tuple[str, ...], problem: str, code: int) -> None:
    with cluster_with() as cluster:
        error = Shell(cluster.address).error("transactions", "abort", *options, "-y")
        assert cluster.markers == []
    assert problem in error["message"]
    assert error["exitCode"] == code


def test_old_brokers_take_the_epochs_as_they_are_given() -> None:
    cluster = cluster_with()
    cluster.absent = {ApiKey.DESCRIBE_PRODUCERS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS}
    words = ("transactions", "abort", "views:1", "--producer-id", "5", "--producer-epoch", "3")
    with cluster:
        shell = Shell(cluster.address)
        assert shell.error(*words)["code"] == "UNSUPPORTED_VERSION"
        done = shell.done(*words, "--coordinator-epoch", "-1")
    assert done == "Aborted the transaction of producer 5 in views-1.\n"
    assert [each.coordinator_epoch for each in cluster.markers] == [0]
