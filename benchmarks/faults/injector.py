"""Faults: chosen by a seed, carried out on a cluster under load.

Faults come from shuffled decks in which each pair of kind and target has its place, so that a run of any length has
all of them about equally often; a leader's death has three places. The same seed and cluster give the same faults.

A fault begins only when every replica is in sync, every server is up, and every client gets acknowledgements in every
partition, so no fault takes a second of three replicas, unless the run is a rough one. SIGKILL leaves the page cache:
a loss of power is tested in the simulator.
"""

from __future__ import annotations

import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from benchmarks.faults.access import Access
from benchmarks.faults.clients import CLOSE_S, FLUSH_S
from benchmarks.faults.cluster import (
    OFFSETS_TOPIC,
    Cluster,
    MetadataServer,
    NoAnswer,
    Node,
    WaitTimedOut,
    dies_with_parent,
    until,
)
from benchmarks.faults.load import END, FLUSH, READY, Acked, Event, Read, Tail
from benchmarks.faults.namespaces import Direction
from benchmarks.peers.servers import ServerFailed

# The shortest end before a broker notices; the longest outlast every session.
_SHORTEST_S, _LONGEST_S = 0.5, 6.0
_READY_S: Final = 60.0
_FLUSH_S: Final = FLUSH_S + CLOSE_S + 20
_END_S: Final = 60.0
_RETRY_S: Final = 0.1
_MEMBERS: Final = 2
_ROOT: Final = Path(__file__).resolve().parents[2]
_WORKER: Final = "import sys; from benchmarks.faults.load import main; main(sys.argv[1:])"
_RECOVERY_S: Final = 120.0
_PROGRESS_S: Final = 90.0
_FOUND_S: Final = 30.0
_ROUGH_PAUSE_S: Final = 1.0
_ROLLED_HOLD_S: Final = 0.5

# ---------------------------------------------------------------------------------------------- the schedule


class Kind(Enum):
    KILL = "killed"
    PAUSE = "paused"
    CUT = "cut off"
    CUT_PEERS = "cut off from the brokers"
    CUT_KEEPERS = "cut off from ZooKeeper"
    MUTE = "not heard by the others"
    STOP = "restarted"
    DISK = "with a failed disk"


class Target(Enum):
    LEADER = "leader"
    FOLLOWER = "follower"
    CONTROLLER = "controller"
    KEEPER = "ZooKeeper's leader"
    ALL = "all brokers"


Pair = tuple[Kind, Target]
_SIGNALS: Final[tuple[Pair, ...]] = (
    (Kind.KILL, Target.LEADER),
    (Kind.KILL, Target.LEADER),
    (Kind.KILL, Target.LEADER),
    (Kind.KILL, Target.FOLLOWER),
    (Kind.KILL, Target.CONTROLLER),
    (Kind.PAUSE, Target.LEADER),
    (Kind.PAUSE, Target.FOLLOWER),
    (Kind.PAUSE, Target.CONTROLLER),
)
_CUTS: Final[tuple[Pair, ...]] = (
    (Kind.CUT, Target.LEADER),
    (Kind.CUT, Target.FOLLOWER),
    (Kind.CUT, Target.CONTROLLER),
    (Kind.CUT_PEERS, Target.LEADER),
    (Kind.MUTE, Target.LEADER),
)
_KEEPERS: Final[tuple[Pair, ...]] = ((Kind.KILL, Target.KEEPER), (Kind.PAUSE, Target.KEEPER))
_KEEPER_CUTS: Final[tuple[Pair, ...]] = (
    (Kind.CUT, Target.KEEPER),
    (Kind.CUT_KEEPERS, Target.LEADER),
    (Kind.CUT_KEEPERS, Target.CONTROLLER),
)
DISKS: Final[tuple[Pair, ...]] = (
    (Kind.DISK, Target.LEADER),
    (Kind.DISK, Target.FOLLOWER),
    (Kind.DISK, Target.CONTROLLER),
)
"""For brokers with several disks."""
_ROUGH: Final[tuple[Pair, ...]] = ((Kind.KILL, Target.ALL), (Kind.PAUSE, Target.ALL))


@dataclass(frozen=True)
class Fault:
    number: int
    kind: Kind
    target: Target
    hold_s: float

    def __str__(self) -> str:
        return f"{self.target.value} {self.kind.value} for {self.hold_s:.1f} s"


def deck(*, can_cut: bool, has_keepers: bool, is_rough: bool) -> tuple[Pair, ...]:
    """The faults that are possible in such a cluster."""
    return (
        *_SIGNALS,
        *(_CUTS if can_cut else ()),
        *(_KEEPERS if has_keepers else ()),
        *(_KEEPER_CUTS if has_keepers and can_cut else ()),
        *(_ROUGH if is_rough else ()),
    )


def schedule(seed: int, count: int, pairs: tuple[Pair, ...]) -> list[Fault]:
    rng = random.Random(seed)
    faults: list[Fault] = []
    while len(faults) < count:
        shuffled = list(pairs)
        rng.shuffle(shuffled)
        for kind, target in shuffled[: count - len(faults)]:
            hold_s = round(rng.uniform(_SHORTEST_S, _LONGEST_S), 1)
            faults.append(Fault(len(faults) + 1, kind, target, hold_s))
    return faults


# ---------------------------------------------------------------------------------------------- carrying out faults


Say = Callable[[str], None]


@dataclass(frozen=True)
class InjectedFault:
    """A fault that was carried out. `led` are the partitions that its victim led; times are monotonic."""

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

    def carry_out(self, fault: Fault) -> InjectedFault:
        """Injects a fault and waits for recovery. Raises WaitTimedOut if the cluster does not recover."""
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
        happened = InjectedFault(fault, names, led, began_s, undone_s, time.monotonic())
        recovery = "" if self._is_rough else f"; whole {happened.whole_s - undone_s:.1f} s after its end"
        self._say(f"fault {fault.number}: {fault}, {names}{recovery}")
        return happened

    def restart(self, number: int, node: Node) -> InjectedFault:
        """One broker of a rolling restart: stops it and starts it again."""
        fault = Fault(number, Kind.STOP, Target.LEADER, _ROLLED_HOLD_S)
        led = self._led_by(node)
        began_s = time.monotonic()
        if not node.stop():
            raise ServerFailed(f"broker {node.number} did not stop: {node.output_tail()}")
        stopped_s = time.monotonic()
        node.launch()
        undone_s = time.monotonic()
        self.wait_until_whole()
        happened = InjectedFault(fault, f"broker {node.number}", led, began_s, undone_s, time.monotonic())
        self._say(f"broker {node.number} restarted: ended in {stopped_s - began_s:.1f} s, whole again after "
                  f"{happened.whole_s - began_s:.1f} s")  # fmt: skip
        return happened

    def wait_until_whole(self) -> None:
        """Waits until every broker sees all replicas in sync and every client makes progress. Raises WaitTimedOut."""
        try:
            until(
                lambda: self._cluster.is_whole([self._topic, OFFSETS_TOPIC]),
                "all brokers see all replicas in sync",
                _RECOVERY_S,
            )
        except WaitTimedOut as error:
            raise WaitTimedOut(f"{error}\n{self.diagnosis()}") from None
        self._wait_for_progress()

    def _wait_for_progress(self) -> None:
        try:
            self._load.wait_for_progress(_PROGRESS_S)
        except WaitTimedOut as error:
            raise WaitTimedOut(f"{error}\n{self.diagnosis()}") from None

    def diagnosis(self) -> str:
        """The view and the last output of each broker."""
        lines = []
        for node in self._cluster.nodes.values():
            state = "runs" if node.is_running else "has ended"
            lines.append(f"broker {node.number} {state}; output: ... {node.output_tail()[-600:]}")
        try:
            view = self._cluster.view([self._topic])
            lines.append(f"brokers {sorted(view.brokers)}, controller {view.controller}")
            lines += [f"{key[0]}-{key[1]}: {one}" for key, one in view.partitions.items()]
        except NoAnswer as error:
            lines.append(str(error))
        return "\n".join(lines)

    # --- victims

    def _victims(self, fault: Fault) -> tuple[Sequence[Node | MetadataServer], tuple[int, ...]]:
        """The victims of a fault, and the partitions they lead. Raises WaitTimedOut."""
        deadline = time.monotonic() + _FOUND_S
        while True:
            try:
                found = self._find(fault)
                break
            except NoAnswer as error:
                if time.monotonic() > deadline:
                    raise WaitTimedOut(f"no {fault.target.value} found: {error}\n{self.diagnosis()}") from None
                time.sleep(_RETRY_S)
        led = [partition for node in found if isinstance(node, Node) for partition in self._led_by(node)]
        if fault.kind is Kind.DISK:
            lost = {each for node in found if isinstance(node, Node) for each in node.on_failing_disk(self._topic)}
            led = [partition for partition in led if partition in lost]
        return found, tuple(sorted(led))

    def _find(self, fault: Fault) -> Sequence[Node | MetadataServer]:
        nodes = self._cluster.nodes
        if fault.target is Target.ALL:
            return list(nodes.values())
        if fault.target is Target.KEEPER:
            return [self._cluster.leading_keeper()]
        if fault.target is Target.CONTROLLER:
            return [nodes[self._cluster.controller()]]
        view = self._cluster.view([self._topic])
        # Alternate among equals.
        numbers = sorted(nodes, key=lambda number: (len(view.led_by(number)), (number + fault.number) % len(nodes)))
        return [nodes[numbers[-1 if fault.target is Target.LEADER else 0]]]

    def _led_by(self, node: Node) -> tuple[int, ...]:
        try:
            return tuple(sorted(index for _, index in self._cluster.view([self._topic]).led_by(node.number)))
        except NoAnswer:
            return ()

    # --- faults

    def _fail_disk(self, node: Node) -> None:
        """Fails a disk and waits until its replicas have left their ISRs. The broker stays. Raises ServerFailed."""
        lost = node.on_failing_disk(self._topic)
        node.fail_disk()

        def is_noticed() -> bool:
            if not node.is_running:
                raise ServerFailed(f"broker {node.number} left when one of its disks failed: {node.output_tail()}")
            try:
                view = node.view([self._topic])
            except NoAnswer:
                return False
            return not any(node.number in view.partitions[self._topic, partition].insync for partition in lost)

        if lost:
            until(is_noticed, f"the replicas on the disk of broker {node.number} have left their ISRs", _RECOVERY_S)

    def _begin(self, kind: Kind, victim: Node | MetadataServer) -> None:
        network, nodes = self._cluster.network, self._cluster.nodes.values()
        peers = [node.place for node in nodes if node is not victim]
        keepers = [keeper.place for keeper in self._cluster.keepers]
        if kind is Kind.KILL:
            victim.kill()
        elif kind is Kind.PAUSE:
            victim.pause()
        elif kind is Kind.DISK and isinstance(victim, Node):
            self._fail_disk(victim)
        elif kind is Kind.CUT:
            network.cut(victim.place, None)
        elif kind is Kind.CUT_PEERS:
            network.cut(victim.place, peers)
        elif kind is Kind.CUT_KEEPERS:
            network.cut(victim.place, keepers)
        elif kind is Kind.MUTE:
            network.cut(victim.place, [*peers, *keepers], Direction.OUT)

    def _undo(self, kind: Kind, victim: Node | MetadataServer) -> None:
        if kind is Kind.KILL:
            victim.launch()
        elif kind is Kind.PAUSE:
            victim.resume()
        elif kind is Kind.DISK and isinstance(victim, Node):
            victim.replace_disk()
        else:
            self._cluster.network.heal()


# ---------------------------------------------------------------------------------------------- the clients' processes


class Load:
    """All clients of a run."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers

    def wait_for_progress(self, timeout_s: float) -> None:
        """Waits until every client has an acknowledged new record in every partition. Raises WaitTimedOut."""
        began_s = time.monotonic()
        while True:
            for worker in self.workers:
                worker.update()
            late = [worker for worker in self.workers if not worker.has_sent_since(began_s)]
            if not late:
                return
            if time.monotonic() > began_s + timeout_s:
                stuck = "; ".join(f"{worker.client}, partitions {worker.stuck_since(began_s)}" for worker in late)
                raise WaitTimedOut(f"after {timeout_s:.0f} s nothing new is acknowledged to {stuck}")
            time.sleep(_RETRY_S)

    def flush(self) -> None:
        for worker in self.workers:
            worker.flush()
        for worker in self.workers:
            worker.wait_until_flushed()

    def wait_until_read(self, ends: Mapping[int, int], timeout_s: float) -> list[str]:
        """Waits until every group has read everything. Returns the clients that have not in time."""
        deadline = time.monotonic() + timeout_s
        late: list[str] = []
        while True:
            for worker in self.workers:
                worker.update()
            late = [worker.client for worker in self.workers if not worker.has_read_all(ends)]
            if not late or time.monotonic() > deadline:
                return late
            time.sleep(_RETRY_S)

    def end(self) -> None:
        for worker in self.workers:
            worker.end()


@contextmanager
def loaded(
    clients: Mapping[str, Access], folder: Path, bootstrap: Sequence[str], topic: str, partitions: int, rate: float
) -> Iterator[Load]:
    """Runs the clients inside the block, each at this rate in records/s."""
    workers: list[Worker] = []
    try:
        for client, access in clients.items():
            workers.append(Worker(client, access, folder, bootstrap, topic, partitions, rate))
        for worker in workers:
            worker.wait_until_ready()
        yield Load(workers)
    finally:
        for worker in workers:
            worker.kill()


class Worker:
    """A client's process. Its progress is read from its journal."""

    def __init__(self, client: str, access: Access, folder: Path, bootstrap: Sequence[str], topic: str,
                 partitions: int, rate: float) -> None:  # fmt: skip
        self.client = client
        self._partitions = partitions
        self._tail = Tail(folder / f"{client}.journal")
        self._errors = folder / f"{client}.errors"
        # Per partition: when the newest acknowledged record was sent, and the offsets that the group has read.
        self.acked_sent_s = [0.0] * partitions
        self.seen: list[set[int]] = [set() for _ in range(partitions)]
        # Not on the command line, which everybody can read.
        login = folder / f"{client}.login"
        access.save(login)
        arguments = [client, folder / f"{client}.journal", topic, partitions, rate, _MEMBERS, login, *bootstrap]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WORKER, *map(str, arguments)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=_ROOT,
                preexec_fn=dies_with_parent(),
            )  # fmt: skip

    @property
    def events(self) -> list[Event]:
        return self._tail.events

    def wait_until_ready(self) -> None:
        self._expect(READY, _READY_S)

    def update(self) -> None:
        """Reads new entries of the journal."""
        if self._process.poll() is not None:
            raise ServerFailed(f"{self.client} ended: {self._errors.read_text()[-2000:]}")
        for event in self._tail.more():
            if isinstance(event, Acked):
                self.acked_sent_s[event.partition] = max(self.acked_sent_s[event.partition], event.sent_s)
            elif isinstance(event, Read):
                self.seen[event.partition].add(event.offset)

    def has_sent_since(self, moment_s: float) -> bool:
        """Whether every partition has an acknowledged record that was sent after this moment."""
        return min(self.acked_sent_s) > moment_s

    def stuck_since(self, moment_s: float) -> list[int]:
        return [partition for partition, sent_s in enumerate(self.acked_sent_s) if sent_s <= moment_s]

    def has_read_all(self, ends: Mapping[int, int]) -> bool:
        return all(len(self.seen[partition]) >= end for partition, end in ends.items())

    def flush(self) -> None:
        """Ends sending. The client waits until each record is acknowledged or failed, within a bound."""
        self._write(FLUSH)

    def wait_until_flushed(self) -> None:
        self._expect(FLUSH, _FLUSH_S)

    def end(self) -> None:
        self._write(END)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise WaitTimedOut(f"{self.client} does not end: {self._errors.read_text()[-2000:]}") from None
        self._tail.more()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _write(self, word: str) -> None:
        if self._process.stdin is None:
            raise ServerFailed(f"{self.client} has no standard input")
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def _expect(self, word: str, timeout_s: float) -> None:
        """Waits for a line of output. Raises WaitTimedOut, ServerFailed."""
        output = self._process.stdout
        if output is None:
            raise ServerFailed(f"{self.client} has no output")
        # One line per word, so no earlier line is left in the buffer.
        poll = select.poll()
        poll.register(output, select.POLLIN)
        if not poll.poll(timeout_s * 1_000):
            raise WaitTimedOut(f"{self.client} did not print {word} within {timeout_s:.0f} s")
        if output.readline().strip() != word:
            raise ServerFailed(f"{self.client} did not print {word}: {self._errors.read_text()[-2000:]}")
