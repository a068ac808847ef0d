"""Faults carried out: which server is hit, what is done, when it is undone, and when the cluster had recovered.

A fault begins only when the cluster is whole: every replica in sync, every server there, every client getting
acknowledgements in every partition. So no fault takes a second of three replicas, unless the run is a rough one. A
fault lasts for as long as the schedule says or, if it is to outlast the failover, until every client is acknowledged
again in every partition while the fault is still on.

SIGKILL ends a process and leaves the page cache: what the process wrote is there when it comes back, synced or not.
A loss of power is not tested here but in the simulator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.faults.asking import NoAnswer
from benchmarks.faults.clusters import OFFSETS_TOPIC, Cluster, Keeper, NotInTime, until
from benchmarks.faults.nodes import Node
from benchmarks.faults.places import Direction
from benchmarks.faults.schedule import Fault, Kind, Target
from benchmarks.faults.workers import Load
from benchmarks.peers.servers import ServerFailed

_RECOVERY_S: Final = 120.0
_PROGRESS_S: Final = 90.0
_FOUND_S: Final = 30.0
_ROUGH_PAUSE_S: Final = 1.0
_AGAIN_S: Final = 0.1
_ROLLED_HOLD_S: Final = 0.5

Say = Callable[[str], None]


@dataclass(frozen=True)
class Happened:
    """A fault that was: `led` are the partitions of the topic that its victim led; moments by the monotonic clock."""

    fault: Fault
    victim: str
    led: tuple[int, ...]
    began_s: float
    undone_s: float
    whole_s: float


class Injector:
    def __init__(
        self, cluster: Cluster, topic: str, load: Load, say: Say, *, is_rough: bool = False, outlasts: bool = False
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._load = load
        self._say = say
        self._is_rough = is_rough
        self._outlasts = outlasts

    def carry_out(self, fault: Fault) -> Happened:
        """NotInTime if the cluster does not recover."""
        victims, led = self._victims(fault)
        names = " and ".join(f"broker {each.number}" if isinstance(each, Node) else each.name for each in victims)
        began_s = time.monotonic()
        for victim in victims:
            self._begin(fault.kind, victim)
        if self._outlasts:
            self._wait_for_progress()
        else:
            time.sleep(fault.hold_s)
        for victim in victims:
            self._undo(fault.kind, victim)
        undone_s = time.monotonic()
        if self._is_rough:
            time.sleep(_ROUGH_PAUSE_S)
        else:
            self.wait_until_whole()
        happened = Happened(fault, names, led, began_s, undone_s, time.monotonic())
        recovery = "" if self._is_rough else f"; whole {happened.whole_s - undone_s:.1f} s after its end"
        self._say(f"fault {fault.number}: {fault}, {names}{recovery}")
        return happened

    def restart(self, number: int, node: Node) -> Happened:
        """One broker of a rolling restart: it is asked to end, ends, and comes back."""
        fault = Fault(number, Kind.STOP, Target.LEADER, _ROLLED_HOLD_S)
        led = self._led_by(node)
        began_s = time.monotonic()
        if not node.stop():
            raise ServerFailed(f"broker {node.number} did not end when asked to: {node.said()}")
        stopped_s = time.monotonic()
        node.launch()
        undone_s = time.monotonic()
        self.wait_until_whole()
        happened = Happened(fault, f"broker {node.number}", led, began_s, undone_s, time.monotonic())
        self._say(f"broker {node.number} restarted: ended in {stopped_s - began_s:.1f} s, whole again after "
                  f"{happened.whole_s - began_s:.1f} s")  # fmt: skip
        return happened

    def wait_until_whole(self) -> None:
        """Every replica in sync as every broker says, and every client making progress. NotInTime."""
        try:
            until(
                lambda: self._cluster.is_whole([self._topic, OFFSETS_TOPIC]),
                "all brokers say that all replicas are in sync",
                _RECOVERY_S,
            )
        except NotInTime as error:
            raise NotInTime(f"{error}\n{self.diagnosis()}") from None
        self._wait_for_progress()

    def _wait_for_progress(self) -> None:
        try:
            self._load.wait_for_progress(_PROGRESS_S)
        except NotInTime as error:
            raise NotInTime(f"{error}\n{self.diagnosis()}") from None

    def diagnosis(self) -> str:
        """What each broker believes, and the end of what it said."""
        lines = []
        for node in self._cluster.nodes.values():
            state = "runs" if node.is_running else "has ended"
            lines.append(f"broker {node.number} {state}; it said: ... {node.said()[-600:]}")
        try:
            view = self._cluster.view([self._topic])
            lines.append(f"brokers {sorted(view.brokers)}, controller {view.controller}")
            lines += [f"{key[0]}-{key[1]}: {one}" for key, one in view.partitions.items()]
        except NoAnswer as error:
            lines.append(str(error))
        return "\n".join(lines)

    # --- who is hit

    def _victims(self, fault: Fault) -> tuple[Sequence[Node | Keeper], tuple[int, ...]]:
        """NotInTime if it cannot be found out."""
        deadline = time.monotonic() + _FOUND_S
        while True:
            try:
                found = self._find(fault)
                break
            except NoAnswer as error:
                if time.monotonic() > deadline:
                    raise NotInTime(f"there is no {fault.target.value}: {error}\n{self.diagnosis()}") from None
                time.sleep(_AGAIN_S)
        led = [partition for node in found if isinstance(node, Node) for partition in self._led_by(node)]
        return found, tuple(sorted(led))

    def _find(self, fault: Fault) -> Sequence[Node | Keeper]:
        nodes = self._cluster.nodes
        if fault.target is Target.ALL:
            return list(nodes.values())
        if fault.target is Target.KEEPER:
            return [self._cluster.leading_keeper()]
        if fault.target is Target.CONTROLLER:
            return [nodes[self._cluster.controller()]]
        view = self._cluster.view([self._topic])
        # Among equals another one each time.
        numbers = sorted(nodes, key=lambda number: (len(view.led_by(number)), (number + fault.number) % len(nodes)))
        return [nodes[numbers[-1 if fault.target is Target.LEADER else 0]]]

    def _led_by(self, node: Node) -> tuple[int, ...]:
        try:
            return tuple(sorted(index for _, index in self._cluster.view([self._topic]).led_by(node.number)))
        except NoAnswer:
            return ()

    # --- what is done

    def _begin(self, kind: Kind, victim: Node | Keeper) -> None:
        network, nodes = self._cluster.network, self._cluster.nodes.values()
        peers = [node.place for node in nodes if node is not victim]
        keepers = [keeper.place for keeper in self._cluster.keepers]
        if kind is Kind.KILL:
            victim.kill()
        elif kind is Kind.PAUSE:
            victim.pause()
        elif kind is Kind.CUT:
            network.cut(victim.place, None)
        elif kind is Kind.CUT_PEERS:
            network.cut(victim.place, peers)
        elif kind is Kind.CUT_KEEPERS:
            network.cut(victim.place, keepers)
        elif kind is Kind.MUTE:
            network.cut(victim.place, [*peers, *keepers], Direction.OUT)

    def _undo(self, kind: Kind, victim: Node | Keeper) -> None:
        if kind is Kind.KILL:
            victim.launch()
        elif kind is Kind.PAUSE:
            victim.resume()
        else:
            self._cluster.network.heal()
