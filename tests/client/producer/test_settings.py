"""Options that make no sense are refused by name, before anything is tried."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.producer.producer_stories import settings_with

from penstock.client.errors import ConfigError
from penstock.client.producer import Producer
from penstock.records import Codec


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"acks": 2}, "acks"),
        ({"acks": True}, "acks"),
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
        ({"enable_idempotence": True, "retries": 0}, "retries is 0"),
        ({"enable_idempotence": True, "max_in_flight_requests_per_connection": 6}, "is 6"),
    ],
)
def test_a_bad_option_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        settings_with(**change)


def test_a_bad_option_is_found_before_anything_is_connected() -> None:
    with pytest.raises(ConfigError, match="acks"):
        Producer("nowhere.invalid:1", acks=7)  # type: ignore[arg-type]


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
