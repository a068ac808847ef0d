"""Watches the real objects of all brokers of a run and reports what breaks an invariant.

The `Observer` sees every write, flush, truncation and high watermark of every log, looks at the simulated disk
whenever a broker calls something durable, and checks the roles of all partitions on a virtual tick. It changes nothing
and draws nothing from the seed, so a run is the same with and without it. A violation ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple, cast
from unittest import mock

from penstock.broker.broker import Broker
from penstock.client.consumer.coordinator import Commits
from penstock.client.errors import GroupError
from penstock.client.offset_stores.base import NO_MEMBER, OffsetAndMetadata
from penstock.client.offset_stores.base import Membership as Committer
from penstock.client.offset_stores.broker import BrokerOffsetStore
from penstock.cluster.membership.broker_lifecycle import Membership
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import UNKNOWN_EPOCH, PartitionState, decode_partition_state
from penstock.cluster.tree.tree import Create, Operation, Set
from penstock.log.log_dirs.identity import MetadataFileError, read_topic_id
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import LOG_SUFFIX, segment_name
from penstock.records import BatchHeader, scan
from penstock.replication.isr import Leadership
from penstock.replication.partition import Partition
from penstock.testing.simulated_disk import FileNode
from penstock.testing.simulated_files import SimulatedFiles
from penstock.testing.simulation.cleanup import CLEANED
from penstock.testing.simulation.cluster import SimulatedCluster, SimulatedNode
from penstock.testing.simulation.cluster_checks import PARTITION_STATE
from penstock.testing.simulation.history import History, Place
from penstock.testing.simulation.partition_model import Batch, PartitionModel, ReplicaModel
from penstock.testing.simulation.scheduler import SimulationFailed
from penstock.testing.simulation.workload import GROUP

TICK_S: Final = 0.0075
LATE_REJECTION: Final = "commit of an old generation rejected after the member had joined again"


class InvariantBroken(SimulationFailed):
    """An invariant does not hold."""


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

    def __init__(self, files: SimulatedFiles, replica: ReplicaModel) -> None:
        self._files = files
        self._replica = replica
        self._seen: dict[str, DiskView._File] = {}

    def look(self, log: PartitionLog) -> None:
        paths = [path for path, _ in _segments(log)]
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
    ledger: PartitionModel
    replica: ReplicaModel
    disk: DiskView


class Observer:
    """Of one cluster, for one run."""

    def __init__(self, cluster: SimulatedCluster, history: History | None = None) -> None:
        """With a `history` it judges what clients are told, and tells the history what is excused."""
        self.history = History() if history is None else history
        self.history.on_acknowledged = self.acknowledged
        self.history.on_read = self.read
        self.ledgers: dict[tuple[str, int, bytes], PartitionModel] = {}
        self.newest: dict[Place, PartitionModel] = {}
        self.checks = 0
        self._cluster = cluster
        self._replicas: dict[int, Watched] = {}

    # --- what it is told

    def complain(self, sentence: str | None) -> None:
        self.checks += 1
        if sentence is not None:
            self._cluster.trace.tell("invariant", sentence)
            self._cluster.scheduler.fail(InvariantBroken(sentence))

    def acknowledged(self, place: Place, offset: int) -> None:
        ledger = self.newest.get(place)
        if ledger is not None:
            self.complain(ledger.shown(offset, "a producer gets"))

    def read(self, place: Place, offset: int) -> None:
        ledger = self.newest.get(place)
        if ledger is not None:
            self.complain(ledger.shown(offset, "a consumer gets"))

    def crashed(self, node: SimulatedNode) -> None:
        """A process was killed, a machine lost power or its disk: only what is synced is sure to be there."""
        for place, ledger in self.newest.items():
            if not ledger.syncs and ledger.crashed(node.name, self._trusted(self._state(place))):
                self._lost(place, ledger)

    def disk_damaged(self, files: SimulatedFiles) -> None:
        """Not even what is synced is sure to be there, though its broker may have stopped in good order before."""
        for node in self._cluster.nodes:
            if node.files is files:
                self.crashed(node)

    def tree_changes(self, operations: Sequence[Operation]) -> None:
        """The metadata is about to become this: who joins the ISR has all that is committed, whatever it had lost."""
        for operation in operations:
            match = PARTITION_STATE.fullmatch(operation.path)
            place = None if match is None else Place(match[1], int(match[2]))
            ledger = None if place is None else self.newest.get(place)
            if place is None or ledger is None or ledger.syncs or not isinstance(operation, Create | Set):
                continue
            before, after = self._state(place), decode_partition_state(operation.path, operation.data)
            joined = set(after.isr) - set(() if before is None else before.isr)
            if before is None or after.leader_epoch > before.leader_epoch:
                joined.add(after.leader)  # whatever it has is what is committed, unless it lacks something
            registered = {node.broker_id: node.name for node in self._cluster.nodes if _is_registered(node)}
            ledger.doubted -= {registered[broker] for broker in joined if broker in registered}
            if ledger.is_lost(self._trusted(after)):
                self._lost(place, ledger)

    def _lost(self, place: Place, ledger: PartitionModel) -> None:
        if ledger.committed_end or place not in self.history.losses:
            self._cluster.trace.note("observer", f"{place} is lost up to {ledger.committed_end}")
            self.history.lost(place, ledger.committed_end)
            ledger.lose()

    def _state(self, place: Place) -> PartitionState | None:
        path = layout.partition_state_path(*place)
        stored = self._cluster.tree.state.node(path)
        return None if stored is None else decode_partition_state(path, stored.data)

    def _trusted(self, state: PartitionState | None) -> set[str]:
        """By name, who is known to have all that is committed."""
        known = () if state is None else (*state.isr, *state.elr)
        return {node.name for node in self._cluster.nodes if node.broker_id in known}

    def committed(self, group: str, offsets: Mapping[Any, OffsetAndMetadata], least: Mapping[Place, int]) -> None:
        if group == GROUP:
            told = [(Place(*each), stored.offset) for each, stored in offsets.items()]
            self.history.commit_acknowledged(told, least)

    def commit_rejected(self, committer: Committer, commits: Commits | None) -> None:
        """If the member has joined anew since it sent the commit, that says nothing of its place in the group now."""
        if commits is not None and commits.committer != committer:
            self._cluster.trace.count(LATE_REJECTION)

    def written(self, log: PartitionLog, headers: Sequence[BatchHeader]) -> None:
        found = self._find(log, before=headers[0].base_offset)
        if found is not None:
            for header in headers:
                self.complain(found.ledger.appended(found.replica, _batch(header)))

    def flushed(self, log: PartitionLog) -> None:
        found = self._find(log)
        if found is not None and _file(log, log.active.path) is not None:  # else it is deleted, under another name
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

    def _complain_of_order(self, log: PartitionLog, ledger: PartitionModel, replica: ReplicaModel) -> None:
        self.complain(
            f"{ledger.name}: {replica.broker} has log start {log.log_start_offset}, last stable offset "
            f"{log.last_stable_offset}, high watermark {log.high_watermark}, log end {log.log_end_offset}"
        )

    def _judge_leader(
        self, partition: Partition, leadership: Leadership, ledger: PartitionModel, replica: ReplicaModel
    ) -> None:
        high = partition.log.high_watermark
        if leadership.epoch == replica.led_epoch and high == replica.watermark:
            self.checks += 2  # both were looked at as they are now
            return
        demanded = min(partition.min_insync_replicas, len(leadership.replicas))
        self.complain(ledger.led(replica, leadership.epoch))
        names = [node.name for node in self._cluster.nodes if node.broker_id in leadership.isr]
        self.complain(ledger.advanced(replica, high, demanded, names))

    def _judge_follower(self, partition: Partition, high: int, ledger: PartitionModel, broker: Broker) -> None:
        """Who is in sync has all that is below the watermark, as far as the leader knows of this life of it."""
        theirs = broker.replicas.get(partition.topic, partition.index)
        if theirs is None or theirs is partition or theirs.log.failure is not None:
            return
        found = self._replicas.get(id(theirs.log)) or self._find(theirs.log)
        if found is not None and found.ledger is ledger:
            self.complain(ledger.lacking(found.replica, high, "is in sync"))

    def leaders(self) -> Iterator[tuple[PartitionModel, ReplicaModel]]:
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
        state = self._state(Place(topic, int(index)))
        return node is not None and state is not None and node.broker_id in state.isr

    # --- logs

    def _find(self, log: PartitionLog, before: int | None = None) -> Watched | None:
        found = self._replicas.get(id(log))
        if found is None:
            if log.folder.rpartition("/")[2].rpartition("-")[0] in CLEANED:
                return None  # those have rules of their own
            node = next((each for each in self._cluster.nodes if each.files is log.files), None)
            if node is None or _file(log, log.active.path) is None:
                return None  # of nobody, or deleted while its first flush was under way
            replica = ReplicaModel(node.name, node.lives, _stored(log, before))
            ledger = self._ledger(log)
            disk = DiskView(node.files, replica)
            disk.look(log)
            replica.flushed = min(log.flushed_offset, replica.end)
            ledger.met(replica)
            # The log is kept: another one might get its id.
            found = self._replicas[id(log)] = Watched(log, ledger, replica, disk)
        return found

    def _ledger(self, log: PartitionLog) -> PartitionModel:
        name = log.folder.rpartition("/")[2]
        topic, _, index = name.rpartition("-")
        try:
            with cast("SimulatedFiles", log.files).operations.without_trouble():
                topic_id = read_topic_id(log.files, log.folder) or b""
        except MetadataFileError:
            topic_id = b""
        key = topic, int(index), topic_id
        ledger = self.ledgers.get(key)
        if ledger is None:
            ledger = PartitionModel(name, syncs=log.settings.sync_before_ack)
            self.ledgers[key] = self.newest[Place(topic, int(index))] = ledger
        return ledger


def _epoch(broker: Broker) -> int | None:
    """Of this life of a broker of several."""
    cluster = getattr(broker, "cluster", None)  # a broker that begins to start has none
    return cluster.broker_epoch if isinstance(cluster, Membership) else None


def _is_registered(node: SimulatedNode) -> bool:
    """Whether the cluster knows of this life of the broker, so that what it is said to have is said of this life."""
    if node.is_ready or not node.is_alive or node.broker is None:
        return node.is_ready
    return _epoch(node.broker) not in (None, UNKNOWN_EPOCH)


def _batch(header: BatchHeader) -> Batch:
    producer = None
    if header.producer_id >= 0 and not header.is_control:
        producer = header.producer_id, header.producer_epoch, header.base_sequence
    return Batch(header.base_offset, header.next_offset, header.leader_epoch, header.crc, producer)


def _file(log: PartitionLog, path: str) -> FileNode | None:
    """As it is in the page cache."""
    return cast("SimulatedFiles", log.files).watched_file(path)


def _segments(log: PartitionLog) -> list[tuple[str, int]]:
    """Paths and sizes of a log's segments, none of which is opened for it."""
    table, active = log.table, log.active
    sealed = zip(table.bases, table.sizes, strict=True)
    return [
        *((f"{log.folder}/{segment_name(base)}{LOG_SUFFIX}", size) for base, size in sealed),
        (active.path, active.size),
    ]


def _stored(log: PartitionLog, before: int | None) -> Iterator[Batch]:
    """The batches of a log as its files have them, those below `before`."""
    for path, size in _segments(log):
        node = _file(log, path)
        data = b"" if node is None else node.cached.read(0, size)
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
        (Partition, "advance", lambda partition, given: observer.advanced(partition)),
        (SimulatedNode, "replace_disk", lambda node, given: observer.crashed(node)),
        (SimulatedFiles, "corrupt", lambda files, given: observer.disk_damaged(files)),
        (SimulatedFiles, "wipe", lambda files, given: observer.disk_damaged(files)),
    ]
    replaced: list[tuple[type, str, Callable[..., Any]]] = [
        (owner, name, _telling(getattr(owner, name), tell)) for owner, name, tell in told
    ]
    ends = ("crash", "lose_power_with")
    replaced += [(SimulatedNode, name, _ending(getattr(SimulatedNode, name), observer)) for name in ends]
    consumers: dict[BrokerOffsetStore, Commits] = {}
    own = _telling(Commits.__init__, lambda commits, given: consumers.__setitem__(given[0], commits))
    replaced.append((Commits, "__init__", own))
    replaced.append((BrokerOffsetStore, "save", _saving(BrokerOffsetStore.save, observer, consumers)))
    replaced.append((BrokerOffsetStore, "load", _loading(BrokerOffsetStore.load, observer)))
    with ExitStack() as stack:
        for owner, name, call in replaced:
            stack.enter_context(mock.patch.object(owner, name, call))
        yield


def _telling(real: Callable[..., Any], tell: Callable[[Any, tuple[Any, ...]], None]) -> Callable[..., Any]:
    def call(owner: Any, *given: Any, **named: Any) -> Any:
        result = real(owner, *given, **named)
        tell(owner, given)
        return result

    return call


def _ending(real: Callable[..., None], observer: Observer) -> Callable[..., None]:
    def end(node: SimulatedNode, *given: Any) -> None:
        was_alive = node.is_alive  # a process that has stopped in good order has synced everything
        real(node, *given)
        if was_alive:
            observer.crashed(node)

    return end


def _saving(
    real: Callable[..., Any], observer: Observer, consumers: Mapping[BrokerOffsetStore, Commits]
) -> Callable[..., Any]:
    async def save(
        store: BrokerOffsetStore, group: str, offsets: Mapping[Any, OffsetAndMetadata], committer: Committer = NO_MEMBER
    ) -> None:
        least = dict(observer.history.committed)
        try:
            await real(store, group, offsets, committer)
        except GroupError:
            observer.commit_rejected(committer, consumers.get(store))
            raise
        observer.committed(group, offsets, least)

    return save


def _loading(real: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    async def load(store: BrokerOffsetStore, group: str, partitions: Iterable[Any]) -> dict[Any, OffsetAndMetadata]:
        wanted, history = list(partitions), observer.history
        committed = history.committed if group == GROUP else {}
        least = {place: committed[place] for place in (Place(*each) for each in wanted) if place in committed}
        found: dict[Any, OffsetAndMetadata] = await real(store, group, wanted)
        history.committed_offsets_read(least, {Place(*each): stored.offset for each, stored in found.items()})
        return found

    return load
