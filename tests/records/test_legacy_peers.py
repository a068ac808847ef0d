"""Message sets of magic 0 and 1 against the two Python clients that still support them."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import cramjam
import pytest
from aiokafka.record.legacy_records import LegacyRecordBatch as AiokafkaReader
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.legacy_records import _LegacyRecordBatchBuilderPy as AiokafkaPlainBuilder
from aiokafka.record.legacy_records import _LegacyRecordBatchPy as AiokafkaPlainReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.records import CREATE_TIME
from penstock.records.compression import Codec, _xxh32_of_few
from penstock.records.legacy import LegacyMessage, decode_message_set, encode_message_set

with warnings.catch_warnings():  # it reads its schemas by a call that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    import kafka.record.legacy_records

LIMIT = 1 << 20
KAFKA_PYTHON = (
    kafka.record.legacy_records.LegacyRecordBatchBuilder,
    kafka.record.legacy_records.LegacyRecordBatch,
)
PEERS = {
    "kafka-python": KAFKA_PYTHON,
    "aiokafka": (AiokafkaBuilder, AiokafkaReader),
    "aiokafka, plain": (AiokafkaPlainBuilder, AiokafkaPlainReader),
}
CASES = [
    (peer, magic, codec)
    for peer in PEERS
    for magic in (0, 1)
    for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
    if not (codec is Codec.LZ4 and magic == 0 and peer != "kafka-python")  # aiokafka does not know that quirk
]
contents = st.lists(
    st.tuples(
        st.integers(0, 2**48),
        st.one_of(st.none(), st.binary(max_size=30)),
        st.one_of(st.none(), st.binary(max_size=60)),
    ),
    min_size=1,
    max_size=10,
)


@pytest.fixture(autouse=True)
def packages_by_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python wants packages for raw snappy and xxHash that we have under other names."""
    snappy = SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(data)),
        decompress=lambda data: bytes(cramjam.snappy.decompress_raw(data)),
    )
    xxhash = SimpleNamespace(xxh32=lambda data: SimpleNamespace(digest=lambda: _xxh32_of_few(data).to_bytes(4, "big")))
    monkeypatch.setattr(kafka.codec, "snappy", snappy)
    monkeypatch.setattr(kafka.codec, "xxhash", xxhash)


def read_by_peer(reader: Any, encoded: bytes, magic: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """(offset, timestamp, key, value) as the peer reads them, one message or wrapper at a time."""
    read, position = [], 0
    while position < len(encoded):
        size = 12 + int.from_bytes(encoded[position + 8 : position + 12], "big")
        entry = reader(bytearray(encoded[position : position + size]), magic)
        assert entry.validate_crc()
        for record in entry:
            timestamp = -1 if record.timestamp is None else record.timestamp
            read.append((record.offset, timestamp, record.key, record.value))
        position += size
    return read


@pytest.mark.parametrize(("peer", "magic", "codec"), CASES)
@given(content=contents)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_we_read_what_a_peer_writes(
    peer: str, magic: int, codec: Codec, content: list[tuple[int, bytes | None, bytes | None]]
) -> None:
    builder = PEERS[peer][0](magic=magic, compression_type=codec, batch_size=LIMIT)
    for offset, (timestamp, key, value) in enumerate(content):
        assert builder.append(offset, timestamp=timestamp, key=key, value=value)
    assert decode_message_set(bytes(builder.build()), limit=LIMIT) == [
        LegacyMessage(offset, timestamp if magic else -1, CREATE_TIME, key, value)
        for offset, (timestamp, key, value) in enumerate(content)
    ]


@pytest.mark.parametrize(("peer", "magic", "codec"), CASES)
@given(content=contents, base=st.integers(0, 2**40), gap=st.integers(1, 3))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_peer_reads_what_we_write(
    peer: str,
    magic: int,
    codec: Codec,
    content: list[tuple[int, bytes | None, bytes | None]],
    base: int,
    gap: int,
) -> None:
    messages = [
        LegacyMessage(base + index * gap, timestamp, CREATE_TIME, key, value)
        for index, (timestamp, key, value) in enumerate(content)
    ]
    encoded = encode_message_set(messages, magic, codec=codec)
    assert read_by_peer(PEERS[peer][1], encoded, magic) == [
        (m.offset, m.timestamp if magic else -1, m.key, m.value) for m in messages
    ]


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_a_peer_sees_the_time_at_which_the_broker_appended(peer: str, codec: Codec) -> None:
    messages = [LegacyMessage(at, 5, CREATE_TIME, None, b"v") for at in (7, 8)]
    encoded = encode_message_set(messages, 1, codec=codec, append_time_ms=1234)
    assert [timestamp for _, timestamp, _, _ in read_by_peer(PEERS[peer][1], encoded, 1)] == [1234, 1234]
    size = 12 + int.from_bytes(encoded[8:12], "big")
    records = list(PEERS[peer][1](bytearray(encoded[:size]), 1))
    assert {record.timestamp_type for record in records} == {1}


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("magic", [0, 1])
def test_without_a_codec_a_peer_writes_the_very_bytes_that_we_write(peer: str, magic: int) -> None:
    builder = PEERS[peer][0](magic=magic, compression_type=Codec.NONE, batch_size=LIMIT)
    messages = [LegacyMessage(at, 100 + at, CREATE_TIME, b"k%d" % at, b"v" * at) for at in range(5)]
    for m in messages:
        builder.append(m.offset, timestamp=m.timestamp, key=m.key, value=m.value)
    assert encode_message_set(messages, magic) == bytes(builder.build())
