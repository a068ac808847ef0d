"""Client connections of a process, kept open from task to task.

Spark's Python workers live across tasks and micro-batches, and opening a connection costs more than a small
micro-batch reads. There is one client per cluster and connection options, at most eight; the oldest is closed first. A
forked child starts with none.

Spark's workers run the garbage collector after every task, over every object of every module. After the first task
these objects are frozen (`gc.freeze`), so later collections skip them.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from penstock.client.background import Background
from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.settings import options_from_properties
from penstock.spark.options import ReaderOptions, SecurityOptions

T = TypeVar("T")

_MOST: Final = 8
_CLOSE_TIMEOUT_S: Final = 5.0
# Set by Spark in worker processes that it reuses.
_REUSED: Final = "SPARK_REUSE_WORKER"


class SharedCluster:
    """One client and its event loop. Obtained by `shared_cluster`."""

    def __init__(self, bootstrap: str, options: ReaderOptions) -> None:
        self.bootstrap = bootstrap
        self.densities: dict[TopicPartition, float] = {}
        """Bytes per offset, estimated from what was read."""
        self.background = Background.acquire()
        try:
            self.client = ClusterClient(
                bootstrap,
                client_id=options.client_id,
                request_timeout_ms=options.request_timeout_ms,
                connect_timeout_ms=options.connect_timeout_ms,
                **client_security(options.security),
            )
        except BaseException:
            self.background.release()
            raise

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Connects if needed and returns the result of a coroutine."""
        return self.background.run(self._started(coroutine))

    async def _started(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            await self.start()
        except BaseException:
            coroutine.close()
            raise
        return await coroutine

    async def start(self) -> None:
        """Connects to the cluster once. Each address is tried once; callers that can wait retry."""
        await self.client.start()

    def close(self) -> None:
        try:
            self.background.run(self.client.close(), _CLOSE_TIMEOUT_S)
        finally:
            self.background.release()


_lock = threading.Lock()
_clusters: dict[tuple[str, ReaderOptions], SharedCluster] = {}


def shared_cluster(bootstrap: str, options: ReaderOptions) -> SharedCluster:
    """The client for a cluster, opened on first use."""
    key = (bootstrap, options.connection_options())
    oldest = None
    with _lock:
        found = _clusters.pop(key, None)
        if found is None:
            found = SharedCluster(bootstrap, options)
        _clusters[key] = found
        if len(_clusters) > _MOST:
            oldest = _clusters.pop(next(iter(_clusters)))
    if oldest is not None:
        oldest.close()
    return found


def close_all() -> None:
    """Closes all shared clients, for tests and for releasing sockets."""
    with _lock:
        clusters = list(_clusters.values())
        _clusters.clear()
    for one in clusters:
        one.close()


_is_frozen = False


def freeze_after_first_task() -> None:
    """Called after each task. The first call freezes all objects, so that the garbage collector skips them."""
    global _is_frozen
    if not _is_frozen and _REUSED in os.environ:
        _is_frozen = True
        gc.freeze()


def _after_fork() -> None:
    global _lock, _is_frozen
    _lock = threading.Lock()
    _is_frozen = False
    _clusters.clear()


os.register_at_fork(after_in_child=_after_fork)


def client_security(security: SecurityOptions | None) -> dict[str, Any]:
    """The options of a client with these settings."""
    return {} if security is None else options_from_properties(dict(security.settings))
