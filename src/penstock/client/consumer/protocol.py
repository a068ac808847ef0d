"""What the consumers of a group tell each other inside the opaque bytes of JoinGroup and SyncGroup.

Noun: a member's subscription, and the share that the leader gives it. Rule: each message follows its version as an
int16; later versions only append fields, so a version above the highest known is read as the highest, and what an
older member leaves out has its default. Bytes that make no sense are a `ProtocolError`, whoever sent them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct, error
from typing import Final, NamedTuple

from penstock.client.consumer.types import TopicPartition
from penstock.wire.compiler import codec_for
from penstock.wire.errors import WireError
from penstock.wire.schemas.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from penstock.wire.schemas.consumer_protocol import TopicPartition as TopicPartitions

PROTOCOL_TYPE: Final = "consumer"
HIGHEST_VERSION: Final = 3
NO_GENERATION: Final = -1

_VERSION: Final = Struct(">h")
_INT32: Final = Struct(">i")


class ProtocolError(Exception):
    """Bytes of another member that are no subscription or assignment."""


class Subscription(NamedTuple):
    """What a member wants to read, and what it had when it said so."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None


class Assignment(NamedTuple):
    """What a member shall read."""

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
        raise ProtocolError(f"a member's subscription cannot be read: {reason}") from None
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
    """A share; no bytes at all, as coordinators send to whom the leader forgot, are an empty one."""
    if not data:
        return Assignment(())
    version = _version_of(data, "assignment")
    try:
        message, _ = codec_for(ConsumerProtocolAssignment, version).decode(data, _VERSION.size)
    except WireError as reason:
        raise ProtocolError(f"a member's assignment cannot be read: {reason}") from None
    return Assignment(_flat(message.assigned_partitions), message.user_data)


def encode_sticky_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """What the members of a "sticky" group say in their user data: their partitions, and of which generation."""
    grouped = _grouped(owned)
    parts = [_INT32.pack(len(grouped))]
    for topic in grouped:
        name = topic.topic.encode()
        parts += [_VERSION.pack(len(name)), name, _INT32.pack(len(topic.partitions))]
        parts += [_INT32.pack(partition) for partition in topic.partitions]
    return b"".join([*parts, _INT32.pack(generation)])


def decode_sticky_user_data(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    """The partitions and the generation; nothing where the bytes make no sense, as a wrong claim is worse."""
    # Java's assignor has no version in front of it, kafka-python's has one.
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
    # The first version of it ended here.
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
    """The partitions of each topic, both in order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


def _grouped(partitions: Iterable[TopicPartition]) -> list[TopicPartitions]:
    return [TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in by_topic(partitions).items()]


def _flat(topics: list[TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic.topic, index) for topic in topics for index in topic.partitions)
