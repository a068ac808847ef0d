"""What a running broker shows at /metrics: errors by API, failures by topic, flushes, partitions."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.broker.exposition import ParsedFamily, parse
from tests.broker.wire_client import WireClient, batch_of, delete_topic, fetch_request, make_topic, produce_request
from tests.timeouts import PATIENCE_S

from penstock.broker.router import error_codes
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from penstock.wire.schemas.find_coordinator import FindCoordinatorResponse
from penstock.wire.schemas.init_producer_id import InitProducerIdRequest
from penstock.wire.schemas.metadata import MetadataResponse


@pytest.fixture
def embedded() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(http_port=0) as broker:
        yield broker


def text_of(embedded: EmbeddedBroker) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{embedded.http_port}/metrics", timeout=PATIENCE_S) as answer:
        data: bytes = answer.read()
    return data.decode()


def shown(embedded: EmbeddedBroker) -> dict[str, ParsedFamily]:
    return parse(text_of(embedded))


def test_errors_in_answers_are_counted_by_api(embedded: EmbeddedBroker, client: WireClient) -> None:
    topic = make_topic(embedded.broker)
    client.produce(topic, batch_of(b"a"))
    damaged = batch_of(b"a")
    damaged[-1] ^= 1
    for _ in range(2):
        client.produce(topic, damaged)
    client.fetch(topic, 99)
    client.ask(ApiKey.FETCH, fetch_request({}, session_id=5, session_epoch=1), 12)
    client.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=""), 4)
    errors = shown(embedded)["kafka_network_request_errors_total"]
    assert {(dict(labels)["api"], dict(labels)["error"]): value for (_, labels), value in errors.samples.items()} == {
        ("Produce", "CORRUPT_MESSAGE"): 2,
        ("Fetch", "OFFSET_OUT_OF_RANGE"): 1,
        ("Fetch", "FETCH_SESSION_ID_NOT_FOUND"): 1,
        ("InitProducerId", "INVALID_REQUEST"): 1,
    }


def test_requests_and_failures_are_counted_by_topic(embedded: EmbeddedBroker, client: WireClient) -> None:
    topic, other = make_topic(embedded.broker, partitions=2), make_topic(embedded.broker)
    damaged = batch_of(b"a")
    damaged[-1] ^= 1
    records = {(topic, 0): damaged, (topic, 1): damaged, (other, 0): batch_of(b"b")}
    client.ask(ApiKey.PRODUCE, produce_request(records), 9)
    client.ask(ApiKey.FETCH, fetch_request({(topic, 0): 5, (topic, 1): 0, (other, 0): 0}), 12)
    families = shown(embedded)

    def value(name: str, of: str) -> float:
        return families[f"kafka_server_{name}_total"].value(topic=of)

    assert value("failed_produce_requests", topic) == 2, "each topic's entry in the request is one"
    assert value("bytes_rejected", topic) == 2 * len(damaged)
    assert value("failed_produce_requests", other) == 0
    assert value("produce_requests", other) == 1
    assert (value("fetch_requests", topic), value("failed_fetch_requests", topic)) == (1, 1)
    assert (value("fetch_requests", other), value("failed_fetch_requests", other)) == (1, 0)


def test_topics_that_are_not_there_make_no_series(embedded: EmbeddedBroker, client: WireClient) -> None:
    client.produce("nowhere", batch_of(b"a"))
    client.fetch("nowhere")
    text = text_of(embedded)
    assert "nowhere" not in text
    assert 'api="Produce",error="UNKNOWN_TOPIC_OR_PARTITION"} 1' in text
    assert 'api="Fetch",error="UNKNOWN_TOPIC_OR_PARTITION"} 1' in text


def test_flushes_are_timed(embedded: EmbeddedBroker, client: WireClient) -> None:
    topic = make_topic(embedded.broker)
    before = shown(embedded)["kafka_log_flush_duration_seconds"].value("kafka_log_flush_duration_seconds_count")
    for _ in range(3):
        client.produce(topic, batch_of(b"a"))
    family = shown(embedded)["kafka_log_flush_duration_seconds"]
    assert family.value("kafka_log_flush_duration_seconds_count") == before + 3
    assert 0 < family.value("kafka_log_flush_duration_seconds_sum") < 60


def test_partitions_and_leaders_are_counted(embedded: EmbeddedBroker) -> None:
    topic = make_topic(embedded.broker, partitions=3)
    make_topic(embedded.broker)
    names = ("kafka_server_partitions", "kafka_server_leaders", "kafka_log_offline_log_directories")
    families = shown(embedded)
    assert [families[name].value() for name in names] == [4, 4, 0]
    delete_topic(embedded.broker, topic)
    families = shown(embedded)
    assert [families[name].value() for name in names] == [1, 1, 0]


def test_prometheus_own_parser_reads_all_of_it(embedded: EmbeddedBroker, client: WireClient) -> None:
    parser: Any = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    topic = make_topic(embedded.broker)
    client.produce(topic, batch_of(b"a"))
    client.fetch(topic, 99)
    text = text_of(embedded)
    theirs = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    ours = {
        (name, tuple(sorted(labels))): value
        for family in parse(text).values()
        for (name, labels), value in family.samples.items()
    }
    assert theirs == ours
    assert theirs["kafka_server_failed_fetch_requests_total", (("topic", topic),)] == 1


# --- finding the errors


def test_errors_are_found_at_every_depth() -> None:
    assert list(error_codes(FindCoordinatorResponse(error_code=15))) == [15]
    results = [
        DeleteRecordsTopicResult(
            partitions=[
                DeleteRecordsPartitionResult(error_code=ErrorCode.POLICY_VIOLATION),
                DeleteRecordsPartitionResult(),
                DeleteRecordsPartitionResult(error_code=ErrorCode.OFFSET_OUT_OF_RANGE),
            ]
        )
    ]
    assert list(error_codes(DeleteRecordsResponse(topics=results))) == [
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ]
    assert list(error_codes(MetadataResponse())) == []
