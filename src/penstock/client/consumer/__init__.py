"""Consumers: `Consumer` and `AsyncConsumer` with or without a group, `MessageStreams`, `SimpleConsumer`, and
`ZooKeeperConsumer` for groups of old consumers.

Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.cluster_metadata import OffsetAndTimestamp, TopicPartition
    from penstock.client.consumer.assignors import Assignor, GroupMember
    from penstock.client.consumer.async_consumer import AsyncConsumer
    from penstock.client.consumer.consumer import Consumer
    from penstock.client.consumer.message_streams import MessageStreams
    from penstock.client.consumer.reader import RebalanceListener, RecordBatch
    from penstock.client.consumer.simple_consumer import SimpleConsumer
    from penstock.client.consumer.zookeeper_consumer import ZooKeeperConsumer
    from penstock.client.errors import CommitFailed, LogTruncated, NoOffset, PositionOutOfRange, RecordUnreadable
    from penstock.records.kernel import ConsumerRecord

_HOMES = {
    "Assignor": "penstock.client.consumer.assignors",
    "AsyncConsumer": "penstock.client.consumer.async_consumer",
    "CommitFailed": "penstock.client.errors",
    "Consumer": "penstock.client.consumer.consumer",
    "ConsumerRecord": "penstock.records.kernel",
    "GroupMember": "penstock.client.consumer.assignors",
    "LogTruncated": "penstock.client.errors",
    "MessageStreams": "penstock.client.consumer.message_streams",
    "NoOffset": "penstock.client.errors",
    "OffsetAndTimestamp": "penstock.client.cluster_metadata",
    "PositionOutOfRange": "penstock.client.errors",
    "RebalanceListener": "penstock.client.consumer.reader",
    "RecordBatch": "penstock.client.consumer.reader",
    "RecordUnreadable": "penstock.client.errors",
    "SimpleConsumer": "penstock.client.consumer.simple_consumer",
    "TopicPartition": "penstock.client.cluster_metadata",
    "ZooKeeperConsumer": "penstock.client.consumer.zookeeper_consumer",
}

__all__ = [
    "Assignor",
    "AsyncConsumer",
    "CommitFailed",
    "Consumer",
    "ConsumerRecord",
    "GroupMember",
    "LogTruncated",
    "MessageStreams",
    "NoOffset",
    "OffsetAndTimestamp",
    "PositionOutOfRange",
    "RebalanceListener",
    "RecordBatch",
    "RecordUnreadable",
    "SimpleConsumer",
    "TopicPartition",
    "ZooKeeperConsumer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
