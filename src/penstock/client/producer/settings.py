"""Producer options and their checks. Names and defaults are Kafka's unless noted.

Combinations that would silently break a guarantee are rejected: idempotence needs acks=all, retries, and at most five
requests in flight, since a broker remembers that many batches of a producer.

Two defaults differ from Kafka's. `batch_size` is 256 KiB, not 16: a request costs a Python client more than its
bytes, and with 16 KiB a million records of 100 B take 2.7 times as long by `send`, 5 times by `send_many`.
`buffer_memory` is 16 MiB, not 32: the rate is the same from 8 MiB on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.client.errors import ConfigError
from penstock.records.compression import LEVELS, Codec

Acks = Literal["all", -1, 0, 1, "0", "1", "-1"]

DEFAULT_BATCH_SIZE: Final = 256 * 1024
DEFAULT_BUFFER_MEMORY: Final = 16 * 1024 * 1024
INTERRUPTED_CLOSE_S: Final = 1.0
MOST_IN_FLIGHT_NUMBERED: Final = 5
_STAGES: Final = ("enqueued", "batched", "sent", "acknowledged", "failed")
_ACKS: Final = {"all": -1, "-1": -1, -1: -1, "0": 0, 0: 0, "1": 1, 1: 1}
_CODECS: Final = {None: Codec.NONE, "none": Codec.NONE} | {codec.name.lower(): codec for codec in Codec}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Checked; made by `checked_settings`."""

    acks: int
    is_idempotent: bool
    is_idempotence_asked_for: bool
    codec: Codec
    compression_level: int | None
    batch_size: int
    linger_ms: float
    buffer_memory: int
    max_block_ms: float
    max_request_size: int
    max_in_flight: int
    retries: int
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    request_timeout_ms: int
    delivery_timeout_ms: float


def checked_settings(
    *,
    acks: Acks,
    enable_idempotence: bool | None,
    compression_type: str | None,
    compression_level: int | None,
    batch_size: int,
    linger_ms: float,
    buffer_memory: int,
    max_block_ms: float,
    max_request_size: int,
    max_in_flight_requests_per_connection: int,
    retries: int,
    retry_backoff_ms: float,
    retry_backoff_max_ms: float,
    request_timeout_ms: int,
    delivery_timeout_ms: float,
) -> ProducerSettings:
    """The settings; raises ConfigError that names the one at fault."""
    if not _is_one_of(acks, _ACKS):
        raise ConfigError(f"acks is {acks!r}", hint='It is "all", 1 or 0')
    if not (enable_idempotence is None or _is_a(enable_idempotence, bool)):
        raise ConfigError(f"enable_idempotence is {enable_idempotence!r}", hint="It is True, False or None")
    for name, whole in (
        ("batch_size", batch_size), ("max_request_size", max_request_size), ("buffer_memory", buffer_memory),
        ("max_in_flight_requests_per_connection", max_in_flight_requests_per_connection), ("retries", retries),
    ):  # fmt: skip
        if isinstance(whole, float):
            raise ConfigError(f"{name} is {whole!r}; it must be a whole number")
    _at_least("batch_size", batch_size, 0)
    _at_least("linger_ms", linger_ms, 0)
    _at_least("max_block_ms", max_block_ms, 0)
    _at_least("max_request_size", max_request_size, 1)
    _at_least("buffer_memory", buffer_memory, 1)
    _at_least("max_in_flight_requests_per_connection", max_in_flight_requests_per_connection, 1)
    _at_least("retries", retries, 0)
    _at_least("request_timeout_ms", request_timeout_ms, 1)
    _at_least("retry_backoff_ms", retry_backoff_ms, 0)
    _at_least("retry_backoff_max_ms", retry_backoff_max_ms, 0)
    _at_least("delivery_timeout_ms", delivery_timeout_ms, 1)
    if delivery_timeout_ms < linger_ms + request_timeout_ms:
        raise ConfigError(
            f"delivery_timeout_ms is {delivery_timeout_ms}, less than linger_ms + request_timeout_ms "
            f"({linger_ms} + {request_timeout_ms})",
            hint="A record would be given up before its first try could end: raise it, or lower the others",
        )
    if max_request_size > buffer_memory:
        raise ConfigError(
            f"buffer_memory is {buffer_memory}, less than max_request_size ({max_request_size})",
            hint="A record of the largest size must fit: raise buffer_memory, or lower max_request_size",
        )
    is_idempotent = _idempotence(enable_idempotence, _ACKS[acks], retries, max_in_flight_requests_per_connection)
    codec = _codec(compression_type, compression_level)
    return ProducerSettings(
        acks=_ACKS[acks],
        is_idempotent=is_idempotent,
        is_idempotence_asked_for=enable_idempotence is True,
        codec=codec,
        compression_level=compression_level,
        batch_size=min(max(batch_size, 1), max_request_size),
        linger_ms=linger_ms,
        buffer_memory=buffer_memory,
        max_block_ms=max_block_ms,
        max_request_size=max_request_size,
        max_in_flight=max_in_flight_requests_per_connection,
        retries=retries,
        retry_backoff_ms=retry_backoff_ms,
        retry_backoff_max_ms=max(retry_backoff_max_ms, retry_backoff_ms),
        request_timeout_ms=request_timeout_ms,
        delivery_timeout_ms=delivery_timeout_ms,
    )


def check_extensions(partitioner: object, interceptors: object) -> None:
    """Raises ConfigError for what cannot be called as a partitioner or an interceptor."""
    if partitioner is not None and not callable(partitioner):
        raise ConfigError(f"partitioner is {partitioner!r}", hint="Give a function of topic, key and partition count")
    if not isinstance(interceptors, (list, tuple)):
        raise ConfigError(f"interceptors is {interceptors!r}", hint="Give a list of ProducerInterceptor objects")
    for each in interceptors:
        if isinstance(each, type) or not all(hasattr(each, name) for name in _STAGES):
            raise ConfigError(f"interceptors has {each!r}", hint="Give instances of subclasses of ProducerInterceptor")


def _idempotence(asked_for: bool | None, acks: int, retries: int, max_in_flight: int) -> bool:
    obstacle, hint = None, ""
    if acks != -1:
        obstacle, hint = f"acks is {acks}", 'Use acks="all", or enable_idempotence=False'
    elif retries == 0:
        obstacle, hint = "retries is 0", "Allow retries, or use enable_idempotence=False"
    elif max_in_flight > MOST_IN_FLIGHT_NUMBERED:
        obstacle = f"max_in_flight_requests_per_connection is {max_in_flight}"
        hint = f"At most {MOST_IN_FLIGHT_NUMBERED} are possible, or use enable_idempotence=False"
    if asked_for and obstacle:
        raise ConfigError(f"enable_idempotence is on, but {obstacle}", hint=hint)
    return obstacle is None if asked_for is None else asked_for


def _codec(name: str | None, level: int | None) -> Codec:
    codec = _CODECS[name] if name is None or _is_one_of(name, _CODECS) else None
    if codec is None:
        raise ConfigError(f"compression_type is {name!r}", hint="It is none, gzip, snappy, lz4 or zstd")
    if level is None:
        return codec
    levels = LEVELS.get(codec)
    if levels is None:
        raise ConfigError(f"compression_level is {level}, but {codec.name.lower()} has no levels")
    if not _is_a(level, int) or level not in levels:
        raise ConfigError(
            f"compression_level is {level}", hint=f"{codec.name.lower()} takes {levels[0]} to {levels[-1]}"
        )
    return codec


def _is_a(value: object, kind: type) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _is_one_of(value: object, names: Mapping[Any, object]) -> bool:
    return (_is_a(value, int) or isinstance(value, str)) and value in names


def _at_least(name: str, value: object, lowest: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name} is {value!r}; it must be a number")
    if not value >= lowest:
        raise ConfigError(f"{name} is {value}; it must be at least {lowest}")
