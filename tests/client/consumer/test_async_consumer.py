"""The asyncio consumer with a real broker: the same, awaited."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker.wire_client import BEGIN_MS, make_topic
from tests.client.consumer.consumer_stories import fill, filled_topic, new_group, numbers
from tests.client.scripted import run
from tests.timeouts import NEVER_MS, PATIENCE_MS, PATIENCE_S, until_async

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer import async_consumer
from penstock.client.consumer.async_consumer import AsyncConsumer
from penstock.client.consumer.reader import RebalanceListener
from penstock.client.errors import BootstrapError, ClosedError, ConfigError, DeserializationError, TimedOut
from penstock.client.serializers import Text
from penstock.testing.embedded_broker import EmbeddedBroker


def reader(address: str, *topics: str, **options: Any) -> AsyncConsumer[bytes, bytes]:
    chosen = {
        "auto_offset_reset": "earliest",
        "consumer_timeout_ms": PATIENCE_MS,
        "heartbeat_interval_ms": 50,
        **options,
    }
    return AsyncConsumer(*topics, bootstrap_servers=address, **chosen)


async def read(consumer: AsyncConsumer[Any, Any], count: int) -> list[int]:
    found: list[int] = []
    async for record in consumer:
        found.append(int(record.value))
        if len(found) == count:
            break
    return found


def test_records_are_iterated_polled_and_taken_as_batches(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 60)

    async def story() -> None:
        async with reader(broker.address, topic) as consumer:
            assert await read(consumer, 5) == [0, 1, 2, 3, 4]
            assert numbers((await consumer.poll(PATIENCE_MS, 4))[TopicPartition(topic, 0)]) == [5, 6, 7, 8]
            async for batch in consumer.batches(max_records=3):
                assert batch.to_arrow().column("offset").to_pylist() == [9, 10, 11]
                break
            assert await consumer.position((topic, 0)) == 12
            await consumer.seek_to_time(topic, BEGIN_MS + 50)
            assert await read(consumer, 10) == list(range(50, 60))

    run(story())


def test_a_listener_may_be_of_coroutines_and_the_rest_is_as_in_the_blocking_consumer(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 3)
    heard: list[str] = []

    class Listening(RebalanceListener):
        async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            heard.append(f"assigned {len(assigned)}")

        async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
            heard.append(f"revoked {len(revoked)}")

    async def story() -> None:
        async with AsyncConsumer(
            bootstrap_servers=broker.address, group_id=new_group(), auto_offset_reset="earliest"
        ) as consumer:
            await consumer.subscribe(topic, listener=Listening())
            found: list[Any] = []
            while len(found) < 3:
                for records in (await consumer.poll(timeout=PATIENCE_S)).values():
                    found += records
            assert heard == ["assigned 1"]
            assert topic in await consumer.topics()
            assert consumer.highwater((topic, 0)) == 3
            assert consumer.metrics()["records_fetched"] == 3
        assert heard == ["assigned 1", "revoked 1"]

    run(story())


def test_positions_ends_lag_pause_and_partitions(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 40, partitions=2)
    a, b = (topic, 0), (topic, 1)

    async def story() -> None:
        async with reader(broker.address, topic) as consumer:
            assert await consumer.beginning_offsets([a]) == {a: 0}
            assert await consumer.end_offsets([a, b]) == {a: 20, b: 20}
            assert await consumer.partitions_for_topic(topic) == {0, 1}
            await consumer.seek(a, 18)
            await consumer.pause(b)
            assert consumer.paused() == {b}
            assert await read(consumer, 2) == [36, 38]
            await consumer.resume(b)
            await consumer.seek_to_end(b)
            assert await consumer.lag() == {a: 0, b: 0}
            await consumer.seek_to_beginning(b)
            assert await read(consumer, 2) == [1, 3]
            found = await consumer.offsets_for_times({a: BEGIN_MS, b: BEGIN_MS + 10_000})
            assert found[TopicPartition(*b)] is None
            await consumer.assign([a])
            assert consumer.assignment() == {a}
            await consumer.unsubscribe()
            assert consumer.assignment() == frozenset()

    run(story())


def test_commits_are_awaited_or_left_to_themselves(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 30), new_group()
    tp = TopicPartition(topic, 0)

    async def story() -> None:
        async with reader(broker.address, topic, group_id=group, enable_auto_commit=False) as consumer:
            async for record in consumer:
                if record.offset == 4:
                    await consumer.commit(record)
                    break
            assert (await consumer.committed())[tp].offset == 5
            calls: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            await read(consumer, 2)
            consumer.commit_nowait(callback=lambda offsets, error: calls.set_result((offsets[tp].offset, error)))
            assert await calls == (7, None)
        async with reader(broker.address, topic, group_id=group) as consumer:
            assert await read(consumer, 3) == [7, 8, 9]
        async with reader(broker.address, topic, group_id=group) as consumer:
            assert await read(consumer, 1) == [10]

    run(story())


def test_functions_for_partitions_that_go_are_awaited_before_they_go(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 40, partitions=2), new_group()
    events: list[str] = []

    async def read_on(consumer: AsyncConsumer[Any, Any], stop: asyncio.Event) -> None:
        while not stop.is_set():
            await consumer.poll(20)

    async def story() -> None:
        async with reader(broker.address, topic, group_id=group) as first:

            @first.on_revoke
            async def drain(partitions: list[TopicPartition]) -> None:
                events.append(f"draining {len(partitions)}")
                await asyncio.sleep(0.1)
                events.append(f"drained, others have {len(second.assignment()) if started else 0}")

            started = False
            assert len(await read(first, 40)) == 40
            async with reader(broker.address, topic, group_id=group) as second:
                started = True
                stop = asyncio.Event()
                reading = [asyncio.create_task(read_on(c, stop)) for c in (first, second)]
                await until_async(lambda: len(first.assignment()) == len(second.assignment()) == 1, "they share")
                stop.set()
                await asyncio.gather(*reading)
                assert events[:2] == ["draining 2", "drained, others have 0"]

    run(story())


def test_reading_leaves_the_loop_room_for_others(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    # All of it is read in less time than the loop is kept for: here a turn is due after every batch.
    monkeypatch.setattr(async_consumer, "_YIELD_AFTER_S", 0.0)
    topic = filled_topic(broker, 6_000, a_batch=500)

    async def story() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with reader(broker.address, topic) as consumer:
            await read(consumer, 1)
            task = asyncio.create_task(others())
            before, left = turns, 5_999
            async for _ in consumer:
                left -= 1
                if turns > before or not left:
                    break
            task.cancel()
            assert turns > before

    run(story())


def test_a_cancelled_reader_closes_and_leaves_its_group_at_once(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 10), new_group()

    seen = 0

    async def work() -> None:
        nonlocal seen
        options = {"group_id": group, "consumer_timeout_ms": None, "session_timeout_ms": NEVER_MS}
        async with reader(broker.address, topic, **options) as consumer:
            async for _ in consumer:
                seen += 1

    async def story() -> None:
        task = asyncio.create_task(work())
        await until_async(lambda: seen == 10, "it has read all and waits")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with reader(broker.address, topic, group_id=group) as next_one:
            fill(broker, topic, [10])
            assert await read(next_one, 1) == [10]

    run(story())


def test_decoding_errors_and_misuse_are_typed(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker.broker)

    async def story() -> None:
        with pytest.raises(ConfigError):
            AsyncConsumer("t", fetch_max_bytes=-1)
        consumer = AsyncConsumer(topic, bootstrap_servers=broker.address, value=Text(), auto_offset_reset="earliest")
        with pytest.raises(ClosedError, match="start"):
            await consumer.poll()
        async with consumer:
            from tests.broker.wire_client import WireClient, batch_of

            with WireClient(broker.port) as client:
                client.produce(topic, batch_of(b"fine", b"\xff"))
            async for record in consumer:
                assert record.value == "fine"
                break
            with pytest.raises(DeserializationError):
                await consumer.poll(PATIENCE_MS)
        await consumer.close()
        with pytest.raises(ClosedError):
            await consumer.poll()
        with pytest.raises(BootstrapError):
            await AsyncConsumer("t", bootstrap_servers="127.0.0.1:1").start()

    run(story())


def test_an_assignment_can_be_waited_for(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 10)

    async def story() -> None:
        calls: list[Any] = []
        async with AsyncConsumer(topic, bootstrap_servers=broker.address, group_id=new_group()) as consumer:
            consumer.on_assign(calls.append)
            assert await consumer.wait_for_assignment(10_000) == {(topic, 0)}
            assert calls == [[(topic, 0)]]
            await consumer.unsubscribe()
            with pytest.raises(TimedOut, match="There is no subscription"):
                await consumer.wait_for_assignment(50)

    run(story())
