"""The nodes of a metadata tree in memory, and what operations do to them. Pure.

Noun: a `TreeState`, all nodes; a `Change`, what a list of operations does to them, as the nodes that it leaves.

Rule: `prepare` decides, against a draft, and changes nothing; `commit` changes, and cannot fail. In between, the
caller makes the change durable. Only one change is prepared at a time. A change names what is left, not what was done,
so that replaying it is putting and removing nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

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
from penstock.cluster.tree import (
    ANY_VERSION,
    MAX_DATA_BYTES,
    NO_OWNER,
    ROOT,
    Check,
    Create,
    Delete,
    Event,
    EventKind,
    Node,
    Operation,
    Set,
    check_path,
    parent_of,
)

_VERSION_MAX: Final = 2**31 - 1


class StoredNode(NamedTuple):
    data: bytes
    version: int
    owner: int | None = None  # the session of an ephemeral node
    created: int = 0

    def seen(self) -> Node:
        """The node as whoever reads it gets it."""
        return Node(self.data, self.version, self.created, NO_OWNER if self.owner is None else self.owner)


class Change(NamedTuple):
    """Nodes as they are to be, None for those that go; what watchers are told; and the last `created` given away."""

    nodes: dict[str, StoredNode | None]
    events: list[Event]
    last_created: int


class OrphanNode(TreeError):
    """A node whose parent is not there: no operation leaves one."""

    def __init__(self, path: str) -> None:
        super().__init__(f"node {path} has no parent")
        self.path = path


class TreeState:
    """All nodes of a tree, and the last of the numbers that nodes are created with."""

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
        """Every node that outlives sessions."""
        return ((path, node) for path, node in self._nodes.items() if node.owner is None)

    def owned_by(self, owner: int) -> list[str]:
        return [path for path, node in self._nodes.items() if node.owner == owner]

    def prepare(self, operations: Sequence[Operation], owner: int) -> Change:
        """What these operations, in this order, would do; raises what the first impossible one raises."""
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
    """A state with changes that are not made yet."""

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
        # As ZooKeeper does: versions come round, and -1 never is one.
        self.nodes[path] = node._replace(data=data, version=0 if node.version == _VERSION_MAX else node.version + 1)
        self.events.append(Event(EventKind.CHANGED, path))

    def delete(self, path: str, version: int) -> None:
        self.require(path, version)
        if path == ROOT:
            raise InvalidPath(path, "the root stays")
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
