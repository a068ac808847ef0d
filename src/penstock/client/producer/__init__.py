"""Sending records: `Producer`, which blocks, and `AsyncProducer`, on one core.

The way of a record, and the module of each step:

    producer, async_producer   the two faces: serialize, wait where there is no room
    core                       which partition, which batch
    partitioners, interceptors, settings, bulk (many at once)
    accumulator                batches that wait: partition_queue, batches, memory
    sequences                  numbers by which nothing is stored twice
    sender                     requests and answers: requests, answers, outcomes, splitting, producer_ids
    driving, side_link         the short way: the thread that waits for a record sends it
    delivery, completion       what the user holds
"""

from penstock.client.producer.async_producer import AsyncProducer
from penstock.client.producer.bulk import ProducerRecord
from penstock.client.producer.completion import OnDelivery, RecordMetadata
from penstock.client.producer.delivery import BulkDelivery, BulkMetadata, Delivery, Stored
from penstock.client.producer.interceptors import BatchInfo, EnqueuedRecord, ProducerInterceptor
from penstock.client.producer.partitioners import Partitioner
from penstock.client.producer.producer import Producer

__all__ = [
    "AsyncProducer",
    "BatchInfo",
    "BulkDelivery",
    "BulkMetadata",
    "Delivery",
    "EnqueuedRecord",
    "OnDelivery",
    "Partitioner",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "RecordMetadata",
    "Stored",
]
