"""Batches as a Produce request, in the record format that its version takes.

    version 0, 1   message sets of magic 0: no timestamps, no headers
    version 2      message sets of magic 1: no headers
    version 3 on   record batches

Rule: a batch's bytes are made when it is first sent and kept for retries; new numbers, or a broker of another age, make
them anew. Topics go by name, so version 13, which has ids only, is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.client.errors import UnsupportedVersion
from penstock.client.producer.batches import ProducerBatch
from penstock.client.producer.settings import ProducerSettings
from penstock.records.batch import decode_batch
from penstock.records.compression import Codec
from penstock.records.legacy import CREATE_TIME, LegacyMessage, encode_message_set
from penstock.wire.schemas.produce import PartitionProduceData, ProduceRequest, TopicProduceData

HIGHEST_VERSION: Final = 12
FIRST_WITH_BATCHES: Final = 3
FIRST_WITH_ZSTD: Final = 7
_FIRST_WITH_TIMESTAMPS: Final = 2


def produce_request(batches: Sequence[ProducerBatch], version: int, settings: ProducerSettings) -> ProduceRequest:
    """One request for batches of different partitions."""
    topics: dict[str, TopicProduceData] = {}
    for batch in batches:
        topic = topics.get(batch.topic)
        if topic is None:
            topic = topics[batch.topic] = TopicProduceData(name=batch.topic, partition_data=[])
        topic.partition_data.append(
            PartitionProduceData(index=batch.partition, records=encoded(batch, version, settings))
        )
    return ProduceRequest(acks=settings.acks, timeout_ms=settings.request_timeout_ms, topic_data=list(topics.values()))


def encoded(batch: ProducerBatch, version: int, settings: ProducerSettings) -> bytes | bytearray:
    """The bytes of a closed batch for a version of Produce; raises UnsupportedVersion if it cannot carry them."""
    made_as = (batch.numbers, min(version, FIRST_WITH_BATCHES))
    if batch.encoded is None or batch.encoded_as != made_as:
        if batch.builder is None:
            raise ValueError(f"the batch for {batch.topic}-{batch.partition} is done")
        if version >= FIRST_WITH_BATCHES:
            batch.encoded = batch.builder.build(
                codec=settings.codec, level=settings.compression_level, producer_id=batch.numbers.producer_id,
                producer_epoch=batch.numbers.producer_epoch, base_sequence=batch.numbers.base_sequence,
                is_transactional=False,
            )  # fmt: skip
        else:
            batch.encoded = _message_set(batch, version, settings)
        batch.encoded_as = made_as
    return batch.encoded


def _message_set(batch: ProducerBatch, version: int, settings: ProducerSettings) -> bytes:
    if batch.builder is None:
        raise ValueError(f"the batch for {batch.topic}-{batch.partition} is done")
    plain = batch.builder.build(
        codec=Codec.NONE, level=None, producer_id=-1, producer_epoch=-1, base_sequence=-1, is_transactional=False
    )
    messages = [
        LegacyMessage(record.offset, record.timestamp, CREATE_TIME, record.key, record.value)
        for record in decode_batch(plain, verify=False)
    ]
    magic = 1 if version >= _FIRST_WITH_TIMESTAMPS else 0
    return encode_message_set(messages, magic, codec=settings.codec, level=settings.compression_level)


def check_codec(node: str, version: int, codec: Codec) -> None:
    """Raises UnsupportedVersion if a broker that speaks this version of Produce cannot take the codec."""
    if codec is Codec.ZSTD and version < FIRST_WITH_ZSTD:
        raise UnsupportedVersion(node, "zstd (Produce)", (FIRST_WITH_ZSTD, HIGHEST_VERSION), (0, version))
