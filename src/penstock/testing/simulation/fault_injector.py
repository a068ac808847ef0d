"""Applies the faults of a schedule to a cluster, and undoes them.

Faults of one host may overlap: a machine may lose power while it is paused, a process may be killed while it starts. A
host is restarted when the last fault that keeps it down is over. A fault that kills a process mostly waits for the
worst moment: right after a write to a log, before its response.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.log.checkpoints import RECOVERY_POINT_FILE, CheckpointError, read_offsets
from penstock.log.log_dirs.directory_state import CLEAN_SHUTDOWN_FILE
from penstock.log.segment import LOG_SUFFIX
from penstock.records import HEADER_SIZE, scan
from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulated_disk import LOSE_UNSYNCED
from penstock.testing.simulated_faults import ALL_KINDS, GROWING, READ, Trouble
from penstock.testing.simulated_files import SimulatedFiles
from penstock.testing.simulation import faults as kinds
from penstock.testing.simulation.cluster import LOSSES, SimulatedCluster, SimulatedHost, SimulatedNode
from penstock.testing.simulation.faults import Fault

LONGEST_WAIT_S: Final = 0.5
UNSEEN_HEADER: Final = "batch header to damage is not read by a start"
_WORST_MOMENT_S: Final = 0.001
_KILLING: Final = frozenset({kinds.POWER, kinds.CRASH, kinds.BLACKOUT, *kinds.DISK_LOST})

_TROUBLES: Final = {
    kinds.FULL_DISK: (errno.ENOSPC, GROWING, ""),
    kinds.READ_ERROR: (errno.EIO, frozenset({READ}), LOG_SUFFIX),
    kinds.DISK_OUT: (errno.EIO, ALL_KINDS, ""),
    kinds.DEAD_DISK: (errno.EIO, ALL_KINDS, ""),
}
"""The error, the operations that fail with it, and the suffix of the affected files."""

Undo = Callable[[], None]


class UnknownHost(ValueError):
    """A schedule names a host that this cluster does not have."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        super().__init__(f"unknown host {name!r}; the hosts are {', '.join(names)}")


class FaultInjector:
    """Applies the faults of one run. `done` counts them by kind."""

    def __init__(self, cluster: SimulatedCluster, seed: int | str) -> None:
        self.done: Counter[str] = Counter()
        self.stops: list[asyncio.Task[bool]] = []
        self._cluster = cluster
        self._network = cluster.network
        self._random = SeededRandom(f"{seed}/faults")
        self._down: Counter[str] = Counter()
        self._failing: Counter[str] = Counter()
        self._corrupted: list[SimulatedNode] = []
        self._slow: defaultdict[str, list[float]] = defaultdict(list)
        self._unfinished = 0
        self.outlived: Counter[str] = Counter()
        """What brokers in a cluster have withstood."""

    @property
    def is_over(self) -> bool:
        """Whether all scheduled faults are over."""
        return not self._unfinished

    def schedule(self, faults: Sequence[Fault]) -> None:
        """Schedule the faults. Raises UnknownHost."""
        hosts = self._cluster.hosts
        for fault in faults:
            for name in filter(None, (fault.host, fault.peer)):
                if name not in hosts and fault.kind not in kinds.CLUSTER_WIDE:
                    raise UnknownHost(name, list(hosts))
        self._unfinished += len(faults)
        for fault in faults:
            begin = self._begin_after_write if fault.kind in _KILLING else self._begin
            self._network.kernel.call_at(fault.at_s, begin, fault)

    def _begin_after_write(self, fault: Fault) -> None:
        """Apply the fault mostly right after the next write to a log, before its response; sometimes at once."""
        nodes = self._cluster.nodes
        chosen = nodes[self._random.below(len(nodes))].name if fault.kind in kinds.CLUSTER_WIDE else fault.host
        host, kernel = self._cluster.hosts[chosen], self._network.kernel
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
        undo = (
            self._apply_to_all(fault)
            if fault.kind in kinds.CLUSTER_WIDE
            else self._apply(fault, self._cluster.hosts[fault.host])
        )
        trace = self._cluster.trace
        if undo is None:
            trace.note(fault.host, f"(spared) {fault}")
            self._unfinished -= 1
            return
        self.done[fault.kind] += 1
        trace.note(fault.host, f"FAULT {fault}")
        self._network.kernel.call_later(fault.for_s, self._finish, fault, undo)

    def _finish(self, fault: Fault, undo: Undo) -> None:
        self._cluster.trace.note(fault.host, f"over: {fault}")
        self._unfinished -= 1
        undo()

    # --- dispatch by kind

    def _apply_to_all(self, fault: Fault) -> Undo:
        if fault.kind == kinds.TREE_DOWN:
            tree = self._cluster.tree
            tree.go_down()
            return tree.come_up
        undos = [self._kill_with(fault, node) for node in self._cluster.nodes]

        def up() -> None:
            for undo in undos:
                undo()

        return up

    def _apply(self, fault: Fault, host: SimulatedHost) -> Undo | None:
        """Apply a fault. Returns what undoes it, or None if it does not apply now."""
        network, kind = self._network, fault.kind
        if kind == kinds.PAUSE:
            loop = host.loop
            loop.pause()
            return loop.resume
        if kind == kinds.CRASH and not isinstance(host, SimulatedNode):
            return self._restart_client(host)
        if kind in kinds.WITH_PEER:
            return self._disturb_paths(fault, host)
        if kind == kinds.RESET:
            network.reset_connections(host.address)
            return _nothing
        if kind == kinds.TWICE:
            network.double_connections(host.address)
            return lambda: network.single_connections(host.address)
        if kind == kinds.CLOCK:
            return self._jump(host, int(fault.amount * 1000))
        if kind == kinds.SESSION:
            return self._end_sessions(host)
        if kind == kinds.STALE:
            server = self._cluster.tree.server_of(host.address)
            return None if server is None else self._cluster.tree.hold(server)
        return self._disturb_broker(fault, host) if isinstance(host, SimulatedNode) else None

    def _disturb_broker(self, fault: Fault, node: SimulatedNode) -> Undo | None:
        if fault.kind == kinds.ADD:
            if node not in self._cluster.spares:
                return None
            self._cluster.add(node)
            return _nothing
        if node in self._cluster.spares:
            return None
        if fault.kind == kinds.SLOW_DISK:
            return self._slow_down(node, fault.amount)
        if fault.kind in (kinds.SYNC_ERROR, kinds.ROTTEN_CACHE):
            return self._fail_a_sync(node, keep_cache=fault.kind == kinds.ROTTEN_CACHE)
        if fault.kind in _TROUBLES:
            return self._trouble(node, fault.kind)
        if fault.kind == kinds.STOP:
            return self._stop(node) if node.is_ready and node.loop.is_running_now else None
        return self._kill_with(fault, node)

    # --- machines

    def _kill_with(self, fault: Fault, node: SimulatedNode) -> Undo:
        self._down[node.name] += 1
        if fault.kind == kinds.CRASH:
            if node.is_alive:
                node.crash()
        else:
            if node.is_on:
                node.lose_power_with(LOSSES[self._random.below(len(LOSSES))])
            if fault.kind == kinds.EMPTY:
                node.replace_disk()
            elif fault.kind in kinds.DISK_LOST:
                self._flip_a_bit(node, in_header=fault.kind == kinds.HEADER_FLIP)
        return lambda: self._up(node)

    def _flip_a_bit(self, node: SimulatedNode, *, in_header: bool) -> None:
        """Flip a bit of a durable batch on the disk of a machine that is off.

        A header is damaged only where the next start reads it. A start does not read older segments, nor any segment
        after a clean stop: there the bit would stay unnoticed until a reader comes, and a replica that serves nothing
        wrong would differ from the others.
        """
        if in_header and any(node.files.exists(f"{each}/{CLEAN_SHUTDOWN_FILE}") for each in node.data_folders):
            in_header = False
            self._cluster.trace.count(UNSEEN_HEADER)
        batches = [each for each in _durable_batches(node, newest_only=in_header) if in_header or each[2] > HEADER_SIZE]
        if batches:
            path, position, size = batches[self._random.below(len(batches))]
            position += (
                self._random.below(HEADER_SIZE) if in_header else HEADER_SIZE + self._random.below(size - HEADER_SIZE)
            )
            self._cluster.trace.note(node.name, f"a bit of {path} at byte {position} flips")
            node.files.corrupt(path, position, mask=1 << self._random.below(8))
            self._corrupted.append(node)

    def replace_corrupted_disks(self) -> None:
        """Replace disks with flipped bits, as an operator does after the faults."""
        for node in self._corrupted:
            self._cluster.trace.note(node.name, "its disk is replaced")
            node.crash()
            node.replace_disk()
            node.start()
        self._corrupted.clear()

    def _fail_a_sync(self, node: SimulatedNode, *, keep_cache: bool) -> Undo:
        def replace_process() -> None:
            """Repair an offline data folder, as an operator does."""
            self._failing[node.name] -= 1
            if not self._failing[node.name]:
                self._cluster.failing.discard(node.name)
            node.timing.fail_syncs(0)
            if node.is_alive and keep_cache:
                node.crash()
            elif node.is_alive:
                node.lose_power_with(LOSE_UNSYNCED)
            if not self._down[node.name]:
                node.start()

        self._failing[node.name] += 1
        self._cluster.failing.add(node.name)
        node.timing.fail_syncs(1)
        return replace_process

    def _trouble(self, node: SimulatedNode, kind: str) -> Undo:
        """A fault of the disk of one data folder."""
        folder = node.data_folders[self._random.below(len(node.data_folders))]
        error_number, failing, path_ending = _TROUBLES[kind]
        trouble = Trouble(error_number, folder, failing, path_ending)
        began_s = self._network.kernel.time()

        def repair() -> None:
            """Repair the disk, as an operator does: make room, or repair or replace the disk and restart the broker.

            A broker that was started while the disk was full is restarted too: it may have left partitions out.
            """
            if node.is_ready and node.broker is not None and node.broker.replicas.logs.offline:
                self.outlived["failed data folders without which a broker went on"] += 1
            if trouble in node.files.operations.troubles:  # else the machine was replaced meanwhile
                node.files.operations.troubles.remove(trouble)
            self._failing[node.name] -= 1
            if not self._failing[node.name]:
                self._cluster.failing.discard(node.name)
            if kind == kinds.FULL_DISK and node.started_s < began_s and node.failure is None:
                return
            if kind in (kinds.DISK_OUT, kinds.DEAD_DISK) and node.is_on:
                node.lose_power_with(LOSSES[self._random.below(len(LOSSES))])
            elif node.is_alive:
                node.crash()
            if kind == kinds.DEAD_DISK:
                node.replace_folder(folder)
            if not self._down[node.name]:
                node.start()

        self._failing[node.name] += 1
        self._cluster.failing.add(node.name)
        node.files.operations.troubles.append(trouble)
        self._cluster.trace.note(node.name, f"{kind} of {folder}")
        return repair

    def _stop(self, node: SimulatedNode) -> Undo:
        self._down[node.name] += 1
        process = node.loop

        def up() -> None:
            # A stop that does not finish in time ends with a kill, as under any service manager.
            if node.loop is process and node.is_alive:
                node.crash()
            self._up(node)

        self.stops.append(node.spawn(node.stop()))
        return up

    def _up(self, node: SimulatedNode) -> None:
        self._down[node.name] -= 1
        if not self._down[node.name] and not node.is_alive:
            node.start()

    # --- clients, network, clocks, slow disks and sessions

    def _restart_client(self, host: SimulatedHost) -> Undo | None:
        start = host.on_boot
        if start is None or not host.is_alive:
            return None

        def up() -> None:
            host.boot()
            start()

        host.kill()
        return up

    def _disturb_paths(self, fault: Fault, host: SimulatedHost) -> Undo:
        network, hosts = self._network, self._cluster.hosts
        one = [host.address]
        everyone = [*(each.address for each in hosts.values()), self._cluster.tree.address]
        other = [hosts[fault.peer].address] if fault.peer else everyone
        back = fault.kind != kinds.CUT or not fault.peer

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

    def _jump(self, host: SimulatedHost, ms: int) -> Undo:
        def back() -> None:
            host.clock.skew_ms -= ms

        host.clock.skew_ms += ms
        return back

    def _slow_down(self, node: SimulatedNode, factor: float) -> Undo:
        """Overlapping faults count by their maximum; their product would block the broker for an hour."""
        factors = self._slow[node.name]

        def back() -> None:
            factors.remove(factor)
            node.timing.slowness = max(factors, default=1.0)

        factors.append(factor)
        node.timing.slowness = max(factors)
        return back

    def _end_sessions(self, host: SimulatedHost) -> Undo | None:
        tree = self._cluster.tree
        sessions = [] if tree.is_down else tree.sessions_of(host.address)
        for session in sessions:
            tree.expire(session)
        return _nothing if sessions else None


def _durable_batches(node: SimulatedNode, *, newest_only: bool) -> Iterator[tuple[str, int, int]]:
    """File, position and size of the batches below the node's recovery points; with `newest_only` only those in the
    segments that contain a recovery point.
    """
    with node.files.operations.without_trouble():
        for folder in node.data_folders:
            yield from _durable_batches_in(node.files, folder, newest_only=newest_only)


def _durable_batches_in(files: SimulatedFiles, parent: str, *, newest_only: bool) -> Iterator[tuple[str, int, int]]:
    try:
        known = read_offsets(files, f"{parent}/{RECOVERY_POINT_FILE}")
    except (FileNotFoundError, CheckpointError):
        return
    for (topic, index), recovery_point in sorted(known.items()):
        folder = f"{parent}/{topic}-{index}"
        names = sorted(files.list_folder(folder)) if files.exists(folder) else []
        logs = [name for name in names if name.endswith(LOG_SUFFIX)]
        if newest_only:
            logs = [name for name in logs if int(name.removesuffix(LOG_SUFFIX)) <= recovery_point][-1:]
        for path in (f"{folder}/{name}" for name in logs):
            file = files.open(path, writable=False)
            headers = scan(file.read_at(0, file.size()), verify=False).headers
            file.close()
            yield from ((path, each.position, each.size) for each in headers if each.next_offset <= recovery_point)


def _nothing() -> None:
    """The end of an instantaneous fault."""
