"""Opening the logs when a broker starts.

Logs are opened on worker threads, so the event loop can report progress over HTTP and in the log every few seconds. A
stray is a partition folder without a topic, beyond the topic's partitions, or of an earlier topic of the same name:
it is renamed, never opened and never deleted. If there are records but the cluster knows no topic at all, the
metadata is lost: the start fails, unless penstock.strays=set-aside.

A broker with a damaged log whose partition has other replicas registers as one that has lost this replica: it is not
in sync for the partition, so it may truncate the damage and copy the rest. If it is the only one with all committed
records of the partition, the log goes offline instead.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

from penstock.cluster.image import ClusterImage
from penstock.cluster.tree import layout
from penstock.cluster.tree.tree import Tree, find
from penstock.log.checkpoints import TopicPartition
from penstock.log.errors import LogError
from penstock.log.log_dirs.identity import MetadataFileError, folder_name, read_meta
from penstock.log.log_dirs.log_directory import Progress
from penstock.log.log_dirs.log_manager import LogManager
from penstock.log.settings import LogSettings
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.threads import Outcome, Workers

logger = logging.getLogger(__name__)

SET_ASIDE: Final = "set-aside"
REPORT_INTERVAL_S = 3.0


class MetadataLost(LogError):
    """There are records, but no topic is known."""

    def __init__(self, folder: str, count: int) -> None:
        holders = f"{folder} holds" if count == 1 else f"{folder} and {count - 1} more partitions hold"
        super().__init__(
            f"the metadata is missing: {holders} records, but no topic is known; restore the metadata folder "
            f"(.metadata in the first of log.dirs), or start without topics: --set penstock.strays={SET_ASIDE} "
            f"renames the partition folders and deletes nothing"
        )
        self.folder = folder
        self.count = count


class LoadingStopped(Exception):
    """The start was cancelled."""


class LogLoader:
    """Loads all logs at a start."""

    def __init__(self, logs: LogManager, clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self._guard = threading.Lock()
        self._stopped = False
        self._settings: dict[str, LogSettings] = {}
        self.total = logs.unread
        self.done = 0
        self.walked_bytes = 0

    async def run(
        self,
        workers: Workers,
        settings_for: Callable[[str], LogSettings],
        threads: int,
    ) -> None:
        """Open all logs; raises what LogManager.load raises."""
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        began_ms, now_ms = self._clock.monotonic_ms(), self._clock.now_ms()

        def settings_of(topic: str) -> LogSettings:
            # Computing them costs as much as opening a log, and a topic may have thousands.
            settings = self._settings.get(topic)
            if settings is None:
                settings = self._settings[topic] = settings_for(topic)
            return settings

        def done(outcome: Outcome[None]) -> None:
            if outcome.error is None:
                finished.set_result(None)
            else:
                finished.set_exception(outcome.error)

        workers.run(lambda: self._logs.read_all(settings_of, now_ms, self._note, threads), done)
        try:
            while not (await asyncio.wait({finished}, timeout=REPORT_INTERVAL_S))[0]:
                logger.info("opening logs: %s", self._progress(began_ms))
        except asyncio.CancelledError:
            self._stopped = True
            await asyncio.wait({finished})
            finished.exception()
            raise
        finished.result()
        self._logs.loaded(now_ms)
        if self.total:
            logger.info("logs opened: %s", self._progress(began_ms))

    def settle_damage(self, image: ClusterImage, me: int) -> set[TopicPartition]:
        """The partitions of which broker `me` must register as one that has lost records, because of damaged logs."""
        logs = {(each.topic, each.partition): each.log for each in self._logs.logs()}
        damaged = {key: log.damage for key, log in logs.items() if log.damage is not None}
        unsound = [key for directory in self._logs.directories for key in directory.unsound]
        shared = [key for key in (*damaged, *unsound) if _has_others(image, key, me)]
        for key, damage in damaged.items():
            if key not in shared and not damage.ends_log and damage.position >= logs[key].active.size:
                logs[key].forget_damage()  # it lost its end, and there is no other replica
        lost = {key for key in shared if not _is_needed_alone(image, key, me)}
        for key in (key for key in shared if key in damaged):
            if key in lost:
                damaged[key].is_reported = True
            else:
                reason = f"{damaged[key].error()}; not repaired, because no other broker is known to have all records"
                self._logs.directory_of(*key).take_offline(key, reason)
        if lost:
            logger.error(
                "damaged logs found, this broker leaves their ISRs and copies from the leaders: partitions=%d first=%s",
                len(lost), ",".join(f"{topic}-{index}" for topic, index in sorted(lost)[:10]),
            )  # fmt: skip
        return lost

    def _note(self, step: Progress) -> None:
        """Called on any thread."""
        with self._guard:
            self.done += 1
            if step.opened is not None:
                self.walked_bytes += step.opened.walked_bytes
        if self._stopped:
            raise LoadingStopped

    def _progress(self, began_ms: float) -> str:
        took_s = (self._clock.monotonic_ms() - began_ms) / 1000
        return f"logs={self.done}/{self.total} recovered_mb={self.walked_bytes / 1e6:.0f} seconds={took_s:.1f}"


def _has_others(image: ClusterImage, key: TopicPartition, me: int) -> bool:
    partition = image.partition(*key)
    return partition is not None and any(broker != me for broker in partition.replicas)


def _is_needed_alone(image: ClusterImage, key: TopicPartition, me: int) -> bool:
    """Whether only this broker is known to have all committed records of a partition."""
    partition = image.partition(*key)
    return partition is not None and key[0] not in image.deleting and {*partition.isr, *partition.elr} == {me}


# --- strays


def reason_of(key: TopicPartition, image: ClusterImage) -> str | None:
    """Why the cluster does not know a partition; None if it does."""
    topic = image.topics.get(key[0])
    if topic is None:
        return "the topic does not exist"
    if key[1] >= len(topic.partitions):
        return f"the topic has {len(topic.partitions)} partitions"
    return None


def set_strays_aside(logs: LogManager, image: ClusterImage, *, everything: bool = False) -> int:
    """Rename the folders of strays before the logs are loaded; how many. Strays with another topic id are found when
    they are loaded, because that needs a file of each partition.

    MetadataLost if no topic is known but there are records, unless `everything` is to be set aside.
    """
    logs.expect({name: topic.topic_id for name, topic in image.topics.items()})
    found = {key: reason for key in logs.unopened() if (reason := reason_of(key, image)) is not None}
    if found and not image.topics and not everything:
        filled = [key for key in found if logs.has_records(*key)]
        if filled:
            folder = f"{logs.directory_of(*filled[0]).path}/{folder_name(*filled[0])}"
            raise MetadataLost(folder, len(filled))
    logs.set_aside(found)
    return len(found)


# --- identity


async def cluster_id_to_keep(tree: Tree, files: Files, folders: Iterable[str]) -> str | None:
    """The cluster id in the data folders, for a tree that has none; None if they disagree."""
    if await find(tree, layout.CLUSTER_ID) is not None:
        return None
    ids = set()
    for folder in folders:
        try:
            meta = read_meta(files, folder)
        except (OSError, MetadataFileError):
            continue  # opening the folder reports the error
        if meta is not None and meta.cluster_id is not None:
            ids.add(meta.cluster_id)
    return ids.pop() if len(ids) == 1 else None
