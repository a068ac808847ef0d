"""Record batches, magic 2: 61 bytes of header, then records, compressed or not.

The same bytes are sent by clients, stored on disk and served to consumers.

Code that only stores and serves batches reads headers (`scan`). A batch is decompressed and its records decoded on
demand, up to a size limit set by the caller.

A control batch holds one record that ends a transaction: key version i16, type i16 (0 abort, 1 commit); value version
i16, coordinator epoch i32. Readers never see it; the log and its readers act on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

from penstock.records.compression import Codec, compress, decompress, decompress_pooled
from penstock.records.errors import CorruptBatch
from penstock.records.kernel import (
    BatchHeader,
    Record,
    decode_records,
    encode_records,
    scan,
    write_header,
)
from penstock.records.types import HEADER_SIZE, Buffer, RecordTuple

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1

DEFAULT_DECOMPRESSED_LIMIT: Final = 128 * 1024 * 1024

_TIMESTAMP_TYPE_BIT: Final = 8
_TRANSACTIONAL_BIT: Final = 16
_CONTROL_BIT: Final = 32

_MARKER_KEY: Final = Struct(">hh")
_MARKER_VALUE: Final = Struct(">hi")
_ABORT: Final = 0
_COMMIT: Final = 1


class Payload(NamedTuple):
    """A batch's records, decompressed: buffer[start:end]."""

    buffer: Buffer
    start: int
    end: int


def encode_batch(
    records: Sequence[RecordTuple],
    *,
    codec: int = Codec.NONE,
    level: int | None = None,
    base_offset: int = 0,
    offsets: Sequence[int] | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = CREATE_TIME,
) -> bytearray:
    """A whole batch of (timestamp_ms, key, value, headers) records, in a buffer that a log may patch in place.

    Offsets are consecutive from `base_offset`, unless `offsets` names them: ascending, the first the base.
    """
    if not records:
        raise ValueError("a batch holds at least one record")
    if timestamp_type not in (CREATE_TIME, LOG_APPEND_TIME):
        raise ValueError(f"timestamp type {timestamp_type} is neither {CREATE_TIME} nor {LOG_APPEND_TIME}")
    deltas: list[int] | None = None
    last_delta = len(records) - 1
    if offsets is not None:
        if len(offsets) != len(records) or any(b <= a for a, b in pairwise(offsets)):
            raise ValueError("offsets must ascend, one for each record")
        base_offset = offsets[0]
        deltas = [offset - base_offset for offset in offsets]
        last_delta = deltas[-1]
    if base_offset < 0:
        raise ValueError(f"base offset {base_offset} is negative")
    batch, base_timestamp, max_timestamp = encode_records(records, deltas)
    if codec != Codec.NONE:
        packed = compress(Codec(codec), memoryview(batch)[HEADER_SIZE:], level)
        batch = bytearray(HEADER_SIZE) + packed
    attributes = codec | timestamp_type * _TIMESTAMP_TYPE_BIT
    attributes |= transactional * _TRANSACTIONAL_BIT | control * _CONTROL_BIT
    write_header(
        batch, base_offset, leader_epoch, attributes, last_delta, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, len(records),
    )  # fmt: skip
    return batch


def payload_of(buffer: Buffer, header: BatchHeader, limit: int = DEFAULT_DECOMPRESSED_LIMIT) -> Payload:
    """The records of a scanned batch, decompressed. Uncompressed records are not copied."""
    start, end = header.position + HEADER_SIZE, header.position + header.size
    if header.codec == Codec.NONE:
        return Payload(buffer, start, end)
    try:
        plain = decompress(Codec(header.codec), memoryview(buffer)[start:end], limit)
    except CorruptBatch as damage:
        raise placed(damage, header) from None
    return Payload(plain, 0, len(plain))


def pooled_payload_of(buffer: Buffer, header: BatchHeader, limit: int = DEFAULT_DECOMPRESSED_LIMIT) -> Payload:
    """The records of a scanned compressed batch, in memory that the caller gives back (`compression.release`)."""
    packed = memoryview(buffer)[header.position + HEADER_SIZE : header.position + header.size]
    try:
        plain, size = decompress_pooled(Codec(header.codec), packed, limit)
    except CorruptBatch as damage:
        raise placed(damage, header) from None
    return Payload(plain, 0, size)


def placed(damage: CorruptBatch, header: BatchHeader) -> CorruptBatch:
    """The same damage, with the batch's position, which code that reads a payload does not know."""
    return CorruptBatch(damage.reason, header.position)


def append_time_of(header: BatchHeader) -> int | None:
    """The append time, which overrides the records' own, if the broker stamped the batch."""
    return header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None


def records_of(buffer: Buffer, header: BatchHeader, limit: int = DEFAULT_DECOMPRESSED_LIMIT) -> list[Record]:
    """The records of a scanned batch, as objects."""
    plain, start, end = payload_of(buffer, header, limit)
    try:
        return decode_records(
            plain, start, end, header.record_count, header.base_offset, header.base_timestamp,
            append_time_of(header),
        )  # fmt: skip
    except CorruptBatch as damage:
        raise placed(damage, header) from None


def decode_batch(
    buffer: Buffer, position: int = 0, *, limit: int = DEFAULT_DECOMPRESSED_LIMIT, verify: bool = True
) -> list[Record]:
    """The records of the batch at `position`, its checksum verified; CorruptBatch if damaged or not whole."""
    found = scan(buffer, position, verify=verify, most=1)
    if not found.headers:
        raise CorruptBatch(found.problem or "no batch found", position)
    return records_of(buffer, found.headers[0], limit)


class EndMarker(NamedTuple):
    """The end of a transaction, as a control record states it."""

    is_commit: bool
    coordinator_epoch: int


def encode_marker(
    marker: EndMarker, *, timestamp_ms: int, producer_id: int, producer_epoch: int, leader_epoch: int = -1
) -> bytearray:
    """A control batch that ends the producer's transaction."""
    key = _MARKER_KEY.pack(0, _COMMIT if marker.is_commit else _ABORT)
    value = _MARKER_VALUE.pack(0, marker.coordinator_epoch)
    return encode_batch(
        [(timestamp_ms, key, value, ())],
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def decode_marker(buffer: Buffer, header: BatchHeader) -> EndMarker | None:
    """The marker in a control batch; None if compaction emptied it or its type does not end a transaction."""
    records = records_of(buffer, header, limit=header.size + 4096)
    if not records:
        return None
    key, value = records[0].key, records[0].value
    if key is None or len(key) < _MARKER_KEY.size:
        raise CorruptBatch("control record without a type", header.position)
    kind = _MARKER_KEY.unpack_from(key)[1]
    if kind not in (_ABORT, _COMMIT):
        return None
    if value is None or len(value) < _MARKER_VALUE.size:
        raise CorruptBatch("transaction marker without a coordinator epoch", header.position)
    return EndMarker(kind == _COMMIT, _MARKER_VALUE.unpack_from(value)[1])
