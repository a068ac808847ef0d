"""The metadata tree: the small, shared, versioned facts of a cluster.

Noun: a node has a path, some bytes, a version that rises by one with every change, and children. An ephemeral node
vanishes with the session that made it, and has no children. One interface, `Tree`, for ZooKeeper, for a file of one
broker (`embedded_tree`) and for a simulator.

Rule: an operation that was answered is durable and seen by every later read of the same session. An operation that
raises did not happen, unless it raises ConnectionLost or TreeFailed: then nobody knows, and whoever asked reads again.
A change that depends on what was read names the version that was read. Watches say that something changed, not what:
several changes may come as one call, and the watcher reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

from penstock.cluster.errors import InvalidPath, NodeExists, NoNode

ANY_VERSION: Final = -1
ROOT: Final = "/"
NO_OWNER: Final = 0

# What ZooKeeper takes in one node as it is installed.
MAX_DATA_BYTES: Final = 1024 * 1024 - 1024
_MAX_PATH_LENGTH = 1024


class Node(NamedTuple):
    """`created` never goes back: of two nodes that a path ever had, the later has the greater one."""

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
    """Nothing changes, but the node must be there, at that version."""

    path: str
    version: int = ANY_VERSION


Operation = Create | Set | Delete | Check


class EventKind(Enum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"


class Event(NamedTuple):
    """The node at `path` came, changed or went, or the set of its children changed."""

    kind: EventKind
    path: str


class SessionEvent(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no connection: ephemeral nodes may be there still, nothing can be known or done
    EXPIRED = "expired"  # ephemeral nodes are gone, and so are watches; this `Tree` is of no more use


Watcher = Callable[[Event], None]
SessionWatcher = Callable[[SessionEvent], None]
Cancel = Callable[[], None]


class Tree(Protocol):
    """The metadata tree as one session sees it. All of it is used on one event loop, where callbacks run too."""

    @property
    def session_id(self) -> int:
        """What the `owner` of this session's ephemeral nodes is; never NO_OWNER."""

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """NodeExists; NoNode if the parent is missing; EphemeralParent."""

    async def get(self, path: str) -> Node:
        """NoNode."""

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """The nodes at these paths, None where there is none; not at one moment."""

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """The new version. NoNode, BadVersion."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """NoNode, BadVersion, NotEmpty."""

    async def exists(self, path: str) -> bool: ...

    async def children(self, path: str) -> list[str]:
        """The names of a node's children, sorted. NoNode."""

    async def multi(self, operations: Sequence[Operation]) -> None:
        """All of them, in order, or none; raises what the first impossible one raises."""

    def watch(self, path: str, watcher: Watcher) -> Cancel:
        """Call `watcher` after each change of the node at `path`, there or not, or of the set of its children."""

    def watch_session(self, watcher: SessionWatcher) -> Cancel: ...

    async def close(self) -> None:
        """End the session: what was asked before is answered, ephemeral nodes vanish."""


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
            raise InvalidPath(path, f"{name!r} is no name")
    if not path.isprintable():
        raise InvalidPath(path, "it has unprintable characters")


async def find(tree: Tree, path: str) -> Node | None:
    try:
        return await tree.get(path)
    except NoNode:
        return None


async def ensure_path(tree: Tree, path: str) -> None:
    """Make the persistent node `path` and those above it, as far as they are missing."""
    if path == ROOT or await tree.exists(path):
        return
    await ensure_path(tree, parent_of(path))
    try:
        await tree.create(path)
    except NodeExists:
        # Another broker that starts at the same time.
        return
