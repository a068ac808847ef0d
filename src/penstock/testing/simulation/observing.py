"""Watching the real objects of all brokers of a run.

An `Observer` is told of every write, flush, cut and watermark of every partition's log where it happens, looks at the
broker's simulated disk whenever the broker says that something is durable, and looks at the roles of all partitions on
a virtual tick.

It changes nothing, and draws nothing from the seed: a run is the same with it and without. What it finds ends the run.
A log that a process opens is read from the disk once; from then on what is written is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple
from unittest import mock

from penstock.broker.broker import Broker
from penstock.broker.membership import Membership
from penstock.cluster import paths
from penstock.cluster.layout import decode_partition_state
from penstock.log.folders.metadata_files import MetadataFileError, read_topic_id
from penstock.log.partition_log import PartitionLog
from penstock.records import BatchHeader, scan
from penstock.replication.leadership import Leadership
from penstock.replication.partition import Partition
from penstock.testing.simulated_disk import FileNode
from penstock.testing.simulated_files import SimulatedFiles
from penstock.testing.simulation.cluster import SimulatedCluster
from penstock.testing.simulation.history import Place
from penstock.testing.simulation.ledger import Batch, Ledger, Replica
from penstock.testing.simulation.scheduler import SimulationFailed

TICK_S: Final = 0.0075


class InvariantBroken(SimulationFailed):
    """Something that must hold at every moment does not."""


class DiskView:
    """The batches of one log that its disk would still hold if the power went now: under names that are durable, in
    bytes that are, with checksums that are right. They are kept in the `held` of a replica.

    A look reads what was added since the last one; a file whose durable bytes changed otherwise is read anew.
    """

    class _File(NamedTuple):
        node: FileNode
        rewrites: int
        end: int
        """Up to where whole batches were found."""
        offsets: tuple[int, ...]

    def __init__(self, files: SimulatedFiles, replica: Replica) -> None:
        self._files = files
        self._replica = replica
        self._seen: dict[str, DiskView._File] = {}

    def look(self, log: PartitionLog) -> None:
        paths = [log.segment_at(index).path for index in range(log.segment_count)]
        for path in [path for path in self._seen if path not in paths]:
            self._forget(path)
        for path in paths:
            node = self._files.durable_file(path)
            seen = self._seen.get(path)
            if seen is not None and (seen.node is not node or seen.rewrites != node.rewrites):
                self._forget(path)
                seen = None
            if node is not None and (seen is None or seen.end < node.durable.size):
                self._read(path, node, seen)

    def _read(self, path: str, node: FileNode, seen: _File | None) -> None:
        start = 0 if seen is None else seen.end
        data = node.durable.read(start, node.durable.size - start)
        offsets = [] if seen is None else list(seen.offsets)
        position = 0
        while True:
            found = scan(data, position)
            for header in found.headers:
                self._replica.held[header.base_offset] = _batch(header)
                offsets.append(header.base_offset)
            # A batch of which a bit has flipped is not held; those behind it are, if it says where they begin.
            damaged = scan(data, found.end, verify=False, most=1)
            position = damaged.end
            if not damaged.headers:
                break
        self._seen[path] = self._File(node, node.rewrites, start + position, tuple(offsets))

    def _forget(self, path: str) -> None:
        for offset in self._seen.pop(path).offsets:
            self._replica.held.pop(offset, None)


class Watched(NamedTuple):
    """A log of a process, and what is known of it."""

    log: PartitionLog
    ledger: Ledger
    replica: Replica
    disk: DiskView


class Observer:
    """Of one cluster, for one run."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.ledgers: dict[tuple[str, int, bytes], Ledger] = {}
        self.newest: dict[Place, Ledger] = {}
        self.checks = 0
        self._cluster = cluster
        self._replicas: dict[int, Watched] = {}
        self._may_forget = False

    # --- what it is told

    def complain(self, sentence: str | None) -> None:
        self.checks += 1
        if sentence is not None:
            self._cluster.trace.tell("invariant", sentence)
            self._cluster.scheduler.fail(InvariantBroken(sentence))

    def forgetting(self) -> None:
        """From now on, what topics that do not sync have acknowledged may be lost."""
        self._may_forget = True
        for ledger in self.ledgers.values():
            ledger.may_forget = True

    def acknowledged(self, place: Place, offset: int) -> None:
        ledger = self.newest.get(place)
        if ledger is not None:
            self.complain(ledger.shown(offset, "a producer is told of"))

    def read(self, place: Place, offset: int) -> None:
        ledger = self.newest.get(place)
        if ledger is not None:
            self.complain(ledger.shown(offset, "a consumer is given"))

    def written(self, log: PartitionLog, headers: Sequence[BatchHeader]) -> None:
        found = self._find(log, before=headers[0].base_offset)
        if found is not None:
            for header in headers:
                self.complain(found.ledger.appended(found.replica, _batch(header)))

    def flushed(self, log: PartitionLog) -> None:
        found = self._find(log)
        if found is not None and log.files.exists(log.active.path):  # else it is deleted, and under another name
            found.disk.look(log)
            self.complain(found.ledger.flushed(found.replica, log.flushed_offset))

    def cut(self, log: PartitionLog) -> None:
        found = self._find(log)
        if found is not None:
            self.complain(found.ledger.cut(found.replica, log.log_end_offset, is_in_sync=self._is_in_sync(log)))

    def advanced(self, partition: Partition) -> None:
        found, leadership = self._find(partition.log), partition.leadership
        if found is not None and leadership is not None:
            self._judge_leader(partition, leadership, found.ledger, found.replica)

    # --- what it looks at

    def tick(self) -> None:
        ready = {
            node.broker_id: node.broker for node in self._cluster.nodes if node.broker is not None and node.is_ready
        }
        epochs = {broker_id: _epoch(broker) for broker_id, broker in ready.items()}
        replicas = self._replicas
        for broker in ready.values():
            for partition in broker.replicas:
                log = partition.log
                found = replicas.get(id(log)) or self._find(log)
                if found is None:
                    continue
                high = log.high_watermark
                if not log.log_start_offset <= log.last_stable_offset <= high <= log.log_end_offset:
                    self._complain_of_order(log, found.ledger, found.replica)
                leadership = partition.leadership
                if leadership is not None and log.failure is None:
                    self._judge_leader(partition, leadership, found.ledger, found.replica)
                    if found.ledger.syncs:
                        known = broker.replicas.brokers
                        for broker_id in leadership.isr:
                            if broker_id in ready and known.get(broker_id) == epochs[broker_id]:
                                self._judge_follower(partition, high, found.ledger, ready[broker_id])
        self._cluster.network.kernel.call_later(TICK_S, self.tick)

    def _complain_of_order(self, log: PartitionLog, ledger: Ledger, replica: Replica) -> None:
        self.complain(
            f"{ledger.name}: {replica.broker} has log start {log.log_start_offset}, last stable offset "
            f"{log.last_stable_offset}, watermark {log.high_watermark}, log end {log.log_end_offset}"
        )

    def _judge_leader(self, partition: Partition, leadership: Leadership, ledger: Ledger, replica: Replica) -> None:
        high = partition.log.high_watermark
        if leadership.epoch == replica.led_epoch and high == replica.watermark:
            self.checks += 2  # both were looked at as they are now
            return
        demanded = min(partition.min_insync_replicas, len(leadership.replicas))
        self.complain(ledger.led(replica, leadership.epoch))
        names = [node.name for node in self._cluster.nodes if node.broker_id in leadership.isr]
        self.complain(ledger.advanced(replica, high, demanded, names))

    def _judge_follower(self, partition: Partition, high: int, ledger: Ledger, broker: Broker) -> None:
        """Who is in sync has all that is below the watermark, as far as the leader knows of this life of it."""
        theirs = broker.replicas.get(partition.topic, partition.index)
        if theirs is None or theirs is partition or theirs.log.failure is not None:
            return
        found = self._replicas.get(id(theirs.log)) or self._find(theirs.log)
        if found is not None and found.ledger is ledger:
            self.complain(ledger.lacking(found.replica, high, "is in sync"))

    def leaders(self) -> Iterator[tuple[Ledger, Replica]]:
        """Whoever leads now."""
        for node in self._cluster.nodes:
            for partition in () if node.broker is None or not node.is_ready else node.broker.replicas:
                found = self._find(partition.log) if partition.leadership is not None else None
                if found is not None:
                    yield found.ledger, found.replica

    def _is_in_sync(self, log: PartitionLog) -> bool:
        """Whether the tree counts the log's broker among those in sync."""
        node = next((each for each in self._cluster.nodes if each.files is log.files), None)
        topic, _, index = log.folder.rpartition("/")[2].rpartition("-")
        path = paths.partition_state(topic, int(index))
        stored = self._cluster.tree.state.node(path)
        if node is None or stored is None:
            return False
        return node.broker_id in decode_partition_state(path, stored.data).isr

    # --- logs

    def _find(self, log: PartitionLog, before: int | None = None) -> Watched | None:
        found = self._replicas.get(id(log))
        if found is None:
            node = next((each for each in self._cluster.nodes if each.files is log.files), None)
            if node is None or not log.files.exists(log.active.path):
                return None  # of nobody, or deleted while its first flush was under way
            replica = Replica(node.name, node.lives, _stored(log, before))
            ledger = self._ledger(log)
            disk = DiskView(node.files, replica)
            disk.look(log)
            replica.flushed = min(log.flushed_offset, replica.end)
            ledger.met(replica)
            # The log is kept: another one might get its id.
            found = self._replicas[id(log)] = Watched(log, ledger, replica, disk)
        return found

    def _ledger(self, log: PartitionLog) -> Ledger:
        name = log.folder.rpartition("/")[2]
        topic, _, index = name.rpartition("-")
        try:
            topic_id = read_topic_id(log.files, log.folder) or b""
        except MetadataFileError:
            topic_id = b""
        key = topic, int(index), topic_id
        ledger = self.ledgers.get(key)
        if ledger is None:
            ledger = Ledger(name, syncs=log.settings.sync_before_ack)
            ledger.may_forget = self._may_forget
            self.ledgers[key] = self.newest[Place(topic, int(index))] = ledger
        return ledger


def _epoch(broker: Broker) -> int | None:
    """Of this life of a broker of several."""
    cluster = broker.cluster
    return cluster.broker_epoch if isinstance(cluster, Membership) else None


def _batch(header: BatchHeader) -> Batch:
    producer = None
    if header.producer_id >= 0 and not header.is_control:
        producer = header.producer_id, header.producer_epoch, header.base_sequence
    return Batch(header.base_offset, header.next_offset, header.leader_epoch, header.crc, producer)


def _stored(log: PartitionLog, before: int | None) -> Iterator[Batch]:
    """The batches of a log as its files have them, those below `before`."""
    for index in range(log.segment_count):
        segment = log.segment_at(index)
        data = segment.file.read_at(0, segment.size)
        for header in scan(data, verify=False).headers:
            if before is None or header.base_offset < before:
                yield _batch(header)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """The real classes tell the observer what happens, for the time of a run."""
    told: list[tuple[type, str, Callable[[Any, tuple[Any, ...]], None]]] = [
        (PartitionLog, "_write", lambda log, given: observer.written(log, given[1])),
        (PartitionLog, "complete_flush", lambda log, given: observer.flushed(log)),
        (PartitionLog, "after_truncation", lambda log, given: observer.cut(log)),
        (Partition, "_advance", lambda partition, given: observer.advanced(partition)),
    ]
    with ExitStack() as stack:
        for owner, name, tell in told:
            stack.enter_context(mock.patch.object(owner, name, _telling(getattr(owner, name), tell)))
        yield


def _telling(real: Callable[..., Any], tell: Callable[[Any, tuple[Any, ...]], None]) -> Callable[..., Any]:
    def call(owner: Any, *given: Any, **named: Any) -> Any:
        result = real(owner, *given, **named)
        tell(owner, given)
        return result

    return call
