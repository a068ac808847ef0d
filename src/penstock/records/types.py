"""Types that callers of the kernel share: buffers, records as tuples, and Arrow columns as plain buffers.

They stand apart from both kernels, so that a process with the compiled kernel does not load the Python one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

HEADER_SIZE: Final = 61

Buffer: TypeAlias = bytes | bytearray | memoryview

# timestamp in ms, key, value, headers
RecordTuple: TypeAlias = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]

# What ColumnBuilder returns. Bytes: int32 ends, data, validity bits or None where no row is null.
BytesColumn: TypeAlias = tuple[bytearray, bytearray, bytearray | None]
# int32 ends, keys, values
HeaderColumn: TypeAlias = tuple[bytearray, BytesColumn, BytesColumn]
# number of rows, offsets, timestamps, keys, values, headers
Columns: TypeAlias = tuple[int, bytearray, bytearray, BytesColumn, BytesColumn, HeaderColumn | None]


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
