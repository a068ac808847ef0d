"""The metadata tree: its interface (`Tree`), and its nodes in memory (`TreeState`). Pure.

A node has a path, bytes, a version that rises by one with every change, and children. An ephemeral node disappears with
the session that created it and has no children. ZooKeeper, a file of a single broker and the simulator implement
`Tree`.

An answered operation is durable and visible to later reads of the same session. An operation that raises did not
happen, except with ConnectionLost or TreeFailed: then the outcome is unknown, and the caller reads again. A change that
depends on a read names the version that was read. A watch says that something changed, not what; several changes may
arrive as one call.

`TreeState.prepare` decides and changes nothing; `commit` changes and cannot fail; the caller makes the change durable
in between. A `Change` lists the nodes that result, so replaying it means putting and removing nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

from penstock.cluster.errors import (
    BadVersion,
    DataTooLarge,
    EphemeralParent,
    InvalidPath,
    NodeExists,
    NoNode,
    NotEmpty,
    TreeError,
)

ANY_VERSION: Final = -1
ROOT: Final = "/"
NO_OWNER: Final = 0

# ZooKeeper's default limit for one node.
MAX_DATA_BYTES: Final = 1024 * 1024 - 1024
_MAX_PATH_LENGTH: Final = 1024
_VERSION_MAX: Final = 2**31 - 1


# --- nodes, operations, events


class Node(NamedTuple):
    """`created` is the creation number: of two nodes that a path ever had, the later has the greater one."""

    data: bytes
    version: int
    created: int
    owner: int = NO_OWNER  # the session of an ephemeral node


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Changes nothing, but the node must exist at that version."""

    path: str
    version: int = ANY_VERSION


Operation = Create | Set | Delete | Check


class EventKind(Enum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"


class Event(NamedTuple):
    """The node at `path` was created, changed or deleted, or the set of its children changed."""

    kind: EventKind
    path: str


class SessionEvent(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no connection: ephemeral nodes may still exist
    EXPIRED = "expired"  # ephemeral nodes and watches are gone; this `Tree` cannot be used any more


Watcher = Callable[[Event], None]
SessionWatcher = Callable[[SessionEvent], None]
Cancel = Callable[[], None]


# --- the interface


class Tree(Protocol):
    """The metadata tree as one session sees it. It is used on one event loop, where callbacks run too."""

    @property
    def session_id(self) -> int:
        """The `owner` of this session's ephemeral nodes; never NO_OWNER."""

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """NodeExists; NoNode if the parent is missing; EphemeralParent."""

    async def get(self, path: str) -> Node:
        """NoNode."""

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """The nodes at these paths, None where there is none. It is not a snapshot."""

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """The new version. NoNode, BadVersion."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """NoNode, BadVersion, NotEmpty."""

    async def exists(self, path: str) -> bool: ...

    async def children(self, path: str) -> list[str]:
        """The names of a node's children, sorted. NoNode."""

    async def multi(self, operations: Sequence[Operation]) -> None:
        """All of them, in order, or none; raises the error of the first that is impossible."""

    def watch(self, path: str, watcher: Watcher) -> Cancel:
        """Call `watcher` after each change of the node at `path`, which may not exist, or of its set of children."""

    def watch_once(self, paths: Sequence[str], watcher: Watcher) -> None:
        """Call `watcher` once for each of these nodes, after its data changes or it is deleted; after an interruption
        of the connection perhaps without a reason. For thousands of existing nodes: it costs a request per hundred.
        """

    def watch_session(self, watcher: SessionWatcher) -> Cancel: ...

    async def close(self) -> None:
        """End the session: earlier operations are answered, ephemeral nodes are deleted."""


def parent_of(path: str) -> str:
    """ "/brokers" for "/brokers/ids", "/" for "/brokers"."""
    return path.rpartition("/")[0] or ROOT


def check_path(path: str) -> None:
    """InvalidPath unless every implementation can hold a node there."""
    if path == ROOT:
        return
    if not path.startswith("/"):
        raise InvalidPath(path, "it does not begin with /")
    if len(path) > _MAX_PATH_LENGTH:
        raise InvalidPath(path, f"it is longer than {_MAX_PATH_LENGTH} characters")
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            raise InvalidPath(path, f"{name!r} is not a name")
    if not path.isprintable():
        raise InvalidPath(path, "it has unprintable characters")


def watch_each_once(tree: Tree, paths: Sequence[str], watcher: Watcher) -> None:
    """`Tree.watch_once` by `Tree.watch`, where a watch costs next to nothing."""

    def watch(path: str) -> None:
        def notify(event: Event) -> None:
            if event.kind in (EventKind.CHANGED, EventKind.DELETED):
                cancel()
                watcher(event)

        cancel = tree.watch(path, notify)

    for path in paths:
        watch(path)


async def find(tree: Tree, path: str) -> Node | None:
    try:
        return await tree.get(path)
    except NoNode:
        return None


async def ensure_path(tree: Tree, path: str) -> None:
    """Create the persistent node `path` and those above it, as far as they are missing."""
    if path == ROOT or await tree.exists(path):
        return
    await ensure_path(tree, parent_of(path))
    try:
        await tree.create(path)
    except NodeExists:
        return  # by another broker that starts at the same time


# --- the tree in memory


class StoredNode(NamedTuple):
    data: bytes
    version: int
    owner: int | None = None  # the session of an ephemeral node
    created: int = 0

    def seen(self) -> Node:
        """The node as readers get it."""
        return Node(self.data, self.version, self.created, NO_OWNER if self.owner is None else self.owner)


class Change(NamedTuple):
    """The resulting nodes, None for deleted ones; the events for watchers; and the last creation number."""

    nodes: dict[str, StoredNode | None]
    events: list[Event]
    last_created: int


class OrphanNode(TreeError):
    """A node without a parent, which no operation leaves behind."""

    def __init__(self, path: str) -> None:
        super().__init__(f"node {path} has no parent")
        self.path = path


class TreeState:
    """All nodes of a tree, and the last creation number."""

    def __init__(self) -> None:
        self.last_created = 0
        self._nodes: dict[str, StoredNode] = {ROOT: StoredNode(b"", 0)}
        self._children: dict[str, set[str]] = {}

    @classmethod
    def of(cls, nodes: Iterable[tuple[str, StoredNode]], last_created: int = 0) -> TreeState:
        """The tree of these nodes, in any order. OrphanNode, InvalidPath."""
        state = cls()
        state._nodes.update(nodes)
        state.last_created = max(last_created, *(node.created for node in state._nodes.values()))
        for path in state._nodes:
            check_path(path)
            if path == ROOT:
                continue
            parent = parent_of(path)
            if parent not in state._nodes:
                raise OrphanNode(path)
            state._children.setdefault(parent, set()).add(path)
        return state

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, path: str) -> StoredNode | None:
        return self._nodes.get(path)

    def children(self, path: str) -> list[str]:
        """Sorted names. NoNode."""
        if path not in self._nodes:
            raise NoNode(path)
        cut = len(path) + (path != ROOT)
        return sorted(child[cut:] for child in self._children.get(path, ()))

    def child_count(self, path: str) -> int:
        return len(self._children.get(path, ()))

    def persistent(self) -> Iterator[tuple[str, StoredNode]]:
        """All nodes that are not ephemeral."""
        return ((path, node) for path, node in self._nodes.items() if node.owner is None)

    def owned_by(self, owner: int) -> list[str]:
        return [path for path, node in self._nodes.items() if node.owner == owner]

    def prepare(self, operations: Sequence[Operation], owner: int) -> Change:
        """The changes that these operations make, in this order; raises the error of the first that is impossible."""
        draft = _Draft(self)
        for operation in operations:
            match operation:
                case Create(path, data, ephemeral):
                    draft.create(path, data, owner if ephemeral else None)
                case Set(path, data, version):
                    draft.set(path, data, version)
                case Delete(path, version):
                    draft.delete(path, version)
                case Check(path, version):
                    draft.require(path, version)
        return Change(draft.nodes, draft.events, draft.last_created)

    def commit(self, change: Change) -> None:
        self.last_created = change.last_created
        for path, node in change.nodes.items():
            parent = parent_of(path)
            if node is None:
                self._nodes.pop(path, None)
                siblings = self._children.get(parent)
                if siblings is not None:
                    siblings.discard(path)
                    if not siblings:
                        del self._children[parent]
            else:
                self._nodes[path] = node
                if path != ROOT:
                    self._children.setdefault(parent, set()).add(path)


class _Draft:
    """A state with changes that are not committed yet."""

    def __init__(self, base: TreeState) -> None:
        self._base = base
        self._more_children: Counter[str] = Counter()
        self.last_created = base.last_created
        self.nodes: dict[str, StoredNode | None] = {}
        self.events: list[Event] = []

    def create(self, path: str, data: bytes, owner: int | None) -> None:
        check_path(path)
        _check_data(path, data)
        if self._find(path) is not None:
            raise NodeExists(path)
        parent = parent_of(path)
        above = self._find(parent)
        if above is None:
            raise NoNode(parent)
        if above.owner is not None:
            raise EphemeralParent(parent)
        self.last_created += 1
        self.nodes[path] = StoredNode(data, 0, owner, self.last_created)
        self._more_children[parent] += 1
        self.events += (Event(EventKind.CREATED, path), Event(EventKind.CHILDREN, parent))

    def set(self, path: str, data: bytes, version: int) -> None:
        node = self.require(path, version)
        _check_data(path, data)
        # As in ZooKeeper, versions wrap around and are never -1.
        self.nodes[path] = node._replace(data=data, version=0 if node.version == _VERSION_MAX else node.version + 1)
        self.events.append(Event(EventKind.CHANGED, path))

    def delete(self, path: str, version: int) -> None:
        self.require(path, version)
        if path == ROOT:
            raise InvalidPath(path, "the root cannot be deleted")
        if self._base.child_count(path) + self._more_children[path] > 0:
            raise NotEmpty(path)
        parent = parent_of(path)
        self.nodes[path] = None
        self._more_children[parent] -= 1
        self.events += (Event(EventKind.DELETED, path), Event(EventKind.CHILDREN, parent))

    def require(self, path: str, version: int) -> StoredNode:
        check_path(path)
        node = self._find(path)
        if node is None:
            raise NoNode(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(path, version, node.version)
        return node

    def _find(self, path: str) -> StoredNode | None:
        return self.nodes[path] if path in self.nodes else self._base.node(path)


def _check_data(path: str, data: bytes) -> None:
    if len(data) > MAX_DATA_BYTES:
        raise DataTooLarge(path, len(data), MAX_DATA_BYTES)
