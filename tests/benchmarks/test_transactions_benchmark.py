"""The benchmark of transactions: its rows, its judge, and a short run on our broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.clients.rounds import CONFLUENT, PARTITIONS, PENSTOCK, Outcomes
from benchmarks.peers import kafka, ours
from confluent_kafka import Producer

from benchmarks import results, transactions
from penstock.testing import Broker


def outcome(rate: float, size: int, *, transactional: bool) -> dict[str, float]:
    commits = {"p50_ms": 10.0 / rate, "p99_ms": 20.0 / rate} if transactional else {}
    return {"transactions": rate, "records": rate * size, "cpu_us": 1.0, "sent": 1.0, **commits}


def test_the_rows_compare_the_brokers_and_a_transaction_with_none() -> None:
    run = transactions.Run({ours.NAME: None, kafka.NAME: None}, 2, 1.0)  # type: ignore[dict-item]
    for client in (CONFLUENT, PENSTOCK):
        works = [(size, True) for size in transactions.SIZES] + [(size, False) for size in transactions.COMPARED]
        for size, transactional in works:
            outcomes = run.outcomes[client, size, transactional] = Outcomes()
            for name, rate in ((ours.NAME, 8.0), (kafka.NAME, 2.0)):
                outcomes.add(name, outcome(rate, size, transactional=transactional))
                outcomes.add(name, outcome(rate, size, transactional=transactional))
    rows = {(row.table, row.work): row for row in run.rows()}
    one = rows[f"With {PENSTOCK}", "transactions of 1 record"]
    assert (one.ratio(), one.goal, one.is_met) == (4.0, 2.0, True)
    commit = rows[f"With {CONFLUENT}", "commit, 1 record: p50"]
    assert (commit.ratio(), commit.goal, commit.is_met) == (0.25, 0.6, True)
    cost = rows[f"With {CONFLUENT}", "rate in transactions of 10,000 to the rate without"]
    assert (cost.figures[ours.NAME].value, cost.goal, cost.is_met) == (1.0, 0.95, True)


def test_a_broker_that_shows_fewer_records_than_were_committed_fails_the_run() -> None:
    class Server:
        name = "ours"

        def __init__(self, address: str) -> None:
            self.address = address

    with Broker() as broker:
        broker.create_topic("t", partitions=PARTITIONS)
        producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "bench"})
        producer.init_transactions(60)
        for number, ends in enumerate((producer.commit_transaction, producer.abort_transaction)):
            producer.begin_transaction()
            producer.produce("t", b"v", partition=number)
            producer.flush()
            ends(60)
        server: object = Server(broker.address)
        transactions.require_all_committed(server, "t", 1)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="2 records were committed to t at ours, and 1 are visible"):
            transactions.require_all_committed(server, "t", 2)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_short_run_measures_our_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "PARTIAL", tmp_path)
    transactions.main(["--ours-only", "--rounds", "1", "--seconds", "0.2"])
    result = results.read(tmp_path / "transactions.json")
    assert {name for row in result.rows for name in row.figures} == {ours.NAME, transactions.NOT_SYNCED}
    assert all(figure.value > 0 for row in result.rows for figure in row.figures.values())
