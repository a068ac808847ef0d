"""The columns of a topic, and fetched batches as rows of them.

    key, value: binary    topic: string    partition: int    offset: long    timestamp    timestampType: int
    headers: array<struct<key: string, value: binary>>, on request; null where a record has none

Rule: rows are columns from the start. The kernel fills Arrow's buffers batch by batch; the columns that are the same
in every row are made once and sliced. A run of rows ends when it is long or large enough to be worth a message to
Spark, and where the type of the timestamp changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from penstock.records import BatchHeader, Buffer, ColumnBuilder, append_time_of, payload_of
from penstock.records.twin import BytesColumn, HeaderColumn

if TYPE_CHECKING:
    import pyarrow

COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
HEADER_COLUMN: Final = "headers array<struct<key: string, value: binary>>"
DEFAULT_BATCH_ROWS: Final = 20_000
# Larger buffers come from fresh pages each time, and have left the caches when they are sent.
_BATCH_BYTES: Final = 2 * 1024 * 1024
_MICROSECONDS: Final = 1000


def ddl(*, include_headers: bool) -> str:
    """The schema as Spark's SQL writes it."""
    return f"{COLUMNS}, {HEADER_COLUMN}" if include_headers else COLUMNS


@cache
def arrow_schema(*, include_headers: bool) -> pyarrow.Schema:
    """The schema as Arrow has it: what Spark compares the first batch with."""
    import pyarrow as pa

    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    if include_headers:
        pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        fields.append(pa.field("headers", pa.list_(pa.field("element", pair))))
    return pa.schema(fields)


class RowBuilder:
    """Rows of one partition, in the making."""

    def __init__(self, topic: str, partition: int, *, include_headers: bool, batch_rows: int) -> None:
        self._columns = ColumnBuilder(headers=include_headers, timestamp_scale=_MICROSECONDS)
        self._schema = arrow_schema(include_headers=include_headers)
        self._batch_rows = batch_rows
        self._timestamp_type = 0
        self._same = _SameInEveryRow(topic, partition)

    def add(self, buffer: Buffer, header: BatchHeader, start: int, end: int) -> Iterator[pyarrow.RecordBatch]:
        """Add the records of a batch with offsets in [start, end); the rows that are ready now, if any.

        Raises RecordError where the bytes are damaged; nothing of the batch is added then.
        """
        if header.timestamp_type != self._timestamp_type:
            yield from self.finish()
            self._timestamp_type = header.timestamp_type
        plain, first, last = payload_of(buffer, header)
        columns = self._columns
        columns.append(
            plain, first, last, header.record_count, header.base_offset, header.base_timestamp,
            append_time_of(header), start, end,
        )  # fmt: skip
        if columns.rows >= self._batch_rows or columns.data_size >= _BATCH_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[pyarrow.RecordBatch]:
        """What is left."""
        import pyarrow as pa

        if not self._columns.rows:
            return
        rows, offsets, timestamps, keys, values, headers = self._columns.finish()
        arrays: list[Any] = [
            _binary(keys, rows, pa.binary()),
            _binary(values, rows, pa.binary()),
            *self._same.topic_and_partition(rows),
            pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(offsets)]),
            pa.Array.from_buffers(pa.timestamp("us", "UTC"), rows, [None, pa.py_buffer(timestamps)]),
            self._same.timestamp_type(self._timestamp_type, rows),
        ]
        if headers is not None:
            arrays.append(_headers(headers, rows, self._schema.field("headers").type))
        whole = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        # One stored batch may hold any number of records.
        for first in range(0, rows, 2 * self._batch_rows):
            yield whole if rows <= 2 * self._batch_rows else whole.slice(first, 2 * self._batch_rows)


class _SameInEveryRow:
    """Columns of one value, grown when a longer one is needed."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._rows = 0
        self._arrays: list[Any] = []

    def topic_and_partition(self, rows: int) -> list[Any]:
        self._grow(rows)
        return [self._arrays[0].slice(0, rows), self._arrays[1].slice(0, rows)]

    def timestamp_type(self, kind: int, rows: int) -> Any:
        self._grow(rows)
        return self._arrays[2 + kind].slice(0, rows)

    def _grow(self, rows: int) -> None:
        if rows <= self._rows:
            return
        import pyarrow as pa

        self._rows = rows = rows * 5 // 4
        self._arrays = [
            pa.repeat(pa.scalar(self._topic, pa.string()), rows),
            *(pa.repeat(pa.scalar(number, pa.int32()), rows) for number in (self._partition, 0, 1)),
        ]


def _binary(column: BytesColumn, rows: int, kind: Any) -> Any:
    import pyarrow as pa

    ends, data, valid = column
    validity = None if valid is None else pa.py_buffer(valid)
    return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(ends), pa.py_buffer(data)])


def _headers(column: HeaderColumn, rows: int, kind: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    ends, keys, values = column
    count = len(keys[0]) // 4 - 1
    pairs = pa.StructArray.from_arrays(
        [_binary(keys, count, pa.string()), _binary(values, count, pa.binary())], fields=list(kind.value_type)
    )
    numbers = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(ends)])
    # A comparison's bits are the validity bitmap: rows whose list is empty are null, as the stock connector has it.
    valid = pc.not_equal(numbers.slice(1), numbers.slice(0, rows)).buffers()[1]
    return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(ends)], children=[pairs])
