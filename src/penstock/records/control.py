"""Control records: the markers that end transactions.

Noun: a control batch holds one record whose key says what it is (version i16, type i16: 0 abort, 1 commit) and whose
value says who wrote it (version i16, coordinator epoch i32). Rule: readers never see them; a log and its readers act
on them.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from penstock.records.batch import encode_batch, records_of
from penstock.records.errors import CorruptBatch
from penstock.records.kernel import BatchHeader
from penstock.records.twin import Buffer

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_ABORT = 0
_COMMIT = 1


class EndMarker(NamedTuple):
    """The end of a transaction, as a control record says it."""

    is_commit: bool
    coordinator_epoch: int


def encode_marker(
    marker: EndMarker, *, timestamp_ms: int, producer_id: int, producer_epoch: int, leader_epoch: int = -1
) -> bytearray:
    """A control batch that ends the producer's transaction."""
    key = _KEY.pack(0, _COMMIT if marker.is_commit else _ABORT)
    value = _VALUE.pack(0, marker.coordinator_epoch)
    return encode_batch(
        [(timestamp_ms, key, value, ())],
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def decode_marker(buffer: Buffer, header: BatchHeader) -> EndMarker | None:
    """What a control batch says; None if compaction emptied it or it is of a kind that does not end a transaction."""
    records = records_of(buffer, header, limit=header.size + 4096)
    if not records:
        return None
    key, value = records[0].key, records[0].value
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch("a control record without a type", header.position)
    kind = _KEY.unpack_from(key)[1]
    if kind not in (_ABORT, _COMMIT):
        return None
    if value is None or len(value) < _VALUE.size:
        raise CorruptBatch("an end marker without a coordinator epoch", header.position)
    return EndMarker(kind == _COMMIT, _VALUE.unpack_from(value)[1])
