"""Where a partition is that is not here, for clients who came to the wrong broker.

Rule: only what the image does not know is unknown; what it knows is led elsewhere, or is here and cannot be served. Who
is sent away is told who leads, where the version allows it, and saves a question (KIP-951).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from penstock.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Node

SENT_AWAY: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def why_missing(broker: Broker, topic: str, index: int) -> ErrorCode:
    """What to say of a partition that this broker does not hold."""
    image = broker.cluster.image
    partition = image.partition(topic, index)
    if partition is None or topic in image.deleting:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.leader == broker.node_id:
        return ErrorCode.KAFKA_STORAGE_ERROR  # its log is damaged, or on a disk that is not there
    return ErrorCode.NOT_LEADER_OR_FOLLOWER


def leader_of(broker: Broker, topic: str, index: int) -> tuple[int, int] | None:
    """Who leads a partition and in which epoch, None if nobody is known to."""
    image = broker.cluster.image
    partition = image.partition(topic, index)
    if partition is None or image.live_leader(partition) < 0:
        return None
    return partition.leader, partition.leader_epoch


def nodes(broker: Broker, ids: Iterable[int]) -> list[Node]:
    """Where these brokers are reached."""
    wanted = frozenset(ids)
    return [node for node in broker.live_brokers() if node.id in wanted]
