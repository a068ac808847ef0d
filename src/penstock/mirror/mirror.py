"""A process of a mirror. Processes with the same mirror name share its shards as a consumer group of the state topic.

The group is in the target cluster; its assignment decides which process mirrors which shard. Safety does not
depend on it, but on the epochs of transactional ids and the sequences of batches.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Self

from penstock.client.admin import AsyncAdmin
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer import AsyncConsumer
from penstock.client.errors import PenstockError
from penstock.mirror.groups import GroupSync
from penstock.mirror.settings import ClusterSettings, MirrorSettings
from penstock.mirror.shard import MirrorContext, Shard
from penstock.mirror.source import SourceReader, Throttle
from penstock.mirror.state import TOPICS_SHARD, ensure_state_topic
from penstock.mirror.target import TargetWriter
from penstock.mirror.topics import TopicManager

_log = logging.getLogger(__name__)
_POLL_MS: Final = 200.0
_START_TIMEOUT_MS: Final = 30_000


def admin_of(cluster: ClusterSettings) -> AsyncAdmin:
    """A client of a source or of the target."""
    return AsyncAdmin(cluster.bootstrap_servers, **cluster.options)


class Mirror:
    """Mirrors until `run` is cancelled. Used as an async context manager."""

    def __init__(self, settings: MirrorSettings) -> None:
        self.settings = settings
        self._target = admin_of(settings.target)
        self._sources = {source.alias: admin_of(source.cluster) for source in settings.sources}
        self._shards: dict[int, tuple[Shard, asyncio.Task[None]]] = {}
        self._topics = TopicManager(settings, self._sources, self._target)
        self._groups = GroupSync(settings, self._sources, self._target)
        self._context: MirrorContext | None = None
        self._refresh_now = asyncio.Event()
        self._failure: BaseException | None = None
        self._has_failed = asyncio.Event()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _start(self) -> None:
        settings = self.settings
        for admin in (self._target, *self._sources.values()):
            await admin.start(timeout_ms=_START_TIMEOUT_MS)
            admin.cluster.follow_all()
        throttle = Throttle(settings.number("max.bytes.per.second"), self._target.cluster.clock)
        self._context = MirrorContext(
            settings=settings,
            target=self._target,
            writer=TargetWriter(self._target.cluster),
            readers={alias: SourceReader(admin.cluster, throttle) for alias, admin in self._sources.items()},
        )
        self._context.shards = await ensure_state_topic(
            self._target, settings.state_topic, settings.number("shards"), settings.number("replication.factor")
        )

    @property
    def shards(self) -> list[int]:
        """The shards that this process has."""
        return sorted(self._shards)

    @property
    def routes(self) -> int:
        """How many source partitions the mirror has, in all its processes."""
        return 0 if self._context is None else len(self._context.routes)

    async def run(self) -> None:
        """Mirror until cancelled. Raises what no retry can solve, such as a bug: start the process again then."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._take_part())
            group.create_task(self._refresh())
            group.create_task(self._sync_groups())

    async def _watch(self) -> None:
        await self._has_failed.wait()
        if self._failure is not None:
            raise self._failure

    def _ended(self, shard: asyncio.Task[None]) -> None:
        """A shard ends when it is cancelled. If it fails, the process must not go on without it."""
        if not shard.cancelled() and shard.exception() is not None:
            self._failure = shard.exception()
            self._has_failed.set()

    async def close(self) -> None:
        """Stop all work and close all connections. It may be called twice."""
        await self._release(list(self._shards))
        if self._context is not None:
            for reader in self._context.readers.values():
                await reader.close()
            await self._context.writer.close()
        for admin in (self._target, *self._sources.values()):
            await admin.close()

    # --- shards

    async def _take_part(self) -> None:
        """Be a member of the group that shares the shards."""
        _log.info("mirror joins its group: name=%s sources=%s", self.settings.name, sorted(self._sources))
        settings = self.settings
        options = dict(settings.target.options)
        async with AsyncConsumer(
            settings.state_topic,
            bootstrap_servers=settings.target.bootstrap_servers,
            group_id=settings.state_topic,
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            partition_assignment_strategy=("cooperative-sticky",),
            session_timeout_ms=settings.number("session.timeout.ms"),
            **options,
        ) as consumer:

            @consumer.on_assign
            async def assigned(partitions: list[TopicPartition]) -> None:
                await consumer.pause(*partitions)
                self._acquire([partition.partition for partition in partitions])

            @consumer.on_revoke
            async def revoked(partitions: list[TopicPartition]) -> None:
                await self._release([partition.partition for partition in partitions])

            @consumer.on_lost
            async def lost(partitions: list[TopicPartition]) -> None:
                await self._release([partition.partition for partition in partitions])

            while True:
                try:
                    await consumer.poll(timeout_ms=_POLL_MS)
                except PenstockError as error:
                    if not error.retriable:
                        raise
                    _log.info("poll of the mirror's group failed, retrying: error=%s", error)
                    await asyncio.sleep(_POLL_MS / 1000)

    def _acquire(self, indexes: list[int]) -> None:
        if self._context is None:
            return
        _log.info("shards acquired: shards=%s", indexes)
        for index in indexes:
            if index not in self._shards:
                shard = Shard(index, self._context)
                task = asyncio.create_task(shard.run(), name=f"mirror shard {index}")
                task.add_done_callback(self._ended)
                self._shards[index] = shard, task
        self._refresh_now.set()

    async def _release(self, indexes: list[int]) -> None:
        tasks = [self._shards.pop(index)[1] for index in indexes if index in self._shards]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks:
            _log.info("shards released: shards=%s", indexes)

    @property
    def _topics_shard(self) -> Shard | None:
        found = self._shards.get(TOPICS_SHARD)
        return None if found is None else found[0]

    # --- topics and groups

    async def _refresh(self) -> None:
        """Look for new topics and partitions, now and then and whenever shard 0 arrives."""
        interval_s = self.settings.number("refresh.interval.ms") / 1000
        while self._context is not None:
            self._refresh_now.clear()
            shard = self._topics_shard
            try:
                if shard is not None:
                    async with asyncio.timeout(interval_s):
                        await shard.is_ready.wait()
                routes = await self._topics.refresh(shard)
            except (PenstockError, TimeoutError) as error:
                reason = str(error) or "the state of shard 0 was not read in time"
                _log.warning("topics could not be refreshed: reason=%s", reason)
            else:
                if routes != self._context.routes:
                    _log.info("routes change: partitions=%s", len(routes))
                async with self._context.routes_changed:
                    self._context.routes = routes
                    self._context.routes_changed.notify_all()
            try:
                async with asyncio.timeout(interval_s):
                    await self._refresh_now.wait()
            except TimeoutError:
                pass

    async def _sync_groups(self) -> None:
        """Carry over committed offsets, in the process that has shard 0."""
        interval_s = self.settings.number("groups.interval.ms") / 1000
        while self._context is not None:
            await asyncio.sleep(interval_s)
            if self._topics_shard is None:
                continue
            try:
                count = await self._groups.sync(self._context.routes, self._context.shards)
            except PenstockError as error:
                _log.warning("group offsets could not be carried over: reason=%s", error)
            else:
                if count:
                    _log.info("group offsets carried over: offsets=%s", count)
