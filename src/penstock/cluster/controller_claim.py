"""Becoming the controller: one ephemeral node, and an epoch that rises with it.

Rule: /controller is made and /controller_epoch raised in one step, or neither: so an epoch has one controller, and
while that holds its node nobody raises the epoch. Whoever cannot have it gets None and watches /controller. When it is
not known whether the step was made, whose node it is says so.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.cluster import paths
from penstock.cluster.errors import BadVersion, ConnectionLost, NodeExists
from penstock.cluster.layout import decode_controller_epoch, encode_controller, encode_controller_epoch
from penstock.cluster.tree import Create, Operation, Set, Tree, find
from penstock.runtime.clock import Clock


class ControllerClaim(NamedTuple):
    """The epoch of this controller, and the version of its node, which every change of the controller checks."""

    epoch: int
    epoch_version: int


async def claim_controller(tree: Tree, broker_id: int, clock: Clock) -> ControllerClaim | None:
    """The claim if this session is the controller now, None if another is. LayoutError, TreeError."""
    while True:
        node = await find(tree, paths.CONTROLLER_EPOCH)
        epoch = 1 if node is None else decode_controller_epoch(node.data) + 1
        data = encode_controller_epoch(epoch)
        raised: Operation
        if node is None:
            raised, version = Create(paths.CONTROLLER_EPOCH, data), 0
        else:
            raised, version = Set(paths.CONTROLLER_EPOCH, data, node.version), node.version + 1
        claim = Create(paths.CONTROLLER, encode_controller(broker_id, clock.now_ms()), ephemeral=True)
        try:
            await tree.multi((claim, raised))
        except (NodeExists, BadVersion, ConnectionLost):
            holder = await find(tree, paths.CONTROLLER)
            if holder is None:
                continue  # Another came and went, or the connection broke before anything was made.
            return await _held(tree) if holder.owner == tree.session_id else None
        return ControllerClaim(epoch, version)


async def _held(tree: Tree) -> ControllerClaim:
    """The claim of the session that has the node already."""
    node = await tree.get(paths.CONTROLLER_EPOCH)
    return ControllerClaim(decode_controller_epoch(node.data), node.version)
