"""Topics to read: what is in them, and how they are filled."""

from __future__ import annotations

import random
import uuid
from typing import NamedTuple

import pyarrow as pa

from penstock import Admin, Producer, TopicSpec

PARTITIONS = 4
_CHUNK = 20_000
_WORDS = 2_000
_BATCH_BYTES = 64 * 1024
_END = '"}'


class Content(NamedTuple):
    """What the records are like."""

    size: int
    codec: str = "none"
    keyed: bool = False
    """With a key and a header each."""

    def __str__(self) -> str:
        extras = [] if self.codec == "none" else [self.codec]
        return ", ".join([f"{self.size} B", *extras, *(["keys and headers"] if self.keyed else [])])

    @property
    def bytes_a_row(self) -> int:
        return self.size


class Topic(NamedTuple):
    name: str
    content: Content
    rows: int
    partitions: int = PARTITIONS

    @property
    def megabytes(self) -> float:
        return self.rows * self.content.bytes_a_row / 1e6


def fill(address: str, content: Content, rows: int, partitions: int = PARTITIONS) -> Topic:
    """A new topic with about that many records, the same number in each partition."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    rounds = max(1, rows // (_CHUNK * partitions))
    with Admin(address) as admin:
        admin.create_topic(TopicSpec(name, partitions=partitions))
    columns = _columns(content)
    with Producer(address, linger_ms=5, batch_size=_BATCH_BYTES, compression_type=content.codec) as producer:
        for _ in range(rounds):
            for partition in range(partitions):
                numbers = pa.repeat(pa.scalar(partition, pa.int32()), _CHUNK)
                producer.send_arrow(name, pa.table({**columns, "partition": numbers}))
        producer.flush()
    return Topic(name, content, rounds * _CHUNK * partitions, partitions)


def _columns(content: Content) -> dict[str, pa.Array]:
    """JSON with words in it, so that codecs have something to do."""
    seeded = random.Random(7)
    words = [f"word{seeded.randrange(10**6):06d}" for _ in range(_WORDS)]
    texts = []
    for number in range(_CHUNK):
        text = f'{{"id":{number},"text":"'
        while len(text) < content.size:
            text += seeded.choice(words) + " "
        texts.append((text[: content.size - len(_END)] + _END).encode())
    columns = {"value": pa.array(texts, pa.binary())}
    if content.keyed:
        pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
        columns["key"] = pa.array([b"user-%d" % (number % 1000) for number in range(_CHUNK)], pa.binary())
        columns["headers"] = pa.array([[{"key": "source", "value": b"web"}]] * _CHUNK, pa.list_(pair))
    return columns
