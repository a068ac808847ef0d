"""The small values that a consumer's calls take and give."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic; equal to the plain pair of the two."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class Watermarks(NamedTuple):
    """Where a partition begins and ends, as its leader said last; the end is exclusive."""

    low: int
    high: int
