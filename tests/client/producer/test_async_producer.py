"""The producer for asyncio against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.broker.wire_client import make_topic
from tests.client.producer.reading import stored_values
from tests.client.scripted import run
from tests.timeouts import PATIENCE_S

from penstock.client.cluster_client import ClusterClient
from penstock.client.errors import BootstrapError, BufferFull, ClosedError, InvalidTopic
from penstock.client.producer import AsyncProducer, Delivery, RecordMetadata
from penstock.client.producer.core import ProducerCore
from penstock.client.producer.settings import ProducerSettings
from penstock.client.serializers import Text
from penstock.client.settings import settings_from
from penstock.runtime.clock import Clock, ManualClock, SystemClock
from penstock.testing.embedded_broker import EmbeddedBroker


def play(story: Coroutine[Any, Any, None]) -> None:
    """To its end, with nothing left running on the loop."""
    run(story)


def test_one_await_is_an_acknowledged_record(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)

    async def story() -> None:
        async with AsyncProducer(address) as producer:
            assert (await producer.send(topic, b"a")).offset == 0
            assert (await producer.send(topic, "b", key="k", headers={"h": b"1"})).offset == 1
            assert (await producer.send_many(topic, [b"c", b"d"])).count == 2
            assert await producer.partitions_for(topic) == {0}
            assert producer.metrics()["records_sent"] == 4

    play(story())
    assert stored_values(broker.port, topic) == [b"a", b"b", b"c", b"d"]


def test_on_delivery_is_called_on_the_loop_in_the_order_of_the_records(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    seen: list[tuple[int, Exception | None, object]] = []

    def note(error: Exception | None, metadata: RecordMetadata) -> None:
        seen.append((metadata.offset, error, asyncio.get_running_loop()))

    async def story() -> None:
        async with AsyncProducer(address) as producer:
            for _ in range(10):  # the topic is not known yet
                producer.send_nowait(topic, b"v", on_delivery=note)
            await producer.send(topic, b"v", on_delivery=note)
            assert len(seen) == 11
            for _ in range(10):
                producer.send_nowait(topic, "v", partition=0, headers={"h": "x"}, on_delivery=note)
                await producer.enqueue(topic, b"v", on_delivery=note)
            await producer.flush(PATIENCE_S)
            loop = asyncio.get_running_loop()
            assert seen == [(offset, None, loop) for offset in range(31)]
            seen.clear()
            rejected = producer.send_nowait("no/such", b"v", on_delivery=note)
            with pytest.raises(InvalidTopic):
                await rejected
            ((offset, error, _),) = seen
            assert offset == -1
            assert isinstance(error, InvalidTopic)

    play(story())


def test_send_nowait_before_the_topic_is_known_keeps_the_order(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)

    async def story() -> None:
        async with AsyncProducer(address) as producer:
            deliveries = [producer.send_nowait(topic, b"%d" % number) for number in range(100)]
            later = await producer.enqueue(topic, b"later")
            deliveries += [producer.send_nowait(topic, b"%d" % number) for number in range(100, 200)]
            assert [(await delivery).offset for delivery in deliveries] == [*range(100), *range(101, 201)]
            assert (await later).offset == 100

    play(story())


def test_a_topic_that_may_not_be_fails_the_records_that_wait_for_it(address: str) -> None:
    async def story() -> None:
        async with AsyncProducer(address) as producer:
            waiting = producer.send_nowait("no/such", b"x")
            with pytest.raises(InvalidTopic):
                await waiting
            with pytest.raises(InvalidTopic):
                await producer.send("no/such", b"x")

    play(story())


def test_a_full_buffer_is_reported_at_once_or_waited_for(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)

    async def story() -> None:
        async with AsyncProducer(
            address, buffer_memory=32_768, max_request_size=8_192, batch_size=4_096, linger_ms=5_000
        ) as producer:
            await producer.partitions_for(topic)
            sent: list[Delivery] = []
            with pytest.raises(BufferFull):
                sent.extend(producer.send_nowait(topic, b"x" * 1_000) for _ in range(100))
            assert 10 < len(sent) < 33
            await producer.room()
            deliveries = [await producer.enqueue(topic, b"y" * 1_000) for _ in range(200)]
            await producer.flush(PATIENCE_S)
            assert all(delivery.exception(0) is None for delivery in deliveries)

    play(story())


def test_many_tasks_send_at_once(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)

    async def story() -> None:
        async with AsyncProducer(address, linger_ms=1) as producer:
            found = await asyncio.gather(*(producer.send(topic, b"x") for _ in range(500)))
            assert sorted(metadata.offset for metadata in found) == list(range(500))

    play(story())


def test_closing_delivers_what_waits_and_rejects_more(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)

    async def story() -> None:
        producer = await AsyncProducer(address, linger_ms=5_000).start()
        first = producer.send_nowait(topic, b"parked")
        await producer.flush(PATIENCE_S)
        second = producer.send_nowait(topic, b"x")
        await producer.close()
        await producer.close()
        assert (first.result(0).offset, second.result(0).offset) == (0, 1)
        with pytest.raises(ClosedError):
            await producer.send(topic, b"x")

    play(story())


def test_a_cancelled_sender_leaves_the_producer_usable(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)

    async def story() -> None:
        async with AsyncProducer(address, linger_ms=50) as producer:
            waiting = asyncio.ensure_future(producer.send(topic, b"a"))
            await asyncio.sleep(0.02)  # the record is lingering, most likely; what follows is true either way
            waiting.cancel()
            assert (await producer.send(topic, b"b")).offset in (0, 1)

    play(story())


def test_no_broker_is_an_error_with_the_reason() -> None:
    async def story() -> None:
        with pytest.raises(BootstrapError):
            async with AsyncProducer("127.0.0.1:1"):
                pass

    play(story())


def test_a_table_of_arrow(broker: EmbeddedBroker, address: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    topic = make_topic(broker.broker)

    async def story() -> None:
        async with AsyncProducer(address) as producer:
            assert (await producer.send_arrow(topic, pyarrow.table({"value": ["a", "b"]}))).count == 2

    play(story())
    assert stored_values(broker.port, topic) == [b"a", b"b"]


def test_the_kernel_stamps_records_only_for_the_systems_clock_and_without_serializers() -> None:
    """In the simulator time is simulated, and a serializer is Python."""
    settings = settings_from(ProducerSettings, {}, "a producer")

    def tries_lanes_first(clock: Clock, key: Text | None = None, value: Text | None = None) -> bool:
        core = ProducerCore(
            ClusterClient("localhost:1", settings=settings, clock=clock), settings, key=key, value=value
        )
        return core.compiled is core.fast

    assert tries_lanes_first(SystemClock())
    assert not tries_lanes_first(ManualClock(5))
    assert not tries_lanes_first(SystemClock(), key=Text())
    assert not tries_lanes_first(SystemClock(), value=Text())
