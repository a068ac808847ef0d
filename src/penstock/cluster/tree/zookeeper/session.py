"""One ZooKeeper session through kazoo, and watches that last as long as it.

Requests go in on the event loop; answers and events come out on the event loop; kazoo's threads stay behind it. The
session is the one it was opened with: kazoo starts a new one when it expires, but requests and state changes pass one
lock, so no request ever reaches the new one. Requests reach the server in order. A request without a connection waits
for one, up to a session timeout; a request whose connection breaks fails with ConnectionLost. At most 64 are given to
kazoo at once, because it writes a byte into a pipe for each, and a full pipe would block the loop.

ZooKeeper's watches end with the first event and with the connection. A path is armed first for its children, then for
itself by the request that also reads its transaction ids: an earlier change shows in the ids, a later one as an event.
After each event, and after a reconnect, the path is armed again and the differences are reported.

Many nodes are watched by ZooKeeper's SetWatches, which kazoo does not have: one request for a hundred paths, answered
by a header only. It is made for reconnecting clients and reports at once what changed since a transaction id; with the
largest id it only watches. Such a watch ends with its event; after a reconnect all are reported as changed.

    request   the transaction id; the paths to watch for data; those for creation, none; those for children, none
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import (  # type: ignore[import-untyped]
    AuthFailedError,
    ConnectionLoss,
    KazooException,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import SequentialThreadingHandler  # type: ignore[import-untyped]
from kazoo.protocol.states import (  # type: ignore[import-untyped]
    EventType,
    KazooState,
)

from penstock.cluster.errors import ConnectionLost, SessionExpired, TreeBusy, TreeError
from penstock.cluster.tree.tree import Cancel, Event, EventKind, SessionEvent, Watcher
from penstock.cluster.tree.zookeeper.ensemble import ZooKeeperConnect
from penstock.cluster.tree.zookeeper.security import NO_SECURITY, ZooKeeperSecurity

logger = logging.getLogger(__name__)

Request = Callable[[Any], Any]  # a KazooClient -> the AsyncResult of a call of it

_RETRY: Final = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
_CLOSE_TIMEOUT_S: Final = 3.0
_CLOSE_UNCONNECTED_S: Final = 0.5
_MAX_IN_FLIGHT: Final = 64
_MAX_WAITING: Final = 10_000
_INT: Final = struct.Struct("!i")
_WATCHES_HEADER: Final = struct.Struct("!qi")
_NEVER_BEFORE: Final = 2**63 - 1  # later than every transaction
_LOST: Final = (ConnectionLoss, OperationTimeoutError, SessionMovedError)
_ENDED: Final = (SessionExpiredError, AuthFailedError)
_KINDS: Final = {
    EventType.CREATED: EventKind.CREATED,
    EventType.DELETED: EventKind.DELETED,
    EventType.CHANGED: EventKind.CHANGED,
}


# --- the session


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads with shorter timeouts: it would wait for a silent server until the session is over.

    While connected it never waits longer than a third of the session, so this matters only while it connects, or in the
    middle of a message.
    """

    def __init__(self, session_timeout_s: float) -> None:
        super().__init__()
        self._max_wait_s = session_timeout_s / 3

    def create_connection(self, *args: Any, timeout: float, **options: Any) -> Any:
        return super().create_connection(*args, timeout=min(timeout, self._max_wait_s), **options)

    def select(self, read: Any, write: Any, failed: Any, timeout: float | None = None) -> Any:
        max_wait_s = self._max_wait_s if timeout is None else min(timeout, self._max_wait_s)
        return super().select(read, write, failed, max_wait_s)


class _Waiting(NamedTuple):
    request: Request
    answer: asyncio.Future[Any]
    since_s: float


class ZooKeeperSession:
    """Create it on its event loop, `open` it, and `close` it."""

    def __init__(
        self, connect: ZooKeeperConnect, session_timeout_ms: int, security: ZooKeeperSecurity = NO_SECURITY
    ) -> None:
        """ZooKeeperAuthFailed if the security cannot be set up."""
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        timeout_s = session_timeout_ms / 1000
        self._client = KazooClient(
            connect.hosts,
            timeout=timeout_s,
            handler=_Handler(timeout_s),
            connection_retry=_RETRY,
            logger=_kazoo_logger(),
            **security.client_options(),
        )
        self._listener: Callable[[SessionEvent], None] = lambda event: None
        # Shared by kazoo's threads and the loop.
        self._gate = threading.Lock()
        self._is_over = False
        self._posted: deque[Callable[[], None]] = deque()
        self._is_waking = False
        # Used on the loop only.
        self.session_id = 0
        self._ended: SessionExpired | None = None
        self._is_closing = False
        self._connected = False
        self._stopping: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._timeout_s = timeout_s
        self._suspended_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[_Waiting] = deque()
        self._asked: set[asyncio.Future[Any]] = set()  # given to kazoo

    @property
    def is_connected(self) -> bool:
        return self._connected and self._ended is None

    def listen(self, listener: Callable[[SessionEvent], None]) -> None:
        """Call `listener` with the events of the session, before waiting requests continue."""
        self._listener = listener

    async def open(self, timeout_s: float) -> None:
        """TimeoutError."""
        self._client.add_listener(self._state_changed)
        async with asyncio.timeout(timeout_s):
            await run_in_thread(self._client.start_async, "zookeeper-start")
            await self._opened

    def ask(self, request: Request, *, must_wait: bool = False) -> asyncio.Future[Any]:
        """The future answer; it fails with KazooException, ConnectionLost or SessionExpired.

        Raises SessionExpired, or TreeBusy unless `must_wait`.
        """
        if self._ended is not None:
            raise self._ended.with_traceback(None)
        if self._is_closing:
            raise SessionExpired("the ZooKeeper session is being closed")
        if len(self._waiting) >= _MAX_WAITING and not must_wait:
            raise TreeBusy(len(self._waiting))
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(_Waiting(request, answer, self._loop.time()))
        self._send()
        self._limit_waiting()
        return answer

    def on_loop(self, callback: Callable[[Any], None]) -> Callable[[Any], None]:
        """A watcher for kazoo, which calls `callback` on the loop."""
        return lambda event: self._post(partial(callback, event))

    async def close(self) -> None:
        """Earlier requests are answered, if there is a connection."""
        if self._is_closing:
            return
        self._is_closing = True
        timeout_s = _CLOSE_TIMEOUT_S if self.is_connected else _CLOSE_UNCONNECTED_S
        asked = [*self._asked, *(each.answer for each in self._waiting)]
        if asked and self.is_connected:
            await asyncio.wait(asked, timeout=timeout_s)
        self._finish(SessionExpired("the ZooKeeper session is closed"))
        await (self._stop_client(timeout_s) if self._stopping is None else self._stopping)

    # --- in kazoo's threads

    def _state_changed(self, state: str) -> None:
        if state == KazooState.LOST:
            with self._gate:
                self._is_over = True
        # The id is read here: when the loop runs, it may be that of another session.
        client_id = self._client.client_id
        self._post(partial(self._enter, state, 0 if client_id is None else client_id[0]))

    def _post(self, call: Callable[[], None]) -> None:
        # One wake-up for many answers. The order of the two lines here, and of those in `_take`, loses none.
        self._posted.append(call)
        if not self._is_waking:
            self._is_waking = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._take)

    # --- on the loop

    def _take(self) -> None:
        self._is_waking = False
        while self._posted:
            self._posted.popleft()()
        self._send()

    def _send(self) -> None:
        while self._waiting and self._connected and len(self._asked) < _MAX_IN_FLIGHT:
            request, answer, _ = self._waiting.popleft()
            if answer.done():
                continue
            with self._gate:
                result = None if self._is_over else request(self._client)
            if result is None:
                _fail(answer, SessionExpired("the ZooKeeper session has expired"))
                continue
            self._asked.add(answer)
            # Called in one of kazoo's threads.
            result.rawlink(partial(self._answered, answer))

    def _limit_waiting(self) -> None:
        """Start the timer that ends waiting for a connection."""
        if self._waiting and not self._connected and self._timer is None and self._ended is None:
            since_s = max(self._waiting[0].since_s, self._suspended_s)
            self._timer = self._loop.call_at(since_s + self._timeout_s, self._waited)

    def _waited(self) -> None:
        self._timer = None
        latest_s = self._loop.time() - self._timeout_s
        while self._waiting and not self._connected and max(self._waiting[0].since_s, self._suspended_s) <= latest_s:
            error = ConnectionLost(f"no connection to ZooKeeper at {self._connect} for {self._timeout_s:.1f} s")
            _fail(self._waiting.popleft().answer, error)
        self._limit_waiting()

    def _answered(self, answer: asyncio.Future[Any], result: Any) -> None:
        self._post(partial(self._settle, answer, result))

    def _settle(self, answer: asyncio.Future[Any], result: Any) -> None:
        self._asked.discard(answer)
        error = result.exception
        if error is None:
            if not answer.done():
                answer.set_result(result.value)
        elif isinstance(error, _LOST):
            _fail(answer, ConnectionLost("the connection to ZooKeeper broke before it answered"))
        elif isinstance(error, _ENDED):
            _fail(answer, SessionExpired("the ZooKeeper session has expired"))
        else:
            _fail(answer, error)

    def _enter(self, state: str, session_id: int) -> None:
        if self._ended is not None or self._is_closing:
            return
        if state == KazooState.CONNECTED:
            if self.session_id not in (0, session_id):
                return  # kazoo has opened another session; the end of this one is reported next
            self.session_id = session_id
            self._connected = True
            if not self._opened.done():
                self._opened.set_result(None)
            # Requests of the listener go first: watches are armed again before any read is answered.
            waiting, self._waiting = self._waiting, deque()
            self._listener(SessionEvent.CONNECTED)
            self._waiting.extend(waiting)
        elif state == KazooState.SUSPENDED:
            logger.warning("ZooKeeper connection lost, reconnecting: servers=%s", self._connect)
            self._connected = False
            self._suspended_s = self._loop.time()
            self._listener(SessionEvent.SUSPENDED)
            self._limit_waiting()
        elif self.session_id:
            logger.error("ZooKeeper session expired: session=0x%x servers=%s", self.session_id, self._connect)
            self._finish(SessionExpired("the ZooKeeper session has expired"))
            self._listener(SessionEvent.EXPIRED)
            self._stopping = self._loop.create_task(self._stop_client(_CLOSE_TIMEOUT_S))

    def _finish(self, reason: SessionExpired) -> None:
        self._ended = self._ended or reason
        self._connected = False
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        for answer in [*self._asked, *(each.answer for each in waiting)]:
            _fail(answer, reason)

    async def _stop_client(self, timeout_s: float) -> None:
        # In a thread: it waits for threads of kazoo, for a long time if a server does not answer.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await run_in_thread(partial(_stop, self._client), "zookeeper-stop")


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
        # The caller may have been cancelled: asyncio must not complain about an error that is never read.
        answer.exception()


def _stop(client: Any) -> None:
    try:
        client.stop()
        client.close()
    except (KazooException, OSError, AttributeError) as error:
        # AttributeError: kazoo's wake-up socket is closed already.
        logger.debug("kazoo did not stop cleanly: error=%s", error)


def run_in_thread(work: Callable[[], Any], name: str) -> asyncio.Future[None]:
    """Run `work` in a daemon thread, which the process does not wait for at its end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if not done.done():
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except Exception as failure:  # noqa: BLE001 - handed to the caller
            error = failure
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def _kazoo_logger() -> logging.Logger:
    """kazoo logs every attempt; that is for debugging, because this module logs what matters."""
    found = logging.getLogger(f"{__name__}.kazoo")
    if found.level == logging.NOTSET and logger.getEffectiveLevel() > logging.DEBUG:
        found.setLevel(logging.CRITICAL)
    return found


# --- watches


class TransactionIds(NamedTuple):
    """The transactions that created the node, last changed its data, and last changed its set of children."""

    created: int
    changed: int
    children: int
    child_count: int


class ZooKeeperWatches:
    """All watches of a session. `session_event` reports connections."""

    def __init__(self, session: ZooKeeperSession, chroot: str) -> None:
        self._session = session
        self._chroot = chroot
        self._watched: dict[str, _Watched] = {}
        self._once: dict[str, list[Watcher]] = {}
        self._on_once = session.on_loop(self._once_event)  # one for all, because kazoo keeps sets

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
                    # The armed watch ends with its next event.
                    del self._watched[path]

        return cancel

    def watch_once(self, paths: Sequence[str], watcher: Watcher) -> None:
        for path in paths:
            self._once.setdefault(path, []).append(watcher)
        request = SetWatches([self._chroot + path for path in paths], self._on_once)
        # The watches ended if the connection is lost, which is noticed after the reconnect, or with the session.
        with contextlib.suppress(SessionExpired):
            self._session.ask(request.ask, must_wait=True).add_done_callback(_read_failure)

    def session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            for watched in list(self._watched.values()):
                watched.rearm()
            for path in list(self._once):
                self._report_once(Event(EventKind.CHANGED, path))
        elif event is SessionEvent.EXPIRED:
            self._watched.clear()
            self._once.clear()

    def _once_event(self, event: Any) -> None:
        kind = _KINDS.get(event.type)
        if kind is not None:
            self._report_once(Event(kind, event.path.removeprefix(self._chroot)))

    def _report_once(self, event: Event) -> None:
        for watcher in self._once.pop(event.path, ()):
            try:
                watcher(event)
            except Exception:
                logger.exception("watcher failed: path=%s", event.path)


class SetWatches:
    """Watches the data of the nodes at these full paths; `watcher` is called in one of kazoo's threads."""

    type: Final = 101

    def __init__(self, paths: Sequence[str], watcher: Callable[[Any], None]) -> None:
        self._paths = paths
        self._watcher = watcher
        self._client: Any = None

    def serialize(self) -> bytes:
        parts = [_WATCHES_HEADER.pack(_NEVER_BEFORE, len(self._paths))]
        for path in self._paths:
            name = path.encode()
            parts += (_INT.pack(len(name)), name)
        return b"".join((*parts, _INT.pack(0), _INT.pack(0)))

    def deserialize(self, _: bytes, __: int) -> None:
        """Called where kazoo reads events, and before it reads those of these watches."""
        for path in self._paths:
            self._client._data_watchers[path].add(self._watcher)

    def ask(self, client: Any) -> Any:
        """Give it to a KazooClient, as its own methods do; returns the AsyncResult."""
        self._client = client
        result = client.handler.async_result()
        client._call(self, result)
        return result


def _read_failure(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled() and (error := answer.exception()) is not None and not isinstance(error, TreeError):
        logger.error("watches failed: error=%s", type(error).__name__)


class _Watched:
    """The watches of one path."""

    def __init__(self, session: ZooKeeperSession, path: str, full_path: str) -> None:
        self.watchers: list[Watcher] = []
        self._session = session
        self._path = path
        self._full_path = full_path
        self._seen: TransactionIds | None = None
        self._is_known = False  # whether `_seen` is an answer
        self._round = 0  # of arming: answers to an earlier round are ignored
        self._is_arming = False
        self._heard: list[EventKind] = []
        self._heard_since: list[EventKind] = []  # while arming: may be newer than what is being read
        # One callback each for all rounds: kazoo keeps sets, and would call several.
        self._on_node = session.on_loop(self._node_event)
        self._on_children = session.on_loop(self._children_event)

    def rearm(self) -> None:
        """After a reconnect: the armed watches ended with the connection."""
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
            # A watch that is not armed again would be lost, so TreeBusy is not an option.
            children = self._session.ask(
                lambda client: client.get_children_async(full_path, self._on_children), must_wait=True
            )
            node = self._session.ask(lambda client: client.exists_async(full_path, self._on_node), must_wait=True)
        except SessionExpired:
            return  # the watches ended with the session
        node.add_done_callback(lambda _: self._armed(this_round, children.exception(), node))

    def _armed(self, this_round: int, children_error: BaseException | None, node: Any) -> None:
        if this_round != self._round:
            return
        self._is_arming = False
        error = node.exception() or (None if isinstance(children_error, NoNodeError) else children_error)
        if isinstance(error, TreeError):
            return  # the connection is lost: armed again after a reconnect, unless the session ends
        if error is not None:
            reason = type(error).__name__ if isinstance(error, KazooException) else str(error)
            logger.error("watch failed: path=%s error=%s", self._path, reason)
            return
        stat = node.result()
        now = None if stat is None else TransactionIds(stat.czxid, stat.mzxid, stat.pzxid, stat.numChildren)
        if children_error is not None and now is not None:
            self._heard.append(EventKind.CREATED)  # between the two requests: its children are not armed
            self.arm()
            return
        before, was_known, heard = self._seen, self._is_known, self._heard
        self._seen, self._is_known, self._heard = now, True, []
        kinds = list(differences(before, now)) if was_known else []
        # A node that was created and deleted in between leaves no difference, only events.
        for kind in kinds or dict.fromkeys(heard):
            self._notify(Event(kind, self._path))
        if self._heard_since:
            self.arm()

    def _children_event(self, event: Any) -> None:
        if event.type == EventType.CHILD:
            self._hear(EventKind.CHILDREN)
        # The deletion of the node is reported to the node's watch, the end of the connection to the session.

    def _node_event(self, event: Any) -> None:
        kind = _KINDS.get(event.type)
        if kind is not None:
            self._hear(kind)

    def _hear(self, kind: EventKind) -> None:
        self._heard_since.append(kind)
        self.arm()

    def _notify(self, event: Event) -> None:
        for watcher in list(self.watchers):
            try:
                watcher(event)
            except Exception:
                logger.exception("watcher failed: path=%s", self._path)


def differences(before: TransactionIds | None, now: TransactionIds | None) -> Iterator[EventKind]:
    """What happened to a node between two reads."""
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
