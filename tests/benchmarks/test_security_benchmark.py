"""The benchmark of security: its rows, its workloads, and a short run on our broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from benchmarks.clients.rounds import Outcomes
from benchmarks.peers import kafka, ours
from benchmarks.peers.servers import ServerFailed
from benchmarks.peers.workloads import Transfer
from benchmarks.security import brokers, command, rounds, workloads
from benchmarks.security.brokers import PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL, SecureBroker

from benchmarks import results, security


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


def test_the_rows_compare_the_brokers_tls_with_plaintext_and_acls_with_none() -> None:
    contenders = [rounds.Contender(Named(name), nullcontext) for name in (ours.NAME, kafka.NAME)]  # type: ignore[arg-type]
    run = rounds.Run(rounds.QUICK, contenders, lambda _: None)
    bulk = {"produce": 100.0, "produce_cpu": 2.0, "consume": 200.0, "consume_cpu": 1.0}
    for name, factor in ((ours.NAME, 1.0), (kafka.NAME, 2.0)):
        for key, slower in ((SSL, 1.0), (PLAINTEXT, 0.5)):
            figures = {field: value * factor * slower for field, value in bulk.items()}
            run.outcomes.setdefault(key, Outcomes()).add(name, figures)
        for work in rounds.OPENED.values():
            run.outcomes.setdefault(work, Outcomes()).add(name, {"per_s": 10 * factor, "cpu_us": 5.0})
        for api in rounds.CHECKED:
            outcome = {"without": 40.0, "with": 42.0, "share": 2.0 * factor}
            run.outcomes.setdefault(api, Outcomes()).add(name, outcome)
    rows = {row.work: row for row in run.rows()}
    produce, cpu = rows["produce, TLS"], rows["broker CPU per GB produced, TLS"]
    assert (produce.ratio(), produce.goal, produce.is_met) == (0.5, 1.0, False)
    assert (cpu.ratio(), cpu.goal, cpu.is_met) == (0.5, 0.7, True)
    assert rows["consume, plaintext"].goal is None
    assert rows["produce: rate with TLS to the rate without"].figures[ours.NAME].value == 2.0
    assert rows["TLS handshakes"].is_losing
    share = rows["share of ACL checks in a Fetch request"]
    assert (share.figures[ours.NAME].value, share.figures[kafka.NAME].value) == (2.0, 4.0)
    assert (share.goal, share.is_met) == (3.0, True)


def test_portions_are_summed_by_their_time_and_not_by_their_rate() -> None:
    volume = workloads.Volume()
    volume.add(100, Transfer(100.0, 1.0))
    volume.add(100, Transfer(25.0, 3.0))
    assert volume.seconds == 5.0
    assert volume.transfer.mb_per_s == 40.0
    assert volume.transfer.cpu_s_per_gb == pytest.approx(2.0)


def test_there_are_as_many_acls_as_the_table_says_and_all_are_different() -> None:
    made = brokers.acls()
    assert len(made) == len(set(made)) == brokers.ACLS


def test_different_suites_are_a_doubt() -> None:
    assert command.doubts({"ours": "a", "theirs": "a"}) == []
    [doubt] = command.doubts({"ours": "a", "theirs": "b"})
    assert "ours a, theirs b" in doubt


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    folder = tmp_path_factory.mktemp("secure")
    with brokers.running(ours.start, folder / "data", brokers.Certificates.make(folder), has_acls=True) as running:
        yield running


@pytest.mark.parametrize("protocol", [SSL, SASL_PLAINTEXT, SASL_SSL])
def test_connections_shake_hands_and_log_in(broker: SecureBroker, protocol: str) -> None:
    connector = workloads.Connector(broker, protocol)
    done = workloads.opened(broker.listener(protocol), connector, 0.05, threads=2)
    assert done.per_s > 0
    assert done.cpu_us > 0
    assert ("TLSv1.3" in connector.suite) is protocol.endswith(SSL)


def test_a_wrong_password_ends_the_run(broker: SecureBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "PASSWORD", "another one")
    connector = workloads.Connector(broker, SASL_PLAINTEXT)
    with pytest.raises(ServerFailed, match=r"a connection failed: .*SASL_AUTHENTICATE"):
        workloads.opened(broker.listener(SASL_PLAINTEXT), connector, 5.0, threads=1)


def test_requests_pass_the_acls_and_a_user_without_them_is_rejected(
    broker: SecureBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for make in rounds.CHECKED.values():
        with make(broker) as requests:
            assert requests.pipelined(20).cpu_us > 0
    monkeypatch.setattr(workloads, "TOPIC", brokers.ONE_RECORD)
    with pytest.raises(ServerFailed, match="rejected a record"):
        workloads.produce_one(broker)


@pytest.mark.long
def test_a_short_run_measures_our_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "PARTIAL", tmp_path)
    security.main(["--quick", "--ours-only", "--folder", str(tmp_path)])
    result = results.read(tmp_path / "security.json")
    assert {name for row in result.rows for name in row.figures} == {ours.NAME}
    works = {row.work for row in result.rows}
    assert {"consume, TLS", "consume, plaintext", "TLS handshakes", "SCRAM-SHA-512 logins"} <= works
