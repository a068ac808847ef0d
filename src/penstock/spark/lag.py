"""Publishes the progress of Spark queries as consumer groups: `penstock groups describe` shows their lag.

    penstock.spark.lag.publish(spark)         # done by penstock.spark.session and `penstock spark`

After each batch its end offsets are committed to the group `<query name or groupIdPrefix or "spark">-<query id>`. A
query that has run for `JOIN_AFTER_S` also joins that group as its only member, with all partitions of its topics and
heartbeats from the driver, so that the group is Stable and its offsets cannot be moved. It leaves when the query ends;
if the driver dies, the group is Empty after `SESSION_MS`.

The checkpoint remains the truth. Nothing here may stop or delay a query: the listener stores the newest offsets, a
thread commits them, and failures are logged. A source's own `commit` is not used: Spark calls it one batch late and
never for the last one.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.coordinator import ConsumerCoordinator
from penstock.client.consumer.membership import Assign, Membership, Revoke
from penstock.client.consumer.settings import ConsumerSettings
from penstock.client.errors import GroupError, PenstockError
from penstock.client.offset_stores.base import Membership as Committer
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.client.offset_stores.broker import BrokerOffsetStore
from penstock.spark.offsets import StreamOffset

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

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
        self._worker = ConsumerCoordinator(
            self._group,
            inner.cluster,
            self._membership,
            settings,
            self._clock,
            topics=lambda: self._topics,
            visits=object,  # each look finds another one: a query that runs is never overdue
            run_callback=self._note_place,
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


_SETTING: Final = "spark.penstock.visibleLag"
_IDLE_S: Final = 30.0
_TIMEOUT_MS: Final = 10_000
_RETRY_S: Final = 5.0
_EXIT_FLUSH_S: Final = 3.0
JOIN_AFTER_S: Final = 2.0
_log = logging.getLogger("penstock.spark.lag")


class QueryProgress(NamedTuple):
    """Where a query stands in one cluster."""

    bootstrap: str
    group: str
    offsets: Mapping[TopicPartition, int]


def query_progress(name: str | None, query_id: str, end_offsets: Iterable[str | None]) -> list[QueryProgress]:
    """What a query's end offsets, one of each source, say; sources that are not ours say nothing."""
    found: dict[tuple[str, str], dict[TopicPartition, int]] = {}
    for text in end_offsets:
        try:
            offset = StreamOffset.from_json(json.loads(text or ""))
        except (ValueError, PenstockError):
            continue  # of another kind of source
        if offset.lag is not None:
            group = _group(name or offset.lag.group_prefix, query_id)
            found.setdefault((offset.lag.bootstrap, group), {}).update(offset.offsets)
    return [QueryProgress(bootstrap, group, offsets) for (bootstrap, group), offsets in found.items() if offsets]


def _group(name: str, query_id: str) -> str:
    """Never one that begins with "-", which commands take for an option."""
    group = f"{name}-{query_id}"
    return f"spark{group}" if group.startswith("-") else group


Place = tuple[str, str]
"""The addresses of a cluster, and a group."""


@dataclass
class _Work:
    """The newest standing of each group that waits to be committed, and queries that have ended."""

    waiting: dict[Place, QueryProgress] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    is_busy: bool = False
    is_closed: bool = False

    @property
    def is_any(self) -> bool:
        return bool(self.waiting or self.ended or self.is_closed)


@dataclass
class _Query:
    """A query that runs, since it was first seen; it is a member of its group when it has run for a while."""

    topics: frozenset[str]
    join_at_s: float
    member: QueryMember | None = None


class LagCommitter:
    """A thread that commits standings, the newest of each group, and ends by itself when there is nothing to do."""

    def __init__(
        self,
        connect: Callable[[str], Admin],
        *,
        is_alive: Callable[[], bool] = lambda: True,
        join_after_s: float = JOIN_AFTER_S,
    ) -> None:
        """`is_alive` says whether queries can run at all; the end of a session is not always reported for each."""
        self._connect = connect
        self._is_alive = is_alive
        self._join_after_s = join_after_s
        self._work = _Work()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._admins: dict[str, Admin] = {}
        self._queries: dict[Place, _Query] = {}
        self._done: dict[Place, Mapping[TopicPartition, int]] = {}
        self._told: dict[str, float] = {}

    def note(self, standing: QueryProgress) -> None:
        """Returns at once."""
        with self._changed:
            place = (standing.bootstrap, standing.group)
            if self._work.is_closed or self._done.get(place) == standing.offsets:
                return
            self._work.waiting[place] = standing
            self._begin()

    def end(self, query_id: str) -> None:
        """The query runs no more; what was noted of it is committed first. Returns at once."""
        with self._changed:
            if not self._work.is_closed:
                self._work.ended.add(query_id)
                self._begin()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-spark-lag", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Whether everything noted so far was tried."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._work.waiting and not self._work.ended and not self._work.is_busy, timeout_s
            )

    def close(self, timeout_s: float = _EXIT_FLUSH_S) -> None:
        """Commits what waits, for a while, and lets go of everything."""
        self.flush(timeout_s)
        with self._changed:
            self._work.is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            self._let_go()
        elif thread is not threading.current_thread():
            thread.join(timeout_s)

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while (found := self._next()) is not None:
            batch, ended = found
            for standing in batch:
                self._commit(standing)
            self._join_due()
            for query_id in ended:
                self._end(query_id)
            if self._queries and not self._is_alive():
                self._let_go()
        self._let_go()

    def _next(self) -> tuple[list[QueryProgress], set[str]] | None:
        """What is to be done; nothing but joining if that is due; None if the thread has to end."""
        with self._changed:
            work = self._work
            work.is_busy = False
            self._changed.notify_all()
            joins = [query.join_at_s for query in self._queries.values() if query.member is None]
            wait_s = max(0.0, min(joins) - time.monotonic()) if joins else _IDLE_S
            self._changed.wait_for(lambda: work.is_any, wait_s)
            if (work.is_closed or not self._queries) and not work.waiting and not work.ended:
                self._thread = None
                return None
            batch, ended = list(work.waiting.values()), set(work.ended)
            work.waiting.clear()
            work.ended.clear()
            work.is_busy = True
            return batch, ended

    def _admin(self, bootstrap: str) -> Admin:
        admin = self._admins.get(bootstrap)
        if admin is None:
            admin = self._admins[bootstrap] = self._connect(bootstrap)
        return admin

    def _commit(self, standing: QueryProgress) -> None:
        """As a member, or from outside while the group has none."""
        place = (standing.bootstrap, standing.group)
        query = self._queries.get(place)
        try:
            admin = self._admin(standing.bootstrap)
            if query is None:
                topics = frozenset(one.topic for one in standing.offsets)
                query = _Query(topics, time.monotonic() + self._join_after_s)
            if query.member is None or query.member.failure is not None:
                try:
                    _commit_from_outside(admin, standing)
                except GroupError:
                    # It has a member: a driver of this query that died not long ago.
                    query.member = QueryMember(admin, standing.group, query.topics)
            if query.member is not None and query.member.failure is None:
                query.member.commit(standing.offsets)
        except Exception as error:  # noqa: BLE001 - the next batch is a new chance, and the query goes on
            self._tell(standing, error)
            return
        self._done[place] = standing.offsets
        self._queries[place] = query

    def _join_due(self) -> None:
        now_s = time.monotonic()
        for (bootstrap, group), query in self._queries.items():
            if query.member is None and query.join_at_s <= now_s:
                query.join_at_s = now_s + _RETRY_S
                try:
                    query.member = QueryMember(self._admin(bootstrap), group, query.topics)
                except Exception as error:  # noqa: BLE001 - as above
                    self._tell(QueryProgress(bootstrap, group, {}), error)

    def _end(self, query_id: str) -> None:
        for place in [place for place in self._queries if place[1].endswith(f"-{query_id}")]:
            self._leave(self._queries.pop(place))
            # Should it be started again, the place where it stands is news.
            self._done.pop(place, None)
        used = {bootstrap for bootstrap, _ in self._queries}
        for bootstrap in [one for one in self._admins if one not in used]:
            _close(self._admins.pop(bootstrap))

    def _leave(self, query: _Query) -> None:
        member, query.member = query.member, None
        if member is not None:
            with contextlib.suppress(Exception):
                member.leave()

    def _let_go(self) -> None:
        for query in self._queries.values():
            self._leave(query)
        self._queries.clear()
        for admin in self._admins.values():
            _close(admin)
        self._admins.clear()

    def _tell(self, standing: QueryProgress, error: Exception) -> None:
        """Logs it, and begins anew with the cluster."""
        for (bootstrap, _), query in self._queries.items():
            if bootstrap == standing.bootstrap and query.member is not None:
                self._leave(query)
                query.join_at_s = time.monotonic() + _RETRY_S
        admin = self._admins.pop(standing.bootstrap, None)
        if admin is not None:
            _close(admin)
        now_s = time.monotonic()
        if now_s - self._told.get(standing.group, -_RETRY_S * 12) >= _RETRY_S * 12:
            self._told[standing.group] = now_s
            why = " ".join(str(error).split())
            _log.warning("the lag of %s is not shown at the moment: %s", standing.group, why)


def _commit_from_outside(admin: Admin, standing: QueryProgress) -> None:
    """As nobody's member, which a group without members allows."""
    offsets: dict[tuple[str, int], int | OffsetAndMetadata] = {**standing.offsets}  # type: ignore[dict-item]
    answers = admin.set_group_offsets(standing.group, offsets, timeout_ms=_TIMEOUT_MS)
    error = next((each for each in answers.values() if each is not None), None)
    if error is not None:
        raise error


def _close(admin: Admin) -> None:
    with contextlib.suppress(Exception):
        admin.close()


class LagListener(StreamingQueryListener):
    """Notes where queries stand. Made by `publish`."""

    def __init__(self, options: Mapping[str, str] | None = None, context: SparkContext | None = None) -> None:
        """`context` is that of a classic session."""
        self._options = dict(options or {})
        self._context = context
        self._committer: LagCommitter | None = None

    @property
    def committer(self) -> LagCommitter:
        if self._committer is None:
            self._committer = LagCommitter(self._connected, is_alive=self._is_alive)
            _committers.append(self._committer)
        return self._committer

    def _is_alive(self) -> bool:
        return self._context is None or self._context._jsc is not None

    def _connected(self, bootstrap: str) -> Admin:
        from penstock.client.admin import Admin
        from penstock.spark.connections import ssl_context
        from penstock.spark.options import tls_of

        tls = tls_of(self._options)
        context = None if tls is None else ssl_context(tls)
        return Admin(bootstrap, client_id="penstock-spark-lag", request_timeout_ms=_TIMEOUT_MS, ssl=context)

    def __getstate__(self) -> dict[str, Any]:
        # Threads and connections stay where they are.
        return {**self.__dict__, "_committer": None, "_context": None}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        ends = [source.endOffset for source in progress.sources]
        for standing in query_progress(progress.name, str(progress.id), ends):
            self.committer.note(standing)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Where it stands has not changed."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """The group stays, without a member: the query may come back, and until then its lag grows for all to see."""
        if self._committer is not None:
            self._committer.end(str(event.id))

    def flush(self, timeout_s: float = _EXIT_FLUSH_S) -> bool:
        """Waits until everything noted was tried to commit."""
        return self._committer is None or self._committer.flush(timeout_s)

    def close(self) -> None:
        """Commits what waits, and leaves all groups."""
        if self._committer is not None:
            self._committer.close()


def publish(spark: SparkSession, options: Mapping[str, str] | None = None) -> LagListener | None:
    """From now on the session's queries show their lag; None if they do already.

    `options` are `kafka.*` options for clusters that ask for TLS.
    """
    if spark.conf.get(_SETTING, None) == "published":
        return None
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        listener = LagListener(options)
        _listen_over_connect(spark, listener)
    else:
        listener = LagListener(options, spark.sparkContext)
        spark.streams.addListener(listener)
    spark.conf.set(_SETTING, "published")
    return listener


def _listen_over_connect(spark: SparkSession, listener: LagListener) -> None:
    """The listener runs here, in the client, and hears of what the server's queries do as long as the client lives."""
    # The events come by a thread that keeps a program from ending until stop() is called, which not every program does;
    # unless a thread that keeps nobody from ending has made it.
    adding = threading.Thread(target=spark.streams.addListener, args=(listener,), daemon=True)
    adding.start()
    adding.join()
    stop = spark.stop

    def stop_after_the_last_event() -> None:
        # A session that was stopped with listeners warns, when the program ends, that it cannot remove them.
        spark.stop = stop  # type: ignore[method-assign]
        with contextlib.suppress(Exception):
            withdraw(spark, listener)
        stop()

    spark.stop = stop_after_the_last_event  # type: ignore[method-assign]


def withdraw(spark: SparkSession, listener: LagListener) -> None:
    """The session's queries show their lag no more."""
    spark.streams.removeListener(listener)
    spark.conf.unset(_SETTING)
    listener.close()


_committers: list[LagCommitter] = []


def _at_exit() -> None:
    for committer in _committers:
        committer.close()


atexit.register(_at_exit)
