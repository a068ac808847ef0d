"""OffsetDelete: offsets of topics that a group reads no more."""

from __future__ import annotations

from penstock.broker.handlers.groups import by_group
from penstock.coordination.shard import GroupCoordinatorShard

handle = by_group(GroupCoordinatorShard.handle_offset_delete)
