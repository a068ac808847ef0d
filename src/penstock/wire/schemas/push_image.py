"""PushImage: the controller tells a broker how the cluster is. Private to our brokers, and not advertised.

`delta` is what is different from the image of number `base`, or from the empty one if `base` is -1; the numbers are
those of one controller epoch. The response has the number of the image that the broker has, -1 if it has none of this
controller's, and the topics on their way out of which nothing is left at the broker.
"""

from typing import ClassVar

from penstock.wire.types import EMPTY, NO_UUID, Int16, Int32, Int64, Message, Schema, Uuid


class PushImageRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    controller_id: Int32 = -1
    controller_epoch: Int32 = 0
    broker_id: Int32 = -1
    broker_epoch: Int64 = -1
    number: Int64 = 0
    base: Int64 = -1
    delta: bytes = b""


class RemovedTopic(Message):
    name: str = ""
    topic_id: Uuid = NO_UUID


class PushImageResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    error_code: Int16 = 0
    number: Int64 = -1
    removed: list[RemovedTopic] = EMPTY
