"""A broker that is silent for longer than a request may take: who has more time than that continues asking."""

from __future__ import annotations

from penstock.client.producer.async_producer import AsyncProducer
from penstock.testing.simulation.cluster import SimulatedCluster
from penstock.testing.simulation.run import SETTINGS, deterministic
from penstock.testing.simulation.scheduler import Scheduler, Trace
from penstock.testing.simulation.workload import JOURNAL


def stored_offset() -> int:
    """Of the first record of a producer whose broker falls silent before it has answered about the topic."""
    cluster = SimulatedCluster(Scheduler(0), 0, brokers=1, clients=1, settings=SETTINGS)
    node, scheduler = cluster.nodes[0], cluster.scheduler

    async def write() -> int:
        producer: AsyncProducer[bytes, bytes] = AsyncProducer(
            cluster.bootstrap, request_timeout_ms=1_000, max_block_ms=30_000, start_timeout_ms=10_000
        )
        await producer.start()
        node.pause()
        cluster.network.kernel.call_later(5.0, node.resume)
        stored = await (await producer.enqueue(JOURNAL, b"x", partition=0))
        await producer.close()
        return stored.offset

    cluster.start()
    assert scheduler.run_until(lambda: node.is_ready, limit_s=5)
    writing = cluster.clients[0].spawn(write())
    assert scheduler.run_until(writing.done, limit_s=60)
    cluster.kill_all()
    return writing.result()


def test_a_producer_waits_for_its_topic_up_to_its_limit() -> None:
    with deterministic(Trace()):
        offset = stored_offset()
    assert offset == 0
