"""Invalid options are rejected by name, before connecting."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
from tests.client.producer.producer_stories import settings_with

from penstock.client.consumer import Consumer
from penstock.client.errors import ConfigError
from penstock.client.producer import AsyncProducer, Producer, ProducerInterceptor
from penstock.client.serializers import Json, Text
from penstock.records import Codec


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"acks": 2}, "acks"),
        ({"acks": True}, "acks"),
        ({"acks": []}, "acks"),
        ({"enable_idempotence": "maybe"}, "enable_idempotence"),
        ({"compression_type": 5}, "compression_type"),
        ({"compression_type": "zstd", "compression_level": "3"}, "compression_level"),
        ({"batch_size": 1.5}, "batch_size"),
        ({"retry_backoff_max_ms": "x"}, "retry_backoff_max_ms"),
        ({"compression_type": "brotli"}, "compression_type"),
        ({"compression_type": "zstd", "compression_level": 99}, "compression_level"),
        ({"compression_type": "snappy", "compression_level": 1}, "compression_level"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"batch_size": "big"}, "batch_size"),
        ({"retries": -1}, "retries"),
        ({"max_in_flight_requests_per_connection": 0}, "max_in_flight_requests_per_connection"),
        ({"buffer_memory": 1_000}, "buffer_memory"),
        ({"delivery_timeout_ms": 10}, "delivery_timeout_ms"),
        ({"enable_idempotence": True, "acks": 1}, "acks is 1"),
        ({"transactional_id": "tx", "acks": 1}, "transactional_id is given, but acks is 1"),
        ({"transactional_id": "tx", "retries": 0}, "transactional_id is given, but retries is 0"),
        (
            {"transactional_id": "tx", "max_in_flight_requests_per_connection": 6},
            "transactional_id is given, but max_in",
        ),
        ({"transactional_id": "tx", "enable_idempotence": False}, "but enable_idempotence is off"),
        ({"transactional_id": ""}, "transactional_id is empty"),
        ({"transactional_id": 7}, "transactional_id must be text"),
        ({"transactional_id": "tx", "transaction_timeout_ms": 0}, "transaction_timeout_ms"),
        ({"transaction_two_phase_commit": True}, "there is no transactional_id"),
        ({"enable_idempotence": True, "retries": 0}, "retries is 0"),
        ({"enable_idempotence": True, "max_in_flight_requests_per_connection": 6}, "is 6"),
    ],
)
def test_a_bad_option_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        settings_with(**change)


@pytest.mark.parametrize(
    ("client", "given", "ours"),
    [
        (Producer, "value_serializer", "value"), (Producer, "linger.ms", "linger_ms"),
        (Producer, "bootstrap.servers", "bootstrap_servers"),
        (Consumer, "value_deserializer", "value"), (Consumer, "group.id", "group_id"),
    ],
)  # fmt: skip
def test_the_name_that_another_client_has_for_an_option_leads_to_ours(client: Any, given: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=rf"{given}\. Did you mean {ours}\?"):
        client("nowhere.invalid:1", **{given: "x"})


def test_a_bad_option_is_found_before_anything_is_connected() -> None:
    with pytest.raises(ConfigError, match="acks"):
        Producer("nowhere.invalid:1", acks=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("value", 5), ("value", "json"), ("value", Json), ("key", object()), ("key", Text), ("partitioner", 3),
        ("interceptors", ProducerInterceptor), ("interceptors", [ProducerInterceptor]), ("interceptors", [5]),
        ("on_statistics", 5), ("statistics_interval_ms", 0),
        ("ssl", "yes"), ("client_id", 7), ("connect_timeout_ms", "x"), ("metadata_max_age_ms", 0),
    ],
)  # fmt: skip
def test_what_cannot_serve_is_rejected_by_name_when_the_producer_is_made(
    kind: type[Any], option: str, given: object
) -> None:
    with pytest.raises(ConfigError, match=rf"\b{option}\b"):
        kind("nowhere.invalid:1", **{option: given})


@pytest.mark.parametrize("kind", [Producer, Consumer])
def test_a_wrong_keyword_is_named_and_leaves_nothing_behind(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises((TypeError, ConfigError), match="lingerms"):
        kind(bootstrap_servers="nowhere.invalid:1", lingerms=5)
    gc.collect()
    assert ignored == []


def test_idempotence_is_on_where_it_can_be() -> None:
    assert settings_with().is_idempotent
    assert not settings_with(acks=1).is_idempotent
    assert not settings_with(acks=0).is_idempotent
    assert not settings_with(retries=0).is_idempotent
    assert not settings_with(max_in_flight_requests_per_connection=6).is_idempotent
    assert not settings_with(enable_idempotence=False).is_idempotent


def test_codecs_go_by_their_names() -> None:
    assert settings_with(compression_type=None).codec is Codec.NONE
    assert settings_with(compression_type="lz4").codec is Codec.LZ4
    assert settings_with(compression_type="gzip", compression_level=9).compression_level == 9
