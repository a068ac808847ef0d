"""The service behind simulated metadata trees: an ensemble of servers, and the sessions of those who use it.

Nouns: a `TreeService` at an address of the simulated network; a `Server`, a member of its ensemble, with the state as
far as it has applied the changes; a `Session`; a `Wire`, one connection of a session with one server.

Rule: as ZooKeeper does it. Changes are decided by the leader, one after the other; every server applies them in that
order, each after a delay of its own. A session is connected to one server, which answers its reads from what it has
applied: another server may be further. The answer to a change, also to one that is rejected, waits until the server has
applied everything before it, and later requests of the session wait for that answer: a session sees its own changes,
and whoever makes a change that only checks something sees everything that was there before. A server that is behind
what a session has seen does not take the session on: no session ever sees time go back. Watches tell when the session's
server applies a change, before the answers that show it.

A wire delivers in order, and once it has lost one message it delivers nothing more. A session of which nothing was
heard for its time-out is over, and its ephemeral nodes go with it. While the service is down nothing is heard and no
session ends; when it comes back each has its whole time-out again, as with a new leader of an ensemble. Clients connect
to followers only (`leaderServes=no`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random as PythonRandom
from typing import Any, Final, NamedTuple

from penstock.cluster.errors import NoNode, TreeError
from penstock.cluster.tree import Delete, Event, EventKind, Node, Operation
from penstock.cluster.tree_state import Change, TreeState
from penstock.testing.simulation.network import SimulatedNetwork

TREE_ADDRESS: Final = "10.0.9.1"
_FIRST_SESSION: Final = 0x1000
_SERVERS: Final = 3
_APART_S: Final = 1e-9
# Of a server that is as fast as the leader, of one that is busy, and of one with a slow disk.
_LAGS_S: Final = (0.0003, 0.003, 0.03)

Audit = Callable[[Sequence[Operation], int], None]
"""Of what is going to be changed, all at once, and by which session."""
Question = Callable[["Session"], Any]
Done = Callable[[Any, TreeError | None], None]


class Wire:
    """One connection between a session's host and the service. `told` takes the events that its watches bring."""

    def __init__(
        self, service: TreeService, host: str, told: Callable[[Event], None], lost: Callable[[], None]
    ) -> None:
        self.service = service
        self.host = host
        self.told = told
        self.lost = lost
        self.server: Server | None = None
        """The one at the other end, once it has taken the session on."""
        self.is_broken = False
        self.change = 0
        """The last change of which the client knows, once it has dealt with what arrived."""
        self._last_s = {True: 0.0, False: 0.0}

    def carry(self, to_service: bool, deliver: Callable[..., None], *args: Any) -> None:
        """Deliver it at the other end, after everything that went before in this direction; or never."""
        network = self.service.network
        ends = (self.host, self.service.address) if to_service else (self.service.address, self.host)
        # What is due at one instant happens in any order: what follows arrives a little later.
        arrival_s = max(network.arrival_s(*ends), self._last_s[to_service] + _APART_S)
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
        """The last change of each path, as far as it knows."""
        self.lag_s = lag_s
        self.held = 0
        """How many faults keep it from applying anything."""
        self.behind: deque[tuple[int, Change]] = deque()
        """What the leader has told it, and it has not applied."""


class _Pending(NamedTuple):
    """A request whose answer waits for its turn: a read is made then, a change was made when it came."""

    needs: int
    question: Question | None
    answer: Any
    error: TreeError | None
    done: Done


class Session:
    """What the service knows of a client."""

    __slots__ = ("heard_s", "host", "id", "pending", "server", "timeout_s", "watched", "wire")

    def __init__(self, number: int, host: str, timeout_s: float, heard_s: float, server: Server) -> None:
        self.id = number
        self.host = host
        self.timeout_s = timeout_s
        self.heard_s = heard_s
        self.server = server
        self.wire: Wire | None = None
        self.watched: set[str] = set()
        self.pending: deque[_Pending] = deque()

    def require(self, path: str) -> Node:
        """The node as the session's server knows it. NoNode."""
        node = self.server.state.node(path)
        if node is None:
            raise NoNode(path)
        return node.seen()


class TreeService:
    """One for a run. `state` is the leader's: all that is decided."""

    def __init__(self, network: SimulatedNetwork, address: str = TREE_ADDRESS, seed: int | str = 0) -> None:
        self.network = network
        self.address = address
        self.is_down = False
        self.audit: Audit | None = None
        """Is shown every change before it is made."""
        self.state = TreeState()
        self.changes = 0
        self._random = PythonRandom(f"{seed}/tree")
        lags_s = [self._random.choice(_LAGS_S) for _ in range(_SERVERS)]
        self.servers = [Server(number, lag_s) for number, lag_s in enumerate(lags_s)]
        self._sessions: dict[int, Session] = {}
        self._closing: list[Session] = []
        """Over, but for the answers that they wait for."""
        self._last_session = _FIRST_SESSION

    # --- what may happen to it

    def go_down(self) -> None:
        self.is_down = True

    def come_up(self) -> None:
        self.is_down = False
        for session in self._sessions.values():
            session.heard_s = self.network.kernel.time()

    def hold(self, server: Server) -> Callable[[], None]:
        """Let a server apply nothing until what is returned is called: its sessions read what was."""
        server.held += 1

        def release() -> None:
            server.held -= 1
            self._apply(server)

        return release

    def server_of(self, host: str) -> Server | None:
        """The server that the host's latest session is connected to."""
        return next((each.server for each in reversed(self._sessions.values()) if each.host == host), None)

    def expire(self, session_id: int) -> None:
        """End a session now, whatever was heard of it."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self.network.trace.note("tree", f"session {session_id:x} of {session.host} is over")
        deletes = [Delete(path) for path in sorted(self.state.owned_by(session_id))]
        self._commit(deletes, session_id)
        if session.wire is not None:
            session.wire.carry(False, session.wire.lost)

    def sessions_of(self, host: str) -> list[int]:
        return [session.id for session in self._sessions.values() if session.host == host]

    def is_live(self, session_id: int) -> bool:
        return session_id in self._sessions

    # --- what arrives by wires

    def connect(
        self, wire: Wire, session_id: int, seen: int, timeout_s: float, done: Callable[[int, list[Event]], None]
    ) -> None:
        """`done` gets the session's number, 0 if it is over, and what has changed under its watches since `seen`.

        Nothing comes from a server that is behind what the session has seen: the client tries another.
        """
        if session_id and session_id not in self._sessions:
            wire.carry(False, done, 0, [])
            return
        server = self.servers[self._random.randrange(_SERVERS)]
        if server.applied < seen:
            self.network.trace.note("tree", f"server {server.number} does not take {session_id:x}: it is behind")
            return
        if session_id:
            session = self._sessions[session_id]
        else:
            self._last_session += 1
            session = Session(self._last_session, wire.host, timeout_s, self.network.kernel.time(), server)
            self._sessions[session.id] = session
            self._watch_over(session)
        session.server = wire.server = server
        session.wire = wire
        session.pending.clear()
        missed = [
            Event(server.changed[path][1], path)
            for path in sorted(session.watched)
            if path in server.changed and server.changed[path][0] > seen
        ]
        self._heard(session)
        self.network.trace.note("tree", f"session {session.id:x} of {session.host} is connected")
        if session_id:
            wire.carry(False, done, session.id, missed)
            return
        # A new session is a change too: it begins where its server has applied all that was before it.
        self._enqueue(session, _Pending(self.changes, None, session.id, None, lambda number, _: done(number, [])))

    def read(self, wire: Wire, session_id: int, question: Question, done: Done) -> None:
        """`done` gets the answer, or the error, of a question about what the session's server knows."""
        session = self._session_at(wire, session_id)
        if session is not None:
            self._enqueue(session, _Pending(0, question, None, None, done))

    def write(self, wire: Wire, session_id: int, change: Question, done: Done) -> None:
        """The same for a change, which the leader makes or rejects as it comes."""
        session = self._session_at(wire, session_id)
        if session is None:
            return
        answer: Any = None
        error: TreeError | None = None
        try:
            answer = change(session)
        except TreeError as refusal:
            error = refusal
        self._enqueue(session, _Pending(self.changes, None, answer, error, done))

    def _session_at(self, wire: Wire, session_id: int) -> Session | None:
        session = self._sessions.get(session_id)
        if session is None or session.wire is not wire:
            return None
        self._heard(session)
        return session

    def _enqueue(self, session: Session, pending: _Pending) -> None:
        session.pending.append(pending)
        if len(session.pending) == 1:
            self._answer(session)

    def _answer(self, session: Session) -> None:
        """What may be answered by now, in the order in which it was asked."""
        pending, wire, server = session.pending, session.wire, session.server
        while wire is not None and pending and pending[0].needs <= server.applied:
            _, question, answer, error, done = pending.popleft()
            if question is not None:
                try:
                    answer = question(session)
                except TreeError as refusal:
                    error = refusal
            wire.carry(False, done, answer, error)

    def _heard(self, session: Session) -> None:
        session.heard_s = self.network.kernel.time()

    def _watch_over(self, session: Session) -> None:
        if self._sessions.get(session.id) is not session:
            return
        kernel = self.network.kernel
        if not self.is_down and session.heard_s + session.timeout_s <= kernel.time():
            self.expire(session.id)
        else:
            due_s = max(session.heard_s + session.timeout_s, kernel.time() + session.timeout_s / 10)
            kernel.call_at(due_s, self._watch_over, session)

    # --- changes

    def change(self, operations: Sequence[Operation], session: Session) -> int:
        """Make all of them or none; the version of the last node that is there after it."""
        changed = self._commit(operations, session.id)
        versions = [node.version for node in changed.values() if node is not None]
        return versions[-1] if versions else 0

    def end(self, session: Session) -> None:
        """The client says farewell, and is answered as after any other change."""
        wire, session.wire = session.wire, None
        self.expire(session.id)
        session.wire = wire
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
        """Everything that the leader has decided by now, unless the server is held up."""
        if server.held or not server.behind:
            return
        while server.behind:
            number, change = server.behind.popleft()
            server.state.commit(change)
            server.applied = number
            for event in change.events:
                server.changed[event.path] = (number, event.kind)
            for session in self._sessions.values():
                if session.server is server and session.wire is not None:
                    for event in change.events:
                        if event.path in session.watched:
                            session.wire.carry(False, session.wire.told, event)
            for session in (*self._sessions.values(), *self._closing):
                if session.server is server and session.pending:
                    self._answer(session)
        self._closing = [session for session in self._closing if session.pending]
