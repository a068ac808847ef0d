"""Watches that stay, made of ZooKeeper's, which end with the first event and with the connection.

Noun: the watched paths of a session, each with what was last known of it: the numbers of the changes that made it, its
data and its children.

Rule: arm, then look, then tell. A path is armed first for its children and then, by the request that also reads its
numbers, for itself: a change before that shows in the numbers, one after it in an event. An event arms anew, and
watchers are told what differs once that is answered, so that whoever reads then misses nothing. After a lost connection
everything is armed anew, and what changed meanwhile is told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from kazoo.exceptions import KazooException, NoNodeError  # type: ignore[import-untyped]
from kazoo.protocol.states import EventType  # type: ignore[import-untyped]

from penstock.cluster.errors import SessionExpired, TreeError
from penstock.cluster.tree import Cancel, Event, EventKind, SessionEvent, Watcher
from penstock.cluster.zookeeper_session import ZooKeeperSession

logger = logging.getLogger(__name__)

_KINDS: Final = {
    EventType.CREATED: EventKind.CREATED,
    EventType.DELETED: EventKind.DELETED,
    EventType.CHANGED: EventKind.CHANGED,
}


class Numbers(NamedTuple):
    """Of the transactions that created the node, last changed its data, and last changed the set of its children."""

    created: int
    changed: int
    children: int
    child_count: int


class ZooKeeperWatches:
    """All watches of a session; told of connections by `session_event`."""

    def __init__(self, session: ZooKeeperSession, chroot: str) -> None:
        self._session = session
        self._chroot = chroot
        self._watched: dict[str, _Watched] = {}

    def watch(self, path: str, watcher: Watcher) -> Cancel:
        watched = self._watched.get(path)
        if watched is None:
            full = (self._chroot + path).rstrip("/") or "/"
            watched = self._watched[path] = _Watched(self._session, path, full)
            watched.arm()
        watchers = watched.watchers
        watchers.append(watcher)

        def cancel() -> None:
            if watcher in watchers:
                watchers.remove(watcher)
                if not watchers and self._watched.get(path) is watched:
                    # What is armed ends with its next event, of which nobody hears.
                    del self._watched[path]

        return cancel

    def session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            for watched in list(self._watched.values()):
                watched.arm_anew()
        elif event is SessionEvent.EXPIRED:
            self._watched.clear()


class _Watched:
    """One path."""

    def __init__(self, session: ZooKeeperSession, path: str, full_path: str) -> None:
        self.watchers: list[Watcher] = []
        self._session = session
        self._path = path
        self._full_path = full_path
        self._seen: Numbers | None = None
        self._is_known = False  # whether `_seen` is an answer
        self._round = 0  # of arming: answers to an earlier one say nothing
        self._is_arming = False
        self._heard: list[EventKind] = []
        self._heard_since: list[EventKind] = []  # while arming: maybe newer than what is being read
        # One object each for all rounds: kazoo keeps sets, and would call each of several.
        self._on_node = session.on_loop(self._node_event)
        self._on_children = session.on_loop(self._children_event)

    def arm_anew(self) -> None:
        """What was armed is gone with its connection."""
        self._is_arming = False
        self.arm()

    def arm(self) -> None:
        if self._is_arming:
            return
        self._is_arming = True
        self._heard += self._heard_since
        self._heard_since = []
        self._round += 1
        this_round = self._round
        full_path = self._full_path
        try:
            # A watch that is not armed again would be lost: there is no "busy" for it.
            children = self._session.ask(
                lambda client: client.get_children_async(full_path, self._on_children), must_wait=True
            )
            node = self._session.ask(lambda client: client.exists_async(full_path, self._on_node), must_wait=True)
        except SessionExpired:
            return  # And so have its watches.
        node.add_done_callback(lambda _: self._armed(this_round, children.exception(), node))

    def _armed(self, this_round: int, children_error: BaseException | None, node: Any) -> None:
        if this_round != self._round:
            return
        self._is_arming = False
        error = node.exception() or (None if isinstance(children_error, NoNodeError) else children_error)
        if isinstance(error, TreeError):
            return  # With the connection, which arms anew when it is back; or with the session.
        if error is not None:
            reason = type(error).__name__ if isinstance(error, KazooException) else str(error)
            logger.error("%s cannot be watched: %s", self._path, reason)
            return
        stat = node.result()
        now = None if stat is None else Numbers(stat.czxid, stat.mzxid, stat.pzxid, stat.numChildren)
        if children_error is not None and now is not None:
            self._heard.append(EventKind.CREATED)  # Between the two requests: its children are not armed.
            self.arm()
            return
        before, was_known, heard = self._seen, self._is_known, self._heard
        self._seen, self._is_known, self._heard = now, True, []
        kinds = list(differences(before, now)) if was_known else []
        # What came and went in between leaves no difference, but was heard of.
        for kind in kinds or dict.fromkeys(heard):
            self._tell(Event(kind, self._path))
        if self._heard_since:
            self.arm()

    def _children_event(self, event: Any) -> None:
        if event.type == EventType.CHILD:
            self._hear(EventKind.CHILDREN)
        # The end of the node is told to whoever watches the node, too; that of the connection, to the session.

    def _node_event(self, event: Any) -> None:
        kind = _KINDS.get(event.type)
        if kind is not None:
            self._hear(kind)

    def _hear(self, kind: EventKind) -> None:
        self._heard_since.append(kind)
        self.arm()

    def _tell(self, event: Event) -> None:
        for watcher in list(self.watchers):
            try:
                watcher(event)
            except Exception:
                # The others are told all the same.
                logger.exception("a watcher of %s failed", self._path)


def differences(before: Numbers | None, now: Numbers | None) -> Iterator[EventKind]:
    """What happened to a node between two looks at it."""
    if before is not None and (now is None or now.created != before.created):
        yield EventKind.DELETED
    if now is None:
        return
    if before is None or now.created != before.created:
        yield EventKind.CREATED
        if now.child_count:
            yield EventKind.CHILDREN
        return
    if now.changed != before.changed:
        yield EventKind.CHANGED
    if now.children != before.children:
        yield EventKind.CHILDREN
