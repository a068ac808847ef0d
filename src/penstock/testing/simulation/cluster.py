"""A simulated cluster: brokers, clients, the tree that brokers share, and the network between them.

Noun: a `SimulatedCluster`, all hosts of a run by name.

Rule: brokers are numbered from 0, "broker-0" at 10.0.0.1 and so on; clients likewise at 10.0.1.1. A broker by itself
has a tree of its own; several share a simulated one. A broker of several whose start failed is started again after a
while, as whoever runs a cluster has it done: it may have come while the tree was away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulation.network import SimulatedNetwork
from penstock.testing.simulation.nodes import SimulatedHost, SimulatedNode
from penstock.testing.simulation.scheduler import Scheduler, SimulationFailed
from penstock.testing.simulation.tree_service import TreeService

_START_AGAIN_S: Final = 0.5
# Many times that of a real clock: a run lasts seconds.
_DRIFT: Final = 0.02


class CannotStart(SimulationFailed):
    """A broker that does not start again after a fault."""


class SimulatedCluster:
    """Made for one run. `spares` are further brokers, which are not started with the others. Each has so many
    data `folders`; by the seed, mostly one.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        seed: int | str,
        *,
        brokers: int,
        clients: int,
        settings: Mapping[str, str],
        spares: int = 0,
        folders: int | None = None,
    ) -> None:
        if folders is None:
            folders = 1 if SeededRandom(f"{seed}/folders").below(3) else 2
        drift = 0.0 if SeededRandom(f"{seed}/drift").below(3) else _DRIFT
        self.scheduler = scheduler
        self.trace = scheduler.trace
        self.network = SimulatedNetwork(scheduler, seed)
        self.tree = TreeService(self.network, seed=seed)
        self.is_alone = brokers == 1
        shared = None if self.is_alone else self.tree
        every = [
            SimulatedNode(scheduler, self.network, number, seed, settings, shared, folders, drift)
            for number in range(brokers + spares)
        ]
        self.nodes, self.spares = every[:brokers], every[brokers:]
        self.clients = [
            SimulatedHost(scheduler, self.network, f"client-{number}", f"10.0.1.{number + 1}", seed, drift)
            for number in range(clients)
        ]
        self.hosts: dict[str, SimulatedHost] = {host.name: host for host in (*every, *self.clients)}
        self.failing: set[str] = set()
        """Hosts whose disk fails: nobody can expect a broker to start there."""
        self.last_failure: dict[str, BaseException] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            self._start(node)

    def add(self, node: SimulatedNode) -> None:
        """One of the spare brokers joins the others."""
        self.spares.remove(node)
        self.nodes.append(node)
        self._start(node)

    def _start(self, node: SimulatedNode) -> None:
        if not self.is_alone:
            node.on_start = self._started
        node.start()

    def _started(self, node: SimulatedNode) -> None:
        failure = node.failure
        if failure is None:
            self.last_failure.pop(node.name, None)
            return
        self.last_failure[node.name] = failure
        self.trace.note(node.name, f"did not start: {type(failure).__name__}")
        self.trace.tell(node.name, f"did not start: {failure!r}")
        life = node.loop
        # The process ends, and nobody holds it against the others.
        self.network.kernel.call_soon(self._end, node, life)

    def _end(self, node: SimulatedNode, life: object) -> None:
        if node.loop is life and node.is_alive:
            node.crash()
            self.network.kernel.call_later(_START_AGAIN_S, self._again, node, life)

    def _again(self, node: SimulatedNode, life: object) -> None:
        if node.loop is life and not node.is_alive and node.is_on:
            node.start()

    def bury(self) -> None:
        """Nothing of it may do anything any more, not even while it is forgotten."""
        for host in self.hosts.values():
            host.loop.kill()
        self.network.kernel.kill()

    # --- watching

    def is_whole_or_fails(self) -> bool:
        """Whether every broker serves; CannotStart if the start of a lone one failed, unless its disk does."""
        if self.is_alone:
            for node in self.nodes:
                failure = node.failure
                if node.is_alive and failure is not None and node.name not in self.failing:
                    raise CannotStart(f"{node.name} does not start: {failure!r}") from failure
        return all(node.is_ready for node in self.nodes)

    def state_of_brokers(self) -> str:
        """For whoever wonders why it did not heal."""
        told = []
        for node in self.nodes:
            failure = self.last_failure.get(node.name)
            state = "ready" if node.is_ready else "starting" if node.is_alive else "dead"
            told.append(f"{node.name} {state}" + (f" after {failure!r}" if failure else ""))
        return ", ".join(told)
