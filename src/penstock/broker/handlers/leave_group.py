"""LeaveGroup: members go, without the others having to wait for their sessions to end."""

from __future__ import annotations

from penstock.broker.handlers.group_routing import by_group
from penstock.coordination.shard import GroupCoordinatorShard

handle = by_group(GroupCoordinatorShard.handle_leave_group)
