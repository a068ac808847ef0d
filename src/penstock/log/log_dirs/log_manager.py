"""The log manager: all log directories of a broker, all logs in them, and their periodic work.

A partition is in at most one directory. Directories are independent: one that fails takes its own partitions offline;
only when none is left does the manager fail. A new partition goes to the online directory with the fewest partitions,
then the most free space. What an operator must decide (directory in use or owned by another broker, partition in two
directories, unless one of these had failed meanwhile) is rejected at startup, with everything left as found.

Periodic work (retention, flushes, checkpoints, producer expiry) takes the time as an argument, and a tick without work
makes no system call, however many partitions there are. Background flushes begin after 64 MiB or 30 s.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from penstock.log.checkpoints import TopicPartition
from penstock.log.errors import (
    DirectoryOffline,
    DiskFull,
    LogError,
    LogFailed,
    NoDirectoryOnline,
    PartitionExists,
    PartitionInTwoFolders,
    PartitionMayBeOffline,
    TooManyOpenFiles,
    UnknownDirectory,
    UnknownPartition,
    is_partition_error,
)
from penstock.log.group_commit import GroupCommit
from penstock.log.log_dirs.identity import MetadataFileError, folder_name, read_topic_id
from penstock.log.log_dirs.log_directory import (
    CreatedLog,
    Hosted,
    LogDirectory,
    NewLog,
    Progress,
    Removal,
    SettingsFor,
    create_logs,
    remove_all,
)
from penstock.log.log_dirs.replica_moves import FutureReplica, ReplicaMoves
from penstock.log.partition_log import PartitionLog
from penstock.log.retention import PolicyFactory, enforce_retention, may_expire, own_policy
from penstock.log.settings import NEVER, LogSettings
from penstock.runtime.files import OPEN_FILES, Files
from penstock.runtime.randomness import Random
from penstock.runtime.threads import Outcome, Workers, WorkersError, in_parallel, outcome_of

logger = logging.getLogger(__name__)

IsBusy: TypeAlias = Callable[[PartitionLog], bool]
OnOffline: TypeAlias = Callable[[str, LogFailed], None]

UNFLUSHED_BYTES: Final = 64 * 1024 * 1024
UNFLUSHED_MS: Final = 30_000
# After a crash, recovery walks everything after the last checkpointed recovery point.
UNCHECKPOINTED_BYTES: Final = 512 * 1024 * 1024
_CREATED_AT_ONCE: Final = 64
# Tasks that go through all logs do this many per step, which takes a millisecond or two.
_LOGS_AT_ONCE: Final = 500
_SEARCHED_AT_ONCE: Final = 2_000
_POLICIES_AT_ONCE: Final = 50
_NOTHING_PLANNED: Final[Mapping[LogDirectory, Sequence[NewLog]]] = MappingProxyType({})


# -------------------------------------------------------------------------------------- periodic work on one directory


def expire(
    directory: LogDirectory, now_ms: int, is_busy: IsBusy | None = None, make_policy: PolicyFactory | None = None
) -> Iterator[int]:
    """Enforce retention for all logs that are not busy, in steps of some logs; how many files now wait for removal.

    `make_policy` and its policies are the operator's, behind a guard: they do not raise. They are asked about every
    log, so their steps are short.
    """
    for some in _in_steps(directory, _LOGS_AT_ONCE if make_policy is None else _POLICIES_AT_ONCE):
        yield sum(_expire_unless_busy(directory, hosted, now_ms, is_busy, make_policy) for hosted in some)


def _expire_unless_busy(
    directory: LogDirectory, hosted: Hosted, now_ms: int, is_busy: IsBusy | None, make_policy: PolicyFactory | None
) -> int:
    log = hosted.log
    if directory.failure is not None or not may_expire(log, now_ms, by_own_policy=make_policy is not None):
        return 0
    if is_busy is not None and is_busy(log):
        return 0
    try:
        with directory.disk():
            deleted = _expire_one(hosted, now_ms, make_policy)
    except DirectoryOffline:
        return 0
    except LogError as error:
        logger.warning("retention failed: folder=%s error=%s", log.folder, error)
        return 0
    directory.remove_later(deleted, now_ms + log.settings.file_delete_delay_ms)
    return len(deleted)


def _expire_one(hosted: Hosted, now_ms: int, make_policy: PolicyFactory | None) -> list[str]:
    try:
        if make_policy is None:
            return enforce_retention(hosted.log, now_ms)
        return enforce_retention(
            hosted.log, now_ms, own_policy(make_policy, hosted.topic, hosted.partition, hosted.log)
        )
    except OSError as error:
        if is_partition_error(error):
            raise LogError(str(error)) from error
        raise


def start_due_flushes(directory: LogDirectory, commits: GroupCommit, now_ms: int) -> Iterator[int]:
    """Start the flushes that flush.messages and flush.ms require, in steps of some logs; how many."""

    def done(error: LogError | None) -> None:
        if error is not None:
            logger.warning("flush failed: path=%s error=%s", directory.path, error)
            directory.check_logs()

    for some in _in_steps(directory, _LOGS_AT_ONCE):
        count = 0
        for hosted in some:
            log = hosted.log
            if log.settings.flush_ms == NEVER and log.settings.flush_messages == NEVER:
                continue  # most logs: this is the cost of a tick
            if log.flush_due(now_ms) and not commits.pending(log):
                count += 1
                commits.when_durable(log, log.log_end_offset, done)
        yield count


def _in_steps(directory: LogDirectory, at_once: int) -> Iterator[list[Hosted]]:
    """The logs of a directory, a few at a time while it is online; without those that went meanwhile."""
    if not directory.check_logs():
        return
    keys = list(directory.hosted)
    for begin in range(0, len(keys), at_once):
        if directory.failure is not None:
            return
        yield [found for key in keys[begin : begin + at_once] if (found := directory.hosted.get(key)) is not None]


def flush_in_background(directory: LogDirectory, workers: Workers, now_ms: int) -> bool:
    """Start to flush the logs with many or old bytes that are not durable; False if none of the next logs has any.

    Independent of the flush policy: it bounds what recovery must check after a crash, and the kernel would write the
    bytes soon anyway. One log at a time, since no client waits, and never on the event loop, since it is many bytes.
    Of very many logs a call looks at some, and the next call at others.
    """
    if directory.is_flushing or not directory.check_logs():
        return False
    if not directory.unflushed:
        directory.unflushed.extend(directory.hosted)
    return _flush_next(directory, workers, now_ms)


def _flush_next(directory: LogDirectory, workers: Workers, now_ms: int) -> bool:
    """Whether a flush of one of the logs that are still to be looked at was started."""
    for _ in range(min(len(directory.unflushed), _SEARCHED_AT_ONCE)):
        hosted = directory.hosted.get(directory.unflushed.popleft())
        if hosted is None or (not hosted.log.active.size and not len(hosted.log.table)):
            continue  # empty: the cheapest check, for thousands of logs
        log = hosted.log
        if log.flush_wanted(now_ms, UNFLUSHED_BYTES, UNFLUSHED_MS):
            try:
                if _flush_one(directory, log, workers, now_ms):
                    return True
            except (LogError, WorkersError) as error:
                logger.warning("flush failed: folder=%s error=%s", log.folder, error)
                if not directory.check_logs():
                    break
    return False


def _flush_one(directory: LogDirectory, log: PartitionLog, workers: Workers, now_ms: int) -> bool:
    flush = log.prepare_flush(mark=True)
    if flush is None:
        return False
    size = log.unflushed_bytes

    def done(outcome: Outcome[None]) -> None:
        directory.is_flushing = False
        if isinstance(outcome.error, TooManyOpenFiles):
            logger.warning("flush failed: folder=%s error=%s", log.folder, outcome.error)
        elif outcome.error is not None:
            log.fail(outcome.error)
            directory.check_logs()
        else:
            log.complete_flush(flush)
            directory.flushed_bytes += size
            if directory.flushed_bytes >= UNCHECKPOINTED_BYTES:
                sum(checkpoint(directory))
            if directory.failure is None:
                _flush_next(directory, workers, now_ms)

    directory.is_flushing = True
    try:
        workers.run(flush.run, done)
    except WorkersError:
        directory.is_flushing = False
        raise
    return True


def checkpoint(directory: LogDirectory) -> Iterator[int]:
    """Write the checkpoints that changed, in steps; the number of files written. Errors of the disk are logged."""
    try:
        yield from directory.checkpoint_steps()
    except DiskFull as error:
        logger.warning("checkpoints not written, retried later: path=%s error=%s", directory.path, error)
    except DirectoryOffline:
        logger.debug("log directory failed while writing checkpoints: path=%s", directory.path)


def expire_producers(directory: LogDirectory, now_ms: int) -> Iterator[int]:
    """Forget producers past producer.id.expiration.ms, in steps of some logs; how many."""
    for some in _in_steps(directory, _LOGS_AT_ONCE):
        count = 0
        for hosted in some:
            producers = hosted.log.producers
            if producers.producer_count:
                count += producers.remove_expired(now_ms, hosted.log.settings.producer_id_expiration_ms)
        yield count


# --------------------------------------------------------------------------------------------------------- log manager


class DirectoryDescription(NamedTuple):
    """A log directory for DescribeLogDirs. An offline one has an error and no sizes."""

    path: str
    directory_id: bytes | None
    error: LogFailed | None
    total_bytes: int
    free_bytes: int
    sizes: dict[TopicPartition, int]
    futures: Sequence[FutureReplica] = ()


class LogManager:
    """The log directories: `open` them, `load` their logs, call the ticks, and `close` them."""

    def __init__(
        self,
        files: Files,
        workers: Workers,
        commits: GroupCommit | None = None,
        on_offline: OnOffline | None = None,
        creating_threads: int = 1,
    ) -> None:
        self._files = files
        self._creating_threads = creating_threads
        self._workers = workers
        self._commits = GroupCommit(workers) if commits is None else commits
        self._on_offline = on_offline
        self._directories: list[LogDirectory] = []
        self._offline: dict[str, LogFailed] = {}
        self._where: dict[TopicPartition, LogDirectory] = {}
        self._preferred: dict[TopicPartition, LogDirectory] = {}  # of partitions that do not exist yet
        self.make_policy: PolicyFactory | None = None  # the operator's, instead of retention.ms and retention.bytes
        self._is_enforcing_retention = False
        self.moves = ReplicaMoves(files, workers, self._commits, self._where.__setitem__)

    # --- open

    @classmethod
    def open(
        cls,
        files: Files,
        paths: Sequence[str],
        *,
        node_id: int,
        cluster_id: str,
        random: Random,
        workers: Workers,
        commits: GroupCommit | None = None,
        on_offline: OnOffline | None = None,
        creating_threads: int = 1,
        topic_ids: Mapping[str, bytes] = MappingProxyType({}),
        outdated: Collection[str] = (),
    ) -> LogManager:
        """Lock the directories. `on_offline` is called for each that fails; NoDirectoryOnline if all do.

        Partitions that are created together are created on `creating_threads` threads. `outdated` directories had
        failed while the broker went on with the others. FolderInUse, WrongOwner, MetadataFileError,
        PartitionInTwoFolders: the operator must decide.
        """
        OPEN_FILES.measure()  # the limit was raised when the process started
        manager = cls(files, workers, commits, on_offline, creating_threads)
        try:
            for path in paths:
                manager._open_one(path, node_id, cluster_id, random)
            manager.require_online()
            manager._settle_swaps()
            manager._locate(topic_ids, outdated)
        except BaseException:
            for directory in manager._directories:
                directory.close()
            raise
        return manager

    def _open_one(self, path: str, node_id: int, cluster_id: str, random: Random) -> None:
        try:
            directory = LogDirectory.open(
                self._files, path, node_id=node_id, cluster_id=cluster_id, random=random,
                on_failure=self._on_failure,
            )  # fmt: skip
        except DirectoryOffline as error:
            self._note_offline(path, error)
        else:
            self._directories.append(directory)

    def _settle_swaps(self) -> None:
        """Complete or undo replica moves that a crash interrupted: the removal of the original decides."""
        for directory in self._directories:
            for key in list(directory.listing.ready):
                with contextlib.suppress(DirectoryOffline):
                    if any(key in other.listing.partitions for other in self._directories):
                        directory.reopen_copy(key)
                    elif not self._offline:  # an offline directory may hold the original
                        directory.finish_swap(key)

    def _locate(self, topic_ids: Mapping[str, bytes], outdated: Collection[str]) -> None:
        for directory in self._directories:
            for key in tuple(directory.listing.partitions):
                other = self._where.setdefault(key, directory)
                if other is not directory:
                    left = self._left_behind(key, (other, directory), topic_ids, outdated)
                    with contextlib.suppress(DirectoryOffline):
                        left.set_aside({key: "the partition was created again while this log directory had failed"})
                    self._where[key] = directory if left is other else other

    def _left_behind(
        self,
        key: TopicPartition,
        found: tuple[LogDirectory, LogDirectory],
        topic_ids: Mapping[str, bytes],
        outdated: Collection[str],
    ) -> LogDirectory:
        """Which of two directories with the same partition had failed when it was created again in the other.

        Of different topics of one name, the one that does not exist any more. PartitionInTwoFolders.
        """
        name = folder_name(*key)
        old = [directory for directory in found if directory.path in outdated]
        if len(old) != 1:
            with contextlib.suppress(OSError, MetadataFileError):
                ids = [read_topic_id(self._files, f"{directory.path}/{name}") for directory in found]
                if None not in ids and topic_ids.get(key[0]) in ids:
                    old = [each for each, topic_id in zip(found, ids, strict=True) if topic_id != topic_ids[key[0]]]
        if len(old) != 1:
            raise PartitionInTwoFolders(*key, *(f"{directory.path}/{name}" for directory in found))
        return old[0]

    def load(
        self,
        settings_for: SettingsFor,
        now_ms: int,
        progress: Callable[[Progress], None] | None = None,
        threads: int = 0,
    ) -> None:
        """Open all logs, then `loaded`. NoDirectoryOnline if all disks fail.

        With `threads`, all directories in parallel, each with that many threads; `progress` and `settings_for` are then
        called on any of them.
        """
        self.read_all(settings_for, now_ms, progress, threads)
        self.loaded(now_ms)

    def read_all(
        self,
        settings_for: SettingsFor,
        now_ms: int,
        progress: Callable[[Progress], None] | None = None,
        threads: int = 0,
    ) -> None:
        """The long part of `load`, which may run off the event loop."""

        def read(directory: LogDirectory) -> None:
            directory.load(settings_for, now_ms, progress, max(1, threads))

        for _, outcome in in_parallel(read, self._directories, len(self._directories) if threads else 1):
            outcome.result()

    def loaded(self, now_ms: int) -> None:
        """The part of `load` for the event loop: forget strays, resume moves, start removals. NoDirectoryOnline."""
        self.require_online()
        self._forget_strays()
        self._resume_moves(now_ms)
        self.removal_tick(now_ms)

    def _resume_moves(self, now_ms: int) -> None:
        for directory in self._online():
            for key in directory.listing.futures:
                source = self._where.get(key)
                hosted = None if source is None else source.hosted.get(key)
                with contextlib.suppress(LogError):
                    if source is not None and hosted is not None and source is not directory:
                        self.moves.resume(hosted, source, directory)
                    elif not self._offline:
                        self.moves.forget_copy(directory, key, now_ms)

    # --- before load

    def unopened(self) -> list[TopicPartition]:
        """The partitions that `load` will open."""
        return list(self._where)

    def has_records(self, topic: str, partition: int) -> bool:
        """Whether an unopened partition has records."""
        return self.directory_of(topic, partition).has_records((topic, partition))

    def set_aside(self, strays: Mapping[TopicPartition, str]) -> None:
        """Rename the folders of these partitions to stray names, each for its reason. `load` then skips them."""
        for directory in self._directories:
            mine = {key: reason for key, reason in strays.items() if self._where.get(key) is directory}
            if mine:
                with contextlib.suppress(DirectoryOffline):
                    directory.set_aside(mine)
        self._forget_strays()

    def expect(self, topic_ids: Mapping[str, bytes]) -> None:
        """Set the known topic ids: partitions of other topics of these names are set aside when they are loaded."""
        for directory in self._directories:
            directory.topic_ids = topic_ids

    def _forget_strays(self) -> None:
        for directory in self._directories:
            left = set(directory.listing.partitions)
            for key in [key for key, where in self._where.items() if where is directory and key not in left]:
                del self._where[key]

    @property
    def unread(self) -> int:
        """The number of logs to load."""
        return sum(len(directory.listing.partitions) for directory in self._directories)

    # --- directories

    @property
    def directories(self) -> Sequence[LogDirectory]:
        """The opened directories, including those that failed since."""
        return self._directories

    @property
    def offline(self) -> dict[str, LogFailed]:
        """The errors of the offline directories, by path."""
        return dict(self._offline)

    @property
    def is_online(self) -> bool:
        """Whether a directory has not failed."""
        return bool(self._online())

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.failure is None]

    def require_online(self) -> None:
        """NoDirectoryOnline if all have failed."""
        if not self._online():
            raise NoDirectoryOnline({path: error.reason for path, error in self._offline.items()})

    def _on_failure(self, directory: LogDirectory) -> None:
        if directory.failure is not None:
            self._note_offline(directory.path, directory.failure)

    def _note_offline(self, path: str, error: LogFailed) -> None:
        self._offline[path] = error
        if self._on_offline is not None:
            self._on_offline(path, error)

    def report_failure(self, topic: str, partition: int) -> None:
        """A log raised LogFailed: take its directory offline now, not at the next tick."""
        directory = self._where.get((topic, partition))
        if directory is not None:
            directory.check_logs()

    def describe(self) -> list[DirectoryDescription]:
        """All directories, including offline ones."""
        found: list[DirectoryDescription] = []
        for directory in self._directories:
            with contextlib.suppress(DirectoryOffline):
                space = directory.space()
                sizes = {key: hosted.log.size for key, hosted in directory.hosted.items()}
                futures = self.moves.futures(directory)
                found.append(
                    DirectoryDescription(
                        directory.path, directory.directory_id, None, space.total, space.free, sizes, futures
                    )
                )
        ids = {directory.path: directory.directory_id for directory in self._directories}
        offline = [DirectoryDescription(path, ids.get(path), why, -1, -1, {}) for path, why in self._offline.items()]
        return found + offline

    # --- partitions

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """The log, or None. LogFailed if it is damaged, DiskFull if there was no room to open it; if its disk failed,
        using it raises.
        """
        directory = self._where.get((topic, partition))
        return None if directory is None else directory.get((topic, partition)).log

    def reopen(self, topic: str, partition: int, settings: LogSettings, now_ms: int) -> None:
        """Start to open a log again if there was no room for that; otherwise nothing happens."""
        directory = self._where.get((topic, partition))
        if directory is not None:
            directory.reopen((topic, partition), settings, now_ms, self._workers)

    def is_offline(self, topic: str, partition: int) -> bool:
        """Whether a failed directory holds the partition, or may hold it: no other does."""
        directory = self._where.get((topic, partition))
        return bool(self._offline) if directory is None else directory.failure is not None

    def holds(self, topic: str, partition: int) -> bool:
        """Whether a directory has the partition, damaged or not."""
        return (topic, partition) in self._where

    def find(self, topic: str, partition: int) -> Hosted | None:
        """Like `get`, with the topic id."""
        directory = self._where.get((topic, partition))
        return None if directory is None else directory.get((topic, partition))

    def directory_of(self, topic: str, partition: int) -> LogDirectory:
        """The directory of a partition; UnknownPartition if none holds it."""
        directory = self._where.get((topic, partition))
        if directory is None:
            raise UnknownPartition(topic, partition)
        return directory

    def logs(self) -> Iterable[Hosted]:
        """All partitions with open logs, including those of failed directories."""
        for directory in self._directories:
            yield from directory.hosted.values()

    def move(self, topic: str, partition: int, path: str, now_ms: int) -> None:
        """Start to move a partition to the log directory at `path` while it is in use (KIP-113).

        UnknownDirectory; LogFailed if that directory or the partition is offline; UnknownPartition if it does not exist
        here: it is then created in that directory later.
        """
        path = path.rstrip("/") or "/"
        target = next((each for each in self._directories if each.path == path), None)
        failure = self._offline.get(path)
        if failure is not None:
            raise DirectoryOffline(path, failure.reason)
        if target is None:
            raise UnknownDirectory(path)
        source = self._where.get((topic, partition))
        if source is None:
            self._preferred[topic, partition] = target
            raise UnknownPartition(topic, partition)
        self.moves.begin(source.get((topic, partition)), source, target, now_ms)

    def create(
        self,
        topic: str,
        partition: int,
        topic_id: bytes | None,
        settings: LogSettings,
        now_ms: int,
        *,
        is_new: bool = True,
    ) -> PartitionLog:
        """Create a partition in the emptiest directory.

        If it is not new (this broker is already its replica), an offline directory may hold it: PartitionMayBeOffline.
        """
        key = (topic, partition)
        taken = self._where.get(key)
        if taken is not None:
            raise PartitionExists(topic, partition, f"{taken.path}/{folder_name(*key)}")
        if self._offline and not is_new:
            raise PartitionMayBeOffline(topic, partition, list(self._offline))
        directory = self._chosen(key)
        log = directory.create(key, topic_id, settings, now_ms)
        self._where[key] = directory
        return log

    def create_all(
        self, wanted: Iterable[NewLog], now_ms: int, done: Callable[[], None], *, is_new: bool = True
    ) -> None:
        """Create partitions off the event loop, then call `done`.

        Partitions that exist or cannot be created are skipped; `create` would raise the reason.
        """
        if self._offline and not is_new:
            done()
            return
        self._create_next(deque(wanted), now_ms, done)

    def _create_next(self, wanted: deque[NewLog], now_ms: int, done: Callable[[], None]) -> None:
        # A few at a time: producers wait for syncs on the same disk.
        places = self._place([wanted.popleft() for _ in range(min(len(wanted), _CREATED_AT_ONCE))])
        if not places:
            if wanted:
                self._create_next(wanted, now_ms, done)
            else:
                done()
            return

        def work() -> list[tuple[LogDirectory, Outcome[list[CreatedLog]]]]:
            threads = self._creating_threads
            return [
                (each, outcome_of(partial(create_logs, self._files, each.path, places[each], now_ms, threads)))
                for each in places
            ]

        def created(outcome: Outcome[list[tuple[LogDirectory, Outcome[list[CreatedLog]]]]]) -> None:
            for directory, result in outcome.result():
                self._adopt(directory, result)
            self._create_next(wanted, now_ms, done)

        try:
            self._workers.run(work, created)
        except WorkersError as error:
            logger.warning("partitions not created: error=%s", error)
            done()

    def _place(self, wanted: Iterable[NewLog]) -> dict[LogDirectory, list[NewLog]]:
        """The partitions to create in each directory, without those that exist or cannot be created."""
        places: dict[LogDirectory, list[NewLog]] = {}
        for new in wanted:
            if new.key in self._where:
                continue
            try:
                directory = self._chosen(new.key, places)
                directory.prepare_create(new.key)
            except LogError as error:
                logger.warning("partition not created: partition=%s error=%s", folder_name(*new.key), error)
                continue
            places.setdefault(directory, []).append(new)
        return places

    def _adopt(self, directory: LogDirectory, outcome: Outcome[list[CreatedLog]]) -> None:
        try:
            with directory.disk():
                created = outcome.result()
        except LogError as error:
            logger.warning("partitions not created: error=%s", error)
            return
        for each in created:
            try:
                directory.adopt(each)
            except LogError as error:
                logger.warning("partition not created: partition=%s error=%s", folder_name(*each.new.key), error)
            else:
                self._where[each.new.key] = directory

    def _chosen(
        self, key: TopicPartition, planned: Mapping[LogDirectory, Sequence[NewLog]] = _NOTHING_PLANNED
    ) -> LogDirectory:
        preferred = self._preferred.pop(key, None)
        return self._emptiest(planned) if preferred is None or preferred.failure is not None else preferred

    def _emptiest(self, planned: Mapping[LogDirectory, Sequence[NewLog]] = _NOTHING_PLANNED) -> LogDirectory:
        def count(directory: LogDirectory) -> int:
            return len(directory.hosted) + len(directory.damaged) + len(planned.get(directory, ()))

        while True:
            self.require_online()
            online = self._online()
            if len(online) == 1:
                return online[0]
            fewest = min(map(count, online))
            least = [directory for directory in online if count(directory) == fewest]
            if len(least) == 1:
                return least[0]
            # A disk that cannot report its free space has failed: choose again without it.
            with contextlib.suppress(DirectoryOffline):
                return max(least, key=lambda directory: directory.space().free)

    def delete(self, topic: str, partition: int, now_ms: int) -> None:
        """Delete a partition, durably. A later tick removes its files."""
        self.delete_all([(topic, partition)], now_ms)

    def delete_all(self, keys: Iterable[TopicPartition], now_ms: int) -> None:
        """Delete several partitions, with one sync per directory. A failed directory only forgets them."""
        places: dict[LogDirectory, list[TopicPartition]] = {}
        for key in keys:
            self.moves.cancel(key, now_ms)
            places.setdefault(self.directory_of(*key), []).append(key)
        for directory, deleted in places.items():
            try:
                directory.delete_all(deleted, now_ms)
            except DirectoryOffline:
                directory.forget(deleted)
            finally:
                for key in deleted:
                    if key not in directory.hosted and key not in directory.damaged:
                        del self._where[key]

    def update_settings(self, topic: str, settings: LogSettings) -> int:
        """Change the settings of all logs of a topic; how many there are."""
        count = 0
        for hosted in self.logs():
            if hosted.topic == topic:
                hosted.log.settings = settings
                count += 1
        return count

    def advance_start(self, topic: str, partition: int, offset: int) -> bool:
        """See LogDirectory.advance_start."""
        return self.directory_of(topic, partition).advance_start((topic, partition), offset)

    def truncate_to(self, topic: str, partition: int, offset: int, now_ms: int) -> bool:
        """See LogDirectory.truncate_to."""
        return self.directory_of(topic, partition).truncate_to((topic, partition), offset, now_ms)

    def truncate_fully(self, topic: str, partition: int, offset: int, now_ms: int) -> None:
        """See LogDirectory.truncate_fully."""
        self.directory_of(topic, partition).truncate_fully((topic, partition), offset, now_ms)

    # --- ticks

    def retention_tick(self, now_ms: int, is_busy: IsBusy | None = None) -> int:
        """Enforce retention and start removals that are due; the number of files that now wait for removal.

        Busy logs (`LogCleaner.is_cleaning`) are skipped until the next tick.
        """
        return sum(self.retention_steps(now_ms, is_busy))

    def retention_steps(self, now_ms: int, is_busy: IsBusy | None = None) -> Iterator[int]:
        """The same in steps of some logs. While one run is under way, another has no steps."""
        if self._is_enforcing_retention:
            return
        self._is_enforcing_retention = True
        try:
            for directory in list(self._online()):
                yield from expire(directory, now_ms, is_busy, self.make_policy)
            self.removal_tick(now_ms)
        finally:
            self._is_enforcing_retention = False

    def flush_tick(self, now_ms: int) -> int:
        """Start the flushes that flush.messages and flush.ms require; how many."""
        return sum(self.flush_steps(now_ms))

    def flush_steps(self, now_ms: int) -> Iterator[int]:
        """The same in steps of some logs."""
        for directory in list(self._online()):
            yield from start_due_flushes(directory, self._commits, now_ms)

    def background_flush_tick(self, now_ms: int) -> int:
        """Start the flushes that keep recovery short; in how many directories."""
        return sum(flush_in_background(directory, self._workers, now_ms) for directory in self._online())

    def checkpoint_tick(self) -> int:
        """Write the checkpoints that changed; the number of files written."""
        return sum(self.checkpoint_steps())

    def checkpoint_steps(self) -> Iterator[int]:
        """The same with a step for each file."""
        for directory in list(self._online()):
            yield from checkpoint(directory)

    def producer_expiry_tick(self, now_ms: int) -> int:
        """Forget producers past producer.id.expiration.ms; how many."""
        return sum(self.producer_expiry_steps(now_ms))

    def producer_expiry_steps(self, now_ms: int) -> Iterator[int]:
        """The same in steps of some logs."""
        for directory in list(self._online()):
            yield from expire_producers(directory, now_ms)

    def removal_tick(self, now_ms: int) -> None:
        """Remove the files and folders whose delay (`file.delete.delay.ms`) is over."""
        for directory in self._online():
            due = directory.removals.take_due(now_ms)
            if due:
                self._remove(directory, due)

    def _remove(self, directory: LogDirectory, due: list[Removal]) -> None:
        def done(outcome: Outcome[int]) -> None:
            if isinstance(outcome.error, OSError) and not is_partition_error(outcome.error):
                directory.fail(outcome.error)

        try:
            self._workers.run(lambda: remove_all(self._files, due), done)
        except WorkersError:
            directory.removals.add(due)

    # --- close

    def close(self, threads: int = 0) -> bool:
        """Close all directories; False if one was not clean. With `threads`, in parallel, each with that many."""

        def close(directory: LogDirectory) -> bool:
            return directory.close(max(1, threads))

        self.moves.close()

        outcomes = in_parallel(close, self._directories, len(self._directories) if threads else 1)
        clean = [outcome.result() for _, outcome in outcomes]
        return all(clean) and not self._offline
