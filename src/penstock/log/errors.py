"""Errors of the log. Each carries the values that disagree; the broker turns them into protocol error codes.

`LogError` is the base. `DiskFull` and `TooManyOpenFiles` fail one operation and leave the log as it was; `LogFailed`
takes the log offline, because after a failed write or sync the contents of the disk are unknown.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Final


class LogError(Exception):
    """Base of everything that the log layer raises of its own."""


class OffsetOutOfRange(LogError):
    """An offset that the log no longer or not yet holds."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside of the log, which holds {start} to {end}")
        self.offset = offset
        self.start = start
        self.end = end


class InvalidBatch(LogError):
    """A batch that is whole and undamaged, but not one that this log takes.

    `record_errors` are the records at fault, if it is not the batch as such: their numbers and what is wrong.
    """

    def __init__(self, message: str, record_errors: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class BatchTooLarge(InvalidBatch):
    """A batch beyond `max.message.bytes`."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"batch of {size} bytes exceeds max.message.bytes={limit}; send smaller batches or raise it")
        self.size = size
        self.limit = limit


class AppendTooLarge(InvalidBatch):
    """One append that no segment could hold."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes in one append exceed segment.bytes={limit}")
        self.size = size
        self.limit = limit


class InvalidTimestamp(InvalidBatch):
    """A batch with a timestamp that is too far from the broker's clock, or of a type that no client may set."""


class NonMonotonicOffsets(LogError):
    """Batches that carry offsets (a follower's) do not continue the log."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"the log continues at offset {expected}, the batches at {found}")
        self.expected = expected
        self.found = found


class StaleEpoch(LogError):
    """A batch of a leader whose successor has written here already."""

    def __init__(self, latest: int, found: int) -> None:
        super().__init__(f"the log has batches of leader epoch {latest}, so none of epoch {found} may follow")
        self.latest = latest
        self.found = found


class RecordsTruncated(LogError):
    """Records that somebody waited for were taken out of the log again."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"what was below offset {offset} was truncated before it was durable")
        self.offset = offset


class DamagedLog(LogError):
    """Bytes on disk that are not what was written."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class DiskFull(LogError):
    """No room for an append; the log is as it was before, and takes appends again once there is room."""

    def __init__(self, path: str) -> None:
        super().__init__(f"no space left on the disk of {path}; free some, or lower retention")
        self.path = path


class TooManyOpenFiles(LogError):
    """The process may not open another file; nothing is wrong with the disk."""

    def __init__(self, path: str, partitions: int | None = None) -> None:
        needed = "" if partitions is None else f" for its {partitions} partitions"
        super().__init__(f"too many open files in {path}{needed}; raise the limit (ulimit -n)")
        self.path = path


class LogFailed(LogError):
    """The disk failed a write or a sync: what it holds is unknown, so the log serves nothing until it is reopened."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is offline: {reason}")
        self.path = path
        self.reason = reason


class FolderInUse(LogError):
    """Another process, or another log of this one, holds the folder."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"data folder {path} is in use ({holder}); stop that process or choose another folder")
        self.path = path
        self.holder = holder


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_process_limit(error: OSError) -> bool:
    return error.errno in (errno.EMFILE, errno.ENFILE)


class ProducerStateError(LogError):
    """A batch that this producer may not write now."""


class OutOfOrderSequence(ProducerStateError):
    """A gap, a reordering, or a repetition of something older than the last five batches."""

    def __init__(self, producer_id: int, epoch: int, sequence: int, expected: int) -> None:
        super().__init__(f"producer {producer_id} epoch {epoch}: sequence {sequence} where {expected} is due")
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequence = sequence
        self.expected = expected


class MissingSequence(ProducerStateError):
    """A client's batch with a producer id but without a sequence."""

    def __init__(self, producer_id: int, sequence: int) -> None:
        super().__init__(f"producer {producer_id}: sequence {sequence}")
        self.producer_id = producer_id
        self.sequence = sequence


class InvalidProducerEpoch(ProducerStateError):
    """An epoch below the current one (a fenced producer), or none at all."""

    def __init__(self, producer_id: int, epoch: int, current: int) -> None:
        super().__init__(f"producer {producer_id}: epoch {epoch}, the current one is {current}")
        self.producer_id = producer_id
        self.epoch = epoch
        self.current = current


class CoordinatorFenced(ProducerStateError):
    """A marker from a transaction coordinator that has a successor."""

    def __init__(self, producer_id: int, coordinator_epoch: int, current: int) -> None:
        super().__init__(f"producer {producer_id}: marker of coordinator {coordinator_epoch} < {current}")
        self.producer_id = producer_id
        self.coordinator_epoch = coordinator_epoch
        self.current = current


class NotInTransaction(ProducerStateError):
    """A batch outside of a transaction from a producer that has one open here."""

    def __init__(self, producer_id: int, transaction_first_offset: int) -> None:
        super().__init__(f"producer {producer_id} has a transaction open since offset {transaction_first_offset}")
        self.producer_id = producer_id
        self.transaction_first_offset = transaction_first_offset


class TooManyProducers(ProducerStateError):
    """The limit is reached and every producer has a transaction open, so none may be forgotten."""

    def __init__(self, producer_id: int, limit: int) -> None:
        super().__init__(f"producer {producer_id}: {limit} producers have a transaction open")
        self.producer_id = producer_id
        self.limit = limit


class CompactionError(LogError):
    """Base of what stops a compaction without any harm to the log."""


class CompactionCancelled(CompactionError):
    """The caller asked it to stop."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"the compaction of {folder} was cancelled")
        self.folder = folder


class CompactionOvertaken(CompactionError):
    """The log was cut or trimmed meanwhile: what was cleaned is not what it holds now. Begin anew."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(f"the compaction of {folder} was overtaken: {reason}")
        self.folder = folder
        self.reason = reason


class CompactionFailed(CompactionError):
    """The disk failed while a segment was read or its copy written, or a batch is too large to be opened up."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be compacted: {reason}")
        self.path = path
        self.reason = reason


class DirectoryOffline(LogFailed):
    """A data folder that cannot be used: its disk failed, or it could not be opened. Its partitions are offline."""


class NoDirectoryOnline(LogError):
    """None of the data folders can be used."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        listed = "; ".join(f"{path}: {reason}" for path, reason in reasons.items())
        super().__init__(f"no data folder of log.dirs can be used ({listed})")
        self.reasons = dict(reasons)


class PartitionExists(LogError):
    """A partition that is to be made, and is there."""

    def __init__(self, topic: str, partition: int, folder: str) -> None:
        super().__init__(f"partition {topic}-{partition} cannot be made: {folder} exists")
        self.topic = topic
        self.partition = partition
        self.folder = folder


class UnknownDirectory(LogError):
    """A path that is not one of the data folders."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path[:300]} is not one of the data folders of this broker")
        self.path = path


class UnknownPartition(LogError):
    """A partition that no data folder holds."""

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(f"no data folder holds partition {topic}-{partition}")
        self.topic = topic
        self.partition = partition


class PartitionInTwoFolders(LogError):
    """Two folders claim to be the same partition, and only the operator knows which is."""

    def __init__(self, topic: str, partition: int, first: str, second: str) -> None:
        super().__init__(
            f"partition {topic}-{partition} is both in {first} and in {second}; move one of the two folders away"
        )
        self.topic = topic
        self.partition = partition
        self.folders = (first, second)


class PartitionMayBeOffline(LogError):
    """A partition that is not new is to be made while a folder that may hold it is offline."""

    def __init__(self, topic: str, partition: int, offline: list[str]) -> None:
        super().__init__(f"partition {topic}-{partition} may be in a folder that is offline: {', '.join(offline)}")
        self.topic = topic
        self.partition = partition
        self.offline = offline


class InconsistentTopicId(LogError):
    """A partition's folder belongs to an earlier or a later topic of the same name."""

    def __init__(self, folder: str, found: bytes, wanted: bytes) -> None:
        super().__init__(f"{folder} belongs to topic id {found.hex()}, not {wanted.hex()}")
        self.folder = folder
        self.found = found
        self.wanted = wanted


_PARTITIONS_OWN: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG}
)


def is_partition_error(error: OSError) -> bool:
    """Whether the files of one partition are not as they should be, and the disk itself did what it was asked."""
    return error.errno in _PARTITIONS_OWN
