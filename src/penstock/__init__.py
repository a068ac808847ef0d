"""Penstock: a replicated, persistent log that speaks the Kafka protocol, in Python.

    from penstock import Broker, Producer, Consumer, Admin, TopicSpec, Json, errors

Names are imported when they are first used, so `import penstock` costs next to nothing.
"""

from __future__ import annotations

# Importing `typing` for this constant would take longer than all the rest; type checkers know it by its name.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from penstock import errors
    from penstock.client.admin import Admin, AsyncAdmin, ConfigResource, TopicSpec
    from penstock.client.consumer import (
        AsyncConsumer,
        Consumer,
        ConsumerRecord,
        MessageStreams,
        RebalanceListener,
        RecordBatch,
        SimpleConsumer,
        TopicPartition,
    )
    from penstock.client.errors import PenstockError
    from penstock.client.offset_stores import OffsetAndMetadata, SqlOffsetStore, ZooKeeperOffsetStore
    from penstock.client.producer import (
        AsyncProducer,
        Delivery,
        Producer,
        ProducerInterceptor,
        ProducerRecord,
        RecordMetadata,
    )
    from penstock.client.serializers import Avro, Bytes, Json, Protobuf, Text
    from penstock.testing import Broker

__version__ = "0.1.0"

_HOMES = {
    "Admin": "penstock.client.admin",
    "AsyncAdmin": "penstock.client.admin",
    "AsyncConsumer": "penstock.client.consumer",
    "AsyncProducer": "penstock.client.producer",
    "Avro": "penstock.client.serializers",
    "Broker": "penstock.testing",
    "Bytes": "penstock.client.serializers",
    "ConfigResource": "penstock.client.admin",
    "Consumer": "penstock.client.consumer",
    "ConsumerRecord": "penstock.client.consumer",
    "Delivery": "penstock.client.producer",
    "Json": "penstock.client.serializers",
    "MessageStreams": "penstock.client.consumer",
    "OffsetAndMetadata": "penstock.client.offset_stores",
    "PenstockError": "penstock.client.errors",
    "Producer": "penstock.client.producer",
    "ProducerInterceptor": "penstock.client.producer",
    "ProducerRecord": "penstock.client.producer",
    "Protobuf": "penstock.client.serializers",
    "RebalanceListener": "penstock.client.consumer",
    "RecordBatch": "penstock.client.consumer",
    "RecordMetadata": "penstock.client.producer",
    "SimpleConsumer": "penstock.client.consumer",
    "SqlOffsetStore": "penstock.client.offset_stores",
    "Text": "penstock.client.serializers",
    "TopicPartition": "penstock.client.consumer",
    "TopicSpec": "penstock.client.admin",
    "ZooKeeperOffsetStore": "penstock.client.offset_stores",
}

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "Avro",
    "Broker",
    "Bytes",
    "ConfigResource",
    "Consumer",
    "ConsumerRecord",
    "Delivery",
    "Json",
    "MessageStreams",
    "OffsetAndMetadata",
    "PenstockError",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "Protobuf",
    "RebalanceListener",
    "RecordBatch",
    "RecordMetadata",
    "SimpleConsumer",
    "SqlOffsetStore",
    "Text",
    "TopicPartition",
    "TopicSpec",
    "ZooKeeperOffsetStore",
    "__version__",
    "errors",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("penstock.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
