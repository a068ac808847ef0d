"""Round robin: all partitions of all topics dealt out one by one, passing over members that do not want the topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import cycle
from typing import Literal

from penstock.client.consumer.assignors.base import GroupMember, Shares, in_order, subscribed_topics
from penstock.client.consumer.types import TopicPartition


class RoundRobinAssignor:
    name = "roundrobin"
    protocol: Literal["eager"] = "eager"

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        return None

    def assign(self, partition_counts: Mapping[str, int], members: Iterable[GroupMember]) -> Shares:
        ordered = in_order(members)
        shares: Shares = {member.member_id: [] for member in ordered}
        wanted = {member.member_id: frozenset(member.topics) for member in ordered}
        turn = cycle(member.member_id for member in ordered)
        for topic in subscribed_topics(ordered, partition_counts):
            for index in range(partition_counts[topic]):
                # Somebody wants the topic, or it would not be here: the search ends within one round.
                reader = next(member for member in turn if topic in wanted[member])
                shares[reader].append(TopicPartition(topic, index))
        return shares
