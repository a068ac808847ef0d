"""Records into Arrow's columns, for the kernel's twin.

Noun: a builder that gathers the records of many batches. Rule: a column of variable length has int32 ends, so a
batch that could take one past 2 GiB is refused before any of it is added.
"""

from __future__ import annotations

from struct import Struct

from penstock.records.errors import TooLarge
from penstock.records.twin_bytes import INT32_MAX, INT64_MAX, Buffer, wrap_int64
from penstock.records.twin_records import Record, check_range, decode_headers, parse_records

BytesColumn = tuple[bytearray, bytearray, bytearray | None]
HeaderColumn = tuple[bytearray, BytesColumn, BytesColumn]
Columns = tuple[int, bytearray, bytearray, BytesColumn, BytesColumn, HeaderColumn | None]

_INT32 = Struct("=i")
_INT64 = Struct("=q")


def _bytes_column(values: list[bytes | None]) -> BytesColumn:
    ends, data, valid = bytearray(_INT32.pack(0)), bytearray(), bytearray((len(values) + 7) // 8)
    for row, value in enumerate(values):
        if value is not None:
            data += value
            valid[row >> 3] |= 1 << (row & 7)
        ends += _INT32.pack(len(data))
    return ends, data, valid if None in values else None


class ColumnBuilder:
    """Records of many batches as Arrow buffers.

    `append` adds the records of one decompressed batch whose offsets lie in [from_offset, until_offset);
    `finish` gives the buffers and starts anew. `timestamp_scale` turns milliseconds into a finer unit (1000:
    microseconds).
    """

    def __init__(self, headers: bool = False, timestamp_scale: int = 1) -> None:
        self._with_headers = headers
        self._scale = timestamp_scale
        self._reset()

    def _reset(self) -> None:
        self._rows: list[Record] = []
        self._key_bytes = self._value_bytes = 0
        self._header_rows = self._header_key_bytes = self._header_value_bytes = 0

    @property
    def rows(self) -> int:
        return len(self._rows)

    @property
    def data_size(self) -> int:
        """Bytes of keys and values gathered so far."""
        return self._key_bytes + self._value_bytes

    def _check_room(self, rows: int, data: int) -> None:
        fullest = max(
            self.rows + rows,
            self._key_bytes + data,
            self._value_bytes + data,
            self._header_key_bytes + data,
            self._header_value_bytes + data,
            self._header_rows + data // 2,
        )
        if fullest > INT32_MAX:
            raise TooLarge("a column of variable length", INT32_MAX)

    def append(
        self,
        buffer: Buffer,
        start: int,
        end: int,
        count: int,
        base_offset: int,
        base_timestamp: int,
        append_time: int | None = None,
        from_offset: int = 0,
        until_offset: int = INT64_MAX,
    ) -> int:
        """Add a batch's records; how many were in range. On damage nothing of the batch is added."""
        view = check_range(buffer, start, end, count)
        self._check_room(count, end - start)
        fresh: list[Record] = []
        for parsed in parse_records(view, start, end, count):
            offset = wrap_int64(base_offset + parsed.offset_delta)
            if not from_offset <= offset < until_offset:
                continue
            stamp = wrap_int64(base_timestamp + parsed.timestamp_delta) if append_time is None else append_time
            headers = decode_headers(parsed.headers) if self._with_headers else ()
            fresh.append(Record(offset, wrap_int64(stamp * self._scale), parsed.key, parsed.value, headers))
        for record in fresh:
            self._add(record)
        return len(fresh)

    def _add(self, record: Record) -> None:
        self._rows.append(record)
        self._key_bytes += len(record.key or b"")
        self._value_bytes += len(record.value or b"")
        for name, content in record.headers:
            self._header_rows += 1
            self._header_key_bytes += len(name.encode())
            self._header_value_bytes += len(content or b"")

    def finish(self) -> Columns:
        """(rows, offsets, timestamps, keys, values, headers or None) and an empty builder.

        A column of bytes is (int32 ends, data, validity bitmap or None); headers are (int32 ends, keys,
        values).
        """
        rows = self._rows
        self._reset()
        return (
            len(rows),
            bytearray(b"".join([_INT64.pack(row.offset) for row in rows])),
            bytearray(b"".join([_INT64.pack(row.timestamp) for row in rows])),
            _bytes_column([row.key for row in rows]),
            _bytes_column([row.value for row in rows]),
            _header_column(rows) if self._with_headers else None,
        )


def _header_column(rows: list[Record]) -> HeaderColumn:
    ends, total = bytearray(_INT32.pack(0)), 0
    for row in rows:
        total += len(row.headers)
        ends += _INT32.pack(total)
    pairs = [pair for row in rows for pair in row.headers]
    return (
        ends,
        _bytes_column([name.encode() for name, _ in pairs]),
        _bytes_column([content for _, content in pairs]),
    )
