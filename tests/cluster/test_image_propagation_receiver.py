"""Image updates that a broker applies, and those that it rejects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.cluster.cluster_stories import run
from tests.cluster.controller.decision_stories import cluster, registered, state

from penstock.cluster.image import ClusterImage, encode_delta, make_delta
from penstock.cluster.image_propagation import (
    NO_NUMBER,
    WHOLE,
    AckError,
    ImageAck,
    ImageReceiver,
    ImageUpdate,
    ack_of,
    request_of,
    response_of,
    update_of,
)
from penstock.cluster.tree.layout import UNKNOWN_EPOCH
from penstock.wire.codec import codec_for
from penstock.wire.schemas.push_image import PushImageRequest, PushImageResponse

ME = 2
EMPTY = ClusterImage()
FIRST = cluster((1, 2), t=[state((1, 2)), state((2, 1))]).with_controller(1, 9)
SECOND = FIRST.with_broker(registered(3))
THIRD = SECOND.with_deleting(["t"])


def receiver(is_deleted: Any = lambda _: True) -> ImageReceiver:
    made = ImageReceiver(ME, is_deleted)
    made.broker_epoch = 102
    return made


def whole(image: ClusterImage, number: int, **changes: Any) -> ImageUpdate:
    return delta(EMPTY, image, number, WHOLE, **changes)


def delta(old: ClusterImage, new: ClusterImage, number: int, base: int, **changes: Any) -> ImageUpdate:
    data = encode_delta(make_delta(old, new))
    update = ImageUpdate(new.controller_id, new.controller_epoch, ME, 102, number, base, data)
    return update._replace(**changes)


def ok(number: int) -> ImageAck:
    return ImageAck(AckError.OK, number)


def test_whole_image_comes_first_and_then_deltas() -> None:
    async def story() -> None:
        here = receiver()
        seen: list[tuple[ClusterImage, ClusterImage]] = []
        here.listen(lambda old, new: seen.append((old, new)))
        assert await here.apply(whole(FIRST, 5)) == ok(5)
        assert await here.apply(delta(FIRST, SECOND, 8, 5)) == ok(8)
        assert here.image == SECOND
        assert here.number == (9, 8)
        assert seen == [(EMPTY, FIRST), (FIRST, SECOND)]
        assert here.image.topics["t"] is seen[0][1].topics["t"]

    run(story())


def test_delta_that_does_not_follow_is_answered_with_the_current_number() -> None:
    async def story() -> None:
        here = receiver()
        assert await here.apply(delta(FIRST, SECOND, 6, 5)) == ImageAck(AckError.NEED_WHOLE, NO_NUMBER)
        assert here.image == EMPTY
        await here.apply(whole(FIRST, 5))
        assert await here.apply(delta(FIRST, SECOND, 7, 6)) == ImageAck(AckError.NEED_WHOLE, 5)
        assert here.image == FIRST

    run(story())


def test_repeated_update_is_acknowledged_and_changes_nothing() -> None:
    async def story() -> None:
        here = receiver()
        await here.apply(whole(FIRST, 5))
        await here.apply(delta(FIRST, SECOND, 6, 5))
        for late in (whole(FIRST, 5), delta(FIRST, SECOND, 6, 5), delta(EMPTY, FIRST, 3, 2)):
            assert await here.apply(late) == ok(6)
        assert here.image == SECOND

    run(story())


def test_older_controller_is_rejected_and_its_numbers_do_not_count() -> None:
    async def story() -> None:
        here = receiver()
        await here.apply(whole(FIRST, 50))
        later = SECOND.with_controller(3, 10)
        assert await here.apply(delta(FIRST, later, 51, 50)) == ImageAck(AckError.NEED_WHOLE, NO_NUMBER)
        # It has only requested the whole image, and yet rejects other controllers.
        assert await here.apply(delta(FIRST, SECOND, 51, 50)) == ImageAck(AckError.STALE_CONTROLLER, NO_NUMBER)
        assert await here.apply(whole(later, 1)) == ok(1)
        assert await here.apply(whole(FIRST, 99)) == ImageAck(AckError.STALE_CONTROLLER, NO_NUMBER)
        assert here.image == later

    run(story())


def test_whole_image_shares_equal_parts_with_the_current_one() -> None:
    async def story() -> None:
        here = receiver()
        await here.apply(whole(FIRST, 5))
        topic = here.image.topics["t"]
        await here.apply(whole(SECOND.with_controller(3, 10), 1))
        assert here.image.topics["t"] is topic

    run(story())


@pytest.mark.parametrize("change", [{"broker_epoch": 101}, {"broker_id": 1}, {"broker_epoch": UNKNOWN_EPOCH}])
def test_kip_570_update_for_another_broker_epoch_is_rejected(change: dict[str, int]) -> None:
    async def story() -> None:
        here = receiver()
        assert await here.apply(whole(FIRST, 5, **change)) == ImageAck(AckError.WRONG_BROKER_EPOCH)
        assert here.image == EMPTY

    run(story())


def test_broker_that_is_not_registered_takes_nothing_and_one_that_is_again_takes_its_own() -> None:
    async def story() -> None:
        here = ImageReceiver(ME)
        rejected = ImageAck(AckError.WRONG_BROKER_EPOCH)
        assert await here.apply(whole(FIRST, 5, broker_epoch=UNKNOWN_EPOCH)) == rejected
        here.broker_epoch = 102
        assert await here.apply(whole(FIRST, 5)) == ok(5)
        here.broker_epoch = 300
        assert await here.apply(delta(FIRST, SECOND, 6, 5)) == rejected
        assert await here.apply(whole(SECOND, 7, broker_epoch=300)) == ok(7)
        await here.close()
        assert await here.apply(whole(SECOND, 8, broker_epoch=300)) == rejected

    run(story())


@pytest.mark.parametrize("data", [b"", b"\xc1", encode_delta(make_delta(EMPTY, SECOND.with_controller(1, 8)))])
def test_damaged_and_mismatched_updates_are_answered_with_need_whole(data: bytes) -> None:
    async def story() -> None:
        here = receiver()
        await here.apply(whole(FIRST, 5))
        assert await here.apply(whole(SECOND, 6, delta=data)) == ImageAck(AckError.NEED_WHOLE, NO_NUMBER)
        assert here.image == FIRST
        assert await here.apply(whole(SECOND, 6)) == ok(6)

    run(story())


def test_an_ongoing_preparation_is_waited_for_and_a_later_update_waits_too() -> None:
    async def story() -> None:
        here = receiver()
        prepared = asyncio.Event()
        begun: list[ClusterImage] = []

        async def prepare(_: ClusterImage, new: ClusterImage) -> None:
            begun.append(new)
            await prepared.wait()

        here.prepare(prepare)
        first = asyncio.create_task(here.apply(whole(FIRST, 5)))
        second = asyncio.create_task(here.apply(delta(FIRST, SECOND, 6, 5)))
        while not begun:
            await asyncio.sleep(0)
        assert (here.image, here.number) == (EMPTY, (9, NO_NUMBER))
        first.cancel()
        prepared.set()
        assert await second == ok(6)
        assert begun == [FIRST, SECOND]
        assert here.image == SECOND

    run(story())


def test_deleted_topics_are_reported_when_no_replica_is_left() -> None:
    async def story() -> None:
        left = ["t"]
        here = receiver(lambda topic: topic.name not in left)
        assert await here.apply(whole(THIRD, 5)) == ok(5)
        left.clear()
        topic = THIRD.topics["t"]
        assert await here.apply(delta(THIRD, THIRD, 5, 5)) == ImageAck(AckError.OK, 5, (("t", topic.topic_id),))

    run(story())


def test_updates_and_answers_go_over_the_wire_as_they_are() -> None:
    update = whole(FIRST, 5)
    codec = codec_for(PushImageRequest, 0)
    assert update_of(codec.decode(codec.encode(request_of(update)))[0]) == update
    ack = ImageAck(AckError.NEED_WHOLE, 7, (("t", bytes(range(16))),))
    answers = codec_for(PushImageResponse, 0)
    assert ack_of(answers.decode(answers.encode(response_of(ack)))[0]) == ack
    assert ack_of(PushImageResponse(error_code=42)).error is AckError.FAILED


def _leaders(image: ClusterImage) -> list[int]:
    return [partition.leader for partition in image.topics["t"].partitions]


def test_new_broker_epoch_ends_leaderships_that_others_can_take_over() -> None:
    """It was taken for dead, or its session ended, and the controller that has others lead may not reach it."""

    async def story() -> None:
        first = cluster((1, 2), t=[state((1, 2)), state((2, 1)), state((2, 1), isr=(2,))]).with_controller(1, 9)
        here = receiver()
        seen: list[list[int]] = []
        here.listen(lambda _, after: seen.append(_leaders(after)))
        await here.apply(whole(first, 5))
        here.begin_broker_epoch(300)
        assert _leaders(here.image) == [1, -1, 2], "a partition without another in-sync replica keeps its leader"
        assert set(here.image.brokers) == {1}
        assert await here.apply(delta(first, first, 6, 5, broker_epoch=300)) == ImageAck(AckError.NEED_WHOLE, NO_NUMBER)
        assert await here.apply(whole(first, 6, broker_epoch=300)) == ok(6)
        assert seen == [[1, 2, 2], [1, -1, 2], [1, 2, 2]]
        assert here.image == first

    run(story())


def test_image_under_preparation_is_dropped_with_its_broker_epoch() -> None:
    async def story() -> None:
        here = receiver()
        await here.apply(whole(FIRST, 5))
        is_asked, may_continue = asyncio.Event(), asyncio.Event()

        async def prepare(_: ClusterImage, __: ClusterImage) -> None:
            is_asked.set()
            await may_continue.wait()

        here.prepare(prepare)
        taking = asyncio.create_task(here.apply(delta(FIRST, SECOND, 6, 5)))
        await is_asked.wait()
        here.begin_broker_epoch(300)
        may_continue.set()
        assert await taking == ImageAck(AckError.WRONG_BROKER_EPOCH)
        assert _leaders(here.image) == [1, -1]

    run(story())


# --- controller epochs


class StoredEpochs:
    """What the tree says, in the order of the questions; None: it cannot be read."""

    def __init__(self, *answers: int | None) -> None:
        self.answers = list(answers)

    async def __call__(self, expected: int) -> int | None:
        return self.answers.pop(0)


def careful(*stored: int | None, last: int = -1) -> ImageReceiver:
    made = ImageReceiver(ME, stored_epoch=StoredEpochs(*stored))
    made.broker_epoch = 102
    made.last_stored_epoch = last
    return made


def of_epoch(epoch: int, number: int = 1) -> ImageUpdate:
    return whole(FIRST.with_controller(1, epoch), number)


def test_an_epoch_that_the_tree_does_not_hold_is_not_adopted(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        here = careful(9, 9, 10, 10)
        assert await here.apply(of_epoch(9)) == ok(1)
        assert (await here.apply(of_epoch(2**31 - 1))).error is AckError.FAILED
        assert here.number == (9, 1)
        assert "its controller epoch is not the cluster's" in caplog.text
        assert await here.apply(of_epoch(10)) == ok(1), "the real controller is still heard"
        assert (await here.apply(of_epoch(9, 5))).error is AckError.STALE_CONTROLLER

    run(story())


def test_a_controller_that_was_replaced_in_the_tree_is_stale_before_its_successor_is_heard() -> None:
    async def story() -> None:
        here = careful(9, 12)
        assert await here.apply(of_epoch(9)) == ok(1)
        assert (await here.apply(of_epoch(11))).error is AckError.STALE_CONTROLLER
        assert here.number == (9, 1)

    run(story())


def test_without_the_tree_an_epoch_rises_by_a_bounded_step_and_is_corrected_later() -> None:
    async def story() -> None:
        here = careful(None, None, None, None, 10, last=9)
        assert (await here.apply(of_epoch(9 + 1001))).error is AckError.FAILED
        assert await here.apply(of_epoch(9)) == ok(1)
        assert await here.apply(of_epoch(900)) == ok(1)
        assert (await here.apply(of_epoch(10))).error is AckError.STALE_CONTROLLER, "neither is known to be right"
        assert await here.apply(of_epoch(10, 2)) == ok(2), "now the tree does"
        assert here.number == (10, 2)

    run(story())
