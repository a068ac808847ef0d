"""SyncGroup: the leader brings the assignment, the others wait for it."""

from __future__ import annotations

from penstock.broker.handlers.group_routing import by_group
from penstock.coordination.shard import GroupCoordinatorShard

handle = by_group(GroupCoordinatorShard.handle_sync_group)
