"""How the controller's image reaches the brokers: publisher, messages, receiver.

`Publisher` (at the controller) queues nothing. One update per broker is in flight; when it is acknowledged, the next
one takes the broker to the latest image, however many there were in between. The first update for each broker epoch is
whole. A broker that does not answer is retried after 50 ms, doubling to 1 s. A broker that still has to delete replicas
of a deleted topic is asked again after 1 s.

`ImageReceiver` (at every broker, the controller's own included) is the only thing that changes a broker's image. It
rejects updates from an older controller epoch, updates for another broker epoch (KIP-570: a late update for a previous
process must not touch this one), and deltas that do not follow its image: it then asks for the whole image. An update
that was already applied is acknowledged again, because the first acknowledgement may have been lost. A new broker epoch
ends every leadership of the previous one. Cancelling the caller does not cancel an update.

A controller epoch is adopted once the tree holds it, so that no message of any sender can make brokers reject the
real controller. If the tree cannot be read, an epoch up to `MAX_UNCONFIRMED` (1000) above the last one is adopted, and
given up again for the tree's as soon as the two can be compared.

`ImageHolder` applies an image in three steps: preparations are awaited, the image is replaced, listeners are called.
A failure in any of them is logged and does not prevent the change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

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
from penstock.runtime.backoff import backoff_ms
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.push_image import PushImageRequest, PushImageResponse, RemovedTopic

logger = logging.getLogger(__name__)

T = TypeVar("T")
Listener = Callable[[ClusterImage, ClusterImage], None]
Preparation = Callable[[ClusterImage, ClusterImage], Awaitable[None]]
Cancel = Callable[[], None]

WHOLE: Final = -1
"""The base of an update that needs none."""
NO_NUMBER: Final = -1

MAX_UNCONFIRMED: Final = 1000
"""How far a controller epoch may rise while the tree cannot be read: each one is a failover."""

_RETRY_MS: Final = (50, 1000)
_REMINDER_S: Final = 1.0
_EMPTY: Final = ClusterImage()


# --- the image of a broker


class ImageHolder:
    """Starts with the empty image."""

    def __init__(self) -> None:
        self._image = _EMPTY
        self._listeners: list[Listener] = []
        self._preparations: list[Preparation] = []

    @property
    def image(self) -> ClusterImage:
        return self._image

    def listen(self, listener: Listener) -> Cancel:
        """Call `listener` with the image before and after each change, before the change is answered."""
        self._listeners.append(listener)
        return lambda: _remove(self._listeners, listener)

    def prepare(self, preparation: Preparation) -> Cancel:
        """Await `preparation` with the image before and after each change, before the change is visible."""
        self._preparations.append(preparation)
        return lambda: _remove(self._preparations, preparation)

    async def prepare_for(self, image: ClusterImage) -> None:
        """The first step; the caller sees to it that it runs for one image at a time."""
        for preparation in list(self._preparations):
            try:
                await preparation(self._image, image)
            except Exception:
                logger.exception("preparation for an image failed")

    def take_over(self, image: ClusterImage) -> None:
        """The second and the third step."""
        before, self._image = self._image, image
        for listener in list(self._listeners):
            try:
                listener(before, image)
            except Exception:
                logger.exception("image listener failed")


def _remove(callbacks: list[T], callback: T) -> None:
    if callback in callbacks:
        callbacks.remove(callback)


# --- messages


class AckError(IntEnum):
    """The values are the error codes of the response."""

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
    """`number` is that of the broker's image, NO_NUMBER if it has none of this controller epoch.

    `removed` are topics that are being deleted, by name and id, of which the broker has no replica left.
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
    """An unknown error code means FAILED."""
    known = response.error_code in AckError.__members__.values()
    error = AckError(response.error_code) if known else AckError.FAILED
    return ImageAck(error, response.number, tuple((topic.name, topic.topic_id) for topic in response.removed))


# --- publisher

Send = Callable[[int, ImageUpdate], Awaitable[ImageAck]]
"""To a broker; raises if no answer arrives within the sender's own timeout."""
OnRemoved = Callable[[int, str, bytes], None]
"""A broker has no replica left of the topic with this name and id."""


class ImageLag(NamedTuple):
    """How many images a broker has not acknowledged, and for how long it lacks the first of them."""

    images: int
    for_ms: float


class Publisher:
    """Sends the images of one controller: `publish` each, `close` at the end."""

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
        # Starts at the time in microseconds: a later publisher of the same epoch must not repeat numbers.
        self._number = int(asyncio.get_running_loop().time() * 1e6)
        self._image = _EMPTY
        self._deltas: dict[int, bytes] = {}  # by the number of the base, to the latest image
        self._brokers: dict[int, _BrokerPublisher] = {}
        self._ended: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def number(self) -> int:
        """Of the latest image."""
        return self._number

    def publish(self, image: ClusterImage) -> None:
        """Send the image to every broker in it, and nothing more to others."""
        if self._is_closed:
            return
        self._image = image
        self._number += 1
        self._deltas.clear()
        for broker_id in [each for each in self._brokers if each not in image.brokers]:
            self._end(self._brokers.pop(broker_id))
        for broker_id in sorted(image.brokers):
            epoch = image.brokers[broker_id].epoch
            publisher = self._brokers.get(broker_id)
            if publisher is not None and publisher.epoch != epoch:
                self._end(publisher)
                publisher = None
            if publisher is None:
                publisher = self._brokers[broker_id] = _BrokerPublisher(self, broker_id, epoch)
            publisher.wake()

    def behind(self) -> dict[int, ImageLag]:
        """The brokers that have not acknowledged the latest image."""
        now_s = asyncio.get_running_loop().time()
        return {
            broker_id: ImageLag(publisher.lacking, (now_s - publisher.behind_since_s) * 1000)
            for broker_id, publisher in self._brokers.items()
            if publisher.lacking
        }

    async def close(self) -> None:
        """Stop, and wait until nothing is being sent."""
        self.stop()
        if self._ended:
            await asyncio.wait(list(self._ended))

    def stop(self) -> None:
        """Send nothing more."""
        self._is_closed = True
        for publisher in self._brokers.values():
            self._end(publisher)
        self._brokers.clear()

    def _end(self, publisher: _BrokerPublisher) -> None:
        publisher.task.cancel()
        self._ended.add(publisher.task)
        publisher.task.add_done_callback(self._ended.discard)

    # For the publishers of single brokers.

    @property
    def image(self) -> ClusterImage:
        return self._image

    def send(self, to: _BrokerPublisher, base: int) -> Awaitable[ImageAck]:
        """Send the latest image as the difference from image number `base`."""
        data = self._deltas.get(base)
        if data is None:
            before = _EMPTY if base == WHOLE else to.known[base]
            data = self._deltas[base] = encode_delta(make_delta(before, self._image))
        image = self._image
        update = ImageUpdate(
            image.controller_id, image.controller_epoch, to.broker_id, to.epoch, self._number, base, data
        )
        return self._send(to.broker_id, update)

    def removed(self, broker_id: int, ack: ImageAck) -> None:
        for name, topic_id in ack.removed:
            self._on_removed(broker_id, name, topic_id)

    def is_stale(self) -> None:
        """A broker has an image of a later controller."""
        if not self._is_closed:
            self.stop()
            self._on_stale()


class _BrokerPublisher:
    """Sends images to one broker in one broker epoch."""

    def __init__(self, publisher: Publisher, broker_id: int, epoch: int) -> None:
        loop = asyncio.get_running_loop()
        self.broker_id = broker_id
        self.epoch = epoch
        self.known: dict[int, ClusterImage] = {}  # by number: what was sent and may have arrived
        self.behind_since_s = loop.time()
        self._publisher = publisher
        self._base = WHOLE
        self._first = publisher.number  # the first image for this broker epoch
        self._is_reminding = False
        self._is_unreachable = False
        self._woken = asyncio.Event()
        self.task: asyncio.Task[None] = loop.create_task(self._run())

    @property
    def lacking(self) -> int:
        """How many images it has not acknowledged."""
        return self._publisher.number - (self._first - 1 if self._base == WHOLE else self._base)

    def wake(self) -> None:
        if self.lacking == 1:
            self.behind_since_s = asyncio.get_running_loop().time()
        self._woken.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            if await self._exchange():
                failures = 0
                await self._wait_for_work()
            else:
                failures += 1
                await asyncio.sleep(backoff_ms(failures, *_RETRY_MS) / 1000)

    async def _wait_for_work(self) -> None:
        if self.lacking:
            return
        self._woken.clear()
        try:
            async with asyncio.timeout(_REMINDER_S if self._is_reminding else None):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _exchange(self) -> bool:
        """Send once; returns whether the next update may follow at once."""
        publisher = self._publisher
        number, image, base = publisher.number, publisher.image, self._base
        try:
            sending = publisher.send(self, base)
            self._remember(number, image)
            ack = await sending
        except Exception as error:  # noqa: BLE001 - what `send` raises depends on the transport
            self._log_unreachable(str(error) or type(error).__name__)
            return False
        if ack.error is AckError.OK and ack.number in self.known:
            self._acknowledged(ack.number)
            publisher.removed(self.broker_id, ack)
            self._is_reminding = _is_awaited(image, self.broker_id, ack)
            return True
        if ack.error is AckError.STALE_CONTROLLER:
            logger.warning("image rejected, a later controller exists: broker=%d", self.broker_id)
            publisher.is_stale()
            return False
        if ack.error in (AckError.NEED_WHOLE, AckError.OK):
            # It may have applied an update whose acknowledgement was lost.
            follows = ack.number != base and ack.number in self.known
            self._base = ack.number if follows else WHOLE
            return base != WHOLE
        self._log_unreachable(ack.error.name)
        return False

    def _remember(self, number: int, image: ClusterImage) -> None:
        """What the broker may have from now on. Images are large, so of unacknowledged ones only the last is kept."""
        kept = (self._base, max(self.known, default=WHOLE))
        self.known = {each: self.known[each] for each in kept if each in self.known}
        self.known[number] = image

    def _acknowledged(self, number: int) -> None:
        if self._is_unreachable:
            logger.info("image acknowledged again: broker=%d", self.broker_id)
        self._is_unreachable = False
        self._base = number
        self.known = {number: self.known[number]}
        self.behind_since_s = asyncio.get_running_loop().time()

    def _log_unreachable(self, reason: str) -> None:
        if not self._is_unreachable:
            logger.warning("image not acknowledged, retrying: broker=%d reason=%s", self.broker_id, reason)
        self._is_unreachable = True


def _is_awaited(image: ClusterImage, broker_id: int, ack: ImageAck) -> bool:
    """Whether the broker still has replicas to delete."""
    removed = set(ack.removed)
    topics = (image.topics[name] for name in sorted(image.deleting))
    return any((topic.name, topic.topic_id) not in removed and _holds(topic, broker_id) for topic in topics)


def _holds(topic: TopicImage, broker_id: int) -> bool:
    return any(broker_id in (*each.replicas, *each.adding, *each.removing) for each in topic.partitions)


# --- receiver

IsDeleted = Callable[[TopicImage], bool]
StoredEpoch = Callable[[int], Awaitable[int | None]]
"""The controller epoch in the tree, given one that should be there; None if the tree cannot be read."""


class ImageReceiver(ImageHolder):
    """The image of one broker. Until `broker_epoch` is set, every update is rejected.

    `is_deleted` says whether a topic that is being deleted has no replica left here; it is called after each update.
    """

    def __init__(
        self,
        broker_id: int,
        is_deleted: IsDeleted = lambda _: True,
        stored_epoch: StoredEpoch | None = None,
    ) -> None:
        """Without `stored_epoch` every controller epoch is believed."""
        super().__init__()
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_EPOCH
        self.last_stored_epoch = -1
        """The last controller epoch that was read from the tree."""
        self._is_deleted = is_deleted
        self._stored_epoch = stored_epoch
        self._controller_epoch = -1
        self._is_unconfirmed = False
        self._number = NO_NUMBER
        self._applying = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def number(self) -> tuple[int, int]:
        """The controller epoch, and the number of the image of that controller."""
        return self._controller_epoch, self._number

    def begin_broker_epoch(self, broker_epoch: int) -> None:
        """The broker is registered under this epoch, or not at all; other brokers take over what it led.

        It may be unable to receive the image that says so. Until the next update it leads nothing that another in-sync
        replica can lead, and its image does not list it, so that clients ask other brokers.
        """
        self.broker_epoch = broker_epoch
        self._number = NO_NUMBER
        image = _without(self.image, self.broker_id)
        if image is not self.image:
            self.take_over(image)

    async def apply(self, update: ImageUpdate) -> ImageAck:
        """Apply an update from the controller, or return why not."""
        task = asyncio.get_running_loop().create_task(self._apply(update))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Reject further updates, and return when those under way are applied."""
        self.broker_epoch = UNKNOWN_EPOCH
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _apply(self, update: ImageUpdate) -> ImageAck:
        async with self._applying:
            rejection = self._rejection(update)
            if rejection is None and update.controller_epoch != self._controller_epoch:
                rejection = await self._confirm(update) or self._rejection(update)
            if rejection is not None:
                return rejection
            if update.number > self._number:
                if update.base not in (WHOLE, self._number):
                    return ImageAck(AckError.NEED_WHOLE, self._number)
                try:
                    image = self._image_of(update)
                except (DamagedDelta, DeltaMismatch) as error:
                    logger.warning("image update rejected, requesting the whole image: error=%s", error)
                    return ImageAck(AckError.NEED_WHOLE, NO_NUMBER)
                await self.prepare_for(image)
                rejection = self._rejection(update)
                if rejection is not None:
                    return rejection  # another broker epoch began meanwhile
                self._number = update.number
                self.take_over(image)
            return ImageAck(AckError.OK, self._number, self._removed())

    async def _confirm(self, update: ImageUpdate) -> ImageAck | None:
        """Adopt the update's controller epoch, which is not this broker's, if the tree holds it; or why not."""
        epoch, known = update.controller_epoch, self._controller_epoch
        stored = epoch if self._stored_epoch is None else await self._stored_epoch(epoch)
        if stored is not None:
            self.last_stored_epoch = stored
        if epoch < (known if stored is None else stored):
            return ImageAck(AckError.STALE_CONTROLLER)
        is_bounded = epoch - max(known, self.last_stored_epoch) <= MAX_UNCONFIRMED
        if epoch == stored or (stored is None and is_bounded):
            self._controller_epoch, self._number, self._is_unconfirmed = epoch, NO_NUMBER, stored is None
            return None
        logger.error(
            "image rejected, its controller epoch is not the cluster's: controller=%d epoch=%d known=%d stored=%s",
            update.controller_id,
            epoch,
            known,
            "unknown" if stored is None else stored,
        )
        return ImageAck(AckError.FAILED)

    def _rejection(self, update: ImageUpdate) -> ImageAck | None:
        if update.controller_epoch < self._controller_epoch and not self._is_unconfirmed:
            return ImageAck(AckError.STALE_CONTROLLER)
        if UNKNOWN_EPOCH in (self.broker_epoch, update.broker_epoch):
            return ImageAck(AckError.WRONG_BROKER_EPOCH)
        if (update.broker_id, update.broker_epoch) != (self.broker_id, self.broker_epoch):
            return ImageAck(AckError.WRONG_BROKER_EPOCH)
        return None

    def _image_of(self, update: ImageUpdate) -> ClusterImage:
        delta = decode_delta(update.delta)
        if update.base != WHOLE:
            image = apply_delta(self.image, delta)
        else:
            # Equal parts stay the same objects, so that `diff` is cheap.
            image = apply_delta(self.image, make_delta(self.image, apply_delta(_EMPTY, delta)))
        if (image.controller_id, image.controller_epoch) != (update.controller_id, update.controller_epoch):
            raise DeltaMismatch(f"it names controller {image.controller_id} of epoch {image.controller_epoch}")
        return image

    def _removed(self) -> tuple[tuple[str, bytes], ...]:
        topics = (self.image.topics[name] for name in sorted(self.image.deleting))
        return tuple((topic.name, topic.topic_id) for topic in topics if self._is_deleted(topic))


def _without(image: ClusterImage, broker_id: int) -> ClusterImage:
    """Without this broker, and without its leaderships where other replicas are in sync."""

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
