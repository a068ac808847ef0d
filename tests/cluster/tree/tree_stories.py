"""A small vocabulary for stories about trees and sessions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from tests.cluster.cluster_stories import open_tree, run
from tests.timeouts import PATIENCE_S

from penstock.cluster.tree.tree import Event, EventKind, SessionEvent, Tree
from penstock.cluster.tree.zookeeper.tree import ZooKeeperTree, open_zookeeper_tree
from penstock.testing.simulated_files import SimulatedFiles
from penstock.testing.simulation.cluster import SimulatedHost
from penstock.testing.simulation.network import SimulatedNetwork
from penstock.testing.simulation.scheduler import Scheduler
from penstock.testing.simulation.tree import TreeService, open_simulated_tree

SESSION_TIMEOUT_MS = 4000


class Trees(Protocol):
    """Sessions with one and the same tree, one after another, and the kind of loop that they run on."""

    async def open(self) -> Tree: ...

    def run(self, story: Coroutine[Any, Any, None]) -> None: ...


class _OnRealLoop:
    def run(self, story: Coroutine[Any, Any, None]) -> None:
        run(story)


class EmbeddedTrees(_OnRealLoop):
    def __init__(self) -> None:
        self._files = SimulatedFiles()

    async def open(self) -> Tree:
        return open_tree(self._files)


class ZooKeeperTrees(_OnRealLoop):
    """A tree of its own in a server that others use too."""

    def __init__(self, connect: str, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> None:
        self.connect = f"{connect}/{uuid.uuid4().hex}"
        self._session_timeout_ms = session_timeout_ms

    async def open(self) -> ZooKeeperTree:
        return await open_zookeeper_tree(self.connect, session_timeout_ms=self._session_timeout_ms)


class SimulatedTrees:
    """A tree of the simulator, and a simulated machine from which it is used."""

    def __init__(self, seed: int = 0) -> None:
        scheduler = Scheduler(seed)
        network = SimulatedNetwork(scheduler, seed)
        self._host = SimulatedHost(scheduler, network, "host", "10.0.0.1", seed)
        self._service = TreeService(network, seed=seed)

    async def open(self) -> Tree:
        return await open_simulated_tree(self._service, SESSION_TIMEOUT_MS / 1000)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self._host.loop.run_until_complete(story, limit_s=self._host.scheduler.now_s + 1000)


def live(trees: Trees, story: Callable[[Tree], Awaitable[None]]) -> None:
    """Open a tree, live the story, close the tree."""

    async def whole() -> None:
        tree = await trees.open()
        try:
            await story(tree)
        finally:
            await tree.close()

    trees.run(whole())


class Heard:
    """The events of a watcher, and waiting for them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    async def next(self) -> EventKind:
        """The one event since the last call."""
        await asyncio.wait_for(self._news.wait(), PATIENCE_S)
        self._news.clear()
        (event,) = self.events
        self.events.clear()
        return event.kind


class HeardSession:
    def __init__(self, tree: Tree) -> None:
        self.events: list[SessionEvent] = []
        self._news = asyncio.Event()
        tree.watch_session(self._hear)

    def _hear(self, event: SessionEvent) -> None:
        self.events.append(event)
        self._news.set()

    async def until(self, wanted: SessionEvent) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while wanted not in self.events:
                self._news.clear()
                await self._news.wait()


class Proxy:
    """The network between a client and a server: can be cut, and can swallow the server's answers."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._is_cut = False
        self._swallows = False
        self._swallows_from: bytes | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._listener = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.connect = f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def heal(self) -> None:
        self._is_cut = False
        self._swallows = False
        self._swallows_from = None

    def swallow_answers(self) -> None:
        self._swallows = True

    def swallow_answers_from(self, marker: bytes) -> None:
        """From the first request on that has these bytes in it."""
        self._swallows_from = marker

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._writers += (writer, back)
        for source, sink, is_answer in ((reader, back, False), (there, writer, True)):
            task = asyncio.create_task(self._carry(source, sink, is_answer))
            self._tasks.add(task)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_answer: bool) -> None:
        try:
            while data := await source.read(65_536):
                if self._swallows_from is not None and not is_answer and self._swallows_from in data:
                    self._swallows = True
                if not (is_answer and self._swallows):
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass
        sink.close()
