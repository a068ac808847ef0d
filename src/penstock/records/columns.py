"""Records as Arrow columns, with no Python object a record.

Noun: a run of fetched batches turned into columns offset, timestamp, key, value and, on request, headers.

Rule: bytes go from the fetched buffer (or the decompressor's) into Arrow's layout in one pass of the kernel;
pyarrow is imported only when somebody asks for an Arrow object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.records.batch import DEFAULT_DECOMPRESSED_LIMIT, append_time_of, payload_of, placed
from penstock.records.errors import CorruptBatch, RecordError
from penstock.records.kernel import BatchHeader, ColumnBuilder, scan
from penstock.records.twin import Buffer, BytesColumn, Columns, HeaderColumn

if TYPE_CHECKING:
    import pyarrow

INT64_MAX = 2**63 - 1


def _every_batch(header: BatchHeader) -> bool:
    return True


def append_batches(
    builder: ColumnBuilder,
    buffer: Buffer,
    *,
    from_offset: int = 0,
    until_offset: int = INT64_MAX,
    visible: Callable[[BatchHeader], bool] = _every_batch,
    limit: int = DEFAULT_DECOMPRESSED_LIMIT,
    verify: bool = True,
) -> int:
    """Add the data records of a fetched buffer to `builder`; the offset to fetch next.

    A batch cut off at the buffer's end is left for the next fetch. Control batches are passed over, as are those
    that `visible` refuses (aborted transactions). Batches 0..9 and 10..19 with from_offset=5: rows 5..19, and 20
    is returned. A damaged batch, or one that would not fit, ends the walk: what precedes it is added and its
    offset returned, so that no row is lost or doubled; it raises when it comes first.
    """
    found = scan(buffer, verify=verify)
    next_offset = from_offset
    for header in found.headers:
        if header.base_offset >= until_offset:
            return next_offset
        if not (header.is_control or header.next_offset <= from_offset) and visible(header):
            try:
                _append_batch(builder, buffer, header, from_offset, until_offset, limit)
            except RecordError:
                if next_offset == from_offset:
                    raise
                return next_offset
        next_offset = max(next_offset, min(header.next_offset, until_offset))
    if found.problem not in (None, "incomplete") and next_offset == from_offset:
        raise CorruptBatch(found.problem, found.end)
    return next_offset


def _append_batch(
    builder: ColumnBuilder, buffer: Buffer, header: BatchHeader, from_offset: int, until_offset: int, limit: int
) -> None:
    plain, start, end = payload_of(buffer, header, limit)
    try:
        builder.append(
            plain, start, end, header.record_count, header.base_offset, header.base_timestamp,
            append_time_of(header), from_offset, until_offset,
        )  # fmt: skip
    except CorruptBatch as damage:
        raise placed(damage, header) from None


def to_arrow(columns: Columns, *, timestamp_type: str = "ms") -> pyarrow.RecordBatch:
    """A RecordBatch on these buffers: offset, timestamp, key, value [, headers list<struct<key, value>>].

    `timestamp_type` is the unit that the builder scaled to ("ms" or "us"), UTC.
    """
    import pyarrow as pa

    rows, offsets, timestamps, keys, values, headers = columns
    arrays: list[Any] = [
        pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(offsets)]),
        pa.Array.from_buffers(pa.timestamp(timestamp_type, "UTC"), rows, [None, pa.py_buffer(timestamps)]),
        _binary(keys, rows, pa.binary()),
        _binary(values, rows, pa.binary()),
    ]
    names = ["offset", "timestamp", "key", "value"]
    if headers is not None:
        arrays.append(_headers(headers, rows))
        names.append("headers")
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _binary(column: BytesColumn, rows: int, kind: Any) -> Any:
    import pyarrow as pa

    ends, data, valid = column
    validity = None if valid is None else pa.py_buffer(valid)
    return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(ends), pa.py_buffer(data)])


def _headers(column: HeaderColumn, rows: int) -> Any:
    import pyarrow as pa

    ends, keys, values = column
    count = len(keys[0]) // 4 - 1
    pair = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    pairs = pa.StructArray.from_arrays(
        [_binary(keys, count, pa.string()), _binary(values, count, pa.binary())], fields=list(pair)
    )
    return pa.Array.from_buffers(pa.list_(pair), rows, [None, pa.py_buffer(ends)], children=[pairs])
