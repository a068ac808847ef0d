"""Victims of faults, what is done to them, and that it is undone; the servers record their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from benchmarks.faults.cluster import Cluster, NoAnswer, Node, PartitionView, View, WaitTimedOut, until
from benchmarks.faults.injector import Fault, Injector, Kind, Load, Target
from benchmarks.faults.namespaces import Direction, LoopbackPlace, Place

TOPIC = "faults"


class _Network:
    can_cut = True

    def __init__(self, said: list[str]) -> None:
        self.names: dict[int, str] = {}
        self._said = said

    def place(self, name: str) -> LoopbackPlace:
        made = LoopbackPlace(set())
        self.names[id(made)] = name
        return made

    def cut(self, place: Place, others: Sequence[Place] | None, direction: Direction = Direction.BOTH) -> None:
        away = "all" if others is None else "+".join(self.names[id(other)] for other in others)
        self._said.append(f"{self.names[id(place)]} cut {direction.value} from {away}")

    def heal(self) -> None:
        self._said.append("heal")


class _Node(Node):
    """Records its calls."""

    def __init__(self, number: int, place: Place, said: list[str], folder: Path) -> None:
        super().__init__(number, [], place, 1, folder)
        self.said_so = said

    def launch(self) -> None:
        self.said_so.append(f"launch {self.number}")

    def kill(self) -> None:
        self.said_so.append(f"kill {self.number}")

    def pause(self) -> None:
        self.said_so.append(f"pause {self.number}")

    def resume(self) -> None:
        self.said_so.append(f"resume {self.number}")

    def fail_disk(self) -> None:
        self.said_so.append(f"fail a disk of {self.number}")

    def replace_disk(self) -> None:
        self.said_so.append(f"replace a disk of {self.number}")

    def stop(self) -> bool:
        self.said_so.append(f"stop {self.number}")
        return True


class _Keeper:
    name = "ZooKeeper 2"

    def __init__(self, place: Place, said: list[str]) -> None:
        self.place = place
        self._said = said

    def launch(self) -> None:
        self._said.append("launch ZooKeeper")

    def is_serving(self) -> bool:
        return True

    def kill(self) -> None:
        self._said.append("kill ZooKeeper")

    def pause(self) -> None:
        self._said.append("pause ZooKeeper")

    def resume(self) -> None:
        self._said.append("resume ZooKeeper")

    def cpu_s(self) -> float:
        return 0.0


class _Cluster(Cluster):
    """Broker 2 leads two partitions, broker 3 one, broker 1 none and is the controller."""

    kind = "told"

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        network = _Network(self.said)
        super().__init__(network, folder)
        self.nodes = {number: _Node(number, network.place(f"b{number}"), self.said, folder) for number in (1, 2, 3)}
        self._keeper = _Keeper(network.place("zk"), self.said)
        self.answers = True

    @property
    def keepers(self) -> Sequence[_Keeper]:
        return [self._keeper]

    def leading_keeper(self) -> _Keeper:
        return self._keeper

    def launch(self) -> None:
        raise NotImplementedError

    def settings(self) -> dict[str, Mapping[str, str]]:
        return {}

    def controller(self) -> int:
        return 1

    def view(self, topics: Sequence[str]) -> View:
        if not self.answers:
            raise NoAnswer("no broker answers")
        everybody = frozenset(self.nodes)
        leaders = enumerate((2, 3, 2))
        return View(everybody, 1, {(TOPIC, at): PartitionView(who, 0, (1, 2, 3), everybody) for at, who in leaders})

    def agreed(self, topics: Sequence[str]) -> View:
        return self.view(topics)


@pytest.mark.parametrize(
    ("kind", "target", "wanted"),
    [
        (Kind.KILL, Target.LEADER, ["kill 2", "launch 2"]),
        (Kind.PAUSE, Target.FOLLOWER, ["pause 1", "resume 1"]),
        (Kind.KILL, Target.CONTROLLER, ["kill 1", "launch 1"]),
        (Kind.KILL, Target.KEEPER, ["kill ZooKeeper", "launch ZooKeeper"]),
        (Kind.PAUSE, Target.KEEPER, ["pause ZooKeeper", "resume ZooKeeper"]),
        (Kind.CUT, Target.LEADER, ["b2 cut both from all", "heal"]),
        (Kind.CUT, Target.KEEPER, ["zk cut both from all", "heal"]),
        (Kind.CUT_PEERS, Target.LEADER, ["b2 cut both from b1+b3", "heal"]),
        (Kind.CUT_KEEPERS, Target.CONTROLLER, ["b1 cut both from zk", "heal"]),
        (Kind.MUTE, Target.LEADER, ["b2 cut out from b1+b3+zk", "heal"]),
        (Kind.DISK, Target.LEADER, ["fail a disk of 2", "replace a disk of 2"]),
        (Kind.KILL, Target.ALL, ["kill 1", "kill 2", "kill 3", "launch 1", "launch 2", "launch 3"]),
    ],
)
def test_a_fault_hits_its_target_and_is_undone(kind: Kind, target: Target, wanted: list[str], tmp_path: Path) -> None:
    cluster = _Cluster(tmp_path)
    happened = Injector(cluster, TOPIC, Load([]), lambda _: None).carry_out(Fault(1, kind, target, 0.0))
    assert cluster.said == wanted
    assert happened.began_s <= happened.undone_s <= happened.whole_s


def test_a_fault_records_the_partitions_that_its_victim_led(tmp_path: Path) -> None:
    injector = Injector(_Cluster(tmp_path), TOPIC, Load([]), lambda _: None)
    assert injector.carry_out(Fault(1, Kind.KILL, Target.LEADER, 0.0)).led == (0, 2)
    assert injector.carry_out(Fault(2, Kind.KILL, Target.FOLLOWER, 0.0)).led == ()
    assert injector.carry_out(Fault(3, Kind.KILL, Target.KEEPER, 0.0)).led == ()


class _Progress(Load):
    """Says when it was waited for."""

    def __init__(self, said: list[str]) -> None:
        super().__init__([])
        self._said = said

    def wait_for_progress(self, timeout_s: float) -> None:
        self._said.append("writes resume")


def test_a_fault_that_outlasts_the_failover_is_undone_only_when_writes_have_resumed(tmp_path: Path) -> None:
    cluster = _Cluster(tmp_path)
    injector = Injector(cluster, TOPIC, _Progress(cluster.said), lambda _: None, outlasts=True)
    injector.carry_out(Fault(1, Kind.CUT, Target.LEADER, 0.0))
    assert cluster.said == ["b2 cut both from all", "writes resume", "heal", "writes resume"]


def test_a_rolling_restart_asks_a_broker_to_end_and_begins_it_again(tmp_path: Path) -> None:
    cluster = _Cluster(tmp_path)
    happened = Injector(cluster, TOPIC, Load([]), lambda _: None).restart(1, cluster.nodes[3])
    assert cluster.said == ["stop 3", "launch 3"]
    assert (happened.victim, happened.led, happened.fault.kind) == ("broker 3", (1,), Kind.STOP)


def test_a_cluster_that_does_not_answer_is_described_as_far_as_it_is_known(tmp_path: Path) -> None:
    cluster = _Cluster(tmp_path)
    cluster.answers = False
    described = Injector(cluster, TOPIC, Load([]), lambda _: None).diagnosis()
    assert "broker 1 has ended" in described
    assert described.endswith("no broker answers")


def test_timeout_names_the_condition() -> None:
    with pytest.raises(WaitTimedOut, match="timed out after 0 s waiting until the moon is out"):
        until(lambda: False, "the moon is out", 0.0)
