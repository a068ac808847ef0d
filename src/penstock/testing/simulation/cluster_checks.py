"""Checks on the cluster: every change of the metadata tree, and all replicas once the faults are over.

Topics, settings and partition states are changed only by the session that holds /controller, in its epoch (invariants
1 and 9 of a run). The leader epoch of a partition never falls, and an epoch has one leader. A leader is in the ISR,
and was in the ISR or eligible (KIP-966) before it was elected, unless all such replicas are lost and an unclean
election was requested. No eligible replica is in the ISR.

After the faults every partition has a live leader and a full ISR, no reassignment is in progress, and replicas are
equal byte for byte (invariants 2 and 11). Moves between data folders end, and leave a replica in one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import (
    NO_LEADER,
    PartitionAssignment,
    PartitionState,
    decode_controller_epoch,
    decode_partition_state,
    decode_topic,
)
from penstock.cluster.tree.tree import Check, Create, Delete, Operation, Set, TreeState
from penstock.log.partition_log import PartitionLog
from penstock.testing.simulation.cleanup import CLEANED
from penstock.testing.simulation.cluster import SimulatedCluster, SimulatedNode
from penstock.testing.simulation.scheduler import SimulationFailed

PARTITION_STATE: Final = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d+)/state")
_REPLICA: Final = re.compile(r"[^.]+-\d+")
"""The name of a replica's folder. Copies, deleted and set aside ones have a dot."""
_GUARDED: Final = tuple(
    f"{path}/" for path in (layout.TOPICS, layout.TOPIC_CONFIGS, layout.BROKER_CONFIGS, layout.DELETE_TOPICS)
)


class TreeAudit:
    """Checks every change of the metadata tree. `report` gets a sentence for each broken rule."""

    def __init__(self, state: TreeState, report: Callable[[str], None]) -> None:
        self._state = state
        self._report = report
        self.states = 0
        """Number of partition states checked."""

    def __call__(self, operations: Sequence[Operation], session: int) -> None:
        for operation in operations:
            if isinstance(operation, Check):
                continue
            if operation.path.startswith(_GUARDED):
                self._check_writer(operation, session)
            match = PARTITION_STATE.fullmatch(operation.path)
            if match is not None and isinstance(operation, Create | Set):
                self.states += 1
                self._check_state(f"{match[1]}-{match[2]}", operation)

    def _check_writer(self, operation: Create | Set | Delete, session: int) -> None:
        controller = self._state.node(layout.CONTROLLER)
        if controller is None or controller.owner != session:
            holder = "none" if controller is None else f"session {controller.owner or 0:x}"
            self._report(f"session {session:x} changes {operation.path}, but the controller is {holder}")

    def _check_state(self, name: str, operation: Create | Set) -> None:
        after = decode_partition_state(operation.path, operation.data)
        node = self._state.node(operation.path)
        before = None if node is None or isinstance(operation, Create) else decode_partition_state(name, node.data)
        epoch = self._state.node(layout.CONTROLLER_EPOCH)
        if epoch is not None and after.controller_epoch != decode_controller_epoch(epoch.data):
            self._report(f"{name}: written in controller epoch {after.controller_epoch}, which is over")
        for problem in _contradictions(before, after):
            self._report(f"{name}: {problem}: {before} becomes {after}")


def _contradictions(before: PartitionState | None, after: PartitionState) -> list[str]:
    found = []
    if not after.isr:
        found.append("the ISR is empty")
    if after.leader != NO_LEADER and after.leader not in after.isr:
        found.append("the leader is not in the ISR")
    if set(after.elr) & set(after.isr):
        found.append("a replica is in the ISR and in the ELR")
    if before is None:
        return found
    if after.leader_epoch < before.leader_epoch:
        found.append("the leader epoch falls")
    elif after.leader_epoch == before.leader_epoch and after.leader != before.leader:
        found.append("the epoch has another leader")
    is_lost = before.leader == NO_LEADER and before.recovering
    if after.leader not in (NO_LEADER, before.leader, *before.isr, *before.elr) and not is_lost:
        found.append("the new leader may lack what was committed")
    return found


class Unhealed(SimulationFailed):
    """The cluster did not recover in time after the last fault."""


def unhealed(cluster: SimulatedCluster) -> list[str]:
    """What keeps the cluster from being healthy, by its metadata."""
    found = []
    state = cluster.tree.state
    live = {node.broker_id for node in cluster.nodes if node.is_ready}
    for topic, index, assigned in _assignments(cluster):
        if assigned.adding or assigned.removing:
            found.append(f"{topic}-{index} is being moved: {assigned}")
        node = state.node(layout.partition_state_path(topic, index))
        if node is None:
            found.append(f"{topic}-{index} has no state")
            continue
        stored = decode_partition_state(topic, node.data)
        if stored.leader == NO_LEADER or stored.leader not in live:
            found.append(f"{topic}-{index} has no leader: {stored}")
        elif set(stored.isr) != set(assigned.replicas):
            found.append(f"{topic}-{index} has replicas {assigned.replicas}: {stored}")
    return found


def _assignments(cluster: SimulatedCluster) -> Iterator[tuple[str, int, PartitionAssignment]]:
    state = cluster.tree.state
    for topic in state.children(layout.TOPICS) if state.node(layout.TOPICS) is not None else ():
        node = state.node(layout.topic_path(topic))
        if node is None:
            continue
        for index, assigned in enumerate(decode_topic(topic, node.data).partitions):
            yield topic, index, assigned


def differences(cluster: SimulatedCluster, *, only_lengths: bool = False) -> list[str]:
    """Differences between the replicas of each partition. Replicas compact and delete independently, so the bytes of
    those topics are not compared: `cleanup` has the rules for them.
    """
    found = []
    nodes = {node.broker_id: node for node in cluster.nodes}
    for topic, index, (replicas, _, _) in _assignments(cluster):
        logs = {broker: log for broker in replicas if (log := _log(nodes.get(broker), topic, index)) is not None}
        if len(logs) < len(replicas):
            found.append(f"{topic}-{index}: of {replicas} only {sorted(logs)} have it")
            continue
        first = logs[replicas[0]]
        for broker in replicas[1:]:
            log = logs[broker]
            if log.log_end_offset != first.log_end_offset or log.high_watermark != first.high_watermark:
                found.append(
                    f"{topic}-{index}: {replicas[0]} ends at {first.log_end_offset}, {broker} at {log.log_end_offset}, "
                    f"with high watermarks {first.high_watermark} and {log.high_watermark}"
                )
            elif not only_lengths and topic not in CLEANED and _bytes(log) != _bytes(first):
                found.append(f"{topic}-{index}: {broker} differs from {replicas[0]}")
    return found


def moving(cluster: SimulatedCluster) -> list[str]:
    """The replicas that are being moved between data folders."""
    return [
        f"{node.name}: {topic}-{index}"
        for node in cluster.nodes
        if node.broker is not None and node.is_ready
        for topic, index in node.broker.replicas.logs.moves.moving
    ]


def doubles(cluster: SimulatedCluster) -> list[str]:
    """Replicas that are in more than one data folder of a broker."""
    found = []
    for node in cluster.nodes:
        folders = [folder for folder in node.data_folders if node.files.exists(folder)]  # a full disk may have none
        names = [name for folder in folders for name in node.files.list_folder(folder)]
        found += [
            f"{node.name} has {name} in {names.count(name)} data folders"
            for name in sorted(set(names))
            if _REPLICA.fullmatch(name) and names.count(name) > 1
        ]
    return found


def _log(node: SimulatedNode | None, topic: str, index: int) -> PartitionLog | None:
    if node is None or node.broker is None or not node.is_ready:
        return None
    partition = node.broker.replicas.get(topic, index)
    return None if partition is None else partition.log


def _bytes(log: PartitionLog) -> bytes:
    parts = []
    for index in range(log.segment_count):
        segment = log.segment_at(index)
        parts.append(segment.file.read_at(0, segment.size))
    return b"".join(parts)
