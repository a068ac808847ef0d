"""Arrow's columns as records to be encoded, for the kernel's twin.

Noun: rows, each a record to be, in buffers that belong to somebody else. Rule: a column's buffers are checked against
its row count, and every offset against the data, once, when the rows are put together; since a buffer may be written
to later, what is read from it is compared again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.records.twin_bytes import INT32_MAX, Buffer, check_int64, put_sized, put_varint

_MOST_FIRST: Final = 1 << 48

_EMPTY: Final = memoryview(b"")


class BytesSource(NamedTuple):
    """A column of Arrow's binary, string, large_binary or large_string, as `Array.buffers` gives it."""

    validity: Buffer | None
    ends: Buffer
    data: Buffer | None
    width: int = 4
    """Bytes of an offset: 4, or 8 for the large types."""
    first: int = 0
    """The first row, in these buffers, of a slice."""


class NumberSource(NamedTuple):
    """A column of int64, or of a 64-bit type such as timestamp[ms]."""

    validity: Buffer | None
    numbers: Buffer
    first: int = 0


class HeaderSource(NamedTuple):
    """A column of Arrow's list<struct<key, value>>."""

    validity: Buffer | None
    ends: Buffer
    width: int
    first: int
    names: BytesSource
    contents: BytesSource | None
    pairs: int
    """How many structs there are."""


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
    """Rows of Arrow columns, which stay borrowed as long as this lives: each row is a record to be.

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
    """Which rows to take: some of those that a buffer of row numbers names, or a run of all."""

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
