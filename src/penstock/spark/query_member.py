"""A running query as the member of its consumer group.

A query that only committed offsets would be an "Empty" group, as one that was stopped. So while it runs it is the one
member of its group: it joins, takes all partitions of its topics, and sends heartbeats from the driver's process. It
fetches nothing. The group is "Stable" then, with the driver's host, for every tool that speaks the protocol, and nobody
can move or delete the offsets of a query that runs. When the query ends the member leaves; when the driver dies the
group is empty after `SESSION_MS`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.client.consumer.group import GroupWorker
from penstock.client.consumer.membership import Assign, Membership, Revoke
from penstock.client.consumer.settings import ConsumerSettings
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import GroupError
from penstock.client.offset_stores.base import Membership as Committer
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.client.offset_stores.broker import BrokerOffsetStore

if TYPE_CHECKING:
    from penstock.client.admin import Admin, AsyncAdmin

SESSION_MS: Final = 30_000
_HEARTBEAT_MS: Final = 5_000
_REQUEST_MS: Final = 10_000
# A driver that died is a member until its session ends, and the group waits for it.
_PLACE_MS: Final = SESSION_MS + 10_000
_TRIES: Final = 3


class QueryMember:
    """Joins in the background, on the loop of an admin client, which stays the caller's to close."""

    def __init__(self, admin: Admin, group: str, topics: Iterable[str]) -> None:
        self._admin = admin
        self._group = group
        self._topics = frozenset(topics)
        self.failure: BaseException | None = None
        """Why there is no place in the group for it; others have it, say."""
        admin.run(self._begin)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits as the member. Raises PenstockError, TimeoutError while it is not in the group."""
        self._topics |= {one.topic for one in offsets}
        self._admin.run(lambda inner: self._commit(inner, offsets))

    def leave(self) -> None:
        """The group is empty from now on."""
        self._admin.run(self._leave)

    # ------------------------------------------------------------------------------------------ on the loop

    async def _begin(self, inner: AsyncAdmin) -> None:
        settings = ConsumerSettings(
            group_id=self._group,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=_HEARTBEAT_MS,
            request_timeout_ms=_REQUEST_MS,
            max_poll_interval_ms=SESSION_MS,
        )
        self._clock = inner.cluster.clock
        self._membership = Membership(
            is_cooperative=settings.is_cooperative,
            instance_id=None,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            max_poll_interval_ms=settings.max_poll_interval_ms,
            now_ms=self._clock.monotonic_ms(),
        )
        self._has_place = asyncio.Event()
        self._worker = GroupWorker(
            self._group,
            inner.cluster,
            self._membership,
            settings,
            self._clock,
            topics=lambda: self._topics,
            visits=object,  # each look finds another one: a query that runs is never overdue
            do_duty=self._note_place,
            on_failure=self._fail,
            on_loss=self._has_place.clear,
        )
        self._task = asyncio.ensure_future(self._worker.run())

    async def _note_place(self, step: Revoke | Assign) -> None:
        if isinstance(step, Assign):
            self._has_place.set()
        else:
            self._has_place.clear()

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._has_place.set()

    async def _commit(self, inner: AsyncAdmin, offsets: Mapping[TopicPartition, int]) -> None:
        store = BrokerOffsetStore(inner.cluster, timeout_ms=_REQUEST_MS)
        stored = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        self._worker.wake()
        for attempt in range(1, _TRIES + 1):
            async with asyncio.timeout(_PLACE_MS / 1000):
                await self._has_place.wait()
            if self.failure is not None:
                raise self.failure
            membership = self._membership
            try:
                await store.save(self._group, stored, Committer(membership.generation, membership.member_id))
            except GroupError as error:
                if attempt == _TRIES:
                    raise
                self._has_place.clear()
                membership.commit_refused(error.code, self._clock.monotonic_ms())
                self._worker.wake()
            else:
                return

    async def _leave(self, inner: AsyncAdmin) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._worker.close()
        await self._worker.leave("the query has ended")
