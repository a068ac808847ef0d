"""Which batches go out when."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.client.producer.producer_stories import PRODUCER, TOPIC, Bench, ModelBroker, encoded, values_of

from penstock.client.errors import NotConnected, RecordTooLarge
from penstock.client.producer.accumulator import Blocked, MemoryBudget
from penstock.client.producer.delivery import Delivery
from penstock.client.producer.producer_batch import encoded as request_bytes
from penstock.client.producer.sender import PartitionResponse
from penstock.wire.protocol import ErrorCode

STORED = PartitionResponse(ErrorCode.NONE, 0)
LOST = NotConnected("b:1", "cut")
_VERSION = 9
EARLY = PartitionResponse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_a_batch_lingers_until_its_time_has_come() -> None:
    bench = Bench(linger_ms=20)
    bench.put(b"a")
    assert bench.plan() == []
    assert bench.accumulator.plan(bench.now_ms, bench.routes, PRODUCER).wake_at_ms == 20
    bench.now_ms = 20
    assert [len(request.batches) for request in bench.plan()] == [1]


def test_a_full_batch_does_not_linger() -> None:
    bench = Bench(linger_ms=1_000, batch_size=200).introduced()
    for _ in range(4):
        bench.put(b"x" * 80)
    requests = bench.plan()
    assert [request.batches[0].count for request in requests] == [1, 1, 1], "the fourth is open"


def test_flush_and_a_lack_of_memory_make_everything_due() -> None:
    bench = Bench(linger_ms=1_000)
    bench.put(b"a")
    bench.accumulator.make_all_due()
    assert len(bench.plan()) == 1
    starved = Bench(
        linger_ms=1_000, buffer_memory=8_192, max_request_size=8_192, batch_size=8_192, partitions=2
    )  # fmt: skip
    starved.put(b"a", 0)
    starved.put(b"a", 1)
    while starved.put(b"x" * 3_000, 0) is not Blocked.NO_ROOM:
        pass
    assert starved.plan()


def test_a_batch_that_is_due_grows_until_a_request_has_room_for_it() -> None:
    bench = Bench(slots=0)
    for value in values_of(range(10)):
        bench.put(value)
        assert bench.plan() == []
    bench.routes.slots = 5
    (request,) = bench.plan()
    assert request.batches[0].count == 10


def test_a_request_takes_one_batch_of_each_partition_up_to_its_size() -> None:
    bench = Bench(partitions=3, max_request_size=1_000, batch_size=400).introduced()
    for partition in range(3):
        bench.put_batch(b"x" * 300, partition=partition)
        bench.put_batch(b"y" * 300, partition=partition)
    requests = bench.plan()
    assert all(request.size <= 1_000 for request in requests)
    for request in requests:
        partitions = [batch.partition for batch in request.batches]
        assert len(set(partitions)) == len(partitions)
    assert sum(len(request.batches) for request in requests) == 6


def test_no_more_than_the_allowed_requests_are_on_their_way() -> None:
    bench = Bench().introduced()
    for value in values_of(range(8)):
        bench.put_batch(value)
    assert len(bench.plan()) == 5
    assert bench.plan() == []


def test_partitions_take_turns_when_a_broker_has_little_room() -> None:
    bench = Bench(partitions=2, slots=1, max_request_size=150, batch_size=150)
    for _ in range(2):
        bench.put_batch(b"x" * 50, partition=0)
        bench.put_batch(b"x" * 50, partition=1)
    order = []
    for _ in range(4):
        (request,) = bench.plan()
        order.append(request.batches[0].partition)
        bench.answer(request, STORED)
    assert all(before != after for before, after in pairwise(order))


def test_a_batch_that_failed_goes_before_the_later_ones_and_alone() -> None:
    bench = Bench().introduced()
    broker = ModelBroker()
    for value in values_of(range(3)):
        bench.put_batch(value)
    first, second, third = bench.plan()
    bench.answer(first, LOST)
    (again,) = bench.plan()
    assert again.batches == first.batches
    bench.answer(second, EARLY)
    bench.answer(third, EARLY)
    assert bench.plan() == [], "the first is not settled"
    bench.answer(again, broker.produce(encoded(again.batches[0])))
    for _ in range(2):
        (request,) = bench.plan()
        bench.answer(request, broker.produce(encoded(request.batches[0])))
    assert broker.values == values_of(range(3))


def test_one_batch_is_on_its_way_until_the_broker_knows_the_producer() -> None:
    bench = Bench()
    for value in values_of(range(3)):
        bench.put_batch(value)
    (first,) = bench.plan()
    assert bench.plan() == []
    bench.answer(first, PartitionResponse(ErrorCode.NOT_ENOUGH_REPLICAS))
    (again,) = bench.plan()
    assert again.batches == first.batches, "any other would be taken for the first"
    bench.answer(again, STORED)
    assert len(bench.plan()) == 2


def test_a_producer_that_was_silent_for_long_may_be_forgotten() -> None:
    bench = Bench().introduced()
    bench.now_ms = 24 * 3_600_000
    for value in values_of(range(3)):
        bench.put_batch(value)
    (request,) = bench.plan()
    bench.answer(request, STORED)
    assert len(bench.plan()) == 2


def test_a_retry_carries_the_same_numbers() -> None:
    bench = Bench()
    bench.put_batch(b"a")
    (request,) = bench.plan()
    numbers = request.batches[0].numbers
    bench.answer(request, LOST)
    (again,) = bench.plan()
    assert again.batches[0].numbers == numbers


def test_after_a_batch_fails_for_good_the_next_ones_start_a_new_epoch() -> None:
    bench = Bench().introduced()
    broker = ModelBroker()
    deliveries = [bench.put_batch(value)[0] for value in values_of(range(3))]
    first, second, third = bench.plan()
    bench.answer(first, PartitionResponse(ErrorCode.INVALID_RECORD))
    assert bench.plan() == [], "others are on their way"
    bench.answer(second, broker.produce(encoded(second.batches[0])))
    bench.answer(third, broker.produce(encoded(third.batches[0])))
    while requests := bench.plan():
        for request in requests:
            assert request.batches[0].numbers.producer_epoch == 1
            bench.answer(request, broker.produce(encoded(request.batches[0])))
    assert broker.values == values_of([1, 2])
    assert deliveries[0].exception(0) is not None
    assert deliveries[2].result(0).offset == 1


def test_a_broker_that_lost_its_memory_of_the_producer_is_served_in_a_new_epoch() -> None:
    bench = Bench()
    broker = ModelBroker()
    for number, value in enumerate(values_of(range(3))):
        (delivery,) = bench.put_batch(value)
        while not delivery.done():
            for request in bench.plan():
                bench.answer(request, broker.produce(encoded(request.batches[0])))
        assert delivery.result(0).offset == number
        broker.forget_producers()
    assert broker.values == values_of(range(3))


def test_a_batch_too_large_for_the_broker_arrives_in_halves() -> None:
    bench = Bench()
    broker = ModelBroker(max_batch_bytes=150)
    deliveries = bench.put_batch(*values_of(range(20)))
    later = bench.put_batch(b"later")
    for _ in range(40):
        for request in bench.plan():
            bench.answer(request, broker.produce(encoded(request.batches[0])))
    assert broker.values == [*values_of(range(20)), b"later"]
    assert [delivery.result(0).offset for delivery in deliveries] == list(range(20))
    assert later[0].result(0).offset == 20
    assert bench.accumulator.memory.used == 0


def test_after_a_batch_was_too_large_those_of_its_topic_stay_smaller() -> None:
    bench = Bench(partitions=2).introduced()
    brokers = [ModelBroker(max_batch_bytes=10_000), ModelBroker(max_batch_bytes=10_000)]

    def rejected(partition: int) -> int:
        """How many batches are rejected until 16 records are stored."""
        count = 0
        for _ in range(16):
            assert isinstance(bench.put(b"x" * 950, partition), Delivery)
        bench.accumulator.make_all_due()
        while bench.accumulator.undone():
            for request in bench.plan():
                answer = brokers[partition].produce(encoded(request.batches[0]))
                count += answer.code is ErrorCode.MESSAGE_TOO_LARGE
                bench.answer(request, answer)
        return count

    assert rejected(0) == 1
    assert rejected(0) == 0
    assert rejected(1) == 0, "another partition of the topic"
    assert [len(broker.values) for broker in brokers] == [32, 16]
    bench.accumulator.add_topic("views", 3)
    bench.accumulator.add_topic("clicks", 1)
    limits = {name: topic.batch_limit for name, topic in bench.accumulator.topics.items()}
    assert 7_000 <= limits["views"] < 10_000 < limits["clicks"]
    assert bench.accumulator.memory.used == 0


def test_only_the_record_that_can_never_fit_fails() -> None:
    bench = Bench()
    broker = ModelBroker(max_batch_bytes=150)
    deliveries = bench.put_batch(b"small-1", b"x" * 300, b"small-2")
    for _ in range(40):
        for request in bench.plan():
            bench.answer(request, broker.produce(encoded(request.batches[0])))
    assert isinstance(deliveries[1].exception(0), RecordTooLarge)
    assert broker.values == [b"small-1", b"small-2"]
    assert deliveries[0].result(0).offset == 0
    assert deliveries[2].result(0).offset == 1


def test_a_batch_is_given_up_when_its_time_is_over() -> None:
    bench = Bench(delivery_timeout_ms=5_000)
    (delivery,) = bench.put_batch(b"a")
    assert bench.expire() == []
    bench.now_ms = 5_000
    assert len(bench.expire()) == 1
    assert isinstance(delivery.exception(0), TimeoutError)
    assert bench.plan() == []


def test_a_partition_without_leader_waits_and_is_named() -> None:
    bench = Bench(partitions=2)
    bench.routes.leaderless = {0}
    bench.put_batch(b"a", partition=0)
    bench.put_batch(b"b", partition=1)
    plan = bench.accumulator.plan(0, bench.routes, PRODUCER)
    assert plan.leaderless == {TOPIC}
    assert [batch.partition for request in plan.requests for batch in request.batches] == [1]


def test_nothing_is_numbered_before_there_is_a_producer_id() -> None:
    bench = Bench()
    bench.put_batch(b"a")
    plan = bench.accumulator.plan(0, bench.routes, None)
    assert plan.needs_producer_id
    assert plan.requests == []


def test_a_partition_that_backs_off_says_when_to_look_again() -> None:
    bench = Bench(retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    bench.put_batch(b"a")
    (request,) = bench.plan()
    bench.answer(request, LOST)
    plan = bench.accumulator.plan(0, bench.routes, PRODUCER)
    assert plan.requests == []
    assert 80 <= plan.wake_at_ms <= 120


def test_one_request_at_a_time_keeps_order_without_numbers() -> None:
    bench = Bench(enable_idempotence=False, max_in_flight_requests_per_connection=1)
    for value in values_of(range(3)):
        bench.put_batch(value)
    sent = []
    for outcome in (LOST, STORED, LOST, STORED, STORED):
        (request,) = bench.plan()
        assert bench.plan() == []
        sent.append(encoded(request.batches[0])[-8:-1])
        bench.answer(request, outcome)
    assert sent[0] == sent[1]
    assert sent[2] == sent[3]
    assert len(set(sent)) == 3


def test_a_topic_that_grows_keeps_what_waits() -> None:
    bench = Bench(partitions=1)
    kept = bench.put(b"a")
    grown = bench.accumulator.add_topic(TOPIC, 3)
    assert len(grown.queues) == 3
    assert grown.queues[0] is bench.topic.queues[0]
    bench.topic = grown
    assert isinstance(bench.put(b"b", 2), Delivery)
    requests = bench.plan()
    assert sorted(batch.partition for request in requests for batch in request.batches) == [0, 2]
    assert isinstance(kept, Delivery)
    bench.answer(requests[0], STORED)
    assert kept.done()


def test_memory_is_bounded_and_comes_back() -> None:
    bench = Bench(buffer_memory=65_536, max_request_size=65_536)
    taken = 0
    while isinstance(bench.put(b"x" * 1_000), Delivery):
        taken += 1_000
    assert taken <= 65_536
    assert bench.accumulator.memory.used <= 65_536
    while requests := bench.plan():
        for request in requests:
            bench.answer(request, STORED)
    assert bench.accumulator.memory.used == 0
    assert isinstance(bench.put(b"x"), Delivery)


def test_many_open_partitions_share_the_memory() -> None:
    bench = Bench(partitions=80, buffer_memory=1_048_576)
    assert all(isinstance(bench.put(b"x", partition), Delivery) for partition in range(80)), "64 times batch_size"
    assert bench.accumulator.memory.used <= 1_048_576


def test_a_share_is_never_less_than_a_small_batch() -> None:
    assert MemoryBudget(1_000_000).share_of(10_000, 16_384) == 4_096
    assert MemoryBudget(64 << 20).share_of(0, 16_384) == 16_384


@pytest.mark.parametrize("count", [1, 3, 17])
def test_records_find_their_place_by_index(count: int) -> None:
    bench = Bench()
    deliveries = bench.put_batch(*values_of(range(count)))
    (request,) = bench.plan()
    bench.answer(request, PartitionResponse(ErrorCode.NONE, 40))
    assert [delivery.result(0).offset for delivery in deliveries] == list(range(40, 40 + count))


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_bytes_on_their_way_stay_as_they_are_when_their_batch_is_given_up(codec: str) -> None:
    """CVE-2026-35554: a buffer was used again while its request was being sent, and records came into other topics."""
    bench = Bench(delivery_timeout_ms=5_000, partitions=2, compression_type=codec).introduced()
    settings = bench.accumulator.settings
    bench.put_batch(b"a" * 1_000, partition=0)
    (request,) = bench.plan()
    (batch,) = request.batches
    waiting_in_a_socket = memoryview(request_bytes(batch, _VERSION, settings))
    before = bytes(waiting_in_a_socket)
    bench.now_ms = 5_000
    assert bench.expire() == [batch]
    assert bench.accumulator.memory.used == 0
    bench.routes.slots = 5
    later: list[object] = []
    for _ in range(10):
        bench.put_batch(b"b" * 1_000, partition=1)
        for another in bench.plan():
            later += [request_bytes(each, _VERSION, settings) for each in another.batches]
    assert len(later) >= 1
    assert waiting_in_a_socket == before
    assert all(each is not waiting_in_a_socket.obj for each in later)
