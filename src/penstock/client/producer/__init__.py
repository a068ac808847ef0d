"""Producers: `Producer`, which blocks, and `AsyncProducer`, on one core.

A record's path, and the module of each step:

    producer, async_producer   serialize; wait for memory or metadata
    core                       choose the partition and the open batch
    accumulator                batches by partition, within buffer_memory
    sender                     requests and responses; retries
    producer_batch, delivery   the end of a batch, and what `send` returns
    direct_sender              the calling thread sends a lone record itself
    settings, interceptors, bulk (send_many, send_arrow)
    queued_producer            a queue of events and an event handler before all of this
"""

from penstock.client.producer.async_producer import AsyncProducer
from penstock.client.producer.bulk import ProducerRecord
from penstock.client.producer.delivery import BulkDelivery, BulkMetadata, Delivery, Stored
from penstock.client.producer.interceptors import BatchInfo, EnqueuedRecord, ProducerInterceptor
from penstock.client.producer.producer import Producer
from penstock.client.producer.producer_batch import OnDelivery, RecordMetadata
from penstock.client.producer.queued_producer import Event, EventHandler, QueuedProducer
from penstock.client.producer.settings import Partitioner, RandomPartitioner, RoundRobinPartitioner

__all__ = [
    "AsyncProducer",
    "BatchInfo",
    "BulkDelivery",
    "BulkMetadata",
    "Delivery",
    "EnqueuedRecord",
    "Event",
    "EventHandler",
    "OnDelivery",
    "Partitioner",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "QueuedProducer",
    "RandomPartitioner",
    "RecordMetadata",
    "RoundRobinPartitioner",
    "Stored",
]
