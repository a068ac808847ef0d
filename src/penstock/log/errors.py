"""What a log refuses, and what can happen to it. The broker's edge turns these into protocol errors."""

from __future__ import annotations

import errno
from collections.abc import Sequence


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
