"""Reads `_schemas` into a store, and creates the topic where it is missing.

Every instance has one reader. It sees committed records only, so a write is there as a whole or not at all. If reading
fails, it begins again with an empty store, and the old one answers until the new one has caught up.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from penstock.client.admin import AsyncAdmin, ConfigResource, TopicSpec
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer import AsyncConsumer, ConsumerRecord
from penstock.client.errors import PenstockError
from penstock.registry.errors import RegistryUnavailable
from penstock.registry.records import UnreadableRecord
from penstock.registry.settings import RegistrySettings
from penstock.registry.store import Store

_log = logging.getLogger(__name__)
_POLL_MS: Final = 1_000
_LOADING_POLL_MS: Final = 50
_RETRY_S: Final = 0.5
_SLICE_S: Final = 0.02
CLOSE_S: Final = 2.0
"""For brokers that do not answer when a client is closed."""


async def ensure_topic(settings: RegistrySettings) -> str:
    """Create the topic if it is missing, and return the cluster's id.

    RegistryUnavailable if the topic that exists would lose schemas.
    """
    async with AsyncAdmin(settings.bootstrap_servers, **settings.options) as admin:
        cluster = await admin.describe_cluster()
        spec = TopicSpec(
            settings.topic,
            partitions=1,
            replication_factor=max(1, min(settings.replication_factor, len(cluster.nodes))),
            config={"cleanup.policy": "compact"},
        )
        await admin.create_topic(spec, exist_ok=True)
        view = await admin.cluster.wait_for_topic(
            settings.topic, timeout_ms=admin.cluster.request_timeout_ms, create=False
        )
        if len(view.partitions) != 1:
            raise RegistryUnavailable(
                f"topic {settings.topic} has {len(view.partitions)} partitions; the order of schemas needs exactly 1; "
                "choose another topic with --topic"
            )
        entries = await admin.describe_config(ConfigResource.topic(settings.topic))
        policy = entries["cleanup.policy"].value if "cleanup.policy" in entries else "compact"
        if policy != "compact":
            raise RegistryUnavailable(
                f"topic {settings.topic} has cleanup.policy={policy}, which deletes schemas; "
                f"run: penstock configs alter --topic {settings.topic} --set cleanup.policy=compact"
            )
        return cluster.cluster_id or ""


def check_cancelled() -> None:
    """CancelledError if the task was cancelled, though closing a client has ended in another error meanwhile."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class TopicReader:
    """Replays the topic for ever. `store` is what it has read."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._partition = TopicPartition(settings.topic, 0)
        self._moved = asyncio.Condition()
        self.store = Store()
        self.offset = 0
        """Every committed record below it is in the store."""
        self.is_ready = asyncio.Event()

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self._read()
            except PenstockError as error:
                check_cancelled()
                _log.warning("schemas cannot be read, retrying: topic=%s error=%s", self._settings.topic, error)
                await asyncio.sleep(_RETRY_S)

    async def wait_for(self, offset: int) -> None:
        """Wait until the records below this offset are in the store."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.offset >= offset)

    async def _read(self) -> None:
        async with AsyncConsumer(
            self._settings.topic,
            bootstrap_servers=self._settings.bootstrap_servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            **self._settings.options,
        ) as consumer:
            try:
                await self._follow(consumer)
            finally:
                await consumer.close(CLOSE_S)

    async def _follow(self, consumer: AsyncConsumer[bytes, bytes]) -> None:
        store, offset = Store(), 0
        end = (await consumer.end_offsets([self._partition]))[self._partition]
        while True:
            # Markers of transactions have offsets, but are no records.
            offset = max(offset, await consumer.position(self._partition))
            if offset >= end:
                await self._publish(store, offset)
            for records in (await consumer.poll(timeout_ms=_POLL_MS if offset >= end else _LOADING_POLL_MS)).values():
                if records[0].offset < offset:
                    _log.warning("topic begins anew, reading it again: topic=%s", self._settings.topic)
                    store = Store()
                await self._apply(store, records)
                offset = records[-1].offset + 1
                if offset >= end:
                    await self._publish(store, offset)

    async def _apply(self, store: Store, records: list[ConsumerRecord[bytes, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for record in records:
            try:
                store.replay(record.key, record.value)
            except UnreadableRecord as error:
                _log.warning("record skipped: topic=%s offset=%s reason=%s", record.topic, record.offset, error)
            if loop.time() - begun_s > _SLICE_S:
                await asyncio.sleep(0)
                begun_s = loop.time()

    async def _publish(self, store: Store, offset: int) -> None:
        if self.store is store and self.offset == offset:
            return
        async with self._moved:
            self.store, self.offset = store, offset
            self._moved.notify_all()
        self.is_ready.set()
