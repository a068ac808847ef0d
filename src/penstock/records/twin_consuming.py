"""Bytes into a consumer's records, for the kernel's twin: objects that know their topic, keys and values decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from penstock.records.errors import DecodeFailed
from penstock.records.twin_bytes import Buffer, wrap_int64
from penstock.records.twin_headers import BatchHeader, check_header
from penstock.records.twin_records import check_range, decode_headers, parse_records

K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)

_APPEND_TIME_BIT = 8


@dataclass(frozen=True, slots=True)
class ConsumerRecord(Generic[K_co, V_co]):
    """A record as a consumer sees it: where it stands, its time in milliseconds, key, value, headers.

    `timestamp_type` is 0 where the producer set the time, 1 where the broker did. `leader_epoch` is -1 where the
    leader's epoch is not known.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: K_co
    value: V_co
    headers: tuple[tuple[str, bytes | None], ...] = ()
    leader_epoch: int = -1


def _decode(
    raw: ConsumerRecord[bytes | None, bytes | None],
    field: Literal["key", "value"],
    decoder: Callable[[bytes], Any] | None,
    done: list[ConsumerRecord[Any, Any]],
) -> Any:
    data = raw.key if field == "key" else raw.value
    if data is None or decoder is None:
        return data
    try:
        return decoder(data)
    except Exception as reason:  # whatever it is, it is the cause
        raise DecodeFailed(raw, field, done) from reason


def decode_consumer_records(
    buffer: Buffer,
    header: BatchHeader,
    plain: Buffer | None,
    start: int,
    end: int,
    topic: str,
    partition: int,
    from_offset: int,
    key_decoder: Callable[[bytes], Any] | None,
    value_decoder: Callable[[bytes], Any] | None,
) -> list[ConsumerRecord[Any, Any]]:
    """The records of a scanned batch from `from_offset` on, which are in plain[start:end], decompressed.

    With `plain` None they are in buffer[start:end], not compressed. A decoder is not called for None, nor for records
    before `from_offset`. What it raises becomes a DecodeFailed that holds the records before the one that failed.
    """
    if not isinstance(topic, str):
        raise TypeError(f"a topic must be str, not {type(topic).__name__}")
    check_header(header)
    view = check_range(buffer if plain is None else plain, start, end, header.record_count)
    stamped = bool(header.attributes & _APPEND_TIME_BIT)
    result: list[ConsumerRecord[Any, Any]] = []
    for parsed in parse_records(view, start, end, header.record_count):
        offset = wrap_int64(header.base_offset + parsed.offset_delta)
        if offset < from_offset:
            continue
        stamp = header.max_timestamp if stamped else wrap_int64(header.base_timestamp + parsed.timestamp_delta)
        raw = ConsumerRecord(
            topic, partition, offset, stamp, int(stamped), parsed.key, parsed.value,
            decode_headers(parsed.headers), header.leader_epoch,
        )  # fmt: skip
        if key_decoder is not None or value_decoder is not None:
            key, value = _decode(raw, "key", key_decoder, result), _decode(raw, "value", value_decoder, result)
            raw = ConsumerRecord(
                topic, partition, offset, stamp, int(stamped), key, value, raw.headers, raw.leader_epoch
            )
        result.append(raw)
    return result
