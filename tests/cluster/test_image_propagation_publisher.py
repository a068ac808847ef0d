"""Images on their way to brokers that are slow, dead, restarted, or deaf in one ear."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster.controller.controller_stories import Stage, until
from tests.cluster.controller.decision_stories import cluster, registered, state

from penstock.cluster.image import ClusterImage
from penstock.cluster.image_propagation import WHOLE, AckError, ImageAck, ImageReceiver, ImageUpdate, Publisher

FIRST = cluster((1, 2, 3), t=[state((1, 2, 3))])


def with_rack(image: ClusterImage, rack: str) -> ClusterImage:
    """Some change."""
    return image.with_broker_config("1", {"rack": rack})


class Brokers:
    """Receivers behind a network in which things happen."""

    def __init__(self, image: ClusterImage = FIRST) -> None:
        self.receivers = {broker: ImageReceiver(broker, self._is_deleted) for broker in image.brokers}
        for broker, receiver in self.receivers.items():
            receiver.broker_epoch = image.brokers[broker].epoch
        self.sent: list[tuple[int, ImageUpdate]] = []
        self.dead: set[int] = set()
        self.loses_answers: set[int] = set()
        self.slow: dict[int, asyncio.Event] = {}
        self.left: set[str] = set()

    def _is_deleted(self, topic: object) -> bool:
        return not self.left

    async def send(self, broker: int, update: ImageUpdate) -> ImageAck:
        self.sent.append((broker, update))
        await asyncio.sleep(0.001)
        if broker in self.dead:
            raise ConnectionError("refused")
        if broker in self.slow:
            await self.slow[broker].wait()
        ack = await self.receivers[broker].apply(update)
        if broker in self.loses_answers:
            raise TimeoutError
        return ack

    def updates(self, broker: int) -> list[ImageUpdate]:
        return [update for to, update in self.sent if to == broker]

    def have(self, image: ClusterImage, *brokers: int) -> bool:
        return all(self.receivers[broker].image == image for broker in brokers or self.receivers)


def test_every_broker_gets_the_whole_image_first_and_then_deltas() -> None:
    stage = Stage()

    async def story() -> None:
        brokers = Brokers()
        publisher = Publisher(brokers.send)
        publisher.publish(FIRST)
        assert set(publisher.behind()) == {1, 2, 3}
        await until(lambda: not publisher.behind())
        assert brokers.have(FIRST)
        after = with_rack(FIRST, "a")
        publisher.publish(after)
        await until(lambda: not publisher.behind())
        assert brokers.have(after)
        for broker in (1, 2, 3):
            first, second = brokers.updates(broker)
            assert (first.base, second.base) == (WHOLE, first.number)
            assert len(second.delta) < len(first.delta) / 2
        await publisher.close()
        publisher.publish(FIRST)
        await asyncio.sleep(2)
        assert len(brokers.sent) == 6

    stage.run(story())


def test_slow_broker_gets_the_latest_image_at_once_and_delays_no_other() -> None:
    stage = Stage()

    async def story() -> None:
        brokers = Brokers()
        brokers.slow[2] = asyncio.Event()
        publisher = Publisher(brokers.send)
        image = FIRST
        for number in range(20):
            image = with_rack(image, str(number))
            publisher.publish(image)
            await asyncio.sleep(0.1)
        assert set(publisher.behind()) == {2}
        behind = publisher.behind()[2]
        assert behind.images == 20
        assert 1900 < behind.for_ms < 2200
        assert len(brokers.updates(2)) == 1
        brokers.slow[2].set()
        await until(lambda: not publisher.behind())
        assert brokers.have(image)
        assert len(brokers.updates(2)) == 2
        await publisher.close()

    stage.run(story())


def test_dead_broker_is_asked_again_ever_more_rarely_until_it_is_back_or_is_deleted() -> None:
    stage = Stage()

    async def story() -> None:
        brokers = Brokers()
        brokers.dead = {2, 3}
        publisher = Publisher(brokers.send)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        publisher.publish(FIRST)
        await asyncio.sleep(0.5)
        assert len(brokers.updates(2)) == 4  # after 50, 100 and 200 ms
        await asyncio.sleep(9.5)
        assert 11 <= len(brokers.updates(2)) <= 15
        brokers.dead = {3}
        back_s = loop.time()
        await until(lambda: brokers.have(FIRST, 2))
        assert loop.time() - back_s < 1.1
        assert publisher.behind()[3].for_ms > (loop.time() - started_s) * 1000 - 100
        after = FIRST.without_broker(3)
        publisher.publish(after)
        await until(lambda: not publisher.behind())
        asked = len(brokers.updates(3))
        await asyncio.sleep(5)
        assert len(brokers.updates(3)) == asked
        await publisher.close()

    stage.run(story())


def test_restarted_broker_gets_the_whole_image_under_its_new_epoch() -> None:
    stage = Stage()

    async def story() -> None:
        brokers = Brokers()
        publisher = Publisher(brokers.send)
        publisher.publish(FIRST)
        await until(lambda: not publisher.behind())
        brokers.receivers[2] = ImageReceiver(2)
        brokers.receivers[2].broker_epoch = 900
        middle = with_rack(FIRST, "a")
        publisher.publish(middle)
        await asyncio.sleep(3)
        # To the controller it is still in its former life, of which the new one wants to hear nothing.
        assert brokers.receivers[2].image == ClusterImage()
        assert set(publisher.behind()) == {2}
        after = middle.with_broker(registered(2, epoch=900))
        publisher.publish(after)
        await until(lambda: not publisher.behind())
        assert brokers.have(after)
        last = brokers.updates(2)[-1]
        assert (last.base, last.broker_epoch) == (WHOLE, 900)
        assert all(update.base != WHOLE for update in brokers.updates(1)[1:])
        await publisher.close()

    stage.run(story())


@pytest.mark.parametrize("images_meanwhile", [0, 1, 5])
def test_broker_whose_answers_are_lost_is_not_sent_everything_again(images_meanwhile: int) -> None:
    stage = Stage()

    async def story() -> None:
        brokers = Brokers()
        publisher = Publisher(brokers.send)
        publisher.publish(FIRST)
        await until(lambda: not publisher.behind())
        brokers.loses_answers = {2}
        image = with_rack(FIRST, "first")
        publisher.publish(image)
        await until(lambda: brokers.have(image, 2))
        for number in range(images_meanwhile):
            image = with_rack(image, str(number))
            publisher.publish(image)
        brokers.loses_answers.clear()
        await until(lambda: not publisher.behind())
        assert brokers.have(image)
        assert all(update.base != WHOLE for update in brokers.updates(2)[1:])
        await publisher.close()

    stage.run(story())


def test_broker_that_lost_its_image_is_sent_the_whole_one() -> None:
    stage = Stage()

    async def story() -> None:
        brokers = Brokers()
        publisher = Publisher(brokers.send)
        publisher.publish(FIRST)
        await until(lambda: not publisher.behind())
        brokers.receivers[2] = ImageReceiver(2)
        brokers.receivers[2].broker_epoch = 102
        after = with_rack(FIRST, "a")
        publisher.publish(after)
        await until(lambda: not publisher.behind())
        assert brokers.have(after)
        assert [update.base == WHOLE for update in brokers.updates(2)] == [True, False, True]
        await publisher.close()

    stage.run(story())


def test_who_hears_of_a_later_controller_sends_nothing_any_more() -> None:
    stage = Stage()

    async def story() -> None:
        stale: list[bool] = []
        brokers = Brokers()
        later = Publisher(brokers.send)
        publisher = Publisher(brokers.send, on_stale=lambda: stale.append(True))
        publisher.publish(FIRST)
        await until(lambda: not publisher.behind())
        after = FIRST.with_controller(2, 10)
        later.publish(after)
        await until(lambda: not later.behind())
        publisher.publish(with_rack(FIRST, "a"))
        await until(lambda: stale)
        sent = len(brokers.sent)
        publisher.publish(with_rack(FIRST, "b"))
        await asyncio.sleep(5)
        assert (len(brokers.sent), stale) == (sent, [True])
        assert brokers.have(after)
        await publisher.close()
        await later.close()

    stage.run(story())


def test_broker_that_cannot_take_even_the_whole_image_is_not_flooded_with_it() -> None:
    stage = Stage()

    async def story() -> None:
        sent: list[ImageUpdate] = []

        async def send(_: int, update: ImageUpdate) -> ImageAck:
            sent.append(update)
            return ImageAck(AckError.NEED_WHOLE)

        publisher = Publisher(send)
        publisher.publish(cluster((1,)))
        await asyncio.sleep(5)
        assert 6 <= len(sent) <= 10
        assert all(update.base == WHOLE for update in sent)
        await publisher.close()

    stage.run(story())


def test_broker_is_reminded_of_a_topic_until_it_has_removed_it() -> None:
    stage = Stage()

    async def story() -> None:
        removed: list[tuple[int, str]] = []
        image = FIRST.with_broker(registered(4)).with_deleting(["t"])
        brokers = Brokers(image)
        brokers.left = {"t"}
        publisher = Publisher(brokers.send, on_removed=lambda broker, name, _: removed.append((broker, name)))
        publisher.publish(image)
        await asyncio.sleep(3.5)
        assert removed == []
        assert [len(brokers.updates(broker)) for broker in (1, 2, 3)] == [4, 4, 4]
        # 4 holds nothing of it.
        assert len(brokers.updates(4)) == 1
        brokers.left.clear()
        await until(lambda: len(removed) == 3)
        assert sorted(removed) == [(1, "t"), (2, "t"), (3, "t")]
        await asyncio.sleep(5)
        assert [len(brokers.updates(broker)) for broker in (1, 2, 3)] == [5, 5, 5]
        await publisher.close()

    stage.run(story())


def test_numbers_of_a_second_publisher_in_the_same_epoch_do_not_repeat() -> None:
    stage = Stage()

    async def story() -> None:
        brokers = Brokers()
        first = Publisher(brokers.send)
        for number in range(10):
            first.publish(with_rack(FIRST, str(number)))
        await until(lambda: not first.behind())
        await first.close()
        second = Publisher(brokers.send)
        second.publish(FIRST)
        await until(lambda: not second.behind())
        assert brokers.have(FIRST)
        await second.close()

    stage.run(story())
