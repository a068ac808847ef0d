"""Putting what a leader answered into a follower's log.

Noun: an `Effect`, what an answer did, and so what is next for the partition.

Rule: `following.next_step` decides; here it is done. Nothing is done to a log with an answer to a question that was
asked from another place than the log's end: it is about what no longer is. Bytes that are damaged are not appended. A
log that is damaged is cut there when its leader has answered for the first time, if the cluster was told.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Final, NamedTuple

from penstock.log.errors import InvalidBatch, NonMonotonicOffsets
from penstock.records import Buffer, scan
from penstock.replication.fetch_course import Course
from penstock.replication.following import Answer, Append, Cut, Hold, StartOver, Wait, next_step
from penstock.wire.error_codes import ErrorCode, error_code
from penstock.wire.schemas.fetch import PartitionData
from penstock.wire.types import BUFFERS

logger = logging.getLogger(__name__)


# A leader that answers so knows the broker epoch of this life, and so does the controller: it has dealt with what the
# broker told when it registered, and counts on nothing that this log had.
_KNOWN_HERE: Final = frozenset({ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE})


class Effect(Enum):
    NOTHING = "nothing"  # the leader knows all that it must
    MOVED = "moved"  # the log begins or ends elsewhere now: say so
    TOO_SMALL = "too small"  # not one whole batch came: ask for more bytes
    WAIT = "wait"  # ask again after a while
    NEWS = "news"  # ask again when the cluster has news


class Taken(NamedTuple):
    effect: Effect
    reason: str = ""
    is_final: bool = False
    """Asking again in this epoch cannot help."""


def records_in(data: PartitionData) -> Buffer | None:
    """The bytes that came, if any."""
    records = data.records
    return records if isinstance(records, BUFFERS) and len(records) else None


def take(course: Course, data: PartitionData) -> Taken:
    """Do what the answer asks for; what the log raises passes through, and then nothing was appended."""
    log = course.partition.log
    damage = log.damage
    if damage is not None and damage.is_told and data.error_code in _KNOWN_HERE:
        logger.warning(
            "%s: cut where it is damaged, copied anew from leader %d: %s", course, course.leader, damage.error()
        )
        course.partition.cut(log.log_end_offset)
        return Taken(Effect.MOVED)
    records = records_in(data)
    diverging = None
    if data.diverging_epoch.epoch >= 0 or data.diverging_epoch.end_offset >= 0:
        diverging = (data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
    is_here = log.log_end_offset == course.asked.offset
    if diverging is not None and is_here and diverging[0] > course.asked.last_epoch:
        # Both can have at most what this log has: cutting by an answer that makes no sense would lose records.
        return Taken(Effect.WAIT, f"asked about epoch {course.asked.last_epoch}, it told of epoch {diverging[0]}")
    step = next_step(
        Answer(error_code(data.error_code), data.high_watermark, data.log_start_offset, records is not None, diverging),
        log.log_end_offset,
        log.epochs,
    )
    if isinstance(step, Append):
        return _appended(course, step, records if is_here else None)
    if isinstance(step, Hold):
        effect = Effect.NEWS if step.until is Wait.NEWS else Effect.WAIT
        return Taken(effect, step.reason.name, step.reason == ErrorCode.FENCED_LEADER_EPOCH)
    return _cut(course, step) if is_here else Taken(Effect.NOTHING)


def _appended(course: Course, step: Append, records: Buffer | None) -> Taken:
    log = course.partition.log
    end = log.log_end_offset
    if end < course.asked.offset:
        return Taken(Effect.NOTHING)  # cut since: whether it is a prefix of the leader's now, it has not told
    if records is not None:
        _append(course, records)
        if log.log_end_offset == end:
            return Taken(Effect.TOO_SMALL)
    course.partition.followed(step.high_watermark, step.log_start)
    course.heard(step.high_watermark)
    # The leader wants to know of a log that begins later: deleting records is done when all replicas have done it.
    has_moved = records is not None or log.log_start_offset != course.asked_log_start
    return Taken(Effect.MOVED if has_moved else Effect.NOTHING)


def _append(course: Course, records: Buffer) -> None:
    partition, log = course.partition, course.partition.log
    try:
        partition.append_as_follower(records)
    except NonMonotonicOffsets as error:
        # The leader's log begins in the middle of a batch, which comes whole: so this one begins before that, too.
        if log.log_start_offset != log.log_end_offset or not _spans(records, log.log_end_offset):
            raise
        partition.start_over(error.found)
        partition.append_as_follower(records)
    except InvalidBatch:
        # Where compaction left a gap wider than a segment, batches cannot be appended together.
        headers = scan(records).headers
        if len(headers) < 2:
            raise
        view = memoryview(records)
        for header in headers:
            partition.append_as_follower(view[header.position : header.position + header.size])


def _spans(records: Buffer, offset: int) -> bool:
    headers = scan(records).headers
    return bool(headers) and headers[0].base_offset < offset < headers[0].next_offset


def _cut(course: Course, step: Cut | StartOver) -> Taken:
    partition, log = course.partition, course.partition.log
    end = log.log_end_offset
    if isinstance(step, Cut):
        if step.offset >= end:
            return Taken(Effect.WAIT, f"it told to cut at {step.offset} a log that ends at {end}")
        logger.info(
            "%s: cut at %d, it ended at %d, high watermark %d: leader %d of epoch %d has other records there",
            course, step.offset, end, log.high_watermark, course.leader, course.epoch,
        )  # fmt: skip
        partition.cut(step.offset)
    else:
        logger.warning(
            "%s: ended at %d, where leader %d begins at %d: starting over there",
            course, end, course.leader, step.offset,
        )  # fmt: skip
        partition.start_over(step.offset)
    return Taken(Effect.MOVED)
