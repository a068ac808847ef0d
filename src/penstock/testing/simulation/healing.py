"""Whether a cluster has come right again.

Nouns: what is unhealed, one sentence a partition; differences, one sentence a replica that is not as its leader.

Rule (invariants 2 and 11 of a run): when nothing is done to a cluster any more, every partition has a live leader and
all of its replicas in sync, no move is under way, and the replicas are the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.cluster import paths
from penstock.cluster.layout import NO_LEADER, Replicas, decode_partition_state, decode_topic
from penstock.log.partition_log import PartitionLog
from penstock.testing.simulation.cleanup import CLEANED
from penstock.testing.simulation.cluster import SimulatedCluster
from penstock.testing.simulation.nodes import SimulatedNode
from penstock.testing.simulation.scheduler import SimulationFailed


class Unhealed(SimulationFailed):
    """The faults were over, and something did not come right in time."""


def unhealed(cluster: SimulatedCluster) -> list[str]:
    """What of the cluster is not as it should be, by the tree's word."""
    found = []
    state = cluster.tree.state
    live = {node.broker_id for node in cluster.nodes if node.is_ready}
    for topic, index, assigned in _assignments(cluster):
        if assigned.adding or assigned.removing:
            found.append(f"{topic}-{index} is being moved: {assigned}")
        node = state.node(paths.partition_state(topic, index))
        if node is None:
            found.append(f"{topic}-{index} has no state")
            continue
        stored = decode_partition_state(topic, node.data)
        if stored.leader == NO_LEADER or stored.leader not in live:
            found.append(f"{topic}-{index} has no leader: {stored}")
        elif set(stored.isr) != set(assigned.replicas):
            found.append(f"{topic}-{index} has replicas {assigned.replicas}: {stored}")
    return found


def _assignments(cluster: SimulatedCluster) -> Iterator[tuple[str, int, Replicas]]:
    state = cluster.tree.state
    for topic in state.children(paths.TOPICS) if state.node(paths.TOPICS) is not None else ():
        node = state.node(paths.topic(topic))
        if node is None:
            continue
        for index, assigned in enumerate(decode_topic(topic, node.data).partitions):
            yield topic, index, assigned


def differences(cluster: SimulatedCluster, *, only_lengths: bool = False) -> list[str]:
    """Where a replica is not as its leader's. What each replica compacts and lets go by itself has no bytes to compare:
    `cleanup` has the rules for that.
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
                    f"with watermarks {first.high_watermark} and {log.high_watermark}"
                )
            elif not only_lengths and topic not in CLEANED and _bytes(log) != _bytes(first):
                found.append(f"{topic}-{index}: {broker} has other bytes than {replicas[0]}")
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
