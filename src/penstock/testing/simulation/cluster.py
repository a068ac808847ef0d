"""Simulated machines, their disks and processes, and the cluster that they form.

A `SimulatedHost` is an address with its own clock, on which one process at a time runs. A `SimulatedNode` is a host
whose process is a real broker on a simulated disk. A crash ends a process between two callbacks, with its tasks,
timers and connections. What it had written stays, unless the machine lost power too: then the seed decides what of the
unsynced data is lost, torn or kept. Work of worker threads happens at one instant between request and response. Its
syncs determine how long that takes; a sync on the event loop blocks the whole process for its duration.

Brokers are numbered from 0, "broker-0" at 10.0.0.1; clients likewise, "client-0" at 10.0.1.1. A single broker has its
own metadata tree; brokers in a cluster share a simulated one. In a cluster a broker whose start failed is restarted
after 0.5 s.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from random import Random as PythonRandom
from typing import Any, Final, TypeVar, cast

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings, settings_from
from penstock.runtime.clock import Clock
from penstock.runtime.network import Handler, Limits, Server
from penstock.runtime.randomness import Random, SeededRandom
from penstock.runtime.socket_server import SocketServer
from penstock.runtime.threads import Outcome, Workers, WorkersBusy, WorkersClosed
from penstock.testing.simulated_disk import (
    KEEP_NAMES_ONLY,
    KEEP_SIZES_ONLY,
    KEEP_UNSYNCED,
    LOSE_UNSYNCED,
    RANDOM_GARBAGE,
    RANDOM_LOSS,
    PowerLoss,
)
from penstock.testing.simulated_faults import Fault, Operation
from penstock.testing.simulated_files import SimulatedFiles
from penstock.testing.simulation.loop import SimulatedLoop, process_loop
from penstock.testing.simulation.network import SimulatedNetwork
from penstock.testing.simulation.scheduler import Scheduler, SimulationFailed
from penstock.testing.simulation.tree import SimulatedTree, TreeService, open_simulated_tree

T = TypeVar("T")

_SYNC_KINDS: Final = frozenset({"sync", "sync_folder"})
_LEAST_SYNC_S: Final = 0.0001
_SPREAD_S: Final = 0.0008
_TAIL_CHANCE: Final = 0.02
_TAIL_FACTOR: Final = 30.0
# The delay before a worker starts. A power loss in between finds data that is written but not synced.
_START_SPREAD_S: Final = 0.001
_WAITING_MAX: Final = 10_000


class DiskTiming:
    """The durations of syncs on one host, and sync errors. It is the `OperationLog.hook` of the host's files."""

    def __init__(self, seed: int | str) -> None:
        self.slowness = 1.0
        """The factor by which syncs are slower than usual."""
        self.loop: SimulatedLoop | None = None
        """The process that uses the disk."""
        self.after_write: Callable[[], None] | None = None
        """Called once, at the next write to a log, which is the worst moment for a fault."""
        self.syncs = 0
        self._random = PythonRandom(f"{seed}/disk")
        self._errors = 0
        self._spent_s = 0.0
        self._is_in_thread = False

    def fail_syncs(self, count: int) -> None:
        """Fail the next `count` syncs of files (EIO). Part of the data that they should save is lost."""
        self._errors = count

    def __call__(self, operation: Operation) -> Fault | None:
        if operation.kind not in _SYNC_KINDS:
            if self.after_write is not None and operation.kind == "write" and operation.path.endswith(".log"):
                call, self.after_write = self.after_write, None
                call()
            return None
        self.syncs += 1
        took_s = (_LEAST_SYNC_S + self._random.random() * _SPREAD_S) * self.slowness
        if self._random.random() < _TAIL_CHANCE:
            took_s *= _TAIL_FACTOR
        self._spent_s += took_s
        if not self._is_in_thread and self.loop is not None:
            self.loop.busy_for(took_s)
        if self._errors and operation.kind == "sync":
            self._errors -= 1
            return Fault(OSError(errno.EIO, os.strerror(errno.EIO), operation.path), loss=RANDOM_LOSS)
        return None

    def run_in_thread(self, work: Callable[[], T]) -> tuple[Outcome[T], float]:
        """Run work as a thread would, without blocking the loop. Returns the outcome and the duration of its syncs."""
        before_s, self._is_in_thread = self._spent_s, True
        try:
            outcome: Outcome[T] = Outcome(work())
        except Exception as error:  # noqa: BLE001 - the outcome carries it to the caller
            outcome = Outcome(None, error)
        finally:
            self._is_in_thread = False
        return outcome, self._spent_s - before_s

    def draw_s(self, spread_s: float) -> float:
        return self._random.random() * spread_s * self.slowness

    def stopwatch_s(self) -> float:
        """Virtual time plus the duration of all syncs, which also grows within an instant."""
        return self._spent_s + (0.0 if self.loop is None else self.loop.time())


class SimulatedWorkers:
    """`ThreadWorkers` on the process's own loop: they pause and end with the process."""

    def __init__(self, loop: SimulatedLoop, timing: DiskTiming, threads: int) -> None:
        self._loop = loop
        self._timing = timing
        self._free = threads
        self._closed = False
        self._unfinished: dict[int, Callable[[], None]] = {}
        self._waiting: deque[tuple[int, Callable[[], Any], Callable[[Outcome[Any]], None]]] = deque()
        self._number = 0

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        if self._closed:
            raise WorkersClosed("the workers are closed")
        if len(self._unfinished) >= _WAITING_MAX:
            raise WorkersBusy(len(self._unfinished))
        self._number += 1
        self._waiting.append((self._number, work, done))
        self._unfinished[self._number] = lambda: done(self._timing.run_in_thread(work)[0])
        self._start()

    def _start(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            number, work, done = self._waiting.popleft()
            self._loop.call_later(self._timing.draw_s(_START_SPREAD_S), self._work, number, work, done)

    def _work(self, number: int, work: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None:
        if number not in self._unfinished:
            return
        outcome, took_s = self._timing.run_in_thread(work)
        self._unfinished[number] = lambda: done(outcome)
        self._loop.call_later(took_s, self._finish, number)

    def _finish(self, number: int) -> None:
        finish = self._unfinished.pop(number, None)
        if finish is not None:
            self._free += 1
            finish()
            self._start()

    def close(self) -> None:
        """Finish all work at once; virtual time does not pass."""
        self._closed = True
        self._waiting.clear()
        while self._unfinished:
            self._unfinished.pop(next(iter(self._unfinished)))()


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
    """Virtual time as one machine sees it. Its wall clock may be wrong and jump; all its clocks run at `rate`."""

    def __init__(self, scheduler: Scheduler, skew_ms: int = 0, rate: float = 1.0) -> None:
        self._scheduler = scheduler
        self.skew_ms = skew_ms
        self._rate = rate

    def now_ms(self) -> int:
        return _EPOCH_MS + self.skew_ms + int(self._scheduler.now_s * self._rate * 1000)

    def monotonic_ms(self) -> float:
        return self._scheduler.now_s * self._rate * 1000


class SimulatedHost:
    """A machine with an address. `loop` belongs to the current process, or to the last one."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: SimulatedNetwork,
        name: str,
        address: str,
        seed: int | str,
        drift: float = 0.0,
    ) -> None:
        """The clocks run fast or slow by up to `drift`, a fraction."""
        self.rate = 1.0 + SeededRandom(f"{seed}/{name}/drift").uniform(-drift, drift) if drift else 1.0
        self.scheduler = scheduler
        self.network = network
        self.name = name
        self.address = address
        self.clock = SimulatedClock(scheduler, rate=self.rate)
        self.random = SeededRandom(f"{seed}/{name}")
        self.incarnation = 0
        self.is_on = True
        self.on_boot: Callable[[], None] | None = None
        """The entry point of a process that replaces a killed one; None if there is none."""
        self.dead_loops: list[SimulatedLoop] = []
        self.loop = self._new_loop()

    def _new_loop(self) -> SimulatedLoop:
        self.incarnation += 1
        random = self.random.branch(f"life {self.incarnation}")
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
        """Run a coroutine in the process. An unhandled exception ends the run."""
        return self.loop.create_task(work)

    @property
    def is_alive(self) -> bool:
        return not self.loop.is_dead

    def kill(self) -> None:
        """Kill the process; the machine keeps running."""
        if self.is_alive:
            self.loop.kill()
            # Kept until the end of the run, because a task that is garbage-collected would run its `finally`.
            self.dead_loops.append(self.loop)
            self.network.process_ended(self.loop)

    def lose_power(self) -> None:
        """The machine loses power; peers are not notified."""
        self.is_on = False
        self.network.power_off(self.address)
        self.kill()

    def boot(self) -> None:
        """Restore power and create an empty process."""
        if not self.is_on:
            self.is_on = True
            self.network.power_on(self.address)
        if self.loop.is_dead:
            self.loop = self._new_loop()

    def pause(self) -> None:
        self.loop.pause()

    def resume(self) -> None:
        self.loop.resume()


class SimulatedEnvironment:
    """The `Environment` of one process on a simulated host."""

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
    """A reservation that holds nothing: no other process competes for the ports of a simulated host."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def release(self) -> None:
        """Nothing to release."""


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
        """With a `tree` the broker is in a cluster that shares it. Without one it has its own in its first data folder.
        Each of the `folders` has disk troubles of its own; they lose power together.
        """
        super().__init__(scheduler, network, f"broker-{broker_id}", f"10.0.0.{broker_id + 1}", seed, drift)
        self.broker_id = broker_id
        self.data_folders = tuple(f"/data-{number}" for number in range(folders))
        self.tree = tree
        self.timing = DiskTiming(f"{seed}/{self.name}")
        self.on_start: Callable[[SimulatedNode], None] | None = None
        """Called when a start has succeeded or failed."""
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
        """Replace the disk of all folders by an empty one. The process must be dead."""
        self.disks += 1
        self.files = SimulatedFiles(self.random.branch(f"disk {self.disks}"))
        self.files.operations.hook = self.timing

    def replace_folder(self, folder: str) -> None:
        """Replace the disk of one folder by an empty one, after the machine lost power."""
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
        """Start the broker, in a new process if the last one is dead."""
        self.boot()
        self.started_s = self.scheduler.now_s
        self.timing.loop = self.loop
        environment = SimulatedEnvironment(self, self.files, self.timing)
        settings = settings_from(self._settings)
        tree = self.tree
        if tree is None:
            self.broker = Broker(settings, environment=environment)
        else:
            self.broker = Broker(settings, environment=environment, tree_opener=lambda: _session_with(tree, settings))
        self._starting = self.spawn(self.broker.start())
        self._starting.add_done_callback(self._has_started)

    def _has_started(self, task: asyncio.Task[None]) -> None:
        if self.on_start is not None and task is self._starting:
            self.on_start(self)

    async def stop(self) -> bool:
        """Stop the broker cleanly, in its process. Returns whether that was possible."""
        broker = self.broker
        return broker is None or await broker.stop()

    def crash(self) -> None:
        """The process is killed."""
        self.kill()
        self.files.kill()

    def lose_power_with(self, loss: PowerLoss) -> None:
        """The machine loses power. `loss` chooses what the disk holds afterwards."""
        self.lose_power()
        self.files.crash(loss)


async def _session_with(tree: TreeService, settings: BrokerSettings) -> SimulatedTree:
    return await open_simulated_tree(tree, settings.zookeeper_session_timeout_ms / 1000)


_RESTART_S: Final = 0.5
# Much more than that of a real clock, because a run lasts seconds.
_DRIFT: Final = 0.02


def drawn_folders(seed: int | str) -> int:
    """How many data folders the brokers of a run have."""
    return 1 if SeededRandom(f"{seed}/folders").below(3) else 2


class CannotStart(SimulationFailed):
    """A broker that does not start again after a fault."""


class SimulatedCluster:
    """The brokers and clients of one run. `spares` are further brokers, not started with the others.

    A broker has `folders` data folders; by default the seed draws one or two.
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
            folders = drawn_folders(seed)
        drift = 0.0 if SeededRandom(f"{seed}/drift").below(3) else _DRIFT
        self.scheduler = scheduler
        self.trace = scheduler.trace
        self.network = SimulatedNetwork(scheduler, seed)
        self.tree = TreeService(self.network, seed=seed)
        self.is_single = brokers == 1
        shared = None if self.is_single else self.tree
        all_nodes = [
            SimulatedNode(scheduler, self.network, number, seed, settings, shared, folders, drift)
            for number in range(brokers + spares)
        ]
        self.nodes, self.spares = all_nodes[:brokers], all_nodes[brokers:]
        self.clients = [
            SimulatedHost(scheduler, self.network, f"client-{number}", f"10.0.1.{number + 1}", seed, drift)
            for number in range(clients)
        ]
        self.hosts: dict[str, SimulatedHost] = {host.name: host for host in (*all_nodes, *self.clients)}
        self.failing: set[str] = set()
        """Hosts with a failing disk, on which a broker need not start."""
        self.last_failure: dict[str, BaseException] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            self._start(node)

    def add(self, node: SimulatedNode) -> None:
        """Start a spare broker."""
        self.spares.remove(node)
        self.nodes.append(node)
        self._start(node)

    def _start(self, node: SimulatedNode) -> None:
        if not self.is_single:
            node.on_start = self._started
        node.start()

    def _started(self, node: SimulatedNode) -> None:
        failure = node.failure
        if failure is None:
            self.last_failure.pop(node.name, None)
            return
        self.last_failure[node.name] = failure
        self.trace.note(node.name, f"did not start: {type(failure).__name__}")
        self.trace.log(node.name, f"did not start: {failure!r}")
        process = node.loop
        # The process ends, which is not a failure of the run.
        self.network.kernel.call_soon(self._end, node, process)

    def _end(self, node: SimulatedNode, process: object) -> None:
        if node.loop is process and node.is_alive:
            node.crash()
            self.network.kernel.call_later(_RESTART_S, self._restart, node, process)

    def _restart(self, node: SimulatedNode, process: object) -> None:
        if node.loop is process and not node.is_alive and node.is_on:
            node.start()

    def kill_all(self) -> None:
        """Stop all loops permanently. Nothing is left that the garbage collector would run."""
        loops = [*(host.loop for host in self.hosts.values()), self.network.kernel]
        for loop in loops:
            loop.kill()
        for loop in [*(dead for host in self.hosts.values() for dead in host.dead_loops), *loops]:
            loop.discard()

    # --- state

    def all_serving(self) -> bool:
        """Whether all_nodes broker serves. Raises CannotStart if a single broker failed to start with a sound disk."""
        if self.is_single:
            for node in self.nodes:
                failure = node.failure
                if node.is_alive and failure is not None and node.name not in self.failing:
                    raise CannotStart(f"{node.name} does not start: {failure!r}") from failure
        return all(node.is_ready for node in self.nodes)

    def broker_states(self) -> str:
        """A description for the report of an unhealed cluster."""
        states = []
        for node in self.nodes:
            failure = self.last_failure.get(node.name)
            state = "ready" if node.is_ready else "starting" if node.is_alive else "dead"
            states.append(f"{node.name} {state}" + (f" after {failure!r}" if failure else ""))
        return ", ".join(states)
