"""Which partition a key belongs to, and which rows a partition, for the kernel's twin."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Final

from penstock.records.twin_bytes import INT32_MAX, Buffer
from penstock.records.twin_records import as_bytes
from penstock.records.twin_rows import ColumnRows, as_rows, numbers_of

MOST_PARTITIONS: Final = 1_000_000
_UINT32: Final = 0xFFFFFFFF
_MURMUR: Final = 0x5BD1E995


def murmur2(key: Buffer) -> int:
    """The hash by which Java's producer chooses a key's partition: 0 to 2**31 - 1, the partition is the remainder."""
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

    A row's partition is its number in `partitions` (int32 or int64) where there are any and it is not -1, else it is
    the key's, as murmur2 gives it; a row without key has none.
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
