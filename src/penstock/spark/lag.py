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
from penstock.client.offset_stores.base import Membership as CommitIdentity
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.client.offset_stores.broker import BrokerOffsetStore
from penstock.spark.errors import one_line
from penstock.spark.offsets import StreamOffset

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from penstock.client.admin import Admin, AsyncAdmin


_log = logging.getLogger("penstock.spark.lag")
SESSION_MS: Final = 30_000
JOIN_AFTER_S: Final = 2.0
_HEARTBEAT_MS: Final = 5_000
_REQUEST_MS: Final = 10_000
# A dead driver stays a member until its session times out, and the group waits for it.
_JOIN_TIMEOUT_MS: Final = SESSION_MS + 10_000
_TRIES: Final = 3
_SETTING: Final = "spark.penstock.visibleLag"
_IDLE_S: Final = 30.0
_TIMEOUT_MS: Final = 10_000
_RETRY_S: Final = 5.0
_EXIT_FLUSH_S: Final = 3.0

# ---------------------------------------------------------------------------------------------- sessions


def publish(spark: SparkSession, options: Mapping[str, str] | None = None) -> LagListener | None:
    """Publishes the lag of the session's queries from now on. Returns None if it already does.

    `options` are `kafka.*` options for clusters that require TLS.
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
    """The listener runs in the client and gets the server's events while the client lives."""
    # Spark receives the events in a new thread, which keeps the program alive until stop() is called, unless it is
    # created by a daemon thread.
    adding = threading.Thread(target=spark.streams.addListener, args=(listener,), daemon=True)
    adding.start()
    adding.join()
    stop = spark.stop

    def stop_after_the_last_event() -> None:
        # A session that is stopped with listeners warns at exit that it cannot remove them.
        spark.stop = stop  # type: ignore[method-assign]
        with contextlib.suppress(Exception):
            withdraw(spark, listener)
        stop()

    spark.stop = stop_after_the_last_event  # type: ignore[method-assign]


def withdraw(spark: SparkSession, listener: LagListener) -> None:
    """Stops publishing the lag of the session's queries."""
    spark.streams.removeListener(listener)
    spark.conf.unset(_SETTING)
    listener.close()


class LagListener(StreamingQueryListener):
    """Passes the progress of queries to a committer. Created by `publish`."""

    def __init__(self, options: Mapping[str, str] | None = None, context: SparkContext | None = None) -> None:
        """`context` is that of a session without Spark Connect."""
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
        from penstock.spark.connections import client_security
        from penstock.spark.options import security_of

        security = client_security(security_of(self._options))
        return Admin(bootstrap, client_id="penstock-spark-lag", request_timeout_ms=_TIMEOUT_MS, **security)

    def __getstate__(self) -> dict[str, Any]:
        # Threads and connections are not pickled.
        return {**self.__dict__, "_committer": None, "_context": None}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """There is no progress yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        reported = event.progress
        ends = [source.endOffset for source in reported.sources]
        for progress in query_progress(reported.name, str(reported.id), ends):
            self.committer.note(progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """The offsets have not changed."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """The group stays, empty: its lag keeps growing until the query is restarted."""
        if self._committer is not None:
            self._committer.end(str(event.id))

    def flush(self, timeout_s: float = _EXIT_FLUSH_S) -> bool:
        """Waits until all progress was committed, or its commit failed."""
        return self._committer is None or self._committer.flush(timeout_s)

    def close(self) -> None:
        """Commits what is pending and leaves all groups."""
        if self._committer is not None:
            self._committer.close()


# ---------------------------------------------------------------------------------------------- progress


class QueryProgress(NamedTuple):
    """The offsets of a query in one cluster."""

    bootstrap: str
    group: str
    offsets: Mapping[TopicPartition, int]


def query_progress(name: str | None, query_id: str, end_offsets: Iterable[str | None]) -> list[QueryProgress]:
    """Progress from a query's end offsets, one per source; sources that are not ours are skipped."""
    found: dict[tuple[str, str], dict[TopicPartition, int]] = {}
    for text in end_offsets:
        try:
            offset = StreamOffset.from_json(json.loads(text or ""))
        except (ValueError, PenstockError):
            continue  # Another kind of source.
        if offset.lag is not None:
            group = _group(name or offset.lag.group_prefix, query_id)
            found.setdefault((offset.lag.bootstrap, group), {}).update(offset.offsets)
    return [QueryProgress(bootstrap, group, offsets) for (bootstrap, group), offsets in found.items() if offsets]


def _group(name: str, query_id: str) -> str:
    """The group id. It never begins with "-", which commands take for an option."""
    group = f"{name}-{query_id}"
    return f"spark{group}" if group.startswith("-") else group


# ---------------------------------------------------------------------------------------------- commits


GroupKey = tuple[str, str]
"""Bootstrap servers and a group."""


@dataclass
class _Work:
    """The newest uncommitted progress of each group, and queries that have ended."""

    waiting: dict[GroupKey, QueryProgress] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    is_busy: bool = False
    is_closed: bool = False

    @property
    def is_any(self) -> bool:
        return bool(self.waiting or self.ended or self.is_closed)


@dataclass
class _Query:
    """A running query. It joins its group once it has run for a while."""

    topics: frozenset[str]
    join_at_s: float
    member: QueryMember | None = None


class LagCommitter:
    """A thread that commits the newest progress of each group. It stops when idle."""

    def __init__(
        self,
        connect: Callable[[str], Admin],
        *,
        is_alive: Callable[[], bool] = lambda: True,
        join_after_s: float = JOIN_AFTER_S,
    ) -> None:
        """`is_alive` tells whether the session still runs; the end of a session is not reported for every query."""
        self._connect = connect
        self._is_alive = is_alive
        self._join_after_s = join_after_s
        self._work = _Work()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._admins: dict[str, Admin] = {}
        self._queries: dict[GroupKey, _Query] = {}
        self._done: dict[GroupKey, Mapping[TopicPartition, int]] = {}
        self._warned_s: dict[str, float] = {}

    def note(self, progress: QueryProgress) -> None:
        """Stores progress to be committed. Does not block."""
        with self._changed:
            key = (progress.bootstrap, progress.group)
            if self._work.is_closed or self._done.get(key) == progress.offsets:
                return
            self._work.waiting[key] = progress
            self._begin()

    def end(self, query_id: str) -> None:
        """Marks a query as ended, after committing its last progress. Does not block."""
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
        """Waits until everything noted so far was attempted. Returns whether it was."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._work.waiting and not self._work.ended and not self._work.is_busy, timeout_s
            )

    def close(self, timeout_s: float = _EXIT_FLUSH_S) -> None:
        """Commits what is pending, within the timeout, and closes everything."""
        self.flush(timeout_s)
        with self._changed:
            self._work.is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            self._close_everything()
        elif thread is not threading.current_thread():
            thread.join(timeout_s)

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while (found := self._next()) is not None:
            batch, ended = found
            for progress in batch:
                self._commit(progress)
            self._join_due()
            for query_id in ended:
                self._end(query_id)
            if self._queries and not self._is_alive():
                self._close_everything()
        self._close_everything()

    def _next(self) -> tuple[list[QueryProgress], set[str]] | None:
        """The next work, which may be empty if only joins are due; None if the thread has to end."""
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

    def _commit(self, progress: QueryProgress) -> None:
        """Commits as a member, or without membership while the group is empty."""
        key = (progress.bootstrap, progress.group)
        query = self._queries.get(key)
        try:
            admin = self._admin(progress.bootstrap)
            if query is None:
                topics = frozenset(one.topic for one in progress.offsets)
                query = _Query(topics, time.monotonic() + self._join_after_s)
            if query.member is None or query.member.failure is not None:
                try:
                    _commit_to_empty_group(admin, progress)
                except GroupError:
                    # The group has a member: a driver of this query that died recently.
                    query.member = QueryMember(admin, progress.group, query.topics)
            if query.member is not None and query.member.failure is None:
                query.member.commit(progress.offsets)
        except Exception as error:  # noqa: BLE001 - the next batch retries, and the query continues
            self._failed(progress, error)
            return
        self._done[key] = progress.offsets
        self._queries[key] = query

    def _join_due(self) -> None:
        now_s = time.monotonic()
        for (bootstrap, group), query in self._queries.items():
            if query.member is None and query.join_at_s <= now_s:
                query.join_at_s = now_s + _RETRY_S
                try:
                    query.member = QueryMember(self._admin(bootstrap), group, query.topics)
                except Exception as error:  # noqa: BLE001 - as above
                    self._failed(QueryProgress(bootstrap, group, {}), error)

    def _end(self, query_id: str) -> None:
        for key in [key for key in self._queries if key[1].endswith(f"-{query_id}")]:
            self._leave(self._queries.pop(key))
            # If the query is restarted, its offsets must be committed again.
            self._done.pop(key, None)
        used = {bootstrap for bootstrap, _ in self._queries}
        for bootstrap in [one for one in self._admins if one not in used]:
            _close(self._admins.pop(bootstrap))

    def _leave(self, query: _Query) -> None:
        member, query.member = query.member, None
        if member is not None:
            with contextlib.suppress(Exception):
                member.leave()

    def _close_everything(self) -> None:
        for query in self._queries.values():
            self._leave(query)
        self._queries.clear()
        for admin in self._admins.values():
            _close(admin)
        self._admins.clear()

    def _failed(self, progress: QueryProgress, error: Exception) -> None:
        """Logs the error at most once a minute, and reconnects to the cluster next time."""
        for (bootstrap, _), query in self._queries.items():
            if bootstrap == progress.bootstrap and query.member is not None:
                self._leave(query)
                query.join_at_s = time.monotonic() + _RETRY_S
        admin = self._admins.pop(progress.bootstrap, None)
        if admin is not None:
            _close(admin)
        now_s = time.monotonic()
        if now_s - self._warned_s.get(progress.group, -_RETRY_S * 12) >= _RETRY_S * 12:
            self._warned_s[progress.group] = now_s
            _log.warning("cannot publish lag: group=%s error=%s", progress.group, one_line(error))


def _commit_to_empty_group(admin: Admin, progress: QueryProgress) -> None:
    """Commits without being a member, which an empty group allows."""
    offsets: dict[tuple[str, int], int | OffsetAndMetadata] = {**progress.offsets}  # type: ignore[dict-item]
    answers = admin.set_group_offsets(progress.group, offsets, timeout_ms=_TIMEOUT_MS)
    error = next((each for each in answers.values() if each is not None), None)
    if error is not None:
        raise error


def _close(admin: Admin) -> None:
    with contextlib.suppress(Exception):
        admin.close()


_committers: list[LagCommitter] = []


def _at_exit() -> None:
    for committer in _committers:
        committer.close()


atexit.register(_at_exit)

# ---------------------------------------------------------------------------------------------- membership


class QueryMember:
    """Joins in the background on the loop of an admin client. The caller closes the client."""

    def __init__(self, admin: Admin, group: str, topics: Iterable[str]) -> None:
        self._admin = admin
        self._group = group
        self._topics = frozenset(topics)
        self.failure: BaseException | None = None
        """Why joining failed; for example, another member holds the group."""
        admin.run(self._begin)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits as the member. Raises PenstockError, or TimeoutError if it does not get into the group."""
        self._topics |= {one.topic for one in offsets}
        self._admin.run(lambda inner: self._commit(inner, offsets))

    def leave(self) -> None:
        """Leaves the group, which is empty afterwards."""
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
        self._is_member = asyncio.Event()
        self._worker = ConsumerCoordinator(
            self._group,
            inner.cluster,
            self._membership,
            settings,
            self._clock,
            topics=lambda: self._topics,
            visits=object,  # always a new object, so a running query never exceeds max.poll.interval.ms
            run_callback=self._on_assignment,
            on_failure=self._fail,
            on_loss=self._is_member.clear,
        )
        self._task = asyncio.create_task(self._worker.run())

    async def _on_assignment(self, step: Revoke | Assign) -> None:
        if isinstance(step, Assign):
            self._is_member.set()
        else:
            self._is_member.clear()

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._is_member.set()

    async def _commit(self, inner: AsyncAdmin, offsets: Mapping[TopicPartition, int]) -> None:
        store = BrokerOffsetStore(inner.cluster, timeout_ms=_REQUEST_MS)
        stored = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        self._worker.wake()
        for attempt in range(1, _TRIES + 1):
            async with asyncio.timeout(_JOIN_TIMEOUT_MS / 1000):
                await self._is_member.wait()
            if self.failure is not None:
                raise self.failure
            membership = self._membership
            try:
                await store.save(self._group, stored, CommitIdentity(membership.generation, membership.member_id))
            except GroupError as error:
                if attempt == _TRIES:
                    raise
                self._is_member.clear()
                membership.commit_rejected(error.code, self._clock.monotonic_ms())
                self._worker.wake()
            else:
                return

    async def _leave(self, inner: AsyncAdmin) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._worker.close()
        await self._worker.leave("the query has ended")
