"""A broker's place among the living: its ephemeral node under /brokers/ids.

Noun: the registration of this session; the number that its node was created with is the broker epoch, by which others
tell this life of a broker from its earlier ones.

Rule: one id, one session. A node that another session holds is somebody else's, unless it names the very addresses that
this broker listens on: nobody else can, so it is what an earlier process of this broker left, and goes when that one's
session ends; that is waited for. When it is not known whether the node was made, whose it is says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from typing import Final

from penstock.cluster import paths
from penstock.cluster.errors import BrokerIdInUse, ConnectionLost, LayoutError, NodeExists
from penstock.cluster.layout import BrokerRegistration, decode_broker, encode_broker
from penstock.cluster.tree import Node, SessionEvent, Tree, ensure_path, find

logger = logging.getLogger(__name__)

# ZooKeeper ends sessions on the tick, and its clients notice a lost server late.
_GRACE_MS: Final = 3000


async def register_broker(tree: Tree, registration: BrokerRegistration, *, session_timeout_ms: int) -> int:
    """Register for as long as the tree's session lasts; the broker epoch.

    `session_timeout_ms` is how long an earlier process of this broker may still seem to live. BrokerIdInUse, TreeError.
    """
    await ensure_path(tree, paths.BROKER_IDS)
    path = paths.broker(registration.broker_id)
    data = encode_broker(registration)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (session_timeout_ms + _GRACE_MS) / 1000
    changed = asyncio.Event()
    cancels = (tree.watch(path, lambda _: changed.set()), tree.watch_session(lambda event: _wake_at(event, changed)))
    try:
        while True:
            changed.clear()
            # Whose node it is, if there is one, says what happened.
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
    # The next request says what is the matter.
    if event is SessionEvent.EXPIRED:
        changed.set()


async def _wait_for_end(registration: BrokerRegistration, changed: asyncio.Event, left_s: float, node: Node) -> None:
    """Return when the node may have gone. BrokerIdInUse."""
    logger.info(
        "broker %d is still registered by its earlier process; waiting for the end of that session, up to %.1f s",
        registration.broker_id,
        max(0.0, left_s),
    )
    try:
        async with asyncio.timeout(max(0.0, left_s)):
            await changed.wait()
    except TimeoutError:
        raise BrokerIdInUse(registration.broker_id, _holder(registration.broker_id, node)) from None


def _require_own(registration: BrokerRegistration, node: Node) -> None:
    """BrokerIdInUse if it is another broker's."""
    broker_id = registration.broker_id
    try:
        found = decode_broker(broker_id, node.data)
    except LayoutError:
        raise BrokerIdInUse(broker_id, "its registration cannot be read") from None
    if found.endpoints != registration.endpoints:
        raise BrokerIdInUse(broker_id, _holder(broker_id, node))


def _holder(broker_id: int, node: Node) -> str:
    """ "PLAINTEXT://host1:9092, since 2026-11-15T13:12:34Z"."""
    found = decode_broker(broker_id, node.data)
    where = ", ".join(map(str, found.endpoints))
    try:
        since = datetime.fromtimestamp(found.timestamp_ms / 1000, UTC) if found.timestamp_ms >= 0 else None
    except (OverflowError, ValueError, OSError):
        since = None
    return where if since is None else f"{where}, since {since:%Y-%m-%dT%H:%M:%SZ}"
