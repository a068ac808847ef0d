"""Messages of Kafka 0.7: both formats, both codecs, and everything that can be wrong with them."""

from __future__ import annotations

import contextlib
import gzip
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.records.kafka_0_7 import gzipped, message, snappied

from penstock.records.message_0_7 import DamagedMessage, payloads


def opened(entry: bytes, limit: int = 10_000) -> list[bytes]:
    assert struct.unpack(">i", entry[:4])[0] == len(entry) - 4
    return payloads(entry[4:], limit)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("payload", [b"", b"x", b"Hello" * 100])
def test_a_plain_message_is_its_payload(magic: int, payload: bytes) -> None:
    assert opened(message(payload, magic=magic)) == [payload]


def test_the_bytes_of_the_description() -> None:
    # length 1+4+n, magic, CRC-32 of the payload, payload
    assert payloads(bytes.fromhex("00 f7d18982") + b"Hello") == [b"Hello"]
    assert payloads(bytes.fromhex("01 00 f7d18982") + b"Hello") == [b"Hello"]


def test_compressed_sets_are_opened_in_order() -> None:
    texts = [b"a", b"", b"c" * 300]
    assert opened(gzipped(texts)) == texts
    assert opened(gzipped(texts, magic=0)) == texts
    assert opened(snappied(texts)) == texts
    assert opened(message(gzip.compress(gzipped([b"deep"]) + message(b"flat")), codec=1)) == [b"deep", b"flat"]
    assert opened(gzipped([])) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "a message of 0 bytes"),
        (b"\0\0\0\0", "a message of 4 bytes"),
        (b"\1\0\0\0\0", "a message of 5 bytes with magic 1"),
        (b"\2\0\0\0\0", r"magic\) 2; Kafka 0.7 has 0 and 1"),
        (b"\0\0\0\0\1", "the checksum is 0x00000001, not 0x00000000"),
        (message(b"x", codec=3)[4:], "unknown codec 3"),
        (message(b"not gzip", codec=1)[4:], "cannot be decompressed"),
        (message(gzip.compress(message(b"abc")[:-1]), codec=1)[4:], "incomplete message, at byte 0 of 12"),
        (message(gzip.compress(b"\xff\xff\xff\xff"), codec=1)[4:], "incomplete message"),
        (gzipped([bytes(20_000)])[4:], "exceeds the limit of 10000 bytes"),
    ],
    # Not by the bytes: gzip writes the time into them.
    ids=["empty", "short", "short for its magic", "unknown magic", "checksum", "unknown codec", "not gzip", "cut off",
         "length below zero", "too large"],
)  # fmt: skip
def test_damage_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedMessage, match=reason):
        payloads(data, 10_000)


def test_nesting_has_an_end() -> None:
    entry = message(b"x")
    for _ in range(4):
        entry = message(gzip.compress(entry), codec=1)
    with pytest.raises(DamagedMessage, match="nested more than 3 deep"):
        opened(entry)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_damage(data: bytes) -> None:
    with contextlib.suppress(DamagedMessage):
        payloads(data, 10_000)
