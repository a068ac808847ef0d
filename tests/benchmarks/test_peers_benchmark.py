"""The comparison with Kafka: who takes part, what a missing figure looks like, how the old broker is spoken to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from benchmarks.peers import command, kafka, kafka_09, ours, rounds
from benchmarks.peers.rounds import CONSUME, DISK, PRODUCE, ROWS, START, TRIP_P50, Figures
from benchmarks.peers.servers import Dialect, Flushing, Server, ServerFailed, free_ports
from benchmarks.peers.workloads import ACKS_LEADER, RawProducer
from confluent_kafka import KafkaError, KafkaException
from tests.peers.installing import NotAvailable

from benchmarks import __main__ as bench
from benchmarks import results
from penstock.wire.protocol import ApiKey


class _There:
    def start(self, folder: Path) -> NoReturn:
        raise NotImplementedError(folder)


def _missing() -> NoReturn:
    raise NotAvailable("npm does not run")


def _two_servers_and_an_old_one() -> Figures:
    figures = Figures()
    for server, start_s, trip_us in ((ours.NAME, 0.4, 40.0), (kafka.NAME, 2.0, 100.0)):
        figures.add(START, server, start_s)
        figures.add(TRIP_P50, server, trip_us)
    figures.add(START, kafka_09.NAME, 1.6)
    return figures


def _recording() -> results.Recording:
    return results.Recording("peers", None, "make bench ARGS=peers", {})


def test_an_old_kafka_that_is_not_available_costs_its_column_and_makes_the_run_partial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka, "Kafka", _There)
    monkeypatch.setattr(kafka_09, "Kafka09", _missing)
    recording = _recording()
    assert len(command.peers(False, recording)) == 1
    assert recording.partial == ("Kafka 0.9.0.1 is not available: npm does not run",)


def test_a_new_kafka_that_is_not_available_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "Kafka", _missing)
    monkeypatch.setattr(kafka_09, "Kafka09", _There)
    recording = _recording()
    assert len(command.peers(False, recording)) == 1
    assert recording.partial == ("Kafka 4.3 is not available: npm does not run",)


def test_without_the_old_kafka_no_one_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "Kafka", _There)
    monkeypatch.setattr(kafka_09, "Kafka09", _missing)
    recording = _recording()
    assert len(command.peers(True, recording)) == 1
    assert recording.partial == ()


def _every_row() -> list[results.Row]:
    figures = Figures()
    for work in ROWS:
        for number, server in enumerate(command.CONTENDERS):
            for extra in (0.0, 1.0, 5.0):
                figures.add(work, server, 10.0 + number + extra)
    return figures.rows(ROWS, command.CONTENDERS, ours.NAME, kafka.NAME)


def test_every_work_is_a_row_with_all_brokers_the_one_without_uvloop_too() -> None:
    rows = _every_row()
    assert [row.work for row in rows] == [work.name for work in ROWS]
    for row in rows:
        assert set(row.figures) == {ours.NAME, ours.ON_ASYNCIO, kafka.NAME, kafka_09.NAME}
        assert row.figures[ours.ON_ASYNCIO] == results.Figure(12.0, (11.0, 12.0, 16.0))
        assert (row.subject, row.peer) == (ours.NAME, kafka.NAME)


def test_consuming_more_slowly_than_kafka_is_a_row_that_loses_though_it_has_no_goal() -> None:
    consume = {work.name for work in CONSUME.values()}
    rows = [row for row in _every_row() if row.work in consume]
    assert len(rows) == 3
    assert all(row.goal is None and row.is_losing for row in rows)


def test_a_figure_that_one_broker_does_not_have_is_missing_from_its_row_only() -> None:
    rows = {
        row.work: row for row in _two_servers_and_an_old_one().rows(ROWS, command.CONTENDERS, ours.NAME, kafka.NAME)
    }
    assert rows[START.name].figures[kafka_09.NAME].value == 1.6
    assert kafka_09.NAME not in rows[TRIP_P50.name].figures
    assert rows[TRIP_P50.name].ratio() == 0.4, "the ratio is to the new Kafka"
    assert len(rows) == 2, "works without figures have no row"


def test_a_disk_that_was_slower_for_one_of_them_is_reported_with_its_name() -> None:
    figures = Figures()
    for server, sync_us in ((ours.NAME, 300.0), (kafka.NAME, 255.0), (kafka_09.NAME, 717.0)):
        figures.add(DISK, server, sync_us)
    (doubt,) = command.doubts(figures)
    assert "between ours and Kafka 0.9.0.1 (ratio 0.42)" in doubt


def _run(tmp_path: Path) -> rounds.Run:
    return rounds.Run(rounds.QUICK, [], tmp_path, lambda _: None)


def _server(is_optional: bool) -> Any:
    class Topics:
        def make(self, *_: object, **__: object) -> None:
            raise KafkaException(KafkaError(KafkaError._BAD_MSG))

    return SimpleNamespace(name=kafka_09.NAME, is_optional=is_optional, topics=Topics())


def test_an_old_kafka_that_the_client_cannot_speak_to_loses_its_bulk_rows_with_a_reason(tmp_path: Path) -> None:
    run = _run(tmp_path)
    for _ in range(2):
        run._bulk(_server(is_optional=True), "topic", "1 KB")
    assert len(run.notes) == 1, "it is noted once"
    assert run.notes[0].startswith("Kafka 0.9.0.1, big batches: n/a, since")
    assert run.figures.median(PRODUCE["1 KB"], kafka_09.NAME) is None


def test_any_other_broker_that_fails_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(KafkaException):
        _run(tmp_path)._bulk(_server(is_optional=False), "topic", "1 KB")


def test_records_for_the_old_protocol_are_accepted_and_answered_like_the_new_ones(tmp_path: Path) -> None:
    with ours.start(tmp_path / "broker") as server:
        server.topics.make("old-and-new")
        for version in (9, 1):
            server.dialect = Dialect(produce_version=version)
            with RawProducer(server, "old-and-new", ACKS_LEADER) as producer:
                assert producer.round_trips(20).p50_us > 0
                assert producer.pipelined(100).per_s > 0
    assert server.stop_s > 0


def test_what_runs_for_a_broker_ends_when_the_broker_does_not_start(tmp_path: Path) -> None:
    companion = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with pytest.raises(ServerFailed, match="does not answer"):
        Server(
            "broken",
            [sys.executable, "-c", "raise SystemExit('no')"],
            free_ports(1)[0],
            tmp_path,
            Flushing({}, {}),
            companions=[companion],
        )
    assert companion.poll() is not None


def test_the_old_kafka_is_asked_what_it_can_answer() -> None:
    api_key, version = kafka_09._DIALECT.question[4:6], kafka_09._DIALECT.question[6:8]
    assert (int.from_bytes(api_key, "big"), int.from_bytes(version, "big")) == (ApiKey.METADATA, 0)


@pytest.mark.parametrize("arguments", [["page", "--quick"], ["peers", "growth", "--quick"], ["--quick"]])
def test_options_need_the_name_of_one_benchmark(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert "--quick" in capsys.readouterr().err
