"""Errors of the log. Each carries the values that disagree; the broker turns them into protocol error codes.

`LogError` is the base. `DiskFull` and `TooManyOpenFiles` fail one operation and leave the log as it was; `LogFailed`
takes the log offline, because after a failed write or sync the contents of the disk are unknown.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Final

_PARTITION_ERRNOS: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG}
)


class LogError(Exception):
    """Base of the log's errors."""


class OffsetOutOfRange(LogError):
    """The log does not, or no longer, contain an offset."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is out of range: the log holds offsets {start} to {end}")
        self.offset = offset
        self.start = start
        self.end = end


class InvalidBatch(LogError):
    """A whole, undamaged batch that this log does not accept.

    `record_errors` are the indexes of the records at fault and what is wrong with them; empty if it is the batch.
    """

    def __init__(self, message: str, record_errors: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class BatchTooLarge(InvalidBatch):
    """A batch larger than `max.message.bytes`."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"batch of {size} bytes exceeds max.message.bytes={limit}; send smaller batches or raise it")
        self.size = size
        self.limit = limit


class AppendTooLarge(InvalidBatch):
    """An append that does not fit a segment."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"append of {size} bytes exceeds segment.bytes={limit}")
        self.size = size
        self.limit = limit


class InvalidTimestamp(InvalidBatch):
    """A timestamp too far from the broker's clock, or of a type that clients may not set."""


class NonMonotonicOffsets(LogError):
    """A follower's batches do not continue its log."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"the log ends at offset {expected}, the batches start at {found}")
        self.expected = expected
        self.found = found


class StaleEpoch(LogError):
    """A batch of an older leader than the last one in the log."""

    def __init__(self, latest: int, found: int) -> None:
        super().__init__(f"leader epoch {found} is older than epoch {latest} at the end of the log")
        self.latest = latest
        self.found = found


class RecordsTruncated(LogError):
    """Records were truncated while a client waited for them to be durable."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"records below offset {offset} were truncated before they were durable")
        self.offset = offset


class DamagedLog(LogError):
    """Bytes on disk that differ from what was written."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class DiskFull(LogError):
    """No space for an append. The log is unchanged and accepts appends again when there is space."""

    def __init__(self, path: str) -> None:
        super().__init__(f"no space left on the disk of {path}; free some or lower retention")
        self.path = path


class TooManyOpenFiles(LogError):
    """The process reached its limit of open files. The disk is fine."""

    def __init__(self, path: str, partitions: int | None = None) -> None:
        needed = "" if partitions is None else f" for its {partitions} partitions"
        super().__init__(f"too many open files in {path}{needed}; raise the limit (ulimit -n)")
        self.path = path


class LogFailed(LogError):
    """A write or sync failed. The contents of the disk are unknown, so the log is offline until it is reopened."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is offline: {reason}")
        self.path = path
        self.reason = reason


class FolderInUse(LogError):
    """Another process, or another log of this one, has locked the directory."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"log directory {path} is in use ({holder}); stop that process or choose another directory")
        self.path = path
        self.holder = holder


# ----------------------------------------------------------------------------------------------------------- producers


class ProducerStateError(LogError):
    """A batch that this producer may not write now."""


class OutOfOrderSequence(ProducerStateError):
    """A gap, a reordering, or a repetition of a batch older than the last five."""

    def __init__(self, producer_id: int, epoch: int, sequence: int, expected: int) -> None:
        super().__init__(f"producer {producer_id} epoch {epoch}: sequence {sequence}, expected {expected}")
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequence = sequence
        self.expected = expected


class MissingSequence(ProducerStateError):
    """A client's batch with a producer id but without a sequence."""

    def __init__(self, producer_id: int, sequence: int) -> None:
        super().__init__(f"producer {producer_id}: invalid sequence {sequence}")
        self.producer_id = producer_id
        self.sequence = sequence


class InvalidProducerEpoch(ProducerStateError):
    """An epoch below the current one (a fenced producer), or none."""

    def __init__(self, producer_id: int, epoch: int, current: int) -> None:
        super().__init__(f"producer {producer_id}: epoch {epoch}, current epoch {current}")
        self.producer_id = producer_id
        self.epoch = epoch
        self.current = current


class CoordinatorFenced(ProducerStateError):
    """A marker of an older transaction coordinator."""

    def __init__(self, producer_id: int, coordinator_epoch: int, current: int) -> None:
        super().__init__(f"producer {producer_id}: coordinator epoch {coordinator_epoch}, current epoch {current}")
        self.producer_id = producer_id
        self.coordinator_epoch = coordinator_epoch
        self.current = current


class NotInTransaction(ProducerStateError):
    """A batch outside a transaction from a producer with an open one."""

    def __init__(self, producer_id: int, transaction_first_offset: int) -> None:
        super().__init__(f"producer {producer_id} has a transaction open since offset {transaction_first_offset}")
        self.producer_id = producer_id
        self.transaction_first_offset = transaction_first_offset


class TooManyProducers(ProducerStateError):
    """The limit is reached and every producer has an open transaction, so none can be forgotten."""

    def __init__(self, producer_id: int, limit: int) -> None:
        super().__init__(f"producer {producer_id}: {limit} producers have an open transaction")
        self.producer_id = producer_id
        self.limit = limit


# ---------------------------------------------------------------------------------------------------------- compaction


class CompactionError(LogError):
    """A compaction stopped; the log is not harmed."""


class CompactionCancelled(CompactionError):
    """The compaction was cancelled."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"the compaction of {folder} was cancelled")
        self.folder = folder


class CompactionOvertaken(CompactionError):
    """The log was truncated or segments were deleted meanwhile. The compaction starts over."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(f"the compaction of {folder} starts over: {reason}")
        self.folder = folder
        self.reason = reason


class CompactionFailed(CompactionError):
    """Reading a segment or writing its copy failed, or a batch is too large to decompress."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be compacted: {reason}")
        self.path = path
        self.reason = reason


# ----------------------------------------------------------------------------------------------------- log directories


class DirectoryOffline(LogFailed):
    """A log directory that failed or could not be opened. Its partitions are offline."""


class NoDirectoryOnline(LogError):
    """No log directory is online."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        listed = "; ".join(f"{path}: {reason}" for path, reason in reasons.items())
        super().__init__(f"no directory of log.dirs can be used ({listed})")
        self.reasons = dict(reasons)


class PartitionExists(LogError):
    """A partition to be created exists."""

    def __init__(self, topic: str, partition: int, folder: str) -> None:
        super().__init__(f"cannot create partition {topic}-{partition}: {folder} exists")
        self.topic = topic
        self.partition = partition
        self.folder = folder


class UnknownDirectory(LogError):
    """A path that is not in log.dirs."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path[:300]} is not a log directory of this broker")
        self.path = path


class UnknownPartition(LogError):
    """A partition that no log directory holds."""

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(f"no log directory holds partition {topic}-{partition}")
        self.topic = topic
        self.partition = partition


class PartitionInTwoFolders(LogError):
    """A partition is in two log directories; the operator must decide which is right."""

    def __init__(self, topic: str, partition: int, first: str, second: str) -> None:
        super().__init__(f"partition {topic}-{partition} is both in {first} and in {second}; move one of them away")
        self.topic = topic
        self.partition = partition
        self.folders = (first, second)


class PartitionMayBeOffline(LogError):
    """A partition that is not new cannot be created while an offline log directory may hold it."""

    def __init__(self, topic: str, partition: int, offline: list[str]) -> None:
        super().__init__(f"partition {topic}-{partition} may be in an offline log directory: {', '.join(offline)}")
        self.topic = topic
        self.partition = partition
        self.offline = offline


class InconsistentTopicId(LogError):
    """A partition's folder belongs to another topic of the same name."""

    def __init__(self, folder: str, found: bytes, wanted: bytes) -> None:
        super().__init__(f"{folder} belongs to topic id {found.hex()}, not {wanted.hex()}")
        self.folder = folder
        self.found = found
        self.wanted = wanted


# --------------------------------------------------------------------------------------------------------------- errno


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_process_limit(error: OSError) -> bool:
    return error.errno in (errno.EMFILE, errno.ENFILE)


def is_partition_error(error: OSError) -> bool:
    """Whether the error is about the files of one partition, not about the disk."""
    return error.errno in _PARTITION_ERRNOS
