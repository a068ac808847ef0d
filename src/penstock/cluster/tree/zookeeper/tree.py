"""The metadata tree in ZooKeeper: one session as a `Tree`; paths start at the chroot.

Reads survive a broken connection: they are repeated for as long as a session lasts. A change is sent once; if the
connection breaks before the answer, it raises ConnectionLost, because the outcome is unknown. Cancelling the caller
does not cancel a change.

Many nodes are read by ZooKeeper's MultiRead (3.6 and newer), which kazoo does not have. A request costs kazoo some
hundred microseconds whatever it contains, so a starting controller reads nodes 100 at a time.

    request   for each path: kind 4 (get), not the end, -1; the path; no watch. Then: kind -1, the end, -1
    answer    for each path: kind 4, not the end, 0; data; stat. Or: kind -1, not the end, error; error. Then the end
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from kazoo.exceptions import (  # type: ignore[import-untyped]
    EXCEPTIONS,
    BadVersionError,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    UnimplementedError,
)

from penstock.cluster.entity_configs import CONFIG, USERS
from penstock.cluster.errors import (
    BadVersion,
    ConnectionLost,
    DataTooLarge,
    EphemeralParent,
    InvalidPath,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    TreeError,
    ZooKeeperOperationFailed,
    ZooKeeperUnreachable,
)
from penstock.cluster.tree.layout import CLUSTER_SECRET
from penstock.cluster.tree.tree import (
    ANY_VERSION,
    MAX_DATA_BYTES,
    ROOT,
    Cancel,
    Check,
    Create,
    Delete,
    Node,
    Operation,
    SessionEvent,
    SessionWatcher,
    Set,
    Watcher,
    check_path,
    ensure_path,
    parent_of,
)
from penstock.cluster.tree.zookeeper.ensemble import ZooKeeperConnect, parse_connect, why_unreachable
from penstock.cluster.tree.zookeeper.security import NO_SECURITY, ZooKeeperSecurity
from penstock.cluster.tree.zookeeper.session import Request, ZooKeeperSession, ZooKeeperWatches, run_in_thread

logger = logging.getLogger(__name__)

_GET: Final = 4
_END: Final = -1
_NODES_AT_ONCE: Final = 100
_PATHS_BYTES: Final = 512 * 1024
_HEADER: Final = struct.Struct("!iBi")
_INT: Final = struct.Struct("!i")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")  # created, changed, two times, version, two versions, owner, ...

# Kafka's defaults.
SESSION_TIMEOUT_MS: Final = 18_000
CONNECTION_TIMEOUT_MS: Final = 18_000

_READS_AT_ONCE: Final = 5000
# ZooKeeper's default jute.maxbuffer: a longer request ends the connection without an error.
_MAX_REQUEST_BYTES: Final = 0xFFFFF
_OPERATION_BYTES: Final = 64


# --- reading many nodes


class MultiRead:
    """The nodes at these full paths, None where there is none."""

    type: Final = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytes:
        parts: list[bytes] = []
        for path in self._paths:
            name = path.encode()
            parts += (_HEADER.pack(_GET, False, -1), _INT.pack(len(name)), name, b"\0")
        return b"".join((*parts, _HEADER.pack(_END, True, -1)))

    def deserialize(self, answer: bytes, at: int) -> list[Node | None]:
        """Raises the KazooException of a node that cannot be read."""
        nodes: list[Node | None] = []
        while True:
            kind, is_end, _ = _HEADER.unpack_from(answer, at)
            at += _HEADER.size
            if is_end:
                return nodes
            (number,) = _INT.unpack_from(answer, at)
            at += _INT.size
            if kind != _GET:
                if number != NoNodeError.code:
                    raise EXCEPTIONS[number]()
                nodes.append(None)
                continue
            size = max(number, 0)  # -1: no data
            created, _, _, _, version, _, _, owner, _, _, _ = _STAT.unpack_from(answer, at + size)
            nodes.append(Node(bytes(answer[at : at + size]), version, created, owner))
            at += size + _STAT.size

    def ask(self, client: Any) -> Any:
        """Give it to a KazooClient, as its own methods do; returns the AsyncResult."""
        result = client.handler.async_result()
        client._call(self, result)
        return result


def path_chunks(paths: Sequence[str]) -> Iterator[list[str]]:
    """The paths in order, in lists that each fit into a request."""
    chunk: list[str] = []
    size = 0
    for path in paths:
        length = len(path.encode())
        if chunk and (len(chunk) == _NODES_AT_ONCE or size + length > _PATHS_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(path)
        size += length
    if chunk:
        yield chunk


# --- the tree


async def open_zookeeper_tree(
    connect: str,
    *,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    connection_timeout_ms: int = CONNECTION_TIMEOUT_MS,
    security: ZooKeeperSecurity = NO_SECURITY,
) -> ZooKeeperTree:
    """Open a session with the ensemble at `connect` ("zk1:2181,zk2:2181/kafka"); a missing chroot is created.

    InvalidConnect; ZooKeeperUnreachable, which says why and what to try; ZooKeeperAuthFailed.
    """
    where = parse_connect(connect)
    session = ZooKeeperSession(where, session_timeout_ms, security)
    try:
        try:
            await session.open(connection_timeout_ms / 1000)
        except TimeoutError:
            raise await _why_unreachable(where, connection_timeout_ms) from None
        if where.chroot:
            root = ZooKeeperTree(session, where._replace(chroot=""), session_timeout_ms)
            await ensure_path(root, where.chroot)
        tree = ZooKeeperTree(session, where, session_timeout_ms, security)
        await tree.protect_secrets()
        return tree
    except BaseException:
        await session.close()
        raise


async def _why_unreachable(where: ZooKeeperConnect, waited_ms: int) -> ZooKeeperUnreachable:
    found: list[ZooKeeperUnreachable] = []
    await run_in_thread(lambda: found.append(why_unreachable(where, waited_ms)), "zookeeper-diagnosis")
    return found[0]


class _Unimplemented(ZooKeeperOperationFailed):
    """The server does not know this kind of request."""


class ZooKeeperTree:
    """An open tree; see `penstock.cluster.tree.tree.Tree`."""

    def __init__(
        self,
        session: ZooKeeperSession,
        connect: ZooKeeperConnect,
        session_timeout_ms: int,
        security: ZooKeeperSecurity = NO_SECURITY,
    ) -> None:
        self._session = session
        self._acl = security.acl
        self._chroot = connect.chroot
        self._timeout_s = session_timeout_ms / 1000
        self._has_multi_read = True  # until a server older than 3.6 rejects it
        self._watches = ZooKeeperWatches(session, connect.chroot)
        self._session_watchers: list[SessionWatcher] = []
        session.listen(self._session_event)

    @property
    def session_id(self) -> int:
        return self._session.session_id

    # --- reads

    async def get(self, path: str) -> Node:
        check_path(path)
        found = await self._read(lambda client: client.get_async(self._at(path)), path)
        return _node(found)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        for path in paths:
            check_path(path)
        found: list[Node | None] = []
        for start in range(0, len(paths), _READS_AT_ONCE):
            chunks = path_chunks(paths[start : start + _READS_AT_ONCE])
            for nodes in await asyncio.gather(*map(self._get_chunk, chunks)):
                found += nodes
        return found

    async def _get_chunk(self, paths: list[str]) -> list[Node | None]:
        if self._has_multi_read:
            try:
                nodes: list[Node | None] = await self._read(MultiRead([self._at(path) for path in paths]).ask, paths[0])
                return nodes
            except _Unimplemented:
                self._has_multi_read = False
        return list(await asyncio.gather(*(self._find(path) for path in paths)))

    async def exists(self, path: str) -> bool:
        check_path(path)
        return await self._read(lambda client: client.exists_async(self._at(path)), path) is not None

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return sorted(await self._read(lambda client: client.get_children_async(self._at(path)), path))

    async def _find(self, path: str) -> Node | None:
        try:
            return await self.get(path)
        except NoNode:
            return None

    # --- changes

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        operation = Create(path, data, ephemeral)
        self._check((operation,))
        acl = self._acl(path)
        await self._change(lambda client: client.create_async(self._at(path), data, acl, ephemeral), operation)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        operation = Set(path, data, version)
        self._check((operation,))
        stat = await self._change(lambda client: client.set_async(self._at(path), data, version), operation)
        return int(stat.version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        operation = Delete(path, version)
        self._check((operation,))
        await self._change(lambda client: client.delete_async(self._at(path), version), operation)

    async def multi(self, operations: Sequence[Operation]) -> None:
        wanted = tuple(operations)
        self._check(wanted)
        if not wanted:
            return
        results = await asyncio.shield(self._session.ask(lambda client: self._transaction(client, wanted)))
        for operation, result in zip(wanted, results, strict=True):
            if isinstance(result, KazooException) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                await self._fail(operation, result)

    def _transaction(self, client: Any, operations: Sequence[Operation]) -> Any:
        transaction = client.transaction()
        for operation in operations:
            at = self._at(operation.path)
            match operation:
                case Create(_, data, ephemeral):
                    transaction.create(at, data, self._acl(operation.path), ephemeral)
                case Set(_, data, version):
                    transaction.set_data(at, data, version)
                case Delete(_, version):
                    transaction.delete(at, version)
                case Check(_, version):
                    transaction.check(at, version)
        return transaction.commit_async()

    async def protect_secrets(self) -> None:
        """Restrict nodes with secrets that were created before ACLs were set. ZooKeeperOperationFailed."""
        if self._acl(CLUSTER_SECRET) is None:
            return
        waiting = [CLUSTER_SECRET, f"{CONFIG}/{USERS}"]
        while waiting:
            path = waiting.pop()
            try:
                if path != CLUSTER_SECRET:
                    waiting += [f"{path}/{name}" for name in await self.children(path)]
                await self._read(partial(_set_acls, path=self._at(path), acls=self._acl(path)), path)
            except NoNode:
                continue

    # --- watches and session

    def watch(self, path: str, watcher: Watcher) -> Cancel:
        check_path(path)
        return self._watches.watch(path, watcher)

    def watch_once(self, paths: Sequence[str], watcher: Watcher) -> None:
        for path in paths:
            check_path(path)
        for chunk in path_chunks(paths):
            self._watches.watch_once(chunk, watcher)

    def watch_session(self, watcher: SessionWatcher) -> Cancel:
        self._session_watchers.append(watcher)

        def cancel() -> None:
            if watcher in self._session_watchers:
                self._session_watchers.remove(watcher)

        return cancel

    async def close(self) -> None:
        await self._session.close()

    def _session_event(self, event: SessionEvent) -> None:
        self._watches.session_event(event)
        for watcher in list(self._session_watchers):
            try:
                watcher(event)
            except Exception:
                logger.exception("session watcher failed")

    # --- requests

    def _check(self, operations: Sequence[Operation]) -> None:
        """Reject what ZooKeeper would answer with a closed connection, or would interpret differently."""
        request_bytes = 0
        for operation in operations:
            check_path(operation.path)
            request_bytes += len(self._at(operation.path).encode()) + _OPERATION_BYTES
            if isinstance(operation, Create | Set):
                size = len(operation.data)
                if size > MAX_DATA_BYTES:
                    raise DataTooLarge(operation.path, size, MAX_DATA_BYTES)
                request_bytes += size
            elif isinstance(operation, Delete) and operation.path == ROOT:
                raise InvalidPath(operation.path, "the root cannot be deleted")
        if request_bytes > _MAX_REQUEST_BYTES:
            raise DataTooLarge(f"{len(operations)} operations", request_bytes, _MAX_REQUEST_BYTES)

    def _at(self, path: str) -> str:
        return (self._chroot + path).rstrip("/") or ROOT

    async def _read(self, request: Request, path: str) -> Any:
        """Send until an answer arrives."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while True:
            try:
                return await asyncio.shield(self._session.ask(request))
            except NoNodeError:
                raise NoNode(path) from None
            except UnimplementedError as error:
                raise _Unimplemented(path, _name(error)) from None
            except KazooException as error:
                raise ZooKeeperOperationFailed(path, _name(error)) from error
            except ConnectionLost:
                if loop.time() >= deadline:
                    raise

    async def _change(self, request: Request, operation: Operation) -> Any:
        try:
            return await asyncio.shield(self._session.ask(request))
        except KazooException as error:
            await self._fail(operation, error)

    async def _fail(self, operation: Operation, error: KazooException) -> NoReturn:
        """Raise the error for an operation that ZooKeeper rejected."""
        path = operation.path
        if isinstance(error, BadVersionError) and not isinstance(operation, Create):
            # ZooKeeper does not return the version it found; it is read for the message only.
            raise BadVersion(path, operation.version, await self._version_of(path)) from None
        if isinstance(error, NoNodeError):
            raise NoNode(parent_of(path) if isinstance(operation, Create) else path) from None
        known: dict[type[KazooException], Callable[[], TreeError]] = {
            NodeExistsError: lambda: NodeExists(path),
            NotEmptyError: lambda: NotEmpty(path),
            NoChildrenForEphemeralsError: lambda: EphemeralParent(parent_of(path)),
        }
        make = known.get(type(error))
        raise ZooKeeperOperationFailed(path, _name(error)) if make is None else make() from None

    async def _version_of(self, path: str) -> int:
        try:
            node = await self._find(path)
        except (ConnectionLost, SessionExpired, ZooKeeperOperationFailed):
            return ANY_VERSION
        return ANY_VERSION if node is None else node.version


def _set_acls(client: Any, path: str, acls: Any) -> Any:
    return client.set_acls_async(path, acls)


def _node(found: Any) -> Node:
    data, stat = found
    return Node(data or b"", stat.version, stat.czxid, stat.ephemeralOwner)


def _name(error: KazooException) -> str:
    hint = "; check zookeeper.auth.user and its password" if isinstance(error, NoAuthError) else ""
    return f"{type(error).__name__} {error}".rstrip() + hint
