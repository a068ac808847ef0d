"""Bytes of valid and invalid batches and records, for the tests of the kernels."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.records import HEADER_SIZE, RecordTuple, python_kernel


def payload_of(items: Sequence[RecordTuple], deltas: Sequence[int] | None = None) -> bytes:
    return bytes(python_kernel.encode_records(items, deltas)[0][HEADER_SIZE:])


def batch_of(items: Sequence[RecordTuple], base_offset: int = 0, attributes: int = 0) -> bytearray:
    batch, base_timestamp, max_timestamp = python_kernel.encode_records(items)
    last = max(len(items) - 1, 0)
    python_kernel.write_header(
        batch, base_offset, 4, attributes, last, base_timestamp, max_timestamp, 1000, 2, 30, len(items)
    )
    return batch


def varint(value: int) -> bytes:
    out = bytearray()
    value = (value << 1) ^ (value >> 63)
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def record_of(body: bytes, length: int | None = None) -> bytes:
    return varint(len(body) if length is None else length) + body
