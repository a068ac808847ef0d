"""The metadata tree of a single broker, in a journal file.

    header   "PENSTREE", format version (u16), salt (16 bytes), end of the snapshot (u64), checksum (u32)
    record   marker (4 bytes), length (u32), sequence (u64), checksum (u32), then `length` bytes: MessagePack, a list
             of [path, data or nil, version, created]; nil for a deleted node; ["", nil, number] reserves all creation
             numbers up to that one. Format version 1 has no `created`

The journal starts with a snapshot of all nodes and continues with one record per change. It is rewritten, by a rename,
when changes outweigh the snapshot four times. A record is synced before the next is written, so only the last can be
torn: it is cut off with a warning. A bad record with a good one after it, or inside the snapshot, raises DamagedTree.
Checksums (CRC32C) include the file's salt, so neither old bytes of a reused disk block nor a value that looks like a
record passes for one.

The session is the process; ephemeral nodes are only in memory. Changes run one after another: decided, appended and
synced outside the event loop, then visible to reads and watches, then answered. Creation numbers are reserved by the
million, because those of ephemeral nodes must not repeat after a restart either. Cancelling the caller does not cancel
a change. A full disk fails one change and leaves everything as it was; after any other disk error the tree answers
nothing until it is opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import crc32c
import msgspec

from penstock.cluster.errors import (
    DamagedTree,
    DataTooLarge,
    NoNode,
    SessionExpired,
    TreeBusy,
    TreeDiskFull,
    TreeError,
    TreeFailed,
    TreeInUse,
)
from penstock.cluster.tree.tree import (
    ANY_VERSION,
    Cancel,
    Change,
    Create,
    Delete,
    Event,
    Node,
    Operation,
    SessionEvent,
    SessionWatcher,
    Set,
    StoredNode,
    TreeState,
    Watcher,
    check_path,
    watch_each_once,
)
from penstock.log.checkpoints import (
    forget_failed_sync,
    has_failed_sync,
    make_durable_folder,
    note_failed_sync,
    parent_folder,
)
from penstock.log.errors import is_disk_full
from penstock.runtime.files import File, Files, Lock, make_private
from penstock.runtime.randomness import Random
from penstock.runtime.threads import Outcome, Workers, WorkersError

logger = logging.getLogger(__name__)

MAX_RECORD_BYTES: Final = 64 * 1024 * 1024

_MAGIC = b"PENSTREE"
_FORMAT_VERSION = 2
_FORMATS_READ = (1, 2)
_SALT_BYTES = 16
_HEADER = struct.Struct(f">8sH{_SALT_BYTES}sQI")
_CHECKSUM = struct.Struct(">I")
_MARKER = b"\xf1\x0e\xd5\x1a"
_RECORD = struct.Struct(">4sIQI")
_COVERED = struct.Struct(">IQ")
_SNAPSHOT_RECORD_BYTES = 1024 * 1024
_TEMPORARY_SUFFIX = ".tmp"
_NO_PATH = ""

JOURNAL_FILE: Final = "tree.journal"
LOCK_FILE: Final = "tree.lock"

_SESSION = 1
_MAX_WAITING = 10_000
_RESERVED_AT_ONCE = 1_000_000
_REWRITE_BYTES = 1024 * 1024
_REWRITE_FACTOR = 4
_TRANSIENT = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


# --- the journal


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node after a change."""

    path: str
    data: bytes | None
    version: int
    created: int = 0


_ENTRIES = msgspec.msgpack.Decoder(list[Entry])


def reservation(number: int) -> Entry:
    """Says that creation numbers up to this one may have been used, even if no such node exists."""
    return Entry(_NO_PATH, None, number)


class Loaded(NamedTuple):
    journal: Journal
    state: TreeState


class Journal:
    """An open journal file. Methods block; one at a time."""

    def __init__(self, path: str, file: File, salt: bytes, size: int, snapshot_bytes: int, sequence: int) -> None:
        self._path = path
        self._file = file
        self._salt = salt
        self.size = size
        self.snapshot_bytes = snapshot_bytes  # its size when it was created
        self.sequence = sequence  # of the next record

    def append(self, entries: list[Entry]) -> None:
        """Return when the change is durable.

        TreeDiskFull, DataTooLarge: the journal is as before. TreeFailed: its content is unknown.
        """
        record = self._record(entries)
        try:
            self._write(record)
            self._file.sync()
        except OSError as error:
            # Not the text of the error, which has the temporary name of the file.
            raise TreeFailed(self._path, error.strerror or str(error)) from error
        self.size += len(record)
        self.sequence += 1

    def _write(self, record: bytes) -> None:
        try:
            self._file.write_at(self.size, record)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._file.truncate(self.size)
            raise TreeDiskFull(self._path) from error

    def close(self) -> None:
        self._file.close()

    def write_nodes(self, nodes: Iterable[tuple[str, StoredNode]], reserved: int) -> None:
        """Write the snapshot; it counts once the file is synced and renamed. OSError."""
        for entries in _chunks(nodes, reserved):
            record = self._record(entries)
            self._file.write_at(self.size, record)
            self.size += len(record)
            self.sequence += 1
        self.snapshot_bytes = self.size
        head = _HEADER.pack(_MAGIC, _FORMAT_VERSION, self._salt, self.size, 0)[: -_CHECKSUM.size]
        self._file.write_at(0, head + _CHECKSUM.pack(crc32c.crc32c(head)))
        self._file.sync()

    def _record(self, entries: list[Entry]) -> bytes:
        payload = msgspec.msgpack.encode(entries)
        if len(payload) > MAX_RECORD_BYTES:
            raise DataTooLarge("a change of the tree", len(payload), MAX_RECORD_BYTES)
        checksum = _checksum(self._salt, len(payload), self.sequence, payload)
        return _RECORD.pack(_MARKER, len(payload), self.sequence, checksum) + payload


def create_journal(
    files: Files, path: str, random: Random, nodes: Iterable[tuple[str, StoredNode]], reserved: int, sequence: int
) -> Journal:
    """Replace the journal at `path`, if any, by one of these nodes. OSError: the old one is as it was.

    Creation numbers up to `reserved` may have been used. A power loss leaves either of the two until `sync_name`.
    """
    temporary = path + _TEMPORARY_SUFFIX
    file = files.open(temporary, create=True)
    try:
        # It holds the cluster's secret and the credentials of users.
        make_private(file)
        # A crash may have left a longer file.
        file.truncate(0)
        journal = Journal(path, file, random.random_bytes(_SALT_BYTES), _HEADER.size, 0, sequence)
        journal.write_nodes(nodes, reserved)
        files.rename(temporary, path)
    except BaseException:
        file.close()
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise
    return journal


def sync_name(files: Files, path: str) -> None:
    """Make the name of a new journal durable."""
    files.sync_folder(parent_folder(path))


def remove_unfinished(files: Files, path: str) -> None:
    """Remove what a crash left of an unfinished journal."""
    with contextlib.suppress(FileNotFoundError):
        files.remove(path + _TEMPORARY_SUFFIX)


def _chunks(nodes: Iterable[tuple[str, StoredNode]], reserved: int) -> Iterator[list[Entry]]:
    chunk = [reservation(reserved)] if reserved else []
    size = 0
    for path, node in nodes:
        chunk.append(Entry(path, node.data, node.version, node.created))
        size += len(path) + len(node.data)
        if size >= _SNAPSHOT_RECORD_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def open_journal(files: Files, path: str) -> Loaded | None:
    """The journal at `path` and the tree that results; None if there is none. DamagedTree, OSError.

    A torn record at its end is cut off.
    """
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    try:
        make_private(file)
        return _load(file, path)
    except BaseException:
        file.close()
        raise


def _load(file: File, path: str) -> Loaded:
    salt, snapshot_bytes = _read_header(file, path)
    size = file.size()
    position = _HEADER.size
    sequence: int | None = None
    nodes: dict[str, StoredNode] = {}
    last_created = 0
    while position < max(size, snapshot_bytes):
        found = _read_record(file, position, size, salt, sequence)
        if found is None:
            if position < snapshot_bytes:
                raise DamagedTree(path, position, "a bad record in the snapshot")
            _cut_torn_tail(file, path, position, size, salt)
            break
        number, payload = found
        try:
            last_created = max(last_created, _replay(nodes, _ENTRIES.decode(payload)))
        except msgspec.MsgspecError as error:
            raise DamagedTree(path, position, f"record {number} is not a list of nodes: {error}") from error
        sequence = number + 1
        position += _RECORD.size + len(payload)
    try:
        state = TreeState.of(nodes.items(), last_created)
    except TreeError as error:
        raise DamagedTree(path, 0, str(error)) from error
    return Loaded(Journal(path, file, salt, position, snapshot_bytes, sequence or 0), state)


def _read_header(file: File, path: str) -> tuple[bytes, int]:
    raw = file.read_at(0, _HEADER.size)
    if len(raw) < _HEADER.size:
        raise DamagedTree(path, 0, f"{len(raw)} bytes are shorter than a header")
    magic, version, salt, snapshot_bytes, checksum = _HEADER.unpack(raw)
    if magic != _MAGIC or checksum != crc32c.crc32c(raw[: -_CHECKSUM.size]):
        raise DamagedTree(path, 0, "the header is not that of a metadata journal")
    if version not in _FORMATS_READ:
        raise DamagedTree(path, 0, f"unknown format version {version}; this version writes {_FORMAT_VERSION}")
    return bytes(salt), int(snapshot_bytes)


def _read_record(file: File, position: int, size: int, salt: bytes, expected: int | None) -> tuple[int, bytes] | None:
    """Sequence and payload of the record at `position`, None if there is no good one."""
    raw = file.read_at(position, _RECORD.size)
    if len(raw) < _RECORD.size:
        return None
    marker, length, sequence, checksum = _RECORD.unpack(raw)
    if marker != _MARKER or length > min(MAX_RECORD_BYTES, size - position - _RECORD.size):
        return None
    if expected is not None and sequence != expected:
        return None
    payload = file.read_at(position + _RECORD.size, length)
    if _checksum(salt, length, sequence, payload) != checksum:
        return None
    return sequence, payload


def _cut_torn_tail(file: File, path: str, position: int, size: int, salt: bytes) -> None:
    tail = file.read_at(position, size - position)
    found = tail.find(_MARKER, 1)
    while found >= 0:
        if _read_record(file, position + found, size, salt, None) is not None:
            raise DamagedTree(path, position, f"a bad record, with a good one at byte {position + found}")
        found = tail.find(_MARKER, found + 1)
    logger.warning("torn record removed from the end of the journal: path=%s bytes=%d", path, size - position)
    file.truncate(position)


def _replay(nodes: dict[str, StoredNode], entries: list[Entry]) -> int:
    """Apply the entries; returns the greatest creation number that may have been used."""
    last_created = 0
    for entry in entries:
        if entry.path == _NO_PATH:
            last_created = max(last_created, entry.version)
        elif entry.data is None:
            nodes.pop(entry.path, None)
        else:
            nodes[entry.path] = StoredNode(entry.data, entry.version, None, entry.created)
            last_created = max(last_created, entry.created)
    return last_created


def _checksum(salt: bytes, length: int, sequence: int, payload: bytes) -> int:
    return crc32c.crc32c(payload, crc32c.crc32c(salt + _COVERED.pack(length, sequence)))


# --- the tree


class _Waiting(NamedTuple):
    operations: tuple[Operation, ...]
    answer: asyncio.Future[Change]


def open_embedded_tree(
    files: Files, folder: str, workers: Workers, random: Random, *, rewrite_bytes: int = _REWRITE_BYTES
) -> EmbeddedTree:
    """The tree in `folder`, which is created if it is missing. TreeInUse, DamagedTree, TreeFailed. Blocks."""
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
                # The last change may be only in the page cache, and later syncs would not write it.
                journal.close()
                journal = create_journal(files, path, random, state.persistent(), state.last_created, journal.sequence)
            # A process that was killed may not have made the name durable.
            sync_name(files, path)
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
        raise TreeInUse(folder, error.strerror or "locked by another process") from error


class EmbeddedTree:
    """An open tree; see `penstock.cluster.tree.tree.Tree`."""

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
        self._created_reserved = state.last_created  # creation numbers that the journal reserves
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

    # --- reads

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

    # --- changes

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

    # --- watches and session

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

    def watch_once(self, paths: Sequence[str], watcher: Watcher) -> None:
        watch_each_once(self, paths, watcher)

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
        self._end(SessionExpired("the metadata tree is closed"))

    # --- making a change

    async def _change(self, operations: tuple[Operation, ...]) -> Change:
        self._require_open()
        if self._closing:
            raise SessionExpired("the metadata tree is being closed")
        if len(self._waiting) >= _MAX_WAITING:
            raise TreeBusy(len(self._waiting))
        answer: asyncio.Future[Change] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(operations, answer))
        if not self._busy:
            self._busy = True
            self._next()
        return await answer

    def _next(self) -> None:
        """Start the next change, or the rewrite that is due."""
        if self._ended is None and self._journal.size >= self._rewrite_at:
            self._run_on_worker(self._rewrite, self._rewritten)
            return
        while self._waiting:
            operations, answer = self._waiting.popleft()
            if self._ended is not None:
                _fail(answer, self._ended)
                continue
            try:
                change = self._state.prepare(operations, _SESSION)
            except TreeError as error:
                _fail(answer, error)
                continue
            entries = self._entries(change)
            if change.last_created > self._created_reserved:
                entries.append(reservation(change.last_created + _RESERVED_AT_ONCE))
            if entries:
                self._append(change, entries, answer)
                return
            self._apply(change, answer)
        self._busy = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _entries(self, change: Change) -> list[Entry]:
        """What the journal stores of a change."""
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
                    self._created_reserved = change.last_created + _RESERVED_AT_ONCE
                self._apply(change, answer)
            else:
                _fail(answer, self._failure(outcome.error))
            self._next()

        self._run_on_worker(lambda: self._write(entries), appended)

    def _write(self, entries: list[Entry]) -> None:
        try:
            self._journal.append(entries)
        except TreeFailed:
            note_failed_sync(self._files, parent_folder(self._path))
            raise

    def _run_on_worker(self, work: Callable[[], None], done: Callable[[Outcome[None]], None]) -> None:
        # `done` always runs in a later turn of the loop, whatever the workers are: a thousand changes that finish at
        # once must not nest on the stack.
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
                loop.call_soon(self._notify, event)

    def _notify(self, event: Event) -> None:
        for watcher in list(self._watchers.get(event.path, ())):
            try:
                watcher(event)
            except Exception:
                logger.exception("watcher failed: path=%s", event.path)

    def _failure(self, error: BaseException) -> TreeError:
        """The answer to a change that was not made; ends the tree, unless everything is as before."""
        if isinstance(error, WorkersError):
            return TreeBusy(len(self._waiting))
        if isinstance(error, TreeError) and not isinstance(error, TreeFailed):
            return error
        return self._end(error if isinstance(error, TreeFailed) else TreeFailed(self._path, str(error)))

    # --- rewriting

    def _rewrite(self) -> None:
        # Changes wait for this, and the loop only reads meanwhile.
        nodes = self._state.persistent()
        reserved, sequence = self._created_reserved, self._journal.sequence
        journal = create_journal(self._files, self._path, self._random, nodes, reserved, sequence)
        old, self._journal = self._journal, journal
        old.close()
        try:
            sync_name(self._files, self._path)
        except OSError as error:
            raise TreeFailed(self._path, f"the name of its new file may not be durable: {error}") from error

    def _rewritten(self, outcome: Outcome[None]) -> None:
        error = outcome.error
        if error is None:
            self._rewrite_at = self._next_rewrite()
        elif isinstance(error, WorkersError) or (isinstance(error, OSError) and error.errno in _TRANSIENT):
            logger.warning("journal not rewritten, it keeps growing: path=%s error=%s", self._path, error)
            self._rewrite_at = self._journal.size + self._rewrite_bytes
        else:
            self._failure(error)
        self._next()

    def _next_rewrite(self) -> int:
        return max(self._rewrite_bytes, _REWRITE_FACTOR * self._journal.snapshot_bytes)

    # --- end

    def _require_open(self) -> None:
        if self._ended is not None:
            # Without the tracebacks of earlier callers.
            raise self._ended.with_traceback(None)

    def _end(self, reason: TreeError) -> TreeError:
        if self._ended is not None:
            return self._ended
        self._ended = reason
        self._journal.close()
        self._lock.release()
        self._watchers.clear()
        if isinstance(reason, TreeFailed):
            logger.error("metadata tree failed: error=%s", reason)
            for watcher in list(self._session_watchers):
                asyncio.get_running_loop().call_soon(watcher, SessionEvent.EXPIRED)
        return reason


def _post(loop: asyncio.AbstractEventLoop, done: Callable[[Outcome[None]], None], outcome: Outcome[None]) -> None:
    loop.call_soon(done, outcome)


def _fail(answer: asyncio.Future[Change], error: TreeError) -> None:
    if not answer.done():
        answer.set_exception(error)
