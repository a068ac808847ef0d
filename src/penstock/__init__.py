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
        ZooKeeperConsumer,
    )
    from penstock.client.errors import PenstockError
    from penstock.client.offset_stores import OffsetAndMetadata, SqlOffsetStore, ZooKeeperOffsetStore
    from penstock.client.producer import (
        AsyncProducer,
        Delivery,
        Event,
        EventHandler,
        Producer,
        ProducerInterceptor,
        ProducerRecord,
        QueuedProducer,
        RandomPartitioner,
        RecordMetadata,
        RoundRobinPartitioner,
    )
    from penstock.client.properties import consumer_from_properties, producer_from_properties
    from penstock.client.serializers import Avro, Bytes, Json, Protobuf, RegistryClient, RegistrySchema, Text
    from penstock.client.transactions import GroupMetadata, PreparedTransaction
    from penstock.embedded_broker import EmbeddedBroker as Broker

__version__ = "0.1.0"

_HOMES = {
    "Admin": "penstock.client.admin",
    "AsyncAdmin": "penstock.client.admin",
    "AsyncConsumer": "penstock.client.consumer",
    "AsyncProducer": "penstock.client.producer",
    "Avro": "penstock.client.serializers",
    "Broker": "penstock.embedded_broker",
    "Bytes": "penstock.client.serializers",
    "ConfigResource": "penstock.client.admin",
    "Consumer": "penstock.client.consumer",
    "ConsumerRecord": "penstock.client.consumer",
    "Delivery": "penstock.client.producer",
    "Event": "penstock.client.producer",
    "EventHandler": "penstock.client.producer",
    "GroupMetadata": "penstock.client.transactions",
    "Json": "penstock.client.serializers",
    "MessageStreams": "penstock.client.consumer",
    "OffsetAndMetadata": "penstock.client.offset_stores",
    "PenstockError": "penstock.client.errors",
    "PreparedTransaction": "penstock.client.transactions",
    "Producer": "penstock.client.producer",
    "ProducerInterceptor": "penstock.client.producer",
    "ProducerRecord": "penstock.client.producer",
    "Protobuf": "penstock.client.serializers",
    "QueuedProducer": "penstock.client.producer",
    "RandomPartitioner": "penstock.client.producer",
    "RebalanceListener": "penstock.client.consumer",
    "RecordBatch": "penstock.client.consumer",
    "RecordMetadata": "penstock.client.producer",
    "RegistryClient": "penstock.client.serializers",
    "RegistrySchema": "penstock.client.serializers",
    "RoundRobinPartitioner": "penstock.client.producer",
    "SimpleConsumer": "penstock.client.consumer",
    "SqlOffsetStore": "penstock.client.offset_stores",
    "Text": "penstock.client.serializers",
    "TopicPartition": "penstock.client.consumer",
    "TopicSpec": "penstock.client.admin",
    "ZooKeeperConsumer": "penstock.client.consumer",
    "ZooKeeperOffsetStore": "penstock.client.offset_stores",
    "consumer_from_properties": "penstock.client.properties",
    "producer_from_properties": "penstock.client.properties",
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
    "Event",
    "EventHandler",
    "GroupMetadata",
    "Json",
    "MessageStreams",
    "OffsetAndMetadata",
    "PenstockError",
    "PreparedTransaction",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "Protobuf",
    "QueuedProducer",
    "RandomPartitioner",
    "RebalanceListener",
    "RecordBatch",
    "RecordMetadata",
    "RegistryClient",
    "RegistrySchema",
    "RoundRobinPartitioner",
    "SimpleConsumer",
    "SqlOffsetStore",
    "Text",
    "TopicPartition",
    "TopicSpec",
    "ZooKeeperConsumer",
    "ZooKeeperOffsetStore",
    "__version__",
    "consumer_from_properties",
    "errors",
    "producer_from_properties",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("penstock.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Within its module it is called what it is; `penstock.broker.broker.Broker` is the part that it runs.
    value = globals()[name] = getattr(import_module(home), "EmbeddedBroker" if name == "Broker" else name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
