"""An assignor: who in a group reads what.

Rule: pure and deterministic; the leader of a group calls `assign` with what every member said, and whoever leads, the
same input gives the same shares. A user's own assignor is any object with these attributes; its `name` is what the
members of a group agree upon, so all of them must have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

from penstock.client.consumer.protocol import Subscription
from penstock.client.consumer.types import TopicPartition

Shares = dict[str, list[TopicPartition]]


class GroupMember(NamedTuple):
    """One member as the leader sees it. A static member's instance id survives restarts, its member id does not."""

    member_id: str
    subscription: Subscription
    instance_id: str | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        return self.subscription.topics


class Assignor(Protocol):
    """`protocol` says what happens to partitions that move: "eager" gives all of them back before every
    rebalance, "cooperative" only those that go elsewhere."""

    @property
    def name(self) -> str: ...

    @property
    def protocol(self) -> Literal["eager", "cooperative"]: ...

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        """What this member's subscription says to the leader's assignor."""

    def assign(self, partition_counts: Mapping[str, int], members: Iterable[GroupMember]) -> Shares:
        """Every member's share, by member id. Topics that do not exist have no entry in `partition_counts`."""


def in_order(members: Iterable[GroupMember]) -> list[GroupMember]:
    """Static members by instance id, then the others by member id: the order of Kafka's own assignors."""
    return sorted(members, key=lambda m: (m.instance_id is None, m.instance_id or m.member_id))


def subscribed_topics(members: Iterable[GroupMember], partition_counts: Mapping[str, int]) -> list[str]:
    """The topics that exist and that somebody wants, in order."""
    return sorted({topic for member in members for topic in member.topics if partition_counts.get(topic, 0) > 0})
