"""The metadata tree as a simulated process sees it: a session with the simulated service.

Noun: a `SimulatedTree`, the client's side of a session; see `penstock.cluster.tree.Tree`.

Rule: as with ZooKeeper's clients. Who has heard nothing for two thirds of the time-out has lost the connection
(SUSPENDED): what was asked raises ConnectionLost, what is asked waits for the next connection as long as a session
lasts; reads are asked again. Only the service says that a session is over (EXPIRED), however long it was lost. What is
read is as old as the server is that the session is connected to; see `tree_service`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.cluster.errors import ConnectionLost, SessionExpired, TreeError
from penstock.cluster.tree import (
    ANY_VERSION,
    Cancel,
    Create,
    Delete,
    Event,
    Node,
    Operation,
    SessionEvent,
    SessionWatcher,
    Set,
    Watcher,
    check_path,
)
from penstock.testing.simulation.loop import SimulatedLoop
from penstock.testing.simulation.tree_service import Question, Session, TreeService, Wire

logger = logging.getLogger(__name__)

SESSION_TIMEOUT_S: Final = 6.0


async def open_simulated_tree(service: TreeService, timeout_s: float = SESSION_TIMEOUT_S) -> SimulatedTree:
    """A new session for the process that asks; ConnectionLost if the service cannot be reached within its time-out."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimulatedLoop):
        raise TypeError("a simulated tree needs a simulated process")
    tree = SimulatedTree(service, loop, timeout_s)
    await tree.exists("/")
    return tree


class SimulatedTree:
    """One session."""

    def __init__(self, service: TreeService, loop: SimulatedLoop, timeout_s: float) -> None:
        self._service = service
        self._loop = loop
        self._timeout_s = timeout_s
        self._id = 0
        self._seen = 0
        self._wire: Wire | None = None
        self._connected: asyncio.Future[None] = loop.create_future()
        self._heard_s = loop.time()
        self._ended: TreeError | None = None
        self._is_closing = False
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._watchers: dict[str, list[Watcher]] = {}
        self._session_watchers: list[SessionWatcher] = []
        self._connect()
        self._tick()

    @property
    def session_id(self) -> int:
        return self._id

    # --- the connection

    def _connect(self) -> None:
        if self._ended is not None or self._connected.done():
            return
        wire = Wire(self._service, self._loop.host, lambda event: None, lambda: None)
        wire.told = lambda event: self._here(wire, self._tell, event)
        wire.lost = lambda: self._here(wire, self._over)
        self._wire = wire

        def done(session_id: int, missed: list[Event]) -> None:
            self._here(wire, self._came, session_id, missed)

        wire.carry(True, self._service.connect, wire, self._id, self._seen, self._timeout_s, done)
        self._loop.call_later(self._timeout_s / 10, self._try_again, wire)

    def _try_again(self, wire: Wire) -> None:
        if wire is self._wire:
            self._connect()

    def _here(self, wire: Wire, call: Callable[..., None], *args: Any) -> None:
        """Something arrived at the machine: the process deals with it when it runs."""
        change = wire.change

        def deal() -> None:
            if wire is self._wire and self._ended is None:
                self._heard_s = self._loop.time()
                self._seen = max(self._seen, change)
                call(*args)

        self._loop.call_soon(deal)

    def _came(self, session_id: int, missed: list[Event]) -> None:
        if not session_id:
            self._over()
            return
        is_new = not self._id
        self._id = session_id
        self._connected.set_result(None)
        self._send_watched()
        if not is_new:
            self._announce(SessionEvent.CONNECTED)
        for event in missed:
            self._tell(event)

    def _tick(self) -> None:
        """A sign of life three times in a time-out, and a look at whether the other side gives any."""
        if self._ended is not None:
            return
        if self._connected.done():
            if self._loop.time() - self._heard_s > self._timeout_s * 2 / 3:
                self._suspend()
            else:
                self._send(lambda session: None, lambda answer, error: None)
        self._loop.call_later(self._timeout_s / 3, self._tick)

    def _suspend(self) -> None:
        self._connected = self._loop.create_future()
        self._wire = None
        self._fail_pending(lambda: ConnectionLost("the connection to the metadata tree was lost before the answer"))
        self._announce(SessionEvent.SUSPENDED)
        self._connect()

    def _over(self) -> None:
        self._end(SessionExpired("the session with the metadata tree is over"))
        self._announce(SessionEvent.EXPIRED)

    def _end(self, reason: TreeError) -> None:
        self._ended = reason
        self._watchers.clear()
        self._fail_pending(lambda: SessionExpired(str(reason)))
        if not self._connected.done():
            self._connected.set_result(None)

    def _fail_pending(self, error: Callable[[], TreeError]) -> None:
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                answer.set_exception(error())

    def _announce(self, event: SessionEvent) -> None:
        for watcher in list(self._session_watchers):
            watcher(event)

    # --- questions

    def _send(
        self, question: Question, done: Callable[[Any, TreeError | None], None], *, is_change: bool = False
    ) -> None:
        wire = self._wire
        if wire is not None:

            def answered(answer: Any, error: TreeError | None) -> None:
                self._here(wire, done, answer, error)

            ask = self._service.write if is_change else self._service.read
            wire.carry(True, ask, wire, self._id, question, answered)

    async def _ask(self, question: Question, *, is_change: bool = False) -> Any:
        if self._is_closing:
            raise SessionExpired("the metadata tree was closed")
        return await self._answer_to(question, is_change=is_change)

    async def _answer_to(self, question: Question, *, is_change: bool) -> Any:
        self._require_open()
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self._connected.done():
                    await asyncio.shield(self._connected)
        except TimeoutError:
            raise ConnectionLost(f"no connection to the metadata tree for {self._timeout_s:.1f} s") from None
        self._require_open()
        self._number += 1
        number = self._number
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._pending[number] = answer

        def done(result: Any, error: TreeError | None) -> None:
            self._pending.pop(number, None)
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        self._send(question, done, is_change=is_change)
        return await answer

    async def _read(self, question: Question) -> Any:
        """Ask until there is an answer, for as long as a session lasts."""
        until_s = self._loop.time() + self._timeout_s
        while True:
            try:
                return await self._ask(question)
            except ConnectionLost:
                if self._loop.time() >= until_s:
                    raise

    def _require_open(self) -> None:
        if self._ended is not None:
            raise SessionExpired(str(self._ended))

    async def get(self, path: str) -> Node:
        check_path(path)
        node: Node = await self._read(lambda session: session.require(path))
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        wanted = tuple(paths)
        for path in wanted:
            check_path(path)

        def look(session: Session) -> list[Node | None]:
            found = [session.server.state.node(path) for path in wanted]
            return [None if node is None else node.seen() for node in found]

        nodes: list[Node | None] = await self._read(look)
        return nodes

    async def exists(self, path: str) -> bool:
        check_path(path)
        return bool(await self._read(lambda session: session.server.state.node(path) is not None))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        names: list[str] = await self._read(lambda session: session.server.state.children(path))
        return names

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        await self._change((Create(path, data, ephemeral),))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        return await self._change((Set(path, data, version),))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._change((Delete(path, version),))

    async def multi(self, operations: Sequence[Operation]) -> None:
        await self._change(tuple(operations))

    async def _change(self, operations: tuple[Operation, ...]) -> int:
        for operation in operations:
            check_path(operation.path)
        return int(await self._ask(lambda session: self._service.change(operations, session), is_change=True))

    # --- watches and the session

    def watch(self, path: str, watcher: Watcher) -> Cancel:
        check_path(path)
        watchers = self._watchers.setdefault(path, [])
        watchers.append(watcher)
        self._send_watched()

        def cancel() -> None:
            if watcher in watchers:
                watchers.remove(watcher)
                if not watchers and self._watchers.get(path) is watchers:
                    del self._watchers[path]
                    self._send_watched()

        return cancel

    def _send_watched(self) -> None:
        paths = frozenset(self._watchers)

        def register(session: Session) -> None:
            session.watched = set(paths)

        if self._connected.done() and self._ended is None:
            self._send(register, lambda answer, error: None)

    def _tell(self, event: Event) -> None:
        for watcher in list(self._watchers.get(event.path, ())):
            try:
                watcher(event)
            except Exception:
                # The others are told all the same.
                logger.exception("a watcher of %s failed", event.path)

    def watch_session(self, watcher: SessionWatcher) -> Cancel:
        self._session_watchers.append(watcher)

        def cancel() -> None:
            if watcher in self._session_watchers:
                self._session_watchers.remove(watcher)

        return cancel

    async def close(self) -> None:
        """Say farewell; without a connection the session ends by itself."""
        if self._ended is not None or self._is_closing:
            return
        self._is_closing = True
        try:
            if self._connected.done():
                await asyncio.wait_for(self._answer_to(self._service.end, is_change=True), self._timeout_s)
        except (TimeoutError, TreeError):
            logger.debug("the farewell was not heard; the session will end by itself")
        finally:
            self._end(SessionExpired("the metadata tree was closed"))
