"""Metadata requests, and keeping the cluster view fresh.

One refresh serves any number of callers. A call made while a refresh is in flight shares the next one, never the
current one: what made the caller ask may have happened after that request left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from penstock.client.cluster_metadata import ClusterView
from penstock.client.connection import OVERDUE_MS, Connection
from penstock.client.connection_pool import shared
from penstock.client.errors import ClosedError, PenstockError, RequestTimedOut, TimedOut, error_for
from penstock.wire.protocol import INTERNAL_TOPICS, ApiKey, ErrorCode
from penstock.wire.schemas.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

if TYPE_CHECKING:
    from penstock.client.cluster_client import ClusterClient

_log = logging.getLogger(__name__)
# Before this version, a request for a missing topic creates it.
_FIRST_WITHOUT_CREATION = 4
_GRACE_MS = 200.0  # by then its connection counts as silent, and another broker is asked


async def ask_metadata(
    connection: Connection, topics: Collection[str] | None, *, timeout_ms: float, create: bool = False
) -> MetadataResponse:
    """Metadata of these topics; None means all, an empty collection none."""
    version = connection.version_of(ApiKey.METADATA)
    wanted: list[MetadataRequestTopic] | None = None
    if topics is not None:
        wanted = [MetadataRequestTopic(name=name) for name in sorted(topics)]
    if version == 0:
        # In version 0 an empty list means all topics. Requesting all is better than creating one.
        wanted = wanted if wanted and create else []
    elif version < _FIRST_WITHOUT_CREATION and wanted and not create:
        wanted = None
    request = MetadataRequest(topics=wanted)
    if version >= _FIRST_WITHOUT_CREATION:
        request.allow_auto_topic_creation = create
    response: MetadataResponse = await connection.request(
        ApiKey.METADATA, request, version=version, timeout_ms=timeout_ms
    )
    if version == 0:  # it does not say which topics are internal
        for topic in response.topics:
            topic.is_internal = topic.name in INTERNAL_TOPICS
    if topics is not None:
        _reduce_to(response, topics)
    return response


def _reduce_to(response: MetadataResponse, topics: Collection[str]) -> None:
    """Reduce a response about all topics to one about `topics`."""
    from penstock.wire.schemas.metadata import MetadataResponseTopic

    response.topics = [item for item in response.topics if item.name in topics]
    missing = set(topics).difference(item.name for item in response.topics if item.name is not None)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response.topics += [MetadataResponseTopic(name=name, error_code=unknown) for name in sorted(missing)]


class _Refresh:
    __slots__ = ("create", "task", "topics")

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.create: set[str] = set()
        self.task: asyncio.Task[ClusterView] | None = None


class MetadataUpdater:
    """The refreshes of one client, and the timer that starts one when the view gets old."""

    def __init__(self, cluster: ClusterClient, max_age_ms: float) -> None:
        self._cluster = cluster
        self._max_age_ms = max_age_ms
        self._followed: set[str] = set()
        self._follows_all = False
        self._asked_ms: dict[str, float] = {}
        self._next: _Refresh | None = None
        self._current: _Refresh | None = None
        self._refreshed_ms = float("-inf")
        self._failure: PenstockError | None = None
        self._soon = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._refreshes: set[asyncio.Task[ClusterView]] = set()

    def start(self) -> None:
        if self._keeper is None:
            # Bootstrap has just requested everything but topics.
            self._refreshed_ms = self._cluster.clock.monotonic_ms()
            self._keeper = asyncio.create_task(self._keep_fresh())

    def end(self) -> list[asyncio.Task[None] | asyncio.Task[ClusterView]]:
        """Cancel all tasks; returns them, to be awaited."""
        tasks: list[asyncio.Task[None] | asyncio.Task[ClusterView]] = [*self._refreshes]
        if self._keeper is not None:
            tasks.append(self._keeper)
        for task in tasks:
            task.cancel()
        return tasks

    # ------------------------------------------------------------------------------------------ what to ask for

    def follow(self, topics: Iterable[str]) -> None:
        new = set(topics).difference(self._followed)
        self._followed |= new
        if not new.issubset(self._cluster.view.topics):
            self.refresh_soon()

    @property
    def followed(self) -> frozenset[str]:
        return frozenset(self._followed)

    def unfollow(self, topics: Iterable[str]) -> None:
        self._followed.difference_update(topics)

    def follow_all(self) -> None:
        self._follows_all = True
        self.refresh_soon()

    def keeps(self, topic: str) -> bool:
        """Whether a topic that is not followed stays in the view: it does until max_age after it was requested."""
        if self._follows_all or topic in self._followed:
            return True
        age_ms = self._cluster.clock.monotonic_ms() - self._asked_ms.get(topic, float("-inf"))
        if age_ms <= self._max_age_ms:
            return True
        self._asked_ms.pop(topic, None)
        return False

    # ------------------------------------------------------------------------------------------ refreshes

    async def refresh(self, topics: Iterable[str] | None, *, create: bool) -> ClusterView:
        refresh = self._next
        if refresh is None:
            refresh = self._next = _Refresh()
            refresh.task = asyncio.create_task(self._run(refresh, self._current))
            self._refreshes.add(refresh.task)
            refresh.task.add_done_callback(self._ended)
        if topics is not None:
            asked = set(topics)
            refresh.topics |= asked
            if create:
                refresh.create |= asked
        if refresh.task is None:
            raise ClosedError("the client is closed")
        return await shared(refresh.task)

    def _ended(self, task: asyncio.Task[ClusterView]) -> None:
        self._refreshes.discard(task)
        if not task.cancelled():
            task.exception()

    async def _run(self, refresh: _Refresh, before: _Refresh | None) -> ClusterView:
        if before is not None and before.task is not None:
            await asyncio.wait((before.task,))
        self._current, self._next = refresh, None
        cluster = self._cluster
        backoff = cluster.new_backoff()
        try:
            async with asyncio.timeout(cluster.request_timeout_ms / 1000):
                while True:
                    try:
                        view = await self._ask(refresh, backoff.failures)
                        self._failure = None
                        return view
                    except PenstockError as error:
                        if not error.retriable:
                            raise
                        self._failure = error
                        _log.debug("metadata request failed, retrying: error=%s", error)
                    await asyncio.sleep(backoff.failed(cluster.clock.monotonic_ms()) / 1000)
        except TimeoutError as error:
            if isinstance(error, PenstockError):
                raise
            if self._failure is not None:
                raise self._failure from None
            raise TimedOut(f"no broker answered a Metadata request within {cluster.request_timeout_ms} ms") from None
        finally:
            if self._current is refresh:
                self._current = None

    async def _ask(self, refresh: _Refresh, failures: int = 0) -> ClusterView:
        cluster = self._cluster
        connection = await cluster.to_any()
        now_ms = cluster.clock.monotonic_ms()
        for topic in refresh.topics:
            self._asked_ms[topic] = now_ms
        if refresh.create:
            response = await self._answer(connection, refresh.create, failures, create=True)
            self._learn(response, complete=False)
        rest = None if self._follows_all else (self._followed | refresh.topics) - refresh.create
        if rest is None or rest or not refresh.create:
            response = await self._answer(connection, rest, failures)
            self._learn(response, complete=rest is None)
        self._refreshed_ms = cluster.clock.monotonic_ms()
        if self._lacks_leaders():
            # Callers that wait for a leader wait for a change of the view, so the next refresh starts here.
            self.refresh_soon()
        return cluster.view

    async def _answer(
        self, connection: Connection, topics: Collection[str] | None, failures: int, *, create: bool = False
    ) -> MetadataResponse:
        """The response of a broker that may be hung: if there are others, one of them is asked soon. Each attempt gets
        twice the time of the one before, since all may be slow."""
        cluster = self._cluster
        patience_ms: float = cluster.request_timeout_ms
        if len(cluster.view.nodes) > 1:
            patience_ms = min(patience_ms, (OVERDUE_MS + _GRACE_MS) * 2 ** min(failures, 10))
        try:
            async with asyncio.timeout(patience_ms / 1000):
                return await ask_metadata(connection, topics, timeout_ms=cluster.request_timeout_ms, create=create)
        except TimeoutError as error:
            if isinstance(error, PenstockError):
                raise
            raise RequestTimedOut(connection.node, "Metadata", patience_ms) from None

    def _lacks_leaders(self) -> bool:
        """Whether a followed topic has a partition without a leader."""
        topics = self._cluster.view.topics
        followed = topics.values() if self._follows_all else [topics[name] for name in self._followed if name in topics]
        return any(partition.leader < 0 for topic in followed for partition in topic.partitions)

    def _learn(self, response: MetadataResponse, *, complete: bool) -> None:
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self._cluster.rebootstrap()
            raise error_for(ErrorCode.BROKER_NOT_AVAILABLE, where="the cluster").as_retriable()
        if response.error_code:
            raise error_for(response.error_code, where="Metadata")
        self._cluster.learnt(response, complete=complete)

    # ------------------------------------------------------------------------------------------ by itself

    def refresh_soon(self) -> None:
        self._soon.set()

    async def _keep_fresh(self) -> None:
        cluster = self._cluster
        backoff = cluster.new_backoff()
        while True:
            age_ms = cluster.clock.monotonic_ms() - self._refreshed_ms
            left_ms = min(self._max_age_ms, max(0.0, self._max_age_ms - age_ms))
            if left_ms > 0:
                try:
                    async with asyncio.timeout(left_ms / 1000):
                        await self._soon.wait()
                except TimeoutError:
                    pass
            self._soon.clear()
            try:
                await self.refresh(None, create=False)
                # Constant calls of refresh_soon lead to one request per backoff.
                wait_ms: float = cluster.retry_backoff_ms
                if self._lacks_leaders():
                    wait_ms = backoff.failed(cluster.clock.monotonic_ms())
                else:
                    backoff.succeeded()
                await asyncio.sleep(wait_ms / 1000)
            except PenstockError as error:
                _log.warning("metadata refresh failed: error=%s", error)
                await asyncio.sleep(backoff.failed(cluster.clock.monotonic_ms()) / 1000)
