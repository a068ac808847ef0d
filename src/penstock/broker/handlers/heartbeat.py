"""Heartbeat: a member is alive, and learns that a rebalance is under way."""

from __future__ import annotations

from penstock.broker.handlers.group_routing import by_group
from penstock.coordination.shard import GroupCoordinatorShard

handle = by_group(GroupCoordinatorShard.handle_heartbeat)
