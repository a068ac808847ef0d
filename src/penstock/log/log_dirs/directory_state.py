"""What a log directory holds at startup: its lock, owner, clean-shutdown file, partitions and offset checkpoints.

Nothing is written before the lock is held and the owner verified, and nothing else before the clean-shutdown file is
gone. Files and folders of others are left alone and logged once.

    recovery point    everything below is durable: after an unclean stop only what is above is checked
    log start         records below were deleted on request, even if their segment still exists
    high watermark    records below are replicated
    cleaner           compaction has progressed to here

Checkpoints are kept in memory as they are on disk and written only when they change. A value that is too low costs
work, one that is too high loses data, so values are lowered before the log is cut. A file that cannot be read is
replaced by the safe assumption, with a warning: no recovery point (None, not 0: then gaps count as compaction's).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from penstock.log.checkpoints import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    CheckpointError,
    TopicPartition,
    make_durable_folder,
    read_offsets,
    write_offsets,
)
from penstock.log.errors import DirectoryOffline, FolderInUse
from penstock.log.log_dirs.identity import (
    META_FILE,
    NO_OWNER,
    PARTITION_METADATA_FILE,
    is_deleted_folder_name,
    is_stray_name,
    parse_folder_name,
    parse_future_name,
    parse_ready_name,
    read_meta,
    write_meta,
)
from penstock.log.partition_folder import segment_files
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import MANIFEST_NAME
from penstock.runtime.files import Files, Lock
from penstock.runtime.randomness import Random

logger = logging.getLogger(__name__)


LOCK_FILE: Final = ".lock"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"

_SECURITY_FOLDER: Final = "security"  # certificates and logins of `penstock up --secure`
_OWN_FILES: Final = frozenset(
    (LOCK_FILE, CLEAN_SHUTDOWN_FILE, META_FILE, RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, CLEANER_FILE,
     _SECURITY_FOLDER)
)  # fmt: skip
_TEMPORARY_SUFFIX: Final = ".tmp"
_FOREIGN_NAMED: Final = 5


# --------------------------------------------------------------------------------------------------------- checkpoints


class OffsetFile:
    """One checkpoint file and its rows."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._rows: dict[TopicPartition, int] = {}
        self._known = False
        self._in_doubt = False  # a write failed, but may have reached the file

    @property
    def is_known(self) -> bool:
        """Whether the rows are those of the file. False if it was missing or damaged and not written since."""
        return self._known

    @property
    def rows(self) -> Mapping[TopicPartition, int]:
        return self._rows

    def load(self, otherwise: str) -> None:
        """Read the file. If it is damaged, log what is assumed `otherwise`."""
        self._rows, self._known = {}, False
        try:
            self._rows = read_offsets(self._files, self._path)
            self._known = True
        except FileNotFoundError:
            return
        except CheckpointError as error:
            logger.warning("checkpoint ignored: consequence=%s error=%s", otherwise, error)

    def replace(self, rows: Mapping[TopicPartition, int]) -> bool:
        """Replace the rows, durably; False if nothing had to be written."""
        if self._known and not self._in_doubt and rows == self._rows:
            return False
        self._in_doubt = True
        write_offsets(self._files, self._path, rows)
        self._rows = dict(rows)
        self._known, self._in_doubt = True, False
        return True

    def put(self, key: TopicPartition, offset: int) -> bool:
        """Change one row, durably; False if nothing had to be written."""
        return self.replace({**self._rows, key: offset})

    def lower(self, key: TopicPartition, offset: int) -> bool:
        """Lower the row of `key` to `offset` at most, durably; False if nothing had to be written."""
        return self._rows.get(key, -1) > offset and self.put(key, offset)

    def forget(self, key: TopicPartition) -> bool:
        """Drop the row of `key`, durably; False if nothing had to be written."""
        if key not in self._rows:
            return False
        return self.replace({other: offset for other, offset in self._rows.items() if other != key})


Writer = Callable[[Mapping[TopicPartition, PartitionLog], Collection[TopicPartition]], int]
"""Writes the offsets of logs, and keeps those of partitions that were not read; the number of files written."""


class DirectoryCheckpoints:
    """The four checkpoints of a log directory."""

    def __init__(self, files: Files, folder: str) -> None:
        self.recovery = OffsetFile(files, f"{folder}/{RECOVERY_POINT_FILE}")
        self.start = OffsetFile(files, f"{folder}/{LOG_START_FILE}")
        self.high_watermark = OffsetFile(files, f"{folder}/{HIGH_WATERMARK_FILE}")
        self.cleaner = OffsetFile(files, f"{folder}/{CLEANER_FILE}")

    @property
    def all(self) -> tuple[OffsetFile, ...]:
        return self.recovery, self.start, self.high_watermark, self.cleaner

    def load(self) -> None:
        self.recovery.load("all segments are checked after an unclean stop")
        self.start.load("deleted records may be visible until their segments are removed")
        self.high_watermark.load("high watermarks start at the log start offsets")
        self.cleaner.load("compaction starts over")

    def recovery_point(self, key: TopicPartition) -> int | None:
        """The offset below which a log was durable; None if unknown."""
        return self.recovery.rows.get(key, 0) if self.recovery.is_known else None

    @property
    def writers(self) -> tuple[Writer, ...]:
        """Write the offsets of logs into one file each."""
        return self._write_recovery, self._write_start, self._write_high_watermark, self._write_cleaner

    def _write_recovery(self, logs: Mapping[TopicPartition, PartitionLog], unread: Collection[TopicPartition]) -> int:
        if not self.recovery.is_known:
            if unread:
                # A row cannot say "unknown", which is what the next start must assume for these.
                return 0
            for log in logs.values():
                # With a row of 0 the next start would take compaction's gaps for data loss.
                log.flush()
        flushed = {key: log.durability.flushed_offset for key, log in logs.items()}
        offsets = list(flushed.values())
        written = _replace(self.recovery, flushed, unread)
        for log, offset in zip(logs.values(), offsets, strict=True):
            log.checkpointed_offset = offset
        return written

    def _write_start(self, logs: Mapping[TopicPartition, PartitionLog], unread: Collection[TopicPartition]) -> int:
        rows = {key: log.log_start_offset for key, log in logs.items() if log.log_start_offset}
        return _replace(self.start, rows, unread)

    def _write_high_watermark(
        self, logs: Mapping[TopicPartition, PartitionLog], unread: Collection[TopicPartition]
    ) -> int:
        return _replace(self.high_watermark, {key: log.high_watermark for key, log in logs.items()}, unread)

    def _write_cleaner(self, logs: Mapping[TopicPartition, PartitionLog], unread: Collection[TopicPartition]) -> int:
        return _replace(self.cleaner, {key: row for key, row in self.cleaner.rows.items() if key in logs}, unread)

    def forget(self, key: TopicPartition) -> None:
        """Drop all rows of a partition, durably."""
        for file in self.all:
            file.forget(key)

    def lower(self, key: TopicPartition, offset: int) -> None:
        """Lower the rows to `offset`, before the log is truncated somewhere above it."""
        for file in (self.recovery, self.high_watermark, self.cleaner):
            file.lower(key, offset)


def _replace(file: OffsetFile, rows: dict[TopicPartition, int], unread: Collection[TopicPartition]) -> int:
    for key in unread:
        if key in file.rows:
            rows[key] = file.rows[key]
    return int(file.replace(rows))


# ---------------------------------------------------------------------------------------------------- lock and listing


class Listing(NamedTuple):
    """The names in a log directory by kind."""

    partitions: list[TopicPartition]
    deleted: list[str]
    foreign: list[str]
    futures: list[TopicPartition]
    ready: list[TopicPartition]


class LockedDirectory(NamedTuple):
    """A log directory that this process owns until the lock is released."""

    path: str
    lock: Lock
    directory_id: bytes
    was_clean: bool
    checkpoints: DirectoryCheckpoints
    listing: Listing


def lock_directory(files: Files, path: str, *, node_id: int, cluster_id: str, random: Random) -> LockedDirectory:
    """Lock the directory at `path`, which is created if it is missing.

    DirectoryOffline if the disk fails; FolderInUse, WrongOwner or MetadataFileError if the operator must decide.
    """
    path = path.rstrip("/") or "/"
    try:
        make_durable_folder(files, path)
        lock = _take_lock(files, path)
        try:
            meta = read_meta(files, path)
            claimed = (meta or NO_OWNER).claimed_by(path, node_id, cluster_id)
            directory_id = claimed.directory_id or random.uuid_bytes()
            listing = list_directory(files, path)
            was_clean = _remove_clean_shutdown_file(files, path)
            checkpoints = DirectoryCheckpoints(files, path)
            checkpoints.load()
            if claimed.directory_id is None or claimed != meta:
                write_meta(files, path, replace(claimed, directory_id=directory_id))
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise DirectoryOffline(path, str(error)) from error
    return LockedDirectory(path, lock, directory_id, was_clean, checkpoints, listing)


def _take_lock(files: Files, path: str) -> Lock:
    try:
        return files.lock(f"{path}/{LOCK_FILE}")
    except BlockingIOError as error:
        raise FolderInUse(path, error.strerror or "locked by another holder") from error


def _remove_clean_shutdown_file(files: Files, path: str) -> bool:
    try:
        files.remove(f"{path}/{CLEAN_SHUTDOWN_FILE}")
    except FileNotFoundError:
        return False
    files.sync_folder(path)
    return True


def list_directory(files: Files, path: str) -> Listing:
    found = Listing([], [], [], [], [])
    for name in sorted(files.list_folder(path)):
        # Hidden names are ignored: the broker keeps its metadata in one.
        if name.removesuffix(_TEMPORARY_SUFFIX) in _OWN_FILES or name.startswith("."):
            continue
        key = parse_folder_name(name)
        future, ready = parse_future_name(name), parse_ready_name(name)
        if key is not None and _is_partition(files, f"{path}/{name}"):
            found.partitions.append(key)
        elif is_deleted_folder_name(name) and files.is_folder(f"{path}/{name}"):
            found.deleted.append(name)
        elif future is not None and files.is_folder(f"{path}/{name}"):
            found.futures.append(future)
        elif ready is not None and files.is_folder(f"{path}/{name}"):
            found.ready.append(ready)
        elif is_stray_name(name):
            logger.info("stray partition from an earlier start: folder=%s/%s", path, name)
        else:
            found.foreign.append(name)
    found.partitions.sort()
    if found.foreign:
        named = ", ".join(found.foreign[:_FOREIGN_NAMED])
        more = " and more" if len(found.foreign) > _FOREIGN_NAMED else ""
        logger.warning("unknown names in log directory left alone: path=%s names=%s%s", path, named, more)
    return found


def _is_partition(files: Files, folder: str) -> bool:
    if files.exists(f"{folder}/{PARTITION_METADATA_FILE}"):
        return True
    if not files.is_folder(folder):
        return False
    names = set(files.list_folder(folder)) - {PARTITION_METADATA_FILE + _TEMPORARY_SUFFIX}
    return not names or MANIFEST_NAME in names or bool(segment_files(names))
