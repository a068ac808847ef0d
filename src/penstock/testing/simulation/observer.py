"""Observes the real brokers of a run and reports violations of invariants.

The `Observer` sees every write, flush, truncation and high watermark of every log, reads the simulated disk whenever a
broker reports records as durable, and checks leaders and followers of all partitions on a virtual tick. It changes
nothing and draws nothing from the seed, so a run is the same with and without it. A violation ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple, cast
from unittest import mock

from penstock.broker.broker import Broker
from penstock.client.cluster_metadata import TopicPartition
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
from penstock.testing.simulation.history import History
from penstock.testing.simulation.partition_model import Batch, PartitionModel, ReplicaModel
from penstock.testing.simulation.scheduler import SimulationFailed
from penstock.testing.simulation.workload import GROUP

TICK_S: Final = 0.0075
LATE_REJECTION: Final = "commit of an old generation rejected after the member had joined again"
RELOCATED: Final = "replica moved to another data folder"


class InvariantBroken(SimulationFailed):
    """An invariant does not hold."""


class DiskView:
    """The batches of one log that its disk would hold after a power loss now: the file name and the bytes are durable,
    and the checksum is right. They are kept in the `held` of a replica.

    `update` reads what was added since the last call. A file whose durable bytes changed otherwise is read again from
    the start.
    """

    class _File(NamedTuple):
        node: FileNode
        rewrites: int
        end: int
        """The end of the last whole batch."""
        offsets: tuple[int, ...]

    def __init__(self, files: SimulatedFiles, replica: ReplicaModel) -> None:
        self._files = files
        self._replica = replica
        self._seen: dict[str, DiskView._File] = {}

    def update(self, log: PartitionLog) -> None:
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
            # A batch with a flipped bit is not held. Those behind it are, if its header still says where they begin.
            damaged = scan(data, found.end, verify=False, most=1)
            position = damaged.end
            if not damaged.headers:
                break
        self._seen[path] = self._File(node, node.rewrites, start + position, tuple(offsets))

    def _forget(self, path: str) -> None:
        for offset in self._seen.pop(path).offsets:
            self._replica.held.pop(offset, None)


class ObservedLog(NamedTuple):
    """An open log and its models."""

    log: PartitionLog
    model: PartitionModel
    replica: ReplicaModel
    disk: DiskView


class Observer:
    """Observes one cluster for one run."""

    def __init__(self, cluster: SimulatedCluster, history: History | None = None) -> None:
        """Checks the responses that `history` records, and reports to it which records are lost and thus excused."""
        self.history = History() if history is None else history
        self.history.on_acknowledged = self.acknowledged
        self.history.on_read = self.read
        self.models: dict[tuple[str, int, bytes], PartitionModel] = {}
        self.latest: dict[TopicPartition, PartitionModel] = {}
        self.checks = 0
        self._cluster = cluster
        self._logs: dict[int, ObservedLog] = {}

    # --- events

    def report(self, sentence: str | None) -> None:
        self.checks += 1
        if sentence is not None:
            self._cluster.trace.log("invariant", sentence)
            self._cluster.scheduler.fail(InvariantBroken(sentence))

    def acknowledged(self, partition: TopicPartition, offset: int) -> None:
        model = self.latest.get(partition)
        if model is not None:
            self.report(model.served(offset, "a producer gets"))

    def read(self, partition: TopicPartition, offset: int) -> None:
        model = self.latest.get(partition)
        if model is not None:
            self.report(model.served(offset, "a consumer gets"))

    def crashed(self, node: SimulatedNode) -> None:
        """A process was killed, or a machine lost power or its disk. Only what was synced is sure to be there."""
        for partition, model in self.latest.items():
            if not model.syncs and model.crashed(node.name, self._trusted(self._state(partition))):
                self._lost(partition, model)

    def disk_damaged(self, files: SimulatedFiles) -> None:
        """Not even synced data is sure to be there, although the broker may have stopped cleanly before."""
        for node in self._cluster.nodes:
            if node.files is files:
                self.crashed(node)

    def tree_changes(self, operations: Sequence[Operation]) -> None:
        """The metadata is about to change. A replica that joins the ISR has everything committed, whatever it lost."""
        for operation in operations:
            match = PARTITION_STATE.fullmatch(operation.path)
            partition = None if match is None else TopicPartition(match[1], int(match[2]))
            model = None if partition is None else self.latest.get(partition)
            if partition is None or model is None or model.syncs or not isinstance(operation, Create | Set):
                continue
            before, after = self._state(partition), decode_partition_state(operation.path, operation.data)
            joined = set(after.isr) - set(() if before is None else before.isr)
            if before is None or after.leader_epoch > before.leader_epoch:
                joined.add(after.leader)  # a new leader has everything committed; `led` checks that
            registered = {node.broker_id: node.name for node in self._cluster.nodes if _is_registered(node)}
            model.unclean -= {registered[broker] for broker in joined if broker in registered}
            if model.is_lost(self._trusted(after)):
                self._lost(partition, model)

    def _lost(self, partition: TopicPartition, model: PartitionModel) -> None:
        if model.committed_end:  # else there was nothing to lose
            self._cluster.trace.note("observer", f"{partition} is lost up to {model.committed_end}")
            self.history.lost(partition, model.committed_end)
            model.lose()

    def _state(self, partition: TopicPartition) -> PartitionState | None:
        path = layout.partition_state_path(*partition)
        stored = self._cluster.tree.state.node(path)
        return None if stored is None else decode_partition_state(path, stored.data)

    def _trusted(self, state: PartitionState | None) -> set[str]:
        """The names of the brokers that are known to have everything committed: the ISR and the ELR."""
        known = () if state is None else (*state.isr, *state.elr)
        return {node.name for node in self._cluster.nodes if node.broker_id in known}

    def committed(
        self, group: str, offsets: Mapping[Any, OffsetAndMetadata], known: Mapping[TopicPartition, int]
    ) -> None:
        if group == GROUP:
            commits = [(TopicPartition(*each), stored.offset) for each, stored in offsets.items()]
            self.history.commit_acknowledged(commits, known)

    def commit_rejected(self, committer: Committer, commits: Commits | None) -> None:
        """Count rejections of a commit that the member sent before it joined the group again. They do not concern its
        present membership.
        """
        if commits is not None and commits.committer != committer:
            self._cluster.trace.count(LATE_REJECTION)

    def written(self, log: PartitionLog, headers: Sequence[BatchHeader]) -> None:
        found = self._find(log, before=headers[0].base_offset)
        if found is not None:
            for header in headers:
                self.report(found.model.appended(found.replica, _batch(header)))

    def flushed(self, log: PartitionLog) -> None:
        found = self._find(log)
        # Without a file the log is being deleted, under another name.
        if found is not None and _file(log, log.active.path) is not None:
            found.disk.update(log)
            self.report(found.model.flushed(found.replica, log.flushed_offset))

    def relocated(self, log: PartitionLog) -> None:
        self._cluster.trace.count(RELOCATED)
        found = self._logs.get(id(log))
        if found is not None:
            before = dict(found.replica.held)
            found.disk.update(log)
            self.report(found.model.relocated(found.replica, before))

    def truncated(self, log: PartitionLog) -> None:
        found = self._find(log)
        if found is not None:
            self.report(found.model.truncated(found.replica, log.log_end_offset, is_in_sync=self._is_in_sync(log)))

    def advanced(self, partition: Partition) -> None:
        found, leadership = self._find(partition.log), partition.leadership
        if found is not None and leadership is not None:
            self._check_leader(partition, leadership, found.model, found.replica)

    # --- checks on a tick

    def tick(self) -> None:
        ready = {
            node.broker_id: node.broker for node in self._cluster.nodes if node.broker is not None and node.is_ready
        }
        epochs = {broker_id: _epoch(broker) for broker_id, broker in ready.items()}
        logs = self._logs
        for broker in ready.values():
            for partition in broker.replicas:
                log = partition.log
                found = logs.get(id(log)) or self._find(log)
                if found is None:
                    continue
                high = log.high_watermark
                if not log.log_start_offset <= log.last_stable_offset <= high <= log.log_end_offset:
                    self._report_disorder(log, found.model, found.replica)
                leadership = partition.leadership
                if leadership is not None and log.failure is None:
                    self._check_leader(partition, leadership, found.model, found.replica)
                    if found.model.syncs:
                        known = broker.replicas.brokers
                        for broker_id in leadership.isr:
                            if broker_id in ready and known.get(broker_id) == epochs[broker_id]:
                                self._check_follower(partition, high, found.model, ready[broker_id])
        self._cluster.network.kernel.call_later(TICK_S, self.tick)

    def _report_disorder(self, log: PartitionLog, model: PartitionModel, replica: ReplicaModel) -> None:
        self.report(
            f"{model.name}: {replica.broker} has log start {log.log_start_offset}, last stable offset "
            f"{log.last_stable_offset}, high watermark {log.high_watermark}, log end {log.log_end_offset}"
        )

    def _check_leader(
        self, partition: Partition, leadership: Leadership, model: PartitionModel, replica: ReplicaModel
    ) -> None:
        high = partition.log.high_watermark
        if leadership.epoch == replica.led_epoch and high == replica.watermark:
            self.checks += 2  # both are unchanged since the last check
            return
        required = min(partition.min_insync_replicas, len(leadership.replicas))
        self.report(model.led(replica, leadership.epoch))
        names = [node.name for node in self._cluster.nodes if node.broker_id in leadership.isr]
        self.report(model.advanced(replica, high, required, names))

    def _check_follower(self, partition: Partition, high: int, model: PartitionModel, broker: Broker) -> None:
        """An in-sync follower has everything below the high watermark, if the leader knows its current process."""
        theirs = broker.replicas.get(partition.topic, partition.index)
        if theirs is None or theirs is partition or theirs.log.failure is not None:
            return
        found = self._logs.get(id(theirs.log)) or self._find(theirs.log)
        if found is not None and found.model is model:
            self.report(model.missing(found.replica, high, "is in sync"))

    def leaders(self) -> Iterator[tuple[PartitionModel, ReplicaModel]]:
        """The current leaders."""
        for node in self._cluster.nodes:
            for partition in () if node.broker is None or not node.is_ready else node.broker.replicas:
                found = self._find(partition.log) if partition.leadership is not None else None
                if found is not None:
                    yield found.model, found.replica

    def _is_in_sync(self, log: PartitionLog) -> bool:
        """Whether the log's broker is in the ISR, by the metadata tree."""
        node = next((each for each in self._cluster.nodes if each.files is log.files), None)
        topic, _, index = log.folder.rpartition("/")[2].rpartition("-")
        state = self._state(TopicPartition(topic, int(index)))
        return node is not None and state is not None and node.broker_id in state.isr

    # --- logs

    def _find(self, log: PartitionLog, before: int | None = None) -> ObservedLog | None:
        found = self._logs.get(id(log))
        if found is None:
            if log.folder.rpartition("/")[2].rpartition("-")[0] in CLEANED:
                return None  # `cleanup` has the rules for these topics
            node = next((each for each in self._cluster.nodes if each.files is log.files), None)
            if node is None or _file(log, log.active.path) is None:
                return None  # a log of no broker, or deleted during its first flush
            replica = ReplicaModel(node.name, node.incarnation, _stored(log, before))
            model = self._model(log)
            disk = DiskView(node.files, replica)
            disk.update(log)
            replica.flushed = min(log.flushed_offset, replica.end)
            model.opened(replica)
            # The entry keeps the log alive, so that no other log gets its id().
            found = self._logs[id(log)] = ObservedLog(log, model, replica, disk)
        return found

    def _model(self, log: PartitionLog) -> PartitionModel:
        name = log.folder.rpartition("/")[2]
        topic, _, index = name.rpartition("-")
        try:
            with cast("SimulatedFiles", log.files).operations.without_trouble():
                topic_id = read_topic_id(log.files, log.folder) or b""
        except MetadataFileError:
            topic_id = b""
        key = topic, int(index), topic_id
        model = self.models.get(key)
        if model is None:
            model = PartitionModel(name, syncs=log.settings.sync_before_ack)
            self.models[key] = self.latest[TopicPartition(topic, int(index))] = model
        return model


def _epoch(broker: Broker) -> int | None:
    """The broker epoch of a broker in a cluster."""
    cluster = getattr(broker, "cluster", None)  # not set yet early in a start
    return cluster.broker_epoch if isinstance(cluster, Membership) else None


def _is_registered(node: SimulatedNode) -> bool:
    """Whether the broker's current process is registered, so that the metadata refers to this process."""
    if node.is_ready or not node.is_alive or node.broker is None:
        return node.is_ready
    return _epoch(node.broker) not in (None, UNKNOWN_EPOCH)


def _batch(header: BatchHeader) -> Batch:
    producer = None
    if header.base_sequence >= 0 and not header.is_control:
        producer = header.producer_id, header.producer_epoch, header.base_sequence
    return Batch(header.base_offset, header.next_offset, header.leader_epoch, header.crc, producer)


def _file(log: PartitionLog, path: str) -> FileNode | None:
    """The file, for its bytes in the page cache."""
    return cast("SimulatedFiles", log.files).watched_file(path)


def _segments(log: PartitionLog) -> list[tuple[str, int]]:
    """Paths and sizes of a log's segments. Opens none of them."""
    table, active = log.table, log.active
    sealed = zip(table.bases, table.sizes, strict=True)
    return [
        *((f"{log.folder}/{segment_name(base)}{LOG_SUFFIX}", size) for base, size in sealed),
        (active.path, active.size),
    ]


def _stored(log: PartitionLog, before: int | None) -> Iterator[Batch]:
    """The batches in a log's files, below offset `before`."""
    for path, size in _segments(log):
        node = _file(log, path)
        data = b"" if node is None else node.cached.read(0, size)
        for header in scan(data, verify=False).headers:
            if before is None or header.base_offset < before:
                yield _batch(header)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Patch the real classes so that they report to the observer."""
    reported: list[tuple[type, str, Callable[[Any, tuple[Any, ...]], None]]] = [
        (PartitionLog, "_write", lambda log, given: observer.written(log, given[1])),
        (PartitionLog, "complete_flush", lambda log, given: observer.flushed(log)),
        (PartitionLog, "relocate", lambda log, given: observer.relocated(log)),
        (PartitionLog, "after_truncation", lambda log, given: observer.truncated(log)),
        (Partition, "advance", lambda partition, given: observer.advanced(partition)),
        (SimulatedNode, "replace_disk", lambda node, given: observer.crashed(node)),
        (SimulatedFiles, "corrupt", lambda files, given: observer.disk_damaged(files)),
        (SimulatedFiles, "wipe", lambda files, given: observer.disk_damaged(files)),
    ]
    replaced: list[tuple[type, str, Callable[..., Any]]] = [
        (owner, name, _reporting(getattr(owner, name), report)) for owner, name, report in reported
    ]
    crashes = ("crash", "lose_power_with")
    replaced += [(SimulatedNode, name, _reporting_crash(getattr(SimulatedNode, name), observer)) for name in crashes]
    consumers: dict[BrokerOffsetStore, Commits] = {}
    register = _reporting(Commits.__init__, lambda commits, given: consumers.__setitem__(given[0], commits))
    replaced.append((Commits, "__init__", register))
    replaced.append((BrokerOffsetStore, "save", _checked_save(BrokerOffsetStore.save, observer, consumers)))
    replaced.append((BrokerOffsetStore, "load", _checked_load(BrokerOffsetStore.load, observer)))
    with ExitStack() as stack:
        for owner, name, call in replaced:
            stack.enter_context(mock.patch.object(owner, name, call))
        yield


def _reporting(real: Callable[..., Any], report: Callable[[Any, tuple[Any, ...]], None]) -> Callable[..., Any]:
    def call(owner: Any, *given: Any, **named: Any) -> Any:
        result = real(owner, *given, **named)
        report(owner, given)
        return result

    return call


def _reporting_crash(real: Callable[..., None], observer: Observer) -> Callable[..., None]:
    def crash(node: SimulatedNode, *given: Any) -> None:
        was_alive = node.is_alive  # a process that has stopped cleanly has synced everything
        real(node, *given)
        if was_alive:
            observer.crashed(node)

    return crash


def _checked_save(
    real: Callable[..., Any], observer: Observer, consumers: Mapping[BrokerOffsetStore, Commits]
) -> Callable[..., Any]:
    async def save(
        store: BrokerOffsetStore, group: str, offsets: Mapping[Any, OffsetAndMetadata], committer: Committer = NO_MEMBER
    ) -> None:
        known = dict(observer.history.committed)
        try:
            await real(store, group, offsets, committer)
        except GroupError:
            observer.commit_rejected(committer, consumers.get(store))
            raise
        observer.committed(group, offsets, known)

    return save


def _checked_load(real: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    async def load(store: BrokerOffsetStore, group: str, partitions: Iterable[Any]) -> dict[Any, OffsetAndMetadata]:
        wanted, history = list(partitions), observer.history
        committed = history.committed if group == GROUP else {}
        known = {
            partition: committed[partition]
            for partition in (TopicPartition(*each) for each in wanted)
            if partition in committed
        }
        found: dict[Any, OffsetAndMetadata] = await real(store, group, wanted)
        history.committed_offsets_read(known, {TopicPartition(*each): stored.offset for each, stored in found.items()})
        return found

    return load
