"""Runs of faults: their schedule, the gaps that they leave, the report, the servers, and the clients at work."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.faults import command, places
from benchmarks.faults.asking import NoAnswer, PartitionView, View, answers
from benchmarks.faults.checking import Stored, check_client, check_contents
from benchmarks.faults.clients import SENDERS
from benchmarks.faults.clusters import NotInTime
from benchmarks.faults.gaps import gaps, longest, summary
from benchmarks.faults.injecting import Happened
from benchmarks.faults.journal import (
    Acked,
    Event,
    Failed,
    Read,
    Told,
)
from benchmarks.faults.nodes import Node
from benchmarks.faults.places import Loopback, LoopbackPlace, NoNamespaces
from benchmarks.faults.reading_back import contents, ends, fingerprint
from benchmarks.faults.reporting import as_json, gap_rows, leaders_death, verdict
from benchmarks.faults.running import Outcome, Plan
from benchmarks.faults.schedule import Fault, Kind, Target, deck, schedule
from benchmarks.faults.timeline import per_second, svg
from benchmarks.faults.workers import loaded
from benchmarks.peers.servers import ServerFailed

from penstock.testing.embedded_broker import EmbeddedBroker


def _acked(number: int, offset: int, acked_s: float = 1.0, partition: int = 0) -> Acked:
    return Acked(partition, number, "a.0", offset, acked_s, acked_s)


_TWO = {0: [Stored(0, "a.0", 0), Stored(1, "a.0", 1)]}

# --- the schedule


def test_the_same_seed_gives_the_same_faults_and_another_one_others() -> None:
    pairs = deck(can_cut=True, has_keepers=True, is_rough=False)
    assert schedule(7, 50, pairs) == schedule(7, 50, pairs)
    assert schedule(7, 50, pairs) != schedule(8, 50, pairs)


def test_in_fifty_faults_everything_that_can_be_done_is_done() -> None:
    pairs = deck(can_cut=True, has_keepers=True, is_rough=False)
    faults = schedule(1, 50, pairs)
    assert [fault.number for fault in faults] == list(range(1, 51))
    assert {(fault.kind, fault.target) for fault in faults} == set(pairs)
    assert all(0.5 <= fault.hold_s <= 6 for fault in faults)


def test_nobody_is_cut_off_where_that_cannot_be_and_no_zookeeper_is_hit_where_there_is_none() -> None:
    faults = schedule(1, 100, deck(can_cut=False, has_keepers=False, is_rough=False))
    assert {fault.kind for fault in faults} == {Kind.KILL, Kind.PAUSE}
    assert not {Target.KEEPER, Target.ALL} & {fault.target for fault in faults}


def test_all_brokers_at_once_are_hit_only_in_a_rough_run() -> None:
    rough = deck(can_cut=True, has_keepers=True, is_rough=True)
    assert (Kind.KILL, Target.ALL) in rough
    assert (Kind.KILL, Target.ALL) not in deck(can_cut=True, has_keepers=True, is_rough=False)


# --- gaps


def _killed(began_s: float, whole_s: float, led: tuple[int, ...], number: int = 1) -> Happened:
    return Happened(Fault(number, Kind.KILL, Target.LEADER, 1.0), "broker 1", led, began_s, began_s + 1, whole_s)


def test_a_gap_reaches_from_the_last_acknowledgement_before_to_the_first_after() -> None:
    assert longest([1.0, 1.9, 4.0, 4.1], began_s=2.0, until_s=5.0) == pytest.approx(2.1)


def test_a_gap_that_was_over_before_the_fault_and_one_of_the_next_fault_do_not_count() -> None:
    assert longest([0.0, 1.9, 2.1, 2.2, 2.3, 9.0], began_s=2.0, until_s=2.4) == pytest.approx(0.2)
    assert longest([0.0, 1.9, 4.0, 9.0], began_s=2.0, until_s=3.0) == pytest.approx(1.1), "it ends when all is well"


def test_acknowledgements_that_never_come_back_are_a_gap_to_the_end() -> None:
    assert longest([1.0], began_s=2.0, until_s=9.0) == pytest.approx(8.0)
    assert longest([], began_s=2.0, until_s=9.0) == pytest.approx(7.0)


def test_of_a_leaders_death_only_the_partitions_that_it_led_count_and_of_a_followers_all() -> None:
    quick: list[Event] = [_acked(at, at, at / 10) for at in range(100)]
    slow: list[Event] = [_acked(0, 0, 1.0, partition=1), _acked(1, 1, 4.9, partition=1)]
    clients = {"one": [*quick, *slow]}
    led, other, follower = (gaps([_killed(2.0, 5.0, led)], clients)[0].gap_s for led in ((1,), (0,), ()))
    assert led == pytest.approx(3.9)
    assert other == pytest.approx(0.1)
    assert follower == pytest.approx(3.9)


def test_percentiles_are_of_the_nearest_rank() -> None:
    found = summary([float(number) for number in range(1, 201)])
    assert (found.count, found.p50_s, found.p99_s, found.max_s) == (200, 100.0, 198.0, 200.0)
    assert math.isnan(summary([]).p99_s)


# --- the report


def _outcome(plan: Plan, events: list[Event]) -> Outcome:
    happened = [_killed(2.0, 5.0, (0,))]
    return Outcome(
        plan=plan, kind="penstock", happened=happened, contents=check_contents(_TWO),
        clients={"one": check_client(events, _TWO)}, gaps=gaps(happened, {"one": events}), different_replicas=[],
        acked_s={"one": [1.0, 4.0]}, began_s=0.0, ended_s=6.0, records=2,
    )  # fmt: skip


_GOOD: list[Event] = [
    _acked(0, 0, 1.0),
    _acked(1, 1, 4.0),
    *(Read(0, 0, offset, "a.0", offset, 1.0) for offset in (0, 1)),
]


def test_a_run_in_which_nothing_is_wrong_has_passed() -> None:
    outcome = _outcome(Plan(faults=1), _GOOD)
    assert verdict(outcome).startswith("PASSED: 1 faults, 2 acknowledged records, none lost")
    assert leaders_death(outcome).max_s == pytest.approx(3.0)
    assert [row["p99 s"] for row in gap_rows(outcome)] == ["3.00", "3.00"]
    assert json.loads(json.dumps(as_json(outcome)))["faults"][0]["gaps_s"] == {"one": 3.0}


def test_a_lost_record_or_different_replicas_are_a_failure_that_is_named() -> None:
    assert verdict(_outcome(Plan(), [*_GOOD, _acked(7, 7)])) == "FAILED: 1 acknowledged, then lost"
    outcome = _outcome(Plan(), _GOOD)
    object.__setattr__(outcome, "different_replicas", ["faults-0"])
    assert verdict(outcome) == "FAILED: 1 replicas that differ"


def test_a_failed_send_and_an_error_to_a_reader_fail_a_rolling_restart_only() -> None:
    events: list[Event] = [*_GOOD, Failed(0, 9, "a.0", 1.0, 2.0, "no"), Told(0, 1.0, "no")]
    assert _outcome(Plan(), events).is_good
    assert verdict(_outcome(Plan(rolling_rounds=1), events)) == "FAILED: 1 failed sends, 1 errors told to readers"


def test_the_timeline_has_a_panel_a_client_and_a_band_a_fault() -> None:
    outcome = _outcome(Plan(), _GOOD)
    drawn = svg("a < b", outcome.acked_s, outcome.happened, 0.0, 6.0)
    root = ElementTree.fromstring(drawn)
    assert len(root.findall("{*}polyline")) == 1
    assert len(root.findall("{*}rect/{*}title")) == 2, "one until its end, one until all was well"
    texts = [text.text or "" for text in root.findall("{*}text")]
    assert texts.count("L") == 1, "who was hit"
    assert any("who was hit: L leader" in text for text in texts)
    assert per_second([0.1, 0.2, 2.5, 3.2, 7.0], 0.0, 3.4) == [2, 0, 1], "the second that is not over does not count"


# --- servers and places


def test_a_broker_that_nobody_serves_gives_no_answer() -> None:
    place = Loopback().place("nobody")
    with pytest.raises(NoAnswer):
        answers(place.address, place.ports(1)[0])


def test_a_broker_that_ends_at_once_is_said_with_its_last_words(tmp_path: Path) -> None:
    place = LoopbackPlace(set())
    node = Node(1, [sys.executable, "-c", "raise SystemExit('no disk')"], place, place.ports(1)[0], tmp_path)
    node.launch()
    with pytest.raises(ServerFailed, match=r"broker 1 is not up.*no disk"):
        node.wait_until_up()
    assert node.stop(), "again is harmless"


def test_a_node_is_paused_resumed_and_killed(tmp_path: Path) -> None:
    place = LoopbackPlace(set())
    node = Node(1, [sys.executable, "-c", "input() if 0 else __import__('signal').pause()"], place, 1, tmp_path)
    node.launch()
    node.pause()
    assert (node.is_running, node.is_paused) == (True, True)
    node.kill()
    assert (node.is_running, node.is_paused) == (False, False)


def _view(insync: set[int], brokers: set[int], leader: int = 1) -> View:
    return View(frozenset(brokers), 1, {("t", 0): PartitionView(leader, 5, (1, 2, 3), frozenset(insync))})


def test_a_cluster_is_whole_when_all_are_there_all_in_sync_and_somebody_leads() -> None:
    everybody = {1, 2, 3}
    assert _view(everybody, everybody).is_whole(3)
    assert not _view({1, 2}, everybody).is_whole(3)
    assert not _view(everybody, {1, 2}).is_whole(3)
    assert not _view(everybody, everybody, leader=-1).is_whole(3)
    assert _view(everybody, everybody).led_by(1) == [("t", 0)]


def test_ports_on_the_loopback_are_never_given_twice_nor_those_of_connections() -> None:
    network = Loopback()
    ports = [port for _ in range(5) for port in network.place("x").ports(3)]
    assert len(set(ports)) == 15
    assert max(ports) < 30_000
    with pytest.raises(NoNamespaces):
        network.cut(network.place("x"), None)


def test_replicas_are_the_same_wherever_their_segments_end(tmp_path: Path) -> None:
    for name, files in (("one", {"0": "abcd"}), ("two", {"0": "ab", "2": "cd"}), ("three", {"0": "abce"})):
        for base, data in files.items():
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            (folder / f"{base:>020}.log").write_text(data)
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
    assert fingerprint(tmp_path / "one") != fingerprint(tmp_path / "three")


@pytest.mark.parametrize("arguments", [["--faults", "0"], ["--rate", "0"], ["--clients"], ["--kind", "other"]])
def test_a_run_that_cannot_be_is_refused_before_anything_starts(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert "error" in capsys.readouterr().err


_CUTTING = """
import socket, time
from benchmarks.faults.places import Direction, Namespaces
network = Namespaces()
one, two = network.place("one"), network.place("two")
with one.enter():
    server = socket.create_server((one.address, one.ports(1)[0]))
def reaches(place, patience_s):
    deadline = time.monotonic() + patience_s
    with place.enter():
        while True:
            try:
                socket.create_connection((one.address, one.ports(1)[0]), 0.3).close()
                return "+"
            except OSError:
                if time.monotonic() > deadline:
                    return "-"
said = reaches(two, 10)
for others, direction in ((None, Direction.BOTH), ([two], Direction.OUT), ([two], Direction.BOTH)):
    network.cut(one, others, direction)
    said += reaches(two, 0.6)
    network.heal()
    said += reaches(two, 10)
print(said)
"""


def test_a_place_that_is_cut_off_is_not_reached_until_it_is_healed() -> None:
    try:
        run = places.in_a_namespace([sys.executable, "-c", _CUTTING])
    except NoNamespaces as error:
        pytest.skip(str(error))
    done = subprocess.run(run, env=places.inside(), capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "+-+-+-+", done.stderr


# --- the clients at work


@pytest.mark.parametrize("client", SENDERS)
def test_a_client_at_work_is_acknowledged_reads_all_and_is_judged_good(client: str, tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("faults", partitions=2)
        with loaded([client], tmp_path, [broker.address], "faults", 2, 200.0) as load:
            load.wait_for_progress(60.0)
            load.flush()
            wanted = ends([broker.address], "faults", 2)
            assert load.wait_until_read(wanted, 60.0) == []
            load.end()
            events = load.workers[0].events
        stored = contents([broker.address], "faults", 2)
    assert {partition: len(records) for partition, records in stored.items()} == wanted
    assert check_contents(stored).is_good
    found = check_client(events, stored)
    assert (found.wrong, found.failed, sum(found.told.values())) == ({}, 0, 0)
    assert found.acked == sum(wanted.values()) > 0


def test_clients_that_cannot_go_on_are_named_with_their_partitions(tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("faults", partitions=1)
        with loaded(["penstock"], tmp_path, [broker.address], "faults", 1, 200.0) as load:
            load.wait_for_progress(60.0)
            load.flush()
            with pytest.raises(NotInTime, match=r"nothing new is acknowledged to penstock, partitions \[0\]"):
                load.wait_for_progress(0.0)
