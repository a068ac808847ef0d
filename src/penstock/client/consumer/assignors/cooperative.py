"""Cooperative sticky: the sticky shares, but a partition that changes hands is nobody's for one rebalance.

Its old owner sees that it is gone from its share, gives it back and joins again; in that second rebalance the new
owner gets it. All other partitions are read on through both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Literal

from penstock.client.consumer.assignors.base import GroupMember, Shares
from penstock.client.consumer.assignors.sticky import StickyAssignor
from penstock.client.consumer.protocol import NO_GENERATION
from penstock.client.consumer.types import TopicPartition

_GENERATION = Struct(">i")


class CooperativeStickyAssignor(StickyAssignor):
    name = "cooperative-sticky"
    protocol: Literal["eager", "cooperative"] = "cooperative"

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        return _GENERATION.pack(generation)

    def claim(self, member: GroupMember) -> tuple[tuple[TopicPartition, ...], int]:
        subscription = member.subscription
        generation = subscription.generation
        data = subscription.user_data
        if generation == NO_GENERATION and data is not None and len(data) >= _GENERATION.size:
            # Members of older versions have no other place for it.
            (generation,) = _GENERATION.unpack_from(data)
        return subscription.owned, generation

    def assign(self, partition_counts: Mapping[str, int], members: Iterable[GroupMember]) -> Shares:
        everyone = list(members)
        shares = super().assign(partition_counts, everyone)
        holders: dict[TopicPartition, set[str]] = {}
        for member in everyone:
            for partition in member.subscription.owned:
                holders.setdefault(partition, set()).add(member.member_id)
        return {
            member: [partition for partition in share if holders.get(partition, {member}) <= {member}]
            for member, share in shares.items()
        }
