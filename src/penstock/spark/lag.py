"""How far a Spark query is, as a consumer group that everybody can look at: `penstock groups describe`.

    penstock.spark.lag.publish(spark)         # done by penstock.spark.session and `penstock spark`

Rule: after each batch its end offsets are committed to a group named `<query name or groupIdPrefix>-<query id>`.
Spark's checkpoint stays what counts; the group is for people and monitoring, so nothing here may stop or slow a query:
the listener only notes the newest offsets, a thread commits them, and what cannot be committed is told in the log. The
source says in its offsets where its cluster is, unless visibleLag is off. A source's own `commit` would not do: it lags
a batch behind and never sees the last one.
"""

from __future__ import annotations

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

from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import PenstockError
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.spark.offsets import StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client.admin import Admin

_SETTING: Final = "spark.penstock.visibleLag"
_IDLE_S: Final = 30.0
_TIMEOUT_MS: Final = 10_000
_RETRY_S: Final = 5.0
_EXIT_FLUSH_S: Final = 3.0
_log = logging.getLogger("penstock.spark.lag")


class Standing(NamedTuple):
    """Where a query stands in one cluster."""

    bootstrap: str
    group: str
    offsets: Mapping[TopicPartition, int]


def standings(name: str | None, query_id: str, end_offsets: Iterable[str | None]) -> list[Standing]:
    """What a query's end offsets, one of each source, say; sources that are not ours say nothing."""
    found: dict[tuple[str, str], dict[TopicPartition, int]] = {}
    for text in end_offsets:
        try:
            offset = StreamOffset.from_json(json.loads(text or ""))
        except (ValueError, PenstockError):
            continue  # of another kind of source
        if offset.lag is not None:
            group = f"{name or offset.lag.group_prefix}-{query_id}"
            found.setdefault((offset.lag.bootstrap, group), {}).update(offset.offsets)
    return [Standing(bootstrap, group, offsets) for (bootstrap, group), offsets in found.items() if offsets]


@dataclass
class _Work:
    """The newest standing of each group that waits to be committed, and who waits for it."""

    waiting: dict[tuple[str, str], Standing] = field(default_factory=dict)
    is_busy: bool = False
    is_closed: bool = False


class Committer:
    """A thread that commits standings, the newest of each group, and ends by itself when there is nothing to do."""

    def __init__(self, connect: Callable[[str], Admin]) -> None:
        self._connect = connect
        self._work = _Work()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._admins: dict[str, Admin] = {}
        self._done: dict[tuple[str, str], Mapping[TopicPartition, int]] = {}
        self._told: dict[str, float] = {}

    def note(self, standing: Standing) -> None:
        """Returns at once."""
        with self._changed:
            place = (standing.bootstrap, standing.group)
            if self._work.is_closed or self._done.get(place) == standing.offsets:
                return
            self._work.waiting[place] = standing
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-spark-lag", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Whether everything noted so far was tried."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._work.waiting and not self._work.is_busy, timeout_s)

    def close(self, timeout_s: float = _EXIT_FLUSH_S) -> None:
        """Commits what waits, for a while, and lets go of everything."""
        self.flush(timeout_s)
        with self._changed:
            self._work.is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while (batch := self._next()) is not None:
                for standing in batch:
                    self._commit(standing)
        finally:
            for admin in self._admins.values():
                with contextlib.suppress(Exception):
                    admin.close()
            self._admins.clear()

    def _next(self) -> list[Standing] | None:
        with self._changed:
            self._work.is_busy = False
            self._changed.notify_all()
            work = self._work
            if not self._changed.wait_for(lambda: work.waiting or work.is_closed, _IDLE_S) or not work.waiting:
                self._thread = None
                return None
            batch = list(work.waiting.values())
            work.waiting.clear()
            work.is_busy = True
            return batch

    def _commit(self, standing: Standing) -> None:
        try:
            admin = self._admins.get(standing.bootstrap)
            if admin is None:
                admin = self._admins[standing.bootstrap] = self._connect(standing.bootstrap)
            offsets: dict[tuple[str, int], int | OffsetAndMetadata] = {**standing.offsets}  # type: ignore[dict-item]
            answers = admin.set_group_offsets(standing.group, offsets, timeout_ms=_TIMEOUT_MS)
            error = next((each for each in answers.values() if each is not None), None)
            if error is not None:
                raise error
        except PenstockError as error:
            self._tell(standing, error)
        except Exception as error:  # noqa: BLE001 - the next batch is a new chance, and the query goes on
            self._tell(standing, error)
        else:
            self._done[standing.bootstrap, standing.group] = standing.offsets

    def _tell(self, standing: Standing, error: Exception) -> None:
        admin = self._admins.pop(standing.bootstrap, None)
        if admin is not None:
            with contextlib.suppress(Exception):
                admin.close()
        now_s = time.monotonic()
        if now_s - self._told.get(standing.group, -_RETRY_S * 12) >= _RETRY_S * 12:
            self._told[standing.group] = now_s
            why = " ".join(str(error).split())
            _log.warning("the lag of %s is not shown at the moment: %s", standing.group, why)


class LagListener(StreamingQueryListener):
    """Notes where queries stand. Made by `publish`."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._options = dict(options or {})
        self._committer: Committer | None = None

    @property
    def committer(self) -> Committer:
        if self._committer is None:
            self._committer = Committer(self._connected)
            _committers.append(self._committer)
        return self._committer

    def _connected(self, bootstrap: str) -> Admin:
        from penstock.client.admin import Admin
        from penstock.spark.clusters import ssl_context
        from penstock.spark.options import tls_of

        tls = tls_of(self._options)
        context = None if tls is None else ssl_context(tls)
        return Admin(bootstrap, client_id="penstock-spark-lag", request_timeout_ms=_TIMEOUT_MS, ssl=context)

    def __getstate__(self) -> dict[str, Any]:
        # Threads and connections stay where they are.
        return {**self.__dict__, "_committer": None}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        ends = [source.endOffset for source in progress.sources]
        for standing in standings(progress.name, str(progress.id), ends):
            self.committer.note(standing)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Where it stands has not changed."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """The group stays: the query may come back, and until then its lag grows for everybody to see."""

    def flush(self, timeout_s: float = _EXIT_FLUSH_S) -> bool:
        """Waits until everything noted was tried to commit."""
        return self._committer is None or self._committer.flush(timeout_s)


def publish(spark: SparkSession, options: Mapping[str, str] | None = None) -> LagListener | None:
    """From now on the session's queries show their lag; None if they do already.

    `options` are `kafka.*` options for clusters that ask for TLS.
    """
    if spark.conf.get(_SETTING, None) == "published":
        return None
    listener = LagListener(options)
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        _listen_over_connect(spark, listener)
    else:
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
    listener.flush()


_committers: list[Committer] = []


def _at_exit() -> None:
    for committer in _committers:
        committer.close()


atexit.register(_at_exit)
