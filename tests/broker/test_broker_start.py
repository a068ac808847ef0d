"""How a broker starts and stops: what is heard of it meanwhile, whom it keeps waiting, and how it gives up."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import select
import socket
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.broker.http_stories import Peer
from tests.broker.slow_files import SlowFiles
from tests.broker.wire_client import WireClient, batch_of, make_topic, produce_request, send_and_be_heard
from tests.timeouts import PATIENCE_S, until_async

from penstock.broker import log_startup
from penstock.broker.broker import Broker
from penstock.broker.request import MAX_BYTES, Channel
from penstock.broker.settings import settings_from
from penstock.cluster.controller.topics import NewTopic
from penstock.cluster.errors import NotStarted
from penstock.log.log_dirs.directory_state import LOCK_FILE
from penstock.runtime.files import Files, PosixFiles
from penstock.runtime.network import AddressInUse
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.create_topics import CreatableTopic, CreateTopicsRequest

T = TypeVar("T")
TOPIC = "ledger"
PARTITIONS = 5


def broker_in(folder: Path, port: int = 0, files: Files | None = None, threads: int = 2) -> Broker:
    settings = {
        "log.dirs": str(folder),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "num.recovery.threads.per.data.dir": str(threads),
    }
    return Broker(settings_from(settings), http_port=0, files=files)


async def patiently(work: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE_S):
        return await work


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a broker that had a topic and was stopped."""

    async def live() -> None:
        broker = broker_in(tmp_path)
        await broker.start()
        await broker.cluster.require_controller().create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        assert await broker.stop()

    asyncio.run(live())
    return tmp_path


async def ask_health(port: int) -> tuple[int, dict[str, Any]]:
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
    answer = await peer.ask("/health")
    await peer.leave()
    return answer.status, json.loads(answer.body)


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE_S).close()
    except ConnectionRefusedError:
        return False
    return True


# --- while the logs are opened


def test_health_shows_the_progress_of_a_start_and_clients_are_rejected_until_its_end(folder: Path) -> None:
    async def live() -> None:
        files = SlowFiles({f"{TOPIC}-4"})
        broker = broker_in(folder, files=files, threads=1)
        starting = asyncio.create_task(broker.start())
        await asyncio.to_thread(files.is_waiting.wait, PATIENCE_S)
        assert broker.http_port
        status, health = await patiently(ask_health(broker.http_port))
        assert (status, health["status"]) == (503, "starting")
        assert health["progress"] == {"logs_open": 4, "logs": 5}
        port = broker.advertised[0].port
        assert not is_open(port)
        assert not starting.done()
        files.goes_on.set()
        await patiently(starting)
        assert is_open(port)
        status, health = await patiently(ask_health(broker.http_port))
        assert (status, health["status"]) == (200, "ok")
        assert "progress" not in health
        assert await broker.stop()

    asyncio.run(live())


def test_with_several_threads_one_slow_log_does_not_hold_up_the_others(folder: Path) -> None:
    async def live() -> None:
        files = SlowFiles({f"{TOPIC}-0"})
        broker = broker_in(folder, files=files, threads=2)
        starting = asyncio.create_task(broker.start())
        await until_async(
            lambda: (broker.health().progress or {}).get("logs_open") == PARTITIONS - 1, "all others are open"
        )
        files.goes_on.set()
        await patiently(starting)
        assert await broker.stop()

    asyncio.run(live())


def test_a_long_start_says_now_and_then_how_far_it_is(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_startup, "REPORT_INTERVAL_S", 0.01)
    caplog.set_level(logging.INFO)

    async def live() -> None:
        files = SlowFiles({f"{TOPIC}-4"})
        broker = broker_in(folder, files=files, threads=1)
        starting = asyncio.create_task(broker.start())
        await until_async(lambda: any("opening logs: logs=4/5" in line for line in caplog.messages), "it is logged")
        files.goes_on.set()
        await patiently(starting)
        await broker.stop()

    asyncio.run(live())
    assert sum("logs opened: logs=5/5" in line for line in caplog.messages) == 1


def test_a_start_that_is_given_up_leaves_nothing_locked_and_the_next_one_serves(folder: Path) -> None:
    async def live() -> None:
        files = SlowFiles({f"{TOPIC}-1"})
        broker = broker_in(folder, files=files, threads=1)
        starting = asyncio.create_task(broker.start())
        await asyncio.to_thread(files.is_waiting.wait, PATIENCE_S)
        starting.cancel()
        await asyncio.sleep(0)
        assert not starting.done(), "a log that is being opened must not be left half open"
        files.goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await patiently(starting)
        assert (broker.health().progress or {})["logs_open"] < PARTITIONS
        assert not is_open(broker.advertised[0].port)
        again = broker_in(folder)
        await patiently(again.start())
        assert len(list(again.replicas.logs.logs())) == PARTITIONS
        assert await again.stop()

    asyncio.run(live())


def test_a_port_that_is_taken_is_known_before_any_log_is_opened(folder: Path) -> None:
    async def live() -> None:
        files = SlowFiles({f"{TOPIC}-0"})
        with socket.create_server(("127.0.0.1", 0)) as other:
            broker = broker_in(folder, other.getsockname()[1], files)
            with pytest.raises(AddressInUse):
                await patiently(broker.start())
        assert not files.is_waiting.is_set()

    asyncio.run(live())


# --- while topics are made


def create_request(name: str, partitions: int) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=60_000)


def test_a_produce_request_is_answered_before_a_large_topic_is_created(tmp_path: Path) -> None:
    with EmbeddedBroker(str(tmp_path)) as embedded:
        topic = make_topic(embedded.broker)
        with WireClient(embedded.port) as admin, WireClient(embedded.port) as producer:
            send_and_be_heard(embedded.broker, admin, ApiKey.CREATE_TOPICS, create_request("large", 500), 5)
            for _ in range(3):
                answer = producer.ask(ApiKey.PRODUCE, produce_request({(topic, 0): batch_of(b"value")}, acks=1), 9)
                assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
            waiting = select.poll()  # unlike select, for any number of descriptors
            waiting.register(admin.socket, select.POLLIN)
            assert not waiting.poll(0), "500 folders were made meanwhile"
            _, created = admin.receive(ApiKey.CREATE_TOPICS, 5)
            assert created.topics[0].error_code == ErrorCode.NONE
            for partition in (0, 499):
                request = produce_request({("large", partition): batch_of(b"value")})
                answer = producer.ask(ApiKey.PRODUCE, request, 9)
                assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def test_a_topic_is_visible_only_when_its_partitions_can_be_used(tmp_path: Path) -> None:
    async def live() -> None:
        files = SlowFiles({f"{TOPIC}-4"})
        broker = broker_in(tmp_path, files=files)
        await broker.start()
        creating = asyncio.create_task(
            broker.cluster.require_controller().create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        )
        await asyncio.to_thread(files.is_waiting.wait, PATIENCE_S)
        assert TOPIC not in broker.cluster.image.topics
        assert broker.replicas.get(TOPIC, 0) is None
        files.goes_on.set()
        await patiently(creating)
        assert TOPIC in broker.cluster.image.topics
        assert all(broker.replicas.get(TOPIC, index) is not None for index in range(PARTITIONS))
        assert await broker.stop()

    asyncio.run(live())


def test_a_stop_while_a_topic_is_made_waits_for_it_and_is_clean(tmp_path: Path) -> None:
    async def live() -> None:
        files = SlowFiles({f"{TOPIC}-4"})
        broker = broker_in(tmp_path, files=files)
        await broker.start()
        creating = asyncio.create_task(
            broker.cluster.require_controller().create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        )
        await asyncio.to_thread(files.is_waiting.wait, PATIENCE_S)
        stopping = asyncio.create_task(broker.stop())
        await asyncio.sleep(0.01)  # time in which a stop that does not wait would end
        assert not stopping.done()
        with pytest.raises(BlockingIOError):
            PosixFiles().lock(f"{tmp_path}/{LOCK_FILE}")  # a folder in which a log is being created stays locked
        files.goes_on.set()
        assert await patiently(stopping)
        await patiently(creating)
        again = broker_in(tmp_path)
        await again.start()
        assert len(again.cluster.image.topics[TOPIC].partitions) == PARTITIONS
        assert all(again.replicas.get(TOPIC, index) is not None for index in range(PARTITIONS))
        assert await again.stop()

    asyncio.run(live())


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_stop_ends_the_work_of_requests_and_reports_it(tmp_path: Path, has_begun: bool) -> None:
    async def live() -> None:
        broker = broker_in(tmp_path)
        await broker.start()
        work, reported = asyncio.Event().wait(), list[BaseException]()
        broker.services.spawn(work, reported.append)  # type: ignore[arg-type]
        if has_begun:
            await asyncio.sleep(0)
        assert await broker.stop()
        assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
        assert [type(error) for error in reported] == [NotStarted]

    asyncio.run(live())


def test_a_stop_ends_long_requests_that_are_served_or_wait_for_their_turn(tmp_path: Path) -> None:
    async def live() -> None:
        broker = broker_in(tmp_path)
        await broker.start()
        ended: dict[str, Exception] = {}
        for name in ("served", "waiting"):
            channel = Channel(lambda: None, partial(ended.__setitem__, name))
            broker.services.long_requests.start(channel, MAX_BYTES, asyncio.Event().wait)  # type: ignore[arg-type]
        assert await broker.stop()
        assert {name: str(error) for name, error in ended.items()} == {
            "served": "the broker is starting or stopping",
            "waiting": "the broker is starting or stopping",
        }

    asyncio.run(live())


def test_partitions_that_a_crash_left_without_a_log_are_made_at_the_start(folder: Path) -> None:
    async def live() -> None:
        for path in (folder / f"{TOPIC}-2").iterdir():
            path.unlink()
        (folder / f"{TOPIC}-2").rmdir()
        broker = broker_in(folder)
        await broker.start()
        assert all(broker.replicas.get(TOPIC, index) is not None for index in range(PARTITIONS))
        assert await broker.stop()

    asyncio.run(live())
