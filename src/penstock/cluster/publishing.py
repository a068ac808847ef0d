"""How the image of the controller reaches the brokers.

Noun: a `Publisher`, with a line to each live broker: what that was last known to have, and a task that sends it what
is different.

Rule: nothing is queued. One update to a broker is under way at a time; when it is answered, the next one takes the
broker from what it has to the latest image, however many there were meanwhile. The first one to each life of a broker
is whole. A broker that does not answer is asked again, after 50 ms at first and never more than a second; what it had
before, or has taken without our hearing of it, is remembered, so that it needs not be sent everything again. A broker
that has still to remove something of a topic that is on its way out is asked again after a second. Who hears of a later
controller stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from penstock.cluster.image import ClusterImage, TopicImage
from penstock.cluster.image_delta import encode_delta, make_delta
from penstock.cluster.image_updates import WHOLE, AckError, ImageAck, ImageUpdate

__all__ = ["AckError", "Behind", "ImageAck", "ImageUpdate", "Publisher"]

logger = logging.getLogger(__name__)

Send = Callable[[int, ImageUpdate], Awaitable[ImageAck]]
"""To a broker; raises when there is no answer, and within a time of its own."""
OnRemoved = Callable[[int, str, bytes], None]
"""A broker has nothing left of the topic of this name and id."""

_RETRY_FIRST_MS: Final = 50
_RETRY_MAX_MS: Final = 1000
_REMIND_MS: Final = 1000
_EMPTY: Final = ClusterImage()


class Behind(NamedTuple):
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
        self._lines: dict[int, _Line] = {}
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
                line = self._lines[broker_id] = _Line(self, broker_id, epoch)
            line.wake()

    def behind(self) -> dict[int, Behind]:
        """The brokers that are not known to have the latest image."""
        now_s = asyncio.get_running_loop().time()
        return {
            broker_id: Behind(line.lacking, (now_s - line.behind_since_s) * 1000)
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

    def _end(self, line: _Line) -> None:
        line.task.cancel()
        self._ended.add(line.task)
        line.task.add_done_callback(self._ended.discard)

    # What the lines ask.

    @property
    def image(self) -> ClusterImage:
        return self._image

    def send(self, line: _Line, base: int) -> Awaitable[ImageAck]:
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


class _Line:
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
        self._is_silent = False
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
            self._tell_silence(str(error) or type(error).__name__)
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
        self._tell_silence(f"it answered {ack.error.name}")
        return False

    def _remember(self, number: int, image: ClusterImage) -> None:
        """What it may have from now on. Images are large: of those that were sent in vain, the last must do."""
        kept = (self._base, max(self.known, default=WHOLE))
        self.known = {each: self.known[each] for each in kept if each in self.known}
        self.known[number] = image

    def _heard(self, number: int) -> None:
        if self._is_silent:
            logger.info("broker %d takes the image of the cluster again", self.broker_id)
        self._is_silent = False
        self._base = number
        self.known = {number: self.known[number]}
        self.behind_since_s = asyncio.get_running_loop().time()

    def _tell_silence(self, reason: str) -> None:
        if not self._is_silent:
            logger.warning(
                "broker %d did not take the image of the cluster, and is asked again: %s", self.broker_id, reason
            )
        self._is_silent = True


def _is_awaited(image: ClusterImage, broker_id: int, ack: ImageAck) -> bool:
    """Whether the broker has still to remove something."""
    removed = set(ack.removed)
    topics = (image.topics[name] for name in sorted(image.deleting))
    return any((topic.name, topic.topic_id) not in removed and _holds(topic, broker_id) for topic in topics)


def _holds(topic: TopicImage, broker_id: int) -> bool:
    return any(broker_id in (*each.replicas, *each.adding, *each.removing) for each in topic.partitions)
