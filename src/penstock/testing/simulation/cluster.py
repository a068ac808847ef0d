"""A simulated cluster: brokers, clients, the network between them, and the hand that does the faults.

Noun: a `SimulatedCluster`, all hosts of a run by name.

Rule: brokers are numbered from 0, "broker-0" at 10.0.0.1 and so on; clients likewise at 10.0.1.1. Brokers have trees of
their own for now, so a cluster of several is several clusters until they share one. Faults to one host do not wait for
one another: a machine may lose power while it is paused, a process be killed while it starts. Who is down is started
again when the last of the faults that keep it down is over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulated_disk import LOSE_UNSYNCED
from penstock.testing.simulation import faults as kinds
from penstock.testing.simulation.faults import Fault
from penstock.testing.simulation.network import SimulatedNetwork
from penstock.testing.simulation.nodes import LOSSES, SimulatedHost, SimulatedNode
from penstock.testing.simulation.scheduler import Scheduler, SimulationFailed
from penstock.testing.simulation.tree_service import TreeService

LONGEST_WAIT_S: Final = 0.5
_WORST_MOMENT_S: Final = 0.001


class NoSuchHost(ValueError):
    """A schedule names a host that this cluster does not have."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        super().__init__(f"there is no host {name!r}: there are {', '.join(names)}")


class CannotStart(SimulationFailed):
    """A broker that does not start again after a fault."""


class SimulatedCluster:
    """Made for one run."""

    def __init__(
        self, scheduler: Scheduler, seed: int | str, *, brokers: int, clients: int, settings: Mapping[str, str]
    ) -> None:
        self.scheduler = scheduler
        self.trace = scheduler.trace
        self.network = SimulatedNetwork(scheduler, seed)
        self.tree = TreeService(self.network)
        self.nodes = [SimulatedNode(scheduler, self.network, number, seed, settings) for number in range(brokers)]
        self.clients = [
            SimulatedHost(scheduler, self.network, f"client-{number}", f"10.0.1.{number + 1}", seed)
            for number in range(clients)
        ]
        self.hosts: dict[str, SimulatedHost] = {host.name: host for host in (*self.nodes, *self.clients)}
        self.done: Counter[str] = Counter()
        self._random = SeededRandom(f"{seed}/faults")
        self._down: Counter[str] = Counter()
        self._failing: Counter[str] = Counter()
        self._keeps_cache = False
        self.stops: list[asyncio.Task[bool]] = []

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    # --- faults

    def schedule(self, faults: Sequence[Fault]) -> None:
        """Have them happen; NoSuchHost."""
        for fault in faults:
            for name in filter(None, (fault.host, fault.peer)):
                if name not in self.hosts:
                    raise NoSuchHost(name, list(self.hosts))
        for fault in faults:
            begin = self._lie_in_wait if fault.kind in (kinds.POWER, kinds.CRASH) else self._begin
            self.network.kernel.call_at(fault.at_s, begin, fault)

    def _lie_in_wait(self, fault: Fault) -> None:
        """Sometimes come at once, mostly right after the next write to a log: between it and its answer."""
        host, kernel = self.hosts[fault.host], self.network.kernel
        if not isinstance(host, SimulatedNode) or not self._random.below(4):
            self._begin(fault)
            return
        delay_s = self._random.uniform(0.0, _WORST_MOMENT_S)
        late = kernel.call_later(LONGEST_WAIT_S, self._begin, fault)

        def written() -> None:
            if not late.cancelled() and kernel.time() < late.when():
                late.cancel()
                kernel.call_later(delay_s, self._begin, fault)

        host.timing.after_write = written

    def _begin(self, fault: Fault) -> None:
        host = self.hosts[fault.host]
        end = self._apply(fault, host)
        if end is None:
            self.trace.note(fault.host, f"(spared) {fault}")
            return
        self.done[fault.kind] += 1
        self.trace.note(fault.host, f"FAULT {fault}")
        self.network.kernel.call_later(fault.for_s, self._finish, fault, end)

    def _finish(self, fault: Fault, end: Callable[[], None]) -> None:
        self.trace.note(fault.host, f"over: {fault}")
        end()

    def _apply(self, fault: Fault, host: SimulatedHost) -> Callable[[], None] | None:
        """Do it; what undoes it, or None if it makes no sense now."""
        if fault.kind == kinds.PAUSE:
            return self._pause(host)
        if fault.kind in (kinds.CUT, kinds.SLOW_LINK):
            return self._disturb_paths(fault, host)
        if fault.kind == kinds.RESET:
            self.network.reset_connections(host.address)
            return _nothing
        if fault.kind == kinds.CLOCK:
            return self._jump(host, int(fault.amount * 1000))
        return self._disturb_broker(fault, host) if isinstance(host, SimulatedNode) else None

    def _disturb_broker(self, fault: Fault, node: SimulatedNode) -> Callable[[], None] | None:
        if fault.kind == kinds.SLOW_DISK:
            return self._slow_down(node, fault.amount)
        if fault.kind in (kinds.SYNC_ERROR, kinds.ROTTEN_CACHE):
            return self._fail_a_sync(node, keep_cache=fault.kind == kinds.ROTTEN_CACHE)
        if fault.kind == kinds.STOP and not (node.is_ready and node.loop.is_running_now):
            return None
        self._down[node.name] += 1
        if fault.kind == kinds.STOP:
            return self._stop(node)
        if node.is_alive:
            if fault.kind == kinds.POWER:
                node.lose_power_with(LOSSES[self._random.below(len(LOSSES))])
                node.timing.has_failed = False
            else:
                self._kill(node)
        return lambda: self._up(node)

    def _pause(self, host: SimulatedHost) -> Callable[[], None]:
        loop = host.loop
        loop.pause()
        return loop.resume

    def _disturb_paths(self, fault: Fault, host: SimulatedHost) -> Callable[[], None]:
        network = self.network
        one = [host.address]
        everyone = [*(each.address for each in self.hosts.values()), self.tree.address]
        other = [self.hosts[fault.peer].address] if fault.peer else everyone
        back = fault.kind == kinds.SLOW_LINK or not fault.peer

        def slow_down(factor: float) -> None:
            for address in other:
                network.slow_down(host.address, address, factor)
                network.slow_down(address, host.address, factor)

        def heal() -> None:
            network.heal(one, other)
            if back:
                network.heal(other, one)

        if fault.kind == kinds.SLOW_LINK:
            slow_down(fault.amount)
            return lambda: slow_down(1.0)
        network.cut(one, other)
        if back:
            network.cut(other, one)
        return heal

    def _jump(self, host: SimulatedHost, ms: int) -> Callable[[], None]:
        def back() -> None:
            host.clock.skew_ms -= ms

        host.clock.skew_ms += ms
        return back

    def _slow_down(self, node: SimulatedNode, factor: float) -> Callable[[], None]:
        def back() -> None:
            node.timing.slowness /= factor

        node.timing.slowness *= factor
        return back

    def _kill(self, node: SimulatedNode) -> None:
        """A process ends; where a sync failed, whoever looks after the machine starts all of it again."""
        if node.timing.has_failed and not self._keeps_cache:
            node.lose_power_with(LOSE_UNSYNCED)
            node.timing.has_failed = False
        else:
            node.crash()

    def _fail_a_sync(self, node: SimulatedNode, *, keep_cache: bool) -> Callable[[], None]:
        self._keeps_cache = self._keeps_cache or keep_cache

        def replace_process() -> None:
            """What an operator does about a data folder that is offline."""
            self._failing[node.name] -= 1
            node.timing.fail_syncs(0)
            if node.is_alive:
                self._kill(node)
            if not self._down[node.name]:
                node.start()

        self._failing[node.name] += 1
        node.timing.fail_syncs(1)
        return replace_process

    def _stop(self, node: SimulatedNode) -> Callable[[], None]:
        life = node.loop

        def up() -> None:
            # A stop that takes longer than anybody waits ends as they do everywhere.
            if node.loop is life and node.is_alive:
                self._kill(node)
            self._up(node)

        self.stops.append(node.spawn(node.stop()))
        return up

    def _up(self, node: SimulatedNode) -> None:
        self._down[node.name] -= 1
        if not self._down[node.name] and not node.is_alive:
            node.start()

    # --- watching

    def is_whole_or_fails(self) -> bool:
        """Whether every broker serves; CannotStart if a broker's start failed, unless its disk does."""
        for node in self.nodes:
            failure = node.failure
            if node.is_alive and failure is not None and not self._failing[node.name]:
                raise CannotStart(f"{node.name} does not start: {failure!r}") from failure
        return all(node.is_ready for node in self.nodes)


def _nothing() -> None:
    """A fault that is over at once."""
