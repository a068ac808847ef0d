"""`penstock transactions list`, `describe`, `producers` and `fence`: their text, their errors and their questions."""

from __future__ import annotations

import json

import pytest
from tests.cli.commands import Shell
from tests.cli.scripted_transactions import Known, ScriptedTransactions, writer

from penstock.wire.protocol import ApiKey, ErrorCode

OPEN = [("views", 0), ("views", 2)]


def test_ids_are_listed_with_state_and_coordinator() -> None:
    ids = {"ledger": Known(7, coordinator=1), "audit": Known(12, "CompleteCommit", coordinator=2)}
    with ScriptedTransactions(ids) as cluster:
        lines = Shell(cluster.address).lines("transactions", "list")
        found = Shell(cluster.address).json("transactions", "list", "--state", "ongoing")
    assert [line.split() for line in lines] == [
        ["TRANSACTIONAL", "ID", "PRODUCER", "STATE", "COORDINATOR"],
        ["audit", "12", "CompleteCommit", "2"],
        ["ledger", "7", "Ongoing", "1"],
    ]
    assert found == {
        "transactions": [{"transactionalId": "ledger", "producerId": 7, "state": "Ongoing", "coordinator": 1}]
    }


@pytest.mark.parametrize(
    ("options", "said"), [((), "No transactional ids."), (("--producer-id", 4), "No transactional id matches.")]
)
def test_an_empty_list_is_reported_on_standard_error(options: tuple[str | int, ...], said: str) -> None:
    with ScriptedTransactions() as cluster:
        result = Shell(cluster.address)("transactions", "list", *options)
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (0, "", said)


def test_filters_are_passed_on_to_the_brokers() -> None:
    with ScriptedTransactions() as cluster:
        Shell(cluster.address).done(
            "transactions", "list", "--producer-id", 4, "--open-for", "90s", "--match", "led.*", "--state", "OnGoing"
        )
        requests = [message for _, message in cluster.questions(ApiKey.LIST_TRANSACTIONS)]
    assert len(requests) == 3
    for each in requests:
        assert (each.producer_id_filters, each.state_filters) == ([4], ["Ongoing"])
        assert (each.duration_filter, each.transactional_id_pattern) == (90_000, "led.*")


def test_old_brokers_are_named_with_what_they_lack() -> None:
    cluster = ScriptedTransactions()
    cluster.absent = {ApiKey.LIST_TRANSACTIONS}
    with cluster:
        error = Shell(cluster.address).error("transactions", "list")
    assert (error["code"], error["exitCode"]) == ("UNSUPPORTED_VERSION", 4)
    assert "ListTransactions" in error["message"]
    assert "penstock brokers versions" in error["hint"]


def test_an_open_transaction_is_described_with_its_partitions() -> None:
    ids = {"ledger": Known(7, epoch=3, partitions=OPEN, coordinator=1), "done": Known(8, "CompleteAbort")}
    with ScriptedTransactions(ids) as cluster:
        lines = Shell(cluster.address).lines("transactions", "describe", "ledger", "--transactional-id", "done")
    assert lines[0] == "ledger: Ongoing, producer 7 epoch 3, time-out 1 m 0 s, coordinator 1"
    assert lines[1].startswith("  began 1970-01-01T00:00:01.000Z, ")
    assert [line.split() for line in lines[2:5]] == [["TOPIC", "PARTITION"], ["views", "0"], ["views", "2"]]
    assert lines[5:] == ["", "done: CompleteAbort, producer 8 epoch 0, time-out 1 m 0 s, coordinator 0"]


def test_a_missing_id_is_reported_with_the_nearest_one() -> None:
    with ScriptedTransactions({"ledger": Known(7)}) as cluster:
        shell = Shell(cluster.address)
        error = shell.error("transactions", "describe", "leger")
        partly = shell("transactions", "describe", "ledger", "zzz")
        document = json.loads(shell("transactions", "describe", "ledger", "zzz", "--format", "json").stdout)
    assert error == {
        "code": "TRANSACTIONAL_ID_NOT_FOUND",
        "message": "Transactional id 'leger' does not exist.",
        "hint": "Did you mean ledger?",
        "exitCode": 4,
    }
    assert (partly.exit_code, "`penstock transactions list` shows" in partly.stderr) == (1, True)
    assert [each["transactionalId"] for each in document["transactions"]] == ["ledger"]
    assert document["failed"]["zzz"]["code"] == "TRANSACTIONAL_ID_NOT_FOUND"


def test_producers_are_shown_with_their_open_transactions() -> None:
    with ScriptedTransactions({}, {("views", 1): [writer(7, 40, epoch=3), writer(8, coordinator_epoch=5)]}) as cluster:
        shell = Shell(cluster.address)
        lines = shell.lines("transactions", "producers", "views")
        opened = shell.json("transactions", "producers", "views:1", "--open")
        empty = shell("transactions", "producers", "views:0")
        missing = shell.error("transactions", "producers", "viws")
    assert [line.split() for line in lines[1:]] == [
        ["views", "1", "7", "3", "0", "1970-01-01T00:00:01.000Z", "-", "40"],
        ["views", "1", "8", "0", "0", "1970-01-01T00:00:01.000Z", "5", "-"],
    ]
    assert opened["partitions"] == [
        {
            "topic": "views",
            "partition": 1,
            "producers": [
                {
                    "producerId": 7, "producerEpoch": 3, "lastSequence": 0, "lastTimestamp": 1_000,
                    "coordinatorEpoch": None, "transactionStartOffset": 40,
                }
            ],
        }
    ]  # fmt: skip
    assert empty.stderr.strip() == "No producers."
    assert (missing["code"], missing["hint"]) == ("UNKNOWN_TOPIC_OR_PARTITION", "Did you mean views?")


def test_a_replica_is_asked_by_its_broker() -> None:
    cluster = ScriptedTransactions({}, {("views", 0): [writer(7)]})
    cluster.topics["views"][1].isr = [1]
    with cluster:
        result = Shell(cluster.address)("transactions", "producers", "views:0,1", "--broker", 2, "--format", "json")
        assert {broker for broker, _ in cluster.questions(ApiKey.DESCRIBE_PRODUCERS)} == {2}
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [(each["partition"], len(each["producers"])) for each in found["partitions"]] == [(0, 1)]
    assert [(each["partition"], each["error"]["code"]) for each in found["failed"]] == [(1, "NOT_LEADER_OR_FOLLOWER")]


# --- fence


def test_fencing_says_what_it_aborts() -> None:
    with ScriptedTransactions({"ledger": Known(7, epoch=3, partitions=OPEN)}) as cluster:
        shell = Shell(cluster.address)
        planned = shell.done("transactions", "fence", "ledger", "--dry-run")
        assert cluster.ids["ledger"].epoch == 3
        done = shell.done("transactions", "fence", "ledger")
        document = shell.json("transactions", "fence", "ledger", "-y")
    assert planned == "ledger (Ongoing in views-0, views-2) would be fenced (dry run).\n"
    assert done == "Fenced ledger (Ongoing in views-0, views-2). Producer 7 is now at epoch 4.\n"
    assert (document["dryRun"], document["failed"]) == (False, {})
    assert [(each["producerId"], each["producerEpoch"]) for each in document["fenced"]] == [(7, 5)]


def test_fencing_does_not_create_an_id_that_does_not_exist() -> None:
    with ScriptedTransactions({"ledger": Known(7)}) as cluster:
        result = Shell(cluster.address)("transactions", "fence", "leger", "ledger", "-y")
        assert set(cluster.ids) == {"ledger"}
    assert result.exit_code == 4
    assert "Fenced ledger." in result.stdout
    assert "Transactional id 'leger' does not exist.\nDid you mean ledger?" in result.stderr


def test_an_id_that_cannot_be_fenced_is_an_error() -> None:
    with ScriptedTransactions({"ledger": Known(7)}) as cluster:
        shell = Shell(cluster.address)
        described = cluster.ids["ledger"]

        def deny(key: ApiKey) -> None:
            if key is ApiKey.INIT_PRODUCER_ID:
                described.errors = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]

        cluster.before = deny
        result = shell("transactions", "fence", "ledger", "-y", "--format", "json")
    assert result.exit_code == 4
    assert json.loads(result.stdout)["fenced"] == []
    assert json.loads(result.stdout)["failed"]["ledger"]["code"] == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


def test_fencing_asks_at_a_terminal() -> None:
    with ScriptedTransactions({"ledger": Known(7, partitions=OPEN)}) as cluster:
        shell = Shell(cluster.address)
        declined = shell.at_terminal("transactions", "fence", "ledger", answer="n\n")
        assert (declined.returncode, cluster.ids["ledger"].epoch) == (1, 0)
        agreed = shell.at_terminal("transactions", "fence", "ledger", answer="y\n")
        assert (agreed.returncode, cluster.ids["ledger"].epoch) == (0, 1)
    assert "Fence ledger (Ongoing in views-0, views-2)?" in declined.stderr
    assert "Nothing was changed." in declined.stderr
