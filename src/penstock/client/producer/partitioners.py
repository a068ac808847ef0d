"""Which partition a record goes to.

Rule: the partition that the caller names; else the user's own partitioner, if there is one; else the hash of the key,
as Java's client takes it, so that records of a key meet in one partition whoever sends them; else, without a key, one
partition until its batch is closed and then another: few large batches, spread evenly over time.

    murmur2(key) with the sign bit off, modulo the number of partitions

A partitioner of the user's own is a function (topic, key, partition_count) -> partition; it sees serialized keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.client.errors import ConfigError
from penstock.records.kernel import murmur2
from penstock.runtime.randomness import Random

Partitioner = Callable[[str, bytes | None, int], int]


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition that every Kafka client with Java's default partitioner chooses."""
    return murmur2(key) % partition_count


def next_sticky(current: int, candidates: Sequence[int], random: Random) -> int:
    """Where records without a key go next: any of `candidates` but the current one, if there is another."""
    count = len(candidates)
    place = random.below(count)
    if candidates[place] == current and count > 1:
        place = (place + 1 + random.below(count - 1)) % count
    return candidates[place]


def checked(partition: object, partition_count: int, chosen_by: str, topic: str) -> int:
    """A partition that somebody named; ConfigError (a ValueError too) if the topic has none such."""
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise TypeError(f"{chosen_by} must be an int, not {type(partition).__name__}")
    if not 0 <= partition < partition_count:
        raise ConfigError(f"{chosen_by} is {partition}; topic {topic} has partitions 0 to {partition_count - 1}")
    return partition
