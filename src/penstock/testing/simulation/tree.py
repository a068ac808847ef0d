"""A simulated ZooKeeper: the ensemble with its sessions, and the metadata tree as a broker sees it.

The leader decides changes one after the other. Every server applies them in that order, each after its own delay. A
session is connected to one server and reads what that server has applied, so another server may be ahead. The response
to a change, also to a rejected one, waits until the server has applied everything before it, and later requests of the
session wait for that response: a session sees its own changes. A server that is behind what a session has seen does
not accept the session. Watches fire when the session's server applies a change, before any response that shows it.

A connection delivers in order, and nothing after a lost message. A session that is silent for its timeout expires, and
its ephemeral nodes are deleted. While the service is down no session expires; afterwards each has its full timeout
again. A client that receives nothing for two thirds of the timeout is SUSPENDED: pending requests raise
ConnectionLost, new ones wait, and reads are retried. Only the service declares a session EXPIRED. Clients connect to
followers only (`leaderServes=no`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from random import Random as PythonRandom
from typing import Any, Final, NamedTuple

from penstock.cluster.errors import ConnectionLost, NoNode, SessionExpired, TreeError
from penstock.cluster.tree.tree import (
    ANY_VERSION,
    Cancel,
    Change,
    Create,
    Delete,
    Event,
    EventKind,
    Node,
    Operation,
    SessionEvent,
    SessionWatcher,
    Set,
    TreeState,
    Watcher,
    check_path,
    watch_each_once,
)
from penstock.testing.simulation.loop import SimulatedLoop
from penstock.testing.simulation.network import SimulatedNetwork

TREE_ADDRESS: Final = "10.0.9.1"
_FIRST_SESSION: Final = 0x1000
_SERVERS: Final = 3
_MIN_GAP_S: Final = 1e-9
# Maximum delays of a server that is as fast as the leader, of a busy one, and of one with a slow disk.
_LAGS_S: Final = (0.0003, 0.003, 0.03)

Audit = Callable[[Sequence[Operation], int], None]
"""Called with operations that are about to be committed together, and the session that sent them."""
Request = Callable[["Session"], Any]
Done = Callable[[Any, TreeError | None], None]


class Connection:
    """One connection between a session's host and the service, with the client's callbacks."""

    def __init__(
        self, service: TreeService, host: str, on_event: Callable[[Event], None], on_lost: Callable[[], None]
    ) -> None:
        self.service = service
        self.host = host
        self.on_event = on_event
        self.on_lost = on_lost
        self.server: Server | None = None
        """The server at the other end, once it has accepted the session."""
        self.is_broken = False
        self.change = 0
        """The last change that the client knows once it has handled everything that arrived."""
        self._last_s = {True: 0.0, False: 0.0}

    def send(self, to_service: bool, deliver: Callable[..., None], *args: Any) -> None:
        """Call `deliver` at the other end, after everything sent before in this direction; or never."""
        network = self.service.network
        ends = (self.host, self.service.address) if to_service else (self.service.address, self.host)
        # Callbacks of one instant run in any order, so each message arrives a little after the one before.
        arrival_s = max(network.arrival_s(*ends), self._last_s[to_service] + _MIN_GAP_S)
        self._last_s[to_service] = arrival_s
        change = 0 if to_service or self.server is None else self.server.applied
        network.kernel.call_at(arrival_s, self._arrive, ends, change, deliver, args)

    def _arrive(self, ends: tuple[str, str], change: int, deliver: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.service.is_down or not self.service.network.reaches(*ends):
            self.is_broken = True
        if not self.is_broken:
            self.change = max(self.change, change)
            deliver(*args)


class Server:
    """A follower of the ensemble."""

    def __init__(self, number: int, lag_s: float) -> None:
        self.number = number
        self.state = TreeState()
        self.applied = 0
        """The number of the last change that it has applied."""
        self.changed: dict[str, tuple[int, EventKind]] = {}
        """The last applied change of each path."""
        self.lag_s = lag_s
        self.held = 0
        """Number of faults that keep it from applying changes."""
        self.behind: deque[tuple[int, Change]] = deque()
        """Decided changes that it has not applied."""


class _Pending(NamedTuple):
    """A request whose response waits for its turn. A read is executed then; a change was executed on arrival."""

    needs: int
    request: Request | None
    answer: Any
    error: TreeError | None
    done: Done


class Session:
    """A session as the service knows it."""

    __slots__ = ("connection", "heard_s", "host", "id", "pending", "server", "timeout_s", "watched")

    def __init__(self, number: int, host: str, timeout_s: float, heard_s: float, server: Server) -> None:
        self.id = number
        self.host = host
        self.timeout_s = timeout_s
        self.heard_s = heard_s
        self.server = server
        self.connection: Connection | None = None
        self.watched: set[str] = set()
        self.pending: deque[_Pending] = deque()

    def require(self, path: str) -> Node:
        """The node as the session's server has it. Raises NoNode."""
        node = self.server.state.node(path)
        if node is None:
            raise NoNode(path)
        return node.seen()


class TreeService:
    """The ensemble of a run. `state` is the leader's: all decided changes."""

    def __init__(self, network: SimulatedNetwork, address: str = TREE_ADDRESS, seed: int | str = 0) -> None:
        self.network = network
        self.address = address
        self.is_down = False
        self.audit: Audit | None = None
        """Called before each change."""
        self.state = TreeState()
        self.changes = 0
        self._random = PythonRandom(f"{seed}/tree")
        lags_s = [self._random.choice(_LAGS_S) for _ in range(_SERVERS)]
        self.servers = [Server(number, lag_s) for number, lag_s in enumerate(lags_s)]
        self._sessions: dict[int, Session] = {}
        self._closing: list[Session] = []
        """Closed sessions with pending responses."""
        self._last_session = _FIRST_SESSION

    # --- faults

    def go_down(self) -> None:
        self.is_down = True

    def come_up(self) -> None:
        self.is_down = False
        for session in self._sessions.values():
            session.heard_s = self.network.kernel.time()

    def hold(self, server: Server) -> Callable[[], None]:
        """Stop a server from applying changes until the returned function is called: its sessions read stale data."""
        server.held += 1

        def release() -> None:
            server.held -= 1
            self._apply(server)

        return release

    def server_of(self, host: str) -> Server | None:
        """The server that the host's latest session is connected to."""
        return next((each.server for each in reversed(self._sessions.values()) if each.host == host), None)

    def expire(self, session_id: int) -> None:
        """Expire a session now."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self.network.trace.note("tree", f"session {session_id:x} of {session.host} is over")
        deletes = [Delete(path) for path in sorted(self.state.owned_by(session_id))]
        self._commit(deletes, session_id)
        if session.connection is not None:
            session.connection.send(False, session.connection.on_lost)

    def sessions_of(self, host: str) -> list[int]:
        return [session.id for session in self._sessions.values() if session.host == host]

    def is_live(self, session_id: int) -> bool:
        return session_id in self._sessions

    # --- requests

    def connect(
        self,
        connection: Connection,
        session_id: int,
        seen: int,
        timeout_s: float,
        done: Callable[[int, list[Event]], None],
    ) -> None:
        """`done` gets the session's id, 0 if it has expired, and the watch events since change `seen`.

        A server that is behind what the session has seen does not respond, and the client tries another one.
        """
        if session_id and session_id not in self._sessions:
            connection.send(False, done, 0, [])
            return
        server = self.servers[self._random.randrange(_SERVERS)]
        if server.applied < seen:
            self.network.trace.note("tree", f"server {server.number} does not take {session_id:x}: it is behind")
            return
        if session_id:
            session = self._sessions[session_id]
        else:
            self._last_session += 1
            session = Session(self._last_session, connection.host, timeout_s, self.network.kernel.time(), server)
            self._sessions[session.id] = session
            self._check_expiry(session)
        session.server = connection.server = server
        session.connection = connection
        session.pending.clear()
        missed = [
            Event(server.changed[path][1], path)
            for path in sorted(session.watched)
            if path in server.changed and server.changed[path][0] > seen
        ]
        self._touch(session)
        self.network.trace.note("tree", f"session {session.id:x} of {session.host} is connected")
        if session_id:
            connection.send(False, done, session.id, missed)
            return
        # A new session is a change too: it begins when its server has applied everything before it.
        self._enqueue(session, _Pending(self.changes, None, session.id, None, lambda number, _: done(number, [])))

    def read(self, connection: Connection, session_id: int, request: Request, done: Done) -> None:
        """Read from the session's server. `done` gets the result or the error."""
        session = self._session_at(connection, session_id)
        if session is not None:
            self._enqueue(session, _Pending(0, request, None, None, done))

    def write(self, connection: Connection, session_id: int, change: Request, done: Done) -> None:
        """Send a change to the leader, which applies or rejects it on arrival. `done` gets the result or the error."""
        session = self._session_at(connection, session_id)
        if session is None:
            return
        answer: Any = None
        error: TreeError | None = None
        try:
            answer = change(session)
        except TreeError as rejection:
            error = rejection
        self._enqueue(session, _Pending(self.changes, None, answer, error, done))

    def _session_at(self, connection: Connection, session_id: int) -> Session | None:
        session = self._sessions.get(session_id)
        if session is None or session.connection is not connection:
            return None
        self._touch(session)
        return session

    def _enqueue(self, session: Session, pending: _Pending) -> None:
        session.pending.append(pending)
        if len(session.pending) == 1:
            self._answer(session)

    def _answer(self, session: Session) -> None:
        """Send the responses that are due, in the order of the requests."""
        pending, connection, server = session.pending, session.connection, session.server
        while connection is not None and pending and pending[0].needs <= server.applied:
            _, request, answer, error, done = pending.popleft()
            if request is not None:
                try:
                    answer = request(session)
                except TreeError as rejection:
                    error = rejection
            connection.send(False, done, answer, error)

    def _touch(self, session: Session) -> None:
        session.heard_s = self.network.kernel.time()

    def _check_expiry(self, session: Session) -> None:
        if self._sessions.get(session.id) is not session:
            return
        kernel = self.network.kernel
        if not self.is_down and session.heard_s + session.timeout_s <= kernel.time():
            self.expire(session.id)
        else:
            due_s = max(session.heard_s + session.timeout_s, kernel.time() + session.timeout_s / 10)
            kernel.call_at(due_s, self._check_expiry, session)

    # --- changes

    def change(self, operations: Sequence[Operation], session: Session) -> int:
        """Apply all or none. Returns the version of the last node that exists afterwards."""
        changed = self._commit(operations, session.id)
        versions = [node.version for node in changed.values() if node is not None]
        return versions[-1] if versions else 0

    def end(self, session: Session) -> None:
        """Close a session at the client's request. The response waits like that of any other change."""
        connection, session.connection = session.connection, None
        self.expire(session.id)
        session.connection = connection
        self._closing.append(session)

    def _commit(self, operations: Sequence[Operation], owner: int) -> dict[str, Any]:
        change = self.state.prepare(operations, owner)
        if self.audit is not None:
            self.audit(operations, owner)
        self.state.commit(change)
        self.changes += 1
        for event in change.events:
            self.network.trace.note("tree", f"{event.kind.value} {event.path} by {owner:x}")
        kernel = self.network.kernel
        for server in self.servers:
            server.behind.append((self.changes, change))
            kernel.call_later(server.lag_s * self._random.random(), self._apply, server)
        return change.nodes

    def _apply(self, server: Server) -> None:
        """Apply everything that the leader has decided, unless the server is delayed."""
        if server.held or not server.behind:
            return
        while server.behind:
            number, change = server.behind.popleft()
            server.state.commit(change)
            server.applied = number
            for event in change.events:
                server.changed[event.path] = (number, event.kind)
            for session in self._sessions.values():
                if session.server is server and session.connection is not None:
                    for event in change.events:
                        if event.path in session.watched:
                            session.connection.send(False, session.connection.on_event, event)
            for session in (*self._sessions.values(), *self._closing):
                if session.server is server and session.pending:
                    self._answer(session)
        self._closing = [session for session in self._closing if session.pending]


logger = logging.getLogger(__name__)

SESSION_TIMEOUT_S: Final = 6.0


async def open_simulated_tree(service: TreeService, timeout_s: float = SESSION_TIMEOUT_S) -> SimulatedTree:
    """Open a session for the calling process. Raises ConnectionLost if the service is unreachable for `timeout_s`."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimulatedLoop):
        raise TypeError("a simulated tree needs a simulated process")
    tree = SimulatedTree(service, loop, timeout_s)
    await tree.exists("/")
    return tree


class SimulatedTree:
    """The client's side of one session."""

    def __init__(self, service: TreeService, loop: SimulatedLoop, timeout_s: float) -> None:
        self._service = service
        self._loop = loop
        self._timeout_s = timeout_s
        self._id = 0
        self._seen = 0
        self._connection: Connection | None = None
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
        connection = Connection(self._service, self._loop.host, lambda event: None, lambda: None)
        connection.on_event = lambda event: self._received(connection, self._notify, event)
        connection.on_lost = lambda: self._received(connection, self._expired)
        self._connection = connection

        def done(session_id: int, missed: list[Event]) -> None:
            self._received(connection, self._established, session_id, missed)

        connection.send(True, self._service.connect, connection, self._id, self._seen, self._timeout_s, done)
        self._loop.call_later(self._timeout_s / 10, self._retry, connection)

    def _retry(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connect()

    def _received(self, connection: Connection, call: Callable[..., None], *args: Any) -> None:
        """Data arrived at the machine; the process handles it when it runs."""
        change = connection.change

        def handle() -> None:
            if connection is self._connection and self._ended is None:
                self._heard_s = self._loop.time()
                self._seen = max(self._seen, change)
                call(*args)

        self._loop.call_soon(handle)

    def _established(self, session_id: int, missed: list[Event]) -> None:
        if not session_id:
            self._expired()
            return
        is_new = not self._id
        self._id = session_id
        self._connected.set_result(None)
        self._send_watched()
        if not is_new:
            self._announce(SessionEvent.CONNECTED)
        for event in missed:
            self._notify(event)

    def _tick(self) -> None:
        """Send three heartbeats per timeout, and check that the service answers."""
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
        self._connection = None
        self._fail_pending(lambda: ConnectionLost("the connection to the metadata tree was lost before the answer"))
        self._announce(SessionEvent.SUSPENDED)
        self._connect()

    def _expired(self) -> None:
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

    # --- requests

    def _send(
        self, request: Request, done: Callable[[Any, TreeError | None], None], *, is_change: bool = False
    ) -> None:
        connection = self._connection
        if connection is not None:

            def answered(answer: Any, error: TreeError | None) -> None:
                self._received(connection, done, answer, error)

            ask = self._service.write if is_change else self._service.read
            connection.send(True, ask, connection, self._id, request, answered)

    async def _request(self, request: Request, *, is_change: bool = False) -> Any:
        if self._is_closing:
            raise SessionExpired("the metadata tree was closed")
        return await self._response_to(request, is_change=is_change)

    async def _response_to(self, request: Request, *, is_change: bool) -> Any:
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

        self._send(request, done, is_change=is_change)
        return await answer

    async def _read(self, request: Request) -> Any:
        """Retry after a lost connection, for up to the session timeout."""
        until_s = self._loop.time() + self._timeout_s
        while True:
            try:
                return await self._request(request)
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
        return int(await self._request(lambda session: self._service.change(operations, session), is_change=True))

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

    def _notify(self, event: Event) -> None:
        for watcher in list(self._watchers.get(event.path, ())):
            try:
                watcher(event)
            except Exception:
                # The other watchers are still called.
                logger.exception("watcher failed: path=%s", event.path)

    def watch_once(self, paths: Sequence[str], watcher: Watcher) -> None:
        watch_each_once(self, paths, watcher)

    def watch_session(self, watcher: SessionWatcher) -> Cancel:
        self._session_watchers.append(watcher)

        def cancel() -> None:
            if watcher in self._session_watchers:
                self._session_watchers.remove(watcher)

        return cancel

    async def close(self) -> None:
        """Close the session. Without a connection it expires later."""
        if self._ended is not None or self._is_closing:
            return
        self._is_closing = True
        try:
            if self._connected.done():
                await asyncio.wait_for(self._response_to(self._service.end, is_change=True), self._timeout_s)
        except (TimeoutError, TreeError):
            logger.debug("the close was not acknowledged; the session will expire")
        finally:
            self._end(SessionExpired("the metadata tree was closed"))
