"""Machines, and the processes that run on them.

Nouns: a `SimulatedHost`, an address with a clock of its own, on which one process at a time lives; a `SimulatedNode`, a
host whose process is a real broker on a simulated disk.

Rule: a process that crashes is gone between two callbacks: its tasks, timers and connections with it. What it had
written stays, unless the machine lost power too: then what was not synced is lost, torn or kept by the seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar, cast

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings, settings_from
from penstock.runtime.clock import Clock
from penstock.runtime.network import Handler, Limits, Server
from penstock.runtime.randomness import Random, SeededRandom
from penstock.runtime.socket_server import SocketServer
from penstock.runtime.workers import Workers
from penstock.testing.simulated_disk import (
    KEEP_NAMES_ONLY,
    KEEP_SIZES_ONLY,
    KEEP_UNSYNCED,
    LOSE_UNSYNCED,
    RANDOM_GARBAGE,
    RANDOM_LOSS,
    PowerLoss,
)
from penstock.testing.simulated_files import SimulatedFiles
from penstock.testing.simulation.disks import DiskTiming, SimulatedWorkers
from penstock.testing.simulation.loop import SimulatedLoop, process_loop
from penstock.testing.simulation.network import SimulatedNetwork
from penstock.testing.simulation.scheduler import Scheduler
from penstock.testing.simulation.tree_service import TreeService
from penstock.testing.simulation.trees import SimulatedTree, open_simulated_tree

T = TypeVar("T")

BROKER_PORT: Final = 9092
LOSSES: Final = (
    LOSE_UNSYNCED,
    KEEP_UNSYNCED,
    KEEP_NAMES_ONLY,
    KEEP_SIZES_ONLY,
    *(RANDOM_LOSS, RANDOM_GARBAGE) * 3,
)
_EPOCH_MS: Final = 1_700_000_000_000


class SimulatedClock:
    """Virtual time as one machine sees it: its wall clock may be wrong, and jump; all of its clocks go at `rate`."""

    def __init__(self, scheduler: Scheduler, skew_ms: int = 0, rate: float = 1.0) -> None:
        self._scheduler = scheduler
        self.skew_ms = skew_ms
        self._rate = rate

    def now_ms(self) -> int:
        return _EPOCH_MS + self.skew_ms + int(self._scheduler.now_s * self._rate * 1000)

    def monotonic_ms(self) -> float:
        return self._scheduler.now_s * self._rate * 1000


class SimulatedHost:
    """A machine with an address. `loop` is that of the process that runs there now, or ran last."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: SimulatedNetwork,
        name: str,
        address: str,
        seed: int | str,
        drift: float = 0.0,
    ) -> None:
        """Its clocks go too fast or too slow by up to `drift`, a share of their time."""
        self.rate = 1.0 + SeededRandom(f"{seed}/{name}/drift").uniform(-drift, drift) if drift else 1.0
        self.scheduler = scheduler
        self.network = network
        self.name = name
        self.address = address
        self.clock = SimulatedClock(scheduler, rate=self.rate)
        self.random = SeededRandom(f"{seed}/{name}")
        self.lives = 0
        self.is_on = True
        self.on_boot: Callable[[], None] | None = None
        """What a process does that is started in the place of one that was killed; None if nobody starts one."""
        self._graves: list[SimulatedLoop] = []
        self.loop = self._new_loop()

    def _new_loop(self) -> SimulatedLoop:
        self.lives += 1
        random = self.random.branch(f"life {self.lives}")
        return process_loop(
            self.scheduler,
            self.name,
            host=self.address,
            network=self.network,
            clock=self.clock,
            random=random,
            rate=self.rate,
        )

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something in the process; an exception of it that nobody asks for ends the run."""
        return self.loop.create_task(work)

    @property
    def is_alive(self) -> bool:
        return not self.loop.is_dead

    def kill(self) -> None:
        """The process ends at once, the machine goes on."""
        if self.is_alive:
            self.loop.kill()
            # Kept until the end of the run: a task that is collected would run its `finally`.
            self._graves.append(self.loop)
            self.network.process_ended(self.loop)

    def lose_power(self) -> None:
        """The machine and its process are gone; nobody is told."""
        self.is_on = False
        self.network.power_off(self.address)
        self.kill()

    def boot(self) -> None:
        """Power, if it had none, and an empty process."""
        if not self.is_on:
            self.is_on = True
            self.network.power_on(self.address)
        if self.loop.is_dead:
            self.loop = self._new_loop()

    def pause(self) -> None:
        self.loop.pause()

    def resume(self) -> None:
        self.loop.resume()


class SimulatedWorld:
    """A `World` on a simulated host, for one life of its process."""

    def __init__(self, host: SimulatedHost, files: SimulatedFiles, timing: DiskTiming) -> None:
        self.clock: Clock = host.clock
        self.random: Random = cast(Random, host.loop.random)
        self.files = files
        self.stopwatch_s = timing.stopwatch_s
        self._host = host
        self._loop = host.loop
        self._timing = timing

    def server(self, handler: Handler, limits: Limits) -> Server:
        """The real server, on simulated sockets."""
        network, loop = self._host.network, self._loop

        def open_listener(host: str, port: int, limits: Limits) -> Any:
            return network.listen(loop, host, port, limits)

        return SocketServer(loop, handler, limits, self.clock, open_listener=open_listener)

    def reserve(self, host: str, port: int) -> SimulatedReservation:
        return SimulatedReservation(host, port)

    def workers(self, threads: int) -> Workers:
        return SimulatedWorkers(self._loop, self._timing, threads)

    def threads(self, wanted: int) -> int:
        return 1


class SimulatedReservation:
    """A simulated host has its ports to itself."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def release(self) -> None:
        """Nothing was taken."""


class SimulatedNode(SimulatedHost):
    """A broker and its machine."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: SimulatedNetwork,
        broker_id: int,
        seed: int | str,
        settings: Mapping[str, str],
        tree: TreeService | None = None,
        folders: int = 1,
        drift: float = 0.0,
    ) -> None:
        """With a `tree` it is one of several that share it, without one it has its own in its first data folder. Each
        of the `folders` is a disk of its own as far as troubles go; power they lose together.
        """
        super().__init__(scheduler, network, f"broker-{broker_id}", f"10.0.0.{broker_id + 1}", seed, drift)
        self.broker_id = broker_id
        self.data_folders = tuple(f"/data-{number}" for number in range(folders))
        self.tree = tree
        self.timing = DiskTiming(f"{seed}/{self.name}")
        self.on_start: Callable[[SimulatedNode], None] | None = None
        """Called when a start has succeeded, or has not."""
        self.disks = 0
        self.replace_disk()
        self.broker: Broker | None = None
        self._settings = {
            "socket.busy.poll.us": "0",
            "num.recovery.threads.per.data.dir": "1",
            **settings,
            "broker.id": str(broker_id),
            "log.dirs": ",".join(self.data_folders),
            "listeners": f"PLAINTEXT://{self.address}:{BROKER_PORT}",
            "advertised.listeners": f"PLAINTEXT://{self.address}:{BROKER_PORT}",
        }
        if tree is not None:
            self._settings["zookeeper.connect"] = f"{tree.address}:2181"
        self._starting: asyncio.Task[None] | None = None
        self.started_s = 0.0

    def replace_disk(self) -> None:
        """An empty one for all folders; the process that used the old one must be dead."""
        self.disks += 1
        self.files = SimulatedFiles(self.random.branch(f"disk {self.disks}"))
        self.files.operations.hook = self.timing

    def replace_folder(self, folder: str) -> None:
        """An empty disk for one folder, after the machine lost power."""
        self.files.wipe(folder)

    @property
    def bootstrap(self) -> str:
        return f"{self.address}:{BROKER_PORT}"

    @property
    def is_ready(self) -> bool:
        return self.is_alive and self.broker is not None and self.broker.is_ready

    @property
    def failure(self) -> BaseException | None:
        """Why the broker did not start."""
        task = self._starting
        return None if task is None or not task.done() or task.cancelled() else task.exception()

    def start(self) -> None:
        """Begin to start the broker, in a new process if the last one is dead."""
        self.boot()
        self.started_s = self.scheduler.now_s
        self.timing.loop = self.loop
        world = SimulatedWorld(self, self.files, self.timing)
        settings = settings_from(self._settings)
        tree = self.tree
        if tree is None:
            self.broker = Broker(settings, world=world)
        else:
            self.broker = Broker(settings, world=world, tree_opener=lambda: _session_with(tree, settings))
        self._starting = self.spawn(self.broker.start())
        self._starting.add_done_callback(self._has_started)

    def _has_started(self, task: asyncio.Task[None]) -> None:
        if self.on_start is not None and task is self._starting:
            self.on_start(self)

    async def stop(self) -> bool:
        """Stop the broker cleanly, from within its own process; whether it could."""
        broker = self.broker
        return broker is None or await broker.stop()

    def crash(self) -> None:
        """The process is killed."""
        self.kill()
        self.files.kill()

    def lose_power_with(self, loss: PowerLoss) -> None:
        """The machine loses power; what is left of the disk shows after `start`."""
        self.lose_power()
        self.files.crash(loss)


async def _session_with(tree: TreeService, settings: BrokerSettings) -> SimulatedTree:
    return await open_simulated_tree(tree, settings.zookeeper_session_timeout_ms / 1000)
