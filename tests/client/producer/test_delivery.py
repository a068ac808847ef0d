"""What `send` returns: a future's methods, one completion for the whole batch."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future, wait

import pytest
from tests.timeouts import PATIENCE_S

from penstock.client.errors import PenstockError
from penstock.client.producer.delivery import BulkDelivery, Delivery, Span, Stored
from penstock.client.producer.producer_batch import Completion, RecordMetadata


def pending(count: int = 3) -> tuple[Completion, list[Delivery]]:
    batch = Completion("views", 2)
    return batch, [Delivery(batch, index) for index in range(count)]


def test_all_records_of_a_batch_are_done_at_once() -> None:
    batch, deliveries = pending()
    assert not any(delivery.done() for delivery in deliveries)
    batch.acknowledge(40, 1_000)
    assert [delivery.result(0) for delivery in deliveries] == [
        RecordMetadata("views", 2, 40, 1_000),
        RecordMetadata("views", 2, 41, 1_000),
        RecordMetadata("views", 2, 42, 1_000),
    ]
    assert deliveries[0].exception(0) is None


def test_a_failure_is_everyones() -> None:
    batch, deliveries = pending()
    error = PenstockError("no")
    batch.fail(error)
    for delivery in deliveries:
        assert delivery.exception(0) is error
        with pytest.raises(PenstockError, match="no"):
            delivery.result(0)


def test_a_result_that_does_not_come_in_time_raises() -> None:
    _, deliveries = pending()
    with pytest.raises(TimeoutError, match="views-2"):
        deliveries[0].result(0.01)


def test_a_thread_that_waits_is_woken() -> None:
    batch, deliveries = pending()
    timer = threading.Timer(0.02, batch.acknowledge, (7, 1))
    timer.start()
    assert deliveries[1].result(PATIENCE_S).offset == 8
    timer.join()


def test_what_was_sent_cannot_be_cancelled() -> None:
    batch, deliveries = pending()
    assert deliveries[0].cancel() is False
    assert not deliveries[0].cancelled()
    assert deliveries[0].running()
    batch.acknowledge(0, 0)
    assert not deliveries[0].running()


def test_callbacks_come_in_order_and_late_ones_at_once() -> None:
    batch, deliveries = pending()
    called: list[int] = []
    for number, delivery in enumerate(deliveries):
        delivery.add_done_callback(lambda done, number=number: called.append(number + done.result(0).offset))  # type: ignore[misc]
    batch.acknowledge(100, 0)
    assert called == [100, 102, 104]
    deliveries[0].add_done_callback(lambda done: called.append(-1))
    assert called[-1] == -1


def test_a_callback_that_raises_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    batch, deliveries = pending()
    called: list[str] = []
    deliveries[0].add_done_callback(lambda done: 1 / 0)
    deliveries[1].add_done_callback(lambda done: called.append("second"))
    with caplog.at_level(logging.ERROR):
        batch.acknowledge(0, 0)
    assert called == ["second"]
    assert "ZeroDivisionError" in caplog.text


def test_it_becomes_a_real_future() -> None:
    batch, deliveries = pending()
    futures: list[Future[RecordMetadata]] = [delivery.to_future() for delivery in deliveries]
    batch.acknowledge(5, 0)
    done, _ = wait(futures, timeout=PATIENCE_S)
    assert sorted(future.result().offset for future in done) == [5, 6, 7]
    failing, (delivery, *_) = pending()
    future = delivery.to_future()
    failing.fail(PenstockError("no"))
    assert isinstance(future.exception(0), PenstockError)


def test_it_can_be_awaited_on_any_loop() -> None:
    batch, deliveries = pending()

    async def story() -> list[int]:
        timer = threading.Timer(0.02, batch.acknowledge, (5, 0))
        timer.start()
        found = await asyncio.gather(*(_offset(delivery) for delivery in deliveries))
        timer.join()
        return found

    assert asyncio.run(story()) == [5, 6, 7]


async def _offset(delivery: Delivery) -> int:
    return (await delivery).offset


def test_a_loop_that_is_gone_does_not_stop_the_others() -> None:
    batch, deliveries = pending()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_offset(deliveries[0]), 0.01)

    asyncio.run(give_up())
    batch.acknowledge(5, 0)
    assert deliveries[1].result(0).offset == 6


def test_a_batch_ends_only_once() -> None:
    batch, deliveries = pending()
    batch.acknowledge(5, 0)
    batch.fail(PenstockError("late"))
    assert deliveries[0].result(0).offset == 5


def test_a_divided_batch_answers_by_its_parts() -> None:
    whole, deliveries = pending(5)
    first, second = Completion("views", 2), Completion("views", 2)
    whole.divide([(0, first, 0), (2, second, 0)])
    first.acknowledge(10, 0)
    assert not deliveries[0].done()
    second.fail(PenstockError("no"))
    assert deliveries[0].done()
    assert [delivery.exception(0) is None for delivery in deliveries] == [True, True, False, False, False]
    assert deliveries[1].result(0).offset == 11


def test_a_delivery_shows_how_it_is() -> None:
    batch, (delivery, *_) = pending()
    assert "pending" in repr(delivery)
    batch.acknowledge(5, 0)
    assert "offset 5" in repr(delivery)
    failed, (delivery, *_) = pending()
    failed.fail(PenstockError("no way"))
    assert "no way" in repr(delivery)


def bulk() -> tuple[Completion, Completion, BulkDelivery]:
    first, second = Completion("views", 0), Completion("views", 1)
    spans = [Span(first, 4, 3, range(3)), Span(second, 0, 2, [3, 4])]
    return first, second, BulkDelivery("views", spans)


def test_a_bulk_delivery_is_done_when_all_its_batches_are() -> None:
    first, second, delivery = bulk()
    called: list[int] = []
    delivery.add_done_callback(lambda done: called.append(len(done)))
    first.acknowledge(100, 0)
    assert not delivery.done()
    with pytest.raises(TimeoutError):
        delivery.result(0.01)
    second.acknowledge(7, 0)
    assert delivery.result(0).stored == (Stored(0, 104, 3), Stored(1, 7, 2))
    assert called == [5]
    assert delivery.to_future().result(0).count == 5


def test_a_bulk_delivery_reports_which_records_failed() -> None:
    first, second, delivery = bulk()
    first.acknowledge(100, 0)
    second.fail(PenstockError("no"))
    assert [place for place, _ in delivery.failures()] == [3, 4]
    with pytest.raises(PenstockError, match="no"):
        delivery.result(0)

    async def story() -> None:
        await delivery

    with pytest.raises(PenstockError, match="no"):
        asyncio.run(story())


def test_an_empty_bulk_delivery_is_done() -> None:
    nothing = BulkDelivery("views", [])
    assert nothing.done()
    assert nothing.result(0).count == 0
    assert nothing.to_future().result(0).stored == ()
