"""Where reading begins and ends, as users say it. Pure.

Noun: a `Position`: an end of the log, an offset for each partition, or a time.

Rule: a position asks its questions (`questions`: the time to look up for each partition, -2 and -1 being the ends), and
turns the answers into offsets (`resolve`). All partitions must be covered: a partition that was forgotten is an error
now, not a gap later. Offsets outside of the log are data loss, and follow that policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import ConfigError
from penstock.spark.errors import DataLost

EARLIEST: Final = -2
LATEST: Final = -1


class Bounds(NamedTuple):
    """What a partition holds: offsets from `earliest` up to, not including, `latest`."""

    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class AtEnd:
    """One end of every log: EARLIEST or LATEST."""

    end: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition, which may be an end."""

    offsets: Mapping[TopicPartition, int] = field(hash=False)


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first record at or after a time: one for all partitions, or each its own. Where no record is that young it is
    an error, or with `or_latest` the end."""

    time_ms: int | None
    times_ms: Mapping[TopicPartition, int] = field(hash=False)
    or_latest: bool = False


Position = AtEnd | AtOffsets | AtTimes


def questions(position: Position, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The times to look up, besides both ends."""
    if not isinstance(position, AtTimes):
        return {}
    wanted = set(partitions)
    if position.time_ms is not None:
        return dict.fromkeys(wanted, position.time_ms)
    _check_covers(position.times_ms, wanted, "timestamp")
    return dict(position.times_ms)


def resolve(
    position: Position,
    bounds: Mapping[TopicPartition, Bounds],
    found: Mapping[TopicPartition, int],
    *,
    fail_on_data_loss: bool = True,
) -> dict[TopicPartition, int]:
    """The offset in each partition; `found` answers the questions, -1 where there is no such record.

    bounds 10..50: earliest 10, latest 50, offset 5 is data loss or 10, a time after the last record an error or 50.
    """
    if isinstance(position, AtEnd):
        return {partition: ends[position.end + 2] for partition, ends in bounds.items()}
    if isinstance(position, AtTimes):
        return {partition: _at_time(position, partition, ends, found) for partition, ends in bounds.items()}
    _check_covers(position.offsets, set(bounds), "offset")
    return {
        partition: _at_offset(partition, position.offsets[partition], ends, fail_on_data_loss)
        for partition, ends in bounds.items()
    }


def _at_time(position: AtTimes, partition: TopicPartition, ends: Bounds, found: Mapping[TopicPartition, int]) -> int:
    offset = found.get(partition, -1)
    if offset >= 0:
        return offset
    if position.or_latest:
        return ends.latest
    time_ms = position.time_ms if position.time_ms is not None else position.times_ms[partition]
    raise ConfigError(
        f"{partition} has no record at or after {time_ms} (startingTimestamp or startingOffsetsByTimestamp)",
        hint="Set startingOffsetsByTimestampStrategy to latest to begin at the end of such partitions",
    )


def _at_offset(partition: TopicPartition, offset: int, ends: Bounds, fail_on_data_loss: bool) -> int:
    if offset in (EARLIEST, LATEST):
        return ends[offset + 2]
    if ends.earliest <= offset <= ends.latest:
        return offset
    if fail_on_data_loss:
        raise DataLost(
            f"{partition} has no offset {offset}: it holds {ends.earliest} to {ends.latest}",
            hint="Ask for offsets that exist, or set failOnDataLoss to false to take what there is",
        )
    return min(max(offset, ends.earliest), ends.latest)


def _check_covers(given: Mapping[TopicPartition, int], wanted: set[TopicPartition], what: str) -> None:
    missing, strange = sorted(wanted - given.keys()), sorted(given.keys() - wanted)
    if missing:
        raise ConfigError(
            f"there is no {what} for {', '.join(map(str, missing))}",
            hint="Name every partition of every topic that is read"
            + ("; -2 stands for earliest, -1 for latest" if what == "offset" else ""),
        )
    if strange:
        raise ConfigError(f"there is a {what} for {', '.join(map(str, strange))}, which is not read")


# ---------------------------------------------------------------------------------------------- JSON of the options


def partitions_from_json(value: Any) -> frozenset[TopicPartition]:
    """{"views": [0, 1]}"""
    if not isinstance(value, dict) or not value:
        raise ConfigError("it names no partitions")
    found: set[TopicPartition] = set()
    for topic, numbers in value.items():
        if not isinstance(numbers, list) or not all(_is_whole(one) and one >= 0 for one in numbers):
            raise ConfigError(f"the partitions of {topic} are no list of numbers")
        found.update(TopicPartition(topic, one) for one in numbers)
    if not found:
        raise ConfigError("it names no partitions")
    return frozenset(found)


def offsets_from_json(value: Any) -> dict[TopicPartition, int]:
    """{"views": {"0": 23, "1": -2}}"""
    return _numbers(value, least=EARLIEST, what="offset")


def times_from_json(value: Any) -> dict[TopicPartition, int]:
    """{"views": {"0": 1700000000000}}"""
    return _numbers(value, least=0, what="timestamp")


def _numbers(value: Any, *, least: int, what: str) -> dict[TopicPartition, int]:
    if not isinstance(value, dict):
        raise ConfigError("it is no JSON object")
    found: dict[TopicPartition, int] = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise ConfigError(f"{topic} has no object of partitions")
        for number, one in partitions.items():
            if not number.isdecimal():
                raise ConfigError(f"{number!r} is no partition of {topic}")
            if not _is_whole(one) or one < least:
                raise ConfigError(f"{one!r} is no {what} for {topic}-{number}")
            found[TopicPartition(topic, int(number))] = one
    return found


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
