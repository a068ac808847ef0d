"""A metadata tree in memory, for measuring what stands on it: every operation happens at once, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.cluster.errors import NoNode
from penstock.cluster.tree import (
    ANY_VERSION,
    Cancel,
    Create,
    Delete,
    Node,
    Operation,
    SessionWatcher,
    Set,
    Watcher,
)
from penstock.cluster.tree_state import StoredNode, TreeState

_SESSION = 1


class MemoryTree:
    """See `penstock.cluster.tree.Tree`."""

    session_id = _SESSION

    def __init__(self, nodes: Iterable[tuple[str, StoredNode]]) -> None:
        self._state = TreeState.of(nodes)
        self._watchers: dict[str, list[Watcher]] = {}
        self.writes = 0

    async def get(self, path: str) -> Node:
        node = self._state.node(path)
        if node is None:
            raise NoNode(path)
        return node.seen()

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        found = map(self._state.node, paths)
        return [None if node is None else node.seen() for node in found]

    async def exists(self, path: str) -> bool:
        return self._state.node(path) is not None

    async def children(self, path: str) -> list[str]:
        return self._state.children(path)

    async def multi(self, operations: Sequence[Operation]) -> None:
        change = self._state.prepare(operations, _SESSION)
        self._state.commit(change)
        self.writes += 1
        for event in change.events:
            for watcher in list(self._watchers.get(event.path, ())):
                watcher(event)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        await self.multi((Create(path, data, ephemeral),))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        await self.multi((Set(path, data, version),))
        return (await self.get(path)).version

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi((Delete(path, version),))

    def watch(self, path: str, watcher: Watcher) -> Cancel:
        watchers = self._watchers.setdefault(path, [])
        watchers.append(watcher)
        return lambda: watchers.remove(watcher)

    def watch_session(self, watcher: SessionWatcher) -> Cancel:
        return lambda: None

    async def close(self) -> None:
        self._watchers.clear()
