"""Which instance of a registry writes, and how it writes.

Instances are members of a consumer group of the topic, and the one that gets its only partition leads. The group finds
a leader and notices when it is gone; safety does not depend on it, but on a transactional id that all instances share.
A new leader begins a new epoch of that id, which fences the one before, then writes a record and reads the topic up to
it. So it has seen all that is committed when it decides, and what an old leader decided on can no longer be committed.

The group has the name that Confluent's registry uses, with another protocol: the two cannot both be members, so they
cannot both write to one topic. Decision 028 has the alternatives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer import AsyncConsumer
from penstock.client.errors import PenstockError, RecordTooLarge
from penstock.client.producer import AsyncProducer
from penstock.registry.errors import RegistryError, store_failed, timed_out
from penstock.registry.records import Record, noop_record
from penstock.registry.settings import RegistrySettings
from penstock.registry.topic import CLOSE_S, TopicReader, check_cancelled

_log = logging.getLogger(__name__)
_POLL_MS: Final = 200.0
_RETRY_S: Final = 0.2
_RETRY_MAX_S: Final = 5.0


class NotLeader(Exception):
    """Another instance leads, or none."""


class Leadership:
    """The role of this instance."""

    def __init__(self, settings: RegistrySettings, reader: TopicReader, url: str) -> None:
        self._settings = settings
        self._reader = reader
        self._url = url
        self._elected = asyncio.Event()
        self._resigned = asyncio.Event()
        self._producer: AsyncProducer[bytes, bytes] | None = None
        self.write_lock = asyncio.Lock()
        """Held from the decision until its records are replayed."""

    @property
    def is_leader(self) -> bool:
        return self._producer is not None

    async def run(self) -> None:
        """Take part in elections, and lead when elected, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take_part())
            group.create_task(self._lead_when_elected())

    # --- election

    async def _take_part(self) -> None:
        pause_s = _RETRY_S
        while True:
            begun_s = asyncio.get_running_loop().time()
            try:
                await self._be_member()
            except PenstockError as error:
                check_cancelled()
                _log.warning("registry cannot join its group, retrying: group=%s error=%s",
                             self._settings.group_id, error)  # fmt: skip
            self._resign()
            # Confluent's registry may have the group: that does not change from one moment to the next.
            is_short = asyncio.get_running_loop().time() - begun_s < _RETRY_MAX_S
            pause_s = min(2 * pause_s, _RETRY_MAX_S) if is_short else _RETRY_S
            await asyncio.sleep(pause_s)

    async def _be_member(self) -> None:
        settings = self._settings
        async with AsyncConsumer(
            settings.topic,
            bootstrap_servers=settings.bootstrap_servers,
            group_id=settings.group_id,
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            partition_assignment_strategy=("cooperative-sticky",),
            session_timeout_ms=settings.session_timeout_ms,
            **settings.options,
        ) as consumer:

            @consumer.on_assign
            async def assigned(partitions: list[TopicPartition]) -> None:
                await consumer.pause(*partitions)
                if partitions:
                    self._elected.set()

            @consumer.on_revoke
            def revoked(partitions: list[TopicPartition]) -> None:
                if partitions:
                    self._resign()

            consumer.on_lost(revoked)
            try:
                await self._poll(consumer)
            finally:
                await consumer.close(CLOSE_S)

    async def _poll(self, consumer: AsyncConsumer[bytes, bytes]) -> None:
        while True:
            try:
                await consumer.poll(timeout_ms=_POLL_MS)
            except PenstockError as error:
                if not error.retriable:
                    raise
                check_cancelled()
                _log.info("poll of the registry's group failed, retrying: error=%s", error)
                await asyncio.sleep(_RETRY_S)

    def _resign(self) -> None:
        self._elected.clear()
        self._producer = None
        self._resigned.set()

    # --- leading

    async def _lead_when_elected(self) -> None:
        pause_s = _RETRY_S
        while True:
            await self._elected.wait()
            try:
                await self._lead()
                pause_s = _RETRY_S
            except (PenstockError, TimeoutError) as error:
                check_cancelled()
                _log.warning("registry cannot lead, retrying: error=%s", error)
                pause_s = min(2 * pause_s, _RETRY_MAX_S)
            await asyncio.sleep(pause_s)

    async def _lead(self) -> None:
        """Lead until resigned, or until a write fails."""
        self._resigned.clear()
        settings = self._settings
        producer: AsyncProducer[bytes, bytes] = AsyncProducer(
            settings.bootstrap_servers,
            transactional_id=f"{settings.group_id}-{settings.topic}",
            transaction_timeout_ms=settings.write_timeout_ms,
            linger_ms=0,
            **settings.options,
        )
        try:
            async with asyncio.timeout(settings.start_timeout_ms / 1000):
                await producer.start()
                await producer.init_transactions()
                await self._append(producer, [noop_record(self._url)])
            if self._resigned.is_set():
                return
            self._producer = producer
            _log.info("this instance leads the registry: url=%s offset=%s", self._url, self._reader.offset)
            await self._resigned.wait()
        finally:
            self._producer = None
            await producer.close(CLOSE_S)  # what is left is in no transaction that commits

    async def write(self, records: Sequence[Record]) -> int:
        """Append records, all or none, and wait until they are replayed. Returns the offset after them.

        The caller holds `write_lock`. NotLeader; RegistryError if they may not be written, after which this instance
        begins a new epoch, so that it knows before it decides again.
        """
        producer = self._producer
        if producer is None:
            raise NotLeader
        try:
            async with asyncio.timeout(self._settings.write_timeout_ms / 1000):
                return await self._append(producer, records)
        except RecordTooLarge as error:
            self._producer = None
            self._resigned.set()
            raise RegistryError(42209, f"Schema is too large: {error.message}") from error
        except (PenstockError, TimeoutError) as error:
            _log.warning("write failed, a new epoch begins: error=%s", error)
            self._producer = None
            self._resigned.set()
            if isinstance(error, TimeoutError):
                raise timed_out("the records were not committed in time") from error
            raise store_failed(error) from error

    async def _append(self, producer: AsyncProducer[bytes, bytes], records: Sequence[Record]) -> int:
        await producer.begin_transaction()
        deliveries = [
            await producer.enqueue(self._settings.topic, each.value, each.key, partition=0) for each in records
        ]
        await producer.commit_transaction()
        offset = (await deliveries[-1]).offset + 1
        await self._reader.wait_for(offset)
        return offset
