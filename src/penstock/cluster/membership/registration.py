"""What a broker itself writes into the metadata tree: initial tree, secret, registration, producer id blocks.

The initial tree (classic paths, cluster id, cluster secret) may be created by several brokers at once and at every
start; the first one names the cluster and draws its secret. The initial users of the settings are stored unless the
tree knows their names: a user that was removed leaves an empty document, and stays removed.

A broker is registered by an ephemeral node under /brokers/ids; the creation number of the node is the broker epoch. An
id belongs to one session. A node of another session belongs to another broker, unless it names the addresses that this
broker listens on: then an earlier process of this broker left it, and registration waits for the end of its session. If
the outcome of the creation is unknown, the owner of the node decides it.

Producer ids come in blocks of 1000. A block belongs to a broker once its end is stored durably against the version that
was read; the rest of a block is never used after a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from penstock.cluster.entity_configs import Entity, Settings
from penstock.cluster.errors import (
    BadVersion,
    BrokerIdInUse,
    ClusterIdMismatch,
    ConnectionLost,
    LayoutError,
    NodeExists,
    ProducerIdsExhausted,
)
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import (
    BrokerRegistration,
    ProducerIdBlock,
    decode_broker,
    decode_cluster_id,
    decode_cluster_secret,
    decode_producer_ids,
    encode_broker,
    encode_cluster_id,
    encode_cluster_secret,
    encode_config,
    encode_log_dir_event,
    encode_producer_ids,
)
from penstock.cluster.tree.tree import Create, Node, SessionEvent, Set, Tree, ensure_path, find
from penstock.log.log_dirs.identity import encode_id
from penstock.runtime.randomness import Random
from penstock.security.broker_proof import SECRET_BYTES, ClusterSecret

logger = logging.getLogger(__name__)

BLOCK_SIZE: Final = 1000
"""Producer ids that a broker allocates at once."""

# ZooKeeper ends sessions on the tick, and its clients notice a lost server late.
_GRACE_MS: Final = 3000
_INT64_MAX: Final = 2**63 - 1


async def initialize_tree(tree: Tree, random: Random, wanted_id: str | None = None) -> str:
    """Create what every tree has; returns the cluster id.

    `wanted_id` is what the data folders say, if they do: a new tree takes it over, and a tree of another cluster raises
    ClusterIdMismatch. LayoutError, TreeError.
    """
    for path in (*layout.PERSISTENT_PATHS, layout.BROKER_EPOCHS):
        await ensure_path(tree, path)
    node = await find(tree, layout.CLUSTER_ID)
    if node is None:
        cluster_id = encode_id(random.uuid_bytes()) if wanted_id is None else wanted_id
        try:
            await tree.create(layout.CLUSTER_ID, encode_cluster_id(cluster_id))
        except NodeExists:
            node = await tree.get(layout.CLUSTER_ID)
        else:
            return cluster_id
    found = decode_cluster_id(node.data)
    if wanted_id is not None and found != wanted_id:
        raise ClusterIdMismatch(wanted_id, found)
    return found


async def find_cluster_secret(tree: Tree, random: Random) -> ClusterSecret:
    """The secret with which brokers prove themselves; the first broker that finds none creates it. LayoutError,
    TreeError.
    """
    while (node := await find(tree, layout.CLUSTER_SECRET)) is None:
        # Another broker may be first; and without an answer it is unknown whether the node was created.
        with contextlib.suppress(NodeExists, ConnectionLost):
            await tree.create(layout.CLUSTER_SECRET, encode_cluster_secret(random.random_bytes(SECRET_BYTES)))
    return ClusterSecret(decode_cluster_secret(node.data))


async def store_initial_users(tree: Tree, users: Mapping[str, Settings]) -> None:
    """Create the documents of users of which the tree has none. TreeError."""
    for name, settings in users.items():
        path = Entity(user=name).path
        if await find(tree, path) is None:
            await ensure_path(tree, path.rpartition("/")[0])
            with contextlib.suppress(NodeExists):
                await tree.create(path, encode_config(settings))
                logger.info("initial user stored: user=%s", name)


# --- registration


async def register_broker(tree: Tree, registration: BrokerRegistration, *, session_timeout_ms: int) -> int:
    """Register for as long as the tree's session lasts; returns the broker epoch.

    `session_timeout_ms` is how long the session of an earlier process may last. BrokerIdInUse, TreeError.
    """
    await ensure_path(tree, layout.BROKER_IDS)
    path = layout.broker_path(registration.broker_id)
    data = encode_broker(registration)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (session_timeout_ms + _GRACE_MS) / 1000
    changed = asyncio.Event()
    cancels = (tree.watch(path, lambda _: changed.set()), tree.watch_session(lambda event: _wake_at(event, changed)))
    try:
        while True:
            changed.clear()
            # The owner of the node says what happened.
            with contextlib.suppress(NodeExists, ConnectionLost):
                await tree.create(path, data, ephemeral=True)
            node = await find(tree, path)
            if node is None:
                continue
            if node.owner == tree.session_id:
                return node.created
            _require_own(registration, node)
            await _wait_for_end(registration, changed, deadline - loop.time(), node)
    finally:
        for cancel in cancels:
            cancel()


def _wake_at(event: SessionEvent, changed: asyncio.Event) -> None:
    # The next request then fails with SessionExpired.
    if event is SessionEvent.EXPIRED:
        changed.set()


async def update_registration(tree: Tree, registration: BrokerRegistration) -> bool:
    """Replace what this session has registered, and notify the controller; returns whether it is registered at all.

    The node stays the same, and the broker epoch with it. TreeError: the outcome may be unknown.
    """
    path = layout.broker_path(registration.broker_id)
    node = await find(tree, path)
    if node is None or node.owner != tree.session_id:
        return False
    data = encode_broker(registration)
    if node.data != data:
        event = f"{layout.LOG_DIR_EVENTS}/log_dir_event_{registration.broker_id}_{node.created}_{node.version}"
        await tree.multi([Set(path, data, node.version), Create(event, encode_log_dir_event(registration.broker_id))])
    return True


async def _wait_for_end(registration: BrokerRegistration, changed: asyncio.Event, left_s: float, node: Node) -> None:
    """Return when the node may be gone. BrokerIdInUse."""
    logger.info(
        "registration waits for the session of an earlier process to end: broker=%d up_to_s=%.1f",
        registration.broker_id,
        max(0.0, left_s),
    )
    try:
        async with asyncio.timeout(max(0.0, left_s)):
            await changed.wait()
    except TimeoutError:
        raise BrokerIdInUse(registration.broker_id, _registered_broker(registration.broker_id, node)) from None


def _require_own(registration: BrokerRegistration, node: Node) -> None:
    """BrokerIdInUse if the node belongs to another broker."""
    broker_id = registration.broker_id
    try:
        found = decode_broker(broker_id, node.data)
    except LayoutError:
        raise BrokerIdInUse(broker_id, "its registration cannot be read") from None
    if found.endpoints != registration.endpoints:
        raise BrokerIdInUse(broker_id, _registered_broker(broker_id, node))


def _registered_broker(broker_id: int, node: Node) -> str:
    """ "PLAINTEXT://host1:9092, since 2026-11-15T13:12:34Z"."""
    found = decode_broker(broker_id, node.data)
    where = ", ".join(map(str, found.endpoints))
    try:
        since = datetime.fromtimestamp(found.timestamp_ms / 1000, UTC) if found.timestamp_ms >= 0 else None
    except (OverflowError, ValueError, OSError):
        since = None
    return where if since is None else f"{where}, since {since:%Y-%m-%dT%H:%M:%SZ}"


# --- producer ids


class ProducerIds:
    """The producer ids of one broker."""

    def __init__(self, tree: Tree, broker_id: int) -> None:
        self._tree = tree
        self._broker_id = broker_id
        self._next = 0
        self._end = 0
        self._fetching = asyncio.Lock()

    def follow(self, tree: Tree) -> None:
        """Allocate further blocks through this session; the current block stays."""
        self._tree = tree

    async def stock_up(self) -> None:
        """Hold a block, for times when the tree is unreachable. ProducerIdsExhausted, TreeError."""
        async with self._fetching:
            if self._next >= self._end:
                block = await self.next_block()
                self._next, self._end = block.first, block.last + 1

    async def allocate(self) -> int:
        """An id that was never used. ProducerIdsExhausted, TreeError."""
        while self._next >= self._end:
            await self.stock_up()
        self._next += 1
        return self._next - 1

    async def next_block(self) -> ProducerIdBlock:
        """Allocate a whole block. ProducerIdsExhausted, TreeError."""
        await ensure_path(self._tree, layout.PRODUCER_ID_BLOCK)
        while True:
            node = await self._tree.get(layout.PRODUCER_ID_BLOCK)
            latest = decode_producer_ids(node.data)
            first = 0 if latest is None else latest.last + 1
            if first > _INT64_MAX - BLOCK_SIZE:
                raise ProducerIdsExhausted
            block = ProducerIdBlock(self._broker_id, first, first + BLOCK_SIZE - 1)
            try:
                await self._tree.set(layout.PRODUCER_ID_BLOCK, encode_producer_ids(block), node.version)
            except BadVersion:
                continue  # another broker allocated it
            return block
