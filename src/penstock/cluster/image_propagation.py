"""How the controller's image reaches the brokers: publisher, messages, receiver.

`Publisher` (at the controller) queues nothing. One update per broker is in flight; when it is acknowledged, the next
one takes the broker to the latest image, however many there were in between. The first update for each broker epoch is
whole. A broker that does not answer is retried after 50 ms, doubling to 1 s. A broker that still has to delete replicas
of a deleted topic is asked again after 1 s.

`ImageReceiver` (at every broker, the controller's own included) is the only thing that changes a broker's image. It
rejects updates from an older controller epoch, updates for another broker epoch (KIP-570: a late update for a previous
process must not touch this one), and deltas that do not follow its image, for which it asks for the whole image. An
update that was already applied is acknowledged again, because the first acknowledgement may have been lost. A new
broker epoch ends every leadership of the previous one. Cancelling the caller does not cancel an update.

`ImageHolder` applies an image in three steps: preparations are awaited, the image is replaced, listeners are called.
None of them can prevent it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import IntEnum
from typing import Any, Final, NamedTuple

from penstock.cluster.errors import DamagedDelta, DeltaMismatch
from penstock.cluster.image import (
    ClusterImage,
    PartitionImage,
    TopicImage,
    apply_delta,
    decode_delta,
    encode_delta,
    make_delta,
)
from penstock.cluster.tree.layout import NO_LEADER, UNKNOWN_EPOCH
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.push_image import PushImageRequest, PushImageResponse, RemovedTopic

__all__ = ["AckError", "ImageLag", "ImageAck", "ImageUpdate", "Publisher"]


logger = logging.getLogger(__name__)

Listener = Callable[[ClusterImage, ClusterImage], None]
Preparation = Callable[[ClusterImage, ClusterImage], Awaitable[None]]
Cancel = Callable[[], None]


class ImageHolder:
    """Holds the empty image at first."""

    def __init__(self) -> None:
        self._image = ClusterImage()
        self._listeners: list[Listener] = []
        self._preparations: list[Preparation] = []

    @property
    def image(self) -> ClusterImage:
        return self._image

    def listen(self, listener: Listener) -> Cancel:
        """Call `listener` with the image before and after each change."""
        self._listeners.append(listener)

        def cancel() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return cancel

    def prepare(self, preparation: Preparation) -> Cancel:
        """Await `preparation` with the image before and after each change, before anybody sees it."""
        self._preparations.append(preparation)

        def cancel() -> None:
            if preparation in self._preparations:
                self._preparations.remove(preparation)

        return cancel

    async def prepare_for(self, image: ClusterImage) -> None:
        """The first step; whoever asks sees to it that it is done for one image at a time."""
        for preparation in list(self._preparations):
            try:
                await preparation(self._image, image)
            except Exception:
                logger.exception("a preparation for a change of the cluster's metadata failed")

    def take_over(self, image: ClusterImage) -> None:
        """The second and the third."""
        before, self._image = self._image, image
        for listener in list(self._listeners):
            try:
                listener(before, image)
            except Exception:
                # The change is stored: the others hear of it, and whoever asked is told so.
                logger.exception("a listener to the cluster's metadata failed")


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


Send = Callable[[int, ImageUpdate], Awaitable[ImageAck]]
"""To a broker; raises when there is no answer, and within a time of its own."""
OnRemoved = Callable[[int, str, bytes], None]
"""A broker has nothing left of the topic of this name and id."""

_RETRY_FIRST_MS: Final = 50
_RETRY_MAX_MS: Final = 1000
_REMIND_MS: Final = 1000
_EMPTY: Final = ClusterImage()


class ImageLag(NamedTuple):
    """How many images a broker has not been heard to have, and for how long it lacks the first of them."""

    images: int
    for_ms: float


class Publisher:
    """Of one controller, from its first image on: `publish` each; `close` in the end."""

    def __init__(
        self,
        send: Send,
        *,
        on_removed: OnRemoved = lambda *_: None,
        on_stale: Callable[[], None] = lambda: None,
    ) -> None:
        self._send = send
        self._on_removed = on_removed
        self._on_stale = on_stale
        # From the time on, in microseconds: who publishes after another in the same epoch must not repeat its numbers.
        self._number = int(asyncio.get_running_loop().time() * 1e6)
        self._image = _EMPTY
        self._deltas: dict[int, bytes] = {}  # from the image of a number to the latest
        self._lines: dict[int, _BrokerPublisher] = {}
        self._ended: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def number(self) -> int:
        """Of the latest image."""
        return self._number

    def publish(self, image: ClusterImage) -> None:
        """Let every broker of the image have it, and nobody else any more."""
        if self._is_closed:
            return
        self._image = image
        self._number += 1
        self._deltas.clear()
        for broker_id in [each for each in self._lines if each not in image.brokers]:
            self._end(self._lines.pop(broker_id))
        for broker_id in sorted(image.brokers):
            epoch = image.brokers[broker_id].epoch
            line = self._lines.get(broker_id)
            if line is not None and line.epoch != epoch:
                self._end(line)
                line = None
            if line is None:
                line = self._lines[broker_id] = _BrokerPublisher(self, broker_id, epoch)
            line.wake()

    def behind(self) -> dict[int, ImageLag]:
        """The brokers that are not known to have the latest image."""
        now_s = asyncio.get_running_loop().time()
        return {
            broker_id: ImageLag(line.lacking, (now_s - line.behind_since_s) * 1000)
            for broker_id, line in self._lines.items()
            if line.lacking
        }

    async def close(self) -> None:
        """Send nothing any more."""
        self.stop()
        if self._ended:
            await asyncio.wait(list(self._ended))

    def stop(self) -> None:
        """The same, for whoever cannot wait."""
        self._is_closed = True
        for line in self._lines.values():
            self._end(line)
        self._lines.clear()

    def _end(self, line: _BrokerPublisher) -> None:
        line.task.cancel()
        self._ended.add(line.task)
        line.task.add_done_callback(self._ended.discard)

    # What the lines ask.

    @property
    def image(self) -> ClusterImage:
        return self._image

    def send(self, line: _BrokerPublisher, base: int) -> Awaitable[ImageAck]:
        """The latest image, as what is different from that of number `base`."""
        data = self._deltas.get(base)
        if data is None:
            before = _EMPTY if base == WHOLE else line.known[base]
            data = self._deltas[base] = encode_delta(make_delta(before, self._image))
        image = self._image
        update = ImageUpdate(
            image.controller_id, image.controller_epoch, line.broker_id, line.epoch, self._number, base, data
        )
        return self._send(line.broker_id, update)

    def removed(self, broker_id: int, ack: ImageAck) -> None:
        for name, topic_id in ack.removed:
            self._on_removed(broker_id, name, topic_id)

    def is_stale(self) -> None:
        """Somebody heard of a later controller."""
        if not self._is_closed:
            self.stop()
            self._on_stale()


class _BrokerPublisher:
    """To one life of a broker."""

    def __init__(self, publisher: Publisher, broker_id: int, epoch: int) -> None:
        loop = asyncio.get_running_loop()
        self.broker_id = broker_id
        self.epoch = epoch
        self.known: dict[int, ClusterImage] = {}  # what it was sent and may have
        self.behind_since_s = loop.time()
        self._publisher = publisher
        self._base = WHOLE
        self._first = publisher.number  # the first image that it is to have
        self._is_reminding = False
        self._is_unreachable = False
        self._woken = asyncio.Event()
        self.task: asyncio.Task[None] = loop.create_task(self._run())

    @property
    def lacking(self) -> int:
        """How many images it is not known to have."""
        return self._publisher.number - (self._first - 1 if self._base == WHOLE else self._base)

    def wake(self) -> None:
        if self.lacking == 1:
            self.behind_since_s = asyncio.get_running_loop().time()
        self._woken.set()

    async def _run(self) -> None:
        retry_ms = _RETRY_FIRST_MS
        while True:
            if await self._exchange():
                retry_ms = _RETRY_FIRST_MS
                await self._wait_for_work()
            else:
                await asyncio.sleep(retry_ms / 1000)
                retry_ms = min(2 * retry_ms, _RETRY_MAX_MS)

    async def _wait_for_work(self) -> None:
        if self.lacking:
            return
        self._woken.clear()
        try:
            async with asyncio.timeout(_REMIND_MS / 1000 if self._is_reminding else None):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _exchange(self) -> bool:
        """Send once; whether the next may follow at once."""
        publisher = self._publisher
        number, image, base = publisher.number, publisher.image, self._base
        try:
            sending = publisher.send(self, base)
            self._remember(number, image)
            ack = await sending
        except Exception as error:  # noqa: BLE001 - whatever way of sending there is, it has its own
            self._log_unreachable(str(error) or type(error).__name__)
            return False
        if ack.error is AckError.OK and ack.number in self.known:
            self._heard(ack.number)
            publisher.removed(self.broker_id, ack)
            self._is_reminding = _is_awaited(image, self.broker_id, ack)
            return True
        if ack.error is AckError.STALE_CONTROLLER:
            logger.warning("broker %d has heard of a later controller", self.broker_id)
            publisher.is_stale()
            return False
        if ack.error in (AckError.NEED_WHOLE, AckError.OK):
            # It may have taken an update of whose answer we did not hear.
            follows = ack.number != base and ack.number in self.known
            self._base = ack.number if follows else WHOLE
            return base != WHOLE
        self._log_unreachable(f"it answered {ack.error.name}")
        return False

    def _remember(self, number: int, image: ClusterImage) -> None:
        """What it may have from now on. Images are large: of those that were sent in vain, the last must do."""
        kept = (self._base, max(self.known, default=WHOLE))
        self.known = {each: self.known[each] for each in kept if each in self.known}
        self.known[number] = image

    def _heard(self, number: int) -> None:
        if self._is_unreachable:
            logger.info("broker %d takes the image of the cluster again", self.broker_id)
        self._is_unreachable = False
        self._base = number
        self.known = {number: self.known[number]}
        self.behind_since_s = asyncio.get_running_loop().time()

    def _log_unreachable(self, reason: str) -> None:
        if not self._is_unreachable:
            logger.warning(
                "broker %d did not take the image of the cluster, and is asked again: %s", self.broker_id, reason
            )
        self._is_unreachable = True


def _is_awaited(image: ClusterImage, broker_id: int, ack: ImageAck) -> bool:
    """Whether the broker has still to remove something."""
    removed = set(ack.removed)
    topics = (image.topics[name] for name in sorted(image.deleting))
    return any((topic.name, topic.topic_id) not in removed and _holds(topic, broker_id) for topic in topics)


def _holds(topic: TopicImage, broker_id: int) -> bool:
    return any(broker_id in (*each.replicas, *each.adding, *each.removing) for each in topic.partitions)


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

    def begin_broker_epoch(self, broker_epoch: int) -> None:
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
