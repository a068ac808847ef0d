"""ConsumerGroupHeartbeat: the one request of the newer group protocol, which joins, reports, leaves and
assigns.

Fields that did not change since the last heartbeat are null or -1. Version 1 adds subscription by pattern.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, NO_UUID, Int16, Int32, Message, Schema, Uuid, versions


class TopicPartitions(Message):
    topic_id: Uuid = NO_UUID
    partitions: list[Int32] = EMPTY


class ConsumerGroupHeartbeatRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1", flexible="0+")

    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: Annotated[str | None, versions("1+")] = None
    server_assignor: str | None = None
    topic_partitions: list[TopicPartitions] | None = None


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = EMPTY


class ConsumerGroupHeartbeatResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1", flexible="0+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None
