"""Settings take effect: at the start, and those that can be changed while the broker runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.broker.wire_client import WireClient, batch_of, make_topic, values_in

from penstock import Admin, ConfigResource
from penstock.broker.background_tasks import BackgroundTasks, checkpoint_interval_ms
from penstock.broker.broker import Broker
from penstock.broker.dynamic_config import configure_cleaner, network_limits
from penstock.broker.settings import settings_from
from penstock.log.compaction.log_cleaner import LogCleaner
from penstock.runtime.clock import ManualClock
from penstock.runtime.network import SYSTEM_DEFAULT
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.api_versions import ApiVersionsRequest
from penstock.wire.schemas.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return {"max.request.partition.size.limit": "2"}


def is_served(port: int) -> bool:
    with WireClient(port) as client:
        try:
            client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 3)
        except ConnectionError:
            return False
        return True


def test_an_address_may_have_another_limit_of_connections() -> None:
    settings = {"max.connections.per.ip": "5", "max.connections.per.ip.overrides": "127.0.0.1:1"}
    with EmbeddedBroker(settings=settings) as embedded, WireClient(embedded.port) as only:
        only.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 3)
        assert not is_served(embedded.port)
    elsewhere = {**settings, "max.connections.per.ip.overrides": "10.0.0.1:1"}
    with EmbeddedBroker(settings=elsewhere) as embedded, WireClient(embedded.port):
        assert is_served(embedded.port)


def test_the_limit_of_connections_can_change_while_the_broker_runs(embedded: EmbeddedBroker) -> None:
    with Admin(f"127.0.0.1:{embedded.port}") as admin, WireClient(embedded.port) as first:
        assert is_served(embedded.port)
        admin.alter_config(ConfigResource.broker(0), {"max.connections": 1})
        assert not is_served(embedded.port)
        first.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 3)
        admin.alter_config(ConfigResource.broker(0), {"max.connections": 100})
        assert is_served(embedded.port)


def test_a_topic_without_down_conversion_is_not_read_by_old_clients(broker: Broker, client: WireClient) -> None:
    new, old = make_topic(broker, configs={"message.downconversion.enable": "false"}), make_topic(broker)
    for topic in (new, old):
        client.produce(topic, batch_of(b"a"))
    assert client.fetch(old, version=3).error_code == ErrorCode.NONE
    rejected = client.fetch(new, version=3)
    assert (rejected.error_code, bytes(rejected.records or b"")) == (ErrorCode.UNSUPPORTED_VERSION, b"")  # type: ignore[arg-type]
    assert values_in(client.fetch(new, version=4).records) == [b"a"]


def test_pages_of_partitions_are_bounded_by_a_setting(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker, partitions=3)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=topic)], response_partition_limit=100)
    page = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request, 0)
    assert [len(each.partitions) for each in page.topics] == [2]
    assert page.next_cursor.partition_index == 2


def test_socket_buffers_are_those_of_the_system_unless_set() -> None:
    limits = network_limits(settings_from({}))
    assert (limits.send_buffer_bytes, limits.receive_buffer_bytes) == (SYSTEM_DEFAULT, SYSTEM_DEFAULT)
    limits = network_limits(
        settings_from({"socket.send.buffer.bytes": "65536", "socket.receive.buffer.bytes": "131072"})
    )
    assert (limits.send_buffer_bytes, limits.receive_buffer_bytes) == (65536, 131072)


@pytest.mark.parametrize(
    ("settings", "interval_ms"),
    [
        ({}, 5_000),
        ({"replica.high.watermark.checkpoint.interval.ms": "700"}, 700),
        ({"log.flush.offset.checkpoint.interval.ms": "900"}, 900),
        ({"log.flush.start.offset.checkpoint.interval.ms": "0"}, 100),
    ],
)
def test_checkpoints_are_written_at_the_shortest_of_their_intervals(
    settings: Mapping[str, str], interval_ms: int
) -> None:
    assert checkpoint_interval_ms(settings_from(settings)) == interval_ms


def test_the_cleaner_has_its_memory_and_its_rate_from_the_settings() -> None:
    cleaner: Any = SimpleNamespace(map_bytes=0, throttle=None)
    clock = ManualClock()
    configure_cleaner(cast(LogCleaner, cleaner), settings_from({"log.cleaner.dedupe.buffer.size": "2000000"}), clock)
    assert (cleaner.map_bytes, cleaner.throttle) == (2_000_000, None)
    limited = settings_from({"log.cleaner.io.max.bytes.per.second": "1000"})
    configure_cleaner(cast(LogCleaner, cleaner), limited, clock)
    assert cleaner.throttle is not None


def test_an_interval_that_changes_counts_from_the_next_run_on() -> None:
    waits: list[float] = []
    due: list[Callable[[], None]] = []

    def call_later(delay_s: float, call: Callable[[], None]) -> Any:
        waits.append(delay_s)
        due.append(call)
        return SimpleNamespace(cancel=lambda: None)

    interval_ms = 1_000
    tasks = BackgroundTasks(call_later)
    tasks.every("task", lambda: interval_ms, lambda: None)
    interval_ms = 250
    due.pop()()
    assert waits == [1.0, 0.25]


def test_the_steps_of_a_task_have_a_turn_of_the_loop_each() -> None:
    """Going through 10,000 logs at once takes 10 ms, and three tasks do it every second."""
    waits: list[float] = []
    due: list[Callable[[], None]] = []
    done: list[int] = []

    def call_later(delay_s: float, call: Callable[[], None]) -> Any:
        waits.append(delay_s)
        due.append(call)
        return SimpleNamespace(cancel=lambda: None)

    def steps() -> Iterator[None]:
        for number in range(len(done), len(done) + 3):
            if number == 4:
                raise ValueError("the second step of the second run")
            done.append(number)
            yield

    tasks = BackgroundTasks(call_later)
    tasks.every("task", 1_000, steps)
    seen = []
    for _ in range(7):
        due.pop()()
        seen.append(len(done))
    assert seen == [1, 2, 3, 3, 4, 4, 4]
    assert waits == [1.0, 0, 0, 0, 1.0, 0, 1.0, 1.0]
    tasks.close()
    due.pop()()
    assert not due


def test_a_task_that_fails_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    due: list[Callable[[], None]] = []

    def call_later(_: float, call: Callable[[], None]) -> Any:
        due.append(call)
        return SimpleNamespace(cancel=lambda: None)

    tasks = BackgroundTasks(call_later)
    tasks.every("task", 1_000, lambda: 1 // 0)
    due.pop()()
    assert len(due) == 1
    assert "background task failed, retrying: task=task" in caplog.text
    tasks.close()
    due.pop()()
    assert not due
