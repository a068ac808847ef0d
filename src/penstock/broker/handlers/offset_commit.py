"""OffsetCommit: how far a group has read; answered when it is durable."""

from __future__ import annotations

from penstock.broker.handlers.group_routing import by_group
from penstock.coordination.shard import GroupCoordinatorShard

handle = by_group(GroupCoordinatorShard.handle_offset_commit)
