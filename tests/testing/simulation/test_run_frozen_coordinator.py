"""A coordinator that falls silent in the middle of a rebalance keeps its members no longer than a request may take."""

from __future__ import annotations

from typing import Any

from penstock.client.consumer.async_consumer import AsyncConsumer
from penstock.testing.simulated_disk import LOSE_UNSYNCED
from penstock.testing.simulation.cluster import SimulatedCluster
from penstock.testing.simulation.run import SETTINGS, deterministic
from penstock.testing.simulation.scheduler import Scheduler, Trace
from penstock.testing.simulation.workload import JOURNAL, new_producer
from penstock.wire.protocol import ApiKey

_REQUEST_TIMEOUT_MS = 2_000
_SESSION_TIMEOUT_MS = 6_000


async def write(bootstrap: str) -> None:
    producer = new_producer(bootstrap, "writer")
    await producer.start()
    await (await producer.enqueue(JOURNAL, b"x", partition=0))
    await producer.close()


async def read(bootstrap: str) -> None:
    consumer: AsyncConsumer[bytes, bytes] = AsyncConsumer(
        JOURNAL,
        bootstrap_servers=bootstrap,
        group_id="g",
        auto_offset_reset="earliest",
        request_timeout_ms=_REQUEST_TIMEOUT_MS,
        connect_timeout_ms=1_000,
        session_timeout_ms=_SESSION_TIMEOUT_MS,
    )
    await consumer.start()
    while not await consumer.poll(500):
        pass
    await consumer.close()


def waited_s() -> float:
    """How long a reader waits whose coordinator loses power with the question for its share on the table."""
    cluster = SimulatedCluster(Scheduler(0), 0, brokers=1, clients=2, settings=SETTINGS)
    node, scheduler, kernel = cluster.nodes[0], cluster.scheduler, cluster.network.kernel
    frozen_s: list[float] = []

    def freeze(services: Any, request: Any, answer: Any) -> None:
        frozen_s.append(scheduler.now_s)
        kernel.call_soon(node.lose_power_with, LOSE_UNSYNCED)
        kernel.call_later(0.5, node.start)

    cluster.start()
    assert scheduler.run_until(lambda: node.is_ready, limit_s=5)
    writing = cluster.clients[0].spawn(write(cluster.bootstrap))
    assert scheduler.run_until(writing.done, limit_s=10)
    assert node.broker is not None
    apis = node.broker.router.apis
    apis[ApiKey.SYNC_GROUP] = apis[ApiKey.SYNC_GROUP]._replace(handler=freeze)
    reading = cluster.clients[1].spawn(read(cluster.bootstrap))
    assert scheduler.run_until(reading.done, limit_s=400)
    cluster.kill_all()
    assert len(frozen_s) == 1
    return scheduler.now_s - frozen_s[0]


def test_a_member_waits_for_its_share_no_longer_than_for_any_answer() -> None:
    with deterministic(Trace()):
        waited = waited_s()
    # For the answer, for the end of its former session, and to find its way back.
    assert waited < 2 * (_REQUEST_TIMEOUT_MS + _SESSION_TIMEOUT_MS) / 1000
