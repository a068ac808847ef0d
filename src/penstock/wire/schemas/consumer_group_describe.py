"""ConsumerGroupDescribe: state, members and assignments of groups of the newer protocol."""

from typing import Annotated, ClassVar

from msgspec import field

from penstock.wire.types import EMPTY, NO_UUID, Int8, Int16, Int32, Message, Schema, Uuid, ignorable, versions


class ConsumerGroupDescribeRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1", flexible="0+")

    group_ids: list[str] = EMPTY
    include_authorized_operations: bool = False


class TopicPartitions(Message):
    topic_id: Uuid = NO_UUID
    topic_name: str = ""
    partitions: list[Int32] = EMPTY


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = EMPTY


class Member(Message):
    member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: Int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = EMPTY
    subscribed_topic_regex: str | None = None
    assignment: Assignment = field(default_factory=Assignment)
    target_assignment: Assignment = field(default_factory=Assignment)
    member_type: Annotated[Int8, versions("1+"), ignorable] = -1


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: str = ""
    members: list[Member] = EMPTY
    authorized_operations: Int32 = -2147483648


class ConsumerGroupDescribeResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1", flexible="0+")

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = EMPTY
