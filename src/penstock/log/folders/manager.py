"""All data folders of a broker, and all logs in them.

Noun: the set of `log.dirs`, where a partition is in one of them at most.

Rule: folders are independent: one that cannot be opened or fails later takes its own partitions offline, the others
serve on, and only when none is left there is nothing to manage. A new partition goes to the emptiest folder that is
online: fewest partitions, then most free bytes. What an operator must decide (a folder in use or of another broker, a
partition in two folders) is refused at the start, with everything left as it was found.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.log.checkpoints import TopicPartition
from penstock.log.errors import LogError, LogFailed
from penstock.log.flush import GroupCommit
from penstock.log.folders import upkeep
from penstock.log.folders.directory import Hosted, LogDirectory, Progress, SettingsFor
from penstock.log.folders.errors import (
    DirectoryOffline,
    NoDirectoryOnline,
    PartitionExists,
    PartitionInTwoFolders,
    PartitionMayBeOffline,
    UnknownDirectory,
    UnknownPartition,
    is_partitions_own,
)
from penstock.log.folders.making import Made, NewLog, make_all
from penstock.log.folders.moves import FutureReplica, ReplicaMoves
from penstock.log.folders.names import folder_name
from penstock.log.folders.removals import Removal, remove_all
from penstock.log.partition_log import PartitionLog
from penstock.log.settings import LogSettings
from penstock.runtime.files import Files
from penstock.runtime.open_files import OPEN_FILES
from penstock.runtime.parallel import in_parallel, outcome_of
from penstock.runtime.randomness import Random
from penstock.runtime.workers import Outcome, Workers, WorkersError

logger = logging.getLogger(__name__)

OnOffline = Callable[[str, LogFailed], None]

_MADE_AT_ONCE: Final = 64
_NOTHING_PLANNED: Final[Mapping[LogDirectory, Sequence[NewLog]]] = MappingProxyType({})


class DirectoryDescription(NamedTuple):
    """A data folder as DescribeLogDirs tells of it; an offline one has an error and no sizes."""

    path: str
    directory_id: bytes | None
    error: LogFailed | None
    total_bytes: int
    free_bytes: int
    sizes: dict[TopicPartition, int]
    futures: Sequence[FutureReplica] = ()


class LogManager:
    """The open data folders. `open` them, `load` their logs, then call the ticks; `close` them."""

    def __init__(
        self,
        files: Files,
        workers: Workers,
        commits: GroupCommit | None = None,
        on_offline: OnOffline | None = None,
        making_threads: int = 1,
    ) -> None:
        self._files = files
        self._making_threads = making_threads
        self._workers = workers
        self._commits = GroupCommit(workers) if commits is None else commits
        self._on_offline = on_offline
        self._directories: list[LogDirectory] = []
        self._offline: dict[str, LogFailed] = {}
        self._where: dict[TopicPartition, LogDirectory] = {}
        self._preferred: dict[TopicPartition, LogDirectory] = {}  # of partitions that are not there yet
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
        making_threads: int = 1,
    ) -> LogManager:
        """Claim all folders that can be. NoDirectoryOnline if none can; `on_offline` hears of every other that cannot.

        New partitions that are made together are made on `making_threads` threads.

        FolderInUse, WrongOwner, MetadataFileError, PartitionInTwoFolders: the operator must decide.
        """
        OPEN_FILES.measure()  # whoever starts a process raises its limit first
        manager = cls(files, workers, commits, on_offline, making_threads)
        try:
            for path in paths:
                manager._open_one(path, node_id, cluster_id, random)
            manager._require_online()
            manager._settle_swaps()
            manager._locate()
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
        """Replicas that were changing places when the broker ended: the original's removal was what counted."""
        for directory in self._directories:
            for key in list(directory.listing.ready):
                with contextlib.suppress(DirectoryOffline):
                    if any(key in other.listing.partitions for other in self._directories):
                        directory.reopen_copy(key)
                    elif not self._offline:  # where the original may be
                        directory.finish_swap(key)

    def _locate(self) -> None:
        for directory in self._directories:
            for key in directory.listing.partitions:
                other = self._where.setdefault(key, directory)
                if other is not directory:
                    name = folder_name(*key)
                    raise PartitionInTwoFolders(*key, f"{other.path}/{name}", f"{directory.path}/{name}")

    def load(
        self,
        settings_for: SettingsFor,
        now_ms: int,
        progress: Callable[[Progress], None] | None = None,
        threads: int = 0,
    ) -> None:
        """Open all logs, then `loaded`. NoDirectoryOnline if every folder's disk fails over it.

        With `threads`, that many a folder, and all folders at once: `progress` and `settings_for` are then called in
        any of them.
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
        """The part of load that takes long, and may happen beside the event loop."""

        def read(directory: LogDirectory) -> None:
            directory.load(settings_for, now_ms, progress, max(1, threads))

        for _, outcome in in_parallel(read, self._directories, len(self._directories) if threads else 1):
            outcome.result()

    def loaded(self, now_ms: int) -> None:
        """The part of load that must not: forget strays, begin to remove what is due. NoDirectoryOnline."""
        self._require_online()
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
        """Whether the folder of an unopened partition holds any."""
        return self.directory_of(topic, partition).has_records((topic, partition))

    def set_aside(self, strays: Mapping[TopicPartition, str]) -> None:
        """Rename the folders of these partitions, each for its reason: `load` and all others know nothing of them."""
        for directory in self._directories:
            mine = {key: reason for key, reason in strays.items() if self._where.get(key) is directory}
            if mine:
                with contextlib.suppress(DirectoryOffline):
                    directory.set_aside(mine)
        self._forget_strays()

    def expect(self, topic_ids: Mapping[str, bytes]) -> None:
        """When they are loaded, partitions of other topics of these names are set aside."""
        for directory in self._directories:
            directory.topic_ids = topic_ids

    def _forget_strays(self) -> None:
        for directory in self._directories:
            left = set(directory.listing.partitions)
            for key in [key for key, where in self._where.items() if where is directory and key not in left]:
                del self._where[key]

    @property
    def unread(self) -> int:
        """How many logs there are to load."""
        return sum(len(directory.listing.partitions) for directory in self._directories)

    # --- folders

    @property
    def directories(self) -> Sequence[LogDirectory]:
        """Those that were opened, also if they failed since."""
        return self._directories

    @property
    def offline(self) -> dict[str, LogFailed]:
        """Path: why, of the folders that are offline."""
        return dict(self._offline)

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.failure is None]

    def _require_online(self) -> None:
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
        """A log raised LogFailed: take its folder offline now, and not at the next tick."""
        directory = self._where.get((topic, partition))
        if directory is not None:
            directory.check_logs()

    def describe(self) -> list[DirectoryDescription]:
        """All folders, the offline ones too."""
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
        """The log, None if there is none. LogFailed if it is damaged; one whose disk failed says so when it is used."""
        directory = self._where.get((topic, partition))
        return None if directory is None else directory.get((topic, partition)).log

    def holds(self, topic: str, partition: int) -> bool:
        """Whether a folder has it, damaged or not."""
        return (topic, partition) in self._where

    def find(self, topic: str, partition: int) -> Hosted | None:
        """As get, with the topic's id."""
        directory = self._where.get((topic, partition))
        return None if directory is None else directory.get((topic, partition))

    def directory_of(self, topic: str, partition: int) -> LogDirectory:
        """UnknownPartition if no folder holds it."""
        directory = self._where.get((topic, partition))
        if directory is None:
            raise UnknownPartition(topic, partition)
        return directory

    def logs(self) -> Iterable[Hosted]:
        """All partitions whose logs are open, also of failed folders."""
        for directory in self._directories:
            yield from directory.hosted.values()

    def move(self, topic: str, partition: int, path: str, now_ms: int) -> None:
        """Move a partition to the data folder at `path`, while it is used (KIP-113); returns when that has begun.

        UnknownDirectory; LogFailed if that folder, or the partition, is offline; UnknownPartition if it is not here:
        then it is made there, if it ever is.
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
        """A new partition in the emptiest folder.

        One that is not new (the cluster knows this broker as its replica) is not made while a folder is offline that
        may hold it: PartitionMayBeOffline.
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
        """Make new partitions beside the event loop, then call `done`.

        Those that are there, or cannot be made, are left out: `create` would say why.
        """
        if self._offline and not is_new:
            done()
            return
        self._make_next(deque(wanted), now_ms, done)

    def _make_next(self, wanted: deque[NewLog], now_ms: int, done: Callable[[], None]) -> None:
        # A few at a time: the disk is also for those who wait for a sync.
        places = self._place([wanted.popleft() for _ in range(min(len(wanted), _MADE_AT_ONCE))])
        if not places:
            if wanted:
                self._make_next(wanted, now_ms, done)
            else:
                done()
            return

        def work() -> list[tuple[LogDirectory, Outcome[list[Made]]]]:
            threads = self._making_threads
            return [
                (each, outcome_of(partial(make_all, self._files, each.path, places[each], now_ms, threads)))
                for each in places
            ]

        def made(outcome: Outcome[list[tuple[LogDirectory, Outcome[list[Made]]]]]) -> None:
            for directory, result in outcome.result():
                self._adopt(directory, result)
            self._make_next(wanted, now_ms, done)

        try:
            self._workers.run(work, made)
        except WorkersError as error:
            logger.warning("new partitions are not made: %s", error)
            done()

    def _place(self, wanted: Iterable[NewLog]) -> dict[LogDirectory, list[NewLog]]:
        """Which folder is to make which; those that are there, or that none can make, in none."""
        places: dict[LogDirectory, list[NewLog]] = {}
        for new in wanted:
            if new.key in self._where:
                continue
            try:
                directory = self._chosen(new.key, places)
                directory.clear_way(new.key)
            except LogError as error:
                logger.warning("%s is not made: %s", folder_name(*new.key), error)
                continue
            places.setdefault(directory, []).append(new)
        return places

    def _adopt(self, directory: LogDirectory, outcome: Outcome[list[Made]]) -> None:
        try:
            with directory.disk():
                made = outcome.result()
        except LogError as error:
            logger.warning("new partitions are not made: %s", error)
            return
        for each in made:
            try:
                directory.adopt(each)
            except LogError as error:
                logger.warning("%s is not made: %s", folder_name(*each.new.key), error)
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
            self._require_online()
            online = self._online()
            if len(online) == 1:
                return online[0]
            fewest = min(map(count, online))
            least = [directory for directory in online if count(directory) == fewest]
            if len(least) == 1:
                return least[0]
            # A disk that cannot even tell its room has failed: look again without it.
            with contextlib.suppress(DirectoryOffline):
                return max(least, key=lambda directory: directory.space().free)

    def delete(self, topic: str, partition: int, now_ms: int) -> None:
        """The partition is gone, durably, when this returns; its bytes go with a later tick."""
        self.delete_all([(topic, partition)], now_ms)

    def delete_all(self, keys: Iterable[TopicPartition], now_ms: int) -> None:
        """As delete for each, with one sync a folder."""
        places: dict[LogDirectory, list[TopicPartition]] = {}
        for key in keys:
            self.moves.cancel(key, now_ms)
            places.setdefault(self.directory_of(*key), []).append(key)
        for directory, doomed in places.items():
            try:
                directory.delete_all(doomed, now_ms)
            finally:
                for key in doomed:
                    if key not in directory.hosted and key not in directory.damaged:
                        del self._where[key]

    def update_settings(self, topic: str, settings: LogSettings) -> int:
        """Give all logs of a topic other settings; how many there are."""
        count = 0
        for hosted in self.logs():
            if hosted.topic == topic:
                hosted.log.settings = settings
                count += 1
        return count

    def advance_start(self, topic: str, partition: int, offset: int) -> bool:
        """As LogDirectory.advance_start."""
        return self.directory_of(topic, partition).advance_start((topic, partition), offset)

    def truncate_to(self, topic: str, partition: int, offset: int, now_ms: int) -> bool:
        """As LogDirectory.truncate_to."""
        return self.directory_of(topic, partition).truncate_to((topic, partition), offset, now_ms)

    def truncate_fully(self, topic: str, partition: int, offset: int, now_ms: int) -> None:
        """As LogDirectory.truncate_fully."""
        self.directory_of(topic, partition).truncate_fully((topic, partition), offset, now_ms)

    # --- ticks

    def retention_tick(self, now_ms: int, is_busy: upkeep.IsBusy | None = None) -> int:
        """Take out what retention lets go and remove what is due; the number of files that now wait for removal.

        Logs that are busy (`LogCleaner.is_cleaning`) are left for the next time.
        """
        expired = sum(upkeep.expire(directory, now_ms, is_busy) for directory in self._online())
        self.removal_tick(now_ms)
        return expired

    def flush_tick(self, now_ms: int) -> int:
        """Begin the flushes that topics' own flush policies ask for; how many."""
        return sum(upkeep.start_due_flushes(directory, self._commits, now_ms) for directory in self._online())

    def background_flush_tick(self, now_ms: int) -> int:
        """Begin the flushes that keep a recovery short; in how many folders."""
        return sum(upkeep.flush_in_background(directory, self._workers, now_ms) for directory in self._online())

    def checkpoint_tick(self) -> int:
        """Write the checkpoints that changed; the number of files written."""
        return sum(upkeep.checkpoint(directory) for directory in self._online())

    def producer_expiry_tick(self, now_ms: int) -> int:
        """Forget producers that were idle for long; how many."""
        return sum(upkeep.expire_producers(directory, now_ms) for directory in self._online())

    def removal_tick(self, now_ms: int) -> None:
        """Remove the files and folders whose delay (`file.delete.delay.ms`) is over."""
        for directory in self._online():
            due = directory.removals.take_due(now_ms)
            if due:
                self._remove(directory, due)

    def _remove(self, directory: LogDirectory, due: list[Removal]) -> None:
        def done(outcome: Outcome[int]) -> None:
            if isinstance(outcome.error, OSError) and not is_partitions_own(outcome.error):
                directory.fail(outcome.error)

        try:
            self._workers.run(lambda: remove_all(self._files, due), done)
        except WorkersError:
            directory.removals.add(due)

    # --- end

    def close(self, threads: int = 0) -> bool:
        """Close all folders; whether each of them cleanly. With `threads`, all at once, and that many a folder."""

        def close(directory: LogDirectory) -> bool:
            return directory.close(max(1, threads))

        self.moves.close()

        outcomes = in_parallel(close, self._directories, len(self._directories) if threads else 1)
        clean = [outcome.result() for _, outcome in outcomes]
        return all(clean) and not self._offline
