"""A writer of Kafka 0.7 logs, from the description of the format: it shares no code with the reader."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import cramjam


def message(payload: bytes, *, magic: int = 1, codec: int = 0) -> bytes:
    """A log entry."""
    head = struct.pack(">b", magic) + (struct.pack(">b", codec) if magic == 1 else b"")
    body = head + struct.pack(">I", zlib.crc32(payload)) + payload
    return struct.pack(">i", len(body)) + body


def gzipped(payloads: Iterable[bytes], *, magic: int = 1) -> bytes:
    return message(gzip.compress(b"".join(message(each, magic=magic) for each in payloads)), codec=1)


def snappied(payloads: Iterable[bytes]) -> bytes:
    """As snappy-java's SnappyOutputStream writes it: a header of its own, then blocks with their lengths."""
    content = b"".join(message(each) for each in payloads)
    blocks = [bytes(cramjam.snappy.compress_raw(content[at : at + 64])) for at in range(0, len(content), 64)]
    stream = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    stream += b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    return message(stream, codec=2)


def write_partition(folder: Path, files: Sequence[Sequence[bytes]], *, start: int = 0) -> list[int]:
    """The files of a partition, each of these entries; the position of each entry."""
    folder.mkdir(parents=True, exist_ok=True)
    positions, at = [], start
    for entries in files:
        path = folder / f"{at:020d}.kafka"
        path.write_bytes(b"".join(entries))
        for entry in entries:
            positions.append(at)
            at += len(entry)
    return positions
