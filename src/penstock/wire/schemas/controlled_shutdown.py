"""ControlledShutdown: a broker asks to be relieved of its leaderships before it stops.

Version 0 is the one request whose header has no client id.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Int64, Message, Schema, ignorable, versions


class ControlledShutdownRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-3", flexible="3+")

    broker_id: Int32 = 0
    broker_epoch: Annotated[Int64, versions("2+"), ignorable] = -1


class RemainingPartition(Message):
    topic_name: str = ""
    partition_index: Int32 = 0


class ControlledShutdownResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-3", flexible="3+")

    error_code: Int16 = 0
    remaining_partitions: list[RemainingPartition] = EMPTY
