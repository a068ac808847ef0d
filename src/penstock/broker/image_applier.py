"""Applies cluster images to this broker: logs, leaders and followers, coordinators.

The difference between two images is what changes, and nothing else does. Logs are created before the image that names
them is visible. A topic that is being deleted has no leaders or followers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.cluster.image import ClusterImage, TopicImage, diff
from penstock.coordination.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from penstock.log.log_dirs.log_directory import NewLog
from penstock.replication.follower import ReplicaFetcherManager
from penstock.replication.replica_manager import ReplicaManager, RoleChanges
from penstock.runtime.clock import Clock

if TYPE_CHECKING:
    from penstock.broker.dynamic_config import DynamicConfig
    from penstock.broker.metrics import BrokerMetrics


class ImageApplier:
    """Of one broker. Without `fetchers` it follows nobody: it stands alone."""

    def __init__(
        self,
        broker_id: int,
        replicas: ReplicaManager,
        groups: GroupCoordinator,
        config: DynamicConfig,
        metrics: BrokerMetrics,
        clock: Clock,
        fetchers: ReplicaFetcherManager | None = None,
    ) -> None:
        self._me = broker_id
        self._replicas = replicas
        self._groups = groups
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._fetchers = fetchers

    # --- logs

    async def make_logs(self, old: ClusterImage, new: ClusterImage) -> None:
        """Of partitions that this broker is to hold from the image `new` on; the loop serves others meanwhile."""
        change = diff(old, new)
        topics = [*change.topics_added.values(), *(after for _, after in change.topics_changed.values())]
        await self._make(new, topics, is_new=bool(old.cluster_id))

    async def _make(self, image: ClusterImage, topics: Iterable[TopicImage], *, is_new: bool) -> None:
        logs = self._replicas.logs
        wanted: list[NewLog] = []
        for topic in topics:
            if topic.name in image.deleting:
                continue
            missing = [
                index
                for index, partition in enumerate(topic.partitions)
                if self._me in partition.replicas and not logs.holds(topic.name, index)
            ]
            if missing:
                settings = self._config.topic(image, topic.name).log
                wanted += [NewLog((topic.name, index), topic.topic_id, settings) for index in missing]
        if wanted:
            made = asyncio.get_running_loop().create_future()
            logs.create_all(wanted, self._clock.now_ms(), lambda: made.set_result(None), is_new=is_new)
            await made

    # --- images

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """Apply a new image: settings first, because what an ISR means depends on min.insync.replicas."""
        for name in self._config.follow(old, new):
            self._replicas.update_settings(name, self._config.topic(new, name))
        self.apply(old, new)
        for name in old.topics.keys() - new.topics.keys():
            self._metrics.drop_topic(name)

    # --- roles

    async def take_up(self, image: ClusterImage) -> None:
        """The first image, a topic at a time: a health check need not wait for all of them."""
        await self._make(image, image.topics.values(), is_new=False)
        self._replicas.know_brokers(image)
        for topic in image.topics.values():
            changed = self._replicas.take_up(topic, image, lambda name: self._config.topic(image, name))
            self._apply_changed(image, changed)
            await asyncio.sleep(0)

    def apply(self, old: ClusterImage, new: ClusterImage) -> None:
        """From one image to the next."""
        changed = self._replicas.apply(old, new, lambda name: self._config.topic(new, name))
        self._apply_changed(new, changed)
        self._remove_unled(new, sorted(new.deleting - old.deleting))
        gone = {*(old.topics.keys() - new.topics.keys()), *(new.deleting - old.deleting)}
        if OFFSETS_TOPIC in gone:
            self._groups.close()  # until somebody looks for a coordinator, and the topic is made again
        elif gone:
            self._groups.forget_topics(sorted(gone))

    def retry(self, image: ClusterImage) -> None:
        """Take up partitions for which there was no room when the image said so; not while the broker stops."""
        if self._fetchers is not None and self._fetchers.is_closed:
            return
        self._apply_changed(image, self._replicas.retry(image, lambda name: self._config.topic(image, name)))

    def _remove_unled(self, image: ClusterImage, deleted: Iterable[str]) -> None:
        """Logs of topics that were deleted while this broker was away: they never had a role in this life."""
        logs = self._replicas.logs
        left = [
            (name, index)
            for name in deleted
            for index in range(len(image.topics[name].partitions))
            if logs.holds(name, index)
        ]
        if left:
            logs.delete_all(left, self._clock.now_ms())

    def _apply_changed(self, image: ClusterImage, changed: RoleChanges) -> None:
        if self._fetchers is not None:
            self._fetchers.unfollow([*changed.gone, *((each.topic, each.index) for each in changed.led)])
            self._fetchers.follow(changed.followed)
        for topic, index in changed.gone:
            if topic == OFFSETS_TOPIC:
                self._groups.resign(index)
        for partition in changed.followed:
            if partition.topic == OFFSETS_TOPIC:
                self._groups.resign(partition.index)
        for partition in changed.led:
            if partition.topic == OFFSETS_TOPIC:
                self._groups.lead(partition, len(image.topics[OFFSETS_TOPIC].partitions))
