"""Who looks after a group or a transactional id.

Rule: asked once and remembered until somebody finds that it is no longer so. Callers for the same key share the
question. Coordinators have a lane of their own: a JoinGroup may take minutes to be answered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal

from penstock.client.cluster_view import Node
from penstock.client.connection import Connection
from penstock.client.errors import NotConnected, PenstockError, TimedOut, UnsupportedVersion, error_for
from penstock.client.links import shared
from penstock.wire.api_keys import ApiKey
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from penstock.client.cluster import ClusterClient

Kind = Literal["group", "transaction"]

_KEY_TYPES: Final[dict[Kind, int]] = {"group": 0, "transaction": 1}
_FIRST_WITH_TYPES: Final = 1
_FIRST_WITH_MANY: Final = 4


class Coordinators:
    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._known: dict[tuple[Kind, str], Node] = {}
        self._asking: dict[tuple[Kind, str], asyncio.Task[Node]] = {}

    def forget(self, kind: Kind, key: str) -> None:
        self._known.pop((kind, key), None)

    def end(self) -> list[asyncio.Task[Node]]:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        return tasks

    async def connect(self, kind: Kind, key: str) -> Connection:
        node = self._known.get((kind, key)) or await self._ask(kind, key)
        try:
            return await self._cluster.to_node(node, kind)
        except NotConnected:
            self.forget(kind, key)
            raise

    async def _ask(self, kind: Kind, key: str) -> Node:
        task = self._asking.get((kind, key))
        if task is None:
            task = self._asking[kind, key] = asyncio.ensure_future(self._find(kind, key))
            task.add_done_callback(lambda done: self._asked((kind, key), done))
        return await shared(task)

    def _asked(self, which: tuple[Kind, str], task: asyncio.Task[Node]) -> None:
        self._asking.pop(which, None)
        if not task.cancelled() and task.exception() is None:
            self._known[which] = task.result()

    async def _find(self, kind: Kind, key: str) -> Node:
        cluster = self._cluster
        backoff = cluster.new_backoff()
        failure: PenstockError | None = None
        try:
            async with asyncio.timeout(cluster.request_timeout_ms / 1000):
                while True:
                    try:
                        return await self._find_once(await cluster.to_any(), kind, key)
                    except PenstockError as error:
                        if not error.retriable:
                            raise
                        failure = error
                    await asyncio.sleep(backoff.failed(cluster.clock.monotonic_ms()) / 1000)
        except TimeoutError as error:
            if isinstance(error, PenstockError):
                raise
            if failure is not None:
                raise failure from None
            raise TimedOut(
                f"no broker said within {cluster.request_timeout_ms} ms who coordinates {kind} {key}"
            ) from None

    async def _find_once(self, connection: Connection, kind: Kind, key: str) -> Node:
        version = connection.version_of(ApiKey.FIND_COORDINATOR)
        request = FindCoordinatorRequest()
        if version >= _FIRST_WITH_MANY:
            request.coordinator_keys = [key]
        else:
            request.key = key
        if version >= _FIRST_WITH_TYPES:
            request.key_type = _KEY_TYPES[kind]
        elif kind != "group":
            raise UnsupportedVersion(connection.node, "FindCoordinator", (_FIRST_WITH_TYPES, 6), (0, version))
        answer: FindCoordinatorResponse = await connection.request(
            ApiKey.FIND_COORDINATOR, request, version=version, timeout_ms=self._cluster.request_timeout_ms
        )
        found = answer.coordinators[0] if version >= _FIRST_WITH_MANY and answer.coordinators else answer
        if found.error_code:
            raise error_for(found.error_code, where=f"{kind} {key}", detail=found.error_message)
        return Node(found.node_id, found.host, found.port)
