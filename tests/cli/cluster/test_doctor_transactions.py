"""`penstock doctor` and transactions that keep readers of committed records waiting."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.cli.commands import Shell
from tests.cli.scripted_transactions import STATE_TOPIC, Known, ScriptedTransactions, writer

from penstock.client.diagnosis import NOTE, OK, PROBLEM
from penstock.wire.protocol import ApiKey


def findings(cluster: ScriptedTransactions, *options: str) -> list[dict[str, Any]]:
    result = Shell(cluster.address)("doctor", "--http-port", "0", "--format", "json", *options)
    return [each for each in json.loads(result.stdout)["findings"] if each["check"] == "transactions"]


def test_a_hanging_transaction_is_a_problem() -> None:
    with ScriptedTransactions({}, {("views", 1): [writer(5, 40)]}) as cluster:
        (found,) = findings(cluster)
        asked = [message for _, message in cluster.questions(ApiKey.DESCRIBE_PRODUCERS)]
    assert (found["level"], found["subject"]) == (PROBLEM, "views-1")
    assert "keeps committed readers at offset 40" in found["text"]
    assert found["advice"] == "Abort it: penstock transactions abort views:1 --start-offset 40"
    # Only partitions whose last stable offset is behind are asked.
    assert {(topic.name, *topic.partition_indexes) for each in asked for topic in each.topics} == {("views", 1)}


def test_a_transaction_that_is_open_for_long_is_a_problem() -> None:
    hour_ago = int(time.time() * 1000) - 3_600_000
    ids = {
        "old": Known(5, partitions=[("views", 0), ("views", 1)], start_time_ms=hour_ago),
        "young": Known(6, partitions=[("views", 2)], start_time_ms=hour_ago + 3_500_000),
    }
    producers = {("views", index): [writer(5, 40)] for index in (0, 1)} | {("views", 2): [writer(6, 40)]}
    with ScriptedTransactions(ids, producers) as cluster:
        (found,) = findings(cluster)
    assert (found["level"], found["subject"]) == (PROBLEM, "views-0, views-1")
    assert "the transaction of old is open for 1 h 0 m" in found["text"]
    assert "penstock transactions fence old" in found["advice"]


def test_many_transactions_are_counted() -> None:
    with ScriptedTransactions({}, {("views", 0): [writer(each, each) for each in range(13)]}) as cluster:
        found = findings(cluster)
    assert len(found) == 11
    assert (found[-1]["level"], found[-1]["text"]) == (PROBLEM, "3 others like these")


def test_transactions_of_the_moment_are_fine() -> None:
    ids = {"a": Known(5, partitions=[("views", 0)], start_time_ms=int(time.time() * 1000))}
    with ScriptedTransactions(ids, {("views", 0): [writer(5, 40)]}) as cluster:
        (found,) = findings(cluster)
    assert found["level"] == OK


def test_a_coordinator_that_is_absent_gives_no_verdict() -> None:
    cluster = ScriptedTransactions({}, {("views", 1): [writer(5, 40)]})
    cluster.topics[STATE_TOPIC][0].leader = -1
    with cluster:
        # The command waits so long for a leader. The other requests must be answered within it, on a busy machine too.
        (found,) = findings(cluster, "--request-timeout-ms", "5000")
    assert found["level"] == NOTE
    assert "cannot be checked" in found["text"]


def test_brokers_without_transactions_are_not_checked() -> None:
    cluster = ScriptedTransactions()
    cluster.absent = {ApiKey.DESCRIBE_PRODUCERS}
    with cluster:
        assert findings(cluster) == []
