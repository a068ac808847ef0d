"""Record batches: encode, decode, checksum, compress. Pure: no I/O, no clock, no threads.

A broker only scans batch headers (`scan`). `encode_batch`, `decode_batch` and `ColumnBuilder` handle the records
inside.
"""

from penstock.records.batch import (
    CREATE_TIME,
    DEFAULT_DECOMPRESSED_LIMIT,
    LOG_APPEND_TIME,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Payload,
    append_time_of,
    decode_batch,
    encode_batch,
    payload_of,
    records_of,
)
from penstock.records.compression import Codec
from penstock.records.errors import (
    CorruptBatch,
    DecodeFailed,
    RecordError,
    TooLarge,
    UnsupportedCodec,
    UnsupportedMagic,
)
from penstock.records.kernel import (
    KERNEL,
    BatchHeader,
    ColumnBuilder,
    Record,
    Scan,
    assign_offsets,
    scan,
    stamp_append_time,
)
from penstock.records.types import HEADER_SIZE, Buffer, RecordTuple

__all__ = [
    "KERNEL",
    "CREATE_TIME",
    "DEFAULT_DECOMPRESSED_LIMIT",
    "HEADER_SIZE",
    "LOG_APPEND_TIME",
    "NO_LEADER_EPOCH",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "Buffer",
    "Codec",
    "ColumnBuilder",
    "CorruptBatch",
    "DecodeFailed",
    "Payload",
    "Record",
    "RecordError",
    "RecordTuple",
    "Scan",
    "TooLarge",
    "UnsupportedCodec",
    "UnsupportedMagic",
    "append_time_of",
    "assign_offsets",
    "decode_batch",
    "encode_batch",
    "payload_of",
    "records_of",
    "scan",
    "stamp_append_time",
]
