"""What the controller sends a broker, and what that answers; as objects and as messages. Pure.

Rule: an update names its controller, the life of the broker that it is for, and the image that it makes; its delta is
on the image of number `base`, or makes a whole one. An answer of OK says that the broker goes by that image from now
on, and names the topics on their way out of which it has nothing left.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.push_image import PushImageRequest, PushImageResponse, RemovedTopic

WHOLE: Final = -1
"""The base of an update that needs none."""
NO_NUMBER: Final = -1


class AckError(IntEnum):
    """By the error code of the answer."""

    OK = ErrorCode.NONE
    STALE_CONTROLLER = ErrorCode.STALE_CONTROLLER_EPOCH
    WRONG_BROKER_EPOCH = ErrorCode.STALE_BROKER_EPOCH
    NEED_WHOLE = ErrorCode.INVALID_UPDATE_VERSION
    FAILED = ErrorCode.UNKNOWN_SERVER_ERROR


class ImageUpdate(NamedTuple):
    """The image of `number`, which follows that of `base` under the same controller epoch."""

    controller_id: int
    controller_epoch: int
    broker_id: int
    broker_epoch: int
    number: int
    base: int
    delta: bytes


class ImageAck(NamedTuple):
    """`number` is that of the image that the broker has, NO_NUMBER if it has none of this controller epoch.

    `removed` are topics, by name and id, that are on their way out and of which nothing is left at the broker.
    """

    error: AckError
    number: int = NO_NUMBER
    removed: tuple[tuple[str, bytes], ...] = ()


def request_of(update: ImageUpdate) -> PushImageRequest:
    return PushImageRequest(**update._asdict())


def update_of(request: PushImageRequest) -> ImageUpdate:
    return ImageUpdate(
        request.controller_id,
        request.controller_epoch,
        request.broker_id,
        request.broker_epoch,
        request.number,
        request.base,
        bytes(request.delta),
    )


def response_of(ack: ImageAck) -> PushImageResponse:
    removed = [RemovedTopic(name=name, topic_id=topic_id) for name, topic_id in ack.removed]
    return PushImageResponse(error_code=ack.error, number=ack.number, removed=removed)


def ack_of(response: PushImageResponse) -> ImageAck:
    """A code that is not among ours is a failure."""
    known = response.error_code in AckError.__members__.values()
    error = AckError(response.error_code) if known else AckError.FAILED
    return ImageAck(error, response.number, tuple((topic.name, topic.topic_id) for topic in response.removed))
