"""The comparison of clusters: its rows and goals, its pictures, and how a failover is measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.faults.cluster import Cluster, Node, PartitionView, View
from benchmarks.faults.namespaces import Loopback
from benchmarks.faults.report import differences
from benchmarks.peers.rounds import Figures
from benchmarks.peers.servers import ServerFailed
from benchmarks.replication import command, failover, pictures
from benchmarks.replication.failover import SENDERS, Acknowledged, Failover, Fault, Sending, longest_s, measure
from benchmarks.replication.rounds import (
    DEEPEST,
    DEPTH,
    DEPTHS,
    ELECTION,
    EQUAL,
    FAILOVER_ROWS,
    FULL,
    LOADED,
    OURS,
    PRODUCE,
    QUICK,
    ROWS,
    SETUPS,
    SHIPPED,
    THEIRS,
    TRIP_P50,
    Contender,
    fail_over,
)
from benchmarks.results import in_turn

from benchmarks import results

_GAP = FAILOVER_ROWS[SHIPPED.name, Fault.KILLED, "confluent-kafka"]


def _some() -> Figures:
    figures = Figures()
    for name, trip_us, deep, gap in ((OURS, 300.0, 9000.0, 2.0), (THEIRS, 420.0, 2500.0, 12.1)):
        figures.add(TRIP_P50, name, trip_us)
        figures.add(DEPTH[1], name, 2000.0)
        figures.add(DEPTH[DEEPEST], name, deep)
        figures.add(_GAP, name, gap)
    figures.add(PRODUCE["1 KB"], OURS, 50.0)
    return figures


def _rows() -> dict[str, results.Row]:
    return {row.work: row for row in _some().rows(ROWS, (OURS, THEIRS), OURS, THEIRS)}


def test_a_row_has_the_ratio_of_ours_to_theirs_its_goal_and_whether_it_is_met() -> None:
    rows = _rows()
    deep = rows[DEPTH[DEEPEST].name]
    assert (deep.ratio(), deep.goal, deep.is_met) == (3.6, 3.0, True)
    assert rows[_GAP.name].is_met is True
    assert rows[TRIP_P50.name].ratio() == pytest.approx(0.714, abs=0.001)


def test_a_figure_that_only_one_cluster_has_is_shown_without_a_ratio_and_one_that_none_has_not_at_all() -> None:
    rows = _rows()
    alone = rows[PRODUCE["1 KB"].name]
    assert (set(alone.figures), alone.ratio(), alone.is_met) == ({OURS}, None, None)
    assert len(rows) == 5 < len(ROWS)


def test_the_goals_are_those_that_were_set() -> None:
    goals = {work.name: (work.bound, work.goal) for work in ROWS if work.goal is not None}
    assert goals == {
        "produce 100 B": ("≥", 1.0),
        "produce 1 KB": ("≥", 1.0),
        "round trip p50": ("≤", 1.0),
        "round trip p99": ("≤", 1.0),
        "CPU of the cluster per request, one at a time": ("≤", 0.5),
        "64 in flight": ("≥", 3.0),
        "CPU of the cluster per request, 64 in flight": ("≤", 0.5),
        "neither synced: round trip p50": ("≤", 0.6),
        "neither synced: round trip p99": ("≤", 0.6),
        "leader killed: longest gap of confluent-kafka": ("≤", 0.2),
    }


def test_a_leader_is_killed_frozen_and_cut_off_and_each_is_a_row_as_each_client_and_the_brokers_see_it() -> None:
    shipped = [work.name for work in ROWS if work.table == f"Failover, {SHIPPED.name}"]
    assert len(shipped) == len(Fault) * (len(SENDERS) + 1)
    for fault in ("leader killed", "leader frozen", "leader cut off"):
        assert f"{fault}: longest gap of confluent-kafka" in shipped
        assert f"{fault}: longest gap of our client" in shipped
        assert f"{fault}: until another broker leads" in shipped


def test_brokers_as_shipped_are_given_no_setting_and_equal_ones_have_the_same_session() -> None:
    for setup in (LOADED, SHIPPED):
        assert not any(setup.brokers.values())
    assert {tuple(given.values()) for given in EQUAL.brokers.values()} == {("6000",)}
    assert differences({"brokers": SHIPPED.brokers.get(OURS, {})}) == ["brokers: as shipped"]


def test_the_pictures_have_a_bar_a_ratio_and_a_line_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "KEPT", tmp_path)
    recording = results.Recording("replication", None, "make bench ARGS=replication", {})
    drawn = pictures(results.read(recording.keep(list(_rows().values()), is_shown=False)))
    assert len(ElementTree.fromstring(drawn["replication.svg"]).findall("{*}rect")) == 1 + 4
    lines = ElementTree.fromstring(drawn["replication-depth.svg"]).findall("{*}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 2]


# --- failovers


def test_a_gap_ends_after_the_kill_wherever_it_began() -> None:
    assert longest_s([0.0, 5.0, 5.1, 7.1, 7.2], since_s=5.2) == pytest.approx(2.0)
    assert longest_s([], since_s=1.0) == 0.0


class _Node(Node):
    def __init__(self, number: int, said: list[str], folder: Path) -> None:
        super().__init__(number, [], Loopback().place("x"), 1, folder)
        self._said_to = said

    def launch(self) -> None:
        self._said_to.append(f"launch {self.number}")

    def kill(self) -> None:
        self._said_to.append(f"kill {self.number}")

    def pause(self) -> None:
        self._said_to.append(f"pause {self.number}")

    def resume(self) -> None:
        self._said_to.append(f"resume {self.number}")

    def wait_until_up(self, timeout_s: float = 0.0) -> None:
        self._said_to.append(f"up {self.number}")


class _Cluster(Cluster):
    """Broker 1 is the controller. The others elect broker 1 as soon as the leader is away."""

    kind = "told"

    def __init__(self, folder: Path) -> None:
        super().__init__(Loopback(), folder)
        self.said: list[str] = []
        self.nodes = {number: _Node(number, self.said, folder) for number in (1, 2, 3)}

    def launch(self) -> None:
        raise NotImplementedError

    def settings(self) -> dict[str, Mapping[str, str]]:
        return {}

    def controller(self) -> int:
        return 1

    def make_topic(self, name: str, partitions: int, configs: Mapping[str, str], leader: int | None = None) -> None:
        self.said.append(f"leader {leader}")

    def is_whole(self, topics: Sequence[str]) -> bool:
        self.said.append("whole")
        return True


class _Sender:
    """Acknowledges at once."""

    def __init__(self, *_: object) -> None:
        self.error = ""

    def send(self, sent_s: float, done: Acknowledged) -> None:
        done(sent_s, self.error)
        time.sleep(0.001)

    def end(self, timeout_s: float) -> int:
        return 0


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Cluster:
    view = View(frozenset((1, 2, 3)), 1, {("t", 0): PartitionView(1, 1, (2, 1, 3), frozenset((1, 3)))})
    monkeypatch.setattr(failover, "view_of", lambda *_: view)
    monkeypatch.setattr(failover, "SENDERS", {"one": _Sender})
    for name in ("_BEFORE_S", "_AFTER_S"):
        monkeypatch.setattr(failover, name, 0.0)
    return _Cluster(tmp_path)


@pytest.mark.parametrize(
    ("fault", "turn", "wanted"),
    [
        (Fault.KILLED, 0, ["leader 2", "kill 2", "launch 2", "up 2", "whole"]),
        (Fault.FROZEN, 1, ["leader 3", "pause 3", "resume 3", "up 3", "whole"]),
    ],
)
def test_leader_that_fails_is_not_the_controller_and_comes_back(
    fault: Fault, turn: int, wanted: list[str], cluster: _Cluster
) -> None:
    found = measure(cluster, "t", fault, {}, turn)
    assert cluster.said == wanted
    assert set(found.gaps_s) == {"one"}
    assert found.elected_s >= 0


def test_the_controller_is_hit_only_where_the_row_says_so(cluster: _Cluster) -> None:
    assert failover._victim(cluster, Fault.KILLED_CONTROLLER, 0).number == 1
    assert {failover._victim(cluster, Fault.CUT, turn).number for turn in range(4)} == {2, 3}


def test_a_record_that_fails_ends_the_measurement(cluster: _Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = _Sender()
    sending = Sending("one", sender)
    sending._done(1.0, "")
    sending._done(2.0, "timed out")
    sending.start()
    with pytest.raises(ServerFailed, match=r"1 records of one were not delivered \['timed out'\]"):
        sending.end()
    assert sending.newest_sent_s >= 1.0
    unresolved = Sending("one", sender)
    monkeypatch.setattr(sender, "end", lambda _: 3)
    unresolved.start()
    with pytest.raises(ServerFailed, match="3 records of one"):
        unresolved.end()


def test_failovers_take_turns_and_every_figure_has_its_row(cluster: _Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Failover({"confluent-kafka": 1.0, "penstock": 2.0}, 0.5)
    monkeypatch.setattr(failover, "measure", lambda *_: seen)
    said: list[str] = []
    figures = Figures()
    contenders = [Contender(OURS, cluster, {}), Contender(THEIRS, cluster, {})]
    fail_over(figures, contenders, SHIPPED, [Fault.KILLED, Fault.CUT], 2, said.append)
    assert [OURS in text.split(",")[0] for text in said] == [True, False, True, False, False, True, False, True]
    assert figures.median(FAILOVER_ROWS[SHIPPED.name, Fault.CUT, ELECTION], THEIRS) == 0.5
    assert figures.median(FAILOVER_ROWS[SHIPPED.name, Fault.KILLED, "penstock"], OURS) == 2.0


def test_a_round_begins_with_another_cluster_each_time() -> None:
    assert [in_turn(["ours", "theirs"], number)[0] for number in range(3)] == ["ours", "theirs", "ours"]


def test_loads_are_of_every_size_and_depth_and_setups_have_names_of_their_own() -> None:
    for load in (FULL, QUICK):
        assert set(load.bulk_mb) == set(PRODUCE)
        assert load.pipelined > DEPTHS[-1]
    assert len({setup.name for setup in SETUPS}) == len(SETUPS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--only", "redpanda"], "penstock"), (["--rounds", "0"], "at least 1"), (["--parts", "none"], "failover")],
)
def test_impossible_run_is_rejected_before_anything_starts(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert said in capsys.readouterr().err
