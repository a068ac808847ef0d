"""A log directory: the partitions on one disk, one entry of `log.dirs`.

An I/O error takes the whole directory and all its logs offline until it is opened again. Wrong bytes or names in one
partition's folder take only that partition offline. A full disk fails the operation and nothing else; a partition that
cannot be opened for lack of room is opened when there is some (`reopen`). The clean-shutdown file is removed before
anything is written and written after everything else.

A new partition is created with its topic id, durably, before its name exists; a failed creation leaves nothing. Files
to be removed are renamed first, so that the next start would remove them too. Creating and removing touch only their
own files and may run on other threads.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.log.checkpoints import TopicPartition
from penstock.log.errors import (
    DamagedLog,
    DirectoryOffline,
    DiskFull,
    InconsistentTopicId,
    LogError,
    LogFailed,
    OffsetOutOfRange,
    PartitionExists,
    TooManyOpenFiles,
    UnknownPartition,
    is_disk_full,
    is_partition_error,
    is_process_limit,
)
from penstock.log.log_dirs.directory_state import CLEAN_SHUTDOWN_FILE, LockedDirectory, lock_directory
from penstock.log.log_dirs.identity import (
    MetadataFileError,
    deleted_folder_name,
    folder_name,
    future_name,
    read_topic_id,
    ready_name,
    stray_name,
    write_topic_id,
)
from penstock.log.log_loader import Opened, open_log
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import LOG_SUFFIX
from penstock.log.settings import LogSettings
from penstock.log.truncation import cut_damage, truncate_fully, truncate_to
from penstock.records import RecordError
from penstock.runtime.files import Files, Space
from penstock.runtime.randomness import Random
from penstock.runtime.threads import Outcome, Workers, WorkersError, in_parallel

logger = logging.getLogger(__name__)

_DELETE_DELAY_MS: Final = 60_000


# --------------------------------------------------------------------------------------- creating and removing folders


class Removal(NamedTuple):
    """A renamed file or folder to remove at `due_ms`."""

    due_ms: int
    path: str
    is_folder: bool


class PendingRemovals:
    """Files and folders to remove, the earliest due first."""

    def __init__(self) -> None:
        self._heap: list[Removal] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, removals: Iterable[Removal]) -> None:
        for removal in removals:
            heapq.heappush(self._heap, removal)

    def take_due(self, now_ms: int) -> list[Removal]:
        """Take out and return those that are due."""
        due: list[Removal] = []
        while self._heap and self._heap[0].due_ms <= now_ms:
            due.append(heapq.heappop(self._heap))
        return due

    def take_all(self) -> list[Removal]:
        taken, self._heap = self._heap, []
        return taken


def remove_all(files: Files, removals: Iterable[Removal]) -> int:
    """Remove files and folders; how many existed."""
    count = 0
    for removal in removals:
        with contextlib.suppress(FileNotFoundError):
            if removal.is_folder:
                files.remove_folder(removal.path)
            else:
                files.remove(removal.path)
            count += 1
    return count


class NewLog(NamedTuple):
    """A partition to create."""

    key: TopicPartition
    topic_id: bytes | None
    settings: LogSettings


class CreatedLog(NamedTuple):
    """The result of creating a partition."""

    new: NewLog
    outcome: Outcome[PartitionLog]


def create_logs(files: Files, path: str, wanted: Sequence[NewLog], now_ms: int, threads: int = 1) -> list[CreatedLog]:
    """Create partitions in the log directory at `path`, durably; their folders must not exist.

    OSError if the disk fails at the end: then none of them exists.
    """

    def create(new: NewLog) -> PartitionLog:
        return _create_log(files, f"{path}/{folder_name(*new.key)}", new, now_ms)

    created = [CreatedLog(new, outcome) for new, outcome in in_parallel(create, wanted, threads)]
    try:
        files.sync_folder(path)
    except OSError:
        for new, outcome in created:
            if outcome.error is None:
                outcome.result().release()
                _remove_partial(files, f"{path}/{folder_name(*new.key)}")
        raise
    return created


def _create_log(files: Files, folder: str, new: NewLog, now_ms: int) -> PartitionLog:
    try:
        log = open_log(files, folder, new.settings, clean=False, now_ms=now_ms).log
        if new.topic_id is None:
            files.sync_folder(folder)
        else:
            write_topic_id(files, folder, new.topic_id)  # which syncs the folder
    except OSError:
        _remove_partial(files, folder)
        raise
    return log


def _remove_partial(files: Files, folder: str) -> None:
    with contextlib.suppress(OSError):
        files.remove_folder(folder)


# ------------------------------------------------------------------------------------------------------- log directory


SettingsFor = Callable[[str], LogSettings]
OnFailure = Callable[["LogDirectory"], None]


@dataclass(slots=True)
class Hosted:
    """An open partition of a log directory."""

    topic: str
    partition: int
    log: PartitionLog
    topic_id: bytes | None
    is_moving: bool = False  # to another log directory: its sealed segments must not change


class Progress(NamedTuple):
    """Another partition of a directory was opened, `done` of `total`. `opened` is None if that failed."""

    path: str
    topic: str
    partition: int
    done: int
    total: int
    opened: Opened | None


class LogDirectory:
    """An open log directory: `open`, `load`, then use it, and `close`."""

    def __init__(
        self, files: Files, locked: LockedDirectory, random: Random, on_failure: OnFailure | None = None
    ) -> None:
        self.files = files
        self.path = locked.path
        self.directory_id = locked.directory_id
        self.was_clean = locked.was_clean
        self.checkpoints = locked.checkpoints
        self.listing = locked.listing
        self.removals = PendingRemovals()
        self.hosted: dict[TopicPartition, Hosted] = {}
        self.damaged: dict[TopicPartition, LogFailed | DiskFull] = {}
        self.unsound: set[TopicPartition] = set()  # damaged partitions whose batches are damaged
        self.is_flushing = False  # a background flush is running
        self.unflushed: deque[TopicPartition] = deque()  # what background flushes have not looked at in this round
        self.flushed_bytes = 0  # by background flushes since the last checkpoint, approximately
        self.topic_ids: Mapping[str, bytes] = {}  # partitions of other topics of these names are set aside
        self._lock = locked.lock
        self._random = random
        self._on_failure = on_failure
        self._failure: DirectoryOffline | None = None
        self._reopening: set[TopicPartition] = set()
        self._load_began = False
        self._loaded = False
        self._closed = False

    # --- open

    @classmethod
    def open(
        cls,
        files: Files,
        path: str,
        *,
        node_id: int,
        cluster_id: str,
        random: Random,
        on_failure: OnFailure | None = None,
    ) -> LogDirectory:
        """Lock the directory at `path` (see `lock_directory`); its logs are loaded next."""
        locked = lock_directory(files, path, node_id=node_id, cluster_id=cluster_id, random=random)
        return cls(files, locked, random, on_failure)

    def has_records(self, key: TopicPartition) -> bool:
        """Whether an unopened partition has records."""
        folder = f"{self.path}/{folder_name(*key)}"
        with self.disk():
            names = [name for name in self.files.list_folder(folder) if name.endswith(LOG_SUFFIX)]
            return any(self.files.size_of(f"{folder}/{name}") for name in names)

    def set_aside(self, strays: Mapping[TopicPartition, str]) -> None:
        """Rename the folders of these unopened partitions to stray names, durably, and log each with its reason.

        Their checkpoint rows go with the next checkpoint, or when a partition of that name is created.
        """
        with self.disk():
            for key, reason in strays.items():
                folder = f"{self.path}/{folder_name(*key)}"
                aside = f"{self.path}/{stray_name(*key, self._random.random_bytes(16))}"
                self.files.rename(folder, aside)
                self.listing.partitions.remove(key)
                logger.warning(
                    "stray partition set aside: folder=%s renamed_to=%s reason=%s. `penstock log dump` shows its "
                    "records; remove the folder if you do not need them",
                    folder, aside, reason,
                )  # fmt: skip
            self.files.sync_folder(self.path)

    def load(
        self,
        settings_for: SettingsFor,
        now_ms: int,
        progress: Callable[[Progress], None] | None = None,
        threads: int = 1,
    ) -> None:
        """Open all logs."""
        for step in self.loading(settings_for, now_ms, threads):
            if progress is not None:
                progress(step)

    def loading(self, settings_for: SettingsFor, now_ms: int, threads: int = 1) -> Iterator[Progress]:
        """Open the logs one by one, so that the caller can do other work in between; with `threads`, in parallel.

        Damaged partitions are skipped (`damaged` has the reasons). If the disk fails, the directory is offline.
        """
        self._load_began = True
        names = self.listing.deleted
        self.removals.add(Removal(now_ms, f"{self.path}/{name}", is_folder=True) for name in names)
        keys = list(self.listing.partitions)

        def read(key: TopicPartition) -> tuple[Opened, bytes | None]:
            return self._read_one(key, settings_for(key[0]), now_ms)

        # Closed as soon as the directory fails: its threads must not open logs that are being released.
        with contextlib.closing(in_parallel(read, keys, threads)) as outcomes:
            for done, (key, outcome) in enumerate(outcomes, 1):
                yield Progress(self.path, *key, done, len(keys), self._take_one(key, outcome))
                if self._failure is not None:
                    return
        self._settle_checkpoints()
        self._loaded = True

    def _read_one(self, key: TopicPartition, settings: LogSettings, now_ms: int) -> tuple[Opened, bytes | None]:
        """Open a log. This changes only its own folder and may run on any thread."""
        folder = f"{self.path}/{folder_name(*key)}"
        checkpoints = self.checkpoints
        topic_id, wanted = self._topic_id_of(folder), self.topic_ids.get(key[0])
        if None not in (topic_id, wanted) and topic_id != wanted:
            raise InconsistentTopicId(folder, topic_id or b"", wanted or b"")
        opened = open_log(
            self.files, folder, settings, clean=self.was_clean, now_ms=now_ms,
            recovery_point=checkpoints.recovery_point(key),
            log_start_offset=checkpoints.start.rows.get(key, 0),
        )  # fmt: skip
        return opened, topic_id

    def _take_one(self, key: TopicPartition, outcome: Outcome[tuple[Opened, bytes | None]]) -> Opened | None:
        folder = f"{self.path}/{folder_name(*key)}"
        checkpoints = self.checkpoints
        try:
            opened, topic_id = outcome.result()
        except OSError as error:
            if is_process_limit(error):
                raise TooManyOpenFiles(self.path, len(self.listing.partitions)) from error
            if is_disk_full(error):
                self._isolate(key, DiskFull(folder))
            elif is_partition_error(error):
                self._isolate(key, LogFailed(folder, str(error)))
            else:
                self.fail(error)
            return None
        except InconsistentTopicId as error:
            with contextlib.suppress(LogError):
                self.set_aside({key: f"it belongs to another topic of this name, id {error.found.hex()}"})
                return None
            self._isolate(key, LogFailed(folder, str(error)))
            return None
        except (LogError, RecordError) as error:
            self._isolate(key, LogFailed(folder, str(error)))
            if isinstance(error, (DamagedLog, RecordError)):
                self.unsound.add(key)
            return None
        log = opened.log
        log.checkpointed_offset = min(checkpoints.recovery.rows.get(key, 0), log.log_end_offset)
        log.set_high_watermark(checkpoints.high_watermark.rows.get(key, 0))
        self.hosted[key] = Hosted(*key, log, topic_id)
        return opened

    def _topic_id_of(self, folder: str) -> bytes | None:
        try:
            return read_topic_id(self.files, folder)
        except MetadataFileError as error:
            logger.warning("topic id ignored, to be assigned again: folder=%s reason=%s", folder, error.reason)
            return None

    def reopen(self, key: TopicPartition, settings: LogSettings, now_ms: int, workers: Workers) -> None:
        """Open a partition for which there was no room, on a worker. Until that succeeds, `get` raises DiskFull."""
        if key in self._reopening or not isinstance(self.damaged.get(key), DiskFull):
            return
        self._reopening.add(key)
        try:
            workers.run(lambda: self._read_one(key, settings, now_ms), lambda outcome: self._reopened(key, outcome))
        except WorkersError:
            self._reopening.discard(key)

    def _reopened(self, key: TopicPartition, outcome: Outcome[tuple[Opened, bytes | None]]) -> None:
        self._reopening.discard(key)
        if isinstance(outcome.error, OSError) and (is_disk_full(outcome.error) or is_process_limit(outcome.error)):
            return
        is_deleted = key not in self.damaged
        if is_deleted or self._failure is not None or self._closed:
            if outcome.error is None:
                log = outcome.result()[0].log
                log.release()
                if is_deleted:
                    _remove_partial(self.files, log.folder)  # opening it has created an empty one
            return
        del self.damaged[key]
        opened = self._take_one(key, outcome)
        if opened is not None and opened.log.damage is not None:
            # Only at the start can a broker leave the ISRs of what it has lost.
            self.take_offline(key, f"{opened.log.damage.error()}; restart the broker to repair it")
        elif opened is not None:
            logger.info("partition online: partition=%s-%d log_end=%d", *key, opened.log.log_end_offset)
            self._settle_checkpoints()

    def _isolate(self, key: TopicPartition, error: LogFailed | DiskFull) -> None:
        logger.error("partition offline: partition=%s-%d error=%s", *key, error)
        self.damaged[key] = error

    def take_offline(self, key: TopicPartition, reason: str) -> None:
        """Take an open partition offline; its files stay as they are."""
        hosted = self.hosted.pop(key)
        hosted.log.release()
        self._isolate(key, LogFailed(hosted.log.folder, reason))

    def _settle_checkpoints(self) -> None:
        """Write the checkpoints: a log that lost its end must not be appended to while they say that more was durable.

        In a new directory this creates the files, so that a missing file means loss from now on.
        """
        try:
            self.checkpoint()
        except DiskFull:
            for key, hosted in list(self.hosted.items()):
                if self.checkpoints.recovery.rows.get(key, 0) > hosted.log.log_end_offset:
                    del self.hosted[key]
                    error = DiskFull(hosted.log.folder)
                    hosted.log.fail(error)
                    hosted.log.release()
                    self._isolate(key, error)
        except DirectoryOffline:
            logger.debug("log directory failed during startup: path=%s", self.path)

    # --- failure

    @property
    def failure(self) -> DirectoryOffline | None:
        return self._failure

    def fail(self, error: BaseException) -> DirectoryOffline:
        """Take the directory and its logs offline after a disk error, and notify the listener once."""
        if self._failure is None:
            failure = DirectoryOffline(self.path, str(error))
            self._failure = failure
            logger.error("log directory offline: path=%s partitions=%d error=%s", self.path, len(self.hosted), error)
            self.removals.take_all()
            for hosted in self.hosted.values():
                hosted.log.fail(DirectoryOffline(hosted.log.folder, failure.reason))
                hosted.log.release()
            if self._on_failure is not None:
                self._on_failure(self)
        return self._failure

    def check_logs(self) -> bool:
        """Whether the directory is online. A log that failed takes it offline."""
        if self._failure is None:
            for hosted in self.hosted.values():
                if hosted.log.failure is not None:
                    self.fail(hosted.log.failure)
                    break
        return self._failure is None

    @contextlib.contextmanager
    def disk(self) -> Iterator[None]:
        """Every access to the disk runs in this context, which turns OSError into DiskFull or DirectoryOffline."""
        if self._failure is not None:
            raise DirectoryOffline(self.path, self._failure.reason)
        try:
            yield
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(self.path) from error
            if is_process_limit(error):
                raise TooManyOpenFiles(self.path, len(self.hosted)) from error
            raise self.fail(error) from error
        except LogFailed as error:
            raise self.fail(error) from error

    # --- partitions

    def get(self, key: TopicPartition) -> Hosted:
        """UnknownPartition if it is not here, LogFailed if it is damaged, DiskFull if there was no room to open it."""
        hosted = self.hosted.get(key)
        if hosted is not None:
            return hosted
        damage = self.damaged.get(key)
        if isinstance(damage, DiskFull):
            raise DiskFull(damage.path)
        if damage is not None:
            raise LogFailed(damage.path, damage.reason)
        raise UnknownPartition(*key)

    def create(self, key: TopicPartition, topic_id: bytes | None, settings: LogSettings, now_ms: int) -> PartitionLog:
        """Create an empty partition, durably."""
        self.prepare_create(key)
        with self.disk():
            created = create_logs(self.files, self.path, [NewLog(key, topic_id, settings)], now_ms)[0]
        return self.adopt(created)

    def prepare_create(self, key: TopicPartition) -> None:
        """Before a partition is created: PartitionExists if it exists; drops checkpoint rows of an earlier one."""
        folder = f"{self.path}/{folder_name(*key)}"
        if key in self._reopening:
            raise DiskFull(folder)  # a worker still reads the files of a deleted partition of this name
        with self.disk():
            if key in self.hosted or self.files.exists(folder):
                raise PartitionExists(*key, folder)
            self.checkpoints.forget(key)

    def adopt(self, created: CreatedLog) -> PartitionLog:
        """Add a partition that was created here; DiskFull or DirectoryOffline if that failed."""
        with self.disk():
            log = created.outcome.result()
        self.hosted[created.new.key] = Hosted(*created.new.key, log, created.new.topic_id)
        return log

    def assign_topic_id(self, key: TopicPartition, topic_id: bytes) -> None:
        """Store a partition's topic id. InconsistentTopicId if it has another."""
        hosted = self.get(key)
        if hosted.topic_id is None:
            with self.disk():
                write_topic_id(self.files, hosted.log.folder, topic_id)
            hosted.topic_id = topic_id
        elif hosted.topic_id != topic_id:
            raise InconsistentTopicId(hosted.log.folder, hosted.topic_id, topic_id)

    def delete(self, key: TopicPartition, now_ms: int) -> None:
        """Delete a partition, damaged or not, durably. Its files are removed later."""
        self.delete_all([key], now_ms)

    def delete_all(self, keys: Iterable[TopicPartition], now_ms: int) -> None:
        """Delete several partitions, with one sync."""
        with self.disk():
            for key in keys:
                self._delete(key, now_ms)
            self.files.sync_folder(self.path)

    def _delete(self, key: TopicPartition, now_ms: int) -> None:
        if key not in self.hosted and key not in self.damaged:
            raise UnknownPartition(*key)
        folder = f"{self.path}/{folder_name(*key)}"
        deleted = self.deleted_path(key)
        self.files.rename(folder, deleted)
        hosted = self.hosted.pop(key, None)
        self.damaged.pop(key, None)
        delay_ms = _DELETE_DELAY_MS
        if hosted is not None:
            delay_ms = hosted.log.settings.file_delete_delay_ms
            # Otherwise code that still holds it could open the files of a later partition of the same name.
            hosted.log.fail(LogFailed(folder, "the partition was deleted"))
            hosted.log.release()
        self.removals.add([Removal(now_ms + delay_ms, deleted, is_folder=True)])

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """Forget partitions of a failed directory that were deleted. Their files stay; a start that finds them again
        takes them for strays.
        """
        for key in keys:
            self.hosted.pop(key, None)
            self.damaged.pop(key, None)
            logger.warning("deleted partition left in a failed log directory: path=%s partition=%s-%d", self.path, *key)

    def deleted_path(self, key: TopicPartition) -> str:
        """A unique path for the folder of a deleted partition."""
        return f"{self.path}/{deleted_folder_name(*key, self._random.random_bytes(16))}"

    def finish_swap(self, key: TopicPartition) -> None:
        """Before the logs are loaded: turn a complete copy whose original is gone into the partition, durably."""
        with self.disk():
            self.files.rename(f"{self.path}/{ready_name(*key)}", f"{self.path}/{folder_name(*key)}")
            self.files.sync_folder(self.path)
        self.listing.ready.remove(key)
        self.listing.partitions.append(key)
        self.listing.partitions.sort()
        logger.info("replica move completed: partition=%s-%d target=%s", *key, self.path)

    def reopen_copy(self, key: TopicPartition) -> None:
        """Before the logs are loaded: resume copying to a copy whose original still exists."""
        with self.disk():
            self.files.rename(f"{self.path}/{ready_name(*key)}", f"{self.path}/{future_name(*key)}")
            self.files.sync_folder(self.path)
        self.listing.ready.remove(key)
        self.listing.futures.append(key)

    def remove_later(self, paths: Iterable[str], due_ms: int) -> None:
        """Remove these renamed files at `due_ms`."""
        self.removals.add(Removal(due_ms, path, is_folder=False) for path in paths)

    def space(self) -> Space:
        with self.disk():
            return self.files.space(self.path)

    # --- offsets

    def advance_start(self, key: TopicPartition, offset: int) -> bool:
        """Delete a log's records below `offset`, durably."""
        log = self.get(key).log
        if offset > log.high_watermark:
            raise OffsetOutOfRange(offset, log.log_start_offset, log.high_watermark)
        if offset <= log.log_start_offset:
            return False
        with self.disk():
            self.checkpoints.start.put(key, offset)
        return log.advance_start(offset)

    def truncate_to(self, key: TopicPartition, offset: int, now_ms: int) -> bool:
        """`truncation.truncate_to`, after lowering the checkpoints: they never exceed the log."""
        log = self.get(key).log
        damage = log.damage
        if damage is not None and damage.is_reported:
            with self.disk():
                self._lower_checkpoints(key, log, damage.base_offset)
                cut_damage(log, now_ms)
        if offset >= log.log_end_offset:
            return False
        with self.disk():
            self._lower_checkpoints(key, log, offset)
            return truncate_to(log, offset, now_ms)

    def truncate_fully(self, key: TopicPartition, offset: int, now_ms: int) -> None:
        """`truncation.truncate_fully`, after lowering the checkpoints: they never exceed the log."""
        log = self.get(key).log
        with self.disk():
            self._lower_checkpoints(key, log, min(offset, log.log_start_offset))
            truncate_fully(log, offset, now_ms)

    def _lower_checkpoints(self, key: TopicPartition, log: PartitionLog, offset: int) -> None:
        # The batch that contains `offset` goes as a whole, so the new end is only known to be in that segment.
        bases = log.table.bases
        index = log.find_segment(offset)
        base = bases[index] if index < len(bases) else log.active.base_offset
        self.checkpoints.lower(key, min(base, offset))
        if offset < log.log_start_offset:
            self.checkpoints.start.lower(key, offset)

    def cleaner_offset(self, key: TopicPartition) -> int | None:
        """The offset that compaction has reached; None if it has not run."""
        return self.checkpoints.cleaner.rows.get(key)

    def set_cleaner_offset(self, key: TopicPartition, offset: int) -> None:
        """Store the offset that compaction has reached, durably."""
        self.get(key)
        with self.disk():
            self.checkpoints.cleaner.put(key, offset)

    def checkpoint(self) -> int:
        """Write the checkpoints that changed; the number of files written.

        On DiskFull the old files stay, and they are still correct.
        """
        return sum(self.checkpoint_steps())

    def checkpoint_steps(self) -> Iterator[int]:
        """The same with a step for each file, as the logs are at that moment: with 10,000 logs one takes 10 ms."""
        if not self.check_logs():
            return
        self.flushed_bytes = 0
        for write in self.checkpoints.writers:
            if self._failure is not None:
                return
            with self.disk():
                count = write(*self._checkpointed())
            yield count

    def _checkpointed(self) -> tuple[dict[TopicPartition, PartitionLog], set[TopicPartition]]:
        """The logs whose offsets are checkpointed, and the partitions whose rows are kept."""
        logs = {key: each.log for key, each in self.hosted.items()}
        if any(log.damage is not None for log in logs.values()):
            # For a log that ends at damage the next start must know how much of it was durable.
            logs = {key: log for key, log in logs.items() if not log.is_cut_short}
        cut_short = self.hosted.keys() - logs.keys() if len(logs) < len(self.hosted) else ()
        return logs, {*self.damaged, *cut_short}

    # --- close

    def close(self, threads: int = 1) -> bool:
        """Close all logs, write the checkpoints, then the clean-shutdown file, and unlock; False if not clean."""
        if self._closed:
            return False
        self._closed = True
        clean = False
        try:
            if self.check_logs():
                clean = self._stop(threads)
        except (OSError, LogError) as error:
            logger.error("log directory not closed cleanly: path=%s error=%s", self.path, error)
        finally:
            for hosted in self.hosted.values():
                hosted.log.release()
            self._lock.release()
        return clean

    def _stop(self, threads: int) -> bool:
        if not self._loaded:
            clean = self.was_clean and not self._load_began
        else:
            with self.disk():
                # Before the logs write their manifests, which a later change of the folder would invalidate.
                remove_all(self.files, self.removals.take_all())
            clean = not self.damaged and not any(each.log.is_cut_short for each in self.hosted.values())
            changed = [hosted.log for hosted in self.hosted.values() if not hosted.log.is_as_found()]
            with contextlib.closing(in_parallel(PartitionLog.close, changed, threads)) as outcomes:
                for log, outcome in outcomes:
                    clean = self._is_closed(log, outcome) and clean
            self.checkpoint()
        if clean:
            with self.disk():
                self.files.open(f"{self.path}/{CLEAN_SHUTDOWN_FILE}", create=True).close()
                self.files.sync_folder(self.path)
        return clean

    def _is_closed(self, log: PartitionLog, outcome: Outcome[None]) -> bool:
        try:
            with self.disk():
                outcome.result()
        except DiskFull as error:
            logger.warning(
                "log not closed cleanly, indexes are rebuilt at the next start: folder=%s error=%s", log.folder, error
            )
            with self.disk():
                log.flush()
            return False
        return True
