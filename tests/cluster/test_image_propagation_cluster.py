"""Controllers, what they publish, and the brokers that go by it: all but the brokers' work."""

from __future__ import annotations

import asyncio

from tests.cluster.controller.controller_stories import Held, Member, Stage, given, only, until

from penstock.cluster.image import TopicImage
from penstock.cluster.image_propagation import ImageAck, ImageReceiver, ImageUpdate, Publisher
from penstock.cluster.tree import layout


class Company:
    """Brokers that apply images, keep topics until the test deletes them, and may be unreachable."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.receivers: dict[int, ImageReceiver] = {}
        self.kept: dict[int, set[str]] = {}
        self.unreachable: set[int] = set()

    async def join(self, broker_id: int) -> Member:
        member = await self.stage.member(broker_id)
        self.rejoin(member)
        return member

    def rejoin(self, member: Member) -> None:
        broker_id = member.broker_id
        kept = self.kept.setdefault(broker_id, set())

        def is_deleted(topic: TopicImage) -> bool:
            kept.discard(topic.name)
            return True

        receiver = self.receivers[broker_id] = ImageReceiver(broker_id, is_deleted)
        receiver.broker_epoch = member.epoch
        receiver.listen(lambda _, image: kept.update(image.topics))

    async def send(self, broker_id: int, update: ImageUpdate) -> ImageAck:
        await asyncio.sleep(0.001)
        if broker_id in self.unreachable:
            raise ConnectionError("no route")
        return await self.receivers[broker_id].apply(update)

    async def govern(self, member: Member) -> tuple[Held, Publisher]:
        held = await self.stage.claim(member)
        controller = held.controller
        publisher = Publisher(self.send, on_removed=controller.report_removed, on_stale=controller.lost)
        held.publish = publisher.publish
        await controller.start()
        return held, publisher

    def have(self, held: Held) -> bool:
        image = held.controller.image
        return all(self.receivers[each].image == image for each in image.brokers)


def test_decisions_reach_every_broker_and_a_topic_is_deleted_when_all_report_it() -> None:
    stage = Stage()

    async def story() -> None:
        company = Company(stage)
        one, two, three = [await company.join(each) for each in (1, 2, 3)]
        held, publisher = await company.govern(one)
        await held.controller.create_topics([given("t", (2, 3, 1)), given("u", (1, 2, 3))])
        await until(lambda: company.have(held))
        company.unreachable = {3}
        stage.die(three)
        await held.controller.delete_topics(["t"])
        await until(lambda: "t" not in company.kept[2])
        await asyncio.sleep(3)
        assert held.controller.image.deleting == {"t"}
        assert "t" in company.kept[3]
        company.unreachable = set()
        company.rejoin(await stage.member(3))
        await until(lambda: "t" not in held.controller.image.topics)
        assert company.kept == {1: {"u"}, 2: {"u"}, 3: {"u"}}
        await until(lambda: company.have(held))
        await publisher.close()
        assert await two.tree.children(layout.DELETE_TOPICS) == []

    stage.run(story())


def test_old_controller_that_brokers_have_forgotten_hears_it_from_them() -> None:
    stage = Stage()

    async def story() -> None:
        company = Company(stage)
        one, two, _ = [await company.join(each) for each in (1, 2, 3)]
        old, old_publisher = await company.govern(one)
        await old.controller.create_topics([given("t", (2, 3, 1))])
        await until(lambda: company.have(old))
        one.tree.is_deaf = True
        await two.tree.delete(layout.CONTROLLER)
        new, new_publisher = await company.govern(two)
        await new.controller.shut_down(2, two.epoch)
        await until(lambda: company.have(new))
        # It decides nothing, but has something to say that needs no decision: an image from before.
        old_publisher.publish(old.controller.image)
        await until(lambda: old.lost)
        assert company.have(new)
        assert company.receivers[3].image.topics["t"].partitions[0] == only(new)
        await new_publisher.close()
        await old_publisher.close()

    stage.run(story())
