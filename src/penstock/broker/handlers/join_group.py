"""JoinGroup: a member comes, or comes back; answered when the rebalance it belongs to has gathered everyone."""

from __future__ import annotations

from penstock.broker.handlers.group_routing import by_group
from penstock.coordination.shard import GroupCoordinatorShard

handle = by_group(GroupCoordinatorShard.handle_join_group)
