"""Records of a producer, for the kernel's twin.

Noun: an open batch, whose records are encoded as they come. Rule: what was built once does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.records.compression import compress
from penstock.records.errors import TooLarge
from penstock.records.twin_bytes import (
    HEADER_SIZE,
    INT32_MAX,
    LENGTH_END,
    Buffer,
    check_int64,
    put_varint,
    wrap_int64,
)
from penstock.records.twin_headers import write_header
from penstock.records.twin_records import as_bytes, header_pairs, parse_records
from penstock.records.twin_rows import ColumnRows, Selection, as_rows

_TRANSACTIONAL_BIT: Final = 16

Headers = Iterable[tuple[str, bytes | None]]
Content = bytes | memoryview | None


def _varint(value: int) -> bytes:
    out = bytearray()
    put_varint(out, value)
    return bytes(out)


def _length(data: Content) -> int:
    return -1 if data is None else len(data)


def encode_headers(headers: Headers | None) -> bytes:
    pairs = header_pairs(headers) if headers else []
    out = bytearray()
    put_varint(out, len(pairs))
    for pair in pairs:
        for data in pair:
            put_varint(out, _length(data))
            out += data or b""
    return bytes(out)


class BatchBuilder:
    """The records of one open batch, encoded as they are appended.

    `limit_bytes` bounds the batch before compression, its header of 61 bytes included; the first record always fits.
    `build` closes it: a batch that was sent once must not change, so from then on nothing fits.
    """

    def __init__(self, limit_bytes: int) -> None:
        if not HEADER_SIZE <= limit_bytes <= INT32_MAX:
            raise ValueError(f"a batch's limit is {limit_bytes} bytes; it must be {HEADER_SIZE} to {INT32_MAX}")
        self.limit_bytes = limit_bytes
        self.count = 0
        self.size = HEADER_SIZE
        self.base_timestamp = self.max_timestamp = -1
        self.is_closed = False
        self._is_lent = False
        self._out = bytearray(HEADER_SIZE)
        self._packed: tuple[tuple[int, int | None], bytes] | None = None

    def _check_size(self) -> None:
        if self._is_lent and len(self._out) != self.size:
            raise ValueError("the batch was resized by whoever got it")

    def add(self, timestamp: int, key: Content, value: Content, headers: bytes | bytearray) -> int:
        """Append a record whose headers are encoded already."""
        if self.is_closed:
            return -1
        prefix = b"\x00" + _varint(wrap_int64(timestamp - self.base_timestamp) if self.count else 0)
        prefix += _varint(self.count) + _varint(_length(key))
        middle = _varint(_length(value))
        body = len(prefix) + len(key or b"") + len(middle) + len(value or b"") + len(headers)
        if body > INT32_MAX:
            raise TooLarge("a record", INT32_MAX)
        length = _varint(body)
        needed = self.size + len(length) + body
        if needed > self.limit_bytes and self.count:
            return -1
        if needed - LENGTH_END > INT32_MAX:
            raise TooLarge("a batch", INT32_MAX)
        self._out += b"".join((length, prefix, key or b"", middle, value or b"", headers))
        self.size = needed
        if self.count == 0:
            self.base_timestamp = self.max_timestamp = timestamp
        self.max_timestamp = max(self.max_timestamp, timestamp)
        self.count += 1
        return self.count - 1

    def append(self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()) -> int:
        """Append a record; its index in the batch, or -1 if it does not fit."""
        check_int64(timestamp)
        key_bytes, value_bytes = as_bytes(key, "key"), as_bytes(value, "value")
        return self.add(timestamp, key_bytes, value_bytes, encode_headers(headers))

    def append_many(
        self,
        timestamp: int,
        values: Sequence[Buffer | None],
        start: int = 0,
        keys: Sequence[Buffer | None] | None = None,
    ) -> int:
        """Append values[start:], each with its key where there are `keys`, until the batch is full; how many.

        A value that is refused raises when it comes first; else those before it are in, and it raises the next time.
        """
        check_int64(timestamp)
        items = values if isinstance(values, list | tuple) else list(values)
        names = keys if keys is None or isinstance(keys, list | tuple) else list(keys)
        if start < 0:
            raise ValueError(f"start {start} is negative")
        if names is not None and len(names) != len(items):
            raise ValueError(f"there are {len(names)} keys for {len(items)} values")
        for row in range(start, len(items)):
            try:
                value = as_bytes(items[row], "value")
                key = None if names is None else as_bytes(names[row], "key")
                if self.add(timestamp, key, value, b"\x00") < 0:
                    return row - start
            except (TypeError, TooLarge):
                if row == start:
                    raise
                return row - start
        return max(len(items) - start, 0)

    def append_columns(
        self, rows: ColumnRows, start: int = 0, stop: int | None = None, selection: Buffer | None = None
    ) -> int:
        """Append rows[start:stop], or the rows that selection[start:stop] names, until the batch is full; how many.

        A row that is refused raises when it comes first; else those before it are in, and it raises the next time.
        """
        source = as_rows(rows)
        chosen = Selection(source.rows, start, stop, selection)
        for index in range(start, chosen.stop):
            try:
                row = chosen.row(index)
                timestamp, headers = source.timestamp_of(row), source.headers_of(row)
                if self.add(timestamp, source.key_of(row), source.value_of(row), headers) < 0:
                    return index - start
            except (ValueError, TooLarge):
                if index == start:
                    raise
                return index - start
        return chosen.stop - start

    def timestamp_runs(self) -> list[tuple[int, int]]:
        """[(index, timestamp)]: where in a built batch a timestamp begins that the record before does not have."""
        if not self.is_closed:
            raise ValueError("the batch is still open")
        self._check_size()
        runs: list[tuple[int, int]] = []
        with memoryview(self._out) as whole:
            for index, parsed in enumerate(parse_records(whole, HEADER_SIZE, self.size, self.count)):
                timestamp = wrap_int64(self.base_timestamp + parsed.timestamp_delta)
                if not runs or timestamp != runs[-1][1]:
                    runs.append((index, timestamp))
        return runs

    def build(
        self,
        *,
        codec: int = 0,
        level: int | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
    ) -> bytearray:
        """The whole batch; again, with other numbers, for a retry under a new producer id.

        It is compressed once for the same codec and level. Not compressed, it is the builder's own buffer the first
        time, to be read only, and a copy after that.
        """
        if self.count == 0:
            raise ValueError("a batch holds at least one record")
        self._check_size()
        self.is_closed = True
        if codec == 0:
            batch = self._out[:] if self._is_lent else self._out
            self._is_lent = True
        else:
            if self._packed is None or self._packed[0] != (codec, level):
                with memoryview(self._out) as whole, whole[HEADER_SIZE:] as records:
                    self._packed = ((codec, level), compress(codec, records, level))
            batch = bytearray(HEADER_SIZE) + self._packed[1]
        write_header(
            batch, 0, -1, codec | is_transactional * _TRANSACTIONAL_BIT, self.count - 1, self.base_timestamp,
            self.max_timestamp, producer_id, producer_epoch, base_sequence, self.count,
        )  # fmt: skip
        return batch


def encode_columns(
    rows: ColumnRows, limit_bytes: int, start: int = 0, stop: int | None = None, selection: Buffer | None = None
) -> tuple[BatchBuilder, int]:
    """(a BatchBuilder, how many rows it took): rows[start:stop], or those that selection[start:stop] names.

    A batch has room for `limit_bytes` before compression; whoever has more rows goes on at `start` plus what was
    taken.
    """
    builder = BatchBuilder(limit_bytes)
    return builder, builder.append_columns(rows, start, stop, selection)
