"""The records of `__consumer_offsets`, byte for byte as Kafka writes them.

Keys of version 0 and 1 are committed offsets, those of version 2 are groups. Unknown versions (newer group protocols
have keys from 3) are returned as `UnknownRecord` and are not an error.

What a version cannot carry is not in the value that is replayed either, so memory and log agree.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

from penstock.coordination.coordinator_record import (
    CoordinatorRecord,
    decode_versioned,
    encode_versioned,
    version_of,
)
from penstock.coordination.errors import BadGroupRecord
from penstock.wire.types import EMPTY, Buffer, Int32, Int64, Message, Schema, ignorable, nullable, versions

NO_EPOCH: Final = -1
NO_TIME: Final = -1

_OFFSET_KEY: Final = 1
_GROUP_KEY: Final = 2
# The versions that Kafka writes. Only 1 carries an expiry time, only 3 and above a leader epoch. 4 is read but never
# written, because older brokers cannot read it.
_OFFSET_VALUE: Final = 3
_OFFSET_VALUE_EXPIRING: Final = 1
_GROUP_VALUE: Final = 3


class OffsetCommitKey(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1")

    group: str = ""
    topic: str = ""
    partition: Int32 = 0


class OffsetCommitValue(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="4+")

    offset: Int64 = 0
    leader_epoch: Annotated[Int32, versions("3+"), ignorable] = NO_EPOCH
    metadata: str = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Annotated[Int64, versions("1"), ignorable] = NO_TIME


class GroupMetadataKey(Message):
    SCHEMA: ClassVar[Schema] = Schema("2")

    group: str = ""


class MemberMetadata(Message):
    member_id: str = ""
    group_instance_id: Annotated[str | None, versions("3+"), nullable("3+"), ignorable] = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: Annotated[Int32, versions("1+"), ignorable] = -1
    session_timeout: Int32 = 0
    subscription: bytes = b""
    assignment: bytes = b""


class GroupMetadataValue(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="4+")

    protocol_type: str = ""
    generation: Int32 = 0
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp: Annotated[Int64, versions("2+"), ignorable] = NO_TIME
    members: list[MemberMetadata] = EMPTY


class CommittedOffset(msgspec.Struct, frozen=True, gc=False):
    """How far a group has read one partition. With an expiry time of its own there is no leader epoch.

    There are hundreds of thousands of them, so the garbage collector does not track them.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIME


class SavedMember(NamedTuple):
    """A member of a generation as it is stored."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class SavedGroup(NamedTuple):
    """A generation as it is stored. `since_ms` is when it began, NO_TIME in old records."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    since_ms: int
    members: tuple[SavedMember, ...]


class OffsetRecord(NamedTuple):
    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


class GroupRecord(NamedTuple):
    group_id: str
    value: SavedGroup | None


class UnknownRecord(NamedTuple):
    """A record with an unknown version, of the key or of the value."""

    key_version: int
    value_version: int | None


Record: TypeAlias = OffsetRecord | GroupRecord


def encode_record(record: Record) -> CoordinatorRecord:
    if isinstance(record, OffsetRecord):
        key: Message = OffsetCommitKey(group=record.group_id, topic=record.topic, partition=record.partition)
        committed = record.value
        return CoordinatorRecord(
            encode_versioned(key, _OFFSET_KEY), None if committed is None else _offset_value(committed)
        )
    key = GroupMetadataKey(group=record.group_id)
    return CoordinatorRecord(
        encode_versioned(key, _GROUP_KEY), None if record.value is None else _group_value(record.value)
    )


def decode_record(key: Buffer | None, value: Buffer | None) -> Record | UnknownRecord:
    """Decode a record. BadGroupRecord if its bytes do not fit its version."""
    if key is None:
        raise BadGroupRecord("the record has no key")
    key_version = version_of(key, BadGroupRecord)
    value_version = None if value is None else version_of(value, BadGroupRecord)
    if key_version in OffsetCommitKey.SCHEMA.versions:
        if value_version is not None and value_version not in OffsetCommitValue.SCHEMA.versions:
            return UnknownRecord(key_version, value_version)
        place = decode_versioned(OffsetCommitKey, key, BadGroupRecord)
        committed = None if value is None else _committed(decode_versioned(OffsetCommitValue, value, BadGroupRecord))
        return OffsetRecord(place.group, place.topic, place.partition, committed)
    if key_version in GroupMetadataKey.SCHEMA.versions:
        if value_version is not None and value_version not in GroupMetadataValue.SCHEMA.versions:
            return UnknownRecord(key_version, value_version)
        group_id = decode_versioned(GroupMetadataKey, key, BadGroupRecord).group
        return GroupRecord(
            group_id, None if value is None else _saved(decode_versioned(GroupMetadataValue, value, BadGroupRecord))
        )
    return UnknownRecord(key_version, value_version)


def _offset_value(committed: CommittedOffset) -> bytes:
    expires = committed.expire_timestamp_ms != NO_TIME
    message = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
    )
    return encode_versioned(message, _OFFSET_VALUE_EXPIRING if expires else _OFFSET_VALUE)


def _group_value(saved: SavedGroup) -> bytes:
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in saved.members
    ]
    message = GroupMetadataValue(
        protocol_type=saved.protocol_type,
        generation=saved.generation,
        protocol=saved.protocol,
        leader=saved.leader,
        current_state_timestamp=saved.since_ms,
        members=members,
    )
    return encode_versioned(message, _GROUP_VALUE)


def _committed(message: OffsetCommitValue) -> CommittedOffset:
    return CommittedOffset(
        message.offset,
        message.leader_epoch,
        message.metadata,
        message.commit_timestamp,
        message.expire_timestamp,
    )


def _saved(message: GroupMetadataValue) -> SavedGroup:
    members = tuple(
        SavedMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            # Before version 1 the session timeout was the only one.
            member.session_timeout if member.rebalance_timeout == -1 else member.rebalance_timeout,
            member.session_timeout,
            member.subscription,
            member.assignment,
        )
        for member in message.members
    )
    return SavedGroup(
        message.protocol_type,
        message.generation,
        message.protocol,
        message.leader,
        message.current_state_timestamp,
        members,
    )
