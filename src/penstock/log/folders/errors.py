"""What data folders refuse, and what can happen to them."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Final

from penstock.log.errors import LogError, LogFailed


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


def is_partitions_own(error: OSError) -> bool:
    """Whether the files of one partition are not as they should be, and the disk itself did what it was asked."""
    return error.errno in _PARTITIONS_OWN
