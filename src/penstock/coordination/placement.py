"""Where a group lives: the partition of `__consumer_offsets` that its name hashes to.

Every broker and every tool must come to the same answer, so this is Java's String.hashCode: 31-adic over UTF-16
code units, in 32 bits, the sign bit cleared.
"""

from __future__ import annotations


def partition_for_group(group_id: str, partitions: int) -> int:
    """The partition, from 0 to `partitions` - 1, whose leader coordinates the group."""
    units = memoryview(group_id.encode("utf-16-le", "surrogatepass")).cast("H")
    code = 0
    for unit in units:
        code = (31 * code + unit) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % partitions
