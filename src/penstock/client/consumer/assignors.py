"""Partition assignors, and the messages that members of a group exchange in JoinGroup and SyncGroup. Pure.

The group's leader calls `assign` with every member's subscription; the same input gives the same shares. A user's own
assignor is any object with these methods; members agree on its `name`, so all of them need it.

    range               per topic, runs of neighbouring partitions: 7 partitions, 3 members: 0 1 2 | 3 4 | 5 6
    roundrobin          all partitions dealt out one by one
    sticky              as even as the subscriptions allow, then as little moved as possible
    cooperative-sticky  the same; a partition that moves has no owner for one rebalance, the others are read on

Sticky: everyone keeps what it had, up to the quota; the rest goes to the least loaded; then partitions move along
chains from a member to one that has at least two fewer. Of two claims to a partition the later generation wins, and
of two in the same generation neither.

A message starts with its version as an int16. A version above the highest known is read as the highest, since later
versions only append fields. Invalid bytes raise ProtocolError.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from struct import Struct, error
from typing import Final, Literal, NamedTuple, Protocol

from penstock.client.cluster_metadata import TopicPartition
from penstock.wire.codec import codec_for
from penstock.wire.errors import WireError
from penstock.wire.schemas.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from penstock.wire.schemas.consumer_protocol import TopicPartition as TopicPartitions

__all__ = [
    "Assignor",
    "BUILT_IN",
    "CooperativeStickyAssignor",
    "GroupMember",
    "RangeAssignor",
    "RoundRobinAssignor",
    "Shares",
    "StickyAssignor",
    "assignors_from",
]

PROTOCOL_TYPE: Final = "consumer"
HIGHEST_VERSION: Final = 3
NO_GENERATION: Final = -1
Shares = dict[str, list[TopicPartition]]

_VERSION: Final = Struct(">h")
_INT32: Final = Struct(">i")
_GENERATION = Struct(">i")


# --------------------------------------------------------------------------------------------------- messages


class ProtocolError(Exception):
    """Bytes of another member that are not a subscription or an assignment."""


class Subscription(NamedTuple):
    """The topics of a member, and the partitions that it owned when it joined."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None


class Assignment(NamedTuple):
    """The partitions of a member."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    topics, user_data, owned, generation, rack = subscription
    message = ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=_grouped(owned),
        generation_id=generation,
        rack_id=rack,
    )
    return _VERSION.pack(version) + codec_for(ConsumerProtocolSubscription, version).encode(message)


def decode_subscription(data: bytes) -> Subscription:
    version = _version_of(data, "subscription")
    try:
        message, _ = codec_for(ConsumerProtocolSubscription, version).decode(data, _VERSION.size)
    except WireError as reason:
        raise ProtocolError(f"a member's subscription cannot be decoded: {reason}") from None
    return Subscription(
        tuple(message.topics),
        message.user_data,
        _flat(message.owned_partitions),
        message.generation_id,
        message.rack_id,
    )


def encode_assignment(assignment: Assignment, version: int = HIGHEST_VERSION) -> bytes:
    message = ConsumerProtocolAssignment(
        assigned_partitions=_grouped(assignment.partitions), user_data=assignment.user_data
    )
    return _VERSION.pack(version) + codec_for(ConsumerProtocolAssignment, version).encode(message)


def decode_assignment(data: bytes) -> Assignment:
    """An assignment; empty bytes, which coordinators send to members that the leader left out, are an empty one."""
    if not data:
        return Assignment(())
    version = _version_of(data, "assignment")
    try:
        message, _ = codec_for(ConsumerProtocolAssignment, version).decode(data, _VERSION.size)
    except WireError as reason:
        raise ProtocolError(f"a member's assignment cannot be decoded: {reason}") from None
    return Assignment(_flat(message.assigned_partitions), message.user_data)


def encode_sticky_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """The user data of members of a "sticky" group: their partitions and the generation."""
    grouped = _grouped(owned)
    parts = [_INT32.pack(len(grouped))]
    for topic in grouped:
        name = topic.topic.encode()
        parts += [_VERSION.pack(len(name)), name, _INT32.pack(len(topic.partitions))]
        parts += [_INT32.pack(partition) for partition in topic.partitions]
    return b"".join([*parts, _INT32.pack(generation)])


def decode_sticky_user_data(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    """The partitions and the generation; empty for invalid bytes, because a wrong claim is worse."""
    # Java's assignor sends no version, kafka-python's does.
    for begin in (0, _VERSION.size):
        try:
            return _read_sticky(data[begin:] if data else b"")
        except (error, UnicodeDecodeError, ProtocolError):
            continue
    return (), NO_GENERATION


def _read_sticky(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    (topics,) = _INT32.unpack_from(data)
    position = _INT32.size
    owned: list[TopicPartition] = []
    for _ in range(_within(topics, data)):
        length: int
        (length,) = _VERSION.unpack_from(data, position)
        position += _VERSION.size
        name = data[position : position + _within(length, data)].decode()
        position += length
        (count,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        for _ in range(_within(count, data)):
            owned.append(TopicPartition(name, *_INT32.unpack_from(data, position)))
            position += _INT32.size
    # The first version ended here.
    generation = _INT32.unpack_from(data, position)[0] if position + _INT32.size <= len(data) else NO_GENERATION
    return tuple(owned), generation


def _within(count: int, data: bytes) -> int:
    if not 0 <= count <= len(data):
        raise ProtocolError(f"{count} items in {len(data)} bytes")
    return count


def _version_of(data: bytes, what: str) -> int:
    if len(data) < _VERSION.size:
        raise ProtocolError(f"a member's {what} of {len(data)} bytes has no version")
    version = int.from_bytes(data[: _VERSION.size], "big", signed=True)
    if version < 0:
        raise ProtocolError(f"a member's {what} has version {version}")
    return min(version, HIGHEST_VERSION)


def by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    """The partitions of each topic, both sorted."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


def _grouped(partitions: Iterable[TopicPartition]) -> list[TopicPartitions]:
    return [TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in by_topic(partitions).items()]


def _flat(topics: list[TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic.topic, index) for topic in topics for index in topic.partitions)


# --------------------------------------------------------------------------------------------------- assignors


class GroupMember(NamedTuple):
    """A member as the group's leader sees it. Restarts change the member id, not the instance id of a static member."""

    member_id: str
    subscription: Subscription
    instance_id: str | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        return self.subscription.topics


class Assignor(Protocol):
    """Distributes partitions. With `protocol` "eager" members give back all partitions before every rebalance, with
    "cooperative" only those that move."""

    @property
    def name(self) -> str: ...

    @property
    def protocol(self) -> Literal["eager", "cooperative"]: ...

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        """The user data in this member's subscription, for the leader's assignor."""

    def assign(self, partition_counts: Mapping[str, int], members: Iterable[GroupMember]) -> Shares:
        """The partitions of every member, by member id. Missing topics have no entry in `partition_counts`."""


def in_order(members: Iterable[GroupMember]) -> list[GroupMember]:
    """Static members by instance id, then the others by member id: the order of Kafka's own assignors."""
    return sorted(members, key=lambda m: (m.instance_id is None, m.instance_id or m.member_id))


def subscribed_topics(members: Iterable[GroupMember], partition_counts: Mapping[str, int]) -> list[str]:
    """The existing topics that a member subscribes to, sorted."""
    return sorted({topic for member in members for topic in member.topics if partition_counts.get(topic, 0) > 0})


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
                # A member subscribes to the topic, or it would not be here: the search ends within one round.
                reader = next(member for member in turn if topic in wanted[member])
                shares[reader].append(TopicPartition(topic, index))
        return shares


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
        """The partitions that each member owned and may keep."""
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
        """What a member owned. Its user data says so even after it gave everything back."""
        owned, generation = decode_sticky_user_data(member.subscription.user_data)
        if owned:
            return owned, generation
        return member.subscription.owned, member.subscription.generation


def _fill_evenly(shares: Shares, free: list[TopicPartition], total: int) -> None:
    """Ten partitions, three members: 4 3 3, with the 4 for a member that owns that many already, if there is one."""
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
    # Topics with the fewest subscribers first: the others can still go to members with few partitions.
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
        # The last partition of the topic: what came most recently is the cheapest to move again.
        given = next(partition for partition in reversed(shares[giver]) if partition.topic == topic)
        shares[giver].remove(given)
        shares[taker].append(given)
        giver = taker


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
            # Members of older versions put it here.
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


BUILT_IN: dict[str, type[RangeAssignor | RoundRobinAssignor | StickyAssignor]] = {
    assignor.name: assignor
    for assignor in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}


def assignors_from(strategies: Sequence[str | Assignor]) -> list[Assignor]:
    """Assignors in order of preference; raises ValueError for an unknown or duplicate name."""
    chosen: list[Assignor] = []
    for strategy in strategies:
        if not isinstance(strategy, str):
            chosen.append(strategy)
        elif strategy in BUILT_IN:
            chosen.append(BUILT_IN[strategy]())
        else:
            raise ValueError(f"there is no assignor {strategy!r}; use {', '.join(BUILT_IN)}, or your own")
    if not chosen:
        raise ValueError("a group needs at least one assignor")
    names = [assignor.name for assignor in chosen]
    if len(set(names)) < len(names):
        raise ValueError(f"an assignor is given twice: {', '.join(names)}")
    return chosen
