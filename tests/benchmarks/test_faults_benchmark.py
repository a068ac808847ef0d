"""Runs of faults: their schedule, the gaps that they leave, the report, the servers, and the clients at work."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.faults import command, namespaces, pictures, report
from benchmarks.faults.access import PLAINTEXT, Access
from benchmarks.faults.checks import Stored, check_client, check_contents, committed, compare_replicas, contents, ends
from benchmarks.faults.clients import SENDERS, SETTINGS, Done, group_of
from benchmarks.faults.cluster import (
    NoAnswer,
    Node,
    PartitionView,
    View,
    WaitTimedOut,
    answers,
    settings_without,
    until,
)
from benchmarks.faults.injector import Fault, InjectedFault, Kind, Target, deck, loaded, schedule
from benchmarks.faults.load import Acked, ClientError, Event, Failed, Journal, Read, Sending, Sent, Tail
from benchmarks.faults.namespaces import Loopback, LoopbackPlace, NoNamespaces
from benchmarks.faults.penstock_cluster import PROMPT, PROMPT_TICK_MS, PenstockCluster
from benchmarks.faults.report import ALL, per_second, verdict
from benchmarks.faults.run import Outcome, Plan, gaps, longest, summary
from benchmarks.peers.servers import ServerFailed
from tests.demands import lacking

from benchmarks import results
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


def test_deck_has_no_cuts_and_no_zookeeper_faults_where_they_are_impossible() -> None:
    faults = schedule(1, 100, deck(can_cut=False, has_keepers=False, is_rough=False))
    assert {fault.kind for fault in faults} == {Kind.KILL, Kind.PAUSE}
    assert not {Target.KEEPER, Target.ALL} & {fault.target for fault in faults}


def test_all_brokers_at_once_are_hit_only_in_a_rough_run() -> None:
    rough = deck(can_cut=True, has_keepers=True, is_rough=True)
    assert (Kind.KILL, Target.ALL) in rough
    assert (Kind.KILL, Target.ALL) not in deck(can_cut=True, has_keepers=True, is_rough=False)


# --- gaps


def _killed(began_s: float, whole_s: float, led: tuple[int, ...], number: int = 1) -> InjectedFault:
    return InjectedFault(Fault(number, Kind.KILL, Target.LEADER, 1.0), "broker 1", led, began_s, began_s + 1, whole_s)


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


_SETTINGS = {"brokers": {"a.ms": "5", "b": "x"}, "ZooKeepers": {}}


def _outcome(plan: Plan, events: list[Event], replica_findings: tuple[str, ...] = ()) -> Outcome:
    happened = [_killed(2.0, 5.0, (0,))]
    return Outcome(
        plan=plan, kind="penstock", happened=happened, contents=check_contents(_TWO),
        clients={"one": check_client(events, _TWO)}, gaps=gaps(happened, {"one": events}),
        replica_findings=replica_findings, acked_s={"one": [1.0, 4.0]}, began_s=0.0, ended_s=6.0, records=2,
        settings=_SETTINGS,
    )  # fmt: skip


def _delivered(number: int, offset: int, acked_s: float = 1.0) -> list[Event]:
    return [Sent(0, number, "a.0", acked_s), _acked(number, offset, acked_s)]


_GOOD: list[Event] = [
    *_delivered(0, 0, 1.0),
    *_delivered(1, 1, 4.0),
    *(Read(0, 0, offset, "a.0", offset, 1.0) for offset in (0, 1)),
]


def _rows(outcome: Outcome) -> dict[str, results.Row]:
    return {row.work: row for row in report.rows(outcome)}


def test_a_run_in_which_nothing_is_wrong_has_passed() -> None:
    outcome = _outcome(Plan(faults=1), _GOOD)
    assert verdict(outcome).startswith("PASSED: 1 faults, 2 acknowledged records, none lost")
    rows = _rows(outcome)
    death = rows["leader killed, p99"]
    assert death.figures["one"] == death.figures[ALL] == results.Figure(3.0, (3.0,))
    assert (death.goal, death.is_met) == (report.GOAL_S, False)
    assert rows["records handed over"].figures[ALL].value == 2
    assert rows["never resolved"].is_met is True


@pytest.mark.parametrize(
    ("event", "said", "work"),
    [
        ([Sent(0, 7, "a.0", 1.0)], "1 never resolved", "never resolved"),
        (_delivered(7, 7), "1 acknowledged, then lost", "findings"),
    ],
)
def test_a_send_without_an_outcome_and_a_lost_record_are_a_failure_that_is_named(
    event: list[Event], said: str, work: str
) -> None:
    outcome = _outcome(Plan(), [*_GOOD, *event])
    assert not outcome.is_good
    assert verdict(outcome) == f"FAILED: {said}"
    assert _rows(outcome)[work].is_met is False


def test_a_finding_in_the_files_of_replicas_is_a_failure() -> None:
    outcome = _outcome(Plan(), _GOOD, ("faults-0: broker 2 has no folder",))
    assert not outcome.is_good
    assert verdict(outcome) == "FAILED: 1 findings in the replicas' files"
    assert _rows(outcome)["findings in the replicas' files"].is_met is False


def test_a_failed_send_and_an_error_to_a_reader_fail_a_rolling_restart_only() -> None:
    events: list[Event] = [
        *_GOOD,
        Sent(0, 9, "a.0", 1.0),
        Failed(0, 9, "a.0", 1.0, 2.0, "no"),
        ClientError(0, 1.0, "no"),
    ]
    assert _outcome(Plan(), events).is_good
    assert verdict(_outcome(Plan(rolling_rounds=1), events)) == "FAILED: 1 failed sends, 1 errors told to readers"


def test_the_report_says_what_differs_from_what_is_shipped_and_what_a_kill_leaves() -> None:
    said = report.notes(_outcome(Plan(), _GOOD))
    assert "brokers: as shipped but for a.ms=5, b=x" in said
    assert "ZooKeepers: as shipped" in said
    assert any("SIGKILL" in note and "page cache" in note for note in said)


def test_the_result_is_kept_and_its_timeline_has_a_panel_a_client_and_a_band_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "KEPT", tmp_path)
    outcome = _outcome(Plan(), _GOOD)
    kept = results.Recording("faults", None, "make bench ARGS=faults", {}).keep(
        report.rows(outcome), notes=report.notes(outcome), details=report.details(outcome), is_shown=False
    )
    drawn = pictures(results.read(kept))
    root = ElementTree.fromstring(drawn["faults.svg"])
    assert len(root.findall("{*}polyline")) == 1
    assert len(root.findall("{*}rect/{*}title")) == 2, "one until its end, one until all was well"
    texts = [text.text or "" for text in root.findall("{*}text")]
    assert texts.count("L") == 1, "who was hit"
    assert any("who was hit: L leader" in text for text in texts)
    assert per_second([0.1, 0.2, 2.5, 3.2, 7.0], 0.0, 3.4) == [2, 0, 1], "the second that is not over does not count"


# --- servers and places


def test_stopped_broker_gives_no_answer() -> None:
    place = Loopback().place("nobody")
    with pytest.raises(NoAnswer):
        answers(place.address, place.ports(1)[0])


def test_a_broker_that_exits_at_once_is_reported_with_its_last_output(tmp_path: Path) -> None:
    place = LoopbackPlace(set())
    node = Node(1, [sys.executable, "-c", "raise SystemExit('no disk')"], place, place.ports(1)[0], tmp_path)
    node.launch()
    with pytest.raises(ServerFailed, match=r"broker 1 is not up.*no disk"):
        node.wait_until_up()
    assert node.stop(), "again is harmless"


def test_a_disk_of_a_node_is_taken_away_and_an_empty_one_put_in_its_place(tmp_path: Path) -> None:
    disks = [tmp_path / "data", tmp_path / "data-2"]
    command = [sys.executable, "-c", "__import__('signal').pause()"]
    node = Node(1, command, LoopbackPlace(set()), 1, tmp_path, disks=disks)
    (disks[0] / "t-0").mkdir(parents=True)
    (disks[1] / "t-1").mkdir(parents=True)
    assert node.on_failing_disk("t") == {1}
    assert (node.replica_folder("t-0"), node.replica_folder("t-1")) == (disks[0] / "t-0", disks[1] / "t-1")
    node.launch()
    node.fail_disk()
    assert disks[1].is_file()
    assert node.is_running
    node.replace_disk()
    assert node.is_running
    assert not list(tmp_path.glob("data-2*")), "the broker makes the folder"
    assert (disks[0] / "t-0").is_dir()
    node.kill()


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


def test_a_cluster_is_whole_when_all_brokers_are_there_and_in_sync_and_every_partition_has_a_leader() -> None:
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


def _replicas(folder: Path, **logs: dict[int, str]) -> dict[int, Path]:
    """Folders of replicas, by broker; each with segments by their base offset."""
    folders = {}
    for number, files in enumerate(logs.values(), 1):
        folders[number] = folder / f"{number}"
        folders[number].mkdir()
        for base, data in files.items():
            (folders[number] / f"{base:020}.log").write_text(data)
    return folders


def test_replicas_are_the_same_wherever_their_segments_end(tmp_path: Path) -> None:
    folders = _replicas(tmp_path, one={0: "abcd"}, two={0: "ab", 2: "cd"}, three={0: "abce"})
    assert compare_replicas({number: folders[number] for number in (1, 2)}, has_records=True) == []
    assert compare_replicas(folders, has_records=True) == ["brokers 1, 2, 3 have different logs"]


def test_a_replica_without_its_folder_is_found_and_so_is_one_without_a_log(tmp_path: Path) -> None:
    folders = _replicas(tmp_path, one={0: "abcd"}, two={0: "abcd"}, three={0: "abcd"})
    assert compare_replicas(folders, has_records=True) == []
    shutil.rmtree(folders[2])
    assert compare_replicas(folders, has_records=True) == ["broker 2 has no folder"]
    (folders[3] / f"{0:020}.log").write_text("")
    assert compare_replicas(folders, has_records=True) == ["broker 2 has no folder", "broker 3 has no log"]


def test_folders_that_are_all_missing_are_not_alike_nor_are_no_replicas_at_all(tmp_path: Path) -> None:
    missing = {number: tmp_path / f"{number}" for number in (1, 2)}
    assert compare_replicas(missing, has_records=True) == ["broker 1 has no folder", "broker 2 has no folder"]
    assert compare_replicas({}, has_records=True) == ["no replicas"]
    folders = _replicas(tmp_path, one={0: ""}, two={0: ""})
    assert compare_replicas(folders, has_records=True) == ["broker 1 has no log", "broker 2 has no log"]
    assert compare_replicas(folders, has_records=False) == [], "nothing was written"


# --- what differs from what is shipped


def test_the_settings_of_our_cluster_are_read_from_its_command_lines(tmp_path: Path) -> None:
    cluster = PenstockCluster(Loopback(), tmp_path / "prompt")
    assert cluster.settings() == {"brokers": dict(PROMPT), "ZooKeepers": {"tick_ms": str(PROMPT_TICK_MS)}}
    for name, value in PROMPT.items():
        assert f"{name}={value}" in cluster.nodes[3].command
    shipped = PenstockCluster(Loopback(), tmp_path / "shipped", {}, None)
    assert shipped.settings() == {"brokers": {}, "ZooKeepers": {}}


def test_a_setting_that_is_left_out_by_name_must_be_set() -> None:
    assert settings_without({"node.id": "1", "a": "b"}, ("node.id",)) == {"a": "b"}
    with pytest.raises(ServerFailed, match=r"broker\.id is not set"):
        settings_without({"node.id": "1"}, ("node.id", "broker.id"))


def test_every_client_has_its_settings_listed_for_both_roles() -> None:
    assert {client: sorted(roles) for client, roles in SETTINGS.items()} == {
        client: ["consumer", "producer"] for client in SENDERS
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["--faults", "0"],
        ["--rate", "0"],
        ["--clients"],
        ["--kind", "other"],
        ["--only", "cut:moon"],
        ["--only", "disk:leader"],
        ["--disks", "--kind", "kafka"],
        ["--disks", "--rolling", "1"],
    ],
)
def test_impossible_run_is_rejected_before_anything_starts(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert "error" in capsys.readouterr().err


_CUTTING = """
import socket, time
from benchmarks.faults.namespaces import Direction, Namespaces
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
said = reaches(two, 120)
for others, direction in ((None, Direction.BOTH), ([two], Direction.OUT), ([two], Direction.BOTH)):
    network.cut(one, others, direction)
    said += reaches(two, 0.6)
    network.heal()
    said += reaches(two, 120)
print(said)
"""


@pytest.mark.long
def test_a_place_that_is_cut_off_is_not_reached_until_it_is_healed() -> None:
    try:
        run = namespaces.in_a_namespace([sys.executable, "-c", _CUTTING])
    except NoNamespaces as error:
        lacking("namespaces", str(error))
    done = subprocess.run(run, env=namespaces.inside(), capture_output=True, text=True, timeout=290)
    assert done.stdout.strip() == "+-+-+-+", done.stderr


_HOSTS = """
import shutil, subprocess
from benchmarks.faults.namespaces import Direction, Hosts
plain = Hosts()
one, two = plain.place("penstock-1"), plain.place("penstock-2")
print(one is plain.place("zookeeper-1"), one is two)
for direction in Direction:
    plain.cut(one, [two, plain.place("zookeeper-1"), plain.place("zookeeper-2")], direction)
    with one.enter():
        routes = subprocess.run("ip route show type blackhole".split(), capture_output=True, text=True)
        print(routes.stdout.split())
    plain.heal()
print(plain.describe())
for link in ("faults", "h0", "h1"):
    subprocess.run(["ip", "link", "del", link], check=True)
network = Hosts(1.0, 0.1)
network.place("penstock-3")
added = subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True).stdout if shutil.which("tc") else ""
print("netem" in added, network.describe())
"""


def test_servers_with_one_number_share_a_host_and_a_run_says_whether_it_could_add_latency() -> None:
    try:
        run = namespaces.in_a_namespace([sys.executable, "-c", _HOSTS])
    except NoNamespaces as error:
        lacking("namespaces", str(error))
    done = subprocess.run(run, env=namespaces.inside(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    shared, both, out, plain, shaped = done.stdout.splitlines()
    assert shared == "True False"
    assert both == out == "['blackhole', '10.77.0.12']", "the other host, once, and not its own"
    assert plain == "Each host is a network namespace, without added latency or loss."
    if shaped.startswith("True "):
        assert "netem delay 1.0ms loss 0.1%" in shaped
    else:
        assert "without added latency or loss: `tc" in shaped


# --- access


def test_a_login_is_in_the_words_of_each_client_and_is_kept_in_a_private_file(tmp_path: Path) -> None:
    access = Access("alice", "secret", "ca.pem")
    assert access.options("confluent-kafka")["ssl.ca.location"] == "ca.pem"
    assert access.options("kafka-python")["ssl_cafile"] == "ca.pem"
    assert access.options("penstock")["ssl_truststore_location"] == "ca.pem"
    assert all(PLAINTEXT.options(client) == {} for client in SENDERS)
    assert "secret" not in repr(access)
    access.save(tmp_path / "login")
    assert Access.load(tmp_path / "login") == access
    assert (tmp_path / "login").stat().st_mode & 0o077 == 0


def test_only_our_cluster_is_run_secure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--kind", "kafka", "--secure"])
    assert "--secure needs --kind penstock" in capsys.readouterr().err


# --- the clients at work


@pytest.mark.parametrize("client", SENDERS)
def test_a_client_at_work_is_acknowledged_reads_all_and_is_judged_good(client: str, tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("faults", partitions=2)
        reading = {"bootstrap.servers": broker.address}
        with loaded({client: PLAINTEXT}, tmp_path, [broker.address], "faults", 2, 200.0) as load:
            load.wait_for_progress(60.0)
            load.flush()
            wanted = ends(reading, "faults", 2)
            assert load.wait_until_read(wanted, 60.0) == []
            load.end()
            events = load.workers[0].events
        stored = contents(reading, "faults", 2)
        kept = committed(reading, group_of(client), "faults", 2)
    assert {partition: len(records) for partition, records in stored.items()} == wanted
    assert check_contents(stored).is_good
    found = check_client(events, stored, kept)
    assert (found.wrong, found.failed, sum(found.errors.values())) == ({}, 0, 0)
    assert found.handed_over == found.acked == sum(wanted.values()) > 0
    assert found.starts >= 2
    assert found.commits > 0


class _Swallowing:
    """Takes records and reports on every second one only; its close fails, as a flush that times out does."""

    is_broken = False

    def __init__(self, *_: object) -> None:
        self._count = 0

    def send(self, partition: int, value: bytes, done: Done) -> None:
        self._count += 1
        if self._count % 2:
            done(-1, "refused")

    def serve(self) -> None:
        pass

    def close(self) -> None:
        raise TimeoutError("records are left")


def test_records_that_a_client_swallows_are_in_the_journal_and_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SENDERS, "swallowing", _Swallowing)
    journal, tail = Journal(tmp_path / "j"), Tail(tmp_path / "j")
    sending = Sending("swallowing", journal, [], "faults", PLAINTEXT, 1, 500.0)
    sending.start()
    until(lambda: sending._next[0] >= 4, "it has sent some", 30.0)
    sending.end()
    journal.close()
    found = check_client(tail.more(), {})
    assert found.handed_over == found.failed + found.unresolved
    assert found.wrong == {"never resolved": found.handed_over // 2}
    assert list(found.errors) == ["swallowing.0 at close: TimeoutError: records are left"]


def test_clients_that_cannot_continue_are_named_with_their_partitions(tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("faults", partitions=1)
        with loaded({"penstock": PLAINTEXT}, tmp_path, [broker.address], "faults", 1, 200.0) as load:
            load.wait_for_progress(60.0)
            load.flush()
            with pytest.raises(WaitTimedOut, match=r"nothing new is acknowledged to penstock, partitions \[0\]"):
                load.wait_for_progress(0.0)
