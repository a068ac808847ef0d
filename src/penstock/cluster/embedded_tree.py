"""The metadata tree of a single broker, in a file of its own.

Noun: a session that is the process: ephemeral nodes are in memory only, everything else in a journal (`journal`).

Rule: changes are made one after another: decided, appended and synced beside the event loop, then seen by reads and
watches, then answered. So nothing is seen that a power loss could take back. Numbers that nodes are created with are
reserved in the journal by the million, since those of ephemeral nodes must not come again after a restart either.
Cancelling whoever waits does not cancel a change. A full disk refuses a change and leaves everything as it was; any
other failure of the disk leaves it unknown what is on it, so the tree answers nothing more until it is opened again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.cluster.errors import NoNode, SessionExpired, TreeBusy, TreeError, TreeFailed, TreeInUse
from penstock.cluster.journal import (
    Entry,
    Journal,
    create_journal,
    open_journal,
    remove_unfinished,
    reservation,
    settle_name,
)
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
from penstock.cluster.tree_state import Change, TreeState
from penstock.log.checkpoints import make_durable_folder, parent_folder
from penstock.log.sync_failures import forget_failed_sync, has_failed_sync, note_failed_sync
from penstock.runtime.files import Files, Lock
from penstock.runtime.randomness import Random
from penstock.runtime.workers import Outcome, Workers, WorkersError

logger = logging.getLogger(__name__)

JOURNAL_FILE: Final = "tree.journal"
LOCK_FILE: Final = "tree.lock"

_SESSION = 1
_WAITING_MAX = 10_000
_CREATED_AT_ONCE = 1_000_000
_REWRITE_BYTES = 1024 * 1024
_REWRITE_FACTOR = 4
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


class _Waiting(NamedTuple):
    operations: tuple[Operation, ...]
    answer: asyncio.Future[Change]


def open_embedded_tree(
    files: Files, folder: str, workers: Workers, random: Random, *, rewrite_bytes: int = _REWRITE_BYTES
) -> EmbeddedTree:
    """The tree kept in `folder`, which is made if it is missing. TreeInUse, DamagedTree, TreeFailed. Blocks."""
    folder = folder.rstrip("/") or "/"
    path = f"{folder}/{JOURNAL_FILE}"
    try:
        make_durable_folder(files, folder)
        lock = _take_lock(files, folder)
        try:
            remove_unfinished(files, path)
            loaded = open_journal(files, path)
            state = TreeState() if loaded is None else loaded.state
            journal = (
                create_journal(files, path, random, state.persistent(), 0, 0) if loaded is None else loaded.journal
            )
            if loaded is not None and has_failed_sync(files, folder):
                # The last change may be in the page cache alone, and every sync from here on would pass over it.
                journal.close()
                journal = create_journal(files, path, random, state.persistent(), state.last_created, journal.sequence)
            # A process that was killed may have left a name that is not durable.
            settle_name(files, path)
            forget_failed_sync(files, folder)
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise TreeFailed(folder, str(error)) from error
    return EmbeddedTree(files, path, workers, random, lock, journal, state, rewrite_bytes)


def _take_lock(files: Files, folder: str) -> Lock:
    try:
        return files.lock(f"{folder}/{LOCK_FILE}")
    except BlockingIOError as error:
        raise TreeInUse(folder, error.strerror or "locked by another holder") from error


class EmbeddedTree:
    """An open tree; see `penstock.cluster.tree.Tree`."""

    def __init__(
        self,
        files: Files,
        path: str,
        workers: Workers,
        random: Random,
        lock: Lock,
        journal: Journal,
        state: TreeState,
        rewrite_bytes: int,
    ) -> None:
        self._files = files
        self._path = path
        self._workers = workers
        self._random = random
        self._lock = lock
        self._journal = journal
        self._state = state
        self._created_reserved = state.last_created  # what the journal says may have been given away
        self._rewrite_bytes = rewrite_bytes
        self._rewrite_at = self._next_rewrite()
        self._waiting: deque[_Waiting] = deque()
        self._busy = False
        self._ended: TreeError | None = None
        self._closing = False
        self._idle: asyncio.Future[None] | None = None
        self._watchers: dict[str, list[Watcher]] = {}
        self._session_watchers: list[SessionWatcher] = []

    @property
    def session_id(self) -> int:
        return _SESSION

    # Reads.

    async def get(self, path: str) -> Node:
        self._require_open()
        check_path(path)
        node = self._state.node(path)
        if node is None:
            raise NoNode(path)
        return node.seen()

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        self._require_open()
        found = [self._state.node(path) for path in paths]
        return [None if node is None else node.seen() for node in found]

    async def exists(self, path: str) -> bool:
        self._require_open()
        check_path(path)
        return self._state.node(path) is not None

    async def children(self, path: str) -> list[str]:
        self._require_open()
        check_path(path)
        return self._state.children(path)

    # Changes.

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        await self._change((Create(path, data, ephemeral),))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        change = await self._change((Set(path, data, version),))
        node = change.nodes[path]
        if node is None:
            raise NoNode(path)
        return node.version

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._change((Delete(path, version),))

    async def multi(self, operations: Sequence[Operation]) -> None:
        await self._change(tuple(operations))

    # Watches and the session.

    def watch(self, path: str, watcher: Watcher) -> Cancel:
        check_path(path)
        watchers = self._watchers.setdefault(path, [])
        watchers.append(watcher)

        def cancel() -> None:
            if watcher in watchers:
                watchers.remove(watcher)
                if not watchers and self._watchers.get(path) is watchers:
                    del self._watchers[path]

        return cancel

    def watch_session(self, watcher: SessionWatcher) -> Cancel:
        self._session_watchers.append(watcher)

        def cancel() -> None:
            if watcher in self._session_watchers:
                self._session_watchers.remove(watcher)

        return cancel

    async def close(self) -> None:
        self._closing = True
        if self._busy:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)
        self._end(SessionExpired("the metadata tree was closed"))

    # The way of a change.

    async def _change(self, operations: tuple[Operation, ...]) -> Change:
        self._require_open()
        if self._closing:
            raise SessionExpired("the metadata tree is being closed")
        if len(self._waiting) >= _WAITING_MAX:
            raise TreeBusy(len(self._waiting))
        answer: asyncio.Future[Change] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(operations, answer))
        if not self._busy:
            self._busy = True
            self._next()
        return await answer

    def _next(self) -> None:
        """Begin with the next change, or with the rewriting that is due."""
        if self._ended is None and self._journal.size >= self._rewrite_at:
            self._beside(self._rewrite, self._rewritten)
            return
        while self._waiting:
            operations, answer = self._waiting.popleft()
            if self._ended is not None:
                _refuse(answer, self._ended)
                continue
            try:
                change = self._state.prepare(operations, _SESSION)
            except TreeError as error:
                _refuse(answer, error)
                continue
            entries = self._entries(change)
            if change.last_created > self._created_reserved:
                entries.append(reservation(change.last_created + _CREATED_AT_ONCE))
            if entries:
                self._append(change, entries, answer)
                return
            self._apply(change, answer)
        self._busy = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _entries(self, change: Change) -> list[Entry]:
        """What of a change outlives the session."""
        entries: list[Entry] = []
        for path, node in change.nodes.items():
            if node is not None and node.owner is None:
                entries.append(Entry(path, node.data, node.version, node.created))
            else:
                before = self._state.node(path)
                if before is not None and before.owner is None:
                    entries.append(Entry(path, None, 0))
        return entries

    def _append(self, change: Change, entries: list[Entry], answer: asyncio.Future[Change]) -> None:
        def appended(outcome: Outcome[None]) -> None:
            if outcome.error is None:
                if change.last_created > self._created_reserved:
                    self._created_reserved = change.last_created + _CREATED_AT_ONCE
                self._apply(change, answer)
            else:
                _refuse(answer, self._failure(outcome.error))
            self._next()

        self._beside(lambda: self._write(entries), appended)

    def _write(self, entries: list[Entry]) -> None:
        try:
            self._journal.append(entries)
        except TreeFailed:
            note_failed_sync(self._files, parent_folder(self._path))
            raise

    def _beside(self, work: Callable[[], None], done: Callable[[Outcome[None]], None]) -> None:
        # `done` always comes from the loop, whatever workers there are: a thousand changes that are finished at once
        # must not stand on one another's stack.
        loop = asyncio.get_running_loop()
        try:
            self._workers.run(work, lambda outcome: _post(loop, done, outcome))
        except WorkersError as error:
            loop.call_soon(done, Outcome(None, error))

    def _apply(self, change: Change, answer: asyncio.Future[Change]) -> None:
        self._state.commit(change)
        if not answer.done():
            answer.set_result(change)
        loop = asyncio.get_running_loop()
        for event in change.events:
            if event.path in self._watchers:
                loop.call_soon(self._tell, event)

    def _tell(self, event: Event) -> None:
        for watcher in list(self._watchers.get(event.path, ())):
            try:
                watcher(event)
            except Exception:
                # The others are told all the same.
                logger.exception("a watcher of %s failed", event.path)

    def _failure(self, error: BaseException) -> TreeError:
        """What a change that was not made is answered with; the end, unless everything is as before."""
        if isinstance(error, WorkersError):
            return TreeBusy(len(self._waiting))
        if isinstance(error, TreeError) and not isinstance(error, TreeFailed):
            return error
        return self._end(error if isinstance(error, TreeFailed) else TreeFailed(self._path, str(error)))

    # Rewriting.

    def _rewrite(self) -> None:
        # Nothing changes the state meanwhile: changes wait for this, and the loop only reads.
        nodes = self._state.persistent()
        reserved, sequence = self._created_reserved, self._journal.sequence
        journal = create_journal(self._files, self._path, self._random, nodes, reserved, sequence)
        old, self._journal = self._journal, journal
        old.close()
        try:
            settle_name(self._files, self._path)
        except OSError as error:
            raise TreeFailed(self._path, f"the name of its new file may not be durable: {error}") from error

    def _rewritten(self, outcome: Outcome[None]) -> None:
        error = outcome.error
        if error is None:
            self._rewrite_at = self._next_rewrite()
        elif isinstance(error, WorkersError) or (isinstance(error, OSError) and error.errno in _PASSING):
            logger.warning("%s was not rewritten and grows on: %s", self._path, error)
            self._rewrite_at = self._journal.size + self._rewrite_bytes
        else:
            self._failure(error)
        self._next()

    def _next_rewrite(self) -> int:
        return max(self._rewrite_bytes, _REWRITE_FACTOR * self._journal.snapshot_bytes)

    # The end.

    def _require_open(self) -> None:
        if self._ended is not None:
            # Without the traces of everybody who was told before.
            raise self._ended.with_traceback(None)

    def _end(self, reason: TreeError) -> TreeError:
        if self._ended is not None:
            return self._ended
        self._ended = reason
        self._journal.close()
        self._lock.release()
        self._watchers.clear()
        if isinstance(reason, TreeFailed):
            logger.error("%s", reason)
            for watcher in list(self._session_watchers):
                asyncio.get_running_loop().call_soon(watcher, SessionEvent.EXPIRED)
        return reason


def _post(loop: asyncio.AbstractEventLoop, done: Callable[[Outcome[None]], None], outcome: Outcome[None]) -> None:
    loop.call_soon(done, outcome)


def _refuse(answer: asyncio.Future[Change], error: TreeError) -> None:
    if not answer.done():
        answer.set_exception(error)
