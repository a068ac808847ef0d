"""The growth benchmark: its probes ask a real broker what they say, and its figures tell what grew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.growth import probes
from benchmarks.growth.command import svg
from benchmarks.growth.lifecycle import MADE, WORKS, Figures, Scale, Witness, beside, by_scale, places_of, request, rows
from benchmarks.growth.probes import Crowd, Fetches
from benchmarks.peers import ours
from benchmarks.peers.servers import Server, ServerFailed
from benchmarks.peers.workloads import ACKS_LEADER, RawProducer

PLACES = [("growth-0", 3), ("growth-1", 2)]
PRODUCE_P50 = request("produce one record, acks=1", "p50")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with ours.start(tmp_path_factory.mktemp("broker")) as server:
        for name, partitions in PLACES:
            server.topics.make(name, partitions=partitions)
        with RawProducer(server, "growth-0", ACKS_LEADER) as producer:
            producer.round_trips(2)
        yield server


def test_every_fetch_of_a_session_is_answered_with_what_it_should_be(server: Server) -> None:
    with Fetches(server, PLACES) as fetches:
        for cost in (fetches.ready(3), fetches.idle(3), fetches.active(3), fetches.woken(2)):
            assert 0 < cost.p50_us <= cost.p99_us


def test_a_session_that_misses_a_record_does_not_count_as_idle(server: Server) -> None:
    with Fetches(server, PLACES) as fetches, RawProducer(server, "growth-1", ACKS_LEADER) as producer:
        producer.round_trips(1)
        with pytest.raises(ServerFailed, match="idle session with news"):
            fetches.idle(1)


def test_a_crowd_has_been_answered_and_stays(server: Server) -> None:
    with Crowd(server, 20) as crowd:
        assert len({line._socket.getsockname() for line in crowd._lines}) == 20


def test_missing_partitions_are_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    probes.wait_until_readable(server, PLACES)
    monkeypatch.setattr(probes, "_MAKING_S", 0.0)
    with pytest.raises(ServerFailed, match="cannot be read"):
        probes.wait_until_readable(server, [("growth-0", 4)])


def test_a_witness_remembers_its_longest_wait(server: Server) -> None:
    server.topics.make("witness")
    with Witness(server) as witness:
        server.topics.make("growth-2", partitions=5)
    assert witness.longest_s > 0


def test_a_broker_starts_again_with_its_topics(tmp_path: Path) -> None:
    for makes in (True, False):
        with ours.start(tmp_path) as server:
            if makes:
                server.topics.make("growth-0", partitions=2)
            with RawProducer(server, "growth-0", ACKS_LEADER) as producer:
                producer.round_trips(1)


def test_partitions_are_spread_over_topics_and_none_is_lost() -> None:
    for partitions in (1, 999, 1000, 1001, 5000):
        places = places_of(partitions)
        assert sum(count for _, count in places) == partitions
        assert len({name for name, _ in places}) == len(places)
        assert max(count for _, count in places) <= 1000


def _grown() -> Figures:
    figures = Figures()
    for partitions, connections, figure in ((1, 1, 40.0), (5000, 1, 80.0), (1, 500, 44.0), (5000, 500, 120.0)):
        figures.add(PRODUCE_P50, "broker", Scale(partitions, connections), figure)
    for partitions, figure in ((1, 0.5), (5000, 2.5)):
        figures.add(MADE, "broker", Scale(partitions, 1), figure)
    figures.add(PRODUCE_P50, "Kafka", Scale(1, 1), 100.0)
    return figures


def test_a_row_has_a_column_for_every_scale() -> None:
    produce, made = by_scale(_grown(), "broker")
    assert {scale: figure.value for scale, figure in produce.figures.items()} == {
        "1 / 1": 40.0,
        "5,000 / 1": 80.0,
        "1 / 500": 44.0,
        "5,000 / 500": 120.0,
    }
    assert (made.work, made.unit) == ("create the topics until all can be read", "s")
    assert list(made.figures) == ["1 / 1", "5,000 / 1"]


def test_both_brokers_are_compared_at_the_scales_that_both_have() -> None:
    (only,) = beside(_grown(), "broker", "Kafka")
    assert only.work == "produce one record, acks=1, p50, 1 / 1"
    assert only.ratio() == 0.4


def test_everything_that_was_measured_is_a_row() -> None:
    figures = Figures()
    for work in WORKS:
        for server in ("broker", "Kafka"):
            figures.add(work, server, Scale(1, 1), 2.0)
    assert len(rows(figures, ["broker", "Kafka"])) == 3 * len(WORKS), "by scale for each of the two, and compared"


def test_the_picture_has_a_bar_for_every_scale_above_the_smallest() -> None:
    picture = svg(by_scale(_grown(), "broker")[:1], "broker")
    assert all(f">{times}</text>" in picture for times in ("2.00", "1.10", "3.00"))
