"""Which partitions are read from a follower because it is nearer (KIP-392). Pure.

Noun: a redirection, from a partition's leader to one of its replicas.

Rule: only a leader redirects, by what it answers to a fetch that names a rack. A redirection holds until it is old, so
that a nearer replica that comes back is found, or until the partition has a new leader. It ends at once when the
replica refuses, fails, or is no broker that is known; then the leader is asked without a rack for a while, since it
would name the same one again.

    leader 1 says "read from 3"           source: 3
    3 does not answer                     source: 1, which is not asked for a nearer one
    some seconds later                    source: 1, which may say "read from 3", or "from 2", again
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final, NamedTuple

from penstock.client.consumer.types import TopicPartition

_AVOIDED_MS: Final = 10_000.0


class _Redirection(NamedTuple):
    node_id: int
    leader_epoch: int
    until_ms: float


class NearReplicas:
    __slots__ = ("_avoided_until_ms", "_max_age_ms", "_redirections")

    def __init__(self, max_age_ms: float) -> None:
        self._max_age_ms = max_age_ms
        self._redirections: dict[TopicPartition, _Redirection] = {}
        self._avoided_until_ms: dict[TopicPartition, float] = {}

    def redirected(self, partition: TopicPartition, node_id: int, leader_epoch: int, now_ms: float) -> None:
        """The leader of this epoch said that another replica is nearer."""
        self._redirections[partition] = _Redirection(node_id, leader_epoch, now_ms + self._max_age_ms)

    def source(
        self, partition: TopicPartition, leader: int, leader_epoch: int, brokers: Container[int], now_ms: float
    ) -> int:
        """Whom to ask for the records of a partition."""
        if not self._redirections:
            return leader
        found = self._redirections.get(partition)
        if found is None:
            return leader
        if found.node_id not in brokers:
            self._avoid(partition, now_ms)
            return leader
        if now_ms >= found.until_ms or found.leader_epoch != leader_epoch:
            del self._redirections[partition]
            return leader
        return found.node_id

    def may_redirect(self, partitions: Iterable[TopicPartition], now_ms: float) -> bool:
        """Whether a request for these may name a rack: none of them was let down a moment ago."""
        avoided = self._avoided_until_ms
        if not avoided:
            return True
        for partition in [each for each, until_ms in avoided.items() if now_ms >= until_ms]:
            del avoided[partition]
        return not any(partition in avoided for partition in partitions)

    def ended(self, partition: TopicPartition, node_id: int, now_ms: float) -> bool:
        """A broker refused to serve a partition: whether it was the one that the leader had named."""
        found = self._redirections.get(partition)
        if found is None or found.node_id != node_id:
            return False
        self._avoid(partition, now_ms)
        return True

    def lost(self, node_id: int, now_ms: float) -> None:
        """A broker does not answer."""
        for partition in [each for each, found in self._redirections.items() if found.node_id == node_id]:
            self._avoid(partition, now_ms)

    def _avoid(self, partition: TopicPartition, now_ms: float) -> None:
        del self._redirections[partition]
        self._avoided_until_ms[partition] = now_ms + _AVOIDED_MS
