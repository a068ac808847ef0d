"""All partitions of this broker.

Noun: partitions by topic and number, over the data folders that hold their logs.

Rule: a producer that asked for all replicas is answered when its records are durable on as many of them as the topic
demands. Syncs are shared: who waits while one runs takes part in the next (group commit).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.log.errors import LogError
from penstock.log.flush import GroupCommit
from penstock.log.folders.manager import LogManager
from penstock.log.settings import LogSettings
from penstock.replication.partition import Partition

Durable = Callable[[LogError | None], None]


class Replicas:
    """The partitions that this broker holds."""

    def __init__(self, logs: LogManager, commits: GroupCommit) -> None:
        self.logs = logs
        self._commits = commits
        self._partitions: dict[str, dict[int, Partition]] = {}

    def get(self, topic: str, index: int) -> Partition | None:
        partitions = self._partitions.get(topic)
        return None if partitions is None else partitions.get(index)

    def __iter__(self) -> Iterable[Partition]:
        return (partition for partitions in self._partitions.values() for partition in partitions.values())

    def lead(
        self,
        topic: str,
        index: int,
        topic_id: bytes,
        settings: LogSettings,
        *,
        leader_epoch: int,
        min_insync_replicas: int,
        now_ms: int,
        is_new: bool,
    ) -> Partition:
        """Take a partition on as its leader, making its log if there is none."""
        log = self.logs.get(topic, index)
        if log is None:
            log = self.logs.create(topic, index, topic_id, settings, now_ms, is_new=is_new)
        else:
            log.settings = settings
        log.advance_high_watermark(log.log_end_offset)
        partition = Partition(topic, index, log, leader_epoch=leader_epoch, min_insync_replicas=min_insync_replicas)
        self._partitions.setdefault(topic, {})[index] = partition
        return partition

    def drop(self, topic: str, now_ms: int) -> None:
        """A topic was deleted: its partitions and their logs go."""
        partitions = self._partitions.pop(topic, {})
        for partition in partitions.values():
            partition.drop()
        self.logs.delete_all([(topic, index) for index in partitions], now_ms)

    def update_settings(self, topic: str, settings: LogSettings, min_insync_replicas: int) -> None:
        """New settings take effect at once."""
        self.logs.update_settings(topic, settings)
        for partition in self._partitions.get(topic, {}).values():
            partition.min_insync_replicas = min_insync_replicas

    def when_durable(self, partition: Partition, end_offset: int, done: Durable) -> None:
        """Call `done` when everything below `end_offset` is as durable as the topic demands, or why it cannot be.

        By default that is a sync; with a flush policy of its own, one only when the policy asks for it.
        """
        log = partition.log
        if log.settings.sync_before_ack or log.flush_count_reached:
            self._commits.when_durable(log, end_offset, done)
        else:
            done(None)
