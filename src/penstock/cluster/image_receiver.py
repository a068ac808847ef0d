"""The image as the controller sends it, at a broker.

Noun: an `ImageReceiver`, which every broker has, the controller's own too.

Rule: nothing else changes a broker's image. Refused is what comes from an older controller than one that was heard
before, what is meant for another life of this broker (KIP-570: a late word to a former life must not touch this one),
and a delta that does not follow what is there, for which the whole image is asked. What was taken already is taken
again at once: an answer may have been lost. With a new life of the broker, what the former one led is over. Cancelling
whoever hands in an update does not cancel its taking.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.cluster.errors import DamagedDelta, DeltaMismatch
from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage
from penstock.cluster.image_delta import apply_delta, decode_delta, make_delta
from penstock.cluster.image_holder import Cancel, ImageHolder, Listener, Preparation
from penstock.cluster.image_updates import NO_NUMBER, WHOLE, AckError, ImageAck, ImageUpdate
from penstock.cluster.layout import NO_LEADER, UNKNOWN_EPOCH

logger = logging.getLogger(__name__)

IsGone = Callable[[TopicImage], bool]


class ImageReceiver:
    """Of one broker, through all its lives. `broker_epoch` is that of the present one: until it is set, nothing is
    taken. `is_gone` says of a topic that is on its way out whether nothing of it is left here; it is asked once the
    image that says so has been taken, and again with every update.
    """

    def __init__(self, broker_id: int, is_gone: IsGone = lambda _: True) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_EPOCH
        self._is_gone = is_gone
        self._holder = ImageHolder()
        self._controller_epoch = -1
        self._number = NO_NUMBER
        self._taking = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def image(self) -> ClusterImage:
        return self._holder.image

    @property
    def number(self) -> tuple[int, int]:
        """The epoch of the controller that is heard, and the number of its image that is here."""
        return self._controller_epoch, self._number

    def listen(self, listener: Listener) -> Cancel:
        """Call `listener` with the image before and after each change, before the controller is answered."""
        return self._holder.listen(listener)

    def prepare(self, preparation: Preparation) -> Cancel:
        """Await `preparation` with the image before and after each change, before anybody sees it."""
        return self._holder.prepare(preparation)

    def begin_life(self, broker_epoch: int) -> None:
        """The broker is registered under this epoch, or not at all, and what it led before is led by others, or soon
        will be. The controller may be unable to tell it so: until it does, the broker leads nothing that others in sync
        can lead, and does not name itself to clients: they had better ask others.
        """
        self.broker_epoch = broker_epoch
        self._number = NO_NUMBER
        image = _without(self._holder.image, self.broker_id)
        if image is not self._holder.image:
            self._holder.take_over(image)

    async def take(self, update: ImageUpdate) -> ImageAck:
        """Go by this image from now on, or say why not."""
        task = asyncio.get_running_loop().create_task(self._take(update))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Return when the updates that came are taken; take no more."""
        self.broker_epoch = UNKNOWN_EPOCH
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _take(self, update: ImageUpdate) -> ImageAck:
        async with self._taking:
            refusal = self._refusal(update)
            if refusal is not None:
                return refusal
            if update.controller_epoch > self._controller_epoch:
                self._controller_epoch, self._number = update.controller_epoch, NO_NUMBER
            if update.number > self._number:
                if update.base not in (WHOLE, self._number):
                    return ImageAck(AckError.NEED_WHOLE, self._number)
                try:
                    image = self._made_by(update)
                except (DamagedDelta, DeltaMismatch) as error:
                    logger.warning("%s; the controller is asked for the whole image", error)
                    return ImageAck(AckError.NEED_WHOLE, NO_NUMBER)
                await self._holder.prepare_for(image)
                refusal = self._refusal(update)
                if refusal is not None:
                    return refusal  # another life began meanwhile
                self._number = update.number
                self._holder.take_over(image)
            return ImageAck(AckError.OK, self._number, self._removed())

    def _refusal(self, update: ImageUpdate) -> ImageAck | None:
        if update.controller_epoch < self._controller_epoch:
            return ImageAck(AckError.STALE_CONTROLLER)
        if UNKNOWN_EPOCH in (self.broker_epoch, update.broker_epoch):
            return ImageAck(AckError.WRONG_BROKER_EPOCH)
        if (update.broker_id, update.broker_epoch) != (self.broker_id, self.broker_epoch):
            return ImageAck(AckError.WRONG_BROKER_EPOCH)
        return None

    def _made_by(self, update: ImageUpdate) -> ClusterImage:
        delta = decode_delta(update.delta)
        here = self._holder.image
        if update.base != WHOLE:
            image = apply_delta(here, delta)
        else:
            # What is the same stays the same object, so that whoever compares the two finds what differs at once.
            whole = apply_delta(ClusterImage(), delta)
            image = apply_delta(here, make_delta(here, whole))
        if (image.controller_id, image.controller_epoch) != (update.controller_id, update.controller_epoch):
            raise DeltaMismatch(f"it names the controller {image.controller_id} of epoch {image.controller_epoch}")
        return image

    def _removed(self) -> tuple[tuple[str, bytes], ...]:
        image = self._holder.image
        topics = (image.topics[name] for name in sorted(image.deleting))
        return tuple((topic.name, topic.topic_id) for topic in topics if self._is_gone(topic))


def _without(image: ClusterImage, broker_id: int) -> ClusterImage:
    """Without this broker, and without a leader where it is this one and others are in sync."""

    def is_led(partition: PartitionImage) -> bool:
        return partition.leader == broker_id and any(each != broker_id for each in partition.isr)

    topics = {
        name: replace(
            topic,
            partitions=tuple(replace(each, leader=NO_LEADER) if is_led(each) else each for each in topic.partitions),
        )
        for name, topic in image.topics.items()
        if any(map(is_led, topic.partitions))
    }
    if not topics and broker_id not in image.brokers:
        return image
    brokers = {each: registration for each, registration in image.brokers.items() if each != broker_id}
    return replace(image, brokers=brokers, topics={**image.topics, **topics})
