"""Range: topic by topic, each member a run of neighbouring partitions, the first ones one more if it does not divide.

Seven partitions, three members: 0 1 2 | 3 4 | 5 6. Topics of equal width are split alike, so that one member has the
same partitions of all of them: what joins of such topics need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from penstock.client.consumer.assignors.base import GroupMember, Shares, in_order, subscribed_topics
from penstock.client.consumer.types import TopicPartition


class RangeAssignor:
    name = "range"
    protocol: Literal["eager"] = "eager"

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        return None

    def assign(self, partition_counts: Mapping[str, int], members: Iterable[GroupMember]) -> Shares:
        ordered = in_order(members)
        shares: Shares = {member.member_id: [] for member in ordered}
        for topic in subscribed_topics(ordered, partition_counts):
            readers = [member.member_id for member in ordered if topic in member.topics]
            each, extra = divmod(partition_counts[topic], len(readers))
            start = 0
            for number, reader in enumerate(readers):
                end = start + each + (number < extra)
                shares[reader] += [TopicPartition(topic, index) for index in range(start, end)]
                start = end
        return shares
