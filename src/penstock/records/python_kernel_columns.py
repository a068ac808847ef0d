"""Records to Arrow columns, Arrow columns to records, and the partition of a key.

Columns of variable length have int32 ends, so a batch that could exceed 2 GiB is rejected before any of it is added.
Borrowed buffers are checked against their row count and every offset against the data, once; since a buffer may change
later, what is read is compared again.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from struct import Struct
from typing import Final

from penstock.records.errors import TooLarge
from penstock.records.python_kernel_batch import (
    INT32_MAX,
    INT64_MAX,
    check_int64,
    put_sized,
    put_varint,
    wrap_int64,
)
from penstock.records.python_kernel_records import Record, as_bytes, check_range, decode_headers, parse_records
from penstock.records.types import (
    Buffer,
    BytesColumn,
    BytesSource,
    Columns,
    HeaderColumn,
    HeaderSource,
    NumberSource,
)

MOST_PARTITIONS: Final = 1_000_000

_INT32: Final = Struct("=i")
_INT64: Final = Struct("=q")
_MOST_FIRST: Final = 1 << 48
_EMPTY: Final = memoryview(b"")
_UINT32: Final = 0xFFFFFFFF
_MURMUR: Final = 0x5BD1E995


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
    `finish` gives the buffers and starts over. `timestamp_scale` turns milliseconds into a finer unit (1000:
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
        """Add a batch's records; how many were in range. On damage no record of the batch is added."""
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


class _Lent:
    """A column's buffers as numbers and bits, sizes checked."""

    def __init__(self, validity: Buffer | None, ends: Buffer, width: int, first: int, rows: int, what: str) -> None:
        if width not in (4, 8):
            raise ValueError(f"an offset of the {what} column has 4 or 8 bytes, not {width}")
        self.validity, self.first = _validity(validity, first, rows, what)
        needed = 0 if rows == 0 else (first + rows + 1) * width
        whole = _borrow(ends, needed, f"offsets of the {what} column")
        self.ends = whole[:needed].cast("i" if width == 4 else "q")
        self.data = _EMPTY
        self.most = 0

    def check(self, rows: int, most: int, what: str) -> None:
        """No offset goes back or beyond `most`."""
        self.most = most
        for row in range(rows):
            start, end = self.ends[self.first + row], self.ends[self.first + row + 1]
            if not 0 <= start <= end <= most:
                raise ValueError(f"row {row} of the {what} column spans {start} to {end} of {most}")

    def span(self, row: int) -> tuple[int, int] | None:
        row += self.first
        if self.validity is not None and not self.validity[row >> 3] >> (row & 7) & 1:
            return None
        start, end = self.ends[row], self.ends[row + 1]
        if not 0 <= start <= end <= self.most:
            raise ValueError(f"row {row - self.first} was changed after it was checked")
        return start, end

    def cell(self, row: int) -> memoryview | None:
        found = self.span(row)
        return None if found is None else self.data[found[0] : found[1]]


def _borrow(buffer: Buffer, needed: int, what: str) -> memoryview:
    try:
        held = memoryview(buffer)
    except TypeError:
        raise TypeError(f"the {what} must be a buffer, not {type(buffer).__name__}") from None
    if not held.c_contiguous:
        raise ValueError(f"the {what} are not contiguous")
    if held.nbytes < needed:
        raise ValueError(f"the {what} are {held.nbytes} bytes; {needed} are needed")
    return held.cast("B")


def _validity(validity: Buffer | None, first: int, rows: int, what: str) -> tuple[memoryview | None, int]:
    if not 0 <= first <= _MOST_FIRST:
        raise ValueError(f"the {what} column cannot begin at row {first}")
    if validity is None:
        return None, first
    return _borrow(validity, (first + rows + 7) // 8, f"validity bits of the {what} column"), first


def _lend(column: BytesSource | None, rows: int, what: str) -> _Lent | None:
    if column is None:
        return None
    validity, ends, data, width, first = column
    lent = _Lent(validity, ends, width, first, rows, what)
    if data is not None:
        lent.data = _borrow(data, 0, f"data of the {what} column")
    lent.check(rows, len(lent.data), what)
    return lent


class ColumnRows:
    """Rows of Arrow columns to encode as records. The buffers stay borrowed as long as this lives.

    A column that is None is null in every row. Rows without a timestamp have `timestamp_ms`.
    """

    def __init__(
        self,
        rows: int,
        values: BytesSource | None,
        keys: BytesSource | None = None,
        timestamp_ms: int = -1,
        timestamps: NumberSource | None = None,
        headers: HeaderSource | None = None,
    ) -> None:
        if not 0 <= rows <= INT32_MAX:
            raise ValueError(f"{rows} rows: there may be 0 to {INT32_MAX}")
        self.timestamp_ms = check_int64(timestamp_ms)
        self._values = _lend(values, rows, "value")
        self._keys = _lend(keys, rows, "key")
        self._stamps: tuple[memoryview | None, memoryview, int] | None = None
        if timestamps is not None:
            self._take_stamps(timestamps, rows)
        self._pairs: _Lent | None = None
        if headers is not None:
            self._take_headers(headers, rows)
        self.rows = rows

    def _take_stamps(self, column: NumberSource, rows: int) -> None:
        validity, numbers, first = column
        bits, first = _validity(validity, first, rows, "timestamp")
        needed = 0 if rows == 0 else (first + rows) * 8
        whole = _borrow(numbers, needed, "numbers of the timestamp column")
        self._stamps = (bits, whole[:needed].cast("q"), first)

    def _take_headers(self, column: HeaderSource, rows: int) -> None:
        validity, ends, width, first, names, contents, pairs = column
        if not 0 <= pairs <= INT32_MAX:
            raise ValueError(f"{pairs} headers: there may be 0 to {INT32_MAX}")
        lent_names = _lend(names, pairs, "header key")
        if lent_names is None:
            raise TypeError("the header key column must be there")
        self._contents = _lend(contents, pairs, "header value")
        lent = _Lent(validity, ends, width, first, rows, "headers")
        self._names = lent_names
        if rows == 0:
            return
        lent.check(rows, pairs, "headers")
        for pair in range(lent.ends[first], lent.ends[first + rows]):
            name = lent_names.cell(pair)
            if name is None:
                raise ValueError(f"header {pair} has no key")
            try:
                str(name, "utf-8")
            except UnicodeDecodeError:
                raise ValueError(f"the key of header {pair} is not UTF-8") from None
        self._pairs = lent

    def timestamp_of(self, row: int) -> int:
        """The row's timestamp."""
        if self._stamps is None:
            return self.timestamp_ms
        bits, numbers, first = self._stamps
        row += first
        if bits is not None and not bits[row >> 3] >> (row & 7) & 1:
            return self.timestamp_ms
        stamp: int = numbers[row]
        return stamp

    def key_of(self, row: int) -> memoryview | None:
        """The row's key."""
        return None if self._keys is None else self._keys.cell(row)

    def value_of(self, row: int) -> memoryview | None:
        """The row's value."""
        return None if self._values is None else self._values.cell(row)

    def headers_of(self, row: int) -> bytearray:
        """The row's headers as a record has them: their count, then each."""
        out = bytearray()
        found = None if self._pairs is None else self._pairs.span(row)
        start, stop = found or (0, 0)
        put_varint(out, stop - start)
        for pair in range(start, stop):
            name = self._names.cell(pair)
            if name is None:
                raise ValueError(f"row {row} was changed after it was checked")
            put_sized(out, name)
            put_sized(out, None if self._contents is None else self._contents.cell(pair))
        return out


def as_rows(candidate: object) -> ColumnRows:
    """The candidate, if it is rows."""
    if type(candidate) is not ColumnRows:
        raise TypeError(f"ColumnRows are needed, not {type(candidate).__name__}")
    return candidate


def numbers_of(buffer: Buffer, what: str) -> memoryview:
    try:
        held = memoryview(buffer)
    except TypeError:
        raise TypeError(f"the {what} must be a buffer, not {type(buffer).__name__}") from None
    if held.format not in ("i", "l", "q") or held.ndim != 1 or not held.c_contiguous:
        raise TypeError(f"the {what} must be contiguous int32 or int64, not format {held.format}")
    return held


class Selection:
    """The rows to take: those in a buffer of row numbers, or a range of all."""

    def __init__(self, rows: int, start: int, stop: int | None, selection: Buffer | None) -> None:
        self._rows = rows
        self._numbers = None if selection is None else numbers_of(selection, "selected rows")
        count = rows if self._numbers is None else len(self._numbers)
        self.stop = count if stop is None else stop
        if not 0 <= start <= self.stop <= count:
            raise ValueError(f"rows {start} to {self.stop} are outside of {count}")

    def row(self, index: int) -> int:
        """The row that the selection's index names."""
        if self._numbers is None:
            return index
        row: int = self._numbers[index]
        if not 0 <= row < self._rows:
            raise ValueError(f"row {row} is not one of {self._rows}")
        return row


def murmur2(key: Buffer) -> int:
    """Java's hash of a key, 0 to 2**31 - 1. The partition is its remainder."""
    data = as_bytes(key, "key")
    if data is None:
        raise TypeError("a record's key must be bytes to be hashed, not None")
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _MURMUR & _UINT32
        k = (k ^ k >> 24) * _MURMUR & _UINT32
        h = h * _MURMUR & _UINT32 ^ k
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _MURMUR & _UINT32
    h = (h ^ h >> 13) * _MURMUR & _UINT32
    return (h ^ h >> 15) & INT32_MAX


def partition_rows(
    rows: ColumnRows, partition_count: int, partitions: Buffer | None = None
) -> tuple[list[memoryview], memoryview]:
    """([the rows of each partition], the rows that have none), as int32 row numbers, ascending.

    A row's partition is its number in `partitions` (int32 or int64), if given and not -1, or else the key's by
    murmur2. A row without key has none.
    """
    source = as_rows(rows)
    if not 1 <= partition_count <= MOST_PARTITIONS:
        raise ValueError(f"a topic has 1 to {MOST_PARTITIONS} partitions, not {partition_count}")
    wanted = None if partitions is None else numbers_of(partitions, "partitions")
    if wanted is not None and len(wanted) != source.rows:
        raise ValueError(f"there are {len(wanted)} partitions for {source.rows} rows")
    found: list[list[int]] = [[] for _ in range(partition_count + 1)]
    for row in range(source.rows):
        place = -1 if wanted is None else wanted[row]
        if not -1 <= place < partition_count:
            raise ValueError(f"row {row} has no partition of 0 to {partition_count - 1}")
        if place == -1:
            key = source.key_of(row)
            place = partition_count if key is None else murmur2(key) % partition_count
        found[place].append(row)
    whole = memoryview(bytearray(source.rows * 4)).cast("i")
    bounds = [0, *accumulate(len(part) for part in found)]
    for part, start in zip(found, bounds, strict=False):
        for index, row in enumerate(part, start):
            whole[index] = row
    parts = [whole[start:stop] for start, stop in pairwise(bounds)]
    return parts[:partition_count], parts[partition_count]
