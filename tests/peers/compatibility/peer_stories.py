"""What the tests of all foreign clients share: unique names, values, and what the broker has stored.

The codec is read from the batches on the broker's disk, not believed from the client.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.testing.embedded_broker import EmbeddedBroker

PARTITIONS: Final = 3
BROKER_SETTINGS: Final = {"num.partitions": str(PARTITIONS), "offsets.topic.num.partitions": "4"}
BEGIN_MS: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_SIZE_AND_ATTRIBUTES = struct.Struct(">8xi9xH")
_BEFORE_BATCH_BYTES = 12
_CODEC_MASK = 0x07


class Read(NamedTuple):
    """A record as a client reports it."""

    partition: int
    offset: int
    value: str


def unique(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:12]}"


def numbered(count: int, first: int = 0) -> list[str]:
    """Values that tell their place, long enough for codecs to have something to do."""
    return [f"value {number:04d} " + "again and again " * 10 for number in range(first, first + count)]


def reads(answer: Iterable[dict[str, Any]]) -> list[Read]:
    """The records of a client that answers in JSON, by partition and offset."""
    return sorted(Read(record["partition"], record["offset"], record["value"]) for record in answer)


def values(answer: Iterable[dict[str, Any]]) -> list[str]:
    """The values in the order of their partitions' offsets."""
    return [record.value for record in reads(answer)]


def stored_codecs(broker: EmbeddedBroker, topic: str) -> set[str]:
    """With which codecs the batches of a topic lie on the broker's disk."""
    found = set()
    for segment in Path(broker.data_dir).glob(f"{topic}-*/*.log"):
        content = segment.read_bytes()
        at = 0
        while at < len(content):
            size, attributes = _SIZE_AND_ATTRIBUTES.unpack_from(content, at)
            found.add(CODECS[attributes & _CODEC_MASK])
            at += _BEFORE_BATCH_BYTES + size
    return found
