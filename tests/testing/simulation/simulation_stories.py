"""A small vocabulary for stories about simulated processes."""

from __future__ import annotations

from penstock.testing.simulation.cluster import SimulatedHost
from penstock.testing.simulation.network import SimulatedNetwork
from penstock.testing.simulation.scheduler import Scheduler


class Stage:
    """A network with two machines."""

    def __init__(self, seed: int = 0, *, give_up_s: float = 20.0) -> None:
        self.scheduler = Scheduler(seed)
        self.network = SimulatedNetwork(self.scheduler, seed, give_up_s=give_up_s)
        self.left = SimulatedHost(self.scheduler, self.network, "left", "10.0.0.1", seed)
        self.right = SimulatedHost(self.scheduler, self.network, "right", "10.0.0.2", seed)

    def pass_time(self, seconds: float) -> None:
        self.scheduler.run_until(limit_s=self.scheduler.now_s + seconds)
