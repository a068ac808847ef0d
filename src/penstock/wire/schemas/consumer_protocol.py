"""The consumer protocol: what consumers of a group send each other inside the opaque bytes of JoinGroup
and SyncGroup.

Not an API: brokers pass it on unread. Each message follows its version as an int16; a reader takes a
version higher than it knows for its highest, since later ones only append fields.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int32, Message, Schema, ignorable, versions


class TopicPartition(Message):
    topic: str = ""
    partitions: list[Int32] = EMPTY


class ConsumerProtocolSubscription(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-3")

    topics: list[str] = EMPTY
    user_data: bytes | None = None
    owned_partitions: Annotated[list[TopicPartition], versions("1+"), ignorable] = EMPTY
    generation_id: Annotated[Int32, versions("2+"), ignorable] = -1
    rack_id: Annotated[str | None, versions("3+"), ignorable] = None


class ConsumerProtocolAssignment(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-3")

    assigned_partitions: list[TopicPartition] = EMPTY
    user_data: bytes | None = None
