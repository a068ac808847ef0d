"""The service behind simulated metadata trees: one state, and the sessions of those who use it.

Nouns: a `TreeService` at an address of the simulated network; a `Session` there; a `Wire`, one connection of a session.

Rule: everything happens at one place, one after the other, so every answer is of one moment. A wire delivers in order,
and once it has lost one message it delivers nothing more. A session of which nothing was heard for its time-out is
over, and its ephemeral nodes go with it. While the service is down nothing is heard and no session ends; when it comes
back each has its whole time-out again, as with a new leader of an ensemble.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.cluster.errors import NoNode, TreeError
from penstock.cluster.tree import Delete, Event, EventKind, Operation
from penstock.cluster.tree_state import TreeState
from penstock.testing.simulation.network import SimulatedNetwork

TREE_ADDRESS: Final = "10.0.9.1"
_FIRST_SESSION: Final = 0x1000

Audit = Callable[[Sequence[Operation], int], None]
"""Of what is going to be changed, all at once, and by which session."""


class Wire:
    """One connection between a session's host and the service. `told` takes the events that its watches bring."""

    def __init__(
        self, service: TreeService, host: str, told: Callable[[Event], None], lost: Callable[[], None]
    ) -> None:
        self.service = service
        self.host = host
        self.told = told
        self.lost = lost
        self.is_broken = False
        self.change = 0
        """The last change of which the client knows, once it has dealt with what arrived."""
        self._last_s = {True: 0.0, False: 0.0}

    def carry(self, to_service: bool, deliver: Callable[..., None], *args: Any) -> None:
        """Deliver it at the other end, after everything that went before in this direction; or never."""
        network = self.service.network
        ends = (self.host, self.service.address) if to_service else (self.service.address, self.host)
        arrival_s = max(network.arrival_s(*ends), self._last_s[to_service])
        self._last_s[to_service] = arrival_s
        change = 0 if to_service else self.service.changes
        network.kernel.call_at(arrival_s, self._arrive, ends, change, deliver, args)

    def _arrive(self, ends: tuple[str, str], change: int, deliver: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.service.is_down or not self.service.network.reaches(*ends):
            self.is_broken = True
        if not self.is_broken:
            self.change = max(self.change, change)
            deliver(*args)


class Session:
    """What the service knows of a client."""

    __slots__ = ("heard_s", "host", "id", "timeout_s", "watched", "wire")

    def __init__(self, number: int, host: str, timeout_s: float, heard_s: float) -> None:
        self.id = number
        self.host = host
        self.timeout_s = timeout_s
        self.heard_s = heard_s
        self.wire: Wire | None = None
        self.watched: set[str] = set()


class TreeService:
    """One for a run."""

    def __init__(self, network: SimulatedNetwork, address: str = TREE_ADDRESS) -> None:
        self.network = network
        self.address = address
        self.is_down = False
        self.audit: Audit | None = None
        """Is shown every change before it is made."""
        self.state = TreeState()
        self.changes = 0
        self._changed: dict[str, tuple[int, EventKind]] = {}
        self._sessions: dict[int, Session] = {}
        self._last_session = _FIRST_SESSION

    # --- what may happen to it

    def go_down(self) -> None:
        self.is_down = True

    def come_up(self) -> None:
        self.is_down = False
        for session in self._sessions.values():
            session.heard_s = self.network.kernel.time()

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
        """`done` gets the session's number, 0 if it is over, and what has changed under its watches since `seen`."""
        if session_id and session_id not in self._sessions:
            wire.carry(False, done, 0, [])
            return
        if session_id:
            session = self._sessions[session_id]
        else:
            self._last_session += 1
            session = Session(self._last_session, wire.host, timeout_s, self.network.kernel.time())
            self._sessions[session.id] = session
            self._watch_over(session)
        session.wire = wire
        missed = [
            Event(self._changed[path][1], path)
            for path in sorted(session.watched)
            if path in self._changed and self._changed[path][0] > seen
        ]
        self._heard(session)
        self.network.trace.note("tree", f"session {session.id:x} of {session.host} is connected")
        wire.carry(False, done, session.id, missed)

    def ask(self, wire: Wire, session_id: int, question: Callable[[Session], Any], done: Callable[..., None]) -> None:
        """`done` gets the answer, or the error, of a question about the state."""
        session = self._sessions.get(session_id)
        if session is None or session.wire is not wire:
            return
        self._heard(session)
        try:
            answer, error = question(session), None
        except TreeError as refusal:
            answer, error = None, refusal
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

    # --- questions

    def change(self, operations: Sequence[Operation], session: Session) -> int:
        """Make all of them or none; the version of the last node that is there after it."""
        changed = self._commit(operations, session.id)
        versions = [node.version for node in changed.values() if node is not None]
        return versions[-1] if versions else 0

    def children(self, path: str) -> list[str]:
        return self.state.children(path)

    def require(self, path: str) -> Any:
        node = self.state.node(path)
        if node is None:
            raise NoNode(path)
        return node.seen()

    def end(self, session: Session) -> None:
        """The client says farewell."""
        session.wire = None
        self.expire(session.id)

    def _commit(self, operations: Sequence[Operation], owner: int) -> dict[str, Any]:
        change = self.state.prepare(operations, owner)
        if self.audit is not None:
            self.audit(operations, owner)
        self.state.commit(change)
        self.changes += 1
        for event in change.events:
            self.network.trace.note("tree", f"{event.kind.value} {event.path} by {owner:x}")
            self._changed[event.path] = (self.changes, event.kind)
            for session in self._sessions.values():
                if event.path in session.watched and session.wire is not None:
                    session.wire.carry(False, session.wire.told, event)
        return change.nodes
