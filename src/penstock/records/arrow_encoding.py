"""Arrow's record batches as records to be sent, with no Python object a row.

Noun: a RecordBatch with columns value and, on request, key, timestamp, headers, put before the kernel as it lies in
memory. Rule: the buffers are borrowed, not copied, where they are of a type that the kernel reads (binary, string and
their large kin, int64, timestamps of milliseconds, list<struct<key, value>>); pyarrow converts what is near to that;
anything else is refused by the column's name. pyarrow is imported only when somebody comes with an Arrow object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.records.kernel import ColumnRows
from penstock.records.twin import BytesSource, HeaderSource, NumberSource

if TYPE_CHECKING:
    import pyarrow


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
    """The rows of a record batch. `value` must be there; the other columns where they are, by these names.

    Rows without a timestamp have `timestamp_ms`. A Table is many batches: `table.to_batches()`.
    """
    pa = _pyarrow()
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"a pyarrow.RecordBatch is needed, not {type(batch).__name__}")
    names = batch.schema.names
    for name in (value, key, timestamp, headers):
        if names.count(name) > 1:
            raise ValueError(f"there are {names.count(name)} columns of the name {name}")
    if value not in names:
        raise ValueError(f"there is no column {value}; there are {', '.join(names) or 'none'}")
    return ColumnRows(
        batch.num_rows,
        bytes_source(batch.column(value), value),
        bytes_source(batch.column(key), key) if key in names else None,
        timestamp_ms,
        timestamp_source(batch.column(timestamp), timestamp) if timestamp in names else None,
        header_source(batch.column(headers), headers) if headers in names else None,
    )


def partition_numbers(column: pyarrow.Array, name: str = "partition") -> memoryview:
    """A column of partitions as `partition_rows` takes it: int32, -1 where it is null."""
    pa = _pyarrow()
    if not pa.types.is_integer(column.type):
        raise TypeError(f"column {name} must be of integers, not {column.type}")
    try:
        numbers = column.cast(pa.int32())
    except pa.ArrowInvalid as reason:
        raise ValueError(f"column {name} has a number that no partition has: {reason}") from None
    if numbers.null_count:
        numbers = numbers.fill_null(-1)
    whole = memoryview(numbers.buffers()[1] or b"").cast("B").cast("i")
    return whole[numbers.offset : numbers.offset + len(numbers)]


def bytes_source(column: pyarrow.Array, name: str) -> BytesSource | None:
    """A column of bytes or text; None if it is of Arrow's null type."""
    pa = _pyarrow()
    types, kind = pa.types, column.type
    if types.is_null(kind):
        return None
    if types.is_dictionary(kind):
        return bytes_source(column.dictionary_decode(), name)
    if types.is_fixed_size_binary(kind) or _is_view(types, kind):
        column = column.cast(pa.large_binary())
    elif not (types.is_binary(kind) or types.is_string(kind) or _is_large(types, kind)):
        raise TypeError(f"column {name} must be of binary or string, not {kind}")
    validity, ends, data = column.buffers()
    if ends is None:  # Arrow allows it of an array without rows
        return None
    return BytesSource(validity, ends, data, 8 if _is_large(types, column.type) else 4, column.offset)


def _is_large(types: Any, kind: Any) -> bool:
    return bool(types.is_large_binary(kind) or types.is_large_string(kind))


def _is_view(types: Any, kind: Any) -> bool:
    return bool(types.is_binary_view(kind) or types.is_string_view(kind))


def timestamp_source(column: pyarrow.Array, name: str) -> NumberSource | None:
    """A column of times, or of int64 that are milliseconds."""
    pa = _pyarrow()
    kind = column.type
    if pa.types.is_null(kind):
        return None
    if pa.types.is_timestamp(kind):
        if kind.unit != "ms":
            column = column.cast(pa.timestamp("ms", kind.tz), safe=False)
    elif not pa.types.is_int64(kind):
        raise TypeError(f"column {name} must be of timestamps or int64 milliseconds, not {kind}")
    validity, numbers = column.buffers()
    return None if numbers is None else NumberSource(validity, numbers, column.offset)


def header_source(column: pyarrow.Array, name: str) -> HeaderSource | None:
    """A column of list<struct<key, value>>, as Spark has it."""
    pa = _pyarrow()
    kind = column.type
    if pa.types.is_null(kind):
        return None
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        raise TypeError(f"column {name} must be of list<struct<key, value>>, not {kind}")
    pairs = column.values
    if [field.name for field in kind.value_type] != ["key", "value"]:
        raise TypeError(f"column {name} must be of list<struct<key, value>>, not {kind}")
    if pairs.null_count:
        raise ValueError(f"column {name} has a header that is null")
    names = bytes_source(pairs.field(0), f"{name}.key")
    if names is None:
        if len(pairs):
            raise ValueError(f"column {name} has a header without key")
        return None
    validity, ends = column.buffers()[:2]
    if ends is None:
        return None
    width = 8 if pa.types.is_large_list(kind) else 4
    contents = bytes_source(pairs.field(1), f"{name}.value")
    return HeaderSource(validity, ends, width, column.offset, names, contents, len(pairs))
