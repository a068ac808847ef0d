"""Offsets by time.

Rule: the segment is found among the running maxima of the table, the batch by the time index; only that one batch is
decompressed, to find the record.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.log.errors import DamagedLog
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import Segment
from penstock.log.walk import Place
from penstock.records import NO_TIMESTAMP, CorruptBatch, Record, decode_batch


class TimedOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def offset_for_time(log: PartitionLog, timestamp: int) -> TimedOffset | None:
    """The first record stamped at or after `timestamp`; None if there is none.

    Records 0..2 stamped 10, 30, 20: time 15 gives offset 1, time 31 None.
    """
    log.require_online()
    with log.noting_damage():
        return _offset_for_time(log, timestamp)


def _offset_for_time(log: PartitionLog, timestamp: int) -> TimedOffset | None:
    first = log.find_segment(log.log_start_offset)
    for index in range(max(first, log.stamped_table().first_stamped_from(timestamp)), log.segment_count):
        segment = log.segment_at(index)
        place = segment.find_time(timestamp)
        while place is not None:
            for record in _records(segment, place):
                if record.timestamp >= timestamp and record.offset >= log.log_start_offset:
                    return TimedOffset(record.timestamp, record.offset, place.header.leader_epoch)
            # Its newest record was compacted away, or lies before the log's start.
            place = _next_with(segment, place, timestamp)
    return None


def latest_timestamp(log: PartitionLog) -> TimedOffset | None:
    """The record with the largest timestamp, the first of those that share it; None in a log without timestamps."""
    log.require_online()
    with log.noting_damage():
        return _latest_timestamp(log)


def _latest_timestamp(log: PartitionLog) -> TimedOffset | None:
    first = log.find_segment(log.log_start_offset)
    stamps = [*log.stamped_table().stamps[first:], log.active.max_timestamp]
    found = _first_with(log, max(stamps))
    if found is None:
        # That was before the log's start, in the segment where it starts: what is left of that one may be older.
        found = _first_with(log, max([_newest_left(log, first), *stamps[1:]]))
    return found


def _first_with(log: PartitionLog, timestamp: int) -> TimedOffset | None:
    return None if timestamp <= NO_TIMESTAMP else _offset_for_time(log, timestamp)


def _newest_left(log: PartitionLog, index: int) -> int:
    """The largest timestamp in that segment from the log's start on."""
    segment = log.segment_at(index)
    first = segment.locate(log.log_start_offset)
    if first is None:
        return NO_TIMESTAMP
    left = [record.timestamp for record in _records(segment, first) if record.offset >= log.log_start_offset]
    return max([NO_TIMESTAMP, *left, *(place.header.max_timestamp for place in segment.places(first.end))])


def _records(segment: Segment, place: Place) -> list[Record]:
    # Control records count too, as they do in Kafka: a transaction's marker is often the newest record there is.
    data = segment.file.read_at(place.position, place.header.size)
    try:
        return decode_batch(data)
    except CorruptBatch as error:
        raise DamagedLog(segment.path, place.position, error.reason) from error


def _next_with(segment: Segment, place: Place, timestamp: int) -> Place | None:
    for candidate in segment.places(place.end):
        if candidate.header.max_timestamp >= timestamp:
            return candidate
    return None
