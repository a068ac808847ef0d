"""All data folders of a broker, and all logs in them.

Noun: the set of `log.dirs`, where a partition is in one of them at most.

Rule: folders are independent: one that cannot be opened or fails later takes its own partitions offline, the others
serve on, and only when none is left there is nothing to manage. A new partition goes to the emptiest folder that is
online: fewest partitions, then most free bytes. What an operator must decide (a folder in use or of another broker, a
partition in two folders) is refused at the start, with everything left as it was found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.log.checkpoints import TopicPartition
from penstock.log.errors import LogFailed
from penstock.log.flush import GroupCommit
from penstock.log.folders import upkeep
from penstock.log.folders.directory import Hosted, LogDirectory, Progress, SettingsFor
from penstock.log.folders.errors import (
    DirectoryOffline,
    NoDirectoryOnline,
    PartitionExists,
    PartitionInTwoFolders,
    PartitionMayBeOffline,
    UnknownPartition,
    is_partitions_own,
)
from penstock.log.folders.names import folder_name
from penstock.log.folders.removals import Removal, remove_all
from penstock.log.partition_log import PartitionLog
from penstock.log.settings import LogSettings
from penstock.runtime.files import Files
from penstock.runtime.randomness import Random
from penstock.runtime.workers import Outcome, Workers, WorkersError

OnOffline = Callable[[str, LogFailed], None]


class DirectoryDescription(NamedTuple):
    """A data folder as DescribeLogDirs tells of it; an offline one has an error and no sizes."""

    path: str
    directory_id: bytes | None
    error: LogFailed | None
    total_bytes: int
    free_bytes: int
    sizes: dict[TopicPartition, int]


class LogManager:
    """The open data folders. `open` them, `load` their logs, then call the ticks; `close` them."""

    def __init__(
        self,
        files: Files,
        workers: Workers,
        commits: GroupCommit | None = None,
        on_offline: OnOffline | None = None,
    ) -> None:
        self._files = files
        self._workers = workers
        self._commits = GroupCommit(workers) if commits is None else commits
        self._on_offline = on_offline
        self._directories: list[LogDirectory] = []
        self._offline: dict[str, LogFailed] = {}
        self._where: dict[TopicPartition, LogDirectory] = {}

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
    ) -> LogManager:
        """Claim all folders that can be. NoDirectoryOnline if none can; `on_offline` hears of every other that cannot.

        FolderInUse, WrongOwner, MetadataFileError, PartitionInTwoFolders: the operator must decide.
        """
        manager = cls(files, workers, commits, on_offline)
        try:
            for path in paths:
                manager._open_one(path, node_id, cluster_id, random)
            manager._require_online()
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

    def _locate(self) -> None:
        for directory in self._directories:
            for key in directory.listing.partitions:
                other = self._where.setdefault(key, directory)
                if other is not directory:
                    name = folder_name(*key)
                    raise PartitionInTwoFolders(*key, f"{other.path}/{name}", f"{directory.path}/{name}")

    def load(self, settings_for: SettingsFor, now_ms: int, progress: Callable[[Progress], None] | None = None) -> None:
        """Open all logs. NoDirectoryOnline if every folder's disk fails over it."""
        for step in self.loading(settings_for, now_ms):
            if progress is not None:
                progress(step)

    def loading(self, settings_for: SettingsFor, now_ms: int) -> Iterator[Progress]:
        """As load, one log at a time, so that the caller may do other things in between."""
        for directory in self._directories:
            yield from directory.loading(settings_for, now_ms)
        self._require_online()
        self._remove_due(now_ms)

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
                found.append(
                    DirectoryDescription(directory.path, directory.directory_id, None, space.total, space.free, sizes)
                )
        ids = {directory.path: directory.directory_id for directory in self._directories}
        offline = [DirectoryDescription(path, ids.get(path), why, -1, -1, {}) for path, why in self._offline.items()]
        return found + offline

    # --- partitions

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """The log, None if there is none. LogFailed if it is damaged; one whose disk failed says so when it is used."""
        directory = self._where.get((topic, partition))
        return None if directory is None else directory.get((topic, partition)).log

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
        directory = self._emptiest()
        log = directory.create(key, topic_id, settings, now_ms)
        self._where[key] = directory
        return log

    def _emptiest(self) -> LogDirectory:
        while True:
            self._require_online()
            online = self._online()
            fewest = min(_count(directory) for directory in online)
            least = [directory for directory in online if _count(directory) == fewest]
            if len(least) == 1:
                return least[0]
            # A disk that cannot even tell its room has failed: look again without it.
            with contextlib.suppress(DirectoryOffline):
                return max(least, key=lambda directory: directory.space().free)

    def delete(self, topic: str, partition: int, now_ms: int) -> None:
        """The partition is gone, durably, when this returns; its bytes go with a later tick."""
        self.directory_of(topic, partition).delete((topic, partition), now_ms)
        del self._where[topic, partition]

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
        self._remove_due(now_ms)
        return expired

    def flush_tick(self, now_ms: int) -> int:
        """Begin the flushes that topics' own flush policies ask for; how many."""
        return sum(upkeep.start_due_flushes(directory, self._commits, now_ms) for directory in self._online())

    def checkpoint_tick(self) -> int:
        """Write the checkpoints that changed; the number of files written."""
        return sum(upkeep.checkpoint(directory) for directory in self._online())

    def producer_expiry_tick(self, now_ms: int) -> int:
        """Forget producers that were idle for long; how many."""
        return sum(upkeep.expire_producers(directory, now_ms) for directory in self._online())

    def _remove_due(self, now_ms: int) -> None:
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

    def close(self) -> bool:
        """Close all folders; whether each of them cleanly."""
        clean = [directory.close() for directory in self._directories]
        return all(clean) and not self._offline


def _count(directory: LogDirectory) -> int:
    return len(directory.hosted) + len(directory.damaged)
