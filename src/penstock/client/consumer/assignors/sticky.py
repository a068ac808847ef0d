"""Sticky: as even as the subscriptions allow, and then as little moved as possible.

Theory. First everyone keeps what it had. Where all members want the same topics the shares may differ by one: who has
more than the quota gives back the excess, who has less is filled up. Where they differ, what nobody has goes to the
least loaded of those who want it, and then partitions move along chains: from a member over others to one that has at
least two fewer, as long as there is such a chain. Without one no share can be evened out any further.

A member's claim counts with the generation in which it held it: of two claims to one partition the later generation
wins, and of two in the same generation neither, as one of them must be wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Literal

from penstock.client.consumer.assignors.base import GroupMember, Shares, in_order, subscribed_topics
from penstock.client.consumer.protocol import decode_sticky_user_data, encode_sticky_user_data
from penstock.client.consumer.types import TopicPartition


class StickyAssignor:
    name = "sticky"
    protocol: Literal["eager", "cooperative"] = "eager"

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        return encode_sticky_user_data(owned, generation)

    def assign(self, partition_counts: Mapping[str, int], members: Iterable[GroupMember]) -> Shares:
        ordered = in_order(members)
        topics = subscribed_topics(ordered, partition_counts)
        every = [TopicPartition(topic, index) for topic in topics for index in range(partition_counts[topic])]
        kept = self.kept(ordered, frozenset(every))
        taken = {partition for share in kept.values() for partition in share}
        free = [partition for partition in every if partition not in taken]
        existing = frozenset(topics)
        wanted = {member.member_id: existing.intersection(member.topics) for member in ordered}
        if len(set(wanted.values())) <= 1:
            _fill_evenly(kept, free, len(every))
        else:
            _fill_by_wish(kept, free, wanted)
            _even_out(kept, wanted)
        return {member: sorted(share) for member, share in kept.items()}

    def kept(self, members: list[GroupMember], existing: frozenset[TopicPartition]) -> Shares:
        """What each member had and may keep."""
        claims: dict[TopicPartition, tuple[int, str | None]] = {}
        for member in members:
            owned, generation = self.claim(member)
            for partition in owned:
                if partition not in existing or partition.topic not in member.topics:
                    continue
                rival = claims.get(partition)
                if rival is None or rival[0] < generation:
                    claims[partition] = generation, member.member_id
                elif rival[0] == generation and rival[1] != member.member_id:
                    claims[partition] = generation, None
        shares: Shares = {member.member_id: [] for member in members}
        for partition, (_, owner) in sorted(claims.items(), key=lambda item: item[0]):
            if owner is not None:
                shares[owner].append(partition)
        return shares

    def claim(self, member: GroupMember) -> tuple[tuple[TopicPartition, ...], int]:
        """What a member says that it had. Its user data says so even when it had to give all of it back."""
        owned, generation = decode_sticky_user_data(member.subscription.user_data)
        if owned:
            return owned, generation
        return member.subscription.owned, member.subscription.generation


def _fill_evenly(shares: Shares, free: list[TopicPartition], total: int) -> None:
    """Ten partitions, three members: shares of 4 3 3, the 4 for one that has that many already, if there is one."""
    if not shares:
        return
    quota, larger = divmod(total, len(shares))
    for share in sorted(shares.values(), key=len, reverse=True):
        most = quota
        if larger and len(share) > quota:
            most, larger = quota + 1, larger - 1
        free += share[most:]
        del share[most:]
    remaining = deque(sorted(free))
    for share in sorted(shares.values(), key=len):
        while remaining and len(share) < quota:
            share.append(remaining.popleft())
    for share in shares.values():
        if remaining and len(share) == quota:
            share.append(remaining.popleft())


def _fill_by_wish(shares: Shares, free: list[TopicPartition], wanted: Mapping[str, frozenset[str]]) -> None:
    readers: dict[str, list[str]] = {}
    for member, topics in wanted.items():
        for topic in topics:
            readers.setdefault(topic, []).append(member)
    # Those with the fewest takers first: the others can still go where it is empty.
    for partition in sorted(free, key=lambda p: (len(readers[p.topic]), p)):
        least = min(readers[partition.topic], key=lambda member: len(shares[member]))
        shares[least].append(partition)


def _even_out(shares: Shares, wanted: Mapping[str, frozenset[str]]) -> None:
    moved = True
    while moved:
        moved = False
        for member in sorted(shares, key=lambda m: len(shares[m]), reverse=True):
            chain = _chain_from(member, shares, wanted)
            if chain:
                _move_along(member, chain, shares)
                moved = True
                break


def _chain_from(start: str, shares: Shares, wanted: Mapping[str, frozenset[str]]) -> list[tuple[str, str]]:
    """The shortest chain of (topic, next member) to a member with at least two fewer; empty if there is none."""
    came: dict[str, tuple[str, str]] = {}
    reached = {start}
    queue = deque([start])
    while queue:
        member = queue.popleft()
        for topic in sorted({partition.topic for partition in shares[member]}):
            for other, topics in wanted.items():
                if other in reached or topic not in topics:
                    continue
                reached.add(other)
                came[other] = member, topic
                if len(shares[other]) <= len(shares[start]) - 2:
                    return _walked_back(start, other, came)
                queue.append(other)
    return []


def _walked_back(start: str, end: str, came: Mapping[str, tuple[str, str]]) -> list[tuple[str, str]]:
    chain: list[tuple[str, str]] = []
    while end != start:
        previous, topic = came[end]
        chain.append((topic, end))
        end = previous
    return chain[::-1]


def _move_along(start: str, chain: list[tuple[str, str]], shares: Shares) -> None:
    giver = start
    for topic, taker in chain:
        # The last of the topic: what came most recently is the cheapest to move again.
        given = next(partition for partition in reversed(shares[giver]) if partition.topic == topic)
        shares[giver].remove(given)
        shares[taker].append(given)
        giver = taker
