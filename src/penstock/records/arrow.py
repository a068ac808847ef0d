"""Records as Arrow columns and back, without a Python object per record.

Fetched batches become columns offset, timestamp, key, value and, on request, headers, in one pass of the kernel. For
sending, the buffers of a RecordBatch are borrowed, not copied, where the kernel reads their type (binary, string and
their large variants, int64, millisecond timestamps, list<struct<key, value>>); pyarrow converts related types, and
others are rejected by column name. pyarrow is imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.records.batch import DEFAULT_DECOMPRESSED_LIMIT, append_time_of, payload_of, placed
from penstock.records.errors import CorruptBatch, RecordError
from penstock.records.kernel import BatchHeader, ColumnBuilder, ColumnRows, scan
from penstock.records.types import (
    Buffer,
    BytesColumn,
    BytesSource,
    Columns,
    HeaderColumn,
    HeaderSource,
    NumberSource,
)

if TYPE_CHECKING:
    import pyarrow


INT64_MAX: Final = 2**63 - 1


# ---------------------------------------------------------------------------------------------------- records to Arrow


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
    """Add the data records of a fetched buffer to `builder`. Returns the offset to fetch next.

    An incomplete batch at the end is left for the next fetch. Control batches are skipped, and those that are not
    `visible` (aborted transactions). Batches 0..9 and 10..19 with from_offset=5: rows 5..19, and 20 is returned. A
    damaged batch, or one that does not fit, ends the walk: the batches before it are added and its offset is returned,
    so that no row is lost or doubled. It raises if it comes first.
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
    """A RecordBatch over these buffers: offset, timestamp, key, value [, headers list<struct<key, value>>].

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


# ---------------------------------------------------------------------------------------------------- Arrow to records


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as missing:
        raise ImportError("Arrow columns need pyarrow: pip install 'penstock[spark]'") from missing
    return pyarrow


def rows_of_arrow(
    batch: pyarrow.RecordBatch,
    *,
    timestamp_ms: int,
    value: str = "value",
    key: str = "key",
    timestamp: str = "timestamp",
    headers: str = "headers",
) -> ColumnRows:
    """The rows of a record batch, by column name. `value` is required, the others are optional.

    Rows without a timestamp get `timestamp_ms`. For a Table use `table.to_batches()`.
    """
    pa = _pyarrow()
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"expected a pyarrow.RecordBatch, not {type(batch).__name__}")
    names = batch.schema.names
    for name in (value, key, timestamp, headers):
        if names.count(name) > 1:
            raise ValueError(f"{names.count(name)} columns are named {name}")
    if value not in names:
        raise ValueError(f"no column {value}; the columns are {', '.join(names) or 'none'}")
    return ColumnRows(
        batch.num_rows,
        bytes_source(batch.column(value), value),
        bytes_source(batch.column(key), key) if key in names else None,
        timestamp_ms,
        timestamp_source(batch.column(timestamp), timestamp) if timestamp in names else None,
        header_source(batch.column(headers), headers) if headers in names else None,
    )


def partition_numbers(column: pyarrow.Array, name: str = "partition") -> memoryview:
    """A column of partitions for `partition_rows`: int32, -1 for null."""
    pa = _pyarrow()
    if not pa.types.is_integer(column.type):
        raise TypeError(f"column {name} must have an integer type, not {column.type}")
    try:
        numbers = column.cast(pa.int32())
    except pa.ArrowInvalid as reason:
        raise ValueError(f"column {name} has an invalid partition: {reason}") from None
    if numbers.null_count:
        numbers = numbers.fill_null(-1)
    whole = memoryview(numbers.buffers()[1] or b"").cast("B").cast("i")
    return whole[numbers.offset : numbers.offset + len(numbers)]


def bytes_source(column: pyarrow.Array, name: str) -> BytesSource | None:
    """A column of bytes or text; None if it has Arrow's null type."""
    pa = _pyarrow()
    types, kind = pa.types, column.type
    if types.is_null(kind):
        return None
    if types.is_dictionary(kind):
        return bytes_source(column.dictionary_decode(), name)
    if types.is_fixed_size_binary(kind) or _is_view(types, kind):
        column = column.cast(pa.large_binary())
    elif not (types.is_binary(kind) or types.is_string(kind) or _is_large(types, kind)):
        raise TypeError(f"column {name} must be binary or string, not {kind}")
    validity, ends, data = column.buffers()
    if ends is None:  # Arrow allows this for an array without rows
        return None
    return BytesSource(validity, ends, data, 8 if _is_large(types, column.type) else 4, column.offset)


def _is_large(types: Any, kind: Any) -> bool:
    return bool(types.is_large_binary(kind) or types.is_large_string(kind))


def _is_view(types: Any, kind: Any) -> bool:
    return bool(types.is_binary_view(kind) or types.is_string_view(kind))


def timestamp_source(column: pyarrow.Array, name: str) -> NumberSource | None:
    """A column of timestamps, or of int64 milliseconds."""
    pa = _pyarrow()
    kind = column.type
    if pa.types.is_null(kind):
        return None
    if pa.types.is_timestamp(kind):
        if kind.unit != "ms":
            column = column.cast(pa.timestamp("ms", kind.tz), safe=False)
    elif not pa.types.is_int64(kind):
        raise TypeError(f"column {name} must be timestamps or int64 milliseconds, not {kind}")
    validity, numbers = column.buffers()
    return None if numbers is None else NumberSource(validity, numbers, column.offset)


def header_source(column: pyarrow.Array, name: str) -> HeaderSource | None:
    """A column of list<struct<key, value>>, as in Spark."""
    pa = _pyarrow()
    kind = column.type
    if pa.types.is_null(kind):
        return None
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        raise TypeError(f"column {name} must be list<struct<key, value>>, not {kind}")
    pairs = column.values
    if [field.name for field in kind.value_type] != ["key", "value"]:
        raise TypeError(f"column {name} must be list<struct<key, value>>, not {kind}")
    if pairs.null_count:
        raise ValueError(f"column {name} has a null header")
    names = bytes_source(pairs.field(0), f"{name}.key")
    if names is None:
        if len(pairs):
            raise ValueError(f"column {name} has a header without a key")
        return None
    validity, ends = column.buffers()[:2]
    if ends is None:
        return None
    width = 8 if pa.types.is_large_list(kind) else 4
    contents = bytes_source(pairs.field(1), f"{name}.value")
    return HeaderSource(validity, ends, width, column.offset, names, contents, len(pairs))
