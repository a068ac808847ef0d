"""Consumers: `Consumer` and `AsyncConsumer` in groups or alone, `MessageStreams` for threads, `SimpleConsumer`.

The parts are imported when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.consumer.assignors import Assignor, GroupMember
    from penstock.client.consumer.async_consumer import AsyncConsumer
    from penstock.client.consumer.batches import RecordBatch
    from penstock.client.consumer.consumer import Consumer
    from penstock.client.consumer.errors import (
        CommitFailed,
        LogTruncated,
        NoOffset,
        PositionOutOfRange,
        RecordUnreadable,
    )
    from penstock.client.consumer.reading import RebalanceListener
    from penstock.client.consumer.simple import SimpleConsumer
    from penstock.client.consumer.streams import MessageStreams
    from penstock.client.consumer.types import OffsetAndTimestamp, TopicPartition
    from penstock.records.kernel import ConsumerRecord

_HOMES = {
    "Assignor": "penstock.client.consumer.assignors",
    "AsyncConsumer": "penstock.client.consumer.async_consumer",
    "CommitFailed": "penstock.client.consumer.errors",
    "Consumer": "penstock.client.consumer.consumer",
    "ConsumerRecord": "penstock.records.kernel",
    "GroupMember": "penstock.client.consumer.assignors",
    "LogTruncated": "penstock.client.consumer.errors",
    "MessageStreams": "penstock.client.consumer.streams",
    "NoOffset": "penstock.client.consumer.errors",
    "OffsetAndTimestamp": "penstock.client.consumer.types",
    "PositionOutOfRange": "penstock.client.consumer.errors",
    "RebalanceListener": "penstock.client.consumer.reading",
    "RecordBatch": "penstock.client.consumer.batches",
    "RecordUnreadable": "penstock.client.consumer.errors",
    "SimpleConsumer": "penstock.client.consumer.simple",
    "TopicPartition": "penstock.client.consumer.types",
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
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
