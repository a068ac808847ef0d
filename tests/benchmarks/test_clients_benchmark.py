"""The comparison of clients: where a clock starts and stops, what is asked of a contender, what stands beside what."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from itertools import pairwise

import pytest
from benchmarks.clients import consume, produce
from benchmarks.clients.consume import CONTENDERS, clocked_long_enough, read_to_the_end
from benchmarks.clients.produce import FLOODS, WAY_FLOODS, latencies, send_for
from benchmarks.clients.rounds import (
    CHUNK,
    PARTITIONS,
    Meter,
    Outcome,
    Outcomes,
    new_topic,
    received_bytes,
    require_all_arrived,
)
from benchmarks.peers.servers import Server
from benchmarks.results import in_turn

from penstock import Admin, Producer
from penstock.testing import Broker


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def meter(clock: Clock, received: int = 0) -> Meter:
    return Meter(clock, lambda: received)


class WaitingReader:
    """Takes 1 ms for every 1,000 records and, like `consume`, a whole second if it is asked for more than there are."""

    def __init__(self, clock: Clock, records: int) -> None:
        self._clock = clock
        self._left = records
        self.asked: list[int] = []

    def assign(self, starts: Mapping[int, int]) -> None:
        self._clock.now_s += 0.5

    def read(self, most: int) -> int:
        self.asked.append(most)
        got = min(most, self._left)
        self._left -= got
        self._clock.now_s += 1.0 if got < most else got * 1e-6
        return got

    def close(self) -> None: ...


def test_a_reader_is_never_asked_for_more_than_is_left_so_its_last_call_does_not_wait() -> None:
    clock = Clock()
    reader = WaitingReader(clock, 2 * CHUNK + 5_000)
    outcome = read_to_the_end(reader, {0: 0}, 2 * CHUNK + 5_000, meter(clock))
    assert reader.asked == [CHUNK, CHUNK, 5_000]
    assert outcome["seconds"] == pytest.approx(0.5 + 0.025)


def test_the_clock_of_a_reader_starts_before_its_assignment() -> None:
    clock = Clock()
    reader = WaitingReader(clock, CHUNK)
    clock.now_s += 7.0  # connecting does not count
    assert read_to_the_end(reader, {0: 0}, CHUNK, meter(clock))["seconds"] == pytest.approx(0.5 + 0.010)


def test_a_reader_that_has_fetched_before_its_clock_is_not_measured() -> None:
    clock = Clock()
    with pytest.raises(RuntimeError, match="1,000,000 bytes were received before the clock started"):
        read_to_the_end(WaitingReader(clock, CHUNK), {0: 0}, CHUNK, meter(clock, received=1_000_000))


def test_a_reader_that_finds_more_than_there_is_ends_the_run() -> None:
    clock = Clock()
    reader = WaitingReader(clock, CHUNK)
    reader.read = lambda most: most + 1  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="10001 records were read where 10000 are"):
        read_to_the_end(reader, {0: 0}, CHUNK, meter(clock))


def test_runs_that_are_too_short_only_show_how_many_records_it_takes() -> None:
    counts: list[int] = []

    def run(count: int) -> Outcome:
        counts.append(count)
        return {"seconds": 0.2 + count / 1_000_000}

    assert clocked_long_enough(run, 1_000, 5.0)["seconds"] >= 5.0
    assert len(counts) > 2
    assert all(after <= 10 * before for before, after in pairwise(counts))


class BufferingSender:
    """Takes records at once; flushing waits for what was taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.sent = 0

    def send(self, count: int) -> None:
        self.sent += count
        self._clock.now_s += 1.0

    def flush(self) -> None:
        self._clock.now_s += 3.0

    def close(self) -> None: ...


def test_the_clock_of_a_sender_stops_when_everything_is_acknowledged() -> None:
    clock = Clock()
    sender = BufferingSender(clock)
    outcome = send_for(5.0, sender, meter(clock))
    assert outcome["records"] == sender.sent == 5 * CHUNK
    assert outcome["seconds"] == 8.0


def test_latencies_are_of_single_records_without_the_first_ones() -> None:
    clock = Clock()
    trips = 0

    def trip() -> None:
        nonlocal trips
        trips += 1
        clock.now_s += 9.0 if trips <= 50 else 0.001

    found = latencies(trip, 1.0, clock)
    assert found["p99_us"] == pytest.approx(1000.0)
    assert trips == 50 + found["trips"]


def test_bytes_are_counted_of_every_connection_of_this_process() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as one, listener.accept()[0] as other:
        before = received_bytes()
        other.sendall(bytes(30_000))
        assert len(one.recv(30_000, socket.MSG_WAITALL)) == 30_000
        other.close()  # what it has sent does not count; the end of the connection may, as one byte
        assert received_bytes() - before in (30_000, 30_001)


def test_every_round_begins_with_another_contender() -> None:
    assert [in_turn(["a", "b", "c"], number)[0] for number in range(4)] == ["a", "b", "c", "a"]


def _outcomes(rates: Mapping[str, float]) -> Outcomes:
    outcomes = Outcomes()
    for name, rate in rates.items():
        for factor in (1.0, 2.0, 9.0):
            outcomes.add(name, {"rate": rate * factor, "cpu_us": 1.0, "memory_mb": 8.0, "p50_us": 1.0, "p99_us": 2.0})
    return outcomes


def test_many_at_once_stand_beside_both_of_the_ways_of_confluent_kafka() -> None:
    rates = dict.fromkeys([*FLOODS, *produce.TRIPS], 1e6)
    outcomes = _outcomes({**rates, "penstock send_arrow": 6e6, "confluent produce_batch": 4e6})
    rates_of = {row.work: row for row in produce.rows("t", 100, outcomes) if row.unit == "M records/s"}
    assert list(rates_of) == [
        "send beside produce, 100 B",
        "send_many beside produce, 100 B",
        "send_many beside produce_batch, 100 B",
        "send_arrow beside produce, 100 B",
        "send_arrow beside produce_batch, 100 B",
    ]
    assert rates_of["send_arrow beside produce, 100 B"].ratio() == 6.0
    assert rates_of["send_arrow beside produce, 100 B"].goal == 3.0
    assert rates_of["send_arrow beside produce_batch, 100 B"].ratio() == 1.5
    assert list(rates_of["send beside produce, 100 B"].figures) == [
        "Penstock",
        "confluent-kafka",
        "aiokafka",
        "kafka-python",
    ]
    assert rates_of["send beside produce, 100 B"].figures["Penstock"].rounds == (1.0, 2.0, 9.0)


def test_every_way_of_calling_that_was_measured_is_a_row_with_a_goal() -> None:
    rates = dict.fromkeys([*FLOODS, *WAY_FLOODS, *produce.TRIPS], 1e6)
    found = produce.rows("t", 100, _outcomes({**rates, "confluent produce, text": 2e6}))
    rows = {row.work: row for row in found if row.unit == "M records/s"}
    ways = [rows[f"send beside produce, {way}, 100 B"] for way in produce.WAYS]
    assert [row.goal for row in ways] == [1.0] * 8
    assert [row.ratio() for row in ways] == [0.5 if "text" in row.work else 1.0 for row in ways]
    del rates["confluent produce, key"]
    assert "send beside produce, key, 100 B" not in {row.work for row in produce.rows("t", 100, _outcomes(rates))}


def test_everything_that_was_measured_of_reading_is_a_row() -> None:
    found = consume.rows("t", 100, _outcomes(dict.fromkeys(CONTENDERS, 1e6)))
    assert {row.work for row in found} == {f"{way}, 100 B" for way in ("iterate", "poll", "to_arrow", "async for")}
    assert {len(row.figures) for row in found} == {4}
    assert {(row.work, row.goal) for row in found if row.unit == "M records/s" and row.goal} == {
        ("iterate, 100 B", 1.5),
        ("to_arrow, 100 B", 5.0),
    }


class Embedded(Server):
    """A broker for tests in the place of one that the benchmark starts."""

    def __init__(self, broker: Broker) -> None:
        self.name = "penstock"
        self.address = broker.address


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Broker() as broker:
        yield Embedded(broker)


@pytest.mark.parametrize(
    "names", [["confluent consume"], pytest.param(list(CONTENDERS), marks=pytest.mark.long)], ids=["one", "all"]
)
def test_contenders_read_to_the_end_of_a_topic_having_fetched_nothing_before(server: Server, names: list[str]) -> None:
    said: list[str] = []
    outcomes = consume.measure(server, 100, 1, 0.05, names, said.append)
    assert list(outcomes.by_contender) == names
    for (outcome,) in outcomes.by_contender.values():
        assert outcome["seconds"] >= 0.05
        assert outcome["records"] % PARTITIONS == 0
        assert 0 < outcome["received_before"] < 64 * 1024
    assert said == ["penstock: reading records of 100 B, round 1 of 1"]


@pytest.mark.parametrize(
    "names",
    [
        ["confluent produce_batch", "confluent produce, all of it", "penstock send, all of it"],
        pytest.param([*FLOODS, *WAY_FLOODS, *produce.TRIPS], marks=pytest.mark.long),
    ],
    ids=["some", "all"],
)
def test_what_contenders_send_is_what_the_broker_has(server: Server, names: list[str]) -> None:
    outcomes = produce.measure(server, 100, "all", 1, 0.05, names, lambda _: None)
    assert list(outcomes.by_contender) == names
    with Admin(server.address) as admin:
        assert not [name for name in admin.list_topics() if name.startswith("bench-")]


def test_records_that_do_not_arrive_end_the_run(server: Server) -> None:
    topic = new_topic(server)
    with Producer(server.address) as producer:
        producer.send_many(topic, [b"v"] * 7)
        producer.flush()
    require_all_arrived(server, topic, "penstock send_many", 7)
    with pytest.raises(RuntimeError, match="penstock send_many sent 8 records, and the broker has 7"):
        require_all_arrived(server, topic, "penstock send_many", 8)
